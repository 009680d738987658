//! What stops or harms the notifier, which all caches of the process share.

use crate::alone;
use crate::bell::{BOUND, bell, brake, next, once};
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use watchcore::{Cache, Change, Filter, Start, WakeSet, Want};

#[test]
fn it_lags_where_the_notifier_was_overrun_and_that_is_counted() {
    let _alone = alone();
    let cache = Cache::builder("/").capacity(128).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut parked = cache.subscribe(Start::Now).key("/never").open().unwrap();
    let mut held = cache.subscribe(Start::Now).key("/a").open().unwrap();
    let (bell, rings) = bell();
    let (brake, arrived, go) = brake();
    assert!(Pin::new(&mut held).poll_next(&mut Context::from_waker(&brake)).is_pending());
    assert!(once(&mut parked, &bell).is_pending());
    // While somebody waits for a revision no publisher looks itself.
    let (set, mut far) = (WakeSet::new().unwrap(), cache.waiter(Want::Revision(1_000_000)).unwrap());
    set.add_waiter(&mut far, 1).unwrap();
    assert!(!far.arm().unwrap());
    assert_eq!(cache.stats().notifier_overruns, 0);
    writer.apply(1, [Change::put("/a", "")]).unwrap();
    arrived.recv_timeout(BOUND).expect("the notifier is in the waker");
    // It has looked at revision 1; what follows goes round under it.
    for revision in 2..=1000 {
        writer.apply(revision, [Change::put("/b", "")]).unwrap();
    }
    go.send(()).unwrap();
    // Not before: its own poll would find the loss first.
    rings.recv_timeout(BOUND).expect("the notifier wakes all");
    let error = next(&mut parked, &bell, &rings).unwrap().unwrap_err();
    assert_eq!((error.code(), error.lost_to()), (watchcore::Code::Lagged, cache.oldest() - 1));
    assert_eq!(cache.stats().notifier_overruns, 1);
}

#[test]
fn a_publisher_wakes_a_few_while_the_notifier_is_held() {
    let _alone = alone();
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut held = cache.subscribe(Start::Now).key("/a").open().unwrap();
    let (brake, arrived, go) = brake();
    assert!(Pin::new(&mut held).poll_next(&mut Context::from_waker(&brake)).is_pending());
    let (set, mut other) = (WakeSet::new().unwrap(), cache.subscribe(Start::Now).key("/b").open().unwrap());
    set.add(&mut other, 7).unwrap();
    assert!(!other.arm().unwrap() && !set.arm());
    writer.apply(1, [Change::put("/a", "")]).unwrap();
    let began = Instant::now();
    arrived.recv_timeout(BOUND).expect("the notifier is in the waker");
    // What follows within microseconds is one of a burst, and the notifier's.
    while began.elapsed() < Duration::from_millis(1) {
        std::thread::yield_now();
    }
    writer.apply(2, [Change::put("/b", "")]).unwrap();
    // No wait: it was woken before `apply` returned.
    assert!(set.arm(), "the notifier is held, and nobody else has looked");
    assert_eq!(other.poll(8).unwrap().len(), 1);
    go.send(()).unwrap();
}

/// Notes how far a cache is behind when it is called, on the notifier's thread.
struct Notes(Cache, Sender<u64>);

impl Wake for Notes {
    fn wake(self: Arc<Self>) {
        self.1.send(self.0.stats().notifier_behind).ok();
    }
}

/// Cache A has 2000 sleepers with filters that no index answers, and a thousand events to look at for each. A task of cache B,
/// and one of A that asks no filter, are woken before that is done; and the sleeper of A that has something is woken, too.
/// The same of predicates, which have a notifier of their own.
#[test]
fn sleepers_with_filters_delay_nobody_else() {
    let _alone = alone();
    for with_predicates in [false, true] {
        let filter = |filter: Filter| if with_predicates { filter.predicate(|_| true) } else { filter };
        let [a, b, other] = [(); 3].map(|()| Cache::builder("/").build().unwrap());
        let [mut in_a, mut in_b, mut in_other] = [&a, &b, &other].map(|cache| cache.writer().unwrap());
        let set = WakeSet::new().unwrap();
        let open = |cache: &Cache, of: Filter| cache.subscribe(Start::Now).filter(filter(of)).open().unwrap();
        let mut filtered: Vec<_> = (0..2000).map(|number| open(&a, Filter::any().key(format!("/{number}")))).collect();
        for (tag, one) in (0..).zip(&mut filtered) {
            set.add(one, tag).unwrap();
            assert!(!one.arm().unwrap());
        }
        let (noted, notes) = channel();
        let notes_of_a = Waker::from(Arc::new(Notes(a.clone(), noted)));
        // Beside predicates everybody has one.
        let mut sleepers = vec![open(&b, Filter::any())];
        if !with_predicates {
            sleepers.push(open(&a, Filter::any()));
        }
        for one in &mut sleepers {
            assert!(Pin::new(one).poll_next(&mut Context::from_waker(&notes_of_a)).is_pending());
        }
        // The notifier is held until both caches have called.
        let mut held = open(&other, Filter::any());
        let (brake, arrived, go) = brake();
        assert!(Pin::new(&mut held).poll_next(&mut Context::from_waker(&brake)).is_pending());
        in_other.apply(1, [Change::put("/a", "")]).unwrap();
        arrived.recv_timeout(BOUND).expect("the notifier is in the waker");
        for revision in 1..1000 {
            in_a.apply(revision, [Change::put("/x", "")]).unwrap();
        }
        in_a.apply(1000, [Change::put("/1999", "")]).unwrap();
        in_b.apply(1, [Change::put("/a", "")]).unwrap();
        go.send(()).unwrap();
        for _ in &sleepers {
            let behind = notes.recv_timeout(BOUND).expect("it is woken");
            assert!(behind > 0, "it waited for all filters of the cache");
        }
        assert!(set.wait(BOUND));
        let mut tags = [0; 4];
        assert_eq!((set.take(&mut tags), tags[0]), (1, 1999));
        assert_eq!(filtered[1999].poll(8).unwrap().events()[0].revision(), 1000);
        assert_eq!(a.stats().notifier_overruns, 0);
        let until = Instant::now() + BOUND;
        while a.stats().notifier_behind > 0 {
            assert!(Instant::now() < until, "it never keeps up");
            std::thread::yield_now();
        }
    }
}

/// Panics where it is woken.
struct Mine;

impl Wake for Mine {
    fn wake(self: Arc<Self>) {
        panic!("a waker of the user's");
    }
}

#[test]
fn a_panicking_waker_is_caught_and_others_are_woken() {
    let _alone = alone();
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let (mut bad, mut good) =
        (cache.subscribe(Start::Now).open().unwrap(), cache.subscribe(Start::Now).open().unwrap());
    let mine = Waker::from(Arc::new(Mine));
    let (bell, rings) = bell();
    for revision in 1..=2 {
        assert!(Pin::new(&mut bad).poll_next(&mut Context::from_waker(&mine)).is_pending());
        assert!(once(&mut good, &bell).is_pending());
        writer.apply(revision, [Change::put("/a", "")]).unwrap();
        let until = Instant::now() + BOUND;
        while cache.stats().caught_panics < revision {
            assert!(Instant::now() < until, "the panic is counted");
            std::thread::yield_now();
        }
        for subscription in [&mut good, &mut bad] {
            let batch = next(subscription, &bell, &rings).unwrap().unwrap();
            assert_eq!((batch.len(), batch.events()[0].revision()), (1, revision));
        }
    }
}

/// Panics where it is dropped, with what panics in its turn, and says on which thread.
struct PanicsWhenDropped(Sender<Option<String>>);

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        struct Twice;
        impl Drop for Twice {
            fn drop(&mut self) {
                panic!("a payload's destructor");
            }
        }
        self.0.send(std::thread::current().name().map(str::to_owned)).unwrap();
        std::panic::panic_any(Twice);
    }
}

/// The notifier holds a cache while it wakes, so the last handle may be its own: then it drops the decoder's closure,
/// here of a cache without values, which would hold it too.
#[test]
fn last_cache_is_dropped_by_the_notifier_and_panics() {
    let _alone = alone();
    let (dropped, drops) = channel();
    let panics = PanicsWhenDropped(dropped);
    let decode = move |_: &[u8], _: &[u8]| Ok::<_, String>(size_of_val(&panics));
    let cache = Cache::builder("/").expect_load(true).decoder(decode).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut held = cache.subscribe(Start::Now).open().unwrap();
    let (brake, arrived, go) = brake();
    assert!(Pin::new(&mut held).poll_next(&mut Context::from_waker(&brake)).is_pending());
    writer.load(5, []).unwrap();
    arrived.recv_timeout(BOUND).expect("the notifier is in the waker");
    drop((writer, held, cache));
    assert!(drops.try_recv().is_err(), "the notifier has it still");
    go.send(()).unwrap();
    assert_eq!(drops.recv_timeout(BOUND).unwrap().as_deref(), Some("watchcore-wake"));

    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let (bell, rings) = bell();
    assert!(once(&mut one, &bell).is_pending());
    writer.apply(1, [Change::put("/a", "")]).unwrap();
    assert_eq!(next(&mut one, &bell, &rings).unwrap().unwrap().len(), 1, "the notifier lives");
}

/// A predicate that holds its own cache goes with its subscription, though nothing is published and nothing is closed
/// after it: a cycle of the two would stay for ever.
#[test]
fn predicate_that_holds_its_cache_goes_with_its_subscription() {
    struct Told(Sender<()>, Cache);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.send(()).ok();
        }
    }
    let _alone = alone();
    let cache = Cache::builder("/").build().unwrap();
    let writer = cache.writer().unwrap();
    let (gone, told) = channel();
    let held = Told(gone, cache.clone());
    let filter = Filter::any().predicate(move |_| held.1.stats().objects > 0);
    let mut subscription = cache.subscribe(Start::Now).filter(filter).open().unwrap();
    let (bell, _rings) = bell();
    assert!(once(&mut subscription, &bell).is_pending());
    drop((writer, subscription, cache));
    told.recv_timeout(BOUND).expect("the predicate is dropped");
}
