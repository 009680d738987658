//! Transports of a watch: an HTTP body, server-sent events, WebSocket, or the direct path.

mod body;
pub(crate) mod direct;
pub(crate) mod sse;
pub(crate) mod websocket;

pub(crate) use body::{DirectStream, respond};
