//! Consistent reads: one linearizable read serves all callers that asked before it began.

use super::backoff::Backoff;
use super::config::{Config, Options};
use super::connect::{Newest, Reader};
use super::counters::one;
use super::failure::Failure;
use super::range::KeyRange;
use super::shared::Shared;
use crate::log::log;
use std::cell::RefCell;
use std::time::Duration;
use tokio::sync::watch;
use watchcore::{Position, Writer};

/// The first and the longest ceiling of the pause before a failed read is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// A linearizable read, the highest ticket that was drawn before it began, and where the cache stood then. That
/// ticket and all before it are served by its answer, where this can be one of the cache's own history; later tickets
/// take the next read.
struct ConsistentRead {
    ticket: u64,
    position: Position,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Served {
    Yes,
    /// The history was replaced meanwhile: the answer says nothing of the present one.
    Overtaken,
    /// etcd is below what the cache has: callers that wait for that revision would read another history, at once.
    WentBack,
}

impl ConsistentRead {
    /// For all callers that wait now; `None` without any.
    fn now(writer: &Writer) -> Option<ConsistentRead> {
        let ticket = writer.demand().consistent;
        (ticket > 0).then_some(ConsistentRead { ticket, position: writer.position() })
    }

    fn answered(self, writer: &mut Writer, newest: &Newest) -> Served {
        if writer.position().epoch != self.position.epoch {
            return Served::Overtaken;
        }
        if newest.went_back() {
            return Served::WentBack;
        }
        writer.serve_consistent(self.ticket, newest.header().revision);
        Served::Yes
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
        log!(debug, error = %failure.text(), "a consistent read failed; connecting again");
        tokio::time::sleep(self.pauses.next()).await;
        self.own = reader.again(options).await.ok();
    }

    async fn read(&mut self, reader: &Reader, range: &KeyRange, applied: u64, options: &Options) -> Option<Newest> {
        match reader.newest_since(range, applied).await {
            Ok(newest) => {
                self.pauses.reset();
                Some(newest)
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
            newest = connections.read(&reader, &config.range, read.position.revision, &config.options) => {
                let Some(newest) = newest else { continue };
                let served = read.answered(&mut writer.borrow_mut(), &newest);
                match served {
                    // A wait for this revision begins now.
                    Served::Yes => shared.watch.notify_one(),
                    Served::Overtaken => {}
                    // The session takes the connection back, and shows one again when the cache has the other history.
                    Served::WentBack => {
                        shared.doubt();
                        let _ = tokio::time::timeout(PAUSES.1, another_session.changed()).await;
                        connections.own = None;
                    }
                }
            }
            // Its connection is the better one.
            _ = another_session.changed() => connections.own = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::{Cache, Change, ResyncReason, Want};

    /// What an answer of that revision becomes, and what the caller that waits for it gets.
    fn answered(revision: u64, meanwhile: impl FnOnce(&mut Writer)) -> (Served, Option<u64>) {
        struct Nobody;
        impl watchcore::Source for Nobody {
            fn wake(&self) {}
        }
        let cache = Cache::builder("/").expect_load(true).build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.attach(std::sync::Arc::new(Nobody)).unwrap();
        writer.load(10, []).unwrap();
        let mut waiter = cache.waiter(Want::Consistent).unwrap();
        let read = ConsistentRead::now(&writer).expect("somebody waits");
        let newest = Newest::for_tests(revision, read.position.revision);
        meanwhile(&mut writer);
        let served = read.answered(&mut writer, &newest);
        let got = match waiter.poll() {
            Ok(found) => found.map(|found| found.revision),
            Err(error) => panic!("{error}"),
        };
        (served, got)
    }

    #[test]
    fn answer_of_another_history_serves_nobody() {
        let applies = |writer: &mut Writer| writer.apply(11, [Change::put("/a", "")]).unwrap();
        assert_eq!(answered(10, |_| {}), (Served::Yes, Some(10)));
        assert_eq!(answered(10, applies), (Served::Yes, Some(10)), "what came meanwhile is no matter");
        assert_eq!(answered(9, |_| {}), (Served::WentBack, None));
        let resyncs = |writer: &mut Writer| {
            writer.resync(5, [], ResyncReason::HistoryReset).unwrap();
        };
        assert_eq!(answered(20, resyncs), (Served::Overtaken, None));
    }
}
