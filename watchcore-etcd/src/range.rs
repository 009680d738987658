//! Key ranges in etcd's form.

use std::fmt;

/// `[start, end)`; an `end` of one zero byte means "to the last key".
#[derive(Clone, PartialEq, Eq)]
pub(super) struct KeyRange {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl KeyRange {
    /// All keys that begin with `prefix`; an empty prefix is the whole keyspace.
    pub(super) fn of_prefix(prefix: &[u8]) -> KeyRange {
        if prefix.is_empty() {
            return KeyRange { start: vec![0], end: vec![0] };
        }
        let end = match prefix.iter().rposition(|byte| *byte < 0xff) {
            Some(last) => {
                let mut end = prefix[..=last].to_vec();
                end[last] += 1;
                end
            }
            None => vec![0],
        };
        KeyRange { start: prefix.to_vec(), end }
    }

    /// The range of one key: a user who may read only that key may read it.
    pub(super) fn of_key(key: &[u8]) -> KeyRange {
        KeyRange { start: key.to_vec(), end: KeyRange::after(key) }
    }

    /// Whether the key lies in the range.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && (self.end == [0] || key < self.end.as_slice())
    }

    /// The first key of the page after `last`: the smallest key above it.
    pub(super) fn after(last: &[u8]) -> Vec<u8> {
        let mut next = Vec::with_capacity(last.len() + 1);
        next.extend_from_slice(last);
        next.push(0);
        next
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.end == [0] {
            if self.start == [0] {
                return f.write_str("all keys");
            }
            return write!(f, "[\"{}\", the last key]", self.start.escape_ascii());
        }
        write!(f, "[\"{}\", \"{}\")", self.start.escape_ascii(), self.end.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(prefix: &[u8]) -> Vec<u8> {
        KeyRange::of_prefix(prefix).end
    }

    #[test]
    fn the_end_is_the_next_prefix() {
        assert_eq!(ends(b"/registry/"), b"/registry0");
        assert_eq!(ends(b"a\xff"), b"b");
        assert_eq!(ends(b"a\xfe\xff\xff"), b"a\xff");
        assert_eq!(ends(b"\x00"), b"\x01");
    }

    #[test]
    fn no_next_prefix_means_to_the_last_key() {
        assert_eq!(ends(b"\xff\xff"), b"\0");
        assert_eq!(KeyRange::of_prefix(b"\xff").start, b"\xff");
    }

    #[test]
    fn an_empty_prefix_is_everything() {
        let range = KeyRange::of_prefix(b"");
        assert_eq!((range.start.as_slice(), range.end.as_slice()), (&b"\0"[..], &b"\0"[..]));
        assert_eq!(range.to_string(), "all keys");
    }

    #[test]
    fn a_range_contains_its_keys() {
        let range = KeyRange::of_prefix(b"/a/");
        assert!(range.contains(b"/a/") && range.contains(b"/a/\xff"));
        assert!(!range.contains(b"/a") && !range.contains(b"/a0") && !range.contains(b""));
        let all = KeyRange::of_prefix(b"");
        assert!(all.contains(b"\0") && all.contains(b"\xff\xff") && !all.contains(b""), "no key is empty");
    }

    #[test]
    fn the_next_page_begins_right_after() {
        let next = KeyRange::after(b"a");
        assert!(next.as_slice() > b"a".as_slice() && next.as_slice() <= b"a\0".as_slice());
    }

    #[test]
    fn one_key_ends_right_after_it() {
        let range = KeyRange::of_key(b"/a");
        assert_eq!((range.start.as_slice(), range.end.as_slice()), (&b"/a"[..], &b"/a\0"[..]));
    }

    #[test]
    fn ranges_are_readable() {
        assert_eq!(KeyRange::of_prefix(b"/a/").to_string(), "[\"/a/\", \"/a0\")");
        assert_eq!(KeyRange::of_prefix(b"\xff").to_string(), "[\"\\xff\", the last key]");
    }
}
