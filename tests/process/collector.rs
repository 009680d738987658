//! A collector of messages (of `tracing`) that panics, in a process of its own: there is one a process.

use crate::alone;
use crate::bell::{BOUND, bell, once};
use futures_core::Stream;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Instant;
use tracing::span::{self, Id};
use tracing::{Event, Level, Metadata, Subscriber};
use watchcore::{Cache, Change, Read, Start, Subscription};

const CHILD: &str = "WATCHCORE_TEST_COLLECTOR";

/// Panics at each error.
struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        panic!("a collector");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("a destructor");
    }
}

struct PanicsInWake;

impl Wake for PanicsInWake {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

/// What its panic is about must not be left undone: here counts of a segment, the thread that frees, and the other wake-ups.
#[test]
fn panic_of_the_collector_ends_no_thread() {
    let _alone = alone();
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "collector::panic_of_the_collector_ends_no_thread", "--test-threads=1", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    tracing::subscriber::set_global_default(Collector).unwrap();
    let builder = Cache::builder("/").capacity(128).decoder(|_, _| Ok::<_, String>(PanicsInDrop));
    let cache = builder.build().unwrap();
    let mut writer = cache.writer().unwrap();

    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    cache.get("/a", Read::Any).unwrap().kv.unwrap().decoded::<PanicsInDrop>().unwrap();
    // The value's destructor runs with a segment that has many others.
    for revision in 2..2000 {
        writer.apply(revision, [Change::put("/a", "2")]).unwrap();
    }
    assert!(watchcore::raw::quiesce(BOUND), "the thread that frees is there");
    let segments = cache.stats().segments;
    assert!(segments < 20, "{segments} segments of a log of 128 events");

    // One before the others and one behind them, whatever the order is in which they are woken.
    let open = || cache.subscribe(Start::Now).open().unwrap();
    let (mut first, mut good, mut last) = (open(), [open(), open(), open()], open());
    let (bell, rings) = bell();
    let panics = Waker::from(Arc::new(PanicsInWake));
    let sleeps = |bad: &mut Subscription| {
        assert!(Pin::new(bad).poll_next(&mut Context::from_waker(&panics)).is_pending());
    };
    sleeps(&mut first);
    good.iter_mut().for_each(|one| assert!(once(one, &bell).is_pending()));
    sleeps(&mut last);
    writer.apply(2000, [Change::put("/a", "1")]).unwrap();
    good.iter().for_each(|_| rings.recv_timeout(BOUND).expect("all others are woken"));
    good.iter_mut().for_each(|one| assert_eq!(one.poll(8).unwrap().len(), 1));
    // Of the destructor and two wakers, and of the collector each time.
    let until = Instant::now() + BOUND;
    while cache.stats().caught_panics < 6 {
        assert!(Instant::now() < until, "{} were counted", cache.stats().caught_panics);
        std::thread::yield_now();
    }
}
