//! The rows of docs/TOOLKIT.md, a module for each part.

mod backoff;
mod empty;
mod informer;
mod objects;
mod queue;
mod support;
