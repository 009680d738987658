//! Who may call a handler, and who waits until nobody does.

#![forbid(unsafe_code)]

use crate::foreign::{Guarded, Notify};
use crate::sync::{Lock, LockGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use watchcore::KeyValue;

/// The state of a handler's calls: below one lock, so that a call either has begun when its handler is removed, and is
/// waited for, or never begins.
pub(super) struct Turn {
    state: Lock<TurnState>,
    /// Notified when a call has ended after a removal, when the initial state was handled, and at the end.
    changed: Notify,
}

#[derive(Default)]
struct TurnState {
    removed: bool,
    synced: bool,
    /// Its end, with the reason where there was one.
    ended: Option<Option<String>>,
    call: Option<CallUnderWay>,
}

/// A call that has begun and not returned.
#[derive(Clone)]
pub(super) struct CallUnderWay {
    thread: ThreadId,
    /// What it is about; nothing for `synced`, `lost` and `ended`.
    pub(super) object: Option<KeyValue>,
    pub(super) since: Instant,
}

/// What can be seen of a handler from outside.
pub(super) struct TurnView {
    pub(super) removed: bool,
    pub(super) synced: bool,
    pub(super) ended: Option<Option<String>>,
    pub(super) call: Option<CallUnderWay>,
}

impl Turn {
    pub(super) fn new() -> Turn {
        Turn { state: Lock::default(), changed: Notify::new() }
    }

    fn lock(&self) -> LockGuard<'_, TurnState> {
        self.state.lock()
    }

    /// Begins a call; not after a removal.
    pub(super) fn begin(&self, object: Option<&KeyValue>) -> bool {
        let call = CallUnderWay { thread: thread::current().id(), object: object.cloned(), since: Instant::now() };
        let mut state = self.lock();
        // Where it is not taken, the call with its object is dropped behind the guard.
        let begins = !state.removed;
        let before = if begins { state.call.replace(call) } else { Some(call) };
        drop(state);
        drop(before);
        begins
    }

    /// Ends the call. `synced`: it was the one that says that the initial state is complete.
    pub(super) fn end(&self, synced: bool) {
        let (notify, call) = {
            let mut state = self.lock();
            state.synced |= synced;
            (state.removed || synced, state.call.take())
        };
        // Outside of the lock: it may be the last count of an object.
        drop(call);
        if notify {
            self.changed.notify(usize::MAX);
        }
    }

    /// No call begins after this. Never waits.
    pub(super) fn remove(&self) {
        self.lock().removed = true;
        self.changed.notify(usize::MAX);
    }

    /// Marks the handler as finished: no callback is running and none will start.
    pub(super) fn finish(&self, reason: Option<String>) {
        let call = {
            let mut state = self.lock();
            state.ended.get_or_insert(reason);
            state.call.take()
        };
        drop(call);
        self.changed.notify(usize::MAX);
    }

    pub(super) fn view(&self) -> TurnView {
        let state = self.lock();
        TurnView { removed: state.removed, synced: state.synced, ended: state.ended.clone(), call: state.call.clone() }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.lock().synced
    }

    /// Whether the calling thread is inside the handler's own call: a wait for the end of that would not end.
    pub(super) fn is_own_call(&self) -> bool {
        self.lock().call.as_ref().is_some_and(|call| call.thread == thread::current().id())
    }

    /// Whether no call is under way.
    fn is_quiet(&self) -> bool {
        self.lock().call.is_none()
    }

    /// Blocks until no call is under way; false after the timeout. After a removal, so that none begins any more.
    pub(super) fn wait_quiet(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // Listening first: what changes after the look is heard.
            let changed = self.changed.listen();
            if self.is_quiet() {
                return true;
            }
            if !changed.wait(deadline) {
                return self.is_quiet();
            }
        }
    }

    /// The same as a future.
    pub(super) async fn quiet_async(&self) {
        loop {
            let changed = self.changed.listen();
            if self.is_quiet() {
                return;
            }
            Guarded::new(changed).await;
        }
    }

    /// Blocks until it is synced, removed or at its end; false after the timeout.
    pub(super) fn wait_synced(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let changed = self.changed.listen();
            if self.is_decided() {
                return true;
            }
            if !changed.wait(deadline) {
                return self.is_decided();
            }
        }
    }

    /// The same as a future.
    pub(super) async fn synced_async(&self) {
        loop {
            let changed = self.changed.listen();
            if self.is_decided() {
                return;
            }
            Guarded::new(changed).await;
        }
    }

    fn is_decided(&self) -> bool {
        let state = self.lock();
        state.synced || state.removed || state.ended.is_some()
    }
}
