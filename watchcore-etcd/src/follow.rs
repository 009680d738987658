//! Follows a watch: applies its events, keeps it alive, and notices when it dies.
//!
//! A [`Follower`] lives as long as one watch stream. Each round of its loop takes one [`Occurrence`]: a message,
//! the answer of a liveness read, a new wait for a revision, or a timer.

use super::assemble::{Assembler, RevisionTooLong, revision_of, revisions};
use super::connect::{Connection, Newest, Reader, dial, within};
use super::counters::{add, increment, raise_to};
use super::failure::{Class, Failure};
use super::health::{WatchHealth, WatchState};
use super::integrity::{self, Live, Violation, WatchRules, is_delete};
use super::list::record;
use super::liveness::Liveness;
use super::progress::ProgressRequests;
use super::report::LONGEST_MESSAGE;
use super::resume::{Evidence, Order, Resume, digest};
use super::session::{Session, WatchEnd};
use super::unanswered::HeldState;
use crate::log::log;
use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchResponse};
use etcd_client::{WatchOptions, WatchStream};
use std::time::Duration;
use tokio::time::Instant;
use watchcore::{Change, ResyncReason, Writer};

/// The longest sleep of a watch without a due timer.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);
/// How often a silent watch is compared with etcd's state while progress requests are not answered: in progress
/// intervals, each counted as at most a second.
const COMPARED: u32 = 30;
/// How long a silent watch may still deliver a message before it is given up.
const GRACE: Duration = Duration::from_millis(10);
/// More bytes than keep-alive sends during a silence: a message is under way.
const UNDER_WAY: u64 = 1024;

/// An open watch, with the connection that carries it.
pub(super) struct Watch {
    stream: WatchStream,
    from: u64,
    connection: Connection,
    /// The bytes received by the last message, and by the last check for a message under way.
    had: u64,
    looked: u64,
}

impl Watch {
    async fn message(&mut self) -> Result<PbWatchResponse, Failure> {
        match self.stream.message().await {
            Ok(Some(response)) => {
                self.had = self.connection.received();
                self.looked = self.had;
                Ok(response.0)
            }
            Ok(None) => Err(Failure::new(Class::Retry, "etcd ended the watch")),
            Err(error) => self.connection.with_tls_cause(Err(Failure::of(&error))),
        }
    }

    /// Whether a message is under way: bytes came since the last check, and no more than one message may have.
    fn is_under_way(&mut self, longest: usize) -> bool {
        let now = self.connection.received();
        let came = now - std::mem::replace(&mut self.looked, now);
        // Allows for frame headers and keep-alive.
        let longest = longest as u64 + (longest as u64) / 8 + (1 << 16);
        came >= UNDER_WAY && now - self.had <= longest
    }
}

/// The occurrence that one round of the loop handles.
enum Occurrence {
    Message(Result<PbWatchResponse, Failure>),
    Liveness(Result<Newest, Failure>),
    /// A caller may wait for a revision, or want a resync.
    Demand,
    /// A timer is due.
    Timer,
}

/// One watch, and the effects of its messages on the session.
struct Follower<'s, 'a> {
    session: &'s mut Session<'a>,
    reader: &'s Reader,
    watch: Watch,
    health: WatchHealth,
    requests: ProgressRequests,
    assembler: Assembler,
    rules: WatchRules,
    liveness: Liveness,
    /// When etcd's state was last compared, and the revision up to which it had nothing to deliver.
    compared: Option<Instant>,
    level: u64,
}

impl Session<'_> {
    /// Opens the watch on a connection of its own, after the last event applied.
    pub(super) async fn open(&mut self, url: &str) -> Result<Watch, Failure> {
        let options = &self.config.options;
        let from = self.resume().watch_from();
        let connection = dial(options, url).await?;
        let mut request = WatchOptions::new()
            .with_range(self.config.range.end.clone())
            .with_start_revision(from as i64)
            .with_progress_notify();
        if self.fragment {
            request = request.with_fragment();
        }
        let mut watcher = connection.client.watch_client().max_decoding_message_size(self.message_limit);
        let call = watcher.watch(self.config.range.start.clone(), Some(request));
        let stream = connection.with_tls_cause(within("the watch", options.request_timeout, call).await)?;
        log!(debug, endpoint = url, from, fragment = self.fragment, "watch asked for");
        Ok(Watch { stream, from, connection, had: 0, looked: 0 })
    }

    /// Follows the watch until it fails or the session has to do something else.
    pub(super) async fn follow(&mut self, reader: &Reader, watch: Watch) -> Result<WatchEnd, Failure> {
        let now = Instant::now();
        let options = &self.config.options;
        let idle = options.progress_requests.then_some(options.progress_interval);
        self.unanswered.opened();
        let mut follower = Follower {
            health: WatchHealth::new(watch.from, now),
            requests: ProgressRequests::new(idle, now),
            assembler: Assembler::new(LONGEST_MESSAGE),
            rules: WatchRules::default(),
            liveness: Liveness::new(options, now),
            compared: None,
            level: 0,
            session: self,
            reader,
            watch,
        };
        follower.run().await
    }
}

impl Follower<'_, '_> {
    async fn run(&mut self) -> Result<WatchEnd, Failure> {
        self.check_demand();
        loop {
            let end = match self.next().await {
                Occurrence::Message(message) => self.handle_message(message).await?,
                Occurrence::Liveness(answer) => self.handle_liveness(answer),
                Occurrence::Demand => {
                    self.check_demand();
                    self.session.report_changes();
                    self.find_level().await;
                    None
                }
                Occurrence::Timer => self.handle_timers().await?,
            };
            if let Some(end) = end {
                return Ok(end);
            }
            if self.session.shared.take_doubt() {
                return Ok(WatchEnd::Reopen);
            }
            if self.session.shared.take_reset() {
                return Ok(WatchEnd::Resync(ResyncReason::HistoryReset));
            }
            if self.session.shared.take_resync() {
                return Ok(WatchEnd::Resync(ResyncReason::Requested));
            }
        }
    }

    /// Waits for the next occurrence. If several are ready, one is chosen at random, so none is starved.
    async fn next(&mut self) -> Occurrence {
        let timer = self.next_timer();
        tokio::select! {
            message = self.watch.message() => Occurrence::Message(message),
            answer = self.liveness.answer() => Occurrence::Liveness(answer),
            () = self.session.shared.watch.notified() => Occurrence::Demand,
            () = tokio::time::sleep_until(timer) => Occurrence::Timer,
        }
    }

    fn resume(&self) -> &Resume {
        self.session.resume()
    }

    /// The state of the watch. Revisions up to `level` count as delivered: a watch that has nothing to deliver is not
    /// catching up, though no progress notification says so.
    fn state(&self) -> WatchState {
        self.health.state(self.resume().point().max(self.level), self.assembler.is_open())
    }

    /// The highest revision that is waited for: by a reader, or by all readers of a cache that is not Ready before
    /// it.
    fn wanted(&self) -> u64 {
        let waited_for = self.session.writer.borrow().demand().progress_until;
        waited_for.max(self.session.catches_up_to().unwrap_or(0)).max(self.session.shared.awaited())
    }

    fn check_demand(&mut self) {
        self.requests.set_wanted(self.wanted());
    }

    fn silence_due(&self) -> Option<Instant> {
        self.health.silence_due(self.state(), &self.session.config.options, self.session.silences)
    }

    /// When progress is to be requested next, if at all.
    fn request_due(&self) -> Option<Instant> {
        if self.state() == WatchState::Opening {
            return None;
        }
        self.requests.due(self.resume().point(), self.health.heard())
    }

    /// When a watch that is near etcd's newest revision is compared with a linearizable read.
    fn comparison_due(&self) -> Option<Instant> {
        self.liveness.due().filter(|_| self.state() == WatchState::Synced)
    }

    fn next_timer(&self) -> Instant {
        let stale = self.liveness.stale_due(&self.session.config.options).map(|(due, _)| due);
        let stable = self.session.stable_due().map(Instant::from_std);
        let timers = [self.silence_due(), self.request_due(), self.comparison_due(), stale, stable];
        timers.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + LONGEST_SLEEP)
    }

    /// Handles the timers that are due: gives up a silent watch, requests progress, begins a liveness read.
    async fn handle_timers(&mut self) -> Result<Option<WatchEnd>, Failure> {
        let now = Instant::now();
        if self.silence_due().is_some_and(|due| due <= now) {
            // This thread itself may have been stalled: a message that came meanwhile shows that the watch lives.
            let late = async {
                tokio::select! {
                    message = self.watch.message() => Occurrence::Message(message),
                    answer = self.liveness.answer() => Occurrence::Liveness(answer),
                }
            };
            let late = tokio::time::timeout(GRACE, late).await;
            return match late {
                Ok(Occurrence::Message(message)) => self.handle_message(message).await,
                Ok(Occurrence::Liveness(Ok(newest))) => Ok(self.handle_liveness(Ok(newest))),
                _ if self.state() != WatchState::Opening && self.watch.is_under_way(self.session.message_limit) => {
                    self.health.heard_at(now);
                    Ok(None)
                }
                _ if self.is_quiet().await => {
                    self.health.heard_at(Instant::now());
                    Ok(None)
                }
                _ => {
                    increment(&self.session.shared.counts.silences);
                    self.session.silences = self.session.silences.saturating_add(1);
                    Err(Failure::timeout("the watch", (now - self.health.heard()).as_secs_f64()))
                }
            };
        }
        if self.request_due().is_some_and(|at| at <= now) {
            self.requests.sent(now, self.wanted());
            increment(&self.session.shared.counts.progress_requests);
            if self.state() != WatchState::Mute {
                self.health.asked_at(now);
                self.session.unanswered.sent(now);
                let suspect = self.session.unanswered.is_suspect(self.state(), self.health.heard(), now);
                if suspect && self.session.shared.progress.suspect() {
                    self.session.shared.tickets.notify_one();
                }
            }
            // A stalled connection may have no room for the request: then the silence limit ends the watch.
            let sent = tokio::time::timeout(Duration::from_millis(1), self.watch.stream.request_progress()).await;
            if let Ok(Err(error)) = sent {
                return Err(Failure::of(&error));
            }
        }
        self.session.check_stability();
        self.liveness.moved(self.resume().point(), now);
        if let Some((due, goal)) = self.liveness.stale_due(&self.session.config.options)
            && due <= now
        {
            return Err(self.session.give_up_stale(goal));
        }
        self.begin_liveness_read(now);
        Ok(None)
    }

    /// Begins a liveness read, if one is due.
    fn begin_liveness_read(&mut self, now: Instant) {
        let options = &self.session.config.options;
        let is_idle = self.health.heard() + options.progress_interval <= now;
        let is_mute = self.state() == WatchState::Mute && options.progress_requests && is_idle;
        if is_mute || self.comparison_due().is_some_and(|due| due <= now) {
            let (reader, range, point) =
                (self.reader.clone(), self.session.config.range.clone(), self.resume().point());
            let read = || async move { reader.newest_since(&range, point).await };
            if self.liveness.begin(read, options, now) {
                increment(&self.session.shared.counts.liveness_reads);
            }
        }
        if is_mute {
            self.health.asked_at(now);
        }
    }

    /// Whether the watch is silent only because there is nothing to deliver. Asked while progress requests are not
    /// answered: etcd's state is compared every [`COMPARED`] intervals; in between, a read that moves no data shows
    /// that the server lives.
    async fn is_quiet(&mut self) -> bool {
        if !self.session.shared.progress.are_missing() {
            return false;
        }
        let range = &self.session.config.range;
        let pause = self.session.config.options.progress_interval.min(Duration::from_secs(1)) * COMPARED;
        if self.compared.is_some_and(|at| at.elapsed() < pause) {
            let newest = self.reader.newest_since(range, self.resume().point()).await;
            return newest.is_ok_and(|newest| !newest.went_back());
        }
        self.is_level().await
    }

    /// Whether etcd holds the same state as the cache; if so, raises `level` to etcd's revision.
    async fn is_level(&mut self) -> bool {
        let held = HeldState::now(&self.session.writer.borrow());
        self.compared = Some(Instant::now());
        let stored = held.compare(self.reader, &self.session.config.range).await;
        let same = stored.ok().filter(|stored| stored.is_same && !stored.newest.went_back());
        self.level = same.as_ref().map_or(self.level, |stored| stored.newest.header().revision);
        same.is_some()
    }

    /// Compares the states once per watch that seems to be catching up, since no progress notification will say that
    /// there is nothing to deliver.
    async fn find_level(&mut self) {
        let is_behind = self.state() == WatchState::CatchingUp && !self.assembler.is_open();
        if self.session.shared.progress.are_missing() && self.compared.is_none() && is_behind {
            self.is_level().await;
        }
    }

    /// Handles the answer of a liveness read. If the read failed, the silence continues.
    fn handle_liveness(&mut self, answer: Result<Newest, Failure>) -> Option<WatchEnd> {
        let newest = answer.ok()?;
        if newest.went_back() {
            return Some(WatchEnd::Resync(ResyncReason::HistoryReset));
        }
        let (now, revision) = (Instant::now(), newest.header().revision);
        if self.state() == WatchState::Mute {
            // No other sign is possible: such a watch answers no progress request.
            self.health.heard_at(now);
        }
        self.health.record_newest(revision);
        self.session.record_newest(revision);
        self.liveness.record_newest(revision, self.resume().point(), now);
        None
    }

    /// Whether a linearizable read that begins now says that etcd's history went back.
    async fn went_back(&mut self) -> Result<bool, Failure> {
        let point = self.resume().point();
        Ok(self.reader.newest_since(&self.session.config.range, point).await?.went_back())
    }

    /// Handles one message, or the failure that came in its place.
    async fn handle_message(&mut self, message: Result<PbWatchResponse, Failure>) -> Result<Option<WatchEnd>, Failure> {
        let response = match message {
            Ok(response) => response,
            Err(failure) => {
                let Class::TooLarge(length) = failure.class else { return Err(failure) };
                self.session.accept_longer(length, failure)?;
                return Ok(Some(WatchEnd::Reopen));
            }
        };
        if let Some(end) = self.handle_response(response).await? {
            return Ok(Some(end));
        }
        self.health.heard_at(Instant::now());
        // The stream may always have more: let the thread's other futures run.
        tokio::task::yield_now().await;
        Ok(None)
    }

    async fn handle_response(&mut self, response: PbWatchResponse) -> Result<Option<WatchEnd>, Failure> {
        let counts = &self.session.shared.counts;
        increment(&counts.responses);
        // The cluster is checked first: a message of another cluster says nothing of this history.
        let header = self.reader.cluster().header(response.header.as_ref())?;
        self.rules.check(&response, self.assembler.is_open())?;
        // A refusal is marked as created too, so the cancellation is checked first.
        if response.canceled {
            let failure = Failure::of_cancel(response.compact_revision, &response.cancel_reason);
            return match failure.class {
                Class::Compacted(_) => Ok(Some(WatchEnd::Resync(ResyncReason::Compacted))),
                _ => Err(failure),
            };
        }
        if response.fragment {
            increment(&self.session.shared.counts.fragments);
        }
        self.health.record_newest(header.revision);
        self.session.record_newest(header.revision);
        if response.created
            && let Some(end) = self.handle_created(header.revision).await?
        {
            return Ok(Some(end));
        }
        if !response.events.is_empty() || response.fragment {
            raise_to(&self.session.shared.counts.max_events_queued, response.events.len() as u64);
            let mut events =
                self.assembler.push(response.events, response.fragment).map_err(|revision| self.too_long(revision))?;
            let repeated = integrity::check_events(&mut events, &self.session.config.range, header.revision)?;
            add(&self.session.shared.counts.repeated_events, repeated);
            return self.apply(events).await;
        }
        if !response.created && header.revision > 0 {
            return self.handle_progress(header.revision).await;
        }
        Ok(None)
    }

    /// Fails the session and asks for a listing: the watch would bring this revision again, in as many fragments.
    fn too_long(&mut self, RevisionTooLong(bytes): RevisionTooLong) -> Failure {
        self.session.needs_listing(ResyncReason::ChainBroken);
        Failure::new(
            Class::TooLarge(bytes as u64),
            format!("a revision in fragments of more than {LONGEST_MESSAGE} bytes"),
        )
    }

    /// Handles etcd's confirmation of the watch, on a member whose store is at `newest`.
    async fn handle_created(&mut self, newest: u64) -> Result<Option<WatchEnd>, Failure> {
        // This member may lag behind the applied revision; the whole cluster may not.
        if newest + 1 < self.health.from() && self.went_back().await? {
            return Ok(Some(WatchEnd::Resync(ResyncReason::HistoryReset)));
        }
        self.health.created(newest);
        let known = newest.max(self.session.newest_seen());
        self.health.record_newest(known);
        self.liveness.record_newest(known, self.resume().point(), Instant::now());
        self.session.watch_confirmed();
        self.find_level().await;
        Ok(None)
    }

    /// Handles a progress notification: everything up to `revision` was delivered.
    async fn handle_progress(&mut self, revision: u64) -> Result<Option<WatchEnd>, Failure> {
        increment(&self.session.shared.counts.progress_notifications);
        self.requests.answered();
        self.session.progress_came();
        self.liveness.notified();
        if self.resume().is_above(revision) && self.went_back().await? {
            return Ok(Some(WatchEnd::Resync(ResyncReason::HistoryReset)));
        }
        self.rules.progress(revision)?;
        if self.resume().is_above(revision) {
            return Ok(None);
        }
        if revision > self.resume().point() {
            self.session.writer.borrow_mut().progress(revision).map_err(|error| Failure::refused(&error))?;
            self.session.resume_mut().progressed(revision);
            self.liveness.moved(revision, Instant::now());
        }
        self.session.progressed();
        Ok(None)
    }

    /// Applies whole revisions, in order.
    async fn apply(&mut self, mut events: Vec<PbEvent>) -> Result<Option<WatchEnd>, Failure> {
        for run in revisions(&mut events) {
            // Only once the cache is Ready may a subscription set the pace: before that it waits itself.
            if self.resume().replays() && self.session.catches_up_to().is_none() {
                self.keep_pace().await;
            }
            if let Some(end) = self.apply_revision(run)? {
                return Ok(Some(end));
            }
            self.liveness.moved(self.resume().point(), Instant::now());
        }
        Ok(None)
    }

    /// Applies the events of one revision. Afterwards writer and evidence are both at that revision, or both where
    /// they were before.
    fn apply_revision(&mut self, run: &mut [PbEvent]) -> Result<Option<WatchEnd>, Failure> {
        let revision = run.first().map_or(0, revision_of);
        match self.resume().order(revision) {
            Order::Next => {}
            Order::BelowProgress => {
                let complete = self.resume().point();
                log!(
                    warn,
                    revision,
                    complete,
                    "an event lies below what etcd called complete, so etcd has another history"
                );
                return Ok(Some(WatchEnd::Resync(ResyncReason::HistoryReset)));
            }
            Order::Repeated => {
                self.check_repetition(run, revision)?;
                return Ok(None);
            }
        }
        let mut writer = self.session.writer.borrow_mut();
        let mut before = None;
        for event in &*run {
            before = event.kv.as_ref().and_then(|kv| live_of(&writer, &kv.key));
            integrity::check(event, before)?;
        }
        // Counted before they are visible, so that a reader who sees the events finds them counted.
        self.count(run);
        if let Err(error) = writer.apply(revision, run.iter().filter_map(change)) {
            drop(writer);
            // The watch can only bring this revision again, so the present state has to be listed.
            self.session.needs_listing(ResyncReason::ChainBroken);
            return Err(Failure::refused(&error));
        }
        drop(writer);
        let digest = digest(run);
        let last = run.last_mut().map(std::mem::take).and_then(|event| Evidence::of_event(event, before));
        self.session.resume_mut().applied(last.expect("an event that was checked has a key"), digest);
        self.session.applied();
        Ok(None)
    }

    /// Handles a revision that was already applied. If it repeats the same events, it is dropped; values are compared
    /// as far as the cache still has them. Otherwise it is a violation.
    fn check_repetition(&self, run: &[PbEvent], revision: u64) -> Result<(), Violation> {
        let writer = self.session.writer.borrow();
        let is_other = |kv: &PbKeyValue| {
            let held = writer.get(&kv.key).filter(|held| held.mod_revision() == revision);
            held.is_some_and(|held| held.value() != Some(&kv.value[..]))
        };
        let has_others = run.iter().filter_map(|event| event.kv.as_ref()).any(is_other);
        if has_others || !self.resume().is_repeated(revision, digest(run)) {
            return Err(Violation::at("a revision that does not rise", revision as i64));
        }
        add(&self.session.shared.counts.repeated_events, run.len() as u64);
        Ok(())
    }

    fn count(&self, run: &[PbEvent]) {
        let counts = &self.session.shared.counts;
        increment(&counts.revisions);
        add(&counts.events, run.len() as u64);
        let key_values = run.iter().filter_map(|event| event.kv.as_ref());
        let bytes: usize = key_values.map(|kv| kv.key.len() + kv.value.len()).sum();
        add(&counts.bytes, bytes as u64);
        raise_to(&counts.max_revision_events, run.len() as u64);
    }

    /// Waits while the subscription that sets the pace is half a window behind.
    async fn keep_pace(&self) {
        let Some(pace) = &self.session.config.pace else { return };
        while !pace.is_near() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn live_of(writer: &Writer, key: &[u8]) -> Option<Live> {
    writer.get(key).map(|kv| Live { create: kv.create_revision(), modified: kv.mod_revision(), version: kv.version() })
}

fn change(event: &PbEvent) -> Option<Change<'_>> {
    let kv = event.kv.as_ref()?;
    Some(match is_delete(event)? {
        true => Change::delete(&kv.key),
        false => Change::put_exact(record(kv)),
    })
}
