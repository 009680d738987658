//! A listing: all keys of the range at one revision, page by page.

use super::connect::{Header, Reader};
use super::counters::{Counts, one};
use super::failure::{Class, Failure};
use super::page::PageSize;
use super::range::KeyRange;
use crate::log::log;
use etcd_client::proto::PbKeyValue;
use etcd_client::{GetOptions, KeyValue};
use std::time::Instant;
use watchcore::Record;

/// The keys of a range at one revision.
pub(super) struct Listing {
    pub(super) revision: u64,
    /// The header of the last page: the store's revision then, and whose it is.
    pub(super) header: Header,
    pub(super) count: u64,
    pages: Vec<Vec<KeyValue>>,
}

impl Listing {
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.pages.iter().flatten().map(|kv| record(&kv.0))
    }

    /// An empty one.
    #[cfg(test)]
    pub(super) fn for_tests(header: Header, revision: u64) -> Listing {
        Listing { revision, header, count: 0, pages: Vec::new() }
    }

    /// The key-value that changed last.
    pub(super) fn newest(&self) -> Option<&PbKeyValue> {
        self.pages.iter().flatten().map(|kv| &kv.0).max_by_key(|kv| kv.mod_revision)
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
struct Pages<'a> {
    reader: &'a Reader,
    range: &'a KeyRange,
    /// The revision asked for, or that of the first page once there is one.
    pinned: Option<u64>,
    /// Where the next page begins.
    from: Vec<u8>,
    listing: Listing,
}

impl Pages<'_> {
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
        (self.listing.revision, self.listing.header) = (revision, header);
        let more = response.more();
        let page = response.take_kvs();
        let bytes: usize = page.iter().map(|kv| kv.key().len() + kv.value().len()).sum();
        size.came(page.len() as u64, bytes as u64, took);
        self.listing.count += page.len() as u64;
        let last = page.last().filter(|_| more);
        let goes_on = last.is_some();
        if let Some(last) = last {
            self.from = KeyRange::after(last.key());
        }
        self.listing.pages.push(page);
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
) -> Result<Listing, Failure> {
    // A page that is expected to come in a quarter of its time still comes where the connection gets slower.
    let mut size = PageSize::new(page_size, reader.message_limit(), reader.page_timeout() / 4);
    loop {
        one(&counts.listings);
        let listing = Listing { revision: 0, header: Header::default(), count: 0, pages: Vec::new() };
        let mut pages = Pages { reader, range, pinned: at, from: range.start.clone(), listing };
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
