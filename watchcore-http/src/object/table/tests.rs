use super::*;
use crate::catalog::{Catalog, Served};
use crate::object::Form;
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;
use watchcore::{Cache, Change};

const KEY: &str = "/registry/widgets/shop/web";

fn widgets() -> Resource {
    Resource::new("matrix.test", "v1", "widgets", "Widget").namespaced(true).prefix("/registry/widgets/")
}

fn all_types() -> Resource {
    widgets()
        .column("Color", "string", "/spec/color")
        .column("Size", "integer", "/spec/size")
        .column("Weight", "number", "/spec/weight")
        .column("On", "boolean", "/spec/on")
        .column("Since", "date", "/spec/since")
        .column("Second", "string", "/spec/list/1/a~1b")
        .column("Spec", "object", "/spec")
        .column("Version", "string", "/metadata/resourceVersion")
        .column("Namespace", "string", "/metadata/namespace")
}

fn served(resource: Resource) -> Arc<Served> {
    let cache = Resource::declare(Cache::builder("/registry/"), [&resource]).unwrap().build().unwrap();
    Catalog::new(vec![cache], vec![resource], 0).unwrap().resources()[0].clone()
}

/// Returns the object of a value in a form, at revision 7.
fn written(served: &Served, value: &str, form: Form) -> Value {
    served.cache.writer().unwrap().apply(7, [Change::put(KEY, value)]).unwrap();
    let snapshot = served.cache.snapshot().unwrap();
    let kv = snapshot.get(KEY).unwrap();
    let mut out = Vec::new();
    served.table.write_as(&served.object(&kv).expect("an object"), form, 7, &mut out);
    serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
}

fn cells(resource: Resource, value: &str) -> Value {
    written(&served(resource), value, Form::Table(Included::None))["rows"][0]["cells"].take()
}

#[test]
fn name_comes_first_and_age_last() {
    let table = written(
        &served(widgets().column("Color", "string", "/spec/color")),
        r#"{"metadata":{"name":"web","creationTimestamp":"1000-01-01T00:00:00Z"},"spec":{"color":"red"}}"#,
        Form::Table(Included::Metadata),
    );
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(table["metadata"], json!({"resourceVersion": "7"}));
    let columns = table["columnDefinitions"].as_array().unwrap();
    let head: Vec<_> = columns.iter().map(|column| [&column["name"], &column["type"], &column["format"]]).collect();
    assert_eq!(json!(head), json!([["Name", "string", "name"], ["Color", "string", ""], ["Age", "date", ""]]));
    for column in columns {
        assert!(!column["description"].as_str().unwrap().is_empty());
        assert_eq!(column["priority"], 0);
        assert_eq!(column.as_object().unwrap().len(), 5);
    }
    assert_eq!(table["rows"][0]["cells"], json!(["web", "red", "292y"]));
    let metadata = json!({"name": "web", "creationTimestamp": "1000-01-01T00:00:00Z", "namespace": "shop", "resourceVersion": "7"});
    assert_eq!(
        table["rows"][0]["object"],
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
    );
}

#[test]
fn row_has_what_was_asked_as_object() {
    let served = served(widgets());
    let value = r#"{"kind":"Widget","metadata":{"name":"web","namespace":"shop"}}"#;
    let whole = json!({"kind": "Widget", "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "7"}});
    assert_eq!(written(&served, value, Form::Table(Included::Object))["rows"][0]["object"], whole);
    let mut out = Vec::new();
    served.table.write_table(None, 9, Included::None, &mut out);
    let empty: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&empty["rows"], &empty["metadata"]), (&json!([]), &json!({"resourceVersion": "9"})));
    let none = cells(widgets(), value);
    assert_eq!(none, json!(["web", "<unknown>"]));
}

#[test]
fn cells_are_of_their_types() {
    let value = r#"{"metadata":{"name":"web"},"spec":{"color":"r\u00e9d","size":3.9,"weight":1.5,"on":true,
        "since":"9999-01-01T00:00:00Z","list":[{},{"a/b":[1, {"c":2}]}]}}"#;
    let cells = cells(all_types(), value);
    let expected = json!(["web", "réd", 3, 1.5, true, "<invalid>", "[1,{\"c\":2}]", null, "7", "shop", "<unknown>"]);
    let spec = serde_json::from_str::<Value>(value).unwrap()["spec"].take();
    for at in 0..expected.as_array().unwrap().len() {
        assert_eq!(cells[at], if at == 7 { spec.clone() } else { expected[at].clone() }, "{at}");
    }
}

#[test]
fn absent_and_mistyped_values_are_null() {
    let empty = cells(all_types(), "{}");
    assert_eq!(empty, json!(["web", null, null, null, null, null, null, null, "7", "shop", "<unknown>"]));
    let wrong = cells(
        all_types(),
        r#"{"metadata":{"name":7,"namespace":"","creationTimestamp":"soon"},
            "spec":{"color":4,"size":"3","weight":"1","on":"no","since":5,"list":{"1":{"a/b":true}}}}"#,
    );
    assert_eq!(wrong[0], "web", "a name that is no string");
    assert_eq!(wrong[1], "4", "a string column shows any value as its text");
    for at in 2..=5 {
        assert_eq!(wrong[at], Value::Null, "{at}");
    }
    assert_eq!((&wrong[6], &wrong[9], &wrong[10]), (&json!("true"), &json!("shop"), &json!("<invalid>")));
}

/// Go takes the last of repeated members, and nothing from the earlier ones.
#[test]
fn last_of_double_members_is_shown() {
    let value = r#"{"spec":{"color":"red","size":1},"spec":{"size":2},"metadata":{"creationTimestamp":"1000-01-01T00:00:00Z"},"metadata":{"name":"b"}}"#;
    let cells = cells(all_types(), value);
    assert_eq!((&cells[0], &cells[1], &cells[2]), (&json!("web"), &Value::Null, &json!(2)));
    for cells in [cells, self::cells(widgets(), value)] {
        assert_eq!(cells.as_array().and_then(|cells| cells.last()), Some(&json!("<unknown>")));
    }
}

#[test]
fn integers_are_cut_off_and_bounded() {
    for (number, cell) in [
        ("9223372036854775807", json!(i64::MAX)),
        ("-1.9", json!(-1)),
        ("1e3", json!(1000)),
        ("9223372036854775808", Value::Null),
        ("1e400", Value::Null),
    ] {
        let size = widgets().column("Size", "integer", "/spec/size");
        assert_eq!(cells(size, &format!(r#"{{"spec":{{"size":{number}}}}}"#))[1], cell, "{number}");
    }
}

#[test]
fn bare_row_has_as_many_cells() {
    let served = served(all_types());
    let mut out = Vec::new();
    served.table.write_bare_row(br#"{"a":1}"#, &mut out);
    let row: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(row["object"], json!({"a": 1}));
    assert_eq!(row["cells"].as_array().unwrap().len(), 11);
    assert_eq!((&row["cells"][0], &row["cells"][10]), (&json!(""), &json!("<unknown>")));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c\"\\\\é]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[abc01]", inner, 0..4).prop_map(|members| json!(members)),
        ]
    })
}

proptest! {
    /// The scan finds the same values as serde_json's pointers, also for columns inside each other.
    #[test]
    fn walk_finds_what_a_tree_has(value in any_value(), pointers in prop::collection::vec("(/[abc01]){0,3}", 1..5)) {
        let object = json!({ "a": value, "b": { "a": value } });
        let mut resource = widgets();
        for pointer in &pointers {
            resource = resource.column("C", "any", pointer);
        }
        let cells = cells(resource, &object.to_string());
        for (at, pointer) in pointers.iter().enumerate() {
            prop_assert_eq!(&cells[at + 1], object.pointer(pointer).unwrap_or(&Value::Null), "{}", pointer);
        }
    }
}
