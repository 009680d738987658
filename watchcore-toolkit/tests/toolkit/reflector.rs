//! The reflector: from anything that can list and watch to a cache.

use crate::rig::{Rig, added, deleted, entry, error, fails, millis, modified, page};
use crate::script::Answer;
use std::sync::atomic::Ordering;
use std::time::Duration;
use watchcore::{Cache, Code, Kind, Read, ResyncReason, Start, State};
use watchcore_toolkit::{
    Blocking, BoxWatch, Entry, ListAt, ListPage, ListRequest, ListerWatcher, ObjectWatch, Reflector, ReflectorState,
    Status, WatchEvent, WatchExt, WatchRequest,
};

const BOUND: Duration = Duration::from_secs(60);

/// Stopped in each state: it ends, its watch is dropped, and the cache is closed.
#[test]
fn rf_01_stop_ends_every_state() {
    let rigs = [
        Rig::new([fails(503)], []),
        Rig::new([page(1, &[])], [Answer::Refuse(Status::new(503, "later"))]),
        Rig::new([page(1, &[])], [Answer::Stays(vec![added("/a", "1", 2)])]),
        Rig::with([], [Answer::Stays(vec![added("/a", "1", 2)])], |reflector| reflector.initial_watch(true)),
    ];
    for mut rig in rigs {
        assert!(!rig.settle());
        let woken = rig.woken.count();
        rig.handle.stopper().stop();
        assert!(rig.woken.count() > woken, "the stop wakes it");
        assert!(rig.settle());
        assert_eq!(rig.watches.living.load(Ordering::SeqCst), 0);
        assert_eq!((rig.cache.status().state, rig.handle.status().state), (State::Closed, ReflectorState::Ended));
    }
}

#[test]
fn rf_01_close_of_the_cache_ends_it() {
    let mut rig = Rig::new([page(1, &[])], []);
    assert!(!rig.settle());
    let woken = rig.woken.count();
    rig.cache.close();
    assert!(rig.woken.count() > woken);
    assert!(rig.settle());
}

#[test]
fn rf_02_changes_reach_the_cache() {
    let events = vec![added("/b", "1", 11), modified("/a", "2", 12), deleted("/b", 13), added("/c", "1", 20)];
    let mut rig = Rig::new([page(10, &[("/a", "1", 3)])], [Answer::Stays(events)]);
    rig.settle();
    assert_eq!(rig.state(), "/a=2@12 /c=1@20");
    assert_eq!((rig.cache.position().revision, rig.handle.status().revision), (20, 20));
}

#[test]
fn rf_03_watch_begins_at_the_lists_revision() {
    let mut rig = Rig::new([page(10, &[("/a", "1", 3)])], []);
    rig.settle();
    assert_eq!((rig.state(), rig.watches.opens()), ("/a=1@3".to_owned(), vec![10]));
    let watched = rig.watched.lock().unwrap();
    assert!((300..600).contains(&watched[0].timeout.as_secs()) && !watched[0].initial_state);
    assert!(rig.handle.status().ready);
}

/// Errors of lists and watches in any order: the last list and what follows it is the state.
#[test]
fn rf_04_errors_in_between_leave_the_listed_state() {
    let lists = [fails(500), page(10, &[("/a", "1", 3), ("/b", "1", 4)]), fails(503), page(30, &[("/a", "2", 25)])];
    let watches = [Answer::Closes(vec![added("/c", "1", 12), WatchEvent::bookmark(12), error(400)])];
    let mut rig = Rig::new(lists, watches);
    rig.settle();
    assert_eq!(rig.cache.status().state, State::NotReady);
    rig.pass();
    assert_eq!(rig.state(), "/a=1@3 /b=1@4 /c=1@12", "what came before the error is there");
    assert!(matches!(rig.cache.status().state, State::Stale { .. }));
    rig.pass();
    rig.pass();
    assert_eq!(rig.state(), "/a=2@25");
    assert_eq!(
        (rig.listed(), rig.watches.opens()),
        (vec!["0", "0", "12", "12"].into_iter().map(String::from).collect(), vec![10, 30])
    );
    assert_eq!(rig.cache.status().state, State::Ready);
}

/// The revision is gone, or not there yet: the newest at once, and the backoff only after that.
#[test]
fn rf_09_list_of_a_gone_revision_asks_for_the_newest() {
    for code in [410, 504] {
        let lists = [page(10, &[("/a", "1", 3)]), fails(code), page(40, &[])];
        let mut rig = Rig::new(lists, [Answer::Refuse(Status::new(410, "gone")), Answer::Stays(vec![])]);
        rig.settle();
        assert_eq!(rig.listed(), ["0", "10", ""]);
        assert_eq!((rig.state(), rig.cache.position().revision), (String::new(), 40));
    }
    let mut rig = Rig::new([fails(410), fails(410), page(1, &[])], []);
    rig.settle();
    assert_eq!((rig.listed().len(), millis(rig.pass())), (2, 800), "the newest is gone too: that waits");
}

#[test]
fn rf_12_pages_are_put_together() {
    let first = Ok(ListPage::new(10, [entry("/b", "1", 3)]).continued("second"));
    let mut rig = Rig::with([first, page(10, &[("/a", "1", 4)])], [], |reflector| reflector.page_size(1000));
    rig.settle();
    assert_eq!(rig.state(), "/a=1@4 /b=1@3");
    assert!(rig.requests.lock().unwrap().iter().all(|request| request.limit == 1000));
}

#[test]
fn rf_13_bookmarks_move_the_resume_point() {
    // Nothing proves that revision 40 is whole: the second watch begins at the one before.
    let events = vec![added("/a", "1", 20), WatchEvent::bookmark(30), modified("/a", "2", 40)];
    let mut rig = Rig::new([page(10, &[])], [Answer::Closes(events), Answer::Closes(vec![WatchEvent::bookmark(50)])]);
    rig.settle();
    assert_eq!((rig.watches.opens(), rig.cache.position().revision), (vec![10, 39, 50], 50));
}

/// What disappeared while nobody watched is deleted, deletes before puts, and what did not change is no event.
#[test]
fn rq_02_list_becomes_a_difference() {
    let before = page(10, &[("/a", "1", 3), ("/b", "1", 4), ("/c", "1", 5)]);
    let after = page(20, &[("/a", "1", 3), ("/c", "2", 15), ("/0", "1", 16)]);
    let mut rig = Rig::new([before, after], [Answer::Stays(vec![])]);
    rig.settle();
    let mut changes = rig.cache.subscribe(Start::Now).open().unwrap();
    rig.break_watch(Answer::Refuse(Status::new(410, "gone")));
    let batch = changes.poll(100).unwrap();
    let seen: Vec<(Kind, String)> =
        batch.events().iter().map(|event| (event.kind(), event.key_str().unwrap().to_owned())).collect();
    let expected =
        [(Kind::Resync, ""), (Kind::Deleted, "/b"), (Kind::Added, "/0"), (Kind::Modified, "/c"), (Kind::Resync, "")];
    let seen: Vec<(Kind, &str)> = seen.iter().map(|(kind, key)| (*kind, &**key)).collect();
    assert_eq!(seen, expected);
    assert_eq!(rig.handle.status().resyncs, 1);
    assert_eq!(rig.state(), "/0=1@16 /a=1@3 /c=2@15");
}

/// An end mark that does not come: the status says so, and who waits for the cache is not left in the dark.
#[test]
fn fault_missing_end_mark_says_why() {
    let mut rig = Rig::with([], [Answer::Stays(vec![added("/a", "1", 3)])], |reflector| reflector.initial_watch(true));
    rig.settle();
    for _ in 0..3 {
        assert_eq!(rig.pass(), Duration::from_secs(10), "it reports every ten seconds");
    }
    let status = rig.handle.status();
    assert_eq!((status.ready, status.pending, status.state), (false, 1, ReflectorState::ReadingState));
    let words = status.to_string();
    assert!(
        words.contains("waits for the mark that ends the initial state for 30 s") && words.contains("1 entries"),
        "{words}"
    );
}

/// Refused before the first list: who reads learns why, and who waits gets the state when access was granted.
#[test]
fn fault_never_ready_says_why() {
    let mut rig = Rig::new([fails(403), page(10, &[("/a", "1", 3)])], []);
    let mut watch = ObjectWatch::<watchcore::KeyValue>::open(&rig.cache).unwrap();
    rig.settle();
    assert!(watch.try_recv().is_pending());
    let error = rig.cache.get("/a", Read::Any).unwrap_err();
    assert_eq!(error.code(), Code::NotReady);
    assert!(error.message().contains("403"), "{error}");
    assert!(rig.handle.status().to_string().contains("403"));
    rig.pass();
    assert_eq!(watch.recv(BOUND).unwrap().unwrap().name(), "ADDED");
}

/// A list that the cache refuses is said, and the reflector goes on.
#[test]
fn rf_14_refused_state_is_reported() {
    let lists = [page(10, &[("/a", "1", 11)]), page(12, &[("/a", "1", 11), ("outside", "1", 3)])];
    let mut rig = Rig::new(lists, []);
    rig.settle();
    assert_eq!(rig.handle.status().last_error.unwrap().code(), 400);
    rig.pass();
    assert_eq!((rig.state(), rig.handle.status().outside), ("/a=1@11".to_owned(), 1));
}

/// Several objects at one revision become one revision of the cache, also where the source takes a break inside.
#[test]
fn rf_20_objects_of_one_revision_are_one_revision() {
    let events = vec![added("/a", "1", 11).at(10), added("/b", "1", 11).at(10), deleted("/c", 11)];
    let mut rig = Rig::new([page(10, &[("/c", "1", 3)])], [Answer::Stays(events)]);
    rig.settle();
    assert_eq!((rig.state(), rig.cache.position().revision), ("/a=1@11 /b=1@11".to_owned(), 11));

    // Not complete: nothing is shown of it while the source is silent.
    let mut rig = Rig::new([page(10, &[])], [Answer::Stays(vec![added("/a", "1", 11).at(10)])]);
    rig.settle();
    assert_eq!((rig.state(), rig.cache.position().revision), (String::new(), 10));

    // After the end of the watch it comes again.
    let half = vec![added("/a", "1", 11).at(10)];
    let whole = vec![added("/a", "1", 11).at(10), added("/b", "1", 11).at(11)];
    let mut rig = Rig::new([page(10, &[])], [Answer::Closes(half), Answer::Stays(whole)]);
    rig.settle();
    assert_eq!(
        (millis(rig.pass()), rig.watches.opens(), rig.state()),
        (800, vec![10, 10], "/a=1@11 /b=1@11".to_owned())
    );
}

/// A source that gives each event the same revision as its position: what is at hand together is one revision.
#[test]
fn rf_21_equal_revisions_at_hand_are_one() {
    let mut rig = Rig::new([page(10, &[])], [Answer::Stays(vec![added("/a", "1", 11), added("/b", "1", 11)])]);
    rig.settle();
    assert_eq!((rig.state(), rig.listed().len()), ("/a=1@11 /b=1@11".to_owned(), 1));
}

/// A repeat is nothing; a change of a revision that was published already, which the cache does not know, leads to a list.
#[test]
fn rf_22_misfits_are_mended_by_a_list() {
    let mark = WatchEvent::bookmark;
    let first = || Answer::Closes(vec![added("/a", "1", 11), mark(11)]);
    let repeat = || Answer::Closes(vec![added("/a", "1", 11), deleted("/never", 11), added("/d", "1", 12), mark(12)]);
    let lists = [page(10, &[]), page(14, &[("/a", "1", 11), ("/b", "1", 11), ("/d", "1", 12), ("/x", "1", 13)])];
    for misfit in [added("/b", "1", 11), modified("/a", "2", 12), deleted("/a", 12)] {
        let answers = [first(), repeat(), Answer::Stays(vec![misfit, added("/x", "1", 13)])];
        let mut rig = Rig::new(lists.clone(), answers);
        rig.settle();
        assert_eq!(rig.state(), "/a=1@11 /b=1@11 /d=1@12 /x=1@13");
        assert_eq!((rig.listed(), rig.watches.opens()), (vec!["0".to_owned(), "12".into()], vec![10, 11, 12, 14]));
    }
}

/// A restored backup: the source is at a lower revision, and the readers are told of the new history.
#[test]
fn rf_23_history_that_went_back() {
    let lists = [page(80, &[("/a", "1", 70)]), fails(504), page(50, &[("/a", "1", 40)])];
    let mut rig = Rig::new(lists, [Answer::Stays(vec![added("/b", "1", 90)])]);
    rig.settle();
    let mut changes = rig.cache.subscribe(Start::Now).open().unwrap();
    rig.break_watch(Answer::Refuse(Status::new(410, "gone")));
    assert_eq!((rig.state(), rig.listed()), ("/a=1@40".to_owned(), vec!["0".to_owned(), "90".into(), String::new()]));
    let batch = changes.poll(100).unwrap();
    assert_eq!(batch.events()[0].resync().unwrap().reason, ResyncReason::HistoryReset);
    assert_eq!(rig.watches.opens(), [80, 89, 50]);
}

/// A connection that died without a word: the watch is opened again after its time-out.
#[test]
fn fault_silent_watch_is_opened_again() {
    let mut rig = Rig::new([page(10, &[])], [Answer::Stays(vec![]), Answer::Stays(vec![added("/a", "1", 11)])]);
    rig.settle();
    let timeout = rig.watched.lock().unwrap()[0].timeout;
    assert_eq!(rig.pass(), timeout + Duration::from_secs(30));
    assert_eq!((rig.watches.opens(), rig.state()), (vec![10, 10], "/a=1@11".to_owned()));
}

/// No event of ten thousand is missed, however the watch is cut.
#[test]
fn fault_cut_watches_miss_nothing() {
    let mut watches = Vec::new();
    let mut revision = 10;
    while revision < 10_010 {
        let length = 1 + revision % 7;
        let events = (1..=length).map(|step| added(&format!("/{}", revision + step), "1", revision + step));
        watches.push(Answer::Closes(events.chain([WatchEvent::bookmark(revision + length)]).collect()));
        revision += length;
    }
    let mut rig = Rig::new([page(10, &[])], watches);
    rig.settle();
    let status = rig.cache.status();
    assert_eq!((status.objects, status.position.revision), (revision - 10, revision));
    assert_eq!(rig.listed().len(), 1);
}

/// A consistent read asks the source for its newest revision, which the reader then waits for.
#[test]
fn rf_25_consistent_reads_ask_the_source() {
    let mut rig = Rig::new([page(10, &[]), page(12, &[])], [Answer::Stays(vec![added("/a", "1", 11)])]);
    rig.settle();
    let mut waiter = rig.cache.waiter(watchcore::Want::Consistent).unwrap();
    rig.settle();
    let request = rig.requests.lock().unwrap().last().cloned().unwrap();
    assert_eq!((request.at, request.limit), (ListAt::Newest, 1));
    assert_eq!(waiter.poll().unwrap().unwrap().revision, 12, "the newest revision, by the source's word");
}

fn lines() -> impl ListerWatcher<Watch = BoxWatch<Entry>> {
    let watch = |request: WatchRequest| {
        let next = request.from.revision + 1;
        assert_ne!(next, 12, "a panic is an error, and is tried again");
        Ok(vec![added("/b", "1", next), WatchEvent::bookmark(next)].into_iter())
    };
    Blocking::new(|_: ListRequest| page(10, &[("/a", "1", 3)]), watch)
}

/// A source whose calls block, on a thread, with real time: it is there, it ends, and a panic of it harms nobody.
#[test]
fn rf_26_blocking_source_on_threads() {
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let reflector = Reflector::new(cache.writer().unwrap(), lines()).unwrap().spawn().unwrap();
    cache.wait_until(11, BOUND).unwrap();
    assert_eq!(cache.status().objects, 2);
    reflector.stop(BOUND).unwrap();
    assert_eq!(cache.status().state, State::Closed);
}

/// On a runtime, ended by dropping its future.
#[test]
fn rf_27_runs_on_a_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let reflector = Reflector::new(cache.writer().unwrap(), lines()).unwrap();
    let task = runtime.spawn(reflector.run());
    cache.wait_until(11, BOUND).unwrap();
    task.abort();
    let end = runtime.block_on(task);
    assert!(end.unwrap_err().is_cancelled());
    assert_eq!(cache.status().state, State::Closed);
}
