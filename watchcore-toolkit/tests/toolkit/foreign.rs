//! The program's own code inside of ours: it may panic, and it may call anything of the toolkit.

use crate::script::Server;
use crate::support::{BOUND, Journal, Text, delete, lap, put, until, wide_cache};
use std::cell::Cell;
use std::future::ready;
use std::hash::{Hash, Hasher};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Change, Code, KeyValue, OnLag, Range, Result, Start};
use watchcore_toolkit::{
    Action, Broadcaster, Entry, FakeWatch, FromKeyValue, Handler, HandlerFns, HandlerOptions, HandlerState, Informer,
    ListPage, ListRequest, ListerWatcher, ManualClock, ObjectWatch, Origin, Payload, RateLimiter, Reflector,
    RetryWatch, SourceFuture, Status, WatchEvent, WatchExt, WatchRequest, WhenFull, WorkQueue,
};

/// Runs a call on a thread of its own: a call that waits for itself fails the test, and does not hang it.
fn returns<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(call()).ok());
    result.recv_timeout(BOUND).unwrap_or_else(|_| panic!("{what}: it panicked, or waits for itself"))
}

/// An object of the program's own make.
#[derive(Clone)]
struct Mine(KeyValue);

impl FromKeyValue for Mine {
    fn from_key_value(kv: &KeyValue) -> Result<Mine> {
        assert_ne!(kv.value(), Some(&b"boom"[..]), "my parser");
        Ok(Mine(kv.clone()))
    }

    fn key_value(&self) -> &KeyValue {
        &self.0
    }

    type View = KeyValue;

    fn view(kv: &KeyValue) -> Result<&KeyValue> {
        assert_ne!(kv.value(), Some(&b"boom"[..]), "my parser");
        Ok(kv)
    }
}

struct Log(Arc<Journal>);

impl Handler<Mine> for Log {
    fn added(&mut self, new: &Mine, _: Origin) {
        self.0.write(format!("+{}", new.0.key_str().unwrap()));
    }

    fn updated(&mut self, _: &Mine, new: &Mine, _: Origin) {
        self.0.write(format!("~{}", new.0.key_str().unwrap()));
    }

    fn deleted(&mut self, last: &Mine, _: Origin) {
        self.0.write(format!("-{}={}", last.0.key_str().unwrap(), last.0.value_str().unwrap()));
    }

    fn lost(&mut self, revisions: u64) {
        self.0.write(format!("lost {revisions}"));
    }

    fn ended(&mut self, error: Option<&Status>) {
        self.0.write(format!("ended {error:?}"));
    }
}

/// A conversion that panics is a value that cannot be decoded: of handlers under every policy, of indexes, of lists.
#[test]
fn si_07_conversion_that_panics_costs_its_object() {
    for policy in [OnLag::Resnapshot, OnLag::Stop, OnLag::SkipToOldest] {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        let informer = Informer::<Mine>::builder(&cache).index("all", |_| vec!["all".into()]).build().unwrap();
        let journal = Arc::new(Journal::default());
        let options = HandlerOptions::new().on_lag(policy);
        let registration = informer.add_handler_with(Log(Arc::clone(&journal)), options).unwrap();
        registration.wait_synced(BOUND).unwrap();
        writer
            .apply(
                1,
                [("/a", "1"), ("/b", "1"), ("/c", "boom"), ("/d", "1")].map(|(key, value)| Change::put(key, value)),
            )
            .unwrap();
        writer.apply(2, [Change::put("/b", "boom")]).unwrap();
        writer.apply(3, [Change::delete("/b"), Change::delete("/c")]).unwrap();
        writer.apply(4, [Change::put("/c", "boom"), Change::put("/e", "1")]).unwrap();
        journal.wait_for("+/e");
        assert_eq!(journal.lines(), ["+/a", "+/b", "+/d", "-/b=1", "+/e"], "{policy:?}");
        assert!(!matches!(registration.status().state, HandlerState::Ended(_)));
        assert!(registration.status().stats.refused >= 3);
        let lister = informer.lister();
        lister.wait_until(4, BOUND).unwrap();
        assert_eq!(lister.by_index("all", "all").unwrap().len(), 3);
        let all = lister.list().unwrap();
        assert_eq!((all.len(), all.refused[0].1.code()), (3, Code::Panic));
        assert!(all.refused[0].1.message().contains("my parser"), "{}", all.refused[0].1);
        assert_eq!(lister.get("/c").err().unwrap().code(), Code::Panic);
        let mut refused = 0;
        lister.visit(&Range::all(), |_, view| refused += usize::from(view.is_err())).unwrap();
        assert_eq!(refused, 1);
    }
}

/// A raw watch says which value it cannot give, also behind a difference, and gives all others.
#[test]
fn rf_14_conversion_that_panics_is_reported() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/s", "1"), Change::put("/t", "boom")]).unwrap();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let open = |start| {
        let refused = Arc::clone(&refused);
        let note = move |kv: &KeyValue, error: &watchcore::Error| {
            refused.lock().unwrap().push((kv.key_str().unwrap().to_owned(), error.code()));
        };
        ObjectWatch::<Mine>::builder(&cache).start(start).on_refused(note).open().unwrap()
    };
    let names = |watch: &mut ObjectWatch<Mine>| {
        let mut names = Vec::new();
        loop {
            match watch.try_recv() {
                Poll::Ready(Some(event)) => names.push(event.name().to_owned()),
                Poll::Ready(None) => return names,
                // A comparison gives its thread back between two slices.
                Poll::Pending if watch.position() == cache.position() => return names,
                Poll::Pending => {}
            }
        }
    };
    let mut watch = open(Start::State);
    let mut later = open(Start::After(1));
    assert_eq!(names(&mut watch), ["ADDED", "SYNCED"]);
    writer.apply(2, [Change::put("/a", "1"), Change::put("/b", "boom"), Change::put("/c", "1")]).unwrap();
    assert_eq!(names(&mut watch), ["ADDED", "ADDED"]);
    assert_eq!(names(&mut later), ["ADDED", "ADDED"]);
    writer.apply(3, [Change::put("/a", "boom")]).unwrap();
    lap(&mut writer, "/lap");
    assert_eq!(names(&mut watch), ["ADDED"], "/a stays as it was given");
    assert_eq!((watch.stats().compared, watch.stats().known), (1, 4));
    let refused = refused.lock().unwrap();
    assert!(refused.iter().all(|(_, code)| *code == Code::Panic));
    assert_eq!(refused.iter().filter(|(key, _)| key == "/b").count(), 3, "{refused:?}");
    assert_eq!(refused.iter().filter(|(key, _)| key == "/a").count(), 1, "{refused:?}");
}

/// A source that panics in one of its calls, then works.
struct Panics {
    at: &'static str,
    times: usize,
}

impl Panics {
    fn panics(&mut self, at: &str) {
        if self.at == at && self.times > 0 {
            self.times -= 1;
            panic!("my {at}");
        }
    }
}

/// A future that panics where it is polled.
fn broken<T>(text: &'static str) -> impl Future<Output = T> + Send {
    std::future::poll_fn(move |_| panic!("{text}"))
}

/// A watch that panics where it is polled.
struct BrokenWatch(bool, &'static str);

impl futures_core::Stream for BrokenWatch {
    type Item = WatchEvent<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<WatchEvent<Entry>>> {
        assert!(!self.0, "{}", self.1);
        if std::mem::take(&mut self.1).is_empty() {
            return Poll::Pending;
        }
        Poll::Ready(Some(WatchEvent::added(Entry::new("/b", "1", 4)).at(4)))
    }
}

impl watchcore_toolkit::Watch for BrokenWatch {
    type Object = Entry;

    fn stopper(&self) -> watchcore_toolkit::Stopper {
        watchcore_toolkit::Stopper::new(|| {})
    }
}

impl ListerWatcher for Panics {
    type Watch = BrokenWatch;

    fn list(&mut self, _: ListRequest) -> SourceFuture<ListPage> {
        self.panics("list");
        if self.at == "answer" && self.times > 0 {
            self.times -= 1;
            return Box::pin(broken("my answer"));
        }
        Box::pin(ready(Ok(ListPage::new(3, [Entry::new("/a", "1", 1)]))))
    }

    fn watch(&mut self, _: WatchRequest) -> SourceFuture<Option<BrokenWatch>> {
        self.panics("watch");
        if self.at == "opening" && self.times > 0 {
            self.times -= 1;
            return Box::pin(broken("my opening"));
        }
        let breaks = self.at == "poll" && self.times > 0;
        self.times -= usize::from(breaks);
        Box::pin(ready(Ok(Some(BrokenWatch(breaks, "my poll")))))
    }
}

/// A reflector whose source panics says so, with the words of the panic, and asks again after the backoff.
#[test]
fn rf_26_source_that_panics_is_asked_again() {
    for at in ["list", "answer", "watch", "opening", "poll"] {
        let cache = Cache::builder("/").expect_load(true).build().unwrap();
        let clock = Arc::new(ManualClock::new());
        let source = Panics { at, times: 2 };
        let reflector = Reflector::new(cache.writer().unwrap(), source).unwrap().clock(clock.clone());
        let handle = reflector.handle();
        let mut run = pin!(reflector.run());
        let mut context = Context::from_waker(Waker::noop());
        let mut said = 0;
        for _ in 0..8 {
            assert!(run.as_mut().poll(&mut context).is_pending(), "{at}: it goes on");
            let last = handle.status().last_error;
            said += usize::from(last.is_some_and(|last| last.message().contains(&format!("my {at}"))));
            clock.advance(Duration::from_secs(60));
        }
        assert!(said > 0, "{at}: {:?}", handle.status());
        assert_eq!(cache.position().revision, 4, "{at}: {:?}", handle.status());
    }
}

/// A retrying watch whose source or lister panics goes on after the delay.
#[test]
fn rw_03_source_that_panics_is_asked_again() {
    let clock = Arc::new(ManualClock::new());
    let server = Server::<Entry>::new([]);
    let mut asked = 0;
    let source = {
        let server = server.clone();
        move |from: watchcore::Position| {
            asked += 1;
            assert!(asked > 1, "my source");
            ready(server.answer(from.revision))
        }
    };
    let mut watch = RetryWatch::builder(source, 5).clock(clock.clone()).open().unwrap();
    assert!(watch.try_recv().is_pending());
    let last = watch.last_status().expect("an error").to_string();
    assert!(last.contains("my source"), "{last}");
    clock.advance(Duration::from_secs(2));
    assert!(watch.try_recv().is_pending());
    assert_eq!(watch.opens(), 2);
}

/// What a piece of the program's code calls of the toolkit, once that is there.
type Calls = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

fn call(calls: &Calls) {
    if let Some(call) = calls.get() {
        call();
    }
}

/// A waker that calls the toolkit where it is woken, cloned and dropped last.
struct CallsBack(Calls, AtomicUsize);

impl CallsBack {
    fn waker(calls: &Calls) -> (Waker, Arc<CallsBack>) {
        let back = Arc::new(CallsBack(Arc::clone(calls), AtomicUsize::new(0)));
        (Waker::from(Arc::clone(&back)), back)
    }
}

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        call(&self.0);
    }
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        call(&self.0);
    }
}

/// Sets what is called; for a test that ends before its values do, which then call nothing.
fn set(calls: &Calls, what: impl Fn() + Send + Sync + 'static) {
    assert!(calls.set(Box::new(what)).is_ok());
}

/// A limiter may read its queue: no lock is held where it is called.
#[test]
fn fault_limiter_reads_the_queue() {
    struct Adaptive(Arc<OnceLock<WorkQueue<u32>>>);
    impl RateLimiter<u32> for Adaptive {
        fn delay(&self, _: &u32, _: Instant) -> Duration {
            Duration::from_millis(self.0.get().unwrap().len() as u64)
        }
        fn forget(&self, key: &u32) {
            self.0.get().unwrap().requeues(key);
        }
        fn requeues(&self, _: &u32) -> u32 {
            self.0.get().unwrap().stats().ready as u32
        }
    }
    let cell = Arc::new(OnceLock::new());
    let queue = WorkQueue::builder().limiter(Adaptive(Arc::clone(&cell))).build();
    cell.set(queue.clone()).ok();
    let ready = returns("a limiter that reads its queue", move || {
        queue.add_rate_limited(1);
        queue.forget(&1);
        (queue.len(), queue.requeues(&1))
    });
    assert_eq!(ready, (1, 1));
}

/// A key whose clone and drop call the queue.
struct Loud(u32, Calls);

impl Clone for Loud {
    fn clone(&self) -> Loud {
        call(&self.1);
        Loud(self.0, Arc::clone(&self.1))
    }
}

impl Drop for Loud {
    fn drop(&mut self) {
        call(&self.1);
    }
}

impl PartialEq for Loud {
    fn eq(&self, other: &Loud) -> bool {
        call(&self.1);
        self.0 == other.0
    }
}

impl Eq for Loud {}

impl Hash for Loud {
    fn hash<H: Hasher>(&self, state: &mut H) {
        call(&self.1);
        self.0.hash(state);
    }
}

/// A key may call its queue where it is cloned, dropped, hashed or compared; so may the clock.
#[test]
fn fault_key_calls_the_queue() {
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    returns("a key that calls its queue", || {
        let calls = Calls::default();
        let clock = Arc::new(ManualClock::new());
        let queue = WorkQueue::builder().clock(clock.clone()).build();
        set(&calls, {
            let queue = queue.clone();
            move || {
                if !INSIDE.replace(true) {
                    queue.len();
                    queue.requeues(&Loud(9, Calls::default()));
                    INSIDE.set(false);
                }
            }
        });
        let key = |number| Loud(number, Arc::clone(&calls));
        queue.add(key(1));
        queue.add(key(1));
        queue.add_after(key(2), Duration::from_secs(2));
        queue.add_after(key(2), Duration::from_secs(1));
        queue.add_rate_limited(key(3));
        queue.add_rate_limited(key(3));
        clock.advance(Duration::from_secs(1));
        let item = queue.get(BOUND).unwrap().unwrap();
        queue.add(key(1));
        item.retry();
        queue.get(BOUND).unwrap().unwrap().retry_after(Duration::from_secs(1));
        queue.get(BOUND).unwrap().unwrap().forget();
        assert_eq!(queue.requeues(&key(3)), 1);
        queue.forget(&key(3));
        queue.add_after(key(4), Duration::from_secs(9));
        queue.shut_down();
        while let Some(item) = queue.get(BOUND).unwrap() {
            drop(item);
        }
    });
}

/// A waker may look at the handlers, and remove one, whichever call wakes it.
#[test]
fn fault_waker_reads_the_handlers() {
    returns("a waker that lists the handlers", || {
        let cache = wide_cache();
        let informer = Informer::<Text>::new(&cache).unwrap();
        let (registration, mut run) = informer.handler(HandlerFns::new(), HandlerOptions::new()).unwrap();
        let registration = Arc::new(registration);
        let calls = Calls::default();
        set(&calls, {
            let (informer, registration) = (informer.clone(), Arc::clone(&registration));
            move || {
                informer.handlers();
                registration.remove();
            }
        });
        let (waker, back) = CallsBack::waker(&calls);
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut run).poll(&mut context).is_pending());
        let mut synced = Box::pin(registration.synced());
        let _ = synced.as_mut().poll(&mut context);
        // One listener of the same event that is no task: a notification reaches both.
        registration.remove();
        assert!(back.1.load(Ordering::SeqCst) > 0);
        assert!(Pin::new(&mut run).poll(&mut context).is_ready());
        drop(synced);
        drop((waker, back));
        informer.stop();
    });
}

/// A task that waits for an event of a handler, and notifies the same event where it is woken.
#[test]
fn fault_waker_notifies_what_it_waits_for() {
    returns("a waker that notifies its own event", || {
        let cache = wide_cache();
        let informer = Informer::<Text>::builder(&cache).index("all", |_| vec!["all".into()]).build().unwrap();
        let lister = informer.lister();
        let (registration, _run) = informer.handler(HandlerFns::new(), HandlerOptions::new()).unwrap();
        let registration = Arc::new(registration);
        let calls = Calls::default();
        set(&calls, {
            let (registration, informer) = (Arc::clone(&registration), informer.clone());
            move || {
                registration.remove();
                drop(registration.wait_synced(Duration::ZERO));
                drop(informer.lister().wait_until(1, Duration::ZERO));
            }
        });
        let (waker, back) = CallsBack::waker(&calls);
        let mut context = Context::from_waker(&waker);
        let mut synced = Box::pin(registration.synced());
        let mut shown = Box::pin(lister.wait_until_async(1, Duration::MAX));
        assert!(synced.as_mut().poll(&mut context).is_pending());
        assert!(shown.as_mut().poll(&mut context).is_pending());
        put(&mut cache.writer().unwrap(), "/a", "1");
        registration.remove();
        until("both were woken", || back.1.load(Ordering::SeqCst) >= 2);
        drop((synced, shown));
    });
}

/// Objects whose clone and drop read an index, a recording, a broadcaster, a fake.
#[test]
fn fault_object_reads_what_holds_it() {
    #[derive(Clone)]
    struct Held {
        kv: KeyValue,
        _said: Arc<Said>,
    }
    struct Said(u64);
    static SAYS: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
    static DROPS: AtomicU64 = AtomicU64::new(0);
    impl Drop for Said {
        fn drop(&mut self) {
            DROPS.fetch_add(self.0, Ordering::SeqCst);
            if let Some(says) = SAYS.get() {
                says();
            }
        }
    }
    impl FromKeyValue for Held {
        fn from_key_value(kv: &KeyValue) -> Result<Held> {
            Ok(Held { kv: kv.clone(), _said: Arc::new(Said(1)) })
        }
        fn key_value(&self) -> &KeyValue {
            &self.kv
        }
        type View = KeyValue;
        fn view(kv: &KeyValue) -> Result<&KeyValue> {
            Ok(kv)
        }
    }
    returns("an object whose drop reads its index", || {
        let cache = Cache::builder("/").build().unwrap();
        let informer = Informer::<Held>::builder(&cache).index("all", |_| vec!["all".into()]).build().unwrap();
        let lister = informer.lister();
        SAYS.set(Box::new(move || drop(lister.by_index("all", "all").map(std::mem::forget)))).ok();
        let mut writer = cache.writer().unwrap();
        let lister = informer.lister();
        for revision in 1..20 {
            put_or_delete(&mut writer, revision);
            lister.wait_until(revision, BOUND).unwrap();
        }
        assert!(DROPS.load(Ordering::SeqCst) > 0);
    });
}

fn put_or_delete(writer: &mut watchcore::Writer, revision: u64) {
    if revision.is_multiple_of(3) {
        delete(writer, "/a");
    } else {
        put(writer, "/a", "1");
    }
}

/// An event's object whose drop asks the fake, the recording or the broadcaster that had it.
#[test]
fn fault_dropped_event_asks_its_maker() {
    struct Event(Calls);
    impl Drop for Event {
        fn drop(&mut self) {
            call(&self.0);
        }
    }
    returns("an event that asks its fake", || {
        let calls = Calls::default();
        let (fake, watch) = FakeWatch::<Event>::pair();
        let fake = Arc::new(fake);
        set(&calls, {
            let fake = Arc::clone(&fake);
            move || {
                fake.is_stopped();
            }
        });
        let mut sending = Box::pin(fake.send_async(WatchEvent::added(Event(Arc::clone(&calls)))));
        assert!(sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        watch.stop();
        assert!(fake.add(Event(Arc::clone(&calls))).is_err());
        drop(sending);
        drop(watch);
    });
    returns("an event, and a waker, that ask their broadcaster", || {
        let calls = Calls::default();
        let broadcaster = Arc::new(Broadcaster::<Event>::new(4, WhenFull::Drop).unwrap());
        set(&calls, {
            let broadcaster = Arc::downgrade(&broadcaster);
            move || {
                broadcaster.upgrade().map(|broadcaster| broadcaster.position());
            }
        });
        let mut watch = broadcaster.watch().unwrap();
        let (waker, _back) = CallsBack::waker(&calls);
        for _ in 0..5000 {
            while Pin::new(&mut watch).poll_event(&waker) {}
            broadcaster.action(Action::Added, Event(Arc::clone(&calls))).unwrap();
        }
        drop(watch);
        broadcaster.shutdown();
    });
}

/// One poll with a waker; whether there was an event.
trait PollEvent {
    fn poll_event(self, waker: &Waker) -> bool;
}

impl<W: futures_core::Stream<Item = WatchEvent<O>> + Unpin, O> PollEvent for Pin<&mut W> {
    fn poll_event(self, waker: &Waker) -> bool {
        matches!(self.poll_next(&mut Context::from_waker(waker)), Poll::Ready(Some(event)) if !matches!(event.payload, Payload::Error(_)))
    }
}
