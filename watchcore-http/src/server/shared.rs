//! The state that all connections of a server share.

use super::clock::Clock;
use super::tls::Certificates;
use crate::api::Api;
use crate::clients::ClientPermits;
use crate::counters::Counters;
use crate::limits::Limits;
use axum::Router;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Notify;

/// See [`Server::CUT`](crate::Server::CUT).
pub(super) const CUT: Duration = Duration::from_secs(5);

/// State that all connections of a server share.
pub(super) struct Shared {
    pub(super) api: Api,
    pub(super) router: Router,
    /// Whether watches over HTTP/1.1 bypass hyper.
    pub(super) direct: bool,
    pub(super) tls: Option<Certificates>,
    pub(super) asks_certificate: bool,
    /// Whether requests must be authenticated.
    pub(super) requires_authentication: bool,
    pub(super) permits: Arc<ClientPermits>,
    pub(super) clock: Arc<Clock>,
    pub(super) alive: Arc<TaskCount>,
}

impl Shared {
    pub(super) fn limits(&self) -> &Arc<Limits> {
        &self.api.0.limits
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.api.0.counters
    }
}

/// Counts the server's tasks besides those of connections: HTTP/2 streams.
#[derive(Default)]
pub(super) struct TaskCount {
    count: AtomicUsize,
    emptied: Notify,
}

/// A counted task, until this is dropped.
pub(super) struct CountedTask(Arc<TaskCount>);

impl TaskCount {
    pub(super) fn enter(self: &Arc<Self>) -> CountedTask {
        self.count.fetch_add(1, SeqCst);
        CountedTask(self.clone())
    }

    /// Waits until there are none. No more may be entered.
    pub(super) async fn none(&self) {
        while self.count.load(SeqCst) > 0 {
            // If the last one leaves between the check and the wait, `notify_one` has stored a permit, and the wait
            // returns at once.
            self.emptied.notified().await;
        }
    }
}

impl Drop for CountedTask {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, SeqCst) == 1 {
            self.0.emptied.notify_one();
        }
    }
}
