//! Parameters and their refusals: rows HP of docs/HTTP.md.

use crate::support::ground::{NODES, SHOP, WIDGETS};
use crate::support::{Answer, Client, Ground, Watching, get, request};
use serde_json::{Value, json};

const MATCH: &str = "resourceVersionMatch";
const INITIAL: &str = "sendInitialEvents";
const FORBIDDEN: &str = "FieldValueForbidden";
const NOT_SUPPORTED: &str = "FieldValueNotSupported";

/// Reason, field and message of a cause.
type Expected<'c> = (&'c str, &'c str, &'c str);

const NEEDS_VERSION: Expected<'_> =
    (FORBIDDEN, MATCH, "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided");
const WITH_CONTINUE: Expected<'_> =
    (FORBIDDEN, MATCH, "Forbidden: resourceVersionMatch is forbidden when continue is provided");
const EXACT_OF_ZERO: Expected<'_> =
    (FORBIDDEN, MATCH, "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
const INITIAL_OF_LIST: Expected<'_> = (FORBIDDEN, INITIAL, "Forbidden: sendInitialEvents is forbidden for list");
const NEEDS_INITIAL: Expected<'_> =
    (FORBIDDEN, MATCH, "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
const NEEDS_NOT_OLDER: Expected<'_> =
    (FORBIDDEN, MATCH, "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");

/// Writes widgets shop/a (red), shop/b (blue), other/a (red), and nodes n1, n2: revisions 1 to 5.
async fn five() -> Ground {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    ground.put_widget("shop/b", "blue");
    ground.put_widget("other/a", "red");
    ground.put_node("n1");
    ground.put_node("n2");
    ground
}

async fn ask(ground: &Ground, path: &str, query: &str) -> Answer {
    get(ground.address, &format!("{path}?{query}")).await
}

/// Percent-encodes a text.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Checks that a request is refused with 422 and exactly these causes.
async fn refused_for(ground: &Ground, query: &str, causes: &[Expected<'_>]) {
    let answer = ask(ground, SHOP, query).await;
    assert_eq!(answer.status(), (422, "Invalid".into()), "{query}");
    let details = &answer.json()["details"];
    assert_eq!((&details["group"], &details["kind"]), (&json!("meta.k8s.io"), &json!("ListOptions")), "{query}");
    let expected: Vec<Value> = causes
        .iter()
        .map(|(reason, field, message)| json!({"reason": reason, "field": field, "message": message}))
        .collect();
    assert_eq!(details["causes"], Value::Array(expected), "{query}");
    let listed: Vec<String> = causes.iter().map(|(_, field, message)| format!("{field}: {message}")).collect();
    let listed = if let [one] = &listed[..] { one.clone() } else { format!("[{}]", listed.join(", ")) };
    assert_eq!(answer.message(), format!("ListOptions.meta.k8s.io \"\" is invalid: {listed}"), "{query}");
}

/// Checks that a request is accepted: a list has an object, and a watch begins.
async fn taken(ground: &Ground, query: &str) {
    let mut client = Client::connect(ground.address).await;
    client.request("GET", &format!("{SHOP}?{query}"), &[]).await;
    let head = client.head().await.expect("an answer");
    assert_eq!(head.code, 200, "{query}");
}

/// Returns the names in the list of a query.
async fn selected(ground: &Ground, path: &str, query: &str) -> Vec<String> {
    ask(ground, path, query).await.names()
}

#[tokio::test]
async fn hp_01_unknown_parameters_are_ignored() {
    let ground = five().await;
    for query in ["x=1", "Limit=x", "timeout=x", "%zz=1", "%ff=%ff", "&&=&", "x=%zz", "continue=&fieldSelector="] {
        assert_eq!(selected(&ground, SHOP, query).await.len(), 2, "{query}");
    }
}

#[tokio::test]
async fn hp_02_boolean_is_true_unless_zero_or_false() {
    let ground = five().await;
    for value in ["watch=1", "watch=true", "watch", "watch=", "watch=yes", "watch=00", "watch=no"] {
        let mut watch = Watching::open(ground.address, &format!("{SHOP}?{value}")).await;
        assert_eq!(watch.next_event().await, "ADDED shop/a@1", "{value}");
    }
    for value in ["watch=0", "watch=false", "watch=False", "watch=FALSE", "", "Watch=1"] {
        assert_eq!(selected(&ground, SHOP, value).await.len(), 2, "{value} is a list");
    }
}

#[tokio::test]
async fn hp_03_first_of_repeated_parameters_counts() {
    let ground = five().await;
    assert_eq!(selected(&ground, SHOP, "limit=1&limit=2&limit=x").await, ["shop/a"]);
    assert_eq!(selected(&ground, SHOP, "watch=0&watch=1").await.len(), 2);
    assert_eq!(selected(&ground, SHOP, "labelSelector=app%3Dblue&labelSelector=app%3Dred").await, ["shop/b"]);
    // The first value counts, even if empty.
    assert_eq!(selected(&ground, SHOP, "labelSelector=&labelSelector=app%3Dred").await.len(), 2);
    assert_eq!(ask(&ground, SHOP, "limit=x&limit=1").await.status().0, 400);
}

#[tokio::test]
async fn hp_04_queries_are_percent_encoded() {
    let ground = five().await;
    for selector in ["labelSelector=app+in+(blue)", "labelSelector=app%20in%20%28blue%29", "label%53elector=app=blue"] {
        assert_eq!(selected(&ground, SHOP, selector).await, ["shop/b"], "{selector}");
    }
    for broken in ["labelSelector=%", "labelSelector=a%2", "labelSelector=%zz", "fieldSelector=%ff", "limit=%C3%28"] {
        let answer = ask(&ground, SHOP, broken).await;
        assert_eq!(answer.status(), (400, "BadRequest".into()), "{broken}");
        assert!(answer.message().contains(broken.split('=').next().unwrap()), "{}", answer.message());
    }
}

#[tokio::test]
async fn hp_05_numbers_are_decimal() {
    let ground = five().await;
    for name in ["limit", "timeoutSeconds"] {
        for value in ["x", "", "1.5", "1e3", "0x1", "9223372036854775808", "%201"] {
            let query = format!("{name}={value}");
            for path in [SHOP, NODES] {
                let answer = ask(&ground, path, &query).await;
                assert_eq!(answer.status(), (400, "BadRequest".into()), "{query}");
                assert!(answer.message().contains(name), "{}", answer.message());
            }
            assert_eq!(ask(&ground, SHOP, &format!("watch=1&{query}")).await.status().0, 400, "{query}");
        }
        for value in ["-1", "-9223372036854775808"] {
            assert_eq!(ask(&ground, SHOP, &format!("{name}={value}")).await.names().len(), 2, "{name}={value} is none");
        }
        for value in ["0", "007", "9223372036854775807"] {
            taken(&ground, &format!("{name}={value}")).await;
            taken(&ground, &format!("watch=1&{name}={value}")).await;
        }
    }
    taken(&ground, "watch=1&limit=-1").await;
    let over = ask(&ground, SHOP, "watch=1&timeoutSeconds=-1").await;
    assert_eq!(over.status(), (400, "BadRequest".into()));
    assert_eq!(
        ask(&ground, &format!("{SHOP}/a"), "limit=x&timeoutSeconds=x").await.code(),
        200,
        "of one it means nothing"
    );
}

#[tokio::test]
async fn hp_06_list_forbids_initial_events() {
    let ground = five().await;
    for value in ["true", "false", "0", ""] {
        refused_for(&ground, &format!("sendInitialEvents={value}"), &[INITIAL_OF_LIST]).await;
    }
    refused_for(&ground, "sendInitialEvents=1&resourceVersionMatch=NotOlderThan&resourceVersion=1", &[INITIAL_OF_LIST])
        .await;
}

#[tokio::test]
async fn hp_07_list_match_needs_a_revision() {
    let ground = five().await;
    for value in ["Exact", "NotOlderThan"] {
        for version in ["", "&resourceVersion="] {
            refused_for(&ground, &format!("resourceVersionMatch={value}{version}"), &[NEEDS_VERSION]).await;
        }
        taken(&ground, &format!("resourceVersionMatch={value}&resourceVersion=5")).await;
    }
    // An empty value counts as absent.
    taken(&ground, "resourceVersionMatch=").await;
}

#[tokio::test]
async fn hp_08_list_match_is_forbidden_with_continue() {
    let ground = five().await;
    for value in ["Exact", "NotOlderThan"] {
        let query = format!("resourceVersionMatch={value}&continue=t");
        refused_for(&ground, &query, &[NEEDS_VERSION, WITH_CONTINUE]).await;
        let query = format!("{query}&resourceVersion=3");
        refused_for(&ground, &query, &[WITH_CONTINUE]).await;
    }
    refused_for(&ground, "resourceVersionMatch=NotOlderThan&continue=t&resourceVersion=0", &[WITH_CONTINUE]).await;
}

#[tokio::test]
async fn hp_09_list_match_is_one_of_two() {
    let ground = five().await;
    for value in ["exact", "Newest", "0"] {
        let message = format!("Unsupported value: {value:?}: supported values: \"Exact\", \"NotOlderThan\", \"\"");
        let unknown = (NOT_SUPPORTED, MATCH, message.as_str());
        refused_for(&ground, &format!("resourceVersionMatch={value}&resourceVersion=5"), &[unknown]).await;
        refused_for(&ground, &format!("resourceVersionMatch={value}"), &[NEEDS_VERSION, unknown]).await;
    }
}

#[tokio::test]
async fn hp_10_list_exact_is_forbidden_with_zero() {
    let ground = five().await;
    refused_for(&ground, "resourceVersionMatch=Exact&resourceVersion=0", &[EXACT_OF_ZERO]).await;
    taken(&ground, "resourceVersionMatch=NotOlderThan&resourceVersion=0").await;
}

#[tokio::test]
async fn hp_11_continue_forbids_a_revision() {
    let ground = five().await;
    let page = ask(&ground, SHOP, "limit=1").await.json();
    let token = encoded(page["metadata"]["continue"].as_str().unwrap());
    for version in ["1", "5", "x", "00"] {
        let answer = ask(&ground, SHOP, &format!("continue={token}&resourceVersion={version}")).await;
        assert_eq!(answer.status(), (400, "BadRequest".into()), "{version}");
        assert_eq!(answer.message(), "specifying resource version is not allowed when using continue", "{version}");
        let damaged = ask(&ground, SHOP, &format!("continue=t&resourceVersion={version}")).await;
        assert!(damaged.message().starts_with("invalid continue token: "), "{version}: the token is looked at first");
    }
    for version in ["", "&resourceVersion=", "&resourceVersion=0"] {
        assert_eq!(selected(&ground, SHOP, &format!("continue={token}{version}")).await, ["shop/b"], "{version}");
    }
}

#[tokio::test]
async fn hp_12_watch_match_needs_initial_events() {
    let ground = five().await;
    for version in ["", "&resourceVersion=0", "&resourceVersion=3"] {
        refused_for(&ground, &format!("watch=1&resourceVersionMatch=NotOlderThan{version}"), &[NEEDS_INITIAL]).await;
        let message = "Unsupported value: \"Exact\": supported values: \"NotOlderThan\"";
        let causes = [NEEDS_INITIAL, (NOT_SUPPORTED, MATCH, message)];
        refused_for(&ground, &format!("watch=1&resourceVersionMatch=Exact{version}"), &causes).await;
    }
}

#[tokio::test]
async fn hp_13_initial_events_need_not_older_than() {
    let ground = five().await;
    for asked in ["true", "false", "1", ""] {
        for version in ["", "&resourceVersion=", "&resourceVersion=0", "&resourceVersion=3"] {
            let query = format!("watch=1&sendInitialEvents={asked}{version}");
            refused_for(&ground, &query, &[NEEDS_NOT_OLDER]).await;
            refused_for(&ground, &format!("{query}&resourceVersionMatch="), &[NEEDS_NOT_OLDER]).await;
            let message = "Unsupported value: \"Exact\": supported values: \"NotOlderThan\"";
            let causes = [NEEDS_NOT_OLDER, (NOT_SUPPORTED, MATCH, message)];
            refused_for(&ground, &format!("{query}&resourceVersionMatch=Exact"), &causes).await;
            taken(&ground, &format!("{query}&resourceVersionMatch=NotOlderThan")).await;
        }
    }
}

#[tokio::test]
async fn hp_14_watch_match_is_forbidden_with_continue() {
    let ground = five().await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=t";
    refused_for(&ground, query, &[WITH_CONTINUE]).await;
    refused_for(&ground, "watch=1&resourceVersionMatch=NotOlderThan&continue=t", &[NEEDS_INITIAL, WITH_CONTINUE]).await;
    // A watch without parameters gets the initial state. With a revision it ignores the token, as it does a limit.
    for version in ["", "&resourceVersion=", "&resourceVersion=0"] {
        refused_for(&ground, &format!("watch=1&continue=t&limit=1{version}"), &[WITH_CONTINUE]).await;
    }
    taken(&ground, "watch=1&continue=t&limit=1&resourceVersion=5").await;
}

#[tokio::test]
async fn hp_15_all_causes_are_told() {
    let ground = five().await;
    let message = "Unsupported value: \"x\": supported values: \"Exact\", \"NotOlderThan\", \"\"";
    let causes = [NEEDS_VERSION, WITH_CONTINUE, (NOT_SUPPORTED, MATCH, message), INITIAL_OF_LIST];
    refused_for(&ground, "resourceVersionMatch=x&continue=t&sendInitialEvents=1", &causes).await;
}

#[tokio::test]
async fn hp_16_revision_is_a_decimal_number() {
    let ground = five().await;
    for version in ["x", "-1", "1.0", "%2B1", "+1", "0x5", "18446744073709551616", "%20"] {
        for (path, query) in [(SHOP, ""), (SHOP, "&limit=1"), (SHOP, "&watch=1"), (&format!("{SHOP}/a"), "")] {
            let answer = ask(&ground, path, &format!("resourceVersion={version}{query}")).await;
            assert_eq!(answer.status(), (400, "BadRequest".into()), "{version}{query}");
            assert!(answer.message().starts_with("invalid resource version"), "{}", answer.message());
        }
    }
    assert_eq!(selected(&ground, SHOP, "resourceVersion=005").await.len(), 2);
}

/// A revision that no cache can reach is refused at once, for a watch too.
#[tokio::test]
async fn hp_17_huge_revisions_are_of_the_future() {
    let ground = five().await;
    for version in ["18446744073709551615", "4503599627370496"] {
        for query in ["", "&resourceVersionMatch=Exact", "&limit=1", "&resourceVersionMatch=NotOlderThan"] {
            let answer = ask(&ground, SHOP, &format!("resourceVersion={version}{query}")).await;
            assert_eq!(answer.status(), (504, "Timeout".into()), "{version}{query}");
            let message = format!("Timeout: Too large resource version: {version}, current: 5");
            assert_eq!(answer.message(), message, "{query}");
        }
        let answer = ask(&ground, &format!("{SHOP}/a"), &format!("resourceVersion={version}")).await;
        assert_eq!(answer.status().0, 504);
        let old_path = SHOP.replace("/v1/", "/v1/watch/");
        for path in [SHOP, &old_path] {
            for initial in ["", "&sendInitialEvents=0&", "&sendInitialEvents=1&"] {
                let matched = if initial.is_empty() { "" } else { "resourceVersionMatch=NotOlderThan" };
                let target = format!("{path}?watch=1{initial}{matched}&resourceVersion={version}");
                let mut watching = Watching::open(ground.address, &target).await;
                let event = watching.event().await;
                assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)), "{target}");
                let cause = &event["object"]["details"]["causes"][0]["reason"];
                assert_eq!(cause, "ResourceVersionTooLarge", "{target}");
                watching.ended().await;
            }
        }
    }
    let last = watchcore::MAX_REVISION;
    taken(&ground, &format!("watch=1&resourceVersion={last}")).await;
}

#[tokio::test]
async fn hp_19_labels_select() {
    let ground = five().await;
    let table: [(&str, &[&str]); 9] = [
        ("app=red", &["other/a", "shop/a"]),
        ("app==blue", &["shop/b"]),
        ("app!=red", &["shop/b"]),
        ("app in (red, green)", &["other/a", "shop/a"]),
        ("app notin (red)", &["shop/b"]),
        ("app", &["other/a", "shop/a", "shop/b"]),
        ("!app", &[]),
        ("other", &[]),
        ("app=red,app!=red", &[]),
    ];
    for (selector, expected) in table {
        let query = format!("labelSelector={}", encoded(selector));
        assert_eq!(selected(&ground, WIDGETS, &query).await, expected, "{selector}");
    }
    for selector in ["a=b=c", "a in b", ",", "a b", "-a", "a=(", "a\u{0}"] {
        for watch in ["", "&watch=1"] {
            let answer = ask(&ground, WIDGETS, &format!("labelSelector={}{watch}", encoded(selector))).await;
            assert_eq!(answer.status(), (400, "BadRequest".into()), "{selector}");
        }
    }
}

#[tokio::test]
async fn hp_20_declared_fields_select() {
    let ground = five().await;
    let table: [(&str, &[&str]); 7] = [
        ("spec.color=red", &["other/a", "shop/a"]),
        ("spec.color==blue", &["shop/b"]),
        ("spec.color!=red", &["shop/b"]),
        ("spec.size=1", &["other/a", "shop/a", "shop/b"]),
        ("spec.size=", &[]),
        (",spec.color=red,,metadata.namespace=shop,", &["shop/a"]),
        ("=", &["other/a", "shop/a", "shop/b"]),
    ];
    for (selector, expected) in table {
        let query = format!("fieldSelector={}", encoded(selector));
        assert_eq!(selected(&ground, WIDGETS, &query).await, expected, "{selector}");
    }
    let refused = [
        ("spec.other=1", "field label not supported: spec.other"),
        ("spec.color=red,x!=y", "field label not supported: x"),
        (" spec.color=red", "field label not supported:  spec.color"),
        ("Spec.Color=red", "field label not supported: Spec.Color"),
        ("=x", "field label not supported: "),
        ("watchcore.http/spec/color=red", "field label not supported: watchcore.http/spec/color"),
        (
            "spec.color",
            "field selector \"spec.color\": byte 10: expected \"=\", \"==\" or \"!=\" behind a name, found the end.",
        ),
        ("spec.color=a\\", r#"field selector "spec.color=a\": byte 12: expected "\" only before "\", "," or "="."#),
        ("spec.color=\\a", r#"field selector "spec.color=\a": byte 11: expected "\" only before "\", "," or "="."#),
    ];
    for (selector, message) in refused {
        for watch in ["", "&watch=1"] {
            let answer = ask(&ground, WIDGETS, &format!("fieldSelector={}{watch}", encoded(selector))).await;
            assert_eq!(answer.status(), (400, "BadRequest".into()), "{selector}");
            assert_eq!(answer.message(), message, "{selector}");
        }
    }
    // A field that only another resource declares.
    assert_eq!(ask(&ground, NODES, "fieldSelector=spec.color=red").await.status().0, 400);
}

/// Name and namespace are parts of the key: for a resource with namespaces and one without, in a prepared and an
/// unprepared cache.
#[tokio::test]
async fn hp_21_name_and_namespace_always_select() {
    let of_all: [(&str, &[&str]); 10] = [
        ("metadata.name=a", &["other/a", "shop/a"]),
        ("metadata.name!=a", &["shop/b"]),
        ("metadata.namespace=shop", &["shop/a", "shop/b"]),
        ("metadata.namespace!=shop", &["other/a"]),
        ("metadata.name=a,metadata.namespace=shop", &["shop/a"]),
        ("metadata.name=a,metadata.namespace!=shop", &["other/a"]),
        ("metadata.name=a,metadata.name!=a", &[]),
        ("metadata.name=a,metadata.name=b", &[]),
        ("metadata.name=", &[]),
        ("metadata.name=shop/a", &[]),
    ];
    let of_shop: [(&str, &[&str]); 6] = [
        ("metadata.name=a", &["shop/a"]),
        ("metadata.name!=a", &["shop/b"]),
        ("metadata.name=c", &[]),
        ("metadata.namespace=other", &[]),
        ("metadata.namespace!=other", &["shop/a", "shop/b"]),
        ("metadata.name=../other/a", &[]),
    ];
    let of_nodes: [(&str, &[&str]); 2] = [("metadata.name=n1", &["n1"]), ("metadata.name!=n1", &["n2"])];
    let unprepared = Ground::builder().undeclared().start().await;
    unprepared.put_widget("shop/a", "red");
    unprepared.put_widget("shop/b", "blue");
    unprepared.put_widget("other/a", "red");
    unprepared.put_node("n1");
    unprepared.put_node("n2");
    for ground in [five().await, unprepared] {
        let rows = of_all.iter().map(|row| (WIDGETS, row)).chain(of_shop.iter().map(|row| (SHOP, row)));
        for (path, (selector, expected)) in rows.chain(of_nodes.iter().map(|row| (NODES, row))) {
            let query = format!("fieldSelector={}", encoded(selector));
            assert_eq!(selected(&ground, path, &query).await, *expected, "{path} {selector}");
            let mut watch = Watching::open(ground.address, &format!("{path}?watch=1&{query}")).await;
            for name in *expected {
                assert!(watch.next_event().await.starts_with(&format!("ADDED {name}@")), "{path} {selector}");
            }
        }
    }
}

#[tokio::test]
async fn hp_22_fields_of_an_unprepared_cache_are_refused() {
    let ground = Ground::builder().undeclared().start().await;
    ground.put_widget("shop/a", "red");
    let answer = ask(&ground, SHOP, "fieldSelector=spec.color=red").await;
    assert_eq!((answer.status().0, answer.message().as_str()), (400, "field label not supported: spec.color"));
    assert_eq!(ask(&ground, SHOP, "labelSelector=app=red").await.status().0, 400);
}

#[tokio::test]
async fn hp_23_values_of_fields_have_escapes() {
    let ground = Ground::start().await;
    for (name, color) in [("shop/a", "x,y"), ("shop/b", "x=y"), ("shop/c", "x\\y"), ("shop/d", "x\\,\\=")] {
        ground.put_widget(name, color);
    }
    let table = [
        (r"spec.color=x\,y", "shop/a"),
        (r"spec.color==x\=y", "shop/b"),
        (r"spec.color=x\\y", "shop/c"),
        (r"spec.color=x\\\,\\\=", "shop/d"),
    ];
    for (selector, name) in table {
        let query = format!("fieldSelector={}", encoded(selector));
        assert_eq!(selected(&ground, SHOP, &query).await, [name], "{selector}");
        let query = format!("fieldSelector={}", encoded(&selector.replacen('=', "!=", 1).replace("!==", "!=")));
        assert_eq!(selected(&ground, SHOP, &query).await.len(), 3, "all but {selector}");
    }
    assert_eq!(ask(&ground, SHOP, "fieldSelector=spec.color=x=y").await.status().0, 400);
}

#[tokio::test]
async fn hp_24_name_in_a_path_is_watched_alone() {
    for path in [SHOP, "/apis/matrix.test/v1/watch/namespaces/shop/widgets"] {
        let ground = five().await;
        let mut watch = Watching::open(ground.address, &format!("{path}/b?watch=1")).await;
        ground.put_widget("shop/a", "green");
        ground.put_widget("shop/bb", "red");
        ground.put_widget("shop/b", "green");
        ground.delete("/registry/matrix.test/widgets/shop/bb");
        ground.delete("/registry/matrix.test/widgets/shop/b");
        ground.put_widget("shop/b", "blue");
        let told = watch.next_events(4).await;
        assert_eq!(told, ["ADDED shop/b@2", "MODIFIED shop/b@8", "DELETED shop/b@10", "ADDED shop/b@11"], "{path}");
    }
    let ground = five().await;
    let other = ask(&ground, &format!("{SHOP}/b"), "watch=1&fieldSelector=metadata.name=a").await;
    assert_eq!(
        (other.status().0, other.message().as_str()),
        (400, "fieldSelector metadata.name doesn't match requested name")
    );
    for selector in ["metadata.name=b", "metadata.name=b,spec.color=blue", "spec.color=blue"] {
        let path = format!("{SHOP}/b?watch=1&fieldSelector={}", encoded(selector));
        assert!(
            Watching::open(ground.address, &path).await.next_event().await.starts_with("ADDED shop/b@"),
            "{selector}"
        );
    }
}

#[tokio::test]
async fn hp_26_object_of_a_row_is_chosen() {
    let ground = five().await;
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let address = ground.address;
    let kind = async |query: &str| {
        let path = format!("{SHOP}?{query}");
        request(address, "GET", &path, &[("Accept", TABLE)]).await.json()["rows"][0]["object"]["kind"].clone()
    };
    assert_eq!(kind("").await, "PartialObjectMetadata");
    assert_eq!(kind("includeObject=").await, "PartialObjectMetadata");
    assert_eq!(kind("includeObject=Metadata").await, "PartialObjectMetadata");
    assert_eq!(kind("includeObject=Object").await, "Widget");
    assert_eq!(kind("includeObject=None").await, Value::Null);
    let path = format!("{SHOP}?includeObject=object");
    let refused = request(ground.address, "GET", &path, &[("Accept", TABLE)]).await;
    assert_eq!(refused.status(), (400, "BadRequest".into()));
    assert!(refused.message().starts_with("unrecognized includeObject value: \"object\""), "{}", refused.message());
    assert_eq!(get(ground.address, &path).await.code(), 200, "only a table has rows");
}
