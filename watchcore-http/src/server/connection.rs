//! One connection, from the accepted socket to its end.
//!
//! The task of a connection makes the TLS handshake, finds out which HTTP the client speaks, and serves requests. What may
//! last for hours (a watch, a WebSocket) is a [`Stage`] of its own: the task ends, and another begins with the socket, for
//! a task is as large as the largest of what it ever does. Each has a time limit of its own, so that no client that says
//! nothing holds a place for ever.

use super::handler::{Handler, Taken, Takeover};
use super::socket::{Activity, Pace, Patience, Socket};
use super::worded::Worded;
use super::{Place, Shared};
use crate::access::Peer;
use crate::figures::Reason;
use crate::transport::direct::Direct;
use crate::transport::until_cut;
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
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// What a client of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A read buffer of hyper is never smaller.
const LEAST_BUFFER: usize = 8192;

/// How long the end of a connection may take to be said.
const CLOSING: Duration = Duration::from_secs(2);

/// What belongs to one connection beside its socket.
pub(super) struct Link {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    activity: Arc<Activity>,
    /// When it began to wait for the first head.
    begun: Instant,
    /// Becomes true when the server ends; and closed, if it was dropped.
    ending: watch::Receiver<bool>,
    /// Counted, until the connection is gone.
    _place: Place,
}

/// What a connection goes on with, as a task of its own.
pub(super) type Stage = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection without TLS.
pub(super) async fn plain(stream: TcpStream, address: SocketAddr, shared: Arc<Shared>, place: Place) {
    let local = stream.local_addr().ok();
    let peer = Peer {
        address,
        local,
        is_encrypted: false,
        certificate: None,
        asks_certificate: false,
        watches: Arc::default(),
        stalled: Notify::new(),
    };
    let mut link = Link::new(peer, shared, place);
    let Some((stream, ahead)) = Box::pin(link.first_bytes(stream)).await else { return };
    if ahead == PREFACE {
        Box::pin(link.http2(stream, ahead)).await;
    } else {
        link.http1(stream, ahead).await;
    }
}

/// A connection with TLS.
pub(super) async fn secure(stream: TcpStream, address: SocketAddr, shared: Arc<Shared>, place: Place) {
    let Some(tls) = &shared.tls else { return };
    let local = stream.local_addr().ok();
    let mut ending = shared.ending.subscribe();
    let handshake = async {
        let made = tls.current().await;
        let stream = tokio_rustls::TlsAcceptor::from(made.config.clone()).accept(stream).await?;
        Ok::<_, std::io::Error>((stream, made))
    };
    let limit = shared.limits().handshake_timeout;
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(limit, handshake) => accepted,
        () = begun(&mut ending) => return,
    };
    let (stream, made) = match accepted {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            shared.figures().refused(Reason::handshake);
            tracing::debug!(target: "watchcore_http", %address, "TLS handshake: {error}");
            return;
        }
        Err(_) => return shared.figures().refused(Reason::handshake_timeout),
    };
    let session = stream.get_ref().1;
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let certificate = tls.shown(session, made);
    let peer = Peer {
        address,
        local,
        is_encrypted: true,
        certificate,
        asks_certificate: shared.asks_certificate,
        watches: Arc::default(),
        stalled: Notify::new(),
    };
    let link = Link::new(peer, shared, place);
    if is_http2 {
        Box::pin(link.http2(stream, Bytes::new())).await;
    } else {
        link.http1(stream, Bytes::new()).await;
    }
}

/// Waits for the end of the server; there is one, too, where it was dropped.
async fn begun(ending: &mut watch::Receiver<bool>) {
    let _ = ending.wait_for(|is_ending| *is_ending).await;
}

impl Link {
    pub(super) fn new(peer: Peer, shared: Arc<Shared>, place: Place) -> Link {
        let ending = shared.ending.subscribe();
        let activity = Arc::new(Activity::new(peer.watches.clone()));
        Link { peer: Arc::new(peer), activity, begun: Instant::now(), ending, shared, _place: place }
    }

    /// Reads until it is clear whether the client speaks HTTP/2: bytes are taken, not peeked at, for a look at bytes
    /// that stay would be ready at once again, as long as the rest does not come.
    async fn first_bytes(&mut self, mut stream: TcpStream) -> Option<(TcpStream, Bytes)> {
        let limit = self.shared.limits().header_timeout;
        let mut ahead = BytesMut::new();
        // A moment that the clock cannot hold never comes.
        let due = self.begun.checked_add(limit);
        let mut timeout = pin!(async move {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        });
        loop {
            let mut buffer = [0; PREFACE.len()];
            let missing = PREFACE.len() - ahead.len();
            tokio::select! {
                read = stream.read(&mut buffer[..missing]) => match read {
                    Ok(0) | Err(_) => return None,
                    Ok(read) => ahead.extend_from_slice(&buffer[..read]),
                },
                () = &mut timeout => {
                    self.shared.figures().refused(Reason::header_timeout);
                    return None;
                }
                () = begun(&mut self.ending) => return None,
            }
            if ahead == PREFACE || !PREFACE.starts_with(&ahead) {
                return Some((stream, ahead.freeze()));
            }
        }
    }

    fn handler(&self, takeover: Option<Takeover>) -> Handler {
        Handler {
            takeover,
            router: self.shared.router.clone(),
            peer: self.peer.clone(),
            activity: self.activity.clone(),
            api: self.shared.api.clone(),
        }
    }

    pub(super) fn http1<IO>(self, io: IO, ahead: Bytes) -> Stage
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let socket = Socket::new(io, ahead, self.activity.clone());
        self.requests(socket)
    }

    /// The task of this connection ends, and that of this stage begins. Where the server is gone, so is the connection.
    fn go_on(shared: &Shared, stage: Stage) {
        let _ = shared.stages.send(stage);
    }

    /// hyper has the socket, until the client is done, or too slow, or asks for something else than answers.
    fn requests<IO>(mut self, socket: Socket<IO>) -> Stage
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Box::pin(async move {
            let shared = self.shared.clone();
            match self.answer(socket).await {
                Next::Watch(socket, ahead, taken) => Link::go_on(&shared, self.watch(socket, ahead, *taken)),
                Next::Upgraded => Link::go_on(&shared, self.upgraded()),
                Next::End => {}
            }
        })
    }

    async fn answer<IO>(&mut self, socket: Socket<IO>) -> Next<IO>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = self.shared.limits();
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // `Patience` has it, for hyper counts the time between two requests as the time of a head.
            .header_read_timeout(None::<Duration>)
            .max_header_size(limits.header_bytes)
            .max_buf_size(limits.queued_bytes.max(limits.header_bytes).max(LEAST_BUFFER));
        let takeover = Takeover::default();
        let handler = self.handler(self.shared.direct.then(|| takeover.clone()));
        let connection = builder.serve_connection(TokioIo::new(Worded::new(socket)), handler).with_upgrades();
        let mut connection = Box::pin(connection);
        let mut patience = Patience::new(limits, true, self.begun);
        let mut is_ending = *self.ending.borrow();
        if is_ending {
            connection.as_mut().graceful_shutdown();
        }
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        self.failed(&error);
                    }
                    break;
                }
                taken = poll_fn(|_| take(&takeover, &self.activity)) => {
                    // The connection is not pinned by anything of its own: hyper's is a state machine of plain fields.
                    return match Pin::into_inner(connection).into_parts() {
                        Some(parts) => Next::Watch(parts.io.into_inner().into_inner(), parts.read_buf, Box::new(taken)),
                        None => Next::End,
                    };
                }
                pace = poll_fn(|context| patience.poll_expired(context, &self.activity)) => {
                    if self.is_over(pace) {
                        return Next::End;
                    }
                    connection.as_mut().graceful_shutdown();
                    patience.last();
                }
                () = self.peer.stalled.notified() => return Next::End,
                () = begun(&mut self.ending), if !is_ending => {
                    is_ending = true;
                    if self.activity.is_fresh() {
                        return Next::End;
                    }
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
        drop(connection);
        if self.activity.is_closed() { Next::End } else { Next::Upgraded }
    }

    /// The watch has the socket, until it ends or the client goes. Nothing of hyper is left meanwhile.
    fn watch<IO>(self, socket: Socket<IO>, ahead: Bytes, taken: Taken) -> Stage
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Taken { head, stream, keeps_alive, body } = taken;
        // Made here and not inside of the future, which would hold each part of it a second time, for as long as the watch.
        let mut direct = Direct::new(socket, head, stream, ahead, self.shared.limits().stall);
        Box::pin(async move {
            let written = poll_fn(|context| direct.poll(context)).await;
            drop(body);
            let (mut socket, ahead) = direct.into_parts();
            match written {
                Ok(()) if keeps_alive && !*self.ending.borrow() => {
                    socket.put_back(ahead);
                    let shared = self.shared.clone();
                    Link::go_on(&shared, self.requests(socket));
                }
                Ok(()) => Box::pin(close(socket)).await,
                Err(error) => {
                    tracing::debug!(target: "watchcore_http", address = %self.peer.address, "watch: {error}");
                }
            }
        })
    }

    /// A WebSocket has the socket: the connection has its place until that is dropped.
    fn upgraded(self) -> Stage {
        // From here on, and not from the first poll of the stage: that may never come.
        let closed = self.activity.closed();
        Box::pin(async move {
            closed.await;
            drop(self);
        })
    }

    pub(super) async fn http2<IO>(mut self, io: IO, ahead: Bytes)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limits = self.shared.limits();
        let socket = Socket::new(io, ahead, self.activity.clone());
        let streams = Streams { alive: self.shared.alive.clone(), peer: self.peer.clone(), stall: limits.stall };
        let mut builder = http2::Builder::new(streams);
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            // Room beside the watches, so that a connection that has all of them still lists.
            .max_concurrent_streams(
                u32::try_from(limits.watches_per_connection.saturating_add(100)).unwrap_or(u32::MAX),
            )
            .max_send_buf_size(limits.queued_bytes.min(u32::MAX as usize))
            // Nothing is uploaded here.
            .initial_stream_window_size(65_535)
            // No pings: a client that does not read its socket does not answer them, and may watch all the same. The system
            // finds out who is gone.
            .initial_connection_window_size(65_535);
        let mut connection = Box::pin(builder.serve_connection(TokioIo::new(socket), self.handler(None)));
        let mut patience = Patience::new(limits, false, self.begun);
        let mut is_ending = false;
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        self.failed(&error);
                    }
                    return;
                }
                pace = poll_fn(|context| patience.poll_expired(context, &self.activity)) => {
                    if self.is_over(pace) {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    patience.last();
                }
                // What it is about may be something else now.
                () = self.activity.answered() => {}
                () = begun(&mut self.ending), if !is_ending => {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }

    /// Whether a connection whose time is over is cut off, rather than told to close.
    fn is_over(&self, pace: Pace) -> bool {
        match pace {
            Pace::Head => self.shared.figures().refused(Reason::header_timeout),
            Pace::Taking(_) => stalled(&self.peer, self.shared.limits().stall),
            _ => {}
        }
        pace != Pace::Idle
    }

    fn failed(&self, error: &hyper::Error) {
        if error.is_parse_too_large() {
            self.shared.figures().refused(Reason::header_bytes);
        } else if error.is_parse() {
            self.shared.figures().refused(Reason::malformed);
        }
        tracing::debug!(target: "watchcore_http", address = %self.peer.address, "connection: {error}");
    }
}

/// What hyper gave a socket back for.
enum Next<IO> {
    /// A watch is to be written to it; behind it, what hyper had read ahead.
    Watch(Socket<IO>, Bytes, Box<Taken>),
    /// Another task has the socket: a WebSocket.
    Upgraded,
    End,
}

/// The client sees the end of the stream either way; its part of the closing is not waited for.
async fn close<IO: AsyncWrite + Unpin>(mut socket: Socket<IO>) {
    let _ = tokio::time::timeout(CLOSING, socket.shutdown()).await;
}

/// A watch that the service has left for the task of the connection. Never waits by itself: it is looked at behind each
/// poll of the connection, and it is put there inside of one. It stays there while hyper has bytes of the answer before it
/// (of a client that sends its requests ahead): then hyper waits for the socket, and is polled again.
fn take(takeover: &Takeover, activity: &Activity) -> Poll<Taken> {
    if !activity.is_flushed() {
        return Poll::Pending;
    }
    let taken = takeover.lock().unwrap_or_else(PoisonError::into_inner).take();
    taken.map_or(Poll::Pending, Poll::Ready)
}

/// The client of an answer has taken nothing of it for too long.
fn stalled(peer: &Peer, limit: Duration) {
    let address = peer.address;
    tracing::info!(target: "watchcore_http", %address, ?limit, "an answer is cut off: its client takes nothing of it");
}

/// Where hyper runs the streams of HTTP/2 of one connection: each is a task that is counted.
#[derive(Clone)]
struct Streams {
    alive: Arc<super::Alive>,
    peer: Arc<Peer>,
    stall: Duration,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let alive = self.alive.enter();
        let (peer, limit) = (self.peer.clone(), self.stall);
        let stream = until_cut(stream, limit, move || stalled(&peer, limit));
        tokio::spawn(async move {
            stream.await;
            drop(alive);
        });
    }
}
