//! A server of an [`Api`]'s own: sockets, TLS, connections, and shutdown.
//!
//! A program that has a server nests [`Api::router`] into it. Other programs start a [`Server`]: it accepts connections
//! on the caller's tokio runtime, with one task each, speaks HTTP/1.1 and HTTP/2 on the same port, enforces
//! [`Limits`](crate::Limits), and shuts down gracefully.
//!
//! The life of a connection: `accept` accepts it, if there is a permit; `connection` makes the handshake, detects the
//! version of HTTP, and runs hyper; `handler` adds the [`Peer`](crate::access::Peer) to each request and passes it to
//! the router; `answer` counts the answer's bytes until the client has taken them; and `clock` ends a connection that
//! makes no progress. On shutdown the listener closes first, then idle connections, then the others after their
//! answers; watches are ended one by one; the rest is cut off at the end of the grace time.

mod accept;
mod answer;
mod clock;
mod connection;
mod descriptors;
mod error_body;
mod handler;
mod shared;
mod socket;
mod tls;

pub use tls::Tls;

use crate::api::Api;
use crate::clients::ClientPermits;
use axum::Router;
use clock::Clock;
use shared::{Shared, TaskCount};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use watchcore::{Code, Error, Result};

/// How many unaccepted connections the kernel queues, unless its own limit is lower. A connection beyond that is
/// ignored, and the client retries a second later; after a restart, all clients connect at once.
const BACKLOG: u32 = 4096;

/// A running server. Its watches are tokio tasks: caches built with `trust_wakers(true)` wake them soonest. Dropping
/// the server ends it at once, like [`shutdown`](Server::shutdown) without grace.
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
    /// Receives the grace time; dropped: no grace.
    stop: oneshot::Sender<Duration>,
    accepting: JoinHandle<()>,
}

/// Builder of a [`Server`].
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
    /// How long [`shutdown`](Server::shutdown) may take beyond the grace time: HTTP/2 streams may need it to notice
    /// that their connection was cut off.
    pub const CUT: Duration = shared::CUT;

    /// Creates a builder of a server for this service. By default it listens on 127.0.0.1:8080.
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

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts down: from now on `/readyz` fails and connections are refused; watches end cleanly, one by one over most
    /// of the grace time; answers that have begun are sent whole; idle connections close. The rest is cut off at the
    /// end of the grace time. Returns when the last connection is closed.
    ///
    /// The service ends too, permanently, wherever else it is served: its watches end there as well, and new ones are
    /// refused. A program that wants to continue must build another [`Api`].
    pub async fn shutdown(self, grace: Duration) {
        // Fails if the accepting task is gone because its runtime shut down.
        let _ = self.stop.send(grace);
        let _ = self.accepting.await;
    }
}

impl ServerBuilder {
    /// Sets the address: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; port 0 chooses a free port.
    ///
    /// A host name is resolved at the start, on a blocking thread; the first of its addresses on which the server can
    /// listen is used.
    ///
    /// An address other than loopback requires TLS and authentication (an authenticator, or client certificates), or
    /// [`insecure`](ServerBuilder::insecure).
    pub fn address(mut self, address: impl Into<String>) -> ServerBuilder {
        self.address = address.into();
        self
    }

    /// Sets a listening socket to use instead of an address, for example from systemd.
    pub fn listener(mut self, listener: StdListener) -> ServerBuilder {
        self.listener = Some(listener);
        self
    }

    /// Enables TLS with these certificates.
    pub fn tls(mut self, tls: Tls) -> ServerBuilder {
        self.tls = Some(tls);
        self
    }

    /// Allows an address other than loopback without TLS or without authentication: then every client that reaches the
    /// server reads everything that it serves. Default: no.
    pub fn insecure(mut self, insecure: bool) -> ServerBuilder {
        self.insecure = insecure;
        self
    }

    /// Sets the program's own router, which contains the service's router. Default: only the service's router.
    ///
    /// Its layers see each answer, and may change it. If none of them needs the bodies of watches, enable
    /// [`direct`](ServerBuilder::direct).
    pub fn router(mut self, router: Router) -> ServerBuilder {
        self.router = Some(router);
        self
    }

    /// Sets whether watches over HTTP/1.1 bypass the layers of the [`router`](ServerBuilder::router) and are written
    /// straight to their socket. An idle watch then has no buffers, which are most of its memory; but a layer that
    /// compresses, counts or otherwise handles bodies does not see the bodies of watches, and would break them. The
    /// head of the answer is sent as the layers leave it. Default: yes, unless the program sets its own router.
    pub fn direct(mut self, direct: bool) -> ServerBuilder {
        self.direct = Some(direct);
        self
    }

    /// Starts the server on the caller's runtime.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the address is malformed, or is not loopback and the server is not secure, or if the
    /// certificates cannot be read. UNAVAILABLE if the server cannot listen on the address.
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
        let alive = Arc::new(TaskCount::default());
        let state = &self.api.0;
        let shared = Arc::new(Shared {
            direct: self.direct.unwrap_or(self.router.is_none()),
            router: self.router.unwrap_or_else(|| self.api.router()),
            requires_authentication: asks_certificate || self.api.authenticates(),
            permits: ClientPermits::new(descriptors::room_for(state.limits.connections)),
            clock: Clock::new(state.limits.clone(), state.counters.clone()),
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
/// INVALID_ARGUMENT if the address is malformed; UNAVAILABLE if it is in use, or not an address of this machine.
async fn bind(address: &str) -> Result<TcpListener> {
    // Resolved on a blocking thread, because DNS may be slow.
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
    // As std does: a restarted server need not wait for old connections to expire. On Windows the option means
    // something else.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn check_secure(address: SocketAddr, encrypts: bool, authenticates: bool) -> Result<()> {
    let lacks = match (encrypts, authenticates) {
        (true, true) => return Ok(()),
        (true, false) => "clients are not authenticated",
        (false, true) => "connections are not encrypted",
        (false, false) => "connections are not encrypted, and clients are not authenticated",
    };
    let message = format!(
        "listening on {address} is insecure: others reach this address, and {lacks}. Give certificates and tokens (or a client CA), or listen on 127.0.0.1, or say in so many words that it may be insecure (--insecure-listen)."
    );
    Err(Error::new(Code::InvalidArgument, message))
}

#[cfg(test)]
mod tests;
