//! Versions that a read hands out: a page, or a batch of an initial state.
//!
//! While a read looks them up it has one retention token, loaded first. A version that its slot shows as the newest *then*
//! is replaced later than the token was published, if ever: by an event at or above the head that the token came with, so
//! in the token's segment or in one after it. That event has the slot's count on what it replaces, and the token keeps
//! its segment. A slot whose key is purged goes to a segment that is newest then, which the token keeps too. And while
//! the cache lives, the table keeps the slots. So nothing has to be counted meanwhile, but versions that were replaced
//! already.
//!
//! Their number decides how they are kept when the read is over:
//!
//! - up to [`MAX_COUNTED`]: a count each, and the token is released;
//! - more: the token, and [`Keepers`] knows of it. When the token's segment leaves the window, the reclaimer takes a count
//!   of each version and releases the token ([`Keeper::detach`]). So a page of any size holds nothing of the log that
//!   is not in the window, and those that are dropped before, as most are, count nothing.
//!
//! An example in numbers: the head is 20, segments have 8 slots, and the token is that of 16 to 23. A list finds `/a` at
//! v9, its newest, and keeps its address, with 99 others. Event 22 replaces v9: its segment has the count of v9 that the
//! slot had, and the token has the segment. When the log has gone on so far that 16 to 23 leaves the window, the
//! reclaimer counts the hundred versions, and frees the segment; v9 stays until the page is dropped.
//! (`loom_page_against_eviction`, `loom_page_against_detach`.)

use super::retention::RetentionToken;
use crate::data::key_value::{KeyValue, KeyValueRef, VersionPtr};
use crate::data::slot::VisibleVersion;
use crate::reclaim;
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// The largest number of versions that are kept by a count each: such a page takes no longer than one that keeps its token.
pub(crate) const MAX_COUNTED: usize = if cfg!(loom) { 1 } else { 8 };

/// The versions that a read hands out.
#[derive(Clone)]
pub(crate) enum Versions {
    /// Few versions, each with a count of its own.
    Counted(Vec<KeyValue>),
    /// Many versions, which a retention token keeps.
    Retained(Arc<Keeper>),
}

impl Versions {
    /// All of them.
    #[inline]
    pub(crate) fn all(&self) -> &[KeyValue] {
        match self {
            Versions::Counted(versions) => versions,
            Versions::Retained(keeper) => keeper.versions(),
        }
    }
}

/// Keeps many versions.
pub(crate) struct Keeper {
    /// No pointer is null.
    versions: Vec<VersionPtr>,
    /// The versions that were not the newest of their keys.
    _older: Vec<KeyValue>,
    hold: Mutex<Hold>,
    home: Arc<Keepers>,
}

/// The means by which a [`Keeper`] keeps its versions.
enum Hold {
    Token {
        token: RetentionToken,
        /// Its number in [`Keepers`].
        number: u64,
        /// Keeps the slots.
        _cache: Arc<dyn Send + Sync>,
    },
    /// A count of each, of so many bytes together.
    Counts(u64),
}

impl Keeper {
    #[inline]
    fn versions(&self) -> &[KeyValue] {
        // SAFETY: I9: this keeps them, see the module; none is null.
        unsafe { VersionPtr::all_in_place(&self.versions) }
    }

    /// Counts the versions, and releases the token with all that it keeps of the log.
    fn detach(&self) {
        let mut hold = lock(&self.hold);
        if matches!(*hold, Hold::Counts(_)) {
            return;
        }
        let mut bytes = 0;
        for version in self.versions() {
            bytes += version.bytes() as u64;
            // Taken back by `drop`.
            version.borrowed().to_owned().into_pointer();
        }
        self.home.detached_bytes.fetch_add(bytes, Relaxed);
        let token = std::mem::replace(&mut *hold, Hold::Counts(bytes));
        drop(hold);
        drop(token);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.home.living.fetch_sub(1, Relaxed);
        match *lock(&self.hold) {
            Hold::Token { ref token, number, .. } => self.home.forget(token, number),
            Hold::Counts(bytes) => {
                self.home.detached_bytes.fetch_sub(bytes, Relaxed);
                let versions = std::mem::take(&mut self.versions);
                // SAFETY: I9: `detach` took a count of each; taken back once, here.
                let release = move || versions.into_iter().for_each(|version| drop(unsafe { version.take() }));
                // A single job, and not one for each version whose last count this was.
                if reclaim::on_reclaimer() { release() } else { reclaim::free(0, Box::new(release)) }
            }
        }
    }
}

/// The keepers of a cache: which of them have a token of which segment.
///
/// A keeper enters once it is whole, and leaves when it is dropped or detached. If the segment of its token has left the
/// window before it enters, the thread that enters it detaches it.
#[derive(Default)]
pub(crate) struct Keepers {
    by_token: Mutex<KeepersByToken>,
    living: Count,
    detached_bytes: Count,
}

#[derive(Default)]
struct KeepersByToken {
    /// Keyed by the base of the token's segment and a number of the keeper.
    all: BTreeMap<(u64, u64), Weak<Keeper>>,
    next: u64,
    /// Segments below this one have left the window.
    oldest: u64,
}

impl Keepers {
    fn enter(
        self: &Arc<Keepers>,
        (token, cache): (RetentionToken, Arc<dyn Send + Sync>),
        versions: Vec<VersionPtr>,
        older: Vec<KeyValue>,
    ) -> Arc<Keeper> {
        let base = token.segment().base();
        self.living.fetch_add(1, Relaxed);
        let mut by_token = lock(&self.by_token);
        let number = by_token.next;
        by_token.next += 1;
        let hold = Mutex::new(Hold::Token { token, number, _cache: cache });
        let keeper = Arc::new(Keeper { versions, _older: older, hold, home: self.clone() });
        let has_left = base < by_token.oldest;
        if !has_left {
            by_token.all.insert((base, number), Arc::downgrade(&keeper));
        }
        drop(by_token);
        if has_left {
            keeper.detach();
        }
        keeper
    }

    fn forget(&self, token: &RetentionToken, number: u64) {
        lock(&self.by_token).all.remove(&(token.segment().base(), number));
    }

    /// Detaches those whose segments lie below this one. Called by the reclaimer, when they have left the window, and
    /// when the last handle of the cache has gone.
    pub(crate) fn detach_below(&self, oldest: u64) {
        let left = {
            let mut by_token = lock(&self.by_token);
            by_token.oldest = by_token.oldest.max(oldest);
            let stay = by_token.all.split_off(&(oldest, 0));
            std::mem::replace(&mut by_token.all, stay)
        };
        for keeper in left.into_values().filter_map(|keeper| keeper.upgrade()) {
            keeper.detach();
        }
    }

    /// How many live.
    pub(crate) fn living(&self) -> u64 {
        self.living.load(Relaxed)
    }

    /// Bytes of the versions of those that were detached.
    pub(crate) fn detached_bytes(&self) -> u64 {
        self.detached_bytes.load(Relaxed)
    }
}

/// Versions in the order of their keys, each with something of the reader's, while they are looked up.
pub(crate) struct FoundVersions<T> {
    entries: Vec<(VersionPtr, T)>,
    token: RetentionToken,
    /// The versions that were not the newest of their keys.
    older: Vec<KeyValue>,
    cache: Arc<dyn Send + Sync>,
}

impl<T> FoundVersions<T> {
    /// With the newest token, and room for `room` versions: every version that is looked up after this can be added.
    pub(crate) fn new(token: RetentionToken, cache: Arc<dyn Send + Sync>, room: usize) -> FoundVersions<T> {
        FoundVersions { entries: Vec::with_capacity(room), token, older: Vec::new(), cache }
    }

    /// Adds what a slot shows at some head.
    ///
    /// # Safety
    ///
    /// The slot is of the token's cache, and was looked at after this was made.
    #[inline]
    pub(crate) unsafe fn push(&mut self, visible: VisibleVersion<'_>, with: T) {
        let VisibleVersion { kv, newest } = visible;
        #[cfg(loom)]
        let newest = newest || weak::is(weak::Site::KeepAll);
        if !newest {
            self.count(kv);
        }
        self.entries.push((kv.pointer(), with));
    }

    /// Adds a version that was replaced, or may have been.
    #[cold]
    #[inline(never)]
    fn count(&mut self, kv: KeyValueRef<'_>) {
        self.older.push(kv.to_owned());
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes out those from an index on that are not wanted.
    pub(crate) fn retain_from(&mut self, from: usize, wanted: impl Fn(&KeyValue) -> bool) {
        let tried = self.entries.split_off(from);
        // SAFETY: I9: the token keeps it; see the module.
        self.entries
            .extend(tried.into_iter().filter(|(version, _)| unsafe { version.get() }.is_some_and(|kv| wanted(&kv))));
    }

    /// Leaves those whose keys and values have so many bytes together, or the first one; the key of the next.
    pub(crate) fn cut(&mut self, bytes: usize) -> Option<Vec<u8>> {
        if bytes == usize::MAX {
            // Without a look at each of them.
            return None;
        }
        let mut left = bytes;
        let next = self.entries.iter().enumerate().find_map(|(at, (version, _))| {
            // SAFETY: I9: the token keeps it; see the module.
            let kv = unsafe { version.get() }?;
            let length = kv.key().len() + kv.value().map_or(0, <[u8]>::len);
            let fits = at == 0 || length <= left;
            left = left.saturating_sub(length);
            (!fits).then(|| (at, kv.key().to_vec()))
        });
        let (at, key) = next?;
        self.entries.truncate(at);
        Some(key)
    }

    /// The values that were added with the versions.
    pub(crate) fn each_with(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, with)| with)
    }

    /// Ends the look-up: what keeps them from now on follows from how many they are.
    pub(crate) fn settle(self, keepers: &Arc<Keepers>) -> Versions {
        let FoundVersions { entries, token, older, cache } = self;
        if entries.len() <= MAX_COUNTED {
            // SAFETY: I9: the token keeps it; see the module.
            let owned = |(version, _): &(VersionPtr, T)| unsafe { version.get() }.map(|kv| kv.to_owned());
            return Versions::Counted(entries.iter().filter_map(owned).collect());
        }
        let versions = entries.into_iter().map(|(version, _)| version).collect();
        Versions::Retained(keepers.enter((token, cache), versions, older))
    }
}
