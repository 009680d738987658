//! Subscriptions: a cursor with a filter, owned by one consumer.
//!
//! Step list of a poll: closed, progress, head (all Acquire, in this order), then the segment of the
//! cursor, then plain reads below the head. The cursor moves to what was read under the head loaded
//! *first*. Nothing is pinned between polls; the subscription keeps a count on the segment that it
//! stands in while it reads, and gives it back when it waits.
//!
//! The initial state is read page by page at a fixed head h, not from a held snapshot: each page
//! checks that h is still in the window, so a stalled consumer keeps nothing alive (I9) and is told
//! (I8). The live stream goes on at h: no gap, no overlap.

#![forbid(unsafe_code)]

use crate::batch::{Batch, Own};
use crate::cache::{Cache, Inner};
use crate::error::{Code, Error, Result, say};
use crate::event::{Event, Kind, Phase, Position, ResyncReason, flags};
use crate::log::ring::{MAX_REVISION, Place, cut_at_revision, progress_of, progress_word, run_of};
use crate::log::segment::SegmentRef;
use crate::read::{DEFAULT_WAIT, walk};
use crate::reclaim;
use crate::route::filter::{Filter, Range};
use crate::sync::{AcqRel, Acquire, AtomicU64, Mutex, Relaxed, Release, SeqCst, fence, lock, ord};
use crate::wake::{Parker, SetShared, Ticket, Told, WakeSet, Waker, Want};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where a subscription begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Nothing of the past: events above the current revision.
    Now,
    /// History above this revision, then live. COMPACTED where it is below the window less one.
    After(u64),
    /// The whole matching state as Added in key order, a mark, then live.
    State,
    /// Waits until the cache reached this revision, then as `State`.
    StateAtLeast(u64),
}

/// How far a subscription is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lag {
    /// Events of the log above the cursor, matching or not.
    pub events: u64,
    /// Revisions between the position and the cache's.
    pub revisions: u64,
    /// Time since the subscription last had everything; zero if it has.
    pub age: Duration,
}

/// Options of a subscription; see [`Cache::subscribe`].
#[derive(Clone, Debug)]
pub struct SubscribeBuilder {
    cache: Arc<Inner>,
    start: Start,
    range: Option<Range>,
    kinds: Vec<Kind>,
    raw: bool,
    epoch: u64,
    bookmarks: bool,
    bookmark_interval: Duration,
    whole_revisions: bool,
    start_timeout: Duration,
    stop_on_resync: bool,
}

impl Cache {
    /// Options of a new subscription that begins at `start`.
    pub fn subscribe(&self, start: Start) -> SubscribeBuilder {
        SubscribeBuilder {
            cache: self.inner.clone(),
            start,
            range: None,
            kinds: Vec::new(),
            raw: false,
            epoch: 0,
            bookmarks: false,
            bookmark_interval: Duration::from_secs(1),
            whole_revisions: false,
            start_timeout: DEFAULT_WAIT,
            stop_on_resync: false,
        }
    }
}

impl SubscribeBuilder {
    /// Only this key.
    pub fn key(self, key: impl AsRef<[u8]>) -> SubscribeBuilder {
        self.range(Range::key(key))
    }

    /// Only keys that start with these bytes.
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> SubscribeBuilder {
        self.range(Range::prefix(prefix))
    }

    /// Only this path and what lies below it: `/a/foo` does not match `/a/foobar`.
    pub fn path_prefix(self, path: impl AsRef<[u8]>) -> SubscribeBuilder {
        self.range(Range::path(path))
    }

    /// Only keys of this range.
    pub fn range(mut self, range: Range) -> SubscribeBuilder {
        self.range = Some(range);
        self
    }

    /// Only these kinds of changes (marks come always). The mask never changes what an event is.
    pub fn types(mut self, kinds: &[Kind]) -> SubscribeBuilder {
        self.kinds = kinds.to_vec();
        self
    }

    /// Shows etcd's PUT and DELETE instead of Added, Modified and Deleted.
    pub fn raw_types(mut self, raw: bool) -> SubscribeBuilder {
        self.raw = raw;
        self
    }

    /// The epoch of the revision in `After`; 0 (the default) is unchecked.
    pub fn epoch(mut self, epoch: u64) -> SubscribeBuilder {
        self.epoch = epoch;
        self
    }

    /// Asks for bookmarks when there is nothing else and the position moved.
    pub fn bookmarks(mut self, bookmarks: bool) -> SubscribeBuilder {
        self.bookmarks = bookmarks;
        self
    }

    /// At most one bookmark per interval (default 1 s).
    pub fn bookmark_interval(mut self, interval: Duration) -> SubscribeBuilder {
        self.bookmark_interval = interval;
        self
    }

    /// Batches never end inside a revision, also where that is longer than the asked maximum.
    pub fn whole_revisions(mut self, whole: bool) -> SubscribeBuilder {
        self.whole_revisions = whole;
        self
    }

    /// How long `StateAtLeast` waits (default 3 s).
    pub fn start_timeout(mut self, timeout: Duration) -> SubscribeBuilder {
        self.start_timeout = timeout;
        self
    }

    /// Ends with RESYNCED at a resync, instead of handing out its bracket.
    pub fn stop_on_resync(mut self, stop: bool) -> SubscribeBuilder {
        self.stop_on_resync = stop;
        self
    }

    /// Opens it. Its start is fixed when this returns; never blocks.
    pub fn open(self) -> Result<Subscription> {
        let inner = self.cache;
        if inner.is_closed() {
            return Err(say::closed("subscribe"));
        }
        for kind in &self.kinds {
            if matches!(kind, Kind::Bookmark | Kind::Resync) {
                return Err(say::invalid("subscribe: only kinds of changes can be masked; marks come always"));
            }
        }
        let range = self.range.filter(|range| !range.is_all_of(&inner.prefix));
        let filter = Arc::new(Filter::new(range, &self.kinds, self.raw));
        let shared = Arc::new(Shared {
            inner: inner.clone(),
            end: AtomicU64::new(OPEN),
            cursor: AtomicU64::new(0),
            position: AtomicU64::new(0),
            caught_up: Mutex::new(Instant::now()),
            ticket: Mutex::new(None),
        });
        let mut subscription = Subscription {
            inner: inner.clone(),
            plain: filter.passes_all(),
            filter,
            shared,
            phase: Phase_::Unready,
            start: self.start,
            asked_epoch: self.epoch,
            cursor: inner.ring.first_seq(),
            segment: None,
            floor: None,
            position: Position::default(),
            bookmarks: self.bookmarks.then_some(self.bookmark_interval),
            bookmarked: (Position::default(), Instant::now()),
            whole_revisions: self.whole_revisions,
            stop_on_resync: self.stop_on_resync,
            start_timeout: self.start_timeout,
            failure: None,
            parker: None,
            ticket: None,
            set: None,
        };
        // Before anything can fail: the drop takes it back.
        inner.gauges.subscriptions.fetch_add(1, Relaxed);
        // Partner: `Writer::attach`.
        fence(SeqCst);
        if inner.is_ready() {
            subscription.begin(false)?;
        }
        subscription.share();
        Ok(subscription)
    }
}

/// The position of a packed word, for a cache that stands at `epoch`; 0 is "none yet".
fn unpack(word: u64, epoch: u64) -> Position {
    if word == 0 {
        return Position::default();
    }
    let behind = epoch.wrapping_sub(word >> 52) & 0xfff;
    Position { epoch: epoch - behind, revision: word & (MAX_REVISION - 1) }
}

/// `Shared::end` while the subscription is open.
const OPEN: u64 = u64::MAX;

/// What other threads may see and do.
struct Shared {
    inner: Arc<Inner>,
    /// One past the last sequence number to hand out; OPEN: no end.
    end: AtomicU64,
    /// The consumer's cursor as of its last poll (statistics, pace).
    cursor: AtomicU64,
    /// The position as of its last poll, packed as the progress word is.
    position: AtomicU64,
    /// When the consumer last had everything.
    caught_up: Mutex<Instant>,
    /// The registration of the consumer while it is parked.
    ticket: Mutex<Option<u64>>,
}

impl Shared {
    fn close(&self) {
        // Before the first listing nothing was published: nothing is handed out.
        let head = if self.inner.is_ready() { self.inner.ring.head() } else { 0 };
        let _ = self.end.compare_exchange(OPEN, head, ord!(End, AcqRel), Acquire);
        fence(SeqCst);
        // Partner: the consumer stores its ticket, fence, looks at `end`.
        if let Some(ticket) = *lock(&self.ticket) {
            self.inner.hub.wake_one(ticket);
        }
    }

    fn lag(&self) -> Lag {
        let inner = &self.inner;
        let (now, head) = inner.now(&reclaim::pin());
        let position = unpack(self.position.load(Relaxed), now.epoch);
        let cursor = self.cursor.load(Relaxed);
        let events = if cursor >= head { 0 } else { inner.ring.events_between(cursor, head) };
        let revisions =
            if position.epoch == now.epoch { now.revision.saturating_sub(position.revision) } else { events };
        Lag { events, revisions, age: if events == 0 { Duration::ZERO } else { lock(&self.caught_up).elapsed() } }
    }
}

/// Ends a subscription from any thread, and shows its lag. Clone, Send and Sync.
#[derive(Clone)]
pub struct Closer(Arc<Shared>);

impl Closer {
    /// Ends the subscription: idempotent. A wait in progress ends at once; what was published before
    /// the call is still handed out, then CLOSED.
    pub fn close(&self) {
        self.0.close();
    }

    /// The position as of the consumer's last poll.
    pub fn position(&self) -> Position {
        let now = self.0.inner.position();
        unpack(self.0.position.load(Relaxed), now.epoch)
    }

    /// The lag now.
    pub fn lag(&self) -> Lag {
        self.0.lag()
    }
}

impl std::fmt::Debug for Closer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Closer").field("position", &self.position()).finish()
    }
}

/// Lets a feeder stay at most half a window ahead of one consumer.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Pace(Closer);

impl Pace {
    /// Whether the subscription is less than half a window behind, or over.
    #[doc(hidden)]
    pub fn may_go_on(&self) -> bool {
        let shared = &self.0.0;
        if shared.end.load(Acquire) != OPEN || shared.inner.is_closed() {
            return true;
        }
        let cursor = shared.cursor.load(Relaxed);
        let ring = &shared.inner.ring;
        let (oldest, head) = (ring.oldest_seq(), ring.head());
        // Half of what the window holds now, once it is full; before that nothing can be lost.
        let window = ring.window_slots();
        head - cursor.min(head) < window / 2 && (cursor == 0 || cursor >= oldest)
    }
}

#[derive(Debug)]
enum Phase_ {
    /// No listing yet.
    Unready,
    /// `StateAtLeast`: not reached yet.
    Revision {
        until: Option<Instant>,
    },
    /// The initial state at head `cursor`: the next key, or all done but the mark.
    Initial {
        next: Option<Vec<u8>>,
        done: bool,
        at: Position,
    },
    Live,
    /// Polls answer CLOSED.
    Ended,
}

/// `After(R)` of the future: events up to R are dropped.
#[derive(Debug)]
struct Floor {
    revision: u64,
    /// Ticket of the consistent read that says whether R exists.
    ticket: Option<u64>,
}

/// A cursor over a cache, owned by one consumer. Send.
///
/// [`Subscription::poll`] never blocks. A position that was lost is told as LAGGED, once, with the
/// range; then the subscription ends. It outlives the cache: what was published before the close is
/// handed out, then CLOSED.
pub struct Subscription {
    inner: Arc<Inner>,
    /// Every event passes unchanged: batches are views.
    plain: bool,
    filter: Arc<Filter>,
    shared: Arc<Shared>,
    phase: Phase_,
    start: Start,
    asked_epoch: u64,
    /// The next sequence number to look at; the head of the initial state while that is handed out.
    cursor: u64,
    segment: Option<SegmentRef>,
    floor: Option<Floor>,
    position: Position,
    bookmarks: Option<Duration>,
    bookmarked: (Position, Instant),
    whole_revisions: bool,
    stop_on_resync: bool,
    start_timeout: Duration,
    /// Told by the next poll, once.
    failure: Option<Error>,
    parker: Option<Arc<Parker>>,
    ticket: Option<Ticket>,
    set: Option<(Arc<SetShared>, u64)>,
}

/// What one look at the cache showed: loaded in this order.
#[derive(Clone, Copy)]
struct Look {
    closed: bool,
    progress: u64,
    head: u64,
}

impl Subscription {
    fn look(&self) -> Look {
        let closed = self.inner.is_closed();
        let end = self.shared.end.load(ord!(EndLoad, Acquire));
        let progress = self.inner.ring.progress();
        let head = self.inner.ring.head();
        if end < head {
            // Closed by its owner: nothing above, and no progress beyond.
            return Look { closed: true, progress: 0, head: end };
        }
        Look { closed: closed || end != OPEN, progress, head }
    }

    /// Fixes the start once there is a listing. `late`: the listing came after the subscription.
    fn begin(&mut self, late: bool) -> Result<()> {
        let inner = self.inner.clone();
        match self.start {
            Start::Now if late => self.live(inner.ring.first_seq(), self.listing()),
            Start::Now => {
                let (position, head) = inner.now(&reclaim::pin());
                self.live(head, position);
            }
            Start::State if late => self.initial(inner.ring.first_seq(), self.listing()),
            Start::State => {
                let (position, head) = inner.now(&reclaim::pin());
                self.initial(head, position);
            }
            Start::StateAtLeast(_) => {
                self.phase = Phase_::Revision { until: Instant::now().checked_add(self.start_timeout) };
            }
            Start::After(revision) => {
                let asked = Position { epoch: self.asked_epoch, revision };
                let found = inner.find("subscribe after", asked, true)?;
                self.live(found.seq, Position { epoch: found.epoch, revision });
                if found.future {
                    let ticket = inner.has_source().then(|| inner.asked.fetch_add(1, SeqCst) + 1);
                    inner.wake_source();
                    self.floor = Some(Floor { revision, ticket });
                }
            }
        }
        Ok(())
    }

    /// The position of the first listing.
    fn listing(&self) -> Position {
        let pin = reclaim::pin();
        let history = self.inner.ring.history(&pin);
        Position { epoch: history.first_epoch, revision: history.listing }
    }

    fn live(&mut self, cursor: u64, position: Position) {
        self.cursor = cursor;
        self.position = position;
        self.bookmarked = (position, Instant::now());
        self.phase = Phase_::Live;
    }

    fn initial(&mut self, head: u64, at: Position) {
        self.cursor = head;
        self.position = Position { epoch: at.epoch, revision: 0 };
        self.phase = Phase_::Initial { next: None, done: false, at };
    }

    /// Moves through the phases before the first event. True: there may be something to hand out.
    fn started(&mut self, look: &Look) -> Result<bool> {
        if matches!(self.phase, Phase_::Unready) {
            if look.head == 0 {
                return Err(say::closed("subscription"));
            } else if self.inner.is_ready() {
                self.begin(true)?;
            } else if look.closed {
                return Err(say::closed("subscription"));
            } else if lock(&self.inner.info).failed {
                return Err(self.inner.not_ready("subscription"));
            } else {
                return Ok(false);
            }
        }
        if let (Phase_::Revision { until }, Start::StateAtLeast(revision)) = (&self.phase, self.start) {
            // Closed by its owner while it waited: it ends.
            let ended = self.shared.end.load(Acquire) != OPEN;
            let (position, head) = self.inner.now(&reclaim::pin());
            if position.revision >= revision && !ended {
                self.initial(head, position);
            } else if look.closed {
                return Err(say::closed("subscription"));
            } else if until.is_some_and(|until| Instant::now() >= until) {
                return Err(say::future("subscribe to the state at least at", revision, position.revision));
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is new, without blocking: at most `max` events; none is no error.
    ///
    /// LAGGED, RESYNCED, COMPACTED and FUTURE_REVISION are told once, then polls answer CLOSED.
    /// `max` 0 is INVALID_ARGUMENT. O(events looked at).
    pub fn poll(&mut self, max: usize) -> Result<Batch> {
        if max == 0 {
            return Err(say::invalid("poll with a maximum of 0 events: ask for at least 1"));
        }
        self.unpark();
        let outcome = self.poll_once(max);
        if let Err(error) = &outcome
            && error.code() != Code::NotReady
        {
            self.phase = Phase_::Ended;
            self.segment = None;
        }
        self.share();
        outcome
    }

    fn poll_once(&mut self, max: usize) -> Result<Batch> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if matches!(self.phase, Phase_::Ended) {
            return Err(say::closed("subscription"));
        }
        let look = self.look();
        let behind = look.head.saturating_sub(self.cursor);
        if behind > self.inner.gauges.max_lag.load(Relaxed) {
            self.inner.gauges.max_lag.fetch_max(behind, Relaxed);
        }
        if matches!(self.phase, Phase_::Unready | Phase_::Revision { .. }) && !self.started(&look)? {
            return Ok(Batch::empty(self.position));
        }
        if matches!(self.phase, Phase_::Initial { .. }) {
            return self.initial_page(max);
        }
        if let Some(floor) = &self.floor {
            self.check_floor(floor)?;
        }
        let batch = if self.plain && self.floor.is_none() && !self.stop_on_resync && !self.whole_revisions {
            self.view(&look, max)?
        } else {
            self.gather(&look, max)?
        };
        if !batch.is_empty() {
            return Ok(batch);
        }
        self.nothing(&look)
    }

    /// Nothing to hand out: the position moves, a bookmark may be due, or it is over.
    fn nothing(&mut self, look: &Look) -> Result<Batch> {
        self.caught_up();
        if self.cursor == look.head {
            let revision = progress_of(look.progress, self.position.epoch);
            self.pass_floor(revision);
            self.position.revision = self.position.revision.max(revision);
        }
        if let Some(interval) = self.bookmarks
            && self.position != self.bookmarked.0
            && self.floor.is_none()
            && self.bookmarked.1.elapsed() >= interval
        {
            self.bookmarked = (self.position, Instant::now());
            let event = Event::mark(Kind::Bookmark, self.position.revision, 0);
            return Ok(Batch::own(Own { events: vec![event], ..Own::default() }, false, self.position));
        }
        if look.closed && self.cursor >= look.head {
            return Err(say::closed("subscription"));
        }
        Ok(Batch::empty(self.position))
    }

    fn check_floor(&self, floor: &Floor) -> Result<()> {
        let served = |ticket: u64| self.inner.served.load(Acquire) >= ticket;
        if floor.ticket.is_some_and(served) {
            let newest = lock(&self.inner.info).consistent_revision;
            if floor.revision > newest && floor.revision > self.inner.position().revision {
                return Err(say::future("subscribe after", floor.revision, newest));
            }
        }
        Ok(())
    }

    /// Puts the segment of the cursor into the hand, from the directory if it is not there yet.
    /// False: the cursor moved on to the next segment, look again.
    #[inline]
    fn hold(&mut self) -> Result<bool> {
        let base = self.inner.ring.base_of(self.cursor);
        if self.segment.as_ref().is_some_and(|held| held.base() == base) { Ok(true) } else { self.fetch() }
    }

    #[cold]
    fn fetch(&mut self) -> Result<bool> {
        self.segment = None;
        match self.inner.ring.place(self.cursor, &reclaim::pin()) {
            Place::At(segment) => {
                self.segment = Some(segment);
                Ok(true)
            }
            Place::Skip(to) => {
                self.cursor = to;
                Ok(false)
            }
            Place::Lapped => self.lapped(),
        }
    }

    /// The cursor's segment has left: an error, unless all that left was to be dropped.
    fn lapped(&mut self) -> Result<bool> {
        let Some(floor) = &self.floor else { return Err(self.lagged()) };
        let inner = &self.inner;
        // In this order: events that leave in between raise the revision.
        let oldest = inner.ring.oldest_seq();
        let left = inner.ring.oldest_revision() - 1;
        let pin = reclaim::pin();
        let history = inner.ring.history(&pin);
        let present = history.at(inner.ring.head());
        let replaced = present.since_seq >= self.cursor;
        if (replaced && present.highest_before > floor.revision) || (!replaced && left > floor.revision) {
            return Err(self.lagged());
        }
        if replaced {
            return Err(say::future("subscribe after", floor.revision, present.listing));
        }
        self.position.epoch = history.at(oldest).epoch;
        self.cursor = oldest;
        Ok(false)
    }

    /// The segment as an owned count, for loops that change the subscription meanwhile.
    fn segment(&mut self) -> Result<Option<SegmentRef>> {
        Ok(if self.hold()? { self.segment.clone() } else { None })
    }

    fn lagged(&self) -> Error {
        let inner = &self.inner;
        let (oldest, current) = inner.window();
        let from = self.position.revision + 1;
        let to = oldest.saturating_sub(1).max(from);
        lagged_error(from, to, oldest, current.revision, self.position)
    }

    /// Unfiltered: a run of one segment, nothing copied.
    fn view(&mut self, look: &Look, max: usize) -> Result<Batch> {
        while self.cursor < look.head {
            if !self.hold()? {
                continue;
            }
            let Some(segment) = &self.segment else { continue };
            let run = run_of(segment, self.cursor, look.head);
            if run.is_empty() {
                self.cursor = segment.limit();
                continue;
            }
            let events = segment.view(run.clone());
            let (count, continues) = cut_at_revision(events, max);
            let taken = &events[..count];
            let end = run.start + count as u64;
            if self.inner.ring.newest_mark() >= run.start
                && let Some(mark) = taken.iter().rev().find_map(Event::resync)
                && mark.phase == Phase::End
            {
                self.position = Position { epoch: mark.epoch, revision: mark.to };
            }
            // Inside a revision the position stays before it.
            let whole = if continues {
                taken.iter().rposition(|event| event.flags & flags::LAST != 0)
            } else {
                Some(count - 1)
            };
            if let Some(last) = whole {
                self.position.revision = taken[last].revision;
            }
            self.cursor = end;
            return Ok(Batch::view(segment.clone(), run.start..end, continues, self.position));
        }
        Ok(Batch::empty(self.position))
    }

    /// Filtered: a compact array of the events that pass, from at most four segments.
    fn gather(&mut self, look: &Look, max: usize) -> Result<Batch> {
        let mut own = Own::default();
        // The last border between revisions: sequence number, events gathered, position.
        let mut border = (self.cursor, 0usize, self.position);
        let mut border_segment: Option<SegmentRef> = None;
        let mut continues = false;
        'segments: while self.cursor < look.head {
            let segment = match self.segment() {
                Ok(Some(segment)) => segment,
                Ok(None) => continue,
                // What was gathered is handed out first; the next poll tells the loss.
                Err(error) if own.events.is_empty() => return Err(error),
                Err(error) => {
                    let inside = own.events.last().is_some_and(|last| last.flags & flags::LAST == 0);
                    if inside && border.2 == self.position {
                        // The rest of the revision is lost.
                        if border.1 > 0 {
                            own.events.truncate(border.1);
                            (self.cursor, self.position) = (border.0, border.2);
                            self.segment = border_segment;
                        } else if self.whole_revisions {
                            return Err(error);
                        } else {
                            continues = true;
                        }
                    }
                    break;
                }
            };
            let run = run_of(&segment, self.cursor, look.head);
            if run.is_empty() {
                self.cursor = segment.limit();
                self.segment = None;
                continue;
            }
            let mut counted = false;
            for event in segment.view(run) {
                if event.flags & flags::FIRST != 0 {
                    border = (event.sequence, own.events.len(), self.position);
                    if border_segment.as_ref().is_none_or(|held| held.base() != segment.base()) {
                        border_segment = Some(segment.clone());
                    }
                }
                let passes = match self.passes(event) {
                    // What was gathered is handed out first; the next poll tells the end.
                    Err(_) if !own.events.is_empty() => break 'segments,
                    other => other?,
                };
                if passes {
                    let fifth = !counted && own.segments.len() == 4;
                    if (own.events.len() >= max || fifth) && !self.gathers_on(event, &border, own.events.len()) {
                        let (seq, gathered, position) = border;
                        if gathered > 0 {
                            own.events.truncate(gathered);
                            (self.cursor, self.position) = (seq, position);
                            // Its count is kept: what was within reach does not get lost.
                            self.segment = border_segment;
                        } else {
                            self.cursor = event.sequence;
                            continues = own.events.last().is_some_and(|last| last.flags & flags::LAST == 0);
                        }
                        break 'segments;
                    }
                    if !counted {
                        own.segments.push(segment.clone());
                        counted = true;
                    }
                    own.events.push(self.filter.shown(event));
                }
                self.move_over(event);
            }
        }
        if self.segment.as_ref().is_some_and(|held| held.base() != self.inner.ring.base_of(self.cursor)) {
            self.segment = None;
        }
        Ok(Batch::own(own, continues, self.position))
    }

    /// With whole revisions a batch goes on to the end of the revision that it is in.
    fn gathers_on(&self, event: &Event, border: &(u64, usize, Position), gathered: usize) -> bool {
        self.whole_revisions && border.1 == 0 && gathered > 0 && event.flags & flags::FIRST == 0
    }

    fn move_over(&mut self, event: &Event) {
        self.cursor = event.sequence + 1;
        if event.flags & flags::LAST != 0 {
            // Below a start of the future the position stays at that start.
            let least = self.floor.as_ref().map_or(0, |floor| floor.revision);
            self.position.revision = event.revision.max(least);
            if let Some(mark) = event.resync() {
                self.position.epoch = mark.epoch;
            }
        }
    }

    /// Filter, floor and the wish to stop at a resync.
    fn passes(&mut self, event: &Event) -> Result<bool> {
        if self.floor.is_some() || (self.stop_on_resync && event.kind == Kind::Resync) {
            return self.passes_slowly(event);
        }
        Ok(self.filter.matches(event))
    }

    /// A start of the future is no longer ahead once everything up to it was looked at.
    fn pass_floor(&mut self, revision: u64) {
        if self.floor.as_ref().is_some_and(|floor| floor.revision <= revision) {
            self.floor = None;
        }
    }

    #[cold]
    fn passes_slowly(&mut self, event: &Event) -> Result<bool> {
        let resync = event.resync();
        if let (Some(floor), Some(mark)) = (&self.floor, &resync) {
            let asked = floor.revision;
            if mark.reason == ResyncReason::HistoryReset || mark.to <= mark.from {
                return Err(say::future("subscribe after", asked, mark.to));
            }
            if mark.from < asked && asked < mark.to {
                let (oldest, current) = self.inner.window();
                return Err(lagged_error(asked + 1, mark.to, oldest, current.revision, self.position));
            }
        }
        if let Some(floor) = &self.floor {
            if event.revision <= floor.revision {
                return Ok(false);
            }
            self.floor = None;
        }
        if self.stop_on_resync
            && let Some(mark) = resync
        {
            return Err(Error::new(
                Code::Resynced,
                format!(
                    "subscription: the history was replaced at revision {} ({}); it asked to stop there. Subscribe again from State.",
                    mark.to,
                    mark.reason.name()
                ),
            )
            .with_current(mark.to)
            .with_position(self.position));
        }
        Ok(self.filter.matches(event))
    }

    /// The next page of the initial state, or its end mark.
    fn initial_page(&mut self, max: usize) -> Result<Batch> {
        let Phase_::Initial { next, done, at } = &mut self.phase else { return Ok(Batch::empty(self.position)) };
        let at = *at;
        let mut own = Own::default();
        if !*done {
            let filter = self.filter.clone();
            let mut from = next.take();
            if !filter.shows(Kind::Added) {
                // Masked: the state is not shown, its end is.
                *done = true;
            }
            let walked = if *done {
                Ok(true)
            } else {
                walk(&self.inner, self.cursor, &filter.range(), &mut from, |_, live| {
                    if let Some(kv) = live {
                        let kind = if filter.raw() { Kind::Put } else { Kind::Added };
                        let mut event =
                            Event::mark(kind, kv.mod_revision(), flags::INITIAL_STATE | flags::FIRST | flags::LAST);
                        event.kv = kv.pointer();
                        own.events.push(event);
                        own.versions.push(kv.clone());
                    }
                    own.events.len() < max
                })
            };
            match walked {
                Ok(true) => *done = true,
                Ok(false) => *next = from,
                Err(()) => {
                    let (oldest, current) = self.inner.window();
                    return Err(lagged_error(1, current.revision, oldest, current.revision, self.position));
                }
            }
        }
        if *done && own.events.len() < max {
            own.events.push(Event::mark(Kind::Bookmark, at.revision, flags::INITIAL_STATE_END));
            self.live(self.cursor, at);
        }
        Ok(Batch::own(own, false, self.position))
    }

    /// Moves over events that do not match. True: poll has something (an event, a mark, an error).
    fn peek(&mut self) -> bool {
        if self.failure.is_some() {
            return true;
        }
        let look = self.look();
        match self.phase {
            Phase_::Ended | Phase_::Initial { .. } => return true,
            Phase_::Unready | Phase_::Revision { .. } => match self.started(&look) {
                Ok(false) => return false,
                Ok(true) if matches!(self.phase, Phase_::Initial { .. }) => return true,
                Ok(true) => {}
                Err(error) => {
                    self.failure = Some(error);
                    return true;
                }
            },
            Phase_::Live => {}
        }
        if self.floor.as_ref().is_some_and(|floor| self.check_floor(floor).is_err()) {
            return true;
        }
        if self.plain && self.floor.is_none() && self.cursor < look.head {
            return true;
        }
        while self.cursor < look.head {
            let segment = match self.segment() {
                Ok(Some(segment)) => segment,
                Ok(None) => continue,
                Err(error) => {
                    self.failure = Some(error);
                    return true;
                }
            };
            for event in segment.view(run_of(&segment, self.cursor, look.head)) {
                if !matches!(self.passes(event), Ok(false)) {
                    return true;
                }
                self.move_over(event);
            }
            if self.cursor < look.head {
                self.cursor = segment.limit();
            }
        }
        if let Some(interval) = self.bookmarks {
            let progress = progress_of(look.progress, self.position.epoch);
            self.pass_floor(progress);
            let moved = progress > self.bookmarked.0.revision || self.position != self.bookmarked.0;
            if moved && self.floor.is_none() && self.bookmarked.1.elapsed() >= interval {
                return true;
            }
        }
        look.closed
    }

    /// Registers for what would make `peek` true. `Err`: it already may be.
    fn park(&mut self, waker: Waker) -> std::result::Result<(), Told> {
        self.segment = None;
        let mut deadline = None;
        let mut bookmark = None;
        let want = match (&self.phase, self.start) {
            (Phase_::Unready, _) => Want::Ready,
            (Phase_::Revision { until }, Start::StateAtLeast(revision)) => {
                deadline = *until;
                Want::Revision(revision)
            }
            _ => {
                if let Some(Floor { ticket: Some(ticket), .. }) = self.floor
                    && self.inner.served.load(Acquire) < ticket
                {
                    // Not an event yet: the answer of the source, or whatever comes first.
                    deadline = Instant::now().checked_add(Duration::from_millis(20));
                }
                if let Some(interval) = self.bookmarks {
                    bookmark = self.bookmarked.1.checked_add(interval).map(|at| (at, self.bookmarked.0));
                }
                Want::Event { filter: self.filter.clone(), cursor: self.cursor }
            }
        };
        if !matches!(want, Want::Event { .. }) {
            self.inner.wake_source();
        }
        let inner = &self.inner;
        let ticket = inner.hub.register(&**inner, want, waker, deadline, bookmark)?;
        *lock(&self.shared.ticket) = Some(ticket.id());
        self.ticket = Some(ticket);
        if deadline.is_some() || bookmark.is_some() {
            // The notifier keeps the time.
            inner.hub.notify(inner);
        }
        fence(SeqCst);
        // Partner: `Shared::close` stores the end, fence, looks at the ticket.
        if self.shared.end.load(Acquire) != OPEN {
            let told = self.ticket.as_ref().map_or(Told::No, |ticket| self.inner.hub.silence(ticket));
            self.unpark();
            return Err(told);
        }
        Ok(())
    }

    /// Ends a registration and takes over how far the notifier looked.
    fn unpark(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        *lock(&self.shared.ticket) = None;
        if let Some(to) = self.inner.hub.unregister(&ticket) {
            self.cursor = self.cursor.max(to);
        }
    }

    /// Publishes what other threads may see of this cursor: statistics only.
    #[inline]
    fn share(&self) {
        self.shared.cursor.store(self.cursor, Relaxed);
        self.shared.position.store(progress_word(self.position), Relaxed);
    }

    /// Everything up to the head was handed out.
    fn caught_up(&self) {
        *lock(&self.shared.caught_up) = Instant::now();
    }

    /// Blocks until a poll has something, at most `timeout` (`Duration::MAX`: for ever). True: poll
    /// (an event, a mark, or an error that it tells). False: the time is up. CLOSED once everything
    /// was handed out.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        let until = Instant::now().checked_add(timeout);
        self.unpark();
        loop {
            if self.peek() {
                return self.tell();
            }
            let parker = self.parker.get_or_insert_with(Arc::default).clone();
            parker.reset();
            if self.park(Waker::Thread(parker.clone())).is_err() {
                continue;
            }
            let woken = parker.wait_until(until);
            self.unpark();
            if !woken {
                return if self.peek() { self.tell() } else { Ok(false) };
            }
        }
    }

    /// What `wait` says when there is something.
    fn tell(&mut self) -> Result<bool> {
        let look = self.look();
        let over = match self.phase {
            Phase_::Ended => self.failure.is_none(),
            Phase_::Live => look.closed && self.cursor >= look.head && self.failure.is_none(),
            _ => false,
        };
        if over { Err(say::closed("subscription")) } else { Ok(true) }
    }

    /// The next batch of at most 1024 events; blocks for it. `None` after CLOSED.
    ///
    /// Not an iterator: a batch can be an error, and the loop goes on after some.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Batch>> {
        loop {
            let step = self.wait(Duration::MAX).and_then(|_| self.poll(1024));
            match step {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => return Ok(Some(batch)),
                Err(error) if error.code() == Code::Closed => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// The position: every match up to and with it was handed out. 0 during the initial state.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How far it is behind now.
    pub fn lag(&self) -> Lag {
        self.shared.lag()
    }

    /// A handle that ends it from any thread.
    pub fn closer(&self) -> Closer {
        Closer(self.shared.clone())
    }

    /// Ends it: see [`Closer::close`].
    pub fn close(&self) {
        self.shared.close();
    }

    /// For feeders: see [`Pace`].
    #[doc(hidden)]
    pub fn pace(&self) -> Pace {
        Pace(self.closer())
    }

    /// As a member of a wake set: true if it is ready now (its tag is listed too); false: its tag
    /// will be listed when it is. Never blocks.
    pub fn arm(&mut self) -> Result<bool> {
        let Some((set, tag)) = self.set.clone() else {
            return Err(say::invalid("arm a subscription: it is in no wake set. Add it to one first."));
        };
        self.unpark();
        loop {
            if self.peek() {
                set.list(tag);
                return Ok(true);
            }
            match self.park(Waker::Member(set.clone(), tag)) {
                Ok(()) => {
                    self.share();
                    return Ok(false);
                }
                // Once an arming.
                Err(Told::Yes) => return Ok(true),
                Err(Told::No) => {}
            }
        }
    }

    /// The batches as a stream of the feature `async`.
    #[cfg(feature = "async")]
    pub fn stream(&mut self) -> Stream<'_> {
        Stream(self)
    }
}

fn lagged_error(from: u64, to: u64, oldest: u64, current: u64, position: Position) -> Error {
    Error::new(
        Code::Lagged,
        format!("subscription: revisions {from} to {to} were lost; the log holds {oldest} to {current}. Subscribe again from State, or make the capacity larger."),
    )
    .with_lost(from, to)
    .with_oldest(oldest)
    .with_current(current)
    .with_position(position)
}

/// The batches of a subscription as a stream: ends after CLOSED.
#[cfg(feature = "async")]
#[derive(Debug)]
pub struct Stream<'a>(&'a mut Subscription);

#[cfg(feature = "async")]
impl futures_core::Stream for Stream<'_> {
    type Item = Result<Batch>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Batch>>> {
        use std::task::Poll;
        let subscription = &mut *self.0;
        loop {
            match subscription.poll(1024) {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => return Poll::Ready(Some(Ok(batch))),
                Err(error) if error.code() == Code::Closed => return Poll::Ready(None),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            if !subscription.peek() && subscription.park(Waker::Task(context.waker().clone())).is_ok() {
                return Poll::Pending;
            }
        }
    }
}

impl WakeSet {
    /// Adds a subscription under a tag. It joins when it is armed.
    pub fn add(&self, subscription: &mut Subscription, tag: u64) -> Result<()> {
        subscription.unpark();
        subscription.set = Some((self.shared.clone(), tag));
        Ok(())
    }

    /// Takes a subscription out; true if it was in a set.
    pub fn remove(&self, subscription: &mut Subscription) -> bool {
        subscription.unpark();
        subscription.set.take().is_some()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.unpark();
        self.shared.end.store(0, Release);
        self.inner.gauges.subscriptions.fetch_sub(1, Relaxed);
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription").field("start", &self.start).field("position", &self.position).finish()
    }
}
