//! A batch: the events of one poll, and what keeps them alive.
//!
//! A batch is either a view into one segment, which owns what its events point to, or an [`OwnedEvents`]: events
//! of its own beside the segments and key-values that they point into. Only [`OwnedEvents`] puts events into
//! one, and each call that does brings what keeps them.

mod builder;

pub(crate) use builder::BatchBuilder;

use crate::data::event::{Event, Kind, LogEvent, Mark};
use crate::data::key_value::{KeyValue, VersionPtr};
use crate::heap;
use crate::log::found::Versions;
use crate::log::segment::SegmentRef;
use crate::position::Position;
use std::ops::Range;

/// The events delivered by one poll, in order.
///
/// Owned, Send, Sync and 'static: it may be kept, moved and dropped on any thread, also after the
/// subscription and the cache are gone. Without a filter a batch is a view into the log, and
/// keeps one segment of it alive, filtered at most four, or all in which its one revision lies where whole revisions were
/// asked for. A batch of an initial state keeps its key-values, as a [`Page`](crate::Page) does, and nothing of the log that is not in the window.
///
/// ```
/// use watchcore::{Cache, Change, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut subscription = cache.subscribe(Start::Now).open()?;
/// cache.writer()?.apply(4, [Change::put("/a", "1"), Change::put("/b", "2")])?;
/// let batch = subscription.poll(64)?;
/// drop((subscription, cache)); // the batch keeps what it shows
/// for event in &batch {
///     println!("{} {:?}", event.revision(), event.key());
/// }
/// assert_eq!((batch.len(), batch.position().revision, batch.continues()), (2, 4, false));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Default)]
pub struct Batch {
    body: Body,
    continues: bool,
    position: Position,
}

#[derive(Default)]
enum Body {
    #[default]
    Empty,
    View(SegmentRef, Range<u64>),
    Owned(Box<OwnedEvents>),
}

/// How many events of an initial state before its turn a version is fetched: they lie anywhere in memory.
const AHEAD: usize = 32;

/// Events in the batch's own memory, and what they point to.
#[derive(Default)]
struct OwnedEvents {
    events: Vec<LogEvent>,
    segments: Vec<SegmentRef>,
    versions: Vec<KeyValue>,
    /// The key-values of an initial state.
    state: Option<Versions>,
}

impl OwnedEvents {
    /// Number of events.
    fn len(&self) -> usize {
        self.events.len()
    }

    #[inline]
    fn events(&self) -> &[Event] {
        // SAFETY: I9: each event came with what keeps it, which goes when the events go.
        unsafe { Event::of_log(&self.events) }
    }

    /// Whether an event of this segment would be from a fifth: a batch keeps at most four alive, but for one revision that is
    /// wanted whole.
    fn is_full_for(&self, segment: &SegmentRef) -> bool {
        self.segments.len() == 4 && !self.holds(segment)
    }

    fn holds(&self, segment: &SegmentRef) -> bool {
        self.segments.last().is_some_and(|last| last.as_ptr() == segment.as_ptr())
    }

    /// An event of the log, delivered as `kind`. `instead` is the key-value that it has in place of its own.
    fn push_logged(&mut self, segment: &SegmentRef, seq: u64, kind: Kind, instead: Option<KeyValue>) {
        let mut event = *segment.event(seq).log();
        if !self.holds(segment) {
            self.segments.push(segment.clone());
        }
        event.kind = kind;
        if let Some(kv) = instead {
            event.kv = kv.pointer();
            self.versions.push(kv);
        }
        self.events.push(event);
    }

    /// An event that is in no log, or not in this form.
    fn push_made(&mut self, made: Made, kv: KeyValue, prev: Option<KeyValue>) {
        let prev_at = prev.as_ref().map_or(VersionPtr::NULL, KeyValue::pointer);
        let event = LogEvent { kv: kv.pointer(), prev: prev_at, ..made.into_event() };
        self.versions.push(kv);
        self.versions.extend(prev);
        self.events.push(event);
    }

    /// Events that are in no log, of versions that are kept together. Once a batch.
    fn push_state(&mut self, versions: Versions, made: impl Fn(&KeyValue) -> Made) {
        let all = versions.all();
        if all.is_empty() {
            return;
        }
        debug_assert!(self.state.is_none(), "one state a batch");
        self.events.extend(all.iter().enumerate().map(|(at, kv)| {
            if let Some(later) = all.get(at + AHEAD) {
                later.pointer().prefetch_early();
            }
            // The consumer will read the values: the beginning of each is fetched while the batch is made.
            heap::prefetch_early(kv.value().unwrap_or_default().as_ptr());
            LogEvent { kv: kv.pointer(), ..made(kv).into_event() }
        }));
        self.state = Some(versions);
    }

    /// A bookmark, or a mark of a resync.
    fn push_mark(&mut self, mark: Mark) {
        self.events.push(mark.into_event());
    }

    /// Drops all but the first `len` events; what kept them is released with the batch.
    fn truncate(&mut self, len: usize) {
        self.events.truncate(len);
    }
}

/// The numbers of an event that is made for one batch.
pub(crate) struct Made {
    pub(crate) kind: Kind,
    pub(crate) revision: u64,
    pub(crate) sequence: u64,
    pub(crate) flags: u32,
    pub(crate) edges: u32,
}

impl Made {
    /// The event without its key-values yet.
    #[inline]
    fn into_event(self) -> LogEvent {
        LogEvent::of_change(self.revision, self.sequence, self.kind, self.flags, self.edges)
    }
}

impl Batch {
    pub(crate) fn empty(position: Position) -> Batch {
        Batch { body: Body::Empty, continues: false, position }
    }

    pub(crate) fn view(segment: SegmentRef, seqs: Range<u64>, continues: bool, position: Position) -> Batch {
        Batch { body: Body::View(segment, seqs), continues, position }
    }

    fn own(own: OwnedEvents, continues: bool, position: Position) -> Batch {
        Batch {
            body: if own.events.is_empty() { Body::Empty } else { Body::Owned(Box::new(own)) },
            continues,
            position,
        }
    }

    /// The events, in order.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use watchcore::{Cache, Change, Kind, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// let mut all = cache.subscribe(Start::After(0)).open()?;
    /// writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
    /// writer.apply(2, [Change::delete("/a"), Change::put("/b", "2")])?;
    /// let mut copy = BTreeMap::new();
    /// for event in all.poll(64)?.events() {
    ///     match event.kind() {
    ///         Kind::Added | Kind::Modified => _ = copy.insert(event.key().to_vec(), event.value().map(Vec::from)),
    ///         Kind::Deleted => _ = copy.remove(event.key()),
    ///         _ => {} // a mark: it has no key
    ///     }
    /// }
    /// assert_eq!(copy.keys().collect::<Vec<_>>(), [b"/b"]);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    #[inline]
    pub fn events(&self) -> &[Event] {
        match &self.body {
            Body::Empty => &[],
            Body::View(segment, seqs) => segment.view(seqs.clone()),
            Body::Owned(own) => own.events(),
        }
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.events().len()
    }

    /// Whether there is none: nothing new now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it ends inside a revision: that is longer than an eighth of a segment or than the
    /// asked maximum, and continues in the next batch. An empty one that continues is a part of an initial state, see
    /// [`SubscribeBuilder::initial_batch_bytes`](crate::SubscribeBuilder::initial_batch_bytes).
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut all = cache.subscribe(Start::Now).open()?;
    /// cache.writer()?.apply(4, [Change::put("/a", "1"), Change::put("/b", "1"), Change::put("/c", "1")])?;
    /// let begin = all.poll(2)?;
    /// assert_eq!((begin.len(), begin.continues(), begin.position().revision), (2, true, 0), "4 is not whole yet");
    /// let end = all.poll(2)?;
    /// assert_eq!((end.len(), end.continues(), end.position().revision), (1, false, 4));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn continues(&self) -> bool {
        self.continues
    }

    /// The position after it: every match up to and with that revision was delivered. Resume there.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The parts, for the C ABI. The owner word is released through [`RawBatch::release`].
    pub(crate) fn into_raw_parts(self) -> RawBatch {
        let len = self.len();
        // Not where an empty slice of Rust lies, which is no address: see `watchcore_batch` in the C ABI.
        let events = if len == 0 { std::ptr::null() } else { self.events().as_ptr() };
        let keeps_state = matches!(&self.body, Body::Owned(own) if own.state.is_some());
        let owner = match self.body {
            Body::Empty => 0,
            // Both pointers are aligned: bit 0 says which it is.
            Body::View(segment, _) => segment.into_raw() as usize | 1,
            Body::Owned(own) => Box::into_raw(own) as usize,
        };
        RawBatch { events, len, owner, continues: self.continues, keeps_state, position: self.position }
    }
}

/// The parts of a batch.
#[derive(Clone, Copy, Debug)]
pub struct RawBatch {
    /// The first event; null where there is none.
    pub events: *const Event,
    /// How many there are.
    pub len: usize,
    /// The owner that keeps the events alive; 0: nothing is held.
    pub owner: usize,
    /// The batch ends inside a revision.
    pub continues: bool,
    /// The batch keeps key-values of an initial state.
    pub keeps_state: bool,
    /// The position after it.
    pub position: Position,
}

impl RawBatch {
    /// Releases what the owner word stands for.
    ///
    /// # Safety
    ///
    /// `owner` is from [`Batch::into_raw_parts`], and is released once.
    pub(crate) unsafe fn release(owner: usize) {
        // SAFETY: I9: an owner word has the batch's count; bit 0 says which kind of pointer it is (`# Safety`).
        unsafe {
            if owner & 1 == 1 {
                drop(SegmentRef::from_raw((owner & !1) as *const _));
            } else {
                drop_boxed::<OwnedEvents>(owner);
            }
        }
    }
}

/// Drops a box that [`Batch::into_raw_parts`] turned into a word; 0 is nothing.
///
/// # Safety
///
/// The word is that of a `Box<T>` that was given away, and is dropped once.
unsafe fn drop_boxed<T>(word: usize) {
    if word != 0 {
        // SAFETY: I9: a word that is not 0 came from `Box::into_raw`, and this call alone takes it back (`# Safety`).
        drop(unsafe { Box::from_raw(word as *mut T) });
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;
    fn into_iter(self) -> Self::IntoIter {
        self.events().iter()
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("events", &self.events())
            .field("continues", &self.continues)
            .field("position", &self.position)
            .finish()
    }
}
