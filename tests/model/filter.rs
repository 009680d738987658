//! Filters and indexes, spelled out: evaluated on what the oracle knows of a value.

use crate::oracle::{Ev, Kv};
use std::collections::BTreeMap;
use watchcore::{Index, Kind, Range, SubscribeBuilder};

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

    fn set(&self, filter: watchcore::Filter) -> watchcore::Filter {
        match self {
            Keys::All => filter,
            Keys::Key(key) => filter.key(key),
            Keys::Prefix(prefix) => filter.prefix(prefix),
            Keys::Path(path) => filter.path(path),
            Keys::Between(..) => filter.range(self.range()),
        }
    }
}

/// What a value says. Values are written by `Harness::value`, always in one form; one that does not
/// begin with a brace is broken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Thing {
    pub labels: BTreeMap<&'static str, String>,
    pub f: Option<String>,
}

pub const LABELS: [&str; 2] = ["app", "n"];

impl Thing {
    pub fn of(value: &[u8]) -> Option<Thing> {
        let text = std::str::from_utf8(value).ok()?.strip_prefix('{')?;
        let member = |name: &str| {
            let (_, behind) = text.split_once(&format!("\"{name}\":\""))?;
            behind.split('"').next().map(String::from)
        };
        let labels = LABELS.iter().filter_map(|name| Some((*name, member(name)?))).collect();
        Some(Thing { labels, f: member("f") })
    }
}

/// Segment 1 of a key.
fn segment(key: &[u8]) -> Option<&[u8]> {
    key[1..].split(|byte| *byte == b'/').nth(1)
}

#[derive(Clone, Debug)]
pub enum Need {
    In(&'static str, Vec<&'static str>),
    NotIn(&'static str, Vec<&'static str>),
    Has(&'static str),
    Lacks(&'static str),
    Above(&'static str, i64),
    Below(&'static str, i64),
}

impl Need {
    fn holds(&self, labels: &BTreeMap<&'static str, String>) -> bool {
        let number = |name: &str| labels.get(name).and_then(|text| text.parse::<i64>().ok());
        match self {
            Need::In(name, all) => labels.get(name).is_some_and(|value| all.contains(&&value[..])),
            Need::NotIn(name, all) => labels.get(name).is_none_or(|value| !all.contains(&&value[..])),
            Need::Has(name) => labels.contains_key(name),
            Need::Lacks(name) => !labels.contains_key(name),
            Need::Above(name, than) => number(name).is_some_and(|value| value > *than),
            Need::Below(name, than) => number(name).is_some_and(|value| value < *than),
        }
    }

    fn text(&self) -> String {
        match self {
            Need::In(name, all) if all.len() == 1 => format!("{name}={}", all[0]),
            Need::In(name, all) => format!("{name} in ({})", all.join(",")),
            Need::NotIn(name, all) if all.len() == 1 => format!("{name} != {}", all[0]),
            Need::NotIn(name, all) => format!("{name} notin ({})", all.join(" , ")),
            Need::Has(name) => (*name).into(),
            Need::Lacks(name) => format!("!{name}"),
            Need::Above(name, than) => format!("{name}>{than}"),
            Need::Below(name, than) => format!("{name} < {than}"),
        }
    }
}

/// `f` or `seg`, equal or not, and the value.
#[derive(Clone, Debug)]
pub struct FieldNeed(pub &'static str, pub bool, pub &'static str);

#[derive(Clone, Debug)]
pub struct Filter {
    pub keys: Keys,
    /// Empty: all.
    pub kinds: Vec<Kind>,
    pub raw: bool,
    pub nothing: bool,
    pub labels: Vec<Need>,
    pub fields: Vec<FieldNeed>,
    /// Only even versions.
    pub even: bool,
}

impl Filter {
    pub fn of_keys(keys: Keys) -> Filter {
        Filter {
            keys,
            kinds: Vec::new(),
            raw: false,
            nothing: false,
            labels: Vec::new(),
            fields: Vec::new(),
            even: false,
        }
    }

    /// The library's own, without the mask of kinds.
    pub fn build(&self) -> watchcore::Filter {
        let labels: Vec<String> = self.labels.iter().map(Need::text).collect();
        let operator = |equal: bool| if equal { "=" } else { "!=" };
        let fields: Vec<String> = self
            .fields
            .iter()
            .map(|FieldNeed(name, equal, value)| format!("{name}{}{value}", operator(*equal)))
            .collect();
        let mut filter = watchcore::Filter::any().fields(fields.join(",")).unwrap();
        if self.nothing {
            filter = filter.and(watchcore::Filter::none());
        }
        if self.even {
            filter = filter.named_predicate("even", |kv| kv.version() % 2 == 0);
        }
        self.keys.set(watchcore::Filter::any().labels(labels.join(",")).unwrap().and(filter))
    }

    pub fn set(&self, builder: SubscribeBuilder) -> SubscribeBuilder {
        builder.filter(self.build()).types(&self.kinds).raw_types(self.raw)
    }

    pub fn shows(&self, kind: Kind) -> bool {
        kind == Kind::Resync
            || self.kinds.is_empty()
            || self.kinds.iter().any(|one| match one {
                Kind::Put => matches!(kind, Kind::Added | Kind::Modified),
                Kind::Delete => kind == Kind::Deleted,
                one => *one == kind,
            })
    }

    pub fn masks(&self) -> bool {
        [Kind::Added, Kind::Modified, Kind::Deleted].into_iter().any(|kind| !self.shows(kind))
    }

    pub fn is_only_keys(&self) -> bool {
        !self.nothing && self.labels.is_empty() && self.fields.is_empty() && !self.even
    }

    /// Whether a live key-value matches.
    pub fn holds(&self, key: &[u8], kv: &Kv) -> bool {
        if !self.keys.holds(key) {
            return false;
        }
        if self.is_only_keys() {
            return true;
        }
        let nothing = Thing::default();
        let thing = kv.thing.as_deref().unwrap_or(&nothing);
        let field = |name: &str| match name {
            "f" => thing.f.as_deref().unwrap_or("").as_bytes(),
            _ => segment(key).unwrap_or(b""),
        };
        !self.nothing
            && self.labels.iter().all(|need| need.holds(&thing.labels))
            && self.fields.iter().all(|FieldNeed(name, equal, value)| (field(name) == value.as_bytes()) == *equal)
            && (!self.even || kv.version.is_multiple_of(2))
    }

    /// What an event is to this filter, delivered or not.
    pub fn transition(&self, event: &Ev) -> Option<Kind> {
        if event.is_mark() {
            return Some(Kind::Resync);
        }
        let holds = |kv: &Option<Kv>| kv.as_ref().is_some_and(|kv| self.holds(&event.key, kv));
        match (event.kind != Kind::Deleted && holds(&event.kv), holds(&event.prev)) {
            (true, false) => Some(Kind::Added),
            (true, true) => Some(Kind::Modified),
            (false, true) => Some(Kind::Deleted),
            (false, false) => None,
        }
    }

    /// Whether everything passes unchanged.
    pub fn is_plain(&self) -> bool {
        matches!(&self.keys, Keys::All) && !self.raw && self.is_only_keys() && !self.masks()
    }
}

/// A declared index.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum By {
    Key,
    Prefix(usize),
    Field(&'static str),
    Label(&'static str),
}

/// The first segments of a key, with the slash behind them.
fn prefix_of(key: &[u8], depth: usize) -> Option<Vec<u8>> {
    let parts: Vec<&[u8]> = key[1..].split(|byte| *byte == b'/').collect();
    (parts.len() > depth).then(|| [&b"/"[..], &parts[..depth].join(&b'/'), b"/"].concat())
}

impl By {
    pub fn index(self) -> Index {
        match self {
            By::Key => Index::key(),
            By::Prefix(depth) => Index::prefix(depth),
            By::Field(name) => Index::field(name),
            By::Label(name) => Index::label(name),
        }
    }

    pub fn name(self) -> String {
        match self {
            By::Key => "key".into(),
            By::Prefix(depth) => format!("prefix of depth {depth}"),
            By::Field(name) => format!("field {name}"),
            By::Label(name) => format!("label {name}"),
        }
    }

    /// The values whose buckets hold all that this filter lets pass.
    pub fn fits(self, filter: &Filter) -> Vec<Vec<u8>> {
        let of_keys = match self {
            By::Key => match &filter.keys {
                Keys::Key(key) => Some(key.clone()),
                Keys::Between(from, to) => (*to == [from, &b"\0"[..]].concat()).then(|| from.clone()),
                _ => None,
            },
            By::Prefix(depth) => match &filter.keys {
                Keys::Key(key) | Keys::Prefix(key) | Keys::Path(key) => prefix_of(key, depth),
                Keys::Between(from, to) => prefix_of(from, depth).filter(|prefix| {
                    let beyond = [&prefix[..prefix.len() - 1], b"0"].concat();
                    !to.is_empty() && *to <= beyond
                }),
                Keys::All => None,
            },
            _ => None,
        };
        let of_fields = filter.fields.iter().filter_map(|FieldNeed(field, equal, value)| {
            let fits = self == By::Field(field) && *equal && !value.is_empty();
            fits.then(|| value.as_bytes().to_vec())
        });
        let of_labels = filter.labels.iter().filter_map(|need| match need {
            Need::In(label, all) if self == By::Label(label) && all.len() == 1 => Some(all[0].as_bytes().to_vec()),
            _ => None,
        });
        of_keys.into_iter().chain(of_fields).chain(of_labels).collect()
    }

    /// Whether an event belongs to the bucket of this value.
    pub fn gathers(self, bucket: &[u8], event: &Ev) -> bool {
        let says = |kv: &Option<Kv>| {
            let thing = kv.as_ref().and_then(|kv| kv.thing.as_deref());
            match (self, kv) {
                (By::Field("f"), _) => thing.is_some_and(|thing| thing.f.as_deref().map(str::as_bytes) == Some(bucket)),
                (By::Field(_), kv) => kv.is_some() && segment(&event.key) == Some(bucket),
                (By::Label(name), _) => {
                    thing.is_some_and(|thing| thing.labels.get(name).map(String::as_bytes) == Some(bucket))
                }
                _ => false,
            }
        };
        match self {
            By::Key => event.key == bucket,
            By::Prefix(depth) => !event.is_mark() && prefix_of(&event.key, depth).as_deref() == Some(bucket),
            _ => (event.kind != Kind::Deleted && says(&event.kv)) || says(&event.prev),
        }
    }
}
