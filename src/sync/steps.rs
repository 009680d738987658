//! Named steps of a commit, at which a test may panic or wait.

#![forbid(unsafe_code)]

#[cfg(test)]
use std::cell::RefCell;

#[cfg(test)]
type Hook = Box<dyn FnMut(&'static str)>;

#[cfg(test)]
thread_local! {
    /// The function that a test calls at the steps of its own thread.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// Comes by a step: nothing, outside tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn step(_: &'static str) {}

#[cfg(test)]
pub(crate) fn step(name: &'static str) {
    // Taken out meanwhile: a hook may panic, and what it then unwinds through comes by steps too.
    if let Some(mut hook) = HOOK.with_borrow_mut(Option::take) {
        hook(name);
        HOOK.with_borrow_mut(|place| *place = Some(hook));
    }
}

/// Calls `hook` at each step that this thread comes by while `during` runs.
#[cfg(all(test, not(loom)))]
pub(crate) fn hooked<T>(hook: impl FnMut(&'static str) + 'static, during: impl FnOnce() -> T) -> T {
    struct Unhook;
    impl Drop for Unhook {
        fn drop(&mut self) {
            HOOK.with_borrow_mut(|hook| *hook = None);
        }
    }
    let _unhook = Unhook;
    HOOK.with_borrow_mut(|place| *place = Some(Box::new(hook)));
    during()
}
