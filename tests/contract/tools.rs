//! Short words for the tests.

use std::sync::mpsc;
use std::time::{Duration, Instant};
use watchcore::raw::TestBuilder as _;
use watchcore::*;

/// A wait that takes this long has failed.
pub const BOUND: Duration = Duration::from_secs(60);

pub fn embedded() -> (Cache, Writer) {
    let cache = Cache::builder("/").build().unwrap();
    let writer = cache.writer().unwrap();
    (cache, writer)
}

/// Eight segments of 16 slots.
pub fn tiny() -> (Cache, Writer) {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
    let writer = cache.writer().unwrap();
    (cache, writer)
}

/// Not ready before `load`.
pub fn unloaded() -> (Cache, Writer) {
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let writer = cache.writer().unwrap();
    (cache, writer)
}

/// Labels of a value `a=1,b=2`.
pub fn plain_labels() -> Labels {
    let pair = |pair: &str| pair.split_once('=').map(|(key, value)| (key.into(), value.into()));
    Labels::extractor(move |_, value| Ok::<_, String>(text(value).split(',').filter_map(pair).collect()))
}

pub fn record<'a>(key: &'a str, value: &'a str, create: u64, modified: u64, version: u64) -> Record<'a> {
    let (key, value) = (key.as_bytes(), value.as_bytes());
    Record { key, value, create_revision: create, mod_revision: modified, version, lease: 0 }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `7 ADDED /a=1`, a deletion as `8 DELETED /a was 1`, a mark as `9 BOOKMARK`.
pub fn line(event: &Event) -> String {
    let head = format!("{} {}", event.revision(), event.kind().name());
    match (event.value(), event.prev_value()) {
        (Some(value), _) => format!("{head} {}={}", text(event.key()), text(value)),
        (None, Some(before)) => format!("{head} {} was {}", text(event.key()), text(before)),
        (None, None) => match event.resync() {
            Some(mark) => format!("{head} {:?} {:?} {}..{}", mark.phase, mark.reason, mark.from, mark.to),
            None => head,
        },
    }
}

pub fn lines(batch: &Batch) -> Vec<String> {
    batch.into_iter().map(line).collect()
}

/// Everything that is there now.
pub fn drain(subscription: &mut Subscription) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match subscription.poll(1000) {
            Ok(batch) if batch.is_empty() => return all,
            Ok(batch) => all.extend(lines(&batch)),
            Err(error) => {
                all.push(error.code().name().into());
                return all;
            }
        }
    }
}

pub fn revisions(subscription: &mut Subscription) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        let batch = subscription.poll(1000).unwrap();
        if batch.is_empty() {
            return all;
        }
        all.extend(batch.into_iter().map(Event::revision));
    }
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(outcome: Result<T>, code: Code) -> Error {
    let error = outcome.expect_err("it must be refused");
    assert_eq!(error.code(), code, "{error}");
    error
}

/// COMPACTED with its numbers.
#[track_caller]
pub fn compacted<T: std::fmt::Debug>(outcome: Result<T>, asked: u64, oldest: u64, current: u64) {
    let error = refused(outcome, Code::Compacted);
    assert_eq!((error.asked(), error.oldest(), error.current()), (asked, oldest, current), "{error}");
}

/// One event a revision: `/k` = the revision.
pub fn write(writer: &mut Writer, revisions: impl IntoIterator<Item = u64>) {
    for revision in revisions {
        writer.apply(revision, [Change::put("/k", &revision.to_string())]).unwrap();
    }
}

pub fn value_at(cache: &Cache, key: &str, read: Read) -> Result<Option<String>> {
    Ok(cache.get_with(key, &ReadOptions::new(read).timeout(BOUND))?.kv.and_then(|kv| kv.value().map(text)))
}

/// The state as a reader sees it, with all its numbers.
pub fn state(cache: &Cache) -> Vec<(String, String, u64, u64, u64)> {
    let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
    let one = |kv: KeyValueRef<'_>| {
        (text(kv.key()), text(kv.value().unwrap()), kv.create_revision(), kv.mod_revision(), kv.version())
    };
    page.iter().map(one).collect()
}

/// Something that must end at once, or at its deadline: a hang ends the tests with a message.
#[track_caller]
pub fn in_time<T>(run: impl FnOnce() -> T) -> T {
    let place = std::panic::Location::caller();
    let (ended, watched) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if watched.recv_timeout(BOUND) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{place} hangs");
            std::process::abort();
        }
    });
    let outcome = run();
    drop(ended);
    outcome
}

/// A thread whose end is waited for with a bound.
pub struct Task<T>(std::thread::JoinHandle<T>, mpsc::Receiver<()>);

pub fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Task<T> {
    let (end, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // Dropped at the end, also by a panic.
        let _end = end;
        run()
    });
    Task(thread, ended)
}

impl<T> Task<T> {
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }

    #[track_caller]
    pub fn end(self) -> T {
        let Task(thread, ended) = self;
        assert!(ended.recv_timeout(2 * BOUND) != Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// A source that counts how often it was woken.
#[derive(Default)]
pub struct Counting(pub std::sync::atomic::AtomicU64);

impl Source for Counting {
    fn wake(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Waits for a condition, with a bound.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::yield_now();
    }
}

/// Waits until somebody sleeps.
#[track_caller]
pub fn until_asleep(cache: &Cache) {
    until("somebody sleeps", || cache.stats().waiting > 0);
}
