//! The printed parts of an event, in every format.

pub(crate) use watchcore_http::lines::{LineEvent as Shown, Numbers};
