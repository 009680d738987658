//! The feeder against real etcds.
#![allow(unreachable_pub)]

mod access;
mod consistent;
mod faults;
mod feeder;
mod resync;
#[path = "../../../tests/support/mod.rs"]
mod support;
