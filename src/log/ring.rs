//! The ring: the directory of segments, and the words of the log that readers load. The writer's side of them is
//! [`super::writer`].
//!
//! A sequence number becomes readable when `head` passes it, and is found by its segment: [`Ring::locate`] for one,
//! [`Ring::next_run`] for all from one on. Both say so when its segment is evicted.
//!
//! **Directory**: entry (s / N) mod its length holds the segment of seq s, or a newer lap. Lap detection is
//! one comparison, `segment.base == s - s mod N`. **Token** k belongs to segment k, has a count on it and,
//! once it exists, on token k+1: a snapshot that has one token keeps every segment from there on.
//! The directory's own counts are the tokens in `RingWriter::live`.
//!
//! A revision longer than the ring gets a longer directory: nothing is evicted for it. The segments
//! before it then go one for one with those after; when it is the oldest, all of it goes at once,
//! and so it does where another oversized revision comes and as many younger events follow it as the window holds.
//!
//! | writer step, in this order | reader step | order |
//! | --- | --- | --- |
//! | token k+1 linked to token k, before a slot of k+1 is written | following tokens at drop | `OnceLock` |
//! | `oldest_seq`, then the entry, then `retire` | after root, inside the pin | Release / Acquire |
//! | entry of k+1 | entry, then base | Release / Acquire |
//! | `head`, once a revision: the addition that ends the commit, which claimed the log before it stored anything | after progress | Release / Acquire |
//! | `token`, after the head that enters k+1 | before head | Release / Acquire |
//! | `progress` | before head | Release / Acquire |
//! | a reset: epochs, `oldest_revision`, head | head, `oldest_revision`, epochs: [`Ring::oldest_at`] | Release / Acquire |
//!
//! `docs/internals/memory-model.md` says what goes wrong in another order, `docs/internals/lag.md` what a reader does that
//! finds its segment evicted.

use super::retention::Ages;
pub(crate) use super::retention::RetentionToken;
use crate::data::event::{Event, Phase};
use crate::heap::{HeapArc, System};
use crate::log::epochs::{EpochView, Epochs};
use crate::log::found::Keepers;
use crate::log::segment::{Held, Segment, SegmentRef};
use crate::position::{MAX_REVISION, Position};
use crate::reclaim::{self, Guard, Published};
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{AcqRel, Acquire, Arc, AtomicPtr, AtomicU64, Relaxed, Release, ord, step};
use crossbeam_utils::CachePadded;
use std::ops::Range;
use std::ptr;
use std::sync::Arc as Shared;
// Statistics carry no order: std's also under loom.
use std::sync::atomic::AtomicU64 as Count;
use std::time::Duration;

/// Bits of the progress word that hold the revision; the rest holds the low bits of the epoch.
pub(crate) const REVISION_BITS: u32 = MAX_REVISION.count_ones();
/// The bits of an epoch that a progress word holds.
pub(crate) const EPOCH_MASK: u64 = (1 << (64 - REVISION_BITS)) - 1;

pub(super) struct Directory {
    pub(super) entries: Box<[AtomicPtr<Segment>]>,
}

impl Directory {
    pub(super) fn new(size: u64) -> Directory {
        Directory { entries: (0..size).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    pub(super) fn size(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn entry(&self, number: u64) -> &AtomicPtr<Segment> {
        &self.entries[(number % self.entries.len() as u64) as usize]
    }
}

/// The bit of the head word that says that no commit begins any more. The log is closed where none is under way either.
const CLOSED: u64 = 1 << 63;
/// A commit is under way: it has claimed the log, and its end publishes a head.
const CLAIMED: u64 = 1 << 62;
/// The bits of the head word that hold the head.
const HEAD: u64 = CLAIMED - 1;

/// The end of the log as one load shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEnd {
    /// The sequence number after the newest published event.
    pub(crate) head: u64,
    /// Whether the log is closed: nothing is published any more.
    pub(crate) closed: bool,
}

/// The oldest revision of the window at some head.
#[derive(Clone, Copy)]
pub(crate) struct Oldest {
    pub(crate) revision: u64,
    /// The head as it was loaded, where a reset above it is being published: then the number is the one from before the
    /// reset, and says nothing about the events that leave after it.
    head: Option<u64>,
}

impl Oldest {
    /// Whether a result that was computed with it is valid: to be asked after all that was read for that. False
    /// where a reset was published meanwhile: the reader begins again, at a head that is above it.
    pub(crate) fn holds(self, ring: &Ring) -> bool {
        self.head.is_none_or(|head| ring.head() == head)
    }

    /// Whether a reset above the head is being published.
    pub(crate) fn is_before_a_reset(self) -> bool {
        self.head.is_some()
    }
}

/// The segment of a cursor, if the window has it.
pub(crate) enum Located {
    /// In this segment.
    Segment(SegmentRef),
    /// Its segment has left, but it had read all of it: continue here.
    Next(u64),
    /// Its segment has left with events that it had not read.
    Evicted,
}

/// The answer of [`Ring::next_run`].
pub(crate) enum Run {
    /// Events of the segment that the caller keeps now, at least one.
    Events(Range<u64>),
    /// No event lies between the cursor and the head.
    Head,
    /// The next events have left the window.
    Evicted,
}

/// The words that the writer stores with each revision and each poll loads: one line of memory, so that it goes from the
/// one core to the other once.
pub(super) struct RingFront {
    /// The sequence number after the newest published event, and the bits [`CLOSED`] and [`CLAIMED`]: close and publication
    /// have one order, because both change this word.
    pub(super) head: AtomicU64,
    pub(super) progress: AtomicU64,
}

/// The words of the log that readers load.
pub(crate) struct Ring {
    /// Slots a segment (N); a power of two.
    pub(super) slots: u64,
    /// Events that the window holds at most, or fewer where the bytes are for fewer segments.
    capacity: u64,
    /// Links a slot.
    pub(super) width: usize,
    pub(super) front: CachePadded<RingFront>,
    pub(super) directory: Published<Directory>,
    pub(super) token: Published<RetentionToken>,
    /// Base of the oldest segment in the directory.
    pub(super) oldest_seq: AtomicU64,
    /// The oldest revision of the window: one above the last that left it, or the first listing (docs/CONTRACT.md,
    /// rows 1.13 to 1.15).
    pub(super) oldest_revision: AtomicU64,
    /// The newest revision of several events of which some have left the window (0: none).
    pub(super) torn_revision: AtomicU64,
    pub(super) epochs: Published<Epochs>,
    /// Sequence number of the newest END mark of a resync, 0 for none: stored before head.
    pub(super) newest_mark: AtomicU64,
    pub(crate) held: Arc<Held>,
    /// The pages and batches that have a token of it.
    pub(crate) keepers: Shared<Keepers>,
    pub(super) ages: Shared<Ages>,
    /// When the oldest segment was opened (statistics).
    pub(super) oldest_opened: Count,
}

impl Ring {
    /// The words of a log whose only segment is that of `token`, and its first.
    pub(super) fn new(
        capacity: u64,
        width: usize,
        token: RetentionToken,
        directory: HeapArc<Directory>,
        epochs: HeapArc<Epochs>,
        held: Arc<Held>,
    ) -> Ring {
        let slots = token.segment().base();
        let ages = token.token().ages.clone();
        let progress = progress_word(Position { epoch: epochs.first_epoch, revision: epochs.listing });
        Ring {
            slots,
            capacity,
            width,
            front: CachePadded::new(RingFront { head: AtomicU64::new(slots), progress: AtomicU64::new(progress) }),
            directory: Published::new(directory),
            token: Published::new(HeapArc::new(token, &mut System)),
            oldest_seq: AtomicU64::new(slots),
            oldest_revision: AtomicU64::new(epochs.listing + 1),
            torn_revision: AtomicU64::new(0),
            epochs: Published::new(epochs),
            newest_mark: AtomicU64::new(0),
            oldest_opened: Count::new(ages.now()),
            held,
            keepers: Shared::default(),
            ages,
        }
    }

    /// The sequence number after the newest published event. Acquire: partner of [`Ring::publish`].
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.end().head
    }

    /// The end of the log, and whether it is closed: one load, so that no event follows a head that is said to be the
    /// last. Acquire: partner of [`Ring::publish`] and of [`Ring::close`].
    #[inline]
    pub(crate) fn end(&self) -> LogEnd {
        let word = self.front.head.load(ord!(HeadLoad, Acquire));
        LogEnd { head: word & HEAD, closed: word & (CLOSED | CLAIMED) == CLOSED }
    }

    /// Whether no commit begins any more: the log is closed, or will be at the end of the commit that is under way.
    /// Acquire: partner of [`Ring::close`].
    pub(crate) fn is_closing(&self) -> bool {
        self.front.head.load(Acquire) & CLOSED != 0
    }

    /// Closes the log: where it stands, or behind the commit that is under way. True: this call has closed it, and the
    /// caller wakes those who wait. Never blocks.
    pub(crate) fn close(&self) -> bool {
        // Release: a reader that finds it closed sees what this thread has seen, also where a commit ends later, whose
        // addition continues this one's release sequence.
        self.front.head.fetch_or(CLOSED, ord!(Closed, AcqRel)) & (CLOSED | CLAIMED) == 0
    }

    /// Begins a commit behind this head, which is the newest. False: the log is closed, and the commit may store nothing.
    #[inline(always)]
    pub(super) fn claim(&self, head: u64) -> bool {
        #[cfg(loom)]
        if !weak::claims() {
            return true;
        }
        #[cfg(loom)]
        if weak::is(weak::Site::BlindPublish) {
            self.front.head.fetch_or(CLAIMED, Relaxed);
            return true;
        }
        // Relaxed: it publishes nothing, and readers that meet it take the head below it with the order of the addition
        // that published that, whose release sequence it continues.
        self.front.head.compare_exchange(head, head | CLAIMED, Relaxed, Relaxed).is_ok()
    }

    /// Ends a commit with the head that it has made visible, in place of that behind which it began. True: the log was
    /// closed meanwhile, so that nothing follows this head, and the caller wakes those who wait. Release: partner of
    /// [`Ring::end`].
    #[inline(always)]
    pub(super) fn publish(&self, before: u64, head: u64) -> bool {
        let step = (head - before).wrapping_sub(CLAIMED);
        #[cfg(loom)]
        let step = if weak::claims() { step } else { head - before };
        self.front.head.fetch_add(step, ord!(Head, Release)) & CLOSED != 0
    }

    /// Ends a commit at the head behind which it began; one that has ended stays as it is. True: as of
    /// [`Ring::publish`].
    pub(crate) fn release(&self) -> bool {
        self.front.head.fetch_and(!CLAIMED, Release) & (CLOSED | CLAIMED) == CLOSED | CLAIMED
    }

    /// The progress word; to be loaded before head. Acquire: partner of `RingWriter::set_progress`.
    #[inline]
    pub(crate) fn progress(&self) -> u64 {
        self.front.progress.load(ord!(ProgressLoad, Acquire))
    }

    /// To be loaded after root, inside the pin. Acquire: partner of the store in `evict`.
    pub(crate) fn oldest_seq(&self) -> u64 {
        self.oldest_seq.load(Acquire)
    }

    /// The highest revision of which something may have left, `oldest` being the first event of the window. Revisions that do
    /// not exist have not left.
    pub(crate) fn newest_left(&self, oldest: u64, pin: &Guard) -> u64 {
        let below_first = match self.locate(oldest, pin) {
            Located::Segment(segment) if oldest < self.head() => {
                let first = segment.event(oldest);
                match first.resync() {
                    Some(mark) if mark.phase == Phase::Begin => mark.from,
                    // A revision that has left in part has left.
                    _ => first.revision() - u64::from(first.is_first()),
                }
            }
            _ => u64::MAX,
        };
        // Within one history `oldest_revision` also counts compactions, and revisions that do not exist.
        let reset_since = self.epochs(pin).reset_above(oldest).is_some();
        if reset_since { below_first } else { below_first.min(self.oldest_revision() - 1) }
    }

    /// Whether no event from `head` on has left, `oldest` being what [`Ring::oldest_seq`] said under this pin: also where
    /// only free slots of a segment that closed early lie between. The segment before the oldest ended at `prev_end`, so
    /// no event has a number from there to `oldest`, and none ever will.
    #[inline]
    pub(crate) fn has_all_from(&self, head: u64, oldest: u64, pin: &Guard) -> bool {
        oldest <= head || self.peek(oldest, pin).is_some_and(|segment| segment.prev_end() <= head)
    }

    /// Acquire: partner of the stores in `evict` and `set_oldest_revision`.
    pub(crate) fn oldest_revision(&self) -> u64 {
        self.oldest_revision.load(Acquire)
    }

    /// Whether a revision has several events of which some have left the window; to be asked after
    /// [`Ring::oldest_seq`], which says that something left. Relaxed: that load (Acquire) is the partner of the store in
    /// `evict`, which comes before the store of `oldest_seq`.
    pub(crate) fn is_torn(&self, revision: u64) -> bool {
        revision != 0 && self.torn_revision.load(Relaxed) == revision && self.oldest_revision() == revision + 1
    }

    /// The oldest revision of the window as a reader at `head` sees it, which it loaded before.
    pub(crate) fn oldest_at(&self, head: u64, pin: &Guard) -> Oldest {
        let revision = self.oldest_revision();
        // Loaded after it: a reset that replaced it has its entry here.
        match self.epochs(pin).reset_above(head) {
            Some(epoch_change) => Oldest { revision: epoch_change.oldest_before, head: Some(head) },
            None => Oldest { revision, head: None },
        }
    }

    /// To be loaded after head. Acquire: partner of the store in `set_epochs`.
    pub(crate) fn newest_mark(&self) -> u64 {
        self.newest_mark.load(Acquire)
    }

    pub(crate) fn epochs<'g>(&self, pin: &'g Guard) -> &'g Epochs {
        self.epochs.load(pin)
    }

    /// A count on the newest token; to be taken before head is loaded.
    pub(crate) fn token(&self, pin: &Guard) -> RetentionToken {
        self.token.load(pin).clone()
    }

    /// How far back the window goes: everything since then is in it.
    pub(crate) fn window_age(&self) -> Duration {
        Duration::from_millis(self.ages.now().saturating_sub(self.oldest_opened.load(Relaxed)))
    }

    /// Age of the oldest snapshot (of the first taken since its segment's token had none), and how many there are.
    /// O(segments that live).
    pub(crate) fn snapshots(&self) -> (Duration, u64) {
        let mut at = Some(self.ages.oldest().clone());
        let (mut oldest, mut count) = (Duration::ZERO, 0);
        while let Some(age) = at {
            let here = age.snapshots.load(Relaxed);
            if here > 0 && count == 0 {
                oldest = Duration::from_millis(self.ages.now().saturating_sub(age.since.load(Relaxed)));
            }
            count += here;
            at = age.next.get().cloned();
        }
        (oldest, count)
    }

    pub(crate) fn base_of(&self, seq: u64) -> u64 {
        seq & !(self.slots - 1)
    }

    /// The sequence number after the last slot of the segment of `seq`.
    pub(crate) fn limit_of(&self, seq: u64) -> u64 {
        self.base_of(seq) + self.slots
    }

    pub(crate) fn first_seq(&self) -> u64 {
        self.slots
    }

    fn entry(&self, seq: u64, pin: &Guard) -> Option<SegmentRef> {
        // Acquire: partner of the store in `open`: the base of a newer lap is complete.
        let pointer = self.directory.load(pin).entry(seq / self.slots).load(ord!(EntryLoad, Acquire));
        // SAFETY: I9: an entry is the address of a segment whose count is retired only after the entry's
        // change, and it was loaded under this pin.
        (!pointer.is_null()).then(|| unsafe { SegmentRef::from_directory(pointer, pin) })
    }

    /// The segment of `seq` for as long as the pin: no count moves, so readers on many threads share no line that
    /// any of them writes. `None` where it has left.
    pub(crate) fn peek<'g>(&self, seq: u64, pin: &'g Guard) -> Option<&'g Segment> {
        let base = self.base_of(seq);
        // Twice: as in `locate`.
        for _ in 0..2 {
            // Acquire: as in `entry`.
            let pointer = self.directory.load(pin).entry(seq / self.slots).load(ord!(EntryLoad, Acquire));
            // SAFETY: I9: an entry is the address of a segment whose count is retired only after the entry has
            // changed, so freed only after this pin, under which it was loaded.
            if let Some(segment) = unsafe { pointer.as_ref() }
                && segment.base() == base
            {
                return Some(segment);
            }
            self.head();
        }
        None
    }

    /// The segment of `seq`, which lies at or below a head that the caller has loaded.
    pub(crate) fn locate(&self, seq: u64, pin: &Guard) -> Located {
        let base = self.base_of(seq);
        // Twice: the directory may have been replaced between head and here.
        for _ in 0..2 {
            if let Some(segment) = self.entry(seq, pin)
                && segment.base() == base
            {
                return Located::Segment(segment);
            }
            self.head();
        }
        // A cursor at the end of a segment that left has lost nothing if the next one is there.
        let next = base + self.slots;
        match self.entry(next, pin) {
            Some(segment) if segment.base() == next && segment.prev_end() == seq => Located::Next(next),
            _ => Located::Evicted,
        }
    }

    /// The position of a reader at `head`, from a progress word loaded before it; `None` where the
    /// event below head has left the window by now (the reader slept for a whole lap): again; or where no reader ever has
    /// such a head: it is the end of a subscription that was closed before its first event.
    pub(crate) fn position(&self, progress: u64, head: u64, pin: &Guard) -> Option<Position> {
        if head < self.slots {
            return None;
        }
        let epoch_view = self.epochs(pin).at(head);
        let event = if head == self.slots {
            epoch_view.listing
        } else {
            // The progress word alone may be that of the revision before.
            self.peek(head - 1, pin)?.event(head - 1).revision()
        };
        Some(Position { epoch: epoch_view.epoch, revision: event.max(progress_of(progress, epoch_view.epoch)) })
    }

    /// The next events from `seq` on below `head`, as many as lie in one segment. Moves `seq` over the ends of
    /// segments, and `hand` along with it: the segment that the caller keeps by a count, so that it may run foreign
    /// code meanwhile. This is the only place that goes from one segment to the next.
    #[inline]
    pub(crate) fn next_run(&self, seq: &mut u64, hand: &mut Option<SegmentRef>, head: u64) -> Run {
        while *seq < head {
            match hand {
                Some(segment) if segment.contains(*seq) => {
                    let end = segment.end(head);
                    if *seq < end {
                        return Run::Events(*seq..end);
                    }
                    // Closed before it was full: the revision that did not fit went into the next one.
                    *seq = segment.limit();
                }
                _ => match self.locate(*seq, &reclaim::pin()) {
                    Located::Segment(segment) => *hand = Some(segment),
                    Located::Next(next) => *seq = next,
                    Located::Evicted => return Run::Evicted,
                },
            }
        }
        Run::Head
    }

    /// Slots of the window; capacity as configured (an oversized revision only adds to it).
    pub(crate) fn window_slots(&self) -> u64 {
        self.capacity
    }

    /// Events in [from, to), where `to` is at most the head: exact where `from` is in the window or before all events.
    /// Otherwise an upper bound, because a segment that has left does not say how many of its slots were free; of all such
    /// segments together that is known. O(1).
    pub(crate) fn events_between(&self, from: u64, to: u64) -> u64 {
        let pin = reclaim::pin();
        let (_, below_to) = self.events_below(to, &pin);
        let (below_from, _) = self.events_below(from, &pin);
        below_to.saturating_sub(below_from).min(to.saturating_sub(from))
    }

    /// How many events were published. `None` while a revision longer than the log is written, which leaves no
    /// segment of those below the head, and where the window has moved on twice meanwhile.
    pub(crate) fn published_events(&self) -> Option<u64> {
        let pin = reclaim::pin();
        (0..2).find_map(|_| self.events_below_in_window(self.head(), &pin))
    }

    /// How many events lie below a sequence number that is at most the head: at least and at most.
    fn events_below(&self, seq: u64, pin: &Guard) -> (u64, u64) {
        let slots = seq.saturating_sub(self.slots);
        // Again where the window moved on meanwhile. While a revision longer than the log is written it may hold
        // nothing.
        for _ in 0..3 {
            if let Some(events) = self.events_below_in_window(seq, pin) {
                return (events, events);
            }
            let oldest = self.oldest_seq();
            if let Some(events) = self.events_below_in_window(oldest, pin)
                && oldest > seq
            {
                // The free slots of the segments that have left may all lie below it, or all above.
                let free = oldest - self.slots - events;
                return (slots.saturating_sub(free), slots.min(events));
            }
        }
        (0, slots)
    }

    /// How many events lie below a sequence number of the window, or at an end of it.
    fn events_below_in_window(&self, seq: u64, pin: &Guard) -> Option<u64> {
        if seq <= self.slots {
            return Some(0);
        }
        // The segment that begins there may not be open yet: then it is where the one before ends.
        let segment = self.peek(seq, pin).or_else(|| self.peek(seq - 1, pin))?;
        Some(segment.events_before() + segment.end(seq).min(seq) - segment.base())
    }

    /// h(R): the seq of the first event above `revision` in the present history; `head` if there is none. The answer
    /// holds only if it is not below `oldest_seq` as loaded after it.
    pub(crate) fn seq_above(&self, revision: u64, epoch_view: &EpochView, head: u64, pin: &Guard) -> u64 {
        let oldest = self.oldest_seq().max(self.base_of(epoch_view.since_seq));
        let (mut low, mut high) = (oldest / self.slots, (head - 1) / self.slots + 1);
        // The last segment whose first event of this history is not above the revision.
        // The other way round where the window has moved beyond the head: then the head is the answer.
        while low + 1 < high {
            let middle = (low + high) / 2;
            let above = match self.locate(middle * self.slots, pin) {
                Located::Segment(segment) => {
                    segment.base() >= head || segment.event(segment.base()).revision() > revision
                }
                _ => false,
            };
            if above { high = middle } else { low = middle }
        }
        step("segment found");
        // The segment left during the search: its base lies below `oldest_seq` now, so the caller searches again.
        let Located::Segment(segment) = self.locate(low * self.slots, pin) else { return low * self.slots };
        let end = segment.end(head);
        let from = segment.base().max(epoch_view.since_seq);
        let seq = if from < end {
            from + segment.view(from..end).partition_point(|event| event.revision() <= revision) as u64
        } else {
            end
        };
        // After its last event: at the next segment, so that nothing is lost where this one leaves.
        if seq == end && end < head { segment.limit() } else { seq }
    }
}

/// The word: low 12 bits of the epoch above 52 bits of revision.
pub(crate) fn progress_word(position: Position) -> u64 {
    position.epoch << REVISION_BITS | position.revision
}

/// The revision of a progress word, or 0 where it is of another epoch.
pub(crate) fn progress_of(word: u64, epoch: u64) -> u64 {
    if word >> REVISION_BITS == epoch & EPOCH_MASK { word & MAX_REVISION } else { 0 }
}

/// Cuts a run of events so that it does not end inside a revision, unless the revision is longer
/// than the run: then all of it, and `true` for CONTINUES.
pub(crate) fn cut_at_revision(events: &[Event], max: usize) -> (usize, bool) {
    let mut end = events.len().min(max);
    if end == 0 || events[end - 1].is_last() {
        return (end, false);
    }
    let all = end;
    while end > 0 && !events[end - 1].is_last() {
        end -= 1;
    }
    if end == 0 { (all, true) } else { (end, false) }
}
