//! The compiled filter: what a subscription asks of every event that it meets.
//!
//! An event passes by what its key-value was before and is now (contract, section 3): `cur` and not
//! `old` is ADDED, both MODIFIED, `old` alone DELETED. A filter of keys alone changes no kind.

#![forbid(unsafe_code)]

use crate::attribute::encode::Attributes;
use crate::attribute::schema::Schema;
use crate::data::event::{Event, Kind};
use crate::data::key_value::{KeyMeta, KeyValue, VersionPtr};
use crate::error::show;
use crate::error::{Result, say};
use crate::filter::range::{CHANGES, Filter, Predicate, Range};
use crate::filter::selector::{FieldRequirement, LabelRequirement};
use crate::foreign;

/// A filter bound to the attributes of a cache. Equal ones are evaluated once an event.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Matcher {
    /// `None`: every key of the cache.
    range: Option<Range>,
    /// Bits of [`Kind::bit`] that are delivered; marks pass always.
    kinds: u32,
    raw: bool,
    /// The conditions on values; boxed, so that a filter of keys is small.
    asks: Option<Box<Asks>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Asks {
    nothing: bool,
    labels: Box<[LabelRequirement]>,
    fields: Box<[(usize, FieldRequirement)]>,
    predicates: Box<[Predicate]>,
}

impl Asks {
    /// Whether a value holds but for the predicates. Apart, so that who asks nothing of values does not pay for it.
    #[inline(never)]
    fn hold_value(&self, kv: &KeyValue) -> bool {
        let attributes = Attributes(kv.attributes());
        !self.nothing
            && self.labels.iter().all(|label| label.holds(attributes.label(label.key.as_bytes())))
            && self.fields.iter().all(|(number, field)| field.holds(attributes.field(*number)))
    }
}

impl Matcher {
    /// Binds a filter to the declared attributes: what is not declared is INVALID_ARGUMENT.
    ///
    /// So is a range outside the prefix, or reversed.
    pub(crate) fn new(filter: &Filter, raw: bool, prefix: &[u8], schema: &Schema) -> Result<Matcher> {
        filter.range.check("filter", prefix)?;
        if filter.names_a_mark {
            return Err(say::invalid("filter by types: only kinds of changes can be masked, and marks come always."));
        }
        if !filter.labels.is_empty() && !schema.has_labels() {
            return Err(say::invalid(
                "filter by labels: the cache declares none. Say where they are when the cache is made.",
            ));
        }
        let bind = |requirement: &FieldRequirement| match schema.field(&requirement.name) {
            Some(number) => Ok((number, requirement.clone())),
            None => Err(say::invalid(format!(
                "filter by field {}: the cache declares {}. Declare it when the cache is made.",
                show(requirement.name.as_bytes()),
                declared(schema)
            ))),
        };
        let mut fields: Vec<_> = filter.fields.iter().map(bind).collect::<Result<_>>()?;
        let mut labels = filter.labels.clone();
        // Equal filters compile to equal ones, in whatever order they were put together.
        fields.sort_unstable();
        fields.dedup();
        labels.sort_unstable();
        labels.dedup();
        Ok(Matcher {
            range: (!filter.range.is_all_of(prefix)).then(|| filter.range.clone()),
            kinds: filter.kinds,
            raw,
            asks: (!filter.is_only_a_range()).then(|| {
                Box::new(Asks {
                    nothing: filter.nothing,
                    labels: labels.into(),
                    fields: fields.into(),
                    predicates: filter.predicates.clone().into(),
                })
            }),
        })
    }

    /// Whether every event passes unchanged: then a batch is a view into the log.
    pub(crate) fn passes_all(&self) -> bool {
        self.range.is_none() && self.kinds & CHANGES == CHANGES && !self.raw && self.looks_at_keys_only()
    }

    /// Whether it asks for nothing but a range of keys, and lets every change of those pass.
    pub(crate) fn is_a_range(&self) -> bool {
        self.kinds & CHANGES == CHANGES && self.looks_at_keys_only()
    }

    /// Whether changes are delivered under etcd's kinds.
    pub(crate) fn is_raw(&self) -> bool {
        self.raw
    }

    /// The filter without its mask of kinds, where it has one.
    pub(crate) fn unmasked(&self) -> Option<Matcher> {
        (self.kinds & CHANGES != CHANGES).then(|| Matcher { kinds: CHANGES, ..self.clone() })
    }

    /// Whether a key-value matches by its key alone.
    #[inline]
    pub(crate) fn looks_at_keys_only(&self) -> bool {
        self.asks.is_none()
    }

    pub(crate) fn has_predicates(&self) -> bool {
        self.asks.as_ref().is_some_and(|asks| !asks.predicates.is_empty())
    }

    pub(crate) fn range(&self) -> Option<&Range> {
        self.range.as_ref()
    }

    pub(crate) fn labels(&self) -> &[LabelRequirement] {
        self.asks.as_ref().map_or(&[], |asks| &asks.labels)
    }

    pub(crate) fn fields(&self) -> &[(usize, FieldRequirement)] {
        self.asks.as_ref().map_or(&[], |asks| &asks.fields)
    }

    pub(crate) fn predicates(&self) -> &[Predicate] {
        self.asks.as_ref().map_or(&[], |asks| &asks.predicates)
    }

    /// Whether it lets nothing pass, whatever else it asks.
    pub(crate) fn is_nothing(&self) -> bool {
        self.asks.as_ref().is_some_and(|asks| asks.nothing)
    }

    /// The kind as which a change is delivered: raw ones are etcd's.
    pub(crate) fn delivered_kind(&self, kind: Kind) -> Kind {
        match (self.raw, kind) {
            (true, Kind::Added | Kind::Modified) => Kind::Put,
            (true, Kind::Deleted) => Kind::Delete,
            _ => kind,
        }
    }

    /// Whether changes of this kind are delivered at all.
    #[inline]
    pub(crate) fn delivers(&self, kind: Kind) -> bool {
        self.kinds & kind.bit() != 0
    }

    #[inline]
    fn holds_key(&self, key: &[u8]) -> bool {
        self.range.as_ref().is_none_or(|range| range.contains(key))
    }

    /// Whether a live key-value matches.
    pub(crate) fn holds(&self, kv: &KeyValue) -> bool {
        self.holds_key(kv.key()) && self.holds_value(kv)
    }

    fn holds_value(&self, kv: &KeyValue) -> bool {
        self.may_hold_value(kv) && self.predicates_hold(kv)
    }

    /// Whether a live key-value whose key lies in the range matches but for the predicates, which are users' code.
    #[inline]
    pub(crate) fn may_hold_value(&self, kv: &KeyValue) -> bool {
        self.asks.as_ref().is_none_or(|asks| asks.hold_value(kv))
    }

    /// The rest of the question that [`Matcher::may_hold_value`] leaves open. Not under a pin.
    pub(crate) fn predicates_hold(&self, kv: &KeyValue) -> bool {
        self.asks.as_ref().is_none_or(|asks| asks.predicates.iter().all(|predicate| (predicate.test)(kv)))
    }

    /// Drops the entries of a scan from index `from` on that the predicates do not let pass.
    pub(crate) fn keep<T>(&self, taken: &mut Vec<T>, from: usize, kv: impl Fn(&T) -> &KeyValue) {
        if self.has_predicates() {
            let tried = taken.split_off(from);
            taken.extend(tried.into_iter().filter(|one| self.predicates_hold(kv(one))));
        }
    }

    /// The kind of an event as this filter sees it, whether that kind is delivered or not; `None`: no change.
    #[inline]
    pub(crate) fn transition(&self, event: &Event) -> Option<Kind> {
        if event.kind() == Kind::Resync {
            return Some(Kind::Resync);
        }
        if !self.holds_key(event.key()) {
            return None;
        }
        if self.looks_at_keys_only() { Some(event.kind()) } else { self.crossing(event) }
    }

    fn crossing(&self, event: &Event) -> Option<Kind> {
        let cur = event.kind() != Kind::Deleted && event.kv().is_some_and(|kv| self.holds_value(kv));
        let old = event.prev().is_some_and(|kv| self.holds_value(kv));
        Kind::of_change(old, cur)
    }

    /// Whether the event, or a changed form of it, is delivered.
    #[inline]
    pub(crate) fn matches(&self, event: &Event) -> bool {
        self.transition(event).is_some_and(|kind| kind == Kind::Resync || self.delivers(kind))
    }

    /// [`Matcher::matches`] for the notifier: a predicate that panics wakes its owner, on whose thread it panics again.
    pub(crate) fn matches_guarded(&self, event: &Event) -> bool {
        if self.has_predicates() { foreign::guard(|| self.matches(event)).unwrap_or(true) } else { self.matches(event) }
    }

    /// The form in which an event is delivered that is `kind` to this filter. A deletion that the
    /// filter made has a tombstone of its own: the second value.
    pub(crate) fn delivered_form(&self, event: &Event, kind: Kind) -> (Kind, Option<KeyValue>) {
        let delivered = self.delivered_kind(kind);
        if kind != Kind::Deleted || event.kind() == Kind::Deleted {
            return (delivered, None);
        }
        let meta = event.prev().map_or_else(KeyMeta::default, KeyValue::meta);
        (delivered, Some(KeyValue::new(event.key(), None, meta, event.sequence(), VersionPtr::NULL)))
    }
}

fn declared(schema: &Schema) -> String {
    let names: Vec<String> = schema.names().map(|name| format!("{name:?}")).collect();
    if names.is_empty() { "no field".into() } else { names.join(", ") }
}
