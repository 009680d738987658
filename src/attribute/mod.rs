//! Declared attributes of values: where they come from, and the bytes that they are kept as.
//!
//! A cache's builder takes declarations (`declared`) and compiles them once (`schema`). For each put the writer
//! extracts their values from the key and the value (`json`, `protobuf`), encodes them (`encode`), and keeps the bytes
//! after the value. Selectors and indexes read these bytes and nothing else.

/// The most arrays and objects inside each other in a JSON value: one that is nested deeper has no attributes, and is not
/// served over HTTP. serde_json draws the same line.
pub const MAX_JSON_DEPTH: usize = 127;

pub(crate) mod declared;
pub(crate) mod encode;
mod json;
pub(crate) mod protobuf;
pub(crate) mod schema;
