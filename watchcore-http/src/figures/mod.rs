//! What is counted.
//!
//! Whatever happens is counted where it happens, in the atomics of prometheus-client; what exists elsewhere already
//! (open watches, frames, lag) is read when it is asked for, by `operate::metrics`.

mod text;

pub(crate) use text::prometheus_text;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets of durations, in seconds: a get takes some microseconds, a large list some seconds, and a
/// read that waits for a revision 3 s at most.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Counters of one service.
pub(crate) struct Figures {
    connections: AtomicUsize,
    refused: Family<RefusedLabels, Counter>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
    answer_bytes: Counter,
}

/// A resource that is served; or a path that is no resource's, which begins with a slash; or `unknown`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
pub(crate) struct ResourceLabels {
    group: String,
    version: String,
    /// The plural name alone, as in the metrics of Kubernetes.
    resource: String,
}

/// What a finished request is counted by.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub(crate) verb: &'static str,
    #[prometheus(flatten)]
    pub(crate) resource: ResourceLabels,
    pub(crate) code: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct DurationLabels {
    verb: &'static str,
    #[prometheus(flatten)]
    resource: ResourceLabels,
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

impl fmt::Display for ResourceLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{}", self.resource, self.group)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RefusedLabels {
    reason: Reason,
}

/// Why a connection was closed, or a request refused, that came too fast, too slow, too large, or malformed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
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
        let refused = Family::default();
        // A series that is there from the beginning shows its first increase.
        for reason in Reason::ALL {
            drop(refused.get_or_create(&RefusedLabels { reason }));
        }
        Figures {
            connections: AtomicUsize::new(0),
            refused,
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            answer_bytes: Counter::default(),
        }
    }
}

impl Figures {
    pub(crate) fn refused(&self, reason: Reason) {
        self.refused.get_or_create(&RefusedLabels { reason }).inc();
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

    /// A request is done; its resource is given back. The labels have few values: verbs that are known, resources that
    /// are served, codes that are answered.
    pub(crate) fn request(&self, labels: RequestLabels, took: Duration) -> ResourceLabels {
        self.requests.get_or_create(&labels).inc();
        let RequestLabels { verb, resource, .. } = labels;
        if !matches!(verb, "get" | "list") {
            return resource;
        }
        let labels = DurationLabels { verb, resource };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        labels.resource
    }

    /// Bytes of an answer that is no watch.
    pub(crate) fn answer_sent(&self, bytes: u64) {
        self.answer_bytes.inc_by(bytes);
    }

    /// Registers what is counted here.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "requests",
            "Requests that are answered, or whose client went (code 499)",
            self.requests.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "Time from the head of a get or list to the last byte of its answer",
            self.durations.clone(),
        );
        registry.register("answer_bytes", "Bytes of answers that are no watches", self.answer_bytes.clone());
        registry.register(
            "refused",
            "Connections and requests that came too fast, too slow, too large or malformed",
            self.refused.clone(),
        );
    }
}
