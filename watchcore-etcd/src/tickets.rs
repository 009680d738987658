//! Consistent reads: one linearizable read serves all callers that asked before it began.

use super::backoff::Backoff;
use super::config::{Config, Options};
use super::connect::Reader;
use super::counters::one;
use super::failure::Failure;
use super::range::KeyRange;
use super::shared::Shared;
use crate::log::log;
use std::cell::RefCell;
use std::time::Duration;
use tokio::sync::watch;
use watchcore::Writer;

/// The first and the longest ceiling of the pause before a failed read is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A linearizable read, and the highest ticket that was drawn before it began: that one and all before it are
/// served by its answer. Later tickets take the next read.
struct ConsistentRead {
    ticket: u64,
}

impl ConsistentRead {
    /// For all callers that wait now; `None` without any.
    fn now(writer: &Writer) -> Option<ConsistentRead> {
        let ticket = writer.demand().consistent;
        (ticket > 0).then_some(ConsistentRead { ticket })
    }

    fn answered(self, writer: &mut Writer, revision: u64) {
        writer.serve_consistent(self.ticket, revision);
    }
}

/// The connections that consistent reads use.
struct Connections {
    /// Those of the sessions.
    of_session: watch::Receiver<Option<Reader>>,
    /// One of our own, after the session's failed: it may be idle for hours, and dead.
    own: Option<Reader>,
    pauses: Backoff,
}

impl Connections {
    /// Waits for one; `None` when there is none any more.
    async fn get(&mut self) -> Option<Reader> {
        loop {
            if self.of_session.has_changed().unwrap_or(true) {
                self.own = None;
            }
            let of_session = self.of_session.borrow_and_update().clone();
            if let Some(reader) = of_session {
                return Some(self.own.clone().unwrap_or(reader));
            }
            self.of_session.changed().await.ok()?;
        }
    }

    /// Connects again after `reader` failed.
    async fn renew(&mut self, reader: &Reader, failure: &Failure, options: &Options) {
        log!(debug, error = %failure.text, "a consistent read failed; connecting again");
        tokio::time::sleep(self.pauses.next()).await;
        self.own = reader.again(options).await.ok();
    }

    async fn read(&mut self, reader: &Reader, range: &KeyRange, options: &Options) -> Option<u64> {
        match reader.newest(range).await {
            Ok(header) => {
                self.pauses.reset();
                Some(header.revision)
            }
            Err(failure) => {
                self.renew(reader, &failure, options).await;
                None
            }
        }
    }
}

/// Serves until dropped. Without a connection, requests wait for one (and end by their own timeouts).
pub(super) async fn serve(
    writer: &RefCell<Writer>,
    readers: watch::Receiver<Option<Reader>>,
    config: &Config,
    shared: &Shared,
) {
    let mut another_session = readers.clone();
    let pauses = Backoff::new(PAUSES.0, PAUSES.1);
    let mut connections = Connections { of_session: readers, own: None, pauses };
    loop {
        if writer.borrow().demand().consistent == 0 {
            shared.tickets.notified().await;
            continue;
        }
        let Some(reader) = connections.get().await else { return };
        another_session.mark_unchanged();
        let Some(read) = ConsistentRead::now(&writer.borrow()) else { continue };
        one(&shared.counts.consistent_reads);
        tokio::select! {
            revision = connections.read(&reader, &config.range, &config.options) => {
                let Some(revision) = revision else { continue };
                read.answered(&mut writer.borrow_mut(), revision);
                // A wait for this revision begins now.
                shared.watch.notify_one();
            }
            // Its connection is the better one.
            _ = another_session.changed() => connections.own = None,
        }
    }
}
