//! All statistics of caches as text for Prometheus.
//!
//! [`text`] renders what [`Cache::status`], [`Cache::stats`] and [`Cache::subscriptions`] say, and what the feeder
//! counts, of any number of caches at once, so that each name has its `HELP` and `TYPE` once. A server sends it with
//! [`CONTENT_TYPE`], after metrics of its own where it has some ([`Families`]). docs/OPERATIONS.md has a table of all names, what they mean, and which to alert on.
//!
//! ```
//! use watchcore::{Cache, Change, metrics};
//!
//! let cache = Cache::builder("/registry/pods/").name("pods").build()?;
//! cache.writer()?.apply(7, [Change::put("/registry/pods/a", "1")])?;
//! let text = metrics::text([&cache]);
//! assert!(text.contains("# TYPE watchcore_events_total counter\n"));
//! assert!(text.contains("watchcore_events_total{cache=\"pods\"} 1\n"));
//! assert!(text.contains("watchcore_revision{cache=\"pods\"} 7\n"));
//! # Ok::<(), watchcore::Error>(())
//! ```
//!
//! - **Labels.** `cache` is the cache's name (its prefix without one), on all but the metrics of the process. Of caches with equal names the
//!   second is `name#2` and so on, in the order given. The other labels (`state`, `part`, `code`, `reason`) have few
//!   values, all known; nothing has a series for each subscription unless [`Metrics::per_subscription`] asks for it.
//! - **Counters** end in `_total` and never fall as long as the cache lives; those of the feeder begin anew with it.
//!   Everything else is a gauge.
//! - **Cost**: O(open subscriptions) and some 10 KB of text for each cache. No lock that a writer takes while it
//!   publishes, and none that a poll takes; any number of calls at once.
//! - **Format**: the text format 0.0.4, which Prometheus, VictoriaMetrics and the agents of OpenTelemetry read. It can
//!   stand in one answer with other metrics of that format.

#![forbid(unsafe_code)]

mod families;

use crate::cache::{Cache, SourceReport, State, Stats, Status, SubscriptionInfo, SubscriptionState};
pub use families::{Families, Histogram};
use families::{FamilyKind::Counter, FamilyKind::Gauge, Value};
use std::time::{Duration, UNIX_EPOCH};

/// The `Content-Type` of an answer with this text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All statistics of these caches, but for those of each subscription.
///
/// Shorthand for `Metrics::new().text(caches)`; see [the module](self).
pub fn text<'a>(caches: impl IntoIterator<Item = &'a Cache>) -> String {
    Metrics::new().text(caches)
}

/// Which metrics to render.
///
/// ```
/// use watchcore::{Cache, Start, metrics::Metrics};
///
/// let cache = Cache::builder("/").name("all").build()?;
/// let billing = cache.subscribe(Start::Now).name("billing").open()?;
/// let text = Metrics::new().per_subscription(true).text([&cache]);
/// assert!(text.contains("watchcore_subscription_lag_events{cache=\"all\",subscription=\"billing\",id=\"1\"} 0\n"));
/// # drop(billing);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "text() renders"]
pub struct Metrics {
    per_subscription: bool,
}

impl Metrics {
    /// All but those of each subscription.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// Whether each open subscription has series of its own (default false), by the name that it was given and its
    /// number: some ten of them for each, which come and go with the subscriptions.
    pub fn per_subscription(mut self, on: bool) -> Metrics {
        self.per_subscription = on;
        self
    }

    /// Renders the statistics of these caches as they are now; without a cache, those of the process alone.
    pub fn text<'a>(self, caches: impl IntoIterator<Item = &'a Cache>) -> String {
        let mut families = Families::with_prefix("watchcore_");
        families.add("build_info", Gauge, "The version of watchcore.", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        let mut names: Vec<String> = Vec::new();
        for cache in caches {
            let label = unique(&name_of(cache), &names);
            self.cache(&mut families, cache, &label);
            names.push(label);
        }
        families.text()
    }

    fn cache(self, families: &mut Families, cache: &Cache, name: &str) {
        let (status, stats) = cache.status_and_stats();
        let of_cache = &mut OfCache { families, name };
        let prefix = String::from_utf8_lossy(cache.prefix()).into_owned();
        of_cache.with("cache_info", Gauge, "A cache, and its prefix.", &[("prefix", &prefix)], 1);
        let losses = cache.inner.losses_that_only_rise(stats.lagged);
        of_status(of_cache, &status);
        of_stats(of_cache, &stats, losses);
        let all = cache.subscriptions();
        of_states(of_cache, &all);
        let source = cache.inner.source();
        if source.is_some() || status.source.connects > 0 || !status.source.endpoint.is_empty() {
            of_report(of_cache, &status.source);
        }
        if let Some(source) = source {
            source.metrics(&mut |metric| {
                let is_name = metric.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                if !is_name || OF_REPORT.contains(&metric.name) {
                    return;
                }
                let kind = if metric.is_counter { Counter } else { Gauge };
                let labels = metric.label.as_slice();
                of_cache.with(&format!("feeder_{}", metric.name), kind, metric.help, labels, metric.value);
            });
        }
        if self.per_subscription {
            all.iter().for_each(|info| of_subscription(of_cache, info));
        }
    }
}

/// Names that a source's own series may not have: those of its report.
const OF_REPORT: [&str; 6] = ["info", "revision", "warning", "connects", "reconnects", "resyncs"];

/// The name that a cache was given, else its prefix; never empty, for an empty label is none to Prometheus.
fn name_of(cache: &Cache) -> String {
    let prefix = String::from_utf8_lossy(cache.prefix());
    let named = [cache.name(), &prefix, "unnamed"].into_iter().find(|name| !name.is_empty());
    named.unwrap_or_default().to_owned()
}

/// `name`, or with a number where another cache has it.
fn unique(name: &str, taken: &[String]) -> String {
    let numbered = (2..).map(|number| format!("{name}#{number}"));
    std::iter::once(name.to_owned()).chain(numbered).find(|label| !taken.contains(label)).unwrap_or_default()
}

/// The families, for the series of one cache.
struct OfCache<'a> {
    families: &'a mut Families,
    name: &'a str,
}

impl OfCache<'_> {
    fn with(
        &mut self,
        name: &str,
        kind: families::FamilyKind,
        help: &str,
        labels: &[(&str, &str)],
        value: impl Into<Value>,
    ) {
        let mut all = vec![("cache", self.name)];
        all.extend_from_slice(labels);
        self.families.add(name, kind, help, &all, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Into<Value>) {
        self.with(name, Gauge, help, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.with(name, Counter, help, &[], value);
    }
}

/// Every field is named, so that a new one is not forgotten.
fn of_status(to: &mut OfCache<'_>, status: &Status) {
    let Status {
        // The label.
        name: _,
        state,
        position,
        oldest,
        window_age,
        objects,
        // The sum of memory_bytes.
        bytes: _,
        last_error,
        subscriptions,
        max_lag_events,
        max_lag_seen,
        overrun,
        // In `of_report`.
        source: _,
    } = status;
    let since = match state {
        State::Stale { since } => since.duration_since(UNIX_EPOCH).unwrap_or_default(),
        _ => Duration::ZERO,
    };
    let states = [State::NotReady, State::Ready, State::Stale { since: UNIX_EPOCH }, State::Failed, State::Closed];
    for one in states {
        let is_it = u64::from(one.name() == state.name());
        to.with(
            "state",
            Gauge,
            "1 for the state that the cache is in, 0 for the others.",
            &[("state", one.name())],
            is_it,
        );
    }
    to.gauge(
        "stale_since_timestamp_seconds",
        "When the source went out of reach; 0 while the state is not Stale.",
        since,
    );
    if let Some(error) = last_error {
        let help = "1 for the code of the source's last error, which stays when the source is back.";
        to.with("last_error_info", Gauge, help, &[("code", error.code().name())], 1);
    }
    // The upper half is drawn at birth: no number for a graph.
    to.gauge("epoch", "Histories since birth: 1, and 1 more with each resync.", u64::from(position.epoch as u32));
    to.gauge("revision", "The revision that the cache is at.", position.revision);
    to.gauge("oldest_revision", "The oldest revision of the window: it can be resumed from one below it.", *oldest);
    to.gauge("window_age_seconds", "How far back the window goes.", *window_age);
    to.gauge("objects", "Live keys.", *objects);
    to.gauge("subscriptions", "Subscriptions that are open.", *subscriptions);
    let help = "Open subscriptions that have lost events which no poll has reported yet.";
    to.gauge("subscriptions_overrun", help, *overrun);
    to.gauge("subscription_max_lag_events", "Greatest lag of any open subscription.", *max_lag_events);
    let help = "Greatest lag of any subscription that was found since birth.";
    to.gauge("subscription_max_lag_seen_events", help, *max_lag_seen);
}

/// Every field is named, so that a new one is not forgotten. `losses`: of `lagged`, what only rises.
fn of_stats(to: &mut OfCache<'_>, stats: &Stats, losses: u64) {
    let Stats {
        // These three are in the status too.
        objects: _,
        subscriptions: _,
        window_age: _,
        version_bytes,
        index_bytes,
        segments,
        window_segments,
        window_bytes,
        log_bytes,
        kept_bytes,
        snapshots,
        pages,
        page_bytes,
        waiting,
        notifier_overruns,
        notifier_behind,
        events,
        revisions,
        oldest_snapshot,
        tombstones,
        tombstone_bytes,
        decoded_values,
        decoded_bytes,
        buckets,
        extract_failures,
        lagged: _,
        delivered_bytes,
        link_bytes,
        unfreed_bytes,
        caught_panics,
    } = stats;
    let parts = [
        ("versions", version_bytes),
        ("index", index_bytes),
        ("log", log_bytes),
        ("delivered", delivered_bytes),
        ("links", link_bytes),
        ("decoded", decoded_bytes),
    ];
    of_memory(to, parts);
    to.gauge("window_bytes", "What counts against the cache's capacity in bytes.", *window_bytes);
    to.gauge("window_segments", "Segments of the window.", *window_segments);
    to.gauge(
        "segments",
        "Segments that exist: the window, and what batches, subscriptions and snapshots keep.",
        *segments,
    );
    of_kept(to, *kept_bytes, (*snapshots, *oldest_snapshot), (*pages, *page_bytes));
    to.gauge("tombstones", "Deleted keys that wait to be purged.", *tombstones);
    to.gauge("tombstone_bytes", "What stays of deleted keys until they are purged.", *tombstone_bytes);
    to.gauge("decoded_values", "Decoded values that live.", *decoded_values);
    to.gauge("index_buckets", "Buckets of the declared indexes.", *buckets);
    to.counter("events", "Events published since birth.", *events);
    to.counter("revisions", "Revisions with events published since birth.", *revisions);
    to.counter("extract_failures", "Values whose attributes could not be extracted.", *extract_failures);
    to.counter(
        "subscription_losses",
        "Losses of events, of open and of former subscriptions, reported or not yet.",
        losses,
    );
    of_sleepers(to, *waiting, *notifier_behind, *notifier_overruns);
    let of_process = &mut to.families;
    let help = "Memory of all caches of the process that is retired and not freed yet.";
    of_process.once("process_unfreed_bytes", Gauge, help, *unfreed_bytes);
    let help = "Panics of foreign code (decoders, predicates, wakers) that were caught in the process.";
    of_process.once("process_caught_panics", Counter, help, *caught_panics);
}

/// The memory of a cache by its parts.
fn of_memory<const N: usize>(to: &mut OfCache<'_>, parts: [(&str, &u64); N]) {
    for (part, bytes) in parts {
        to.with("memory_bytes", Gauge, "What the cache holds, by what.", &[("part", part)], *bytes);
    }
}

/// The waiters, and the notifier that wakes them.
fn of_sleepers(to: &mut OfCache<'_>, waiting: u64, behind: u64, overruns: u64) {
    to.gauge("waiters", "Waiters that are parked.", waiting);
    let help =
        "Events that the notifier has still to look at for sleepers whose filters it cannot evaluate fast enough.";
    to.gauge("notifier_behind_events", help, behind);
    to.counter("notifier_overruns", "Times that the notifier itself fell out of the window.", overruns);
}

/// Series of the memory that readers keep: bytes of the log, snapshots with the age of the oldest, pages with their bytes.
fn of_kept(
    to: &mut OfCache<'_>,
    kept_bytes: u64,
    (snapshots, oldest): (u64, Duration),
    (pages, page_bytes): (u64, u64),
) {
    let help = "Bytes of the log that are kept beyond the window, by snapshots, batches and subscriptions.";
    to.gauge("kept_bytes", help, kept_bytes);
    to.gauge("snapshots", "Snapshots that somebody holds: each keeps the log since its making.", snapshots);
    let help = "Age of the oldest living snapshot, which keeps the log since then.";
    to.gauge("oldest_snapshot_age_seconds", help, oldest);
    to.gauge("pages", "Pages, and batches of an initial state, of many key-values that somebody holds.", pages);
    to.gauge("page_bytes", "Key-values of those pages and batches that are older than the window.", page_bytes);
}

fn of_states(to: &mut OfCache<'_>, all: &[SubscriptionInfo]) {
    for state in SubscriptionState::ALL {
        let count = all.iter().filter(|info| info.state == *state).count() as u64;
        to.with("subscriptions_in_state", Gauge, "Open subscriptions by state.", &[("state", state.name())], count);
    }
}

/// Every field is named, so that a new one is not forgotten.
fn of_report(to: &mut OfCache<'_>, report: &SourceReport) {
    let SourceReport {
        endpoint,
        server_version,
        cluster_id,
        member_id,
        connects,
        reconnects,
        resyncs,
        etcd_revision,
        warning,
    } = report;
    let (cluster, member) = (format!("{cluster_id:x}"), format!("{member_id:x}"));
    let labels = [
        ("endpoint", endpoint.as_str()),
        ("server_version", server_version),
        ("cluster_id", &cluster),
        ("member_id", &member),
    ];
    to.with("feeder_info", Gauge, "The server in use.", &labels, 1);
    to.gauge("feeder_revision", "Newest revision of etcd that the feeder has seen.", *etcd_revision);
    let help = "1 while a person has to mend something although the source is followed, such as a certificate file.";
    to.gauge("feeder_warning", help, u64::from(!warning.is_empty()));
    to.counter("feeder_connects", "Watches opened.", *connects);
    to.counter("feeder_reconnects", "Watches opened beyond the first.", *reconnects);
    to.counter("feeder_resyncs", "Resyncs: listings that replaced the history.", *resyncs);
}

/// Every field is named, so that a new one is not forgotten.
fn of_subscription(to: &mut OfCache<'_>, info: &SubscriptionInfo) {
    let SubscriptionInfo { id, name, state, position, lag, read_path, last_poll, handed_out, lagged } = info;
    let id = id.to_string();
    let labels = [("subscription", name.as_str()), ("id", &id)];
    let path = read_path.to_string();
    let [name, number] = labels;
    let of_info = [name, number, ("state", state.name()), ("read_path", &path)];
    to.with("subscription_info", Gauge, "A subscription, its state and the way it reads.", &of_info, 1);
    let mut gauge = |name, help, value: Value| to.with(name, Gauge, help, &labels, value);
    gauge("subscription_position_revision", "Everything up to it was handed out.", position.revision.into());
    gauge("subscription_lag_events", "Events that it has not taken.", lag.events.into());
    gauge("subscription_lag_revisions", "Revisions that it has not taken.", lag.revisions.into());
    gauge("subscription_lag_seconds", "Time since it last had everything.", lag.age.into());
    if let Some(age) = last_poll {
        gauge(
            "subscription_last_poll_age_seconds",
            "Time since its last poll; none where it never polled.",
            (*age).into(),
        );
    }
    to.with("subscription_delivered", Counter, "Events and marks that it was handed.", &labels, *handed_out);
    to.with("subscription_lost", Counter, "Times that it lost events.", &labels, *lagged);
}

#[cfg(all(test, not(loom)))]
mod tests;
