//! The feeder: one thread that lists and watches etcd and drives a cache's writer.
//!
//! ```no_run
//! use std::time::Duration;
//! use watchcore::Cache;
//! use watchcore_etcd::Feeder;
//!
//! let cache = Cache::builder("/registry/").build()?;
//! let feeder = Feeder::new(["http://127.0.0.1:2379"]).start(cache.writer()?)?;
//! cache.wait_ready(Duration::from_secs(10))?;
//! # feeder.stop();
//! # Ok::<(), watchcore::Error>(())
//! ```
//!
//! The feeder lists the prefix at one revision, publishes that listing, and follows the watch from the next revision
//! on. After a disconnect it makes sure that etcd still has the same history and continues where it was. If it cannot
//! continue, it lists again and publishes the difference as one revision between two RESYNC marks (see
//! [`ResyncReason`](watchcore::ResyncReason)).
//!
//! etcd checks a permission when a watch is opened, not later: a cache keeps receiving events after
//! the user's role was revoked or its token expired, until the next reconnect.
//!
//! # Building: protoc
//!
//! etcd-client, on which this crate is built, runs `protoc` when it is built, and reads the well-known protos
//! (`google/protobuf/*.proto`). One line brings both, without root, wherever cargo is:
//!
//! ```sh
//! cargo install --locked protox@0.10.0 --features bin && export PROTOC=protox
//! ```
//!
//! `[env] PROTOC = "protox"` in the project's `.cargo/config.toml` makes the setting permanent. Google's `protoc`
//! works as well: `apt-get install protobuf-compiler libprotobuf-dev` (Debian; the second package has the well-known
//! protos), `brew install protobuf` (macOS). `PROTOC` names a compiler that is not in `PATH`, `PROTOC_INCLUDE` the
//! directory that has `google/protobuf`. If something is missing, the build of `watchcore-etcd-protoc` says so.
//!
//! # Inside
//!
//! | module | holds |
//! | --- | --- |
//! | `config` | the options and their checks |
//! | `feeder` | the handle and the thread |
//! | `session` | sessions with endpoints |
//! | `session::publish` | the listings of sessions, compared with the cache and published |
//! | `report` | the status and the log entries of sessions |
//! | `follow` | the watch: events, progress, liveness |
//! | `tickets`, `compaction`, `audit` | tasks beside the sessions: consistent reads, following etcd's compaction, comparing all keys |
//! | `tls` | certificates, read anew for each connection; TLS connections, and why they fail |
//! | `connect`, `list`, `history`, `sample` | calls to etcd |
//! | `traffic` | connections without TLS, and how much comes on a connection |
//! | `liveness` | the linearizable reads beside a watch |
//! | `assemble`, `compare`, `integrity`, `resume`, `health`, `progress`, `unanswered`, `failure`, `endpoints`, `backoff`, `page`, `range`, `version`, `server_text` | the rules, without input or output |
//!
//! docs/internals/feeder.md describes the feeder's states and its comparisons with etcd.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod assemble;
mod audit;
mod backoff;
mod compaction;
mod compare;
mod config;
mod connect;
mod counters;
mod endpoints;
mod failure;
mod feeder;
mod follow;
mod health;
mod history;
mod integrity;
mod list;
mod liveness;
mod log;
mod page;
mod progress;
mod range;
mod report;
mod resume;
mod sample;
mod server_text;
mod session;
mod shared;
mod tickets;
mod tls;
mod traffic;
mod unanswered;
mod version;

pub use config::FeederBuilder;
pub use counters::Counters;
pub use feeder::Feeder;
pub use tls::{Tls, TlsVersion};

/// Compiles the Rust examples of README.md as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
