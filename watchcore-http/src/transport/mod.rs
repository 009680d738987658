//! A watch on its way to a client: a body of HTTP, or one of the forms upon it.

mod body;
pub(crate) mod direct;
pub(crate) mod sse;
pub(crate) mod websocket;

pub(crate) use body::{DirectStream, respond};
