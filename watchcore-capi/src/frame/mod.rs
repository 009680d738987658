//! The frame around every exported function, with guarantees from entry to return.
//!
//! | guarantee | kept by |
//! | --- | --- |
//! | The caller's thread is not cancelled inside (`pthread_cancel`). | [`enter`], which all others go through |
//! | No panic leaves it. | `catch_unwind` in `call`, `answer`, `freeing` |
//! | The caller's error struct says why it failed. | `call` |
//! | The test build counts it. | `count`, which only the frame can call |
//!
//! Functions that are inline in the header are the exception, also as symbols: `accessor!` gives them a `const fn` as
//! their body. Such a body makes no system call and takes no lock, so it contains no cancellation point.

use super::bytes::{Sized32, write_struct};
use super::error::{WATCHCORE_INVALID_ARGUMENT, WATCHCORE_MESSAGE_BYTES, WATCHCORE_OK, panic_text, watchcore_error};
use cancellation::HeldOff;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use watchcore::{Code, Error, Result};

mod cancellation;
mod count;

pub(super) use count::Fun;

// SAFETY: repr(C), starts with the size, numbers only.
unsafe impl Sized32 for watchcore_error {
    const NAME: &'static str = "watchcore_error";
    const DEFAULT: Self = watchcore_error {
        size: size_of::<Self>() as u32,
        code: 0,
        asked: 0,
        oldest: 0,
        current: 0,
        lost_from: 0,
        lost_to: 0,
        position: 0,
        message: [0; WATCHCORE_MESSAGE_BYTES],
        epoch: 0,
    };
}

/// The smallest size of an error struct: through the message.
const SMALLEST_ERROR: usize = std::mem::offset_of!(watchcore_error, epoch);

/// The size of the caller's error struct (0 for NULL), or `None` if it is invalid.
///
/// # Safety
///
/// If `error` is not NULL and aligned, a `u32` is readable there.
#[inline]
unsafe fn error_size(error: *mut watchcore_error) -> Option<usize> {
    if error.is_null() {
        return Some(0);
    }
    if !error.is_aligned() {
        return None;
    }
    // SAFETY: not NULL and aligned, so a `u32` is readable there by the caller's guarantee.
    let size = unsafe { error.cast::<u32>().read() } as usize;
    (SMALLEST_ERROR..=4096).contains(&size).then_some(size)
}

/// # Safety
///
/// `size` comes from `error_size`.
#[cold]
unsafe fn write_error(error: *mut watchcore_error, size: usize, why: &Error) {
    if size == 0 {
        return;
    }
    let mut value = watchcore_error {
        code: why.code() as i32,
        asked: why.asked(),
        oldest: why.oldest(),
        current: why.current(),
        lost_from: why.lost_from(),
        lost_to: why.lost_to(),
        position: why.position().revision,
        epoch: why.position().epoch,
        ..watchcore_error::DEFAULT
    };
    let text = why.message();
    let mut end = text.len().min(WATCHCORE_MESSAGE_BYTES - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, &from) in value.message.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = if from == 0 { b'?' as c_char } else { from as c_char };
    }
    // SAFETY: `size` comes from `error_size`, so the caller has that many writable bytes.
    unsafe { write_struct(error, size, value) };
}

/// Runs the body of an exported function with the cancellation of the caller's thread held off.
#[inline]
fn enter<T>(inside: impl FnOnce() -> T) -> T {
    let _held_off = HeldOff::new();
    inside()
}

/// The frame of every fallible function: checks the error struct, catches panics, writes the error.
///
/// # Safety
///
/// `error` is NULL, or as many bytes as its `size` says are writable there.
#[inline]
pub(super) unsafe fn call(fun: Fun, error: *mut watchcore_error, body: impl FnOnce() -> Result<()>) -> i32 {
    enter(|| {
        // SAFETY: the caller guarantees that the struct's bytes are readable, its `size` among them.
        let Some(size) = (unsafe { error_size(error) }) else {
            count::failed(fun, WATCHCORE_INVALID_ARGUMENT);
            return WATCHCORE_INVALID_ARGUMENT;
        };
        let why = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => {
                count::succeeded(fun);
                return WATCHCORE_OK;
            }
            Ok(Err(why)) => why,
            Err(payload) => Error::new(
                Code::Panic,
                format!(
                    "{}: a bug in watchcore: {}. The handle is poisoned: free it, and please report this.",
                    fun.name(),
                    panic_text(payload)
                ),
            ),
        };
        count::failed(fun, why.code() as i32);
        // SAFETY: `size` comes from `error_size`, above.
        unsafe { write_error(error, size, &why) };
        why.code() as i32
    })
}

/// The frame of functions that return a plain value: a panic gives `otherwise`.
#[inline]
pub(super) fn answer<T>(fun: Fun, otherwise: T, body: impl FnOnce() -> T) -> T {
    enter(|| {
        count::infallible(fun);
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(value) => value,
            Err(payload) => {
                panic_text(payload);
                otherwise
            }
        }
    })
}

/// The frame of functions that free a handle. `body` returns false if the call was a misuse and did nothing; a panic
/// counts as misuse too.
pub(super) fn freeing(fun: Fun, body: impl FnOnce() -> bool) {
    enter(|| {
        count::infallible(fun);
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(true) => {}
            Ok(false) => count::misused(fun),
            Err(payload) => {
                panic_text(payload);
                count::misused(fun);
            }
        }
    });
}

/// Counts a call of a function that `accessor!` makes.
#[inline(always)]
pub(super) fn accessed(fun: Fun) {
    count::infallible(fun);
}
