//! An empty crate: its build script looks for `protoc` and the well-known protos, and ends the build with a message
//! that says how to get them.
//!
//! The check is a separate crate because of the order in which cargo builds; see the build script of `watchcore-etcd`.
//! The documentation of `watchcore-etcd` says how to install protoc.

#![forbid(unsafe_code)]
#![no_std]
