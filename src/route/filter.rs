//! Ranges of keys, and the compiled filter of a subscription.

#![forbid(unsafe_code)]

use crate::event::{Event, Kind};
use crate::store::index::{Span, prefix_end};

/// A range of keys: all, one key, a prefix, a path, or [from, to).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    pub(crate) span: Span,
    /// Path-aware: only this key itself and what lies behind a `/` after it.
    path: Option<Vec<u8>>,
}

impl Range {
    fn span(from: impl Into<Vec<u8>>, to: Option<Vec<u8>>) -> Range {
        Range { span: Span { from: from.into(), to }, path: None }
    }

    /// Every key.
    pub fn all() -> Range {
        Range::span([], None)
    }

    /// Exactly this key.
    pub fn key(key: impl AsRef<[u8]>) -> Range {
        let key = key.as_ref();
        Range::span(key, Some([key, b"\0"].concat()))
    }

    /// Every key that starts with these bytes.
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Range {
        let prefix = prefix.as_ref();
        Range::span(prefix, prefix_end(prefix))
    }

    /// Path-aware: `/a/foo` holds `/a/foo` and `/a/foo/x`, and not `/a/foobar`.
    pub fn path(path: impl AsRef<[u8]>) -> Range {
        let path = path.as_ref();
        let mut range = Range::prefix(path);
        if !path.is_empty() && path.last() != Some(&b'/') {
            range.path = Some(path.to_vec());
        }
        range
    }

    /// Keys from `from`, inclusive, to `to`, exclusive. An empty `to` means "to the end".
    pub fn between(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Range {
        let to = to.as_ref();
        Range::span(from.as_ref(), (!to.is_empty()).then(|| to.to_vec()))
    }

    /// Whether the key lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.span.contains(key) && self.path_holds(key)
    }

    fn path_holds(&self, key: &[u8]) -> bool {
        self.path.as_ref().is_none_or(|path| key.len() == path.len() || key.get(path.len()) == Some(&b'/'))
    }

    pub(crate) fn is_all_of(&self, prefix: &[u8]) -> bool {
        self.path.is_none() && (self.span == Range::all().span || self.span == Range::prefix(prefix).span)
    }
}

/// The compiled filter of a subscription. Equal ones are evaluated once an event.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Filter {
    /// `None`: every key of the cache.
    range: Option<Range>,
    /// Bits of [`Kind::bit`]; marks pass always.
    kinds: u32,
    raw: bool,
}

const CHANGES: u32 = Kind::Added.bit() | Kind::Modified.bit() | Kind::Deleted.bit();

impl Filter {
    /// `kinds` empty: all. With `raw`, PUT and DELETE are shown, and `kinds` may name them.
    pub(crate) fn new(range: Option<Range>, kinds: &[Kind], raw: bool) -> Filter {
        let mut mask = 0;
        for kind in kinds {
            mask |= match kind {
                Kind::Put => Kind::Added.bit() | Kind::Modified.bit(),
                Kind::Delete => Kind::Deleted.bit(),
                other => other.bit(),
            };
        }
        Filter { range, kinds: if kinds.is_empty() { CHANGES } else { mask }, raw }
    }

    /// Whether every event passes unchanged: then a batch is a view into the log.
    pub(crate) fn passes_all(&self) -> bool {
        self.range.is_none() && self.kinds & CHANGES == CHANGES && !self.raw
    }

    pub(crate) fn range(&self) -> Range {
        self.range.clone().unwrap_or_else(Range::all)
    }

    pub(crate) fn raw(&self) -> bool {
        self.raw
    }

    pub(crate) fn shows(&self, kind: Kind) -> bool {
        self.kinds & kind.bit() != 0
    }

    /// Whether the event, or a changed form of it, is handed out.
    #[inline]
    pub(crate) fn matches(&self, event: &Event) -> bool {
        if event.kind == Kind::Resync {
            return true;
        }
        self.kinds & event.kind.bit() != 0 && self.range.as_ref().is_none_or(|range| range.contains(event.key()))
    }

    /// The form in which a matching event is handed out.
    pub(crate) fn shown(&self, event: &Event) -> Event {
        let mut shown = event.clone();
        if self.raw {
            shown.kind = match event.kind {
                Kind::Added | Kind::Modified => Kind::Put,
                Kind::Deleted => Kind::Delete,
                other => other,
            };
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_they_say() {
        let holds = |range: Range, key: &str| range.contains(key.as_bytes());
        assert!(holds(Range::prefix("/a/foo"), "/a/foobar"));
        assert!(!holds(Range::path("/a/foo"), "/a/foobar"));
        assert!(holds(Range::path("/a/foo"), "/a/foo") && holds(Range::path("/a/foo"), "/a/foo/x"));
        assert!(holds(Range::path("/a/"), "/a/x") && !holds(Range::path("/a/"), "/a"));
        assert!(holds(Range::key("/a"), "/a") && !holds(Range::key("/a"), "/a\0") && !holds(Range::key("/a"), "/"));
        assert!(holds(Range::between("b", "d"), "c") && !holds(Range::between("b", "d"), "d"));
        assert!(holds(Range::between("b", ""), "\u{ff}") && !holds(Range::between("b", ""), "a"));
        assert!(holds(Range::all(), ""));
    }

    #[test]
    fn only_a_plain_filter_is_a_view() {
        assert!(Filter::new(None, &[], false).passes_all());
        assert!(Filter::new(None, &[Kind::Deleted, Kind::Put], false).passes_all());
        assert!(!Filter::new(None, &[Kind::Deleted], false).passes_all());
        assert!(!Filter::new(None, &[], true).passes_all());
        assert!(!Filter::new(Some(Range::key("a")), &[], false).passes_all());
    }
}
