//! Ranges of keys, and filters as users write them.

#![forbid(unsafe_code)]

use crate::data::event::Kind;
use crate::data::key_value::KeyValue;
use crate::error::{DebugBytes, Result, say, show};
use crate::filter::selector::{FieldRequirement, LabelRequirement, parse_fields, parse_labels};
use crate::store::root::{Span, is_below, prefix_end, starts_with};
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The end of a range whose end was asked to lie before its begin: no other range ends there, and every
/// conjunction with it does.
const REVERSED: &[u8] = b"";

/// A range of keys: all, one key, a prefix, a path, or [from, to).
///
/// ```
/// use watchcore::Range;
///
/// assert!(Range::prefix("/a/foo").contains(b"/a/foobar"));
/// assert!(!Range::path("/a/foo").contains(b"/a/foobar"));
/// assert!(Range::between("/a", "/c").and(&Range::prefix("/b")).contains(b"/b/x"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use = "a range does nothing before a read or a subscription takes it"]
pub struct Range {
    pub(crate) span: Span,
    /// Path-aware: only these keys themselves and what follows them after a `/`.
    paths: Box<[Box<[u8]>]>,
}

impl Range {
    fn span(from: impl Into<Vec<u8>>, to: Option<Vec<u8>>) -> Range {
        Range { span: Span { from: from.into(), to }, paths: Box::default() }
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
    /// A path that ends in `/` is the same range as that prefix.
    ///
    /// ```
    /// use watchcore::Range;
    ///
    /// let foo = Range::path("/a/foo");
    /// assert!(foo.contains(b"/a/foo") && foo.contains(b"/a/foo/x") && !foo.contains(b"/a/foobar"));
    /// assert!(!Range::path("/a/foo/").contains(b"/a/foo"), "only what lies below");
    /// ```
    pub fn path(path: impl AsRef<[u8]>) -> Range {
        let path = path.as_ref();
        let mut range = Range::prefix(path);
        if !path.is_empty() && path.last() != Some(&b'/') {
            range.paths = Box::new([path.into()]);
        }
        range
    }

    /// Keys from `from`, inclusive, to `to`, exclusive. An empty `to` means "to the end"; one before
    /// `from` is INVALID_ARGUMENT where the range is used.
    ///
    /// ```
    /// use watchcore::{Cache, Code, Range, Read};
    ///
    /// let from_b_to_d = Range::between("/b", "/d");
    /// assert!(from_b_to_d.contains(b"/b") && from_b_to_d.contains(b"/c/x") && !from_b_to_d.contains(b"/d"));
    /// assert!(Range::between("/b", "").contains(b"/z"));
    /// let reversed = Cache::builder("/").build()?.count(&Range::between("/d", "/b"), Read::Any);
    /// assert_eq!(reversed.unwrap_err().code(), Code::InvalidArgument);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn between(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Range {
        let (from, to) = (from.as_ref(), to.as_ref());
        match to {
            [] => Range::span(from, None),
            to if to < from => Range::span(from, Some(REVERSED.to_vec())),
            to => Range::span(from, Some(to.to_vec())),
        }
    }

    /// Whether the key lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.span.contains(key) && self.path_holds(key)
    }

    /// Whether it holds less than its span.
    pub(crate) fn has_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Whether a key that lies in the span of the range lies in the range.
    #[inline]
    pub(crate) fn path_holds(&self, key: &[u8]) -> bool {
        self.paths.iter().all(|path| key.starts_with(path) && matches!(key.get(path.len()), None | Some(b'/')))
    }

    /// The keys that lie in both.
    pub fn and(&self, other: &Range) -> Range {
        let (a, b) = (&self.span.from, &other.span.from);
        let from = if b.is_empty() || (!a.is_empty() && a >= b) { a } else { b }.clone();
        let to = match (&self.span.to, &other.span.to) {
            (Some(a), Some(b)) => Some(a.min(b).clone()),
            (a, b) => a.as_ref().or(b.as_ref()).cloned(),
        };
        let mut paths: Vec<Box<[u8]>> = self.paths.iter().chain(&other.paths).cloned().collect();
        paths.sort();
        paths.dedup();
        Range { span: Span { from, to }, paths: paths.into() }
    }

    /// The paths that it is restricted to.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        self.paths.iter().map(|path| &**path)
    }

    /// Refuses a range in which no key of a cache with this prefix can ever lie: INVALID_ARGUMENT. A
    /// conjunction of sound ranges that holds nothing is one: it says so.
    pub(crate) fn check(&self, what: &str, prefix: &[u8]) -> Result<()> {
        let Span { from, to } = &self.span;
        let end = || to.as_ref().map_or_else(|| "the end".to_string(), |to| show(to));
        if to.as_deref() == Some(REVERSED) {
            return Err(say::invalid(format!(
                "{what}: the range from {} ends before it begins. Swap its ends.",
                show(from)
            )));
        }
        let holds_any = to.as_ref().is_none_or(|to| is_below(from, to));
        let before = to.as_ref().is_some_and(|to| !is_below(prefix, to));
        // Every key below the prefix begins with it.
        let after = is_below(prefix, from) && !starts_with(from, prefix);
        if holds_any && (before || after) {
            return Err(say::invalid(format!(
                "{what}: the range from {} to {} lies outside the cache's prefix {}. Ask for keys below it.",
                show(from),
                end(),
                show(prefix)
            )));
        }
        Ok(())
    }

    pub(crate) fn is_unbounded(&self) -> bool {
        self.paths.is_empty() && self.span.is_unbounded()
    }

    pub(crate) fn is_all_of(&self, prefix: &[u8]) -> bool {
        self.paths.is_empty() && (self.span.is_unbounded() || self.span == Range::prefix(prefix).span)
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = f.debug_struct("Range");
        parts.field("from", &DebugBytes(&self.span.from));
        match &self.span.to {
            Some(to) => parts.field("to", &DebugBytes(to)),
            None => parts.field("to", &"the end"),
        };
        if !self.paths.is_empty() {
            parts.field("paths", &self.paths.iter().map(|path| DebugBytes(path)).collect::<Vec<_>>());
        }
        parts.finish()
    }
}

/// The identity of a predicate, by which two are equal: closures have no equality.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum PredicateIdentity {
    /// Drawn when the filter was made: a number of the process, and one that counts. Nobody else has it, here or in
    /// another process.
    Drawn([u64; 2]),
    /// Given by the caller, who answers for it.
    Named(Arc<[u8]>),
}

impl PredicateIdentity {
    fn draw() -> PredicateIdentity {
        static PROCESS: OnceLock<u64> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let process = *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
        // Relaxed: only that no number comes twice.
        PredicateIdentity::Drawn([process, NEXT.fetch_add(1, Ordering::Relaxed)])
    }
}

/// A user's own test of a key-value.
#[derive(Clone)]
pub(crate) struct Predicate {
    pub(crate) identity: PredicateIdentity,
    pub(crate) test: Arc<dyn Fn(&KeyValue) -> bool + Send + Sync>,
}

impl PartialEq for Predicate {
    fn eq(&self, other: &Predicate) -> bool {
        self.identity == other.identity
    }
}
impl Eq for Predicate {}
impl Hash for Predicate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
    }
}
impl fmt::Debug for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.identity {
            PredicateIdentity::Drawn(_) => f.write_str("predicate"),
            PredicateIdentity::Named(name) => write!(f, "predicate {}", show(name)),
        }
    }
}

/// Which key-values a subscription or a read is about: a conjunction of conditions.
///
/// [`crate::Cache::subscribe`], `list`, `get` and `count` take the same filter. Selectors look at the
/// attributes that the cache declares ([`crate::Builder::labels`], [`crate::Builder::field`]); a filter that names
/// another attribute is INVALID_ARGUMENT when it is used. Clone, Send and Sync.
///
/// ```
/// use watchcore::Filter;
/// let web = Filter::any().prefix("/pods/").labels("app=web, tier in (front, back)")?.fields("spec.nodeName!=")?;
/// assert!(Filter::any().labels("app in (web").is_err());
/// # let _ = web;
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[must_use = "a filter does nothing before a subscription or a read takes it"]
pub struct Filter {
    pub(crate) range: Range,
    pub(crate) nothing: bool,
    /// Bits of [`Kind::bit`] that are delivered.
    pub(crate) kinds: u32,
    /// [`Filter::types`] named a mark, which is no kind of a change: refused where the filter is used.
    pub(crate) names_a_mark: bool,
    pub(crate) labels: Vec<LabelRequirement>,
    pub(crate) fields: Vec<FieldRequirement>,
    pub(crate) predicates: Vec<Predicate>,
}

/// The bits of all kinds of changes.
pub(crate) const CHANGES: u32 = Kind::Added.bit() | Kind::Modified.bit() | Kind::Deleted.bit();

impl Default for Filter {
    fn default() -> Filter {
        Filter::any()
    }
}

impl Filter {
    /// Everything.
    pub fn any() -> Filter {
        Filter {
            range: Range::all(),
            nothing: false,
            kinds: CHANGES,
            names_a_mark: false,
            labels: Vec::new(),
            fields: Vec::new(),
            predicates: Vec::new(),
        }
    }

    /// A filter that no key-value passes: a subscription gets marks only.
    pub fn none() -> Filter {
        Filter { nothing: true, ..Filter::any() }
    }

    /// Only this key.
    pub fn key(self, key: impl AsRef<[u8]>) -> Filter {
        self.range(Range::key(key))
    }

    /// Only keys that start with these bytes.
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Filter {
        self.range(Range::prefix(prefix))
    }

    /// Only this path and what lies below it: `/a/foo` does not match `/a/foobar`.
    pub fn path(self, path: impl AsRef<[u8]>) -> Filter {
        self.range(Range::path(path))
    }

    /// Only keys of this range.
    pub fn range(mut self, range: Range) -> Filter {
        self.range = self.range.and(&range);
        self
    }

    /// Only these kinds of changes (none named: all), and of those only what was asked before: two calls that name
    /// different kinds let no change pass. The mask never changes what an event is. Marks come always; a filter whose
    /// types name one is INVALID_ARGUMENT where it is used. Reads of state look at no types.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Filter, Kind, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let open = |filter| cache.subscribe(Start::Now).filter(filter).open();
    /// open(Filter::any().types(&[Kind::Put]))?; // Added and Modified
    /// let mark = open(Filter::any().types(&[Kind::Added, Kind::Bookmark])).unwrap_err();
    /// assert_eq!(mark.code(), Code::InvalidArgument);
    /// let mut nothing = open(Filter::any().types(&[Kind::Added]).types(&[Kind::Deleted]))?;
    /// cache.writer()?.apply(1, [Change::put("/a", "1")])?;
    /// assert!(nothing.poll(10)?.is_empty(), "no change has both kinds");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn types(mut self, kinds: &[Kind]) -> Filter {
        if kinds.is_empty() {
            return self;
        }
        self.names_a_mark |= kinds.iter().any(|kind| matches!(kind, Kind::Bookmark | Kind::Resync));
        self.kinds &= kinds.iter().fold(0, |mask, kind| {
            mask | match kind {
                Kind::Put => Kind::Added.bit() | Kind::Modified.bit(),
                Kind::Delete => Kind::Deleted.bit(),
                other => other.bit(),
            }
        });
        self
    }

    /// Only what this label selector selects, in Kubernetes' grammar: `a=b`, `a==b`, `a!=b`,
    /// `a in (x,y)`, `a notin (x,y)`, `a`, `!a`, `a>1`, `a<1`, joined by commas. An empty one selects
    /// everything. INVALID_ARGUMENT names the position of what does not parse.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Filter, Labels, Range, Read, ReadOptions};
    ///
    /// let cache = Cache::builder("/").labels(Labels::json("/labels")?).build()?;
    /// let (front, old) = (r#"{"labels":{"app":"web","tier":"front"}}"#, r#"{"labels":{"app":"web"}}"#);
    /// cache.writer()?.apply(1, [Change::put("/front", front), Change::put("/old", old)])?;
    /// let count = |selector: &str| {
    ///     let options = ReadOptions::new(Read::Any).filter(Filter::any().labels(selector)?);
    ///     cache.count_with(&Range::all(), &options).map(|counted| counted.count)
    /// };
    /// assert_eq!((count("app=web")?, count("app=web,tier")?, count("!tier")?), (2, 1, 1));
    /// assert_eq!(count("tier notin (front)")?, 1, "/old has no such label; as in Kubernetes");
    /// assert!(count("app in (web").unwrap_err().message().contains("byte 11: expected"));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn labels(mut self, selector: impl AsRef<[u8]>) -> Result<Filter> {
        self.labels.append(&mut parse_labels(selector.as_ref())?);
        Ok(self)
    }

    /// Only what this field selector selects: `name=value`, `name==value`, `name!=value`, joined by
    /// commas. An absent field is the empty string. Errors as [`Filter::labels`].
    ///
    /// ```
    /// use watchcore::{Attribute, Cache, Change, Filter, Read, ReadOptions};
    ///
    /// let cache = Cache::builder("/").field(Attribute::json("node", "/node")?).build()?;
    /// cache.writer()?.apply(1, [Change::put("/bound", r#"{"node":"a"}"#), Change::put("/free", "{}")])?;
    /// let free = ReadOptions::new(Read::Any).filter(Filter::any().fields("node=")?);
    /// assert!(cache.get_with("/free", &free)?.kv.is_some(), "an absent field is the empty string");
    /// assert!(cache.get_with("/bound", &free)?.kv.is_none());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn fields(mut self, selector: impl AsRef<[u8]>) -> Result<Filter> {
        self.fields.append(&mut parse_fields(selector.as_ref())?);
        Ok(self)
    }

    /// Lets only those key-values pass for which a function returns true. It must give the same answer each time. The
    /// consumer's thread calls it and, for a subscription that sleeps, a thread of the process for predicates alone,
    /// which the first such subscription starts (RESOURCE_EXHAUSTED if it cannot). A predicate that is slow, or
    /// never returns, delays the wake-ups of subscriptions with predicates, and nothing else. If it panics on the
    /// consumer's thread, the panic goes through the poll or read to its caller, and the subscription stays where it was.
    ///
    /// The predicate is the same only as itself and its clones: a list's continue token is good for the filter that it was
    /// given with, in this process. See [`Filter::named_predicate`].
    ///
    /// ```
    /// use watchcore::{Cache, Change, Filter, Kind, Start};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// let is_long = Filter::any().predicate(|kv| kv.value().is_some_and(|value| value.len() > 3));
    /// let mut long = cache.subscribe(Start::Now).filter(is_long).open()?;
    /// writer.apply(1, [Change::put("/a", "long")])?;
    /// writer.apply(2, [Change::put("/a", "no")])?;
    /// let kinds: Vec<Kind> = long.poll(10)?.events().iter().map(|event| event.kind()).collect();
    /// assert_eq!(kinds, [Kind::Added, Kind::Deleted], "by the value before and the value now");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn predicate(self, test: impl Fn(&KeyValue) -> bool + Send + Sync + 'static) -> Filter {
        self.with_predicate(PredicateIdentity::draw(), test)
    }

    /// Like [`Filter::predicate`], but equal to every other predicate of this name: its lists can be continued with a
    /// predicate that is made anew, in another process too. The name stands for the function's whole behaviour, so two
    /// functions that decide differently need two names.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Filter, Range, Read, ReadOptions};
    ///
    /// let longer_than = |length: usize| {
    ///     let name = format!("longer than {length}");
    ///     Filter::any().named_predicate(name, move |kv| kv.value().is_some_and(|value| value.len() > length))
    /// };
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", "long"), Change::put("/b", "longer")])?;
    /// let options = |length| ReadOptions::new(Read::Any).filter(longer_than(length)).limit(1);
    /// let page = cache.list_with(&Range::all(), &options(1))?;
    /// let token = page.continue_token().unwrap();
    /// assert_eq!(cache.list_with(&Range::all(), &options(1).continue_from(token))?.len(), 1);
    /// assert!(cache.list_with(&Range::all(), &options(2).continue_from(token)).is_err());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn named_predicate(
        self,
        name: impl AsRef<[u8]>,
        test: impl Fn(&KeyValue) -> bool + Send + Sync + 'static,
    ) -> Filter {
        self.with_predicate(PredicateIdentity::Named(name.as_ref().into()), test)
    }

    fn with_predicate(
        mut self,
        identity: PredicateIdentity,
        test: impl Fn(&KeyValue) -> bool + Send + Sync + 'static,
    ) -> Filter {
        self.predicates.push(Predicate { identity, test: Arc::new(test) });
        self
    }

    /// A filter of the key-values that both let pass.
    pub fn and(mut self, other: Filter) -> Filter {
        self.range = self.range.and(&other.range);
        self.nothing |= other.nothing;
        self.kinds &= other.kinds;
        self.names_a_mark |= other.names_a_mark;
        self.labels.extend(other.labels);
        self.fields.extend(other.fields);
        self.predicates.extend(other.predicates);
        self
    }

    /// Whether it lets every key-value pass (types aside).
    pub(crate) fn is_any(&self) -> bool {
        self.range.is_unbounded() && self.is_only_a_range()
    }

    /// Whether it is a range of keys and nothing else (types aside).
    pub(crate) fn is_only_a_range(&self) -> bool {
        !self.nothing && self.labels.is_empty() && self.fields.is_empty() && self.predicates.is_empty()
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
    fn a_conjunction_of_ranges_holds_what_both_hold() {
        let holds = |range: &Range, key: &str| range.contains(key.as_bytes());
        let both = Range::prefix("/a/").and(&Range::between("/a/b", "/a/d"));
        assert!(holds(&both, "/a/b") && holds(&both, "/a/cx") && !holds(&both, "/a/d") && !holds(&both, "/a/a"));
        let paths = Range::path("/a").and(&Range::path("/a/b"));
        assert!(holds(&paths, "/a/b") && holds(&paths, "/a/b/c") && !holds(&paths, "/a/bc") && !holds(&paths, "/a"));
        let nothing = Range::key("/a").and(&Range::key("/b"));
        assert!(!holds(&nothing, "/a") && !holds(&nothing, "/b"));
        assert_eq!(Range::all().and(&Range::key("x")), Range::key("x"));
    }
}
