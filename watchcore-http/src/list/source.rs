//! The items of a list: a snapshot that is walked, or a page of the core.
//!
//! A walk visits a bounded number of keys at a time. Lists of resources and of the `/v1/keys` API share it.

use super::client::Reader;
use crate::clients::is_large;
use crate::json::layout::{quoted, quoted_number};
use crate::request::Selection;
use std::time::Duration;
use tokio::time::Instant;
use watchcore::{Cache, Code, KeyValue, Page, Range, ReadOptions, Result, Snapshot};

/// Maximum number of keys visited at a time, whether they are items of the list or not.
pub(super) const VISITED: usize = 1024;

/// The source of a list's items. It cannot fail, because the client must get either the whole list or none of it.
pub(crate) enum ListSource {
    Walk(Box<Walk>),
    /// A page of the core, whose items are counted.
    Page {
        page: Page,
        next: usize,
    },
}

/// A walk over a snapshot of the newest state.
pub(crate) struct Walk {
    snapshot: Snapshot,
    selection: Selection,
    /// The first key that was not visited.
    next: Vec<u8>,
}

impl ListSource {
    /// Creates a walk over the selected key-values of a snapshot.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the selection names attributes that the cache does not declare.
    pub(crate) fn walk(snapshot: Snapshot, selection: Selection) -> Result<ListSource> {
        snapshot.filtered(&selection.filter).map(drop)?;
        Ok(ListSource::Walk(Box::new(Walk { snapshot, selection, next: Vec::new() })))
    }

    pub(crate) fn page(page: Page) -> ListSource {
        ListSource::Page { page, next: 0 }
    }

    /// Returns the revision of the list.
    pub(crate) fn revision(&self) -> u64 {
        match self {
            ListSource::Walk(walk) => walk.snapshot.revision(),
            ListSource::Page { page, .. } => page.revision(),
        }
    }

    /// Returns the continue token, if there is a next page.
    pub(crate) fn continue_token(&self) -> Option<&str> {
        match self {
            ListSource::Walk(_) => None,
            ListSource::Page { page, .. } => page.continue_token(),
        }
    }

    /// Returns how many keys follow a page; 0 after the last page, and if a selector makes the number unknown.
    pub(crate) fn remaining(&self) -> u64 {
        match self {
            ListSource::Walk(_) => 0,
            ListSource::Page { page, .. } => page.remaining(),
        }
    }

    /// Counts the items from the first one on. A walk is counted key by key, so with a large cache this happens on a
    /// blocking thread.
    ///
    /// # Errors
    /// Those of [`BlockingPool`](crate::clients::BlockingPool).
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
        if is_large(cache) { reader.pool.run(&reader.client, until, count).await } else { Ok(count()) }
    }

    /// Returns the metadata of the list: its revision, and the continue token. The number of remaining objects is
    /// included only if the list has no selector, because a page counts nothing otherwise.
    pub(crate) fn metadata(&self) -> Vec<u8> {
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

    /// Passes the next key-values to `take`. If `take` refuses one, it comes first next time. `false`: none is left.
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
    /// Returns the total number of selected key-values.
    fn count(&self) -> usize {
        // Never an error: the same filter was accepted when the walk was created.
        self.snapshot.filtered(&self.selection.filter).map_or(0, Iterator::count)
    }

    fn visit(&mut self, mut take: impl FnMut(&KeyValue) -> bool) -> bool {
        let end = self.end_of_visit();
        let piece = Range::between(&self.next, end.as_deref().unwrap_or_default());
        let Ok(found) = self.snapshot.filtered(&self.selection.filter.clone().range(piece)) else {
            return false; // Never happens: the same filter was accepted when the walk was created.
        };
        for kv in found {
            if !take(&kv) {
                self.next = kv.key().to_vec();
                return true;
            }
        }
        end.map(|end| self.next = end).is_some()
    }

    /// Returns the key at which a visit ends, so that it is bounded even if hardly any key matches; `None` for the end
    /// of the range. Without a selector every key matches, so `take` bounds the visit.
    fn end_of_visit(&self) -> Option<Vec<u8>> {
        if self.selection.only_range {
            return None;
        }
        let rest = self.selection.range.and(&Range::between(&self.next, ""));
        self.snapshot.range(&rest).nth(VISITED).map(|kv| kv.key().to_vec())
    }
}

/// Reads a page of the core, waiting for its revision until `deadline`. A page is read at once, and the keys that
/// remain after it are counted one by one, so with a large cache this happens on a blocking thread.
pub(crate) async fn page_of(
    cache: &Cache,
    range: Range,
    options: ReadOptions,
    deadline: Instant,
    reader: &Reader,
) -> Result<Page> {
    let left = || deadline.saturating_duration_since(Instant::now());
    if !is_large(cache) {
        return cache.list_with_async(&range, &options.timeout(left())).await;
    }
    // The read must not wait on the blocking thread, which other lists need. If its revision, or its token's, lies in
    // the future, the wait happens here.
    let options = options.timeout(Duration::ZERO);
    let blocking_read = async || {
        let (cache, range, options) = (cache.clone(), range.clone(), options.clone());
        reader.pool.run(&reader.client, deadline, move || cache.list_with(&range, &options)).await?
    };
    match blocking_read().await {
        Err(error) if error.code() == Code::FutureRevision => {
            cache.wait_until_async(error.asked(), left()).await?;
            blocking_read().await
        }
        answer => answer,
    }
}
