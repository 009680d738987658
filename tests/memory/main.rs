//! What the allocator counts against what `stats()` says, and against the bounds of the contract.
//!
//! The count is the whole process's: each test holds `heap::alone()`, and they are in no other binary.
#![allow(unreachable_pub)]

#[cfg(feature = "async")]
#[path = "../support/bell.rs"]
mod bell;
mod bound;
mod heap;
mod reclaimer;
mod sizing;
mod small;
mod worst;
