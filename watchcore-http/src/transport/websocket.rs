//! A watch over a WebSocket: one text message an event.
//!
//! A request with `Upgrade: websocket` takes its connection out of HTTP. From then on a task of its own holds the
//! connection and the watch, and does one of three things at a time: it hears the client (only whether it is there, and
//! whether it closes; what it says is not looked at), it sends what the watch has, or it asks whether anybody is there.
//! While it sends, it does nothing else: a client that does not read holds the task there, with one piece of the watch
//! and its place in the log. A pong is sent before more is heard, so a client that asks and does not read waits for itself.
//! None of the three keeps the others waiting: one that talks all the time is heard, and its watch ends in its time; behind
//! some of its messages it gives way to the other clients of its thread.
//!
//! Events are written past the protocol's own buffer, which would copy each for each client, and keep the room of the
//! largest for as long as the connection lasts. Only a frame's head is made here: a server's frames have no mask.
//!
//! | who ends it | what the client sees |
//! | --- | --- |
//! | the watch | close 1000, or 1001 where the server shuts down |
//! | the user, who is gone or may not any more | close 1008, behind an ERROR that says which |
//! | the client | its close frame, answered |
//! | a message of more than 4 KiB | close 1009 |
//! | frames that are none, text that is none | close 1002, close 1007 |
//! | silence: no pong for 30 s after a ping, nothing taken for `limits.stall` | the end of the connection |

use crate::access::{Peer, names, words};
use crate::clients::{Account, Activity, Answered};
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

/// A client is asked so often whether it is there, and has as long to say so.
const PULSE: Duration = Duration::from_secs(30);
/// How long a connection that ends waits for the client to end it too.
const FAREWELL: Duration = Duration::from_secs(5);
/// The largest message that a client may send: it has nothing to say.
const LARGEST: usize = 4 << 10;
/// What is read at a time, and gathered for one write: both lie there for as long as the connection does.
const BUFFER: usize = 4 << 10;

/// Whether a request asks for a WebSocket. In HTTP/2 there is no such request.
pub(crate) fn is_asked(request: &Parts) -> bool {
    let headers = &request.headers;
    request.version == Version::HTTP_11
        && request.method == Method::GET
        && names(headers, header::CONNECTION, "upgrade")
        && names(headers, header::UPGRADE, "websocket")
}

/// A request that asks for a WebSocket, on a connection that can become one.
pub(crate) struct Upgrade {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    /// Its connection, which may be cut off, and what counts of it.
    counted: Option<(Arc<Activity>, Arc<Answered>)>,
    /// The first subprotocol that the client offers: a browser gives up where it offers some and none is chosen.
    protocol: Option<HeaderValue>,
}

impl Upgrade {
    /// What a request asks for in this regard; `None`: no WebSocket.
    ///
    /// # Errors
    /// 400 and 426 where it asks in a form that cannot be answered.
    pub(crate) fn of(request: &Parts) -> Result<Option<Upgrade>, Refusal> {
        let headers = &request.headers;
        // Without the connection's consent, as behind a router that serves no upgrades, it is a request like any other.
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
        let key = key.ok_or_else(|| Refusal::bad_request("Sec-WebSocket-Key is to be 16 bytes in base64"))?;
        let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
            .map_err(|_| Refusal::bad_request("Sec-WebSocket-Key is to be 16 bytes in base64"))?;
        let activity = Peer::of(request).and_then(|peer| peer.activity.clone());
        let account = request.extensions.get::<Arc<Account>>();
        let counted = activity.zip(account).map(|(activity, account)| {
            let answered = account.answer(Box::new(activity.clone()));
            (activity, answered)
        });
        let protocol =
            words(headers, header::SEC_WEBSOCKET_PROTOCOL).next().and_then(|word| HeaderValue::from_str(word).ok());
        Ok(Some(Upgrade { upgrade: upgrade.clone(), accept, counted, protocol }))
    }

    /// The response to it; behind that the connection is the watch's, until one of them ends. `open` says whether the
    /// server shuts down; a client that takes nothing for `stall` is left.
    pub(crate) fn respond(self, stream: WatchStream, open: Arc<OpenWatches>, stall: Duration) -> Response {
        let Upgrade { upgrade, accept, counted, protocol } = self;
        tokio::spawn(async move {
            let upgraded = match upgrade.await {
                Ok(upgraded) => TokioIo::new(upgraded),
                Err(error) => return tracing::debug!(%error, "a WebSocket was not upgraded to"),
            };
            let (activity, answered) = counted.unzip();
            let serving = serve(upgraded, stream, &open, SocketClient { stall, answered });
            match activity {
                // From here on the task of the connection waits for this no more.
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

/// How the client is to take what is sent.
pub(crate) struct SocketClient {
    /// Some of it within this time.
    pub(crate) stall: Duration,
    /// What was not taken counts here, on a connection of our own.
    pub(crate) answered: Option<Arc<Answered>>,
}

/// How a connection ends.
#[derive(Debug)]
enum Ending {
    /// With a close frame of ours, and the client's answer to it.
    Close(CloseCode, &'static str),
    /// The client has closed it, or is not there any more.
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
        .max_message_size(Some(LARGEST))
        .max_frame_size(Some(LARGEST));
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let ending = converse(&mut socket, stream, open, &taker).await;
    tracing::debug!(?ending, "a WebSocket ends");
    if let Ending::Close(code, reason) = ending {
        // Whoever has gone meanwhile need not be told.
        let _ = timeout(FAREWELL, farewell(&mut socket, code, reason)).await;
    }
}

/// Until the end; the watch gives back its place when this returns.
async fn converse<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    mut stream: WatchStream,
    open: &OpenWatches,
    taker: &SocketClient,
) -> Ending {
    let mut frames = Vec::new();
    // When the client is asked, or, where it was, when it is taken for gone.
    let (mut due, mut was_asked) = (Instant::now() + PULSE, false);
    loop {
        // In any order: who is always ready would keep the others waiting.
        let happened = tokio::select! {
            heard = socket.next() => hear(socket, heard, taker.stall).await.map(|()| true),
            progress = poll_fn(|context| stream.poll_frames(context, &mut frames)) => {
                let sent = send(socket, &mut frames, taker).await;
                sent.and(if progress == Progress::Ended { Err(end_of(open, &stream)) } else { Ok(false) })
            }
            () = sleep_until(due), if was_asked => match already(unconstrained(socket.next())).await {
                // It may have said so while something was sent.
                Some(heard) => hear(socket, heard, taker.stall).await.map(|()| true),
                None => Err(Ending::Gone),
            },
            () = sleep_until(due), if !was_asked => {
                (due, was_asked) = (Instant::now() + PULSE, true);
                ask(socket, due).await.map(|()| false)
            }
        };
        match happened {
            Ok(was_heard) if was_heard => (due, was_asked) = (Instant::now() + PULSE, false),
            Ok(_) => {}
            Err(ending) => return ending,
        }
    }
}

/// How a watch that has ended is closed.
fn end_of(open: &OpenWatches, stream: &WatchStream) -> Ending {
    if let Some(error) = stream.revoked() {
        return Ending::Close(CloseCode::Policy, error.code().reason());
    }
    match open.is_draining() {
        true => Ending::Close(CloseCode::Away, "the server is shutting down"),
        false => Ending::Close(CloseCode::Normal, ""),
    }
}

/// What a future comes to at once, if it does.
async fn already<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Answers what the client said, as far as it is to be answered.
async fn hear<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    heard: Option<Result<Message, Error>>,
    stall: Duration,
) -> Result<(), Ending> {
    match heard {
        Some(Ok(Message::Close(_))) => {
            let answer = async {
                // The answer to it is queued, and goes out with this, which says that the connection is closed then. TLS
                // has an end of its own, without which a client takes the connection for cut off.
                let _ = socket.flush().await;
                socket.get_mut().shutdown().await
            };
            let _ = timeout(FAREWELL, answer).await;
            Err(Ending::Gone)
        }
        // Each pong has its place in a buffer without an end: so it is written before the next ping is heard.
        Some(Ok(Message::Ping(_))) => taken(stall, socket.flush()).await,
        Some(Ok(_)) => {
            // A read has hundreds of messages, and only the read counts as a turn: without this, a client that sends nothing
            // but pongs would hold the thread for a hundred reads.
            consume_budget().await;
            Ok(())
        }
        Some(Err(error)) => Err(ending_of(&error)),
        None => Err(Ending::Gone),
    }
}

/// Asks whether the client is there. Until `due` it has to have taken that.
async fn ask<I: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocketStream<I>, due: Instant) -> Result<(), Ending> {
    match timeout_at(due, socket.send(Message::Ping(Bytes::new()))).await {
        Ok(sent) => sent.map_err(|error| ending_of(&error)),
        Err(_) => Err(Ending::Gone),
    }
}

/// What a write comes to, if the client takes a part of it in time.
async fn taken<T>(stall: Duration, write: impl Future<Output = Result<T, Error>>) -> Result<T, Ending> {
    match timeout(stall, write).await {
        Ok(written) => written.map_err(|error| ending_of(&error)),
        Err(_) => Err(Ending::Gone),
    }
}

/// Sends frames, as long as the client takes some of them in time.
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
    let _made = taker.answered.as_ref().map(|answered| answered.made(bytes));
    // What the protocol has to say by itself comes first, and leaves nothing half written.
    taken(taker.stall, socket.flush()).await?;
    write_all(socket.get_mut(), &messages, taker.stall).await
}

/// Writes buffers where they lie, many at a time, as long as the client takes some of them in time.
async fn write_all<I: AsyncWrite + Unpin>(io: &mut I, buffers: &[Bytes], stall: Duration) -> Result<(), Ending> {
    let mut slices: Vec<IoSlice<'_>> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let written = taken(stall, async { io.write_vectored(left).await.map_err(Error::from) }).await?;
        if written == 0 {
            return Err(Ending::Gone);
        }
        IoSlice::advance_slices(&mut left, written);
    }
    taken(stall, async { io.flush().await.map_err(Error::from) }).await
}

/// A frame as a message: its head, and what is in it where it lies. Values of resources go out as they are stored: if those
/// are no text, the message is binary.
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

/// How a connection ends after this error.
fn ending_of(error: &Error) -> Ending {
    match error {
        Error::Capacity(_) => Ending::Close(CloseCode::Size, "a message of this watch's client has at most 4096 bytes"),
        Error::Utf8(_) => Ending::Close(CloseCode::Invalid, "text that is not UTF-8"),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Ending::Gone,
        Error::Protocol(_) => Ending::Close(CloseCode::Protocol, "a frame that is none"),
        _ => Ending::Gone,
    }
}

/// Closes, and takes what the client has still to say: a connection that is dropped with unread bytes is reset, and the
/// close frame may be lost with it.
async fn farewell<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    code: CloseCode,
    reason: &'static str,
) {
    if socket.close(Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) })).await.is_err() {
        return;
    }
    // Its close frame, if it speaks the protocol.
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
