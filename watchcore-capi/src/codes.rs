//! What a code means: its name, its sentence, and what to do about it.

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

/// 1 where the same call may succeed later without any other step, else 0. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_is_retryable(code: i32) -> u32 {
    answer(Fun::watchcore_error_is_retryable, 0, || Code::from_i32(code).is_some_and(Code::is_retryable) as u32)
}

/// 1 where the handle that answered the code is of no further use, else 0. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_is_fatal(code: i32) -> u32 {
    answer(Fun::watchcore_error_is_fatal, 0, || Code::from_i32(code).is_some_and(Code::is_fatal) as u32)
}

/// The HTTP status an API server would answer for a code; 500 for an unknown one. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_error_http_status(code: i32) -> u32 {
    answer(Fun::watchcore_error_http_status, 500, || Code::from_i32(code).map_or(500, |c| c.http_status() as u32))
}

/// A code, its name and its sentence, each with a NUL at its end.
struct Texts {
    code: i32,
    name: [u8; 32],
    sentence: [u8; 192],
}

/// Of the binary, so that nothing of them is left to be freed.
static TEXTS: [Texts; Code::ALL.len()] = {
    let mut texts = [const { Texts { code: 0, name: [0; 32], sentence: [0; 192] } }; Code::ALL.len()];
    let mut at = 0;
    while at < texts.len() {
        let code = Code::ALL[at];
        texts[at] = Texts { code: code as i32, name: terminated(code.name()), sentence: terminated(code.text()) };
        at += 1;
    }
    texts
};

fn texts_of(code: i32) -> Option<&'static Texts> {
    TEXTS.iter().find(|texts| texts.code == code)
}
