//! The reflector: from anything that can list and watch to a cache.

use crate::rig::{Rig, added, deleted, entry, fails, modified, page};
use crate::script::Answer;
use std::time::Duration;
use watchcore::{Cache, Code, Read, State};
use watchcore_toolkit::{
    Blocking, BoxWatch, Entry, ListAt, ListPage, ListRequest, ListerWatcher, ObjectWatch, Reflector, ReflectorState,
    WatchEvent, WatchExt, WatchRequest,
};

const BOUND: Duration = Duration::from_secs(60);

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
fn rf_12_pages_are_put_together() {
    let first = Ok(ListPage::new(10, [entry("/b", "1", 3)]).continued("second"));
    let mut rig = Rig::with([first, page(10, &[("/a", "1", 4)])], [], |reflector| reflector.page_size(1000));
    rig.settle();
    assert_eq!(rig.state(), "/a=1@4 /b=1@3");
    assert!(rig.requests.lock().unwrap().iter().all(|request| request.limit == 1000));
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
