//! The contract, row by row. A test is named after its row.
#![allow(unreachable_pub)]

mod closed;
mod decode;
mod errors;
mod events;
mod filters;
mod futures;
mod guarantees;
mod liveness;
mod loss;
mod observed;
mod pages;
mod panics;
mod policies;
mod reads;
mod refused;
mod resync;
mod sources;
mod starts;
#[cfg(feature = "async")]
mod stream;
mod tasks;
mod tools;
mod waits;
mod window;
mod writer;

#[cfg(feature = "async")]
#[path = "../support/bell.rs"]
mod bell;
