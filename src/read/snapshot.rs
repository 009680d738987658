//! An immutable view of the store at one head: (token, head, root).

use crate::cache::{Inner, PIN_KEYS, StateView};
use crate::data::key_value::KeyValueRef;
use crate::data::slot::SlotRef;
use crate::error::Result;
use crate::filter::matcher::Matcher;
use crate::filter::range::{Filter, Range};
use crate::log::retention::RetentionToken;
use crate::position::Position;
use crate::reclaim;
use crate::store::root::Root;
use std::sync::Arc;

/// The whole state at one revision: made in O(1), never changes (I5).
///
/// A snapshot keeps every segment from its own on alive until it is dropped: drop it when you are done.
/// Clone, Send, Sync and 'static; reading blocks nobody and is never blocked.
///
/// ```
/// use watchcore::{Cache, Change};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// let then = cache.snapshot()?;
/// writer.apply(2, [Change::put("/a", "2"), Change::put("/b", "1")])?;
///
/// assert_eq!((then.revision(), then.len()), (1, 1));
/// assert_eq!(then.get("/a").unwrap().value(), Some(&b"1"[..]));
/// assert_eq!(cache.snapshot()?.prefix("/").count(), 2);
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Snapshot {
    inner: Arc<Inner>,
    /// Holds every segment from the one of `head` on, so `older` may be followed down to `head`.
    token: RetentionToken,
    head: u64,
    index: Root,
    position: Position,
}

impl Snapshot {
    pub(crate) fn take(inner: &Arc<Inner>) -> Snapshot {
        loop {
            let pin = reclaim::pin();
            // In this order: progress, token, head, root, then oldest_seq (docs/internals/memory-model.md).
            let progress = inner.ring.progress();
            let token = inner.ring.token(&pin);
            let head = inner.ring.head();
            let index = inner.root.load(&pin).clone();
            if inner.ring.oldest_seq() > head {
                continue;
            }
            let Some(position) = inner.ring.position(progress, head, &pin) else { continue };
            token.enter();
            return Snapshot { inner: inner.clone(), token, head, index, position };
        }
    }

    /// The position: (epoch, revision).
    pub fn position(&self) -> Position {
        self.position
    }

    /// The revision: the state is that after every change up to and with it.
    pub fn revision(&self) -> u64 {
        self.position.revision
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn view(&self) -> StateView<'_> {
        // SAFETY: `take` loaded them in this order and looked at `oldest_seq`; the token goes with the
        // snapshot.
        unsafe { StateView::held(&self.index, self.head) }
    }

    /// The key-value of a key. O(log n).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<KeyValueRef<'_>> {
        self.view().get(key.as_ref())
    }

    /// The key-values of several keys, in the order of the keys: each is what [`Snapshot::get`] gives. O(1) a key while
    /// the snapshot's revision is in the window, and then in a third of the time of as many gets.
    ///
    /// ```
    /// use watchcore::{Cache, Change};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "1"), Change::put("/b", "2")])?;
    /// let snapshot = cache.snapshot()?;
    /// let [b, none, a] = &snapshot.get_many(&["/b", "/c", "/a"])[..] else { panic!("three keys") };
    /// assert_eq!(b.unwrap().value(), Some(&b"2"[..]));
    /// assert_eq!(a.unwrap().value(), Some(&b"1"[..]));
    /// assert!(none.is_none());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Vec<Option<KeyValueRef<'_>>> {
        let mut kvs = Vec::with_capacity(keys.len());
        self.find_all(keys, |kv| kvs.push(kv));
        kvs
    }

    /// What each of these keys has, in their order: from the table of slots, or from the index for keys that may have
    /// left the table.
    pub(crate) fn find_all<'a>(&'a self, keys: &[impl AsRef<[u8]>], mut each: impl FnMut(Option<KeyValueRef<'a>>)) {
        let view = self.view();
        for some in keys.chunks(PIN_KEYS) {
            let mut found = 0;
            let all = StateView::find_all(&self.inner, self.head, some, &reclaim::pin(), |kv| {
                found += 1;
                // SAFETY: found at the head of the view, which is held.
                each(kv.map(|kv| unsafe { view.keep(kv) }));
            });
            if all.is_err() {
                some[found..].iter().for_each(|key| each(view.get(key.as_ref())));
            }
        }
    }

    /// Every key-value in key order.
    pub fn iter(&self) -> impl Iterator<Item = KeyValueRef<'_>> + '_ {
        self.range(&Range::all())
    }

    /// The key-values whose key starts with these bytes, in key order.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> impl Iterator<Item = KeyValueRef<'_>> + '_ {
        self.range(&Range::prefix(prefix))
    }

    /// The key-values of a range, in key order.
    /// A range that is reversed, or outside the cache's prefix, is no error here: it holds nothing.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Range};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(1, ["/a", "/a/x", "/ab", "/b"].map(|key| Change::put(key, "1")))?;
    /// let snapshot = cache.snapshot()?;
    /// let keys = |range: Range| snapshot.range(&range).map(|kv| kv.key_str().map(str::to_owned)).collect::<Vec<_>>();
    /// assert_eq!(keys(Range::path("/a")), [Some("/a".to_owned()), Some("/a/x".to_owned())]);
    /// assert_eq!(keys(Range::between("/ab", "")).len(), 2);
    /// assert_eq!(snapshot.count(&Range::prefix("/a")), 3);
    /// assert_eq!(snapshot.count(&Range::between("/b", "/a")), 0);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn range(&self, range: &Range) -> impl Iterator<Item = KeyValueRef<'_>> + use<'_> {
        let view = self.view();
        // The span holds them all: only where a prefix is one of paths something is left to ask.
        let paths = range.has_paths().then(|| range.clone());
        let holds = move |slot: &SlotRef<'_>| paths.as_ref().is_none_or(|range| range.path_holds(slot.key()));
        view.slots(&range.span).filter(holds).filter_map(move |slot| view.live(slot))
    }

    /// The key-values that a filter lets pass, in key order (its types are not looked at).
    /// INVALID_ARGUMENT where it names what the cache does not declare.
    pub fn filtered(&self, filter: &Filter) -> Result<impl Iterator<Item = KeyValueRef<'_>> + use<'_>> {
        let matcher = Matcher::new(filter, false, &self.inner.prefix, &self.inner.schema)?;
        Ok(self.range(&filter.range).filter(move |kv| matcher.holds(kv)))
    }

    /// The sequence number after the newest event that it shows.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Number of key-values of a range. O(keys of the range).
    pub fn count(&self, range: &Range) -> u64 {
        self.range(range).count() as u64
    }

    /// Number of all key-values. O(n).
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The name of the cache it was taken of.
    pub fn cache_name(&self) -> &str {
        &self.inner.name
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.token.leave();
        std::mem::take(&mut self.index).release();
    }
}

impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        let Snapshot { inner, token, head, index, position } = self;
        token.enter();
        Snapshot { inner: inner.clone(), token: token.clone(), head: *head, index: index.clone(), position: *position }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("position", &self.position).finish()
    }
}
