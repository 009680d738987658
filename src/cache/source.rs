//! What feeds a cache, as the cache sees it.

#![forbid(unsafe_code)]

use crate::error::Error;

/// Something that feeds a cache: told when somebody waits for news of it.
pub trait Source: Send + Sync {
    /// Somebody asks for progress or for a consistent read: see [`Writer::demand`]. Must be cheap
    /// and must not block; called from any thread.
    fn wake(&self);
}

/// What a feeder says of its source.
#[derive(Clone, Debug)]
pub enum SourceState {
    /// Connected and following.
    Fresh,
    /// Out of reach: why.
    Stale(Error),
    /// Refused: why.
    Failed(Error),
}

/// What a feeder tells about its source, as [`Status::source`] shows it.
#[derive(Clone, Debug, Default)]
pub struct SourceReport {
    /// The endpoint in use, or the last one tried.
    pub endpoint: String,
    /// Version that the server reports.
    pub server_version: String,
    /// The cluster's id.
    pub cluster_id: u64,
    /// The member's id.
    pub member_id: u64,
    /// Connections made.
    pub connects: u64,
    /// Connections made beyond the first.
    pub reconnects: u64,
    /// Resyncs.
    pub resyncs: u64,
    /// Newest revision seen in any header.
    pub etcd_revision: u64,
}
