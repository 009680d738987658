//! The state that all requests share.

use crate::access::Access;
use crate::catalog::Catalog;
use crate::clients::{BlockingPool, Unread};
use crate::counters::Counters;
use crate::limits::Limits;
use crate::viewers::Viewers;
use crate::watch::OpenWatches;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// State that all requests share.
pub(crate) struct ApiState {
    pub(crate) catalog: Catalog,
    pub(crate) open: Arc<OpenWatches>,
    pub(crate) unread: Arc<Unread>,
    /// Concurrency limit of reads that visit every key of a large cache.
    pub(crate) list_pool: Arc<BlockingPool>,
    /// Concurrency limit of reads that gather from all resources, caches or subscriptions.
    pub(crate) stats_pool: Arc<BlockingPool>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) bookmark_interval: Duration,
    pub(crate) counters: Arc<Counters>,
    pub(crate) viewers: Viewers,
    pub(crate) access: Arc<Access>,
    /// How long a cache may be without its source before `/readyz` fails.
    pub(crate) stale_limit: Duration,
    /// Set once shutdown has begun; `/readyz` then fails.
    pub(crate) is_ending: AtomicBool,
}
