//! The state that a read answers from: waited for, found, and scanned at one head.
//!
//! A scan takes what it wants of a page of keys under one pin, and counts on it, or keeps it by a token ([`Kept`]): what
//! users wrote (the predicates of filters) runs between the pages, so no pin waits for it.

use super::snapshot::Snapshot;
pub(crate) use crate::cache::Left;
use crate::cache::{Inner, PIN_KEYS, StateView};
use crate::data::key_value::KeyValueRef;
use crate::data::slot::SlotRef;
use crate::filter::matcher::Matcher;
use crate::filter::range::Range;
use crate::log::found::FoundVersions;
use crate::position::Position;
use crate::reclaim;
use crate::store::root::{Span, is_below};
use std::sync::Arc;

/// Key-values that there is room for at first, where nobody knows how many they will be.
const ROOM: usize = 128;

/// The state that a scan reads.
#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    /// At a head, as long as that is in the window.
    Head(&'a Arc<Inner>, u64),
    /// In a snapshot, which keeps its state.
    Held(&'a Snapshot),
}

impl At<'_> {
    /// The live key-values of some keys, or `None` each, in their order. `each` runs under a pin, so it is no user's code.
    pub(crate) fn find_all(
        self,
        keys: &[impl AsRef<[u8]>],
        mut each: impl FnMut(Option<KeyValueRef<'_>>),
    ) -> std::result::Result<(), Left> {
        match self {
            At::Head(inner, head) => keys
                .chunks(PIN_KEYS)
                .try_for_each(|some| StateView::find_all(inner, head, some, &reclaim::pin(), &mut each)),
            At::Held(snapshot) => {
                snapshot.find_all(keys, each);
                Ok(())
            }
        }
    }
}

/// A scan of the keys of a range in a state, in key order. No other key is visited, wherever the scan is told to begin.
pub(crate) struct Scan<'a> {
    at: At<'a>,
    range: &'a Range,
    /// Begin of the next page: never before the range's.
    next: Vec<u8>,
    over: bool,
}

impl<'a> Scan<'a> {
    /// From the key `from` on, or from the begin of the range where that comes later.
    pub(crate) fn new(at: At<'a>, range: &'a Range, from: Option<Vec<u8>>) -> Scan<'a> {
        let begin = &range.span.from;
        let next = from.filter(|from| is_below(begin, from)).unwrap_or_else(|| begin.clone());
        Scan { at, range, next, over: false }
    }

    /// Whether every key of the range was visited.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// The first key that was not visited; `None` where all were.
    pub(crate) fn into_next(self) -> Option<Vec<u8>> {
        (!self.over).then_some(self.next)
    }

    /// Visits the next keys, a page of them, or as long as there is `room` for those that `each` takes. Both run under a
    /// pin, so they are no user's code. If the head has left the window, no key was visited.
    #[inline]
    fn visit<A>(
        &mut self,
        taken: &mut A,
        room: impl Fn(&A) -> usize,
        mut each: impl FnMut(&mut A, StateView<'_>, SlotRef<'_>),
    ) -> std::result::Result<(), Left> {
        let pin = reclaim::pin();
        let view = match self.at {
            At::Head(inner, head) => StateView::pinned(inner, head, &pin).ok_or(Left)?,
            At::Held(snapshot) => snapshot.view(),
        };
        let span = Span { from: std::mem::take(&mut self.next), to: self.range.span.to.clone() };
        let (mut slots, mut left, narrow) = (view.slots(&span), PIN_KEYS, self.range.has_paths());
        loop {
            let most = left.min(room(taken));
            if most == 0 {
                break;
            }
            // The span holds them all: it begins in the range's and ends with it, and `slots` gives no others. A loop of
            // its own for who asks nothing else.
            let looked = match narrow {
                false => slots.next_run(most, |slot| each(taken, view, slot)),
                true => slots.next_run(most, |slot| {
                    if self.range.path_holds(slot.key()) {
                        each(taken, view, slot);
                    }
                }),
            };
            if looked == 0 {
                break;
            }
            left -= looked;
        }
        match slots.next() {
            Some(slot) => self.next = slot.key().to_vec(),
            None => self.over = true,
        }
        Ok(())
    }

    /// Visits the next keys: a page of them, or until `taken` has `most`. `pick` says what to take of a
    /// key, and of the key-value that lives there; it runs under a pin, so it is no user's code.
    /// If the head has left the window, nothing of this page was taken.
    pub(crate) fn page<T>(
        &mut self,
        most: usize,
        taken: &mut Vec<T>,
        mut pick: impl FnMut(StateView<'_>, SlotRef<'_>, Option<KeyValueRef<'_>>) -> Option<T>,
    ) -> std::result::Result<(), Left> {
        let room = |taken: &Vec<T>| most.saturating_sub(taken.len());
        self.visit(taken, room, |taken, view, slot| taken.extend(pick(view, slot, view.live(slot))))
    }

    /// The live key-values that a filter lets pass, up to `most`, of so many pages of keys, each with the result of `with`
    /// for its slot. If the head leaves the window, the key-values taken before are lost with it.
    pub(crate) fn matching<T>(
        &mut self,
        matcher: &Matcher,
        most: usize,
        mut pages: usize,
        with: impl Fn(SlotRef<'_>) -> T,
    ) -> std::result::Result<FoundVersions<T>, Left> {
        let inner = match self.at {
            At::Head(inner, _) => inner,
            At::Held(snapshot) => snapshot.inner(),
        };
        let token = inner.ring.token(&reclaim::pin());
        let mut found = FoundVersions::new(token, inner.clone(), if most > PIN_KEYS { ROOM } else { most });
        while !self.over && found.len() < most && pages > 0 {
            pages -= 1;
            let before = found.len();
            let room = |found: &FoundVersions<T>| most - found.len();
            self.visit(&mut found, room, |found, view, slot| {
                if let Some(visible) = view.visible(slot).filter(|visible| matcher.may_hold_value(&visible.kv)) {
                    // SAFETY: I9: the view is of the cache that `found` was made for, and later.
                    unsafe { found.push(visible, with(slot)) };
                }
            })?;
            if matcher.has_predicates() {
                found.retain_from(before, |kv| matcher.predicates_hold(kv));
            }
        }
        Ok(found)
    }
}

/// Reads a state: the exact one, or the newest. A read of the newest that is overtaken begins again in a
/// snapshot: it ends however fast the writer is.
pub(super) fn read_at<T>(
    inner: &Arc<Inner>,
    exact: Option<(Position, u64)>,
    mut read: impl FnMut(At<'_>) -> std::result::Result<T, Left>,
) -> std::result::Result<(Position, T), Left> {
    if let Some((position, head)) = exact {
        return Ok((position, read(At::Head(inner, head))?));
    }
    let (position, head) = inner.now(&reclaim::pin());
    if let Ok(answer) = read(At::Head(inner, head)) {
        return Ok((position, answer));
    }
    let snapshot = Snapshot::take(inner);
    Ok((snapshot.position(), read(At::Held(&snapshot))?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Cache, Change};

    /// Wherever it is told to begin: before its range, at its end, behind that.
    #[test]
    fn a_scan_stays_in_its_range() {
        let cache = Cache::builder("/").build().unwrap();
        let keys = ["/a", "/b", "/b/1", "/b/2", "/bb", "/c"];
        cache.writer().unwrap().apply(1, keys.map(|key| Change::put(key, ""))).unwrap();
        let head = At::Head(&cache.inner, cache.inner.ring.head());
        for range in [Range::prefix("/b/"), Range::path("/b"), Range::key("/b/1"), Range::all()] {
            for from in ["", "/", "/a0", "/b/1", "/c", "/x"] {
                let mut scan = Scan::new(head, &range, Some(from.into()));
                let mut found = Vec::new();
                while !scan.is_over() {
                    let seen = scan.page(usize::MAX, &mut found, |_, slot, _| Some(slot.key().to_vec()));
                    assert!(seen.is_ok());
                }
                let in_range = |key: &&str| *key >= from && range.contains(key.as_bytes());
                let expected: Vec<_> =
                    keys.iter().copied().filter(in_range).map(|key| key.as_bytes().to_vec()).collect();
                assert_eq!(found, expected, "{range:?} from {from:?}");
            }
        }
    }
}
