//! The synchronisation words of the core: std's, or loom's under `--cfg loom`.
//!
//! Everything that takes part in an ordering of design table "the atomics" comes from here, so that
//! the loom tests run the shipped types. Bookkeeping that carries no ordering (statistics, the
//! writer's private state) uses std directly.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};

pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Locks a std mutex; a poisoned one is used as it is (its data has no broken middle states).
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
