//! Foreign code: functions, wakers, destructors and the log's collector of the user's that run on our threads.
//!
//! Any of them may panic, and so may the destructor of a panic's payload. No panic leaves this module: it is counted
//! ([`caught`]) and turned into a value.

#![forbid(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Statistics only: no order depends on it.
static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Panics of foreign code that were caught in this process.
pub(crate) fn caught() -> u64 {
    CAUGHT.load(Relaxed)
}

/// Calls foreign code. `None`: it panicked, and that was counted.
pub(crate) fn guard<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(payload) => {
            CAUGHT.fetch_add(1, Relaxed);
            dispose(payload);
            None
        }
    }
}

/// Writes to the log, whose collector is foreign code: its panic is caught and counted, so that the caller continues.
pub fn report(say: impl FnOnce()) {
    let _ = guard(say);
}

/// Drops what may run foreign code. `what` names it in the log, should it panic.
pub(crate) fn drop_guarded<T>(value: T, what: &str) {
    if guard(|| drop(value)).is_none() {
        report(|| tracing::error!(what, "a drop panicked; the thread continues"));
    }
}

/// How many payloads of payloads are dropped before one is leaked.
const MAX_PAYLOADS: usize = 8;

/// Drops what a panic carried, and what that panics with in its turn. A chain of them that does not end is leaked.
fn dispose(payload: Box<dyn Any + Send>) {
    let mut payload = payload;
    for _ in 0..MAX_PAYLOADS {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(again) => payload = again,
        }
    }
    std::mem::forget(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("a destructor");
        }
    }

    #[test]
    fn payload_that_panics_is_contained() {
        let before = caught();
        assert_eq!(guard(|| 1), Some(1));
        assert_eq!(guard(|| -> () { std::panic::panic_any(PanicsWhenDropped) }), None);
        drop_guarded(PanicsWhenDropped, "a test");
        report(|| std::panic::panic_any(PanicsWhenDropped));
        assert!(caught() >= before + 3);
    }
}
