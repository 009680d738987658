//! The audit compares the whole cache with etcd, page by page, slowly, beside the sessions.
//!
//! It finds differences that no event reveals: an etcd that was wiped and filled again with the same keys and other
//! values, a member that lost or changed data, a bug of the feeder. A round begins after a reconnect and each
//! `audit_interval`.
//!
//! **A page** is a part of the range with the keys that the cache has there. Its bounds are keys of the cache, so
//! etcd counts and reads those keys only, however large the range is. A page is compared at the cache's position when
//! it is requested: a snapshot keeps that state until the answer comes, and no longer. Pages of one round are of
//! different revisions. No difference is missed by that, because each key is compared at the revision of its page,
//! and a key that differs keeps differing until somebody changes it; and the log is never held for longer than one
//! read.
//!
//! **A difference** is read once more, by itself and at a later position, before it counts: then the session lists as
//! of another history, and consumers get the exact difference.

use super::backoff::{full_jitter, spread};
use super::compare::{Difference, Rule, first_difference};
use super::config::Config;
use super::connect::Reader;
use super::counters::{add, increment};
use super::failure::{Class, Failure};
use super::range::KeyRange;
use super::shared::Shared;
use crate::log::log;
use etcd_client::GetOptions;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use watchcore::{Backoff, Range, Snapshot, Writer};

/// The most keys and the most bytes of a page; a page has at least one key.
const PAGE_KEYS: usize = 1000;
const PAGE_BYTES: usize = 1 << 20;
/// The size of a key-value in a message beyond key and value.
const ITEM: usize = 40;
/// The most bytes per second that are asked for.
const BYTES_A_SECOND: f64 = (2 << 20) as f64;
/// After a page the audit rests this many times as long as the page took, so that a busy etcd is asked less.
const RESTS: u32 = 4;
/// The first and the longest ceiling of the pause after a failed read.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A part of the range, and the cache's state to compare it with.
struct Page {
    snapshot: Snapshot,
    part: KeyRange,
    /// The first key of the next page; `None` after the last page.
    next: Option<Vec<u8>>,
    keys: usize,
    bytes: usize,
}

impl Page {
    /// The page that begins at `from`; `None` while the cache has no listing.
    fn begin(writer: &Writer, range: &KeyRange, from: Vec<u8>, most_bytes: usize) -> Option<Page> {
        let snapshot = writer.snapshot().ok()?;
        let (mut keys, mut bytes, mut next) = (0, 0, None);
        for kv in snapshot.range(&Range::between(&from, [])) {
            let weight = kv.key().len() + kv.value().map_or(0, <[u8]>::len) + ITEM;
            if keys > 0 && (keys == PAGE_KEYS || bytes + weight > most_bytes) {
                next = Some(kv.key().to_vec());
                break;
            }
            (keys, bytes) = (keys + 1, bytes + weight);
        }
        let end = next.clone().unwrap_or_else(|| range.end.clone());
        Some(Page { snapshot, part: KeyRange { start: from, end }, next, keys, bytes })
    }

    /// A page of a single key.
    fn of_key(writer: &Writer, key: &[u8]) -> Option<Page> {
        let (snapshot, part) = (writer.snapshot().ok()?, KeyRange::of_key(key));
        Some(Page { snapshot, part, next: None, keys: 1, bytes: 0 })
    }

    /// Reads the page from etcd and compares. If the cache's revision is compacted in etcd, the newest state is
    /// compared instead, by the rule of what must have remained of the cache's state.
    async fn compare(&self, reader: &Reader) -> Result<Option<Difference>, Failure> {
        let revision = self.snapshot.revision();
        match self.compare_at(reader, revision, Rule::Same).await {
            Err(Failure { class: Class::Compacted(_), .. }) => {
                self.compare_at(reader, 0, Rule::Continues(revision)).await
            }
            other => other,
        }
    }

    async fn compare_at(&self, reader: &Reader, at: u64, rule: Rule) -> Result<Option<Difference>, Failure> {
        let KeyRange { start, end } = &self.part;
        // One key more than the cache has is enough to show that etcd has more.
        let most = self.keys as i64 + 1;
        let options = GetOptions::new().with_range(end.clone()).with_revision(at as i64).with_limit(most);
        let response = reader.get(start, options).await?;
        let to = if *end == [0] { &[][..] } else { end };
        let held = self.snapshot.range(&Range::between(start, to));
        Ok(first_difference(held, response.kvs(), rule))
    }
}

/// The outcome of one page.
enum Step {
    Next,
    /// The last page was compared.
    Whole,
    /// A difference was found, and confirmed by a second read.
    Differs(Difference),
}

/// One round over the range.
struct Round<'a> {
    writer: &'a RefCell<Writer>,
    config: &'a Config,
    shared: &'a Shared,
    from: Vec<u8>,
    most_bytes: usize,
    pauses: Backoff,
}

impl Round<'_> {
    /// Compares the next page; returns also how long to rest after it.
    async fn step(&mut self, reader: &Reader) -> Result<(Step, Duration), Failure> {
        let page = Page::begin(&self.writer.borrow(), &self.config.range, self.from.clone(), self.most_bytes);
        let Some(page) = page else { return Err(Failure::new(Class::Retry, "the cache has no listing yet")) };
        let asked = Instant::now();
        let difference = page.compare(reader).await?;
        let paced = Duration::from_secs_f64(page.bytes as f64 / BYTES_A_SECOND);
        let rest = paced.max(asked.elapsed() * RESTS);
        let Page { snapshot, next, keys, .. } = page;
        let before = snapshot.position().epoch;
        drop(snapshot);
        add(&self.shared.counts.audited_keys, keys as u64);
        let is_replaced = || self.writer.borrow().position().epoch != before;
        // A difference to a history that the cache no longer has says nothing of the present one.
        if let Some(difference) = difference.filter(|_| !is_replaced()) {
            if let Some(again) = self.confirm(reader, &difference).await?.filter(|_| !is_replaced()) {
                return Ok((Step::Differs(again), Duration::ZERO));
            }
            log!(warn, "the audit found a difference that a second read did not show: {difference}");
        }
        Ok(match next {
            Some(next) => {
                self.from = next;
                (Step::Next, rest)
            }
            None => (Step::Whole, Duration::ZERO),
        })
    }

    async fn confirm(&self, reader: &Reader, difference: &Difference) -> Result<Option<Difference>, Failure> {
        let page = Page::of_key(&self.writer.borrow(), &difference.key);
        match page {
            Some(page) => page.compare(reader).await,
            None => Ok(None),
        }
    }

    /// Handles a failed read: the same page is read again, with fewer bytes if it was too long.
    async fn failed(&mut self, failure: &Failure) {
        log!(debug, error = %failure.text(), "a read of the audit failed");
        if matches!(failure.class, Class::TooLarge(_) | Class::Exhausted) {
            self.most_bytes = (self.most_bytes / 2).max(1);
        }
        if failure.class == Class::Future {
            // The session has to check whether etcd went back.
            self.shared.doubt();
        }
        tokio::time::sleep(self.pauses.next_delay(Instant::now(), Duration::ZERO)).await;
    }

    /// Runs to the end of the range, or to the first difference. False: no session will publish a connection any
    /// more.
    async fn run(&mut self, readers: &mut watch::Receiver<Option<Reader>>) -> bool {
        let begun = Instant::now();
        loop {
            let reader = readers.wait_for(Option::is_some).await.ok().and_then(|reader| reader.clone());
            let Some(reader) = reader else { return false };
            let (step, rest) = match self.step(&reader).await {
                Ok(stepped) => stepped,
                Err(failure) => {
                    self.failed(&failure).await;
                    continue;
                }
            };
            self.pauses.reset();
            match step {
                Step::Next => tokio::time::sleep(rest).await,
                Step::Whole => break,
                Step::Differs(difference) => {
                    increment(&self.shared.counts.differences);
                    log!(warn, "the audit found that etcd does not hold what the cache has: {difference}");
                    self.shared.request_reset();
                    break;
                }
            }
        }
        let elapsed = begun.elapsed();
        increment(&self.shared.counts.audits);
        add(&self.shared.counts.audit_milliseconds, u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        log!(debug, ?elapsed, "audited");
        true
    }
}

/// Audits after a reconnect and each interval until dropped. Without a connection it waits for one.
pub(super) async fn serve(
    writer: &RefCell<Writer>,
    mut readers: watch::Receiver<Option<Reader>>,
    config: &Config,
    shared: &Shared,
) {
    let Some(interval) = config.options.audit_interval else { return std::future::pending().await };
    loop {
        let _ = tokio::time::timeout(spread(interval), shared.audit.notified()).await;
        let most_bytes = PAGE_BYTES.min(config.options.message_limit / 2).max(1);
        let pauses = full_jitter(PAUSES.0, PAUSES.1);
        let from = config.range.start.clone();
        let mut round = Round { writer, config, shared, from, most_bytes, pauses };
        if !round.run(&mut readers).await {
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::{Cache, Change};

    /// The bounds of pages are the cache's keys, and together the pages cover the range.
    #[test]
    fn pages_cover_the_range() {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        let range = KeyRange::of_prefix(b"/");
        let empty = Page::begin(&writer, &range, range.start.clone(), PAGE_BYTES).unwrap();
        assert!(empty.part == range && empty.next.is_none() && empty.keys == 0);
        for number in 0..2500 {
            writer.apply(number + 1, [Change::put(&format!("/{number:04}"), "v")]).unwrap();
        }
        for (most_bytes, pages) in [(PAGE_BYTES, 3), (1, 2500), (50 * (ITEM + 6), 50)] {
            let (mut from, mut seen, mut keys) = (range.start.clone(), 0, 0);
            loop {
                let page = Page::begin(&writer, &range, from.clone(), most_bytes).unwrap();
                assert_eq!(page.part.start, from, "no key lies between two pages");
                (seen, keys) = (seen + 1, keys + page.keys);
                let Some(next) = page.next else {
                    assert_eq!(page.part.end, range.end);
                    break;
                };
                assert_eq!(page.part.end, next);
                from = next;
            }
            assert_eq!((seen, keys), (pages, 2500), "{most_bytes}");
        }
    }
}
