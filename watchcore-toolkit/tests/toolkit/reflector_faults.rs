//! Reflectors over sources that misbehave, or that are allowed more than most do.

use crate::rig::{Rig, added, deleted, entry, error, fails, millis, page};
use crate::script::Answer;
use crate::support::{BOUND, polled, until};
use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Backoff, Cache, Code, ResyncReason, Start, State};
use watchcore_toolkit::{
    BoxWatch, Entry, ListPage, ListRequest, ListerWatcher, ManualClock, Reflector, ReflectorHandle, ReflectorState,
    SourceFuture, Status, WatchEvent, WatchExt, WatchRequest,
};

/// How long the sources of functions may take for an answer.
const ANSWER: Duration = Duration::from_secs(5);

fn gone() -> Answer<Entry> {
    Answer::Refuse(Status::new(410, "gone"))
}

/// A server that answers 410 to the revision that it has just listed is listed at once the first time, and then waited for.
#[test]
fn fault_gone_after_each_list_backs_off() {
    for initial_watch in [false, true] {
        let lists = (0..100).map(|_| page(10, &[]));
        let states = (0..100).map(|_| Answer::Closes(vec![WatchEvent::synced().at(10), error(410)]));
        let mut rig = match initial_watch {
            false => Rig::new(lists, (0..100).map(|_| gone())),
            true => Rig::with([], states, |reflector| reflector.initial_watch(true)),
        };
        rig.settle();
        let states =
            |rig: &Rig| rig.listed().len() + rig.watched.lock().unwrap().iter().filter(|w| w.initial_state).count();
        assert_eq!(states(&rig), 2, "one at once");
        let delays: Vec<u128> = (0..7).map(|_| millis(rig.pass())).collect();
        assert_eq!(delays, [800, 1600, 3200, 6400, 12800, 25600, 30000]);
        assert_eq!(states(&rig), 9, "one a delay");
    }
}

/// A reflector whose cache has only what is below `/in/`.
fn inside(events: Vec<WatchEvent<Entry>>) -> Rig {
    let cache = Cache::builder("/in/").expect_load(true).build().unwrap();
    let mut rig = Rig::of(cache, [page(10, &[])], [Answer::Stays(events)], |reflector| reflector);
    rig.settle();
    rig
}

/// What is outside of the prefix is part of its revision: that is complete with it, and not before.
#[test]
fn rf_20_last_of_a_revision_may_be_outside() {
    let rig = inside(vec![added("/in/a", "1", 11).at(10), added("/out/b", "1", 11).at(11)]);
    assert_eq!((rig.state(), rig.cache.position().revision, rig.listed().len()), ("/in/a=1@11".to_owned(), 11, 1));
    assert_eq!((rig.handle.status().outside, rig.handle.status().revision), (1, 11));

    let rig = inside(vec![added("/out/a", "1", 11).at(10), added("/in/b", "1", 11).at(11)]);
    assert_eq!((rig.state(), rig.cache.position().revision, rig.listed().len()), ("/in/b=1@11".to_owned(), 11, 1));

    let rig = inside(vec![added("/in/a", "1", 11).at(10), added("/out/b", "1", 11).at(10)]);
    assert_eq!((rig.state(), rig.cache.position().revision), (String::new(), 10), "the rest is to come");

    // Positions that say nothing: what is at hand together is one revision, the outside too.
    let rig =
        inside(vec![added("/out/a", "1", 11), added("/in/b", "1", 11), added("/out/c", "1", 11), deleted("/in/d", 11)]);
    assert_eq!((rig.state(), rig.cache.position().revision, rig.listed().len()), ("/in/b=1@11".to_owned(), 11, 1));

    // Nothing but the outside is progress.
    let rig = inside(vec![added("/out/a", "1", 11), deleted("/out/b", 12), added("/out/c", "1", 5).at(20)]);
    assert_eq!((rig.state(), rig.cache.position().revision, rig.listed().len()), (String::new(), 20, 1));
}

/// A bookmark inside of a revision says nothing of its rest.
#[test]
fn rf_20_bookmark_inside_a_revision_publishes_none() {
    let half = || vec![added("/a", "1", 11).at(10), WatchEvent::bookmark(10)];
    let mut rig = Rig::new([page(9, &[])], [Answer::Stays(half())]);
    rig.settle();
    assert_eq!((rig.state(), rig.cache.position().revision), (String::new(), 10));

    let whole = half().into_iter().chain([added("/b", "1", 11).at(11)]).collect();
    let mut rig = Rig::new([page(9, &[])], [Answer::Stays(whole)]);
    let mut changes = rig.cache.subscribe(Start::Now).open().unwrap();
    rig.settle();
    assert_eq!((rig.state(), rig.listed().len()), ("/a=1@11 /b=1@11".to_owned(), 1));
    let revisions: Vec<u64> = changes.poll(100).unwrap().events().iter().map(|event| event.revision()).collect();
    assert!(revisions.ends_with(&[11, 11]), "{revisions:?}");
}

/// A position above a revision says that nothing of it is missing, also where a source has filtered its last event out.
#[test]
fn rf_20_later_position_completes_a_revision() {
    for later in [added("/c", "1", 12), WatchEvent::bookmark(11), WatchEvent::bookmark(12)] {
        let mut rig = Rig::new([page(10, &[])], [Answer::Stays(vec![added("/a", "1", 11).at(10), later])]);
        rig.settle();
        assert!(rig.state().starts_with("/a=1@11"), "{}", rig.state());
        assert_eq!((rig.listed().len(), rig.watches.opens()), (1, vec![10]));
    }
}

/// A restored backup of a source that knows no revisions of entries.
#[test]
fn rf_23_history_that_went_back_without_revisions() {
    for value in ["1", "2"] {
        let lists = [page(80, &[("/a", "1", 0)]), fails(504), page(50, &[("/a", value, 0)])];
        let mut rig = Rig::new(lists, [Answer::Stays(vec![])]);
        rig.settle();
        assert_eq!(rig.state(), "/a=1@80");
        let mut changes = rig.cache.subscribe(Start::Now).open().unwrap();
        rig.break_watch(gone());
        assert_eq!((rig.state(), rig.cache.position().revision), (format!("/a={value}@50"), 50));
        let batch = changes.poll(100).unwrap();
        assert_eq!(batch.events()[0].resync().unwrap().reason, ResyncReason::HistoryReset);
    }
}

/// A source whose answers are functions.
struct Asked {
    list: Box<dyn FnMut(ListRequest) -> SourceFuture<ListPage> + Send>,
    watch: Box<dyn FnMut(WatchRequest) -> SourceFuture<Option<BoxWatch<Entry>>> + Send>,
}

impl ListerWatcher for Asked {
    type Watch = BoxWatch<Entry>;

    fn list(&mut self, request: ListRequest) -> SourceFuture<ListPage> {
        (self.list)(request)
    }

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<BoxWatch<Entry>>> {
        (self.watch)(request)
    }
}

impl Asked {
    /// A reflector over it, polled once by each call of the function.
    fn run(self, initial_watch: bool) -> (Cache, Arc<ManualClock>, ReflectorHandle, impl FnMut() -> bool) {
        let cache = Cache::builder("/").expect_load(true).build().unwrap();
        let clock = Arc::new(ManualClock::new());
        let reflector = Reflector::new(cache.writer().unwrap(), self).unwrap().clock(clock.clone());
        let reflector = reflector.backoff(Backoff::default()).answer_timeout(ANSWER).initial_watch(initial_watch);
        let handle = reflector.handle();
        let mut run = Box::pin(reflector.run());
        let poll = move || run.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        (cache, clock, handle, poll)
    }
}

/// A list whose pages are always ready lets others run between them, and is stopped there.
#[test]
fn fault_hot_list_lets_others_run() {
    let pages = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pages);
    let list = move |_| -> SourceFuture<ListPage> {
        let number = counted.fetch_add(1, Ordering::SeqCst).to_string();
        let page = ListPage::new(10, [entry(&format!("/{number}"), "1", 1)]);
        Box::pin(ready(Ok(if number == "5000" { page } else { page.continued(number) })))
    };
    let source = Asked { list: Box::new(list), watch: Box::new(|_| Box::pin(pending())) };
    let (_cache, _, handle, mut poll) = source.run(false);
    assert!(!poll());
    assert!(pages.load(Ordering::SeqCst) < 1000, "{} pages in one poll", pages.load(Ordering::SeqCst));
    handle.stopper().stop();
    assert!(poll());
}

/// An initial state that comes without a pause lets others run, and its missing end mark is reported.
#[test]
fn fault_hot_state_lets_others_run() {
    let events = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&events);
    let watch = move |_| -> SourceFuture<Option<BoxWatch<Entry>>> {
        let counted = Arc::clone(&counted);
        let next = move |_: &mut Context<'_>| match counted.fetch_add(1, Ordering::SeqCst) {
            100_000.. => Poll::Pending,
            number => Poll::Ready(Some(added(&format!("/{number}"), "1", 1))),
        };
        Box::pin(ready(Ok(Some(polled(next).boxed()))))
    };
    let source = Asked { list: Box::new(|_| Box::pin(pending())), watch: Box::new(watch) };
    let (_cache, clock, handle, mut poll) = source.run(true);
    for _ in 0..2 {
        assert!(!poll());
        assert!(events.load(Ordering::SeqCst) < 10_000, "{} events in one poll", events.load(Ordering::SeqCst));
        assert_eq!(clock.next_due(), Some(Duration::from_secs(10)), "it reports every ten seconds");
        clock.advance(Duration::from_secs(10));
    }
    handle.stopper().stop();
    assert!(poll());
}

/// A list, an opening or an initial state that is never answered is tried again, and said.
#[test]
fn fault_answer_that_never_comes_is_asked_for_again() {
    for (lists, initial_watch) in [(false, false), (true, false), (true, true)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let (list_asked, watch_asked) = (Arc::clone(&asked), Arc::clone(&asked));
        let list = move |_| -> SourceFuture<ListPage> {
            if lists {
                return Box::pin(ready(page(10, &[])));
            }
            list_asked.fetch_add(1, Ordering::SeqCst);
            Box::pin(pending())
        };
        let watch = move |_| -> SourceFuture<Option<BoxWatch<Entry>>> {
            watch_asked.fetch_add(1, Ordering::SeqCst);
            Box::pin(pending())
        };
        let (cache, clock, handle, mut poll) =
            Asked { list: Box::new(list), watch: Box::new(watch) }.run(initial_watch);
        for asks in 1..4 {
            assert!(!poll());
            while asked.load(Ordering::SeqCst) < asks {
                clock.advance(clock.next_due().expect("it waits for a delay"));
                assert!(!poll());
            }
            assert_eq!(clock.next_due(), Some(ANSWER));
            clock.advance(ANSWER);
            assert!(!poll());
            let status = handle.status();
            assert_eq!((status.state, status.last_error.unwrap().code()), (ReflectorState::Waiting, 503));
            assert_eq!(matches!(cache.status().state, State::Stale { .. }), cache.is_ready());
        }
        assert_eq!(cache.is_ready(), lists && !initial_watch);
    }
}

/// A source that takes its time to go away.
struct Lingers(Receiver<()>);

impl Drop for Lingers {
    fn drop(&mut self) {
        let _ = self.0.recv_timeout(BOUND);
    }
}

impl ListerWatcher for Lingers {
    type Watch = BoxWatch<Entry>;

    fn list(&mut self, _: ListRequest) -> SourceFuture<ListPage> {
        Box::pin(ready(page(10, &[])))
    }

    fn watch(&mut self, _: WatchRequest) -> SourceFuture<Option<BoxWatch<Entry>>> {
        Box::pin(pending())
    }
}

/// A stop waits for as long as it says, also where the source takes longer to be dropped.
#[test]
fn rf_01_stop_waits_no_longer_than_it_says() {
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let (leave, lingers) = channel();
    let reflector = Reflector::new(cache.writer().unwrap(), Lingers(lingers)).unwrap().spawn().unwrap();
    cache.wait_ready(BOUND).unwrap();
    let error = reflector.stop(Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    leave.send(()).unwrap();
    until("the cache is closed", || cache.status().state == State::Closed);
}

/// In a process of its own that may have no more threads.
#[cfg(target_os = "linux")]
#[test]
fn rf_26_no_thread_is_an_error_of_spawn() {
    const CHILD: &str = "WATCHCORE_TEST_NO_THREAD";
    if std::env::var_os(CHILD).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "reflector_faults::rf_26_no_thread_is_an_error_of_spawn",
                "--test-threads=1",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let reflector = Reflector::new(cache.writer().unwrap(), Lingers(channel().1)).unwrap();
    // SAFETY: plain memory of this frame, and numbers.
    unsafe {
        // Of root nothing is limited.
        if libc::geteuid() == 0 {
            assert_eq!(libc::setuid(54_321), 0);
        }
        let mut none: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NPROC, &mut none), 0);
        none.rlim_cur = 0;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &none), 0);
    }
    let error = reflector.spawn().unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
}
