//! What a consumer saw, and whether a cache holds what etcd holds.

use super::etcd::Ctl;
use super::{BOUND, wait_for};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use watchcore::{Cache, Closer, Error, Kind, Phase, Read, Resync, Start, Subscription};

/// One event as a consumer saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) kind: Kind,
    pub(crate) revision: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) prev: Option<Vec<u8>>,
    /// create_revision, mod_revision and version of the value shown; of a deletion, the last value's.
    pub(crate) numbers: [u64; 3],
    pub(crate) lease: i64,
    pub(crate) synthetic: bool,
    /// Whether it ends the initial state.
    pub(crate) ends_state: bool,
    pub(crate) resync: Option<Resync>,
}

impl Seen {
    pub(crate) fn key(&self) -> String {
        String::from_utf8_lossy(&self.key).into_owned()
    }
}

/// A consumer in a thread of its own that writes down everything.
pub(crate) struct Recorder {
    seen: Arc<Mutex<Vec<Seen>>>,
    error: Arc<Mutex<Option<Error>>>,
    closer: Closer,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    pub(crate) fn start(cache: &Cache, start: Start) -> Recorder {
        Recorder::of(cache.subscribe(start).open().expect("a subscription"))
    }

    pub(crate) fn of(mut subscription: Subscription) -> Recorder {
        let closer = subscription.closer();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let error = Arc::new(Mutex::new(None));
        let (of_thread, its_error) = (seen.clone(), error.clone());
        let thread = std::thread::spawn(move || {
            loop {
                let batch = match subscription.next_batch() {
                    Ok(Some(batch)) => batch,
                    Ok(None) => break,
                    Err(error) => {
                        *its_error.lock().unwrap() = Some(error);
                        break;
                    }
                };
                let mut seen = of_thread.lock().unwrap();
                seen.extend(batch.events().iter().map(|event| Seen {
                    kind: event.kind(),
                    revision: event.revision(),
                    key: event.key().to_vec(),
                    value: event.value().map(<[u8]>::to_vec),
                    prev: event.prev_value().map(<[u8]>::to_vec),
                    numbers: [event.create_revision(), event.mod_revision(), event.version()],
                    lease: event.lease(),
                    synthetic: event.is_synthetic(),
                    ends_state: event.ends_initial_state(),
                    resync: event.resync(),
                }));
            }
        });
        Recorder { seen, error, closer, thread: Some(thread) }
    }

    /// Everything so far.
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The error that ended it, once there is one.
    #[track_caller]
    pub(crate) fn error(&self) -> Error {
        wait_for("the end of a subscription", || self.error.lock().unwrap().is_some());
        self.error.lock().unwrap().clone().expect("an error")
    }

    /// Everything but bookmarks, once something for which `last` holds was seen.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, last: impl Fn(&Seen) -> bool) -> Vec<Seen> {
        wait_for(what, || self.seen.lock().unwrap().iter().any(&last));
        self.all().into_iter().filter(|seen| seen.kind != Kind::Bookmark).collect()
    }

    /// The begin of the first resync, with what came inside it.
    #[track_caller]
    pub(crate) fn resync(&self) -> (Resync, Vec<Seen>) {
        let ends = |seen: &Seen| seen.resync.is_some_and(|resync| resync.phase == Phase::End);
        let all = self.until("a resync", ends);
        let begin = all.iter().position(|seen| seen.resync.is_some()).expect("it begins");
        let end = all.iter().position(ends).expect("it ends");
        let mark = all[begin].resync.expect("a mark");
        assert_eq!(mark.phase, Phase::Begin);
        (mark, all[begin + 1..end].to_vec())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.closer.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until the cache stands at etcd's newest revision, and compares all that both hold.
#[track_caller]
pub(crate) fn assert_same(cache: &Cache, ctl: &Ctl) {
    let newest = ctl.revision();
    cache.wait_until(newest, BOUND).expect("the cache follows");
    let snapshot = cache.snapshot().expect("a snapshot");
    let theirs = ctl.list(cache.prefix(), snapshot.revision());
    let theirs: Vec<_> = theirs
        .iter()
        .map(|kv| {
            let numbers = [kv.create_revision(), kv.mod_revision(), kv.version()].map(|number| number as u64);
            (kv.key().to_vec(), kv.value().to_vec(), numbers, kv.lease())
        })
        .collect();
    let ours: Vec<_> = snapshot
        .iter()
        .map(|kv| {
            let numbers = [kv.create_revision(), kv.mod_revision(), kv.version()];
            (kv.key().to_vec(), kv.value().expect("a live value").to_vec(), numbers, kv.lease())
        })
        .collect();
    assert_eq!(ours.len(), theirs.len(), "keys at revision {}", snapshot.revision());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours.0.escape_ascii().to_string(), theirs.0.escape_ascii().to_string());
        assert!(ours.1 == theirs.1, "the value of {:?}", ours.0.escape_ascii().to_string());
        assert_eq!((ours.2, ours.3), (theirs.2, theirs.3), "{:?}", ours.0.escape_ascii().to_string());
    }
}

/// The value of a key now.
pub(crate) fn value(cache: &Cache, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    let answer = cache.get(key, Read::Any).expect("the cache answers");
    answer.kv.and_then(|kv| kv.value().map(<[u8]>::to_vec))
}
