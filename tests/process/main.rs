//! Tests of what a process has once: its notifier, its reclaimer, its counts, its descriptors and threads.
//!
//! Each holds `alone()`, because what it stops or counts belongs to every test of the process; for the
//! same reason they are in no other binary.
#![allow(unreachable_pub)]

#[cfg(feature = "async")]
mod collector;
#[cfg(feature = "async")]
mod notifier;
mod shutdown;
mod threads;

#[cfg(feature = "async")]
#[path = "../support/bell.rs"]
mod bell;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The process for one test; a test that failed has let go of it.
#[allow(dead_code, reason = "without features no test is left")]
pub fn alone() -> MutexGuard<'static, ()> {
    static PROCESS: Mutex<()> = Mutex::new(());
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}
