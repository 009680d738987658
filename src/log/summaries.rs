//! A summary of a closed segment, by which a scanning filter skips it whole.
//!
//! The writer fills it in while it fills a segment, and gives it to the segment when that is closed. Readers load
//! it only under a head beyond the segment, which covers it.

#![forbid(unsafe_code)]

use crate::attribute::encode::Attributes;
use crate::attribute::schema::Schema;
use crate::data::event::{Event, Kind};
use crate::data::key_number::{common_bytes, key_number};
use crate::data::key_value::KeyValue;
use crate::filter::matcher::Matcher;
use crate::filter::selector::Test;
use crate::store::hash::KeyHash;
use std::hash::{BuildHasher, Hasher};

/// Bits of the filter of attribute values.
const BITS: u64 = 4096;

/// The range of keys and the indexes that the events of a segment touch.
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

/// How most keys are known to lie beside the lowest and the highest one, without a look at these: by the bytes that both
/// begin with, and of each the eight that follow, as a number.
///
/// An example: the lowest key is `/pods/a/web-0001`, the highest `/pods/a/web-0009`. Both begin with `/pods/a/web-000`, and
/// the numbers are those of `1` and `9`. `/pods/a/web-0004` and `/pods/a/web-00010` lie between them, `/pods/a/web-000a`
/// above both. The numbers do not decide about `/pods/a/web-0001\0`, whose number is that of the lowest, nor about
/// `/pods/b/web`, which begins otherwise.
struct KeyBounds {
    /// The common prefix of both: its length in bytes, none or at least a word; its whole words, and its last word. A
    /// length above that of any key: there is no key yet.
    common: usize,
    words: [u64; MOST_WORDS],
    last: u64,
    low: u64,
    high: u64,
}

const WORD: usize = 8;

/// The longest prefix that is looked at, in words: of longer ones more keys have the number of the lowest or the highest.
const MOST_WORDS: usize = 8;

/// The words of a key, as far as there are whole ones.
fn words_of(key: &[u8]) -> impl Iterator<Item = u64> + '_ {
    key.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
}

impl KeyBounds {
    fn new(low: &[u8], high: &[u8]) -> KeyBounds {
        let common = match common_bytes(low, high) {
            0..WORD => 0,
            common => common.min(WORD * MOST_WORDS),
        };
        let mut words = [0; MOST_WORDS];
        words.iter_mut().zip(words_of(&low[..common])).for_each(|(to, word)| *to = word);
        let last = words_of(&low[common.saturating_sub(WORD)..common]).next().unwrap_or(0);
        KeyBounds { common, words, last, low: key_number(&low[common..]), high: key_number(&high[common..]) }
    }

    /// The bounds of a segment without a key.
    fn none() -> KeyBounds {
        KeyBounds { common: usize::MAX, words: [0; MOST_WORDS], last: 0, low: 0, high: 0 }
    }

    /// The number of a key that begins as both do.
    #[inline(always)]
    fn number_of(&self, key: &[u8]) -> Option<u64> {
        let (begin, rest) = key.split_at_checked(self.common)?;
        // Both words may have bytes in common.
        let is_alike = begin.last_chunk().is_none_or(|word| u64::from_ne_bytes(*word) == self.last)
            && words_of(begin).zip(&self.words).all(|(word, common)| word == *common);
        is_alike.then(|| key_number(rest))
    }

    /// Whether a key is known to lie between them.
    #[inline]
    fn hold(&self, key: &[u8]) -> bool {
        self.number_of(key).is_some_and(|number| self.low < number && number < self.high)
    }

    /// The side on which a key is known to lie outside the bounds, and its number.
    fn place_beyond(&self, key: &[u8]) -> Option<(Beyond, u64)> {
        let number = self.number_of(key)?;
        if number > self.high {
            return Some((Beyond::Above, number));
        }
        (number < self.low).then_some((Beyond::Below, number))
    }
}

/// Beyond which of the two a key lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beyond {
    Below,
    Above,
}

fn bit(tag: u64, name: &[u8], value: &[u8]) -> u64 {
    // The process has one seed: writer and readers must agree.
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
        let bounds = KeyBounds::none();
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
    #[inline(never)]
    pub(crate) fn widen<'a>(&mut self, slot: u32, event_at: impl Fn(u32) -> &'a Event) {
        let key = event_at(slot).key();
        match self.bounds.place_beyond(key) {
            // Keys that come in their order are each the highest.
            Some((Beyond::Above, number)) => (self.high, self.bounds.high) = (slot, number),
            Some((Beyond::Below, number)) => (self.low, self.bounds.low) = (slot, number),
            None => self.compare(slot, key, event_at),
        }
    }

    #[cold]
    fn compare<'a>(&mut self, slot: u32, key: &[u8], event_at: impl Fn(u32) -> &'a Event) {
        let (is_low, is_high) =
            (slot == 0 || key < event_at(self.low).key(), slot == 0 || key > event_at(self.high).key());
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

    /// Keys share a prefix of any length, around the length of a word and of all words.
    #[test]
    #[cfg_attr(miri, ignore = "it is of numbers alone")]
    fn keys_lie_where_they_are_known_to() {
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
        let begins = [0, 1, 7, 8, 9, 15, 16, 31, 32, 33, 40, 63, 64, 65, 71, 72, 80].map(|length| vec![b'p'; length]);
        let mut keys: Vec<Vec<u8>> =
            begins.iter().flat_map(|begin| suffixes.map(|suffix| [&begin[..], suffix].concat())).collect();
        keys.sort();
        let mut known = [0; 3];
        for (at, low) in keys.iter().enumerate() {
            for high in &keys[at..] {
                let bounds = KeyBounds::new(low, high);
                for key in &keys {
                    if bounds.hold(key) {
                        assert!(low < key && key < high, "{low:?} {key:?} {high:?}");
                        known[0] += 1;
                    }
                    if let Some((beyond, _)) = bounds.place_beyond(key) {
                        assert!(
                            if beyond == Beyond::Below { key < low } else { key > high },
                            "{low:?} {key:?} {high:?}"
                        );
                        known[1 + beyond as usize] += 1;
                    }
                }
            }
        }
        assert!(known.iter().all(|known| *known > 10_000), "{known:?}");
    }

    #[test]
    fn keys_are_known_by_what_follows_the_common_bytes() {
        let bounds = KeyBounds::new(b"/pods/a/web-0001", b"/pods/a/web-0009");
        let beyond = |key: &[u8]| bounds.place_beyond(key).map(|(beyond, _)| beyond);
        assert!([&b"/pods/a/web-0004"[..], b"/pods/a/web-00010"].iter().all(|key| bounds.hold(key)));
        assert_eq!(beyond(b"/pods/a/web-0000"), Some(Beyond::Below));
        assert_eq!(beyond(b"/pods/a/web-000a"), Some(Beyond::Above));
        for key in ["/pods/a/web-0001", "/pods/a/web-0001\0", "/pods/a/web-0009", "/pods/b/web-0004", "/pods/a"] {
            assert!(!bounds.hold(key.as_bytes()) && beyond(key.as_bytes()).is_none(), "{key}");
        }
        let none = KeyBounds::none();
        assert!(!none.hold(b"/pods") && none.place_beyond(b"/pods").is_none());
    }
}
