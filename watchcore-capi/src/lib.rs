//! The C interface. The header `include/watchcore.h` is generated from these files by `tests/header.rs`; what
//! a C user must know stands there, in the comments of the functions.
//!
//! | file | what |
//! | --- | --- |
//! | names | what a number means that the library answers |
//! | cache, writer, loading, feeder, read, snapshot, subscription, subscription_list, batch, wakeset, status, metrics, log | one object each |
//! | declare, range, filter, key_value | what a cache declares; what reads and subscriptions ask for; what they see |
//! | contract | the macros by which exports take what C gives |
//! | process | the library as a whole: versions, shutdown |
//! | codes | what a code means |
//! | handle | opaque handles: kind, busy, poisoned, freed; whether this is a forked child |
//! | frame | what holds inside of every exported function: no panic leaves it, no cancellation of the caller's thread enters |
//! | bytes | byte strings and sized structs of the caller |
//! | error | codes, the error struct |
//! | text | texts of the binary |
//!
//! A file uses those below it, not those above; of the first row, what is made uses what it is made of (a subscription
//! the cache).
//!
//! Every exported function is `frame!(name, error, { body })`: the body checks what it was given, takes a guard of
//! the handle, calls the core and writes the outputs last (I10). `read!`, `free!` and `answer` are the frames of functions
//! that cannot fail, `accessor!` that of functions which are inline in the header.
//!
//! # Safety
//!
//! This is the contract of every exported function, and of every `unsafe fn` here whose `# Safety` says "the
//! contract". A `SAFETY:` comment that says so relies on nothing else.
//!
//! *Whose.* A pointer argument is NULL, or the caller's and valid until the call returns: a struct as far as its
//! `size` says, bytes and arrays as long as the length beside them says, what a struct points to as well; an out-pointer
//! is writable and need not be initialised, but for the `size` of a struct. Nothing of the caller's is kept after the
//! call, but for the log function and its context, which stay valid until they are replaced.
//!
//! *Handles* come from the library, by `_new` or `_start`, or as the page or the text that a call answers, and belong to
//! the caller until they are given to `_free`, once, and never used after. What a function lends (an item of a page, an
//! index's name) is valid as long as the handle that it came from, or until the release that the header names. A pointer
//! that is no handle, or one of another kind, points to at least 8 readable bytes.
//!
//! *Threads.* A const handle may be used by many threads at once, another by one at a time: that is detected and
//! answered BUSY, not promised. What is promised is the end: no call with a const handle begins once `_free` began, and
//! none runs then but a wait of those the header names. `_free` may come while a thread is inside an exclusive call.

// The exported items are reached by their symbols, not by a path; their safety contract is the one above.
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
