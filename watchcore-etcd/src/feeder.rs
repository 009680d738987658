//! The handle of a feeder, and the feeder's thread.

use super::audit;
use super::compaction;
use super::config::{Config, FeederBuilder};
use super::counters::Counters;
use super::session::Session;
use super::shared::Shared;
use super::tickets;
use crate::log::log;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use watchcore::{Code, Error, MAX_REVISION, Result, SourceState, Writer};

/// How long a stop may take.
const STOP: Duration = Duration::from_secs(2);

/// A thread that lists and watches etcd and writes what it sees into a cache.
///
/// The feeder owns the cache's writer. It keeps trying whatever happens to etcd; `Cache::status` shows its state.
/// Dropping the handle stops the feeder.
///
/// ```no_run
/// use std::time::Duration;
/// use watchcore::{Cache, Read};
/// use watchcore_etcd::Feeder;
///
/// let cache = Cache::builder("/registry/").expect_load(true).build()?;
/// let feeder = Feeder::new(["http://10.0.0.1:2379", "http://10.0.0.2:2379"]).start(cache.writer()?)?;
/// cache.wait_ready(Duration::from_secs(10))?;
/// // Read your own write: at least what etcd has committed now.
/// let revision = cache.consistent_revision(Duration::from_secs(3))?;
/// println!("{:?}", cache.get("/registry/a", Read::AtLeast(revision))?.kv);
/// println!("{} reconnects", cache.status().source.reconnects);
/// feeder.stop();
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Feeder {
    shared: Arc<Shared>,
    /// The join handle, taken by the caller that joins the thread.
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
    process: u32,
}

/// The event loop and the writer, sent to the thread once the start can no longer fail.
type Work = (Runtime, Writer);
/// The closure that a new thread runs.
type Body = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Feeder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feeder").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl FeederBuilder {
    /// Starts the feeder: it fills the cache of `writer` and keeps it up to date until it is
    /// stopped or dropped.
    ///
    /// Does not wait for etcd; `Cache::wait_ready` does. Options that cannot work are refused here; every other
    /// problem shows in `Cache::status`.
    pub fn start(self, writer: Writer) -> Result<Feeder> {
        let config = self.config(&writer)?;
        Feeder::start_on(config, writer, |body| watchcore::spawn_feeder("watchcore-etcd", body))
    }
}

impl Feeder {
    /// Configures a feeder for these endpoints, such as `http://127.0.0.1:2379` or `unix:///run/etcd.sock`. They are used
    /// one at a time, in this order.
    #[allow(clippy::new_ret_no_self)]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> FeederBuilder {
        FeederBuilder::new(endpoints.into_iter().map(Into::into).collect())
    }

    /// Starts the event loop and the thread before it hands over the writer: if one of them cannot be created, the
    /// cache is unchanged, and its writer can be taken again.
    fn start_on(
        config: Config,
        mut writer: Writer,
        spawn: impl FnOnce(Body) -> io::Result<JoinHandle<()>>,
    ) -> Result<Feeder> {
        let exhausted = |what, error| {
            let text =
                format!("the feeder {what}: {error}. Check the limits of threads and open files, and start it again");
            Error::new(Code::ResourceExhausted, text)
        };
        let runtime = event_loop().map_err(|error| exhausted("has no event loop", error))?;
        let shared = Arc::new(Shared::default());
        shared.set_epoch(writer.position().epoch);
        let (hand_over, work) = mpsc::channel::<Work>();
        let of_thread = shared.clone();
        let thread = spawn(Box::new(move || {
            // Wakes the callers that wait for the thread's end, even if the body panics.
            struct End(Arc<Shared>);
            impl Drop for End {
                fn drop(&mut self) {
                    self.0.end();
                }
            }
            let end = End(of_thread);
            // If the start failed after all, the sender is dropped and nothing is received.
            if let Ok((runtime, writer)) = work.recv() {
                body(&config, runtime, writer, &end.0);
            }
        }));
        let attached = thread.map_err(|error| exhausted("has no thread", error)).and_then(|thread| {
            writer.attach(shared.clone())?;
            Ok(thread)
        });
        let thread = match attached {
            Ok(thread) => thread,
            Err(error) => {
                // The caller may be inside an event loop of its own; dropping a runtime there would panic.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let thread_id = thread.thread().id();
        if let Err(mpsc::SendError((runtime, _writer))) = hand_over.send((runtime, writer)) {
            runtime.shutdown_background();
            return Err(Error::new(Code::Internal, "the feeder's thread ended before it began"));
        }
        Ok(Feeder { shared, thread: Mutex::new(Some(thread)), thread_id, process: std::process::id() })
    }

    /// Stops the feeder: no call to etcd is made after it returns, and every wait on the cache ends with CLOSED.
    ///
    /// Blocks until the thread has ended, but at most until 2 seconds after the first stop, however many callers
    /// there are; stopping again does nothing more. Only the cache itself can delay the thread for so long, for
    /// example an extractor that blocks.
    pub fn stop(&self) {
        if self.is_forked() {
            return;
        }
        self.shared.stop.notify_one();
        if self.thread_id == std::thread::current().id() {
            return;
        }
        if !self.shared.wait_end(self.shared.stop_deadline(STOP)) {
            if !self.shared.overdue.swap(true, Relaxed) {
                log!(warn, "the feeder did not end within 2 s; it ends when its thread returns from the cache");
            }
            return;
        }
        // The thread has nothing left to do but return. The body has already caught and reported a panic.
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// Lists everything again and publishes the difference, as soon as there is a connection.
    pub fn request_resync(&self) {
        if !self.is_forked() {
            self.shared.request_resync();
        }
    }

    /// Compacts the cache up to and including `revision`, as [`Writer::compact`] does. For a program that makes
    /// etcd's compactions, or learns of them first: it need not wait for `follow_compaction`.
    ///
    /// Returns at once: the feeder's thread, which owns the writer, compacts. Events that the cache already holds are
    /// dropped as soon as that thread runs; a revision above the cache's position is compacted when the cache reaches
    /// it. A request is dropped if the history it was made for is replaced meanwhile, and a revision below the window
    /// has no effect. Any thread, at any time; O(1).
    ///
    /// INVALID_ARGUMENT above [`MAX_REVISION`](watchcore::MAX_REVISION), CLOSED once the feeder has stopped.
    pub fn compact(&self, revision: u64) -> Result<()> {
        if revision > MAX_REVISION {
            let text = format!("compact at revision {revision}: the largest revision is {MAX_REVISION}");
            return Err(Error::new(Code::InvalidArgument, text).with_asked(revision));
        }
        if self.is_stopped() {
            let text = "compact: the feeder has stopped, and the cache with it. Open another cache";
            return Err(Error::new(Code::Closed, text));
        }
        self.shared.request_compaction(revision);
        Ok(())
    }

    /// A forked child has no feeder thread, and a lock that was held at the fork stays locked.
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// The feeder's counters so far.
    pub fn counters(&self) -> Counters {
        self.shared.counts.read()
    }

    /// Why the feeder is not following etcd now, or `None` if it is: the code, and the text that `Cache::status`
    /// shows.
    pub fn last_error(&self) -> Option<Error> {
        if self.is_forked() {
            let text = "the feeder belongs to the parent process; start one in the child";
            return Some(Error::new(Code::Closed, text));
        }
        self.shared.last_error()
    }

    /// Whether the feeder's thread has ended, because of [`stop`](Feeder::stop) or because the cache was closed.
    pub fn is_stopped(&self) -> bool {
        self.is_forked() || self.shared.has_ended()
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.stop();
    }
}

fn event_loop() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name("watchcore-dns")
        .on_thread_start(watchcore::raw::feeder_thread_began)
        .on_thread_stop(watchcore::raw::feeder_thread_ended)
        .max_blocking_threads(2)
        .build()
}

/// The body of the feeder's thread.
fn body(config: &Config, runtime: Runtime, writer: Writer, shared: &Shared) {
    crate::log::name_thread(writer.cache_name());
    let writer = RefCell::new(writer);
    let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(config, &writer, shared))));
    // A name lookup may hang, so the thread does not wait for the runtime's blocking threads, even after a panic.
    runtime.shutdown_background();
    if outcome.is_ok() {
        return;
    }
    let text = "the feeder panicked, which is a bug: start the program again, and report it";
    log!(error, "{text}");
    let error = Error::new(Code::Panic, text);
    shared.set_error(Some(error.clone()));
    if let Ok(mut writer) = writer.try_borrow_mut() {
        writer.set_state(SourceState::Failed(error));
    }
}

/// Runs the feeder's futures concurrently until the feeder is stopped or the cache is closed. See
/// docs/internals/feeder.md.
async fn run(config: &Config, writer: &RefCell<Writer>, shared: &Shared) {
    let (readers, of_tickets) = watch::channel(None);
    let (of_compaction, of_audit) = (readers.subscribe(), readers.subscribe());
    let mut session = Session::new(config, writer, shared, &readers);
    let work = async {
        session.run().await;
        // Only the listing was asked for (`stop_after_listing`): the cache stays as it is until the stop.
        std::future::pending::<()>().await
    };
    let closed = async {
        while !writer.borrow().is_closed() {
            shared.life.notified().await;
        }
    };
    tokio::select! {
        biased;
        () = shared.stop.notified() => {}
        () = closed => {}
        () = work => {}
        () = tickets::serve(writer, of_tickets, config, shared) => {}
        () = compaction::follow(writer, of_compaction, config) => {}
        () = compaction::serve(writer, shared) => {}
        () = audit::serve(writer, of_audit, config, shared) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::KeyRange;
    use watchcore::Cache;
    use watchcore::State;

    fn config() -> Config {
        let options = super::super::config::Options::for_tests(Feeder::new(["http://127.0.0.1:1"]));
        Config { options, range: KeyRange::of_prefix(b"/"), pace: None }
    }

    /// The writer can be taken again after the failed start, and the next start works.
    #[test]
    fn failed_thread_leaves_cache_open() {
        let cache = Cache::builder("/").build().unwrap();
        let none = |_: Body| Err(io::Error::from(io::ErrorKind::WouldBlock));
        let error = Feeder::start_on(config(), cache.writer().unwrap(), none).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        assert_eq!(cache.status().state, State::Ready, "the cache is the embedding program's still");
        let writer = cache.writer().expect("the writer came back");
        let feeder = Feeder::new(["http://127.0.0.1:1"]).start(writer).expect("a feeder");
        feeder.stop();
        assert_eq!(cache.status().state, State::Closed);
    }

    #[test]
    fn refused_start_leaves_no_thread() {
        let cache = Cache::builder("/").build().unwrap();
        let _open = cache.subscribe(watchcore::Start::Now).open().unwrap();
        let mut ended = None;
        let spawn = |body: Body| {
            let (ending, end) = mpsc::channel::<()>();
            ended = Some(end);
            std::thread::Builder::new().spawn(move || {
                body();
                drop(ending);
            })
        };
        let error = Feeder::start_on(config(), cache.writer().unwrap(), spawn).unwrap_err();
        assert_eq!(error.code(), Code::Busy, "{error}");
        assert_eq!(ended.unwrap().recv(), Err(mpsc::RecvError), "the thread ended");
        assert_eq!(cache.status().state, State::Ready);
    }
}
