//! The end of what a process has once: its workers, and the memory that only they hold.
//!
//! `docs/internals/shutdown.md` says how the threads end, and why none is left and no work is lost.

#![forbid(unsafe_code)]

use crate::error::{Code, Error, Result};
use crate::sys;
use crate::worker::{self, Worker};
use crate::{reclaim, wake};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Between two looks at threads that were asked to end.
const STEP: Duration = Duration::from_millis(1);

/// Ends the threads of this library, and frees what it holds.
///
/// A process that ends needs no shutdown. The call is for programs that look what is left: a leak checker, a test that
/// counts threads, a host that unloads a plug-in.
///
/// All caches are to be dropped before, with everything that keeps one: writers, loadings, feeders, subscriptions,
/// waiters, snapshots, pages. Batches and key-values may stay. A cache that is built afterwards starts the threads again;
/// without threads, this does nothing. When it returns `Ok`, the threads have been joined. On an error
/// everything is as it was.
///
/// Blocks until what was dropped is freed and the threads have ended, at most about `timeout`. Any thread but the library's
/// own, which run wakers, predicates and destructors of the program.
///
/// # Errors
///
/// - [`Code::Busy`]: this is a thread of the library, or another thread is inside this function.
/// - [`Code::Timeout`]: a cache is there still, or a waker, a predicate, a destructor or a log function has not returned.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// let cache = watchcore::Cache::builder("/registry/pods/").build()?;
/// drop(cache);
/// watchcore::shutdown(Duration::from_secs(5))?;
/// # Ok::<(), watchcore::Error>(())
/// ```
pub fn shutdown(timeout: Duration) -> Result<()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = match ALONE.try_lock() {
        Ok(alone) => alone,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(busy("another thread is inside shutdown. One call is enough".into()));
        }
    };
    if sys::is_own_thread() {
        let text = "shutdown was called on a thread of the library: in a waker, a predicate, a destructor or a log function. Call it on a thread of the program";
        return Err(busy(text.into()));
    }
    let until = Instant::now().checked_add(timeout);
    let [wake, eval] = wake::workers();
    let workers = [wake, eval, reclaim::worker()];
    loop {
        // Each is asked at every look.
        let running: Vec<&Worker> = workers.into_iter().filter(|worker| !worker.ask_to_end()).collect();
        let others = sys::other_threads();
        if running.is_empty() && others == 0 {
            return Ok(());
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            running.iter().for_each(|worker| worker.stay());
            return Err(left(&running, others));
        }
        std::thread::sleep(STEP);
    }
}

fn busy(text: String) -> Error {
    Error::new(Code::Busy, text)
}

/// Why it did not come to an end.
fn left(running: &[&Worker], others: usize) -> Error {
    match worker::needs() {
        0 if running.is_empty() => Error::new(
            Code::Timeout,
            format!(
                "shutdown: threads of feeders that have not ended: {others}. A name is being looked up. Call it again"
            ),
        ),
        0 => {
            let names: Vec<&str> = running.iter().map(|worker| worker.name()).collect();
            let text =
                "A waker, a predicate, a destructor or a log function has not returned. Call it again when it has";
            Error::new(Code::Timeout, format!("shutdown: {} did not end in time. {text}", names.join(" and ")))
        }
        caches => {
            let kept = "Drop what keeps them first: writers, feeders, subscriptions, waiters, snapshots, pages";
            let text = "Or a waker, a predicate, a destructor or a log function has not returned";
            Error::new(Code::Timeout, format!("shutdown: caches in use: {caches}. {kept}. {text}"))
        }
    }
}
