//! Things made of files, which are made again when the files change: certificates, tokens.
//!
//! A value is made of the bytes of some files. Who needs it asks for it; where the last look at the files is older than
//! an interval, they are looked at first, on a thread that may block; who asks meanwhile waits for the same look, so that
//! of two requests at once none is answered by what a file was long ago. While they cannot be read, or make no value (half
//! of a pair was replaced), the last good value serves, and one warning says why.
//!
//! The server may show its old certificate for ever. Files that say who may ask are different: a value with a limit
//! ([`Reloaded::believed_for`]) is not used for longer than the limit after its files could not be read.

use std::fs::{File, Metadata};
use std::hash::BuildHasher;
use std::io::{Error, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// A file that changed so shortly before it was read may change once more without another time of change.
const CLOCK_OF_FILES: Duration = Duration::from_secs(2);

/// How long a caller waits for the files to be looked at.
const PATIENCE: Duration = Duration::from_secs(2);

/// More than any certificate or list of tokens has. What is larger was named by mistake.
const MOST_BYTES: u64 = 16 << 20;

/// What makes a value of the contents of the files, in their order; or a sentence that names the file and what is wrong.
type Make<T> = dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync;

/// A value made of files.
pub(crate) struct Reloaded<T> {
    /// For the log: what the value is.
    what: &'static str,
    paths: Vec<PathBuf>,
    make: Box<Make<T>>,
    /// The files are looked at again after so long, when somebody asks.
    interval: Duration,
    /// How long the last good value is believed while the files make none; `None`: for ever.
    limit: Option<Duration>,
    held: Mutex<Held<T>>,
    /// Notified at the end of each look.
    ended: Notify,
    hasher: std::collections::hash_map::RandomState,
}

struct Held<T> {
    value: Arc<T>,
    looked: Instant,
    /// When the look began that runs at this moment, if one does.
    looking: Option<Instant>,
    /// What the files were when they were read; `None`: they are read at the next look in any case.
    stamps: Option<Vec<Stamp>>,
    contents: u64,
    /// The newest files make no value.
    failure: Option<Failure>,
    /// The warning that the value is not used any more has been logged.
    is_expired: bool,
}

/// Why files make no value, and since when that is so.
struct Failure {
    why: String,
    since: Instant,
    /// The hash of the bytes that made no value, if the files could be read. The same bytes are not tried again.
    contents: Option<u64>,
}

/// By what a change of a file is seen without reading it.
#[derive(PartialEq, Eq, Clone)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    /// Where the system has them: device, inode, seconds and nanoseconds of the last change of the inode.
    inode: Option<(u64, u64, i64, i64)>,
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// The sentence of `make`, or which file cannot be read.
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
        let held = Held {
            value,
            looked: Instant::now(),
            looking: None,
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
            held: Mutex::new(held),
            ended: Notify::new(),
            hasher,
        })
    }

    /// Sets the limit: while the files make no value, the last good one is used for this long.
    pub(crate) fn believed_for(self, limit: Duration) -> Reloaded<T> {
        Reloaded { limit: Some(limit), ..self }
    }

    /// Returns the last good value without a look at the files, or `None` if the files have made no value for longer than the
    /// limit. A look that does not end, because the file system does not answer, counts as a failed one.
    pub(crate) fn believed(&self) -> Option<Arc<T>> {
        let mut held = self.lock();
        let since = held.failure.as_ref().map(|failure| failure.since).or(held.looking);
        let Some(limit) = self.limit.filter(|limit| since.is_some_and(|since| since.elapsed() > *limit)) else {
            return Some(held.value.clone());
        };
        let is_said = std::mem::replace(&mut held.is_expired, true);
        drop(held);
        if !is_said {
            let what = self.what;
            tracing::warn!(target: "watchcore_http", "{what}: they could not be read for {limit:?}. What was read before is taken no more.");
        }
        None
    }

    /// The value as it was made last, without a look at the files.
    pub(crate) fn latest(&self) -> Arc<T> {
        self.lock().value.clone()
    }

    /// The value of the files as they are, or as they were at most an interval ago. Where they cannot be read in time it is
    /// the value before.
    pub(crate) async fn current(self: &Arc<Self>) -> Arc<T> {
        self.look_after(self.interval).await;
        self.latest()
    }

    /// Looks at the files where the last look is older than `age`.
    pub(crate) async fn look_after(self: &Arc<Self>, age: Duration) {
        // Made before the lock is taken: it hears of a look that ends between the two.
        let ended = self.ended.notified();
        match Look::begin(self, age) {
            // It goes on where the caller is cancelled, or takes what there is because a file system does not answer.
            LookDue::Now(look) => _ = timeout(PATIENCE, spawn_blocking(move || look.0.look())).await,
            // Where the file system does not answer, those who come later do not wait for it again.
            LookDue::Begun(since) => _ = timeout(PATIENCE.saturating_sub(since.elapsed()), ended).await,
            LookDue::Later => {}
        }
    }

    fn look(&self) {
        let (old, contents, failed) = {
            let held = self.lock();
            (held.stamps.clone(), held.contents, held.failure.as_ref().and_then(|failure| failure.contents))
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
        // A change between the two is seen by its stamps at the next look.
        let settled = stamps.filter(|stamps| are_settled(stamps));
        self.take(made, settled);
    }

    fn take(&self, made: Result<(u64, Option<T>), (String, Option<u64>)>, stamps: Option<Vec<Stamp>>) {
        let what = self.what;
        let mut held = self.lock();
        match made {
            Ok((contents, value)) => {
                (held.stamps, held.contents) = (stamps, contents);
                let had_failed = held.failure.take().is_some();
                held.is_expired = false;
                let Some(value) = value else { return };
                let before = std::mem::replace(&mut held.value, Arc::new(value));
                // Freed, and told, behind the lock.
                drop(held);
                drop(before);
                tracing::info!(target: "watchcore_http", after_failure = had_failed, "{what}: read again, it has changed");
            }
            Err((why, contents)) => {
                held.stamps = None;
                let before = held.failure.take();
                let since = before.as_ref().map_or_else(Instant::now, |failure| failure.since);
                if before.is_none_or(|failure| failure.why != why) {
                    let until = self.limit.map_or(String::new(), |limit| format!(" for {limit:?}"));
                    tracing::warn!(target: "watchcore_http", "{what}: {why}. What was read before stays in use{until}.");
                }
                held.failure = Some(Failure { why, since, contents });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held<T>> {
        // Nothing in here panics between two changes that belong together.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to look at the files, which one caller has at a time. It goes back when this is dropped: at the end of the
/// look, behind a panic of `make`, and where the runtime ends before the look has begun.
struct Look<T: Send + Sync + 'static>(Arc<Reloaded<T>>);

/// When the files are to be looked at.
enum LookDue<T: Send + Sync + 'static> {
    Now(Look<T>),
    /// Somebody does so, since this moment.
    Begun(Instant),
    Later,
}

impl<T: Send + Sync + 'static> Look<T> {
    /// Takes the right where nobody has it, and the last look was `age` ago or longer.
    fn begin(files: &Arc<Reloaded<T>>, age: Duration) -> LookDue<T> {
        let mut held = files.lock();
        if held.looked.elapsed() < age {
            return LookDue::Later;
        }
        if let Some(since) = held.looking {
            return LookDue::Begun(since);
        }
        held.looking = Some(Instant::now());
        LookDue::Now(Look(files.clone()))
    }
}

impl<T: Send + Sync + 'static> Drop for Look<T> {
    fn drop(&mut self) {
        let mut held = self.0.lock();
        held.looking = None;
        held.looked = Instant::now();
        drop(held);
        self.0.ended.notify_waiters();
    }
}

/// `None` where one of them is not there.
fn stamps(paths: &[PathBuf]) -> Option<Vec<Stamp>> {
    paths.iter().map(|path| std::fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))).collect()
}

/// Whether each change behind these has another stamp.
fn are_settled(stamps: &[Stamp]) -> bool {
    let now = SystemTime::now();
    stamps.iter().all(|stamp| {
        let age = stamp.modified.and_then(|modified| now.duration_since(modified).ok());
        age.is_some_and(|age| age > CLOCK_OF_FILES)
    })
}

fn read(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    paths.iter().map(|path| read_one(path)).collect()
}

/// Reads a regular file, also through symbolic links. A pipe is none: it would block the reader, and be empty the next
/// time. A device may never end.
fn read_one(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: Error| format!("cannot read {}: {error}", path.display());
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(format!("{} is no regular file", path.display()));
    }
    let mut contents = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut contents)).map_err(unreadable)?;
    if contents.len() as u64 > MOST_BYTES {
        return Err(format!("{} has more than {MOST_BYTES} bytes", path.display()));
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
