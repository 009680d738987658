//! What is counted.
//!
//! Whatever happens is counted where it happens; what exists elsewhere already (open watches, frames, lag) is read when it
//! is asked for, by `operate::metrics`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use watchcore::metrics::{Families, Histogram};

/// Upper bounds of the buckets of durations, in seconds: a get takes some microseconds, a large list some seconds, and a
/// read that waits for a revision 3 s at most.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Counters of one service. Relaxed: figures.
pub(crate) struct Figures {
    connections: AtomicUsize,
    answer_bytes: AtomicU64,
    /// By the number of the reason.
    refused: [AtomicU64; Reason::ALL.len()],
    requests: Mutex<Requests>,
}

#[derive(Clone, Default)]
struct Requests {
    counts: BTreeMap<RequestLabels, u64>,
    /// By the verb.
    durations: BTreeMap<(&'static str, ResourceLabels), Histogram>,
}

/// A resource that is served; or a path that is no resource's, which begins with a slash; or `unknown`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct ResourceLabels {
    group: String,
    version: String,
    /// The plural name alone, as in the metrics of Kubernetes.
    resource: String,
}

/// What a finished request is counted by.
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

    /// Of no resource.
    pub(crate) fn path(path: &str) -> ResourceLabels {
        ResourceLabels { resource: path.to_owned(), ..ResourceLabels::default() }
    }
}

impl ResourceLabels {
    /// As labels of a series.
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

/// Why a connection was closed, or a request refused, that came too fast, too slow, too large, or malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types, reason = "the names are the values of the label")]
pub(crate) enum Reason {
    /// There were as many connections as there may be, or as many of one address.
    connections,
    /// The system had none to give: mostly too few file descriptors.
    accept,
    handshake,
    handshake_timeout,
    header_timeout,
    header_bytes,
    url_bytes,
    malformed,
    /// The client took nothing of what it was answered.
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

impl Default for Figures {
    fn default() -> Figures {
        Figures {
            connections: AtomicUsize::new(0),
            answer_bytes: AtomicU64::new(0),
            refused: Default::default(),
            requests: Mutex::default(),
        }
    }
}

impl Figures {
    pub(crate) fn refused(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
    }

    /// One more connection.
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
        // Nothing in here panics between two changes that belong together.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is done; its resource is given back. The labels have few values: verbs that are known, resources that
    /// are served, codes that are answered.
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

    /// Bytes of an answer that is no watch.
    pub(crate) fn answer_sent(&self, bytes: u64) {
        self.answer_bytes.fetch_add(bytes, Relaxed);
    }

    /// Requests of all verbs and codes.
    pub(crate) fn requests_by_resource(&self) -> BTreeMap<ResourceLabels, u64> {
        let mut requests = BTreeMap::new();
        for (labels, count) in &self.requests().counts {
            *requests.entry(labels.resource.clone()).or_insert(0) += count;
        }
        requests
    }

    /// Appends what is counted here.
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
            // A series that is there from the beginning shows its first increase.
            let help = "Connections and requests that came too fast, too slow, too large or malformed.";
            to.counter("refused", help, &[("reason", &format!("{reason:?}"))], count.load(Relaxed));
        }
    }
}
