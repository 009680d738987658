//! HTTP list-watch over watchcore's caches, as the Kubernetes API server serves its watch cache.
//!
//! Any program with an HTTP client lists and watches: curl, client-go, kubectl and kube-rs work unchanged. The server
//! is read-only. An [`Api`] is built from caches and the [`Resource`]s that lie in them; its router nests into a
//! program's own.

#![forbid(unsafe_code)]

mod access;
mod api;
mod catalog;
mod clients;
mod counters;
mod digest;
mod files;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod json;
mod keys;
mod limits;
#[doc(hidden)]
pub mod lines;
mod list;
mod object;
mod operate;
mod page;
mod request;
mod request_record;
mod resources;
mod server;
mod state;
mod status;
mod transport;
mod viewers;
mod watch;

pub use access::{Asked, Authenticator, Authorizer, Decision, HookFuture, Tokens, User};
pub use api::{Api, ApiBuilder};
pub use limits::Limits;
pub use object::Resource;
pub use server::{Server, ServerBuilder, Tls};
pub use status::Refusal;
