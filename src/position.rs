//! A position: where somebody stands in a history.

#![forbid(unsafe_code)]

/// The largest revision: positions are published as one word of 52 bits of revision and 12 of epoch. At a million
/// revisions a second etcd reaches it in 142 years.
///
/// A read, a wait or a subscription at a larger revision is answered at once with FUTURE_REVISION, in the words in which
/// Kubernetes refuses a resource version that is too large. A write at one is refused with INVALID_ARGUMENT.
///
/// ```
/// use watchcore::{Cache, Change, Code, MAX_REVISION, Read};
///
/// let cache = Cache::builder("/").build()?;
/// let error = cache.get("/a", Read::AtLeast(MAX_REVISION + 1)).unwrap_err();
/// assert_eq!(error.code(), Code::FutureRevision);
/// assert!(error.to_string().contains("Too large resource version: 4503599627370496, current: 0"));
/// cache.writer()?.apply(MAX_REVISION, [Change::put("/a", "the last one")])?;
/// # Ok::<(), watchcore::Error>(())
/// ```
pub const MAX_REVISION: u64 = (1 << 52) - 1;

/// A hash that is the same in every process and every build: FNV-1a of 64 bits. For what outlives a process; it does not
/// withstand somebody who looks for two texts of one hash.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A place in a history: (epoch, revision).
///
/// An epoch is one history of the source; it rises with each resync. Its upper 32 bits are drawn at
/// the cache's birth, the lower count from 1. In a position that is asked for, epoch 0 is unchecked.
///
/// ```
/// use watchcore::{Cache, Change, Code, Position, Read, Record, ResyncReason};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(5, [Change::put("/a", "1")])?;
/// let before = cache.position();
/// let record = Record { key: b"/a", value: b"2", create_revision: 1, mod_revision: 2, version: 1, lease: 0 };
/// writer.resync(3, [record], ResyncReason::HistoryReset)?; // a restored backup: revision 3 of another history
/// assert!(cache.position().epoch > before.epoch);
/// let of_before = cache.get("/a", Read::AtLeastIn(before)).unwrap_err();
/// assert_eq!(of_before.code(), Code::Compacted, "that history is over");
/// assert_eq!(Position::from(5).epoch, 0, "unchecked");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// The history, or 0 for "unchecked".
    pub epoch: u64,
    /// The revision: everything up to and with it that matches was delivered.
    pub revision: u64,
}

impl From<u64> for Position {
    /// A revision whose epoch is unchecked.
    fn from(revision: u64) -> Position {
        Position { epoch: 0, revision }
    }
}

impl Position {
    /// The epoch counted from 1, as people see it (the cache's birth mark is cut off).
    pub fn epoch_number(&self) -> u64 {
        self.epoch & 0xffff_ffff
    }
}
