//! Lists: pages of one revision, and the tokens between them.

#![forbid(unsafe_code)]

use super::continue_token::{ContinueToken, scope_of};
use super::view::{At, Left, Scan, read_at};
use super::{Read, ReadOptions};
use crate::cache::Cache;
use crate::data::key_value::{KeyValue, KeyValueRef};
use crate::error::{Code, Error, Result, say, show};
use crate::filter::matcher::Matcher;
use crate::filter::range::Range;
use crate::log::found::Versions;
use crate::position::Position;
use crate::store::root::Span;
use crate::sync::lock;

/// The answer of [`Cache::list`]: key-values of one revision, in key order.
///
/// ```
/// use watchcore::{Cache, Change, Range, Read};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(5, [Change::put("/b", "2"), Change::put("/a", "1")])?;
/// let page = cache.list(&Range::all(), Read::Any, 0)?;
/// assert_eq!(page.revision(), 5);
/// let keys: Vec<&[u8]> = page.items().iter().map(|kv| kv.key()).collect();
/// assert_eq!(keys, [b"/a", b"/b"]);
/// assert!(!page.more());
/// # Ok::<(), watchcore::Error>(())
/// ```
///
/// It keeps its key-values and nothing of the log that is not in the window, however long it lives and however large it is:
/// `docs/internals/reading.md`. A key-value keeps up to 64 KiB of memory, which others of its cache lie in, so of a few that
/// stay for long copy the bytes.
#[derive(Clone)]
pub struct Page {
    items: Versions,
    position: Position,
    remaining: u64,
    token: Option<String>,
}

impl Page {
    /// The revision it was answered at.
    pub fn revision(&self) -> u64 {
        self.position.revision
    }
    /// Its epoch.
    pub fn epoch(&self) -> u64 {
        self.position.epoch
    }
    /// Both.
    pub fn position(&self) -> Position {
        self.position
    }
    /// The key-values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = KeyValueRef<'_>> + '_ {
        self.items().iter().map(KeyValue::borrowed)
    }
    /// The key-values as a slice.
    pub fn items(&self) -> &[KeyValue] {
        self.items.all()
    }
    /// The key-value at this index.
    pub fn get(&self, at: usize) -> Option<&KeyValue> {
        self.items().get(at)
    }
    /// Number of key-values.
    pub fn len(&self) -> usize {
        self.items().len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items().is_empty()
    }
    /// Whether keys of the range remain after the last one looked at, whether they match or not.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Filter, Range, Read, ReadOptions};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "yes"), Change::put("/b", "no")])?;
    /// let yes = Filter::any().named_predicate("yes", |kv| kv.value_str() == Some("yes"));
    /// let first = cache.list_with(&Range::all(), &ReadOptions::default().filter(yes.clone()).limit(1))?;
    /// assert!(first.more() && first.remaining() == 0, "/b is left, and was not looked at");
    /// let options = ReadOptions::default().filter(yes).continue_from(first.continue_token().unwrap());
    /// let last = cache.list_with(&Range::all(), &options)?;
    /// assert!(last.is_empty() && !last.more());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn more(&self) -> bool {
        self.token.is_some()
    }
    /// How many keys of the range remain after the last one. Exact where the filter is only a range,
    /// else 0: they were not counted.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }
    /// The token of the next page, if there is more: for [`ReadOptions::continue_from`]. The token is good
    /// in another process too, while the revision of this page is in the window there.
    pub fn continue_token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page")
            .field("len", &self.len())
            .field("first", &self.items().first())
            .field("position", &self.position)
            .field("remaining", &self.remaining)
            .field("more", &self.more())
            .finish()
    }
}

impl Cache {
    /// The key-values of a range, at most `limit` of them (0: all), as [`Cache::list_with`] reads them
    /// with a timeout of 3 s and no filter.
    pub fn list(&self, range: &Range, read: Read, limit: usize) -> Result<Page> {
        self.list_with(range, &ReadOptions::new(read).limit(limit))
    }

    /// [`Cache::list`] as a future: see [`Cache::list_with_async`].
    pub async fn list_async(&self, range: &Range, read: Read, limit: usize) -> Result<Page> {
        self.list_with_async(range, &ReadOptions::new(read).limit(limit)).await
    }

    /// The key-values of a range in key order, all of one revision, page by page: later pages are of
    /// exactly the revision of the first. Waits and errors are those of [`Cache::get_with`].
    ///
    /// COMPACTED if that revision has left the window, with a token ([`Error::continue_token`]) that continues
    /// at the same key in the newest state. A token that is damaged, of another cache, range or filter, or
    /// that begins outside of the range: INVALID_ARGUMENT. A token is no secret, and not signed: whoever
    /// makes one up reads with it what they could read without one, this range at a revision of the window,
    /// and nothing else. O(keys looked at); counting what remains is O(keys after it).
    ///
    /// ```
    /// use watchcore::{Cache, Change, Range, Read, ReadOptions};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(5, ["/a", "/b", "/c"].map(|key| Change::put(key, "1")))?;
    /// let (range, mut options, mut keys) = (Range::all(), ReadOptions::new(Read::Any).limit(2), Vec::new());
    /// loop {
    ///     let page = cache.list_with(&range, &options)?;
    ///     assert_eq!(page.revision(), 5);
    ///     keys.extend(page.iter().map(|kv| kv.key().to_vec()));
    ///     writer.progress(writer.position().revision + 1)?; // the pages stay at 5
    ///     let Some(token) = page.continue_token() else { break };
    ///     options = ReadOptions::new(Read::Any).limit(2).continue_from(token);
    /// }
    /// assert_eq!(keys, [b"/a", b"/b", b"/c"]);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn list_with(&self, range: &Range, options: &ReadOptions) -> Result<Page> {
        let request = ListRequest::new(self, range, options)?;
        match self.await_revision("list at", request.read, options.timeout) {
            Ok(exact) => request.answer(self, exact),
            Err(error) => Err(request.refused(error)),
        }
    }

    /// [`Cache::list_with`] as a future: it awaits its revision, and then lists in one go, without giving way to
    /// other tasks; a limit bounds that. Cancel safe.
    pub async fn list_with_async(&self, range: &Range, options: &ReadOptions) -> Result<Page> {
        let request = ListRequest::new(self, range, options)?;
        match self.await_revision_async("list at", request.read, options.timeout).await {
            Ok(exact) => request.answer(self, exact),
            Err(error) => Err(request.refused(error)),
        }
    }

    /// The read and the first key of a token, which lies in the span of the range. A token that was given begins behind
    /// a key of the range, and before another: that is in the span, though it need not be in the range's paths.
    fn resume(&self, text: &str, own: &ContinueToken, range: &Range, read: Read) -> Result<(Read, Vec<u8>)> {
        let token = ContinueToken::decode(text.as_bytes())?;
        let foreign = |what: &str| {
            say::invalid(format!(
                "continue token: it is of another {what}. Use it where it was given, or list from the start."
            ))
        };
        if token.scope != own.scope {
            return Err(foreign("cache"));
        }
        if token.filter != own.filter {
            return Err(foreign("range or filter"));
        }
        // Anybody can make a checksum, so what it says of its range is not enough.
        let Span { from, to } = &range.span;
        if !range.span.contains(&token.next) {
            return Err(say::invalid(format!(
                "continue token: it begins at {}, outside of the range from {} to {}. Use one as it was given, or list from the start without one.",
                show(&token.next),
                show(from),
                to.as_ref().map_or_else(|| "the end".to_string(), |to| show(to))
            )));
        }
        if read != Read::Any {
            return Err(say::invalid("continue token: it brings its own revision. Leave the mode of the read at Any."));
        }
        let at = Position { epoch: token.epoch, revision: token.revision };
        Ok((if at.revision == 0 { Read::Any } else { Read::ExactIn(at) }, token.next))
    }
}

/// A list before its revision is there.
struct ListRequest {
    range: Range,
    matcher: Matcher,
    limit: usize,
    /// The filter is only a range: what remains is counted.
    counts: bool,
    read: Read,
    /// The key at which a token begins: in the range's span.
    start: Option<Vec<u8>>,
    /// The next page's, so far without what is known at the end; none where there cannot be one.
    token: Option<ContinueToken>,
}

impl ListRequest {
    fn new(cache: &Cache, range: &Range, options: &ReadOptions) -> Result<ListRequest> {
        let (range, matcher) = cache.matcher_of_range("list", range, options)?;
        let is_whole = options.limit == 0 && options.token.is_none();
        let token = (!is_whole).then(|| {
            let cluster = lock(&cache.inner.info).report.cluster_id;
            let scope = scope_of(cache.prefix(), cluster, cache.name());
            let filter = matcher.identity(&range, cache.prefix());
            ContinueToken { scope, epoch: 0, revision: 0, filter, next: Vec::new() }
        });
        let (read, start) = match (&options.token, &token) {
            (Some(text), Some(token)) => {
                let (read, start) = cache.resume(text, token, &range, options.read)?;
                (read, Some(start))
            }
            _ => (options.read, None),
        };
        let limit = if options.limit == 0 { usize::MAX } else { options.limit };
        let counts = options.filter.is_only_a_range();
        Ok(ListRequest { range, matcher, limit, counts, read, start, token })
    }

    fn answer(self, cache: &Cache, exact: Option<(Position, u64)>) -> Result<Page> {
        let read = |at: At<'_>| {
            let mut scan = Scan::new(at, &self.range, self.start.clone());
            let kept = scan.matching(&self.matcher, self.limit, usize::MAX, |_| ())?;
            Ok((kept, remaining(scan, self.counts)?))
        };
        let Ok((position, (kept, remaining))) = read_at(&cache.inner, exact, read) else {
            let revision = exact.map_or(0, |(position, _)| position.revision);
            return Err(self.refused(cache.inner.compacted("list at", revision)));
        };
        let items = kept.settle(&cache.inner.ring.keepers);
        let shown = if self.counts { remaining } else { 0 };
        let mut page = Page { items, position, remaining: shown, token: None };
        if remaining > 0
            && let Some(token) = self.token
        {
            let mut next = page.items().last().map_or_else(Vec::new, |kv| kv.key().to_vec());
            next.push(0);
            let Position { epoch, revision } = position;
            page.token = Some(ContinueToken { epoch, revision, next, ..token }.encode());
        }
        Ok(page)
    }

    /// COMPACTED in the middle of a list: with the token that continues in the newest state.
    fn refused(self, error: Error) -> Error {
        match (self.start, self.token) {
            (Some(next), Some(token)) if error.code() == Code::Compacted => {
                error.with_continue_token(ContinueToken { epoch: 0, revision: 0, next, ..token }.encode())
            }
            _ => error,
        }
    }
}

/// How many live keys a scan has before it: all of them, or at most one.
fn remaining(mut scan: Scan<'_>, all: bool) -> std::result::Result<u64, Left> {
    let (mut count, mut first) = (0, Vec::new());
    while !scan.is_over() && (all || count == 0) {
        scan.page(1, &mut first, |_, _, live| {
            count += u64::from(live.is_some());
            (live.is_some() && !all).then_some(())
        })?;
    }
    Ok(count)
}
