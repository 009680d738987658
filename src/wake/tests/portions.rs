//! Passes are bounded: the next pass continues with the work that is left, and no waiter waits for filters of others.

use super::super::notify::notifier::Visited;
use super::super::tables::steps::{CHEAP, FILTERS, VISIT};
use super::calls::{notifier, revision, until};
use super::*;

/// More filters than one pass comes to.
const MANY: usize = 2 * FILTERS / VISIT;

impl Log {
    /// Makes a waiter for each of `count` filters, which the notifier's tables have.
    fn with_filters(self: &Arc<Log>, count: usize) -> Vec<WaiterCell> {
        let group = |number| self.group_of(&Filter::any().key(format!("/{number}")));
        let waiters = (0..count).map(|number| self.parked_one(&group(number), thread())).collect();
        self.look();
        // With this many messages the notifier is called, too: if its thread holds the pass lock, `look` leaves them to it.
        until("all are known", || self.own().is_done());
        assert_eq!(self.asked.swap(0, Ordering::SeqCst), 0, "there is nothing to look at");
        self.calls.store(0, Ordering::SeqCst);
        waiters
    }

    fn set_head(&self, head: u64) {
        self.head.store(head, Ordering::SeqCst);
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst) as usize
    }
}

fn awake_now(waiters: &[WaiterCell]) -> usize {
    waiters.iter().filter(|one| matches!(one.waiter().unwrap().rest(), Rest::Woken { .. })).count()
}

/// A pass evaluates a bounded number of filters, whatever sleeps and was published; the next passes continue there.
#[test]
fn pass_asks_no_more_filters_than_it_has_steps() {
    for (filters, head) in [(MANY, 59), (3, 50 + 2 * FILTERS as u64)] {
        let log = Log::alone();
        let waiters = log.with_filters(filters);
        let first = (head - 1).max(60);
        log.passes.store(first, Ordering::SeqCst);
        log.set_head(head);
        let (mut passes, mut visit) = (0, Visit::Called);
        loop {
            let before = (log.asked(), log.calls());
            let end = log.pass(visit);
            (passes, visit) = (passes + 1, Visit::Queued);
            let asked = (log.asked() - before.0) as usize;
            assert!(asked <= FILTERS && log.calls() - before.1 <= FILTERS / VISIT, "{asked} in one pass");
            assert_eq!(log.hubs.behind(head) > 0, end.is_behind, "the statistic says so");
            if !end.is_behind {
                break;
            }
            assert!(asked > 0, "a pass that does nothing");
            assert_eq!(log.own().waiters.scanned_to(), 50, "nobody takes over what was not looked at for all");
        }
        assert!(passes > 1, "the test's own premise");
        assert_eq!(log.own().waiters.scanned_to(), head);
        if head < 60 {
            assert_eq!((log.asked(), awake_now(&waiters)), (9 * filters as u64, 0));
        } else {
            let is_woken = |one: &&WaiterCell| matches!(one.waiter().unwrap().rest(), Rest::Woken { resume, .. } if resume == first);
            assert_eq!(waiters.iter().filter(is_woken).count(), filters, "each for its event");
        }
    }
}

/// A waiter moves to the bucket that it asked for before the scan comes to its group: its filter is evaluated for the events
/// that no chain has, and for no others.
#[test]
fn asker_moves_to_its_bucket_before_the_scan() {
    const LINKED_FROM: u64 = 52;
    /// As many as one pass moves.
    const ASKERS: usize = CHEAP / (VISIT + LINKED_FROM as usize - 50);
    let log = Log::alone();
    let (requests, mut router) = (Requests::default(), Router::new(Arc::default(), ASKERS));
    let park = |number: usize| {
        let name = format!("/{number}");
        let (group, request) = (log.group_of(&Filter::any().key(&name)), requests.ask(name.into_bytes().into()));
        let mut waiter = WaiterCell::new();
        let mut parker = waiter.parker(FilterCode::Own);
        parker.wait_for(Interest::Events(group, Some(request)));
        assert!(parker.park(&log, 50, thread(), &Due::default()).is_ok());
        waiter
    };
    let waiters: Vec<WaiterCell> = (0..ASKERS).map(park).collect();
    log.look();
    until("all are known", || log.own().is_done());
    assert_eq!((log.asked(), log.hubs.waiting()), (0, ASKERS as u64));
    let revisions = (0..ASKERS).take_while(|_| router.take_requests(&requests, LINKED_FROM, &mut System)).count();
    assert_eq!(router.len(), ASKERS, "all are answered, in {revisions} revisions");
    log.set_head(59);
    log.look();
    assert_eq!(log.asked(), ASKERS as u64 * (LINKED_FROM - 50), "events that filters were asked about");
    assert!(!log.own().waiters.are_parked(), "all are counted at their buckets");
    assert_eq!((log.hubs.waiting(), awake_now(&waiters)), (ASKERS as u64, 0), "all sleep");
}

/// A pass wakes a bounded number of the waiters that one event wakes, and reads a bounded number of messages.
#[test]
fn pass_wakes_no_more_than_it_has_steps() {
    const SLEEPERS: usize = 2 * (CHEAP + FILTERS);
    let log = Log::alone();
    let group = log.group();
    // Nobody has read the messages.
    let mut waiters: Vec<_> = (0..SLEEPERS).map(|_| log.parked_one(&group, thread())).collect();
    log.set_head(61);
    assert!(log.pass(Visit::Called).is_behind);
    assert_eq!(are_woken(&waiters), 0, "events are looked at when it knows who sleeps");
    let mut woken = 0;
    while log.pass(Visit::Queued).is_behind {
        let now = are_woken(&waiters);
        assert!(now - woken <= CHEAP + FILTERS, "{} in one pass", now - woken);
        woken = now;
        // A member that leaves hides no other one.
        if let Some(place) = waiters.iter().position(|one| awake_now(std::slice::from_ref(one)) == 0) {
            waiters.swap_remove(place).parker(FilterCode::Own).leave(&log);
        }
    }
    assert_eq!(are_woken(&waiters), waiters.len());
}

/// A waiter without a filter is woken by the first pass, also of a hub that is queued for its filters.
#[test]
fn whoever_asks_no_filter_waits_for_none() {
    let log = Log::alone();
    let filtered = log.with_filters(MANY);
    let park = |interest, due: &Due| {
        let mut waiter = WaiterCell::new();
        let mut parker = waiter.parker(FilterCode::Own);
        parker.wait_for(interest);
        assert!(parker.park(&log, 50, thread(), due).is_ok());
        waiter
    };
    let past = Due { deadline: Some(Instant::now()), ..Due::default() };
    let cheap = [
        park(Interest::Events(log.group(), None), &Due::default()),
        park(revision(10), &Due::default()),
        park(revision(99), &past),
    ];
    log.look();
    assert_eq!(awake_now(&cheap), 1, "the one that is due");
    log.asked.store(0, Ordering::SeqCst);
    log.set_head(61);
    log.revision.store(10, Ordering::SeqCst);
    log.queue(FilterCode::Own, true);
    let end = log.pass(Visit::Called);
    assert_eq!((awake_now(&cheap), awake_now(&filtered)), (3, 0));
    assert!(end.is_behind && log.asked() <= 11, "no filter, but that of the one who follows everything");
    log.queue(FilterCode::Own, false);
    log.look();
    assert_eq!(are_woken(&filtered), MANY);
}

/// A time that comes between two passes wakes a waiter whose filter was not asked yet: it continues where the filter was
/// evaluated to.
#[test]
fn deadline_takes_over_what_was_looked_at() {
    for closes in [false, true] {
        let log = Log::alone();
        let _filtered = log.with_filters(CHEAP + MANY);
        let mut waiter = WaiterCell::new();
        let due = Due { deadline: Some(Instant::now()), ..Due::default() };
        let mut parker = awake(&mut waiter, &log.group_of(&Filter::any().key("/last")));
        assert!(parker.park(&log, 50, thread(), &due).is_ok());
        log.set_head(61);
        log.is_closed.store(closes, Ordering::SeqCst);
        assert!(log.pass(Visit::Called).is_behind);
        let unparked = parker.unpark(&log);
        assert!(unparked.woken && unparked.resume <= 50, "it passes over {}", unparked.resume);
    }
}

/// A group that is half a window behind when it is its turn is not scanned: its members look for themselves, and nothing is
/// lost. A group that the first pass visits is scanned, however much is new.
#[test]
fn who_is_half_a_window_behind_looks_for_itself() {
    let log = Log::alone();
    log.window.store(16, Ordering::SeqCst);
    let mut waiters = log.with_filters(MANY);
    log.set_head(59);
    assert!(log.pass(Visit::Called).is_behind);
    assert_eq!(awake_now(&waiters), 0);
    log.look();
    // The last filter was asked about a part of the events.
    assert_eq!(awake_now(&waiters), MANY - log.calls() + 1, "those that no pass came to in time");
    assert_eq!(log.hubs.overruns(), 0, "nobody has lost anything");
    // They look, and sleep again at the head.
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let group = log.group_of(&Filter::any().key(format!("/{number}")));
        let mut parker = awake(waiter, &group);
        let unparked = parker.unpark(&log);
        assert_eq!(unparked.resume, if unparked.woken { 0 } else { 59 });
        assert!(parker.park(&log, 59, thread(), &Due::default()).is_ok());
    }
    log.set_head(61);
    log.look();
    assert_eq!(are_woken(&waiters), MANY);
}

/// A cache is closed in the middle of its passes: all waiters are woken, in portions, also if members leave meanwhile.
#[test]
fn close_between_passes_wakes_everybody() {
    let log = Log::alone();
    let mut waiters = log.with_filters(CHEAP + MANY);
    waiters.extend(log.parked((0..10).map(|_| thread())));
    log.set_head(59);
    assert!(log.pass(Visit::Called).is_behind);
    log.is_closed.store(true, Ordering::SeqCst);
    assert!(log.pass(Visit::Called).is_behind);
    assert!(awake_now(&waiters) <= CHEAP);
    let asleep = waiters.iter().rposition(|one| awake_now(std::slice::from_ref(one)) == 0).unwrap();
    waiters.swap_remove(asleep).parker(FilterCode::Own).leave(&log);
    log.look();
    assert_eq!(awake_now(&waiters), waiters.len());
    assert_eq!(log.hubs.behind(59), 0);
    waiters.iter_mut().for_each(|one| one.parker(FilterCode::Own).leave(&log));
    log.look();
    assert_eq!(log.hubs.waiting(), 0);
}

/// A pass that panics half way, the first one or one that goes on: nobody calls again, and its waiters are woken all the
/// same.
#[test]
fn pass_that_panics_goes_on() {
    for calls in [10, FILTERS / VISIT] {
        let (_notifier, log) = (notifier(), log());
        let waiters = log.with_filters(MANY);
        let mut left = calls;
        *lock(&log.filters) = Some(Box::new(move || {
            left -= 1;
            assert!(left > 0, "a fault of ours");
        }));
        log.set_head(61);
        log.own().notify(&log);
        until("nobody goes on", || are_woken(&waiters) == MANY);
        assert!(lock(&log.filters).is_none(), "it has panicked");
    }
}

/// Ten thousand caches call while another one has far more filters than a pass comes to: each waits for one portion of
/// that cache, and for one pass of each other.
#[cfg(feature = "async")]
#[test]
fn caches_take_turns() {
    struct Calls(Arc<Log>, Sender<u64>);
    impl std::task::Wake for Calls {
        fn wake(self: Arc<Calls>) {
            self.1.send(self.0.asked()).unwrap();
        }
    }
    let caches = often(10_000);
    let _notifier = notifier();
    let (busy, (came, calls)) = (log(), channel());
    let filtered = busy.with_filters(10 * MANY);
    let others: Vec<_> = (0..caches).map(|_| log()).collect();
    let waker = || Waker::Task(Arc::new(Calls(busy.clone(), came.clone())).into());
    let waiters: Vec<_> = others.iter().map(|log| log.parked([waker()])).collect();
    // The notifier runs a filter of the busy cache when the others call.
    let (looks, look_on) = stops(&busy.match_stops);
    busy.set_head(59);
    busy.own().notify(&busy);
    looks.recv_timeout(BOUND).unwrap();
    let before = busy.asked();
    for log in &others {
        log.set_head(61);
        log.own().notify(log);
    }
    look_on.send(()).unwrap();
    for _ in 0..caches {
        let asked = calls.recv_timeout(BOUND).expect("it is woken") - before;
        assert!(asked <= FILTERS as u64, "it waited for {asked} evaluations");
    }
    until("the busy one comes forward", || busy.own().waiters.scanned_to() == 59);
    assert_eq!((busy.asked(), awake_now(&filtered)), (9 * 10 * MANY as u64, 0));
    drop(waiters);
}

/// Two caches that have not finished take turns: neither waits for all of the other one.
#[test]
fn caches_that_are_behind_take_turns() {
    let _notifier = notifier();
    let logs = [log(), log()];
    let waiters = logs.each_ref().map(|log| log.with_filters(10 * MANY));
    let (looks, look_on) = stops(&logs[0].match_stops);
    logs[0].set_head(59);
    logs[0].own().notify(&logs[0]);
    looks.recv_timeout(BOUND).unwrap();
    // How far the first one is, each time that a filter of the second is asked.
    let (seen, looked) = channel();
    let first = Arc::downgrade(&logs[0]);
    *lock(&logs[1].filters) = Some(Box::new(move || seen.send(first.upgrade().unwrap().asked()).unwrap()));
    logs[1].set_head(59);
    logs[1].own().notify(&logs[1]);
    look_on.send(()).unwrap();
    until("both come forward", || logs.iter().all(|log| log.own().waiters.scanned_to() == 59));
    let all: Vec<u64> = looked.try_iter().collect();
    assert!(all[0] <= FILTERS as u64, "the second one waited for {} evaluations", all[0]);
    assert!(all.windows(2).all(|two| two[1] - two[0] <= FILTERS as u64), "a turn of more than one portion");
    drop(waiters);
}
