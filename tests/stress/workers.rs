//! The threads of the stress test: each follows the plan in its own way until the last step.

use crate::bound::{BOUND, Task, until};
use crate::follow::{Follower, Keys, Outcome, Wish, check_kv};
use crate::plan::{GIANT_KEYS, KEYS, Plan, mix, revision_of};
use crate::roll::{Observer, Roll};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use watchcore::*;

/// What happened, for the log of the test.
#[derive(Default, Debug)]
pub struct Tally {
    pub events: AtomicU64,
    pub lagged: AtomicU64,
    pub resynced: AtomicU64,
    pub compacted: AtomicU64,
    pub reopened: AtomicU64,
    pub reads: AtomicU64,
    pub looks: AtomicU64,
}

/// What a thread has.
#[derive(Clone)]
pub struct Harness {
    pub cache: Cache,
    pub plan: Arc<Plan>,
    pub tally: Arc<Tally>,
    pub roll: Arc<Roll>,
    ready: Arc<AtomicU64>,
    /// Step that was there when the cache was closed.
    closed_at: Arc<AtomicU64>,
    /// Subscriptions that were everywhere, for the close.
    parked: Arc<Mutex<Vec<Follower>>>,
}

pub fn write_all(plan: &Plan, mut writer: Writer, from: u64) {
    for step in from..=plan.steps {
        plan.write(&mut writer, step).unwrap_or_else(|error| panic!("step {step}: {error} {plan:?}"));
    }
}

/// Waits for the descriptor as a program's own loop would.
fn wait_for_descriptor(set: &WakeSet, what: &str) {
    let mut fd = libc::pollfd { fd: set.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, and the set keeps the descriptor open.
    let ready = unsafe { libc::poll(&raw mut fd, 1, BOUND.as_millis() as i32) };
    assert_eq!(ready, 1, "not readable within {BOUND:?}: {what}");
}

impl Harness {
    pub fn new(cache: &Cache, plan: &Arc<Plan>) -> Harness {
        Harness {
            cache: cache.clone(),
            plan: plan.clone(),
            tally: Arc::default(),
            roll: Arc::default(),
            ready: Arc::default(),
            closed_at: Arc::default(),
            parked: Arc::default(),
        }
    }

    pub fn worker(&self) -> Harness {
        self.clone()
    }

    pub fn spawn(&self, name: &str, run: impl FnOnce(Harness) + Send + 'static) -> Task {
        let harness = self.clone();
        Task::spawn(name, move || run(harness))
    }

    /// Says that this thread has begun; how many have.
    pub fn ready(&self) -> u64 {
        self.ready.fetch_add(1, SeqCst)
    }

    pub fn begun(&self) -> u64 {
        self.ready.load(SeqCst)
    }

    pub fn open(&self, wish: Wish, start: Start) -> Follower {
        Follower::open(&self.cache, &self.plan, &self.roll, wish, start)
            .unwrap_or_else(|error| panic!("{error} {:?}", self.plan))
    }

    pub fn write(&self, writer: &mut Writer, step: u64) {
        self.plan.write(writer, step).unwrap_or_else(|error| panic!("step {step}: {error} {:?}", self.plan));
    }

    /// Closes the cache and records what was published before.
    pub fn close(&self) {
        self.closed_at.store(self.cache.position().revision / 2, SeqCst);
        self.cache.close();
    }

    fn last_revision(&self) -> u64 {
        revision_of(self.plan.steps)
    }

    fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Lagged => self.tally.lagged.fetch_add(1, SeqCst),
            Outcome::Resynced => self.tally.resynced.fetch_add(1, SeqCst),
            other => panic!("{other:?} before the close: {:?}", self.plan),
        };
    }

    fn park(&self, follower: Follower) {
        self.tally.events.fetch_add(follower.events, SeqCst);
        self.parked.lock().unwrap().push(follower);
    }

    /// Polls once; one that ended begins again at the state.
    fn turn(&self, follower: &mut Follower, max: usize) -> (bool, Option<Batch>) {
        let (outcome, batch) = follower.poll(max);
        match outcome {
            Outcome::Events => (true, batch),
            Outcome::Nothing => (false, batch),
            ended => {
                self.count(ended);
                *follower = self.open(follower.wish.clone(), Start::State);
                (true, None)
            }
        }
    }

    fn wait(&self, follower: &mut Follower) {
        let came = follower.subscription.wait(BOUND);
        assert!(matches!(came, Ok(true)), "{came:?} instead of an event: {:?} {:?}", follower.wish, self.plan);
    }

    /// One subscription for each wish, each waited for in turn.
    pub fn follow(&self, wishes: &[Wish], seat: u64, max: impl Fn(u64) -> usize) {
        let mut followers: Vec<Follower> = wishes.iter().map(|wish| self.open(wish.clone(), Start::State)).collect();
        for turn in 0.. {
            let entropy = mix(self.plan.seed ^ seat, turn);
            let at = entropy as usize % followers.len();
            if followers[at].is_done() {
                self.park(followers.swap_remove(at));
                if followers.is_empty() {
                    return;
                }
                continue;
            }
            if entropy >> 60 != 0 {
                self.wait(&mut followers[at]);
            }
            self.turn(&mut followers[at], max(entropy >> 8));
        }
    }

    /// Drops and opens: at its position, in the future, now, at the state.
    pub fn reopen(&self, seat: u64) {
        let mut follower = self.open(Wish::of(Keys::All), Start::State);
        for turn in 0.. {
            if follower.is_done() && turn > 100 {
                return self.park(follower);
            }
            let entropy = mix(self.plan.seed ^ seat, turn);
            for _ in 0..entropy % 4 {
                if !follower.is_done() {
                    self.wait(&mut follower);
                    self.turn(&mut follower, 100);
                }
            }
            let position = follower.position().revision;
            let ahead = (position & !1).saturating_add(2 * (entropy >> 20 & 15)).min(self.last_revision());
            let start = match entropy >> 8 & 7 {
                0 => Start::Now,
                1 => Start::State,
                2 => Start::StateAtLeast(ahead),
                3 => Start::After(ahead),
                _ => Start::After(position),
            };
            let keys = if entropy >> 16 & 1 == 0 { Keys::All } else { Keys::Prefix("/s/a") };
            self.tally.reopened.fetch_add(1, SeqCst);
            follower = match Follower::open(&self.cache, &self.plan, &self.roll, Wish::of(keys.clone()), start) {
                Ok(follower) => follower,
                Err(error) => {
                    let text = format!("{error} for {start:?} {:?}", self.plan);
                    assert_eq!(error.code(), Code::Compacted, "{text}");
                    assert!(matches!(start, Start::After(revision) if error.asked() == revision), "{text}");
                    assert!(error.oldest() > error.asked() + 1 && error.oldest() <= error.current() + 1, "{text}");
                    self.tally.compacted.fetch_add(1, SeqCst);
                    self.open(Wish::of(keys), Start::State)
                }
            };
        }
    }

    /// Takes a subscription from another thread, polls a little, hands it on.
    pub fn moved(&self, from: &mpsc::Receiver<Follower>, to: &mpsc::Sender<Follower>) {
        loop {
            let mut follower = match from.recv_timeout(BOUND) {
                Ok(follower) => follower,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(error) => panic!("{error}: nobody hands it on: {:?}", self.plan),
            };
            for _ in 0..3 {
                if follower.is_done() {
                    return self.park(follower);
                }
                self.wait(&mut follower);
                self.turn(&mut follower, 40);
            }
            to.send(follower).unwrap_or_else(|_| panic!("the other side is gone: {:?}", self.plan));
        }
    }

    /// Many subscriptions behind one descriptor. A tag is listed once an arming.
    pub fn wake_set(&self, seat: u64) {
        let set = WakeSet::new().unwrap();
        let wishes = [Keys::All, Keys::Prefix("/s/b/"), Keys::Path("/s/b"), Keys::One(0), Keys::One(3), Keys::One(100)];
        let mut followers: Vec<Follower> =
            (0..16).map(|tag| self.open(Wish::of(wishes[tag % wishes.len()].clone()), Start::State)).collect();
        for (tag, follower) in (0..).zip(&mut followers) {
            set.add(&mut follower.subscription, tag).unwrap();
            follower.subscription.arm().unwrap();
        }
        for turn in 0.. {
            if followers.iter_mut().all(Follower::is_done) {
                break;
            }
            if mix(self.plan.seed ^ seat, turn).is_multiple_of(2) {
                assert!(set.wait(BOUND), "nothing within {BOUND:?} {:?}", self.plan);
            } else if !set.arm() {
                wait_for_descriptor(&set, "wake set");
            }
            // Nobody is armed meanwhile: none is listed twice.
            let mut listed = Vec::new();
            let mut tags = [0; 3];
            while let taken @ 1.. = set.take(&mut tags) {
                listed.extend_from_slice(&tags[..taken]);
            }
            for (at, tag) in listed.iter().enumerate() {
                assert!(!listed[..at].contains(tag), "tag {tag} twice for one arming: {listed:?} {:?}", self.plan);
                let follower = &mut followers[*tag as usize];
                while self.turn(follower, 64).0 {}
            }
            for tag in listed {
                let follower = &mut followers[tag as usize];
                // One that began again is another subscription.
                set.add(&mut follower.subscription, tag).unwrap();
                follower.subscription.arm().unwrap();
            }
        }
        followers.into_iter().for_each(|follower| self.park(follower));
    }

    /// A consumer that waits for ever and is closed from another thread, again and again.
    pub fn closer(&self, seat: u64) {
        let (send, receive) = mpsc::channel::<(Closer, u64)>();
        let other = Task::spawn("closes", move || {
            for (closer, pause) in receive {
                (0..pause % 64).for_each(|_| std::thread::yield_now());
                closer.close();
            }
        });
        let keys = [Keys::One(9), Keys::All];
        let mut follower = self.open(Wish::of(keys[0].clone()), Start::State);
        for turn in 0.. {
            if follower.is_done() {
                break;
            }
            let entropy = mix(self.plan.seed ^ seat, turn);
            let at_close = self.cache.position().revision;
            follower.closed_from = Some(at_close);
            send.send((follower.subscription.closer(), entropy)).unwrap();
            let outcome = loop {
                // Closed at the latest by the other thread.
                let _ = follower.subscription.wait(BOUND);
                match follower.poll(16).0 {
                    Outcome::Events | Outcome::Nothing => {}
                    ended => break ended,
                }
            };
            if outcome != Outcome::Closed {
                self.count(outcome);
            } else if follower.is_live() {
                // What was published before the close was handed out.
                follower.assert_all_up_to(at_close / 2);
            }
            let start = if outcome == Outcome::Closed && follower.is_live() {
                Start::After(follower.position().revision)
            } else {
                Start::State
            };
            let wish = Wish::of(keys[entropy as usize % 2].clone());
            self.tally.events.fetch_add(follower.events, SeqCst);
            let next = Follower::open(&self.cache, &self.plan, &self.roll, wish.clone(), start);
            follower = next.unwrap_or_else(|error| {
                assert_eq!(error.code(), Code::Compacted, "{error}");
                self.open(wish, Start::State)
            });
        }
        drop(send);
        other.join();
        self.park(follower);
    }

    /// Snapshots show one revision, also on another thread and much later.
    pub fn snapshots(&self, seat: u64) {
        let (send, receive) = mpsc::channel::<(Snapshot, u64)>();
        let harness = self.clone();
        let later = Task::spawn("later", move || {
            let mut held = Vec::new();
            for one in receive {
                held.push(one);
                if held.len() > 12 {
                    let (snapshot, entropy) = held.swap_remove(held[0].1 as usize % 12);
                    harness.check_snapshot(&snapshot, entropy);
                }
            }
            held.iter().for_each(|(snapshot, entropy)| harness.check_snapshot(snapshot, *entropy));
        });
        let mut last = 0;
        for turn in 0.. {
            let entropy = mix(self.plan.seed ^ seat, turn);
            let snapshot = self.cache.snapshot().unwrap();
            let revision = snapshot.revision();
            assert!(revision >= last, "back from {last} to {revision} {:?}", self.plan);
            last = revision;
            self.check_snapshot(&snapshot, entropy);
            if revision / 2 >= self.plan.steps {
                break;
            }
            if entropy.is_multiple_of(3) {
                send.send((snapshot.clone(), entropy)).unwrap();
            }
        }
        drop(send);
        later.join();
    }

    fn check_snapshot(&self, snapshot: &Snapshot, entropy: u64) {
        let plan = &*self.plan;
        let revision = snapshot.revision();
        let step = revision / 2;
        assert_eq!(snapshot.position().epoch_number(), plan.epoch(step), "{plan:?}");
        let seen: Vec<(usize, usize)> = snapshot.iter().map(|kv| check_kv(plan, &kv)).collect();
        assert!(seen.iter().copied().eq(plan.state(step)), "the state at {revision}: {seen:?} {plan:?}");
        let key = entropy as usize % GIANT_KEYS;
        let one = snapshot.get(plan.name(key)).map(|kv| check_kv(plan, &kv).1);
        assert_eq!(one, plan.shown(key, step), "{:?} at {revision} {plan:?}", plan.name(key));
        self.tally.reads.fetch_add(1, SeqCst);
    }

    /// `get`, `list` and `count` at any revision of the window, and beyond its ends.
    pub fn reads(&self, seat: u64) {
        let plan = &*self.plan;
        let mut last = 0;
        for turn in 0.. {
            let entropy = mix(plan.seed ^ seat, turn);
            let current = self.cache.position().revision;
            assert!(current >= last, "back from {last} to {current} {plan:?}");
            last = current;
            if current / 2 >= plan.steps && turn > 200 {
                return;
            }
            // The window may have moved on beyond what was current a moment ago.
            let oldest = self.cache.oldest();
            let lowest = oldest.saturating_sub(2);
            let read = match entropy % 4 {
                0 => Read::Any,
                1 => Read::AtLeast((current + (entropy >> 8 & 7)).min(self.last_revision())),
                // Two below the window and a little above the current one too.
                _ => Read::Exact(
                    (lowest + (entropy >> 8) % (current + 6).saturating_sub(lowest).max(1)).min(self.last_revision()),
                ),
            };
            let key = (entropy >> 40) as usize % if entropy >> 32 & 3 == 0 { GIANT_KEYS } else { KEYS };
            let name = plan.name(key);
            let path = Range::path("/s/b");
            let answer = match entropy >> 16 & 3 {
                0 => self.cache.list_with(&path, &ReadOptions::new(read).limit(7).timeout(BOUND)).map(|page| {
                    let step = page.revision() / 2;
                    let all: Vec<usize> =
                        plan.state(step).map(|(key, _)| key).filter(|key| path.contains(plan.name(*key))).collect();
                    let shown: Vec<usize> = page.iter().map(|kv| check_kv(plan, &kv).0).collect();
                    assert_eq!(shown[..], all[..all.len().min(7)], "{read:?} at {} {plan:?}", page.revision());
                    let behind = all.len() - shown.len();
                    assert_eq!((page.more(), page.remaining()), (behind > 0, behind as u64), "{plan:?}");
                    page.iter().for_each(|kv| {
                        assert_eq!(plan.shown(plan.key_of(kv.key()), step), Some(check_kv(plan, &kv).1))
                    });
                    (page.revision(), page.epoch())
                }),
                1 => self.cache.count_with(&Range::all(), &ReadOptions::new(read).timeout(BOUND)).map(|counted| {
                    let there = plan.state(counted.revision / 2).count() as u64;
                    assert_eq!(counted.count, there, "{read:?} at {} {plan:?}", counted.revision);
                    (counted.revision, counted.epoch)
                }),
                _ => self.cache.get_with(name, &ReadOptions::new(read).timeout(BOUND)).map(|answer| {
                    let seen = answer.kv.as_ref().map(|kv| check_kv(plan, kv).1);
                    let there = plan.shown(key, answer.revision / 2);
                    assert_eq!(seen, there, "{name:?} {read:?} at {} {plan:?}", answer.revision);
                    (answer.revision, answer.epoch)
                }),
            };
            self.tally.reads.fetch_add(1, SeqCst);
            match (answer, read) {
                (Ok((revision, epoch)), _) => {
                    assert_eq!(epoch & 0xffff_ffff, plan.epoch(revision / 2), "at {revision} {plan:?}");
                    match read {
                        Read::Any => assert!(revision >= current, "{revision} below {current} {plan:?}"),
                        Read::AtLeast(least) => assert!(revision >= least, "{revision} below {least} {plan:?}"),
                        Read::Exact(asked) => assert_eq!(revision, asked, "{plan:?}"),
                        other => unreachable!("not asked here: {other:?}"),
                    }
                }
                (Err(error), Read::Exact(asked)) => {
                    let text = format!("{read:?} {error:?} oldest was {oldest} {plan:?}");
                    assert_eq!((error.code(), error.asked()), (Code::Compacted, asked), "{text}");
                    let gap = plan.is_in_a_gap(asked);
                    assert!(gap || (error.oldest() > asked + 1 && error.oldest() >= oldest), "{text}");
                    assert!(error.oldest() <= error.current() + 1, "{text}");
                    self.tally.compacted.fetch_add(1, SeqCst);
                }
                (Err(error), _) => panic!("{read:?}: {error} {plan:?}"),
            }
        }
    }

    /// Lists and counts the subscriptions, while others open, poll, close and drop them.
    pub fn observe(&self) {
        let mut observer = Observer::new(&self.cache, &self.roll, &self.plan);
        while self.cache.position().revision / 2 < self.plan.steps {
            observer.look();
            std::thread::yield_now();
        }
        observer.look();
        self.tally.looks.fetch_add(observer.looks, SeqCst);
    }

    /// Waits for ever: until the cache is closed and everything before was handed out.
    pub fn wait_until_closed(&self, follower: &mut Follower) {
        let error = loop {
            match follower.subscription.wait(Duration::MAX) {
                Ok(came) => assert!(came, "a wait without an end ended: {:?}", self.plan),
                Err(error) => break error,
            }
            follower.poll(64);
        };
        assert_eq!(error.code(), Code::Closed, "{:?}", self.plan);
        follower.assert_all_up_to(self.closed_at.load(SeqCst));
    }

    /// Subscriptions and waiters of one set until all of them say CLOSED.
    pub fn wake_set_until_closed(&self) {
        let set = WakeSet::new().unwrap();
        let keys = [Keys::All, Keys::One(11), Keys::Path("/s/a")];
        let mut followers: Vec<Follower> =
            keys.iter().map(|keys| self.open(Wish::of(keys.clone()), Start::Now)).collect();
        let mut waiter = self.cache.waiter(Want::Revision(1 << 40)).unwrap();
        self.ready();
        set.add_waiter(&mut waiter, 9).unwrap();
        waiter.arm().unwrap();
        for (tag, follower) in (0..).zip(&mut followers) {
            set.add(&mut follower.subscription, tag).unwrap();
            follower.subscription.arm().unwrap();
        }
        let mut open = vec![0, 1, 2, 9];
        while !open.is_empty() {
            if !set.arm() {
                wait_for_descriptor(&set, "wake set at a close");
            }
            let mut tags = [0; 2];
            let taken = set.take(&mut tags);
            for tag in &tags[..taken] {
                if *tag == 9 {
                    match waiter.poll() {
                        // A resync that continues with the history wakes it: it waits on in the new epoch.
                        Ok(None) => drop(waiter.arm().unwrap()),
                        answer => {
                            assert_eq!(answer.unwrap_err().code(), Code::Closed, "{:?}", self.plan);
                            open.retain(|other| *other != 9);
                        }
                    }
                    continue;
                }
                let follower = &mut followers[*tag as usize];
                loop {
                    match follower.poll(5).0 {
                        Outcome::Events => {}
                        Outcome::Nothing => {
                            follower.subscription.arm().unwrap();
                            break;
                        }
                        ended => {
                            assert_eq!(ended, Outcome::Closed, "{:?}", self.plan);
                            follower.assert_all_up_to(self.closed_at.load(SeqCst));
                            open.retain(|other| other != tag);
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Ends the cache; every consumer gets nothing more but CLOSED.
    pub fn close_and_drain(self) {
        let mut parked = std::mem::take(&mut *self.parked.lock().unwrap());
        assert!(!parked.is_empty(), "nobody arrived: {:?}", self.plan);
        self.close();
        assert_eq!(self.cache.writer().unwrap_err().code(), Code::Closed);
        assert_eq!(self.cache.subscribe(Start::Now).open().unwrap_err().code(), Code::Closed);
        for follower in &mut parked {
            let before = follower.state();
            // All that a key asks for may have come long before the last revision. Nobody polls the follower after that, and
            // whether the log that left meanwhile held more of the key is not always known.
            let at_the_end = follower.position().revision >= self.last_revision();
            let mut lagged = false;
            until("CLOSED", || match follower.poll(100).0 {
                Outcome::Closed => true,
                Outcome::Lagged if !at_the_end => {
                    lagged = true;
                    true
                }
                Outcome::Resynced | Outcome::Lagged => panic!("an end before CLOSED: {before}"),
                _ => false,
            });
            if !lagged {
                follower.assert_all_up_to(self.plan.steps);
            }
        }
    }
}
