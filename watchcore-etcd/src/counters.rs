//! What a feeder did, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use watchcore::{ResyncReason, SourceMetric};

/// Why a feeder lists anew.
const OF_FEEDERS: [ResyncReason; 5] = [
    ResyncReason::Compacted,
    ResyncReason::HistoryReset,
    ResyncReason::ChainBroken,
    ResyncReason::TooFarBehind,
    ResyncReason::Requested,
];

/// Above the number of each [`ResyncReason`]; place 0 is not used.
const REASONS: usize = 7;

macro_rules! counters {
    ($($(#[doc = $text:literal])+ $kind:ident $name:ident,)*) => {
        /// What a feeder did since its start. Each only rises, but for a resync: one is counted before it is published, and
        /// taken back where the cache refuses it or the listing holds nothing new.
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
            /// The most that metrics have shown.
            resyncs_shown: [AtomicU64; REASONS],
        }

        impl Counts {
            pub(super) fn read(&self) -> Counters {
                Counters {
                    $($name: self.$name.load(Relaxed),)*
                    resyncs: std::array::from_fn(|i| self.resyncs[i].load(Relaxed)),
                }
            }

            /// All of them, for the cache's metrics.
            pub(super) fn metrics(&self, each: &mut dyn FnMut(SourceMetric)) {
                $(each(SourceMetric::$kind(stringify!($name), concat!($($text),+).trim_ascii(), self.$name.load(Relaxed)));)*
                for reason in OF_FEEDERS {
                    let (count, shown) = (&self.resyncs[reason as usize], &self.resyncs_shown[reason as usize]);
                    let count = count.load(Relaxed);
                    // One that was not published after all is taken back, and a counter that falls counts as begun anew.
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

    /// Those of one reason.
    pub fn resyncs_for(&self, reason: ResyncReason) -> u64 {
        self.resyncs.get(reason as usize).copied().unwrap_or(0)
    }
}

counters! {
    /// Watches opened.
    counter connects,
    /// Watches opened beyond the first.
    counter reconnects,
    /// Sessions that failed or never came to be.
    counter failures,
    /// Watches given up because nothing came.
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
    /// Fragments among them.
    counter fragments,
    /// Revisions applied.
    counter revisions,
    /// Events applied.
    counter events,
    /// Bytes of keys and values in them.
    counter bytes,
    /// Messages that broke a rule of etcd's API, or did not fit what the cache held.
    counter integrity_violations,
    /// Events that came again in the same words after they had been applied, and were dropped.
    counter repeated_events,
    /// Linearizable reads beside a watch that show whether it lives and is not behind.
    counter liveness_reads,
    /// Watches given up because they did not reach a revision that etcd had.
    counter stale_watches,
    /// Progress notifications that came.
    counter progress_notifications,
    /// Progress notifications that were asked for.
    counter progress_requests,
    /// Linearizable reads for consistent revisions, those that failed included: one serves all
    /// requests that came before it began.
    counter consistent_reads,
    /// Those among them that were answered by a comparison with etcd's state, because nobody answers requests for progress.
    counter compared_reads,
    /// 1 while nobody answers requests for progress, though etcd moves on.
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
    /// Certificate files that held something else than before, and were taken for new connections.
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

    /// The cache refused it after all, or the listing held nothing new.
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

    /// Also of a resync that was counted and not published, after a scrape had shown it.
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
        one(&counts.probes);
        counts.resynced(ResyncReason::Compacted);
        let before = shown();
        counts.no_resync(ResyncReason::Compacted);
        assert_eq!(shown(), before);
        let of = |name| before.iter().filter(|metric| metric.name == name).map(|metric| metric.value).sum::<u64>();
        assert_eq!((of("probes"), of("resyncs_by_reason")), (1, 1));
    }
}
