//! The work queue: each key once, never two workers at one key, failed keys later.

use crate::clocks::MovesAtEachLook;
use crate::script::{PanicsWoken, Woken};
use std::collections::HashSet;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use watchcore::Code;
use watchcore_toolkit::{
    Clock, ExponentialLimiter, LongestDelay, ManualClock, RateLimiter, TokenBucket, WorkItem, WorkQueue,
};

const SOON: Duration = Duration::from_secs(30);

fn with_clock() -> (WorkQueue<&'static str>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    (WorkQueue::builder().clock(clock.clone()).build(), clock)
}

fn take(queue: &WorkQueue<&'static str>) -> WorkItem<&'static str> {
    match queue.try_get() {
        Poll::Ready(Some(item)) => item,
        other => panic!("expected a key, got {other:?}"),
    }
}

/// Many producers and many workers: each key is processed after its last addition, and never by two at once.
#[test]
fn wq_01_two_workers_never_share_a_key() {
    let queue = WorkQueue::new();
    let busy = Arc::new(Mutex::new(HashSet::new()));
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (queue, busy) = (queue.clone(), Arc::clone(&busy));
            thread::spawn(move || {
                let mut seen = HashSet::new();
                while let Some(item) = queue.get(SOON).unwrap() {
                    assert!(busy.lock().unwrap().insert(*item), "{} is processed twice at once", *item);
                    thread::yield_now();
                    assert!(busy.lock().unwrap().remove(&*item));
                    seen.insert(*item);
                }
                seen
            })
        })
        .collect();
    let producers: Vec<_> = (0..8u32)
        .map(|one| {
            let queue = queue.clone();
            thread::spawn(move || (0..1000).for_each(|key| queue.add((key + one) % 100)))
        })
        .collect();
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    queue.shut_down();
    let all: HashSet<u32> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    assert_eq!(all, (0..100).collect());
}

#[test]
fn wq_02_added_while_processed_comes_again_afterwards() {
    let (queue, _) = with_clock();
    queue.add("a");
    let item = take(&queue);
    queue.add("a");
    queue.add("a");
    assert!(queue.try_get().is_pending(), "its worker has it");
    drop(item);
    assert_eq!(*take(&queue), "a");
    assert!(queue.try_get().is_pending());
}

#[test]
fn wq_03_len_counts_what_can_be_taken() {
    let (queue, _) = with_clock();
    queue.add("a");
    queue.add("b");
    queue.add("a");
    assert_eq!(queue.len(), 2);
    let item = take(&queue);
    queue.add("a");
    assert_eq!((queue.len(), queue.stats().processing), (1, 1));
    drop(item);
    assert_eq!((queue.len(), queue.is_empty()), (2, false));
}

/// A key that comes back goes behind those that waited meanwhile.
#[test]
fn wq_04_order_is_first_in_first_out() {
    let (queue, _) = with_clock();
    ["a", "b", "c"].into_iter().for_each(|key| queue.add(key));
    let item = take(&queue);
    queue.add("a");
    drop(item);
    let order: Vec<&str> = (0..3).map(|_| *take(&queue)).collect();
    assert_eq!(order, ["b", "c", "a"]);
}

#[test]
fn wq_05_drain_waits_for_what_is_processed() {
    let (queue, _) = with_clock();
    queue.add("a");
    queue.add("b");
    let items = [take(&queue), take(&queue)];
    let mut drain = pin!(queue.drain());
    let mut context = Context::from_waker(Waker::noop());
    assert!(drain.as_mut().poll(&mut context).is_pending());
    queue.add("c");
    drop(items);
    assert!(drain.as_mut().poll(&mut context).is_ready());
    assert_eq!(queue.try_get().map(|item| item.is_none()), Poll::Ready(true), "and takes nothing new");
}

#[test]
fn wq_06_shut_down_lets_the_rest_be_taken() {
    let (queue, _) = with_clock();
    queue.add("a");
    let waiting = thread::spawn({
        let queue = WorkQueue::<&str>::clone(&queue);
        move || {
            let first = queue.get(SOON).unwrap().map(|item| *item);
            (first, queue.get(SOON).unwrap().is_none())
        }
    });
    queue.shut_down();
    assert_eq!(waiting.join().unwrap(), (Some("a"), true));
    queue.add("b");
    assert!(queue.is_empty());
}

/// A key that was added while its worker had it is processed once more before the drain is over.
#[test]
fn wq_07_drain_includes_keys_added_while_processed() {
    let (queue, _) = with_clock();
    queue.add("a");
    let item = take(&queue);
    queue.add("a");
    let mut drain = pin!(queue.drain());
    let mut context = Context::from_waker(Waker::noop());
    assert!(drain.as_mut().poll(&mut context).is_pending());
    drop(item);
    assert!(drain.as_mut().poll(&mut context).is_pending());
    drop(take(&queue));
    assert!(drain.as_mut().poll(&mut context).is_ready());
}

#[test]
fn wq_08_drain_in_vain_says_how_many_are_left() {
    let (queue, _) = with_clock();
    ["a", "b"].into_iter().for_each(|key| queue.add(key));
    let _item = take(&queue);
    let error = queue.shut_down_with_drain(Duration::ZERO).unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    assert!(error.message().contains("1 keys are being processed and 1 wait"), "{error}");
}

#[test]
fn wq_09_processed_key_is_dropped() {
    let queue = WorkQueue::new();
    let key = Arc::new(1);
    queue.add(Arc::clone(&key));
    queue.add_after(Arc::clone(&key), Duration::from_secs(60));
    drop(queue.get(SOON).unwrap());
    assert_eq!(queue.shut_down(), 1);
    assert_eq!(Arc::strong_count(&key), 1);
}

#[test]
fn wq_10_delayed_key_comes_when_it_is_due() {
    let (queue, clock) = with_clock();
    queue.add_after("a", Duration::from_millis(50));
    clock.advance(Duration::from_millis(49));
    assert!(queue.is_empty());
    let waiting = thread::spawn({
        let queue = WorkQueue::<&str>::clone(&queue);
        move || queue.get(SOON).unwrap().map(|item| *item)
    });
    assert!(clock.wait_for_sleepers(1, SOON));
    clock.advance(Duration::from_millis(1));
    assert_eq!(waiting.join().unwrap(), Some("a"));
}

#[test]
fn wq_11_delayed_twice_keeps_the_earlier_time() {
    let (queue, clock) = with_clock();
    queue.add_after("a", Duration::from_secs(50));
    queue.add_after("a", Duration::from_secs(70));
    clock.advance(Duration::from_secs(60));
    assert_eq!(*take(&queue), "a");
    clock.advance(Duration::from_secs(60));
    assert!(queue.is_empty(), "once");
    queue.add_after("b", Duration::from_secs(50));
    queue.add_after("b", Duration::from_secs(30));
    clock.advance(Duration::from_secs(40));
    assert_eq!(*take(&queue), "b");
    clock.advance(Duration::from_secs(40));
    assert!(queue.is_empty());
}

/// A key that is due sooner than the one that a worker waits for does not wait for that one.
#[test]
fn wq_12_earlier_key_moves_the_timer() {
    let (queue, clock) = with_clock();
    queue.add_after("late", Duration::from_secs(60));
    let waiting = thread::spawn({
        let queue = WorkQueue::<&str>::clone(&queue);
        move || [(); 2].map(|()| queue.get(SOON).unwrap().map(|item| *item))
    });
    assert!(clock.wait_for_sleepers(1, SOON));
    queue.add_after("early", Duration::from_secs(1));
    assert_eq!(clock.next_due(), Some(Duration::from_secs(1)));
    clock.advance(Duration::from_secs(1));
    let bound = Instant::now() + SOON;
    while clock.next_due() != Some(Duration::from_secs(59)) {
        assert!(Instant::now() < bound, "the timer is not set for the late key");
        thread::yield_now();
    }
    clock.advance(Duration::from_secs(59));
    assert_eq!(waiting.join().unwrap(), [Some("early"), Some("late")]);
}

#[test]
fn wq_13_delayed_keys_come_in_the_order_of_their_times() {
    let (queue, clock) = with_clock();
    for (key, seconds) in [("c", 3), ("a", 1), ("b", 2)] {
        queue.add_after(key, Duration::from_secs(seconds));
    }
    assert_eq!(queue.stats().delayed, 3);
    clock.advance(Duration::from_secs(3));
    assert_eq!([0; 3].map(|_| *take(&queue)), ["a", "b", "c"]);
}

#[test]
fn wq_14_exponential_limiter_doubles_and_forgets() {
    let limiter = ExponentialLimiter::new(Duration::from_millis(1), Duration::from_secs(1));
    let now = Instant::now();
    let delays = |key| limiter.delay(&key, now).as_millis();
    assert_eq!([0; 5].map(|_| delays("one")), [1, 2, 4, 8, 16]);
    assert_eq!([0; 2].map(|_| delays("two")), [1, 2]);
    assert_eq!((limiter.requeues(&"one"), limiter.requeues(&"two")), (5, 2));
    limiter.forget(&"one");
    assert_eq!((limiter.requeues(&"one"), limiter.delay(&"one", now).as_millis()), (0, 1));
}

#[test]
fn wq_15_exponential_limiter_stays_at_its_most() {
    let limiter = ExponentialLimiter::new(Duration::from_millis(1), Duration::from_secs(1000));
    let now = Instant::now();
    let last = (0..1000).map(|_| limiter.delay(&"one", now)).last().unwrap();
    assert_eq!((last, limiter.requeues(&"one")), (Duration::from_secs(1000), 1000));
}

#[test]
fn wq_16_token_bucket_limits_all_keys_together() {
    let (bucket, clock) = (TokenBucket::new(10.0, 3), ManualClock::new());
    let delay = |key: &str| bucket.delay(&key.len(), clock.now()).as_millis();
    assert_eq!([delay("a"), delay("b"), delay("c"), delay("d"), delay("e")], [0, 0, 0, 100, 200]);
    clock.advance(Duration::from_secs(1));
    assert_eq!(delay("f"), 0, "ten came, two were owed");
}

#[test]
fn wq_17_longest_delay_wins() {
    let each = ExponentialLimiter::new(Duration::from_millis(5), Duration::from_secs(3));
    let limiter = LongestDelay::new([Box::new(each) as Box<dyn RateLimiter<u8>>, Box::new(TokenBucket::new(1.0, 2))]);
    let now = Instant::now();
    assert_eq!([0; 3].map(|_| limiter.delay(&1, now).as_millis()), [5, 10, 1000]);
    assert_eq!(limiter.requeues(&1), 3);
    limiter.forget(&1);
    assert_eq!(limiter.requeues(&1), 0);
}

#[test]
fn wq_18_failed_key_waits_longer_each_time() {
    let (queue, clock) = with_clock();
    queue.add("a");
    for wait in [5, 10, 20] {
        take(&queue).retry();
        clock.advance(Duration::from_millis(wait - 1));
        assert!(queue.is_empty(), "before {wait} ms");
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!((queue.requeues(&"a"), queue.stats().retries), (3, 3));
    take(&queue).forget();
    assert_eq!((queue.requeues(&"a"), queue.len()), (0, 0));
}

/// Work that a panic has ended was not done: the key is tried again, later.
#[test]
fn wq_19_panic_counts_as_failure() {
    let (queue, clock) = with_clock();
    queue.add("a");
    let item = take(&queue);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _item = item;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert_eq!((queue.requeues(&"a"), queue.stats().processing, queue.len()), (1, 0, 0));
    clock.advance(Duration::from_millis(5));
    assert_eq!(*take(&queue), "a");
}

/// A limiter that panics for one key, in a retry and where a worker's own panic drops the item.
struct PanicsFor(&'static str);

impl RateLimiter<&'static str> for PanicsFor {
    fn delay(&self, key: &&'static str, _: Instant) -> Duration {
        assert_ne!(*key, self.0, "the limiter's fault");
        Duration::from_secs(1)
    }

    fn forget(&self, _: &&'static str) {}

    fn requeues(&self, _: &&'static str) -> u32 {
        0
    }
}

/// A limiter's panic is the worker's, once: the process lives, the key is done, and comes again later.
#[test]
fn wq_19_limiter_that_panics_loses_no_key() {
    let clock = Arc::new(ManualClock::new());
    let queue = WorkQueue::builder().clock(clock.clone()).limiter(PanicsFor("a")).build();
    let ends: [fn(WorkItem<&'static str>); 2] = [WorkItem::retry, |_item| panic!("on purpose")];
    for end in ends {
        queue.add("a");
        let item = take(&queue);
        assert!(catch_unwind(AssertUnwindSafe(move || end(item))).is_err());
        let stats = queue.stats();
        assert_eq!((stats.processing, stats.ready, stats.delayed, stats.retries), (0, 0, 1, 0));
        clock.advance(Duration::from_secs(60));
        assert_eq!(*take(&queue), "a");
    }
    queue.add("b");
    take(&queue).retry();
    clock.advance(Duration::from_secs(1));
    assert_eq!(*take(&queue), "b", "others are limited as before");
}

/// A worker whose waker panics costs the others no wake-up, and who adds a key nothing.
#[test]
fn fault_waker_that_panics_costs_no_wake_up() {
    let (queue, clock) = with_clock();
    let mut broken = Box::pin(queue.next());
    let panics = Arc::new(PanicsWoken::default());
    assert!(broken.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&panics)))).is_pending());
    let added = catch_unwind(AssertUnwindSafe(|| queue.add("a")));
    assert!(added.is_ok() && panics.count() == 1);
    drop(broken);
    assert_eq!(*take(&queue), "a");
    let woken = Arc::new(Woken::default());
    let mut next = Box::pin(queue.next());
    assert!(next.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    queue.add_after("b", Duration::from_secs(1));
    clock.advance(Duration::from_secs(1));
    assert_eq!(woken.count(), 1, "by the timer");
}

/// A future that was woken for a key and is dropped leaves the key, and its wake-up, to another.
#[test]
fn wq_20_cancelled_wait_passes_the_key_on() {
    let queue = WorkQueue::new();
    let mut first = Box::pin(queue.next());
    let mut second = Box::pin(queue.next());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    queue.add("a");
    drop(first);
    assert_eq!(woken.count(), 1, "the other one is woken");
    let item = second.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(item, Poll::Ready(Some(item)) if *item == "a"));
}

/// Several keys that are due at the same time need several workers, though one timer has fired once.
#[test]
fn wq_21_keys_due_together_wake_all_workers() {
    let (queue, clock) = with_clock();
    ["a", "b", "c"].into_iter().for_each(|key| queue.add_after(key, Duration::from_secs(1)));
    let mut workers: Vec<_> = (0..3).map(|_| (Box::pin(queue.next()), Arc::new(Woken::default()))).collect();
    for (worker, woken) in &mut workers {
        let waker = Waker::from(Arc::clone(woken));
        assert!(worker.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    clock.advance(Duration::from_secs(1));
    let mut items = Vec::new();
    for _ in 0..3 {
        // A runtime polls who was woken, and each keeps its key.
        let next = workers.iter().position(|(_, woken)| woken.count() > 0).expect("somebody is woken for each key");
        let (mut worker, woken) = workers.remove(next);
        match worker.as_mut().poll(&mut Context::from_waker(&Waker::from(woken))) {
            Poll::Ready(Some(item)) => items.push(item),
            _ => panic!("woken for nothing"),
        }
    }
    let keys: Vec<&str> = items.iter().map(|item| **item).collect();
    assert_eq!(keys, ["a", "b", "c"]);
}

/// One key that is added all the time does not keep ten thousand others waiting.
#[test]
fn wq_22_busy_key_does_not_starve_ten_thousand() {
    let queue = WorkQueue::new();
    (0..10_000).for_each(|key| queue.add(key));
    let mut seen = HashSet::new();
    for _ in 0..10_000 {
        let item = queue.get(SOON).unwrap().unwrap();
        seen.insert(*item);
        queue.add(0);
    }
    assert!(seen.len() >= 9_999, "{} of 10000 keys were taken", seen.len());
}

#[test]
fn wq_23_runs_on_a_runtime_of_many_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let queue = WorkQueue::new();
    let workers: Vec<_> = (0..10)
        .map(|_| {
            let queue = WorkQueue::<u32>::clone(&queue);
            runtime.spawn(async move {
                let mut taken = 0;
                while let Some(item) = queue.next().await {
                    item.forget();
                    taken += 1;
                }
                taken
            })
        })
        .collect();
    (0..10_000).for_each(|key| queue.add(key));
    queue.shut_down_with_drain(SOON).unwrap();
    let taken: u32 = workers.into_iter().map(|worker| runtime.block_on(worker).unwrap()).sum();
    assert_eq!(taken, 10_000);
}

/// A clock that is moved while the queue sets its timer does not make a key late.
#[test]
fn wq_24_clock_moved_meanwhile_makes_no_key_late() {
    let clock = ManualClock::new();
    let due = clock.now() + Duration::from_secs(60);
    let queue = WorkQueue::builder().clock(Arc::new(MovesAtEachLook(clock.clone()))).build();
    queue.add_after("a", Duration::from_secs(60));
    let woken = Arc::new(Woken::default());
    let mut next = pin!(queue.next());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(clock.next_due(), Some(due - clock.now()), "armed for the moment that it was added for");
    clock.advance(due - clock.now());
    assert_eq!(woken.count(), 1);
    let Poll::Ready(Some(item)) = next.poll(&mut Context::from_waker(&waker)) else { panic!("woken for nothing") };
    assert_eq!(*item, "a");
}

/// Ten million additions of few keys keep no more than the keys.
#[test]
fn fault_queue_of_few_keys_does_not_grow() {
    let (queue, clock) = with_clock();
    let keys = ["a", "b", "c"];
    for round in 0..10_000_000usize {
        let key = keys[round % 3];
        if round % 100 == 0 {
            queue.add_after(key, Duration::from_secs(1));
        } else {
            queue.add(key);
        }
    }
    let stats = queue.stats();
    assert_eq!((stats.ready, stats.delayed, stats.processing), (3, 3, 0));
    clock.advance(Duration::from_secs(1));
    assert_eq!(queue.stats().delayed, 0);
    assert_eq!(queue.len(), 3);
}
