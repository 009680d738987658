//! The threads that answer a call, and the work that is done once the pass lock is released.

use super::*;
use crate::worker::Need;

/// Starts the notifier's thread, as a cache does.
pub(super) fn notifier() -> Need {
    let need = Need::new();
    super::super::start(FilterCode::Own).unwrap();
    need
}

pub(super) fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + BOUND;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::yield_now();
    }
}

/// A subscription with a limit is opened while the publisher stands between its call and its answer.
#[test]
fn limits_are_looked_at_beside_a_publisher() {
    let (_notifier, log) = (notifier(), Log::alone());
    let waiters = log.parked([thread()]);
    let before = log.limits.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (called, go_on) = stops(&log.frontier_stops);
        let publisher = scope.spawn(|| log.publish(60));
        called.recv_timeout(BOUND).unwrap();
        log.own().notify(&log);
        go_on.send(()).unwrap();
        publisher.join().unwrap();
    });
    assert_eq!(are_woken(&waiters), 1, "the publisher has looked itself");
    until("nobody looks at the limits", || log.limits.load(Ordering::SeqCst) > before);
}

impl Log {
    /// Sleeps until the listing is there, or for an event.
    fn park_for(self: &Arc<Log>, waiter: &mut WaiterCell, interest: Interest) {
        let mut parker = waiter.parker(FilterCode::Own);
        parker.wait_for(interest);
        assert!(parker.park(self, 50, thread(), &Due::default()).is_ok());
    }

    fn hook(self: &Arc<Log>, hook: &LogHook, mut does: impl FnMut(&Arc<Log>) + Send + 'static) {
        let log = Arc::downgrade(self);
        *lock(hook) = Some(Box::new(move || does(&log.upgrade().unwrap())));
    }
}

pub(super) fn revision(revision: u64) -> Interest {
    Interest::revision(Position { revision, ..Position::default() }, None)
}

/// A source is foreign code: it is woken after the pass lock was released, and if it panics, all messages are read all the
/// same.
#[test]
fn source_that_panics_ends_nobodys_sleep() {
    let log = Log::alone();
    let [mut ann, mut bob, mut carl, mut dora] = [(); 4].map(|()| WaiterCell::new());
    log.park_for(&mut ann, revision(10));
    log.park_for(&mut bob, revision(100));
    log.look();
    // Ann's message lowers the wanted revision after Carl has raised it, so the source is woken once more.
    ann.parker(FilterCode::Own).leave(&log);
    log.park_for(&mut carl, revision(200));
    log.park_for(&mut dora, Interest::Events(log.group(), None));
    let (asked, questions) = channel();
    log.hook(&log.source, move |log| {
        // While the pass lock is held, this call starts no pass.
        log.head.store(61, Ordering::SeqCst);
        log.look();
        asked.send(log.own().waiters.highest_revision_wanted()).unwrap();
        panic!("a source");
    });
    log.look();
    assert_eq!(questions.try_iter().collect::<Vec<_>>(), [200]);
    assert_eq!(are_woken(&[dora]), 1);
}

/// Clients that come and go as fast as the notifier looks hold up no wake-up.
#[test]
fn pass_ends_though_clients_come_and_go() {
    const CLIENTS: usize = 100;
    let (_notifier, log) = (notifier(), log());
    let me = std::thread::current().id();
    let (came, clients) = channel();
    let mut to_come = 0..CLIENTS;
    log.hook(&log.clients, move |log| {
        if to_come.next().is_none() {
            return;
        }
        let mut waiter = WaiterCell::new();
        log.park_for(&mut waiter, revision(10));
        waiter.parker(FilterCode::Own).leave(log);
        came.send(std::thread::current().id() == me).unwrap();
    });
    log.look();
    let come = || clients.recv_timeout(BOUND).expect("the notifier goes on");
    let mine = (0..CLIENTS).map(|_| come()).filter(|mine| *mine).count();
    assert!(mine < CLIENTS / 10, "one pass of {mine} looks, and nobody is called meanwhile");
}

/// A consumer that changes its interest no longer counts as waiting for a revision.
#[test]
fn revision_that_is_replaced_is_wanted_no_more() {
    let log = Log::alone();
    let mut waiter = WaiterCell::new();
    log.park_for(&mut waiter, revision(10));
    log.look();
    assert_eq!(log.own().waiters.highest_revision_wanted(), 10);
    for (interest, wanted) in [(revision(7), 7), (Interest::Events(log.group(), None), 0)] {
        log.park_for(&mut waiter, interest);
        log.look();
        assert_eq!(log.own().waiters.highest_revision_wanted(), wanted);
    }
}

/// A consumer lists a deadline just after its wait has ended and the tables have dropped its interest, and is dropped.
#[test]
fn deadline_goes_with_its_consumer() {
    let (log, hour) = (Log::alone(), Duration::from_secs(3600));
    let next = || log.look();
    let mut waiter = WaiterCell::new();
    let mut parker = waiter.parker(FilterCode::Own);
    parker.wait_for(revision(10));
    let due = Due { deadline: Some(Instant::now() + hour), ..Due::default() };
    assert!(parker.park(&log, 50, thread(), &due).is_ok());
    assert!(next().is_some());
    waiter.waiter().unwrap().announce_anew();
    waiter.parker(FilterCode::Own).leave(&log);
    assert_eq!(next(), None);
}
