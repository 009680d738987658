//! What a feeder did, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use watchcore::ResyncReason;

/// Above the number of each [`ResyncReason`]; place 0 is not used.
const REASONS: usize = 7;

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $name:ident,)*) => {
        /// What a feeder did since its start. Each only rises.
        ///
        /// ```no_run
        /// use watchcore::{Cache, ResyncReason};
        /// use watchcore_etcd::Feeder;
        ///
        /// let cache = Cache::builder("/registry/").build()?;
        /// let feeder = Feeder::new(["http://127.0.0.1:2379"]).start(cache.writer()?)?;
        /// let counters = feeder.counters();
        /// println!("{} connections, {} relistings", counters.connects, counters.resyncs());
        /// assert!(counters.resyncs_for(ResyncReason::Compacted) <= counters.resyncs());
        /// # Ok::<(), watchcore::Error>(())
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $text])+ pub $name: u64,)*
            /// By the number of their reason.
            resyncs: [u64; REASONS],
        }

        #[derive(Default)]
        pub(super) struct Counts {
            $(pub(super) $name: AtomicU64,)*
            resyncs: [AtomicU64; REASONS],
        }

        impl Counts {
            pub(super) fn read(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Relaxed),)*
                    resyncs: std::array::from_fn(|i| self.resyncs[i].load(Relaxed)),
                }
            }
        }
    };
}

impl Counters {
    /// Relistings that were published as a resync.
    pub fn resyncs(&self) -> u64 {
        self.resyncs.iter().sum()
    }

    /// Those of one reason.
    pub fn resyncs_for(&self, reason: ResyncReason) -> u64 {
        self.resyncs.get(reason as usize).copied().unwrap_or(0)
    }
}

counters! {
    /// Watches opened.
    connects,
    /// Watches opened beyond the first.
    reconnects,
    /// Sessions that failed or never came to be.
    failures,
    /// Watches given up because nothing came.
    silences,
    /// Watches opened again with fragments, because a message was too long.
    fragment_switches,
    /// Listings that were begun.
    listings,
    /// Pages of listings, and messages of those that came as streams.
    pages,
    /// Reads that proved, after a reconnect, that the history is still the same.
    probes,
    /// Messages on the watch stream.
    responses,
    /// Fragments among them.
    fragments,
    /// Revisions applied.
    revisions,
    /// Events applied.
    events,
    /// Bytes of keys and values in them.
    bytes,
    /// Events that did not fit what the cache held.
    integrity_violations,
    /// Progress notifications that came.
    progress_notifications,
    /// Progress notifications that were asked for.
    progress_requests,
    /// Linearizable reads for consistent revisions, those that failed included: one serves all
    /// requests that came before it began.
    consistent_reads,
    /// Certificate files that held something else than before, and were taken for new connections.
    certificate_reloads,
    /// Connections for which the certificate files could not be used.
    certificate_failures,
    /// Most events that came in one message.
    max_events_queued,
    /// Most events of one revision.
    max_revision_events,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}

pub(super) fn one(counter: &AtomicU64) {
    add(counter, 1);
}

pub(super) fn highest(mark: &AtomicU64, value: u64) {
    mark.fetch_max(value, Relaxed);
}

impl Counts {
    /// A resync is about to be published.
    pub(super) fn resynced(&self, reason: ResyncReason) {
        if let Some(counter) = self.resyncs.get(reason as usize) {
            one(counter);
        }
    }

    /// The cache refused it after all.
    pub(super) fn resync_refused(&self, reason: ResyncReason) {
        if let Some(counter) = self.resyncs.get(reason as usize) {
            counter.fetch_sub(1, Relaxed);
        }
    }
}
