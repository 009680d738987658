//! The source of a cache, as the cache sees it.

#![forbid(unsafe_code)]

use crate::error::Error;

/// A feeder of a cache, which is called when a reader waits for news of the cache.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
/// use watchcore::{Cache, Source, Want};
///
/// struct Poked(AtomicBool);
/// impl Source for Poked {
///     fn wake(&self) {
///         self.0.store(true, SeqCst); // a feeder's thread would be unparked here
///     }
/// }
///
/// let cache = Cache::builder("/").expect_load(true).build()?;
/// let source = Arc::new(Poked(AtomicBool::new(false)));
/// let mut writer = cache.writer()?;
/// writer.attach(source.clone())?;
/// let _waiter = cache.waiter(Want::Consistent)?;
/// assert!(source.0.load(SeqCst), "somebody asks for news");
/// assert_eq!(writer.demand().consistent, 1);
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait Source: Send + Sync {
    /// Called when a reader needs progress or a consistent read: see [`crate::Writer::demand`]. Must be cheap and must
    /// not block; called from any thread. A panic here is caught, counted in
    /// [`Stats::caught_panics`](crate::Stats::caught_panics) and logged; the reader continues to wait.
    fn wake(&self);

    /// Metrics of the source beyond its [`SourceReport`]: calls `each` once for each metric, those of one name one
    /// after the other. Must not block; called from any thread.
    fn metrics(&self, each: &mut dyn FnMut(SourceMetric)) {
        let _ = each;
    }
}

/// A metric of a source, as the feature `metrics` shows it.
///
/// ```
/// use watchcore::SourceMetric;
///
/// let listings = SourceMetric::counter("listings", "Listings that were begun.", 3);
/// let compacted = SourceMetric::counter("resyncs_by_reason", "Resyncs.", 1).with_label("reason", "Compacted");
/// assert_eq!((listings.name, compacted.label), ("listings", Some(("reason", "Compacted"))));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SourceMetric {
    /// Its name without prefix and suffix: `listings` becomes `watchcore_feeder_listings_total`. Letters, digits and
    /// underscores; the report's (`info`, `revision`, `warning`, `connects`, `reconnects`, `resyncs`) are skipped.
    pub name: &'static str,
    /// One sentence about it.
    pub help: &'static str,
    /// Whether it only rises.
    pub is_counter: bool,
    /// Its value now.
    pub value: u64,
    /// A label with its value, which distinguishes metrics of one name.
    pub label: Option<(&'static str, &'static str)>,
}

impl SourceMetric {
    /// A metric that only rises.
    pub const fn counter(name: &'static str, help: &'static str, value: u64) -> SourceMetric {
        SourceMetric { name, help, is_counter: true, value, label: None }
    }

    /// A metric that rises and falls.
    pub const fn gauge(name: &'static str, help: &'static str, value: u64) -> SourceMetric {
        SourceMetric { name, help, is_counter: false, value, label: None }
    }

    /// Adds a label, which distinguishes it from others of its name.
    pub const fn with_label(self, name: &'static str, value: &'static str) -> SourceMetric {
        SourceMetric { label: Some((name, value)), ..self }
    }
}

/// The state of a source, as its feeder reports it.
///
/// ```
/// use watchcore::{Cache, Code, Error, SourceState, State};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.set_state(SourceState::Stale(Error::new(Code::Unavailable, "the source is out of reach")));
/// assert!(matches!(cache.status().state, State::Stale { .. }));
/// writer.set_state(SourceState::Fresh);
/// assert_eq!(cache.status().state, State::Ready);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SourceState {
    /// Connected and following.
    Fresh,
    /// Out of reach: why.
    Stale(Error),
    /// Refused: why.
    Failed(Error),
}

/// A feeder's report of its source, which [`crate::Status::source`] shows.
///
/// ```
/// use watchcore::{Cache, SourceReport};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let mut report = SourceReport::default();
/// report.endpoint = "http://127.0.0.1:2379".into();
/// report.connects = 1;
/// writer.set_report(report);
/// assert_eq!(cache.status().source.connects, 1);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
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
    /// The newest revision that the source has named, set now and then; never below the position in the same status.
    pub etcd_revision: u64,
    /// A problem that a person has to mend although the source is followed, such as a certificate file that cannot be
    /// used; empty without one. The cache is right now, but a later reconnect may fail because of it.
    pub warning: String,
}

impl SourceReport {
    /// The report for a status at this revision: raises the source's revision, if it has named one, to at least the
    /// cache's, because the report is set from time to time and the position moves with each event.
    pub(crate) fn at_least(&self, revision: u64) -> SourceReport {
        let shown = self.clone();
        let etcd_revision = if shown.etcd_revision > 0 { shown.etcd_revision.max(revision) } else { 0 };
        SourceReport { etcd_revision, ..shown }
    }
}
