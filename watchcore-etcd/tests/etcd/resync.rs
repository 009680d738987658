//! Every reason of a resync on a real etcd, as subscriptions, snapshots and reads that began before it see it.

use crate::support::etcd::{Ctl, Etcd};
use crate::support::history::{Recorder, Seen, assert_same};
use crate::support::proxy::Proxy;
use crate::support::{BOUND, wait_for};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use watchcore::{
    Cache, Code, KeyValue, Kind, Phase, Position, Range, Read, ReadOptions, Resync, ResyncReason, Snapshot, Start,
};
use watchcore_etcd::{Feeder, FeederBuilder};

/// The content of a key: value, then create_revision, mod_revision and version, then the lease.
type Held = (Vec<u8>, [u64; 3], i64);
type Listing = BTreeMap<Vec<u8>, Held>;

/// An event between the resync marks: kind, key, value, previous value, the three numbers.
type Reported = (Kind, String, Option<Vec<u8>>, Option<Vec<u8>>, [u64; 3]);

fn held(kv: &KeyValue) -> (Vec<u8>, Held) {
    let numbers = [kv.create_revision(), kv.mod_revision(), kv.version()];
    (kv.key().to_vec(), (kv.value().expect("a live value").to_vec(), numbers, kv.lease()))
}

fn of_snapshot(snapshot: &Snapshot) -> Listing {
    snapshot.iter().map(|kv| held(&kv)).collect()
}

fn of_etcd(ctl: &Ctl, revision: u64) -> Listing {
    let kvs = ctl.list(b"/x/", revision);
    kvs.iter()
        .map(|kv| {
            let numbers = [kv.create_revision(), kv.mod_revision(), kv.version()].map(|number| number as u64);
            (kv.key().to_vec(), (kv.value().to_vec(), numbers, kv.lease()))
        })
        .collect()
}

/// The specified difference: deletes first, then puts, each by key; a changed create_revision gives both.
fn difference(before: &Listing, after: &Listing) -> Vec<Reported> {
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    let same_life = |old: &Held, new: &Held| old.1[0] == new.1[0];
    let deletes = before
        .iter()
        .filter(|(key, old)| after.get(*key).is_none_or(|new| !same_life(old, new)))
        .map(|(key, old)| (Kind::Deleted, text(key), None, Some(old.0.clone()), old.1));
    let puts = after.iter().filter_map(|(key, new)| match before.get(key) {
        Some(old) if old == new => None,
        Some(old) if same_life(old, new) => {
            Some((Kind::Modified, text(key), Some(new.0.clone()), Some(old.0.clone()), new.1))
        }
        _ => Some((Kind::Added, text(key), Some(new.0.clone()), None, new.1)),
    });
    deletes.chain(puts).collect()
}

fn reported(seen: &Seen) -> Reported {
    (seen.kind, seen.key(), seen.value.clone(), seen.prev.clone(), seen.numbers)
}

/// The state that a consumer has after these events.
fn fold<'a>(events: impl IntoIterator<Item = &'a Seen>) -> Listing {
    let mut state = Listing::new();
    for seen in events {
        match seen.kind {
            Kind::Added | Kind::Modified => {
                let value = seen.value.clone().expect("a put has a value");
                let old = state.insert(seen.key.clone(), (value, seen.numbers, seen.lease));
                assert_eq!(old.is_none(), seen.kind == Kind::Added, "{seen:?}");
            }
            Kind::Deleted => {
                let (value, numbers, _) = state.remove(&seen.key).expect("a deletion of what was delivered");
                assert_eq!((seen.value.as_ref(), seen.prev.as_ref()), (None, Some(&value)), "{seen:?}");
                assert_eq!(seen.numbers, numbers, "{seen:?}");
            }
            _ => {}
        }
    }
    state
}

fn is_begin(seen: &Seen) -> bool {
    seen.resync.is_some_and(|resync| resync.phase == Phase::Begin)
}

/// Within an epoch no event is older than the one before it. The events of a resync have its revision.
fn assert_never_back(all: &[Seen], first_epoch: u64) {
    let live = all.iter().position(|seen| seen.ends_state).expect("the end of the initial state");
    let mut last = Position { epoch: first_epoch, revision: all[live].revision };
    for seen in &all[live + 1..] {
        let epoch = seen.resync.map_or(last.epoch, |resync| resync.epoch);
        let now = Position { epoch, revision: seen.revision };
        assert!(now >= last, "{last:?}, then {seen:?}");
        last = now;
    }
}

/// Reads the position all the time, by every call that returns one: it never goes back.
struct Witness {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Witness {
    fn start(cache: &Cache) -> Witness {
        let over = Arc::new(AtomicBool::new(false));
        let (of_thread, cache) = (over.clone(), cache.clone());
        let thread = std::thread::spawn(move || {
            let mut last = Position::default();
            let mut looks = 0;
            while !of_thread.load(Ordering::Relaxed) {
                let snapshot = cache.snapshot().expect("a snapshot");
                let answer = cache.get("/x/kept", Read::Any).expect("a get");
                let page = cache.list(&Range::key("/x/kept"), Read::Any, 0).expect("a list");
                let answered = Position { epoch: answer.epoch, revision: answer.revision };
                let listed = Position { epoch: page.epoch(), revision: page.revision() };
                for now in [snapshot.position(), answered, listed, cache.position(), cache.status().position] {
                    assert!(now >= last, "{now:?} was read after {last:?}");
                    last = now;
                }
                looks += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
            looks
        });
        Witness { over, thread: Some(thread) }
    }

    fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        let looks = self.thread.take().unwrap().join().expect("nothing went back");
        assert!(looks > 0);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// A cache that follows etcd through a proxy, with open readers that a resync must not break.
struct Scene {
    cache: Cache,
    feeder: Feeder,
    /// A subscription with state, without a filter.
    whole: Recorder,
    /// A subscription with state, filtered by a prefix.
    part: Recorder,
    /// A subscription that ends at the resync.
    stops: Recorder,
    witness: Witness,
    /// The cache as it was when the connection was lost.
    snapshot: Snapshot,
    before: Listing,
    from: u64,
}

/// The state before the feeder starts.
fn seed(ctl: &Ctl) {
    for key in ["kept", "changed", "gone", "made_again", "twin", "leased", "p/kept", "p/gone", "p/made_again", "q"] {
        ctl.put(format!("/x/{key}"), format!("first {key}"));
    }
    ctl.put("/y/elsewhere", "0");
}

/// The changes that every reader sees before the connection is lost.
fn seen_live(ctl: &Ctl) {
    ctl.put("/x/changed", "seen");
    ctl.put("/x/p/seen", "");
    ctl.put("/x/passing", "1");
    ctl.delete("/x/passing");
    ctl.put("/x/p/changed", "seen");
}

/// The missed changes, of every kind. `wait` is called after each.
fn missed(ctl: &Ctl, wait: impl Fn()) {
    let put = |key: &str, value: &str| {
        ctl.put(key, value);
        wait();
    };
    let delete = |key: &str| {
        ctl.delete(key);
        wait();
    };
    put("/x/changed", "missed");
    delete("/x/gone");
    delete("/x/p/gone");
    for key in ["/x/p/made_again", "/x/made_again"] {
        delete(key);
        put(key, "made again");
    }
    put("/x/p/added", "new");
    put("/x/added", "new");
    put("/x/twin", "first twin");
    put("/x/brief", "neither before nor after");
    delete("/x/brief");
    ctl.put_leased("/x/leased", "first leased", ctl.grant(1000));
    wait();
    put("/x/changed", "newest");
}

fn quick(url: &str) -> FeederBuilder {
    Feeder::new([url])
        .backoff(Duration::from_millis(5), Duration::from_millis(100))
        .progress_interval(Duration::from_millis(200))
}

impl Scene {
    /// `live` writes the changes that every reader sees.
    fn open(builder: FeederBuilder, ctl: &Ctl, live: impl FnOnce(&Ctl)) -> Scene {
        let cache = Cache::builder("/x/").build().expect("a cache");
        let feeder = builder.start(cache.writer().unwrap()).unwrap();
        cache.wait_ready(BOUND).expect("ready");
        wait_for("the watch", || feeder.counters().connects > 0);
        let state = || cache.subscribe(Start::State);
        let whole = Recorder::of(state().open().unwrap());
        let part = Recorder::of(state().prefix("/x/p/").open().unwrap());
        let stops = Recorder::of(state().stop_on_resync(true).open().unwrap());
        let witness = Witness::start(&cache);
        live(ctl);
        let from = ctl.put("/x/p/last", "seen");
        // A wait of the cache would ask for progress, and a late answer has the revision of a change that is missed.
        wait_for("the newest", || cache.position().revision >= from);
        let snapshot = cache.snapshot().unwrap();
        let before = of_snapshot(&snapshot);
        assert_eq!(snapshot.revision(), from);
        assert!(before == of_etcd(ctl, from));
        // Later changes are missed.
        for recorder in [&whole, &part, &stops] {
            recorder.until("the newest", |seen| seen.key == b"/x/p/last");
        }
        Scene { cache, feeder, whole, part, stops, witness, snapshot, before, from }
    }

    /// Checks what holds for every reason. `ctl` talks to the present etcd, whose revision is `to`.
    fn check(self, ctl: &Ctl, reason: ResyncReason, to: u64) {
        let Scene { cache, feeder, whole, part, stops, witness, snapshot, before, from } = self;
        let old = snapshot.position();
        let epoch = old.epoch + 1;
        let (mark, inside) = whole.resync();
        let begin = Resync { phase: Phase::Begin, reason, epoch, from, to };
        assert_eq!(mark, begin);
        let now = cache.snapshot().unwrap();
        assert_eq!(now.position(), Position { epoch, revision: to });
        assert_eq!(now.position().epoch_number(), old.epoch_number() + 1);

        // The resync delivers exactly the difference.
        let after = of_etcd(ctl, to);
        let expected = difference(&before, &after);
        assert_eq!(inside.iter().map(reported).collect::<Vec<_>>(), expected);
        for seen in &inside {
            assert!(seen.synthetic && seen.revision == to, "{seen:?}");
        }
        let (part_mark, part_inside) = part.resync();
        assert_eq!(part_mark, begin);
        let of_part: Vec<_> = expected.iter().filter(|one| one.1.starts_with("/x/p/")).cloned().collect();
        assert_eq!(part_inside.iter().map(reported).collect::<Vec<_>>(), of_part);
        assert!(part_inside.iter().all(|seen| seen.synthetic && seen.revision == to));

        // A consumer's state equals the store's, before and after.
        let all = whole.all();
        let at = all.iter().position(is_begin).unwrap();
        assert!(fold(&all[..at]) == before && fold(&all) == after);
        assert!(all[..at].iter().all(|seen| !seen.synthetic));
        let in_part = |listing: &Listing| -> Listing {
            let part = listing.iter().filter(|(key, _)| key.starts_with(b"/x/p/"));
            part.map(|(key, held)| (key.clone(), held.clone())).collect()
        };
        let all = part.all();
        let at = all.iter().position(is_begin).unwrap();
        assert!(fold(&all[..at]) == in_part(&before) && fold(&all) == in_part(&after));

        // The subscription with `stop_on_resync` has ended, after all earlier events.
        let error = stops.error();
        assert_eq!(error.code(), Code::Resynced, "{error}");
        let all = stops.all();
        assert!(fold(&all) == before && all.iter().all(|seen| seen.resync.is_none() && !seen.synthetic));

        // A snapshot never changes.
        assert!(of_snapshot(&snapshot) == before && snapshot.position() == old);
        assert!(of_snapshot(&now) == after);
        let counted = || (feeder.counters().resyncs(), feeder.counters().resyncs_for(reason));
        assert_eq!(counted(), (1, 1));

        reads(&cache, reason, old, &before, to, &after);

        // All readers continue to work.
        let live = ctl.put("/x/p/changed", "live again");
        let kind = if after.contains_key(b"/x/p/changed".as_slice()) { Kind::Modified } else { Kind::Added };
        for recorder in [&whole, &part] {
            let seen = recorder.until("a live event", |seen| seen.value.as_deref() == Some(b"live again"));
            let last = seen.last().unwrap();
            assert_eq!((last.kind, last.revision, last.synthetic), (kind, live, false), "{last:?}");
            let marks: Vec<_> = seen.iter().filter_map(|seen| seen.resync).collect();
            assert_eq!(marks, [begin, Resync { phase: Phase::End, ..begin }]);
            assert_never_back(&recorder.all(), old.epoch);
        }
        assert_same(&cache, ctl);
        assert_eq!(counted(), (1, 1));
        witness.end();
    }
}

/// Reads and starts at revisions before, inside and after the gap.
fn reads(cache: &Cache, reason: ResyncReason, old: Position, before: &Listing, to: u64, after: &Listing) {
    let from = old.revision;
    let reset = reason == ResyncReason::HistoryReset;
    let exact = |revision| {
        let page = cache.list_with(&Range::all(), &ReadOptions::new(Read::Exact(revision)).timeout(Duration::ZERO))?;
        assert_eq!(page.revision(), revision);
        Ok(page.items().iter().map(held).collect::<Listing>())
    };
    let refused =
        |revision| -> Code { exact(revision).map(drop).map_err(|error: watchcore::Error| error.code()).unwrap_err() };
    assert!(exact(to).unwrap() == *after, "the state at {to}");
    if reset {
        for revision in [1, from - 1, from].into_iter().filter(|revision| *revision < to) {
            assert_eq!(refused(revision), Code::Compacted, "at {revision} of {from} to {to}");
        }
        for revision in to + 1..=from {
            assert_eq!(refused(revision), Code::FutureRevision, "at {revision} of {from} to {to}");
        }
    } else {
        assert!(exact(from).unwrap() == *before, "the state at {from}");
        assert!(from + 1 < to, "the test's own premise");
        // After a large jump, only some revisions are tried.
        for revision in (from + 1..to).take(50).chain([to - 1]) {
            assert_eq!(refused(revision), Code::Compacted, "at {revision}, inside of {from} to {to}");
        }
    }

    let first = |after: u64, epoch: u64| {
        let mut subscription = cache.subscribe(Start::AfterIn(Position { epoch, revision: after })).open()?;
        assert!(subscription.wait(BOUND)?, "it begins with what is there");
        let batch = subscription.poll(1)?;
        Ok(batch.events()[0].resync().expect("the BEGIN mark comes first"))
    };
    let refused =
        |after, epoch| -> Code { first(after, epoch).map_err(|error: watchcore::Error| error.code()).unwrap_err() };
    if reset {
        // The old history is gone, whether or not its epoch is given.
        for revision in [1, from - 1, from] {
            assert_eq!(refused(revision, old.epoch), Code::Compacted, "after {revision} of {from} to {to}");
            if revision != to {
                assert_eq!(refused(revision, 0), Code::Compacted, "after {revision} of {from} to {to}");
            }
        }
    } else {
        for epoch in [0, old.epoch] {
            let mark = first(from, epoch).unwrap();
            assert_eq!((mark.phase, mark.from, mark.to), (Phase::Begin, from, to));
            for revision in [from + 1, to - 1] {
                assert_eq!(refused(revision, epoch), Code::Compacted, "after {revision}, inside of {from} to {to}");
            }
        }
    }
}

#[test]
fn compacted_while_cut_off() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    seed(&ctl);
    let proxy = Proxy::to(etcd.address());
    let scene = Scene::open(quick(&proxy.url()), &ctl, seen_live);
    proxy.refuse();
    let mut waits = scene.cache.subscribe(Start::After(scene.from + 1)).open().unwrap();
    missed(&ctl, || {});
    let to = ctl.revision();
    ctl.compact(to);
    proxy.allow();
    let (from, whole) = (scene.from, scene.whole.resync());
    assert!(whole.1.len() > 9, "the test's own premise");
    // A reader that waited for a revision inside the gap gets LAGGED, because that revision may have had changes that
    // the difference lacks.
    assert!(waits.wait(BOUND).unwrap());
    let error = waits.poll(10).unwrap_err();
    assert_eq!((error.code(), error.lost_to()), (Code::Lagged, to), "{error} {from}");
    scene.check(&ctl, ResyncReason::Compacted, to);
}

#[test]
fn too_far_behind() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    seed(&ctl);
    let proxy = Proxy::to(etcd.address());
    let scene = Scene::open(quick(&proxy.url()).too_far_behind(10), &ctl, seen_live);
    proxy.refuse();
    missed(&ctl, || {});
    let to = ctl.revision();
    assert!(to > scene.from + 10, "the test's own premise");
    proxy.allow();
    scene.check(&ctl, ResyncReason::TooFarBehind, to);
}

/// A watch that stays open but has lost all of the missed changes. Progress would move `from`.
fn swallowed(etcd: &Etcd, ctl: &Ctl) -> (Proxy, Scene) {
    seed(ctl);
    let proxy = Proxy::swallowing(etcd.address(), "/x/");
    let scene = Scene::open(quick(&proxy.url()).progress_requests(false), ctl, seen_live);
    proxy.swallow(true);
    missed(ctl, || {
        // One change at a time, so that each is one message.
        let newest = ctl.revision() - scene.from;
        wait_for("a message is swallowed", || proxy.swallowed() >= newest);
    });
    proxy.swallow(false);
    assert_eq!(scene.cache.position().revision, scene.from, "nothing came");
    (proxy, scene)
}

#[test]
fn chain_broken_by_events_that_never_came() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (_proxy, scene) = swallowed(&etcd, &ctl);
    // The version is two above the cache's.
    let to = ctl.put("/x/changed", "shows the gap");
    wait_for("the violation", || scene.feeder.counters().integrity_violations == 1);
    scene.check(&ctl, ResyncReason::ChainBroken, to);
}

/// The first event after the gap reveals it, whatever its kind.
fn shown_by(event: impl FnOnce(&Ctl) -> u64) {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (_proxy, scene) = swallowed(&etcd, &ctl);
    let to = event(&ctl);
    scene.check(&ctl, ResyncReason::ChainBroken, to);
}

#[test]
fn chain_broken_shown_by_a_key_that_was_deleted_and_made_again() {
    shown_by(|ctl| ctl.put("/x/made_again", "and again"));
}

#[test]
fn chain_broken_shown_by_the_deletion_of_a_key_that_never_came() {
    shown_by(|ctl| ctl.delete("/x/added"));
}

#[test]
fn chain_broken_shown_by_a_first_version_of_a_key_that_is_there() {
    shown_by(|ctl| ctl.put("/x/gone", "made anew"));
}

#[test]
fn requested() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let (_proxy, scene) = swallowed(&etcd, &ctl);
    let to = ctl.revision();
    scene.feeder.request_resync();
    scene.check(&ctl, ResyncReason::Requested, to);
}

/// Restores a backup while the cache is cut off. `lost` is written after the backup and seen by the cache, `anew` after
/// the restore.
fn restored(bump: Option<u64>, lost: impl Fn(&Ctl), anew: impl Fn(&Ctl), reason: ResyncReason) -> (u64, u64) {
    let mut etcd = Etcd::start();
    let ctl = etcd.ctl();
    seed(&ctl);
    let proxy = Proxy::to(etcd.address());
    let mut backup = None;
    let scene = Scene::open(quick(&proxy.url()), &ctl, |ctl| {
        seen_live(ctl);
        backup = Some(etcd.back_up());
        lost(ctl);
    });
    proxy.refuse();
    let mut waits = scene.cache.subscribe(Start::After(scene.from + 1)).open().unwrap();
    drop(ctl);
    etcd.kill();
    etcd.restore(&backup.unwrap(), bump);
    etcd.launch();
    let ctl = etcd.ctl();
    anew(&ctl);
    let to = ctl.revision();
    proxy.allow();
    let from = scene.from;
    scene.whole.resync();
    assert!(waits.wait(BOUND).unwrap());
    let error = waits.poll(10).unwrap_err();
    let code = if reason == ResyncReason::HistoryReset { Code::FutureRevision } else { Code::Lagged };
    assert_eq!(error.code(), code, "{error}");
    scene.check(&ctl, reason, to);
    (from, to)
}

/// The same revisions and version, but another value.
fn twin(ctl: &Ctl, value: &str) {
    write(ctl, &[("/x/twin", Some(value)), ("/x/p/late", Some(value))]);
}

/// Puts, and deletes if there is no value.
fn write(ctl: &Ctl, changes: &[(&str, Option<&str>)]) {
    for (key, value) in changes {
        match value {
            Some(value) => ctl.put(key, value),
            None => ctl.delete(key),
        };
    }
}

#[test]
fn history_reset_by_a_backup_that_is_older() {
    let lost = |ctl: &Ctl| {
        twin(ctl, "of the history that is lost");
        write(ctl, &[("/x/q", None), ("/x/made_again", Some("lost"))]);
    };
    let (from, to) = restored(None, lost, |ctl| twin(ctl, "of the restored history"), ResyncReason::HistoryReset);
    assert!(to < from, "the test's own premise: {from} to {to}");
}

#[test]
fn history_reset_by_a_backup_that_nobody_wrote_to() {
    let lost = |ctl: &Ctl| twin(ctl, "of the history that is lost");
    let (from, to) = restored(None, lost, |_| {}, ResyncReason::HistoryReset);
    assert!(to < from, "the test's own premise: {from} to {to}");
}

#[test]
fn history_reset_by_a_backup_that_grew_past_us() {
    let lost = |ctl: &Ctl| twin(ctl, "of the history that is lost");
    let anew = |ctl: &Ctl| {
        twin(ctl, "of the restored history");
        missed(ctl, || {});
    };
    let (from, to) = restored(None, lost, anew, ResyncReason::HistoryReset);
    assert!(to > from, "the test's own premise: {from} to {to}");
}

/// Far above all previous revisions.
const BUMP: Option<u64> = Some(1_000_000);

#[test]
fn history_reset_by_a_backup_with_raised_revisions() {
    // Everything that a read could compare is compacted: the listing itself decides.
    let lost = |ctl: &Ctl| twin(ctl, "of the history that is lost");
    let (from, to) = restored(BUMP, lost, |_| {}, ResyncReason::HistoryReset);
    assert!(to > from + 900_000, "the test's own premise: {from} to {to}");
}

#[test]
fn history_reset_by_a_backup_with_raised_revisions_that_was_written_to() {
    // A lost deletion is noticed in spite of later changes.
    let lost = |ctl: &Ctl| write(ctl, &[("/x/q", None)]);
    restored(BUMP, lost, |ctl| missed(ctl, || {}), ResyncReason::HistoryReset);
}

#[test]
fn history_reset_by_a_backup_whose_lost_change_was_made_once_more() {
    // The only key that went back was written again: it has fewer versions than expected.
    let lost = |ctl: &Ctl| write(ctl, &[("/x/twin", Some("lost")), ("/x/twin", Some("lost, too"))]);
    let anew = |ctl: &Ctl| write(ctl, &[("/x/twin", Some("after the restore"))]);
    restored(BUMP, lost, anew, ResyncReason::HistoryReset);
}

#[test]
fn a_backup_with_raised_revisions_that_lost_new_keys_only_looks_like_a_compaction() {
    // This case cannot be told from keys that were deleted before the compaction, and does no more harm: the deletions
    // are delivered, and no revision goes back.
    let (from, to) = restored(BUMP, |ctl| write(ctl, &[("/x/lost", Some("1"))]), |_| {}, ResyncReason::Compacted);
    assert!(to > from + 900_000, "the test's own premise: {from} to {to}");
}
