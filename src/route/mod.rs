//! Routing: which events a subscription is given.

#[allow(dead_code)]
pub(crate) mod attribute;
pub(crate) mod filter;
#[allow(dead_code)]
mod json;
#[allow(dead_code)]
mod protobuf;
#[allow(dead_code)]
pub(crate) mod selector;
