//! Declared indexes: which events a bucket gathers, and which bucket fits a filter.

#![forbid(unsafe_code)]

use crate::attribute::encode::Attributes;
use crate::attribute::schema::Schema;
use crate::data::key_value::KeyValue;
use crate::error::{Result, say};
use crate::filter::matcher::Matcher;
use crate::filter::selector::Test;
use crate::store::root::prefix_end;

/// Most indexes of a cache.
pub const MOST: usize = 8;

/// A declared index: subscriptions whose filter fits it read only the events of their own bucket.
///
/// An index costs the writer one lookup an event, and 16 bytes (32 for an attribute) in each slot of the log.
///
/// ```
/// use watchcore::{Cache, Change, Index, Start};
///
/// let cache = Cache::builder("/").index(Index::prefix(2)).build()?;
/// let mut writer = cache.writer()?;
/// let mut pods = cache.subscribe(Start::Now).prefix("/pods/ns1/").open()?; // reads the bucket of /pods/ns1/
/// writer.apply(1, [Change::put("/pods/ns1/a", "1"), Change::put("/pods/ns2/a", "1")])?;
/// assert_eq!(pods.poll(10)?.len(), 1);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[must_use = "an index does nothing before a builder takes it"]
pub struct Index(By<Box<str>>);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum By<Field> {
    Key,
    Prefix(usize),
    Field(Field),
    Label(Box<str>),
}

impl Index {
    /// An index by the exact key: for subscriptions of one key each.
    pub fn key() -> Index {
        Index(By::Key)
    }

    /// An index by the first `depth` segments of the key, split at `/`, a leading `/` not counted: at depth 3
    /// `/registry/pods/ns/a` is in the bucket `/registry/pods/ns/`. Keys with fewer are in none.
    pub fn prefix(depth: usize) -> Index {
        Index(By::Prefix(depth))
    }

    /// An index by the value of a declared field: for selectors `name=value`.
    ///
    /// ```
    /// use watchcore::{Attribute, Cache, Change, Index, ReadPath, Start};
    ///
    /// let cache = Cache::builder("/").field(Attribute::key_segment("ns", 0)).index(Index::field("ns")).build()?;
    /// let mut writer = cache.writer()?;
    /// let open = |selector: &str| cache.subscribe(Start::Now).fields(selector)?.open();
    /// let (mut shop, mut others) = (open("ns=shop")?, open("ns!=shop")?);
    /// writer.apply(1, [Change::put("/shop/a", "1")])?;
    /// assert!(shop.poll(10)?.len() == 1 && others.poll(10)?.is_empty());
    /// assert_eq!(shop.stats().read_path.to_string(), "chain by field ns");
    /// assert_eq!(others.stats().read_path, ReadPath::Scan, "the index has no bucket for it");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn field(name: &str) -> Index {
        Index(By::Field(name.into()))
    }

    /// An index by the value of one label: for selectors `name=value`.
    pub fn label(name: &str) -> Index {
        Index(By::Label(name.into()))
    }
}

/// An index bound to the attributes of a cache.
#[derive(Debug)]
pub(crate) struct Bound {
    by: By<usize>,
    name: Box<str>,
}

/// The indexes of a cache.
#[derive(Debug, Default)]
pub(crate) struct Indexes {
    all: Box<[Bound]>,
    width: usize,
}

/// The first `depth` segments of a key, with the `/` after them.
fn prefix_at(key: &[u8], depth: usize) -> Option<&[u8]> {
    let from = usize::from(key.first() == Some(&b'/'));
    let slashes = key.iter().enumerate().skip(from).filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| at).nth(depth.checked_sub(1)?).map(|at| &key[..=at])
}

impl Bound {
    /// Links a slot needs for it: an object that moves is in two buckets.
    fn places(&self) -> usize {
        match self.by {
            By::Key | By::Prefix(_) => 1,
            By::Field(_) | By::Label(_) => 2,
        }
    }

    fn of_value<'a>(&self, kv: Option<&'a KeyValue>) -> Option<&'a [u8]> {
        let attributes = Attributes(kv?.attributes());
        match &self.by {
            By::Field(number) => attributes.field(*number).filter(|value| !value.is_empty()),
            By::Label(name) => attributes.label(name.as_bytes()),
            _ => None,
        }
    }

    /// The bucket that holds every event which this filter lets pass.
    fn fits<'a>(&self, matcher: &'a Matcher) -> Option<&'a [u8]> {
        match &self.by {
            By::Key => {
                let span = &matcher.range()?.span;
                let to = span.to.as_ref()?;
                (to.split_last() == Some((&0, &span.from[..]))).then_some(&span.from[..])
            }
            By::Prefix(depth) => {
                let span = &matcher.range()?.span;
                let prefix = prefix_at(&span.from, *depth)?;
                let inside = match (prefix_end(prefix), &span.to) {
                    (None, _) => true,
                    (Some(end), Some(to)) => *to <= end,
                    (Some(_), None) => false,
                };
                inside.then_some(prefix)
            }
            By::Field(number) => matcher.fields().iter().find_map(|(field, requirement)| {
                let fits = field == number && requirement.equal && !requirement.value.is_empty();
                fits.then_some(requirement.value.as_bytes())
            }),
            By::Label(name) => matcher.labels().iter().find_map(|requirement| match &requirement.test {
                Test::In(values) if requirement.key == *name && values.len() == 1 => Some(values[0].as_bytes()),
                _ => None,
            }),
        }
    }

    /// How narrow its buckets are likely to be.
    fn rank(&self) -> usize {
        match self.by {
            By::Key => usize::MAX,
            By::Field(_) | By::Label(_) => usize::MAX - 1,
            By::Prefix(depth) => depth,
        }
    }
}

impl Indexes {
    pub(crate) fn new(declared: &[Index], schema: &Schema) -> Result<Indexes> {
        if declared.len() > MOST {
            return Err(say::invalid(format!(
                "declare {} indexes: a cache has at most {MOST}. Leave out those that few subscriptions need.",
                declared.len()
            )));
        }
        let mut all: Vec<Bound> = Vec::new();
        for (at, Index(by)) in declared.iter().enumerate() {
            if declared[..at].contains(&declared[at]) {
                return Err(say::invalid(format!("declare the index {by:?} twice: once is enough")));
            }
            all.push(match by {
                By::Key => Bound { by: By::Key, name: "key".into() },
                By::Prefix(0) => {
                    return Err(say::invalid("declare an index by prefix of depth 0: it must be at least 1"));
                }
                By::Prefix(depth) => Bound { by: By::Prefix(*depth), name: format!("prefix of depth {depth}").into() },
                By::Field(field) => match schema.field(field) {
                    Some(number) => Bound { by: By::Field(number), name: format!("field {field}").into() },
                    None => {
                        return Err(say::invalid(format!(
                            "declare an index by field {field:?}: the cache declares no such field. Declare it first."
                        )));
                    }
                },
                By::Label(_) if !schema.has_labels() => {
                    return Err(say::invalid(
                        "declare an index by label: the cache declares no labels. Say where they are first.",
                    ));
                }
                By::Label(label) => Bound { by: By::Label(label.clone()), name: format!("label {label}").into() },
            });
        }
        let width = all.iter().map(Bound::places).sum();
        Ok(Indexes { all: all.into(), width })
    }

    /// Links of a slot.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The number of the index by key.
    pub(crate) fn by_key(&self) -> Option<u8> {
        self.all.iter().position(|bound| matches!(bound.by, By::Key)).map(|at| at as u8)
    }

    /// The name of a bucket's index in statistics.
    pub(crate) fn name(&self, bucket: &[u8]) -> &str {
        bucket.first().and_then(|at| self.all.get(usize::from(*at))).map_or("", |bound| &bound.name)
    }

    /// The narrowest bucket that holds every event which this filter lets pass: its index and value.
    fn narrowest<'a>(&self, matcher: &'a Matcher) -> Option<(usize, &Bound, &'a [u8])> {
        let fitting = self.all.iter().enumerate().filter_map(|(at, bound)| Some((at, bound, bound.fits(matcher)?)));
        fitting.max_by_key(|(_, bound, _)| bound.rank())
    }

    /// The name of that bucket.
    pub(crate) fn bucket_of(&self, matcher: &Matcher) -> Option<Box<[u8]>> {
        let (at, _, value) = self.narrowest(matcher)?;
        Some([&[at as u8], value].concat().into())
    }

    /// Whether this filter lets every event of that bucket pass.
    pub(crate) fn bucket_passes(&self, matcher: &Matcher) -> bool {
        let (Some((_, bound, value)), Some(range)) = (self.narrowest(matcher), matcher.range()) else { return false };
        let is_whole = match bound.by {
            By::Key => true,
            By::Prefix(_) => range.span.from == value && range.span.to == prefix_end(value),
            _ => false,
        };
        is_whole && matcher.is_a_range() && !range.has_paths()
    }

    /// Calls `each` with place, index and value of the buckets that an event belongs to: by what the key-value
    /// is and by what it was. Tombstones have no attributes.
    #[inline]
    pub(crate) fn visit<'a>(
        &self,
        key: &'a [u8],
        cur: &'a KeyValue,
        prev: Option<&'a KeyValue>,
        mut each: impl FnMut(usize, u8, &'a [u8]),
    ) {
        let mut place = 0;
        for (at, bound) in self.all.iter().enumerate() {
            let mut call = |place, value: Option<&'a [u8]>| {
                if let Some(value) = value {
                    each(place, at as u8, value);
                }
            };
            match bound.by {
                By::Key => call(place, Some(key)),
                By::Prefix(depth) => call(place, prefix_at(key, depth)),
                By::Field(_) | By::Label(_) => {
                    let (new, old) = (bound.of_value(Some(cur)), bound.of_value(prev));
                    call(place, new);
                    call(place + 1, old.filter(|_| old != new));
                }
            }
            place += bound.places();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::range::Filter;

    fn fits(index: Index, filter: Filter) -> Option<String> {
        let schema = Schema::new(Vec::new(), None).unwrap();
        let indexes = Indexes::new(&[index], &schema).unwrap();
        let matcher = Matcher::new(&filter, false, b"/", &schema).unwrap();
        indexes.bucket_of(&matcher).map(|name| String::from_utf8_lossy(&name[1..]).into_owned())
    }

    #[test]
    fn only_a_filter_of_the_whole_bucket_needs_not_be_asked() {
        let schema = Schema::new(vec![], None).unwrap();
        let indexes = Indexes::new(&[Index::key(), Index::prefix(2)], &schema).unwrap();
        let passes = |filter: Filter| indexes.bucket_passes(&Matcher::new(&filter, false, b"/", &schema).unwrap());
        assert!(passes(Filter::any().key("/pods/a/1")));
        assert!(passes(Filter::any().prefix("/pods/a/")));
        assert!(!passes(Filter::any().prefix("/pods/a/1")), "a part of the bucket");
        assert!(!passes(Filter::any().prefix("/pods/")), "of no bucket");
        assert!(!passes(Filter::any()));
        assert!(!passes(Filter::any().key("/pods/a/1").types(&[crate::Kind::Deleted])), "of some kinds");
        assert!(!passes(Filter::any().key("/pods/a/1").predicate(|_| true)), "of some values");
    }

    #[test]
    fn a_filter_gets_the_bucket_that_holds_all_of_it() {
        let fits = |index, filter| fits(index, filter);
        let any = Filter::any;
        assert_eq!(fits(Index::key(), any().key("/a/b")).as_deref(), Some("/a/b"));
        assert_eq!(fits(Index::key(), any().prefix("/a/b")), None);
        assert_eq!(fits(Index::prefix(2), any().prefix("/a/b/")).as_deref(), Some("/a/b/"));
        assert_eq!(fits(Index::prefix(2), any().key("/a/b/c")).as_deref(), Some("/a/b/"));
        assert_eq!(fits(Index::prefix(2), any().path("/a/b/c")).as_deref(), Some("/a/b/"));
        assert_eq!(fits(Index::prefix(2), any().prefix("/a/b")), None, "/a/bc/ is another bucket");
        assert_eq!(fits(Index::prefix(2), any().range(Range::between("/a/b/x", "/a/b0"))).as_deref(), Some("/a/b/"));
        assert_eq!(fits(Index::prefix(2), any().range(Range::between("/a/b/x", "/a/c/"))), None);
        assert_eq!(fits(Index::prefix(2), any().range(Range::between("/a/b/x", ""))), None);
    }
    use crate::filter::range::Range;

    #[test]
    fn prefixes_by_depth() {
        let at = |key: &'static str, depth| prefix_at(key.as_bytes(), depth).map(|p| std::str::from_utf8(p).unwrap());
        assert_eq!(at("/a/b/c", 1), Some("/a/"));
        assert_eq!(at("/a/b/c", 2), Some("/a/b/"));
        assert_eq!(at("/a/b/c", 3), None);
        assert_eq!(at("a/b/c", 1), Some("a/"));
        assert_eq!(at("", 1), None);
    }
}
