//! The C interface. `tests/header.rs` generates the header `include/watchcore.h` from these files; the comments of the
//! functions are the manual for C users.
//!
//! | file | content |
//! | --- | --- |
//! | names | the names of numbers that the library returns |
//! | cache, writer, loading, feeder, read, snapshot, subscription, subscription_list, batch, wakeset, status, metrics, log | one object each |
//! | declare, range, filter, key_value | what a cache declares; what reads and subscriptions select; what they return |
//! | contract | the macros by which exports take arguments from C |
//! | process | the library as a whole: versions, shutdown |
//! | codes | the texts and properties of codes |
//! | handle | opaque handles: kind, busy, poisoned, freed; detection of a forked child |
//! | frame | guarantees around every exported function: no panic leaves it, and the caller's thread is not cancelled inside |
//! | bytes | byte strings and sized structs of the caller |
//! | error | codes, the error struct |
//! | text | static texts with a NUL |
//!
//! A file uses only files below it; within the row of objects, an object uses those it is made from (a subscription
//! uses the cache).
//!
//! Every exported function is `frame!(name, error, { body })`: the body checks its arguments, takes a guard of the
//! handle, calls the core, and writes the outputs last (I10). `read!`, `free!` and `answer` are the frames of functions
//! that cannot fail, `accessor!` is the frame of functions that are inline in the header.
//!
//! # Safety
//!
//! This is the contract of every exported function, and of every `unsafe fn` here whose `# Safety` section says "the
//! contract". A `SAFETY:` comment that says "the contract" relies on nothing else.
//!
//! *Ownership.* A pointer argument is NULL, or belongs to the caller and is valid until the call returns: a struct for
//! as many bytes as its `size` says, bytes and arrays for the length given beside them, and so is everything that a
//! struct points to. An out-pointer is writable and need not be initialised, except for the `size` of a struct. The
//! library keeps no pointer of the caller's after the call, except for the log function and its context, which stay
//! valid until they are replaced.
//!
//! *Handles* come from the library, by `_new` or `_start`, or as the page or the text that a call returns. They belong
//! to the caller until they are given to `_free`, once, and are never used afterwards. A borrowed result (an item of a
//! page, an index's name) is valid as long as the handle that it came from, or until the release that the header names.
//! A pointer that is no handle, or a handle of another kind, points to at least 8 readable bytes.
//!
//! *Threads.* Many threads may use a const handle at once, but only one at a time any other handle; the library does
//! not rely on the latter, because it detects a second thread and answers BUSY. It relies on this: no call with a const
//! handle begins once `_free` began, and none runs then, except for the waits that the header names. `_free` may be
//! called while a thread is inside an exclusive call.

// The exported items are reached by their symbols, not by a path; their safety contract is the crate's, above.
#![allow(unreachable_pub, non_camel_case_types, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod batch;
mod building;
mod bytes;
mod cache;
mod codes;
mod contract;
mod declare;
mod error;
mod feeder;
mod filter;
mod frame;
mod handle;
mod key_value;
mod loading;
mod log;
mod metrics;
mod names;
mod process;
mod range;
mod read;
mod snapshot;
mod status;
mod subscription;
mod subscription_list;
#[cfg(all(test, not(loom)))]
mod tests;
mod text;
mod wakeset;
mod writer;
