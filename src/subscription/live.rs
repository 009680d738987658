//! Events of the log: by view where nothing is filtered, by scan, or by the chain of a bucket.

#![forbid(unsafe_code)]

use super::{Floor, Halt, Look, Loss, Step, Subscription};
use crate::batch::{Batch, Own};
use crate::cache::Inner;
use crate::error::{Code, Error, say};
use crate::event::{Event, Kind, Phase, Position, ResyncReason, flags};
use crate::log::ring::{Place, cut_at_revision, progress_of, run_of};
use crate::log::segment::SegmentRef;
use crate::reclaim;
use crate::route::bucket::{Bucket, Request};
use crate::sync::Relaxed;
use std::sync::Arc;

/// Which way a subscription reads the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route {
    /// Every event of the log, or of the segments that could hold one of its own.
    Scan,
    /// Only the events of one bucket of this index.
    Chain {
        /// The index, as declared: `key`, `prefix of depth 3`, `field phase`, `label app`.
        index: String,
    },
}

/// What a subscription did so far, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriptionStats {
    /// Which way it reads now.
    pub route: Route,
    /// Events that it looked at.
    pub looked_at: u64,
    /// Events of the log that it passed over unseen: not of its bucket, or in a segment that the
    /// summary ruled out.
    pub skipped: u64,
    /// Events and marks that it handed out.
    pub handed_out: u64,
    /// Times that it lost events.
    pub lagged: u64,
    /// Keys that it remembers as shown (policies Resnapshot and Conflate).
    pub shown_keys: u64,
    /// Bytes of that memory.
    pub shown_bytes: u64,
}

/// Sequence numbers that a cursor collects before it scans instead.
const LINKS: usize = 1024;

/// How a subscription finds its events.
#[derive(Default)]
pub(super) struct Reader {
    way: Way,
    links: Option<Box<Links>>,
    /// Too dense for collecting: scans until here.
    scan_to: u64,
    looked: u64,
    skipped: u64,
    pub(super) handed: u64,
    pub(super) lagged: u64,
}

/// Collected from the chain.
struct Links {
    /// Newest first.
    seqs: Vec<u64>,
    /// The head that they were collected under.
    to: u64,
}

#[derive(Default)]
enum Way {
    #[default]
    Scan,
    Asked(Arc<Request>),
    Chain(Arc<Bucket>),
}

impl Reader {
    /// Takes over the writer's answer.
    #[inline]
    fn settle(&mut self) {
        if let Way::Asked(request) = &self.way
            && let Some(answer) = request.answer()
        {
            self.way = match answer {
                Some(bucket) => Way::Chain(bucket.clone()),
                None => Way::Scan,
            };
        }
    }

    /// What it waits for, beside the scan.
    pub(super) fn request(&self) -> Option<Arc<Request>> {
        match &self.way {
            Way::Asked(request) => Some(request.clone()),
            _ => None,
        }
    }

    /// Gives the bucket back.
    pub(super) fn leave(&mut self, inner: &Inner) {
        if !matches!(std::mem::take(&mut self.way), Way::Scan) {
            inner.requests.left.fetch_add(1, Relaxed);
        }
        self.forget_links();
    }

    pub(super) fn forget_links(&mut self) {
        self.links = None;
    }
}

/// What of a batch is certain: it may have to end at the last border between revisions.
struct Border {
    seq: u64,
    gathered: usize,
    position: Position,
    segment: Option<SegmentRef>,
}

impl Subscription {
    /// Asks for a bucket if the filter fits a declared index.
    pub(super) fn choose_route(&mut self) {
        let inner = &self.shared.inner;
        if !inner.indexes.is_empty()
            && let Some(name) = inner.indexes.bucket_of(&self.matcher)
        {
            self.reader.way = Way::Asked(inner.requests.ask(name));
        }
    }

    /// The bucket, where the chain is complete from the cursor on: no mark and no boundary above it.
    #[inline]
    pub(super) fn chain(&mut self) -> Option<Arc<Bucket>> {
        self.reader.settle();
        let Way::Chain(bucket) = &self.reader.way else { return None };
        let complete = self.cursor >= bucket.boundary() && self.cursor >= self.reader.scan_to && self.floor.is_none();
        complete.then(|| bucket.clone())
    }

    /// The index of the bucket that it reads, if it reads one.
    pub(crate) fn index_name(&self) -> Option<&str> {
        match &self.reader.way {
            Way::Chain(bucket) => Some(self.shared.inner.indexes.name(bucket.name())),
            _ => None,
        }
    }

    /// What it did so far, and which way it reads.
    pub fn stats(&self) -> SubscriptionStats {
        let route = self.index_name().map_or(Route::Scan, |index| Route::Chain { index: index.to_string() });
        SubscriptionStats {
            route,
            looked_at: self.reader.looked,
            skipped: self.reader.skipped,
            handed_out: self.reader.handed,
            lagged: self.reader.lagged,
            shown_keys: self.shown.as_ref().map_or(0, |shown| shown.len()),
            shown_bytes: self.shown.as_ref().map_or(0, |shown| shown.bytes()),
        }
    }

    /// The next batch of events.
    pub(super) fn events(&mut self, look: &Look, max: usize) -> Step<Batch> {
        if self.plain && self.floor.is_none() {
            return self.view(look, max);
        }
        loop {
            let Some(bucket) = self.chain() else { return self.gather(look, max) };
            let links = match self.reader.links.take() {
                Some(links) => *links,
                None => {
                    // After head: what lies below it has its mark here.
                    let mark = self.shared.inner.ring.newest_mark();
                    if mark >= self.cursor && self.cursor < look.head {
                        // No event of a new epoch before its bracket.
                        self.go_to_mark(&bucket, look)?;
                        let to = Look { head: look.head.min(mark + 1), ..*look };
                        let batch = self.gather(&to, max)?;
                        if batch.is_empty() && self.cursor < look.head {
                            continue;
                        }
                        return Ok(batch);
                    }
                    match self.collect(&bucket, look)? {
                        Some(links) => links,
                        // Too dense for a chain.
                        None if self.cursor < look.head => continue,
                        None => return Ok(Batch::empty(self.position)),
                    }
                }
            };
            let batch = self.follow(links, look, max)?;
            if !batch.is_empty() || self.cursor >= look.head {
                return Ok(batch);
            }
        }
    }

    /// Collects the links of a bucket from its newest event back to the cursor. None: there is nothing
    /// new, and the cursor stands at the head; or it stands below, and a scan comes next.
    fn collect(&mut self, bucket: &Bucket, look: &Look) -> Step<Option<Links>> {
        if self.cursor >= look.head {
            return Ok(None);
        }
        let newest = bucket.newest();
        if newest < self.cursor {
            self.reader.skipped += look.head.saturating_sub(self.cursor);
            self.pass_to_head(look);
            return Ok(None);
        }
        let mut links = Vec::new();
        let mut hand = self.segment.take();
        let lowest = self.walk_back(bucket, newest, look, &mut hand, |seq| {
            if links.len() <= LINKS {
                links.push(seq);
            }
        })?;
        if links.len() > LINKS {
            // Too dense: a scan costs less than the memory. Nothing of it lies before the lowest.
            self.cursor = lowest;
            self.segment = None;
            self.reader.scan_to = look.head;
            return Ok(None);
        }
        self.segment = hand;
        if links.is_empty() {
            self.reader.skipped += look.head.saturating_sub(self.cursor);
            self.pass_to_head(look);
            return Ok(None);
        }
        Ok(Some(Links { seqs: links, to: look.head }))
    }

    /// Nothing of its own up to the head.
    fn pass_to_head(&mut self, look: &Look) {
        self.cursor = self.cursor.max(look.head);
        self.segment = None;
        self.reach(look);
    }

    /// Everything up to the head was looked at.
    fn reach(&mut self, look: &Look) {
        let progress = progress_of(look.progress, self.position.epoch);
        self.position.revision = self.position.revision.max(progress);
        // Closed by its owner: no progress beyond, so the event below the end says how far it came.
        if look.progress == 0
            && let Place::At(segment) = self.shared.inner.ring.place(look.head - 1, &reclaim::pin())
        {
            self.position.revision = self.position.revision.max(segment.event(look.head - 1).revision);
        }
    }

    /// Collects, and keeps the links for the polls to come.
    pub(super) fn collect_ahead(&mut self, bucket: &Bucket, look: &Look) -> Step<()> {
        self.reader.links = self.collect(bucket, look)?.map(Box::new);
        Ok(())
    }

    /// Visits the events of a bucket from `newest` back to the cursor; the lowest, or the head.
    fn walk_back(
        &self,
        bucket: &Bucket,
        newest: u64,
        look: &Look,
        hand: &mut Option<SegmentRef>,
        mut each: impl FnMut(u64),
    ) -> Step<u64> {
        let (mut at, mut lowest) = (newest, look.head);
        while at >= self.cursor {
            let segment = self.segment_of(at, hand)?;
            let Some(before) = segment.before(at, bucket.id()) else { return Err(self.broken_chain(at).into()) };
            // Above the head: followed, not delivered.
            if at < look.head {
                each(at);
                lowest = at;
            }
            at = before;
        }
        Ok(lowest)
    }

    /// Before a scan over the newest mark: up to its own next event, or to the next mark, a chain has
    /// nothing to lose.
    pub(super) fn go_to_mark(&mut self, bucket: &Bucket, look: &Look) -> Step<()> {
        let newest = bucket.newest();
        let own =
            if newest < self.cursor { look.head } else { self.walk_back(bucket, newest, look, &mut None, |_| {})? };
        let pin = reclaim::pin();
        let turns = &self.shared.inner.ring.history(&pin).turns;
        let Some(turn) = turns.iter().find(|turn| turn.end >= self.cursor) else { return Ok(()) };
        // Inside a bracket its end is next.
        let inside = turn.seq < self.cursor;
        let to = if inside { turn.end } else { turn.seq };
        let to = to.min(own);
        if to >= look.head {
            self.pass_to_head(look);
            return Ok(());
        }
        if to == turn.seq {
            self.position.revision = self.position.revision.max(turn.from);
        }
        if to > self.cursor {
            self.cursor = to;
            self.segment = None;
        }
        Ok(())
    }

    fn broken_chain(&self, at: u64) -> Error {
        Error::new(
            Code::Internal,
            format!("subscription: the event {at} has no link of its bucket. Report this as a bug."),
        )
    }

    /// The segment of a sequence number, by the hand if it is there.
    fn segment_of<'a>(&self, seq: u64, hand: &'a mut Option<SegmentRef>) -> Step<&'a SegmentRef> {
        let base = self.shared.inner.ring.base_of(seq);
        if hand.as_ref().is_none_or(|held| held.base() != base) {
            *hand = match self.shared.inner.ring.place(seq, &reclaim::pin()) {
                Place::At(segment) => Some(segment),
                Place::Skip(_) | Place::Lapped => return Err(Halt::Lost(self.loss())),
            };
        }
        hand.as_ref().ok_or_else(|| Halt::Lost(self.loss()))
    }

    /// Hands out the events of the collected links.
    fn follow(&mut self, mut collected: Links, look: &Look, max: usize) -> Step<Batch> {
        let mut own = Own::default();
        let links = &mut collected.seqs;
        let mut at = links.len();
        // Before the first event of a revision: links left, gathered, position.
        let mut border = (at, 0usize, self.position);
        let mut revision = 0;
        let mut continues = false;
        let mut shown = Vec::new();
        let mut hand = self.segment.take();
        let mut counted = u64::MAX;
        let started = self.cursor;
        while at > 0 {
            let seq = links[at - 1];
            let segment = match self.segment_of(seq, &mut hand) {
                Ok(segment) => segment,
                Err(halt) if own.events.is_empty() => return Err(halt),
                // What was gathered is handed out first, whole revisions if there are any.
                Err(_) => {
                    if own.events.last().is_some_and(|last| last.flags & flags::LAST != 0) {
                        self.position.revision = revision;
                    } else if border.1 > 0 {
                        own.events.truncate(border.1);
                        (at, self.position) = (border.0, border.2);
                    } else {
                        continues = true;
                    }
                    break;
                }
            };
            let event = segment.event(seq);
            if event.revision != revision {
                // Nothing of its own lies between.
                self.position.revision = self.position.revision.max(event.revision - 1);
                border = (at, own.events.len(), self.position);
                revision = event.revision;
            }
            self.reader.looked += 1;
            if let Some(kind) = self.matcher.transition(event) {
                if self.matcher.shows(kind) {
                    let fifth = counted != segment.base() && own.segments.len() == 4;
                    let goes_on = self.whole_revisions && border.1 == 0 && !own.events.is_empty();
                    if (own.events.len() >= max || fifth) && !goes_on {
                        if border.1 > 0 {
                            own.events.truncate(border.1);
                            (at, self.position) = (border.0, border.2);
                        } else {
                            continues = own.events.last().is_some_and(|last| last.revision == revision);
                        }
                        break;
                    }
                    if counted != segment.base() {
                        counted = segment.base();
                        own.segments.push(segment.clone());
                    }
                    let (event, gone) = self.matcher.shown(event, kind);
                    own.events.push(event);
                    own.versions.extend(gone);
                }
                if self.shown.is_some() {
                    shown.push((at, kind, seq));
                }
            }
            at -= 1;
        }
        // What went back over the border was not shown.
        for (link, kind, seq) in shown {
            if link > at {
                let segment = self.segment_of(seq, &mut hand)?.clone();
                self.note(kind, segment.event(seq));
            }
        }
        self.cursor = match at {
            0 => {
                if revision != 0 && !continues {
                    self.position.revision = revision;
                }
                collected.to
            }
            _ => links[at - 1],
        };
        links.truncate(at);
        self.reader.links = (at > 0).then(|| Box::new(collected));
        self.segment = hand.filter(|held| held.base() == self.shared.inner.ring.base_of(self.cursor));
        self.reader.skipped += (self.cursor - started).saturating_sub(own.events.len() as u64);
        if self.cursor >= look.head && !continues {
            self.reach(look);
        }
        Ok(Batch::own(own, continues, self.position))
    }

    /// Puts the segment of the cursor into the hand, from the directory if it is not there yet.
    /// False: the cursor moved on to the next segment, look again.
    #[inline]
    fn hold(&mut self) -> Step<bool> {
        let base = self.shared.inner.ring.base_of(self.cursor);
        if self.segment.as_ref().is_some_and(|held| held.base() == base) { Ok(true) } else { self.fetch() }
    }

    #[cold]
    fn fetch(&mut self) -> Step<bool> {
        self.segment = None;
        match self.shared.inner.ring.place(self.cursor, &reclaim::pin()) {
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

    /// The cursor's segment has left: a loss, unless all that left was to be dropped, or nothing of it
    /// was this chain's.
    fn lapped(&mut self) -> Step<bool> {
        let Some(floor) = &self.floor else { return Err(Halt::Lost(self.loss())) };
        let asked = floor.revision;
        let inner = &self.shared.inner;
        let pin = reclaim::pin();
        let oldest = inner.ring.oldest_seq();
        let Place::At(segment) = inner.ring.place(oldest, &pin) else { return Ok(false) };
        let history = inner.ring.history(&pin);
        let look = self.look();
        // Of the resets that left at least the newest is known.
        let reset = history.turns.iter().find(|turn| turn.resets() && turn.seq >= self.cursor && turn.seq < oldest);
        if let Some(turn) = reset {
            // Who had reached it was to be told of the reset.
            let closed = look.closed && turn.seq >= look.head;
            if turn.highest_before > asked || (turn.highest_before == asked && !closed) {
                return Err(Halt::Lost(self.loss()));
            }
            if closed {
                self.cursor = look.head;
                return Ok(false);
            }
            return Err(say::future("subscribe after", asked, turn.to).into());
        }
        // What left lies below the first event that is there.
        let left = if oldest < inner.ring.head() {
            let first = segment.event(oldest);
            match first.resync() {
                Some(mark) if mark.phase == Phase::Begin => mark.from,
                _ => first.revision - u64::from(first.flags & flags::FIRST != 0),
            }
        } else {
            inner.ring.oldest_revision() - 1
        };
        if left > asked {
            return Err(Halt::Lost(self.loss()));
        }
        self.position.epoch = history.at(oldest).epoch;
        self.cursor = oldest;
        drop(pin);
        if !self.remember(oldest) {
            return Err(Halt::Lost(self.loss()));
        }
        Ok(false)
    }

    /// The segment as an owned count, for loops that change the subscription meanwhile.
    pub(super) fn segment(&mut self) -> Step<Option<SegmentRef>> {
        Ok(if self.hold()? { self.segment.clone() } else { None })
    }

    /// Unfiltered: a run of one segment, nothing copied.
    fn view(&mut self, look: &Look, max: usize) -> Step<Batch> {
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
            if self.shared.inner.ring.newest_mark() >= run.start
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
            self.reader.looked += count as u64;
            let segment = segment.clone();
            if self.shown.is_some() {
                segment.view(run.start..end).iter().for_each(|event| self.note(event.kind, event));
            }
            return Ok(Batch::view(segment, run.start..end, continues, self.position));
        }
        Ok(Batch::empty(self.position))
    }

    /// Filtered: a compact array of the events that pass, from at most four segments.
    fn gather(&mut self, look: &Look, max: usize) -> Step<Batch> {
        let mut own = Own::default();
        let mut border = Border { seq: self.cursor, gathered: 0, position: self.position, segment: None };
        let first = self.cursor;
        let mut continues = false;
        // What is remembered as shown, once it is sure to be handed out.
        let mut noted: Vec<(Kind, u64, SegmentRef)> = Vec::new();
        'segments: while self.cursor < look.head {
            let segment = match self.segment() {
                Ok(Some(segment)) => segment,
                Ok(None) => continue,
                // What was gathered is handed out first; the next poll tells the loss.
                Err(error) if own.events.is_empty() => {
                    self.note_all(noted, u64::MAX);
                    return Err(error);
                }
                Err(error) => {
                    let inside = own.events.last().is_some_and(|last| last.flags & flags::LAST == 0);
                    if inside && border.position == self.position {
                        // The rest of the revision is lost.
                        if border.gathered > 0 {
                            own.events.truncate(border.gathered);
                            (self.cursor, self.position) = (border.seq, border.position);
                            self.segment = border.segment;
                        } else if self.whole_revisions {
                            // Not handed out, so not shown.
                            (self.cursor, self.position) = (border.seq, border.position);
                            self.note_all(noted, border.seq);
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
            if self.passes_over(&segment, look) {
                continue;
            }
            let mut counted = false;
            for event in segment.view(run) {
                if event.sequence == first && event.flags & flags::SYNTHETIC == 0 {
                    // The notifier may have moved the cursor: all before this revision was looked at.
                    let before = event.resync().map_or_else(|| event.revision - 1, |mark| mark.from);
                    self.position.revision = self.position.revision.max(before);
                    border.position = self.position;
                }
                if event.flags & flags::FIRST != 0 {
                    (border.seq, border.gathered, border.position) = (event.sequence, own.events.len(), self.position);
                    if border.segment.as_ref().is_none_or(|held| held.base() != segment.base()) {
                        border.segment = Some(segment.clone());
                    }
                }
                self.reader.looked += 1;
                let kind = match self.passes(event) {
                    Ok(kind) => kind,
                    // What was gathered is handed out first; the next poll tells the end.
                    Err(_) if !own.events.is_empty() => break 'segments,
                    Err(halt) => {
                        self.note_all(noted, u64::MAX);
                        return Err(halt);
                    }
                };
                if let Some(kind) = kind {
                    if kind == Kind::Resync || self.matcher.shows(kind) {
                        let fifth = !counted && own.segments.len() == 4;
                        if (own.events.len() >= max || fifth) && !self.gathers_on(event, &border, own.events.len()) {
                            if border.gathered > 0 {
                                own.events.truncate(border.gathered);
                                (self.cursor, self.position) = (border.seq, border.position);
                                // Its count is kept: what was within reach does not get lost.
                                self.segment = border.segment;
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
                        let (event, gone) = self.matcher.shown(event, kind);
                        own.events.push(event);
                        own.versions.extend(gone);
                    }
                    if self.shown.is_some() {
                        noted.push((kind, event.sequence, segment.clone()));
                    }
                }
                self.move_over(event);
            }
        }
        self.note_all(noted, self.cursor);
        if self.segment.as_ref().is_some_and(|held| held.base() != self.shared.inner.ring.base_of(self.cursor)) {
            self.segment = None;
        }
        Ok(Batch::own(own, continues, self.position))
    }

    /// Remembers what lies below the cursor as shown.
    fn note_all(&mut self, noted: Vec<(Kind, u64, SegmentRef)>, below: u64) {
        for (kind, seq, segment) in noted {
            if seq < below {
                self.note(kind, segment.event(seq));
            }
        }
    }

    /// Moves over a whole segment that holds nothing for this filter.
    fn passes_over(&mut self, segment: &SegmentRef, look: &Look) -> bool {
        let whole = self.cursor == segment.base() && look.head >= segment.limit() && self.floor.is_none();
        if !whole || !segment.is_of_no_use_to(&self.matcher) {
            return false;
        }
        let end = segment.end(look.head);
        self.reader.skipped += end - segment.base();
        // It begins and ends with whole revisions, and holds no mark.
        self.position.revision = segment.event(end - 1).revision;
        self.cursor = segment.limit();
        self.segment = None;
        true
    }

    /// With whole revisions a batch goes on to the end of the revision that it is in.
    fn gathers_on(&self, event: &Event, border: &Border, gathered: usize) -> bool {
        self.whole_revisions && border.gathered == 0 && gathered > 0 && event.flags & flags::FIRST == 0
    }

    pub(super) fn move_over(&mut self, event: &Event) {
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

    /// What an event is to this subscription: filter, floor and the wish to stop at a resync.
    pub(super) fn passes(&mut self, event: &Event) -> Step<Option<Kind>> {
        if self.floor.is_some() || (self.stop_on_resync && event.kind == Kind::Resync) {
            return self.passes_slowly(event);
        }
        Ok(self.matcher.transition(event))
    }

    /// A start of the future is no longer ahead once everything up to it was looked at.
    pub(super) fn pass_floor(&mut self, revision: u64) {
        if self.floor.as_ref().is_some_and(|floor| floor.revision <= revision) {
            self.floor = None;
        }
    }

    #[cold]
    fn passes_slowly(&mut self, event: &Event) -> Step<Option<Kind>> {
        let resync = event.resync();
        if let (Some(floor), Some(mark)) = (&self.floor, &resync) {
            let asked = floor.revision;
            if mark.from >= asked {
                // The cache was there before: it waits no more.
                self.floor = None;
            } else if mark.reason == ResyncReason::HistoryReset || mark.to <= mark.from {
                return Err(say::future("subscribe after", asked, mark.to).into());
            } else if asked < mark.to {
                let (oldest, current) = self.shared.inner.window();
                let revision = mark.from.max(self.position.revision);
                let before = Position { epoch: self.position.epoch, revision };
                return Err(Halt::Lost(Loss {
                    from: asked + 1,
                    to: mark.to,
                    oldest,
                    current: current.revision,
                    seq: event.sequence,
                    before,
                    initial: false,
                }));
            }
        }
        if let Some(floor) = &self.floor {
            if event.revision <= floor.revision {
                // Dropped, and yet part of the state at the start.
                if let Some(kind) = self.matcher.transition(event) {
                    self.note(kind, event);
                }
                return Ok(None);
            }
            self.floor = None;
        }
        if self.stop_on_resync
            && let Some(mark) = resync
        {
            return Err(resynced(mark.to, mark.reason.name(), self.position).into());
        }
        Ok(self.matcher.transition(event))
    }

    /// Whether the collected links hold something to hand out; passes over what they do not.
    pub(super) fn links_match(&mut self, look: &Look) -> Step<bool> {
        let mut hand = self.segment.take();
        while let Some(seq) = self.reader.links.as_ref().and_then(|links| links.seqs.last().copied()) {
            let segment = self.segment_of(seq, &mut hand)?.clone();
            let event = segment.event(seq);
            if self.matcher.matches(event) {
                self.segment = Some(segment);
                return Ok(true);
            }
            if let Some(kind) = self.matcher.transition(event) {
                self.note(kind, event);
            }
            self.reader.looked += 1;
            if let Some(links) = &mut self.reader.links {
                links.seqs.pop();
            }
            self.cursor = seq + 1;
        }
        let to = self.reader.links.take().map_or(0, |links| links.to);
        self.cursor = self.cursor.max(to);
        if self.cursor >= look.head {
            self.reach(look);
        }
        Ok(false)
    }

    pub(super) fn has_links(&self) -> bool {
        self.reader.links.is_some()
    }
}

pub(super) fn resynced(to: u64, reason: &str, position: Position) -> Error {
    Error::new(
        Code::Resynced,
        format!(
            "subscription: the history was replaced at revision {to} ({reason}); it asked to stop there. Subscribe again from State."
        ),
    )
    .with_current(to)
    .with_position(position)
}

impl Floor {
    pub(super) fn ticket(&self) -> Option<u64> {
        self.ticket
    }
}
