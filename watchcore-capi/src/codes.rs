//! The properties of codes: name, sentence, and what to do.

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

/// One sentence about a code. NUL-terminated, static, never freed. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_strerror(code: i32) -> *const c_char {
    let unknown = c"not a code of this library".as_ptr();
    answer(Fun::watchcore_strerror, unknown, || texts_of(code).map_or(unknown, |texts| texts.sentence.as_ptr().cast()))
}

/// 1 if the same call may succeed later without any other step, else 0. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_is_retryable(code: i32) -> u32 {
    answer(Fun::watchcore_error_is_retryable, 0, || Code::from_i32(code).is_some_and(Code::is_retryable) as u32)
}

/// 1 if the handle that answered the code is of no further use, else 0. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_is_fatal(code: i32) -> u32 {
    answer(Fun::watchcore_error_is_fatal, 0, || Code::from_i32(code).is_some_and(Code::is_fatal) as u32)
}

/// The HTTP status an API server would answer for a code; 500 for an unknown one. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_http_status(code: i32) -> u32 {
    answer(Fun::watchcore_error_http_status, 500, || Code::from_i32(code).map_or(500, |c| c.http_status() as u32))
}

/// The largest revision. A read, a wait or a subscription at a larger one gets FUTURE_REVISION at once; a writer that
/// is given a larger one gets INVALID_ARGUMENT.
pub const WATCHCORE_REVISION_MAX: u64 = 4_503_599_627_370_495;

const _: () = assert!(WATCHCORE_REVISION_MAX == watchcore::MAX_REVISION);

/// The reason that Kubernetes gives with the HTTP status of a code, such as "Expired"; empty if it has none,
/// and "InternalError" for an unknown code. NUL-terminated, static, never freed. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_reason(code: i32) -> *const c_char {
    let unknown = c"InternalError".as_ptr();
    answer(Fun::watchcore_error_reason, unknown, || {
        texts_of(code).map_or(unknown, |texts| texts.reason.as_ptr().cast())
    })
}

/// How many seconds an API server would tell a client to wait before the same call (Retry-After); 0 if it
/// would not say, because waiting does not help. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_retry_after(code: i32) -> u32 {
    let seconds = || Code::from_i32(code).and_then(Code::retry_after).map_or(0, |after| after.as_secs() as u32);
    answer(Fun::watchcore_error_retry_after, 0, seconds)
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
