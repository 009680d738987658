//! The watch core that everybody embeds: one lock-free, bounded log of versioned events and a
//! versioned keyed store, kept up to date by one writer (a program, or a feeder that follows etcd),
//! read by any number of consumers in the same process.
//!
//! No reader can slow the writer or another reader; every loss of events is reported to its reader; every
//! revision of the window can be read exactly.
//!
//! ```
//! use watchcore::{Cache, Change, Kind, Read, Start};
//! # fn main() -> watchcore::Result<()> {
//! let cache = Cache::builder("/").build()?;
//! let mut writer = cache.writer()?;
//! let mut all = cache.subscribe(Start::State).open()?;
//! writer.apply(17, [Change::put("/a", "1"), Change::put("/b", "2")])?;
//! writer.apply(18, [Change::put("/a", "3"), Change::delete("/b")])?;
//!
//! let first = all.poll(64)?;
//! assert!(first.events()[0].ends_initial_state());
//! let changes = all.poll(64)?;
//! assert_eq!(changes.len(), 4);
//! assert_eq!(changes.events()[3].kind(), Kind::Deleted);
//! assert_eq!(cache.get("/b", Read::Exact(17))?.kv.unwrap().value(), Some(&b"2"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! A subscription reads what its filter asks for, and says what follows if it falls behind:
//!
//! ```
//! use watchcore::{Attribute, Cache, Change, Index, Labels, OnLag, Range, Read, ReadOptions, Result, Start};
//!
//! fn main() -> Result<()> {
//!     let cache = Cache::builder("/registry/")
//!         .labels(Labels::json("/metadata/labels")?)
//!         .field(Attribute::json("spec.nodeName", "/spec/nodeName")?)
//!         .index(Index::field("spec.nodeName"))
//!         .build()?;
//!     let pod = r#"{"metadata":{"labels":{"app":"web"}},"spec":{"nodeName":"node-7"}}"#;
//!     cache.writer()?.apply(17, [Change::put("/registry/pods/a", pod), Change::put("/registry/pods/b", "{}")])?;
//!
//!     let mut mine = cache
//!         .subscribe(Start::State)
//!         .prefix("/registry/pods/")
//!         .labels("app in (web, api)")?
//!         .fields("spec.nodeName=node-7")?         // reads the bucket of node-7 only
//!         .on_lag(OnLag::Resnapshot)               // LAGGED says what was lost, then it is brought back
//!         .open()?;
//!     let batch = mine.poll(10)?;
//!     assert_eq!(batch.events()[0].key(), b"/registry/pods/a");
//!
//!     let page = cache.list_with(&Range::prefix("/registry/pods/"), &ReadOptions::new(Read::Any).limit(1))?;
//!     assert_eq!(page.items()[0].key(), b"/registry/pods/a");
//!     assert!(page.continue_token().is_some());    // later pages are of exactly the same revision
//!     Ok(())
//! }
//! ```
//!
//! The feeder that follows etcd is the crate `watchcore-etcd`, the C ABI `watchcore-capi`, the command line `watchcore-cli`.
//! ARCHITECTURE.md says how it is built.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

#[cfg(not(target_has_atomic = "64"))]
compile_error!("watchcore needs 64-bit atomics");

mod attribute;
mod backoff;
mod batch;
mod cache;
mod data;
mod error;
mod filter;
mod foreign;
mod heap;
pub mod json;
mod log;
#[cfg(all(test, loom))]
mod loom;
#[cfg(feature = "metrics")]
pub mod metrics;
mod position;
#[cfg(not(loom))]
mod process;
#[doc(hidden)]
pub mod raw;
mod read;
mod reclaim;
mod store;
mod subscription;
mod sync;
mod sys;
mod text;
mod wake;
mod worker;
mod writer;

pub use attribute::declared::{Attribute, Labels};
pub use backoff::Backoff;
pub use batch::Batch;
pub use cache::{
    Builder, Cache, Lag, ReadPath, Source, SourceMetric, SourceReport, SourceState, State, Stats, Status,
    SubscriptionInfo, SubscriptionState,
};
pub use data::event::{Event, Kind, OwnedEvent, Phase, Resync, ResyncReason, flags};
pub use data::key_value::{KeyValue, KeyValueRef};
pub use error::{Code, Error, Result};
pub use filter::indexes::Index;
pub use filter::range::{Filter, Range};
pub use filter::selector::FieldRequirement;
pub use position::{MAX_REVISION, Position};
#[cfg(not(loom))]
pub use process::shutdown;
pub use read::continue_token::token_revision;
pub use read::snapshot::Snapshot;
pub use read::{Answer, Answers, Counted, DEFAULT_WAIT, Page, Read, ReadOptions, Waiter, Want};
pub use subscription::{Closer, OnLag, Start, SubscribeBuilder, Subscription, SubscriptionStats};
#[cfg(not(loom))]
pub use sys::spawn_feeder;
pub use wake::WakeSet;
pub use writer::{Change, Demand, Loading, Record, Writer};
