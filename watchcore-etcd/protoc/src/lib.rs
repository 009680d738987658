//! Empty: what this crate is for happens in its build script, which looks for `protoc` and the well-known
//! protos, and ends the build with a message that says how to get them.
//!
//! It is a crate of its own because of the order in which cargo builds; see the build script of `watchcore-etcd`.
//! The documentation of `watchcore-etcd` has the rest.

#![forbid(unsafe_code)]
#![no_std]
