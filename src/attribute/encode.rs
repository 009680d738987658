//! Attributes as bytes after a value.
//!
//! They are kept as bytes after the value: one word (the number of fields in its low 8 bits, of labels
//! above), one word for the end of each string, then the strings: the fields, then key and value of
//! each label in the order of the keys. Words are little-endian; the highest bit of an end says that the
//! field is absent. Fields after the last one that is present are left out, and where nothing is
//! present there are no bytes at all.

#![forbid(unsafe_code)]

use crate::data::key_value::{KeyValue, MOST_ATTRIBUTES};
use std::borrow::Cow;

/// The most fields that a cache can declare.
pub const MAX_FIELDS: usize = 64;
/// The most labels of one key-value.
const MAX_LABELS: usize = (1 << 24) - 1;
/// All strings of one key-value are shorter than this together.
pub(super) const TOO_LONG: usize = 1 << 29;
const ABSENT: u32 = 1 << 31;

const _: () = assert!(TOO_LONG < ABSENT as usize, "an end has room for that bit");
const _: () = assert!(
    (1 + MAX_FIELDS + 2 * MAX_LABELS) * size_of::<u32>() + TOO_LONG <= MOST_ATTRIBUTES,
    "a version has room for its bits beside the length"
);

/// A label and its value; `None` where the last member of that name is no scalar.
pub(crate) type Label<'v> = (Cow<'v, [u8]>, Option<Cow<'v, [u8]>>);

/// The attributes that were found in one key-value.
pub(crate) struct Extracted<'v> {
    pub(crate) fields: Vec<Option<Cow<'v, [u8]>>>,
    pub(crate) labels: Vec<Label<'v>>,
}

/// Appends what was found, or nothing and `false` where its strings have `limit` bytes or more.
pub(super) fn encode(mut found: Extracted<'_>, limit: usize, out: &mut Vec<u8>) -> bool {
    // A stable sort, so that of equal keys the last named one comes last.
    found.labels.sort_by(|one, other| one.0.cmp(&other.0));
    found.labels.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            std::mem::swap(next, kept);
        }
        same
    });
    found.labels.retain(|(_, value)| value.is_some());
    let fields = found.fields.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    if fields == 0 && found.labels.is_empty() {
        return true;
    }
    let strings = || {
        let fields = found.fields[..fields].iter().map(Option::as_deref);
        fields.chain(found.labels.iter().flat_map(|(key, value)| [Some(&**key), value.as_deref()]))
    };
    let length = strings().flatten().fold(0usize, |sum, string| sum.saturating_add(string.len()));
    if length >= limit || found.labels.len() > MAX_LABELS {
        return false;
    }
    out.reserve((1 + fields + 2 * found.labels.len()) * 4 + length);
    out.extend_from_slice(&((found.labels.len() as u32) << 8 | fields as u32).to_le_bytes());
    let mut end = 0;
    for string in strings() {
        end += string.map_or(0, <[u8]>::len) as u32;
        let absent = if string.is_none() { ABSENT } else { 0 };
        out.extend_from_slice(&(end | absent).to_le_bytes());
    }
    strings().flatten().for_each(|string| out.extend_from_slice(string));
    true
}

/// A view of encoded attributes; an empty slice has none.
///
/// Reading never panics, whatever the bytes are.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl KeyValue {
    /// The attribute of this number ([`Cache::attribute_number`](crate::Cache::attribute_number)), which the cache
    /// extracted when the key-value was written; `None` if it does not have it. O(1).
    ///
    /// ```
    /// use watchcore::{Attribute, Cache, Change};
    ///
    /// let cache = Cache::builder("/").field(Attribute::key_segment("namespace", 1)).build()?;
    /// cache.writer()?.apply(1, [Change::put("/pods/shop/web", "")])?;
    /// let namespace = cache.attribute_number("namespace").expect("declared above");
    /// let snapshot = cache.snapshot()?;
    /// assert_eq!(snapshot.get("/pods/shop/web").unwrap().attribute(namespace), Some(&b"shop"[..]));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn attribute(&self, number: usize) -> Option<&[u8]> {
        Attributes(self.attributes()).field(number)
    }
}

/// Up to this many labels are searched one by one, more by bisection.
const MAX_LINEAR: usize = 16;

impl<'a> Attributes<'a> {
    /// The number of fields and of labels.
    #[inline]
    fn counts(&self) -> (usize, usize) {
        let word = self.word(0).unwrap_or(0);
        ((word & 0xff) as usize, (word >> 8) as usize)
    }

    #[inline]
    fn word(&self, number: usize) -> Option<u32> {
        let bytes = self.0.get(number * 4..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// String `number` of `count`.
    #[inline]
    fn string(&self, number: usize, count: usize) -> Option<&'a [u8]> {
        let end = self.word(number + 1)?;
        let start = if number == 0 { 0 } else { self.word(number)? & !ABSENT };
        if end & ABSENT != 0 {
            return None;
        }
        let strings = self.0.get((count + 1) * 4..)?;
        strings.get(start as usize..end as usize)
    }

    /// The field with this number; `None` is absent.
    #[inline]
    pub(crate) fn field(&self, number: usize) -> Option<&'a [u8]> {
        let (fields, labels) = self.counts();
        if number < fields { self.string(number, fields + 2 * labels) } else { None }
    }

    /// The value of the label with this key; `None` is absent.
    #[inline]
    pub(crate) fn label(&self, key: &[u8]) -> Option<&'a [u8]> {
        let (fields, labels) = self.counts();
        let count = fields + 2 * labels;
        if labels <= MAX_LINEAR {
            return self.label_linear(key, fields, labels);
        }
        let (mut low, mut high) = (0, labels);
        while low < high {
            let middle = low + (high - low) / 2;
            let number = fields + 2 * middle;
            match self.string(number, count)?.cmp(key) {
                std::cmp::Ordering::Equal => return self.string(number + 1, count),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Compares label after label: most keys differ in length already, and no branch of a search is missed.
    #[inline]
    fn label_linear(&self, key: &[u8], fields: usize, labels: usize) -> Option<&'a [u8]> {
        let count = fields + 2 * labels;
        let strings = self.0.get((count + 1) * 4..)?;
        let mut start = if fields == 0 { 0 } else { self.word(fields)? & !ABSENT };
        for label in 0..labels {
            let number = fields + 2 * label;
            let end = self.word(number + 1)? & !ABSENT;
            if end.wrapping_sub(start) as usize == key.len() && strings.get(start as usize..end as usize)? == key {
                return self.string(number + 1, count);
            }
            start = self.word(number + 2)? & !ABSENT;
        }
        None
    }

    /// All labels, in the order of their keys.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + 'a {
        let (fields, labels) = self.counts();
        let (view, count) = (*self, fields + 2 * labels);
        (0..labels).map_while(move |label| {
            let number = fields + 2 * label;
            Some((view.string(number, count)?, view.string(number + 1, count)?))
        })
    }
}
