//! A watch that survives its server: the table of its states, row by row.

use crate::script::{Answer, ScriptWatch, Server, Woken, drain};
use crate::support::{Text, delete, lap, line, next, put, small_cache};
use futures_core::Stream;
use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Cache, Change, Code, KeyValue, Position};
use watchcore_toolkit::{
    CacheSource, Keyed, ListPage, ListRequest, ListWatch, ListerWatcher, ManualClock, Origin, Payload, RetryWatch,
    Status, Watch, WatchEvent, WatchExt,
};

const BOUND: Duration = Duration::from_secs(30);

/// An object of its key and its revision.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Thing(&'static str, u64);

impl Keyed for Thing {
    fn object_key(&self) -> std::borrow::Cow<'_, [u8]> {
        self.0.as_bytes().into()
    }

    fn object_revision(&self) -> u64 {
        self.1
    }
}

fn added(revision: u64) -> WatchEvent<Thing> {
    WatchEvent::added(Thing("a", revision)).at(revision)
}

fn error(code: u16) -> WatchEvent<Thing> {
    WatchEvent::error(Status::new(code, "as the test says"))
}

fn refuse(code: u16) -> Answer<Thing> {
    Answer::Refuse(Status::new(code, "as the test says"))
}

/// What a watch from `from` gives, as numbers: revisions, or the codes of errors; and where it was opened.
fn run(from: u64, answers: impl IntoIterator<Item = Answer<Thing>>) -> (Vec<u64>, Vec<u64>) {
    let (server, clock) = (Server::new(answers), Arc::new(ManualClock::new()));
    let mut watch = RetryWatch::builder(server.source(), from).clock(clock.clone()).open().unwrap();
    let numbers = drain(&mut watch, &clock).into_iter().map(|event| match event.payload {
        Payload::Error(status) => u64::from(status.code()),
        _ => event.position.revision,
    });
    let numbers = numbers.collect();
    drop(watch);
    assert_eq!(server.living.load(Ordering::SeqCst), 0, "all watches are dropped");
    (numbers, server.opens())
}

#[test]
fn rw_01_revision_zero_is_refused() {
    let error = RetryWatch::open(Server::<Thing>::new([]).source(), 0).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("revision 0"), "{error}");
}

#[test]
fn rw_03_recovers_from_an_error_at_open() {
    let answers = [refuse(503), Answer::Stays(vec![added(2)])];
    assert_eq!(run(1, answers), (vec![2], vec![1, 1]));
}

/// The original opens for ever at a revision that is gone; here it is the same as in the stream.
#[test]
fn rw_04_gone_at_open_is_gone() {
    let answers = [refuse(410), Answer::Stays(vec![added(2)])];
    assert_eq!(run(1, answers), (vec![410], vec![1]));
}

#[test]
fn rw_05_recovers_from_an_answer_without_watch() {
    let answers = [Answer::Nothing, Answer::Stays(vec![added(2)])];
    assert_eq!(run(1, answers), (vec![2], vec![1, 1]));
}

#[test]
fn rw_07_begins_behind_its_revision() {
    assert_eq!(run(1, [Answer::Stays(vec![added(2)])]), (vec![2], vec![1]));
}

#[test]
fn rw_08_nothing_follows_nothing_given() {
    assert_eq!(run(3, [Answer::Stays(vec![])]), (vec![], vec![3]));
}

#[test]
fn rw_09_gone_in_the_stream_ends() {
    let events = vec![added(6), error(410), added(7), added(8)];
    assert_eq!(run(5, [Answer::Closes(events)]), (vec![6, 410], vec![5]));
}

#[test]
fn rw_10_forbidden_ends() {
    assert_eq!(run(1, [refuse(403)]), (vec![403], vec![1]));
}

#[test]
fn rw_11_unauthorized_ends() {
    assert_eq!(run(1, [refuse(401)]), (vec![401], vec![1]));
}

/// 504, 500, one that nobody knows, and one that is no HTTP number.
#[test]
fn rw_12_recovers_from_other_errors() {
    for code in [504, 500, 666, 0] {
        let answers = [Answer::Closes(vec![added(6), error(code)]), Answer::Stays(vec![added(7)])];
        assert_eq!(run(5, answers), (vec![6, 7], vec![5, 6]), "{code}");
    }
}

#[test]
fn rw_16_survives_closed_watches() {
    let closing = |revisions: &[u64]| Answer::Closes(revisions.iter().map(|revision| added(*revision)).collect());
    assert_eq!(run(1, [closing(&[2])]), (vec![2], vec![1, 2]));
    assert_eq!(run(1, [closing(&[2]), closing(&[6])]), (vec![2, 6], vec![1, 2, 6]));
    assert_eq!(run(1, [closing(&[2, 5]), closing(&[6, 7]), closing(&[11])]), (vec![2, 5, 6, 7, 11], vec![1, 5, 7, 11]));
    let four = [closing(&[22]), closing(&[]), closing(&[27, 41]), closing(&[])];
    assert_eq!(run(20, four), (vec![22, 27, 41], vec![20, 22, 22, 41, 41]));
}

#[test]
fn rw_23_stop_ends_with_unread_events() {
    let server = Server::new([Answer::Stays(vec![added(2), added(3)])]);
    let mut watch = RetryWatch::open(server.source(), 1).unwrap();
    assert_eq!(watch.recv(BOUND).unwrap().unwrap().position.revision, 2);
    let stopper = watch.stopper();
    stopper.stop();
    stopper.stop();
    assert!(server.stops.lock().unwrap()[0].load(Ordering::SeqCst), "the watch below is stopped at once");
    assert_eq!(watch.recv(BOUND).unwrap(), None);
    assert_eq!(watch.recv(BOUND).unwrap(), None);
    assert_eq!(server.living.load(Ordering::SeqCst), 0);
}

/// A stop ends a wait for a delay, for an answer, and for an event: it wakes who waits.
#[test]
fn rw_23_stop_ends_every_wait() {
    let clock = Arc::new(ManualClock::new());
    let delayed = Server::new([refuse(503)]);
    let silent = Server::<Thing>::new([]);
    let never = |_: Position| pending::<Result<Option<ScriptWatch<Thing>>, Status>>();
    let watches = [
        RetryWatch::builder(delayed.source(), 1).clock(clock.clone()).open().unwrap().boxed(),
        RetryWatch::open(silent.source(), 1).unwrap().boxed(),
        RetryWatch::open(never, 1).unwrap().boxed(),
    ];
    for mut watch in watches {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut watch).poll_next(&mut context).is_pending());
        watch.stop();
        assert!(woken.count() > 0, "who waits is woken");
        assert_eq!(Pin::new(&mut watch).poll_next(&mut context), Poll::Ready(None));
    }
}

#[test]
fn rw_24_bookmark_moves_the_resume_point() {
    let events = vec![added(6), WatchEvent::bookmark(9)];
    assert_eq!(run(5, [Answer::Closes(events)]), (vec![6], vec![5, 9]));
}

/// An event that was not given yet does not move the resume point.
#[test]
fn rw_24_resume_point_moves_when_given() {
    let server = Server::new([Answer::Stays(vec![added(6), added(7)])]);
    let mut watch = RetryWatch::open(server.source(), 5).unwrap();
    assert_eq!(watch.position().revision, 5);
    watch.recv(BOUND).unwrap();
    assert_eq!(watch.position().revision, 6);
}

#[test]
fn rw_25_restarts_keep_their_distance() {
    let clock = Arc::new(ManualClock::new());
    let server = Server::<Thing>::new([Answer::Closes(vec![]), Answer::Closes(vec![]), Answer::Stays(vec![])]);
    let mut watch = RetryWatch::builder(server.source(), 5).clock(clock.clone()).open().unwrap();
    assert!(watch.try_recv().is_pending());
    assert_eq!((server.opens().len(), clock.next_due()), (1, Some(Duration::from_secs(1))));
    clock.advance(Duration::from_millis(999));
    assert!(watch.try_recv().is_pending());
    assert_eq!(server.opens().len(), 1);
    clock.advance(Duration::from_millis(1));
    assert!(watch.try_recv().is_pending());
    assert_eq!(server.opens().len(), 2);
}

/// The delay counts from the beginning of an attempt: who lived for longer is opened again at once.
#[test]
fn rw_25_long_watch_reopens_at_once() {
    let clock = Arc::new(ManualClock::new());
    let server = Server::new([Answer::Stays(vec![added(6)]), Answer::Stays(vec![])]);
    let mut watch = RetryWatch::builder(server.source(), 5).clock(clock.clone()).open().unwrap();
    assert!(watch.try_recv().is_ready());
    clock.advance(Duration::from_secs(2));
    // The server closes it.
    server.stops.lock().unwrap()[0].store(true, Ordering::SeqCst);
    assert!(watch.try_recv().is_pending());
    assert_eq!((server.opens(), clock.next_due()), (vec![5, 6], None));
}

#[test]
fn rw_25_retry_after_is_honoured() {
    let clock = Arc::new(ManualClock::new());
    let status = Status::new(429, "slowly").with_retry_after(Duration::from_secs(3));
    let stream = vec![WatchEvent::error(status.clone())];
    let server = Server::<Thing>::new([Answer::Refuse(status.clone()), Answer::Closes(stream)]);
    let mut watch = RetryWatch::builder(server.source(), 5).clock(clock.clone()).open().unwrap();
    for opens in 1..3 {
        assert!(watch.try_recv().is_pending());
        assert_eq!((server.opens().len(), clock.next_due()), (opens, Some(Duration::from_secs(3))));
        assert_eq!(watch.last_status(), Some(&status));
        clock.advance(Duration::from_secs(3));
    }
}

#[test]
fn rw_26_event_without_revision_ends() {
    let (events, opens) = run(5, [Answer::Closes(vec![added(6), WatchEvent::added(Thing("a", 7)), added(8)])]);
    assert_eq!((events, opens), (vec![6, 500], vec![5]));
    assert_eq!(run(5, [Answer::Closes(vec![WatchEvent::bookmark(0)])]).0, [500]);
}

/// The server as a source that lists these states.
fn listed(
    server: &Server<Thing>,
    states: impl IntoIterator<Item = ListPage<Thing>>,
) -> impl ListerWatcher<Watch = ScriptWatch<Thing>> {
    let mut states = states.into_iter().collect::<Vec<_>>().into_iter();
    let list = move |_: ListRequest| ready(states.next().ok_or_else(|| Status::new(503, "no more lists")));
    ListWatch::new(list, server.source())
}

/// What was given is compared with what is there: deletes first, then puts in the order of their revisions.
#[test]
fn rw_27_gone_with_a_lister_gives_the_difference() {
    for at_open in [false, true] {
        let thing = |key, revision| WatchEvent::added(Thing(key, revision)).at(revision);
        let mut events = vec![thing("a", 6), thing("b", 7), thing("c", 8)];
        let mut answers = Vec::new();
        if !at_open {
            events.push(error(410));
        }
        answers.push(Answer::Closes(events));
        if at_open {
            answers.push(refuse(410));
        }
        answers.push(Answer::Stays(vec![]));
        let (server, clock) = (Server::new(answers), Arc::new(ManualClock::new()));
        let source = listed(&server, [ListPage::new(20, [Thing("d", 19), Thing("a", 6), Thing("b", 15)])]);
        let watch = RetryWatch::builder(source, 5).relist().clock(clock.clone());
        let mut watch = watch.open().unwrap();
        let events = drain(&mut watch, &clock).split_off(3);
        let expected = [
            WatchEvent::deleted(Thing("c", 8)).at(8).with_lost(12),
            WatchEvent::modified(Some(Thing("b", 7)), Thing("b", 15)).at(8),
            WatchEvent::added(Thing("d", 19)).at(20),
        ];
        assert_eq!(events, expected.map(|event| event.with_origin(Origin::Difference)), "at open: {at_open}");
        assert_eq!(server.opens().last(), Some(&20));
    }
}

#[test]
fn rw_28_lister_gives_the_first_state() {
    let server = Server::new([Answer::Stays(vec![WatchEvent::modified(None, Thing("a", 9)).at(9)])]);
    let source = listed(&server, [ListPage::new(8, [Thing("b", 8), Thing("a", 3)])]);
    let mut watch = RetryWatch::builder(source, 0).relist().open().unwrap();
    let events = drain(&mut watch, &ManualClock::new());
    let names: Vec<_> = events.iter().map(|event| (event.name(), event.object().map(|thing| thing.1))).collect();
    assert_eq!(names, [("ADDED", Some(3)), ("ADDED", Some(8)), ("SYNCED", None), ("MODIFIED", Some(9))]);
    assert_eq!(events[2].position.revision, 8);
    assert_eq!(events[3].payload, Payload::Modified { old: Some(Thing("a", 3)), new: Thing("a", 9) });
    assert_eq!(server.opens(), [8]);
}

/// Pages are put together; where a later one is gone the state is listed in one.
#[test]
fn rw_28_lister_gives_pages() {
    let server = Server::new([]);
    let list = |request: ListRequest| {
        let page = |thing| ListPage::new(8, [thing]);
        ready(match (request.limit, request.continue_token.as_deref()) {
            (0, None) => Ok(ListPage::new(9, [Thing("a", 3), Thing("c", 9)])),
            (_, None) => Ok(page(Thing("a", 3)).continued("b")),
            (_, Some("b")) => Ok(page(Thing("b", 4)).continued("c")),
            (_, Some(_)) => Err(Status::new(410, "the page is gone")),
        })
    };
    let mut watch = RetryWatch::builder(ListWatch::new(list, server.source()), 0).relist().open().unwrap();
    let events = drain(&mut watch, &ManualClock::new());
    let given: Vec<_> = events.iter().map(|event| event.object().map(|thing| thing.0)).collect();
    assert_eq!(given, [Some("a"), Some("c"), None]);
    assert_eq!((server.opens(), watch.lists()), (vec![9], 2));
}

/// A source that cannot be listed says so, and ends the watch that shall begin with a list.
#[test]
fn rw_28_source_without_a_list_ends() {
    let mut watch = RetryWatch::builder(Server::<Thing>::new([]).source(), 0).relist().open().unwrap();
    let Poll::Ready(Some(event)) = watch.try_recv() else { panic!("it goes on asking") };
    assert_eq!(event.status().unwrap().code(), 405);
    assert_eq!(watch.try_recv(), Poll::Ready(None));
}

/// What a difference without events has skipped is said with the next event.
#[test]
fn rw_29_empty_difference_is_lost_too() {
    let clock = Arc::new(ManualClock::new());
    let server = Server::new([refuse(410), Answer::Stays(vec![added(31)])]);
    let source = listed(&server, [ListPage::new(30, [])]);
    let mut watch = RetryWatch::builder(source, 5).relist().clock(clock.clone()).open().unwrap();
    let events = drain(&mut watch, &clock);
    assert_eq!(events, [added(31).with_lost(25)]);
}

/// So is what an event had lost that is not given: a mark, a bookmark, a repeat.
#[test]
fn rw_29_lost_of_what_is_not_given_is_kept() {
    let events = [
        added(6),
        WatchEvent::bookmark(9).with_lost(2),
        WatchEvent::synced().with_lost(1),
        added(10).with_lost(4),
        added(10).with_lost(8),
        added(11),
    ];
    let lost = |relists: bool| {
        let (server, clock) = (Server::new([Answer::Stays(events.to_vec())]), Arc::new(ManualClock::new()));
        let mut watch = RetryWatch::builder(server.source(), 5);
        if relists {
            watch = watch.relist();
        }
        drain(&mut watch.open().unwrap(), &clock).iter().map(|event| event.lost).collect::<Vec<u64>>()
    };
    assert_eq!(lost(false), [0, 7, 8, 0], "a watch without a lister gives repeats");
    assert_eq!(lost(true), [0, 7, 8]);
}

/// An opening or a list that is never answered is tried again.
#[test]
fn fault_answer_that_never_comes_is_asked_for_again() {
    for from in [5, 0] {
        let clock = Arc::new(ManualClock::new());
        let list = |_: ListRequest| pending::<Result<ListPage<Thing>, Status>>();
        let watch = |_: Position| pending::<Result<Option<ScriptWatch<Thing>>, Status>>();
        let source = ListWatch::new(list, watch);
        let mut watch = RetryWatch::builder(source, from).relist().clock(clock.clone()).open().unwrap();
        for asked in 1..4 {
            assert!(watch.try_recv().is_pending());
            assert_eq!(watch.opens() + watch.lists(), asked);
            assert_eq!(clock.next_due(), Some(Duration::from_secs(630)));
            clock.advance(Duration::from_secs(630));
        }
        assert!(watch.try_recv().is_pending());
        assert_eq!(watch.last_status().unwrap().code(), 503);
    }
}

/// A server that is asked for a revision that is gone is not asked for ever, and a lister not without a pause.
#[test]
fn fault_gone_at_open_is_not_asked_for_ever() {
    let clock = Arc::new(ManualClock::new());
    let server = Server::new((0..1000).map(|_| refuse(410)));
    let source = listed(&server, (1..1000).map(|round| ListPage::new(round, [])));
    let watch = RetryWatch::builder(source, 5).relist().clock(clock.clone());
    let mut watch = watch.open().unwrap();
    for seconds in 1..10 {
        for _ in 0..100 {
            assert!(watch.try_recv().is_pending());
        }
        assert_eq!(watch.lists(), seconds, "one list in a second");
        clock.advance(Duration::from_secs(1));
    }
    // Without a lister it has ended.
    assert_eq!(run(5, (0..10).map(|_| refuse(410))).1.len(), 1);
}

/// A source that is always ready, and a delay of nothing: others run, and a stop is seen.
#[test]
fn fault_hot_source_lets_others_run() {
    let server = Server::new((0..100_000).map(|_| Answer::<Thing>::Nothing));
    let watch = RetryWatch::builder(server.source(), 5).min_restart_delay(Duration::ZERO);
    let mut watch = watch.open().unwrap();
    assert!(watch.try_recv().is_pending());
    assert!(server.opens().len() < 1000, "{} opens in one poll", server.opens().len());
    watch.stop();
    assert_eq!(watch.try_recv(), Poll::Ready(None));
}

/// A value that cannot be decoded is no deletion in a list either: the last good one stays.
#[test]
fn rf_14_refused_value_of_a_list_is_no_deletion() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    let source = CacheSource::<Text>::new(&cache);
    let watch = RetryWatch::builder(source, 0).relist().min_restart_delay(Duration::ZERO);
    let mut watch = watch.open().unwrap();
    assert_eq!([(); 2].map(|()| line(&next(&mut watch))), ["+ /a=1", "synced"]);
    writer.apply(2, [Change::put("/a", b"\xff")]).unwrap();
    lap(&mut writer, "/z");
    let newest = writer.position();
    while watch.position() != newest {
        let event = next(&mut watch);
        assert_ne!(event.object().and_then(|text| text.key_str()), Some("/a"), "{}", line(&event));
    }
    assert!(watch.lists() > 1, "it was overtaken");
    put(&mut writer, "/a", "2");
    assert_eq!(line(&next(&mut watch)), "~ /a=1>2");
}

/// A deletion of what was refused before the watch began is given all the same: its consumer may have the object from before.
#[test]
fn rw_35_deleted_value_that_was_refused() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    writer.apply(2, [Change::put("/a", b"\xff")]).unwrap();
    let source = CacheSource::<Text>::new(&cache);
    let mut alone = RetryWatch::open(source.clone(), 2).unwrap();
    let mut listing = RetryWatch::builder(source, 1).relist().open().unwrap();
    writer.apply(3, [Change::put("/b", b"\xff")]).unwrap();
    delete(&mut writer, "/b");
    delete(&mut writer, "/a");
    put(&mut writer, "/end", "1");
    assert_eq!([(); 2].map(|()| line(&next(&mut alone))), ["? /a", "+ /end=1"]);
    assert_eq!([(); 2].map(|()| line(&next(&mut listing))), ["- /a=1", "+ /end=1"]);
}

/// Over a cache: its history, what it left behind as a difference, and the end of the cache.
#[test]
fn rw_30_cache_is_a_source() {
    let cache = Cache::builder("/").capacity(128).build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let source = CacheSource::<KeyValue>::new(&cache);
    let watch = RetryWatch::builder(source.clone(), 0).relist().min_restart_delay(Duration::ZERO);
    let mut watch = watch.open().unwrap();
    let next = |watch: &mut RetryWatch<CacheSource<KeyValue>>| watch.recv(BOUND).unwrap().unwrap();
    assert_eq!([(); 3].map(|()| next(&mut watch).name()), ["ADDED", "ADDED", "SYNCED"]);
    writer.apply(2, [Change::put("/a", "2")]).unwrap();
    let event = next(&mut watch);
    assert_eq!((event.name(), event.position.revision), ("MODIFIED", 2));

    // Overtaken: the subscription below ends with 410, and the difference follows.
    writer.apply(3, [Change::delete("/b")]).unwrap();
    for revision in 4..2000 {
        writer.apply(revision, [Change::put("/a", &revision.to_string())]).unwrap();
    }
    // The segment that it stood in is read to its end first.
    let mut value = "2".to_owned();
    let mut deletes = 0;
    let last = loop {
        let event = next(&mut watch);
        match &event.payload {
            Payload::Modified { old: Some(old), new } => {
                assert_eq!(old.value_str(), Some(&*value), "what was given before");
                value = new.value_str().unwrap().to_owned();
            }
            Payload::Deleted(last) => {
                assert_eq!(last.value_str(), Some("1"));
                deletes += 1;
            }
            other => panic!("{other:?}"),
        }
        if event.origin == Origin::Difference {
            break event;
        }
    };
    assert_eq!((&*value, deletes, last.lost > 1000, last.position.revision), ("1999", 1, true, 1999));
    assert_eq!(watch.lists(), 2);
    drop(writer);
    cache.close();
    let end = watch.recv(BOUND).unwrap();
    assert!(end.is_none_or(|event| event.status().is_some_and(|status| status.code() == 503)));
    assert!(watch.recv(BOUND).unwrap().is_none(), "a closed cache is not opened again for ever");
}
