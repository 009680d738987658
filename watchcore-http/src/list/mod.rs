//! A list, of a resource's objects or of keys, in pieces as its client takes them.
//!
//! A [`ListSource`] is a walk over a snapshot, or a page of the core. It cannot fail: errors occur before the response
//! head is sent. The bytes are produced when the transport asks for them: [`pieces`], [`body`].

mod body;
mod client;
mod pieces;
mod source;

#[cfg(test)]
pub(crate) use body::ListPieces;
pub(crate) use body::{EncodedObject, ListBytes, PIECE, json_response, respond};
pub(crate) use client::{ListClient, Reader};
pub(crate) use pieces::{ListItems, Pieces};
pub(crate) use source::{ListSource, page_of};
