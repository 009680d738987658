//! What is counted.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counters of one service.
#[derive(Default)]
pub(crate) struct Figures {
    connections: AtomicUsize,
    refused: Family<RefusedLabels, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RefusedLabels {
    reason: Reason,
}

/// Why a connection was closed, or a request refused, that came too fast, too slow, too large, or malformed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the names are the values of the label")]
pub(crate) enum Reason {
    /// There were as many connections as there may be.
    connections,
    /// The system had none to give: mostly too few file descriptors.
    accept,
    handshake,
    handshake_timeout,
    header_timeout,
    header_bytes,
    url_bytes,
    malformed,
}

impl Figures {
    pub(crate) fn refused(&self, reason: Reason) {
        self.refused.get_or_create(&RefusedLabels { reason }).inc();
    }

    /// One more connection, unless there are `limit`. It is accepted by one task, so none comes between.
    pub(crate) fn connect(&self, limit: usize) -> bool {
        let is_free = self.connections.load(Relaxed) < limit;
        if is_free {
            self.connections.fetch_add(1, Relaxed);
        }
        is_free
    }

    pub(crate) fn disconnect(&self) {
        self.connections.fetch_sub(1, Relaxed);
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }
}
