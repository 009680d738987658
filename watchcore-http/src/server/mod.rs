//! A server of an [`Api`]'s own: sockets, TLS, connections, and their end.
//!
//! A program that has a server already nests [`Api::router`] into it. One that has none starts a [`Server`]: it accepts
//! connections on the caller's tokio runtime, one task each at a time, speaks HTTP/1.1 and HTTP/2 on the same port, holds the
//! limits of [`Limits`](crate::Limits), and ends without cutting anybody off.
//!
//! The life of a connection: `accept` takes it, if there is a place; `connection` makes the handshake, finds out what is
//! spoken, and runs hyper; `handler` puts the [`Peer`](crate::access::Peer) into each request and hands it to the
//! router; `answer` counts what is answered until the client has taken it; and `clock` ends it where it makes no
//! progress. At the end of the server the listener closes first, then connections that are idle, the others behind what
//! they answer; watches are ended one by one; what is left at the end of the grace time is cut off.

mod accept;
mod answer;
mod clock;
mod connection;
mod descriptors;
mod handler;
mod socket;
mod tls;
mod worded;

pub use tls::Tls;

use crate::api::{Api, Limits};
use crate::clients::ClientPlaces;
use crate::figures::Figures;
use axum::Router;
use clock::Clock;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use watchcore::{Code, Error, Result};

/// How many connections the system holds that are not accepted yet, where its own limit is not lower. One more is left
/// without an answer, and tries again a second later: behind a restart all clients come in one moment.
const BACKLOG: u32 = 4096;

/// A server that runs. Its watches are tasks of tokio's: caches built with `trust_wakers(true)` wake them soonest.
/// Where it is dropped it ends at once, as with a [`shutdown`](Server::shutdown) without grace.
///
/// ```
/// use std::time::Duration;
/// use watchcore::Cache;
/// use watchcore_http::{Api, Server};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let api = Api::builder().cache(Cache::builder("/registry/").build()?).build()?;
/// let server = Server::builder(api).address("127.0.0.1:0").start().await?;
/// println!("http://{}", server.address());
/// server.shutdown(Duration::from_secs(10)).await;
/// # Ok::<(), watchcore::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "a server that is dropped ends"]
pub struct Server {
    address: SocketAddr,
    /// Takes the grace time; dropped, there is none.
    stop: oneshot::Sender<Duration>,
    accepting: JoinHandle<()>,
}

/// What a [`Server`] is started with.
///
/// ```no_run
/// use watchcore::Cache;
/// use watchcore_http::{Api, Server, Tls, Tokens};
///
/// # async fn start() -> watchcore::Result<()> {
/// let cache = Cache::builder("/registry/").build()?;
/// let api = Api::builder().cache(cache).authenticator(Tokens::from_file("tokens")?).build()?;
/// let server = Server::builder(api).address("0.0.0.0:8443").tls(Tls::new("server.crt", "server.key")).start().await?;
/// # drop(server);
/// # Ok(())
/// # }
/// ```
#[must_use = "start() starts it"]
pub struct ServerBuilder {
    api: Api,
    router: Option<Router>,
    address: String,
    listener: Option<StdListener>,
    tls: Option<Tls>,
    insecure: bool,
    direct: Option<bool>,
}

impl Server {
    /// How long [`shutdown`](Server::shutdown) takes at most beyond the grace time: streams of HTTP/2 may need it to notice that
    /// their connection was cut off.
    pub const CUT: Duration = Duration::from_secs(5);

    /// A server of this service. It listens on 127.0.0.1:8080 until told otherwise.
    ///
    /// A service may have several servers, and be nested in another; but it ends with the first of them that ends.
    pub fn builder(api: Api) -> ServerBuilder {
        ServerBuilder {
            api,
            router: None,
            address: "127.0.0.1:8080".into(),
            listener: None,
            tls: None,
            insecure: false,
            direct: None,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it: `/readyz` fails from now on and nobody can connect; each watch ends cleanly, one by one over most of the
    /// grace time; each answer is sent whole; idle connections close. What is there at the end of the grace time is cut
    /// off. Returns when the last connection is gone.
    ///
    /// The service ends with it, for good, and wherever else it is served: its watches end there too, and new ones are
    /// refused. A program that goes on builds another [`Api`] for that.
    pub async fn shutdown(self, grace: Duration) {
        // It is not there any more where its runtime ends.
        let _ = self.stop.send(grace);
        let _ = self.accepting.await;
    }
}

impl ServerBuilder {
    /// Where it listens: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; port 0 is any that is free.
    ///
    /// A name is looked up when it starts, on a thread that may block; of its addresses the first that can be listened on
    /// is taken.
    ///
    /// An address that others reach needs TLS and something that says who asks (an authenticator, or client
    /// certificates), or [`insecure`](ServerBuilder::insecure).
    pub fn address(mut self, address: impl Into<String>) -> ServerBuilder {
        self.address = address.into();
        self
    }

    /// A socket that listens already, instead of an address: of systemd, for example.
    pub fn listener(mut self, listener: StdListener) -> ServerBuilder {
        self.listener = Some(listener);
        self
    }

    /// Connections are encrypted, with these certificates.
    pub fn tls(mut self, tls: Tls) -> ServerBuilder {
        self.tls = Some(tls);
        self
    }

    /// Others may reach it although it does not encrypt, or does not ask who they are: everybody who reaches it reads
    /// everything that it serves. Default: no.
    pub fn insecure(mut self, insecure: bool) -> ServerBuilder {
        self.insecure = insecure;
        self
    }

    /// The program's own router, into which that of the service is nested or merged. Default: the service's alone.
    ///
    /// Its layers see each answer as it goes out, and may change it. Where none of them looks into bodies, say
    /// [`direct`](ServerBuilder::direct).
    pub fn router(mut self, router: Router) -> ServerBuilder {
        self.router = Some(router);
        self
    }

    /// Whether a watch over HTTP/1.1 is written past the layers of the [`router`](ServerBuilder::router), straight to its
    /// socket. Then it has no buffer while it is idle, which is most of what it costs; but a layer that compresses, counts,
    /// or otherwise takes part in the bodies of answers does not see that of a watch, and would break it. The head of the
    /// answer goes out as they leave it. Default: without a router of the program's own.
    pub fn direct(mut self, direct: bool) -> ServerBuilder {
        self.direct = Some(direct);
        self
    }

    /// Starts it on the runtime of the caller.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where the address is none, or others reach it and it is not secure; where the certificates
    /// cannot be read. UNAVAILABLE where the address cannot be listened on.
    pub async fn start(self) -> Result<Server> {
        let of_listener = |error: std::io::Error| Error::new(Code::Unavailable, format!("cannot listen: {error}"));
        let given = |listener: StdListener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let listener = match self.listener {
            Some(listener) => given(listener).map_err(of_listener)?,
            None => bind(&self.address).await?,
        };
        let address = listener.local_addr().map_err(of_listener)?;
        let asks_certificate = self.tls.as_ref().is_some_and(Tls::asks_certificate);
        if !self.insecure && !address.ip().to_canonical().is_loopback() {
            check_secure(address, self.tls.is_some(), asks_certificate || self.api.authenticates())?;
        }
        let tls = self.tls.as_ref().map(Tls::load).transpose()?;
        let alive = Arc::new(Alive::default());
        let state = &self.api.0;
        let shared = Arc::new(Shared {
            direct: self.direct.unwrap_or(self.router.is_none()),
            router: self.router.unwrap_or_else(|| self.api.router()),
            must_be_known: asks_certificate || self.api.authenticates(),
            places: ClientPlaces::new(descriptors::room_for(state.limits.connections)),
            clock: Clock::new(state.limits.clone(), state.figures.clone()),
            api: self.api,
            tls,
            asks_certificate,
            alive,
        });
        let (stop, stopped) = oneshot::channel();
        let accepting = tokio::spawn(accept::run(listener, shared, stopped));
        Ok(Server { address, stop, accepting })
    }
}

/// # Errors
/// INVALID_ARGUMENT where it is no address; UNAVAILABLE where it is another's, or taken.
async fn bind(address: &str) -> Result<TcpListener> {
    // A name is looked up on a thread that may block, for it may take as long as its servers do.
    let found = tokio::net::lookup_host(address).await.map_err(|error| {
        let message =
            format!("listen address {address:?}: {error}. Give an address and a port, such as 127.0.0.1:8080.");
        Error::new(Code::InvalidArgument, message)
    })?;
    let mut refused = None;
    for found in found {
        match listen(found) {
            Ok(listener) => return Ok(listener),
            Err(error) => refused = Some(error),
        }
    }
    let why = refused.map_or_else(|| "the name has no address".to_owned(), |error| error.to_string());
    let message =
        format!("cannot listen on {address}: {why}. Give another address, or end the program that has this one.");
    Err(Error::new(Code::Unavailable, message))
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As std does it: a restarted server need not wait for connections of the one before. On Windows it means more.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn check_secure(address: SocketAddr, encrypts: bool, authenticates: bool) -> Result<()> {
    let lacks = match (encrypts, authenticates) {
        (true, true) => return Ok(()),
        (true, false) => "nothing says who asks",
        (false, true) => "the connections are not encrypted",
        (false, false) => "the connections are not encrypted, and nothing says who asks",
    };
    let message = format!(
        "listening on {address} is insecure: others reach this address, and {lacks}. Give certificates and tokens (or a client CA), or listen on 127.0.0.1, or say in so many words that it may be insecure (--insecure-listen)."
    );
    Err(Error::new(Code::InvalidArgument, message))
}

/// What all connections of a server share.
struct Shared {
    api: Api,
    router: Router,
    /// Watches of HTTP/1.1 leave hyper.
    direct: bool,
    tls: Option<tls::Certificates>,
    asks_certificate: bool,
    /// Who asks has to be known.
    must_be_known: bool,
    places: Arc<ClientPlaces>,
    clock: Arc<Clock>,
    alive: Arc<Alive>,
}

impl Shared {
    fn limits(&self) -> &Arc<Limits> {
        &self.api.0.limits
    }

    fn figures(&self) -> &Arc<Figures> {
        &self.api.0.figures
    }
}

/// How many tasks of the server live beside those of connections: the streams of HTTP/2.
#[derive(Default)]
struct Alive {
    count: AtomicUsize,
    on_none: Notify,
}

/// One of them, until this is dropped.
struct AliveTask(Arc<Alive>);

impl Alive {
    fn enter(self: &Arc<Self>) -> AliveTask {
        self.count.fetch_add(1, SeqCst);
        AliveTask(self.clone())
    }

    /// Waits until there is none. Nobody may enter any more.
    async fn none(&self) {
        while self.count.load(SeqCst) > 0 {
            // One that leaves between the two leaves a permit.
            self.on_none.notified().await;
        }
    }
}

impl Drop for AliveTask {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, SeqCst) == 1 {
            self.0.on_none.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
