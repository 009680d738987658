//! The layout of a stored object: where the parts lie that are replaced when it is sent.
//!
//! An object is sent as it was stored, except for three members of `metadata`: `resourceVersion` becomes the revision
//! of the key; `name` and `namespace` become those of the key. Authorizers decide by the key, so an object must not
//! claim to be another one. Nearly every object is stored with the name and namespace of its key. Then only the version
//! changes, and the layout says where it lies, in 16 bytes that the cache keeps with the value. For the others, the
//! positions are searched again when the object is framed ([`write_edited`]).

use std::ops::Range;
use watchcore::json::JsonScan;

/// Flag: the stored name is not the last segment of the key.
const OTHER_NAME: u32 = 1 << 31;
/// Flag: the stored namespace is not the segment before that.
const OTHER_NAMESPACE: u32 = 1 << 30;
/// Flag: `metadata` is missing, empty, repeated or not an object, or `resourceVersion` is repeated.
const ODD: u32 = 1 << 29;
/// Flag: the object states a namespace.
const HAS_NAMESPACE: u32 = 1 << 28;
const LENGTH: u32 = HAS_NAMESPACE - 1;

/// Positions in the value of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Byte range of the object `metadata` with its braces; empty if there is none.
    metadata: (u32, u32),
    /// Where the value of `resourceVersion` begins; if its length is 0, where the member is to be inserted, before the
    /// others.
    version_at: u32,
    /// Length of the value of `resourceVersion`, and the flags.
    version: u32,
}

/// Name and namespace of an object, from its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'k> {
    pub(crate) namespace: Option<&'k str>,
    pub(crate) name: &'k str,
}

/// The result of scanning a value for `metadata`.
#[derive(Default)]
struct MetadataScan {
    metadata: Option<Range<usize>>,
    /// Whether `metadata` is an object, and whether that object has members.
    is_object: bool,
    has_members: bool,
    versions: Vec<Range<usize>>,
    names: Vec<Range<usize>>,
    namespaces: Vec<Range<usize>>,
    /// Whether `metadata` occurs more than once.
    twice: bool,
}

/// Scans a value; `None` if it is not a JSON object. The last of repeated members counts, as in Go.
fn scan_metadata(value: &[u8]) -> Option<MetadataScan> {
    std::str::from_utf8(value).ok()?;
    let mut found = MetadataScan::default();
    let mut scan = JsonScan::new(value);
    scan.members(|scan, member| {
        if !member.is("metadata") {
            return scan.pass();
        }
        let twice = found.twice || found.metadata.is_some();
        found = MetadataScan { twice, is_object: scan.peek() == Some(b'{'), ..MetadataScan::default() };
        if !found.is_object {
            found.metadata = Some(value_range(scan)?);
            return Some(());
        }
        let from = scan.place();
        scan.members(|scan, member| {
            found.has_members = true;
            let value = value_range(scan)?;
            if member.is("resourceVersion") {
                found.versions.push(value);
            } else if member.is("name") {
                found.names.push(value);
            } else if member.is("namespace") {
                found.namespaces.push(value);
            }
            Some(())
        })?;
        found.metadata = Some(from..scan.place());
        Some(())
    })?;
    scan.ends().then_some(found)
}

/// Skips the next value and returns its byte range.
fn value_range(scan: &mut JsonScan<'_>) -> Option<Range<usize>> {
    let length = scan.value()?.len();
    Some(scan.place() - length..scan.place())
}

/// Whether every occurrence of a member is the string `text`, and at least one exists. With `text` `None`: whether each
/// is empty or null.
fn all_equal(value: &[u8], members: &[Range<usize>], text: Option<&str>) -> bool {
    let is_nothing = |place: &Range<usize>| matches!(&value[place.clone()], b"\"\"" | b"null");
    let is = |place: &Range<usize>, text| JsonScan::new(&value[place.clone()]).string().is_some_and(|own| own.is(text));
    match text {
        Some(text) => !members.is_empty() && members.iter().all(|place| is(place, text)),
        None => members.iter().all(is_nothing),
    }
}

impl Layout {
    /// Returns the layout of the value of a key; `None` if the value is not a JSON object.
    ///
    /// The key's resource is not known here, so the flags cover both shapes of a key: the last two segments are
    /// namespace and name, or the last segment is the name and there is no namespace.
    pub(crate) fn of(key: &[u8], value: &[u8]) -> Option<Layout> {
        // The layout stores positions in 32 bits and lengths in 28.
        if value.len() > LENGTH as usize {
            return None;
        }
        let found = scan_metadata(value)?;
        let metadata = found.metadata.clone().filter(|_| found.is_object).unwrap_or(0..0);
        let (at, length) = match &found.versions[..] {
            [] => (metadata.start + 1, 0),
            [one] => (one.start, one.len()),
            _ => (0, 0),
        };
        let odd = found.versions.len() > 1 || !found.has_members || found.twice;
        let mut segments = key.rsplit(|byte| *byte == b'/').map(|segment| std::str::from_utf8(segment).unwrap_or(""));
        let (name, namespace) = (segments.next(), segments.next().unwrap_or(""));
        let mut version = length as u32;
        for (holds, bit) in [
            (odd, ODD),
            (!all_equal(value, &found.names, name), OTHER_NAME),
            (!all_equal(value, &found.namespaces, Some(namespace)), OTHER_NAMESPACE),
            (!all_equal(value, &found.namespaces, None), HAS_NAMESPACE),
        ] {
            version |= if holds { bit } else { 0 };
        }
        Some(Layout { metadata: (metadata.start as u32, metadata.end as u32), version_at: at as u32, version })
    }

    /// Encodes the layout as the cache attribute.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let words = [self.metadata.0, self.metadata.1, self.version_at, self.version];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a layout from the cache attribute.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Layout> {
        let bytes: &[u8; 16] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Layout { metadata: (word(0), word(4)), version_at: word(8), version: word(12) })
    }

    /// Whether the version is the only change in this object.
    fn is_plain(&self, namespaced: bool) -> bool {
        let others = ODD | OTHER_NAME | if namespaced { OTHER_NAMESPACE } else { HAS_NAMESPACE };
        self.version & others == 0
    }

    /// Returns the byte range of the object `metadata`; empty if there is none.
    pub(crate) fn metadata(&self) -> Range<usize> {
        self.metadata.0 as usize..self.metadata.1 as usize
    }

    /// Appends the object with its revision, name and namespace.
    pub(crate) fn write(&self, value: &[u8], identity: Identity<'_>, revision: u64, out: &mut Vec<u8>) {
        out.reserve(value.len() + 48);
        let rest = self.begin(value, identity, revision, out);
        out.extend_from_slice(&value[rest..]);
    }

    /// Like [`write`](Self::write), but stops after the last change and returns where the unchanged rest of `value`
    /// begins.
    pub(crate) fn begin(&self, value: &[u8], identity: Identity<'_>, revision: u64, out: &mut Vec<u8>) -> usize {
        match self.is_plain(identity.namespace.is_some()) {
            true => self.splice(value, 0, revision, out),
            false => write_edited(value, identity, revision, out),
        }
    }

    /// Appends only the object `metadata`, with its revision, name and namespace.
    pub(crate) fn write_metadata(&self, value: &[u8], identity: Identity<'_>, revision: u64, out: &mut Vec<u8>) {
        if self.is_plain(identity.namespace.is_some()) {
            let metadata = self.metadata();
            let rest = self.splice(value, metadata.start, revision, out);
            return out.extend_from_slice(value.get(rest..metadata.end).unwrap_or_default());
        }
        let mut whole = Vec::with_capacity(value.len() + 128);
        self.write(value, identity, revision, &mut whole);
        match scan_metadata(&whole).and_then(|found| found.metadata) {
            Some(metadata) => out.extend_from_slice(&whole[metadata]),
            None => out.extend_from_slice(b"{}"),
        }
    }

    /// Appends the value from `from` up to the version, then the new version. Returns where the unchanged rest begins.
    fn splice(&self, value: &[u8], from: usize, revision: u64, out: &mut Vec<u8>) -> usize {
        let (at, length) = (self.version_at as usize, (self.version & LENGTH) as usize);
        let Some(before) = value.get(from..at).filter(|_| at + length <= value.len()) else {
            return value.len(); // Never happens: layout and value belong to the same version of the key.
        };
        out.extend_from_slice(before);
        if length == 0 {
            out.extend_from_slice(b"\"resourceVersion\":");
        }
        quoted_number(revision, out);
        if length == 0 {
            out.push(b',');
        }
        at + length
    }
}

/// Appends a number in quotes: `"123"`.
pub(crate) fn quoted_number(number: u64, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.push(b'"');
}

/// Appends a string as JSON.
pub(crate) fn quoted(text: &str, out: &mut Vec<u8>) {
    // Cannot fail: the output is memory, and a string is always valid JSON.
    let _ = serde_json::to_writer(out, text);
}

/// Scans the object again and appends it with all changes. Returns where the unchanged rest begins.
fn write_edited(value: &[u8], identity: Identity<'_>, revision: u64, out: &mut Vec<u8>) -> usize {
    let Some(found) = scan_metadata(value) else { return value.len() };
    let mut added = Vec::new();
    let member = |name: &str, text: Option<&str>, added: &mut Vec<u8>| {
        if !added.is_empty() {
            added.push(b',');
        }
        quoted(name, added);
        added.push(b':');
        match text {
            Some(text) => quoted(text, added),
            None => quoted_number(revision, added),
        }
    };
    let mut edits: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
    for place in &found.versions {
        let mut version = Vec::new();
        quoted_number(revision, &mut version);
        edits.push((place.clone(), version));
    }
    for (name, places, text) in
        [("name", &found.names, Some(identity.name)), ("namespace", &found.namespaces, identity.namespace)]
    {
        if all_equal(value, places, text) {
            continue;
        }
        if places.is_empty() {
            member(name, text, &mut added);
        }
        // Cluster-scoped objects get an empty namespace, which Go's clients treat as absent.
        let mut quotes = Vec::new();
        quoted(text.unwrap_or_default(), &mut quotes);
        edits.extend(places.iter().map(|place| (place.clone(), quotes.clone())));
    }
    if found.versions.is_empty() {
        member("resourceVersion", None, &mut added);
    }
    if found.is_object {
        let at = found.metadata.as_ref().map_or(0, |place| place.start + 1);
        if found.has_members && !added.is_empty() {
            added.push(b',');
        }
        edits.push((at..at, added));
    } else {
        let whole = [b"{", &added[..], b"}"].concat();
        match found.metadata {
            Some(place) => edits.push((place, whole)),
            None => {
                // Insert `metadata` after the opening brace; no comma follows if the object is empty.
                let at = value.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
                let empty = value[at..].iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'}');
                let comma: &[u8] = if empty { b"" } else { b"," };
                edits.push((at..at, [b"\"metadata\":", &whole[..], comma].concat()));
            }
        }
    }
    edits.sort_by_key(|(place, _)| (place.start, place.end));
    let mut at = 0;
    for (place, text) in edits {
        out.extend_from_slice(&value[at..place.start]);
        out.extend_from_slice(&text);
        at = place.end;
    }
    at
}

#[cfg(test)]
mod tests;
