//! Routing: which events a subscription is given.

pub(crate) mod filter;
