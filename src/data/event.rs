//! Kinds and the event: one cache line that Rust, C and Go read in place.

#![forbid(unsafe_code)]

use crate::data::key_value::{KeyValue, VersionPtr};
use crate::error::Result;

/// What an event tells. The numbers are part of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Kind {
    /// A key appeared, or came into the filter.
    Added = 1,
    /// The value of a present key changed.
    Modified = 2,
    /// A key went, or left the filter. It has no value; `prev_value` is the last one.
    Deleted = 3,
    /// Everything up to this revision that matches was handed out.
    Bookmark = 4,
    /// The history was replaced: the begin or the end of the difference.
    Resync = 5,
    /// Raw: etcd's PUT.
    Put = 6,
    /// Raw: etcd's DELETE.
    Delete = 7,
}

impl Kind {
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

/// Why a history was replaced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
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

impl ResyncReason {
    /// The reason with this number, if there is one.
    pub fn from_u32(number: u32) -> Option<ResyncReason> {
        use ResyncReason::*;
        [Compacted, HistoryReset, ChainBroken, TooFarBehind, Requested, Lagged]
            .into_iter()
            .find(|r| *r as u32 == number)
    }

    /// The name as the command line prints it: `HistoryReset`.
    pub fn name(self) -> &'static str {
        match self {
            ResyncReason::Compacted => "Compacted",
            ResyncReason::HistoryReset => "HistoryReset",
            ResyncReason::ChainBroken => "ChainBroken",
            ResyncReason::TooFarBehind => "TooFarBehind",
            ResyncReason::Requested => "Requested",
            ResyncReason::Lagged => "Lagged",
        }
    }
}

/// Which end of a resync bracket an event is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The difference follows.
    Begin,
    /// The difference was handed out.
    End,
}

/// The body of a [`Kind::Resync`] event.
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
    /// The resync mark that opens the bracket.
    pub const BEGIN: u32 = 8;
    /// The resync mark that closes the bracket.
    pub const END: u32 = 16;
    /// Reserved to the log: the first event of its revision there.
    pub(crate) const FIRST: u32 = 1 << 30;
    /// Reserved to the log: the last event of its revision there.
    pub(crate) const LAST: u32 = 1 << 31;
    pub(crate) const PUBLIC: u32 = 0xffff;
}

/// One change of one key, or a mark. 64 bytes, one cache line, the same for Rust, C and Go.
///
/// Without a filter a batch is a view into the log itself, so nothing is copied. An event lives as
/// long as its batch; [`Event::kv`] can be cloned to keep the key-value.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Event {
    pub(crate) revision: u64,
    pub(crate) sequence: u64,
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) kv: VersionPtr,
    pub(crate) prev: VersionPtr,
    /// Resync marks: from, epoch, reason. Else the log's own.
    pub(crate) extra: [u64; 3],
}

const _: () = assert!(size_of::<Event>() == 64 && align_of::<Event>() == 64);

impl Event {
    pub(crate) fn mark(kind: Kind, revision: u64, flags: u32) -> Event {
        Event { revision, sequence: 0, kind, flags, kv: VersionPtr::NULL, prev: VersionPtr::NULL, extra: [0; 3] }
    }

    pub(crate) fn resync_mark(resync: &Resync, sequence: u64) -> Event {
        let flag = match resync.phase {
            Phase::Begin => flags::BEGIN | flags::FIRST,
            Phase::End => flags::END | flags::LAST,
        };
        Event {
            sequence,
            extra: [resync.from, resync.epoch, resync.reason as u64],
            ..Event::mark(Kind::Resync, resync.to, flag)
        }
    }

    /// What happened.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The revision of the change. An object of the initial state has its own `mod_revision` here.
    #[inline]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The place in the log: rises by at least one per event, has gaps, 0 outside the log.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The bits of [`flags`].
    #[inline]
    pub fn flags(&self) -> u32 {
        self.flags & flags::PUBLIC
    }

    /// The key; empty in bookmarks and resync marks.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.kv().map_or(&[], KeyValue::key)
    }

    /// The new value; `None` in deletions and marks. A value of length 0 is `Some`.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        self.kv().and_then(KeyValue::value)
    }

    /// The value before, if there was one and the log still has it.
    #[inline]
    pub fn prev_value(&self) -> Option<&[u8]> {
        self.prev().and_then(KeyValue::value)
    }

    /// The new key-value; in a deletion the tombstone (the key, no value); `None` in marks.
    #[inline]
    pub fn kv(&self) -> Option<&KeyValue> {
        self.kv.get()
    }

    /// The key-value before.
    #[inline]
    pub fn prev(&self) -> Option<&KeyValue> {
        self.prev.get()
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

    /// Made by a resync.
    pub fn is_synthetic(&self) -> bool {
        self.flags & flags::SYNTHETIC != 0
    }

    /// An object of the initial state.
    pub fn is_initial_state(&self) -> bool {
        self.flags & flags::INITIAL_STATE != 0
    }

    /// The bookmark behind the last object of the initial state.
    pub fn ends_initial_state(&self) -> bool {
        self.flags & flags::INITIAL_STATE_END != 0
    }

    /// The body of a resync mark.
    pub fn resync(&self) -> Option<Resync> {
        if self.kind != Kind::Resync {
            return None;
        }
        Some(Resync {
            phase: if self.flags & flags::BEGIN != 0 { Phase::Begin } else { Phase::End },
            reason: ResyncReason::from_u32(self.extra[2] as u32).unwrap_or(ResyncReason::Requested),
            epoch: self.extra[1],
            from: self.extra[0],
            to: self.revision,
        })
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {:?}", self.revision, self.kind.name(), String::from_utf8_lossy(self.key()))
    }
}
