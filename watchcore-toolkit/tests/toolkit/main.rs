//! The rows of docs/TOOLKIT.md, a module for each part.

mod empty;
