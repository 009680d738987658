//! Versions that a read hands out, kept by one token instead of a count each.
//!
//! The token is loaded first, then the versions are looked up. One that its slot shows as the newest *then* is replaced
//! later than the token was published, if ever: by an event at or above the head that the token came with, so in
//! the token's segment or in one after it. That event has the slot's count on what it replaces, and the
//! token keeps its segment. A slot whose key is purged goes to a segment that is newest then, which the token keeps
//! too. And while the cache lives, the table keeps the slots. So nothing has to be counted for it. Of a version
//! that was replaced already a count is taken.
//!
//! An example in numbers: the head is 20, segments have 8 slots, and the token is that of 16 to 23. A list finds `/a` at
//! v9, its newest, and keeps its address. Event 22 replaces v9: its segment has the count of v9 that the slot had, and
//! the token has the segment. When the log has gone on to 100, segment 16 to 23 has left the window, and stays,
//! with all after it, until the page is dropped.
//!
//! That is its price: what holds a page or a batch of an initial state holds the log from there on, as a snapshot
//! does. (`loom_page_against_eviction`.)

use super::retention::RetentionToken;
use super::ring::Ring;
use crate::data::key_value::{KeyValue, KeyValueRef, VersionPtr};
use crate::data::slot::ShownVersion;
use crate::reclaim;
#[cfg(loom)]
use crate::sync::weak;
use std::sync::Arc;

/// What keeps the versions of a [`Kept`].
pub(crate) struct Keeper {
    token: RetentionToken,
    /// Those that were not the newest of their keys.
    older: Vec<KeyValue>,
    /// Keeps the slots.
    _cache: Arc<dyn Send + Sync>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.token.leave();
    }
}

/// Versions in the order of their keys, each with something of the reader's.
pub(crate) struct Kept<T> {
    entries: Vec<(VersionPtr, T)>,
    keeper: Keeper,
}

impl<T> Kept<T> {
    /// Nothing yet, with room for so many: what is looked up after this can be added.
    pub(crate) fn new(ring: &Ring, cache: Arc<dyn Send + Sync>, room: usize) -> Kept<T> {
        let token = ring.token(&reclaim::pin());
        token.enter();
        Kept { entries: Vec::with_capacity(room), keeper: Keeper { token, older: Vec::new(), _cache: cache } }
    }

    /// Adds what a slot shows at some head.
    ///
    /// # Safety
    ///
    /// The slot is of the ring's cache, and was looked at after this was made.
    #[inline]
    pub(crate) unsafe fn push(&mut self, shown: ShownVersion<'_>, with: T) {
        let ShownVersion { kv, newest } = shown;
        #[cfg(loom)]
        let newest = newest || weak::is(weak::Site::KeepAll);
        if !newest {
            self.count(kv);
        }
        self.entries.push((kv.pointer(), with));
    }

    /// One that was replaced, or may have been.
    #[cold]
    #[inline(never)]
    fn count(&mut self, kv: KeyValueRef<'_>) {
        self.keeper.older.push(kv.to_owned());
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes out those from an index on that are not wanted.
    pub(crate) fn retain_from(&mut self, from: usize, wanted: impl Fn(&KeyValue) -> bool) {
        let tried = self.entries.split_off(from);
        // SAFETY: I9: the keeper keeps it; see the module.
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
            // SAFETY: I9: the keeper keeps it; see the module.
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

    /// What came with them.
    pub(crate) fn each_with(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, with)| with)
    }

    /// Their addresses, none of them null, and what keeps them.
    pub(crate) fn into_parts(self) -> (Vec<VersionPtr>, Keeper) {
        (self.entries.into_iter().map(|(version, _)| version).collect(), self.keeper)
    }
}
