//! Frames: the bytes of one event, shared by all watchers that need them.

mod shared;

pub(crate) use shared::Frames;

use bytes::Bytes;

/// Encodings of the `/v1/keys` API's lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LineForm {
    /// One line per frame.
    Lines,
    /// Server-sent events, each with its type.
    Events,
    /// Server-sent events with an id, from which a client can resume.
    EventsWithId,
}

/// The bytes of one event in one form: an HTTP/1.1 chunk and, inside it, the payload. Reference-counted; clones share
/// the bytes.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// The whole chunk, or its part before `rest`.
    chunk: Bytes,
    /// Length of the chunk's size line, which precedes the payload.
    head: u8,
    rest: Option<Box<Rest>>,
}

/// The rest of a large value, referenced where the cache keeps it, and the bytes that follow it in the chunk.
#[derive(Clone, Debug)]
struct Rest {
    value: Bytes,
    end: Bytes,
}

/// The line break that ends a chunk.
const END: &[u8] = b"\r\n";

impl Frame {
    /// Creates a frame from the bytes that `write` appends: a whole line or message. `room` is the expected length.
    pub(crate) fn new(room: usize, write: impl FnOnce(&mut Vec<u8>)) -> Frame {
        let (mut bytes, payload_at) = begin(room);
        write(&mut bytes);
        let size = bytes.len() - payload_at;
        bytes.extend_from_slice(END);
        Frame::of(bytes, size, None)
    }

    /// Creates a frame from the bytes that `write` appends, a part of a value that is not copied, and `end`.
    pub(crate) fn around(room: usize, write: impl FnOnce(&mut Vec<u8>), value: Bytes, end: &[u8]) -> Frame {
        let (mut bytes, payload_at) = begin(room);
        write(&mut bytes);
        let size = bytes.len() - payload_at + value.len() + end.len();
        let end = Bytes::from([end, END].concat());
        Frame::of(bytes, size, Some(Box::new(Rest { value, end })))
    }

    /// `bytes` holds room for the size's digits, a line break, and the payload or its beginning. `size` is the
    /// payload's length.
    fn of(mut bytes: Vec<u8>, size: usize, rest: Option<Box<Rest>>) -> Frame {
        let size = format!("{size:x}");
        let from = DIGITS - size.len();
        bytes[from..DIGITS].copy_from_slice(size.as_bytes());
        // Unused digits at the front and a small excess capacity are kept. A large excess is freed: cached frames live
        // long, and the cache counts their length, not their capacity.
        if bytes.capacity() > 2 * bytes.len() {
            bytes.shrink_to_fit();
        }
        Frame { chunk: Bytes::from(bytes).slice(from..), head: (size.len() + END.len()) as u8, rest }
    }

    /// Returns the length of the chunk.
    pub(crate) fn len(&self) -> usize {
        self.chunk.len() + self.rest.as_ref().map_or(0, |rest| rest.value.len() + rest.end.len())
    }

    /// Returns the frame as an HTTP/1.1 chunk, in pieces.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let rest = self.rest.as_ref().map(|rest| [&rest.value[..], &rest.end[..]]);
        std::iter::once(&self.chunk[..]).chain(rest.into_iter().flatten())
    }

    /// Returns the payload of the chunk, in pieces.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = Bytes> + use<> {
        let head = self.head as usize;
        let inner = |end: &Bytes| end.slice(..end.len() - END.len());
        let (first, rest) = match &self.rest {
            None => (inner(&self.chunk).slice(head..), None),
            Some(rest) => (self.chunk.slice(head..), Some([rest.value.clone(), inner(&rest.end)])),
        };
        std::iter::once(first).chain(rest.into_iter().flatten())
    }

    /// Returns the payload without its final line feed, in pieces: a WebSocket message.
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
    /// Returns the chunk of a frame that has no `rest`.
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

/// Room for the payload's size in hexadecimal digits, which is known only after the payload is written.
const DIGITS: usize = 16;

/// Returns a buffer with room for the size line, and where the payload begins.
fn begin(room: usize) -> (Vec<u8>, usize) {
    let mut bytes = Vec::with_capacity(room + DIGITS + 2 * END.len());
    bytes.extend_from_slice(&[b'0'; DIGITS]);
    bytes.extend_from_slice(END);
    let payload_at = bytes.len();
    (bytes, payload_at)
}
