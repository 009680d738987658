//! Indexes by function: kept by one thread of the informer's own, read by all.

#![forbid(unsafe_code)]

use super::poll_event;
use crate::clock::{Clock, SystemClock, delay_from};
use crate::event::{Payload, WatchEvent};
use crate::foreign::Guarded;
use crate::object::FromKeyValue;
use crate::objects::{Known, ObjectWatch};
use crate::park::wait_until;
use event_listener::Event;
use std::collections::HashMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use watchcore::{Code, Error, Position, Result};

/// The values that an object is found by.
pub(super) type IndexFn<O> = Arc<dyn Fn(&O) -> Vec<String> + Send + Sync>;

/// The function indexes of an informer.
///
/// The thread that keeps them is a consumer like any handler; the cache's writer does not wait for it, and it waits only
/// for those who are reading an index.
pub(super) struct Indexes<O> {
    functions: Vec<(String, IndexFn<O>)>,
    state: RwLock<IndexState<O>>,
    /// Notified when the position has moved while somebody waits, and at the end.
    moved: Event,
    /// Wakes the keeping thread for a look at the position: a revision without a matching event moves it, too.
    keeper: Mutex<Option<Waker>>,
    panics: AtomicU64,
}

struct IndexState<O> {
    /// Everything up to it is in the indexes. Revision 0 before the state is complete.
    position: Position,
    synced: bool,
    ended: bool,
    /// What has ended them, where it was neither a stop nor the cache's close: they do not follow the cache any more.
    failure: Option<String>,
    /// Of each function, the objects of each value.
    values: Vec<HashMap<Box<str>, Known<O>>>,
}

impl<O> IndexState<O> {
    /// Whether the index follows the cache, or has until it was told to end.
    fn check(&self, name: &str) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(why) => Err(Error::new(Code::Closed, format!("read index {name}: {why}"))),
        }
    }
}

impl<O: FromKeyValue> Indexes<O> {
    pub(super) fn new(functions: Vec<(String, IndexFn<O>)>) -> Indexes<O> {
        let values = functions.iter().map(|_| HashMap::new()).collect();
        let state = IndexState { position: Position::default(), synced: false, ended: false, failure: None, values };
        Indexes {
            functions,
            state: RwLock::new(state),
            moved: Event::new(),
            keeper: Mutex::new(None),
            panics: AtomicU64::new(0),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, IndexState<O>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, IndexState<O>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Functions that panicked: their object is found under no value.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
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

    /// The objects of one value, in key order, and the position of the answer.
    pub(super) fn objects(&self, name: &str, value: &str) -> Result<(Position, Vec<O>)> {
        let number = self.number(name)?;
        let state = self.read();
        state.check(name)?;
        if !state.synced {
            return Err(Error::new(
                Code::NotReady,
                format!("read index {name}: its initial state is not complete. Wait until the informer is synced."),
            ));
        }
        let mut objects = state.values[number].get(value).map_or_else(Vec::new, Known::to_vec);
        let position = state.position;
        drop(state);
        objects.sort_by(|a, b| a.key_value().key().cmp(b.key_value().key()));
        Ok((position, objects))
    }

    /// Every value under which there is an object, in order.
    pub(super) fn values(&self, name: &str) -> Result<Vec<String>> {
        let number = self.number(name)?;
        let state = self.read();
        state.check(name)?;
        let mut values: Vec<String> = state.values[number].keys().map(|value| value.to_string()).collect();
        drop(state);
        values.sort_unstable();
        Ok(values)
    }

    /// Whether an object is under a value of an index.
    pub(super) fn is_under(&self, name: &str, value: &str, object: &O) -> Result<bool> {
        let number = self.number(name)?;
        Ok(self.values_of(number, object).iter().any(|of| of == value))
    }

    /// The values of an object: those of a function that panics are none.
    fn values_of(&self, number: usize, object: &O) -> Vec<String> {
        let (name, function) = &self.functions[number];
        let mut values = catch_unwind(AssertUnwindSafe(|| function(object))).unwrap_or_else(|_| {
            self.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!(index = %name, "an index function panicked");
            Vec::new()
        });
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Takes the changes of a whole revision, or of a piece of the initial state.
    fn take(&self, events: &mut Vec<WatchEvent<O>>) {
        // The functions are foreign code: they run before the lock.
        let changes: Vec<_> = events
            .drain(..)
            .filter_map(|event| {
                let (old, new) = match event.payload {
                    Payload::Added(new) => (None, Some(new)),
                    Payload::Modified { old, new } => (old, Some(new)),
                    Payload::Deleted(last) => (Some(last), None),
                    _ => return None,
                };
                let values = |object: &Option<O>| -> Vec<Vec<String>> {
                    let of = |number| object.as_ref().map_or_else(Vec::new, |object| self.values_of(number, object));
                    (0..self.functions.len()).map(of).collect()
                };
                let (before, after) = (values(&old), values(&new));
                Some((old, new, before, after))
            })
            .collect();
        let mut state = self.write();
        for (old, new, before, after) in changes {
            for (number, (before, after)) in before.into_iter().zip(after).enumerate() {
                let map = &mut state.values[number];
                if let Some(old) = &old {
                    for value in before.iter().filter(|value| !after.contains(value)) {
                        remove(map, value, old);
                    }
                }
                if let Some(new) = &new {
                    for value in after {
                        map.entry(value.into()).or_insert_with(Known::new).insert(new.clone());
                    }
                }
            }
        }
    }

    fn publish(&self, position: Position, synced: bool) {
        {
            let mut state = self.write();
            state.position = position;
            state.synced |= synced;
        }
        self.moved.notify(usize::MAX);
    }

    fn end(&self, failure: Option<String>) {
        {
            let mut state = self.write();
            state.ended = true;
            state.failure = failure;
        }
        self.moved.notify(usize::MAX);
    }

    fn nudge(&self) {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = keeper {
            waker.wake();
        }
    }

    /// Whether it holds what is waited for; an error where it never will.
    fn look(&self, held: impl Fn(Position, bool) -> bool) -> Option<Result<()>> {
        let state = self.read();
        if held(state.position, state.synced) {
            return Some(Ok(()));
        }
        let why = state.failure.as_deref().unwrap_or("the informer or its cache was closed");
        state.ended.then(|| Err(Error::new(Code::Closed, format!("wait for an index: {why}"))))
    }

    /// Blocks until the indexes hold; false after the deadline.
    pub(super) fn wait(&self, deadline: Option<Instant>, held: impl Fn(Position, bool) -> bool) -> Result<bool> {
        loop {
            let moved = self.moved.listen();
            if let Some(held) = self.look(&held) {
                return held.map(|()| true);
            }
            self.nudge();
            if !wait_until(moved, deadline) {
                return self.look(&held).map_or(Ok(false), |held| held.map(|()| true));
            }
        }
    }

    /// The same as a future; false after the timeout.
    pub(super) async fn wait_async(&self, timeout: Duration, held: impl Fn(Position, bool) -> bool) -> Result<bool> {
        let begin = SystemClock.now();
        let mut time = None;
        let mut wait = pin!(self.hold(held));
        poll_fn(|context| match wait.as_mut().poll(context) {
            Poll::Ready(held) => Poll::Ready(held.map(|()| true)),
            Poll::Pending => {
                let time = time.get_or_insert_with(|| delay_from(&SystemClock, begin, timeout));
                Pin::new(time).poll(context).map(|()| Ok(false))
            }
        })
        .await
    }

    async fn hold(&self, held: impl Fn(Position, bool) -> bool) -> Result<()> {
        loop {
            let moved = self.moved.listen();
            if let Some(held) = self.look(&held) {
                return held;
            }
            self.nudge();
            Guarded::new(moved).await;
        }
    }

    /// One turn of the thread that keeps them: everything that is there. At the end, what has failed.
    fn poll_keep(
        &self,
        watch: &mut ObjectWatch<O>,
        gathered: &mut Vec<WatchEvent<O>>,
        context: &mut Context<'_>,
    ) -> Poll<Option<String>> {
        const PIECE: usize = 1024;
        *self.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        loop {
            match poll_event(watch, context) {
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    let (position, synced) = {
                        let state = self.read();
                        (state.position, state.synced)
                    };
                    // A watch sleeps between revisions only: what was gathered is whole, also where no event follows it that
                    // would say so, such as behind a resync, or a revision without a matching event.
                    if synced && watch.position() != position {
                        self.take(gathered);
                        self.publish(watch.position(), false);
                    }
                    return Poll::Pending;
                }
                Poll::Ready(Some(event)) => {
                    if let Some(status) = event.status() {
                        return Poll::Ready(Some(format!("the indexes have ended: {status}")));
                    }
                    let synced = matches!(event.payload, Payload::Synced);
                    let position = event.position;
                    gathered.push(event);
                    let (before, complete) = {
                        let state = self.read();
                        (state.position, state.synced)
                    };
                    // Half a revision is no state: its events wait for the last of them.
                    if synced || (complete && position != before) {
                        self.take(gathered);
                        self.publish(position, synced);
                    } else if !complete && gathered.len() >= PIECE {
                        self.take(gathered);
                    }
                }
            }
        }
    }

    /// What the thread that keeps them does.
    pub(super) async fn keep(self: Arc<Self>, mut watch: ObjectWatch<O>) {
        let mut gathered = Vec::new();
        let failure = poll_fn(|context| self.poll_keep(&mut watch, &mut gathered, context)).await;
        self.end(failure);
    }
}

/// Takes an object out of a value; an empty value goes.
fn remove<O: FromKeyValue>(map: &mut HashMap<Box<str>, Known<O>>, value: &str, object: &O) {
    if let Some(objects) = map.get_mut(value) {
        objects.remove(object.key_value().key());
        if objects.is_empty() {
            map.remove(value);
        }
    }
}

/// The time left of a timeout that began at `begin`.
pub(super) fn left(begin: Instant, timeout: Duration) -> Duration {
    timeout.saturating_sub(begin.elapsed())
}
