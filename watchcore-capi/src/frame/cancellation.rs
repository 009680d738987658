//! Holds off the cancellation of the caller's thread while it is inside the library.
//!
//! `pthread_cancel` ends a thread at its next cancellation point (a `write`, a `poll`, a condition wait) by unwinding
//! its stack. Such an unwinding is no panic: if it meets a Rust frame, the process is aborted, and a writer in the middle
//! of a revision would be left half done. So each exported function first disables cancellation and last restores the
//! caller's setting. A cancellation requested meanwhile stays pending and takes effect at the caller's next
//! cancellation point; neither of the two calls is one. Both together cost some 4 ns (glibc 2.36, which exchanges a
//! word of the thread each time), so all functions pay for them and none has to be proven safe without.

use std::ffi::c_int;

/// Keeps the caller's thread from being cancelled while it exists; its drop restores the caller's setting.
pub(super) struct HeldOff {
    /// The caller's cancellation state, to be restored.
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

/// `PTHREAD_CANCEL_DISABLE` of glibc and of musl: the libc crate lacks both the constant and the function for Linux.
const DISABLE: c_int = 1;

/// Sets the cancellation state of this thread, and returns the previous one.
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

/// The C library supports only Linux; on other systems cancellation is not held off.
#[cfg(not(target_os = "linux"))]
#[inline]
fn set_state(state: c_int) -> c_int {
    state
}
