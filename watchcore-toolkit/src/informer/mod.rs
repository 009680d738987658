//! Informers: handlers, listers and indexes over a cache.
//!
//! | file | what |
//! | --- | --- |
//! | `handler` | the trait with the callbacks |
//! | `run` | runs one handler |
//! | `calls` | whether a call may start, and waits for its end |
//! | `shared`, `poll` | the state of all parts, and their polls |
//! | `registration` | the program's handle on a handler |
//! | `index` | indexes by function |
//! | `lister` | reads |

#![forbid(unsafe_code)]

mod calls;
mod handler;
mod index;
mod lister;
mod poll;
mod registration;
mod run;
mod shared;

pub use handler::{Handler, HandlerFns, HandlerOptions};
pub use index::IndexStatus;
pub use lister::{Listed, Lister, SnapshotLister};
pub use registration::{HandlerState, HandlerStatus, Registration};
pub use run::HandlerRun;

use crate::clock::{Clock, SystemClock};
use crate::object::FromKeyValue;
use crate::objects::{ObjectWatch, ObjectWatchBuilder};
use crate::park;
use crate::sync::Lock;
use crate::watch::Watch;
use calls::Calls;
use index::{IndexFn, Indexes, Keeper, left};
use registration::{Owners, RegistrationShared};
use shared::InformerShared;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};
use watchcore::{Cache, Code, Error, Filter, Result};

/// Handlers, listers and indexes over a cache, or over the part of it that a filter selects.
///
/// An informer by itself has no thread, no copy and no queue. Each handler is a cursor over the cache's log, so a slow
/// handler lags alone, and costs the same however long it stalls. A handler keeps a count of each object that it
/// received: 10 to 21 bytes per object ([`ObjectWatch::known_bytes`]; 2.4 MB at 150,000 objects). A handler with `Stop`
/// or `SkipToOldest` keeps none. Clones are the same informer; when the last of them and the last lister are dropped,
/// its detached handlers end.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change};
/// use watchcore_toolkit::{HandlerFns, Informer, Object};
///
/// struct Pod { node: String }
///
/// let decode = |_: &[u8], value: &[u8]| String::from_utf8(value.to_vec()).map(|node| Pod { node });
/// let cache = Cache::builder("/pods/").decoder(decode).build()?;
/// cache.writer()?.apply(1, [Change::put("/pods/a", "node-1")])?;
///
/// let informer = Informer::<Object<Pod>>::new(&cache)?;
/// let registration = informer.add_handler(
///     HandlerFns::new().on_added(|pod: &Object<Pod>, _| println!("{} on {}", pod.key_str().unwrap(), pod.node)),
/// )?;
/// registration.wait_synced(Duration::from_secs(10))?;
/// assert_eq!(informer.lister().get("/pods/a")?.unwrap().node, "node-1");
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Informer<O> {
    shared: Arc<InformerShared<O>>,
}

impl<O> Clone for Informer<O> {
    fn clone(&self) -> Informer<O> {
        Informer { shared: Arc::clone(&self.shared) }
    }
}

/// Options of a new informer, made by [`Informer::builder`].
///
/// ```
/// use watchcore::{Cache, Filter, KeyValue};
/// use watchcore_toolkit::Informer;
///
/// let cache = Cache::builder("/registry/").build()?;
/// let pods = Informer::<KeyValue>::builder(&cache)
///     .filter(Filter::any().path("/registry/pods"))
///     .index("first", |pod| pod.value_str().and_then(|value| value.get(..1)).map(str::to_owned).into_iter().collect())
///     .build()?;
/// # drop(pods);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "an informer is made by `build`"]
pub struct InformerBuilder<O> {
    cache: Cache,
    filter: Option<Filter>,
    clock: Arc<dyn Clock>,
    functions: Vec<(String, IndexFn<O>)>,
}

impl<O: FromKeyValue> InformerBuilder<O> {
    /// Restricts the informer to objects that this filter and earlier ones select.
    pub fn filter(self, filter: Filter) -> InformerBuilder<O> {
        let filter = match self.filter {
            Some(before) => before.and(filter),
            None => filter,
        };
        InformerBuilder { filter: Some(filter), ..self }
    }

    /// Adds an index by function: [`Lister::by_index`] finds an object under each value that `values` returns for it.
    /// The function is called once for each version of an object, when the version arrives; its values are kept until
    /// the next version or the deletion. If it panics, the version has no values. One thread maintains all indexes of
    /// the informer; they take about 200 bytes per object, and 50 for each value after the first.
    pub fn index<F>(mut self, name: impl Into<String>, values: F) -> InformerBuilder<O>
    where
        F: Fn(&O) -> Vec<String> + Send + Sync + 'static,
    {
        self.functions.push((name.into(), Arc::new(values)));
        self
    }

    /// Sets the clock for resync periods.
    pub fn clock(self, clock: Arc<dyn Clock>) -> InformerBuilder<O> {
        InformerBuilder { clock, ..self }
    }

    /// Makes the informer, and starts the thread that maintains the indexes, if there are any.
    /// INVALID_ARGUMENT for a filter with labels or fields that the cache does not declare, and for
    /// two indexes of one name; RESOURCE_EXHAUSTED without a thread; CLOSED.
    pub fn build(self) -> Result<Informer<O>> {
        let InformerBuilder { cache, filter, clock, functions } = self;
        for (number, (name, _)) in functions.iter().enumerate() {
            if functions[..number].iter().any(|(other, _)| other == name) {
                let message =
                    format!("build an informer with two indexes of the name {name}: give them different ones.");
                return Err(Error::new(Code::InvalidArgument, message));
            }
        }
        // The watch is opened even without indexes, because opening it checks the filter.
        let watch = typed(&cache, filter.as_ref()).name("informer indexes").marks().open()?;
        let (mut indexes, mut index_stopper) = (None, None);
        if !functions.is_empty() {
            let kept = Arc::new(Indexes::new(functions));
            index_stopper = Some(watch.stopper());
            spawn("watchcore-index", Keeper::new(Arc::clone(&kept), watch).run())?;
            indexes = Some(kept);
        }
        let shared = InformerShared {
            cache,
            filter,
            clock,
            indexes,
            index_stopper,
            handlers: Lock::default(),
            next_id: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            expected: OnceLock::new(),
        };
        Ok(Informer { shared: Arc::new(shared) })
    }
}

/// A watch of the informer's objects.
fn typed<O: FromKeyValue>(cache: &Cache, filter: Option<&Filter>) -> ObjectWatchBuilder<O> {
    let wanted = ObjectWatch::builder(cache);
    match filter {
        Some(filter) => wanted.filter(filter.clone()),
        None => wanted,
    }
}

/// Runs a future on its own thread.
fn spawn(name: &str, work: impl Future<Output = ()> + Send + 'static) -> Result<()> {
    let run = move || {
        park::block_on_future(Duration::MAX, work);
    };
    thread::Builder::new().name(name.into()).spawn(run).map(drop).map_err(|error| {
        let message = format!("start the thread {name}: {error}. End other threads, or run handlers as futures.");
        Error::new(Code::ResourceExhausted, message)
    })
}

impl<O: FromKeyValue> Informer<O> {
    /// Makes an informer of all objects of a cache.
    pub fn new(cache: &Cache) -> Result<Informer<O>> {
        Informer::builder(cache).build()
    }

    /// Returns the options of an informer.
    pub fn builder(cache: &Cache) -> InformerBuilder<O> {
        InformerBuilder { cache: cache.clone(), filter: None, clock: Arc::new(SystemClock), functions: Vec::new() }
    }

    /// Adds a handler, which receives the state and then every change, on its own thread. At any time, from any thread,
    /// also from inside a callback. CLOSED after `stop`; RESOURCE_EXHAUSTED without a thread.
    pub fn add_handler(&self, handler: impl Handler<O>) -> Result<Registration> {
        self.add_handler_with(handler, HandlerOptions::new())
    }

    /// [`Informer::add_handler`] with options.
    pub fn add_handler_with(&self, handler: impl Handler<O>, options: HandlerOptions) -> Result<Registration> {
        // A resync period needs a waker.
        let blocks = options.resync.is_none();
        let (registration, run) = self.new_handler(handler, options, blocks)?;
        spawn("watchcore-handler", run)?;
        Ok(registration)
    }

    /// Adds a handler whose calls run inside the returned future, so that ten thousand handlers need no thread each.
    pub fn handler(&self, handler: impl Handler<O>, options: HandlerOptions) -> Result<(Registration, HandlerRun)> {
        self.new_handler(handler, options, false)
    }

    /// `blocks`: the future has a thread of its own, which may block in it.
    fn new_handler(
        &self,
        handler: impl Handler<O>,
        options: HandlerOptions,
        blocks: bool,
    ) -> Result<(Registration, HandlerRun)> {
        let wanted = typed(&self.shared.cache, self.shared.filter.as_ref());
        let mut wanted = wanted.on_lag(options.on_lag).name(&options.name).clock(Arc::clone(&self.shared.clock));
        if let Some(objects) = self.expected() {
            wanted = wanted.expect_objects(objects);
        }
        if let Some(period) = options.resync {
            wanted = wanted.resync_period(period);
        }
        if blocks {
            wanted = wanted.blocks();
        }
        let watch = wanted.open()?;
        let shared = Arc::new(RegistrationShared {
            id: self.shared.next_id.fetch_add(1, Ordering::Relaxed),
            name: options.name,
            calls: Calls::new(),
            stopper: watch.stopper(),
            watch: watch.handle(),
            cache: self.shared.cache.clone(),
            handled: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            owners: Lock::new(Owners { registration: true, informer: true }),
        });
        let mut handlers = self.shared.handlers.lock();
        if self.shared.stopped.load(Ordering::Acquire) {
            return Err(Error::new(
                Code::Closed,
                "add a handler to an informer that was stopped: make another informer.",
            ));
        }
        handlers.retain(|handler| handler.strong_count() > 0);
        handlers.push(Arc::downgrade(&shared));
        drop(handlers);
        Ok((Registration::new(Arc::clone(&shared)), HandlerRun::new(watch, handler, shared)))
    }

    /// The informer's objects as a watch, for programs that pull events instead of registering callbacks.
    pub fn watch(&self) -> ObjectWatchBuilder<O> {
        typed(&self.shared.cache, self.shared.filter.as_ref()).clock(Arc::clone(&self.shared.clock))
    }

    /// Returns a lister of its objects.
    pub fn lister(&self) -> Lister<O> {
        Lister::new(Arc::clone(&self.shared))
    }

    /// The informer's cache.
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// The status of its handlers, in the order in which they were added.
    pub fn handlers(&self) -> Vec<HandlerStatus> {
        self.standing().iter().map(|handler| handler.status()).collect()
    }

    /// About how many objects a handler will know.
    fn expected(&self) -> Option<usize> {
        // With a filter the number is unknown.
        if self.shared.filter.is_some() || !self.shared.cache.is_ready() {
            return None;
        }
        Some(*self.shared.expected.get_or_init(|| self.shared.cache.status().objects as usize))
    }

    fn standing(&self) -> Vec<Arc<RegistrationShared>> {
        self.shared.handlers.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Removes the handler with this number, like [`Registration::remove`], even if it was
    /// detached. Returns false if there is none.
    pub fn remove_handler(&self, id: u64) -> bool {
        let handler = self.standing().into_iter().find(|handler| handler.id == id);
        handler.inspect(|handler| handler.remove()).is_some()
    }

    /// The status of the function indexes; `None` for an informer without any.
    pub fn index_status(&self) -> Option<IndexStatus> {
        self.shared.indexes.as_ref().map(|indexes| indexes.status())
    }

    /// The number of calls of index functions that panicked; their objects have no values.
    pub fn index_panics(&self) -> u64 {
        self.shared.indexes.as_ref().map_or(0, |indexes| indexes.panics())
    }

    /// Waits until the cache is ready, the indexes are complete, and every present handler is synced or removed. The
    /// error says what is not, and why. Do not call it inside a callback, for which it would wait.
    pub fn wait_synced(&self, timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        self.shared.cache.wait_ready(timeout)?;
        if let Some(indexes) = &self.shared.indexes {
            let deadline = Instant::now().checked_add(left(begin, timeout));
            if !indexes.wait(deadline, |_, synced| synced)? {
                let message =
                    format!("wait until the indexes are complete: not within {} ms. Ask again.", timeout.as_millis());
                return Err(Error::new(Code::Timeout, message));
            }
        }
        self.standing().iter().try_for_each(|handler| match handler.wait_synced(left(begin, timeout)) {
            // The handler was removed before its sync: there is nothing to wait for.
            Err(_) if handler.calls.view().removed => Ok(()),
            waited => waited,
        })
    }

    /// Removes all handlers and ends the indexes. No callback starts after this, and no handler can
    /// be added. Idempotent, never waits.
    pub fn stop(&self) {
        self.shared.stop();
    }
}

impl<O> fmt::Debug for Informer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").field("cache", &self.shared.cache.name()).finish()
    }
}
