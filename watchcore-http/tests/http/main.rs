//! The server's promises, seen by a client of raw bytes: the rows of docs/HTTP.md.

mod access;
mod alive;
mod beside;
mod discovery;
mod hostile;
mod keys;
mod list_forms;
mod list_model;
mod lists;
mod newest;
mod operate;
mod page;
mod parameters;
mod resumed;
mod revocation;
mod shutdown;
mod sockets;
mod stalled;
mod support;
mod tls;
mod watch;
mod websocket;
