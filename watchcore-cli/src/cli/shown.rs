//! What is shown of an event, whatever the format.

pub(crate) use watchcore_http::lines::{LineEvent as Shown, Numbers};
