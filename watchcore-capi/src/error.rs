//! Codes, the caller's error struct, and the errors that the C interface itself makes.
//!
//! # In the header: Errors
//!
//! A call that fails returns a code, which is for the program, and fills the caller's watchcore_error, which is for the
//! program (the numbers) and for people (the message: what was asked, what is true, what to do next). Codes by
//! reaction:
//!
//!     correct the call              INVALID_ARGUMENT, OUT_OF_ORDER, UNSUPPORTED
//!     call again, later             NOT_READY, TIMEOUT, BUSY, FUTURE_REVISION, UNAVAILABLE, RESOURCE_EXHAUSTED
//!     read the state anew           COMPACTED, LAGGED, RESYNCED
//!     stop                          CLOSED
//!     ask an administrator          UNAUTHENTICATED, PERMISSION_DENIED
//!     report a bug                  PANIC, INTERNAL

use std::ffi::c_char;
use watchcore::{Code, Error};

/// Success.
pub const WATCHCORE_OK: i32 = 0;
/// NULL, a bad size or value, a key outside the prefix, a wrong handle. Correct the call.
pub const WATCHCORE_INVALID_ARGUMENT: i32 = 1;
/// Reserved: an absent key is no error.
pub const WATCHCORE_NOT_FOUND: i32 = 2;
/// There is no listing yet. Try again, or wait (watchcore_cache_wait_ready).
pub const WATCHCORE_NOT_READY: i32 = 3;
/// The deadline passed; nothing is lost. Try again.
pub const WATCHCORE_TIMEOUT: i32 = 4;
/// The cache, the subscription or the feeder was closed.
pub const WATCHCORE_CLOSED: i32 = 5;
/// The handle is in use by another thread, or the cache has a writer already. Try again later.
pub const WATCHCORE_BUSY: i32 = 6;
/// This build, or a forked child, cannot do it.
pub const WATCHCORE_UNSUPPORTED: i32 = 7;
/// A revision that does not rise, or a load at the wrong time.
pub const WATCHCORE_OUT_OF_ORDER: i32 = 8;
/// The revision is older than the window. Start from the state.
pub const WATCHCORE_COMPACTED: i32 = 10;
/// Events were lost to this reader: `lost_from` to `lost_to`. Start from the state.
pub const WATCHCORE_LAGGED: i32 = 11;
/// The revision did not come in time. Try again.
pub const WATCHCORE_FUTURE_REVISION: i32 = 12;
/// The history was replaced: the subscription asked to stop then, or the wait was for a revision of the previous
/// history. Start from the state.
pub const WATCHCORE_RESYNCED: i32 = 13;
/// etcd refused the credentials.
pub const WATCHCORE_UNAUTHENTICATED: i32 = 20;
/// etcd denied access to the range.
pub const WATCHCORE_PERMISSION_DENIED: i32 = 21;
/// etcd is out of reach. Try again.
pub const WATCHCORE_UNAVAILABLE: i32 = 22;
/// etcd, or a limit, refused more. Try again later.
pub const WATCHCORE_RESOURCE_EXHAUSTED: i32 = 23;
/// A bug: a panic was caught, the handle is poisoned, the process lives. Please report it.
pub const WATCHCORE_PANIC: i32 = 90;
/// A bug: an impossible state. Please report it.
pub const WATCHCORE_INTERNAL: i32 = 91;

const _: () = {
    assert!(WATCHCORE_OK == Code::Ok as i32);
    assert!(WATCHCORE_INVALID_ARGUMENT == Code::InvalidArgument as i32);
    assert!(WATCHCORE_NOT_FOUND == Code::NotFound as i32);
    assert!(WATCHCORE_NOT_READY == Code::NotReady as i32);
    assert!(WATCHCORE_TIMEOUT == Code::Timeout as i32);
    assert!(WATCHCORE_CLOSED == Code::Closed as i32);
    assert!(WATCHCORE_BUSY == Code::Busy as i32);
    assert!(WATCHCORE_UNSUPPORTED == Code::Unsupported as i32);
    assert!(WATCHCORE_OUT_OF_ORDER == Code::OutOfOrder as i32);
    assert!(WATCHCORE_COMPACTED == Code::Compacted as i32);
    assert!(WATCHCORE_LAGGED == Code::Lagged as i32);
    assert!(WATCHCORE_FUTURE_REVISION == Code::FutureRevision as i32);
    assert!(WATCHCORE_RESYNCED == Code::Resynced as i32);
    assert!(WATCHCORE_UNAUTHENTICATED == Code::Unauthenticated as i32);
    assert!(WATCHCORE_PERMISSION_DENIED == Code::PermissionDenied as i32);
    assert!(WATCHCORE_UNAVAILABLE == Code::Unavailable as i32);
    assert!(WATCHCORE_RESOURCE_EXHAUSTED == Code::ResourceExhausted as i32);
    assert!(WATCHCORE_PANIC == Code::Panic as i32);
    assert!(WATCHCORE_INTERNAL == Code::Internal as i32);
};

/// The number of bytes of `watchcore_error.message`, its NUL included.
pub const WATCHCORE_MESSAGE_BYTES: usize = 512;

/// Why a call failed. The struct is the caller's memory; it is written only by a call that fails. Numbers that do not
/// apply are 0.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_error {
    /// sizeof(watchcore_error), set by WATCHCORE_ERROR_INIT.
    pub size: u32,
    /// The code that was returned.
    pub code: i32,
    /// The revision that was asked for.
    pub asked: u64,
    /// The oldest revision of the window: a start after `oldest - 1` is possible.
    pub oldest: u64,
    /// The cache's revision.
    pub current: u64,
    /// LAGGED: the first revision of which an event was lost.
    pub lost_from: u64,
    /// LAGGED: the last revision of which an event was lost.
    pub lost_to: u64,
    /// The revision up to which the subscription had everything.
    pub position: u64,
    /// A sentence each: what was asked, what is true, what to do next. NUL-terminated UTF-8, cut if too long.
    pub message: [c_char; 512],
    /// The epoch of `position`.
    pub epoch: u64,
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message)
}

pub(super) fn unsupported(message: impl Into<String>) -> Error {
    Error::new(Code::Unsupported, message)
}

/// The text of a panic.
pub(super) fn panic_text(payload: Box<dyn std::any::Any + Send>) -> String {
    let text = if let Some(text) = payload.downcast_ref::<&'static str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a text".to_owned()
    };
    // Not dropped, because its drop might panic again.
    std::mem::forget(payload);
    text
}
