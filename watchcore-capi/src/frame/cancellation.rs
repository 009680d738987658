//! Cancellation of the caller's thread, held off while it is inside.
//!
//! `pthread_cancel` ends a thread at its next cancellation point (a `write`, a `poll`, a wait for a condition) by
//! unwinding its stack. That unwinding is no panic: where it meets a frame of Rust the process is aborted, and a writer
//! in the middle of a revision would be left half done. So each exported function disables cancellation before anything
//! else and restores what the caller had as the last thing. A cancellation that came meanwhile stays pending and takes
//! effect at the caller's next cancellation point; neither of the two calls is one. Both together cost some 4 ns (glibc 2.36,
//! which exchanges a word of the thread's own each time), so all functions pay them and none has to be known as safe.

use std::ffi::c_int;

/// The caller's thread is not cancelled as long as this lives; then it may be, if it could be before.
pub(super) struct HeldOff {
    /// The caller's state, to be restored.
    before: c_int,
}

impl HeldOff {
    #[inline]
    pub(super) fn new() -> HeldOff {
        HeldOff { before: set_state(DISABLE) }
    }
}

impl Drop for HeldOff {
    #[inline]
    fn drop(&mut self) {
        set_state(self.before);
    }
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and of musl: the crate libc has neither the constant nor the function for Linux.
const DISABLE: c_int = 1;

/// Sets the cancellation state of this thread, and answers the one before.
#[cfg(target_os = "linux")]
#[inline]
fn set_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = state;
    // SAFETY: `before` is writable; the function has no other condition.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// The C library is one of Linux; elsewhere nothing is held off.
#[cfg(not(target_os = "linux"))]
#[inline]
fn set_state(state: c_int) -> c_int {
    state
}
