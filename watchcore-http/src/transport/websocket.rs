//! A watch over a WebSocket: one text message an event.
//!
//! A request with `Upgrade: websocket` takes its connection out of HTTP. From then on a task of its own holds the
//! connection and the watch, and does one of three things at a time: it hears the client (only whether it is there, and
//! whether it closes; what it says is not looked at), it sends what the watch has, or it asks whether anybody is there.
//! While it sends, it does nothing else: a client that does not read holds the task there, with one piece of the watch
//! and its place in the log.
//!
//! | who ends it | what the client sees |
//! | --- | --- |
//! | the watch | close 1000, or 1001 where the server shuts down |
//! | the client | its close frame, answered |
//! | a message of more than 4 KiB | close 1009 |
//! | frames that are none, text that is none | close 1002, close 1007 |
//! | silence: no pong for 30 s after a ping, nothing taken for a while after the deadline | the end of the connection |

use crate::frame::Frame;
use crate::status::Refusal;
use crate::watch::{OpenWatches, Progress, WatchStream};
use axum::body::Body;
use axum::response::Response;
use futures_util::{SinkExt as _, StreamExt as _};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{Error, ProtocolError};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
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

/// A request that asks for a WebSocket.
pub(crate) struct Upgrade {
    upgrade: OnUpgrade,
    accept: HeaderValue,
}

impl Upgrade {
    /// What a request asks for in this regard; `None`: no WebSocket. In HTTP/2 there is no such request.
    ///
    /// # Errors
    /// 400 and 426 where it asks in a form that cannot be answered.
    pub(crate) fn of(request: &Parts) -> Result<Option<Upgrade>, Refusal> {
        let headers = &request.headers;
        let asks = names(headers, header::CONNECTION, "upgrade") && names(headers, header::UPGRADE, "websocket");
        // Without the connection's consent, as behind a router that serves no upgrades, it is a request like any other.
        let upgrade = request.extensions.get::<OnUpgrade>().filter(|_| asks);
        let Some(upgrade) = upgrade.filter(|_| request.version == Version::HTTP_11 && request.method == Method::GET)
        else {
            return Ok(None);
        };
        if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(Refusal::new(
                426,
                "UpgradeRequired",
                "this server speaks version 13 of WebSocket: send Sec-WebSocket-Version: 13",
            ));
        }
        // 16 bytes in base64.
        let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| key.len() == 24);
        let key = key.ok_or_else(|| Refusal::bad_request("Sec-WebSocket-Key is to be 16 bytes in base64"))?;
        let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
            .map_err(|_| Refusal::bad_request("Sec-WebSocket-Key is to be 16 bytes in base64"))?;
        Ok(Some(Upgrade { upgrade: upgrade.clone(), accept }))
    }

    /// The response to it; behind that the connection is the watch's, until one of them ends. `open` says whether the
    /// server shuts down; a client that takes nothing for `stall` after the deadline of the watch is left.
    pub(crate) fn respond(self, stream: WatchStream, open: Arc<OpenWatches>, stall: Duration) -> Response {
        let Upgrade { upgrade, accept } = self;
        tokio::spawn(async move {
            match upgrade.await {
                Ok(upgraded) => serve(TokioIo::new(upgraded), stream, &open, stall).await,
                Err(error) => tracing::debug!(%error, "a WebSocket was not upgraded to"),
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        response
    }
}

/// Whether a header that lists words has this one.
fn names(headers: &HeaderMap, header: header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|listed| listed.trim().eq_ignore_ascii_case(word))
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
    stall: Duration,
) {
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_message_size(Some(LARGEST))
        .max_frame_size(Some(LARGEST));
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let ending = converse(&mut socket, stream, open, stall).await;
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
    stall: Duration,
) -> Ending {
    let mut frames = Vec::new();
    // When the client is asked, or, where it was, when it is taken for gone.
    let (mut due, mut was_asked) = (Instant::now() + PULSE, false);
    loop {
        tokio::select! {
            // What the client has sent comes first: its pong may lie there when its time is over.
            biased;
            heard = socket.next() => match heard {
                Some(Ok(Message::Close(_))) => {
                    // The answer to it is queued, and goes out with this.
                    let _ = timeout(FAREWELL, socket.flush()).await;
                    return Ending::Gone;
                }
                Some(Ok(_)) => (due, was_asked) = (Instant::now() + PULSE, false),
                Some(Err(error)) => return ending_of(&error),
                None => return Ending::Gone,
            },
            progress = poll_fn(|context| stream.poll_frames(context, &mut frames)) => {
                if let Err(ending) = send(socket, &mut stream, &mut frames, stall).await {
                    return ending;
                }
                if progress == Progress::Ended {
                    return match open.is_draining() {
                        true => Ending::Close(CloseCode::Away, "the server is shutting down"),
                        false => Ending::Close(CloseCode::Normal, ""),
                    };
                }
            }
            () = sleep_until(due) => {
                if was_asked {
                    return Ending::Gone;
                }
                if let Err(error) = socket.send(Message::Ping(Bytes::new())).await {
                    return ending_of(&error);
                }
                (due, was_asked) = (Instant::now() + PULSE, true);
            }
        }
    }
}

/// Sends frames, for as long as the client takes to read them.
async fn send<I: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<I>,
    stream: &mut WatchStream,
    frames: &mut Vec<Frame>,
    stall: Duration,
) -> Result<(), Ending> {
    let all = async {
        for frame in frames.drain(..) {
            socket.feed(message(&frame)).await?;
        }
        socket.flush().await
    };
    // The watch is not polled meanwhile, so its deadline is looked at here. The client has a while more then, for it may
    // have been about to read.
    let overdue = async {
        poll_fn(|context| stream.poll_overdue(context)).await;
        sleep(stall).await;
    };
    tokio::select! {
        biased;
        sent = all => sent.map_err(|error| ending_of(&error)),
        () = overdue => Err(Ending::Gone),
    }
}

/// A frame as a message. Values of resources go out as they are stored: if those are no text, the message is binary.
fn message(frame: &Frame) -> Message {
    let bytes = frame.message();
    match Utf8Bytes::try_from(bytes.clone()) {
        Ok(text) => Message::Text(text),
        Err(_) => Message::Binary(bytes),
    }
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
    while let Some(Ok(_)) = socket.next().await {}
    let io = socket.get_mut();
    if io.shutdown().await.is_ok() {
        let mut rest = [0; 1024];
        while let Ok(1..) = io.read(&mut rest).await {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::watch::{Framing, OpenWatches};
    use watchcore::{Cache, Error as CacheError, Event, Position, Start};

    /// The key of an event, as a line.
    struct MessageFraming;

    impl Framing for MessageFraming {
        fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
            out.push(Frame::new(64, |out| out.extend_from_slice(event.key())));
            true
        }

        fn failed(&mut self, _: &CacheError, _: &mut Vec<Frame>) {}

        fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}
    }

    /// A served watch, and the other end of its connection.
    fn served() -> (Cache, Arc<OpenWatches>, tokio::task::JoinHandle<()>, tokio::io::DuplexStream) {
        let cache = Cache::builder("/").build().unwrap();
        let open = OpenWatches::new(1, 1);
        let place = open.admit(None).unwrap();
        let stream = WatchStream::new(cache.subscribe(Start::Now).open().unwrap(), MessageFraming, None, place);
        let (io, peer) = tokio::io::duplex(1024);
        let all = open.clone();
        let task = tokio::spawn(async move { serve(io, stream, &all, Duration::from_secs(60)).await });
        (cache, open, task, peer)
    }

    #[tokio::test(start_paused = true)]
    async fn peer_without_pong_is_gone() {
        let (_cache, open, task, mut peer) = served();
        let from = Instant::now();
        let mut ping = [0; 2];
        peer.read_exact(&mut ping).await.unwrap();
        assert_eq!((ping, from.elapsed().as_secs()), ([0x89, 0], 30));
        // It is there, and says nothing: half of a connection looks so.
        task.await.unwrap();
        assert_eq!((from.elapsed().as_secs(), open.count()), (60, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn pong_keeps_a_watch() {
        let (_cache, open, task, mut peer) = served();
        let from = Instant::now();
        for round in 1..=5 {
            let mut ping = [0; 2];
            peer.read_exact(&mut ping).await.unwrap();
            assert_eq!((ping, from.elapsed().as_secs()), ([0x89, 0], 30 * round));
            peer.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.unwrap();
        }
        assert!(!task.is_finished() && open.count() == 1);
    }

    #[tokio::test(start_paused = true)]
    async fn silent_end_is_bounded() {
        let (_cache, open, task, mut peer) = served();
        let from = Instant::now();
        open.drain(Duration::ZERO).await;
        let mut close = [0; 4];
        peer.read_exact(&mut close).await.unwrap();
        assert_eq!((close[0], &close[2..]), (0x88, &1001_u16.to_be_bytes()[..]));
        task.await.unwrap();
        assert_eq!((from.elapsed(), open.count()), (FAREWELL, 0));
    }
}
