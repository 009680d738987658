use super::*;
use crate::attribute::encode::Attributes;
use crate::attribute::protobuf::tests::pod;
use crate::error::Code;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt;

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
    let value = br#"{"metadata":{"labels":{"tier":"front","app":"web"}},"spec":{"priority":-7,"nodeName":"n\u0031"}}"#;
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
    let schema = Schema::new(vec![json("a", "/a")], Some(Labels::json("/l").expect("is a pointer"))).expect("is right");
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
    let value = br#"{"metadata":{"name":"a"},"spec":{"nodeName":"b"},"status":{"phase":"c"},"elsewhere":{"d":"e"}}"#;
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
    assert!(Labels::json("/a~").expect_err("is refused").message().contains("labels, JSON pointer \"/a~\": byte 2: "));
    let path = |path: &[u32]| json("a", "/a").protobuf(path);
    assert_eq!(said(path(&[])), "attribute \"a\", protobuf path: it has 0 field numbers. Name 1 to 100.");
    assert!(said(path(&[1; 101])).contains("it has 101"));
    assert_eq!(said(path(&[1, 0])), "attribute \"a\", protobuf path: number 1 is 0. Field numbers are 1 to 536870911.");
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
        prop_assert!(encode(found, TOO_LONG, &mut out));
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
