//! What README.md says in Rust compiles, and runs where it needs no etcd.
#![cfg(doctest)]
#![doc = include_str!("../../README.md")]
