//! A listing: all keys of the range at one revision, page by page.

use super::connect::{Header, Reader};
use super::counters::{Counts, one};
use super::failure::{Class, Failure};
use super::page::PageSize;
use super::range::KeyRange;
use crate::writer::Record;
use etcd_client::proto::PbKeyValue;
use etcd_client::{GetOptions, KeyValue};

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

/// Lists at `at`, or at the newest revision: then the first page is the linearizable read that pins
/// it, and a compaction on the way begins the listing again.
pub(super) async fn list(
    reader: &Reader,
    range: &KeyRange,
    at: Option<u64>,
    page_size: i64,
    counts: &Counts,
) -> Result<Listing, Failure> {
    let mut size = PageSize::new(page_size);
    'again: loop {
        one(&counts.listings);
        let mut pinned = at;
        let mut listing = Listing { revision: 0, header: Header::default(), count: 0, pages: Vec::new() };
        let mut from = range.start.clone();
        loop {
            let mut options = GetOptions::new().with_range(range.end.clone()).with_limit(size.next());
            if let Some(revision) = pinned {
                options = options.with_revision(revision as i64);
            }
            let mut response = match reader.page(from.clone(), options).await {
                Ok(response) => response,
                Err(Failure { class: Class::Compacted(_), .. }) if at.is_none() && pinned.is_some() => {
                    tracing::info!(revision = pinned, "compacted during the listing: beginning again");
                    continue 'again;
                }
                Err(Failure { class: Class::TooLarge(length), .. }) if size.too_large(length) => continue,
                Err(failure) => return Err(failure),
            };
            one(&counts.pages);
            listing.header = Header::of(response.header());
            let revision = *pinned.get_or_insert(listing.header.revision);
            if revision == 0 {
                return Err(Failure::new(Class::Retry, "etcd answered a listing without a revision"));
            }
            listing.revision = revision;
            let more = response.more();
            let page = response.take_kvs();
            let bytes: usize = page.iter().map(|kv| kv.key().len() + kv.value().len()).sum();
            size.came(page.len() as u64, bytes as u64);
            listing.count += page.len() as u64;
            let Some(last) = page.last().filter(|_| more) else {
                listing.pages.push(page);
                return Ok(listing);
            };
            from = KeyRange::behind(last.key());
            listing.pages.push(page);
        }
    }
}
