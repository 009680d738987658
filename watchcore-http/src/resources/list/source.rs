//! Where the items of a list come from: a snapshot that is walked, or a page of the core.
//!
//! A list of everything at the newest revision walks a snapshot, a bounded number of keys at a time. Which objects a client
//! gets of a resource and which keys it gets of the plain face are found by this one walk.

use super::Reader;
use crate::clients::is_large;
use crate::json::layout::{quoted, quoted_number};
use crate::request::Selection;
use tokio::time::Instant;
use watchcore::{Cache, KeyValue, Page, Range, Result, Snapshot};

/// Keys that are visited at a time, whether they are items of the list or not.
pub(super) const VISITED: usize = 1024;

/// Where the items of a list come from. It cannot fail once it stands: what a client got of a list is part of a whole.
pub(crate) enum ListSource {
    Walk(Box<Walk>),
    /// A page of the core, which has its items counted.
    Page {
        page: Page,
        next: usize,
    },
}

/// The newest state, which is walked.
pub(crate) struct Walk {
    snapshot: Snapshot,
    selection: Selection,
    /// The first key that was not visited.
    next: Vec<u8>,
}

impl ListSource {
    /// A walk of what a selection has in a snapshot.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where the selection names what the cache does not declare.
    pub(crate) fn walk(snapshot: Snapshot, selection: Selection) -> Result<ListSource> {
        snapshot.filtered(&selection.filter).map(drop)?;
        Ok(ListSource::Walk(Box::new(Walk { snapshot, selection, next: Vec::new() })))
    }

    pub(crate) fn page(page: Page) -> ListSource {
        ListSource::Page { page, next: 0 }
    }

    /// The revision of all of its items.
    pub(crate) fn revision(&self) -> u64 {
        match self {
            ListSource::Walk(walk) => walk.snapshot.revision(),
            ListSource::Page { page, .. } => page.revision(),
        }
    }

    /// Where the next page begins, if there is one.
    pub(crate) fn continue_token(&self) -> Option<&str> {
        match self {
            ListSource::Walk(_) => None,
            ListSource::Page { page, .. } => page.continue_token(),
        }
    }

    /// How many keys follow a page; 0 behind the last, and where a selector hides how many match.
    pub(crate) fn remaining(&self) -> u64 {
        match self {
            ListSource::Walk(_) => 0,
            ListSource::Page { page, .. } => page.remaining(),
        }
    }

    /// Itself, and how many items it has from the first one on. A walk is counted key by key: where that takes long, it is
    /// done on a thread of the runtime that may block.
    ///
    /// # Errors
    /// Those of [`Turns`](crate::clients::Turns).
    pub(crate) async fn counted(self, cache: &Cache, reader: &Reader, until: Instant) -> Result<(ListSource, usize)> {
        let walk = match self {
            ListSource::Page { ref page, .. } => {
                let count = page.len();
                return Ok((self, count));
            }
            ListSource::Walk(walk) => walk,
        };
        let count = move || {
            let count = walk.count();
            (ListSource::Walk(walk), count)
        };
        if is_large(cache) { reader.turns.run(&reader.who, until, count).await } else { Ok(count()) }
    }

    /// The metadata of the list: its revision, and where the next page begins. How many objects remain is only known
    /// where every key of the range is asked for; a page counts none otherwise.
    pub(super) fn metadata(&self) -> Vec<u8> {
        let mut out = br#"{"resourceVersion":"#.to_vec();
        quoted_number(self.revision(), &mut out);
        if let ListSource::Page { page, .. } = self
            && let Some(token) = page.continue_token()
        {
            out.extend_from_slice(br#","continue":"#);
            quoted(token, &mut out);
            if page.remaining() > 0 {
                out.extend_from_slice(br#","remainingItemCount":"#);
                out.extend_from_slice(itoa::Buffer::new().format(page.remaining()).as_bytes());
            }
        }
        out.push(b'}');
        out
    }

    /// Gives the next key-values to `take`. The one that it refuses is the next one again. `false`: there is none left.
    pub(super) fn visit(&mut self, mut take: impl FnMut(&KeyValue) -> bool) -> bool {
        match self {
            ListSource::Page { page, next } => {
                while let Some(kv) = page.get(*next) {
                    if !take(kv) {
                        return true;
                    }
                    *next += 1;
                }
                false
            }
            ListSource::Walk(walk) => walk.visit(take),
        }
    }
}

impl Walk {
    /// How many key-values it has in all.
    fn count(&self) -> usize {
        // The same filter was accepted when the walk began.
        self.snapshot.filtered(&self.selection.filter).map_or(0, Iterator::count)
    }

    fn visit(&mut self, mut take: impl FnMut(&KeyValue) -> bool) -> bool {
        let end = self.end_of_visit();
        let piece = Range::between(&self.next, end.as_deref().unwrap_or_default());
        let Ok(found) = self.snapshot.filtered(&self.selection.filter.clone().range(piece)) else {
            return false; // The same filter was accepted when the walk began.
        };
        for kv in found {
            if !take(&kv) {
                self.next = kv.key().to_vec();
                return true;
            }
        }
        end.map(|end| self.next = end).is_some()
    }

    /// The key at which a visit ends, so that it is bounded also where hardly anything matches; `None`: at the end. A
    /// visit of all keys is bounded by what it takes.
    fn end_of_visit(&self) -> Option<Vec<u8>> {
        if self.selection.only_range {
            return None;
        }
        let rest = self.selection.range.and(&Range::between(&self.next, ""));
        self.snapshot.range(&rest).nth(VISITED).map(|kv| kv.key().to_vec())
    }
}
