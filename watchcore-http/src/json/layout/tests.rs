use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

const WEB: Identity<'static> = Identity { namespace: Some("shop"), name: "web" };

/// Returns the key of an object of a resource with the prefix `/w/`.
fn key(identity: Identity<'_>) -> String {
    let namespace = identity.namespace.map_or(String::new(), |namespace| format!("{namespace}/"));
    format!("/w/{namespace}{}", identity.name)
}

fn written(value: &str, identity: Identity<'_>) -> String {
    let layout = Layout::of(key(identity).as_bytes(), value.as_bytes()).expect("an object");
    assert_eq!(Layout::from_bytes(&layout.to_bytes()), Some(layout));
    let mut out = Vec::new();
    layout.write(value.as_bytes(), identity, 42, &mut out);
    String::from_utf8(out).unwrap()
}

fn metadata(value: &str, identity: Identity<'_>) -> Value {
    let mut out = Vec::new();
    let layout = Layout::of(key(identity).as_bytes(), value.as_bytes()).unwrap();
    layout.write_metadata(value.as_bytes(), identity, 42, &mut out);
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn version_goes_in_and_no_byte_moves() {
    assert_eq!(
        written(r#"{ "kind":"W", "metadata": {"name":"web", "namespace":"shop"}, "n": 1.0e3 }"#, WEB),
        r#"{ "kind":"W", "metadata": {"resourceVersion":"42","name":"web", "namespace":"shop"}, "n": 1.0e3 }"#
    );
    assert_eq!(
        written(r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"7"}}"#, WEB),
        r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"42"}}"#
    );
    // A resource without namespaces adds none.
    let node = Identity { namespace: None, name: "n1" };
    assert_eq!(written(r#"{"metadata":{"name":"n1"}}"#, node), r#"{"metadata":{"resourceVersion":"42","name":"n1"}}"#);
}

#[test]
fn missing_names_come_from_the_key() {
    assert_eq!(
        written(r#"{"metadata":{"labels":{"name":"no"}}}"#, WEB),
        r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"42","labels":{"name":"no"}}}"#
    );
    let whole = r#"{"name":"web","namespace":"shop","resourceVersion":"42"}"#;
    for empty in [r#"{"metadata":{}}"#, r#"{"metadata":null}"#, r#"{"metadata":7}"#, "{}", r#"{"spec":{}}"#] {
        let out: Value = serde_json::from_str(&written(empty, WEB)).unwrap();
        assert_eq!(out["metadata"], serde_json::from_str::<Value>(whole).unwrap(), "{empty}");
        assert_eq!(metadata(empty, WEB), out["metadata"], "{empty}");
    }
    let empty = r#"{"metadata":{"name":"","namespace":null,"resourceVersion":""}}"#;
    assert_eq!(metadata(empty, WEB), json!({"name": "web", "namespace": "shop", "resourceVersion": "42"}));
}

/// Authorizers decide by the key, so an object is sent with the name and namespace of its key, whatever it states.
#[test]
fn other_names_become_those_of_the_key() {
    for stored in [
        r#"{"metadata":{"name":"other","namespace":"shop"}}"#,
        r#"{"metadata":{"name":"web","namespace":"vault"}}"#,
        r#"{"metadata":{"name":"other","namespace":"vault","resourceVersion":"7"}}"#,
        r#"{"metadata":{"name":"web","name":"other","namespace":"vault","namespace":"shop"}}"#,
        r#"{"metadata":{"name":7,"namespace":["shop"]}}"#,
        r#"{"metadata":{"n\u0061me":"other","namespace":"shop"}}"#,
    ] {
        let out = written(stored, WEB);
        assert!(!out.contains("other") && !out.contains("vault"), "{out}");
        let out: Value = serde_json::from_str(&out).unwrap();
        let whole = json!({"name": "web", "namespace": "shop", "resourceVersion": "42"});
        assert_eq!((&out["metadata"], metadata(stored, WEB)), (&whole, whole.clone()), "{stored}");
    }
    // An equal name in another spelling stays as it was stored.
    let escaped = r#"{"metadata":{"resourceVersion":"42","name":"w\u0065b","namespace":"shop"}}"#;
    assert_eq!(written(escaped, WEB), escaped);
    let node = Identity { namespace: None, name: "n1" };
    for said in ["\"vault\"", "7"] {
        let claims = format!(r#"{{"metadata":{{"name":"n1","namespace":{said}}}}}"#);
        assert_eq!(metadata(&claims, node), json!({"name": "n1", "namespace": "", "resourceVersion": "42"}));
    }
}

/// Go takes the last of repeated members.
#[test]
fn double_members_are_all_replaced() {
    let out =
        written(r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"1","resourceVersion":"2"}}"#, WEB);
    assert!(!out.contains("\"1\"") && !out.contains("\"2\""), "{out}");
    let last = r#"{"metadata":{"name":"a"},"metadata":{"name":"web","namespace":"shop"}}"#;
    assert_eq!(metadata(last, WEB)["name"], "web");
    assert_eq!(serde_json::from_str::<Value>(&written(last, WEB)).unwrap()["metadata"]["resourceVersion"], "42");
}

#[test]
fn escaped_names_of_members_are_known() {
    let out = written(r#"{"meta\u0064ata":{"n\u0061me":"web","namespace":"shop"}}"#, WEB);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["metadata"]["resourceVersion"], "42");
    assert_eq!(out.matches("web").count(), 1, "{out}");
}

#[test]
fn what_is_no_object_has_no_layout() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(600), "]".repeat(600));
    for text in [
        "",
        " ",
        "1",
        "[]",
        "null",
        "\"a\"",
        "{",
        "{}x",
        "{]",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":1e}",
        "{\"a\":tru}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"\n\"}",
        "{\"a\" 1}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\":[1,]}",
        "{\"a\":-}",
        "{a:1}",
        &deep,
    ] {
        assert_eq!(Layout::of(b"/w/web", text.as_bytes()), None, "{text:?}");
    }
    assert_eq!(Layout::of(b"/w/web", b"k8s\0\x0a"), None);
    assert_eq!(Layout::of(b"/w/web", b"{\"a\":\"\xff\"}"), None);
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i16>().prop_map(|number| Value::from(f64::from(number) / 4.0)),
        ".{0,8}".prop_map(Value::from),
        Just(Value::from("metadata")),
    ];
    let name = prop_oneof![
        Just("metadata".to_owned()),
        Just("name".to_owned()),
        Just("namespace".to_owned()),
        Just("resourceVersion".to_owned()),
        ".{0,6}"
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Compared with serde_json: which values are objects, and their contents after the edit.
    #[test]
    fn objects_are_edited_as_trees_would_be(value in values(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let Value::Object(mut expected) = value else {
            prop_assert_eq!(Layout::of(b"/w/web", text.as_bytes()), None);
            return Ok(());
        };
        let metadata = expected.entry("metadata").or_insert(Value::Null);
        if !metadata.is_object() {
            *metadata = json!({});
        }
        for (name, said) in [("name", "web"), ("namespace", "shop")] {
            metadata[name] = json!(said);
        }
        metadata["resourceVersion"] = json!("42");
        prop_assert_eq!(serde_json::from_str::<Value>(&written(&text, WEB)).unwrap(), Value::Object(expected));
    }

    /// For any bytes: every object that serde_json accepts has a layout.
    #[test]
    fn texts_are_judged_as_serde_json_does(mut text in prop::collection::vec(prop::sample::select(&b"{}[]\":,\\u0123-.eE+tfn a\x01"[..]), 0..24)) {
        text.insert(0, b'{');
        let theirs = serde_json::from_slice::<serde_json::Map<String, Value>>(&text).is_ok();
        // The reverse does not hold: serde_json refuses some grammatical values (1e999, half of a surrogate pair).
        if theirs {
            prop_assert!(Layout::of(b"/w/web", &text).is_some(), "{}", String::from_utf8_lossy(&text));
        }
    }
}
