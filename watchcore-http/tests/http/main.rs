//! What the server promises, seen by a client that sees bytes: docs/HTTP.md, row by row.

mod lists;
mod parameters;
mod sockets;
mod support;
