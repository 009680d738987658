//! Static texts for C, each with a NUL at its end, so that nothing is left to be freed.

use std::ffi::CStr;

/// The name of an unknown number.
pub(super) const UNKNOWN: &CStr = c"UNKNOWN";

/// Copies a text into a longer array, which so ends with a NUL.
pub(super) const fn terminated<const N: usize>(text: &str) -> [u8; N] {
    assert!(text.len() < N, "a text that is too long for its place");
    let mut bytes = [0; N];
    let mut at = 0;
    while at < text.len() {
        bytes[at] = text.as_bytes()[at];
        at += 1;
    }
    bytes
}
