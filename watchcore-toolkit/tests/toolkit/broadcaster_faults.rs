//! Faults of broadcasters that users know, and what is asked of one besides its rows.

use crate::broadcaster::{LONG, drain, now, until};
use crate::script::PanicsWoken;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;
use watchcore::Code;
use watchcore_toolkit::{Action, Broadcaster, Watch, WatchEvent, WatchExt, WatchOptions, WhenFull};

/// A waker that counts.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A publisher whose waker panics leaves no other asleep at the shutdown.
#[test]
fn fault_shutdown_wakes_beside_a_panicking_waker() {
    let broadcaster = Broadcaster::new(0, WhenFull::Wait).unwrap();
    let _watch = broadcaster.watch().unwrap();
    for number in 0..26 {
        broadcaster.action(Action::Added, number).unwrap();
    }
    let panics = Arc::new(PanicsWoken::default());
    let woken = [(); 2].map(|()| Arc::new(Woken::default()));
    let mut publishers = [(); 3].map(|()| Box::pin(broadcaster.action_async(Action::Added, 99)));
    let [one, two] = &woken;
    let wakers = [Waker::from(Arc::clone(&panics)), Waker::from(Arc::clone(one)), Waker::from(Arc::clone(two))];
    for (publisher, waker) in publishers.iter_mut().zip(&wakers) {
        assert!(publisher.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    broadcaster.shutdown();
    assert_eq!((panics.count(), woken.map(|woken| woken.0.load(Ordering::SeqCst))), (1, [1, 1]));
}

/// Many threads publish; a slow, a fast and a stalled watcher, the last one dropping.
#[test]
fn fault_many_publishers_one_order() {
    const THREADS: u64 = 8;
    const EACH: u64 = 2000;
    let broadcaster = Broadcaster::new(3, WhenFull::Wait).unwrap();
    let mut stalled = broadcaster.watch_with(WatchOptions::new(5, WhenFull::Drop)).unwrap();
    let mut watches: Vec<_> = (0..3).map(|_| broadcaster.watch().unwrap()).collect();
    thread::scope(|scope| {
        let publishers: Vec<_> = (0..THREADS)
            .map(|publisher| {
                let broadcaster = &broadcaster;
                scope.spawn(move || {
                    for number in 0..EACH {
                        broadcaster.action(Action::Added, publisher * EACH + number).unwrap();
                    }
                })
            })
            .collect();
        let readers: Vec<_> = watches
            .iter_mut()
            .map(|watch| scope.spawn(move || drain(watch).into_iter().map(|(_, number)| number).collect::<Vec<u64>>()))
            .collect();
        for publisher in publishers {
            publisher.join().unwrap();
        }
        broadcaster.shutdown();
        let orders: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert_eq!(orders[0], orders[1]);
        assert_eq!(orders[0], orders[2]);
        for publisher in 0..THREADS {
            let own: Vec<_> = orders[0].iter().filter(|number| *number / EACH == publisher).collect();
            assert!(own.is_sorted() && own.len() as u64 == EACH, "each publisher's order is kept");
        }
    });
    let last = THREADS * EACH;
    let seen = drain(&mut stalled);
    assert_eq!(seen.len() as u64 + stalled.dropped(), last);
}

/// Lives, and says when it does not any more.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(living: &Arc<AtomicUsize>) -> Counted {
        living.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(living))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A watcher that stalls costs the same after millions of events as after one: the log's window, and the segment that it
/// stands in.
#[test]
fn fault_stalled_watcher_holds_constant_memory() {
    let events = if cfg!(debug_assertions) { 1_000_000 } else { 10_000_000 };
    let living = Arc::new(AtomicUsize::new(0));
    let broadcaster = Broadcaster::new(16, WhenFull::Drop).unwrap();
    let mut watch = broadcaster.watch().unwrap();
    broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    assert!(watch.recv(LONG).unwrap().is_some(), "it stands inside a batch");
    for _ in 2..events {
        broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    }
    until("all but the window is dropped", || living.load(Ordering::SeqCst) <= 128 + 16 + 1);
    let stats = broadcaster.stats().unwrap();
    assert!(stats.log_bytes < 1 << 20, "{} bytes", stats.log_bytes);
    let taken =
        std::iter::from_fn(|| if let Poll::Ready(event) = watch.try_recv() { event } else { None }).count() as u64;
    assert_eq!(taken + 1 + watch.dropped(), events);
    drop((watch, broadcaster));
    until("nothing is left", || living.load(Ordering::SeqCst) == 0);
}

/// A watcher that sleeps keeps nothing of the log.
#[test]
fn fault_sleeping_watcher_keeps_no_segment() {
    let living = Arc::new(AtomicUsize::new(0));
    let broadcaster = Broadcaster::new(0, WhenFull::Drop).unwrap();
    let mut watch = broadcaster.watch().unwrap();
    broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    assert!(watch.recv(LONG).unwrap().is_some());
    assert!(watch.try_recv().is_pending());
    for _ in 0..10_000 {
        broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    }
    until("the log's window is left", || living.load(Ordering::SeqCst) <= 128);
}

/// The same where it takes many at once, and the end of what it read was lost for it.
#[test]
fn fault_sleeping_taker_of_many_keeps_no_segment() {
    let living = Arc::new(AtomicUsize::new(0));
    let broadcaster = Broadcaster::new(0, WhenFull::Drop).unwrap();
    let mut watch = broadcaster.watch().unwrap();
    for _ in 0..3 {
        broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    }
    assert_eq!(watch.recv_many(LONG, 100, |_| {}).unwrap(), 1);
    assert_eq!(watch.recv_many(Duration::ZERO, 100, |_| {}).unwrap_err().code(), Code::Timeout);
    for _ in 0..10_000 {
        broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    }
    until("the log's window is left", || living.load(Ordering::SeqCst) <= 128);
}

/// A stop ends a watch at once: what it has not taken stays untaken, the prefix too.
#[test]
fn fault_stop_ends_with_unread_events() {
    for when_full in [WhenFull::Wait, WhenFull::Drop] {
        let broadcaster = Broadcaster::new(4, when_full).unwrap();
        let mut unread = broadcaster.with_prefix([WatchEvent::added(0)]).unwrap();
        let mut half = broadcaster.watch().unwrap();
        for number in 1..=3 {
            broadcaster.action(Action::Added, number).unwrap();
        }
        assert_eq!(now(&mut half), (1, 0));
        unread.stop();
        half.stop();
        assert_eq!((unread.try_recv(), half.try_recv()), (Poll::Ready(None), Poll::Ready(None)));
        broadcaster.action(Action::Added, 4).unwrap();
        assert_eq!((unread.recv(LONG).unwrap(), half.recv(LONG).unwrap()), (None, None));
    }
}

/// An object is kept by who has it, also behind the broadcaster, and dropped once.
#[test]
fn fault_objects_go_with_their_last_holder() {
    let living = Arc::new(AtomicUsize::new(0));
    let broadcaster = Broadcaster::new(4, WhenFull::Drop).unwrap();
    let mut watch = broadcaster.with_prefix([WatchEvent::added(Counted::new(&living))]).unwrap();
    let stopper = watch.stopper();
    broadcaster.action(Action::Added, Counted::new(&living)).unwrap();
    let held: Vec<_> = (0..2).map(|_| watch.recv(LONG).unwrap().unwrap()).collect();
    drop((watch, broadcaster));
    assert_eq!(living.load(Ordering::SeqCst), 2);
    assert!(Arc::ptr_eq(&held[1].object().unwrap().0, &living));
    drop(held);
    until("nothing is left", || living.load(Ordering::SeqCst) == 0);
    stopper.stop();

    // What is refused is dropped, too.
    let broadcaster = Broadcaster::new(4, WhenFull::Drop).unwrap();
    broadcaster.shutdown();
    assert!(broadcaster.action(Action::Added, Counted::new(&living)).is_err());
    assert_eq!(living.load(Ordering::SeqCst), 0);
}

#[test]
fn fault_late_watcher_reads_the_history() {
    let broadcaster = Broadcaster::builder(0, WhenFull::Wait).history(100).build().unwrap();
    for number in 1..=1000u64 {
        assert_eq!(broadcaster.action(Action::Added, number).unwrap(), number);
    }
    assert_eq!(broadcaster.after(1).unwrap_err().code(), Code::Compacted);
    let future = broadcaster.after(1001).unwrap_err();
    assert_eq!((future.code(), future.asked(), future.current()), (Code::FutureRevision, 1001, 1000));
    // One that begins with as much as the log keeps is waited for: nothing of that leaves the log.
    let mut behind = broadcaster.after_with(WatchOptions::new(10, WhenFull::Wait), 900).unwrap();
    assert!(!broadcaster.action_or_drop(Action::Added, 1001).unwrap());
    assert_eq!(now(&mut behind), (901, 0));
    for number in 902..=1000 {
        assert_eq!(now(&mut behind), (number, 0));
        assert!(broadcaster.action_or_drop(Action::Added, number + 99).unwrap());
    }
}

/// The same of a long prefix: its places are free when it was taken, as far as the log goes.
#[test]
fn fault_long_prefix_leaves_the_log_whole() {
    let broadcaster = Broadcaster::new(0, WhenFull::Wait).unwrap();
    let mut watch = broadcaster.with_prefix((0..1000).map(WatchEvent::added)).unwrap();
    let publish = || (1..).take_while(|_| broadcaster.action_or_drop(Action::Added, 0).unwrap()).count();
    assert_eq!(publish(), 27, "one more than the prefix, and 26");
    for number in 0..1000 {
        assert_eq!(now(&mut watch), (number, 0));
    }
    assert_eq!(publish(), 51 - 27, "one less than the log keeps");
    for _ in 0..51 {
        assert_eq!(now(&mut watch), (0, 0));
    }
    assert!(watch.try_recv().is_pending());
}

/// Options that cannot be kept are refused with what holds.
#[test]
fn fault_queues_longer_than_the_log_are_refused() {
    let broadcaster = Broadcaster::<u8>::builder(0, WhenFull::Wait).history(200).build().unwrap();
    assert!(broadcaster.watch_with(WatchOptions::new(173, WhenFull::Wait)).is_ok());
    let refused = broadcaster.watch_with(WatchOptions::new(174, WhenFull::Drop)).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("keeps 200 events"), "{refused}");
    let refused = Broadcaster::<u8>::new(usize::MAX, WhenFull::Drop).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

/// The same of queues beyond any number of events, for every kind of watch.
#[test]
fn fault_endless_queues_are_refused() {
    let broadcaster = Broadcaster::<u8>::new(10, WhenFull::Wait).unwrap();
    for queue in [usize::MAX, usize::MAX - 25] {
        for when_full in [WhenFull::Wait, WhenFull::Drop] {
            let options = WatchOptions::new(queue, when_full);
            let opened = [
                broadcaster.watch_with(options),
                broadcaster.after_with(options, 0),
                broadcaster.with_prefix_and(options, [WatchEvent::added(1)]),
            ];
            for refused in opened.map(Result::unwrap_err) {
                assert_eq!(refused.code(), Code::InvalidArgument);
                assert!(refused.message().contains("keeps 62 events"), "{refused}");
            }
        }
    }
}

/// Keys that cannot be are refused, a function for keys that panics harms nobody, and nothing of it is published.
#[test]
fn fault_keys_that_cannot_be_are_refused() {
    let key = |object: &&'static str| if *object == "panic" { panic!("on purpose") } else { object.repeat(100) };
    let broadcaster = Broadcaster::builder(10, WhenFull::Wait).keys(key).build().unwrap();
    let mut watch = broadcaster.watch().unwrap();
    for object in ["", "more than ten"] {
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(by_future) = pin!(broadcaster.action_async(Action::Added, object)).poll(&mut context) else {
            panic!("it waits for nobody")
        };
        let published = [
            by_future.map(drop),
            broadcaster.action(Action::Added, object).map(drop),
            broadcaster.action_or_drop(Action::Added, object).map(drop),
            broadcaster.with_prefix([WatchEvent::added(object)]).map(drop),
        ];
        for refused in published.map(Result::unwrap_err) {
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains("1 to 1024"), "{refused}");
        }
    }
    assert!(catch_unwind(AssertUnwindSafe(|| broadcaster.action(Action::Added, "panic"))).is_err());
    assert_eq!(broadcaster.action(Action::Added, "a").unwrap(), 1);
    let event = watch.recv(LONG).unwrap().unwrap();
    assert_eq!(event.object().unwrap().key_str(), Some("a".repeat(100).as_str()));
}

/// An `Object` needs no `Clone` of its type; a watch goes to another thread, and its stopper works there, too.
#[test]
fn fault_stop_from_everywhere() {
    struct NotClone;
    let broadcaster = Broadcaster::<NotClone>::new(0, WhenFull::Wait).unwrap();
    let mut watch = broadcaster.watch().unwrap();
    let stopper = watch.stopper();
    let (ready, is_ready) = mpsc::channel();
    let reader = thread::spawn(move || {
        let first = watch.recv(LONG).unwrap().unwrap();
        let copy = first.object().unwrap().clone();
        ready.send(()).unwrap();
        let end = watch.recv(LONG).unwrap().is_none();
        (copy, end)
    });
    broadcaster.action(Action::Added, NotClone).unwrap();
    is_ready.recv().unwrap();
    let stops: Vec<_> = (0..4)
        .map(|_| {
            let stopper = stopper.clone();
            thread::spawn(move || stopper.stop())
        })
        .collect();
    for stop in stops {
        stop.join().unwrap();
    }
    assert!(reader.join().unwrap().1);
    assert!(stopper.is_stopped());
}
