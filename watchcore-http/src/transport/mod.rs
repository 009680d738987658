//! A watch on its way to a client: a body of HTTP, or one of the forms upon it.

mod body;
pub(crate) mod direct;
pub(crate) mod sse;
mod stall;
mod stream;
pub(crate) mod websocket;

pub(crate) use body::{DirectStream, respond};
pub(crate) use stall::Stall;
pub(crate) use stream::{AnswerStream, StreamBody, until_cut};
