//! Buckets: the events of one index value, chained backwards through the log.
//!
//! A bucket knows its newest event; each event's slot has the link to the one before. A subscription
//! whose filter fits walks from the newest back to its cursor and pays for its own events only.
//!
//! The table of buckets is the writer's own. A subscriber asks for a bucket by a [`Request`]; the
//! writer answers at the start of its next revision with a bucket whose `boundary` is the sequence
//! number from which on every event of it is linked. Below that the subscription scans. Only the
//! writer hands buckets out, so one that nobody but the table counts can be evicted without a lock:
//! nobody can find it any more. Identities are never used twice.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | slot and links, then `newest` | `newest` after head, then slot and links | Release / Acquire: complete also where reached above the head |
//! | the bucket with its boundary, then `answered` | `answered`, then the bucket | Release / Acquire |
//! | head; fence; `waiting` | `waiting.fetch_add`; fence; `newest` | SeqCst fences: one of the two sees the other |
//!
//! The list of requests is a lock that the writer only ever tries: it never waits for a subscriber
//! (I6); one that is held is looked at with the next revision.

#![forbid(unsafe_code)]

use crate::data::key_value::KeyValue;
use crate::filter::indexes::Indexes;
use crate::log::segment::Pen;
use crate::store::table::KeyHash;
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{Acquire, AtomicBool, AtomicU64, AtomicUsize, Mutex, Relaxed, Release, lock, ord};
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// The events of one value of one index.
pub(crate) struct Bucket {
    /// From 1; a link of 0 is none.
    id: u64,
    boundary: u64,
    newest: AtomicU64,
    /// Parked subscriptions: each raises and lowers it itself.
    waiting: AtomicUsize,
    /// The number of the index, then the value.
    name: Box<[u8]>,
}

impl Bucket {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// From here on every event is linked.
    pub(crate) fn boundary(&self) -> u64 {
        self.boundary
    }

    /// Sequence number of the newest event, 0 for none; to be loaded after head. Acquire: partner of
    /// the store in [`Router::link`].
    #[inline]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(ord!(BucketNewestLoad, Acquire))
    }

    /// Raised before the fence and the look. Partner: [`Router::is_awaited`].
    pub(crate) fn raise(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    pub(crate) fn lower(&self) {
        self.waiting.fetch_sub(1, Relaxed);
    }
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bucket {}", self.id)
    }
}

/// A wish for a bucket.
#[derive(Debug)]
pub(crate) struct Request {
    name: Box<[u8]>,
    answered: AtomicBool,
    answer: OnceLock<Option<Arc<Bucket>>>,
}

impl Request {
    /// What the writer answered: `None` not yet; `Some(None)`: the table is full, scan.
    pub(crate) fn answer(&self) -> Option<&Option<Arc<Bucket>>> {
        // Acquire: partner of the store in `take_requests`.
        if self.answered.load(ord!(AnswerLoad, Acquire)) { self.answer.get() } else { None }
    }
}

/// Requests on their way to the writer.
#[derive(Default)]
pub(crate) struct Requests {
    some: Flag,
    list: Mutex<Vec<Arc<Request>>>,
    /// Subscriptions that gave a bucket back (statistics: when to look for unused ones).
    pub(crate) left: std::sync::atomic::AtomicU64,
}

struct Flag(AtomicBool);
impl Default for Flag {
    fn default() -> Flag {
        Flag(AtomicBool::new(false))
    }
}

impl Requests {
    pub(crate) fn ask(&self, name: Box<[u8]>) -> Arc<Request> {
        let request = Arc::new(Request { name, answered: AtomicBool::new(false), answer: OnceLock::new() });
        {
            let mut list = lock(&self.list);
            // While nothing is written nobody takes them: those whose asker is gone go here.
            if list.len() >= 64 && list.len().is_power_of_two() {
                list.retain(|request| Arc::strong_count(request) > 1);
            }
            list.push(request.clone());
        }
        // Release: partner of the load in `take_requests`; late is only later.
        self.some.0.store(true, Release);
        request
    }
}

/// A bucket in the table, found by its name.
struct Named(Arc<Bucket>);

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.0.name == other.0.name
    }
}
impl Eq for Named {}
impl Borrow<[u8]> for Named {
    fn borrow(&self) -> &[u8] {
        &self.0.name
    }
}
impl Hash for Named {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

/// One event and one of its buckets.
struct Touch {
    event: usize,
    place: usize,
    bucket: Arc<Bucket>,
}

/// The writer's side: the table, and the links of the revision in preparation.
pub(crate) struct Router {
    indexes: Arc<Indexes>,
    table: HashSet<Named, KeyHash>,
    next_id: u64,
    limit: usize,
    /// Looks for unused buckets when there are so many.
    sweep_at: usize,
    left: u64,
    touched: Vec<Touch>,
    linked: usize,
    scratch: Vec<u8>,
}

/// Fewer buckets than this are not swept.
const FEW: usize = if cfg!(loom) { 1 } else { 64 };

impl Router {
    pub(crate) fn new(indexes: Arc<Indexes>, limit: usize) -> Router {
        Router {
            indexes,
            table: HashSet::default(),
            next_id: 1,
            limit,
            sweep_at: FEW,
            left: 0,
            touched: Vec::new(),
            linked: 0,
            scratch: Vec::new(),
        }
    }

    /// Answers what was asked since the last revision. `boundary`: the next sequence number. Prepare:
    /// it allocates.
    pub(crate) fn take_requests(&mut self, requests: &Requests, boundary: u64) {
        let left = requests.left.load(Relaxed);
        if left - self.left > (self.table.len() / 2).max(FEW) as u64 {
            self.left = left;
            self.sweep();
        }
        // Acquire: partner of the store in `ask`.
        if !requests.some.0.load(Acquire) {
            return;
        }
        let asked = match requests.list.try_lock() {
            Ok(mut list) => {
                requests.some.0.store(false, Relaxed);
                std::mem::take(&mut *list)
            }
            Err(_) => return,
        };
        #[cfg(loom)]
        let boundary = if weak::is(weak::Site::EarlyBoundary) { 0 } else { boundary };
        for request in asked {
            // Whoever asked is gone.
            if Arc::strong_count(&request) == 1 {
                continue;
            }
            let bucket = self.bucket(&request.name, boundary);
            let _ = request.answer.set(bucket);
            // Release: partner of the load in `answer`.
            request.answered.store(true, ord!(Answer, Release));
        }
    }

    fn bucket(&mut self, name: &[u8], boundary: u64) -> Option<Arc<Bucket>> {
        if let Some(Named(bucket)) = self.table.get(name) {
            return Some(bucket.clone());
        }
        if self.table.len() >= self.sweep_at.min(self.limit) {
            self.sweep();
        }
        if self.table.len() >= self.limit {
            return None;
        }
        let bucket = Arc::new(Bucket {
            id: self.next_id,
            boundary,
            newest: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            name: name.into(),
        });
        self.next_id += 1;
        self.table.insert(Named(bucket.clone()));
        Some(bucket)
    }

    /// Evicts the buckets that nobody uses. Nobody can ask for one meanwhile but through the writer.
    fn sweep(&mut self) {
        self.table.retain(|Named(bucket)| Arc::strong_count(bucket) > 1);
        #[cfg(loom)]
        if weak::is(weak::Site::EvictUsed) {
            self.table.clear();
        }
        if self.table.capacity() > 4 * self.table.len().max(FEW) {
            self.table.shrink_to(2 * self.table.len());
        }
        self.sweep_at = (2 * self.table.len()).max(FEW);
    }

    /// Prepare: finds the buckets of an event of the revision (its number, marks counted).
    #[inline]
    pub(crate) fn prepare(&mut self, event: usize, key: &[u8], cur: Option<&KeyValue>, prev: Option<&KeyValue>) {
        if self.table.is_empty() {
            return;
        }
        let Router { indexes, table, touched, scratch, .. } = self;
        indexes.visit(key, cur, prev, scratch, |place, name| {
            if let Some(Named(bucket)) = table.get(name) {
                touched.push(Touch { event, place, bucket: bucket.clone() });
            }
        });
    }

    /// Commit: links an event that was just written into its slot, then makes it its buckets' newest.
    #[inline]
    pub(crate) fn link(&mut self, pen: &mut Pen, seq: u64, event: usize) {
        while let Some(touch) = self.touched.get(self.linked).filter(|touch| touch.event == event) {
            let bucket = &touch.bucket;
            pen.link(seq, touch.place, bucket.id, bucket.newest.load(Relaxed));
            // Release: partner of `Bucket::newest`. After the slot and its links.
            bucket.newest.store(seq, ord!(BucketNewest, Release));
            self.linked += 1;
        }
    }

    /// Whether somebody waits for an event of the revision just published. Behind the fence.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.touched.iter().any(|touch| touch.bucket.waiting.load(Relaxed) != 0)
    }

    /// The revision is over.
    #[inline]
    pub(crate) fn done(&mut self) {
        self.touched.clear();
        self.linked = 0;
    }

    /// Buckets of the table.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes of the table and its buckets, the values aside.
    pub(crate) fn bytes(&self) -> usize {
        let each = size_of::<Bucket>() + 2 * size_of::<usize>();
        self.table.len() * each + self.table.capacity() * 8 / 7 * (size_of::<usize>() + 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asks_for_any_more_is_not_kept() {
        let requests = Requests::default();
        let kept = requests.ask(b"kept".as_slice().into());
        for _ in 0..10_000 {
            drop(requests.ask(b"gone".as_slice().into()));
        }
        assert!(lock(&requests.list).len() <= 128, "{}", lock(&requests.list).len());
        assert!(lock(&requests.list).iter().any(|request| Arc::ptr_eq(request, &kept)));
    }

    #[test]
    fn a_full_table_says_no_and_unused_buckets_make_room() {
        let mut router = Router::new(Arc::default(), 100);
        let requests = Requests::default();
        let ask = |router: &mut Router, names: std::ops::Range<u32>| -> Vec<Arc<Request>> {
            let all = names.map(|name| requests.ask(name.to_le_bytes().as_slice().into())).collect();
            router.take_requests(&requests, 7);
            all
        };
        let granted = |all: &[Arc<Request>]| all.iter().filter(|one| matches!(one.answer(), Some(Some(_)))).count();
        let first = ask(&mut router, 0..150);
        assert_eq!((granted(&first), router.len()), (100, 100));
        assert!(first.iter().all(|one| one.answer().is_some()), "each is answered");
        drop(first);
        let second = ask(&mut router, 200..260);
        assert_eq!((granted(&second), router.len()), (60, 60), "those that nobody uses went");
        let again = ask(&mut router, 200..201);
        let same = |one: &Arc<Request>| one.answer().and_then(|answer| answer.as_ref().map(|bucket| bucket.id()));
        assert_eq!(same(&again[0]), same(&second[0]), "the second who asks shares the first's");
    }
}
