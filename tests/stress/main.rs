//! Real threads against a writer at full speed. Bounded by work, not by time.
//!
//! `WATCHCORE_SEED` replays the same history (the seed is printed and part of each panic; the
//! schedule is the machine's), `WATCHCORE_STEPS` makes it longer.
#![allow(missing_docs, unreachable_pub)]

mod bound;
mod follow;
mod heap;
mod plan;
mod roll;
mod workers;

use bound::{BOUND, Task, until};
use follow::{Keys, Outcome, Wish};
use plan::{Plan, mix, revision_of};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use watchcore::raw::{TestBuilder as _, quiesce};
use watchcore::*;
use workers::{Harness, write_all};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

fn plan(steps: u64) -> Arc<Plan> {
    let seed = number("WATCHCORE_SEED").unwrap_or_else(|| RandomState::new().hash_one(0u8));
    let plan = Plan::new(number("WATCHCORE_STEPS").unwrap_or(steps), seed);
    println!("{plan:?}");
    Arc::new(plan)
}

/// (capacity, slots a segment): everybody who is slow is overrun; hardly anybody is.
const TINY: (usize, u64) = (256, 16);
const ROOMY: (usize, u64) = (65_536, 1024);

fn cache_of((capacity, slots): (usize, u64)) -> Cache {
    Cache::builder("/s/").capacity(capacity).segment_slots(slots).build().unwrap()
}

/// Every kind of consumer and reader beside one writer.
fn mixed(size: (usize, u64), steps: u64) {
    let plan = plan(steps);
    let cache = cache_of(size);
    let harness = Harness::new(&cache, &plan);
    // Never polled while the writer continues.
    let mut stalled = harness.open(Wish::of(Keys::All), Start::State);
    let mut stalled_key = harness.open(Wish::of(Keys::One(5)), Start::After(0));
    let held = cache.snapshot().unwrap();

    let mut tasks = vec![
        harness.spawn("fast", |w| w.follow(&[Wish::of(Keys::All)], 1, |_| 512)),
        harness.spawn("small polls", |w| w.follow(&[Wish::of(Keys::All)], 2, |entropy| 1 + entropy as usize % 7)),
        harness.spawn("filters", |w| {
            let deletes = Wish { types: vec![Kind::Deleted], ..Wish::of(Keys::All) };
            let raw = Wish { raw: true, ..Wish::of(Keys::Prefix("/s/b")) };
            let wishes = [Wish::of(Keys::One(3)), Wish::of(Keys::Path("/s/a")), deletes, raw];
            w.follow(&wishes, 3, |entropy| 1 + entropy as usize % 64);
        }),
        harness.spawn("whole revisions, bookmarks, stop on resync", |w| {
            let whole = Wish { whole: true, bookmarks: true, ..Wish::of(Keys::All) };
            let stops = Wish { stop_on_resync: true, ..Wish::of(Keys::Prefix("/s/a")) };
            w.follow(&[whole, stops], 4, |entropy| 1 + entropy as usize % 9);
        }),
        harness.spawn("dropped and opened again", |w| w.reopen(5)),
        harness.spawn("wake set", |w| w.wake_set(6)),
        harness.spawn("closer", |w| w.closer(7)),
        harness.spawn("snapshots", |w| w.snapshots(8)),
        harness.spawn("reads", |w| w.reads(9)),
        harness.spawn("observer", |w| w.observe()),
    ];
    // A subscription that goes from thread to thread.
    let (left, right) = (mpsc::channel(), mpsc::channel());
    left.0.send(harness.open(Wish::of(Keys::All), Start::Now)).unwrap();
    let (to_right, to_left) = (right.0, left.0);
    let (from_left, from_right) = (left.1, right.1);
    tasks.push(harness.spawn("moved, one side", move |w| w.moved(&from_left, &to_right)));
    tasks.push(harness.spawn("moved, other side", move |w| w.moved(&from_right, &to_left)));

    let writer = cache.writer().unwrap();
    let written = plan.clone();
    Task::spawn("writer", move || write_all(&written, writer, 1)).join();
    for task in tasks {
        task.join();
    }
    println!("{:?} {size:?}: {:?} {:?}", plan, harness.tally, cache.stats());

    let expected = if cache.stats().events > size.0 as u64 { Outcome::Lagged } else { Outcome::Events };
    let losses = || harness.tally.lagged.load(SeqCst) + 2 * u64::from(expected == Outcome::Lagged);
    assert!(cache.stats().lagged >= losses(), "losses that no poll has met count, too: {plan:?}");
    assert_eq!(stalled.poll(1024).0, expected, "{plan:?}");
    assert_eq!(stalled_key.poll(1024).0, expected, "{plan:?}");
    assert!(held.is_empty() && held.revision() == 0, "a snapshot never changes: {plan:?}");

    harness.close_and_drain();
    drop((stalled, stalled_key, held));
    settles(&cache, &plan);
}

/// Once all is dropped, only the window is held.
fn settles(cache: &Cache, plan: &Plan) {
    until("segments beyond the window are freed", || {
        quiesce(Duration::from_secs(1));
        let stats = cache.stats();
        stats.segments == stats.window_segments && stats.subscriptions == 0 && stats.waiting == 0
    });
    assert_eq!(cache.stats().oldest_snapshot, Duration::ZERO, "{plan:?}");
    let status = cache.status();
    assert_eq!((status.subscriptions, status.max_lag_events, status.overrun), (0, 0, 0), "{plan:?}");
    assert!(cache.subscriptions().is_empty(), "{plan:?}");
    assert_eq!(cache.stats().objects, plan.state(plan.steps).count() as u64, "{plan:?}");
}

#[test]
fn everybody_beside_a_writer_on_a_tiny_ring() {
    mixed(TINY, 10_000);
}

#[test]
fn everybody_beside_a_writer_on_a_roomy_ring() {
    mixed(ROOMY, 10_000);
}

#[test]
fn writers_come_and_go_on_other_threads() {
    let plan = plan(5_000);
    let cache = cache_of(ROOMY);
    let harness = Harness::new(&cache, &plan);
    let busy = Arc::new(AtomicU64::new(0));
    let mut tasks: Vec<Task> = (0..3)
        .map(|seat| {
            let busy = busy.clone();
            harness.spawn("writer", move |w| {
                loop {
                    let mut writer = match w.cache.writer() {
                        Ok(writer) => writer,
                        Err(error) => {
                            assert_eq!(error.code(), Code::Busy, "{:?}", w.plan);
                            busy.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            continue;
                        }
                    };
                    assert_eq!(writer.position(), w.cache.position(), "{:?}", w.plan);
                    assert_eq!(w.cache.writer().unwrap_err().code(), Code::Busy, "{:?}", w.plan);
                    let next = writer.position().revision / 2 + 1;
                    if next > w.plan.steps {
                        return;
                    }
                    for step in next..=(next + mix(seat, next) % 20).min(w.plan.steps) {
                        w.write(&mut writer, step);
                    }
                }
            })
        })
        .collect();
    tasks.push(harness.spawn("fast", |w| w.follow(&[Wish::of(Keys::All)], 1, |_| 256)));
    tasks.push(harness.spawn("filtered", |w| w.follow(&[Wish::of(Keys::Path("/s/b"))], 2, |_| 64)));
    tasks.push(harness.spawn("snapshots", |w| w.snapshots(3)));
    tasks.push(harness.spawn("observer", |w| w.observe()));
    tasks.into_iter().for_each(Task::join);
    println!("{plan:?}: BUSY {} times", busy.load(SeqCst));
    harness.close_and_drain();
    settles(&cache, &plan);
}

/// The cache closes while consumers wait in every way there is, and while the writer writes: each
/// gets what was published before the close, then CLOSED.
#[test]
fn a_close_ends_every_wait_and_loses_nothing() {
    let plan = plan(60);
    for round in 0..40 {
        let cache = cache_of(ROOMY);
        let harness = Harness::new(&cache, &plan);
        let never = 1 << 40;
        let mut tasks = vec![
            harness.spawn("wait", |w| {
                let mut follower = w.open(Wish::of(Keys::All), Start::State);
                w.ready();
                w.wait_until_closed(&mut follower);
                assert_eq!(follower.poll(1).0, Outcome::Closed);
            }),
            harness.spawn("wait for one key", |w| {
                let mut follower = w.open(Wish::of(Keys::One(7)), Start::Now);
                w.ready();
                w.wait_until_closed(&mut follower);
            }),
            harness.spawn("a state that never comes", move |w| {
                let state = w.cache.subscribe(Start::StateAtLeast(never)).start_timeout(Duration::MAX);
                let mut state = state.open().unwrap();
                w.ready();
                assert!(state.wait(Duration::MAX).expect("an error to poll"));
                assert_eq!(state.poll(1).unwrap_err().code(), Code::Closed);
                assert_eq!(state.wait(Duration::MAX).unwrap_err().code(), Code::Closed);
            }),
            harness.spawn("a future start", move |w| {
                let mut future = w.cache.subscribe(Start::After(never)).open().unwrap();
                w.ready();
                assert!(future.next_batch().unwrap().is_none());
            }),
            harness.spawn("wake set and descriptor", |w| w.wake_set_until_closed()),
            harness.spawn("revision", move |w| {
                w.ready();
                assert_eq!(w.cache.wait_until(never, Duration::MAX).unwrap_err().code(), Code::Closed);
            }),
            harness.spawn("get at least", move |w| {
                w.ready();
                let answer =
                    w.cache.get_with("/s/a/000", &ReadOptions::new(Read::AtLeast(never)).timeout(Duration::MAX));
                assert_eq!(answer.unwrap_err().code(), Code::Closed);
            }),
            harness.spawn("list exactly", move |w| {
                w.ready();
                let answer =
                    w.cache.list_with(&Range::all(), &ReadOptions::new(Read::Exact(never)).timeout(Duration::MAX));
                assert_eq!(answer.unwrap_err().code(), Code::Closed);
            }),
        ];
        let mut writer = cache.writer().unwrap();
        until("all have begun", || harness.begun() == tasks.len() as u64);
        let at = mix(plan.seed, round) % plan.steps;
        let closing = harness.worker();
        let close = if round % 2 == 1 {
            // In the middle of the writer's work.
            Task::spawn("close", move || {
                until("the writer is there", || closing.cache.position().revision >= revision_of(at));
                closing.close();
            })
        } else {
            // Behind a part of it.
            (1..=at).for_each(|step| harness.write(&mut writer, step));
            let close = Task::spawn("close", move || closing.close());
            until("the writer learns of it", || writer.is_closed());
            close
        };
        let (mut next, mut refused) = (writer.position().revision / 2 + 1, None);
        while refused.is_none() && next <= plan.steps {
            refused = plan.write(&mut writer, next).err();
            next += 1;
        }
        tasks.push(close);
        tasks.into_iter().for_each(Task::join);
        let error = refused.or_else(|| writer.apply(1 << 30, [Change::put("/s/x", "")]).err()).expect("it is closed");
        assert_eq!(error.code(), Code::Closed);
        assert_eq!(cache.status().state, State::Closed);
    }
}

/// The close falls into a publication, as often as possible: a consumer whose wait answers CLOSED gets
/// nothing by the poll after it, and what `apply` has reported as published is delivered before.
#[test]
fn nothing_follows_closed() {
    const ROUNDS: u64 = 1_000;
    let (to_writer, rounds) = mpsc::channel::<(Cache, Writer, Arc<Barrier>)>();
    let (report, published) = mpsc::channel::<u64>();
    let writes = Task::spawn("writer", move || {
        for (cache, mut writer, together) in rounds {
            together.wait();
            let mut last = 0;
            // The log holds as many: nobody lags.
            while last < 2_000 && writer.apply(last + 1, [Change::put("/s/k", "x")]).is_ok() {
                last += 1;
            }
            assert_eq!(cache.position().revision, last, "published, and what apply answered");
            report.send(last).unwrap();
        }
    });
    let (to_closer, closes) = mpsc::channel::<(Cache, Arc<Barrier>, u64)>();
    let closer = Task::spawn("closer", move || {
        for (cache, together, turns) in closes {
            together.wait();
            (0..turns).for_each(|_| std::hint::spin_loop());
            cache.close();
        }
    });
    for round in 0..ROUNDS {
        let cache = cache_of((4_096, 256));
        let together = Arc::new(Barrier::new(3));
        let mut consumer = cache.subscribe(Start::Now).key("/s/k").open().unwrap();
        to_writer.send((cache.clone(), cache.writer().unwrap(), together.clone())).unwrap();
        to_closer.send((cache.clone(), together.clone(), mix(1, round) % 3000)).unwrap();
        together.wait();
        let mut last = 0;
        until("CLOSED", || match consumer.wait(Duration::ZERO).and_then(|_| consumer.poll(64)) {
            Ok(batch) => {
                last = batch.events().last().map_or(last, Event::revision);
                false
            }
            Err(error) => {
                assert_eq!(error.code(), Code::Closed, "round {round}: {error}");
                true
            }
        });
        let after = consumer.poll(64).map(|batch| batch.events().iter().map(Event::revision).collect::<Vec<_>>());
        assert_eq!(after.map_err(|error| error.code()), Err(Code::Closed), "round {round}: CLOSED was said at {last}");
        assert_eq!(published.recv_timeout(BOUND), Ok(last), "round {round}: published, and handed out");
    }
    drop((to_writer, to_closer));
    writes.join();
    closer.join();
}

/// Each event is written only once the consumer is on its way to sleep: a wake-up that is lost is
/// not made good by a later one.
#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: u64 = 4_000;
    let cache = cache_of(ROOMY);
    let mut writer = cache.writer().unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let (sleeper, asks) = (cache.clone(), asked.clone());
    let task = Task::spawn("sleeper", move || {
        let mut key = sleeper.subscribe(Start::Now).key("/s/k").open().unwrap();
        let mut member = sleeper.subscribe(Start::Now).open().unwrap();
        let set = WakeSet::new().unwrap();
        set.add(&mut member, 1).unwrap();
        for revision in 1..=ROUNDS {
            asks.store(revision, SeqCst);
            (0..mix(revision, 1) % 400).for_each(|_| std::hint::spin_loop());
            let begin = std::time::Instant::now();
            let came = match revision % 3 {
                0 => key.wait(BOUND).unwrap(),
                1 => sleeper.wait_until(revision, BOUND).is_ok(),
                _ => (member.arm().unwrap() || set.wait(BOUND)) && set.take(&mut [0; 2]) == 1,
            };
            assert!(came && begin.elapsed() < BOUND / 2, "a lost wake-up at {revision}: {:?}", begin.elapsed());
            until("the event is there", || sleeper.position().revision >= revision);
            while !member.poll(64).unwrap().is_empty() {}
            while !key.poll(64).unwrap().is_empty() {}
        }
    });
    for revision in 1..=ROUNDS {
        until("the consumer asks", || asked.load(SeqCst) >= revision || task.is_over());
        if task.is_over() {
            break;
        }
        (0..mix(revision, 2) % 400).for_each(|_| std::hint::spin_loop());
        writer.apply(revision, [Change::put("/s/k", "x")]).unwrap();
    }
    task.join();
}

/// Segments and versions of this test have sizes that nothing else here has; see `heap`.
#[test]
fn segments_and_versions_are_freed_by_the_reclaimer() {
    heap::watch_sizes();
    let value = vec![7; heap::VALUE];
    // Key-values that outlive everything: their last counts are released here.
    let mut outlive: Vec<KeyValue> = Vec::new();
    {
        let cache = Cache::builder("/").capacity(2 * heap::SLOTS as usize).segment_slots(heap::SLOTS).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut consumer = cache.subscribe(Start::Now).open().unwrap();
        let mut filtered = cache.subscribe(Start::Now).prefix("/k/1").open().unwrap();
        let (send, receive) = mpsc::channel::<Kept>();
        let dropper = Task::spawn("dropper", move || {
            let mut kept = std::collections::VecDeque::new();
            for one in receive {
                kept.push_back(one);
                // Longer than its segment is in the window: the last counts are released here.
                if kept.len() > 500 {
                    kept.pop_front();
                }
            }
        });
        let keys: Vec<String> = (0..40).map(|key| format!("/k/{key}")).collect();
        for revision in 1..=5 * heap::SLOTS {
            let key = &keys[revision as usize % keys.len()];
            let change = match writer.get(key.as_bytes()).is_some() && revision % 3 == 0 {
                true => Change::delete(key),
                false => Change::put(key, &value),
            };
            writer.apply(revision, [change]).unwrap();
            if revision % 50 == 0 {
                let batch = consumer.poll(60).unwrap();
                outlive.extend(
                    batch.events().iter().find_map(|event| event.kv().cloned()).filter(|kv| kv.value().is_some()),
                );
                let _ = send.send(Kept::Batch(batch));
                let _ = send.send(Kept::Batch(filtered.poll(20).unwrap()));
                let _ = send.send(Kept::Snapshot(cache.snapshot().unwrap()));
                let _ = send.send(Kept::Page(cache.list(&Range::all(), Read::Any, 0).unwrap()));
            }
        }
        let (segments, versions) = heap::freed();
        println!("freed before the end: {segments} segments, {versions} versions");
        // Everything goes in whatever order.
        drop(cache);
        drop(send);
        drop(writer);
        dropper.join();
        drop(filtered);
        drop(consumer);
    }
    let left = outlive.len() as i64;
    assert!(left > 10);
    until("all but these is freed", || quiesce(Duration::from_secs(1)) && heap::alive() == (0, left));
    Task::spawn("drops them", move || drop(outlive)).join();
    until("all is freed", || quiesce(Duration::from_secs(1)) && heap::alive() == (0, 0));
    let (segments, versions) = heap::freed();
    assert!(segments >= 5 && versions > 3 * heap::SLOTS, "{segments} segments and {versions} versions were watched");
    assert_eq!(heap::freed_elsewhere(), (0, 0), "segments and versions freed on other threads");
}

/// What the dropper keeps for a while; the fields are only held.
#[allow(dead_code)]
enum Kept {
    Batch(Batch),
    Snapshot(Snapshot),
    Page(Page),
}

/// 100,000 objects from the initial state into the live stream while the writer continues.
#[test]
fn the_initial_state_joins_the_live_stream_without_a_gap() {
    const OBJECTS: u64 = 100_000;
    const CHANGES: u64 = 40_000;
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let names: Arc<Vec<String>> = Arc::new((0..OBJECTS).map(|key| format!("/o/{key:06}")).collect());
    let mut writer = cache.writer().unwrap();
    let records = names.iter().enumerate().map(|(at, name)| Record {
        key: name.as_bytes(),
        value: b"first",
        create_revision: at as u64 + 1,
        mod_revision: at as u64 + 1,
        version: 1,
        lease: 0,
    });
    writer.load(OBJECTS, records).unwrap();
    let readers: Vec<Task> = (0..3u64)
        .map(|seat| {
            let (cache, names) = (cache.clone(), names.clone());
            Task::spawn("reader", move || {
                // Each starts somewhere else in the writer's way.
                cache.wait_until(OBJECTS + seat * CHANGES / 4, BOUND).unwrap();
                let mut state = cache.subscribe(Start::State).open().unwrap();
                let mut revisions = vec![0; OBJECTS as usize];
                let (mut objects, mut joined, mut last) = (0, 0, 0);
                while last < OBJECTS + CHANGES {
                    assert!(state.wait(BOUND).unwrap(), "nothing for {BOUND:?} at {last}");
                    for event in &state.poll(100).unwrap() {
                        last = event.revision();
                        if event.ends_initial_state() {
                            (joined, objects) = (last, OBJECTS);
                        } else if joined == 0 {
                            assert_eq!(event.key(), names[objects as usize].as_bytes(), "key order");
                            revisions[objects as usize] = last;
                            objects += 1;
                        } else {
                            joined += 1;
                            assert_eq!(last, joined, "no gap, no overlap");
                            let at = names.binary_search_by(|name| name.as_bytes().cmp(event.key())).unwrap();
                            let before = event.prev().map(KeyValue::mod_revision);
                            assert_eq!(before, Some(revisions[at]), "it follows what was delivered");
                            revisions[at] = last;
                        }
                    }
                }
                assert_eq!(objects, OBJECTS);
                let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
                let now: Vec<u64> = page.iter().map(|kv| kv.mod_revision()).collect();
                assert_eq!(now, revisions);
            })
        })
        .collect();
    for revision in OBJECTS + 1..=OBJECTS + CHANGES {
        let name = &names[(mix(1, revision) % OBJECTS) as usize];
        writer.apply(revision, [Change::put(name, "next")]).unwrap();
    }
    readers.into_iter().for_each(Task::join);
}
