//! Sections 5 and 10: waits beside a source, which is asked for what they wait for.

use crate::tools::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use watchcore::*;

#[test]
fn a_wait_with_a_source_asks_it_at_once() {
    let (cache, mut writer) = unloaded();
    let source = Arc::new(Counting::default());
    writer.attach(source.clone()).unwrap();
    writer.load(5, []).unwrap();
    let waits = cache.clone();
    let waits = spawn(move || waits.wait_until(8, BOUND).map(|position| position.revision));
    until("it is asked for", || writer.demand().progress_until > 0);
    assert!(source.0.load(SeqCst) > 0);
    assert_eq!(writer.demand().progress_until, 8);
    writer.progress(8).unwrap();
    assert_eq!(waits.end().unwrap(), 8);
}

struct Breaks;
impl Source for Breaks {
    fn wake(&self) {
        panic!("a source");
    }
}

#[test]
fn source_that_panics_is_asked_by_whoever_waits_and_harms_nobody() {
    let (cache, mut writer) = unloaded();
    writer.attach(Arc::new(Breaks)).unwrap();
    let panics = || cache.stats().caught_panics;
    let mut asked = panics();
    let mut more = || {
        let before = std::mem::replace(&mut asked, panics());
        assert!(asked > before, "nobody asked");
    };
    let mut waiter = cache.waiter(Want::Consistent).unwrap();
    more();
    writer.load(5, []).unwrap();
    let mut early = cache.subscribe(Start::StateAtLeast(8)).open().unwrap();
    let waits = cache.clone();
    let waits = spawn(move || waits.wait_until(8, BOUND).map(|position| position.revision));
    until("it is asked for", || writer.demand().progress_until == 8);
    let sleeps = spawn(move || early.wait(BOUND).map(|_| drain(&mut early).len()));
    until("both sleep", || cache.stats().waiting == 2);
    more();
    writer.progress(8).unwrap();
    writer.serve_consistent(writer.demand().consistent, 8);
    assert_eq!(waits.end().unwrap(), 8);
    assert_eq!(sleeps.end().unwrap(), 1, "the end of an empty state");
    assert_eq!(waiter.poll().unwrap().map(|position| position.revision), Some(8));
    cache.close();
    more();
}

#[test]
fn a_failure_before_the_first_listing_ends_every_wait() {
    let (cache, mut writer) = unloaded();
    writer.attach(Arc::<Counting>::default()).unwrap();
    let caches = [cache.clone(), cache.clone(), cache.clone()];
    let [ready, revision, consistent] = caches;
    let sleepers = [
        spawn(move || in_time(|| ready.wait_ready(Duration::MAX))),
        spawn(move || in_time(|| revision.wait_until(9, Duration::MAX)).map(|_| ())),
        spawn(move || in_time(|| consistent.consistent_revision(Duration::MAX)).map(|_| ())),
    ];
    until("all sleep", || cache.stats().waiting == 3);
    writer.set_state(SourceState::Failed(Error::new(Code::PermissionDenied, "no")));
    for sleeper in sleepers {
        refused(sleeper.end(), Code::PermissionDenied);
    }
}

#[test]
fn a_source_is_refused_where_its_listing_would_be_missed() {
    let (cache, mut writer) = embedded();
    let early = cache.subscribe(Start::State).open().unwrap();
    let error = refused(writer.attach(Arc::<Counting>::default()), Code::Busy);
    assert!(error.message().contains("expects a listing"), "{error}");
    cache.snapshot().expect("it stays ready");
    drop(early);
    writer.attach(Arc::<Counting>::default()).unwrap();
    refused(cache.snapshot(), Code::NotReady);
    // One that comes now waits for the listing.
    let mut late = cache.subscribe(Start::State).open().unwrap();
    assert!(late.poll(10).unwrap().is_empty());
    writer.load(5, [record("/a", "1", 3, 4, 2)]).unwrap();
    assert_eq!(drain(&mut late), ["4 ADDED /a=1", "5 BOOKMARK"]);
}
