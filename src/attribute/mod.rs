//! Declared attributes of values: where they come from, and the bytes that they are kept as.

pub(crate) mod declared;
pub(crate) mod encode;
mod json;
pub(crate) mod protobuf;
pub(crate) mod schema;
