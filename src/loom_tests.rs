//! The atomics under loom: the shipped types, and each order seen to matter.
//!
//! Every test has twins that must fail: the same model with one named order of the shipped code
//! weakened (`sync::ord`), a store or load to Relaxed, a SeqCst fence to AcqRel. Two twins leave a
//! step out or move it. Row: what is ordered, as the heads of the modules name it.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | event, prev, links; head | `publish_against_poll` | head store; head load |
//! | head (I2) | `revision_is_whole` | head store |
//! | head, slot.newest, root (I2, I5) | `snapshot_is_whole` | newest load |
//! | directory entry | `entry_of_a_newer_lap` | entry store; entry load |
//! | slot.newest | `version_reached_early` | newest store; newest load |
//! | root | `new_keys_against_list` | root swap; root load |
//! | unlinked, then retired | `retiring_against_list` | step: retired before it is unlinked |
//! | directory | `growing_directory` | directory swap; directory load |
//! | token | `snapshot_against_a_new_segment` | token swap; token load |
//! | the epochs, published as root is | `resync_against_position` | history swap |
//! | oldest, of a reset | `reset_against_exact` | the store of oldest |
//! | oldest_seq, then forget | `forgetting_against_get` | root swap |
//! | forget, then retire | `forgetting_against_an_older_root` | step: no grace period |
//! | section 3: entry to counted reference | `segment_against_retirement` | step: no grace period |
//! | progress | `progress_against_head` | progress store; progress load |
//! | closed, one word with head | `close_against_poll` | head store; head load |
//! | closed, and publication | `close_against_publish` | step: published without a look at the close |
//! | closed, of one subscription | `closer_against_poll` | end swap; end load |
//! | closed, and the wait | `closer_against_wait` | end load |
//! | status: ready | `listing_against_wait_ready` | ready store |
//! | status: failed | `failure_against_wait_ready` | none: see below |
//! | fence; waiting | `wait_against_publish` | the writer's fence; the waiter's fence |
//! | pending, with publish | `notifier_against_publish` | the notifier's swap |
//! | pending, with close | `notifier_against_close` | the notifier's swap |
//! | armed | `arm_against_publish` | step: drained after the look; the waiter's fence |
//! | bucket.newest, links | `bucket_against_poll` | newest store; newest load |
//! | boundary | `bucket_asked_for` | answer store; answer load; step: a boundary too low |
//! | fence; waiting, of a bucket | `bucket_wait_against_publish` | the writer's fence; the waiter's fence |
//! | the same, where the notifier hands a waiter to its bucket | `bucket_handed_over` | the notifier's fence |
//! | mark.newest | `mark_against_chain` | head store |
//! | eviction of buckets | `bucket_evicted` | step: one in use is evicted |
//! | inbox | `inbox` | its exchange; its swap |
//! | version count | `version_count` | the giving back; the last one's load |
//!
//! The order of the steps is proven by the same models. Each of these fails when it is turned round:
//! token before head in a snapshot; head before token, and before progress, in the writer; closed
//! before head in a poll; the notifier's swap before its look; oldest_seq looked at behind the root.
//! Log before store makes no difference yet: a version carries its own `older`.
//!
//! What loom cannot tell apart here, because something else orders it already:
//! - the Release of `oldest_seq`: who misses the forgotten key has loaded the root behind it, and who
//!   pins after a collection is ordered behind all of it;
//! - the writer's `pending` swap: its fence comes before it; and `armed`: the set's list has a lock;
//! - the fences of a closer and of its consumer, and a failure told before the listing: both sides
//!   take the lock of the ticket, or of the status.
//!
//! The collector under loom is a stand-in (`reclaim::small`): crossbeam's is not explored here, nor
//! are the reclaimer's and the notifier's sleep, which use the system's park.
//!
//! Freed versions and slots stay mapped to the end of an execution, and every plain object has a
//! `Track`: a read that is not ordered behind the making, or before the end, fails as such.

use crate::data::event::ResyncReason;
use crate::data::key_value::{KeyMeta, KeyValue as Version, VersionPtr};
use crate::sync::Relaxed;
use crate::sync::weak::{self, Site};
use crate::wake::notifier_model as notifier;
use crate::*;
use loom::thread;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

const EVER: Duration = Duration::MAX;

/// An order to weaken: its name, and the type where it is one of several of that name.
type Weak = (Site, &'static str);
const NOTHING: Weak = (Site::Nothing, "");

/// How a model is run.
#[derive(Clone, Copy)]
struct Model {
    /// Preemptions explored below the bound (`LOOM_MAX_PREEMPTIONS`, or 3): long models take fewer.
    less: usize,
    /// Whether retired things are freed meanwhile: then pins are steps too.
    collects: bool,
}

const PLAIN: Model = Model { less: 0, collects: false };
const LONG: Model = Model { less: 1, collects: false };
const LONGEST: Model = Model { less: 2, collects: false };
const COLLECTS: Model = Model { less: 1, collects: true };
const COLLECTS_DEEP: Model = Model { less: 0, collects: true };

thread_local! {
    /// Which side of a race the main thread of the model takes, and so begins.
    static WRITER_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// Forgets what a failed execution left in this thread.
struct Clean;

impl Drop for Clean {
    fn drop(&mut self) {
        reclaim::begin(false);
        notifier::begin();
        weak::choose(Site::Nothing, "");
    }
}

impl Model {
    /// Explores the body twice, each side of its race beginning once. loom remembers one access of a
    /// word: a thread that loads it and then stores it hides that its store races with the loads of
    /// others, and what was never run first would not be tried.
    fn run(self, weakened: Weak, body: impl Fn() + Send + Sync + 'static) {
        let _clean = Clean;
        let body = std::sync::Arc::new(body);
        weak::choose(weakened.0, weakened.1);
        for writer_first in [true, false] {
            WRITER_FIRST.with(|first| first.set(writer_first));
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3).saturating_sub(self.less));
            builder.max_branches = 5_000;
            let executions = std::sync::Arc::new(AtomicUsize::new(0));
            let (count, body, began) = (executions.clone(), body.clone(), Instant::now());
            builder.check(move || {
                count.fetch_add(1, Relaxed);
                reclaim::begin(self.collects);
                notifier::begin();
                body();
                notifier::step();
                reclaim::collect();
            });
            println!("{} executions, {} ms", executions.load(Relaxed), began.elapsed().as_millis());
        }
    }
}

/// Something that a failed execution leaves alone: after a deadlock no step can be taken.
struct Local<T>(ManuallyDrop<T>);

impl<T> Local<T> {
    fn new(value: T) -> Local<T> {
        Local(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Local<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Local<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

/// A cache of `segments` segments of `slots` slots.
fn cache(slots: u64, segments: u64) -> (Local<Cache>, Local<Writer>) {
    let cache = Cache::builder("/").segment_slots(slots).capacity((slots * segments) as usize).build().unwrap();
    let writer = cache.writer().unwrap();
    (Local::new(cache), Local::new(writer))
}

/// A cache that waits for its listing.
fn unlisted() -> (Local<Cache>, Local<Writer>) {
    let cache = Cache::builder("/").segment_slots(4).capacity(8).expect_load(true).build().unwrap();
    let writer = cache.writer().unwrap();
    (Local::new(cache), Local::new(writer))
}

/// A subscription to what follows.
fn follow(cache: &Cache) -> Local<Subscription> {
    Local::new(cache.subscribe(Start::Now).open().unwrap())
}

/// Writes while another thread reads. The writer comes back: its drop is no part of the race.
fn race<T: 'static>(
    mut writer: Local<Writer>,
    write: impl FnOnce(&mut Writer) + 'static,
    read: impl FnOnce() -> T + 'static,
) -> (Local<Writer>, T) {
    let write = move || {
        write(&mut writer);
        writer
    };
    if WRITER_FIRST.with(Cell::get) {
        let reading = thread::spawn(read);
        (write(), reading.join().unwrap())
    } else {
        let writing = thread::spawn(write);
        let read = read();
        (writing.join().unwrap(), read)
    }
}

/// One revision that sets each of these keys to the revision.
fn put(writer: &mut Writer, revision: u64, keys: &[&str]) {
    let value = revision.to_string();
    writer.apply(revision, keys.iter().map(|key| Change::put(*key, &value))).unwrap();
}

/// Reads everything of a batch; the revisions in it.
fn read(batch: &Batch) -> Vec<u64> {
    for event in batch {
        assert_eq!(event.value().map(<[u8]>::to_vec), Some(event.revision().to_string().into_bytes()));
        assert!(event.prev_value().is_none_or(|value| !value.is_empty()));
    }
    batch.events().iter().map(Event::revision).collect()
}

/// Rows "event, prev, links" and "head": what lies below head is complete.
fn publish_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            put(writer, 2, &["/a"]);
        };
        let (_writer, (mut subscription, mut seen)) = race(writer, write, move || {
            let seen = read(&subscription.poll(8).unwrap());
            (subscription, seen)
        });
        seen.extend(read(&subscription.poll(8).unwrap()));
        assert_eq!(seen, [1, 2]);
    });
}

/// Row "head": a revision appears whole (I2), also where it straddles segments.
fn revision_is_whole(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(2, 4);
        put(&mut writer, 1, &["/a"]);
        let mut subscription = follow(&cache);
        race(
            writer,
            |writer| put(writer, 2, &["/a", "/b"]),
            move || {
                let first = subscription.poll(8).unwrap();
                if !first.is_empty() {
                    assert!(first.continues() && read(&first) == [2] && first.position().revision == 1);
                    let second = subscription.poll(8).unwrap();
                    assert!(read(&second) == [2] && second.position().revision == 2, "half a revision");
                }
            },
        );
    });
}

/// Row "slot.newest": a version that is reached before the head that covers it.
fn version_reached_early(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/a"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a"]),
            move || {
                let answer = cache.get("/a", Read::Any).unwrap();
                let kv = answer.kv.unwrap();
                assert_eq!(kv.mod_revision(), answer.revision);
                assert_eq!(kv.value().unwrap(), answer.revision.to_string().as_bytes());
                cache
            },
        );
    });
}

/// Row "directory entry": the base of a newer lap is complete.
fn entry_of_a_newer_lap(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/a"]);
        race(
            writer,
            |writer| put(writer, 3, &["/a"]),
            move || match subscription.poll(8) {
                Ok(batch) => assert_eq!(read(&batch), [1]),
                Err(error) => assert_eq!(error.code(), Code::Lagged),
            },
        );
    });
}

/// Section 3, "the delicate step": a counted reference out of the directory, and what a batch holds,
/// against eviction and freeing.
fn segment_against_retirement(weakened: Weak) {
    COLLECTS_DEEP.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/a"]);
        let write = |writer: &mut Writer| {
            put(writer, 3, &["/a"]);
            reclaim::collect();
        };
        let (_writer, batch) = race(writer, write, move || match subscription.poll(8) {
            Ok(batch) => {
                assert_eq!(read(&batch), [1]);
                Some(batch)
            }
            Err(error) => {
                assert_eq!(error.code(), Code::Lagged);
                None
            }
        });
        reclaim::collect();
        batch.iter().for_each(|batch| assert_eq!(read(batch), [1]));
    });
}

/// Row "token": a snapshot keeps every segment from its head on, whatever is published meanwhile.
fn snapshot_against_a_new_segment(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, mut writer) = cache(1, 3);
        put(&mut writer, 1, &["/a"]);
        let write = |writer: &mut Writer| {
            // Two segments at once: the token of the second holds nothing of what the first replaced.
            put(writer, 2, &["/a", "/b"]);
            (3..5).for_each(|revision| put(writer, revision, &["/b"]));
            reclaim::collect();
        };
        let (_writer, (snapshot, _cache)) = race(writer, write, move || (cache.snapshot().unwrap(), cache));
        reclaim::collect();
        assert_eq!(snapshot.get("/a").unwrap().mod_revision(), snapshot.revision().min(2));
    });
}

/// Rows "head", "slot.newest", "root": a snapshot taken while a revision is applied has all of it or
/// nothing.
fn snapshot_is_whole(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/a", "/b"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a", "/b", "/c"]),
            move || {
                let snapshot = cache.snapshot().unwrap();
                let revision = snapshot.revision();
                assert!(snapshot.iter().all(|kv| kv.mod_revision() == revision), "two revisions in one snapshot");
                assert_eq!(snapshot.len() as u64, 1 + revision);
                cache
            },
        );
    });
}

/// Row "oldest_seq, then forget": a key is absent at h only if that is so.
fn forgetting_against_get(weakened: Weak) {
    LONGEST.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/b"]);
        put(&mut writer, 2, &["/a"]);
        let write = |writer: &mut Writer| {
            writer.apply(3, [Change::delete("/a")]).unwrap();
            // The third finds the tombstone out of the window.
            (4..7).for_each(|revision| put(writer, revision, &["/b"]));
        };
        race(writer, write, move || {
            let answer = cache.get("/a", Read::Any).unwrap();
            assert_eq!(answer.kv.is_some(), answer.revision == 2, "absent at a head at which it lives");
            cache
        });
    });
}

/// Rows "root", "token": a forgotten slot outlives every reader whose root still has it.
fn forgetting_against_an_older_root(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/a"]);
        writer.apply(2, [Change::delete("/a")]).unwrap();
        (3..5).for_each(|revision| put(&mut writer, revision, &["/b"]));
        let write = |writer: &mut Writer| {
            // The first forgets; its segment, which keeps the slot, goes with the third.
            (5..8).for_each(|revision| put(writer, revision, &["/b"]));
            reclaim::collect();
        };
        let (_writer, (snapshot, _cache)) = race(writer, write, move || (cache.snapshot().unwrap(), cache));
        reclaim::collect();
        assert!(snapshot.get("/a").is_none());
        assert_eq!(snapshot.get("/b").unwrap().mod_revision(), snapshot.revision());
    });
}

/// Row "root": keys that appear, against a list.
fn new_keys_against_list(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        race(
            writer,
            |writer| put(writer, 1, &["/a", "/b"]),
            move || {
                let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
                assert_eq!(page.len() as u64, 2 * page.revision());
                cache
            },
        );
    });
}

/// Row "unlinked, then retired": whatever is collected meanwhile, the root that is found is there.
fn retiring_against_list(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/a"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a", "/b"]),
            move || {
                // The reclaimer's part, before this thread pins.
                reclaim::collect();
                let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
                assert_eq!(page.len() as u64, page.revision());
                cache
            },
        );
    });
}

/// Row "directory": a longer one, put in place for a revision longer than the ring, against a list
/// (its position reads the log) and a poll at the oldest event: nothing is taken for a lap.
fn growing_directory(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a", "/b", "/c"]),
            move || {
                let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
                assert!(matches!((page.revision(), page.len()), (1, 1) | (2, 3)));
                assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
                cache
            },
        );
    });
}

/// Row "root, table, directory, token" (the epochs are published like them): a position is of one
/// history, and never goes back (I7).
fn resync_against_position(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 5, &["/a"]);
        let before = cache.position();
        let write = |writer: &mut Writer| {
            writer.resync(3, [], ResyncReason::Requested).unwrap();
        };
        race(writer, write, move || {
            let (first, second) = (cache.position(), cache.position());
            for position in [first, second] {
                let turned = position.epoch == before.epoch + 1;
                assert_eq!(position.revision, if turned { 3 } else { 5 });
            }
            assert!(first <= second);
            cache
        });
    });
}

/// Row "oldest, of a reset": who stands below it reads the history before, who stands above the new one.
fn reset_against_exact(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 5, &["/a"]);
        let before = cache.position();
        let write = |writer: &mut Writer| {
            writer.resync(9, [], ResyncReason::HistoryReset).unwrap();
        };
        race(writer, write, move || {
            let answer = cache.get("/a", Read::ExactIn(before));
            match answer {
                Ok(answer) => assert_eq!(answer.kv.unwrap().mod_revision(), 5),
                Err(error) => {
                    assert_eq!(error.code(), Code::Compacted);
                    assert_ne!(cache.position().epoch, before.epoch, "compacted by a reset that is not there");
                }
            }
            let oldest = cache.oldest();
            assert!(oldest == 1 || oldest == 10);
            cache
        });
    });
}

/// Row "progress": no bookmark beyond what was handed out.
fn progress_against_head(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            writer.progress(5).unwrap();
        };
        race(writer, write, move || {
            let batch = subscription.poll(8).unwrap();
            let moved = batch.position().revision > 0;
            assert_eq!(moved, !batch.is_empty(), "a position beyond an event that was not handed out");
        });
    });
}

/// Polls twice: an event, nothing, or CLOSED once the event was handed out.
fn poll_to_the_end(subscription: &mut Subscription) {
    let mut seen = 0;
    for _ in 0..2 {
        match subscription.poll(8) {
            Ok(batch) => seen += batch.len(),
            Err(error) => assert!(error.code() == Code::Closed && seen == 1, "closed before the last event"),
        }
    }
}

/// Row "closed": what was published before the close is handed out before CLOSED. The close comes
/// from a thread of its own: the writer's fence would stand in for its order.
fn close_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closing = Local::new(cache.clone());
        let closing = thread::spawn(move || {
            if closing.position().revision == 1 {
                closing.close();
            }
            closing
        });
        race(writer, |writer| put(writer, 1, &["/a"]), move || poll_to_the_end(&mut subscription));
        drop(closing.join());
    });
}

/// Row "closed": close and publication have one order. What `apply` has published is handed out; what it
/// refuses is never seen; nothing follows CLOSED.
fn close_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closing = thread::spawn(move || {
            cache.close();
            cache
        });
        let writing = thread::spawn(move || {
            let applied = writer.apply(1, [Change::put("/a", "1")]).is_ok();
            (writer, applied)
        });
        let (mut seen, mut closed) = (0, false);
        let mut poll = || match subscription.poll(8) {
            Ok(batch) => {
                assert!(batch.is_empty() || !closed, "an event follows CLOSED");
                seen += read(&batch).len();
            }
            Err(_) => closed = true,
        };
        poll();
        poll();
        let (writer, applied) = writing.join().unwrap();
        drop((closing.join().unwrap(), writer));
        poll();
        poll();
        assert!(closed && seen == usize::from(applied), "an event follows CLOSED");
    });
}

/// Row "closed", for one subscription: its end holds what its closer saw.
fn closer_against_poll(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let (closer, seen) = (Local::new(subscription.closer()), Local::new(cache.clone()));
        let closing = thread::spawn(move || {
            if seen.position().revision == 1 {
                closer.close();
            }
            (closer, seen)
        });
        race(writer, |writer| put(writer, 1, &["/a"]), move || poll_to_the_end(&mut subscription));
        drop(closing.join());
    });
}

/// Close of one subscription against its wait: the wait ends, and what came before is handed out.
fn closer_against_wait(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closer = Local::new(subscription.closer());
        let write = move |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            closer.close();
            notifier::step();
        };
        race(writer, write, move || {
            let mut seen = 0;
            while subscription.wait(EVER).is_ok() {
                seen += subscription.poll(8).unwrap().len();
            }
            assert_eq!(seen, 1, "closed before the last event");
        });
    });
}

/// Row "fence; waiting.load": who parks is woken by what is published.
fn wait_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = Local::new(cache.subscribe(Start::Now).key("/b").open().unwrap());
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/b"]);
            notifier::step();
        };
        race(writer, write, move || {
            assert!(subscription.wait(EVER).unwrap());
            assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
        });
    });
}

/// The listing against who waits for it.
fn listing_against_wait_ready(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = unlisted();
        let write = |writer: &mut Writer| {
            let (key, value) = (&b"/a"[..], &b"x"[..]);
            let record = Record { key, value, create_revision: 2, mod_revision: 3, version: 2, lease: 0 };
            writer.load(5, [record]).unwrap();
            notifier::step();
        };
        race(writer, write, move || {
            cache.wait_ready(EVER).unwrap();
            let answer = cache.get("/a", Read::Any).unwrap();
            assert!(answer.revision == 5 && answer.kv.is_some(), "ready without its listing");
            cache
        });
    });
}

/// Status: a source that fails before its listing ends the wait for it.
fn failure_against_wait_ready(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = unlisted();
        let write = |writer: &mut Writer| {
            writer.set_state(SourceState::Failed(Error::new(Code::Unauthenticated, "refused")));
            notifier::step();
        };
        race(writer, write, move || {
            assert_eq!(cache.wait_ready(EVER).unwrap_err().code(), Code::Unauthenticated);
            assert_eq!(cache.status().state, State::Failed);
            cache
        });
    });
}

/// A waiter for revision 2, armed in an armed set.
fn armed(cache: &Cache) -> (WakeSet, Local<Waiter>) {
    let set = WakeSet::new().unwrap();
    let mut waiter = Local::new(cache.waiter(Want::Revision(2)).unwrap());
    set.add_waiter(&mut waiter, 7).unwrap();
    assert!(!waiter.arm().unwrap() && !set.arm());
    (set, waiter)
}

/// Row "pending": the notifier looks while the writer publishes again.
fn notifier_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, _waiter) = armed(&cache);
        put(&mut writer, 1, &["/a"]);
        race(writer, |writer| put(writer, 2, &["/a"]), notifier::step);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
    });
}

/// Rows "pending", "closed": the notifier looks while the cache is closed.
fn notifier_against_close(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, _waiter) = armed(&cache);
        put(&mut writer, 1, &["/a"]);
        let closing = Local::new(cache.clone());
        race(writer, move |_| closing.close(), notifier::step);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
    });
}

/// Row "armed": the two arms of a wake set against a publish.
fn arm_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let mut subscription = follow(&cache);
        set.add(&mut subscription, 7).unwrap();
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            notifier::step();
        };
        let (_writer, (set, sleeps, mut subscription)) = race(writer, write, move || {
            let ready = subscription.arm().unwrap();
            let sleeps = !set.arm();
            assert!(!(ready && sleeps), "a ready member is listed");
            (set, sleeps, subscription)
        });
        if sleeps {
            assert!(set.shared.signal.wait(0), "sleeps for ever");
        }
        assert_eq!(set.take(&mut [0; 4]), 1);
        assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
    });
}

/// Row "notifier: look; fence": a pass that does not see who parks is seen by his look.
fn notifier_against_arm(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let waiting = WakeSet::new().unwrap();
        let mut first = Local::new(cache.waiter(Want::Revision(1)).unwrap());
        waiting.add_waiter(&mut first, 1).unwrap();
        assert!(!first.arm().unwrap());
        put(&mut writer, 1, &["/a"]);
        // The notifier is on its way.
        let set = WakeSet::new().unwrap();
        let mut subscription = follow(&cache);
        set.add(&mut subscription, 7).unwrap();
        let passing = thread::spawn(notifier::step);
        let (_writer, ready) = race(
            writer,
            |writer| put(writer, 2, &["/a"]),
            move || {
                let ready = subscription.arm().unwrap();
                (subscription, ready)
            },
        );
        passing.join().unwrap();
        notifier::step();
        assert!(ready.1 || set.arm(), "lost wake-up");
        drop((cache, first));
    });
}

/// Row "armed": two threads sleep on one set, and one that arms again takes nothing from the other.
fn arms_of_two_threads(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let mut subscription = follow(&cache);
        set.add(&mut subscription, 7).unwrap();
        assert!(!subscription.arm().unwrap());
        // The first thread sleeps, the second arms beside a wake-up.
        assert!(!set.arm());
        let second = set.clone();
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            notifier::step();
        };
        let (_writer, ready) = race(writer, write, move || second.arm());
        // Whoever took nothing leaves the signal to the other.
        assert!(set.shared.signal.wait(0), "sleeps for ever, ready {ready}");
        assert_eq!(set.take(&mut [0; 4]), 1);
    });
}

/// A cache with an index by key.
fn indexed(buckets: usize) -> (Local<Cache>, Local<Writer>) {
    let builder = Cache::builder("/").segment_slots(8).capacity(16).index(Index::key()).max_buckets(buckets);
    let cache = builder.build().unwrap();
    let writer = cache.writer().unwrap();
    (Local::new(cache), Local::new(writer))
}

/// A subscription to one key that has its bucket.
fn chained(cache: &Cache, writer: &mut Writer, key: &str) -> Local<Subscription> {
    let mut subscription = Local::new(cache.subscribe(Start::Now).key(key).open().unwrap());
    put(writer, 1, &["/a"]);
    assert!(subscription.poll(8).unwrap().is_empty());
    assert_eq!(subscription.stats().read_path, ReadPath::Chain { index: "key".into() });
    subscription
}

/// Row "bucket.newest": an event that is reached by its bucket before head has its links.
fn bucket_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let write = |writer: &mut Writer| {
            put(writer, 2, &["/b"]);
            put(writer, 3, &["/b"]);
        };
        let (_writer, (mut subscription, mut seen)) = race(writer, write, move || {
            let seen = read(&subscription.poll(8).unwrap());
            (subscription, seen)
        });
        seen.extend(read(&subscription.poll(8).unwrap()));
        assert_eq!(seen, [2, 3]);
    });
}

/// Row "boundary": what was published before the bucket was there is scanned.
fn bucket_asked_for(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, writer) = indexed(4);
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/b"]);
            put(writer, 2, &["/a"]);
        };
        let (_writer, (mut subscription, mut seen)) = race(writer, write, move || {
            let start = cache.subscribe(Start::After(0)).key("/b").open();
            let mut subscription = Local::new(start.unwrap());
            let seen = read(&subscription.poll(8).unwrap());
            let set = WakeSet::new().unwrap();
            set.add(&mut subscription, 7).unwrap();
            subscription.arm().unwrap();
            ((subscription, cache), seen)
        });
        seen.extend(read(&subscription.0.poll(8).unwrap()));
        assert_eq!(seen, [1], "an event below the boundary");
    });
}

/// Row "fence; waiting", at a bucket.
fn bucket_wait_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let write = |writer: &mut Writer| {
            put(writer, 2, &["/b"]);
            notifier::step();
        };
        race(writer, write, move || {
            assert!(subscription.wait(EVER).unwrap());
            assert_eq!(read(&subscription.poll(8).unwrap()), [2]);
        });
    });
}

/// A waiter that scanned while it had no bucket is handed over by the notifier, and misses nothing.
fn bucket_handed_over(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let set = WakeSet::new().unwrap();
        let mut subscription = Local::new(cache.subscribe(Start::Now).key("/b").open().unwrap());
        set.add(&mut subscription, 7).unwrap();
        assert!(!subscription.arm().unwrap() && !set.arm());
        put(&mut writer, 1, &["/a"]);
        race(writer, |writer| put(writer, 2, &["/b"]), notifier::step);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
    });
}

/// Row "mark.newest": no event of a new epoch before its bracket.
fn mark_against_chain(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = indexed(4);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let write = |writer: &mut Writer| {
            let (key, value) = (&b"/b"[..], &b"9"[..]);
            let record = Record { key, value, create_revision: 9, mod_revision: 9, version: 1, lease: 0 };
            writer.resync(9, [record], ResyncReason::Requested).unwrap();
        };
        race(writer, write, move || {
            let kinds: Vec<Kind> = subscription.poll(8).unwrap().events().iter().map(Event::kind).collect();
            assert!(kinds.is_empty() || kinds == [Kind::Resync, Kind::Added, Kind::Resync], "{kinds:?}");
        });
    });
}

/// A bucket in use stays, whoever asks for another meanwhile.
fn bucket_evicted(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, mut writer) = indexed(1);
        let mut subscription = chained(&cache, &mut writer, "/b");
        let (writer, mut other) = race(
            writer,
            |writer| put(writer, 2, &["/c"]),
            move || {
                let start = cache.subscribe(Start::After(1)).key("/c").open();
                (Local::new(start.unwrap()), cache)
            },
        );
        let mut writer = writer;
        put(&mut writer, 3, &["/b", "/c"]);
        assert_eq!(read(&subscription.poll(8).unwrap()), [3], "its bucket is gone");
        assert_eq!(read(&other.0.poll(8).unwrap()), [2, 3]);
    });
}

/// Row "inbox": what is taken is complete, and taken once.
fn inbox_push_against_take(weakened: Weak) {
    PLAIN.run(weakened, || {
        let inbox = std::sync::Arc::new(Local::new(sync::Inbox::new()));
        let tracked = || Box::new((reclaim::Track::new(), 1));
        let pushing = {
            let inbox = inbox.clone();
            thread::spawn(move || {
                inbox.push(tracked());
                inbox.push(tracked());
            })
        };
        inbox.push(tracked());
        let take = || inbox.take_all().into_iter().map(|value| (value.0.read(), value.1).1).sum::<u32>();
        let first = take();
        pushing.join().unwrap();
        assert_eq!(first + take(), 3, "each value is taken once");
    });
}

/// Row "version count": everything that was read happens before the free.
fn version_count(weakened: Weak) {
    PLAIN.run(weakened, || {
        let meta = KeyMeta { create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
        let version = Version::new(b"/a", Some(b"x"), meta, 1, VersionPtr::NULL);
        let other = version.clone();
        let reading = thread::spawn(move || assert_eq!(other.value(), Some(&b"x"[..])));
        assert_eq!(version.key(), b"/a");
        drop(version);
        reading.join().unwrap();
    });
}

/// A test, and its twins: one order weakened each, and what fails then.
macro_rules! proof {
    ($model:ident, $name:ident $(, $twin:ident: $site:ident $($of:literal)? => $failure:literal)* $(,)?) => {
        #[test]
        fn $name() {
            $model(NOTHING);
        }
        $(
            #[test]
            #[should_panic(expected = $failure)]
            fn $twin() {
                $model((Site::$site, concat!($($of)?)));
            }
        )*
    };
}

proof!(
    inbox_push_against_take, loom_inbox,
    loom_inbox_weak_push: InboxPush => "Causality violation",
    loom_inbox_weak_take: InboxTake => "Causality violation",
);
proof!(
    publish_against_poll, loom_publish_against_poll,
    loom_publish_against_poll_weak_head: Head => "Causality violation",
    loom_publish_against_poll_weak_load: HeadLoad => "Causality violation",
);
proof!(
    revision_is_whole, loom_revision_is_whole,
    loom_revision_is_whole_weak_head: Head => "Causality violation",
);
proof!(
    version_reached_early, loom_version_reached_early,
    loom_version_reached_early_weak_newest: Newest => "Causality violation",
    loom_version_reached_early_weak_load: NewestLoad => "Causality violation",
);
proof!(
    entry_of_a_newer_lap, loom_entry_of_a_newer_lap,
    loom_entry_of_a_newer_lap_weak_entry: Entry => "Causality violation",
    loom_entry_of_a_newer_lap_weak_load: EntryLoad => "Causality violation",
);
proof!(
    segment_against_retirement, loom_segment_against_retirement,
    loom_segment_against_retirement_without_grace: Grace => "",
);
proof!(
    snapshot_against_a_new_segment, loom_snapshot_against_a_new_segment,
    loom_snapshot_against_a_new_segment_weak_token: Replace "RetentionToken" => "Causality violation",
    loom_snapshot_against_a_new_segment_weak_load: Load "RetentionToken" => "Causality violation",
);
proof!(
    snapshot_is_whole, loom_snapshot_is_whole,
    loom_snapshot_is_whole_weak_newest: NewestLoad => "Causality violation",
);
proof!(
    forgetting_against_get, loom_forgetting_against_get,
    loom_forgetting_against_get_weak_root: Replace "Root" => "Causality violation",
);
proof!(
    forgetting_against_an_older_root, loom_forgetting_against_an_older_root,
    loom_forgetting_against_an_older_root_without_grace: Grace => "",
);
proof!(
    new_keys_against_list, loom_new_keys_against_list,
    loom_new_keys_against_list_weak_root: Replace "Root" => "Causality violation",
    loom_new_keys_against_list_weak_load: Load "Root" => "Causality violation",
);
proof!(
    retiring_against_list, loom_retiring_against_list,
    loom_retiring_against_list_pushed_early: PushEarly => "used after it was freed",
);
proof!(
    growing_directory, loom_growing_directory,
    loom_growing_directory_weak_directory: Replace "Directory" => "Causality violation",
    loom_growing_directory_weak_load: Load "Directory" => "Causality violation",
);
proof!(
    resync_against_position, loom_resync_against_position,
    loom_resync_against_position_weak_history: Replace "Epochs" => "Causality violation",
);
proof!(
    reset_against_exact, loom_reset_against_exact,
    loom_reset_against_exact_weak_oldest: Oldest => "compacted by a reset that is not there",
);
proof!(
    progress_against_head, loom_progress_against_head,
    loom_progress_against_head_weak_progress: Progress => "a position beyond an event",
    loom_progress_against_head_weak_load: ProgressLoad => "a position beyond an event",
);
proof!(
    close_against_poll, loom_close_against_poll,
    loom_close_against_poll_weak_head: Head => "Causality violation",
    loom_close_against_poll_weak_load: HeadLoad => "Causality violation",
);
proof!(
    close_against_publish, loom_close_against_publish,
    loom_close_against_publish_blind: BlindPublish => "an event follows CLOSED",
);
proof!(
    closer_against_poll, loom_closer_against_poll,
    loom_closer_against_poll_weak_end: End => "closed before the last event",
    loom_closer_against_poll_weak_load: EndLoad => "closed before the last event",
);
proof!(
    closer_against_wait, loom_closer_against_wait,
    loom_closer_against_wait_weak_load: EndLoad => "closed before the last event",
);
proof!(
    wait_against_publish, loom_wait_against_publish,
    loom_wait_against_publish_weak_writer: PublishFence => "deadlock",
    loom_wait_against_publish_weak_waiter: RegisterFence => "deadlock",
);
proof!(
    listing_against_wait_ready, loom_listing_against_wait_ready,
    loom_listing_against_wait_ready_weak_ready: Ready => "ready without its listing",
);
proof!(failure_against_wait_ready, loom_failure_against_wait_ready);
proof!(
    notifier_against_publish, loom_notifier_against_publish,
    loom_notifier_against_publish_weak_pending: NotifierPending => "lost wake-up",
);
proof!(
    notifier_against_close, loom_notifier_against_close,
    loom_notifier_against_close_weak_pending: NotifierPending => "lost wake-up",
);
proof!(
    notifier_against_arm, loom_notifier_against_arm,
    loom_notifier_against_arm_weak_notifier: NotifierFence => "lost wake-up",
);
proof!(
    arms_of_two_threads, loom_arms_of_two_threads,
    loom_arms_of_two_threads_late_drain: DrainLate => "sleeps for ever",
);
proof!(
    arm_against_publish, loom_arm_against_publish,
    loom_arm_against_publish_late_drain: DrainLate => "sleeps for ever",
    loom_arm_against_publish_weak_waiter: RegisterFence => "sleeps for ever",
);
proof!(
    bucket_against_poll, loom_bucket_against_poll,
    loom_bucket_against_poll_weak_newest: BucketNewest => "",
    loom_bucket_against_poll_weak_load: BucketNewestLoad => "",
);
proof!(
    bucket_asked_for, loom_bucket_asked_for,
    loom_bucket_asked_for_weak_answer: Answer => "Causality violation",
    loom_bucket_asked_for_weak_load: AnswerLoad => "Causality violation",
    loom_bucket_asked_for_early_boundary: EarlyBoundary => "an event below the boundary",
);
proof!(
    bucket_wait_against_publish, loom_bucket_wait_against_publish,
    loom_bucket_wait_against_publish_weak_writer: PublishFence => "deadlock",
    loom_bucket_wait_against_publish_weak_waiter: RegisterFence => "deadlock",
);
proof!(
    bucket_handed_over, loom_bucket_handed_over,
    loom_bucket_handed_over_weak_notifier: HandOver => "lost wake-up",
);
proof!(
    mark_against_chain, loom_mark_against_chain,
    loom_mark_against_chain_weak_head: Head => "",
);
proof!(
    bucket_evicted, loom_bucket_evicted,
    loom_bucket_evicted_in_use: EvictUsed => "its bucket is gone",
);
proof!(
    version_count, loom_version_count,
    loom_version_count_weak_give_back: GiveBack => "Causality violation",
    loom_version_count_weak_last: GiveBackLast => "Causality violation",
);
