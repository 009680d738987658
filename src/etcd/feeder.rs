//! The handle of a feeder, and its thread.

use super::config::{Config, FeederBuilder};
use super::counters::Counters;
use super::feed::Feed;
use super::shared::Shared;
use super::tickets;
use crate::cache::SourceState;
use crate::error::{Code, Error, Result};
use crate::writer::Writer;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// How long a stop may take.
const STOP: Duration = Duration::from_secs(2);

/// A thread that lists and watches etcd and writes what it sees into a cache.
///
/// It owns the cache's writer. Whatever happens to etcd, it goes on trying: the state shows in
/// `Cache::status`. Dropping it stops it.
pub struct Feeder {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

impl fmt::Debug for Feeder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feeder").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Feeder {
    /// A feeder from these endpoints, such as `http://127.0.0.1:2379`. They are used one at a time,
    /// in this order.
    #[allow(clippy::new_ret_no_self)]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> FeederBuilder {
        FeederBuilder::new(endpoints.into_iter().map(Into::into).collect())
    }

    pub(super) fn start(config: Config, mut writer: Writer) -> Result<Feeder> {
        let shared = Arc::new(Shared::default());
        writer.attach(shared.clone())?;
        let of_thread = shared.clone();
        let thread = crate::sys::spawn("watchcore-etcd", move || {
            // Whatever happens inside: who waits for the end must learn of it.
            struct End(Arc<Shared>);
            impl Drop for End {
                fn drop(&mut self) {
                    self.0.end();
                }
            }
            let end = End(of_thread);
            body(&config, writer, &end.0);
        });
        let thread = thread.map_err(|error| {
            let text = format!("the feeder's thread did not start: {error}. The process may have too many threads");
            Error::new(Code::ResourceExhausted, text)
        })?;
        Ok(Feeder { shared, thread: Mutex::new(Some(thread)), process: std::process::id() })
    }

    /// Stops the feeder: no call to etcd is made after it returns, and whoever waits on the cache is
    /// told that it is closed. It takes at most 2 seconds; stopping twice does nothing.
    pub fn stop(&self) {
        if self.is_forked() {
            return;
        }
        self.shared.stop.notify_one();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(|thread| thread.thread().id() == std::thread::current().id()) {
            return;
        }
        if !self.shared.wait_end(STOP) {
            tracing::warn!("the feeder did not end within 2 s; it ends when the cache lets it go on");
            return;
        }
        if let Some(thread) = thread.take() {
            // A panic of the thread was caught and told inside.
            let _ = thread.join();
        }
    }

    /// Lists everything again and publishes the difference, as soon as there is a connection.
    pub fn request_resync(&self) {
        if !self.is_forked() {
            self.shared.request_resync();
        }
    }

    /// In a forked child the thread does not exist, and a lock may be held by nobody for ever.
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        self.shared.counts.read()
    }

    /// Why it is not following etcd now, if it is not: the code, and the text that
    /// `Cache::status` shows.
    pub fn last_error(&self) -> Option<Error> {
        if self.is_forked() {
            let text = "the feeder belongs to the parent process; start one in the child";
            return Some(Error::new(Code::Closed, text));
        }
        self.shared.last_error()
    }

    /// Whether its thread has ended: by stop, or because the cache was closed.
    pub fn is_stopped(&self) -> bool {
        self.is_forked() || self.shared.has_ended()
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread.
fn body(config: &Config, writer: Writer, shared: &Shared) {
    let writer = RefCell::new(writer);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("watchcore-dns")
            .max_blocking_threads(2)
            .build();
        match runtime {
            Ok(runtime) => {
                runtime.block_on(feed(config, &writer, shared));
                // Looking up a name may hang; nobody waits for that.
                runtime.shutdown_background();
                None
            }
            Err(error) => Some(format!("the feeder has no event loop: {error}. Check the limit of open files")),
        }
    }));
    let text = match outcome {
        Ok(None) => return,
        Ok(Some(text)) => text,
        Err(_) => "the feeder panicked, which is a bug: start the program again, and report it".to_owned(),
    };
    tracing::error!("{text}");
    let error = Error::new(Code::Panic, text);
    shared.set_error(Some(error.clone()));
    if let Ok(mut writer) = writer.try_borrow_mut() {
        writer.set_state(SourceState::Failed(error));
    }
}

async fn feed(config: &Config, writer: &RefCell<Writer>, shared: &Shared) {
    let (readers, of_tickets) = watch::channel(None);
    let mut feed = Feed::new(config, writer, shared, &readers);
    let work = async {
        feed.run().await;
        // The listing is all that was wanted: the cache stays as it is until the stop.
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
    }
}
