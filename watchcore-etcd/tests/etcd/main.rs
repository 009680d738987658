//! The feeder with real etcds, and with a fake one that makes errors on request.
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
