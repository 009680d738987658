//! What other threads may see of a subscription, and do to it.

#![forbid(unsafe_code)]

use super::options::Options;
use crate::cache::{Inner, LagLimit};
use crate::position::{MAX_REVISION, Position};
use crate::reclaim;
use crate::sync::{AcqRel, Acquire, AtomicU64, Mutex, Relaxed, SeqCst, fence, lock, ord};
use crate::wake::Rest;
use crate::writer::Writer;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How far a subscription is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lag {
    /// Events of the log above the cursor, matching or not; 0 while it is parked.
    pub events: u64,
    /// Revisions between the position and the cache's.
    pub revisions: u64,
    /// Time since the subscription last had everything; zero if it has.
    pub age: Duration,
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
pub(super) const OPEN: u64 = u64::MAX;
/// `Shared::ticket` while nobody is parked.
const NO_TICKET: u64 = u64::MAX;

/// What other threads may see and do.
pub(crate) struct Shared {
    pub(super) inner: Arc<Inner>,
    /// One past the last sequence number to hand out; OPEN: no end.
    pub(super) end: AtomicU64,
    /// The consumer's cursor as of its last poll (statistics, pace).
    pub(super) cursor: AtomicU64,
    /// The position as of its last poll, packed as the progress word is.
    pub(super) position: AtomicU64,
    state: Mutex<Seen>,
    limits: Option<Box<Limits>>,
}

/// How far behind it may be.
struct Limits {
    events: u64,
    age: Duration,
}

struct Seen {
    /// When the consumer last had everything.
    caught_up: Instant,
    /// The registration of the consumer while it is parked, or NO_TICKET.
    ticket: u64,
    /// The lag for which it was closed.
    too_slow: Option<Box<Lag>>,
}

impl Shared {
    pub(super) fn new(inner: Arc<Inner>, options: &Options) -> Shared {
        Shared {
            inner,
            end: AtomicU64::new(OPEN),
            cursor: AtomicU64::new(0),
            position: AtomicU64::new(0),
            state: Mutex::new(Seen { caught_up: Instant::now(), ticket: NO_TICKET, too_slow: None }),
            limits: options.is_limited().then(|| {
                let Options { max_lag_events: events, max_lag_age: age, .. } = *options;
                Box::new(Limits { events, age })
            }),
        }
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limits.is_some()
    }

    /// The limits, for a message.
    pub(super) fn limits(&self) -> String {
        let Some(limits) = &self.limits else { return "none".into() };
        let events = (limits.events != u64::MAX).then(|| format!("{} events", limits.events));
        let age = (limits.age != Duration::MAX).then(|| format!("{} ms", limits.age.as_millis()));
        events.into_iter().chain(age).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn close(&self) {
        // Before the first listing nothing was published: nothing is handed out.
        let head = if self.inner.is_ready() { self.inner.ring.head() } else { 0 };
        self.close_at(head);
    }

    fn close_at(&self, head: u64) {
        let _ = self.end.compare_exchange(OPEN, head, ord!(End, AcqRel), Acquire);
        fence(SeqCst);
        // Partner: the consumer stores its ticket, fence, looks at `end`.
        let ticket = lock(&self.state).ticket;
        if ticket != NO_TICKET {
            self.inner.hub.wake_one(ticket);
        }
    }

    pub(super) fn rests(&self, ticket: u64) {
        lock(&self.state).ticket = ticket;
    }

    /// Everything up to the head was handed out.
    pub(super) fn caught_up(&self) {
        lock(&self.state).caught_up = Instant::now();
    }

    /// While it is parked it has everything; once it was woken it is behind from then on.
    pub(super) fn lag(&self) -> Lag {
        let ticket = lock(&self.state).ticket;
        let rest = if ticket == NO_TICKET { None } else { self.inner.hub.rest(ticket) };
        match rest {
            Some(Rest::Parked) => Lag::default(),
            Some(Rest::Woken { at, resume }) => self.lag_since(at, resume),
            None => {
                let at = lock(&self.state).caught_up;
                self.lag_since(at, 0)
            }
        }
    }

    fn lag_since(&self, at: Instant, resume: u64) -> Lag {
        let inner = &self.inner;
        let (now, head) = inner.now(&reclaim::pin());
        let position = unpack(self.position.load(Relaxed), now.epoch);
        let cursor = self.cursor.load(Relaxed).max(resume);
        let events = if cursor >= head { 0 } else { inner.ring.events_between(cursor, head) };
        let revisions =
            if position.epoch == now.epoch { now.revision.saturating_sub(position.revision) } else { events };
        Lag { events, revisions, age: if events == 0 { Duration::ZERO } else { at.elapsed() } }
    }

    /// The consumer comes back from a rest: it had everything until it was woken.
    pub(super) fn rested(&self) {
        let mut state = lock(&self.state);
        let ticket = std::mem::replace(&mut state.ticket, NO_TICKET);
        state.caught_up = match self.inner.hub.rest(ticket) {
            Some(Rest::Woken { at, .. }) => at,
            _ => Instant::now(),
        };
    }

    /// The lag for which it was closed, told once.
    pub(super) fn take_too_slow(&self) -> Option<Box<Lag>> {
        lock(&self.state).too_slow.take()
    }
}

impl LagLimit for Shared {
    fn keep_limit(&self) -> bool {
        if self.end.load(Acquire) != OPEN || self.inner.is_closed() {
            return false;
        }
        let lag = self.lag();
        if self.limits.as_ref().is_none_or(|limits| lag.events <= limits.events && lag.age <= limits.age) {
            return true;
        }
        lock(&self.state).too_slow = Some(Box::new(lag));
        // Nothing more is handed out.
        self.close_at(0);
        false
    }
}

/// Ends a subscription from any thread, and shows its lag. Clone, Send and Sync.
#[derive(Clone)]
pub struct Closer(pub(super) Arc<Shared>);

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
pub struct Pace(pub(super) Closer);

impl Pace {
    /// Whether it is a subscription of this writer's cache.
    #[doc(hidden)]
    pub fn is_of(&self, writer: &Writer) -> bool {
        writer.is_of(&self.0.0.inner)
    }

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
