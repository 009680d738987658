//! A listing: all keys of the range at one revision, page by page or as a stream.

use super::connect::{Header, Reader};
use super::counters::{Counts, increment};
use super::failure::{Class, Failure};
use super::integrity::{ListingRules, Violation};
use super::page::PageSize;
use super::range::KeyRange;
use crate::log::log;
use etcd_client::proto::PbKeyValue;
use etcd_client::{GetOptions, KeyValue};
use std::cell::RefCell;
use std::time::Instant;
use watchcore::{Loading, Record, Writer};

/// The summary of a listing; its keys are with the receiver of its pages.
pub(super) struct Listing {
    pub(super) revision: u64,
    /// The header of the last page: the store's revision at that time, and its cluster.
    pub(super) header: Header,
    pub(super) count: u64,
    /// The key-value that changed last.
    pub(super) newest: Option<PbKeyValue>,
}

impl Listing {
    fn new() -> Listing {
        Listing { revision: 0, header: Header::default(), count: 0, newest: None }
    }

    /// An empty listing.
    #[cfg(test)]
    pub(super) fn for_tests(header: Header, revision: u64) -> Listing {
        Listing { revision, header, ..Listing::new() }
    }

    fn count_page(&mut self, page: &[KeyValue]) {
        self.count += page.len() as u64;
        let newest = page.iter().map(|kv| &kv.0).max_by_key(|kv| kv.mod_revision);
        let known = self.newest.as_ref().map_or(0, |kv| kv.mod_revision);
        if let Some(kv) = newest.filter(|kv| kv.mod_revision > known) {
            self.newest = Some(kv.clone());
        }
    }
}

/// Receives the pages of a listing, in order.
pub(super) trait PageSink {
    /// Begins a listing at this revision; pages of an earlier attempt are discarded.
    fn begin(&mut self, revision: u64) -> Result<(), Failure>;
    fn push(&mut self, page: Vec<KeyValue>) -> Result<(), Failure>;
}

/// Buffers all pages, for a resync: it compares the whole listing with the cache.
#[derive(Default)]
pub(super) struct BufferedPages(Vec<Vec<KeyValue>>);

impl BufferedPages {
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.0.iter().flatten().map(|kv| record(&kv.0))
    }
}

impl PageSink for BufferedPages {
    fn begin(&mut self, _revision: u64) -> Result<(), Failure> {
        self.0.clear();
        Ok(())
    }

    fn push(&mut self, page: Vec<KeyValue>) -> Result<(), Failure> {
        self.0.push(page);
        Ok(())
    }
}

/// Copies each page into the first listing of a cache, then drops the page.
pub(super) struct LoadedPages<'a> {
    writer: &'a RefCell<Writer>,
    loading: Option<Loading>,
}

impl<'a> LoadedPages<'a> {
    pub(super) fn new(writer: &'a RefCell<Writer>) -> LoadedPages<'a> {
        LoadedPages { writer, loading: None }
    }

    /// Publishes the listing. `is_newest`: readers see this state at once; otherwise they wait for the revisions
    /// after it.
    pub(super) fn publish(self, is_newest: bool) -> Result<(), Failure> {
        let Some(loading) = self.loading else { return Ok(()) };
        let mut writer = self.writer.borrow_mut();
        let published = if is_newest { writer.finish_load(loading) } else { writer.finish_load_behind(loading) };
        published.map_err(|error| Failure::refused(&error))
    }
}

impl PageSink for LoadedPages<'_> {
    fn begin(&mut self, revision: u64) -> Result<(), Failure> {
        // Frees the copied pages of an earlier attempt before a new listing begins.
        self.loading = None;
        self.loading = Some(self.writer.borrow_mut().begin_load(revision).map_err(|error| Failure::refused(&error))?);
        Ok(())
    }

    fn push(&mut self, page: Vec<KeyValue>) -> Result<(), Failure> {
        let Some(loading) = &mut self.loading else { return Ok(()) };
        let records = page.iter().map(|kv| record(&kv.0));
        self.writer.borrow_mut().load_more(loading, records).map_err(|error| Failure::refused(&error))
    }
}

/// Borrows a key-value of etcd as a record of the core.
pub(super) fn record(kv: &PbKeyValue) -> Record<'_> {
    Record {
        key: &kv.key,
        value: &kv.value,
        create_revision: kv.create_revision.max(0) as u64,
        mod_revision: kv.mod_revision.max(0) as u64,
        version: kv.version.max(0) as u64,
        lease: kv.lease,
    }
}

/// How a stream ended.
enum Streamed {
    Whole,
    /// The stream failed before its first message.
    Nothing,
    /// The stream failed after its first message. Only the last message names the cluster, so the keys do not count.
    Part,
}

/// A listing in progress: its pages so far, all of one revision of the session's cluster.
struct Pages<'a, T> {
    reader: &'a Reader,
    range: &'a KeyRange,
    counts: &'a Counts,
    sink: &'a mut T,
    /// The requested revision, or that of the first answer once there is one.
    pinned: Option<u64>,
    /// Where the next page begins.
    from: Vec<u8>,
    rules: ListingRules<'a>,
    listing: Listing,
}

impl<T: PageSink> Pages<'_, T> {
    /// Reads the whole listing; false if it has to begin again.
    async fn all(&mut self, size: &mut PageSize) -> Result<bool, Failure> {
        if self.reader.streams() {
            match self.stream().await? {
                Streamed::Whole => return Ok(true),
                Streamed::Part => return Ok(false),
                Streamed::Nothing => {}
            }
        }
        loop {
            match self.next(size).await {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(Failure { class: Class::TooLarge(length), .. }) if size.too_large(length) => {}
                Err(Failure { class: Class::Exhausted, .. }) if size.too_large(0) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Reads the listing as one stream, at the revision of a read that moves no data. If the stream fails, pages are
    /// asked for, and their failure says why.
    async fn stream(&mut self) -> Result<Streamed, Failure> {
        let all = GetOptions::new().with_range(self.range.end.clone());
        let mut count = None;
        if self.pinned.is_none() {
            let (header, counted) = self.reader.count(&self.range.start, all.clone()).await?;
            self.saw_header(header)?;
            count = Some(counted);
        }
        let Some(revision) = self.pinned else { return Ok(Streamed::Nothing) };
        self.begin(revision, count)?;
        let options = all.with_revision(revision as i64);
        let mut stream = match self.reader.stream(self.from.clone(), options).await {
            Ok(stream) => stream,
            Err(failure) => return self.stream_failed(failure, Streamed::Nothing),
        };
        let (mut ended, mut last) = (Streamed::Nothing, None);
        let mut progressed = Instant::now();
        loop {
            match self.reader.message(&mut stream, progressed).await {
                Ok(Some(mut message)) => {
                    ended = Streamed::Part;
                    last = message.0.header.take().map(|header| (header, message.count()));
                    let keys = message.take_kvs();
                    if let Err(violation) = self.rules.message(&keys) {
                        return self.stream_broke_rule(violation);
                    }
                    let came = !keys.is_empty();
                    self.push(keys)?;
                    if came {
                        progressed = Instant::now();
                    }
                }
                Ok(None) => break,
                Err(failure) => return self.stream_failed(failure, ended),
            }
        }
        // The last message has the header, and counts the keys of all messages.
        let Some((header, _)) = last.filter(|(_, count)| *count == self.listing.count as i64) else {
            let failure = Failure::new(Class::Retry, "the stream of the listing ended with messages missing");
            return self.stream_failed(failure, ended);
        };
        self.saw_header(self.reader.cluster().header(Some(&header))?)?;
        Ok(Streamed::Whole)
    }

    /// Handles a stream that broke a rule: the pages that follow show whether the server does so too, or only its
    /// streams.
    fn stream_broke_rule(&self, violation: Violation) -> Result<Streamed, Failure> {
        increment(&self.counts.integrity_violations);
        log!(warn, revision = self.pinned, "integrity: {violation}, in the stream of a listing; asking for pages");
        self.stream_failed(violation.into(), Streamed::Part)
    }

    /// Handles a stream that failed: the next stream would fail too, unless the revision was compacted meanwhile. After
    /// the first message that ends the listing, as it does between two pages.
    fn stream_failed(&self, failure: Failure, ended: Streamed) -> Result<Streamed, Failure> {
        match failure.kind {
            Some("the next message of the listing") => {
                log!(info, revision = self.pinned, "the stream of the listing makes no progress; asking for pages")
            }
            _ => log!(debug, revision = self.pinned, "the stream of the listing failed: {}", failure.text()),
        }
        if !matches!(failure.class, Class::Compacted(_)) {
            self.reader.use_pages();
        } else if matches!(ended, Streamed::Part) {
            return Err(failure);
        }
        Ok(ended)
    }

    /// Reads the next page; true if more pages follow.
    async fn next(&mut self, size: &mut PageSize) -> Result<bool, Failure> {
        let mut options = GetOptions::new().with_range(self.range.end.clone()).with_limit(size.next());
        if let Some(revision) = self.pinned {
            options = options.with_revision(revision as i64);
        }
        let asked = Instant::now();
        let mut response = self.reader.page(self.from.clone(), options).await?;
        let took = asked.elapsed();
        let revision = self.saw_header(self.reader.cluster().header(response.0.header.as_ref())?)?;
        self.begin(revision, None)?;
        let (more, left) = (response.more(), response.count());
        let page = response.take_kvs();
        self.rules.page(&page, left, more)?;
        let bytes: usize = page.iter().map(|kv| kv.key().len() + kv.value().len()).sum();
        size.came(page.len() as u64, bytes as u64, left.max(0) as u64, took);
        let last = page.last().filter(|_| more).map(|last| KeyRange::after(last.key()));
        self.push(page)?;
        let Some(from) = last else { return Ok(false) };
        self.from = from;
        Ok(true)
    }

    /// Records the header of an answer, and returns the revision of the listing.
    fn saw_header(&mut self, header: Header) -> Result<u64, Failure> {
        let revision = *self.pinned.get_or_insert(header.revision);
        if revision == 0 {
            return Err(Failure::new(Class::Retry, "etcd answered a listing without a revision"));
        }
        self.listing.header = header;
        Ok(revision)
    }

    /// Begins the listing before its first keys; `count` is their number, if known.
    fn begin(&mut self, revision: u64, count: Option<u64>) -> Result<(), Failure> {
        if self.listing.revision == 0 {
            self.rules.begin(revision, count);
            self.sink.begin(revision)?;
        }
        self.listing.revision = revision;
        Ok(())
    }

    /// Passes on the keys of a page or of a stream message.
    fn push(&mut self, page: Vec<KeyValue>) -> Result<(), Failure> {
        increment(&self.counts.pages);
        self.listing.count_page(&page);
        self.sink.push(page)
    }
}

/// The session fails with this text, so it pauses before it lists again: etcd compacts faster than the listing can be
/// read.
const COMPACTED_AGAIN: &str = "etcd compacted the revision of the listing while it was read, twice in a row";

/// Lists at `at`, or at the newest revision: then the first answer, a linearizable read, pins the revision, and a
/// compaction during the listing restarts it, once. The listing comes as a stream or else in pages; a page that is
/// refused as too long is asked for again with fewer keys.
pub(super) async fn list(
    reader: &Reader,
    range: &KeyRange,
    at: Option<u64>,
    page_size: i64,
    counts: &Counts,
    sink: &mut impl PageSink,
) -> Result<Listing, Failure> {
    // Pages are sized for a quarter of the timeout, so that they still arrive when the connection becomes slower.
    let mut size = PageSize::new(page_size, reader.message_limit(), reader.page_timeout() / 4);
    let mut was_compacted = false;
    loop {
        increment(&counts.listings);
        let (from, listing, sink) = (range.start.clone(), Listing::new(), &mut *sink);
        let rules = ListingRules::new(range);
        let mut pages = Pages { reader, range, counts, sink, pinned: at, from, rules, listing };
        match pages.all(&mut size).await {
            Ok(true) => return Ok(pages.listing),
            Ok(false) => {}
            Err(Failure { class: Class::Compacted(_), .. }) if at.is_none() && pages.pinned.is_some() => {
                if std::mem::replace(&mut was_compacted, true) {
                    return Err(Failure::new(Class::Retry, COMPACTED_AGAIN));
                }
                log!(info, revision = pages.pinned, "etcd was compacted during the listing: beginning again");
            }
            Err(failure) => return Err(failure),
        }
    }
}
