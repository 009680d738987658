//! The cache: log, store and waiters of one prefix, and the handles on it.

#![forbid(unsafe_code)]

mod builder;
mod shared;
mod status;

pub use builder::Builder;
pub use shared::{Cache, Source};
pub(crate) use shared::{Info, Inner, NOT_READY, READY, living, matches_for_notifier};
pub use status::{SourceReport, SourceState, State, Stats, Status};
