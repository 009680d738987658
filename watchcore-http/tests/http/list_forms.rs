//! Forms of lists and of single objects: Table, metadata only, pretty, compressed.

use crate::support::ground::{NODES, SHOP, WIDGETS, widget, widget_key};
use crate::support::{Answer, Client, Ground, Watching, get, request};
use serde_json::{Value, json};
use std::io::Read;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

async fn two() -> Ground {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    let mut old = widget("shop/b", "blue");
    old["metadata"]["creationTimestamp"] = json!("1000-01-01T00:00:00Z");
    ground.put(&widget_key("shop/b"), old.to_string());
    ground
}

async fn accepting(ground: &Ground, target: &str, accept: &str) -> Answer {
    let answer = request(ground.address, "GET", target, &[("Accept", accept)]).await;
    assert_eq!((answer.code(), answer.header("content-type")), (200, Some("application/json")), "{target}");
    answer
}

/// kubectl's Accept header: a table if possible, otherwise objects.
#[tokio::test]
async fn list_is_a_table() {
    let ground = two().await;
    let kubectl = format!("{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json");
    let table = accepting(&ground, SHOP, &kubectl).await.json();
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["metadata"], json!({"resourceVersion": "2"}));
    let columns = table["columnDefinitions"].as_array().unwrap();
    assert_eq!(columns.iter().map(|column| &column["name"]).collect::<Vec<_>>(), ["Name", "Color", "Age"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "red", "<unknown>"]));
    assert_eq!(table["rows"][1]["cells"], json!(["b", "blue", "292y"]));
    let object = &table["rows"][0]["object"];
    assert_eq!(
        (&object["kind"], &object["metadata"]["resourceVersion"]),
        (&json!("PartialObjectMetadata"), &json!("1"))
    );
    assert!(object.get("spec").is_none());
    // A page with one row, and tables without rows.
    let page = accepting(&ground, &format!("{SHOP}?limit=1"), TABLE).await.json();
    assert_eq!((page["rows"].as_array().unwrap().len(), &page["metadata"]["remainingItemCount"]), (1, &json!(1)));
    assert!(page["metadata"]["continue"].is_string());
    assert_eq!(accepting(&ground, NODES, TABLE).await.json()["rows"], json!([]));
}

#[tokio::test]
async fn rows_have_the_object_that_was_asked_for() {
    let ground = two().await;
    let whole = accepting(&ground, &format!("{SHOP}?includeObject=Object"), TABLE).await.json();
    assert_eq!(whole["rows"][0]["object"]["spec"], json!({"color": "red", "size": 1}));
    let none = accepting(&ground, &format!("{SHOP}?includeObject=None"), TABLE).await.json();
    assert_eq!(none["rows"][0], json!({"cells": ["a", "red", "<unknown>"], "object": null}));
}

#[tokio::test]
async fn list_has_metadata_alone() {
    let ground = two().await;
    for accept in [METADATA_LIST, METADATA] {
        let list = accepting(&ground, SHOP, accept).await;
        assert_eq!(list.names(), ["shop/a", "shop/b"]);
        let list = list.json();
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&json!("PartialObjectMetadataList"), &json!("meta.k8s.io/v1"))
        );
        let item = list["items"][0].as_object().unwrap();
        assert_eq!(item.keys().collect::<Vec<_>>(), ["apiVersion", "kind", "metadata"]);
        assert_eq!((&item["kind"], &item["apiVersion"]), (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1")));
        assert_eq!(item["metadata"]["labels"], json!({"app": "red"}));
    }
}

#[tokio::test]
async fn one_object_comes_in_every_form() {
    let ground = two().await;
    let table = accepting(&ground, &format!("{SHOP}/b"), TABLE).await.json();
    assert_eq!(
        (&table["rows"][0]["cells"], &table["metadata"]["resourceVersion"]),
        (&json!(["b", "blue", "292y"]), &json!("2"))
    );
    let metadata = accepting(&ground, &format!("{SHOP}/b"), METADATA).await.json();
    assert_eq!((&metadata["kind"], metadata.get("spec")), (&json!("PartialObjectMetadata"), None));
    assert_eq!(metadata["metadata"]["resourceVersion"], "2");
}

/// `pretty` changes only white space.
#[tokio::test]
async fn pretty_is_for_people() {
    let ground = two().await;
    for target in [WIDGETS.to_owned(), format!("{SHOP}/a")] {
        for accept in ["application/json", TABLE, METADATA] {
            let plain = accepting(&ground, &target, accept).await;
            assert!(!plain.text().trim_end().contains('\n'), "{target} {accept}");
            for asked in ["pretty=true", "pretty=1"] {
                let pretty = accepting(&ground, &format!("{target}?{asked}"), accept).await;
                assert_eq!(pretty.json(), plain.json(), "{target} {accept}");
                assert!(pretty.text().starts_with("{\n  \""), "{}", pretty.text());
                assert!(pretty.text().contains("\n    \""), "{}", pretty.text());
            }
            assert_eq!(accepting(&ground, &format!("{target}?pretty=false"), accept).await.body, plain.body);
        }
    }
}

/// With indents, two bytes of a deeply nested value become hundreds, which are produced as the client takes them.
#[tokio::test]
async fn deep_value_is_indented_in_pieces() {
    let ground = two().await;
    let deep = format!(r#"{{"a":{}{}{}}}"#, "[".repeat(120), ["0"; 4000].join(","), "]".repeat(120));
    ground.put(&widget_key("shop/deep"), deep);
    for target in [WIDGETS.to_owned(), format!("{SHOP}/deep")] {
        let plain = accepting(&ground, &target, "application/json").await;
        let mut pretty = accepting(&ground, &format!("{target}?pretty=1"), "application/json").await;
        assert!(pretty.head.is_chunked() && pretty.body.len() > 800_000, "{target}: {} bytes", pretty.body.len());
        pretty.body.retain(|byte| !byte.is_ascii_whitespace());
        assert!(pretty.body == plain.body.trim_ascii(), "{target}: nothing but white space");
    }
}

/// Returns a server with objects of about 1 KiB each.
async fn many(count: usize) -> Ground {
    let ground = Ground::start().await;
    for at in 0..count {
        let mut value = widget(&format!("shop/w{at:04}"), "red");
        value["data"] = json!("x".repeat(850));
        ground.put(&widget_key(&format!("shop/w{at:04}")), value.to_string());
    }
    ground
}

fn unzipped(body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut plain).expect("a whole gzip stream");
    plain
}

/// A list above 128 KiB is compressed if the client accepts it, and has the same contents.
#[tokio::test]
async fn large_list_is_compressed() {
    let ground = many(500).await;
    let plain = get(ground.address, WIDGETS).await;
    assert!(plain.body.len() > 400 << 10, "{}", plain.body.len());
    assert_eq!((plain.header("content-encoding"), plain.names().len()), (None, 500));
    for (target, names) in [(WIDGETS.to_owned(), 500), (format!("{WIDGETS}?limit=400"), 400)] {
        let zipped = request(ground.address, "GET", &target, &[("Accept-Encoding", "deflate, gzip;q=0.5")]).await;
        assert_eq!(zipped.header("content-encoding"), Some("gzip"), "{target}");
        assert_eq!(zipped.header("vary"), Some("Accept-Encoding"));
        assert_eq!(zipped.header("content-type"), Some("application/json"));
        assert!(zipped.body.len() < 100 << 10, "{}", zipped.body.len());
        let list: Value = serde_json::from_slice(&unzipped(&zipped.body)).unwrap();
        assert_eq!(list["items"].as_array().unwrap().len(), names);
        if names == 500 {
            assert_eq!(unzipped(&zipped.body), plain.body);
        }
    }
    let pretty = request(ground.address, "GET", &format!("{WIDGETS}?pretty=1"), &[("Accept-Encoding", "gzip")]).await;
    let list: Value = serde_json::from_slice(&unzipped(&pretty.body)).unwrap();
    assert_eq!(list, plain.json());
}

/// A list of up to 128 KiB is sent uncompressed, with its length.
#[tokio::test]
async fn small_list_is_not_compressed() {
    let ground = many(100).await;
    let answer = request(ground.address, "GET", WIDGETS, &[("Accept-Encoding", "gzip")]).await;
    assert!(answer.body.len() > 64 << 10 && answer.body.len() <= 128 << 10, "{}", answer.body.len());
    assert_eq!((answer.header("content-encoding"), answer.header("vary")), (None, None));
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    assert_eq!(answer.names().len(), 100);
    let refused = request(ground.address, "GET", WIDGETS, &[("Accept-Encoding", "gzip;q=0")]).await;
    assert_eq!(refused.names(), answer.names());
}

/// An object that is larger than a piece, and than the part that is compressed at a time.
#[tokio::test]
async fn large_objects_go_out_whole() {
    let ground = Ground::start().await;
    for name in ["shop/a", "shop/b"] {
        let mut value = widget(name, "red");
        value["data"] = json!("y".repeat(1_000_000));
        ground.put(&widget_key(name), value.to_string());
    }
    let plain = get(ground.address, WIDGETS).await;
    assert_eq!(plain.names(), ["shop/a", "shop/b"]);
    let zipped = request(ground.address, "GET", WIDGETS, &[("Accept-Encoding", "gzip")]).await;
    assert_eq!(unzipped(&zipped.body), plain.body);
    // The connection stays usable after a list.
    let mut client = Client::connect(ground.address).await;
    for _ in 0..2 {
        assert_eq!(client.answer("GET", WIDGETS, &[]).await.body, plain.body);
    }
}

/// Answers are private to their user: neither proxies nor browsers may store them.
#[tokio::test]
async fn answers_are_kept_by_nobody() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    let object = format!("{SHOP}/a");
    let watch = format!("{WIDGETS}?watch=1&timeoutSeconds=1");
    for path in [WIDGETS, &object, &watch, "/v1/keys?prefix=/registry/", "/nothing", "/openapi/v3", "/readyz"] {
        let said = get(ground.address, path).await.header("cache-control").map(str::to_owned);
        assert_eq!(said.as_deref(), Some("no-cache, private"), "{path}");
    }
}

/// A large object is sent from the cache's memory, and equals one that is copied, byte for byte: alone, in a list, in
/// the initial state of a watch and in its events, however it was stored.
#[tokio::test]
async fn large_objects_are_as_small_ones() {
    let ground = Ground::start().await;
    let large = "x".repeat(40_000);
    let metadata = r#""metadata":{"name":"a","namespace":"shop","resourceVersion":"9"}"#;
    for (stored, what) in [
        (format!("{{{metadata},\"data\":\"{large}\"}}"), "version before the data"),
        (format!("{{\"data\":\"{large}\",{metadata}}}"), "version behind the data"),
        (format!("{{\"metadata\":{{\"name\":\"a\",\"namespace\":\"shop\"}},\"data\":\"{large}\"}}"), "no version"),
        (format!("{{\"data\":\"{large}\",\"more\":1}}\n"), "no metadata, a line's end"),
        (format!("{{{metadata},\n  \"data\":\"{large}\",\n  \"more\":1\n}}\n"), "several lines"),
    ] {
        let revision = ground.put(&widget_key("shop/a"), &stored);
        let get = get(ground.address, &format!("{SHOP}/a")).await;
        assert_eq!(get.header("content-length").and_then(|length| length.parse().ok()), Some(get.body.len()), "{what}");
        let list = self::get(ground.address, SHOP).await.json();
        assert_eq!(get.json(), list["items"][0], "{what}");
        assert_eq!(get.json()["metadata"]["resourceVersion"], revision.to_string(), "{what}");
        let mut expected = serde_json::from_str::<Value>(&stored).unwrap();
        expected["metadata"] = json!({"name": "a", "namespace": "shop", "resourceVersion": revision.to_string()});
        assert_eq!(get.json(), expected, "{what}");
        let mut watching = Watching::open(ground.address, &format!("{SHOP}?watch=1")).await;
        assert_eq!(watching.event().await["object"], expected, "{what}");
        ground.put(&widget_key("shop/a"), &stored);
        expected["metadata"]["resourceVersion"] = json!((revision + 1).to_string());
        assert_eq!(watching.event().await["object"], expected, "{what}");
    }
}
