//! The properties of codes: name, sentence, and what to do.

use super::bytes::Sized32;
use super::contract::{frame, try_out_struct};
use super::error::watchcore_error;
use super::frame::{Fun, answer};
use super::text::{UNKNOWN, terminated};
use std::ffi::c_char;
use watchcore::Code;

/// The name of a code, such as "COMPACTED"; "UNKNOWN" for any other number. NUL-terminated, static, never
/// freed. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_name(code: i32) -> *const c_char {
    answer(Fun::watchcore_error_name, UNKNOWN.as_ptr(), || {
        texts_of(code).map_or(UNKNOWN.as_ptr(), |texts| texts.name.as_ptr().cast())
    })
}

/// The properties of a code.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_code_info {
    /// sizeof(watchcore_code_info).
    pub size: u32,
    /// The HTTP status that an API server would answer.
    pub http_status: u32,
    /// 1: the same call may succeed later without any other step.
    pub retryable: u32,
    /// 1: the handle that answered the code is of no further use, whatever handle that was. 0 says no more than that: a
    /// subscription may have ended with another code, see watchcore_subscription_poll.
    pub fatal: u32,
    /// How long an API server would tell a client to wait before the same call (Retry-After, which is in seconds); 0:
    /// it would not say, because waiting does not help.
    pub retry_after_ms: u64,
    /// The name, as watchcore_error_name gives it.
    pub name: *const c_char,
    /// The reason that Kubernetes gives with the HTTP status, such as "Expired"; empty if it has none.
    pub reason: *const c_char,
    /// One sentence about the code.
    pub sentence: *const c_char,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_code_info {
    const NAME: &'static str = "watchcore_code_info";
    const DEFAULT: Self = watchcore_code_info {
        size: size_of::<Self>() as u32,
        http_status: 0,
        retryable: 0,
        fatal: 0,
        retry_after_ms: 0,
        name: std::ptr::null(),
        reason: std::ptr::null(),
        sentence: std::ptr::null(),
    };
}

/// The properties of a code, also of WATCHCORE_OK. A number that is no code has the name "UNKNOWN", the HTTP
/// status 500 and the reason "InternalError", and is neither retryable nor fatal. `info`: the caller's struct;
/// its texts are NUL-terminated, static, never freed. Never blocks, O(1). Any thread, many at once. Codes:
/// INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_code_describe(
    code: i32,
    info: *mut watchcore_code_info,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_code_describe, error, {
        let info = try_out_struct!(info);
        info.write(info_of(code));
        Ok(())
    })
}

/// The largest revision. A read, a wait or a subscription at a larger one gets FUTURE_REVISION at once; a writer that
/// is given a larger one gets INVALID_ARGUMENT.
pub const WATCHCORE_REVISION_MAX: u64 = 4_503_599_627_370_495;

const _: () = assert!(WATCHCORE_REVISION_MAX == watchcore::MAX_REVISION);

fn info_of(code: i32) -> watchcore_code_info {
    let (Some(known), Some(texts)) = (Code::from_i32(code), texts_of(code)) else {
        return watchcore_code_info {
            http_status: 500,
            name: UNKNOWN.as_ptr(),
            reason: c"InternalError".as_ptr(),
            sentence: c"not a code of this library".as_ptr(),
            ..watchcore_code_info::DEFAULT
        };
    };
    let after = known.retry_after().map_or(0, |after| after.as_millis());
    watchcore_code_info {
        http_status: u32::from(known.http_status()),
        retryable: u32::from(known.is_retryable()),
        fatal: u32::from(known.is_fatal()),
        retry_after_ms: u64::try_from(after).unwrap_or(u64::MAX),
        name: texts.name.as_ptr().cast(),
        reason: texts.reason.as_ptr().cast(),
        sentence: texts.sentence.as_ptr().cast(),
        ..watchcore_code_info::DEFAULT
    }
}

/// A code, its name, its reason and its sentence, each with a NUL at its end.
struct Texts {
    code: i32,
    name: [u8; 32],
    reason: [u8; 32],
    sentence: [u8; 192],
}

/// Static, so that nothing is left to be freed.
static TEXTS: [Texts; Code::ALL.len()] = {
    let mut texts = [const { Texts { code: 0, name: [0; 32], reason: [0; 32], sentence: [0; 192] } }; Code::ALL.len()];
    let mut at = 0;
    while at < texts.len() {
        let code = Code::ALL[at];
        texts[at] = Texts {
            code: code as i32,
            name: terminated(code.name()),
            reason: terminated(code.reason()),
            sentence: terminated(code.text()),
        };
        at += 1;
    }
    texts
};

fn texts_of(code: i32) -> Option<&'static Texts> {
    TEXTS.iter().find(|texts| texts.code == code)
}
