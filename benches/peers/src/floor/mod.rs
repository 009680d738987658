//! Floors: bare programs that do a row's work in the way of this library, and nothing that makes a library of it.
//!
//! A floor copies the bytes, touches the lines of memory and makes the calls of the system that the row needs. It
//! checks nothing, filters nothing, reports no errors and frees no memory: all that it needs is there before the row
//! begins, and is taken again in the order in which a log of the default window gives it back. What a program cannot do
//! faster than this, no library can do faster in the same way. Another way may be faster: a floor that a peer, or the
//! library, is below bounds nothing.
//!
//! Floors take part as contestants whose names begin with `floor`. They are no peers, for no program could use them.
//!
//! - [`memory`]: the lines and blocks that all of them are made of.
//! - [`ring`]: the log, and what reads a window of it.
//! - [`everybody`], [`one_each`]: watchers of every event, and of one key or namespace each.
//! - [`store`], [`order`], [`lists`]: the objects; the order of the keys; many read at once.

pub mod everybody;
pub mod lists;
mod memory;
pub mod one_each;
mod order;
pub mod ring;
pub mod store;
mod thread;
