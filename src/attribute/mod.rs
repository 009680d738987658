//! Declared attributes of values: where they come from, and the bytes that they are kept as.
//!
//! A cache's builder takes declarations (`declared`) and compiles them once (`schema`). For each put the writer
//! extracts their values from the key and the value (`json`, `protobuf`), encodes them (`encode`), and keeps the bytes
//! after the value. Selectors and indexes read these bytes and nothing else.

pub(crate) mod declared;
pub(crate) mod encode;
mod json;
pub(crate) mod protobuf;
pub(crate) mod schema;
