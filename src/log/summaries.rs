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
    /// There is a mark, or a revision that continues in another segment: no filter may skip it.
    keep: bool,
    /// A bit for each attribute value of an event, old or new.
    values: Option<Box<[u64; BITS as usize / 64]>>,
    /// Declared fields.
    fields: usize,
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
        Summary { low: 0, high: 0, keep: false, values, fields: schema.names().count() }
    }

    /// Takes an event into account, in the order of the slots. `event_at`: the event of a slot up to this one.
    #[inline]
    pub(crate) fn add<'a>(&mut self, slot: u32, event: &Event, event_at: impl Fn(u32) -> &'a Event) {
        self.keep |= event.kind() == Kind::Resync || (slot == 0 && !event.is_first());
        if event.key() < event_at(self.low).key() {
            self.low = slot;
        }
        if event.key() > event_at(self.high).key() {
            self.high = slot;
        }
        if let Some(values) = &mut self.values {
            for kv in [event.kv(), event.prev()].into_iter().flatten() {
                add_values(&mut values[..], self.fields, kv);
            }
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
