//! What README.md and that of watchcore-http say in Rust compiles, and runs where it needs no etcd.
#![cfg(doctest)]
#![doc = include_str!("../../README.md")]

#[doc = include_str!("../../watchcore-http/README.md")]
mod http {}
