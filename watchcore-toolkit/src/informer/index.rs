//! Indexes by function: one thread of the informer maintains them, and all threads read them.
//!
//! # One state
//!
//! [`IndexState`] answers every question: it has the sets, the position that they show, whether that state is complete,
//! and why the indexes stopped following the cache, if they did. It changes in one step under one lock, by one whole
//! state of the watch at a time ([`WatchStep::Whole`]). So an answer carries the exact position of its content.
//!
//! # Values are remembered
//!
//! A function runs once for each version of an object, when the object is put. The [`IndexEntry`] of the object keeps
//! the values, and a removal takes the object out of these sets without calling the function again: a function that
//! would now return other values, or panics, leaves nothing behind. The life of an entry:
//!
//! 1. The keeper takes an event and calls the functions, with no lock held ([`Keeper::gather`]).
//! 2. At the next whole state it links the new entries into the sets, takes the old ones out, and stores the position
//!    ([`Indexes::advance`]).
//! 3. The old entries are dropped after the lock is released, because their objects are foreign values, and so are the clones for a reader.

#![forbid(unsafe_code)]

use super::poll::poll_guarded;
use crate::clock::{Clock, SystemClock, delay_from};
use crate::event::Payload;
use crate::foreign::{Notify, discard, guard, wake};
use crate::object::{Conversion, FromKeyValue};
use crate::objects::{KeyOf, Known, ObjectWatch, WatchStep};
use crate::sync::{Lock, SharedLock};
use std::collections::HashMap;
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use watchcore::{Code, Error, KeyValue, Position, Result};

/// The function that returns the values of an object.
pub(super) type IndexFn<O> = Arc<dyn Fn(&O) -> Vec<String> + Send + Sync>;

/// The state of an informer's function indexes.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::Informer;
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.progress(1)?;
/// let informer = Informer::<KeyValue>::builder(&cache).index("all", |_| vec!["all".into()]).build()?;
/// informer.wait_synced(Duration::from_secs(10))?;
/// let status = informer.index_status().unwrap();
/// assert!(status.synced && status.failure.is_none() && status.panics == 0);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IndexStatus {
    /// The indexes include everything up to this position.
    pub position: Position,
    /// Whether the initial state is complete.
    pub synced: bool,
    /// Calls of an index function that panicked. Their objects have no values in that index.
    pub panics: u64,
    /// Why the indexes no longer follow the cache, unless they were stopped or the cache was
    /// closed. Reads and waits by index then return CLOSED with this text.
    pub failure: Option<String>,
}

/// The function indexes of an informer. The thread that maintains them is a consumer like any handler.
pub(super) struct Indexes<O> {
    functions: Vec<(String, IndexFn<O>)>,
    state: SharedLock<IndexState<O>>,
    /// Notified when the position has moved, and at the end.
    moved: Notify,
    /// Wakes the keeper to check its position, which also advances at a revision without a matching event.
    keeper: Lock<Option<Waker>>,
    panics: AtomicU64,
}

struct IndexState<O> {
    /// The sets include everything up to this position.
    position: Position,
    synced: bool,
    ended: bool,
    /// Why the indexes ended, unless they were stopped or the cache was closed: they no longer follow the cache.
    failure: Option<String>,
    /// One per function.
    sets: Vec<SetsByValue<O>>,
}

/// The entries under each value of a function.
type SetsByValue<O> = HashMap<Arc<str>, Known<Arc<IndexEntry<O>>>>;

/// An object in the indexes.
struct IndexEntry<O> {
    object: O,
    /// The key-value by which the tables hash and compare: no method of the program's type is called under the lock.
    kv: KeyValue,
    /// The numbers of the functions, and the values that each returned for this object.
    values: Box<[(usize, Arc<str>)]>,
}

impl<O> KeyOf for Arc<IndexEntry<O>> {
    fn key_of(&self) -> &[u8] {
        self.kv.key()
    }
}

/// The effect of one event: the former entry and the new entry.
type IndexChange<O> = (Option<Arc<IndexEntry<O>>>, Option<Arc<IndexEntry<O>>>);

impl<O> IndexState<O> {
    /// Returns an error if the index must not be read.
    fn check(&self, name: &str) -> Result<()> {
        if let Some(why) = &self.failure {
            return Err(Error::new(Code::Closed, format!("read index {name}: {why}")));
        }
        if !self.synced {
            return Err(Error::new(
                Code::NotReady,
                format!("read index {name}: its initial state is not complete. Wait until the informer is synced."),
            ));
        }
        Ok(())
    }

    /// Removes the old entry from its sets and puts the new one into its own. The caller holds a count of both.
    fn change(&mut self, old: Option<&Arc<IndexEntry<O>>>, new: Option<&Arc<IndexEntry<O>>>) {
        let (before, after) = (old.map_or(&[][..], |old| &old.values), new.map_or(&[][..], |new| &new.values));
        for value in before.iter().filter(|value| !after.contains(value)) {
            let (number, value) = (value.0, &value.1);
            if let (Some(set), Some(old)) = (self.sets[number].get_mut(value), old) {
                set.remove(old.key_of());
                if set.is_empty() {
                    self.sets[number].remove(value);
                }
            }
        }
        for (number, value) in after {
            if let Some(new) = new {
                self.sets[*number].entry(Arc::clone(value)).or_insert_with(Known::new).insert(Arc::clone(new));
            }
        }
    }
}

impl<O: FromKeyValue> Indexes<O> {
    pub(super) fn new(functions: Vec<(String, IndexFn<O>)>) -> Indexes<O> {
        let sets = functions.iter().map(|_| HashMap::new()).collect();
        let state = IndexState { position: Position::default(), synced: false, ended: false, failure: None, sets };
        Indexes {
            functions,
            state: SharedLock::new(state),
            moved: Notify::new(),
            keeper: Lock::default(),
            panics: AtomicU64::new(0),
        }
    }

    /// The number of calls that panicked: their objects have no values.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    pub(super) fn status(&self) -> IndexStatus {
        let state = self.state.read();
        IndexStatus {
            position: state.position,
            synced: state.synced,
            panics: self.panics(),
            failure: state.failure.clone(),
        }
    }

    fn number(&self, name: &str) -> Result<usize> {
        self.functions.iter().position(|(known, _)| known == name).ok_or_else(|| {
            let names: Vec<&str> = self.functions.iter().map(|(known, _)| known.as_str()).collect();
            Error::new(
                Code::InvalidArgument,
                format!("read index {name}: there is none of that name. This informer has: {}.", names.join(", ")),
            )
        })
    }

    /// The objects under one value, in key order, and the position of the answer.
    pub(super) fn objects(&self, name: &str, value: &str) -> Result<(Position, Vec<O>)> {
        let number = self.number(name)?;
        let (position, mut entries) = {
            let state = self.state.read();
            state.check(name)?;
            (state.position, state.sets[number].get(value).map_or_else(Vec::new, Known::to_vec))
        };
        entries.sort_unstable_by(|a, b| a.key_of().cmp(b.key_of()));
        // Cloning calls the program's code, so it happens outside of the lock.
        Ok((position, entries.iter().map(|entry| entry.object.clone()).collect()))
    }

    /// All values under which there is an object, in order.
    pub(super) fn values(&self, name: &str) -> Result<Vec<String>> {
        let number = self.number(name)?;
        let mut values: Vec<String> = {
            let state = self.state.read();
            state.check(name)?;
            state.sets[number].keys().map(|value| value.to_string()).collect()
        };
        values.sort_unstable();
        Ok(values)
    }

    /// Whether an object is under a value of an index.
    pub(super) fn is_under(&self, name: &str, value: &str, object: &O) -> Result<bool> {
        let number = self.number(name)?;
        Ok(self.values_of(number, object).iter().any(|of| of == value))
    }

    /// The values of an object: none if the function panics.
    fn values_of(&self, number: usize, object: &O) -> Vec<String> {
        let (name, function) = &self.functions[number];
        let mut values =
            guard(format_args!("the function of index {name}"), || function(object)).unwrap_or_else(|_| {
                self.panics.fetch_add(1, Ordering::Relaxed);
                Vec::new()
            });
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Makes the entry of an object and calls all functions for it, once. `None`: the conversion to
    /// a key-value panicked.
    fn entry(&self, object: O) -> Option<Arc<IndexEntry<O>>> {
        let kv = guard(Conversion::<O>::new(), || object.key_value().clone()).ok()?;
        let given: Vec<Vec<String>> = (0..self.functions.len()).map(|number| self.values_of(number, &object)).collect();
        let values = {
            // If there is a set for the value already, its key is used, so that objects of one value share it.
            let state = self.state.read();
            let shared = |number: usize, value: String| {
                let set = state.sets[number].get_key_value(value.as_str());
                (number, set.map_or_else(|| value.into(), |(shared, _)| Arc::clone(shared)))
            };
            let each = given.into_iter().enumerate();
            each.flat_map(|(number, values)| values.into_iter().map(move |value| (number, value)))
                .map(|(number, value)| shared(number, value))
                .collect()
        };
        Some(Arc::new(IndexEntry { object, kv, values }))
    }

    /// Collects changes, and publishes them at a position if they lead to a whole state.
    fn advance(&self, changes: Vec<IndexChange<O>>, whole: Option<(Position, bool)>) {
        {
            let mut state = self.state.write();
            for (old, new) in &changes {
                state.change(old.as_ref(), new.as_ref());
            }
            if let Some((position, synced)) = whole {
                (state.position, state.synced) = (position, synced);
            }
        }
        // This may drop the last counts of the old entries, whose objects are foreign.
        discard("the drop of an object of an index", changes);
        if whole.is_some() {
            self.moved.notify(usize::MAX);
        }
    }

    fn end(&self, failure: Option<String>) {
        if let Some(why) = &failure {
            tracing::error!("{why}");
        }
        {
            let mut state = self.state.write();
            state.ended = true;
            state.failure = failure;
        }
        self.moved.notify(usize::MAX);
    }

    /// Whether the awaited condition holds; an error if it never will. Otherwise the keeper checks its position again.
    fn look(&self, held: impl Fn(Position, bool) -> bool) -> Option<Result<()>> {
        {
            let state = self.state.read();
            if held(state.position, state.synced) {
                return Some(Ok(()));
            }
            if state.ended {
                let why = state.failure.as_deref().unwrap_or("the informer or its cache was closed");
                return Some(Err(Error::new(Code::Closed, format!("wait for an index: {why}"))));
            }
        }
        wake(self.keeper.replace(None));
        None
    }

    /// Blocks until the condition holds; returns false after the deadline.
    pub(super) fn wait(&self, deadline: Option<Instant>, held: impl Fn(Position, bool) -> bool) -> Result<bool> {
        self.moved.wait_for(deadline, || self.look(&held)).map_or(Ok(false), |held| held.map(|()| true))
    }

    /// [`Indexes::wait`] as a future; returns false after the timeout.
    pub(super) async fn wait_async(&self, timeout: Duration, held: impl Fn(Position, bool) -> bool) -> Result<bool> {
        let begin = SystemClock.now();
        let mut time = None;
        let mut wait = pin!(self.moved.wait_for_async(|| self.look(&held)));
        poll_fn(|context| match wait.as_mut().poll(context) {
            Poll::Ready(held) => Poll::Ready(held.map(|()| true)),
            Poll::Pending => {
                let time = time.get_or_insert_with(|| delay_from(&SystemClock, begin, timeout));
                Pin::new(time).poll(context).map(|()| Ok(false))
            }
        })
        .await
    }
}

/// The thread that maintains the indexes. However it ends, it records its end in their state, so
/// that no reader waits for it for ever.
pub(super) struct Keeper<O: FromKeyValue> {
    indexes: Arc<Indexes<O>>,
    watch: ObjectWatch<O>,
    /// The entry of each object that the watch has delivered.
    entries: Known<Arc<IndexEntry<O>>>,
    /// Changes that are not in the state yet.
    changes: Vec<IndexChange<O>>,
    synced: bool,
    /// How the keeper ended, unless it panicked.
    ended: Option<Option<String>>,
}

impl<O: FromKeyValue> Keeper<O> {
    pub(super) fn new(indexes: Arc<Indexes<O>>, watch: ObjectWatch<O>) -> Keeper<O> {
        Keeper { indexes, watch, entries: Known::new(), changes: Vec::new(), synced: false, ended: None }
    }

    /// Maintains the indexes until the watch ends.
    pub(super) async fn run(mut self) {
        let ended = poll_fn(|context| self.poll(context)).await;
        self.ended = Some(ended);
    }

    /// Takes all available events. At the end it returns the failure, if there was one.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<String>> {
        drop(self.indexes.keeper.replace(Some(context.waker().clone())));
        loop {
            let step = match ready!(poll_guarded(|| self.watch.poll_step(context))) {
                Ok(Some(step)) => step,
                Ok(None) => return Poll::Ready(None),
                Err(status) => return Poll::Ready(Some(format!("the indexes have ended: {status}"))),
            };
            match step {
                WatchStep::Whole(position) => {
                    let changes = mem::take(&mut self.changes);
                    self.indexes.advance(changes, Some((position, self.synced)));
                }
                WatchStep::Event(event) => match event.payload {
                    Payload::Error(status) => return Poll::Ready(Some(format!("the indexes have ended: {status}"))),
                    payload => self.gather(payload),
                },
            }
        }
    }

    /// Records the effect of an event.
    fn gather(&mut self, payload: Payload<O>) {
        /// The number of changes per step of the initial state, which is not read before it is complete.
        const PIECE: usize = 1024;
        let change = match payload {
            Payload::Added(new) | Payload::Modified { new, .. } => self.indexes.entry(new).map(|entry| {
                let old = self.entries.insert(Arc::clone(&entry));
                (old, Some(entry))
            }),
            Payload::Deleted(last) => guard(Conversion::<O>::new(), || last.key_value().clone())
                .ok()
                .and_then(|kv| self.entries.remove(kv.key()))
                .map(|old| (Some(old), None)),
            Payload::DeletedUnknown(key) => self.entries.remove(&key).map(|old| (Some(old), None)),
            Payload::Synced => {
                self.synced = true;
                None
            }
            Payload::Bookmark | Payload::Error(_) => None,
        };
        self.changes.extend(change);
        if !self.synced && self.changes.len() >= PIECE {
            self.indexes.advance(mem::take(&mut self.changes), None);
        }
    }
}

impl<O: FromKeyValue> Drop for Keeper<O> {
    fn drop(&mut self) {
        let ended = self.ended.take();
        self.indexes
            .end(ended.unwrap_or_else(|| Some("the indexes have ended: their thread panicked, or was dropped".into())));
    }
}

/// The rest of a timeout that started at `begin`.
pub(super) fn left(begin: Instant, timeout: Duration) -> Duration {
    timeout.saturating_sub(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::Cache;

    /// However the keeper's thread ends, readers and waiters get an error.
    #[test]
    fn keeper_that_dies_is_reported() {
        let cache = Cache::builder("/").build().unwrap();
        let functions: Vec<(String, IndexFn<KeyValue>)> = vec![("all".into(), Arc::new(|_| vec!["all".into()]))];
        let indexes = Arc::new(Indexes::new(functions));
        let watch = ObjectWatch::<KeyValue>::builder(&cache).marks().open().unwrap();
        let keeper = Keeper::new(Arc::clone(&indexes), watch);
        let died = std::thread::spawn(move || {
            let _keeper = keeper;
            panic!("a fault of this crate");
        });
        assert!(died.join().is_err());
        let bound = Instant::now() + Duration::from_secs(60);
        let waited = indexes.wait(Some(bound), |_, synced| synced).unwrap_err();
        for error in [waited, indexes.objects("all", "all").unwrap_err(), indexes.values("all").unwrap_err()] {
            assert_eq!(error.code(), Code::Closed);
            assert!(error.message().contains("panicked"), "{error}");
        }
        assert!(indexes.status().failure.is_some_and(|why| why.contains("panicked")));
    }
}
