//! The ring: directory, tokens, the words that readers load, and the writer's side of them.
//!
//! **Directory**: entry (s / N) mod M holds the segment of seq s, or a newer lap. Lap detection is
//! one comparison, `segment.base == s - s mod N`. **Token** k stands beside segment k, owns it and,
//! once it exists, token k+1: a snapshot that holds one token holds every segment from there on.
//! The directory's own counts are the tokens in [`RingWriter::live`].
//!
//! A revision longer than the ring gets a longer directory: nothing is evicted for it. The segments
//! before it then go one for one with those after; when it is the oldest, all of it goes at once,
//! and so it does where another giant comes and M younger segments follow it.
//!
//! | writer step, in this order | reader step | order |
//! | --- | --- | --- |
//! | token k+1 linked to token k, before a slot of k+1 is written | following tokens at drop | `OnceLock` |
//! | `oldest_seq`, then the entry, then retire | after root, inside the pin | Release / Acquire |
//! | entry of k+1 | entry, then base | Release / Acquire |
//! | `head`, once a revision | after progress | Release / Acquire |
//! | `token`, after the head that enters k+1 | before head | Release / Acquire |
//! | `progress` | before head | Release / Acquire |

use super::retention::Ages;
pub(crate) use super::retention::TokenRef;
use crate::attribute::schema::Schema;
use crate::data::event::{Event, Position, flags};
use crate::log::buckets::Router;
use crate::log::epochs::{History, Present};
use crate::log::segment::{Held, Segment, SegmentRef};
use crate::log::summaries::Summary;
use crate::reclaim::{self, Guard, Published};
use crate::sync::{Acquire, Arc, AtomicPtr, AtomicU64, Relaxed, Release, ord};
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;
use std::ops::Range;
use std::ptr;
use std::sync::Arc as Shared;
use std::time::Duration;

/// Bits of the progress word that hold the revision; the rest holds the low bits of the epoch.
const REVISION_BITS: u32 = 52;
/// A revision at or above this is refused.
pub(crate) const MAX_REVISION: u64 = 1 << REVISION_BITS;

struct Directory {
    entries: Box<[AtomicPtr<Segment>]>,
}

impl Directory {
    fn new(size: u64) -> Directory {
        Directory { entries: (0..size).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    fn entry(&self, number: u64) -> &AtomicPtr<Segment> {
        &self.entries[(number % self.entries.len() as u64) as usize]
    }
}

/// Where a cursor stands.
pub(crate) enum Place {
    /// In this segment.
    At(SegmentRef),
    /// Its segment has left, but it had read all of it: go on here.
    Skip(u64),
    /// Its segment has left with events that it had not read.
    Lapped,
}

/// The words of the log that readers load.
pub(crate) struct Ring {
    /// Slots a segment (N); a power of two.
    slots: u64,
    /// Segments of the ring (M).
    segments: u64,
    /// Links a slot.
    width: usize,
    head: CachePadded<AtomicU64>,
    progress: CachePadded<AtomicU64>,
    directory: Published<Directory>,
    token: Published<TokenRef>,
    /// Base of the oldest segment in the directory.
    oldest_seq: AtomicU64,
    /// See the contract, section 1: "oldest".
    oldest_revision: AtomicU64,
    history: Published<History>,
    /// Sequence number of the newest resync mark (the end of a bracket), 0 for none: stored before head.
    newest_mark: AtomicU64,
    pub(crate) held: Arc<Held>,
    ages: Shared<Ages>,
}

impl Ring {
    /// A log with `segments` segments of `slots` slots, and its writer.
    pub(crate) fn new(
        slots: u64,
        segments: u64,
        segment_bytes: u64,
        history: History,
        width: usize,
        schema: Shared<Schema>,
    ) -> (Ring, RingWriter) {
        let held = Arc::new(Held::default());
        let first = SegmentRef::new(slots, slots as usize, slots, width, held.clone());
        let directory = Directory::new(segments);
        directory.entry(1).store(first.as_ptr().cast_mut(), Release);
        let token = TokenRef::first(first);
        let ages = token.token().ages.clone();
        let writer = RingWriter {
            live: VecDeque::from([Live { token: token.clone(), giant: 0 }]),
            segments,
            directory_size: segments,
            base: slots,
            fill: 0,
            token_base: slots,
            segment_bytes,
            current_bytes: 0,
            summary: Box::new(Summary::new(&schema)),
            schema,
        };
        let ring = Ring {
            slots,
            segments,
            width,
            head: CachePadded::new(AtomicU64::new(slots)),
            progress: CachePadded::new(AtomicU64::new(progress_word(Position {
                epoch: history.first_epoch,
                revision: history.listing,
            }))),
            directory: Published::new(directory),
            token: Published::new(token),
            oldest_seq: AtomicU64::new(slots),
            oldest_revision: AtomicU64::new(history.listing + 1),
            history: Published::new(history),
            newest_mark: AtomicU64::new(0),
            held,
            ages,
        };
        (ring, writer)
    }

    /// One past the newest published event. Acquire: partner of [`Ring::publish_head`].
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head.load(ord!(HeadLoad, Acquire))
    }

    /// The progress word; to be loaded before head. Acquire: partner of [`Ring::set_progress`].
    #[inline]
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(ord!(ProgressLoad, Acquire))
    }

    /// To be loaded after root, inside the pin. Acquire: partner of the store in `evict`.
    pub(crate) fn oldest_seq(&self) -> u64 {
        self.oldest_seq.load(Acquire)
    }

    pub(crate) fn oldest_revision(&self) -> u64 {
        self.oldest_revision.load(Acquire)
    }

    /// To be loaded after head. Acquire: partner of the store in `set_history`.
    pub(crate) fn newest_mark(&self) -> u64 {
        self.newest_mark.load(Acquire)
    }

    pub(crate) fn history<'g>(&self, pin: &'g Guard) -> &'g History {
        self.history.load(pin)
    }

    /// The token of now; to be loaded before head (and kept only if it is cloned).
    pub(crate) fn token(&self, pin: &Guard) -> TokenRef {
        self.token.load(pin).clone()
    }

    /// Age of the oldest snapshot: of the first taken since its segment's token had none.
    /// O(segments that live).
    pub(crate) fn oldest_snapshot(&self) -> Duration {
        let mut at = Some(self.ages.oldest().clone());
        while let Some(age) = at {
            if age.snapshots.load(Relaxed) > 0 {
                return Duration::from_millis(self.ages.now().saturating_sub(age.since.load(Relaxed)));
            }
            at = age.next.get().cloned();
        }
        Duration::ZERO
    }

    pub(crate) fn base_of(&self, seq: u64) -> u64 {
        seq & !(self.slots - 1)
    }

    pub(crate) fn first_seq(&self) -> u64 {
        self.slots
    }

    fn entry(&self, seq: u64, pin: &Guard) -> Option<SegmentRef> {
        // Acquire: partner of the store in `open`: the base of a newer lap is complete.
        let pointer = self.directory.load(pin).entry(seq / self.slots).load(ord!(EntryLoad, Acquire));
        (!pointer.is_null()).then(|| SegmentRef::from_directory(pointer, pin))
    }

    /// The segment of `seq`, which lies at or below a head that the caller has loaded.
    pub(crate) fn place(&self, seq: u64, pin: &Guard) -> Place {
        let base = self.base_of(seq);
        // Twice: the directory may have been replaced between head and here.
        for _ in 0..2 {
            if let Some(segment) = self.entry(seq, pin)
                && segment.base() == base
            {
                return Place::At(segment);
            }
            self.head();
        }
        // A cursor at the end of a segment that left has lost nothing if the next one is there.
        let next = base + self.slots;
        match self.entry(next, pin) {
            Some(segment) if segment.base() == next && segment.prev_end() == seq => Place::Skip(next),
            _ => Place::Lapped,
        }
    }

    /// The position of a reader at `head`, from a progress word loaded before it; `None` where the
    /// event below head has left the window by now (the reader slept for a whole lap): again.
    pub(crate) fn position(&self, progress: u64, head: u64, pin: &Guard) -> Option<Position> {
        let present = self.history(pin).at(head);
        let event = if head == self.slots {
            present.listing
        } else {
            match self.place(head - 1, pin) {
                Place::At(segment) => segment.event(head - 1).revision,
                // The progress word alone may be that of the revision before.
                _ => return None,
            }
        };
        Some(Position { epoch: present.epoch, revision: event.max(progress_of(progress, present.epoch)) })
    }

    /// Slots of the window; capacity as configured (a giant revision only adds to it).
    pub(crate) fn window_slots(&self) -> u64 {
        self.slots * self.segments
    }

    /// Events in [from, head), gaps of closed segments in the window taken off. O(segments).
    pub(crate) fn events_between(&self, from: u64, head: u64) -> u64 {
        // All but the last of the segments that have left are counted at once.
        let near = self.oldest_seq().saturating_sub(self.slots).min(head);
        let (mut at, mut events) = (from.max(near), near.saturating_sub(from));
        while at < head {
            let pin = reclaim::pin();
            let next = self.base_of(at) + self.slots;
            let end = match self.place(at, &pin) {
                Place::At(segment) => segment.end(head),
                Place::Skip(_) => at,
                Place::Lapped => next.min(head),
            };
            events += end.saturating_sub(at);
            at = next;
        }
        events
    }

    /// h(R): the seq of the first event above `revision` in the present history; `head` if none. It holds
    /// only if it is not below `oldest_seq` as loaded behind it.
    pub(crate) fn seq_above(&self, revision: u64, present: &Present, head: u64, pin: &Guard) -> u64 {
        let oldest = self.oldest_seq().max(self.base_of(present.since_seq));
        let (mut low, mut high) = (oldest / self.slots, (head - 1) / self.slots + 1);
        // The last segment whose first event of this history is not above the revision.
        // The other way round where the window has moved beyond the head: then the head is the answer.
        while low + 1 < high {
            let middle = (low + high) / 2;
            let above = match self.place(middle * self.slots, pin) {
                Place::At(segment) => segment.base() >= head || segment.event(segment.base()).revision > revision,
                _ => false,
            };
            if above { high = middle } else { low = middle }
        }
        // It left while this searched: its base lies below `oldest_seq` now, and the caller looks again.
        let Place::At(segment) = self.place(low * self.slots, pin) else { return low * self.slots };
        let end = segment.end(head);
        let from = segment.base().max(present.since_seq);
        let seq = if from < end {
            from + segment.view(from..end).partition_point(|event| event.revision <= revision) as u64
        } else {
            end
        };
        // Behind all of it: at the next one, so that nothing is lost with this one.
        if seq == end && end < head { segment.limit() } else { seq }
    }
}

/// The word: low 12 bits of the epoch above 52 bits of revision.
pub(crate) fn progress_word(position: Position) -> u64 {
    position.epoch << REVISION_BITS | position.revision
}

/// The revision of a progress word, or 0 where it is of another epoch.
pub(crate) fn progress_of(word: u64, epoch: u64) -> u64 {
    if word >> REVISION_BITS == epoch & 0xfff { word & (MAX_REVISION - 1) } else { 0 }
}

struct Live {
    token: TokenRef,
    /// 0, or the number of the giant revision that it was opened for.
    giant: u64,
}

/// The writer's side of the ring.
pub(crate) struct RingWriter {
    /// Segments in the directory, oldest first; their tokens are the directory's counts.
    live: VecDeque<Live>,
    /// M.
    segments: u64,
    directory_size: u64,
    /// Base of the newest segment, and slots used in it.
    base: u64,
    fill: u64,
    /// Base of the segment whose token is published.
    token_base: u64,
    /// A segment also closes at this many bytes.
    segment_bytes: u64,
    current_bytes: u64,
    /// Of the newest segment.
    summary: Box<Summary>,
    schema: Shared<Schema>,
}

/// The sequence numbers of one revision: runs of consecutive ones.
pub(crate) struct Seqs {
    first: Range<u64>,
    more: Vec<Range<u64>>,
}

impl Seqs {
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.first.clone().chain(self.more.iter().cloned().flatten())
    }

    pub(crate) fn first(&self) -> u64 {
        self.first.start
    }

    pub(crate) fn last(&self) -> u64 {
        self.more.last().unwrap_or(&self.first).end - 1
    }

    pub(crate) fn take(&mut self) -> Seqs {
        std::mem::replace(self, Seqs { first: 0..0, more: Vec::new() })
    }

    fn add(&mut self, run: Range<u64>) {
        match (run.is_empty(), self.first.is_empty()) {
            (true, _) => {}
            (_, true) => self.first = run,
            _ => self.more.push(run),
        }
    }
}

/// Where the events of one revision go, and what had to be allocated for that.
pub(crate) struct Plan {
    pub(crate) seqs: Seqs,
    opened: Vec<(TokenRef, Box<Summary>)>,
    /// Slots used in the segments left: the newest one before, then each opened but the last.
    closed: Vec<u64>,
    directory: Option<Box<Directory>>,
    giant: bool,
    /// How many of the oldest segments go first.
    evicted: usize,
    fill: u64,
    bytes: u64,
}

impl RingWriter {
    fn newest(&self) -> &SegmentRef {
        self.live.back().expect("never empty").token.segment()
    }

    /// The next sequence number, unless its segment is closed first.
    pub(crate) fn next_seq(&self) -> u64 {
        self.base + self.fill
    }

    /// Prepare: lays out the events of one revision (their bytes are given) and allocates for it.
    pub(crate) fn plan(&self, ring: &Ring, sizes: impl ExactSizeIterator<Item = u64>) -> Plan {
        let count = sizes.len() as u64;
        let slots = ring.slots;
        let short = count <= slots / 8;
        let mut base = self.base;
        let start = base + self.fill;
        let mut plan = Plan {
            seqs: Seqs { first: start..start, more: Vec::new() },
            opened: Vec::new(),
            closed: Vec::new(),
            directory: None,
            giant: false,
            evicted: 0,
            fill: self.fill,
            bytes: self.current_bytes,
        };
        let mut run = start..start;
        for (at, size) in sizes.enumerate() {
            // A short revision never straddles: whether it fits is asked once, before its first event.
            let full = if short {
                at == 0 && (plan.fill + count > slots || plan.bytes >= self.segment_bytes)
            } else {
                plan.fill == slots || plan.bytes >= self.segment_bytes
            };
            if full {
                let end = base + plan.fill;
                plan.closed.push(plan.fill);
                base += slots;
                let segment = SegmentRef::new(base, slots as usize, end, ring.width, ring.held.clone());
                let summary = Box::new(Summary::new(&self.schema));
                plan.opened.push((TokenRef::new(segment, ring.ages.clone()), summary));
                (plan.fill, plan.bytes) = (0, 0);
                plan.seqs.add(std::mem::replace(&mut run, base..base));
            }
            run.end += 1;
            plan.fill += 1;
            plan.bytes += size;
        }
        plan.seqs.add(run);
        if !plan.opened.is_empty() {
            self.plan_directory(&mut plan);
        }
        plan
    }

    /// What must go, and whether another directory is due: a giant revision needs a longer one; when
    /// the last giant is gone, a short one follows.
    fn plan_directory(&self, plan: &mut Plan) {
        let opened = plan.opened.len() as u64;
        plan.giant = opened + 1 > self.segments;
        plan.evicted = self.leaving(opened, plan.giant);
        let stay = self.live.len() - plan.evicted;
        let size = if plan.giant {
            stay as u64 + opened + self.segments + 1
        } else if self.live.iter().skip(plan.evicted).all(|live| live.giant == 0) {
            self.segments
        } else {
            self.directory_size
        };
        if size != self.directory_size {
            plan.directory = Some(Box::new(Directory::new(size)));
        }
    }

    /// How many of the oldest segments go when `opened` new ones come: of ordinary segments at most M
    /// stay; those of one giant go together. A giant evicts only what M younger segments follow, so
    /// that one giant evicts nothing and many do not add up (I9).
    fn leaving(&self, opened: u64, giant: bool) -> usize {
        let mut ordinary = self.live.iter().filter(|live| live.giant == 0).count() as u64;
        let mut gone = 0;
        loop {
            let id = self.live[gone].giant;
            let group = if id == 0 { 1 } else { self.live.range(gone..).take_while(|live| live.giant == id).count() };
            let stay = self.live.len() - gone - group;
            let goes = if giant { stay as u64 >= self.segments } else { stay > 0 && ordinary + opened > self.segments };
            if !goes {
                return gone;
            }
            gone += group;
            ordinary -= u64::from(id == 0);
        }
    }

    /// Commit, step 1: makes room and writes the events. Nothing here can fail.
    ///
    /// `events` come with their sequence numbers and the bytes that their segment keeps alive.
    pub(crate) fn write(
        &mut self,
        ring: &Ring,
        plan: &mut Plan,
        events: impl Iterator<Item = (Event, u64)>,
        router: &mut Router,
        pin: &Guard,
    ) {
        if !plan.opened.is_empty() {
            self.make_room(ring, plan, pin);
        }
        let mut opened = std::mem::take(&mut plan.opened).into_iter();
        let mut closed = std::mem::take(&mut plan.closed).into_iter();
        let giant = if plan.giant { self.base } else { 0 };
        for (at, (event, bytes)) in events.enumerate() {
            while event.sequence >= self.newest().limit() {
                let (Some((token, summary)), Some(len)) = (opened.next(), closed.next()) else { break };
                self.open(ring, token, summary, len, giant, pin);
            }
            let seq = event.sequence;
            let RingWriter { live, summary, .. } = self;
            let segment = live.back().expect("never empty").token.segment();
            segment.write(event, bytes);
            summary.add((seq - segment.base()) as u32, segment.event(seq), |slot| {
                segment.event(segment.base() + u64::from(slot))
            });
            router.link(segment, seq, at);
        }
        self.fill = plan.fill;
        self.current_bytes = plan.bytes;
    }

    /// Evicts what the new segments displace, and puts a new directory in place where one is due.
    fn make_room(&mut self, ring: &Ring, plan: &mut Plan, pin: &Guard) {
        for _ in 0..plan.evicted {
            self.evict(ring, pin);
        }
        if let Some(directory) = plan.directory.take() {
            self.directory_size = directory.entries.len() as u64;
            for live in &self.live {
                let segment = live.token.segment();
                directory.entry(segment.base() / ring.slots).store(segment.as_ptr().cast_mut(), Release);
            }
            ring.directory.replace(directory, pin);
        }
    }

    fn evict(&mut self, ring: &Ring, pin: &Guard) {
        let Some(oldest) = self.live.pop_front() else { return };
        let segment = oldest.token.segment();
        let base = segment.base();
        let next = self.live.front().map_or(segment.limit(), |live| live.token.segment().base());
        // The events that leave; in the present history they raise `oldest`.
        let present = ring.history(pin).at(u64::MAX);
        let end = segment.end(ring.head.load(Relaxed));
        if end > base && end > present.since_seq {
            let left = segment.event(end - 1).revision;
            let oldest = ring.oldest_revision.load(Relaxed).max(left + 1);
            ring.oldest_revision.store(oldest, Release);
        }
        // Release, before the entry changes and before anything is retired: a reader that looks
        // after its root learns that its head has left the window.
        ring.oldest_seq.store(next, Release);
        ring.directory.load(pin).entry(base / ring.slots).store(ptr::null_mut(), Release);
        let token = oldest.token;
        reclaim::retire(pin, Box::new(move || drop(token)));
    }

    fn open(&mut self, ring: &Ring, token: TokenRef, fresh: Box<Summary>, closed: u64, giant: u64, pin: &Guard) {
        let summary = std::mem::replace(&mut self.summary, fresh);
        let before = self.live.back().expect("never empty");
        before.token.segment().close(closed as u32, summary);
        // Linked before the first write into it: whoever holds token k holds k+1.
        before.token.link(token.clone());
        let segment = token.segment();
        // Release: partner of the load in `entry`.
        let entry = ring.directory.load(pin);
        entry.entry(segment.base() / ring.slots).store(segment.as_ptr().cast_mut(), ord!(Entry, Release));
        self.base = segment.base();
        self.live.push_back(Live { token, giant });
    }

    /// Keeps a forgotten slot with the newest segment.
    pub(crate) fn keep_forgotten(&self, slot: crate::data::key_value::SlotPtr) {
        self.newest().keep_forgotten(slot);
    }

    /// Commit, step 3: one store makes everything of the revision visible; then the token.
    pub(crate) fn publish_head(&mut self, ring: &Ring, pin: &Guard) {
        // Release: partner of `head`.
        ring.head.store(self.base + self.fill, ord!(Head, Release));
        if self.token_base != self.base {
            self.token_base = self.base;
            let newest = &self.live.back().expect("never empty").token;
            // After the head: a token k+1 with a head in k would hold too little.
            ring.token.replace(Box::new(newest.clone()), pin);
        }
    }

    /// Commit, step 4. Release: partner of [`Ring::progress`].
    pub(crate) fn set_progress(&self, ring: &Ring, position: Position) {
        ring.progress.store(progress_word(position), ord!(Progress, Release));
    }

    pub(crate) fn set_oldest_revision(&self, ring: &Ring, revision: u64) {
        ring.oldest_revision.store(revision, Release);
    }

    /// Publishes the epochs, before the head that covers the newest mark.
    pub(crate) fn set_history(&self, ring: &Ring, history: Box<History>, pin: &Guard) {
        // The end of the bracket: a batch that begins inside it must see that mark too.
        let mark = if history.turns.is_empty() { 0 } else { self.base + self.fill - 1 };
        ring.history.replace(history, pin);
        // Release: partner of `newest_mark`, which is read after head.
        ring.newest_mark.store(mark, Release);
    }

    /// Bytes of the newest segment that are not in the cache's sum yet.
    pub(crate) fn untold_bytes(&self) -> u64 {
        self.newest().untold()
    }

    /// Window now: segments, for the statistics.
    pub(crate) fn segments_live(&self) -> usize {
        self.live.len()
    }
}

/// Cuts a run of events so that it does not end inside a revision, unless the revision is longer
/// than the run: then all of it, and `true` for CONTINUES.
pub(crate) fn cut_at_revision(events: &[Event], max: usize) -> (usize, bool) {
    let mut end = events.len().min(max);
    if end == 0 || events[end - 1].flags & flags::LAST != 0 {
        return (end, false);
    }
    let all = end;
    while end > 0 && events[end - 1].flags & flags::LAST == 0 {
        end -= 1;
    }
    if end == 0 { (all, true) } else { (end, false) }
}

/// The sequence numbers of `segment` from `cursor` below `head`.
pub(crate) fn run_of(segment: &Segment, cursor: u64, head: u64) -> Range<u64> {
    cursor..segment.end(head).max(cursor)
}
