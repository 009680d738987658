//! Admits calls of a handler, and lets others wait until none is running.

#![forbid(unsafe_code)]

use crate::foreign::Notify;
use crate::sync::{Lock, LockGuard};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use watchcore::KeyValue;

/// The state of a handler's calls. One lock protects it, so that a call has either started when its
/// handler is removed, and is waited for, or never starts.
pub(super) struct Calls {
    state: Lock<CallsState>,
    /// Notified when a call has ended after a removal, when the initial state was handled, and at the end.
    changed: Notify,
}

#[derive(Default)]
struct CallsState {
    removed: bool,
    synced: bool,
    /// Set when the handler has ended, with the reason if there is one.
    ended: Option<Option<String>>,
    call: Option<RunningCall>,
}

/// A call that has started and not returned.
#[derive(Clone)]
pub(super) struct RunningCall {
    thread: ThreadId,
    /// The object of the call; `None` for `synced`, `lost` and `ended`.
    pub(super) object: Option<KeyValue>,
    pub(super) since: Instant,
}

/// The part of the state that is shown to others.
pub(super) struct CallsView {
    pub(super) removed: bool,
    pub(super) synced: bool,
    pub(super) ended: Option<Option<String>>,
    pub(super) call: Option<RunningCall>,
}

impl Calls {
    pub(super) fn new() -> Calls {
        Calls { state: Lock::default(), changed: Notify::new() }
    }

    fn lock(&self) -> LockGuard<'_, CallsState> {
        self.state.lock()
    }

    /// Records the start of a call. Returns false after a removal.
    pub(super) fn begin(&self, object: Option<&KeyValue>) -> bool {
        let call = RunningCall { thread: thread::current().id(), object: object.cloned(), since: Instant::now() };
        let mut state = self.lock();
        // If the call may not start, its object is dropped after the lock is released.
        let begins = !state.removed;
        let before = if begins { state.call.replace(call) } else { Some(call) };
        drop(state);
        drop(before);
        begins
    }

    /// Records the end of a call. `synced`: the call reported that the initial state is complete.
    pub(super) fn end(&self, synced: bool) {
        let (notify, call) = {
            let mut state = self.lock();
            state.synced |= synced;
            (state.removed || synced, state.call.take())
        };
        // The object is dropped outside of the lock, because this may be its last count.
        drop(call);
        if notify {
            self.changed.notify(usize::MAX);
        }
    }

    /// Prevents further calls. Never waits.
    pub(super) fn remove(&self) {
        self.lock().removed = true;
        self.changed.notify(usize::MAX);
    }

    /// Marks the handler as finished: no call is running and none will start.
    pub(super) fn finish(&self, reason: Option<String>) {
        let call = {
            let mut state = self.lock();
            state.ended.get_or_insert(reason);
            state.call.take()
        };
        drop(call);
        self.changed.notify(usize::MAX);
    }

    pub(super) fn view(&self) -> CallsView {
        let state = self.lock();
        CallsView { removed: state.removed, synced: state.synced, ended: state.ended.clone(), call: state.call.clone() }
    }

    pub(super) fn is_synced(&self) -> bool {
        self.lock().synced
    }

    /// Whether the calling thread is inside the handler's own call, so that a wait for its end would not end.
    pub(super) fn is_own_call(&self) -> bool {
        self.lock().call.as_ref().is_some_and(|call| call.thread == thread::current().id())
    }

    fn quiet(&self) -> Option<()> {
        self.lock().call.is_none().then_some(())
    }

    /// Blocks until no call is running; false after the timeout. To be called after `remove`, so that no call starts.
    pub(super) fn wait_quiet(&self, timeout: Duration) -> bool {
        self.changed.wait_for(Instant::now().checked_add(timeout), || self.quiet()).is_some()
    }

    /// [`Calls::wait_quiet`] as a future, without a timeout.
    pub(super) async fn quiet_async(&self) {
        self.changed.wait_for_async(|| self.quiet()).await;
    }

    /// Blocks until the handler is synced, removed or has ended, or until the timeout.
    pub(super) fn wait_synced(&self, timeout: Duration) {
        self.changed.wait_for(Instant::now().checked_add(timeout), || self.decided());
    }

    /// [`Calls::wait_synced`] as a future, without a timeout.
    pub(super) async fn synced_async(&self) {
        self.changed.wait_for_async(|| self.decided()).await;
    }

    fn decided(&self) -> Option<()> {
        let state = self.lock();
        (state.synced || state.removed || state.ended.is_some()).then_some(())
    }
}
