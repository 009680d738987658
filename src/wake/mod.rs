//! Waking: where consumers sleep, and the threads of the process that wake them.
//!
//! A consumer sleeps in its [`ParkedWaiter`]. The writer pays a fence and a load per revision while nobody sleeps. Else a
//! pass finds the consumers to wake. The writer does it itself where little is to be looked at; otherwise the notifier
//! does. The thread that holds the pass lock owns the tables, which say who waits for what; consumers and feeders reach it
//! by the words and the inbox of [`Waiters`]. Filters run on its thread, and it holds no lock
//! meanwhile that another thread could wait for. Filters with a predicate of the user's have a hub and a notifier of their
//! own ([`FilterCode`]).
//!
//! Three layers, each of which calls only those above it in this table:
//!
//! | layer | what |
//! | --- | --- |
//! | `sleep` | who sleeps: a parked waiter with its waker, its count and its messages |
//! | `tables` | who is looked for: which waiter waits for what, and one pass over them |
//! | `notify` | who wakes: the calls of the writer, the pass lock, the threads that do the passes |
//!
//! | writer, notifier | consumer | order |
//! | --- | --- | --- |
//! | head or progress or state; fence; `waiting.load` | count in `waiting`, PARKED; fence; look | SeqCst fences: one of the two sees the other |
//! | notifier: look; fence; inbox and waiters | the same | SeqCst fences: one of the two sees the other |
//! | call; the holder of the pass lock: answer, then look | | AcqRel: no lost wake-up (`pass_lock`) |
//! | notifier: `scanned_to` stored at the end of a pass | loaded before PARKED is left | Release / Acquire |
//!
//! The protocol with a worked example: docs/internals/waking.md.

mod notify;
mod sleep;
mod tables;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use notify::hub::{Hub, HubOwner, Hubs};
#[cfg(all(test, loom))]
pub(crate) use notify::notifier::model as notifier_model;
#[cfg(not(loom))]
pub(crate) use notify::notifier::{start, workers};
pub(crate) use sleep::due::Due;
pub(crate) use sleep::group::{FilterCode, GroupRef};
pub(crate) use sleep::interest::{CacheFrontier, Interest};
pub(crate) use sleep::parked_waiter::{ParkedWaiter, Rest};
pub(crate) use sleep::parker::{Parker, Unparked, WaiterCell, Watched};
pub(crate) use sleep::waiters::Waiters;
pub use sleep::wake_set::WakeSet;
pub(crate) use sleep::wake_set::not_in_a_set;
pub(crate) use sleep::waker::Waker;
pub(crate) use tables::view::{FirstMatch, Overtaken, Searched, VisitEvent};
