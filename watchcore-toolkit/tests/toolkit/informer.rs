//! Informers: handlers, registrations, indexes, listers.

use crate::support::{BOUND, Journal, Text, delete, lap, put, small_cache, until, wide_cache};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::task::{Context, Waker};
use std::thread;
use watchcore::{Cache, Change, Code, Filter, KeyValue, OnLag, Record, ResyncReason, Writer};
use watchcore_toolkit::{Handler, HandlerFns, HandlerOptions, HandlerState, Informer, Origin, Registration, Status};

/// Writes what it is called with into a journal.
struct Log(Arc<Journal>);

fn of(object: &Text) -> String {
    format!("{}={}", object.key_str().unwrap(), **object)
}

impl Handler<Text> for Log {
    fn added(&mut self, new: &Text, origin: Origin) {
        let initial = if origin == Origin::InitialState { "initial " } else { "" };
        self.0.write(format!("{initial}+ {}", of(new)));
    }

    fn updated(&mut self, old: &Text, new: &Text, origin: Origin) {
        let resync = if origin == Origin::Resync { "resync " } else { "" };
        self.0.write(format!("{resync}~ {}>{}", of(old), **new));
    }

    fn deleted(&mut self, last: &Text, _: Origin) {
        self.0.write(format!("- {}", of(last)));
    }

    fn deleted_unknown(&mut self, key: &[u8], _: Origin) {
        self.0.write(format!("? {}", String::from_utf8_lossy(key)));
    }

    fn synced(&mut self) {
        self.0.write("synced");
    }

    fn lost(&mut self, revisions: u64) {
        self.0.write(format!("lost {}", revisions.min(1)));
    }

    fn ended(&mut self, error: Option<&Status>) {
        self.0.write(format!("ended {}", error.map_or(0, Status::code)));
    }
}

pub(crate) fn logged(informer: &Informer<Text>) -> (Registration, Arc<Journal>) {
    let journal = Arc::new(Journal::default());
    (informer.add_handler(Log(Arc::clone(&journal))).unwrap(), journal)
}

/// A handler that stands in its first call until it is let go.
pub(crate) struct Gate {
    entered: mpsc::Receiver<()>,
    pub(crate) leave: mpsc::Sender<()>,
}

impl Gate {
    pub(crate) fn handler() -> (HandlerFns<Text>, Gate) {
        let (enters, entered) = mpsc::channel();
        let (leave, leaves) = mpsc::channel();
        let handler = HandlerFns::new().on_added(move |_: &Text, _| {
            enters.send(()).ok();
            leaves.recv().ok();
        });
        (handler, Gate { entered, leave })
    }

    pub(crate) fn wait_entered(&self) {
        self.entered.recv_timeout(BOUND).expect("the handler is called");
    }
}

/// Handlers that are added beside a writer each see every object once as added, then its changes.
#[test]
fn si_02_late_handlers_get_state_and_stream() {
    let cache = wide_cache();
    let informer = Informer::<Text>::new(&cache).unwrap();
    let begin = Arc::new(Barrier::new(2));
    let writing = {
        let (cache, begin) = (cache.clone(), Arc::clone(&begin));
        thread::spawn(move || {
            let mut writer = cache.writer().unwrap();
            begin.wait();
            for number in 0..2000 {
                put(&mut writer, &format!("/{number}"), "1");
            }
        })
    };
    begin.wait();
    let handlers: Vec<_> = (0..16).map(|_| logged(&informer)).collect();
    writing.join().unwrap();
    for (_registration, journal) in &handlers {
        let lines = journal.wait(|lines| lines.len() == 2001);
        let synced = lines.iter().position(|line| line == "synced").unwrap();
        assert!(lines[..synced].iter().all(|line| line.starts_with("initial + ")), "state, mark, changes");
        assert!(lines[synced + 1..].iter().all(|line| line.starts_with("+ ")));
        let live: Vec<u64> = lines[synced + 1..].iter().map(|line| line[3..line.len() - 2].parse().unwrap()).collect();
        assert!(live.is_sorted(), "between keys the order is that of the changes");
    }
}

/// `lost` comes before the difference of a source that was away.
#[test]
fn si_03_lost_comes_before_the_difference() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let informer = Informer::<Text>::new(&cache).unwrap();
    let (_registration, journal) = logged(&informer);
    journal.wait_for("synced");
    let record = |key, value| Record { key, value, create_revision: 1, mod_revision: 6, version: 2, lease: 0 };
    writer.resync(9, [record(b"/a", b"2")], ResyncReason::Compacted).unwrap();
    let lines = journal.wait(|lines| lines.len() == 6);
    let mut difference = lines[4..].to_vec();
    difference.sort();
    assert_eq!((lines[3].as_str(), difference), ("lost 1", vec!["- /b=1".to_owned(), "~ /a=1>2".to_owned()]));
}

/// What a handler holds, which says when its thread has dropped it.
struct Gone(mpsc::Sender<u64>, u64);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.send(self.1).ok();
    }
}

/// A detached handler is the informer's: it ends, with its thread and all that it holds, when the informer's last clone and
/// last lister are dropped, when it is removed by its number, and with a stop. One that is attached does not.
#[test]
fn si_05_detached_handlers_end_with_their_informer() {
    let cache = wide_cache();
    put(&mut cache.writer().unwrap(), "/a", "1");
    let (says, gone) = mpsc::channel();
    let add = |informer: &Informer<Text>, number| {
        let held = Gone(says.clone(), number);
        let handler = HandlerFns::new().on_added(move |_: &Text, _| {
            let _ = &held;
        });
        let registration = informer.add_handler(handler).unwrap();
        registration.wait_synced(BOUND).unwrap();
        registration
    };
    let informer = Informer::<Text>::new(&cache).unwrap();
    let (clone, lister) = (informer.clone(), informer.lister());
    add(&informer, 1).detach();
    let attached = add(&informer, 2);
    let by_number = add(&informer, 3);
    let number = by_number.id();
    by_number.detach();
    let late = add(&informer, 4);
    assert!(informer.remove_handler(number) && !informer.remove_handler(1000));
    assert_eq!(gone.recv_timeout(BOUND).unwrap(), 3);
    drop((informer, clone));
    assert!(gone.try_recv().is_err(), "the lister is of the same informer");
    drop(lister);
    assert_eq!(gone.recv_timeout(BOUND).unwrap(), 1);
    late.detach();
    assert_eq!(gone.recv_timeout(BOUND).unwrap(), 4, "nobody could end it any more");
    assert_eq!(attached.status().state, HandlerState::Waiting);
    drop(attached);
    assert_eq!(gone.recv_timeout(BOUND).unwrap(), 2);
    let informer = Informer::<Text>::new(&cache).unwrap();
    add(&informer, 5).detach();
    informer.stop();
    assert_eq!(gone.recv_timeout(BOUND).unwrap(), 5);
}

/// Under every policy a key whose newest value cannot be decoded is changed and deleted with the last one that was given.
#[test]
fn rf_14_every_policy_gives_the_last_good_value() {
    for policy in [OnLag::Resnapshot, OnLag::Conflate, OnLag::Stop, OnLag::SkipToOldest] {
        let cache = wide_cache();
        let mut writer = cache.writer().unwrap();
        writer.apply(1, [Change::put("/never", b"\xff")]).unwrap();
        let informer = Informer::<Text>::new(&cache).unwrap();
        let journal = Arc::new(Journal::default());
        let options = HandlerOptions::new().on_lag(policy);
        let registration = informer.add_handler_with(Log(Arc::clone(&journal)), options).unwrap();
        journal.wait_for("synced");
        put(&mut writer, "/a", "good");
        put(&mut writer, "/b", "good");
        for bad in [b"\xff", b"\xfe"] {
            let revision = writer.position().revision + 1;
            writer.apply(revision, [Change::put("/a", bad), Change::put("/b", bad)]).unwrap();
        }
        delete(&mut writer, "/a");
        put(&mut writer, "/b", "better");
        delete(&mut writer, "/b");
        delete(&mut writer, "/never");
        put(&mut writer, "/end", "1");
        journal.wait_for("+ /end=1");
        let lines = ["synced", "+ /a=good", "+ /b=good", "- /a=good", "~ /b=good>better", "- /b=better", "+ /end=1"];
        assert_eq!(journal.lines(), lines, "{policy:?}");
        drop(registration);
    }
}

/// What a handler with SkipToOldest has missed may be the last good value of an object: where its deletion comes, so does its key.
/// No deletion is given of an object that the handler cannot have been given.
#[test]
fn rf_14_deletion_behind_a_skip_has_its_key() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "good");
    let informer = Informer::<Text>::new(&cache).unwrap();
    let journal = Arc::new(Journal::default());
    let options = HandlerOptions::new().on_lag(OnLag::SkipToOldest);
    let (registration, run) = informer.handler(Log(Arc::clone(&journal)), options).unwrap();
    let mut run = std::pin::pin!(run);
    // A poll makes so many calls at most, and there is nothing else to wait for.
    let mut poll = || (0..50).all(|_| run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(poll());
    let bad = |writer: &mut Writer, key: &str| {
        let revision = writer.position().revision + 1;
        writer.apply(revision, [Change::put(key, b"\xff")]).unwrap();
    };
    bad(&mut writer, "/a");
    lap(&mut writer, "/z");
    bad(&mut writer, "/late");
    delete(&mut writer, "/late");
    bad(&mut writer, "/a");
    delete(&mut writer, "/a");
    put(&mut writer, "/end", "1");
    assert!(poll());
    let lines = journal.lines().into_iter().filter(|line| !line.contains("/z"));
    assert_eq!(lines.collect::<Vec<_>>(), ["initial + /a=good", "synced", "lost 1", "? /a", "+ /end=1"]);
    drop(registration);
}

/// A `synced` that panics has been called all the same, and is counted.
#[test]
fn si_07_panic_of_synced_is_counted() {
    let cache = wide_cache();
    put(&mut cache.writer().unwrap(), "/a", "1");
    let informer = Informer::<Text>::new(&cache).unwrap();
    let registration = informer.add_handler(HandlerFns::new().on_synced(|| panic!("on purpose"))).unwrap();
    registration.wait_synced(BOUND).unwrap();
    assert_eq!((registration.status().panics, registration.status().handled), (1, 1));
}

/// A predicate of the filter that panics ends the handler, who is told, with the reason in its status.
#[test]
fn si_07_predicate_that_panics_is_the_handlers_end() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    let filter = Filter::any().predicate(|kv| {
        assert_ne!(kv.value(), Some(&b"boom"[..]), "the predicate's fault");
        true
    });
    let informer = Informer::<Text>::builder(&cache).filter(filter).build().unwrap();
    let (registration, journal) = logged(&informer);
    journal.wait_for("synced");
    put(&mut writer, "/a", "boom");
    journal.wait_for("ended 500");
    until("it has ended", || matches!(registration.status().state, HandlerState::Ended(_)));
    let HandlerState::Ended(Some(why)) = registration.status().state else { panic!("it says why") };
    assert!(why.contains("predicate"), "{why}");
}

/// Handlers come and go from many threads while others write, panic and stall.
#[test]
fn si_07_handler_abuse() {
    let cache = small_cache();
    let informer = Informer::<Text>::new(&cache).unwrap();
    let stop = Arc::new(AtomicU64::new(0));
    let writing = {
        let (cache, stop) = (cache.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            let mut writer = cache.writer().unwrap();
            for number in 0_u64.. {
                put(&mut writer, &format!("/{}", number % 50), &number.to_string());
                if stop.load(Ordering::Relaxed) == 4 {
                    return;
                }
            }
        })
    };
    thread::scope(|scope| {
        for seed in 0..4 {
            let (informer, stop) = (&informer, &stop);
            scope.spawn(move || {
                for round in 0..50 {
                    let calls = Arc::new(AtomicU64::new(0));
                    let counted = Arc::clone(&calls);
                    let handler = HandlerFns::new()
                        .on_updated(move |_: &Text, new: &Text, _| {
                            let call = counted.fetch_add(1, Ordering::Relaxed);
                            assert_ne!(call % 7, 6, "a panic now and then: {}", **new);
                        })
                        .on_deleted(|last: &Text, _| panic!("nothing is deleted: {}", **last));
                    let registration = informer.add_handler(handler).unwrap();
                    if (round + seed) % 3 == 0 {
                        registration.wait_synced(BOUND).unwrap();
                    }
                    registration.remove_and_wait(BOUND).unwrap();
                    let seen = calls.load(Ordering::Relaxed);
                    thread::yield_now();
                    assert_eq!(calls.load(Ordering::Relaxed), seen, "no callback runs after the removal");
                }
                stop.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    writing.join().unwrap();
}

/// Synced only when every object of the initial state was handled, also where the last call takes long.
#[test]
fn si_08_synced_after_the_last_initial_call() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    let informer = Informer::<Text>::new(&cache).unwrap();
    let (handler, gate) = Gate::handler();
    let (enters, entered) = mpsc::channel();
    let (leave, leaves) = mpsc::channel::<()>();
    let handler = handler.on_synced(move || {
        enters.send(()).ok();
        leaves.recv().ok();
    });
    let registration = informer.add_handler(handler).unwrap();
    gate.wait_entered();
    assert!(!registration.has_synced());
    gate.leave.send(()).unwrap();
    entered.recv_timeout(BOUND).unwrap();
    assert!(!registration.has_synced(), "its `synced` runs");
    leave.send(()).unwrap();
    registration.wait_synced(BOUND).unwrap();
    assert!(registration.has_synced());
    informer.wait_synced(BOUND).unwrap();
}

/// A handler that was removed before its sync is waited for no more, whoever still holds its registration.
#[test]
fn si_08_removed_handler_is_not_waited_for() {
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let informer = Informer::<KeyValue>::new(&cache).unwrap();
    let removed = informer.add_handler(HandlerFns::new()).unwrap();
    removed.remove();
    let stays = informer.add_handler(HandlerFns::new()).unwrap();
    cache.writer().unwrap().load(1, []).unwrap();
    informer.wait_synced(BOUND).unwrap();
    assert!(stays.has_synced());
    assert_eq!(removed.wait_synced(BOUND).unwrap_err().code(), Code::Closed, "asked itself it says so");
}

/// The options that cannot be are refused where they are given.
#[test]
fn si_04_bad_options_are_refused() {
    let cache = wide_cache();
    let two = Informer::<Text>::builder(&cache).index("a", |_| vec![]).index("a", |_| vec![]).build();
    assert_eq!(two.unwrap_err().code(), Code::InvalidArgument);
    let undeclared = Informer::<Text>::builder(&cache).filter(Filter::any().labels("app=web").unwrap()).build();
    assert_eq!(undeclared.unwrap_err().code(), Code::InvalidArgument);
    cache.close();
    assert_eq!(Informer::<Text>::new(&cache).unwrap_err().code(), Code::Closed);
}

/// Handlers as futures: ten thousand of them on one thread, and one whose future is dropped says so.
#[test]
fn si_05_ten_thousand_handlers_as_futures() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    let informer = Informer::<Text>::new(&cache).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let seen = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let mut registrations = Vec::new();
        for _ in 0..10_000 {
            let seen = Arc::clone(&seen);
            let handler = HandlerFns::new().on_updated(move |_: &Text, _: &Text, _| {
                seen.fetch_add(1, Ordering::Relaxed);
            });
            let (registration, run) = informer.handler(handler, HandlerOptions::new()).unwrap();
            tokio::spawn(run);
            registrations.push(registration);
        }
        for registration in &registrations {
            registration.synced().await.unwrap();
        }
        put(&mut writer, "/a", "2");
        while seen.load(Ordering::Relaxed) < 10_000 {
            tokio::task::yield_now().await;
        }
        registrations[0].removed_and_quiet().await.unwrap();
    });
    let (registration, run) = informer.handler(HandlerFns::new(), HandlerOptions::new()).unwrap();
    drop(run);
    let HandlerState::Ended(Some(why)) = registration.status().state else { panic!("it has ended") };
    assert!(why.contains("dropped"), "{why}");
}
