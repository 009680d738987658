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
use std::time::Duration;
use watchcore_toolkit::{Clock, ManualClock, WorkItem, WorkQueue};

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
fn wq_09_processed_key_is_dropped() {
    let queue = WorkQueue::new();
    let key = Arc::new(1);
    queue.add(Arc::clone(&key));
    queue.add_after(Arc::clone(&key), Duration::from_secs(60));
    drop(queue.get(SOON).unwrap());
    assert_eq!(queue.shut_down(), 1);
    assert_eq!(Arc::strong_count(&key), 1);
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
