//! The statistics of a cache that are stored while it works. They carry no order.

use std::sync::atomic::AtomicU64;

/// Statistics that the writer stores.
#[derive(Default)]
pub(crate) struct Gauges {
    pub(crate) objects: AtomicU64,
    pub(crate) version_bytes: AtomicU64,
    pub(crate) slot_bytes: AtomicU64,
    pub(crate) table_bytes: AtomicU64,
    pub(crate) tree_bytes: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) revisions: AtomicU64,
    pub(crate) tombstones: AtomicU64,
    pub(crate) tombstone_bytes: AtomicU64,
    pub(crate) open_bytes: AtomicU64,
    pub(crate) window_bytes: AtomicU64,
    /// The log's bytes in the window.
    pub(crate) window_log_bytes: AtomicU64,
    pub(crate) window_segments: AtomicU64,
    pub(crate) buckets: AtomicU64,
    pub(crate) extract_failures: AtomicU64,
}

/// Statistics that consumers store.
#[derive(Default)]
pub(crate) struct ConsumerGauges {
    pub(crate) subscriptions: AtomicU64,
    /// The largest lag so far, in events; each poll loads it.
    pub(crate) max_lag: AtomicU64,
    /// The largest number of losses that metrics have shown.
    #[cfg(feature = "metrics")]
    pub(crate) losses_shown: AtomicU64,
    pub(crate) delivered_bytes: AtomicU64,
    pub(crate) link_bytes: AtomicU64,
}
