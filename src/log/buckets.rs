//! Buckets: the events of one index value, chained backwards through the log.
//!
//! A bucket knows its newest event; each event's slot has the link to the one before. A subscription
//! whose filter fits walks from the newest back to its cursor and pays for its own events only.
//!
//! The table of buckets is the writer's own. A subscriber asks for a bucket by a [`Request`]; the
//! writer answers at the start of its next revision with a bucket whose `linked_from` is the sequence
//! number from which on every event of it is linked. Below that the subscription scans. Only the
//! writer answers with buckets, so one that only the table counts can be evicted without a lock:
//! no subscription can find it any more. Identities are never used twice.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | slot and links, then `newest` | `newest` after head, then slot and links | Release / Acquire: complete also where reached above the head |
//! | the bucket with its `linked_from`, then `answered` | `answered`, then the bucket | Release / Acquire |
//! | head; fence; `waiting` | `waiting.fetch_add`; fence; `newest` | SeqCst fences: one of the two sees the other |
//!
//! Requests come by a list without a lock. The writer answers at most [`REQUESTS`] of them a revision, and
//! looks through at most [`PLACES`] places of its table for buckets that nobody uses any more, so what
//! subscriptions do delays no single revision. Those whose asker is gone are weeded out by the askers, as
//! long as nothing is written. The whole protocol with an example: `docs/internals/chains.md`.

use crate::data::key_value::KeyValue;
use crate::filter::indexes::Indexes;
use crate::heap::{self, Memory};
use crate::log::segment::SegmentWriter;
use crate::reclaim;
use crate::store::hash::KeyHash;
use crate::store::table::{FetchedCell, Place, Table, TableEntry};
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{Acquire, AtomicBool, AtomicU64, AtomicUsize, Inbox, Relaxed, Release, Taken, ord};
// Statistics carry no order: std's also under loom.
use std::hash::BuildHasher;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU64 as Count};
use std::sync::{Arc, OnceLock};

/// The number of an index, then a value of it: in place where that is as short as keys mostly are, so that who looks for a
/// bucket meets no line of memory but the bucket's own.
enum BucketName {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

/// With the length and which of the two it is, a multiple of eight bytes.
const SHORT: usize = 46;
const _: () = assert!(size_of::<BucketName>() == SHORT + 2);

impl From<&[u8]> for BucketName {
    fn from(name: &[u8]) -> BucketName {
        let mut short = [0; SHORT];
        match short.get_mut(..name.len()) {
            Some(place) => {
                place.copy_from_slice(name);
                BucketName::Short(name.len() as u8, short)
            }
            None => BucketName::Long(name.into()),
        }
    }
}

impl std::ops::Deref for BucketName {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            BucketName::Short(length, short) => &short[..usize::from(*length)],
            BucketName::Long(long) => long,
        }
    }
}

/// The events of one value of one index.
pub(crate) struct Bucket {
    /// From 1; a link of 0 is none.
    id: u64,
    linked_from: u64,
    newest: AtomicU64,
    /// Parked subscriptions: each counts itself here and takes itself off.
    waiting: AtomicUsize,
    name: BucketName,
}

impl Bucket {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// From here on every event is linked.
    pub(crate) fn linked_from(&self) -> u64 {
        self.linked_from
    }

    /// Sequence number of the newest event, 0 for none; to be loaded after head. Acquire: partner of
    /// the store in [`Router::link`].
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(ord!(BucketNewestLoad, Acquire))
    }

    /// Counted before the fence and the load of the frontier. Partner: [`Router::has_waiters`].
    pub(crate) fn add_waiter(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    pub(crate) fn remove_waiter(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bucket {}", self.id)
    }
}

/// A subscription's request to the writer for the bucket of this name.
#[derive(Debug)]
pub(crate) struct Request {
    name: Box<[u8]>,
    answered: AtomicBool,
    answer: OnceLock<Option<Arc<Bucket>>>,
}

impl Request {
    /// The writer's answer: `None` before it has answered, `Some(None)` where its table is full and the subscription scans.
    pub(crate) fn answer(&self) -> Option<&Option<Arc<Bucket>>> {
        // Acquire: partner of the store in `take_requests`.
        if self.answered.load(ord!(AnswerLoad, Acquire)) { self.answer.get() } else { None }
    }
}

/// Requests on their way to the writer.
pub(crate) struct Requests {
    inbox: Inbox<Arc<Request>>,
    /// How many are to come before those of subscriptions that have ended are taken out.
    until_weeded: AtomicI64,
    /// Subscriptions that released a bucket (statistics: when to look for unused ones).
    pub(crate) left: Count,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests { inbox: Inbox::new(), until_weeded: AtomicI64::new(WEEDED_AT), left: Count::new(0) }
    }
}

/// The list is weeded when so many requests have come, and as many as it held then.
const WEEDED_AT: i64 = 64;

impl Requests {
    pub(crate) fn ask(&self, name: Box<[u8]>) -> Arc<Request> {
        let request = Arc::new(Request { name, answered: AtomicBool::new(false), answer: OnceLock::new() });
        self.inbox.push(request.clone());
        if self.until_weeded.fetch_sub(1, Relaxed) == 1 {
            self.weed();
        }
        request
    }

    /// Drops the requests whose asker is gone: while nothing is written, nobody else takes them. The writer answers
    /// those that are out of the list meanwhile with a later revision.
    fn weed(&self) {
        let mut kept = 0;
        for request in self.inbox.take_all() {
            if Arc::strong_count(&request) > 1 {
                kept += 1;
                self.inbox.push(request);
            }
        }
        self.until_weeded.store(WEEDED_AT.max(kept), Relaxed);
    }
}

impl TableEntry for Arc<Bucket> {
    type Target = Bucket;
    fn into_address(self) -> *mut Bucket {
        Arc::into_raw(self).cast_mut()
    }
    /// # Safety
    ///
    /// The contract of [`TableEntry::from_address`].
    unsafe fn from_address(address: *mut Bucket) -> Arc<Bucket> {
        // SAFETY: `into_address` gave the count of this `Arc` away; it is dropped once (`# Safety` of the trait).
        unsafe { Arc::from_raw(address) }
    }
    fn key(&self) -> &[u8] {
        &self.name
    }
    /// The hash of a bucket: of its value, which may be a key that was hashed already, and of the index's number.
    #[inline]
    fn hash_of(hash: &KeyHash, name: &[u8]) -> u64 {
        let (index, value) = split(name);
        hash.of_indexed(index, hash.hash_one(value))
    }
    fn prefetch(address: *mut Bucket, _hint: u32, _key_length: usize) {
        heap::prefetch(address.cast());
        heap::prefetch(address.wrapping_add(1).cast::<u8>().wrapping_sub(1));
    }
}

/// The index and the value of a bucket's name.
#[inline]
fn split(name: &[u8]) -> (u8, &[u8]) {
    name.split_first().map_or((0, name), |(index, value)| (*index, value))
}

/// An event of the revision in preparation with one of its buckets, which the table of the [`Router`] has.
struct Touch {
    event: usize,
    place: usize,
    bucket: NonNull<Bucket>,
}

// SAFETY: safe code cannot follow the address; `bucket` asks its caller for a router that still has it.
unsafe impl Send for Touch {}

impl Touch {
    /// The bucket.
    ///
    /// # Safety
    ///
    /// The router that made it has evicted nothing since.
    #[inline]
    unsafe fn bucket(&self) -> &Bucket {
        // SAFETY: the router's table had a count on it, and has evicted nothing since (`# Safety`).
        unsafe { self.bucket.as_ref() }
    }
}

/// The writer's side: the table, and the links of the revision in preparation.
pub(crate) struct Router {
    indexes: Arc<Indexes>,
    /// The number of the index by key.
    by_key: Option<u8>,
    table: Table<Arc<Bucket>>,
    next_id: u64,
    limit: usize,
    /// Taken from the inbox and not answered yet, newest first.
    asked: Taken<Arc<Request>>,
    /// Waits for the round that looks for unused buckets: the table is full.
    held: Option<Arc<Request>>,
    /// The next place of the table that the round looks at.
    round: Option<Place>,
    /// How many had left when the last round began, and how many may have before the next one begins.
    left: u64,
    left_at_most: u64,
    /// Something of what was asked has no answer yet, or a round is under way.
    is_busy: bool,
    /// Its buckets stay in the table: only `take_requests` evicts buckets, and it empties this list first.
    touched: Vec<Touch>,
    linked: usize,
}

/// The bucket of a value of an index, of this hash.
#[inline(never)]
fn find(table: &Table<Arc<Bucket>>, index: u8, value: &[u8], hash: u64) -> Option<NonNull<Bucket>> {
    let is = |bucket: &Arc<Bucket>| split(&bucket.name) == (index, value);
    let bucket = table.get_hashed((table.hash().of_indexed(index, hash), 0), is)?;
    Some(NonNull::from(&**bucket))
}

/// A table with fewer buckets than this is not swept for unused ones.
const MIN_SWEPT: usize = if cfg!(loom) { 1 } else { 64 };
/// Requests that the writer looks at in one revision: some 50 us, if each makes a bucket.
const REQUESTS: usize = 256;
/// Places of the table that it looks through for unused buckets in one revision.
const PLACES: usize = 32;

impl Router {
    pub(crate) fn new(indexes: Arc<Indexes>, limit: usize) -> Router {
        Router {
            by_key: indexes.by_key(),
            indexes,
            table: Table::default(),
            next_id: 1,
            limit,
            asked: Taken::default(),
            held: None,
            round: None,
            left: 0,
            left_at_most: MIN_SWEPT as u64,
            is_busy: false,
            touched: Vec::new(),
            linked: 0,
        }
    }

    /// Answers some of what was asked, and evicts some of what nobody uses: at most a constant number a
    /// revision. `linked_from`: the next sequence number. Prepare: it allocates, and begins a revision; the buckets of
    /// the one before are not known any more. True: the table may have changed.
    #[inline]
    pub(crate) fn take_requests(&mut self, requests: &Requests, linked_from: u64, memory: &mut impl Memory) -> bool {
        self.touched.clear();
        // The room for a large revision is freed too: no statistic counts it.
        self.touched.shrink_to(1024);
        self.linked = 0;
        let left = requests.left.load(Relaxed);
        let is_idle = !self.is_busy && requests.inbox.is_empty() && left <= self.left_at_most;
        !is_idle && self.take_some(requests, left, linked_from, memory)
    }

    /// How many have to leave before unused buckets are looked for.
    fn many(&self) -> u64 {
        (self.table.len() / 2).max(MIN_SWEPT) as u64
    }

    #[cold]
    fn take_some(&mut self, requests: &Requests, left: u64, linked_from: u64, memory: &mut impl Memory) -> bool {
        if left > self.left_at_most {
            self.begin_round(left);
        }
        let mut changed = self.sweep(memory);
        #[cfg(loom)]
        let linked_from = if weak::is(weak::Site::EarlyLinkedFrom) { 0 } else { linked_from };
        for _ in 0..REQUESTS {
            let Some(request) = self.next_request(requests) else { break };
            // The subscription that asked has ended.
            if Arc::strong_count(&request) == 1 {
                continue;
            }
            changed = true;
            if !self.answer(&request, left, linked_from, memory) {
                self.held = Some(request);
                break;
            }
        }
        self.is_busy = self.round.is_some() || self.held.is_some() || !self.asked.is_empty();
        self.left_at_most = self.left + self.many();
        changed
    }

    fn next_request(&mut self, requests: &Requests) -> Option<Arc<Request>> {
        if let Some(request) = self.held.take().or_else(|| self.asked.next()) {
            return Some(request);
        }
        if requests.inbox.is_empty() {
            return None;
        }
        self.asked = requests.inbox.take_newest_first();
        self.asked.next()
    }

    /// Answers one request; `left`: how many have left by now. False: not yet, because the table is
    /// full, and a round looks for a bucket that no subscription reads any more.
    fn answer(&mut self, request: &Request, left: u64, linked_from: u64, memory: &mut impl Memory) -> bool {
        let hash = Arc::<Bucket>::hash_of(self.hash(), &request.name);
        let mut bucket =
            self.table.get_hashed((hash, 0), |bucket| *bucket.name == *request.name).map(|bucket| bucket.clone());
        let somebody_left = left > self.left;
        #[cfg(loom)]
        let somebody_left = somebody_left || weak::is(weak::Site::EvictUsed);
        if bucket.is_none() && self.table.len() < self.limit {
            bucket = Some(self.add(hash, &request.name, linked_from, memory));
        } else if bucket.is_none() && (self.round.is_some() || somebody_left) {
            self.begin_round(left);
            return false;
        }
        let _ = request.answer.set(bucket);
        // Release: partner of the load in `answer`.
        request.answered.store(true, ord!(Answer, Release));
        true
    }

    fn add(&mut self, hash: u64, name: &[u8], linked_from: u64, memory: &mut impl Memory) -> Arc<Bucket> {
        let bucket = Arc::new(Bucket {
            id: self.next_id,
            linked_from,
            newest: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            name: name.into(),
        });
        self.next_id += 1;
        self.table.insert(hash, bucket.clone(), memory);
        bucket
    }

    /// Begins to look for buckets that nobody uses, unless that is under way.
    fn begin_round(&mut self, left: u64) {
        if self.round.is_none() {
            self.left = left;
            self.round = Some(Place::default());
        }
    }

    /// Evicts some buckets that nobody uses. Nobody can ask for one meanwhile but through the writer. True: a round is
    /// under way.
    fn sweep(&mut self, memory: &mut impl Memory) -> bool {
        let Some(place) = &mut self.round else { return false };
        let unused = |bucket: &Arc<Bucket>| {
            #[cfg(loom)]
            if weak::is(weak::Site::EvictUsed) {
                return true;
            }
            Arc::strong_count(bucket) == 1
        };
        let mut evicted = Vec::new();
        let over = self.table.sweep(place, PLACES, unused, |bucket| evicted.push(bucket), memory);
        if over {
            self.round = None;
        }
        if !evicted.is_empty() {
            // Nobody else counts them: freed elsewhere than here.
            reclaim::free(evicted.len() * BUCKET, Box::new(move || drop(evicted)));
        }
        true
    }

    /// The hash of keys and values: the cache's.
    pub(crate) fn hash(&self) -> &KeyHash {
        self.table.hash()
    }

    /// Asks the processor for where the bucket of a key of this hash stands in the table, if there is an index by key: who
    /// has the answer asks for the bucket itself, once that is likely to have come.
    #[inline]
    pub(crate) fn fetch_place(&self, hash: u64) -> Option<FetchedCell<'_, Arc<Bucket>>> {
        self.fetch_place_of(self.by_key?, hash)
    }

    #[inline(never)]
    fn fetch_place_of(&self, index: u8, hash: u64) -> Option<FetchedCell<'_, Arc<Bucket>>> {
        self.table.fetch_place(self.table.hash().of_indexed(index, hash))
    }

    /// Prepare: finds the buckets of an event of the revision: its number, marks counted; the hash of its key, and the
    /// versions of that, either of which may be a tombstone.
    #[inline]
    pub(crate) fn prepare(&mut self, event: usize, hash: u64, version: &KeyValue, before: Option<&KeyValue>) {
        if self.table.len() > 0 {
            self.touch(event, hash, version, before);
        }
    }

    #[inline(never)]
    fn touch(&mut self, event: usize, hash: u64, version: &KeyValue, before: Option<&KeyValue>) {
        let Router { indexes, table, touched, .. } = self;
        let key = version.key();
        indexes.visit(key, version, before, |place, index, value| {
            let whole = std::ptr::eq(value, key);
            let hash = if whole { hash } else { table.hash().hash_one(value) };
            if let Some(bucket) = find(table, index, value, hash) {
                touched.push(Touch { event, place, bucket });
            }
        });
    }

    /// Commit: links an event that was just written into its slot, then makes it its buckets' newest.
    #[inline(always)]
    pub(crate) fn link(&mut self, writer: &mut SegmentWriter, seq: u64, event: usize) {
        while let Some(touch) = self.touched.get(self.linked).filter(|touch| touch.event == event) {
            // SAFETY: what stands in `touched` is in the table, see there.
            let bucket = unsafe { touch.bucket() };
            writer.link(seq, touch.place, bucket.id, bucket.newest.load(Relaxed));
            // Release: partner of `Bucket::newest`. After the slot and its links.
            bucket.newest.store(seq, ord!(BucketNewest, Release));
            self.linked += 1;
        }
    }

    /// Whether a subscription sleeps for an event of the revision just published. To be called after the fence.
    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        // SAFETY: what stands in `touched` is in the table, see there.
        self.touched.iter().any(|touch| unsafe { touch.bucket() }.waiting.load(Relaxed) != 0)
    }

    /// Buckets of the table.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of the table and its buckets, long values aside.
    pub(crate) fn bytes(&self) -> usize {
        self.table.len() * BUCKET + self.table.bytes()
    }
}

/// Bytes of a bucket, with its counts, and with its value where that is short.
const BUCKET: usize = size_of::<Bucket>() + 2 * size_of::<usize>();

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::heap::System;
    use crate::sync::often;

    /// The requests in the list; they are put back.
    fn listed(requests: &Requests) -> Vec<Arc<Request>> {
        let all = requests.inbox.take_all();
        for request in &all {
            requests.inbox.push(request.clone());
        }
        all
    }

    /// Nobody writes, so nobody takes the list.
    #[test]
    fn abandoned_requests_are_not_kept() {
        let requests = Requests::default();
        let kept = requests.ask(b"kept".as_slice().into());
        for _ in 0..often(10_000) {
            drop(requests.ask(b"gone".as_slice().into()));
        }
        let all = listed(&requests);
        assert!(all.len() <= 130, "{}", all.len());
        assert!(all.iter().any(|request| Arc::ptr_eq(request, &kept)));
    }

    fn ask(requests: &Requests, names: std::ops::Range<u32>) -> Vec<Arc<Request>> {
        names.map(|name| requests.ask(name.to_le_bytes().as_slice().into())).collect()
    }

    fn granted(all: &[Arc<Request>]) -> usize {
        all.iter().filter(|one| matches!(one.answer(), Some(Some(_)))).count()
    }

    /// Takes requests until each of these is answered; how many revisions that took.
    fn revisions(router: &mut Router, requests: &Requests, all: &[Arc<Request>]) -> usize {
        for revision in 0..100_000 {
            if all.iter().all(|one| one.answer().is_some()) {
                return revision;
            }
            router.take_requests(requests, 7, &mut System);
        }
        panic!("not answered");
    }

    #[test]
    fn full_table_makes_room_for_others() {
        let mut router = Router::new(Arc::default(), 100);
        let requests = Requests::default();
        let first = ask(&requests, 0..150);
        revisions(&mut router, &requests, &first);
        assert_eq!((granted(&first), router.len()), (100, 100));
        requests.left.fetch_add(first.len() as u64, Relaxed);
        drop(first);
        let second = ask(&requests, 200..260);
        revisions(&mut router, &requests, &second);
        assert_eq!(granted(&second), 60, "those that nobody uses make room");
        let again = ask(&requests, 200..201);
        revisions(&mut router, &requests, &again);
        let same = |one: &Arc<Request>| one.answer().and_then(|answer| answer.as_ref().map(|bucket| bucket.id()));
        assert_eq!(same(&again[0]), same(&second[0]), "the second who asks shares the first's");
    }

    #[test]
    fn one_revision_answers_and_evicts_few() {
        const ASKED: u32 = often(20_000) as u32;
        let mut router = Router::new(Arc::default(), 65_536);
        let requests = Requests::default();
        let all = ask(&requests, 0..ASKED);
        while granted(&all[..1]) == 0 {
            let before = router.len();
            router.take_requests(&requests, 7, &mut System);
            assert!(router.len() <= before + REQUESTS, "{} in one revision", router.len() - before);
        }
        assert_eq!(granted(&all), ASKED as usize, "the oldest comes last");
        requests.left.fetch_add(u64::from(ASKED), Relaxed);
        drop(all);
        let mut took = 0;
        while router.len() > 0 {
            let before = router.len();
            router.take_requests(&requests, 7, &mut System);
            assert!(before - router.len() <= PLACES, "{} in one revision", before - router.len());
            took += 1;
            assert!(took < 100_000, "{} are left", router.len());
        }
    }
}
