//! A summary of a closed segment, by which a scanning filter skips it whole.
//!
//! The writer fills it in while it fills a segment, and gives it to the segment when that is closed. Readers load
//! it only under a head beyond the segment, which covers it.

#![forbid(unsafe_code)]

use crate::attribute::encode::Attributes;
use crate::attribute::schema::Schema;
use crate::data::event::{Event, Kind};
use crate::data::key_value::KeyValue;
use crate::filter::matcher::Matcher;
use crate::filter::selector::Test;
use crate::store::hash::KeyHash;
use std::hash::{BuildHasher, Hasher};

/// Bits of the filter of attribute values.
const BITS: u64 = 4096;

/// What the events of a segment have in common.
pub(crate) struct Summary {
    /// Slots of the events with the lowest and the highest key.
    low: u32,
    high: u32,
    bounds: KeyBounds,
    /// There is a mark, or a revision that continues in another segment: no filter may skip it.
    keep: bool,
    /// A bit for each attribute value of an event, old or new.
    values: Option<Box<[u64; BITS as usize / 64]>>,
    /// Declared fields.
    fields: usize,
}

/// What most keys that lie between the lowest and the highest one are known by, without a look at these: as many words of
/// eight bytes as both begin with, and of each the word that follows, as a number.
///
/// An example: the lowest key is `/pods/a/web-0001`, the highest `/pods/a/web-0009`. Both begin with the word `/pods/a/`,
/// and the numbers are those of `web-0001` and `web-0009`. `/pods/a/web-0004` lies between them. Of `/pods/a/web-00010`,
/// whose number is that of the lowest, nothing is known.
#[derive(Default)]
struct KeyBounds {
    common: [[u8; 8]; MOST_WORDS],
    words: usize,
    low: u64,
    high: u64,
}

const MOST_WORDS: usize = 4;

impl KeyBounds {
    fn new(low: &[u8], high: &[u8]) -> KeyBounds {
        let [low, high] = [low, high].map(|key| {
            let mut words = [[0; 8]; MOST_WORDS + 1];
            words.as_flattened_mut().iter_mut().zip(key).for_each(|(to, from)| *to = *from);
            words
        });
        let words = low.iter().zip(&high).take(MOST_WORDS).take_while(|(low, high)| low == high).count();
        let common = *low.first_chunk().expect("one word less");
        KeyBounds { common, words, low: u64::from_be_bytes(low[words]), high: u64::from_be_bytes(high[words]) }
    }

    /// Whether it is known that a key lies between them.
    #[inline]
    fn hold(&self, key: &[u8]) -> bool {
        let (words, _) = key.as_chunks();
        let Some(next) = words.get(self.words) else { return false };
        let number = u64::from_be_bytes(*next);
        let common = &self.common[..self.words];
        self.low < number && number < self.high && common.iter().zip(words).all(|(common, word)| common == word)
    }
}

fn bit(tag: u64, name: &[u8], value: &[u8]) -> u64 {
    // One seed for the process: writer and readers must agree.
    static SEED: std::sync::OnceLock<KeyHash> = std::sync::OnceLock::new();
    let mut hasher = SEED.get_or_init(KeyHash::default).build_hasher();
    hasher.write_u64(tag);
    for text in [name, value] {
        hasher.write_usize(text.len());
        hasher.write(text);
    }
    hasher.finish() % BITS
}

const LABEL: u64 = 1 << 32;

impl Summary {
    pub(crate) fn new(schema: &Schema) -> Summary {
        let values = (!schema.is_empty()).then(|| Box::new([0; BITS as usize / 64]));
        let bounds = KeyBounds::default();
        Summary { low: 0, high: 0, bounds, keep: false, values, fields: schema.names().count() }
    }

    /// Takes an event into account, in the order of the slots. False: its key is to be compared, see
    /// [`Summary::widen`].
    #[inline(always)]
    #[must_use]
    pub(crate) fn add(&mut self, slot: u32, event: &Event) -> bool {
        self.keep |= event.kind() == Kind::Resync || (slot == 0 && !event.is_first());
        if let Some(values) = &mut self.values {
            add_both(&mut values[..], self.fields, event);
        }
        self.bounds.hold(event.key())
    }

    /// The event of a slot may have the lowest or the highest key. `event_at`: the event of a slot up to this one.
    #[cold]
    pub(crate) fn widen<'a>(&mut self, slot: u32, event_at: impl Fn(u32) -> &'a Event) {
        let (key, low, high) = (event_at(slot).key(), event_at(self.low).key(), event_at(self.high).key());
        let (is_low, is_high) = (slot == 0 || key < low, slot == 0 || key > high);
        if is_low {
            self.low = slot;
        }
        if is_high {
            self.high = slot;
        }
        if is_low || is_high {
            self.bounds = KeyBounds::new(event_at(self.low).key(), event_at(self.high).key());
        }
    }

    /// The segment is closed with this event.
    pub(crate) fn close(&mut self, last: &Event) {
        self.keep |= !last.is_last();
    }

    /// Whether no event of the segment can pass.
    pub(crate) fn excludes<'a>(&self, matcher: &Matcher, event_at: impl Fn(u32) -> &'a Event) -> bool {
        if self.keep {
            return false;
        }
        let outside = matcher.range().is_some_and(|range| {
            let span = &range.span;
            event_at(self.high).key() < &span.from[..]
                || span.to.as_ref().is_some_and(|to| event_at(self.low).key() >= &to[..])
        });
        outside || self.values.as_ref().is_some_and(|values| lacks(&values[..], matcher))
    }
}

fn set(values: &mut [u64], bit: u64) {
    values[bit as usize / 64] |= 1 << (bit % 64);
}

/// The values of what a key is and of what it was. Apart: most caches declare no attributes.
#[inline(never)]
fn add_both(values: &mut [u64], fields: usize, event: &Event) {
    for kv in [event.kv(), event.prev()].into_iter().flatten() {
        add_values(values, fields, kv);
    }
}

fn add_values(values: &mut [u64], fields: usize, kv: &KeyValue) {
    let attributes = Attributes(kv.attributes());
    attributes.labels().for_each(|(name, value)| set(values, bit(LABEL, name, value)));
    for number in 0..fields {
        if let Some(value) = attributes.field(number) {
            set(values, bit(number as u64, b"", value));
        }
    }
}

/// Whether some condition needs a value that no event has.
fn lacks(values: &[u64], matcher: &Matcher) -> bool {
    let has = |bit: u64| values[bit as usize / 64] >> (bit % 64) & 1 == 1;
    let label = matcher.labels().iter().any(|requirement| match &requirement.test {
        Test::In(all) => !all.iter().any(|value| has(bit(LABEL, requirement.key.as_bytes(), value.as_bytes()))),
        _ => false,
    });
    label
        || matcher.fields().iter().any(|(number, field)| {
            field.equal && !field.value.is_empty() && !has(bit(*number as u64, b"", field.value.as_bytes()))
        })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Of keys that begin alike for any number of bytes, around those of a word and of all words.
    #[test]
    fn keys_known_to_lie_between_do() {
        let suffixes: [&[u8]; 9] = [
            b"",
            b"\0",
            b"a",
            b"a\0",
            b"aaaaaaaa",
            b"aaaaaaab",
            b"aaaaaaaabc",
            b"b\xff\xff\xff\xff\xff\xff\xff",
            b"\xff",
        ];
        let begins = [0, 1, 7, 8, 9, 15, 16, 31, 32, 33, 40].map(|length| vec![b'p'; length]);
        let mut keys: Vec<Vec<u8>> =
            begins.iter().flat_map(|begin| suffixes.map(|suffix| [&begin[..], suffix].concat())).collect();
        keys.sort();
        let mut known = 0;
        for (at, low) in keys.iter().enumerate() {
            for high in &keys[at..] {
                let bounds = KeyBounds::new(low, high);
                for key in keys.iter().filter(|key| bounds.hold(key)) {
                    assert!(low < key && key < high, "{low:?} {key:?} {high:?}");
                    known += 1;
                }
            }
        }
        assert!(known > 10_000, "{known}");
        let bounds = KeyBounds::new(b"/pods/a/web-0001", b"/pods/a/web-0009");
        assert!(bounds.hold(b"/pods/a/web-0004") && bounds.hold(b"/pods/a/web-00020"));
        assert!(!bounds.hold(b"/pods/a/web-00010") && !bounds.hold(b"/pods/b/web-0004") && !bounds.hold(b"/pods/a"));
    }
}
