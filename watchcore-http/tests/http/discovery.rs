//! Paths and discovery: rows HR of docs/HTTP.md.

use crate::support::ground::{NODES, SHOP, WIDGETS, widgets};
use crate::support::{Answer, Client, Ground, get, request};
use serde_json::{Value, json};
use watchcore_http::Resource;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn json_of(ground: &Ground, path: &str) -> Value {
    let answer = get(ground.address, path).await;
    assert_eq!((answer.code(), answer.header("content-type")), (200, Some("application/json")), "{path}");
    assert_eq!(answer.header("vary"), Some("Accept"), "{path}");
    answer.json()
}

async fn accepting(ground: &Ground, path: &str, accept: &str) -> Answer {
    request(ground.address, "GET", path, &[("Accept", accept)]).await
}

fn widgets_of(group: &str, version: &str) -> Resource {
    Resource::new(group, version, "widgets", "Widget").prefix(format!("/registry/{group}/{version}/"))
}

#[tokio::test]
async fn hr_01_api_names_the_core_versions() {
    let ground = Ground::start().await;
    let host = ground.address.to_string();
    let expected = json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    });
    assert_eq!(json_of(&ground, "/api").await, expected);
    assert_eq!(json_of(&ground, "/api/").await, expected);
}

#[tokio::test]
async fn hr_02_apis_names_groups_and_versions() {
    let ground = Ground::start().await;
    let version = json!({"groupVersion": "matrix.test/v1", "version": "v1"});
    let group = json!({"name": "matrix.test", "preferredVersion": version, "versions": [version]});
    let expected = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]});
    assert_eq!(json_of(&ground, "/apis").await, expected);
}

#[tokio::test]
async fn hr_03_group_has_a_document() {
    let ground = Ground::start().await;
    let version = json!({"groupVersion": "matrix.test/v1", "version": "v1"});
    let expected = json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": "matrix.test",
        "preferredVersion": version,
        "versions": [version],
    });
    assert_eq!(json_of(&ground, "/apis/matrix.test").await, expected);
    for path in ["/apis/other.test", "/apis/v1", "/apis/matrix.test/v2", "/api/v2"] {
        assert_eq!(get(ground.address, path).await.status(), (404, "NotFound".into()), "{path}");
    }
}

#[tokio::test]
async fn hr_04_version_lists_its_resources() {
    let ground = Ground::start().await;
    let expected = json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "matrix.test/v1",
        "resources": [{
            "name": "widgets", "singularName": "widget", "namespaced": true, "kind": "Widget",
            "verbs": ["get", "list", "watch"], "shortNames": ["wd"],
        }],
    });
    assert_eq!(json_of(&ground, "/apis/matrix.test/v1").await, expected);
    let core = json_of(&ground, "/api/v1").await;
    assert_eq!(core["groupVersion"], "v1");
    assert_eq!((&core["resources"][0]["name"], &core["resources"][0]["namespaced"]), (&json!("nodes"), &json!(false)));
}

#[tokio::test]
async fn hr_05_versions_and_groups_are_ordered() {
    let declared =
        [("b.test", "v1alpha1"), ("b.test", "v1"), ("b.test", "v2beta1"), ("b.test", "v2"), ("a.test", "v1")];
    let resources = declared.map(|(group, version)| widgets_of(group, version));
    let ground = Ground::builder().resources(resources).start().await;
    let list = json_of(&ground, "/apis").await;
    let named = |value: &Value| value.as_array().unwrap().iter().map(|v| v["version"].clone()).collect::<Vec<_>>();
    assert_eq!((&list["groups"][0]["name"], &list["groups"][1]["name"]), (&json!("a.test"), &json!("b.test")));
    assert_eq!(named(&list["groups"][1]["versions"]), ["v2", "v1", "v2beta1", "v1alpha1"]);
    assert_eq!(list["groups"][1]["preferredVersion"]["groupVersion"], "b.test/v2");
    // Nothing of the core group is declared, but the group exists.
    assert_eq!(json_of(&ground, "/api").await["versions"], json!(["v1"]));
    assert_eq!(json_of(&ground, "/api/v1").await["resources"], json!([]));
}

#[tokio::test]
async fn hr_06_aggregated_discovery_has_all_at_once() {
    let ground = Ground::start().await;
    let answer = accepting(&ground, "/apis", AGGREGATED).await;
    assert_eq!((answer.code(), answer.header("content-type")), (200, Some(AGGREGATED)));
    assert_eq!((answer.header("vary"), answer.header("cache-control")), (Some("Accept"), Some("public")));
    let resource = json!({
        "resource": "widgets", "singularResource": "widget", "scope": "Namespaced", "shortNames": ["wd"],
        "responseKind": {"group": "matrix.test", "version": "v1", "kind": "Widget"},
        "verbs": ["get", "list", "watch"],
    });
    let expected = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [{
            "metadata": {"name": "matrix.test"},
            "versions": [{"version": "v1", "resources": [resource], "freshness": "Current"}],
        }],
    });
    assert_eq!(answer.json(), expected);
    let core = accepting(&ground, "/api", AGGREGATED).await.json();
    assert_eq!(core["items"][0]["metadata"], json!({}));
    assert_eq!(core["items"][0]["versions"][0]["resources"][0]["resource"], "nodes");
    assert_eq!(core["items"][0]["versions"][0]["resources"][0]["scope"], "Cluster");
}

#[tokio::test]
async fn hr_07_aggregated_discovery_is_tagged() {
    let ground = Ground::start().await;
    let first = accepting(&ground, "/apis", AGGREGATED).await;
    let tag = first.header("etag").expect("a tag").to_owned();
    assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
    let mut client = Client::connect(ground.address).await;
    let headers = [("Accept", AGGREGATED), ("If-None-Match", tag.as_str())];
    let same = client.answer("GET", "/apis", &headers).await;
    assert_eq!((same.code(), same.body.len(), same.header("etag")), (304, 0, Some(tag.as_str())));
    let headers = [("Accept", AGGREGATED), ("If-None-Match", "\"other\"")];
    assert_eq!(client.answer("GET", "/apis", &headers).await.body, first.body);
    assert_ne!(client.answer("GET", "/api", &[("Accept", AGGREGATED)]).await.header("etag"), Some(tag.as_str()));
}

#[tokio::test]
async fn hr_08_discovery_form_is_negotiated() {
    let ground = Ground::start().await;
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let protobuf = "application/vnd.kubernetes.protobuf";
    let table = [
        // Header Accept, and the kind of the answer; `None`: 406.
        ("application/json", Some("APIGroupList")),
        ("*/*", Some("APIGroupList")),
        ("application/*;q=0.1", Some("APIGroupList")),
        ("text/html, application/json;q=0.9", Some("APIGroupList")),
        (AGGREGATED, Some("APIGroupDiscoveryList")),
        // Accept headers of client-go and kubectl: the newest form first, plain JSON last.
        (&format!("{AGGREGATED},{old},application/json"), Some("APIGroupDiscoveryList")),
        (&format!("{old},application/json"), Some("APIGroupList")),
        (&format!("{protobuf},application/json"), Some("APIGroupList")),
        // The aggregated form is preferred wherever it is accepted, as in Kubernetes.
        (&format!("application/json,{AGGREGATED};q=0.5"), Some("APIGroupDiscoveryList")),
        (old, None),
        (protobuf, None),
        ("application/json;q=0", None),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", None),
        ("text/html", None),
        ("nonsense", None),
    ];
    for (accept, kind) in table {
        let answer = accepting(&ground, "/apis", accept).await;
        match kind {
            Some(kind) => assert_eq!((answer.code(), answer.json()["kind"].as_str()), (200, Some(kind)), "{accept}"),
            None => assert_eq!(answer.status(), (406, "NotAcceptable".into()), "{accept}"),
        }
    }
    for path in ["/api/v1", "/apis/matrix.test", "/openapi/v3"] {
        assert_eq!(accepting(&ground, path, AGGREGATED).await.code(), 406, "{path} has one form");
    }
}

#[tokio::test]
async fn hr_09_version_is_one_that_clients_know() {
    let ground = Ground::start().await;
    let version = json_of(&ground, "/version").await;
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("37")));
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.37.0+watchcore-"), "{version}");
    assert!(version.as_object().unwrap().values().all(Value::is_string), "client-go reads strings: {version}");
}

#[tokio::test]
async fn hr_10_openapi_names_every_kind() {
    let ground = Ground::start().await;
    let root = json_of(&ground, "/openapi/v3").await;
    let paths: Vec<&String> = root["paths"].as_object().unwrap().keys().collect();
    assert_eq!(paths, ["api/v1", "apis/matrix.test/v1"]);
    let url = root["paths"]["apis/matrix.test/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = json_of(&ground, &url).await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    let kind = json!({"group": "matrix.test", "version": "v1", "kind": "Widget"});
    let item = "/apis/matrix.test/v1/namespaces/{namespace}/widgets/{name}";
    for path in [WIDGETS, "/apis/matrix.test/v1/namespaces/{namespace}/widgets", item] {
        assert_eq!(document["paths"][path]["get"]["x-kubernetes-group-version-kind"], kind, "{path}");
    }
    // Each reference resolves, and each operation has its own name.
    let text = document.to_string();
    let mut names = std::collections::BTreeSet::new();
    for part in text.split("#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
    for path in document["paths"].as_object().unwrap().values() {
        assert!(names.insert(path["get"]["operationId"].to_string()), "{path}");
    }
    assert_eq!(
        document["components"]["schemas"]["test.matrix.v1.Widget"]["x-kubernetes-group-version-kind"],
        json!([kind])
    );
    assert_eq!(
        json_of(&ground, "/openapi/v3/api/v1").await["paths"]["/api/v1/nodes"]["get"]["x-kubernetes-action"],
        "list"
    );
    assert_eq!(get(ground.address, "/openapi/v3/apis/other/v1").await.status().0, 404);
}

#[tokio::test]
async fn hr_11_discovery_answers_before_the_cache_is_ready() {
    let ground = Ground::builder().cache(|cache| cache.expect_load(true)).start().await;
    assert!(!ground.cache.is_ready());
    for path in ["/api", "/apis", "/apis/matrix.test", "/apis/matrix.test/v1", "/api/v1", "/version", "/openapi/v3"] {
        assert_eq!(get(ground.address, path).await.code(), 200, "{path}");
    }
}

#[tokio::test]
async fn hr_12_head_is_get_without_a_body() {
    let ground = Ground::start().await;
    let mut client = Client::connect(ground.address).await;
    for path in ["/api", "/apis", "/apis/matrix.test/v1", "/version", "/x"] {
        let whole = get(ground.address, path).await;
        let head = client.answer("HEAD", path, &[]).await;
        assert_eq!(head.code(), whole.code(), "{path}");
        assert_eq!(head.header("content-type"), whole.header("content-type"), "{path}");
        assert_eq!(head.header("content-length"), Some(whole.body.len().to_string().as_str()), "{path}");
    }
    // A HEAD of a watch streams nothing, and keeps the connection usable.
    let watched = client.answer("HEAD", &format!("{SHOP}?watch=1"), &[]).await;
    assert_eq!((watched.code(), watched.header("content-type")), (200, Some("application/json")));
    // No body was sent, so the next answer follows directly.
    assert_eq!(client.answer("GET", "/api", &[]).await.json()["kind"], "APIVersions");
}

#[tokio::test]
async fn hr_13_other_verbs_are_not_allowed() {
    let ground = Ground::start().await;
    for path in ["/api", "/apis", "/version", WIDGETS, SHOP, NODES, &format!("{SHOP}/a")] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"] {
            let answer = request(ground.address, method, path, &[("Content-Length", "0")]).await;
            assert_eq!(answer.status(), (405, "MethodNotAllowed".into()), "{method} {path}");
            assert_eq!(answer.header("allow"), Some("GET, HEAD"), "{method} {path}");
        }
    }
    assert_eq!(request(ground.address, "POST", "/x", &[("Content-Length", "0")]).await.code(), 404);
}

#[tokio::test]
async fn hr_14_unknown_paths_are_not_found() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    ground.put_node("n1");
    // Keys below the prefix that no path may reach.
    for key in ["widgets/../a", "widgets/shop/a/b", "widgets//a"] {
        ground.put(&format!("/registry/matrix.test/{key}"), "{}");
    }
    let paths = [
        "/x",
        "/apis/matrix.test/v1/gadgets",
        "/apis/matrix.test/v2/widgets",
        "/apis/other.test/v1/widgets",
        // Only the core group is served below /api.
        "/api/v1/widgets",
        "/apis//v1/nodes",
        // Namespaced objects need a namespace in the path, and others must not have one.
        "/apis/matrix.test/v1/widgets/a",
        "/api/v1/namespaces/shop/nodes",
        "/api/v1/namespaces/shop/nodes/n1",
        "/apis/matrix.test/v1/namespaces/shop/widgets/a/status",
        "/apis/matrix.test/v1/namespaces/shop/widgets/a%2Fb",
        "/apis/matrix.test/v1/namespaces/shop%2Fwidgets/a",
        "/apis/matrix.test/v1/namespaces/../widgets/a",
        "/apis/matrix.test/v1/namespaces/%2e%2e/widgets/a",
        "/apis/matrix.test/v1/namespaces/./widgets",
        "/apis/matrix.test/v1/namespaces//widgets/a",
        "/apis/matrix.test/v1/namespaces//widgets",
    ];
    for path in paths {
        assert_eq!(get(ground.address, path).await.status(), (404, "NotFound".into()), "{path}");
    }
    assert_eq!(get(ground.address, "/apis/matrix.test/v1/namespaces/shop/widgets/%ff").await.status().0, 400);
}

#[tokio::test]
async fn hr_15_router_can_be_nested() {
    let ground = Ground::builder().resources([widgets()]).nest("/below").start().await;
    assert_eq!(json_of(&ground, "/below/apis/matrix.test/v1").await["groupVersion"], "matrix.test/v1");
    assert_eq!(get(ground.address, "/apis").await.code(), 404);
}

#[tokio::test]
async fn hr_16_documents_are_indented_on_demand() {
    let ground = Ground::start().await;
    let plain = get(ground.address, "/apis").await;
    let pretty = get(ground.address, "/apis?pretty=true").await;
    assert_eq!(plain.json(), pretty.json());
    assert_eq!(plain.text().lines().count(), 1);
    assert!(pretty.text().lines().count() > 5, "{}", pretty.text());
}
