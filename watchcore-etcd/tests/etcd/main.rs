//! The feeder against real etcds, and against a fake one that is told what to do wrong.
#![allow(unreachable_pub)]

mod access;
mod audits;
mod begins;
mod compaction;
mod consistent;
mod corpus;
mod ends;
#[path = "../../../tests/support/fake/mod.rs"]
mod fake;
mod fakes;
mod faults;
mod feeder;
mod histories;
mod listing;
mod resync;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod tls;
mod unanswered;
mod violations;
