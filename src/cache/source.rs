//! What feeds a cache, as the cache sees it.

#![forbid(unsafe_code)]

use crate::error::Error;

/// Something that feeds a cache: it is called when a reader waits for news of the cache.
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
    /// Somebody asks for progress or for a consistent read: see [`crate::Writer::demand`]. Must be cheap
    /// and must not block; called from any thread. A panic here is caught, counted in
    /// [`Stats::caught_panics`](crate::Stats::caught_panics) and logged; who asked goes on waiting.
    fn wake(&self);

    /// What the source counts beyond its [`SourceReport`], for [`Cache`](crate::Cache)s' metrics: calls `each` once for
    /// each figure, those of one name one after the other. Must not block; called from any thread.
    fn metrics(&self, each: &mut dyn FnMut(SourceMetric)) {
        let _ = each;
    }
}

/// A figure of a source, as the feature `metrics` shows it.
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
    /// underscores; what the report has (`info`, `revision`, `warning`, `connects`, `reconnects`, `resyncs`) is left out.
    pub name: &'static str,
    /// One sentence about it.
    pub help: &'static str,
    /// Whether it only rises.
    pub is_counter: bool,
    /// Its value now.
    pub value: u64,
    /// What tells it from others of its name.
    pub label: Option<(&'static str, &'static str)>,
}

impl SourceMetric {
    /// One that only rises.
    pub const fn counter(name: &'static str, help: &'static str, value: u64) -> SourceMetric {
        SourceMetric { name, help, is_counter: true, value, label: None }
    }

    /// One that rises and falls.
    pub const fn gauge(name: &'static str, help: &'static str, value: u64) -> SourceMetric {
        SourceMetric { name, help, is_counter: false, value, label: None }
    }

    /// The same, told from others of its name by a label.
    pub const fn with_label(self, name: &'static str, value: &'static str) -> SourceMetric {
        SourceMetric { label: Some((name, value)), ..self }
    }
}

/// What a feeder says of its source.
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

/// What a feeder reports of its source, as [`crate::Status::source`] has it.
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
    /// Newest revision that the source has named, now and then; never below the position that a status shows beside it.
    pub etcd_revision: u64,
    /// What a person has to mend although the source is followed, such as a certificate file that cannot be used; empty
    /// without anything. It is no reason to distrust the cache now: it is what a later reconnect may fail of.
    pub warning: String,
}

impl SourceReport {
    /// As it is shown beside a position: the source, where it has named a revision, is no further behind than the cache.
    /// The report is set now and then, and the position moves with each event.
    pub(crate) fn at_least(&self, revision: u64) -> SourceReport {
        let shown = self.clone();
        let etcd_revision = if shown.etcd_revision > 0 { shown.etcd_revision.max(revision) } else { 0 };
        SourceReport { etcd_revision, ..shown }
    }
}
