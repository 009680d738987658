//! Consistent reads: one linearizable read serves all callers that asked before it began.

use super::backoff::full_jitter;
use super::config::{Config, Options};
use super::connect::Reader;
use super::counters::{add, increment};
use super::failure::Failure;
use super::range::KeyRange;
use super::shared::Shared;
use super::unanswered::{HeldState, StoredState};
use crate::log::log;
use std::cell::RefCell;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use watchcore::{Backoff, Position, Writer};

/// The first and the longest ceiling of the pause before a failed read is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The ceilings of the pause before etcd's state is compared again, while the watch has not delivered the difference.
const BEHIND: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(2));

/// How long a read waits for the first progress notification of a watch before it compares states instead: readers
/// have three seconds.
const UNTESTED: Duration = Duration::from_millis(500);

/// A linearizable read, the highest ticket that was issued before it began, and the cache's state at that time. The
/// answer serves that ticket and all earlier ones, if it can be of the cache's own history; later tickets take the
/// next read.
struct ConsistentRead {
    /// 0: nobody waits; the read only finds out whether progress requests are answered.
    ticket: u64,
    held: HeldState,
}

/// The outcome of a consistent read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Served {
    Yes,
    /// The history was replaced during the read: the answer says nothing of the present one.
    HistoryReplaced,
    /// etcd is below the cache: a wait for that revision would end at once, in another history.
    WentBack,
    /// The cache is below this answer, progress may never be notified, and etcd's state differs: the watch has to
    /// deliver the difference.
    Behind(u64),
}

impl ConsistentRead {
    /// A read for all callers that wait now; `None` if there is nothing to find out.
    fn now(writer: &Writer, shared: &Shared) -> Option<ConsistentRead> {
        let ticket = writer.demand().consistent;
        let is_wanted = ticket > 0 || shared.progress.are_suspected();
        is_wanted.then(|| ConsistentRead { ticket, held: HeldState::now(writer) })
    }

    /// Reads etcd's revision. If the cache is below it and progress may never be notified, compares etcd's state too.
    async fn ask(
        &mut self,
        reader: &Reader,
        range: &KeyRange,
        writer: &RefCell<Writer>,
        shared: &Shared,
    ) -> Result<StoredState, Failure> {
        let newest = reader.newest_since(range, self.held.position.revision).await?;
        let goal = Position { revision: newest.header().revision, ..self.held.position };
        let is_tested = || !shared.progress.are_untested();
        is_reached(goal, writer, shared, UNTESTED, is_tested).await;
        let held = HeldState::now(&writer.borrow());
        let is_reached = held.position.revision >= newest.header().revision;
        if is_reached || !shared.progress.are_in_doubt() || held.position.epoch != self.held.position.epoch {
            return Ok(StoredState { newest, is_same: false });
        }
        self.held = held;
        held.compare(reader, range).await
    }

    fn answered(&self, writer: &mut Writer, shared: &Shared, answer: &StoredState) -> Served {
        let held = self.held.position;
        if writer.position().epoch != held.epoch {
            return Served::HistoryReplaced;
        }
        if answer.newest.went_back() {
            return Served::WentBack;
        }
        let newest = answer.newest.header().revision;
        let is_behind = shared.progress.are_in_doubt() && writer.position().revision < newest;
        let revision = match (is_behind, answer.is_same) {
            (false, _) => newest,
            // The cache's state equals that of the answer: a reader misses nothing, and need not wait for a progress
            // notification that may never come.
            (true, true) => {
                if !shared.progress.are_untested() {
                    shared.progress_is_missing(writer, newest);
                }
                held.revision
            }
            (true, false) => return Served::Behind(newest),
        };
        if self.ticket > 0 {
            add(&shared.counts.compared_reads, u64::from(is_behind));
            writer.serve_consistent(self.ticket, revision);
        }
        Served::Yes
    }
}

/// Waits until the cache has reached `goal`, has left its epoch, or `is_over`, but at most for `limit`; returns
/// whether it reached the goal. Meanwhile the watch requests progress.
async fn is_reached(
    goal: Position,
    writer: &RefCell<Writer>,
    shared: &Shared,
    limit: Duration,
    is_over: impl Fn() -> bool,
) -> bool {
    let due = Instant::now() + limit;
    loop {
        let now = writer.borrow().position();
        let is_reached = now.epoch == goal.epoch && now.revision >= goal.revision;
        if is_reached || now.epoch != goal.epoch || is_over() {
            return is_reached;
        }
        shared.set_awaited(goal.revision);
        if tokio::time::timeout_at(due, shared.tickets.notified()).await.is_err() {
            return false;
        }
    }
}

/// The connections that consistent reads use.
struct Connections {
    /// The connections of the sessions.
    of_session: watch::Receiver<Option<Reader>>,
    /// A connection of this task, opened after the session's failed: the session's may have been idle for hours, and
    /// dead.
    own: Option<Reader>,
    pauses: Backoff,
}

impl Connections {
    /// Waits for a connection; `None` when no session will publish one any more.
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
        tokio::time::sleep(self.pauses.next_delay(Instant::now().into(), Duration::ZERO)).await;
        self.own = reader.reconnect(options).await.ok();
    }

    /// Returns the answer, or connects again after a failure.
    async fn answer_or_reconnect(
        &mut self,
        reader: &Reader,
        answer: Result<StoredState, Failure>,
        options: &Options,
    ) -> Option<StoredState> {
        match answer {
            Ok(answer) => {
                self.pauses.reset();
                Some(answer)
            }
            Err(failure) => {
                self.renew(reader, &failure, options).await;
                None
            }
        }
    }
}

/// Serves consistent reads until dropped. Without a connection, requests wait for one (and end by their own
/// timeouts).
pub(super) async fn serve(
    writer: &RefCell<Writer>,
    readers: watch::Receiver<Option<Reader>>,
    config: &Config,
    shared: &Shared,
) {
    let mut another_session = readers.clone();
    let pauses = full_jitter(PAUSES.0, PAUSES.1);
    let mut connections = Connections { of_session: readers, own: None, pauses };
    let mut behind = full_jitter(BEHIND.0, BEHIND.1);
    loop {
        shared.set_awaited(0);
        if ConsistentRead::now(&writer.borrow(), shared).is_none() {
            shared.tickets.notified().await;
            continue;
        }
        let Some(reader) = connections.get().await else { return };
        another_session.mark_unchanged();
        let Some(mut read) = ConsistentRead::now(&writer.borrow(), shared) else { continue };
        increment(&shared.counts.consistent_reads);
        let reads = async {
            let answer = read.ask(&reader, &config.range, writer, shared).await;
            connections.answer_or_reconnect(&reader, answer, &config.options).await
        };
        tokio::select! {
            answer = reads => {
                let Some(answer) = answer else { continue };
                let served = read.answered(&mut writer.borrow_mut(), shared, &answer);
                match served {
                    // The read found nothing out: etcd is where the cache is.
                    Served::Yes if read.ticket == 0 && shared.progress.are_suspected() => {
                        let _ = tokio::time::timeout(behind.next_delay(Instant::now().into(), Duration::ZERO), shared.tickets.notified()).await;
                    }
                    Served::Yes => {
                        behind.reset();
                        // The caller now waits for this revision, so the watch must request progress.
                        shared.watch.notify_one();
                    }
                    Served::HistoryReplaced => {}
                    Served::Behind(revision) => {
                        let goal = Position { revision, ..read.held.position };
                        if is_reached(goal, writer, shared, behind.next_delay(Instant::now().into(), Duration::ZERO), || false).await && read.ticket > 0 {
                            behind.reset();
                            writer.borrow_mut().serve_consistent(read.ticket, revision);
                        }
                    }
                    // The session withdraws its connection, and publishes one again when the cache has the other
                    // history.
                    Served::WentBack => {
                        shared.doubt();
                        let _ = tokio::time::timeout(PAUSES.1, another_session.changed()).await;
                        connections.own = None;
                    }
                }
            }
            // The new session's connection is the better one.
            _ = another_session.changed() => connections.own = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Newest;
    use watchcore::{Cache, Change, ResyncReason, Want};

    /// The outcome for an answer of that revision, and the revision that the waiting caller gets.
    fn answered(revision: u64, meanwhile: impl FnOnce(&mut Writer)) -> (Served, Option<u64>) {
        answered_in_doubt(false, false, revision, meanwhile)
    }

    /// As `answered`, but with progress requests suspected of being dropped if `doubts`.
    fn answered_in_doubt(
        doubts: bool,
        is_same: bool,
        revision: u64,
        meanwhile: impl FnOnce(&mut Writer),
    ) -> (Served, Option<u64>) {
        struct Nobody;
        impl watchcore::Source for Nobody {
            fn wake(&self) {}
        }
        let cache = Cache::builder("/").expect_load(true).build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.attach(std::sync::Arc::new(Nobody)).unwrap();
        writer.load(10, []).unwrap();
        let mut waiter = cache.waiter(Want::Consistent).unwrap();
        let shared = Shared::default();
        if doubts {
            shared.progress.suspect();
        }
        let read = ConsistentRead::now(&writer, &shared).expect("somebody waits");
        let newest = Newest::for_tests(revision, read.held.position.revision);
        meanwhile(&mut writer);
        let served = read.answered(&mut writer, &shared, &StoredState { newest, is_same });
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
        assert_eq!(answered(20, resyncs), (Served::HistoryReplaced, None));
    }

    /// The comparison of states decides whether a reader is served or has to wait.
    #[test]
    fn same_state_serves_without_progress() {
        let applies = |writer: &mut Writer| writer.apply(11, [Change::put("/a", "")]).unwrap();
        let answered =
            |is_same, revision, meanwhile: fn(&mut Writer)| answered_in_doubt(true, is_same, revision, meanwhile);
        assert_eq!(answered(true, 20, |_| {}), (Served::Yes, Some(10)), "the state of 20 is there already");
        assert_eq!(answered(false, 20, |_| {}), (Served::Behind(20), None));
        assert_eq!(answered(false, 11, applies), (Served::Yes, Some(11)), "the watch has brought it");
        assert_eq!(answered(true, 20, applies), (Served::Yes, Some(10)), "what came since is newer than the answer");
        assert_eq!(answered(false, 9, |_| {}), (Served::WentBack, None));
    }
}
