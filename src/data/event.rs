//! Kinds and the event: one cache line that Rust, C and Go read in place.
//!
//! The log, the writer and the filters move a [`LogEvent`] about: numbers and addresses, copied freely,
//! that promise nothing. What users see is an [`Event`], the same 64 bytes by a reference that a
//! batch or a segment gives out, and which keeps what the addresses point to. It has no `Clone` and no
//! constructor, so a reference is the only way to have one; a reader that wants to keep it takes an
//! [`OwnedEvent`], which holds its own counts.

use crate::data::key_value::{KeyValue, VersionPtr};
use crate::data::numbered::numbered;
use crate::error::{Result, show};
use std::ops::Deref;

/// What an event says. The numbers are part of the C ABI.
///
/// ```
/// use watchcore::Kind;
///
/// assert_eq!(Kind::Modified.to_string(), "MODIFIED");
/// assert_eq!("modified".parse::<Kind>()?, Kind::Modified);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
#[non_exhaustive]
pub enum Kind {
    /// A key appeared, or came into the filter.
    Added = 1,
    /// The value of a present key changed.
    Modified = 2,
    /// A key went, or left the filter. It has no value; `prev_value` is the last one.
    Deleted = 3,
    /// Everything up to this revision that matches was delivered.
    Bookmark = 4,
    /// The history was replaced: the begin or the end of the difference.
    Resync = 5,
    /// Raw: etcd's PUT.
    Put = 6,
    /// Raw: etcd's DELETE.
    Delete = 7,
}

impl Kind {
    pub(crate) const ALL: &[Kind] =
        &[Kind::Added, Kind::Modified, Kind::Deleted, Kind::Bookmark, Kind::Resync, Kind::Put, Kind::Delete];

    /// What a change is to somebody for whom the key was there before or not, and is there now or not;
    /// `None`: nothing.
    pub(crate) fn of_change(before: bool, now: bool) -> Option<Kind> {
        match (before, now) {
            (false, true) => Some(Kind::Added),
            (true, true) => Some(Kind::Modified),
            (true, false) => Some(Kind::Deleted),
            (false, false) => None,
        }
    }

    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The name as the command line prints it: `ADDED`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Added => "ADDED",
            Kind::Modified => "MODIFIED",
            Kind::Deleted => "DELETED",
            Kind::Bookmark => "BOOKMARK",
            Kind::Resync => "RESYNC",
            Kind::Put => "PUT",
            Kind::Delete => "DELETE",
        }
    }
}

numbered! {
    /// Why a history was replaced.
    ///
    /// ```
    /// use watchcore::ResyncReason;
    ///
    /// assert_eq!(ResyncReason::from_u32(2), Some(ResyncReason::HistoryReset));
    /// assert_eq!(ResyncReason::HistoryReset.name(), "HistoryReset");
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u32)]
    #[non_exhaustive]
    pub enum ResyncReason {
        /// The source compacted what the feeder had not read.
        Compacted = 1,
        /// The source's history went back or is another one (restored backup, other cluster).
        HistoryReset = 2,
        /// An event did not fit the versions before it.
        ChainBroken = 3,
        /// Replaying would have taken longer than listing.
        TooFarBehind = 4,
        /// Somebody asked for it.
        Requested = 5,
        /// One subscription only: it caught up after it had lost events.
        Lagged = 6,
    }
}

impl ResyncReason {
    /// The reason with this number, if there is one.
    pub fn from_u32(number: u32) -> Option<ResyncReason> {
        ResyncReason::with_number(number)
    }

    /// The name as the command line prints it: `HistoryReset`.
    pub fn name(self) -> &'static str {
        self.as_written()
    }
}

/// Which of the two marks of a resync an event is.
///
/// ```
/// use watchcore::{Batch, Phase};
///
/// /// Whether a difference is being delivered behind this batch.
/// fn is_inside(batch: &Batch, before: bool) -> bool {
///     let last = batch.events().iter().rev().find_map(|event| event.resync());
///     last.map_or(before, |mark| mark.phase == Phase::Begin)
/// }
/// assert!(!is_inside(&Batch::default(), false));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The difference follows.
    Begin,
    /// The difference was delivered.
    End,
}

/// The body of a [`Kind::Resync`] event.
///
/// ```
/// use watchcore::{Cache, Change, Kind, Phase, Record, ResyncReason, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// let mut all = cache.subscribe(Start::Now).open()?;
/// let record = Record { key: b"/b", value: b"2", create_revision: 2, mod_revision: 2, version: 1, lease: 0 };
/// writer.resync(4, [record], ResyncReason::Compacted)?;
///
/// let batch = all.poll(10)?;
/// let kinds: Vec<Kind> = batch.events().iter().map(|event| event.kind()).collect();
/// assert_eq!(kinds, [Kind::Resync, Kind::Deleted, Kind::Added, Kind::Resync]);
/// let mark = batch.events()[0].resync().unwrap();
/// assert_eq!((mark.phase, mark.from, mark.to), (Phase::Begin, 1, 4));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Resync {
    /// Begin or end.
    pub phase: Phase,
    /// Why.
    pub reason: ResyncReason,
    /// The new epoch.
    pub epoch: u64,
    /// The last revision applied before.
    pub from: u64,
    /// The revision of the new state.
    pub to: u64,
}

/// Bits of [`Event::flags`].
pub mod flags {
    /// Made by a resync, not by a change at its revision.
    pub const SYNTHETIC: u32 = 1;
    /// Part of the initial state.
    pub const INITIAL_STATE: u32 = 2;
    /// The bookmark at the end of the initial state.
    pub const INITIAL_STATE_END: u32 = 4;
    /// The mark before the events of a resync.
    pub const BEGIN: u32 = 8;
    /// The mark after the events of a resync.
    pub const END: u32 = 16;
}

/// Bits of [`LogEvent::edges`]: whether an event begins or ends its revision in the log. They lie beside the flags, not
/// among them: C and Go read the flags in the log's own slot, so each bit there is one of [`flags`].
pub(crate) mod edges {
    pub(crate) const NONE: u32 = 0;
    pub(crate) const FIRST: u32 = 1;
    pub(crate) const LAST: u32 = 2;
    pub(crate) const BOTH: u32 = FIRST | LAST;
}

/// What a slot of the log has in it: numbers, and the addresses of two key-values.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct LogEvent {
    pub(crate) revision: u64,
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) kv: VersionPtr,
    pub(crate) prev: VersionPtr,
    /// Resync marks only: the last revision before, the new epoch, the reason. Else 0, as C is told.
    pub(crate) from: u64,
    pub(crate) epoch: u64,
    pub(crate) reason: u32,
    /// Bits of [`edges`].
    pub(crate) edges: u32,
}

const _: () = assert!(size_of::<LogEvent>() == 64 && align_of::<LogEvent>() == 64);
const _: () = assert!(size_of::<Event>() == 64 && align_of::<Event>() == 64);

impl LogEvent {
    /// An event of a change that has no key-values yet: what appends it to the log gives it those that it owns.
    #[inline]
    pub(crate) fn of_change(revision: u64, sequence: u64, kind: Kind, flags: u32, edges: u32) -> LogEvent {
        let (kv, prev) = (VersionPtr::NULL, VersionPtr::NULL);
        LogEvent { revision, sequence, kind, flags, kv, prev, from: 0, epoch: 0, reason: 0, edges }
    }
}

/// An event of no key: a bookmark, or one end of a resync. It points to nothing.
pub(crate) struct Mark(LogEvent);

impl Mark {
    pub(crate) fn bookmark(revision: u64, flags: u32) -> Mark {
        Mark(LogEvent::of_change(revision, 0, Kind::Bookmark, flags, edges::NONE))
    }

    pub(crate) fn resync(resync: &Resync, sequence: u64) -> Mark {
        let (flag, edge) = match resync.phase {
            Phase::Begin => (flags::BEGIN, edges::FIRST),
            Phase::End => (flags::END, edges::LAST),
        };
        let event = LogEvent::of_change(resync.to, sequence, Kind::Resync, flag, edge);
        Mark(LogEvent { from: resync.from, epoch: resync.epoch, reason: resync.reason as u32, ..event })
    }

    pub(crate) fn into_event(self) -> LogEvent {
        self.0
    }
}

/// One change of one key, or a mark. 64 bytes, one cache line, the same for Rust, C and Go.
///
/// Without a filter a batch is a view into the log itself, so nothing is copied: an event is always
/// borrowed from its [`crate::Batch`], which keeps its keys and values. To keep one longer, take
/// [`Event::to_owned`], or clone [`Event::kv`]; each costs an increment or two.
///
/// ```
/// use watchcore::{Cache, Change, OwnedEvent, Start};
/// # fn main() -> watchcore::Result<()> {
/// let cache = Cache::builder("/").build()?;
/// let mut changes = cache.subscribe(Start::Now).open()?;
/// cache.writer()?.apply(7, [Change::put("/a", "1")])?;
///
/// let batch = changes.poll(64)?;
/// let kept: Vec<OwnedEvent> = batch.events().iter().map(|event| event.to_owned()).collect();
/// drop((batch, changes, cache));
/// assert_eq!((kept[0].key(), kept[0].value()), (&b"/a"[..], Some(&b"1"[..])));
/// # Ok(())
/// # }
/// ```
///
/// An event is not copied out of its batch:
///
/// ```compile_fail,E0277
/// # fn keep(batch: watchcore::Batch) -> Vec<watchcore::Event> {
/// batch.events().to_vec()
/// # }
/// ```
/// ```compile_fail,E0599
/// # fn keep(batch: watchcore::Batch) -> watchcore::Event {
/// batch.events()[0].clone()
/// # }
/// ```
/// ```compile_fail,E0508
/// # fn keep(batch: watchcore::Batch) -> watchcore::Event {
/// batch.events()[0]
/// # }
/// ```
///
/// nor does a reference outlive the batch:
///
/// ```compile_fail,E0505
/// # fn keep(batch: watchcore::Batch) {
/// let value = batch.events()[0].value();
/// drop(batch);
/// assert!(value.is_some());
/// # }
/// ```
/// ```compile_fail,E0505
/// # fn keep(batch: watchcore::Batch) {
/// let kv = batch.events()[0].kv();
/// drop(batch);
/// assert!(kv.is_some());
/// # }
/// ```
#[repr(transparent)]
pub struct Event(LogEvent);

impl Event {
    /// The events as users see them.
    ///
    /// # Safety
    ///
    /// The key-values that these events point to are held for as long as the slice is borrowed.
    #[inline]
    pub(crate) unsafe fn of_log(events: &[LogEvent]) -> &[Event] {
        // SAFETY: I9: `Event` is transparent, and its key-values are held during the borrow (`# Safety`).
        unsafe { std::slice::from_raw_parts(events.as_ptr().cast::<Event>(), events.len()) }
    }

    /// The event as users see it.
    ///
    /// # Safety
    ///
    /// As [`Event::of_log`].
    #[inline]
    pub(crate) unsafe fn of_one(event: &LogEvent) -> &Event {
        // SAFETY: I9: `Event` is transparent, and its key-values are held during the borrow (`# Safety`).
        unsafe { &*std::ptr::from_ref(event).cast::<Event>() }
    }

    /// Its numbers and addresses, without what keeps the key-values.
    #[inline]
    pub(crate) fn log(&self) -> &LogEvent {
        &self.0
    }

    /// The first event of its revision in the log.
    #[inline]
    pub(crate) fn is_first(&self) -> bool {
        self.0.edges & edges::FIRST != 0
    }

    /// The last event of its revision in the log.
    #[inline]
    pub(crate) fn is_last(&self) -> bool {
        self.0.edges & edges::LAST != 0
    }

    /// Returns an event to keep, which holds its key-values itself. At most two increments; never blocks.
    pub fn to_owned(&self) -> OwnedEvent {
        OwnedEvent { _kv: self.kv().cloned(), _prev: self.prev().cloned(), event: Event(self.0) }
    }

    /// The kind of change or mark.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The revision of the change. An object of the initial state has its own `mod_revision` here.
    #[inline]
    pub fn revision(&self) -> u64 {
        self.0.revision
    }

    /// The place in the log: rises by at least one per event, has gaps, 0 outside the log.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// The bits of [`flags`].
    #[inline]
    pub fn flags(&self) -> u32 {
        self.0.flags
    }

    /// The key; empty in bookmarks and resync marks.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.kv().map_or(&[], KeyValue::key)
    }

    /// The key as text; `None` where it is no UTF-8. O(its length).
    pub fn key_str(&self) -> Option<&str> {
        std::str::from_utf8(self.key()).ok()
    }

    /// The new value; `None` in deletions and marks. A value of length 0 is `Some`.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        self.kv().and_then(KeyValue::value)
    }

    /// The new value as text; `None` in deletions and marks, and where it is no UTF-8. O(its length).
    pub fn value_str(&self) -> Option<&str> {
        self.kv().and_then(KeyValue::value_str)
    }

    /// The value before, if there was one and the log still has it. An event of the difference that follows a loss
    /// ([`OnLag`](crate::OnLag)) has none where the value that the consumer had has left the window.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(1, [Change::put("/a", "")])?;
    /// writer.apply(2, [Change::put("/a", "2")])?;
    /// writer.apply(3, [Change::delete("/a")])?;
    /// let batch = cache.subscribe(Start::After(0)).open()?.poll(10)?;
    /// let before: Vec<_> = batch.events().iter().map(|event| event.prev_value()).collect();
    /// assert_eq!(before, [None, Some(&b""[..]), Some(&b"2"[..])], "no value is not a value of length 0");
    /// assert_eq!(batch.events()[2].value(), None);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    #[inline]
    pub fn prev_value(&self) -> Option<&[u8]> {
        self.prev().and_then(KeyValue::value)
    }

    /// The new key-value; in a deletion the tombstone (the key, no value); `None` in marks.
    #[inline]
    pub fn kv(&self) -> Option<&KeyValue> {
        // SAFETY: a reference to an event is given out only with what keeps its key-values: `of_log`.
        unsafe { self.0.kv.in_place() }
    }

    /// The key-value before.
    #[inline]
    pub fn prev(&self) -> Option<&KeyValue> {
        // SAFETY: a reference to an event is given out only with what keeps its key-values: `of_log`.
        unsafe { self.0.prev.in_place() }
    }

    /// The new value as the cache's decoder understands it: see [`KeyValue::decoded`]. `None` in
    /// deletions and marks.
    pub fn decoded<T: 'static>(&self) -> Result<Option<&T>> {
        self.kv().map_or(Ok(None), KeyValue::decoded)
    }

    /// The value before, decoded; `None` where there is none.
    pub fn prev_decoded<T: 'static>(&self) -> Result<Option<&T>> {
        self.prev().map_or(Ok(None), KeyValue::decoded)
    }

    /// Revision at which the key shown was created; in a deletion the last value's.
    pub fn create_revision(&self) -> u64 {
        self.kv().map_or(0, KeyValue::create_revision)
    }

    /// Revision of the last change of the value shown; in a deletion the last value's.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(3, [Change::put("/a", "1")])?;
    /// writer.apply(9, [Change::delete("/a")])?;
    /// let batch = cache.subscribe(Start::After(3)).open()?.poll(10)?;
    /// let gone = &batch.events()[0];
    /// assert_eq!((gone.revision(), gone.mod_revision()), (9, 3), "deleted at 9, and its value was of 3");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn mod_revision(&self) -> u64 {
        self.kv().map_or(0, KeyValue::mod_revision)
    }

    /// Number of changes since the key was created; in a deletion the last value's.
    pub fn version(&self) -> u64 {
        self.kv().map_or(0, KeyValue::version)
    }

    /// The lease of the value shown, 0 for none.
    pub fn lease(&self) -> i64 {
        self.kv().map_or(0, KeyValue::lease)
    }

    /// Made by a resync, or by what follows a loss ([`OnLag`](crate::OnLag)): not a change at [`Event::revision`],
    /// which is that of the new state.
    pub fn is_synthetic(&self) -> bool {
        self.0.flags & flags::SYNTHETIC != 0
    }

    /// An object of the initial state.
    pub fn is_initial_state(&self) -> bool {
        self.0.flags & flags::INITIAL_STATE != 0
    }

    /// The bookmark after the last object of the initial state.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(3, [Change::put("/b", "1")])?;
    /// writer.apply(7, [Change::put("/a", "1")])?;
    /// let batch = cache.subscribe(Start::State).open()?.poll(10)?;
    /// let seen: Vec<_> = batch.events().iter().map(|event| (event.revision(), event.is_initial_state())).collect();
    /// assert_eq!(seen, [(7, true), (3, true), (7, false)], "by key, each with its own revision; then the bookmark");
    /// assert!(batch.events()[2].ends_initial_state());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn ends_initial_state(&self) -> bool {
        self.0.flags & flags::INITIAL_STATE_END != 0
    }

    /// The body of a resync mark.
    pub fn resync(&self) -> Option<Resync> {
        if self.0.kind != Kind::Resync {
            return None;
        }
        Some(Resync {
            phase: if self.0.flags & flags::BEGIN != 0 { Phase::Begin } else { Phase::End },
            reason: ResyncReason::from_u32(self.0.reason).unwrap_or(ResyncReason::Requested),
            epoch: self.0.epoch,
            from: self.0.from,
            to: self.0.revision,
        })
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.revision(), self.kind().name(), show(self.key()))
    }
}

/// An event that is kept: see [`Event::to_owned`]. Clone, Send, Sync and 'static; it outlives its batch
/// and its cache, and keeps the two key-values that it shows, nothing else of the log: the memory that they lie in, up to
/// 64 KiB each. If you keep a few events for long, copy their bytes.
///
/// ```
/// use watchcore::{Cache, Change, OwnedEvent, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut changes = cache.subscribe(Start::Now).open()?;
/// cache.writer()?.apply(1, [Change::put("/a", "1")])?;
/// let last: Option<OwnedEvent> = changes.poll(10)?.events().last().map(|event| event.to_owned());
/// assert_eq!(last.unwrap().key_str(), Some("/a"));
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct OwnedEvent {
    _kv: Option<KeyValue>,
    _prev: Option<KeyValue>,
    /// Points to the two above.
    event: Event,
}

impl Deref for OwnedEvent {
    type Target = Event;
    fn deref(&self) -> &Event {
        &self.event
    }
}

impl Clone for OwnedEvent {
    fn clone(&self) -> OwnedEvent {
        self.event.to_owned()
    }
}

impl std::fmt::Debug for OwnedEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.event.fmt(f)
    }
}
