//! What the server promises, seen by a client that sees bytes: docs/HTTP.md, row by row.

mod discovery;
mod keys;
mod list_forms;
mod list_model;
mod lists;
mod parameters;
mod sockets;
mod support;
mod watch;
mod websocket;
