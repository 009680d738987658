//! Sections 5 and 6: tasks and threads that are woken, by whoever looks, each for its own.

use crate::tools::*;
use std::collections::BTreeSet;
#[cfg(feature = "async")]
use std::sync::Arc;
#[cfg(feature = "async")]
use std::time::Instant;
use watchcore::raw::TestBuilder as _;
use watchcore::*;

#[cfg(feature = "async")]
#[test]
fn a_task_that_goes_with_its_waker_may_wait_itself() {
    struct Waits {
        _held: std::sync::Mutex<Subscription>,
    }
    impl std::task::Wake for Waits {
        fn wake(self: Arc<Self>) {}
    }
    let (cache, _writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut other = cache.subscribe(Start::Now).open().unwrap();
    set.add(&mut other, 1).unwrap();
    assert!(!other.arm().unwrap());
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let waker = std::task::Waker::from(Arc::new(Waits { _held: other.into() }));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(futures_core::Stream::poll_next(std::pin::Pin::new(&mut one), &mut context).is_pending());
    drop(waker);
    in_time(|| drop(one));
    assert_eq!(cache.stats().waiting, 0);
}

/// Few are woken by the writer, more by the notifier, one who has just come by either; in groups and at buckets.
#[test]
fn each_is_woken_whoever_looks() {
    for key in [None, Some("/a")] {
        let cache = Cache::builder("/").index(Index::key()).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut members: Vec<(WakeSet, Subscription)> = Vec::new();
        for revision in 1..=40 {
            if revision % 4 == 1 {
                let open = cache.subscribe(Start::Now);
                let open = if let Some(key) = key { open.key(key) } else { open };
                let (set, mut one) = (WakeSet::new().unwrap(), open.open().unwrap());
                set.add(&mut one, revision).unwrap();
                members.push((set, one));
            }
            for (set, one) in &mut members {
                assert!(!one.arm().unwrap() && !set.arm());
            }
            writer.apply(revision, [Change::put("/a", "v")]).unwrap();
            for (at, (set, one)) in members.iter_mut().enumerate() {
                assert!(set.wait(BOUND), "member {at} of {key:?} at revision {revision}");
                assert_eq!((set.take(&mut [0; 4]), one.poll(10).unwrap().len()), (1, 1));
            }
        }
    }
}

/// Tasks are foreign code, and called by the notifier: one that the writer has found among others, too.
#[cfg(feature = "async")]
#[test]
fn a_task_is_woken_beside_those_that_the_writer_wakes() {
    let (cache, mut writer) = embedded();
    let (set, mut member) = (WakeSet::new().unwrap(), cache.subscribe(Start::Now).open().unwrap());
    set.add(&mut member, 1).unwrap();
    let mut task = cache.subscribe(Start::Now).open().unwrap();
    let (bell, rings) = crate::bell::bell();
    for revision in 1..=20 {
        assert!(!member.arm().unwrap() && !set.arm());
        assert!(crate::bell::once(&mut task, &bell).is_pending());
        write(&mut writer, [revision]);
        rings.recv_timeout(BOUND).expect("the task is woken");
        assert!(set.wait(BOUND));
        assert_eq!((set.take(&mut [0; 4]), member.poll(10).unwrap().len()), (1, 1));
        assert!(crate::bell::once(&mut task, &bell).is_ready());
    }
}

/// A waker that says on which thread it was called, and then does what an executor would not.
#[cfg(feature = "async")]
struct Tells<F>(std::sync::mpsc::Sender<std::thread::ThreadId>, F);

#[cfg(feature = "async")]
impl<F: Fn() + Send + Sync> std::task::Wake for Tells<F> {
    fn wake(self: Arc<Self>) {
        self.0.send(std::thread::current().id()).unwrap();
        self.1();
    }
}

/// Publishes for a task that sleeps until `done`, and gives it the threads on which its waker was called so far.
#[cfg(feature = "async")]
fn wake_a_task(
    cache: &Cache,
    also: impl Fn() + Send + Sync + 'static,
    done: impl Fn(&[std::thread::ThreadId]) -> bool,
) {
    use futures_core::Stream;
    let mut writer = cache.writer().unwrap();
    let mut task = std::pin::pin!(cache.subscribe(Start::Now).open().unwrap());
    let (called, calls) = std::sync::mpsc::channel();
    let waker = std::task::Waker::from(Arc::new(Tells(called, also)));
    let mut context = std::task::Context::from_waker(&waker);
    let (mut threads, until) = (Vec::new(), Instant::now() + BOUND);
    for revision in 1.. {
        assert!(task.as_mut().poll_next(&mut context).is_pending());
        writer.apply(revision, [Change::put("/a", "v")]).unwrap();
        threads.push(calls.recv_timeout(BOUND).expect("the task is woken"));
        let std::task::Poll::Ready(Some(batch)) = task.as_mut().poll_next(&mut context) else { panic!("{revision}") };
        assert_eq!(batch.unwrap().len(), 1);
        if done(&threads) {
            break;
        }
        assert!(Instant::now() < until, "{revision} wake-ups");
    }
}

/// The publisher calls the waker of a task where the cache trusts it, and there alone.
#[cfg(feature = "async")]
#[test]
fn wakers_that_are_trusted_are_called_by_the_publisher() {
    let own = std::thread::current().id();
    let cache = Cache::builder("/").trust_wakers(true).build().unwrap();
    wake_a_task(&cache, || (), |threads| threads.contains(&own));
    let cache = Cache::builder("/").build().unwrap();
    wake_a_task(
        &cache,
        || (),
        |threads| {
            assert!(!threads.contains(&own));
            threads.len() == 200
        },
    );
}

/// A task that sleeps on the publisher's thread is woken there, however fast one publish follows another.
#[cfg(feature = "async")]
#[test]
fn publisher_wakes_a_task_of_its_own_thread_in_a_burst() {
    let own = std::thread::current().id();
    let cache = Cache::builder("/").trust_wakers(true).build().unwrap();
    wake_a_task(&cache, || (), |threads| threads.ends_with(&[own; 100]));
}

/// On the publisher's thread, too: what is published stands, and the writer goes on.
#[cfg(feature = "async")]
#[test]
fn a_trusted_waker_may_panic_read_and_close() {
    let own = std::thread::current().id();
    let cache = Cache::builder("/").trust_wakers(true).build().unwrap();
    let (caught, reader) = (cache.stats().caught_panics, cache.clone());
    let reads_and_panics = move || {
        let mut other = reader.subscribe(Start::State).open().unwrap();
        assert_eq!(other.poll(10).unwrap().len(), 2);
        other.closer().close();
        panic!("a waker's own");
    };
    wake_a_task(&cache, reads_and_panics, |threads| threads.contains(&own));
    assert!(cache.stats().caught_panics > caught);
}

#[test]
fn whoever_waits_for_one_key_sleeps_while_the_log_goes_round() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let set = WakeSet::new().unwrap();
    let mut both = ["/one", "/two"].map(|key| cache.subscribe(Start::Now).key(key).open().unwrap());
    write(&mut writer, [1]);
    for (tag, one) in both.iter_mut().enumerate() {
        assert!(one.poll(1).unwrap().is_empty());
        assert!(matches!(one.stats().read_path, ReadPath::Chain { .. }));
        set.add(one, tag as u64).unwrap();
        assert!(!one.arm().unwrap());
    }
    write(&mut writer, 2..=1000);
    writer.apply(1001, [Change::put("/two", "x")]).unwrap();
    assert!(set.wait(BOUND));
    let mut tags = [9; 2];
    assert_eq!((set.take(&mut tags), tags[0]), (1, 1));
    assert_eq!(drain(&mut both[1]), ["1001 ADDED /two=x"]);
    assert!(drain(&mut both[0]).is_empty());
    assert_eq!(both[0].position().revision, 1001);
}

/// More sleep at one bucket than are looked at while an event is visited: those who take all of it, and those who ask a filter,
/// each for its own events.
#[test]
fn many_at_one_bucket_are_each_woken_for_their_own() {
    let cache = Cache::builder("/").index(Index::prefix(1)).build().unwrap();
    let mut writer = cache.writer().unwrap();
    const WHOLE: u64 = 1500;
    let whole = (0..WHOLE).map(|_| "/a/".to_owned());
    let filtered = (0..30).map(|number| format!("/a/{number:02}/"));
    let mut all: Vec<_> =
        whole.chain(filtered).map(|prefix| cache.subscribe(Start::Now).prefix(prefix).open().unwrap()).collect();
    let set = WakeSet::new().unwrap();
    // The writer answers some of those who ask for a bucket with each revision.
    for revision in 1..=400 {
        writer.apply(revision, [Change::put("/b/x", "")]).unwrap();
    }
    for (tag, one) in (0..).zip(&mut all) {
        assert!(one.poll(1).unwrap().is_empty());
        assert_eq!(one.stats().read_path, ReadPath::Chain { index: "prefix of depth 1".into() });
        set.add(one, tag).unwrap();
        assert!(!one.arm().unwrap());
    }
    // The last of many events in one revision, and of one.
    for (revision, others, wanted) in [(401, 0, 7), (402, 500, 29), (403, 0, 0)] {
        let others = (0..others).map(|number| format!("/a/x/{number}"));
        let keys: Vec<_> = others.chain([format!("/a/{wanted:02}/y")]).collect();
        writer.apply(revision, keys.iter().map(|key| Change::put(key, "x"))).unwrap();
        let mut woken = BTreeSet::new();
        let mut tags = [0; 256];
        while woken.len() < WHOLE as usize + 1 {
            assert!(set.wait(BOUND), "{} are woken", woken.len());
            let count = set.take(&mut tags);
            woken.extend(tags[..count].iter().copied());
        }
        assert_eq!(woken, (0..WHOLE).chain([WHOLE + wanted]).collect(), "at revision {revision}");
        for tag in woken {
            let one = &mut all[tag as usize];
            assert_eq!(drain(one).len(), if tag < WHOLE && revision == 402 { 501 } else { 1 });
            assert!(!one.arm().unwrap());
        }
        assert!(!set.arm(), "nobody else is woken");
    }
}
