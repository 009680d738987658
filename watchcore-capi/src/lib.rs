//! The C interface. The header `include/watchcore.h` is generated from these files by `tests/header.rs`; what
//! a C user must know stands there, in the comments of the functions.
//!
//! | file | what |
//! | --- | --- |
//! | error | codes, the error struct, the frame that catches panics |
//! | handle | opaque handles: kind, process, busy, poisoned, freed |
//! | bytes | byte strings and sized structs of the caller |
//! | count | the test build's counts |
//! | declare, filter | attributes and indexes of a cache; filters with selectors |
//! | cache, writer, feeder, read, snapshot, subscription, batch, wakeset, status, log | one object each |
//!
//! Every exported function is `frame(name, error, body)`: the body checks what it was given, takes a guard of
//! the handle, calls the core and writes the outputs last (I10). All of them share one safety contract, the
//! header's: pointers are NULL or valid, handles were not freed.

// The exported items are reached by their symbols, not by a path; their safety contract is the module's.
#![allow(unreachable_pub, non_camel_case_types, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod batch;
mod bytes;
mod cache;
mod count;
mod declare;
mod error;
mod feeder;
mod filter;
mod handle;
mod log;
mod read;
mod snapshot;
mod status;
mod subscription;
#[cfg(all(test, not(loom)))]
mod tests;
mod wakeset;
mod writer;
