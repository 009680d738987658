//! A list in pieces of at most 64 KiB or one item, each produced when it is polled.

use super::body::ListPieces;
use super::source::{ListSource, VISITED};
use watchcore::KeyValue;

/// Room for an item's bytes besides key and value: numbers, and a name.
const ADDED: usize = 128;

/// The bytes after the items.
const END: &[u8] = b"]}\n";

/// The format of a list's items.
pub(crate) trait ListItems: Send + 'static {
    /// Returns a closure that appends the item of a key-value; `None` if the key-value is not an item of the list.
    fn item(&self, kv: &KeyValue) -> Option<impl FnOnce(&mut Vec<u8>)>;
}

/// A list being encoded.
pub(crate) struct Pieces<I> {
    items: I,
    source: ListSource,
    /// The bytes before the items.
    head: Vec<u8>,
    step: Step,
    /// Maximum size of a piece.
    size: usize,
    made: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Head,
    Items,
    Over,
}

impl<I: ListItems> Pieces<I> {
    /// Creates a list of any items after a head, in pieces of at most `size` bytes.
    pub(crate) fn of(items: I, source: ListSource, head: Vec<u8>, size: usize) -> Pieces<I> {
        Pieces { items, source, head, step: Step::Head, size, made: 0 }
    }
}

impl<I: ListItems> ListPieces for Pieces<I> {
    fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    fn made(&self) -> usize {
        self.made
    }

    /// Returns an empty piece if the visited keys contained no item of the list.
    fn next(&mut self) -> Vec<u8> {
        let mut out = match self.step {
            Step::Over => return Vec::new(),
            Step::Head => std::mem::take(&mut self.head),
            Step::Items => Vec::new(),
        };
        self.step = Step::Items;
        let Pieces { items, source, size, made, .. } = self;
        // Any piece may turn out to be the last, and must have room for the end.
        let size = *size - END.len();
        let (mut visited, mut shown) = (0, 0);
        let more = source.visit(|kv| {
            let room = kv.key().len() + kv.value().map_or(0, <[u8]>::len) + ADDED;
            if visited == VISITED || (shown > 0 && out.len() + room > size) {
                return false;
            }
            visited += 1;
            let Some(write) = items.item(kv) else { return true };
            let before = out.len();
            if out.capacity() < size {
                out.reserve(size.max(room));
            }
            if *made + shown > 0 {
                out.push(b',');
            }
            write(&mut out);
            // Escapes may make the item longer than its estimate; it then goes into the next piece.
            if shown > 0 && out.len() > size {
                out.truncate(before);
                return false;
            }
            shown += 1;
            true
        });
        *made += shown;
        if !more {
            out.extend_from_slice(END);
            self.step = Step::Over;
        }
        out
    }
}
