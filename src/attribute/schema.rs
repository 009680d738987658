//! Attributes of key-values: declared once for a cache, extracted once, when a change is written.

#![forbid(unsafe_code)]

use super::encode::{ABSENT, Extracted, encode};
use super::json::{Malformed, Pointer, Pointers};
use super::protobuf::{self, Paths};
use crate::error::{Code, Error, Result, say};
use crate::foreign;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The most fields that a cache can declare.
pub const MAX_FIELDS: usize = 64;

/// A declared attribute of key-values: extracted once, when a change is written.
///
/// A field selector names it, and an index can be built on it. On a value that does not have it, it is
/// the empty string.
///
/// ```
/// use watchcore::{Attribute, Cache, Change, Start};
///
/// let cache = Cache::builder("/")
///     .field(Attribute::extractor("size", |_key, value| {
///         Ok::<_, std::convert::Infallible>(Some(value.len().to_string().into_bytes()))
///     }))
///     .build()?;
/// let mut three = cache.subscribe(Start::Now).fields("size=3")?.open()?;
/// cache.writer()?.apply(1, [Change::put("/a", "abc"), Change::put("/b", "ab")])?;
/// assert_eq!(three.poll(10)?.events()[0].key(), b"/a");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Attribute {
    name: Box<str>,
    origin: Origin,
}

#[derive(Clone)]
enum Origin {
    Segment(usize),
    Json { pointer: Pointer, protobuf: Option<Box<[u32]>> },
    Call(Arc<FieldCall>),
}

/// `Err` stands for an error of the extractor.
type FieldCall = dyn Fn(&[u8], &[u8]) -> Result<Option<Vec<u8>>, ()> + Send + Sync;
type LabelsCall = dyn Fn(&[u8], &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, ()> + Send + Sync;

impl Attribute {
    /// Segment `depth` of the key, split at `/`, where a leading `/` does not count: of
    /// `/registry/pods/ns/x`, segment 2 is `ns`. A key with fewer segments does not have it.
    pub fn key_segment(name: impl Into<String>, depth: usize) -> Attribute {
        Attribute { name: name.into().into(), origin: Origin::Segment(depth) }
    }

    /// A scalar of a JSON value by its RFC 6901 pointer: a string as it is, a number or boolean by its
    /// JSON text. Arrays, objects and null are absent.
    ///
    /// All pointers of a cache are found in one pass over the value, which always goes to its end: of
    /// members with the same name the last holds. A value that is not JSON has none of them and is
    /// counted once.
    ///
    /// In a value of Kubernetes' protobuf storage form (`k8s\0`) the pointers `/metadata/name` and
    /// `/metadata/namespace` are known too; others are absent there, unless [`Attribute::protobuf`] says
    /// where they are.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the 0-based byte position where the pointer is malformed. UNSUPPORTED
    /// without the crate's feature `json`.
    pub fn json(name: impl Into<String>, pointer: &str) -> Result<Attribute> {
        let name = name.into();
        let pointer = json_pointer(&format!("attribute {name:?}, JSON pointer"), pointer)?;
        Ok(Attribute { name: name.into(), origin: Origin::Json { pointer, protobuf: None } })
    }

    /// Where an attribute of [`Attribute::json`] is in a value of Kubernetes' protobuf storage form: at
    /// this path of field numbers in the object. A pod's `spec.nodeName` is `&[2, 10]`.
    ///
    /// A string or bytes are taken as they are, a varint as a signed decimal number; numbers of fixed
    /// width and groups are absent. Of several occurrences the last holds.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the path is empty or longer than 100, if a number is not in 1..=536870911, or
    /// if the attribute does not come from JSON.
    pub fn protobuf(mut self, path: &[u32]) -> Result<Attribute> {
        let name = &self.name;
        let Origin::Json { protobuf, .. } = &mut self.origin else {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path {path:?}: only an attribute by JSON pointer has one. Declare it with json."
            )));
        };
        if path.is_empty() || path.len() > protobuf::MAX_DEPTH {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path: it has {} field numbers. Name 1 to {}.",
                path.len(),
                protobuf::MAX_DEPTH
            )));
        }
        if let Some((at, number)) =
            path.iter().enumerate().find(|(_, number)| !(1..=protobuf::MAX_FIELD).contains(*number))
        {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path: number {at} is {number}. Field numbers are 1 to {}.",
                protobuf::MAX_FIELD
            )));
        }
        *protobuf = Some(path.into());
        Ok(self)
    }

    /// What a function makes of key and value. It runs on the writer's thread, once for each put.
    ///
    /// An `Err` or a panic leaves the attribute absent and is counted; the change is written all the
    /// same.
    pub fn extractor<E: fmt::Display>(
        name: impl Into<String>,
        extract: impl Fn(&[u8], &[u8]) -> Result<Option<Vec<u8>>, E> + Send + Sync + 'static,
    ) -> Attribute {
        let name: Box<str> = name.into().into();
        let call = {
            let name = name.clone();
            move |key: &[u8], value: &[u8]| {
                extract(key, value).map_err(|error| tracing::debug!(attribute = &*name, "extractor failed: {error}"))
            }
        };
        Attribute { name, origin: Origin::Call(Arc::new(call)) }
    }

    /// The name that selectors use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What extraction does for each key and value. For benches.
    #[doc(hidden)]
    #[allow(clippy::type_complexity)]
    pub fn extraction(
        fields: Vec<Attribute>,
        labels: Option<Labels>,
    ) -> Result<impl Fn(&[u8], &[u8], &mut Vec<u8>) -> u64> {
        let schema = Schema::new(fields, labels)?;
        Ok(move |key: &[u8], value: &[u8], out: &mut Vec<u8>| schema.extract(key, value, out))
    }
}

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Attribute");
        shown.field("name", &self.name);
        match &self.origin {
            Origin::Segment(depth) => shown.field("key_segment", depth),
            Origin::Json { pointer, protobuf } => shown.field("json", pointer).field("protobuf", protobuf),
            Origin::Call(_) => shown.field("extractor", &format_args!("..")),
        };
        shown.finish()
    }
}

/// Where the labels of key-values come from: what a label selector looks at.
///
/// ```
/// use watchcore::{Cache, Change, Labels, Start};
///
/// let cache = Cache::builder("/")
///     .labels(Labels::extractor(|_key, value| {
///         Ok::<_, std::convert::Infallible>(vec![(b"first".to_vec(), value[..1].to_vec())])
///     }))
///     .build()?;
/// let mut with_a = cache.subscribe(Start::Now).labels("first in (a, b)")?.open()?;
/// cache.writer()?.apply(1, [Change::put("/1", "abc"), Change::put("/2", "xyz")])?;
/// assert_eq!(with_a.poll(10)?.len(), 1);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Labels(LabelsOrigin);

#[derive(Clone)]
enum LabelsOrigin {
    Json(Pointer),
    Call(Arc<LabelsCall>),
}

impl Labels {
    /// The members of the JSON object at an RFC 6901 pointer: strings as they are, numbers and booleans
    /// by their JSON text; other members are no labels. For Kubernetes' objects: `/metadata/labels`.
    ///
    /// In a value of Kubernetes' protobuf storage form (`k8s\0`) the labels are metadata.labels, whatever
    /// the pointer says.
    ///
    /// # Errors
    /// As [`Attribute::json`].
    pub fn json(pointer: &str) -> Result<Labels> {
        json_pointer("labels, JSON pointer", pointer).map(|pointer| Labels(LabelsOrigin::Json(pointer)))
    }

    /// What a function makes of key and value: pairs of key and value. Of pairs with the same key the
    /// last holds. It runs on the writer's thread, once for each put.
    ///
    /// An `Err` or a panic leaves the key-value without labels and is counted; the change is written all
    /// the same.
    pub fn extractor<E: fmt::Display>(
        extract: impl Fn(&[u8], &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, E> + Send + Sync + 'static,
    ) -> Labels {
        Labels(LabelsOrigin::Call(Arc::new(move |key: &[u8], value: &[u8]| {
            extract(key, value).map_err(|error| tracing::debug!("extractor of labels failed: {error}"))
        })))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Labels");
        match &self.0 {
            LabelsOrigin::Json(pointer) => shown.field("json", pointer),
            LabelsOrigin::Call(_) => shown.field("extractor", &format_args!("..")),
        };
        shown.finish()
    }
}

fn json_pointer(what: &str, pointer: &str) -> Result<Pointer> {
    if cfg!(feature = "json") {
        Pointer::parse(what, pointer)
    } else {
        Err(Error::new(
            Code::Unsupported,
            format!("{what} {pointer:?}: this build reads no JSON. Build watchcore with its feature json."),
        ))
    }
}

/// What a cache declares.
pub(crate) struct Schema {
    fields: Vec<Attribute>,
    labels: Option<Labels>,
    pointers: Pointers,
    paths: Paths,
    /// The fields that come from the value by pointer or path.
    parsed: Vec<usize>,
}

impl Schema {
    /// # Errors
    /// INVALID_ARGUMENT for more than 64 fields, and for a name that is empty or comes twice.
    pub(crate) fn new(fields: Vec<Attribute>, labels: Option<Labels>) -> Result<Schema> {
        if fields.len() > MAX_FIELDS {
            return Err(say::invalid(format!(
                "{} attributes: a cache has {MAX_FIELDS} at most. Declare fewer.",
                fields.len()
            )));
        }
        let (mut pointers, mut paths, mut parsed) = (Pointers::default(), Paths::default(), Vec::new());
        for (number, field) in fields.iter().enumerate() {
            if field.name.is_empty() {
                return Err(say::invalid(format!("attribute {number}: its name is empty. Give it one.")));
            }
            if fields[..number].iter().any(|other| other.name == field.name) {
                return Err(say::invalid(format!(
                    "attribute {:?}: it is declared twice. Give each a name of its own.",
                    field.name
                )));
            }
            if let Origin::Json { pointer, protobuf } = &field.origin {
                pointers.add_field(pointer, number);
                parsed.push(number);
                let tokens: Vec<&str> = pointer.tokens().collect();
                match (protobuf, &*tokens) {
                    (Some(path), _) => paths.add_field(path, number),
                    (None, ["metadata", "name"]) => paths.add_field(protobuf::NAME, number),
                    (None, ["metadata", "namespace"]) => paths.add_field(protobuf::NAMESPACE, number),
                    _ => {}
                }
            }
        }
        if let Some(Labels(LabelsOrigin::Json(pointer))) = &labels {
            pointers.set_labels(pointer);
            paths.set_labels();
        }
        Ok(Schema { fields, labels, pointers, paths, parsed })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.labels.is_none()
    }

    pub(crate) fn has_labels(&self) -> bool {
        self.labels.is_some()
    }

    /// The number of the field with this name.
    pub(crate) fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| *field.name == *name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(Attribute::name)
    }

    /// Appends the encoded attributes of a key-value to `out`, and returns how many extractors failed. A
    /// value that is malformed where JSON or protobuf is asked for is one failure; a pointer that leads
    /// nowhere is none.
    ///
    /// It never panics, also where an extractor does. Its time grows with the length of the value.
    pub(crate) fn extract(&self, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut failures = 0;
        let mut found = Extracted { fields: vec![None; self.fields.len()], labels: Vec::new() };
        if !self.pointers.is_empty() {
            let read = if value.starts_with(protobuf::MAGIC) {
                self.paths.read(value, &mut found)
            } else {
                self.pointers.read(value, &mut found)
            };
            if let Err(Malformed) = read {
                failures += 1;
                self.parsed.iter().for_each(|field| found.fields[*field] = None);
                found.labels.clear();
            }
        }
        for (field, place) in self.fields.iter().zip(&mut found.fields) {
            match &field.origin {
                Origin::Segment(depth) => *place = segment(key, *depth).map(Cow::Borrowed),
                Origin::Call(call) => match guarded(|| call(key, value)) {
                    Ok(attribute) => *place = attribute.map(Cow::Owned),
                    Err(()) => failures += 1,
                },
                Origin::Json { .. } => {}
            }
        }
        if let Some(Labels(LabelsOrigin::Call(call))) = &self.labels {
            match guarded(|| call(key, value)) {
                Ok(labels) => {
                    found.labels = labels.into_iter().map(|(key, value)| (key.into(), Some(value.into()))).collect();
                }
                Err(()) => failures += 1,
            }
        }
        failures + u64::from(!encode(found, ABSENT as usize, out))
    }
}

/// Runs an extractor; a panic is an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, ()>) -> Result<T, ()> {
    foreign::guard(call).unwrap_or(Err(()))
}

fn segment(key: &[u8], depth: usize) -> Option<&[u8]> {
    key.strip_prefix(b"/").unwrap_or(key).split(|b| *b == b'/').nth(depth)
}

#[cfg(all(test, feature = "json"))]
mod tests {
    use super::*;
    use crate::attribute::encode::Attributes;
    use crate::attribute::protobuf::tests::pod;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Failing = std::result::Result<Option<Vec<u8>>, String>;

    fn json(name: &str, pointer: &str) -> Attribute {
        Attribute::json(name, pointer).expect("is a pointer")
    }

    fn extract(schema: &Schema, key: &str, value: &[u8]) -> (Vec<u8>, u64) {
        let mut out = b"before".to_vec();
        let failures = schema.extract(key.as_bytes(), value, &mut out);
        assert!(out.starts_with(b"before"));
        (out.split_off(6), failures)
    }

    fn text(bytes: Option<&[u8]>) -> Option<&str> {
        bytes.map(|bytes| std::str::from_utf8(bytes).expect("is UTF-8"))
    }

    fn all<'a>(schema: &Schema, attributes: Attributes<'a>) -> (Vec<Option<&'a str>>, Vec<(&'a str, &'a str)>) {
        let fields = (0..schema.fields.len()).map(|number| text(attributes.field(number))).collect();
        let labels = attributes.labels().map(|(key, value)| (text(Some(key)).unwrap(), text(Some(value)).unwrap()));
        (fields, labels.collect())
    }

    #[test]
    fn segments_of_keys() {
        for (key, depth, segment) in [
            ("/registry/pods/ns/x", 0, Some("registry")),
            ("/registry/pods/ns/x", 2, Some("ns")),
            ("/registry/pods/ns/x", 3, Some("x")),
            ("/registry/pods/ns/x", 4, None),
            ("registry/pods", 1, Some("pods")),
            ("//a", 0, Some("")),
            ("//a", 1, Some("a")),
            ("/a/", 1, Some("")),
            ("a", usize::MAX, None),
        ] {
            let schema = Schema::new(vec![Attribute::key_segment("s", depth)], None).expect("is right");
            let (out, failures) = extract(&schema, key, b"\xff");
            assert_eq!((text(Attributes(&out).field(0)), failures), (segment, 0), "{key} {depth}");
        }
    }

    #[test]
    fn fields_and_labels_of_json() {
        let schema = Schema::new(
            vec![
                json("node", "/spec/nodeName"),
                Attribute::key_segment("namespace", 2),
                json("priority", "/spec/priority"),
                json("phase", "/status/phase"),
            ],
            Some(Labels::json("/metadata/labels").expect("is a pointer")),
        )
        .expect("is right");
        assert!(schema.has_labels() && !schema.is_empty());
        assert_eq!(schema.names().collect::<Vec<_>>(), ["node", "namespace", "priority", "phase"]);
        assert_eq!((schema.field("priority"), schema.field("Priority")), (Some(2), None));
        let value =
            br#"{"metadata":{"labels":{"tier":"front","app":"web"}},"spec":{"priority":-7,"nodeName":"n\u0031"}}"#;
        let (out, failures) = extract(&schema, "/registry/pods/shop/web-1", value);
        let found = Attributes(&out);
        assert_eq!(
            all(&schema, found),
            (vec![Some("n1"), Some("shop"), Some("-7"), None], vec![("app", "web"), ("tier", "front")])
        );
        assert_eq!(failures, 0);
        assert_eq!((found.label(b"app"), found.label(b"tier")), (Some(&b"web"[..]), Some(&b"front"[..])));
        assert_eq!((found.label(b"ap"), found.label(b"appx"), found.label(b"")), (None, None, None));
        assert_eq!((found.field(4), found.field(usize::MAX)), (None, None));
        // The word, 3 + 4 ends, the strings.
        assert_eq!(out.len(), 4 + 7 * 4 + "n1shop-7appwebtierfront".len());
    }

    #[test]
    fn nothing_found_takes_no_bytes() {
        let schema =
            Schema::new(vec![json("a", "/a")], Some(Labels::json("/l").expect("is a pointer"))).expect("is right");
        for value in [&b"{}"[..], b"[]", b"{\"l\":{}}", b"{\"a\":null,\"l\":{\"x\":[]}}"] {
            assert_eq!(extract(&schema, "/k", value), (vec![], 0));
        }
        let schema = Schema::new(vec![], None).expect("is right");
        assert!(schema.is_empty() && !schema.has_labels());
        assert_eq!(extract(&schema, "/k", b"{"), (vec![], 0));
        let empty = Attributes(&[]);
        assert_eq!((empty.field(0), empty.label(b""), empty.labels().count()), (None, None, 0));
    }

    #[test]
    fn a_malformed_value_is_one_failure_and_leaves_the_rest() {
        let schema = Schema::new(
            vec![json("a", "/a"), Attribute::key_segment("s", 0), json("name", "/metadata/name")],
            Some(Labels::json("/l").expect("is a pointer")),
        )
        .expect("is right");
        let cut = &pod()[..100];
        for value in [&b""[..], b"{\"a\":\"x\",\"l\":{\"x\":\"y\"},", b"{\"a\":\"x\"} x", b"\xff\xff", b"k8s", cut] {
            let (out, failures) = extract(&schema, "/k", value);
            assert_eq!(all(&schema, Attributes(&out)), (vec![None, Some("k"), None], vec![]));
            assert_eq!(failures, 1, "{value:?}");
        }
        // Where neither is asked for, nothing is parsed.
        let schema = Schema::new(vec![Attribute::key_segment("s", 0)], None).expect("is right");
        assert_eq!(extract(&schema, "/k", b"{").1, 0);
        let schema = Schema::new(vec![json("a", "/a")], None).expect("is right");
        assert_eq!(extract(&schema, "/k", cut), (vec![], 0));
    }

    #[test]
    fn the_storage_form_of_kubernetes() {
        let fields = vec![
            json("metadata.name", "/metadata/name"),
            json("metadata.namespace", "/metadata/namespace"),
            json("spec.nodeName", "/spec/nodeName").protobuf(&[2, 10]).expect("is right"),
            json("status.phase", "/status/phase"),
            json("uid", "/metadata/name").protobuf(&[1, 5]).expect("is right"),
        ];
        let schema = Schema::new(fields, Some(Labels::json("/elsewhere").expect("is a pointer"))).expect("is right");
        let (out, failures) = extract(&schema, "/registry/pods/shop/web-1", &pod());
        assert_eq!(
            all(&schema, Attributes(&out)),
            (
                vec![Some("web-1"), Some("shop"), Some("node-17"), None, Some("u-1")],
                vec![("app", "web"), ("empty", ""), ("tier", "front")]
            )
        );
        assert_eq!(failures, 0);
        let value =
            br#"{"metadata":{"name":"a"},"spec":{"nodeName":"b"},"status":{"phase":"c"},"elsewhere":{"d":"e"}}"#;
        let (out, failures) = extract(&schema, "/k", value);
        assert_eq!(
            (all(&schema, Attributes(&out)), failures),
            ((vec![Some("a"), None, Some("b"), Some("c"), Some("a")], vec![("d", "e")]), 0)
        );
    }

    #[test]
    fn extractors_that_fail_or_panic_are_counted_and_harm_no_other() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in the drop of a payload");
            }
        }
        struct Shy;
        impl fmt::Display for Shy {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                panic!("in the text of an error")
            }
        }
        let fields = vec![
            Attribute::extractor("length", |key: &[u8], value: &[u8]| -> Failing {
                Ok(Some(format!("{} {}", key.len(), value.len()).into_bytes()))
            }),
            Attribute::extractor("absent", |_: &[u8], _: &[u8]| -> Failing { Ok(None) }),
            Attribute::extractor("error", |_: &[u8], _: &[u8]| -> Failing { Err("no".into()) }),
            Attribute::extractor("panic", |_: &[u8], _: &[u8]| -> Failing { panic!("in an extractor") }),
            Attribute::extractor("bomb", |_: &[u8], _: &[u8]| -> Failing { std::panic::panic_any(Bomb) }),
            Attribute::extractor("shy", |_: &[u8], _: &[u8]| -> Result<_, Shy> { Err(Shy) }),
            Attribute::extractor("last", |_: &[u8], _: &[u8]| -> Failing { Ok(Some(vec![0xff])) }),
        ];
        let labels = Labels::extractor(|_: &[u8], value: &[u8]| match value {
            b"panic" => panic!("in an extractor of labels"),
            b"error" => Err("no"),
            _ => Ok([("b", "1"), ("a", "2"), ("b", "3")].map(|(k, v)| (k.into(), v.into())).to_vec()),
        });
        let schema = Schema::new(fields, Some(labels)).expect("is right");
        let outcomes = ["value", "panic", "error"].map(|value| extract(&schema, "/k", value.as_bytes()));
        for ((out, failures), labels) in outcomes.iter().zip([true, false, false]) {
            let found = Attributes(out);
            let fields: Vec<_> = (0..7).map(|number| found.field(number)).collect();
            assert_eq!(fields, [Some(&b"2 5"[..]), None, None, None, None, None, Some(&[0xff])]);
            let wanted: &[(&[u8], &[u8])] = if labels { &[(b"a", b"2"), (b"b", b"3")] } else { &[] };
            assert_eq!(found.labels().collect::<Vec<_>>(), wanted);
            assert_eq!(*failures, if labels { 4 } else { 5 });
        }
    }

    #[test]
    fn what_cannot_be_declared() {
        let said = |outcome: Result<Attribute>| {
            let error = outcome.expect_err("is refused");
            assert_eq!(error.code(), Code::InvalidArgument);
            error.to_string()
        };
        assert_eq!(
            said(Attribute::json("node", "spec/nodeName")),
            r#"attribute "node", JSON pointer "spec/nodeName": byte 0: expected "/", as in "/metadata/name", or no text at all for the whole value."#
        );
        assert!(
            Labels::json("/a~").expect_err("is refused").message().contains("labels, JSON pointer \"/a~\": byte 2: ")
        );
        let path = |path: &[u32]| json("a", "/a").protobuf(path);
        assert_eq!(said(path(&[])), "attribute \"a\", protobuf path: it has 0 field numbers. Name 1 to 100.");
        assert!(said(path(&[1; 101])).contains("it has 101"));
        assert_eq!(
            said(path(&[1, 0])),
            "attribute \"a\", protobuf path: number 1 is 0. Field numbers are 1 to 536870911."
        );
        assert!(said(path(&[536_870_912])).contains("number 0 is 536870912"));
        assert!(path(&[536_870_911; 100]).is_ok());
        assert!(said(Attribute::key_segment("s", 0).protobuf(&[1])).contains("Declare it with json"));
        let refused = |fields: Vec<Attribute>| {
            let error = Schema::new(fields, None).err().expect("is refused");
            assert_eq!(error.code(), Code::InvalidArgument);
            error.to_string()
        };
        let named = |name: String| Attribute::key_segment(name, 0);
        assert_eq!(refused(vec![named("a".into()), named("".into())]), "attribute 1: its name is empty. Give it one.");
        assert!(
            refused(vec![named("a".into()), json("b", ""), json("a", "")])
                .contains("attribute \"a\": it is declared twice")
        );
        let many = |count: usize| (0..count).map(|number| named(number.to_string())).collect::<Vec<_>>();
        assert!(refused(many(65)).contains("65 attributes: a cache has 64 at most"));
        let schema = Schema::new(many(64), None).expect("is right");
        let (out, _) = extract(&schema, "/k", b"");
        assert_eq!(Attributes(&out).field(63), Some(&b"k"[..]));
        let debug = format!("{:?} {:?}", json("a", "/x").protobuf(&[7]), Labels::json("/y"));
        assert!(
            debug.contains("\"a\"") && debug.contains("\"x\"") && debug.contains('7') && debug.contains("\"y\""),
            "{debug}"
        );
    }

    #[test]
    fn what_is_too_long_to_encode_is_refused() {
        let found = || Extracted {
            fields: vec![Some(Cow::Borrowed(&b"abc"[..]))],
            labels: vec![(Cow::Borrowed(b"d"), Some(Cow::Borrowed(b"e")))],
        };
        let mut out = Vec::new();
        assert!(!encode(found(), 5, &mut out) && out.is_empty());
        assert!(encode(found(), 6, &mut out) && !out.is_empty());
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_read(
            fields in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..6)), 0..65),
            labels in prop::collection::vec(("[a-d]{0,2}", prop::option::of("[a-z]{0,3}")), 0..20),
        ) {
            let found = Extracted {
                fields: fields.iter().map(|field| field.as_deref().map(Cow::Borrowed)).collect(),
                labels: labels.iter().map(|(k, v)| (Cow::Borrowed(k.as_bytes()), v.as_ref().map(|v| Cow::Borrowed(v.as_bytes())))).collect(),
            };
            let mut out = Vec::new();
            prop_assert!(encode(found, ABSENT as usize, &mut out));
            let view = Attributes(&out);
            for (number, field) in fields.iter().enumerate() {
                prop_assert_eq!(view.field(number), field.as_deref());
            }
            let all: BTreeMap<&str, Option<&str>> = labels.iter().map(|(k, v)| (&**k, v.as_deref())).collect();
            for key in ["", "a", "b", "aa", "ab", "dd", "e", "aaa"] {
                prop_assert_eq!(text(view.label(key.as_bytes())), all.get(key).copied().flatten());
            }
            let present: Vec<(&str, &str)> = all.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
            prop_assert_eq!(view.labels().map(|(k, v)| (text(Some(k)).unwrap(), text(Some(v)).unwrap())).collect::<Vec<_>>(), present);
            prop_assert_eq!(out.is_empty(), fields.iter().all(Option::is_none) && view.labels().next().is_none());
        }

        #[test]
        fn any_bytes_can_be_looked_at(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..4u8], 0..80)) {
            let view = Attributes(&bytes);
            for number in [0, 1, 2, 63, 64, 255, 1 << 20, usize::MAX] {
                let _ = view.field(number);
            }
            let _ = (view.label(b""), view.label(b"a"), view.labels().count());
        }

        #[test]
        fn no_value_makes_extraction_panic(value in prop::collection::vec(any::<u8>(), 0..200), form in 0..3) {
            let fields = vec![json("a", "/a"), json("n", "/metadata/name"), json("p", "").protobuf(&[1, 1]).expect("is right")];
            let schema = Schema::new(fields, Some(Labels::json("/a").expect("is a pointer"))).expect("is right");
            let value = match form {
                0 => value,
                1 => [protobuf::MAGIC, &[0x12, value.len() as u8 & 0x7f], &value].concat(),
                _ => [b"{\"a\":{\"b\":\"", &value[..], b"\"}}"].concat(),
            };
            let mut out = Vec::new();
            let failures = schema.extract(b"/k", &value, &mut out);
            prop_assert!(failures <= 1 && (failures == 0 || out.is_empty()));
        }
    }
}

#[cfg(all(test, not(feature = "json")))]
mod tests_without_json {
    use super::*;

    #[test]
    fn pointers_name_the_feature_that_is_missing() {
        let field = Attribute::json("node", "/spec/nodeName").expect_err("is unsupported");
        let labels = Labels::json("/metadata/labels").expect_err("is unsupported");
        for error in [field, labels] {
            assert_eq!(error.code(), Code::Unsupported);
            assert!(error.message().contains("feature json"), "{error}");
        }
    }
}
