//! The waiters of one hub: the words by which consumers, the writer and passes reach each other.
//!
//! A consumer counts itself here before it parks, and leaves messages in the inbox. The writer loads the count with each
//! revision. A pass takes the messages and stores how far it has examined the events. No function here waits.

#![forbid(unsafe_code)]

use super::group::FilterGroup;
use super::interest::Interest;
use super::parked_waiter::{Filed, ParkedWaiter, WaiterRef};
use crate::log::buckets::Bucket;
use crate::sync::{AcqRel, Acquire, AtomicU64, AtomicUsize, Inbox, Relaxed, Release};
use crossbeam_utils::CachePadded;
use std::sync::atomic::AtomicU64 as Statistic;

/// The notifier is called after this many messages, though nobody publishes, so that they do not pile up.
const UNREAD: u64 = 256;

/// A message from a consumer to the notifier.
pub(crate) enum Message {
    /// The waiter waits for this interest from now on, whenever it is parked. The number is that of the announcement.
    Join(WaiterRef, Interest, u32),
    /// The consumer is dropped: the waiter leaves the tables.
    Leave(WaiterRef),
    /// The waiter is listed for an earlier time than before.
    Time(WaiterRef),
}

/// The sequence numbers up to which events were examined, for each kind of place in the tables.
#[derive(Clone, Copy)]
pub(crate) struct ExaminedTo {
    /// For waiters in filter groups.
    pub(crate) scanned: u64,
    /// For those at buckets that ask no filter.
    pub(crate) followed: u64,
    /// For those at buckets that ask a filter about each event.
    pub(crate) filtered: u64,
}

impl ExaminedTo {
    /// All events below were examined for a waiter that is filed there; 0 where it waits for no event.
    pub(crate) fn of(&self, filed: Filed) -> u64 {
        match filed {
            Filed::InGroup | Filed::Asking => self.scanned,
            Filed::AtBucket => self.followed,
            Filed::AtFiltered => self.filtered,
            Filed::OfTheCache | Filed::Nowhere => 0,
        }
    }
}

/// See the module.
pub(crate) struct Waiters {
    /// Parked waiters for which every revision is looked at. Each adds itself; its consumer, or the thread that wakes it,
    /// subtracts it. On its own cache line: the writer loads it with each revision, and others store to the fields
    /// beside it.
    waiting: CachePadded<AtomicUsize>,
    pub(crate) inbox: Inbox<Message>,
    /// Messages posted so far.
    posted: Statistic,
    /// See [`ExaminedTo`].
    scanned_to: AtomicU64,
    followed_to: AtomicU64,
    filtered_to: AtomicU64,
    /// The highest revision that a consumer waits for.
    wanted: AtomicU64,
    /// Waiters that are parked at buckets, and whether the notifier counts itself in `waiting`: statistics.
    at_buckets: Statistic,
    awaits_a_move: Statistic,
    /// How often events left the window before a pass had looked at them for a parked waiter: a statistic.
    pub(crate) overrun: Statistic,
}

impl Waiters {
    pub(crate) fn new() -> Waiters {
        Waiters {
            waiting: CachePadded::new(AtomicUsize::new(0)),
            inbox: Inbox::new(),
            posted: Statistic::new(0),
            scanned_to: AtomicU64::new(0),
            followed_to: AtomicU64::new(0),
            filtered_to: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            at_buckets: Statistic::new(0),
            awaits_a_move: Statistic::new(0),
            overrun: Statistic::new(0),
        }
    }

    /// Called after the writer's fence. Partner: [`Waiters::add`], PARKED, fence, look in `Parker::park`.
    #[inline]
    pub(crate) fn are_parked(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// The number of parked waiters of any kind: statistics.
    pub(crate) fn parked(&self) -> u64 {
        let waiting = self.waiting.load(Relaxed) as u64 + self.at_buckets.load(Relaxed);
        waiting.saturating_sub(self.awaits_a_move.load(Relaxed))
    }

    // ---- Counts ---------------------------------------------------------------------------------------

    /// Counts a waiter for which every revision is looked at, here and in its filter group. A consumer calls this
    /// before it parks.
    pub(crate) fn add(&self, group: Option<&FilterGroup>) {
        if let Some(group) = group {
            group.add_parked();
        }
        self.waiting.fetch_add(1, Relaxed);
    }

    /// Subtracts `count` waiters of one group.
    pub(crate) fn remove(&self, count: usize, group: Option<&FilterGroup>) {
        if let Some(group) = group {
            group.remove_parked(count);
        }
        self.waiting.fetch_sub(count, Relaxed);
    }

    /// Counts a waiter at a bucket, before it parks.
    pub(crate) fn add_at(&self, bucket: &Bucket) {
        bucket.add_waiter();
        self.at_buckets.fetch_add(1, Relaxed);
    }

    pub(crate) fn remove_at(&self, bucket: &Bucket) {
        bucket.remove_waiter();
        self.at_buckets.fetch_sub(1, Relaxed);
    }

    /// Moves the count of a waiter that is claimed from its group to a bucket: added there before it is removed here.
    pub(crate) fn move_to_bucket(&self, group: &FilterGroup, bucket: &Bucket) {
        self.add_at(bucket);
        self.remove(1, Some(group));
    }

    /// Adds or removes the notifier's own count, which stands for the bookmarks that wait until the position moves.
    pub(crate) fn await_a_move(&self, awaits: bool) {
        self.awaits_a_move.store(awaits.into(), Relaxed);
        if awaits { self.add(None) } else { self.remove(1, None) }
    }

    // ---- Messages and revisions -----------------------------------------------------------------------

    /// Posts a message. True: consumers come and go while nobody publishes, so the caller calls the notifier.
    pub(crate) fn post(&self, message: Message) -> bool {
        self.inbox.push(message);
        self.posted.fetch_add(1, Relaxed) % UNREAD == UNREAD - 1
    }

    /// The highest revision that a consumer waits for, 0 for none. One load.
    pub(crate) fn highest_revision_wanted(&self) -> u64 {
        self.wanted.load(Acquire)
    }

    /// Records that a consumer waits for this revision. True: nobody waited for one as high.
    pub(crate) fn want(&self, revision: u64) -> bool {
        self.wanted.fetch_max(revision, AcqRel) < revision
    }

    /// Lowers `wanted` to `highest`, the highest revision that a waiter of the tables waits for. A consumer that comes
    /// meanwhile has posted its message before it raised `wanted`; the caller reads the inbox again after this.
    pub(crate) fn want_at_most(&self, highest: u64) -> bool {
        let wanted = self.wanted.load(Acquire);
        wanted > highest && self.wanted.compare_exchange(wanted, highest, AcqRel, Relaxed).is_ok()
    }

    // ---- Progress of the passes -----------------------------------------------------------------------

    /// Stores how far events were examined.
    pub(crate) fn store_examined_to(&self, examined_to: ExaminedTo) {
        // Release: partner of the loads in `scanned_to` and `followed_to`.
        self.scanned_to.store(examined_to.scanned, Release);
        self.followed_to.store(examined_to.followed, Release);
        self.filtered_to.store(examined_to.filtered, Release);
    }

    /// All events below were examined for every waiter in a filter group. Acquire: partner of the store in
    /// [`Waiters::store_examined_to`].
    pub(crate) fn scanned_to(&self) -> u64 {
        self.scanned_to.load(Acquire)
    }

    /// All events below were examined for every waiter at a bucket; `asks`: for those that ask a filter about each event.
    pub(crate) fn followed_to(&self, asks: bool) -> u64 {
        if asks { self.filtered_to.load(Acquire) } else { self.followed_to.load(Acquire) }
    }

    /// All events below were examined for this parked waiter: for statistics of a subscription.
    pub(crate) fn examined_to(&self, waiter: &ParkedWaiter) -> u64 {
        match waiter.filed().0 {
            Filed::AtBucket => self.followed_to(false),
            Filed::AtFiltered => self.followed_to(true),
            _ => self.scanned_to(),
        }
    }

    /// All events below were examined for every waiter.
    pub(crate) fn all_examined_to(&self) -> u64 {
        self.scanned_to().min(self.followed_to(false)).min(self.followed_to(true))
    }
}
