//! A watch over a WebSocket: one message per event.
//!
//! A request with `Upgrade: websocket` takes its connection out of HTTP. From then on a separate task owns the
//! connection and the watch. It does one of three things at a time: it receives from the client (contents are ignored;
//! only pings, pongs and closes matter), it sends the watch's frames, or it pings. While it sends, it does nothing
//! else: a client that does not read blocks its task, which holds one batch and its position in the log. A pong is sent
//! before the next message is received, so a client that pings without reading delays only itself. A client that sends
//! without pause cannot starve its own watch, and the task yields between messages so that it cannot starve other
//! clients of its thread.
//!
//! Events bypass the protocol library's write buffer, which would copy each event for each client, and stay as large as
//! the largest event for the life of the connection. Only the frame's header is made here: a server's frames are not
//! masked.
//!
//! | cause of the end | what the client sees |
//! | --- | --- |
//! | the watch ends | close 1000, or 1001 if the server shuts down |
//! | the user no longer exists or may no longer watch | an ERROR that says which, then close 1008 |
//! | the client closes | the answer to its close frame |
//! | the client sends a message of more than 4 KiB | close 1009 |
//! | malformed frames; malformed text | close 1002; close 1007 |
//! | no pong for 30 s after a ping; no byte taken for `limits.stall` | the end of the connection |

use crate::access::{Peer, header_contains, header_words};
use crate::clients::{Account, Activity, UnreadAnswer};
use crate::frame::Frame;
use crate::status::Refusal;
use crate::watch::{OpenWatches, Progress, WatchStream};
use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::{consume_budget, unconstrained};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data as OpData, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Utf8Bytes};

/// Interval of pings, and how long the client may take to answer one.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// How long a closing connection waits for the client to close it too.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest message that a client may send; contents are ignored.
const MAX_MESSAGE: usize = 4 << 10;
/// Size of the read and write buffers, which live as long as the connection.
const BUFFER: usize = 4 << 10;

/// Whether a request asks for a WebSocket. In HTTP/2 this form of request does not exist.
pub(crate) fn is_asked(request: &Parts) -> bool {
    let headers = &request.headers;
    request.version == Version::HTTP_11
        && request.method == Method::GET
        && header_contains(headers, header::CONNECTION, "upgrade")
        && header_contains(headers, header::UPGRADE, "websocket")
}

/// A request to upgrade a connection to a WebSocket.
pub(crate) struct Upgrade {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    /// The connection's activity, through which it may be cut off, and its count of unread bytes.
    counted: Option<(Arc<Activity>, Arc<UnreadAnswer>)>,
    /// The first subprotocol that the client offers: a browser closes the connection if none of its offers is chosen.
    protocol: Option<HeaderValue>,
}

impl Upgrade {
    /// Returns the upgrade that a request asks for; `None` if it asks for no WebSocket.
    ///
    /// # Errors
    /// 400 and 426 if the request for a WebSocket is malformed or of another version.
    pub(crate) fn of(request: &Parts) -> Result<Option<Upgrade>, Refusal> {
        let headers = &request.headers;
        // Without hyper's upgrade handle, as in a router whose server supports no upgrades, it is treated as a plain
        // request.
        let Some(upgrade) = request.extensions.get::<OnUpgrade>().filter(|_| is_asked(request)) else {
            return Ok(None);
        };
        if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(Refusal::new(
                426,
                "UpgradeRequired",
                "this server speaks version 13 of WebSocket: send Sec-WebSocket-Version: 13",
            ));
        }
        let is_key = |key: &&HeaderValue| STANDARD.decode(key).is_ok_and(|key| key.len() == 16);
        let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(is_key);
        let key = key.ok_or_else(|| Refusal::bad_request("Sec-WebSocket-Key must be 16 bytes in base64"))?;
        let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
            .map_err(|_| Refusal::bad_request("Sec-WebSocket-Key must be 16 bytes in base64"))?;
        let activity = Peer::of(request).and_then(|peer| peer.activity.clone());
        let account = request.extensions.get::<Arc<Account>>();
        let counted = activity.zip(account).map(|(activity, account)| {
            let answered = account.answer(Box::new(activity.clone()));
            (activity, answered)
        });
        let protocol = header_words(headers, header::SEC_WEBSOCKET_PROTOCOL)
            .next()
            .and_then(|word| HeaderValue::from_str(word).ok());
        Ok(Some(Upgrade { upgrade: upgrade.clone(), accept, counted, protocol }))
    }

    /// Returns the 101 response, and spawns the task that serves the watch on the upgraded connection. `open` tells
    /// whether the server shuts down; a client that takes no byte for `stall` is disconnected.
    pub(crate) fn respond(self, stream: WatchStream, open: Arc<OpenWatches>, stall: Duration) -> Response {
        let Upgrade { upgrade, accept, counted, protocol } = self;
        tokio::spawn(async move {
            let upgraded = match upgrade.await {
                Ok(upgraded) => TokioIo::new(upgraded),
                Err(error) => return tracing::debug!(%error, "an upgrade to a WebSocket failed"),
            };
            let (activity, answered) = counted.unzip();
            let serving = serve(upgraded, stream, &open, SocketClient { stall, answered });
            match activity {
                // The connection's own task no longer watches for the cut-off.
                Some(activity) => tokio::select! {
                    biased;
                    () = activity.is_cut() => {}
                    () = serving => {}
                },
                None => serving.await,
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        if let Some(protocol) = protocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        response
    }
}

/// The limits on how the client takes what is sent.
pub(crate) struct SocketClient {
    /// The client must take some byte within this time.
    pub(crate) stall: Duration,
    /// Counts unread bytes, on a connection of our own server.
    pub(crate) answered: Option<Arc<UnreadAnswer>>,
}

/// The way a connection ends.
#[derive(Debug)]
enum Ending {
    /// The server sends its close frame, and waits for the client's answer to it.
    Close(CloseCode, &'static str),
    /// The client has closed the connection, or has vanished.
    Gone,
}

/// Sends a watch until either side ends it.
pub(crate) async fn serve<I: AsyncRead + AsyncWrite + Unpin>(
    io: I,
    stream: WatchStream,
    open: &OpenWatches,
    taker: SocketClient,
) {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let ending = run_session(&mut socket, stream, open, &taker).await;
    tracing::debug!(?ending, "a WebSocket ends");
    if let Ending::Close(code, reason) = ending {
        // Errors do not matter: the client may have disconnected.
        let _ = timeout(CLOSE_TIMEOUT, close_session(&mut socket, code, reason)).await;
    }
}

/// Runs until either side ends the connection. The watch returns its permit when this returns.
async fn run_session<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    mut stream: WatchStream,
    open: &OpenWatches,
    taker: &SocketClient,
) -> Ending {
    let mut frames = Vec::new();
    // When the client is pinged or, if it was, when it is considered gone.
    let (mut due, mut was_pinged) = (Instant::now() + PING_INTERVAL, false);
    loop {
        // Not `biased`: a branch that is always ready would starve the others.
        let happened = tokio::select! {
            heard = socket.next() => handle_message(socket, heard, taker.stall).await.map(|()| true),
            progress = poll_fn(|context| stream.poll_frames(context, &mut frames)) => {
                let sent = send(socket, &mut frames, taker).await;
                sent.and(if progress == Progress::Ended { Err(end_of(open, &stream)) } else { Ok(false) })
            }
            () = sleep_until(due), if was_pinged => match now_or_none(unconstrained(socket.next())).await {
                // The pong may have arrived while the task was sending.
                Some(heard) => handle_message(socket, heard, taker.stall).await.map(|()| true),
                None => Err(Ending::Gone),
            },
            () = sleep_until(due), if !was_pinged => {
                (due, was_pinged) = (Instant::now() + PING_INTERVAL, true);
                ping(socket, due).await.map(|()| false)
            }
        };
        match happened {
            Ok(was_heard) if was_heard => (due, was_pinged) = (Instant::now() + PING_INTERVAL, false),
            Ok(_) => {}
            Err(ending) => return ending,
        }
    }
}

/// Returns how a connection is closed whose watch has ended.
fn end_of(open: &OpenWatches, stream: &WatchStream) -> Ending {
    if let Some(error) = stream.revoked() {
        return Ending::Close(CloseCode::Policy, error.code().reason());
    }
    match open.is_draining() {
        true => Ending::Close(CloseCode::Away, "the server is shutting down"),
        false => Ending::Close(CloseCode::Normal, ""),
    }
}

/// Returns the output of a future if it is ready at the first poll.
async fn now_or_none<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Handles a message from the client.
async fn handle_message<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    heard: Option<Result<Message, Error>>,
    stall: Duration,
) -> Result<(), Ending> {
    match heard {
        Some(Ok(Message::Close(_))) => {
            let answer = async {
                // The protocol library has queued the answer, which this flush sends; it then reports the connection as
                // closed. TLS needs its own shutdown, or the client sees a truncated connection.
                let _ = socket.flush().await;
                socket.get_mut().shutdown().await
            };
            let _ = timeout(CLOSE_TIMEOUT, answer).await;
            Err(Ending::Gone)
        }
        // Queued pongs have no bound, so each is written before the next ping is received.
        Some(Ok(Message::Ping(_))) => within_stall(stall, socket.flush()).await,
        Some(Ok(_)) => {
            // One read may yield hundreds of messages, but tokio's budget counts only reads. Without this, a client
            // that sends pongs without pause would hold the thread for a hundred reads.
            consume_budget().await;
            Ok(())
        }
        Some(Err(error)) => Err(ending_of(&error)),
        None => Err(Ending::Gone),
    }
}

/// Pings the client, which must take the ping before `due`.
async fn ping<I: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocketStream<I>, due: Instant) -> Result<(), Ending> {
    match timeout_at(due, socket.send(Message::Ping(Bytes::new()))).await {
        Ok(sent) => sent.map_err(|error| ending_of(&error)),
        Err(_) => Err(Ending::Gone),
    }
}

/// Awaits a write, of which the client must take a part in time.
async fn within_stall<T>(stall: Duration, write: impl Future<Output = Result<T, Error>>) -> Result<T, Ending> {
    match timeout(stall, write).await {
        Ok(written) => written.map_err(|error| ending_of(&error)),
        Err(_) => Err(Ending::Gone),
    }
}

/// Sends frames as long as the client takes some bytes in time.
async fn send<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    frames: &mut Vec<Frame>,
    taker: &SocketClient,
) -> Result<(), Ending> {
    if frames.is_empty() {
        return Ok(());
    }
    let messages: Vec<Bytes> = frames.drain(..).flat_map(|frame| message(&frame)).collect();
    let bytes = messages.iter().map(Bytes::len).sum();
    let _made = taker.answered.as_ref().map(|answered| answered.produced(bytes));
    // The library's own control frames go first, so that none is left half written.
    within_stall(taker.stall, socket.flush()).await?;
    write_all(socket.get_mut(), &messages, taker.stall).await
}

/// Writes buffers without copying, many at a time, as long as the client takes some bytes in time.
async fn write_all<I: AsyncWrite + Unpin>(io: &mut I, buffers: &[Bytes], stall: Duration) -> Result<(), Ending> {
    let mut slices: Vec<IoSlice<'_>> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let written = within_stall(stall, async { io.write_vectored(left).await.map_err(Error::from) }).await?;
        if written == 0 {
            return Err(Ending::Gone);
        }
        IoSlice::advance_slices(&mut left, written);
    }
    within_stall(stall, async { io.flush().await.map_err(Error::from) }).await
}

/// Encodes a frame as a message: a header, and the payload without copying it. If the payload, which may be a stored
/// value, is not UTF-8, the message is binary.
fn message(frame: &Frame) -> impl Iterator<Item = Bytes> + use<> {
    const FINAL: u8 = 0x80;
    let payload: Vec<Bytes> = frame.messages().collect();
    let length = payload.iter().map(Bytes::len).sum();
    let is_text = payload.iter().all(|piece| std::str::from_utf8(piece).is_ok());
    let kind = if is_text { OpData::Text } else { OpData::Binary };
    let mut head = Vec::with_capacity(10);
    head.push(FINAL | u8::from(OpCode::Data(kind)));
    match length {
        length @ ..126 => head.push(length as u8),
        length @ 126..=0xffff => {
            head.push(126);
            head.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            head.push(127);
            head.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    std::iter::once(Bytes::from(head)).chain(payload)
}

/// Returns how a connection ends after an error.
fn ending_of(error: &Error) -> Ending {
    match error {
        Error::Capacity(_) => Ending::Close(CloseCode::Size, "a message of this watch's client has at most 4096 bytes"),
        Error::Utf8(_) => Ending::Close(CloseCode::Invalid, "text that is not UTF-8"),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Ending::Gone,
        Error::Protocol(_) => Ending::Close(CloseCode::Protocol, "a malformed frame"),
        _ => Ending::Gone,
    }
}

/// Closes the connection, and reads what the client still sends: dropping a socket with unread bytes resets it, and the
/// close frame may be lost.
async fn close_session<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    code: CloseCode,
    reason: &'static str,
) {
    if socket.close(Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) })).await.is_err() {
        return;
    }
    // Reads up to the client's close frame.
    while let Some(Ok(_)) = socket.next().await {
        consume_budget().await;
    }
    let io = socket.get_mut();
    if io.shutdown().await.is_ok() {
        let mut rest = [0; 1024];
        while let Ok(1..) = io.read(&mut rest).await {}
    }
}

#[cfg(test)]
mod tests;
