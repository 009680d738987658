//! The canonical form of a filter: equal filters have equal bytes, in every process and every build.
//!
//! A continue token carries a hash of these bytes, and outlives the process that gave it, so nothing in them comes from a
//! derived `Debug`, `Ord` or `Hash`, which a compiler or a reordered declaration may change. The bytes are parts. Each
//! is a tag, the length of its content as eight bytes (all numbers are little-endian), and the content; they follow
//! behind one byte for the version of the form, which rises with any change of this table:
//!
//! | tag | content |
//! | --- | --- |
//! | 1 | the first key of the range, within the cache's prefix |
//! | 2 | the end of the range, where it has one |
//! | 3 | a path of the range |
//! | 4 | nothing: the filter lets nothing pass |
//! | 5 | a label requirement: its operator (one byte: 1 in, 2 notin, 3 exists, 4 absent, 5 greater, 6 less), then a part 8 for the key, then a part 9 for each value of a set, in order, or for the eight bytes of the number |
//! | 6 | a field requirement: 1 for `=`, 2 for `!=`, then a part 8 for the name and a part 9 for the value |
//! | 7 | the identity of a predicate: a part 8 with the name that it was given, or a part 9 with two numbers that were drawn |
//!
//! Parts of one tag stand in the order of their bytes, and none stands twice: a conjunction has no order. The types of
//! changes are not in it, because only reads of state have tokens, and they look at no types.

#![forbid(unsafe_code)]

use super::matcher::Matcher;
use super::range::{PredicateIdentity, Range};
use super::selector::{FieldRequirement, LabelRequirement, Test};
use crate::position::fnv1a;

const VERSION: u8 = 1;

fn part(out: &mut Vec<u8>, tag: u8, content: &[u8]) {
    out.push(tag);
    out.extend((content.len() as u64).to_le_bytes());
    out.extend(content);
}

/// Appends parts of one tag in the order of their bytes, each once.
fn sorted(out: &mut Vec<u8>, tag: u8, contents: impl Iterator<Item = Vec<u8>>) {
    let mut contents: Vec<Vec<u8>> = contents.collect();
    contents.sort_unstable();
    contents.dedup();
    contents.iter().for_each(|content| part(out, tag, content));
}

fn of_label(LabelRequirement { key, test }: &LabelRequirement) -> Vec<u8> {
    let number = |than: &i64| vec![than.to_le_bytes().to_vec()];
    let texts = |set: &[Box<str>]| set.iter().map(|value| value.as_bytes().to_vec()).collect();
    let (operator, values): (u8, Vec<Vec<u8>>) = match test {
        Test::In(set) => (1, texts(set)),
        Test::NotIn(set) => (2, texts(set)),
        Test::Exists => (3, Vec::new()),
        Test::Absent => (4, Vec::new()),
        Test::Greater(than) => (5, number(than)),
        Test::Less(than) => (6, number(than)),
    };
    let mut content = vec![operator];
    part(&mut content, 8, key.as_bytes());
    values.iter().for_each(|value| part(&mut content, 9, value));
    content
}

fn of_field(FieldRequirement { name, equal, value }: &FieldRequirement) -> Vec<u8> {
    let mut content = vec![if *equal { 1 } else { 2 }];
    part(&mut content, 8, name.as_bytes());
    part(&mut content, 9, value.as_bytes());
    content
}

fn of_predicate(identity: &PredicateIdentity) -> Vec<u8> {
    let mut content = Vec::new();
    match identity {
        PredicateIdentity::Named(name) => part(&mut content, 8, name),
        PredicateIdentity::Drawn(numbers) => part(&mut content, 9, &numbers.map(u64::to_le_bytes).concat()),
    }
    content
}

impl Matcher {
    /// The bytes of this filter for a read of `range`, which lies within the filter's own, in a cache of this prefix.
    fn canonical(&self, range: &Range, prefix: &[u8]) -> Vec<u8> {
        let range = range.and(&Range::prefix(prefix));
        let mut out = vec![VERSION];
        part(&mut out, 1, &range.span.from);
        range.span.to.iter().for_each(|to| part(&mut out, 2, to));
        sorted(&mut out, 3, range.paths().map(<[u8]>::to_vec));
        if self.is_nothing() {
            part(&mut out, 4, b"");
        }
        sorted(&mut out, 5, self.labels().iter().map(of_label));
        sorted(&mut out, 6, self.fields().iter().map(|(_, field)| of_field(field)));
        sorted(&mut out, 7, self.predicates().iter().map(|predicate| of_predicate(&predicate.identity)));
        out
    }

    /// What a continue token says of its filter: the hash of [`Matcher::canonical`].
    pub(crate) fn identity(&self, range: &Range, prefix: &[u8]) -> u64 {
        fnv1a(&self.canonical(range, prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::declared::Attribute;
    use crate::attribute::schema::Schema;
    use crate::{Filter, Kind, Labels, Result};

    fn compiled(filter: &Filter) -> Matcher {
        let field = |name| Attribute::key_segment(name, 1);
        let labels = Labels::extractor(|_, _| Ok::<_, String>(Vec::new()));
        let schema = Schema::new(vec![field("f"), field("g")], Some(labels)).unwrap();
        Matcher::new(filter, false, b"/", &schema).unwrap()
    }

    fn bytes(filter: &Filter) -> Vec<u8> {
        compiled(filter).canonical(&filter.range, b"/")
    }

    /// Every tag and every operator. Tokens of an older build are refused, or worse, taken for another filter's, where
    /// this fails: raise the version of the form and of tokens, and do not only change the expectation.
    #[test]
    fn canonical_bytes_stay_as_they_are() {
        let labels = "a in (y,x),b notin (x),c,!d,e>5,g<7";
        let filter = Filter::none().labels(labels).unwrap().fields("g!=2,f=1").unwrap();
        let filter = filter.path("/p").path("/p/q").named_predicate("even", |_| true);
        let golden = [
            "01",
            "0104000000000000002f702f71",
            "0204000000000000002f702f72",
            "0302000000000000002f70",
            "0304000000000000002f702f71",
            "040000000000000000",
            "051f0000000000000001080100000000000000610901000000000000007809010000000000000079",
            "051500000000000000020801000000000000006209010000000000000078",
            "050b000000000000000308010000000000000063",
            "050b000000000000000408010000000000000064",
            "051c0000000000000005080100000000000000650908000000000000000500000000000000",
            "051c0000000000000006080100000000000000670908000000000000000700000000000000",
            "061500000000000000010801000000000000006609010000000000000031",
            "061500000000000000020801000000000000006709010000000000000032",
            "070d000000000000000804000000000000006576656e",
        ];
        let hex: String = bytes(&filter).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.concat());
        assert_eq!(compiled(&filter).identity(&filter.range, b"/"), 0x49ac_4c18_7363_c9dd);
    }

    #[test]
    fn conjunctions_have_no_order() -> Result<()> {
        let any = Filter::any;
        let even = any().predicate(|kv| kv.key().len() % 2 == 0);
        let odd = any().predicate(|kv| kv.key().len() % 2 == 1);
        let equal = [
            (any().labels("b=1")?.labels("a=1")?, any().labels("a=1,b=1")?),
            (any().labels("a in (x,y)")?, any().labels("a in (y,x,x),a in (x,y)")?),
            (any().labels("a=1")?.labels("a=1")?, any().labels("a==1")?),
            (any().fields("f=1")?.fields("g=1")?, any().fields("g=1,f=1")?.fields("f=1")?),
            (any().path("/a").prefix("/a/b"), any().prefix("/a/b").path("/a").path("/a")),
            (any(), any().prefix("/").types(&[Kind::Added])),
            (even.clone().and(odd.clone()), odd.clone().and(even.clone()).and(even.clone())),
            (any().named_predicate("x", |_| true), any().named_predicate("x", |_| true)),
        ];
        for (one, other) in &equal {
            assert_eq!(bytes(one), bytes(other), "{one:?} {other:?}");
        }
        let different = [
            any(),
            Filter::none(),
            any().key("/a"),
            any().prefix("/a"),
            any().path("/a"),
            any().labels("a")?,
            any().labels("!a")?,
            any().labels("a=")?,
            any().labels("a=1")?,
            any().labels("a!=1")?,
            any().labels("a>1")?,
            any().labels("a<1")?,
            any().labels("a in (1,b)")?,
            any().labels("a=1,b")?,
            any().fields("f=1")?,
            any().fields("f!=1")?,
            any().fields("g=1")?,
            even,
            odd,
            any().predicate(|kv| kv.key().len() % 2 == 0),
            any().named_predicate("x", |_| true),
            any().named_predicate("y", |_| true),
            any().named_predicate("x", |_| true).named_predicate("y", |_| true),
            any().named_predicate("xy", |_| true),
        ];
        for (at, one) in different.iter().enumerate() {
            for other in &different[..at] {
                assert_ne!(bytes(one), bytes(other), "{one:?} {other:?}");
                assert_ne!(compiled(one), compiled(other));
            }
        }
        Ok(())
    }

    /// The compiled forms are equal, too, so that sleepers with equal filters are looked at together.
    #[test]
    fn compiled_filters_are_equal_in_any_order() -> Result<()> {
        let any = Filter::any;
        let one = any().labels("b=1")?.labels("a=1")?.fields("g=1")?.fields("f=1")?;
        let other = any().fields("f=1,g=1")?.labels("a=1,b=1")?.labels("b=1")?;
        assert_eq!(compiled(&one), compiled(&other));
        Ok(())
    }
}
