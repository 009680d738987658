//! Values made from files, which are made again when the files change: certificates, tokens.
//!
//! A caller asks for the value. If the last check of the files is older than an interval, the files are checked first,
//! on a blocking thread. Callers that ask meanwhile wait for the same check, so that none of them gets the value of an
//! old file. While the files cannot be read, or make no value (half of a pair was replaced), the last good value is
//! used, and one warning says why.
//!
//! A request reads [`Published`] without a lock. The lock of [`ReloadState`] is taken by a check of the files alone, which
//! publishes the result before it releases the lock.
//!
//! The server may use its old certificate for ever. Tokens and client authorities are different: a value with a limit
//! ([`Reloaded::usable_for`]) is no longer used when its files could not be read for longer than the limit.

use arc_swap::ArcSwap;
use std::fs::{File, Metadata};
use std::hash::BuildHasher;
use std::io::{Error, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Resolution of file times. A file that changed this recently may change again without a new modification time.
const TIME_RESOLUTION: Duration = Duration::from_secs(2);

/// How long a caller waits for a check of the files.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Larger than any certificate or token list: a larger file was configured by mistake.
const MAX_BYTES: u64 = 16 << 20;

/// Makes a value from the contents of the files, in the order of their paths. The error names the file and the fault.
type Make<T> = dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync;

/// A value made from files.
pub(crate) struct Reloaded<T> {
    /// Name of the value in log messages.
    what: &'static str,
    paths: Vec<PathBuf>,
    make: Box<Make<T>>,
    /// How old a check may be before a caller starts another.
    interval: Duration,
    /// How long the last good value is used while the files make none; `None`: for ever.
    limit: Option<Duration>,
    published: ArcSwap<Published<T>>,
    state: Mutex<ReloadState>,
    /// Notified at the end of each check.
    ended: Notify,
    hasher: std::collections::hash_map::RandomState,
}

/// The part that a request reads.
struct Published<T> {
    value: Arc<T>,
    checked_at: Instant,
    /// Since when no check has succeeded: the time of the first failure, or the beginning of the running check.
    unconfirmed_since: Option<Instant>,
}

/// The part that a check of the files reads and changes.
struct ReloadState {
    /// When the running check began, if one is running.
    check_began: Option<Instant>,
    /// Stamps of the files when they were read; `None` forces the next check to read them.
    stamps: Option<Vec<Stamp>>,
    contents: u64,
    /// Set while the newest files make no value.
    failure: Option<Failure>,
    /// Whether the warning that the value is no longer used was logged.
    is_expired: bool,
}

/// Why files make no value, and since when that is so.
struct Failure {
    why: String,
    since: Instant,
    /// The hash of the bytes that made no value, if the files could be read. The same bytes are not tried again.
    contents: Option<u64>,
}

/// File metadata by which a change is seen without reading the file.
#[derive(PartialEq, Eq, Clone)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    /// Device, inode, and seconds and nanoseconds of the inode's last change, where the system has them.
    inode: Option<(u64, u64, i64, i64)>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// The error of `make`, or which file cannot be read.
    pub(crate) fn new(
        what: &'static str,
        paths: Vec<PathBuf>,
        interval: Duration,
        make: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Reloaded<T>, String> {
        let hasher = std::collections::hash_map::RandomState::new();
        let stamps = stamps(&paths);
        let contents = read(&paths)?;
        let value = Arc::new(make(&contents)?);
        let published = Published { value, checked_at: Instant::now(), unconfirmed_since: None };
        let state = ReloadState {
            check_began: None,
            stamps: stamps.filter(|stamps| are_settled(stamps)),
            contents: hasher.hash_one(&contents),
            failure: None,
            is_expired: false,
        };
        Ok(Reloaded {
            what,
            paths,
            make: Box::new(make),
            interval,
            limit: None,
            published: ArcSwap::from_pointee(published),
            state: Mutex::new(state),
            ended: Notify::new(),
            hasher,
        })
    }

    /// Sets the limit: while the files make no value, the last good one is used for this long.
    pub(crate) fn usable_for(self, limit: Duration) -> Reloaded<T> {
        Reloaded { limit: Some(limit), ..self }
    }

    /// Returns the last good value without checking the files, or `None` if the files have made no value for longer
    /// than the limit. A check that does not end, because the file system does not answer, counts as a failed one.
    pub(crate) fn usable(&self) -> Option<Arc<T>> {
        self.within_limit().or_else(|| {
            let mut state = self.lock();
            // A check may have succeeded before this caller had the lock.
            if let Some(value) = self.within_limit() {
                return Some(value);
            }
            if !std::mem::replace(&mut state.is_expired, true) {
                let (what, limit) = (self.what, self.limit.unwrap_or_default());
                drop(state);
                tracing::warn!(target: "watchcore_http", "{what}: they could not be read for {limit:?}. The version that was read before is not used any more.");
            }
            None
        })
    }

    fn within_limit(&self) -> Option<Arc<T>> {
        let published = self.published.load();
        let age = published.unconfirmed_since.map(|since| since.elapsed());
        let is_expired = self.limit.zip(age).is_some_and(|(limit, age)| age > limit);
        (!is_expired).then(|| published.value.clone())
    }

    /// Returns the last good value, without checking the files.
    pub(crate) fn latest(&self) -> Arc<T> {
        self.published.load().value.clone()
    }

    /// Returns the value of the files as they are now, or were at most an interval ago; the last good value if they
    /// cannot be read in time.
    pub(crate) async fn current(self: &Arc<Self>) -> Arc<T> {
        self.check_if_older(self.interval).await;
        self.latest()
    }

    /// Checks the files if the last check is older than `age`.
    pub(crate) async fn check_if_older(self: &Arc<Self>, age: Duration) {
        // Created before the lock is taken, so that a check that ends in between still notifies it.
        let ended = self.ended.notified();
        match FileCheck::begin(self, age) {
            // The blocking task finishes even if this caller is cancelled or times out.
            CheckDue::Now(check) => _ = timeout(CHECK_TIMEOUT, spawn_blocking(move || check.0.check())).await,
            // Waits only for the rest of the same timeout: a file system that does not answer delays no caller twice.
            CheckDue::Begun(since) => _ = timeout(CHECK_TIMEOUT.saturating_sub(since.elapsed()), ended).await,
            CheckDue::Later => {}
        }
    }

    fn check(&self) {
        let (old, contents, failed) = {
            let state = self.lock();
            (state.stamps.clone(), state.contents, state.failure.as_ref().and_then(|failure| failure.contents))
        };
        let stamps = stamps(&self.paths);
        if old.is_some() && old == stamps {
            return;
        }
        let made = match read(&self.paths) {
            Err(why) => Err((why, None)),
            Ok(files) => {
                let hash = self.hasher.hash_one(&files);
                if failed == Some(hash) {
                    return;
                }
                let is_new = hash != contents;
                let value = is_new.then(|| (self.make)(&files)).transpose();
                value.map(|value| (hash, value)).map_err(|why| (why, Some(hash)))
            }
        };
        // The stamps were taken before the read. A change in between gives other stamps at the next check.
        let settled = stamps.filter(|stamps| are_settled(stamps));
        self.store(made, settled);
    }

    fn store(&self, made: Result<(u64, Option<T>), (String, Option<u64>)>, stamps: Option<Vec<Stamp>>) {
        let what = self.what;
        let mut state = self.lock();
        match made {
            Ok((contents, value)) => {
                (state.stamps, state.contents) = (stamps, contents);
                let had_failed = state.failure.take().is_some();
                state.is_expired = false;
                let Some(value) = value else { return };
                let before = self.publish(&state, Some(Arc::new(value)));
                // Drop and log after the lock is released.
                drop(state);
                drop(before);
                tracing::info!(target: "watchcore_http", after_failure = had_failed, "{what}: they have changed, and were read again");
            }
            Err((why, contents)) => {
                state.stamps = None;
                let before = state.failure.take();
                let since = before.as_ref().map_or_else(Instant::now, |failure| failure.since);
                if before.is_none_or(|failure| failure.why != why) {
                    let until = self.limit.map_or(String::new(), |limit| format!(" for {limit:?}"));
                    tracing::warn!(target: "watchcore_http", "{what}: {why}. The version that was read before stays in use{until}.");
                }
                state.failure = Some(Failure { why, since, contents });
            }
        }
    }

    /// Publishes a new value, or the present one with what `state` says of it now, and returns what was published
    /// before. The caller holds the lock of `state`, so that nobody else publishes meanwhile.
    fn publish(&self, state: &ReloadState, value: Option<Arc<T>>) -> Arc<Published<T>> {
        let before = self.published.load_full();
        let checked_at = if state.check_began.is_some() { before.checked_at } else { Instant::now() };
        let unconfirmed_since = state.failure.as_ref().map(|failure| failure.since).or(state.check_began);
        let value = value.unwrap_or_else(|| before.value.clone());
        self.published.swap(Arc::new(Published { value, checked_at, unconfirmed_since }))
    }

    fn lock(&self) -> MutexGuard<'_, ReloadState> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The exclusive right to check the files. Dropping it ends the check: when the check is done, after a panic of `make`,
/// and when the runtime shuts down before the blocking task has started.
struct FileCheck<T: Send + Sync + 'static>(Arc<Reloaded<T>>);

/// Whether a caller has to check the files.
enum CheckDue<T: Send + Sync + 'static> {
    Now(FileCheck<T>),
    /// Another caller's check is running since this moment.
    Begun(Instant),
    Later,
}

impl<T: Send + Sync + 'static> FileCheck<T> {
    /// Starts a check unless one is running or the last one is younger than `age`.
    fn begin(files: &Arc<Reloaded<T>>, age: Duration) -> CheckDue<T> {
        let is_young = || files.published.load().checked_at.elapsed() < age;
        if is_young() {
            return CheckDue::Later;
        }
        let mut state = files.lock();
        // A check may have ended before this caller had the lock.
        if is_young() {
            return CheckDue::Later;
        }
        if let Some(since) = state.check_began {
            return CheckDue::Begun(since);
        }
        state.check_began = Some(Instant::now());
        files.publish(&state, None);
        drop(state);
        CheckDue::Now(FileCheck(files.clone()))
    }
}

impl<T: Send + Sync + 'static> Drop for FileCheck<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.check_began = None;
        self.0.publish(&state, None);
        drop(state);
        self.0.ended.notify_waiters();
    }
}

/// Returns `None` if a file is missing.
fn stamps(paths: &[PathBuf]) -> Option<Vec<Stamp>> {
    paths.iter().map(|path| std::fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))).collect()
}

/// Whether every later change of these files will change their stamps.
fn are_settled(stamps: &[Stamp]) -> bool {
    let now = SystemTime::now();
    stamps.iter().all(|stamp| {
        let age = stamp.modified.and_then(|modified| now.duration_since(modified).ok());
        age.is_some_and(|age| age > TIME_RESOLUTION)
    })
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    paths.iter().map(|path| read_one(path)).collect()
}

/// Reads a regular file, through symbolic links too. Pipes are refused: opening one would block, and a second read
/// would find it empty. Devices are refused because they may never end.
fn read_one(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: Error| format!("cannot read {}: {error}", path.display());
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("{} is no regular file", path.display()));
    }
    let mut contents = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut contents)).map_err(unreadable)?;
    if contents.len() as u64 > MAX_BYTES {
        return Err(format!("{} has more than {MAX_BYTES} bytes", path.display()));
    }
    Ok(contents)
}

impl Stamp {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Stamp {
        use std::os::unix::fs::MetadataExt;
        let inode = (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
        Stamp { modified: metadata.modified().ok(), length: metadata.len(), inode: Some(inode) }
    }

    #[cfg(not(unix))]
    fn of(metadata: &Metadata) -> Stamp {
        Stamp { modified: metadata.modified().ok(), length: metadata.len(), inode: None }
    }
}

#[cfg(test)]
mod tests;
