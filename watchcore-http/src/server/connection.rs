//! The life of a connection, from the accepted socket to its end.
//!
//! The connection's task makes the TLS handshake, detects the version of HTTP, and lets hyper serve the requests. It
//! has no time limits of its own: the clock inspects its [`Activity`](crate::clients::Activity), tells it to close, or
//! cuts it off.

use super::answer::until_cut;
use super::clock::Connection;
use super::error_body::ErrorBodySocket;
use super::handler::{DirectWatch, Handler, WatchHandover};
use super::shared::{Shared, TaskCount};
use super::socket::Socket;
use crate::access::Peer;
use crate::clients::Activity;
use crate::counters::Reason;
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

/// The connection preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The minimum read buffer of hyper.
const MIN_BUFFER: usize = 8192;

/// How many answers are made concurrently for one HTTP/2 connection; further requests wait in order, so that a thousand
/// requests at once do not delay other connections. nginx and Go limit the streams of a connection to 128 and 250;
/// watches need more streams here, but their heads are made at once.
const MAX_CONCURRENT_ANSWERS: usize = 100;

/// How long the shutdown of a socket may take.
const CLOSING: Duration = Duration::from_secs(2);

/// Interval of HTTP/2 pings on a silent connection, and how long the client may take to answer one.
const PING: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(30)];

/// An accepted socket.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    pub(super) connection: Connection,
    /// All permits are in use: only health probes are answered.
    pub(super) only_health: bool,
}

/// A phase of a connection, boxed and freed when it ends: a task is as large as its largest inline future, and a
/// handshake is ten times as large as a watch.
type ConnectionFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Serves a connection until it ends or is cut off.
pub(super) fn run(accepted: Accepted, shared: Arc<Shared>) -> impl Future<Output = ()> + Send {
    let activity = accepted.connection.activity().clone();
    // Created outside the async block, which would otherwise reserve space for its arguments twice.
    let mut beginning: ConnectionFuture<Option<ConnectionFuture<()>>> = Box::pin(begin(accepted, shared));
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

/// Makes the handshake and detects the version of HTTP. Returns the phase that serves the requests; `None` if the
/// client disconnected.
async fn begin(accepted: Accepted, shared: Arc<Shared>) -> Option<ConnectionFuture<()>> {
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
        activity.set_handshaking(false);
        let (stream, made) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.counters().refused(Reason::handshake);
                tracing::debug!(target: "watchcore_http", %address, "TLS handshake: {error}");
                return None;
            }
        };
        let session = stream.get_ref().1;
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        peer.certificate = tls.client_certificate(session, &made).map(Box::new);
        if peer.certificate.is_some() {
            activity.is_known();
        }
        // Boxed: a session takes a kilobyte, and each future around it would reserve space for it twice.
        let stream = Box::new(stream);
        Some(ConnectionContext { shared, peer: Arc::new(peer), only_health }.http(
            stream,
            Bytes::new(),
            connection,
            is_http2,
        ))
    } else {
        let ahead = tokio::select! {
            ahead = first_bytes(&mut stream) => ahead,
            () = activity.closes() => return None,
        };
        let ahead = ahead?;
        let is_http2 = ahead == PREFACE;
        Some(ConnectionContext { shared, peer: Arc::new(peer), only_health }.http(stream, ahead, connection, is_http2))
    }
}

/// Reads until it is clear whether the client speaks HTTP/2; `None` if it disconnected. The bytes are consumed and not
/// peeked: a socket with peeked bytes stays readable, so that waiting for the rest would spin.
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

/// The state of one connection besides its socket.
pub(super) struct ConnectionContext {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: Arc<Peer>,
    pub(super) only_health: bool,
}

impl ConnectionContext {
    /// Serves the requests on a socket.
    pub(super) fn http<IO>(self, io: IO, ahead: Bytes, connection: Connection, is_http2: bool) -> ConnectionFuture<()>
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
            making: is_http2.then(|| Arc::new(Semaphore::new(MAX_CONCURRENT_ANSWERS))),
            handover: None,
        };
        let ConnectionContext { shared, peer, .. } = self;
        if is_http2 {
            let socket = Socket::new(io, ahead, connection, false);
            return Box::pin(async move { ended(http2(&shared, socket, handler).await, &shared, &peer) });
        }
        activity.set_http1();
        if !ahead.is_empty() {
            activity.received();
        }
        let socket = Socket::new(io, ahead, connection, true);
        http1(shared, socket, handler)
    }
}

/// Counts and logs the error with which a connection ended.
fn ended(served: hyper::Result<()>, shared: &Shared, peer: &Peer) {
    let Err(error) = served else { return };
    if error.is_parse_too_large() {
        shared.counters().refused(Reason::header_bytes);
    } else if error.is_parse() {
        shared.counters().refused(Reason::malformed);
    }
    tracing::debug!(target: "watchcore_http", address = %peer.address, "connection: {error}");
}

/// Alternates between hyper, which serves requests, and watches, which take the socket over.
fn http1<IO>(shared: Arc<Shared>, mut socket: Socket<IO>, handler: Handler) -> ConnectionFuture<()>
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

/// Serves requests until the client is done (`None`), or a watch takes the connection over: then returns the socket,
/// the bytes that hyper had read of the next request, and the watch.
async fn requests<IO>(
    shared: &Shared,
    socket: Socket<IO>,
    mut handler: Handler,
) -> hyper::Result<Option<(Socket<IO>, Bytes, DirectWatch)>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = shared.limits();
    let activity = handler.activity.clone();
    let handover = WatchHandover::default();
    handler.handover = shared.direct.then(|| handover.clone());
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Disabled, because hyper would include the time between two requests; the clock enforces the limit.
        .header_read_timeout(None::<Duration>)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.queued_bytes.max(limits.header_bytes).max(MIN_BUFFER));
    let mut connection =
        Box::pin(builder.serve_connection(TokioIo::new(ErrorBodySocket::new(socket)), handler).with_upgrades());
    let mut is_closing = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map(|()| None),
            taken = poll_fn(|_| poll_handover(&handover, &activity)) => {
                // Moving out is sound: hyper's connection is `Unpin`.
                let parts = Pin::into_inner(connection).into_parts();
                return Ok(parts.map(|parts| (parts.io.into_inner().into_inner(), parts.read_buf, taken)));
            }
            () = activity.closes(), if !is_closing => {
                // A client that has sent nothing expects no answer.
                if activity.is_fresh() {
                    return Ok(None);
                }
                is_closing = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Returns the watch that the service has handed over. Registers no waker: it is polled after each poll of the
/// connection, during which the service stores the watch. The watch stays there while hyper has unwritten bytes of
/// earlier, pipelined answers; hyper then waits for the socket, and is polled again.
fn poll_handover(handover: &WatchHandover, activity: &Activity) -> Poll<DirectWatch> {
    if !activity.is_flushed() {
        return Poll::Pending;
    }
    let taken = handover.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.map_or(Poll::Pending, Poll::Ready)
}

/// Writes a watch until it ends or the client disconnects; no part of hyper exists meanwhile. `None` if the connection
/// ends with it.
fn watch<IO>(
    socket: Socket<IO>,
    ahead: Bytes,
    taken: DirectWatch,
    handler: &Handler,
) -> ConnectionFuture<Option<Socket<IO>>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let DirectWatch { head, stream, answered, answering, keeps_alive, body } = taken;
    let (activity, address) = (handler.activity.clone(), handler.peer.address);
    // Created outside the async block, which would otherwise hold each argument twice, for as long as the watch.
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
            // The client sees the end of the stream either way; its close is not waited for.
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
    // Additional streams, so that a connection with the maximum of watches can still list.
    let streams = u32::try_from(limits.watches_per_connection.saturating_add(100)).unwrap_or(u32::MAX);
    let mut builder = http2::Builder::new(Streams(shared.alive.clone()));
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(streams)
        .max_send_buf_size(limits.queued_bytes.min(u32::MAX as usize))
        // Small windows: clients upload no data here.
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

/// Runs the HTTP/2 streams for hyper: each as a counted task, which can be cut off alone.
#[derive(Clone)]
struct Streams(Arc<TaskCount>);

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
