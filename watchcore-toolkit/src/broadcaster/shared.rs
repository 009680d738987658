//! The state that a broadcaster and its watchers share.

#![forbid(unsafe_code)]

use super::gate::Gate;
use super::log::ObjectLog;
use super::options::WatchOptions;
use crate::event::Status;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The state that the broadcaster and its watchers share.
pub(super) struct Shared<T> {
    pub(super) gate: Gate<Option<ObjectLog<T>>>,
    /// The number of the last object, stored before the object can be read: a reader that finds an
    /// object in the log finds its number here.
    pub(super) head: AtomicU64,
    /// The last event of all watchers, if the broadcaster was shut down with an error.
    pub(super) failed: OnceLock<Status>,
    pub(super) defaults: WatchOptions,
    /// The minimum number of events that the log keeps.
    pub(super) window: u64,
    pub(super) epoch: u64,
    pub(super) watchers: AtomicUsize,
}

impl<T> Shared<T> {
    /// The number of the next object.
    pub(super) fn head(&self) -> u64 {
        // Acquire pairs with the publisher's Release store, which precedes the publication in the
        // log: everything that was read in the log is below this number.
        self.head.load(Ordering::Acquire) + 1
    }
}
