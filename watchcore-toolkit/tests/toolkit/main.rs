//! The rows of docs/TOOLKIT.md, a module for each part.

// These lints are for the code of the crate.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

mod backoff;
mod broadcaster;
mod broadcaster_faults;
mod clocks;
mod contract;
mod fakes;
mod faults;
mod filters;
mod foreign;
mod hostile;
mod hostile_servers;
mod indexes;
mod informer;
mod informer_rows;
mod listers;
mod machine_rows;
mod many;
mod model;
mod objects;
mod order;
mod predicates;
mod queue;
mod queue_rows;
mod reflector;
mod reflector_faults;
mod retry;
mod rig;
/// The parser of the rows, which the core's runner has too.
#[path = "../../../tests/rows/script.rs"]
mod rows;
mod script;
mod source_rows;
mod support;
mod until;
mod until_rows;
mod watch_rows;
mod watch_speech;
mod watch_text;
