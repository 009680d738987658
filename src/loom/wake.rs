//! Waking: a sleeping consumer is woken when the thing that it waits for comes.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | fence; waiting | `wait_against_publish` | the writer's fence; the waiter's fence |
//! | status: ready | `listing_against_wait_ready` | ready store |
//! | status: failed | `failure_against_wait_ready` | none: both sides lock the status |
//! | called, with publish | `notifier_against_publish` | the notifier's answer |
//! | called, with close | `notifier_against_close` | the notifier's answer |
//! | the pass lock, held by the publisher | `publisher_against_arm` | the publisher's fence; the parker's fence |
//! | the pass lock, between publisher and notifier | `publisher_against_notifier` | step: the call of the thread that found it held is dropped |
//! | the listing of a waiter's time | `deadline_beside_a_look` | the notifier's fence |
//! | the pass lock, called for everything | `publisher_against_limit` | step: the publisher answers that call, too; step: the call is dropped |
//! | the notifier's head, fence, waiters | `notifier_against_arm` | the notifier's fence |
//! | a pass under way | `sleep_beside_a_pass` | step: a parker that ends its own sleep takes the pass over |
//! | a waiter's state, and the waker in it | `arm_beside_a_wake_up` | settle |
//! | the count of a sleep | `sleep_behind_a_wake_up` | step: subtracted twice |
//! | a pass in portions: the stored `scanned_to` | `poll_between_portions` | step: stored before every group was visited |
//! | a pass in portions: members that are woken | `wake_up_in_portions` | step: members that come back count as looked at up to a later head |
//! | a pass in portions: messages | `arm_between_portions` | the notifier's fence |
//! | armed | `arm_against_publish` | step: drained after it was armed; the waiter's fence |
//! | armed, with two members | `raise_for_two` | step: raised for each |
//! | a member's word | `take_beside_a_move` | step: a member that leaves a set keeps its number |
//! | armed, by two threads | `arms_of_two_threads` | step: drained after it was armed |

use super::*;
use crate::cache::Inner;
use crate::sync::current_thread;
use crate::wake::{Due, FilterCode, Interest, Rest, WaiterCell, Waker};
use std::sync::Arc;

/// Row "fence; waiting": a parked consumer is woken by a publication.
fn wait_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let mut subscription = Local::new(cache.subscribe(Start::Now).key("/b").open().unwrap());
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/b"]);
            notifier::step();
        };
        race(writer, write, move || {
            assert!(subscription.wait(EVER).unwrap());
            assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
        });
    });
}

proof!(
    wait_against_publish, loom_wait_against_publish,
    loom_wait_against_publish_weak_writer: PublishFence => "deadlock",
    loom_wait_against_publish_weak_waiter: RegisterFence => "deadlock",
);

/// The listing against a thread that waits for it.
fn listing_against_wait_ready(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = unlisted();
        let write = |writer: &mut Writer| {
            let (key, value) = (&b"/a"[..], &b"x"[..]);
            let record = Record { key, value, create_revision: 2, mod_revision: 3, version: 2, lease: 0 };
            writer.load(5, [record]).unwrap();
            notifier::step();
        };
        race(writer, write, move || {
            cache.wait_ready(EVER).unwrap();
            let answer = cache.get("/a", Read::Any).unwrap();
            assert!(answer.revision == 5 && answer.kv.is_some(), "ready without its listing");
            cache
        });
    });
}

proof!(
    listing_against_wait_ready, loom_listing_against_wait_ready,
    loom_listing_against_wait_ready_weak_ready: Ready => "ready without its listing",
);

/// Status: a source that fails before its listing ends the wait for it.
fn failure_against_wait_ready(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = unlisted();
        let write = |writer: &mut Writer| {
            writer.set_state(SourceState::Failed(Error::new(Code::Unauthenticated, "refused")));
            notifier::step();
        };
        race(writer, write, move || {
            assert_eq!(cache.wait_ready(EVER).unwrap_err().code(), Code::Unauthenticated);
            assert_eq!(cache.status().state, State::Failed);
            cache
        });
    });
}

proof!(failure_against_wait_ready, loom_failure_against_wait_ready);

/// A waiter for revision 2, armed in an armed set.
fn armed(cache: &Cache) -> (WakeSet, Local<Waiter>) {
    let set = WakeSet::new().unwrap();
    let mut waiter = Local::new(cache.waiter(Want::Revision(2)).unwrap());
    set.add_waiter(&mut waiter, 7).unwrap();
    assert!(!waiter.arm().unwrap() && !set.arm());
    (set, waiter)
}

/// Row "called": the notifier looks while the writer publishes again.
fn notifier_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, _waiter) = armed(&cache);
        put(&mut writer, 1, &["/a"]);
        race(writer, |writer| put(writer, 2, &["/a"]), notifier::step);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
    });
}

proof!(
    notifier_against_publish, loom_notifier_against_publish,
    loom_notifier_against_publish_weak_answer: TurnAnswer => "lost wake-up",
);

/// Rows "called", "closed": the notifier looks while the cache is closed.
fn notifier_against_close(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, _waiter) = armed(&cache);
        put(&mut writer, 1, &["/a"]);
        let closing = Local::new(cache.clone());
        race(writer, move |_| closing.close(), notifier::step);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
    });
}

proof!(
    notifier_against_close, loom_notifier_against_close,
    loom_notifier_against_close_weak_answer: TurnAnswer => "lost wake-up",
);

/// Row "notifier: head; fence; waiters": a consumer that a pass does not see parked sees the head of that pass.
fn notifier_against_arm(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let waiting = WakeSet::new().unwrap();
        let mut first = Local::new(cache.waiter(Want::Revision(1)).unwrap());
        waiting.add_waiter(&mut first, 1).unwrap();
        assert!(!first.arm().unwrap());
        put(&mut writer, 1, &["/a"]);
        // The notifier was called.
        let set = WakeSet::new().unwrap();
        let mut subscription = follow(&cache);
        set.add(&mut subscription, 7).unwrap();
        let passing = thread::spawn(notifier::step);
        let (_writer, ready) = race(
            writer,
            |writer| put(writer, 2, &["/a"]),
            move || {
                let ready = subscription.arm().unwrap();
                (subscription, ready)
            },
        );
        passing.join().unwrap();
        notifier::step();
        assert!(ready.1 || set.arm(), "lost wake-up");
        drop((cache, first));
    });
}

proof!(
    notifier_against_arm, loom_notifier_against_arm,
    loom_notifier_against_arm_weak_notifier: NotifierFence => "lost wake-up",
);

/// A subscription in an armed set that the notifier knows, at the head, which is 1.
fn known(cache: &Cache, writer: &mut Writer) -> (WakeSet, Local<Subscription>) {
    let set = WakeSet::new().unwrap();
    let mut subscription = follow(cache);
    set.add(&mut subscription, 7).unwrap();
    assert!(!subscription.arm().unwrap());
    put(writer, 1, &["/a"]);
    notifier::is_due(cache.inner.clone());
    notifier::step();
    assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
    assert_eq!(set.take(&mut [0; 4]), 1);
    (set, subscription)
}

/// Row "the pass lock, held by the publisher": a consumer that parks is woken by the publisher alone, or sees the new head.
fn publisher_against_arm(weakened: Weak) {
    PUBLISHER.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, mut subscription) = known(&cache, &mut writer);
        assert!(!set.arm());
        let (_writer, (ready, subscription)) =
            race(writer, |writer| put(writer, 2, &["/a"]), move || (subscription.arm().unwrap(), subscription));
        assert!(ready || set.arm(), "lost wake-up");
        drop(subscription);
    });
}

proof!(
    publisher_against_arm, loom_publisher_against_arm,
    loom_publisher_against_arm_weak_writer: PublishFence => "lost wake-up",
    loom_publisher_against_arm_weak_waiter: RegisterFence => "lost wake-up",
);

/// Row "the pass lock, between publisher and notifier": one of them looks at events that are published meanwhile, and
/// neither waits for the other.
fn publisher_against_notifier(weakened: Weak) {
    PUBLISHER.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, mut subscription) = known(&cache, &mut writer);
        assert!(!subscription.arm().unwrap() && !set.arm());
        // The notifier looks though nobody has called, as for a due bookmark.
        notifier::is_due(cache.inner.clone());
        race(writer, |writer| put(writer, 2, &["/a"]), notifier::step);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
        drop(subscription);
    });
}

proof!(
    publisher_against_notifier, loom_publisher_against_notifier,
    loom_publisher_against_notifier_dropped: CallDropped => "lost wake-up",
    loom_publisher_against_notifier_weak_answer: TurnAnswer => "lost wake-up",
);

/// Row "the pass lock, called for everything": a subscription with a limit is opened while a publisher does a pass itself,
/// and its limit is checked all the same.
fn publisher_against_limit(weakened: Weak) {
    PUBLISHER.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, mut subscription) = known(&cache, &mut writer);
        assert!(!subscription.arm().unwrap() && !set.arm());
        let opens = cache.subscribe(Start::After(0)).max_lag_events(1);
        let (_writer, limited) =
            race(writer, |writer| put(writer, 2, &["/a"]), move || Local::new(opens.open().unwrap()));
        notifier::step();
        assert!(set.arm(), "lost wake-up");
        // A poll would enforce the limit itself.
        let is_too_slow = |one: &SubscriptionInfo| one.state == SubscriptionState::TooSlow;
        assert!(cache.subscriptions().iter().any(is_too_slow), "nobody looks at the limits");
        drop((subscription, limited));
    });
}

proof!(
    publisher_against_limit, loom_publisher_against_limit,
    loom_publisher_against_limit_answered: AnswerAll => "nobody looks at the limits",
    loom_publisher_against_limit_dropped: CallDropped => "nobody looks at the limits",
);

/// Row "a pass under way": it began at the cursor of another parker, and has not looked at the events below that.
fn sleep_beside_a_pass(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let (mut one, mut other) = (follow(&cache), follow(&cache));
        set.add(&mut one, 1).unwrap();
        set.add(&mut other, 2).unwrap();
        // The notifier knows both; the first is awake.
        assert!(!one.arm().unwrap() && !other.arm().unwrap());
        assert!(one.poll(8).unwrap().is_empty());
        let write = move |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            assert_eq!(read(&other.poll(8).unwrap()), [1]);
            assert!(!other.arm().unwrap());
            put(writer, 2, &["/a"]);
            notifier::step();
        };
        let (_writer, (mut one, mut events)) = race(writer, write, move || {
            one.arm().unwrap();
            let events = read(&one.poll(8).unwrap());
            (one, events)
        });
        events.extend(read(&one.poll(8).unwrap()));
        assert_eq!(events, [1, 2], "an event is lost");
    });
}

proof!(
    sleep_beside_a_pass, loom_sleep_beside_a_pass,
    loom_sleep_beside_a_pass_taken_over: TakeOver => "an event is lost",
);

/// A subscription like [`known`]'s, which sleeps.
fn asleep() -> (Local<Cache>, Local<Writer>, WakeSet, Local<Subscription>) {
    let (cache, mut writer) = cache(4, 2);
    let (set, mut subscription) = known(&cache, &mut writer);
    assert!(!subscription.arm().unwrap());
    (cache, writer, set, subscription)
}

/// Publishes, and the notifier looks.
fn put_and_look(writer: &mut Writer) {
    put(writer, 2, &["/a"]);
    notifier::step();
}

/// Row "a waiter's state": a consumer that was woken and sleeps again finds its waker as the claimer has left it.
fn arm_beside_a_wake_up(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (_cache, writer, set, mut subscription) = asleep();
        let (_writer, (subscription, events)) = race(writer, put_and_look, move || {
            let mut events = read(&subscription.poll(8).unwrap());
            if !subscription.arm().unwrap() {
                events.extend(read(&subscription.poll(8).unwrap()));
            }
            (subscription, events)
        });
        assert!(events.is_empty() || events == [2], "an event is lost");
        drop((subscription, set));
    });
}

proof!(
    arm_beside_a_wake_up, loom_arm_beside_a_wake_up,
    loom_arm_beside_a_wake_up_weak_settle: Settle => "Causality violation",
);

/// Row "the count of a sleep": a consumer that was woken, with its count subtracted, is counted when it sleeps again.
fn sleep_behind_a_wake_up(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (_cache, writer, set, mut subscription) = asleep();
        let (mut writer, mut subscription) = race(writer, put_and_look, move || {
            subscription.poll(8).unwrap();
            subscription.arm().unwrap();
            subscription
        });
        subscription.poll(8).unwrap();
        set.take(&mut [0; 4]);
        assert!(!subscription.arm().unwrap() && !set.arm());
        put(&mut writer, 3, &["/a"]);
        notifier::step();
        assert!(set.arm(), "lost wake-up");
        drop(subscription);
    });
}

proof!(
    sleep_behind_a_wake_up, loom_sleep_behind_a_wake_up,
    loom_sleep_behind_a_wake_up_uncounted_twice: UncountedTwice => "lost wake-up",
);

/// Subscriptions to these keys in an armed set each, which the notifier knows, at the head, which is 1.
fn known_at<const N: usize>(
    cache: &Cache,
    writer: &mut Writer,
    keys: [&str; N],
) -> [(WakeSet, Local<Subscription>); N] {
    let all = keys.map(|key| {
        let set = WakeSet::new().unwrap();
        let mut subscription = Local::new(cache.subscribe(Start::Now).key(key).open().unwrap());
        set.add(&mut subscription, 7).unwrap();
        assert!(!subscription.arm().unwrap() && !set.arm());
        (set, subscription)
    });
    put(writer, 1, &["/x"]);
    notifier::step();
    all
}

/// Row "a pass in portions": a poll between two portions moves its cursor no further than was looked at for it.
fn poll_between_portions(weakened: Weak) {
    PORTIONS.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let [_first, (set, mut subscription)] = known_at(&cache, &mut writer, ["/a", "/b"]);
        put(&mut writer, 2, &["/b"]);
        let (mut subscription, mut events) = both(
            move || {
                let events = read(&subscription.poll(8).unwrap());
                (subscription, events)
            },
            notifier::step,
        )
        .0;
        events.extend(read(&subscription.poll(8).unwrap()));
        assert_eq!(events, [2], "an event is lost");
        drop(set);
    });
}

proof!(
    poll_between_portions, loom_poll_between_portions,
    loom_poll_between_portions_scanned_early: ScannedEarly => "an event is lost",
);

/// Row "a pass in portions": one member of a group was woken, has polled and sleeps again when the next portion wakes
/// the other one, at a later head.
fn wake_up_in_portions(weakened: Weak) {
    PORTIONS_LONG.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let [_other, (set, mut subscription)] = known_at(&cache, &mut writer, ["/a", "/a"]);
        put(&mut writer, 2, &["/a"]);
        let ((_writer, subscription), ()) = both(
            move || {
                assert_eq!(read(&subscription.poll(8).unwrap()), [2]);
                set.take(&mut [0; 4]);
                assert!(!subscription.arm().unwrap());
                let sleeps = !set.arm();
                put(&mut writer, 3, &["/a"]);
                (writer, (set, subscription, sleeps))
            },
            notifier::step,
        );
        notifier::step();
        let (set, subscription, _sleeps) = subscription;
        assert!(set.take(&mut [0; 4]) > 0, "lost wake-up");
        drop(subscription);
    });
}

proof!(
    wake_up_in_portions, loom_wake_up_in_portions,
    loom_wake_up_in_portions_woken_to_now: WokenToNow => "lost wake-up",
);

/// Row "a pass in portions": a consumer parks between two portions, and its message comes after another one.
fn arm_between_portions(weakened: Weak) {
    PORTIONS_LONG.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let [known] = known_at(&cache, &mut writer, ["/b"]);
        let (set, mut subscription) = (WakeSet::new().unwrap(), follow(&cache));
        set.add(&mut subscription, 7).unwrap();
        put(&mut writer, 2, &["/x"]);
        let passing = thread::spawn(notifier::step);
        let (_writer, ready) = race(
            writer,
            |writer| put(writer, 3, &["/a"]),
            move || {
                let has_all = read(&subscription.poll(8).unwrap()).contains(&3);
                let ready = subscription.arm().unwrap();
                (subscription, has_all || ready)
            },
        );
        passing.join().unwrap();
        notifier::step();
        assert!(ready.1 || set.arm(), "lost wake-up");
        drop((cache, known));
    });
}

proof!(
    arm_between_portions, loom_arm_between_portions,
    loom_arm_between_portions_weak_notifier: NotifierFence => "lost wake-up",
);

/// Row "armed": the two arms of a wake set against a publish.
fn arm_against_publish(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let mut subscription = follow(&cache);
        set.add(&mut subscription, 7).unwrap();
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            notifier::step();
        };
        let (_writer, (set, sleeps, mut subscription)) = race(writer, write, move || {
            let ready = subscription.arm().unwrap();
            let sleeps = !set.arm();
            assert!(!(ready && sleeps), "a ready member is listed");
            (set, sleeps, subscription)
        });
        if sleeps {
            assert!(set.shared.signal.descriptor.wait(0), "sleeps for ever");
        }
        assert_eq!(set.take(&mut [0; 4]), 1);
        assert_eq!(read(&subscription.poll(8).unwrap()), [1]);
    });
}

proof!(
    arm_against_publish, loom_arm_against_publish,
    loom_arm_against_publish_late_drain: DrainLate => "sleeps for ever",
    loom_arm_against_publish_weak_waiter: RegisterFence => "sleeps for ever",
);

/// Row "armed": two threads sleep on one set, and one that arms again does not take the other's signal.
fn arms_of_two_threads(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        let set = WakeSet::new().unwrap();
        let mut subscription = follow(&cache);
        set.add(&mut subscription, 7).unwrap();
        assert!(!subscription.arm().unwrap());
        // The first thread sleeps, the second arms beside a wake-up.
        assert!(!set.arm());
        let second = set.clone();
        let write = |writer: &mut Writer| {
            put(writer, 1, &["/a"]);
            notifier::step();
        };
        let (_writer, ready) = race(writer, write, move || second.arm());
        // The thread that took no tag leaves the signal to the other.
        assert!(set.shared.signal.descriptor.wait(0), "sleeps for ever, ready {ready}");
        assert_eq!(set.take(&mut [0; 4]), 1);
    });
}

proof!(
    arms_of_two_threads, loom_arms_of_two_threads,
    loom_arms_of_two_threads_late_drain: DrainLate => "sleeps for ever",
);

/// Row "armed, with two members": a pass that lists both raises the set once, and a loop that has taken both sleeps.
fn raise_for_two(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, _first) = armed(&cache);
        let mut second = Local::new(cache.waiter(Want::Revision(2)).unwrap());
        set.add_waiter(&mut second, 8).unwrap();
        assert!(!second.arm().unwrap());
        put(&mut writer, 2, &["/a"]);
        let looping = set.clone();
        let is_raised = |set: &WakeSet| set.shared.signal.descriptor.wait(0);
        let takes = move || is_raised(&looping) && looping.take(&mut [0; 4]) == 2 && !looping.arm();
        let (took_both, ()) = both(takes, notifier::step);
        assert!(!(took_both && is_raised(&set)), "woken for nothing");
    });
}

proof!(raise_for_two, loom_raise_for_two, loom_raise_for_two_each: RaisedEach => "woken for nothing");

/// Row "a member's word": a listed member moves to another set while the tags of the first set are taken.
fn take_beside_a_move(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let (set, mut subscription) = known(&cache, &mut writer);
        assert!(!subscription.arm().unwrap());
        put(&mut writer, 2, &["/a"]);
        notifier::step();
        // With other members, so that the entry of the one that moves stays on the list.
        let mut others = [(); 2].map(|()| Local::new(cache.waiter(Want::Revision(1)).unwrap()));
        for (tag, waiter) in others.iter_mut().enumerate() {
            set.add_waiter(waiter, tag as u64).unwrap();
            assert!(waiter.arm().unwrap());
        }
        let other = WakeSet::new().unwrap();
        let (left, joined, taking) = (set.clone(), other.clone(), set.clone());
        let (subscription, ()) = both(
            move || {
                assert!(left.remove(&mut subscription));
                joined.add(&mut subscription, 9).unwrap();
                assert!(subscription.arm().unwrap());
                subscription
            },
            move || _ = taking.take(&mut [0; 4]),
        );
        let mut tags = [0; 4];
        set.take(&mut tags);
        assert!(!tags.contains(&7), "a tag strays");
        let mut tags = [0; 4];
        assert_eq!((other.take(&mut tags), tags[0]), (1, 9), "a tag strays");
        drop(subscription);
    });
}

proof!(
    take_beside_a_move, loom_take_beside_a_move,
    loom_take_beside_a_move_same_number: SameMembership => "a tag strays",
);

/// Row "the listing of a waiter's time": a consumer that parks anew, while the notifier looks at its waiter for the deadline
/// of the sleep before, is woken for the new deadline, too.
fn deadline_beside_a_look(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, _writer) = cache(4, 2);
        let sleep = |waiter: &mut WaiterCell, inner: &Arc<Inner>| {
            let mut parker = waiter.parker(FilterCode::Own);
            parker.wait_for(Interest::revision(9.into(), None));
            let due = Due { deadline: Some(Instant::now()), bookmark: None };
            assert!(parker.park(inner, 0, Waker::Thread(current_thread()), &due).is_ok());
        };
        let mut waiter = WaiterCell::new();
        sleep(&mut waiter, &cache.inner);
        let inner = cache.inner.clone();
        let (waiter, ()) = both(
            move || {
                waiter.parker(FilterCode::Own).unpark(&inner);
                sleep(&mut waiter, &inner);
                waiter
            },
            notifier::step,
        );
        // A model has no clock: the notifier is called as if the time of its entry had come.
        cache.inner.hubs.notify(&cache.inner);
        notifier::step();
        assert!(matches!(waiter.waiter().unwrap().rest(), Rest::Woken { .. }), "sleeps for ever");
    });
}

proof!(
    deadline_beside_a_look, loom_deadline_beside_a_look,
    loom_deadline_beside_a_look_weak_notifier: UnlistFence => "sleeps for ever",
);
