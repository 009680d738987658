//! A listing: all keys of the range at one revision, page by page.

use super::connect::{Header, Reader};
use super::counters::{Counts, one};
use super::failure::{Class, Failure};
use super::page::PageSize;
use super::range::KeyRange;
use super::session::refused;
use crate::log::log;
use etcd_client::proto::PbKeyValue;
use etcd_client::{GetOptions, KeyValue};
use std::cell::RefCell;
use std::time::Instant;
use watchcore::{Loading, Record, Writer};

/// What a listing says of itself; its keys are with who took its pages.
pub(super) struct Listing {
    pub(super) revision: u64,
    /// The header of the last page: the store's revision then, and whose it is.
    pub(super) header: Header,
    pub(super) count: u64,
    /// The key-value that changed last.
    pub(super) newest: Option<PbKeyValue>,
}

impl Listing {
    fn new() -> Listing {
        Listing { revision: 0, header: Header::default(), count: 0, newest: None }
    }

    /// An empty one.
    #[cfg(test)]
    pub(super) fn for_tests(header: Header, revision: u64) -> Listing {
        Listing { revision, header, ..Listing::new() }
    }

    fn saw(&mut self, page: &[KeyValue]) {
        self.count += page.len() as u64;
        let newest = page.iter().map(|kv| &kv.0).max_by_key(|kv| kv.mod_revision);
        let known = self.newest.as_ref().map_or(0, |kv| kv.mod_revision);
        if let Some(kv) = newest.filter(|kv| kv.mod_revision > known) {
            self.newest = Some(kv.clone());
        }
    }
}

/// What takes the pages of a listing, one after the other.
pub(super) trait TakesPages {
    /// A listing at this revision begins, perhaps anew: what came before does not count.
    fn begin(&mut self, revision: u64) -> Result<(), Failure>;
    fn take(&mut self, page: Vec<KeyValue>) -> Result<(), Failure>;
}

/// Keeps the pages: for a difference, which needs all of them.
#[derive(Default)]
pub(super) struct KeptPages(Vec<Vec<KeyValue>>);

impl KeptPages {
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.0.iter().flatten().map(|kv| record(&kv.0))
    }
}

impl TakesPages for KeptPages {
    fn begin(&mut self, _revision: u64) -> Result<(), Failure> {
        self.0.clear();
        Ok(())
    }

    fn take(&mut self, page: Vec<KeyValue>) -> Result<(), Failure> {
        self.0.push(page);
        Ok(())
    }
}

/// Copies each page into the first listing of a cache, and drops it.
pub(super) struct LoadedPages<'a> {
    writer: &'a RefCell<Writer>,
    loading: Option<Loading>,
}

impl<'a> LoadedPages<'a> {
    pub(super) fn new(writer: &'a RefCell<Writer>) -> LoadedPages<'a> {
        LoadedPages { writer, loading: None }
    }

    /// Publishes them.
    pub(super) fn publish(self) -> Result<(), Failure> {
        let Some(loading) = self.loading else { return Ok(()) };
        self.writer.borrow_mut().finish_load(loading).map_err(|error| refused(&error))
    }
}

impl TakesPages for LoadedPages<'_> {
    fn begin(&mut self, revision: u64) -> Result<(), Failure> {
        // What a listing before has copied goes first.
        self.loading = None;
        self.loading = Some(self.writer.borrow_mut().begin_load(revision).map_err(|error| refused(&error))?);
        Ok(())
    }

    fn take(&mut self, page: Vec<KeyValue>) -> Result<(), Failure> {
        let Some(loading) = &mut self.loading else { return Ok(()) };
        let records = page.iter().map(|kv| record(&kv.0));
        self.writer.borrow_mut().load_more(loading, records).map_err(|error| refused(&error))
    }
}

/// A key-value in the core's words.
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

/// A listing under way: its pages so far, all of one revision of one cluster.
struct Pages<'a, T> {
    reader: &'a Reader,
    range: &'a KeyRange,
    takes: &'a mut T,
    /// The revision asked for, or that of the first page once there is one.
    pinned: Option<u64>,
    /// Where the next page begins.
    from: Vec<u8>,
    listing: Listing,
}

impl<T: TakesPages> Pages<'_, T> {
    /// Reads the next page; true if there are more.
    async fn next(&mut self, size: &mut PageSize) -> Result<bool, Failure> {
        let mut options = GetOptions::new().with_range(self.range.end.clone()).with_limit(size.next());
        if let Some(revision) = self.pinned {
            options = options.with_revision(revision as i64);
        }
        let asked = Instant::now();
        let mut response = self.reader.page(self.from.clone(), options).await?;
        let took = asked.elapsed();
        let header = Header::of(response.header());
        let revision = *self.pinned.get_or_insert(header.revision);
        if revision == 0 {
            return Err(Failure::new(Class::Retry, "etcd answered a listing without a revision"));
        }
        let first = self.listing.revision == 0;
        if !first && header.cluster != self.listing.header.cluster {
            return Err(Failure::new(Class::Retry, "another cluster answered in the middle of a listing"));
        }
        if first {
            self.takes.begin(revision)?;
        }
        (self.listing.revision, self.listing.header) = (revision, header);
        let (more, left) = (response.more(), response.count().max(0) as u64);
        let page = response.take_kvs();
        let bytes: usize = page.iter().map(|kv| kv.key().len() + kv.value().len()).sum();
        size.came(page.len() as u64, bytes as u64, left, took);
        self.listing.saw(&page);
        let last = page.last().filter(|_| more);
        let goes_on = last.is_some();
        if let Some(last) = last {
            self.from = KeyRange::after(last.key());
        }
        self.takes.take(page)?;
        Ok(goes_on)
    }
}

/// Lists at `at`, or at the newest revision: then the first page is the linearizable read that pins
/// it, and a compaction on the way begins the listing again. A page that is refused as too long is asked for again,
/// shorter.
pub(super) async fn list(
    reader: &Reader,
    range: &KeyRange,
    at: Option<u64>,
    page_size: i64,
    counts: &Counts,
    takes: &mut impl TakesPages,
) -> Result<Listing, Failure> {
    // A page that is expected to come in a quarter of its time still comes where the connection gets slower.
    let mut size = PageSize::new(page_size, reader.message_limit(), reader.page_timeout() / 4);
    loop {
        one(&counts.listings);
        let takes = &mut *takes;
        let mut pages = Pages { reader, range, takes, pinned: at, from: range.start.clone(), listing: Listing::new() };
        loop {
            match pages.next(&mut size).await {
                Ok(more) => {
                    one(&counts.pages);
                    if !more {
                        return Ok(pages.listing);
                    }
                }
                Err(Failure { class: Class::Compacted(_), .. }) if at.is_none() && pages.pinned.is_some() => {
                    log!(info, revision = pages.pinned, "compacted during the listing: beginning again");
                    break;
                }
                Err(Failure { class: Class::TooLarge(length), .. }) if size.too_large(length) => {}
                Err(Failure { class: Class::Exhausted, .. }) if size.too_large(0) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
}
