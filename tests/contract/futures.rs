//! Section 5: every wait is a future too, which blocks nobody, and loses nothing when it is dropped.

use crate::tools::*;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use watchcore::*;

/// Long enough to be pending, short enough to be waited for.
const SOON: Duration = Duration::from_millis(20);

/// Wakes a thread that blocks on the future, and counts.
struct Rings(Mutex<mpsc::Sender<()>>, AtomicUsize);

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.lock().unwrap().send(()).ok();
    }
}

fn rings() -> (Arc<Rings>, mpsc::Receiver<()>) {
    let (ring, rung) = mpsc::channel();
    (Arc::new(Rings(Mutex::new(ring), AtomicUsize::new(0))), rung)
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>, rings: &Arc<Rings>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(rings.clone())))
}

/// Polls when it is woken, and at no other time.
fn block_on<F: Future>(future: F) -> F::Output {
    let (rings, rung) = rings();
    let mut future = pin!(future);
    loop {
        match poll_once(future.as_mut(), &rings) {
            Poll::Ready(output) => return output,
            Poll::Pending => rung.recv_timeout(BOUND).expect("it is woken"),
        }
    }
}

#[test]
fn a_waiter_is_awaited_and_woken_by_its_revision() {
    let (cache, mut writer) = embedded();
    let mut waiter = cache.waiter(Want::Revision(3)).unwrap();
    let (rings, rung) = rings();
    assert!(poll_once(Pin::new(&mut waiter), &rings).is_pending());
    write(&mut writer, 1..=2);
    write(&mut writer, [3]);
    rung.recv_timeout(BOUND).expect("it is woken");
    assert_eq!(rings.1.load(SeqCst), 1, "by its revision alone");
    let Poll::Ready(Ok(position)) = poll_once(Pin::new(&mut waiter), &rings) else { panic!("it holds") };
    assert_eq!(position, cache.position());
}

#[test]
fn a_read_of_a_future_revision_blocks_nobody() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [1]);
    let at = ReadOptions::new(Read::Exact(2));
    let range = Range::all();
    let mut reads = (
        pin!(cache.get_async("/k", Read::AtLeast(2))),
        pin!(cache.get_with_async("/k", &at)),
        pin!(cache.list_async(&range, Read::AtLeast(2), 0)),
        pin!(cache.list_with_async(&range, &at)),
        pin!(cache.count_async(&range, Read::AtLeast(2))),
        pin!(cache.count_with_async(&range, &at)),
    );
    let (rings, _rung) = rings();
    // One thread has them all before it: with one of the blocking kind it would not come to the write.
    assert!(poll_once(reads.0.as_mut(), &rings).is_pending());
    assert!(poll_once(reads.1.as_mut(), &rings).is_pending());
    assert!(poll_once(reads.2.as_mut(), &rings).is_pending());
    assert!(poll_once(reads.3.as_mut(), &rings).is_pending());
    assert!(poll_once(reads.4.as_mut(), &rings).is_pending());
    assert!(poll_once(reads.5.as_mut(), &rings).is_pending());
    write(&mut writer, [2]);
    for answer in [block_on(reads.0).unwrap(), block_on(reads.1).unwrap()] {
        assert_eq!((answer.position(), answer.kv.unwrap().value_str()), (cache.position(), Some("2")));
    }
    for page in [block_on(reads.2).unwrap(), block_on(reads.3).unwrap()] {
        assert_eq!((page.position(), page.len()), (cache.position(), 1));
    }
    for counted in [block_on(reads.4).unwrap(), block_on(reads.5).unwrap()] {
        assert_eq!((counted.position(), counted.count), (cache.position(), 1));
    }
}

#[test]
fn a_future_ends_at_its_time_with_the_numbers() {
    let (cache, mut writer) = embedded();
    write(&mut writer, [1]);
    let begin = Instant::now();
    let soon = ReadOptions::new(Read::AtLeast(9)).timeout(SOON);
    let errors = [
        block_on(cache.wait_until_async(9, SOON)).unwrap_err(),
        block_on(cache.get_with_async("/k", &soon)).unwrap_err(),
        block_on(cache.list_with_async(&Range::all(), &soon)).unwrap_err(),
        block_on(cache.count_with_async(&Range::all(), &soon)).unwrap_err(),
    ];
    assert!(begin.elapsed() >= 4 * SOON);
    for error in errors {
        assert_eq!((error.code(), error.asked(), error.current()), (Code::FutureRevision, 9, 1), "{error}");
    }
    let waiter = cache.waiter(Want::Revision(9)).unwrap().timeout(SOON);
    assert_eq!(refused(block_on(waiter), Code::Timeout).to_string().matches("20 ms").count(), 1);
    // At once: what holds is not waited for, and what does not is not waited for either.
    assert!(block_on(cache.wait_until_async(1, Duration::ZERO)).is_ok());
    refused(block_on(cache.wait_until_async(2, Duration::ZERO)), Code::FutureRevision);
}

#[test]
fn awaiting_the_listing_ends_with_it_or_says_why_not() {
    let (cache, mut writer) = unloaded();
    let error = refused(block_on(cache.wait_ready_async(SOON)), Code::Timeout);
    assert!(error.to_string().contains("first listing: none within 20 ms"), "{error}");
    refused(block_on(cache.get_async("/k", Read::Any)), Code::NotReady);
    let mut ready = pin!(cache.wait_ready_async(BOUND));
    let (rings, rung) = rings();
    assert!(poll_once(ready.as_mut(), &rings).is_pending());
    writer.load(5, []).unwrap();
    rung.recv_timeout(BOUND).expect("it is woken");
    assert!(matches!(poll_once(ready, &rings), Poll::Ready(Ok(()))));

    let (closed, _writer) = unloaded();
    let mut ready = pin!(closed.wait_ready_async(BOUND));
    assert!(poll_once(ready.as_mut(), &rings).is_pending());
    closed.close();
    refused(block_on(ready), Code::Closed);
}

#[test]
fn a_consistent_revision_is_awaited_until_the_source_has_answered() {
    let (cache, mut writer) = unloaded();
    let source = Arc::new(Counting(0.into()));
    writer.attach(source.clone()).unwrap();
    writer.load(5, []).unwrap();
    let mut consistent = pin!(cache.consistent_revision_async(BOUND));
    assert_eq!(source.0.load(SeqCst), 0, "it asks when it is awaited");
    let (rings, rung) = rings();
    assert!(poll_once(consistent.as_mut(), &rings).is_pending());
    assert!(source.0.load(SeqCst) > 0);
    writer.serve_consistent(writer.demand().consistent, 40);
    rung.recv_timeout(BOUND).expect("it is woken");
    assert!(matches!(poll_once(consistent, &rings), Poll::Ready(Ok(40))));
}

#[test]
fn a_dropped_future_waits_for_nothing_and_keeps_no_waker() {
    let (cache, mut writer) = embedded();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let (rings, _rung) = rings();
    {
        let mut until = Box::pin(cache.wait_until_async(9, BOUND));
        let mut waits = Box::pin(one.wait_async(BOUND));
        assert!(poll_once(until.as_mut(), &rings).is_pending());
        assert!(poll_once(waits.as_mut(), &rings).is_pending());
        assert_eq!(cache.stats().waiting, 2);
    }
    assert_eq!(cache.stats().waiting, 0);
    assert_eq!(Arc::strong_count(&rings), 1, "nobody keeps the task");
    write(&mut writer, [1]);
    assert_eq!(drain(&mut one), ["1 ADDED /k=1"], "nothing went with it");
    assert_eq!(rings.1.load(SeqCst), 0);
}

#[test]
fn an_awaited_wait_takes_no_event() {
    let (cache, mut writer) = embedded();
    let mut one = cache.subscribe(Start::Now).key("/k").open().unwrap();
    assert!(!block_on(one.wait_async(SOON)).unwrap(), "the time is up");
    writer.apply(1, [Change::put("/other", "x")]).unwrap();
    assert!(!block_on(one.wait_async(SOON)).unwrap(), "nothing of its own");
    write(&mut writer, [2]);
    assert!(block_on(one.wait_async(BOUND)).unwrap());
    assert!(block_on(one.wait_async(BOUND)).unwrap());
    assert_eq!(drain(&mut one), ["2 ADDED /k=2"]);
    cache.close();
    refused(block_on(one.wait_async(BOUND)), Code::Closed);
}

#[test]
fn an_armed_waiter_is_listed_when_its_time_is_over() {
    let (cache, _writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut waiter = cache.waiter(Want::Revision(9)).unwrap().timeout(SOON);
    set.add_waiter(&mut waiter, 7).unwrap();
    assert!(!waiter.arm().unwrap());
    assert!(set.wait(BOUND));
    let mut tags = [0; 2];
    assert_eq!((set.take(&mut tags), tags[0]), (1, 7));
    refused(waiter.poll(), Code::Timeout);
    refused(waiter.wait(BOUND), Code::Timeout);
}

#[test]
fn futures_go_to_other_threads() {
    fn sent<T: Send>(future: T) -> T {
        future
    }
    let (cache, mut writer) = embedded();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let options = ReadOptions::default();
    drop((
        sent(cache.waiter(Want::Ready).unwrap()),
        sent(cache.wait_ready_async(SOON)),
        sent(cache.consistent_revision_async(SOON)),
        sent(cache.get_with_async(String::from("/k"), &options)),
        sent(cache.list_with_async(&Range::all(), &options)),
        sent(cache.count_with_async(&Range::all(), &options)),
        sent(one.wait_async(SOON)),
    ));
    let of_another = cache.clone();
    let waits = spawn(move || block_on(async move { of_another.wait_until_async(1, BOUND).await }));
    write(&mut writer, [1]);
    assert_eq!(waits.end().unwrap(), cache.position());
}

/// The notifier looks at a sleeper no later than it asks for, whatever it has asked for before.
#[test]
fn a_short_wait_after_a_long_one_ends_in_time() {
    let (cache, mut writer) = embedded();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    let (rings, rung) = rings();
    {
        let mut waits = Box::pin(one.wait_async(Duration::from_secs(3600)));
        assert!(poll_once(waits.as_mut(), &rings).is_pending());
        write(&mut writer, [1]);
        rung.recv_timeout(BOUND).expect("it is woken");
        assert!(matches!(poll_once(waits.as_mut(), &rings), Poll::Ready(Ok(true))));
    }
    assert_eq!(drain(&mut one), ["1 ADDED /k=1"]);
    assert!(!block_on(one.wait_async(SOON)).unwrap(), "the time is up");
}

/// Bookmarks come due while nothing moves: waits beside them end in time.
#[test]
fn a_wait_ends_in_time_beside_bookmarks() {
    let (cache, _writer) = embedded();
    let with_bookmarks = |interval| cache.subscribe(Start::Now).bookmarks(true).bookmark_interval(interval).open();
    let mut early = with_bookmarks(SOON / 4).unwrap();
    assert!(!block_on(early.wait_async(SOON)).unwrap());
    let mut late = with_bookmarks(SOON * 5 / 2).unwrap();
    for _ in 0..6 {
        assert!(!block_on(late.wait_async(SOON)).unwrap());
    }
}
