//! Objects in the forms in which they go out, and the frames of events, which are shared.

mod age;
mod event;
mod object;
mod shared;
mod table;

pub(crate) use event::ResourceFraming;
pub(crate) use object::{Form, Included, Object};
pub(crate) use shared::Frames;
pub(crate) use table::TableShape;

use bytes::Bytes;

/// In what the lines of the plain face go out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LineForm {
    /// As they are: one a frame.
    Lines,
    /// As server-sent events, each with its type.
    Events,
    /// The same with an id: a stream can go on behind it.
    EventsWithId,
}

/// The bytes of one event in one form: one chunk of HTTP/1.1, and what is in it. Counted; a clone is the same memory.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    chunk: Bytes,
    /// Bytes of the chunk before its payload.
    head: u8,
}

impl Frame {
    /// A frame of what `write` appends: a whole line, or a whole message.
    pub(crate) fn new(room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Frame {
        // The size of the payload stands before it, in as many digits as it needs: so room is left for the most.
        const DIGITS: usize = 16;
        let mut bytes = Vec::with_capacity(room + DIGITS + 4);
        bytes.extend_from_slice(&[b'0'; DIGITS]);
        bytes.extend_from_slice(b"\r\n");
        let payload_at = bytes.len();
        write(&mut bytes);
        let size = format!("{:x}", bytes.len() - payload_at);
        let from = DIGITS - size.len();
        bytes[from..DIGITS].copy_from_slice(size.as_bytes());
        bytes.extend_from_slice(b"\r\n");
        // What was left unused at the front stays, and a little of what a guess was too large. Not more: a frame may be kept
        // for long, and what is kept is counted by its bytes.
        if bytes.capacity() > 2 * bytes.len() {
            bytes.shrink_to_fit();
        }
        Frame { chunk: Bytes::from(bytes).slice(from..), head: (size.len() + 2) as u8 }
    }

    /// As a chunk of HTTP/1.1.
    pub(crate) fn chunk(&self) -> &Bytes {
        &self.chunk
    }

    /// What is in it.
    pub(crate) fn payload(&self) -> Bytes {
        self.chunk.slice(self.head as usize..self.chunk.len() - 2)
    }

    /// The same without the line feed at its end: a message of a WebSocket.
    pub(crate) fn message(&self) -> Bytes {
        let payload = self.payload();
        let end = payload.len() - usize::from(payload.ends_with(b"\n"));
        payload.slice(..end)
    }
}
