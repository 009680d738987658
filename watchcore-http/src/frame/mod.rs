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
    /// The chunk, or what is in it before `rest`.
    chunk: Bytes,
    /// Bytes of the chunk before its payload.
    head: u8,
    rest: Option<Box<Rest>>,
}

/// The rest of a large value, where the cache has it, and what stands behind it in the chunk.
#[derive(Clone, Debug)]
struct Rest {
    value: Bytes,
    end: Bytes,
}

/// The end of a chunk, behind its payload.
const END: &[u8] = b"\r\n";

impl Frame {
    /// A frame of what `write` appends: a whole line, or a whole message.
    pub(crate) fn new(room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Frame {
        let (mut bytes, payload_at) = begin(room);
        write(&mut bytes);
        let size = bytes.len() - payload_at;
        bytes.extend_from_slice(END);
        Frame::of(bytes, size, None)
    }

    /// A frame of what `write` appends, of a part of a value that is not copied, and of `end`.
    pub(crate) fn around(room: usize, write: impl FnOnce(&mut Vec<u8>), value: Bytes, end: &[u8]) -> Frame {
        let (mut bytes, payload_at) = begin(room);
        write(&mut bytes);
        let size = bytes.len() - payload_at + value.len() + end.len();
        let end = Bytes::from([end, END].concat());
        Frame::of(bytes, size, Some(Box::new(Rest { value, end })))
    }

    /// `bytes`: room for digits, what belongs behind these, the payload or its beginning. `size` is that of the payload.
    fn of(mut bytes: Vec<u8>, size: usize, rest: Option<Box<Rest>>) -> Frame {
        let size = format!("{size:x}");
        let from = DIGITS - size.len();
        bytes[from..DIGITS].copy_from_slice(size.as_bytes());
        // Unused room at the front stays, and a little of a guess that was too large. Not more: a frame may be kept for long,
        // and kept frames are counted by their bytes.
        if bytes.capacity() > 2 * bytes.len() {
            bytes.shrink_to_fit();
        }
        Frame { chunk: Bytes::from(bytes).slice(from..), head: (size.len() + END.len()) as u8, rest }
    }

    /// Bytes of the chunk.
    pub(crate) fn len(&self) -> usize {
        self.chunk.len() + self.rest.as_ref().map_or(0, |rest| rest.value.len() + rest.end.len())
    }

    /// The frame as a chunk of HTTP/1.1, in pieces.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let rest = self.rest.as_ref().map(|rest| [&rest.value[..], &rest.end[..]]);
        std::iter::once(&self.chunk[..]).chain(rest.into_iter().flatten())
    }

    /// The payload of the chunk, in pieces.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = Bytes> + use<> {
        let head = self.head as usize;
        let inner = |end: &Bytes| end.slice(..end.len() - END.len());
        let (first, rest) = match &self.rest {
            None => (inner(&self.chunk).slice(head..), None),
            Some(rest) => (self.chunk.slice(head..), Some([rest.value.clone(), inner(&rest.end)])),
        };
        std::iter::once(first).chain(rest.into_iter().flatten())
    }

    /// The payload without the line feed at its end, in pieces: a message of a WebSocket.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Bytes> + use<> {
        let mut pieces: Vec<Bytes> = self.payloads().collect();
        if let Some(last) = pieces.last_mut() {
            let end = last.len() - usize::from(last.ends_with(b"\n"));
            last.truncate(end);
        }
        pieces.into_iter()
    }
}

#[cfg(test)]
fn joined(pieces: impl Iterator<Item = Bytes>) -> Bytes {
    let pieces: Vec<Bytes> = pieces.collect();
    match &pieces[..] {
        [one] => one.clone(),
        several => Bytes::from(several.concat()),
    }
}

#[cfg(test)]
impl Frame {
    /// The chunk of one that is whole.
    pub(crate) fn chunk(&self) -> &Bytes {
        assert!(self.rest.is_none());
        &self.chunk
    }

    pub(crate) fn payload(&self) -> Bytes {
        joined(self.payloads())
    }

    pub(crate) fn message(&self) -> Bytes {
        joined(self.messages())
    }
}

/// The size of the payload stands before it, in as many digits as it needs: so room is left for the most.
const DIGITS: usize = 16;

/// The beginning of a chunk, and where its payload begins.
fn begin(room: usize) -> (Vec<u8>, usize) {
    let mut bytes = Vec::with_capacity(room + DIGITS + 2 * END.len());
    bytes.extend_from_slice(&[b'0'; DIGITS]);
    bytes.extend_from_slice(END);
    let payload_at = bytes.len();
    (bytes, payload_at)
}
