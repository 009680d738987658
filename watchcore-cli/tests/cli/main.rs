//! The command line, as it was built: what it prints, and how it ends.
#![allow(unreachable_pub)]

mod commands;
mod diff;
mod embedded;
#[path = "../../../tests/support/fake/mod.rs"]
mod fake;
mod lag;
mod nonsense;
mod run;
mod select;
mod serve;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod terminal;
mod tour;
mod unread;
mod usage;
