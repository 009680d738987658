//! The feeder against real etcds.
#![allow(unreachable_pub)]

mod access;
mod begins;
mod compaction;
mod consistent;
mod ends;
mod faults;
mod feeder;
mod histories;
mod listing;
mod resync;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod tls;
