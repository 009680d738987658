//! Routing: which events a subscription is given, and how it finds them.

pub(crate) mod attribute;
pub(crate) mod bucket;
pub(crate) mod filter;
pub(crate) mod index;
mod json;
pub(crate) mod matcher;
pub(crate) mod protobuf;
pub(crate) mod selector;
pub(crate) mod summary;
