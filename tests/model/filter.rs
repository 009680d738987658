//! Filters, spelled out.

use crate::twin::Ev;
use watchcore::{Kind, Range, SubscribeBuilder};

#[derive(Clone, Debug)]
pub enum Keys {
    All,
    Key(Vec<u8>),
    Prefix(Vec<u8>),
    Path(Vec<u8>),
    Between(Vec<u8>, Vec<u8>),
}

impl Keys {
    pub fn holds(&self, key: &[u8]) -> bool {
        match self {
            Keys::All => true,
            Keys::Key(only) => key == only,
            Keys::Prefix(prefix) => key.starts_with(prefix),
            Keys::Path(path) => {
                let below = if path.ends_with(b"/") { path.clone() } else { [path, &b"/"[..]].concat() };
                key == path || key.starts_with(&below)
            }
            Keys::Between(from, to) => key >= &from[..] && (to.is_empty() || key < &to[..]),
        }
    }

    pub fn range(&self) -> Range {
        match self {
            Keys::All => Range::all(),
            Keys::Key(key) => Range::key(key),
            Keys::Prefix(prefix) => Range::prefix(prefix),
            Keys::Path(path) => Range::path(path),
            Keys::Between(from, to) => Range::between(from, to),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Filter {
    pub keys: Keys,
    /// Empty: all.
    pub kinds: Vec<Kind>,
    pub raw: bool,
}

impl Filter {
    pub fn set(&self, builder: SubscribeBuilder) -> SubscribeBuilder {
        let builder = builder.types(&self.kinds).raw_types(self.raw);
        match &self.keys {
            Keys::All => builder,
            Keys::Key(key) => builder.key(key),
            Keys::Prefix(prefix) => builder.prefix(prefix),
            Keys::Path(path) => builder.path_prefix(path),
            Keys::Between(..) => builder.range(self.keys.range()),
        }
    }

    pub fn shows(&self, kind: Kind) -> bool {
        self.kinds.is_empty()
            || self.kinds.iter().any(|one| match one {
                Kind::Put => matches!(kind, Kind::Added | Kind::Modified),
                Kind::Delete => kind == Kind::Deleted,
                one => *one == kind,
            })
    }

    pub fn matches(&self, event: &Ev) -> bool {
        event.is_mark() || (self.shows(event.kind) && self.keys.holds(&event.key))
    }

    /// Whether everything passes unchanged.
    pub fn is_plain(&self) -> bool {
        matches!(&self.keys, Keys::All)
            && !self.raw
            && [Kind::Added, Kind::Modified, Kind::Deleted].into_iter().all(|kind| self.shows(kind))
    }
}
