//! Sleeps that meet a pass of the notifier in the middle.

use super::{CacheFrontier, Due, FilterCode, Hubs, Interest, Overtaken, Registration, VisitEvent, Waker, Watched};
use crate::attribute::schema::Schema;
use crate::filter::matcher::Matcher;
use crate::filter::range::Filter;
use crate::position::Position;
use crate::sync::{Mutex, current_thread, lock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(30);

type Stop = Mutex<Option<(Sender<()>, Receiver<()>)>>;

/// A cache whose events 60 and above pass every filter.
#[derive(Default)]
struct Log {
    hubs: Hubs,
    head: AtomicU64,
    /// Where the next call stops: it says that it is there, and waits to go on.
    match_stops: Stop,
    frontier_stops: Stop,
}

fn stop(at: &Stop) {
    if let Some((here, on)) = lock(at).take() {
        here.send(()).unwrap();
        on.recv_timeout(BOUND).unwrap();
    }
}

/// The next call stops: when it has, and what lets it go on.
fn stops(at: &Stop) -> (Receiver<()>, Sender<()>) {
    let ((here, stopped), (go_on, on)) = (channel(), channel());
    *lock(at) = Some((here, on));
    (stopped, go_on)
}

impl Watched for Log {
    fn frontier(&self) -> CacheFrontier {
        stop(&self.frontier_stops);
        let head = self.head.load(Ordering::SeqCst);
        let position = Position::default();
        CacheFrontier { position, head, ready: true, failed: false, closed: false, consistent: 0 }
    }

    fn first_match(&self, _: &Matcher, from: u64, head: u64) -> Result<Option<u64>, Overtaken> {
        stop(&self.match_stops);
        Ok(Some(from.max(60)).filter(|seq| *seq < head))
    }

    fn visit_buckets(&self, _: u64, _: u64, _: &mut VisitEvent<'_>) -> Result<(), Overtaken> {
        Ok(())
    }

    fn newest_mark(&self) -> u64 {
        0
    }

    fn enforce_lag_limits(&self) -> Option<Instant> {
        None
    }

    fn wake_source(&self) -> bool {
        false
    }

    fn hubs(&self) -> &Hubs {
        &self.hubs
    }
}

/// Ann sleeps at 50, and the pass for the head 100 begins there. Bob, at 10, parks while it looks: it wakes him for
/// the event 60, of those that it has looked at, and says nothing of those from 10 on.
#[test]
fn pass_moves_nobody_who_parks_meanwhile() {
    let log = Arc::new(Log { head: AtomicU64::new(50), ..Log::default() });
    let schema = Schema::new(Vec::new(), None).unwrap();
    let matcher = Arc::new(Matcher::new(&Filter::default(), false, b"/", &schema).unwrap());
    let hub = log.hubs.of(FilterCode::Own);
    let group = hub.groups.join(&matcher);
    let park = |sleeper: &mut Registration, cursor| {
        let interest = Interest::Events(group.clone(), None);
        sleeper.park(&log, interest, cursor, Waker::Thread(current_thread()), Due::default())
    };
    let (mut ann, mut bob) = (Registration::new(FilterCode::Own), Registration::new(FilterCode::Own));
    assert!(park(&mut ann, 50).is_ok(), "she has everything");
    assert!(park(&mut bob, 10).is_err(), "he has not, but the tables know him now");

    log.head.store(100, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (looks, look_on) = stops(&log.match_stops);
        let notifier = scope.spawn(|| hub.pass(&*log));
        looks.recv_timeout(BOUND).unwrap();
        let (parked, go_on) = stops(&log.frontier_stops);
        let bob = scope.spawn(|| park(&mut bob, 10));
        parked.recv_timeout(BOUND).unwrap();
        look_on.send(()).unwrap();
        notifier.join().unwrap();
        go_on.send(()).unwrap();
        let unparked = bob.join().unwrap().expect_err("the head has moved");
        assert!(unparked.woken, "the test's own premise");
        assert_eq!(unparked.resume, 0, "he continues at his cursor");
    });
    let unparked = ann.unpark(&log.hubs);
    assert!(unparked.woken && unparked.resume == 60);
}
