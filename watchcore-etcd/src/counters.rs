//! Counters of a feeder's work.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use watchcore::{ResyncReason, SourceMetric};

/// The reasons for which a feeder lists again.
const FEEDER_REASONS: [ResyncReason; 5] = [
    ResyncReason::Compacted,
    ResyncReason::HistoryReset,
    ResyncReason::ChainBroken,
    ResyncReason::TooFarBehind,
    ResyncReason::Requested,
];

/// Larger than the number of each [`ResyncReason`]; index 0 is unused.
const REASONS: usize = 7;

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $kind:ident $name:ident,)*) => {
        /// What a feeder has done since its start. The counters only rise, with one exception: a resync is counted
        /// before it is published, and uncounted if the cache refuses it or the listing has nothing new.
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
            /// Indexed by the number of the reason.
            resyncs: [u64; REASONS],
        }

        #[derive(Default)]
        pub(super) struct Counts {
            $(pub(super) $name: AtomicU64,)*
            resyncs: [AtomicU64; REASONS],
            /// The highest counts that metrics have shown.
            resyncs_reported: [AtomicU64; REASONS],
        }

        impl Counts {
            pub(super) fn read(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Relaxed),)*
                    resyncs: std::array::from_fn(|i| self.resyncs[i].load(Relaxed)),
                }
            }

            /// Reports all counters to the cache's metrics.
            pub(super) fn metrics(&self, each: &mut dyn FnMut(SourceMetric)) {
                $(each(SourceMetric::$kind(stringify!($name), concat!($($text),+).trim_ascii(), self.$name.load(Relaxed)));)*
                for reason in FEEDER_REASONS {
                    let (count, shown) = (&self.resyncs[reason as usize], &self.resyncs_reported[reason as usize]);
                    let count = count.load(Relaxed);
                    // A resync may be uncounted, but a counter that falls would be read as a restart, so the highest
                    // shown count stays.
                    let count = shown.fetch_max(count, Relaxed).max(count);
                    let metric = SourceMetric::counter("resyncs_by_reason", "Resyncs by what caused them.", count);
                    each(metric.with_label("reason", reason.name()));
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

    /// Relistings for this reason that were published as a resync.
    pub fn resyncs_for(&self, reason: ResyncReason) -> u64 {
        self.resyncs.get(reason as usize).copied().unwrap_or(0)
    }
}

counters! {
    /// Watches opened.
    counter connects,
    /// Watches opened beyond the first.
    counter reconnects,
    /// Sessions that failed, including those that never connected.
    counter failures,
    /// Watches given up because they were silent for too long.
    counter silences,
    /// Watches opened again with fragments, because a message was too long.
    counter fragment_switches,
    /// Listings that were begun.
    counter listings,
    /// Pages of listings, and messages of those that came as streams.
    counter pages,
    /// Reads that proved, after a reconnect, that the history is still the same.
    counter probes,
    /// Messages on the watch stream.
    counter responses,
    /// Fragments among those messages.
    counter fragments,
    /// Revisions applied.
    counter revisions,
    /// Events applied.
    counter events,
    /// Bytes of keys and values in those events.
    counter bytes,
    /// Messages that broke a rule of etcd's API, or did not fit what the cache held.
    counter integrity_violations,
    /// Events that came again unchanged after they had been applied, and were dropped.
    counter repeated_events,
    /// Linearizable reads beside a watch that show whether it lives and is not behind.
    counter liveness_reads,
    /// Watches given up because they did not reach a revision that etcd had.
    counter stale_watches,
    /// Progress notifications that came.
    counter progress_notifications,
    /// Progress notifications that were requested.
    counter progress_requests,
    /// Linearizable reads for consistent revisions, those that failed included: one serves all
    /// requests that came before it began.
    counter consistent_reads,
    /// Consistent reads that compared the cache with etcd's state, because progress requests are not answered.
    counter compared_reads,
    /// 1 while progress requests are not answered, though etcd moves on.
    gauge progress_unanswered,
    /// Keys that were compared with etcd at once after a reconnect.
    counter sampled_keys,
    /// Audits: comparisons of the whole range with etcd.
    counter audits,
    /// Keys that audits compared.
    counter audited_keys,
    /// Milliseconds that the audits took.
    counter audit_milliseconds,
    /// Times that a sample or an audit found that etcd does not hold what the cache has at the same revision.
    counter differences,
    /// Times that changed certificate files were taken into use for new connections.
    counter certificate_reloads,
    /// Connections for which the certificate files could not be used.
    counter certificate_failures,
    /// Most events that came in one message.
    gauge max_events_queued,
    /// Most events of one revision.
    gauge max_revision_events,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}

pub(super) fn increment(counter: &AtomicU64) {
    add(counter, 1);
}

pub(super) fn raise_to(mark: &AtomicU64, value: u64) {
    mark.fetch_max(value, Relaxed);
}

impl Counts {
    /// Counts a resync that is about to be published.
    pub(super) fn resynced(&self, reason: ResyncReason) {
        if let Some(counter) = self.resyncs.get(reason as usize) {
            increment(counter);
        }
    }

    /// Uncounts a resync that the cache refused, or whose listing had nothing new.
    pub(super) fn no_resync(&self, reason: ResyncReason) {
        if let Some(counter) = self.resyncs.get(reason as usize) {
            counter.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A metric does not fall even if a resync was counted, shown, and then not published.
    #[test]
    fn metrics_of_counters_never_fall() {
        let counts = Counts::default();
        let shown = || {
            let mut all = Vec::new();
            counts.metrics(&mut |metric| all.push(metric));
            all
        };
        let names: BTreeSet<_> = shown().iter().map(|metric| (metric.name, metric.label)).collect();
        assert_eq!(names.len(), shown().len());
        let is_gauge = |name: &str| name.starts_with("max_") || name == "progress_unanswered";
        assert!(shown().iter().all(|metric| metric.is_counter != is_gauge(metric.name)));
        assert!(shown().iter().all(|metric| metric.help.ends_with('.') && !metric.help.starts_with(' ')));
        increment(&counts.probes);
        counts.resynced(ResyncReason::Compacted);
        let before = shown();
        counts.no_resync(ResyncReason::Compacted);
        assert_eq!(shown(), before);
        let of = |name| before.iter().filter(|metric| metric.name == name).map(|metric| metric.value).sum::<u64>();
        assert_eq!((of("probes"), of("resyncs_by_reason")), (1, 1));
    }
}
