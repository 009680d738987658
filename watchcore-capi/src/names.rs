//! Names of the numbers that the library returns, for logs and for people.

use super::batch::*;
use super::frame::{Fun, answer};
use super::log::*;
use super::status::*;
use super::subscription::{WATCHCORE_READ_PATH_CHAIN, WATCHCORE_READ_PATH_SCAN};
use super::subscription_list::*;
use super::text::UNKNOWN;
use super::writer::*;
use std::ffi::{CStr, c_char};

/// Names of event types: WATCHCORE_EVENT_...
pub const WATCHCORE_NAME_EVENT_TYPE: u32 = 1;
/// Names of a cache's states: WATCHCORE_STATE_...
pub const WATCHCORE_NAME_STATE: u32 = 2;
/// Names of a subscription's states: WATCHCORE_SUBSCRIPTION_STATE_...
pub const WATCHCORE_NAME_SUBSCRIPTION_STATE: u32 = 3;
/// Names of the reasons of a resync: WATCHCORE_RESYNC_...
pub const WATCHCORE_NAME_RESYNC_REASON: u32 = 4;
/// Names of a subscription's read paths: WATCHCORE_READ_PATH_...
pub const WATCHCORE_NAME_READ_PATH: u32 = 5;
/// Names of the levels of log messages: WATCHCORE_LOG_...
pub const WATCHCORE_NAME_LOG_LEVEL: u32 = 6;

/// The name of a number that the library returns: the name of its constant without the common prefix. `of`:
/// WATCHCORE_NAME_...; for example watchcore_name(WATCHCORE_NAME_EVENT_TYPE, WATCHCORE_EVENT_ADDED) is
/// "ADDED". "UNKNOWN" for any other number. For a code use watchcore_error_name. NUL-terminated, static,
/// never freed. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_name(of: u32, number: u32) -> *const c_char {
    answer(Fun::watchcore_name, UNKNOWN.as_ptr(), || name(of, number).as_ptr())
}

/// Derives each name from its constant's identifier, so that a name cannot be another constant's.
macro_rules! names {
    ($($of:ident, $prefix:literal: $($constant:ident)+;)+) => {
        fn name(of: u32, number: u32) -> &'static CStr {
            match (of, number) {
                $($(($of, $constant) => {
                    const NAME: &CStr = after_prefix($prefix, concat!(stringify!($constant), "\0"));
                    NAME
                })+)+
                _ => UNKNOWN,
            }
        }
    };
}

names! {
    WATCHCORE_NAME_EVENT_TYPE, "WATCHCORE_EVENT_":
        WATCHCORE_EVENT_ADDED WATCHCORE_EVENT_MODIFIED WATCHCORE_EVENT_DELETED WATCHCORE_EVENT_BOOKMARK
        WATCHCORE_EVENT_RESYNC WATCHCORE_EVENT_PUT WATCHCORE_EVENT_DELETE;
    WATCHCORE_NAME_STATE, "WATCHCORE_STATE_":
        WATCHCORE_STATE_NOT_READY WATCHCORE_STATE_READY WATCHCORE_STATE_STALE WATCHCORE_STATE_FAILED
        WATCHCORE_STATE_CLOSED;
    WATCHCORE_NAME_SUBSCRIPTION_STATE, "WATCHCORE_SUBSCRIPTION_STATE_":
        WATCHCORE_SUBSCRIPTION_STATE_AWAITS_LISTING WATCHCORE_SUBSCRIPTION_STATE_AWAITS_REVISION
        WATCHCORE_SUBSCRIPTION_STATE_INITIAL_STATE WATCHCORE_SUBSCRIPTION_STATE_LIVE
        WATCHCORE_SUBSCRIPTION_STATE_PARKED WATCHCORE_SUBSCRIPTION_STATE_OVERRUN
        WATCHCORE_SUBSCRIPTION_STATE_CATCHING_UP WATCHCORE_SUBSCRIPTION_STATE_TOO_SLOW
        WATCHCORE_SUBSCRIPTION_STATE_CLOSING WATCHCORE_SUBSCRIPTION_STATE_ENDED;
    WATCHCORE_NAME_RESYNC_REASON, "WATCHCORE_RESYNC_":
        WATCHCORE_RESYNC_COMPACTED WATCHCORE_RESYNC_HISTORY_RESET WATCHCORE_RESYNC_CHAIN_BROKEN
        WATCHCORE_RESYNC_TOO_FAR_BEHIND WATCHCORE_RESYNC_REQUESTED WATCHCORE_RESYNC_LAGGED;
    WATCHCORE_NAME_READ_PATH, "WATCHCORE_READ_PATH_":
        WATCHCORE_READ_PATH_SCAN WATCHCORE_READ_PATH_CHAIN;
    WATCHCORE_NAME_LOG_LEVEL, "WATCHCORE_LOG_":
        WATCHCORE_LOG_OFF WATCHCORE_LOG_ERROR WATCHCORE_LOG_WARN WATCHCORE_LOG_INFO WATCHCORE_LOG_DEBUG
        WATCHCORE_LOG_TRACE;
}

/// The rest of a NUL-terminated text after a prefix.
const fn after_prefix(prefix: &str, text: &'static str) -> &'static CStr {
    let (before, after) = text.as_bytes().split_at(prefix.len());
    let mut at = 0;
    while at < before.len() {
        assert!(before[at] == prefix.as_bytes()[at], "a constant of another set");
        at += 1;
    }
    match CStr::from_bytes_with_nul(after) {
        Ok(name) => name,
        Err(_) => panic!("it ends with a NUL"),
    }
}
