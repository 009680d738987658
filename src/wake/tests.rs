//! Consumers that park during a pass of the notifier, and wake-ups by a publisher itself.

mod calls;
mod portions;

use super::notify::notifier::{PassEnd, Visit, push};
use super::sleep::parked_waiter::{CountedAt, WaiterRef};
use super::{
    CacheFrontier, Due, FilterCode, FirstMatch, GroupRef, Hub, HubOwner, Hubs, Interest, Overtaken, ParkedWaiter,
    Parker, Rest, Searched, Unparked, VisitEvent, WaiterCell, Waiters, Waker, Watched,
};
use crate::attribute::schema::Schema;
use crate::filter::matcher::Matcher;
use crate::filter::range::Filter;
use crate::heap::System;
use crate::log::buckets::{Requests, Router};
use crate::log::ring::LogEnd;
use crate::position::Position;
use crate::sync::{Mutex, current_thread, lock, often};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(30);

type Stop = Mutex<Option<(Sender<()>, Receiver<()>)>>;

/// A cache whose events 60 and above pass every filter, or those from `passes` on.
#[derive(Default)]
struct Log {
    hubs: Hubs,
    head: AtomicU64,
    /// If set, the notifier's thread finds an empty hub here: only the test's thread does passes.
    alone: Option<ThreadId>,
    nobody: Hubs,
    /// The place where the next call stops: it reports that it is there, and waits for leave to continue.
    match_stops: Stop,
    frontier_stops: Stop,
    /// The number of checks of the limits of lag.
    limits: AtomicU64,
    /// The number of events that filters were asked about, and of calls of filters.
    asked: AtomicU64,
    calls: AtomicU64,
    passes: AtomicU64,
    revision: AtomicU64,
    is_closed: AtomicBool,
    /// If set, the size of the window.
    window: AtomicU64,
    /// Hooks: called when the source is woken, when the notifier begins a look, and for each filter.
    source: LogHook,
    clients: LogHook,
    filters: LogHook,
}

/// Called each time, but not recursively.
type LogHook = Mutex<Option<Box<dyn FnMut() + Send>>>;

fn call(hook: &LogHook) {
    let taken = lock(hook).take();
    if let Some(mut taken) = taken {
        // A hook that panics is called once.
        taken();
        *lock(hook) = Some(taken);
    }
}

fn stop(at: &Stop) {
    let stop = lock(at).take();
    if let Some((here, on)) = stop {
        here.send(()).unwrap();
        on.recv_timeout(BOUND).unwrap();
    }
}

/// Makes the next call stop. Returns a signal that it has, and the means to let it continue.
fn stops(at: &Stop) -> (Receiver<()>, Sender<()>) {
    let ((here, stopped), (go_on, on)) = (channel(), channel());
    *lock(at) = Some((here, on));
    (stopped, go_on)
}

impl Watched for Log {
    fn frontier(&self) -> CacheFrontier {
        stop(&self.frontier_stops);
        call(&self.clients);
        let head = self.head.load(Ordering::SeqCst);
        let position = Position { revision: self.revision.load(Ordering::SeqCst), ..Position::default() };
        let closed = self.is_closed.load(Ordering::SeqCst);
        CacheFrontier { position, head, ready: true, failed: false, closed, consistent: 0 }
    }

    fn end(&self) -> LogEnd {
        stop(&self.frontier_stops);
        LogEnd { head: self.head.load(Ordering::SeqCst), closed: self.is_closed.load(Ordering::SeqCst) }
    }

    fn newest_mark(&self) -> u64 {
        0
    }

    fn waiters(&self, code: FilterCode) -> &Waiters {
        &self.hubs().of(code).waiters
    }

    fn notify(self: &Arc<Self>, code: FilterCode) {
        self.hubs().of(code).notify(self);
    }
}

impl Searched for Log {
    fn first_match(&self, _: &Matcher, from: u64, head: u64, most: usize) -> Result<FirstMatch, Overtaken> {
        let head = head.min(from.saturating_add(most as u64));
        stop(&self.match_stops);
        call(&self.filters);
        let passes = Some(self.passes.load(Ordering::SeqCst)).filter(|seq| *seq > 0).unwrap_or(60);
        let found = Some(from.max(passes)).filter(|seq| *seq < head);
        self.calls.fetch_add(1, Ordering::SeqCst);
        let looked = found.map_or(head, |seq| seq + 1) - from;
        self.asked.fetch_add(looked, Ordering::SeqCst);
        Ok(FirstMatch { found, examined_to: found.unwrap_or(head), looked: looked as usize })
    }

    fn visit_buckets(&self, _: u64, _: u64, _: &mut VisitEvent<'_>) -> Result<(), Overtaken> {
        Ok(())
    }

    fn window(&self) -> u64 {
        Some(self.window.load(Ordering::SeqCst)).filter(|window| *window > 0).unwrap_or(1 << 20)
    }
}

impl HubOwner for Log {
    fn enforce_lag_limits(&self) -> Option<Instant> {
        self.limits.fetch_add(1, Ordering::SeqCst);
        None
    }

    fn wake_source(&self) {
        crate::foreign::guard(|| call(&self.source));
    }

    fn trusts_wakers(&self) -> bool {
        false
    }

    fn hubs(&self) -> &Hubs {
        if self.alone.is_none_or(|thread| thread == std::thread::current().id()) { &self.hubs } else { &self.nobody }
    }
}

impl Log {
    /// A log whose head is 50, over which only the test's thread does passes.
    fn alone() -> Arc<Log> {
        Arc::new(Log { head: AtomicU64::new(50), alone: Some(std::thread::current().id()), ..Log::default() })
    }

    fn own(&self) -> &Hub {
        self.hubs.of(FilterCode::Own)
    }

    /// The group of waiters that follow everything.
    fn group(&self) -> GroupRef {
        self.group_of(&Filter::default())
    }

    fn group_of(&self, filter: &Filter) -> GroupRef {
        let schema = Schema::new(Vec::new(), None).unwrap();
        let matcher = Arc::new(Matcher::new(filter, false, b"/", &schema).unwrap());
        self.own().groups.join(&matcher, false)
    }

    /// Makes a waiter at 50 for each waker, which the notifier's tables then have.
    fn parked(self: &Arc<Log>, wakers: impl IntoIterator<Item = Waker>) -> Vec<WaiterCell> {
        let group = self.group();
        let waiters = wakers.into_iter().map(|waker| self.parked_one(&group, waker)).collect();
        self.look();
        waiters
    }

    /// Makes a waiter at 50, whose message is not read yet.
    fn parked_one(self: &Arc<Log>, group: &GroupRef, waker: Waker) -> WaiterCell {
        let mut waiter = WaiterCell::new();
        let parked = awake(&mut waiter, group).park(self, 50, waker, &Due::default());
        assert!(parked.is_ok(), "it has everything");
        waiter
    }

    /// Does passes of the notifier until no work is left, and returns the time of the next one.
    fn look(self: &Arc<Log>) -> Option<Instant> {
        let mut end = self.pass(Visit::Called);
        while end.is_behind {
            end = self.pass(Visit::Queued);
        }
        end.again
    }

    fn pass(self: &Arc<Log>, visit: Visit) -> PassEnd {
        self.own().pass(&**self, visit, || push(FilterCode::Own, self.clone()))
    }

    /// Publishes an event that passes, and those below it.
    fn publish(self: &Arc<Log>, seq: u64) {
        self.head.store(seq + 1, Ordering::SeqCst);
        self.hubs.published(self);
    }
}

fn thread() -> Waker {
    Waker::Thread(current_thread())
}

/// Parks a consumer that follows the events of a group.
fn park(log: &Arc<Log>, waiter: &mut WaiterCell, group: &GroupRef, cursor: u64) -> Result<(), Unparked> {
    awake(waiter, group).park(log, cursor, thread(), &Due::default())
}

/// A log whose head is 50, over which the notifier's thread does passes, too.
fn log() -> Arc<Log> {
    Arc::new(Log { head: AtomicU64::new(50), ..Log::default() })
}

/// The consumer of a waiter, whose interest is the events of a group.
fn awake<'s>(waiter: &'s mut WaiterCell, group: &GroupRef) -> Parker<'s> {
    let mut parker = waiter.parker(FilterCode::Own);
    parker.wait_for(Interest::Events(group.clone(), None));
    parker
}

fn are_woken(waiters: &[WaiterCell]) -> usize {
    waiters.iter().filter(|one| matches!(one.waiter().unwrap().rest(), Rest::Woken { resume: 60, .. })).count()
}

/// Few waiters are woken by the publisher.
#[test]
fn publisher_wakes_few_itself() {
    for (waiters, woken) in [(1, 1), (4, 4), (5, 0)] {
        let log = Log::alone();
        let waiters = log.parked((0..waiters).map(|_| thread()));
        log.publish(60);
        assert_eq!(are_woken(&waiters), woken, "of {}", waiters.len());
        log.look();
        assert_eq!(are_woken(&waiters), waiters.len());
    }
}

/// A publisher's look is bounded: if the gap is longer, it looks at no event.
#[test]
fn publisher_leaves_many_events_to_the_notifier() {
    let log = Log::alone();
    let waiters = log.parked([thread()]);
    log.publish(70);
    assert_eq!(are_woken(&waiters), 0);
    log.look();
    assert_eq!(are_woken(&waiters), 1);
}

/// After a long time without waiters, the publisher looks from the lowest cursor of its waiters on, if these are few.
#[test]
fn publisher_looks_from_where_few_stand() {
    for (waiters, woken) in [(1, 1), (9, 0)] {
        let log = Log::alone();
        let mut waiters = log.parked((0..waiters).map(|_| thread()));
        let group = log.group();
        log.head.store(90, Ordering::SeqCst);
        for waiter in &mut waiters {
            let mut parker = awake(waiter, &group);
            parker.unpark(&log);
            assert!(parker.park(&log, 90, thread(), &Due::default()).is_ok());
        }
        log.publish(90);
        let is_woken = |one: &&WaiterCell| matches!(one.waiter().unwrap().rest(), Rest::Woken { resume: 90, .. });
        assert_eq!(waiters.iter().filter(is_woken).count(), woken);
    }
}

/// The thread that wakes subtracts the count of a sleep; the consumer, which runs later, subtracts nothing more.
#[test]
fn who_is_woken_is_looked_for_no_more() {
    for waiters in [1, 4, 5, 20] {
        let log = Log::alone();
        let mut waiters = log.parked((0..waiters).map(|_| thread()));
        let group = log.group();
        for head in [60, 61] {
            assert_eq!(log.hubs.waiting(), waiters.len() as u64);
            log.publish(head);
            log.look();
            assert_eq!(log.hubs.waiting(), 0, "of {}, before they come to run", waiters.len());
            for waiter in &mut waiters {
                let mut parker = awake(waiter, &group);
                let unparked = parker.unpark(&log);
                assert!(unparked.woken && unparked.resume == head);
                assert_eq!(log.hubs.waiting(), 0);
            }
            for waiter in &mut waiters {
                assert!(park(&log, waiter, &group, head + 1).is_ok());
            }
        }
    }
}

/// Ann sleeps at 50, Bob at 80, where the head stood when he parked. A pass for both wakes each for the first event that
/// it has not handed out.
#[test]
fn pass_wakes_each_behind_its_cursor() {
    let log = Log::alone();
    let ann = log.parked([thread()]);
    log.head.store(80, Ordering::SeqCst);
    let mut bob = WaiterCell::new();
    assert!(park(&log, &mut bob, &log.group(), 80).is_ok());
    log.head.store(100, Ordering::SeqCst);
    log.look();
    assert_eq!(are_woken(&ann), 1);
    assert!(
        matches!(bob.waiter().unwrap().rest(), Rest::Woken { resume: 80, .. }),
        "{:?}",
        bob.waiter().unwrap().rest()
    );
}

/// An unread message may be of a waiter, so the notifier does the pass and not the publisher.
#[test]
fn publisher_reads_no_messages() {
    let log = Log::alone();
    let _known = log.parked([thread()]);
    let late = log.parked_one(&log.group(), thread());
    log.publish(60);
    assert_eq!(are_woken(std::slice::from_ref(&late)), 0);
    log.look();
    assert_eq!(are_woken(&[late]), 1);
}

/// Foreign code runs on the notifier's thread: a task that a publisher has found is woken there.
#[cfg(feature = "async")]
#[test]
fn publisher_calls_no_task() {
    struct Called(AtomicU64);
    impl std::task::Wake for Called {
        fn wake(self: Arc<Called>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let log = Log::alone();
    let called = Arc::new(Called(AtomicU64::new(0)));
    let waiters = log.parked([Waker::Task(called.clone().into()), thread()]);
    log.publish(60);
    assert_eq!((are_woken(&waiters), called.0.load(Ordering::SeqCst)), (2, 0));
    log.look();
    assert_eq!(called.0.load(Ordering::SeqCst), 1);
}

/// Ann sleeps at 50, and the pass for the head 100 begins there. Bob, at 10, parks while it looks: it wakes him for
/// the event 60, of those that it has looked at, and says nothing of those from 10 on.
#[test]
fn pass_moves_nobody_who_parks_meanwhile() {
    let log = log();
    let group = log.group();
    let (mut ann, mut bob) = (WaiterCell::new(), WaiterCell::new());
    assert!(park(&log, &mut ann, &group, 50).is_ok(), "she has everything");
    assert!(park(&log, &mut bob, &group, 10).is_err(), "he has not, but the tables know him now");

    log.head.store(100, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (looks, look_on) = stops(&log.match_stops);
        let notifier = scope.spawn(|| log.look());
        looks.recv_timeout(BOUND).unwrap();
        let (parked, go_on) = stops(&log.frontier_stops);
        let bob = scope.spawn(|| park(&log, &mut bob, &group, 10));
        parked.recv_timeout(BOUND).unwrap();
        look_on.send(()).unwrap();
        notifier.join().unwrap();
        go_on.send(()).unwrap();
        let unparked = bob.join().unwrap().expect_err("the head has moved");
        assert!(unparked.woken, "the test's own premise");
        assert_eq!(unparked.resume, 0, "he continues at his cursor");
    });
    let unparked = ann.parker(FilterCode::Own).unpark(&log);
    assert!(unparked.woken && unparked.resume == 60);
}

/// Bob asked for a bucket, and parks for events without one while a pass finds his answer: he is counted at the place
/// of his sleep, and Ann's count is not subtracted.
#[test]
fn pass_moves_nobody_who_waits_for_something_else_by_now() {
    let log = log();
    let group = log.group();
    let (requests, mut router) = (Requests::default(), Router::new(Arc::default(), 100));
    let request = requests.ask(b"x".as_slice().into());
    let thread = || thread();
    let (mut ann, mut bob) = (WaiterCell::new(), WaiterCell::new());
    assert!(park(&log, &mut ann, &group, 50).is_ok());
    let mut parker = bob.parker(FilterCode::Own);
    parker.wait_for(Interest::Events(group.clone(), Some(request.clone())));
    assert!(parker.park(&log, 50, thread(), &Due::default()).is_ok());
    log.look();
    parker.unpark(&log);
    assert_eq!(log.hubs.waiting(), 1);
    log.head.store(51, Ordering::SeqCst);
    router.take_requests(&requests, 51, &mut System);
    assert!(matches!(request.answer(), Some(Some(_))));
    log.head.store(52, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (looks, look_on) = stops(&log.match_stops);
        let notifier = scope.spawn(|| log.look());
        looks.recv_timeout(BOUND).unwrap();
        let (parked, go_on) = stops(&log.frontier_stops);
        let bob = scope.spawn(|| park(&log, &mut bob, &group, 50));
        parked.recv_timeout(BOUND).unwrap();
        look_on.send(()).unwrap();
        notifier.join().unwrap();
        go_on.send(()).unwrap();
        assert!(bob.join().unwrap().is_err(), "the head has moved");
    });
    assert_eq!(log.hubs.waiting(), 1, "Ann sleeps");
    log.publish(60);
    log.look();
    assert_eq!(are_woken(std::slice::from_ref(&ann)), 1);
}

/// A close of a subscription wakes it, also if the notifier moves its waiter meanwhile.
#[test]
fn closer_wakes_who_is_moved() {
    for _ in 0..often(200) {
        let waiter = WaiterRef::new(ParkedWaiter::new(FilterCode::Own));
        // SAFETY: the test's thread is the only consumer of the waiter, and has no other parker.
        unsafe { waiter.park(5, thread(), &Due::default(), CountedAt::Hub) };
        let moves = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    if let Some(claim) = ParkedWaiter::claim(&waiter) {
                        let cursor = claim.cursor();
                        claim.put_back(cursor, CountedAt::Hub);
                    }
                    moves.fetch_add(1, Ordering::SeqCst);
                }
            });
            while moves.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
            ParkedWaiter::wake(&waiter);
        });
        assert!(waiter.is_woken());
    }
}
