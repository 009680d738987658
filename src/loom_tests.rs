//! The atomics under loom: the shipped types, and each order seen to matter.

use crate::event::ResyncReason;
use crate::store::version::{KeyValue as Version, Numbers, VersionPtr};
use crate::sync::Relaxed;
use crate::sync::weak::{self, Site};
use crate::wake::notifier;
use crate::*;
use loom::thread;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

const EVER: Duration = Duration::MAX;

/// An order to weaken: its name, and the type where it is one of several of that name.
type Weak = (Site, &'static str);
const NOTHING: Weak = (Site::Nothing, "");

/// How a model is run.
struct Model {
    /// Preemptions explored.
    bound: usize,
    /// Whether retired things are freed meanwhile: then pins are steps too.
    collects: bool,
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
    fn run(self, weakened: Weak, body: impl Fn() + Send + Sync + 'static) {
        let _clean = Clean;
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(self.bound);
        builder.max_branches = 50_000;
        let executions = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = executions.clone();
        weak::choose(weakened.0, weakened.1);
        let began = std::time::Instant::now();
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

const PLAIN: Model = Model { bound: 3, collects: false };
const COLLECTS: Model = Model { bound: 3, collects: true };

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

/// Writes on another thread, which hands the writer back: its drop is no part of the model.
fn write(mut writer: Local<Writer>, body: impl FnOnce(&mut Writer) + 'static) -> thread::JoinHandle<Local<Writer>> {
    thread::spawn(move || {
        body(&mut writer);
        writer
    })
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

/// Row "head", "event, prev, links": what lies below head is complete.
fn publish_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let writing = write(writer, |writer| {
            put(writer, 1, &["/a"]);
            put(writer, 2, &["/a"]);
        });
        let mut seen = read(&subscription.poll(8).unwrap());
        drop(writing.join());
        seen.extend(read(&subscription.poll(8).unwrap()));
        assert_eq!(seen, [1, 2]);
    });
}

/// Row "head": a revision appears whole, also where it straddles segments.
fn revision_is_whole(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(2, 4);
        put(&mut writer, 1, &["/a"]);
        let mut subscription = follow(&cache);
        let writing = write(writer, |writer| put(writer, 2, &["/a", "/b"]));
        let first = subscription.poll(8).unwrap();
        if !first.is_empty() {
            assert!(first.continues() && read(&first) == [2] && first.position().revision == 1);
            let second = subscription.poll(8).unwrap();
            assert!(read(&second) == [2] && second.position().revision == 2, "half a revision");
        }
        drop(writing.join());
    });
}

/// Row "slot.newest": a version that is reached before the head that covers it.
fn version_reached_early(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/a"]);
        let writing = write(writer, |writer| put(writer, 2, &["/a"]));
        let answer = cache.get("/a", Read::Any).unwrap();
        let kv = answer.kv.unwrap();
        assert_eq!(kv.mod_revision(), answer.revision);
        assert_eq!(kv.value().unwrap(), answer.revision.to_string().as_bytes());
        drop(writing.join());
    });
}

/// Row "directory entry": the base of a newer lap is complete.
fn entry_of_a_newer_lap(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/a"]);
        let writing = write(writer, |writer| put(writer, 3, &["/a"]));
        match subscription.poll(8) {
            Ok(batch) => assert_eq!(read(&batch), [1]),
            Err(error) => assert_eq!(error.code(), Code::Lagged),
        }
        drop(writing.join());
    });
}

/// Section 3, "the delicate step": a counted reference out of the directory, and what a batch holds,
/// against eviction and freeing.
fn segment_against_retirement(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/a"]);
        let writing = write(writer, |writer| {
            put(writer, 3, &["/a"]);
            reclaim::collect();
        });
        let batch = subscription.poll(8);
        match &batch {
            Ok(batch) => assert_eq!(read(batch), [1]),
            Err(error) => assert_eq!(error.code(), Code::Lagged),
        }
        let writer = writing.join().unwrap();
        batch.iter().for_each(|batch| assert_eq!(read(batch), [1]));
        drop((batch, writer));
    });
}

/// Row "token": a snapshot keeps every segment from its head on, whatever is published meanwhile.
fn snapshot_against_a_new_segment(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/a"]);
        let writing = write(writer, |writer| {
            (2..5).for_each(|revision| put(writer, revision, &["/a"]));
            reclaim::collect();
        });
        let snapshot = cache.snapshot().unwrap();
        let revision = snapshot.revision();
        let writer = writing.join().unwrap();
        reclaim::collect();
        assert_eq!(snapshot.get("/a").unwrap().mod_revision(), revision);
        drop((snapshot, writer));
    });
}

/// Rows "head", "slot.newest": a snapshot taken while a revision is applied has all of it or nothing.
fn snapshot_is_whole(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/a", "/b"]);
        let writing = write(writer, |writer| put(writer, 2, &["/a", "/b", "/c"]));
        let snapshot = cache.snapshot().unwrap();
        let revision = snapshot.revision();
        assert!(snapshot.iter().all(|kv| kv.mod_revision() == revision));
        assert_eq!(snapshot.len() as u64, 1 + revision);
        drop(writing.join());
    });
}

/// Row "oldest_seq, then forget": a key is absent at h only if that is so.
fn forgetting_against_get(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/b"]);
        put(&mut writer, 2, &["/a"]);
        let writing = write(writer, |writer| {
            writer.apply(3, [Change::delete("/a")]).unwrap();
            // The third finds the tombstone out of the window.
            (4..7).for_each(|revision| put(writer, revision, &["/b"]));
        });
        let answer = cache.get("/a", Read::Any).unwrap();
        assert_eq!(answer.kv.is_some(), answer.revision == 2, "absent at a head at which it lives");
        drop(writing.join());
    });
}

/// Rows "root", "token": a forgotten slot outlives every reader whose root still has it.
fn forgetting_against_an_older_root(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/a"]);
        writer.apply(2, [Change::delete("/a")]).unwrap();
        (3..5).for_each(|revision| put(&mut writer, revision, &["/b"]));
        let writing = write(writer, |writer| {
            // The first forgets; its segment, which keeps the slot, goes with the third.
            (5..8).for_each(|revision| put(writer, revision, &["/b"]));
            reclaim::collect();
        });
        let snapshot = cache.snapshot().unwrap();
        let writer = writing.join().unwrap();
        reclaim::collect();
        assert!(snapshot.get("/a").is_none());
        assert_eq!(snapshot.get("/b").unwrap().mod_revision(), snapshot.revision());
        drop((snapshot, writer));
    });
}

/// Row "root": keys that appear, against a list.
fn new_keys_against_list(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let writing = write(writer, |writer| put(writer, 1, &["/a", "/b"]));
        let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
        assert_eq!(page.len() as u64, 2 * page.revision());
        drop(writing.join());
    });
}

/// Row "directory": a longer directory, put in place for a revision longer than the ring, against a
/// list (the position reads the log) and a poll at the oldest event: nothing is taken for a lap.
fn growing_directory(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        let writing = write(writer, |writer| put(writer, 2, &["/a", "/b", "/c"]));
        let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
        assert!(matches!((page.revision(), page.len()), (1, 1) | (2, 3)));
        assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
        drop(writing.join());
    });
}

/// Row "root, table, directory, token" (the epochs are published like them): a position is of one
/// history, and never goes back.
fn resync_against_position(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 5, &["/a"]);
        let before = cache.position();
        let writing = write(writer, |writer| {
            writer.resync(3, [], ResyncReason::Requested).unwrap();
        });
        let (first, second) = (cache.position(), cache.position());
        for position in [first, second] {
            let turned = position.epoch == before.epoch + 1;
            assert_eq!(position.revision, if turned { 3 } else { 5 });
        }
        assert!(first <= second);
        drop(writing.join());
    });
}

/// Row "progress": no bookmark beyond what was handed out.
fn progress_against_head(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let writing = write(writer, |writer| {
            put(writer, 1, &["/a"]);
            writer.progress(5).unwrap();
        });
        let batch = subscription.poll(8).unwrap();
        let position = batch.position().revision;
        assert_eq!(position > 0, !batch.is_empty(), "a position beyond an event that was not handed out");
        drop(writing.join());
    });
}

/// Row "closed": what was published before the close is handed out before CLOSED.
fn close_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let writing = write(writer, |writer| put(writer, 1, &["/a"]));
        // On a thread of its own: the writer's fence would stand in for the order.
        let closing = Local::new(cache.clone());
        let closing = thread::spawn(move || {
            if closing.position().revision == 1 {
                closing.close();
            }
            closing
        });
        let mut seen = 0;
        for _ in 0..2 {
            match subscription.poll(8) {
                Ok(batch) => seen += batch.len(),
                Err(error) => assert!(error.code() == Code::Closed && seen == 1, "closed before the last event"),
            }
        }
        drop((writing.join(), closing.join()));
    });
}

/// Row "closed", for one subscription: its end and the head.
fn closer_against_poll(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let writing = write(writer, |writer| put(writer, 1, &["/a"]));
        let closer = Local::new(subscription.closer());
        let closing = thread::spawn(move || {
            if closer.position().revision == 0 && closer.lag().events == 1 {
                closer.close();
            }
            closer
        });
        let mut seen = 0;
        for _ in 0..2 {
            match subscription.poll(8) {
                Ok(batch) => seen += batch.len(),
                Err(error) => assert!(error.code() == Code::Closed && seen == 1, "closed before the last event"),
            }
        }
        drop((writing.join(), closing.join()));
    });
}

/// Close of one subscription, against its wait: the wait ends, with everything before it.
fn closer_against_wait(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = follow(&cache);
        let closer = Local::new(subscription.closer());
        let writing = write(writer, move |writer| {
            put(writer, 1, &["/a"]);
            closer.close();
            notifier::step();
        });
        let mut seen = 0;
        while subscription.wait(EVER).is_ok() {
            seen += subscription.poll(8).unwrap().len();
        }
        assert_eq!(seen, 1, "closed before the last event");
        drop(writing.join());
    });
}

/// Row "fence; waiting.load": who parks is woken by what is published.
fn wait_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = Local::new(cache.subscribe(Start::Now).key("/b").open().unwrap());
        let writing = write(writer, |writer| {
            put(writer, 1, &["/b"]);
            notifier::step();
        });
        assert!(subscription.wait(EVER).unwrap());
        assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
        drop(writing.join());
    });
}

/// Rows "ready", "fence; waiting.load": the listing, against who waits for it.
fn listing_against_wait_ready(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = unlisted();
        let writing = write(writer, |writer| {
            let (key, value) = (&b"/a"[..], &b"x"[..]);
            let record = Record { key, value, create_revision: 2, mod_revision: 3, version: 2, lease: 0 };
            writer.load(5, [record]).unwrap();
            notifier::step();
        });
        cache.wait_ready(EVER).unwrap();
        let answer = cache.get("/a", Read::Any).unwrap();
        assert!(answer.revision == 5 && answer.kv.is_some(), "ready without its listing");
        drop(writing.join());
    });
}

/// Status: a source that fails before its listing ends the wait for it.
fn failure_against_wait_ready(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = unlisted();
        let writing = write(writer, |writer| {
            writer.set_state(SourceState::Failed(Error::new(Code::Unauthenticated, "refused")));
            notifier::step();
        });
        assert_eq!(cache.wait_ready(EVER).unwrap_err().code(), Code::Unauthenticated);
        drop(writing.join());
    });
}

/// Row "pending": the notifier looks while the writer publishes again.
fn notifier_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let mut waiter = cache.waiter(Want::Revision(2)).unwrap();
        set.add_waiter(&mut waiter, 7).unwrap();
        assert!(!waiter.arm().unwrap() && !set.arm());
        put(&mut writer, 1, &["/a"]);
        let writing = write(writer, |writer| put(writer, 2, &["/a"]));
        notifier::step();
        let writer = writing.join().unwrap();
        notifier::step();
        assert!(set.arm(), "lost wake-up");
        drop(writer);
    });
}

/// Rows "pending", "closed": the notifier looks while the cache is closed.
fn notifier_against_close(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let mut subscription = Local::new(cache.subscribe(Start::Now).key("/b").open().unwrap());
        set.add(&mut subscription, 7).unwrap();
        assert!(!subscription.arm().unwrap() && !set.arm());
        put(&mut writer, 1, &["/a"]);
        let closing = Local::new(cache.clone());
        let writing = write(writer, move |_| closing.close());
        notifier::step();
        let writer = writing.join().unwrap();
        notifier::step();
        assert!(set.arm(), "lost wake-up");
        drop(writer);
    });
}

/// Row "armed": the two arms of a wake set against a publish and a close.
fn arm_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let mut subscription = follow(&cache);
        set.add(&mut subscription, 7).unwrap();
        let writing = write(writer, |writer| {
            put(writer, 1, &["/a"]);
            notifier::step();
        });
        let ready = subscription.arm().unwrap();
        let sleeps = !set.arm();
        assert!(!(ready && sleeps), "a ready member is listed");
        let writer = writing.join().unwrap();
        if sleeps {
            assert!(set.shared.signal.wait(0), "sleeps for ever");
        }
        assert!(set.take(&mut [0; 4]) > 0);
        assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
        drop(writer);
    });
}

/// Row "version count": everything that was read happens before the free.
fn version_count(weakened: Weak) {
    PLAIN.run(weakened, || {
        let numbers = Numbers { create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
        let version = Version::new(b"/a", Some(b"x"), numbers, 1, VersionPtr::NULL);
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
    loom_snapshot_against_a_new_segment_weak_token: Replace "TokenRef" => "Causality violation",
    loom_snapshot_against_a_new_segment_weak_load: Load "TokenRef" => "Causality violation",
);
proof!(
    snapshot_is_whole, loom_snapshot_is_whole,
    loom_snapshot_is_whole_weak_head: Head => "kv.mod_revision() == revision",
);
proof!(
    forgetting_against_get, loom_forgetting_against_get,
    loom_forgetting_against_get_weak_root: Replace "Index" => "Causality violation",
);
proof!(
    forgetting_against_an_older_root, loom_forgetting_against_an_older_root,
    loom_forgetting_against_an_older_root_without_grace: Grace => "",
);
proof!(
    new_keys_against_list, loom_new_keys_against_list,
    loom_new_keys_against_list_weak_root: Replace "Index" => "Causality violation",
    loom_new_keys_against_list_weak_load: Load "Index" => "Causality violation",
);
proof!(
    growing_directory, loom_growing_directory,
    loom_growing_directory_weak_directory: Replace "Directory" => "Causality violation",
    loom_growing_directory_weak_load: Load "Directory" => "Causality violation",
);
proof!(
    resync_against_position, loom_resync_against_position,
    loom_resync_against_position_weak_history: Replace "History" => "Causality violation",
);
proof!(
    progress_against_head, loom_progress_against_head,
    loom_progress_against_head_weak_progress: Progress => "a position beyond an event",
    loom_progress_against_head_weak_load: ProgressLoad => "a position beyond an event",
);
proof!(
    close_against_poll, loom_close_against_poll,
    loom_close_against_poll_weak_closed: Closed => "closed before the last event",
    loom_close_against_poll_weak_load: ClosedLoad => "closed before the last event",
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
    loom_listing_against_wait_ready_weak_writer: PublishFence => "deadlock",
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
    arm_against_publish, loom_arm_against_publish,
    loom_arm_against_publish_late_drain: DrainLate => "sleeps for ever",
    loom_arm_against_publish_weak_waiter: RegisterFence => "sleeps for ever",
);
proof!(
    version_count, loom_version_count,
    loom_version_count_weak_give_back: GiveBack => "Causality violation",
    loom_version_count_weak_last: GiveBackLast => "Causality violation",
);
