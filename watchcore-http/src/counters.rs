//! Counters of the server.
//!
//! Events are counted where they happen. Values that exist anyway (open watches, frames, lag) are not counted here:
//! `operate::metrics` reads them when it is scraped.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use watchcore::metrics::{Families, Histogram};

/// Upper bounds of the duration buckets, in seconds: a get takes microseconds, a large list seconds, and a read that
/// waits for a revision at most 3 s.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Counters of one service. All atomics are Relaxed: each is an independent statistic.
pub(crate) struct Counters {
    connections: AtomicUsize,
    answer_bytes: AtomicU64,
    /// Indexed by `Reason`.
    refused: [AtomicU64; Reason::ALL.len()],
    requests: Mutex<Requests>,
}

#[derive(Clone, Default)]
struct Requests {
    counts: BTreeMap<RequestLabels, u64>,
    /// Keyed by verb and resource.
    durations: BTreeMap<(&'static str, ResourceLabels), Histogram>,
}

/// Labels of a served resource; of a path that is no resource, which begins with a slash; or `unknown`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct ResourceLabels {
    group: String,
    version: String,
    /// The plural name alone, as in the Kubernetes API server's metrics.
    resource: String,
}

/// The labels by which a finished request is counted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RequestLabels {
    pub(crate) verb: &'static str,
    pub(crate) resource: ResourceLabels,
    pub(crate) code: u16,
}

impl ResourceLabels {
    pub(crate) fn new(group: &str, version: &str, plural: &str) -> ResourceLabels {
        ResourceLabels { group: group.into(), version: version.into(), resource: plural.into() }
    }

    /// Labels of a path that is no resource.
    pub(crate) fn path(path: &str) -> ResourceLabels {
        ResourceLabels { resource: path.to_owned(), ..ResourceLabels::default() }
    }
}

impl ResourceLabels {
    /// Returns the labels of a series.
    pub(crate) fn labels(&self) -> [(&'static str, &str); 3] {
        [("group", &self.group), ("version", &self.version), ("resource", &self.resource)]
    }
}

impl fmt::Display for ResourceLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{}", self.resource, self.group)
    }
}

/// Why a connection was closed or a request refused: too many, too slow, too large, or malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types, reason = "the names are the values of the label")]
pub(crate) enum Reason {
    /// All connections, or all of one address, were in use.
    connections,
    /// The system failed to accept a connection: usually for lack of file descriptors.
    accept,
    handshake,
    handshake_timeout,
    header_timeout,
    header_bytes,
    url_bytes,
    malformed,
    /// The client took no byte for as long as the stall limit.
    stall,
}

impl Reason {
    const ALL: [Reason; 9] = [
        Reason::connections,
        Reason::accept,
        Reason::handshake,
        Reason::handshake_timeout,
        Reason::header_timeout,
        Reason::header_bytes,
        Reason::url_bytes,
        Reason::malformed,
        Reason::stall,
    ];
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            connections: AtomicUsize::new(0),
            answer_bytes: AtomicU64::new(0),
            refused: Default::default(),
            requests: Mutex::default(),
        }
    }
}

impl Counters {
    pub(crate) fn refused(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts a new connection.
    pub(crate) fn connect(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub(crate) fn disconnect(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a finished request and returns its resource labels. Cardinality is bounded: known verbs, served
    /// resources, codes that the server answers.
    pub(crate) fn request(&self, labels: RequestLabels, took: Duration) -> ResourceLabels {
        let Requests { counts, durations } = &mut *self.requests();
        match counts.get_mut(&labels) {
            Some(count) => *count += 1,
            None => _ = counts.insert(labels.clone(), 1),
        }
        let key = (labels.verb, labels.resource);
        if matches!(key.0, "get" | "list") {
            match durations.get_mut(&key) {
                Some(histogram) => histogram.observe(took.as_secs_f64()),
                None => {
                    let mut first = Histogram::new(&SECONDS);
                    first.observe(took.as_secs_f64());
                    durations.insert(key.clone(), first);
                }
            }
        }
        key.1
    }

    /// Counts bytes of an answer that is not a watch.
    pub(crate) fn answer_sent(&self, bytes: u64) {
        self.answer_bytes.fetch_add(bytes, Relaxed);
    }

    /// Returns the number of requests of each resource, over all verbs and codes.
    pub(crate) fn requests_by_resource(&self) -> BTreeMap<ResourceLabels, u64> {
        let mut requests = BTreeMap::new();
        for (labels, count) in &self.requests().counts {
            *requests.entry(labels.resource.clone()).or_insert(0) += count;
        }
        requests
    }

    /// Appends these counters to a metrics page.
    pub(crate) fn show(&self, to: &mut Families) {
        let Requests { counts, durations } = self.requests().clone();
        for (RequestLabels { verb, resource, code }, count) in &counts {
            let [group, version, plural] = resource.labels();
            let labels = [("verb", *verb), group, version, plural, ("code", &code.to_string())];
            to.counter("requests", "Requests that are answered, or whose client went (code 499).", &labels, *count);
        }
        for ((verb, resource), histogram) in &durations {
            let [group, version, plural] = resource.labels();
            let help = "Time from the head of a get or list to the last byte of its answer.";
            to.histogram("request_duration_seconds", help, &[("verb", *verb), group, version, plural], histogram);
        }
        let help = "Bytes of answers that are no watches.";
        to.counter("answer_bytes", help, &[], self.answer_bytes.load(Relaxed));
        for (reason, count) in Reason::ALL.iter().zip(&self.refused) {
            // Series with count 0 are exported too: a rate needs the value before the first increase.
            let help = "Connections and requests that came too fast, too slow, too large or malformed.";
            to.counter("refused", help, &[("reason", &format!("{reason:?}"))], count.load(Relaxed));
        }
    }
}
