//! The rows of docs/TOOLKIT.md, a module for each part.

mod backoff;
mod empty;
mod objects;
mod queue;
mod support;
