//! The life of a connection, from the accepted socket to its end.
//!
//! The task of a connection makes the TLS handshake, finds out which HTTP the client speaks, and lets hyper serve its
//! requests. The task has no time limit of its own: the clock looks at its [`Activity`](super::clock::Activity), tells it to
//! close, or cuts it off.

use super::Shared;
use super::answer::until_cut;
use super::clock::Connection;
use super::handler::{Handler, Taken, Takeover};
use super::socket::Socket;
use super::worded::Worded;
use crate::access::Peer;
use crate::clients::Activity;
use crate::figures::Reason;
use crate::transport::direct::Direct;
use bytes::{Bytes, BytesMut};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// The first bytes of a client of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A read buffer of hyper is never smaller.
const LEAST_BUFFER: usize = 8192;

/// Answers that are made at a time for one connection of HTTP/2; the others wait in their order, so that a thousand requests
/// which come at once do not keep those of other connections from their turns. nginx and Go let a connection have 128 and 250
/// streams in all; here watches need more, and their heads are made at once.
const MADE_AT_ONCE: usize = 100;

/// How long the end of a connection may take to be said.
const CLOSING: Duration = Duration::from_secs(2);

/// A client of HTTP/2 is asked whether it is there after so long without a word of it, and has as long for the answer.
const PING: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(30)];

/// A socket that was accepted.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) connection: Connection,
    /// All places are taken but those for health.
    pub(super) only_health: bool,
}

/// A part of the life of a connection. Each is a box of its own, which goes with it: a task is as large as the largest
/// future that is written into it, and a handshake is ten times as large as a watch.
type Part<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Serves a connection until it ends, or is cut off.
pub(super) fn run(accepted: Accepted, shared: Arc<Shared>) -> impl Future<Output = ()> + Send {
    let activity = accepted.connection.activity().clone();
    // Made here and not inside of the future, which would have room for its arguments twice.
    let mut beginning: Part<Option<Part<()>>> = Box::pin(begin(accepted, shared));
    async move {
        let served = tokio::select! {
            biased;
            () = activity.is_cut() => return,
            served = &mut beginning => served,
        };
        drop(beginning);
        let Some(served) = served else { return };
        tokio::select! {
            biased;
            () = activity.is_cut() => {}
            () = served => {}
        }
    }
}

/// Makes the handshake, and finds out which HTTP is spoken. Returns the part that serves the requests; `None`: the client is
/// gone.
async fn begin(accepted: Accepted, shared: Arc<Shared>) -> Option<Part<()>> {
    let Accepted { mut stream, address, connection, only_health } = accepted;
    let local = stream.local_addr().ok();
    let activity = connection.activity().clone();
    let mut peer = Peer {
        address,
        local,
        is_encrypted: shared.tls.is_some(),
        certificate: None,
        asks_certificate: shared.asks_certificate,
        watches: Arc::default(),
        activity: Some(activity.clone()),
    };
    if let Some(tls) = &shared.tls {
        let accepting = async {
            let made = tls.current().await;
            let stream = tokio_rustls::TlsAcceptor::from(made.config.clone()).accept(stream).await?;
            Ok::<_, std::io::Error>((stream, made))
        };
        let accepted = tokio::select! {
            accepted = Box::pin(accepting) => accepted,
            () = activity.closes() => return None,
        };
        activity.shakes_hands(false);
        let (stream, made) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.figures().refused(Reason::handshake);
                tracing::debug!(target: "watchcore_http", %address, "TLS handshake: {error}");
                return None;
            }
        };
        let session = stream.get_ref().1;
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        peer.certificate = tls.shown(session, made).map(Box::new);
        if peer.certificate.is_some() {
            activity.is_known();
        }
        // A session is a kilobyte, and each of the futures above it would have room for one twice.
        let stream = Box::new(stream);
        Some(Link { shared, peer: Arc::new(peer), only_health }.http(stream, Bytes::new(), connection, is_http2))
    } else {
        let ahead = tokio::select! {
            ahead = first_bytes(&mut stream) => ahead,
            () = activity.closes() => return None,
        };
        let ahead = ahead?;
        let is_http2 = ahead == PREFACE;
        Some(Link { shared, peer: Arc::new(peer), only_health }.http(stream, ahead, connection, is_http2))
    }
}

/// Reads until it is clear whether the client speaks HTTP/2: bytes are taken, not peeked at, for a look at bytes that
/// stay would be ready at once again, as long as the rest does not come. `None`: it went.
async fn first_bytes(stream: &mut TcpStream) -> Option<Bytes> {
    let mut ahead = BytesMut::new();
    loop {
        let mut buffer = [0; PREFACE.len()];
        let missing = PREFACE.len() - ahead.len();
        match stream.read(&mut buffer[..missing]).await {
            Ok(0) | Err(_) => return None,
            Ok(read) => ahead.extend_from_slice(&buffer[..read]),
        }
        if ahead == PREFACE || !PREFACE.starts_with(&ahead) {
            return Some(ahead.freeze());
        }
    }
}

/// The parts of one connection beside its socket.
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: Arc<Peer>,
    pub(super) only_health: bool,
}

impl Link {
    /// Serves requests over a socket.
    pub(super) fn http<IO>(self, io: IO, ahead: Bytes, connection: Connection, is_http2: bool) -> Part<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = connection.activity().clone();
        let handler = Handler {
            router: self.shared.router.clone(),
            peer: self.peer.clone(),
            activity: activity.clone(),
            api: self.shared.api.clone(),
            only_health: self.only_health,
            making: is_http2.then(|| Arc::new(Semaphore::new(MADE_AT_ONCE))),
            takeover: None,
        };
        let Link { shared, peer, .. } = self;
        if is_http2 {
            let socket = Socket::new(io, ahead, connection, false);
            return Box::pin(async move { ended(http2(&shared, socket, handler).await, &shared, &peer) });
        }
        activity.heeds_bytes();
        if !ahead.is_empty() {
            activity.heard();
        }
        let socket = Socket::new(io, ahead, connection, true);
        http1(shared, socket, handler)
    }
}

/// Counts and logs the error that a connection ended with.
fn ended(served: hyper::Result<()>, shared: &Shared, peer: &Peer) {
    let Err(error) = served else { return };
    if error.is_parse_too_large() {
        shared.figures().refused(Reason::header_bytes);
    } else if error.is_parse() {
        shared.figures().refused(Reason::malformed);
    }
    tracing::debug!(target: "watchcore_http", address = %peer.address, "connection: {error}");
}

/// hyper has the socket, or a watch.
fn http1<IO>(shared: Arc<Shared>, mut socket: Socket<IO>, handler: Handler) -> Part<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(async move {
        loop {
            let asked = Box::pin(requests(&shared, socket, handler.clone())).await;
            let (back, ahead, taken) = match asked {
                Ok(Some(asked)) => asked,
                Ok(None) => return,
                Err(error) => return ended(Err(error), &shared, &handler.peer),
            };
            match watch(back, ahead, taken, &handler).await {
                Some(back) => socket = back,
                None => return,
            }
        }
    })
}

/// Until the client is done, or asks for something else than answers: a watch that leaves hyper, with the socket and what
/// hyper had read of the next request.
async fn requests<IO>(
    shared: &Shared,
    socket: Socket<IO>,
    mut handler: Handler,
) -> hyper::Result<Option<(Socket<IO>, Bytes, Taken)>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = shared.limits();
    let activity = handler.activity.clone();
    let takeover = Takeover::default();
    handler.takeover = shared.direct.then(|| takeover.clone());
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // The clock has it, for hyper counts the time between two requests as the time of a head.
        .header_read_timeout(None::<Duration>)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.queued_bytes.max(limits.header_bytes).max(LEAST_BUFFER));
    let mut connection = Box::pin(builder.serve_connection(TokioIo::new(Worded::new(socket)), handler).with_upgrades());
    let mut is_closing = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map(|()| None),
            taken = poll_fn(|_| take(&takeover, &activity)) => {
                // The connection is not pinned by anything of its own: hyper's is a state machine of plain fields.
                let parts = Pin::into_inner(connection).into_parts();
                return Ok(parts.map(|parts| (parts.io.into_inner().into_inner(), parts.read_buf, taken)));
            }
            () = activity.closes(), if !is_closing => {
                // A client that has sent nothing waits for no answer.
                if activity.is_fresh() {
                    return Ok(None);
                }
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// A watch that the service has left for the task of the connection. Never waits by itself: it is looked at behind each
/// poll of the connection, and it is put there inside of one. The watch stays there while hyper has bytes of the answer before it
/// (of a client that sends its requests ahead): then hyper waits for the socket, and is polled again.
fn take(takeover: &Takeover, activity: &Activity) -> Poll<Taken> {
    if !activity.is_flushed() {
        return Poll::Pending;
    }
    let taken = takeover.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.map_or(Poll::Pending, Poll::Ready)
}

/// The watch has the socket, until it ends or the client goes. No part of hyper is left meanwhile. `None`: the connection
/// ends with it.
fn watch<IO>(socket: Socket<IO>, ahead: Bytes, taken: Taken, handler: &Handler) -> Part<Option<Socket<IO>>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Taken { head, stream, answered, answering, keeps_alive, body } = taken;
    let (activity, address) = (handler.activity.clone(), handler.peer.address);
    // Made here and not inside of the future, which would hold each part of it a second time, for as long as the watch.
    let mut direct = Direct::new(socket, head, stream, ahead, answered);
    Box::pin(async move {
        let written = poll_fn(|context| direct.poll(context)).await;
        drop((body, answering));
        let (mut socket, ahead) = direct.into_parts();
        match written {
            Ok(()) if keeps_alive && !activity.is_last() => {
                socket.put_back(ahead);
                return Some(socket);
            }
            // The client sees the end of the stream either way; its part of the closing is not waited for.
            Ok(()) => drop(Box::pin(tokio::time::timeout(CLOSING, socket.shutdown())).await),
            Err(error) => tracing::debug!(target: "watchcore_http", %address, "watch: {error}"),
        }
        None
    })
}

async fn http2<IO>(shared: &Shared, socket: Socket<IO>, handler: Handler) -> hyper::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = shared.limits();
    let activity = handler.activity.clone();
    // Room beside the watches, so that a connection that has all of them still lists.
    let streams = u32::try_from(limits.watches_per_connection.saturating_add(100)).unwrap_or(u32::MAX);
    let mut builder = http2::Builder::new(Streams(shared.alive.clone()));
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(streams)
        .max_send_buf_size(limits.queued_bytes.min(u32::MAX as usize))
        // Clients upload no data here.
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535)
        .keep_alive_interval(PING[0])
        .keep_alive_timeout(PING[1]);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), handler));
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        () = activity.closes() => {}
    }
    connection.as_mut().graceful_shutdown();
    connection.await
}

/// Runs the streams of HTTP/2 for hyper: each is a task that is counted, and can be cut off alone.
#[derive(Clone)]
struct Streams(Arc<super::Alive>);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let alive = self.0.enter();
        let stream = until_cut(stream);
        tokio::spawn(async move {
            stream.await;
            drop(alive);
        });
    }
}
