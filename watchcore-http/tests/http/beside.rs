//! Answers in which this server once differed from Kubernetes' over the same etcd: row HP-31 of docs/HTTP.md. The
//! expected answers are those of Kubernetes 1.37; `go: TestComparison` compares both servers.

use crate::support::ground::{NODES, SHOP, WIDGETS};
use crate::support::{Ground, Watching, request};
use serde_json::{Value, json};

const INVALID: &str = "ListOptions.meta.k8s.io \"\" is invalid: ";
const NO_MATCH: &str = "resourceVersionMatch is forbidden when continue is provided";

/// A request (GET unless it names a method), the expected code, and the expected message and details of the Status.
struct Case(&'static str, String, u16, Expected);

enum Expected {
    Anything,
    Message(&'static str),
    BeginsWith(&'static str),
    Status(&'static str, Value),
    /// 422 with these causes, each a forbidden field.
    Forbidden(&'static [(&'static str, &'static str)]),
}
use Expected::{Anything, BeginsWith, Forbidden, Message, Status};

fn cases(token: &str) -> Vec<Case> {
    let get = |target: String, code, expected| Case("GET", target, code, expected);
    let no_field = || Message("field label not supported: metadata.namespace");
    let of = |name: &str| json!({"name": name, "group": "matrix.test", "kind": "widgets"});
    let no_token = BeginsWith("invalid continue token: continue key is not valid: ");
    let token_match = || Forbidden(&[("resourceVersionMatch", NO_MATCH)]);
    let kind = || json!({"group": "matrix.test", "kind": "widgets"});
    vec![
        // Objects without namespaces lack this field.
        get(format!("{NODES}?fieldSelector=metadata.namespace=x"), 400, no_field()),
        get(format!("{NODES}?fieldSelector=metadata.namespace%21=x"), 400, no_field()),
        get(format!("{NODES}?watch=1&fieldSelector=metadata.namespace="), 400, no_field()),
        get(format!("{WIDGETS}?fieldSelector=metadata.namespace=shop"), 200, Anything),
        // Negative numbers are ignored, and a get of one object ignores malformed ones.
        get(format!("{WIDGETS}?limit=-1"), 200, Anything),
        get(format!("{WIDGETS}?limit=-1&timeoutSeconds=-1"), 200, Anything),
        get(format!("{SHOP}/a?limit=abc&timeoutSeconds=-1"), 200, Anything),
        get(format!("{WIDGETS}?limit=abc"), 400, BeginsWith("parameter limit is malformed")),
        get(format!("{WIDGETS}?watch=1&timeoutSeconds=abc"), 400, BeginsWith("parameter timeoutSeconds is malformed")),
        get(format!("{WIDGETS}?limit=abc&sendInitialEvents=true"), 400, BeginsWith("parameter limit is malformed")),
        // Subresources.
        get(format!("{SHOP}/a/status"), 404, Status("widgets.matrix.test \"a\" not found", of("a"))),
        get(format!("{SHOP}/none/x/y"), 404, Status("widgets.matrix.test \"none\" not found", of("none"))),
        get(format!("{NODES}/n/status"), 404, Status("nodes \"n\" not found", json!({"name": "n", "kind": "nodes"}))),
        get(format!("{WIDGETS}/a/status"), 404, Message("the server could not find the requested resource")),
        get("/apis/matrix.test/v1/none/a/b".into(), 404, Message("the server could not find the requested resource")),
        Case("DELETE", format!("{SHOP}/a/status"), 404, Status("widgets.matrix.test \"a\" not found", of("a"))),
        // A token fixes its revision.
        get(
            format!("{WIDGETS}?continue={token}&resourceVersion=5"),
            400,
            Message("specifying resource version is not allowed when using continue"),
        ),
        get(
            format!("{WIDGETS}?continue={token}&resourceVersion=abc"),
            400,
            Message("specifying resource version is not allowed when using continue"),
        ),
        get(format!("{WIDGETS}?continue={token}&resourceVersion=0"), 200, Anything),
        get(format!("{WIDGETS}?continue=abc&resourceVersion=5"), 400, no_token),
        get(format!("{WIDGETS}?continue=abc&resourceVersion=5&resourceVersionMatch=Exact"), 422, token_match()),
        get(
            format!("{WIDGETS}?continue=abc&resourceVersion=5&sendInitialEvents=true"),
            422,
            Forbidden(&[("sendInitialEvents", "sendInitialEvents is forbidden for list")]),
        ),
        // A watch without parameters gets the initial state, which has no token.
        get(format!("{WIDGETS}?watch=1&continue=abc"), 422, token_match()),
        get(format!("{WIDGETS}?watch=1&continue=abc&resourceVersion=0"), 422, token_match()),
        get("/apis/matrix.test/v1/watch/widgets?watch=1&continue=abc".into(), 422, token_match()),
        // The deprecated path without `watch` does not make the parameters those of a watch.
        get(
            "/apis/matrix.test/v1/watch/widgets?sendInitialEvents=true&resourceVersionMatch=NotOlderThan".into(),
            422,
            Forbidden(&[
                ("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
                ("sendInitialEvents", "sendInitialEvents is forbidden for list"),
            ]),
        ),
        // Verbs that would write.
        Case(
            "DELETE",
            format!("{SHOP}/a"),
            405,
            Status("delete is not supported on resources of kind \"widgets.matrix.test\"", kind()),
        ),
        Case(
            "DELETE",
            WIDGETS.into(),
            405,
            Status("deletecollection is not supported on resources of kind \"widgets.matrix.test\"", kind()),
        ),
        Case(
            "POST",
            NODES.into(),
            405,
            Status("create is not supported on resources of kind \"nodes\"", json!({"kind": "nodes"})),
        ),
        Case(
            "PUT",
            format!("{SHOP}/a"),
            405,
            Status("update is not supported on resources of kind \"widgets.matrix.test\"", kind()),
        ),
        Case(
            "PATCH",
            format!("{SHOP}/a"),
            405,
            Status("patch is not supported on resources of kind \"widgets.matrix.test\"", kind()),
        ),
        Case(
            "DELETE",
            "/apis/matrix.test/v1/none/a".into(),
            404,
            Message("the server could not find the requested resource"),
        ),
    ]
}

#[tokio::test]
async fn answers_are_those_of_kubernetes() {
    let ground = Ground::start().await;
    ground.put_widget("shop/a", "red");
    ground.put_widget("shop/b", "red");
    let first = request(ground.address, "GET", &format!("{WIDGETS}?limit=1"), &[]).await;
    assert_eq!(first.json()["metadata"]["remainingItemCount"], 1);
    let token = first.json()["metadata"]["continue"].as_str().expect("a token").to_owned();
    for Case(method, target, code, expected) in cases(&token) {
        let answer = request(ground.address, method, &target, &[]).await;
        assert_eq!(answer.code(), code, "{method} {target}: {}", answer.text());
        let status = answer.json();
        match expected {
            Anything => {}
            Message(text) => assert_eq!(status["message"], text, "{method} {target}"),
            BeginsWith(text) => assert!(answer.message().starts_with(text), "{method} {target}: {status}"),
            Status(text, details) => {
                assert_eq!((&status["message"], &status["details"]), (&json!(text), &details), "{method} {target}");
            }
            Forbidden(causes) => {
                let listed: Vec<String> =
                    causes.iter().map(|(field, why)| format!("{field}: Forbidden: {why}")).collect();
                let listed = if let [one] = &listed[..] { one.clone() } else { format!("[{}]", listed.join(", ")) };
                let causes: Vec<Value> = causes
                    .iter()
                    .map(|(field, why)| json!({"reason": "FieldValueForbidden", "message": format!("Forbidden: {why}"), "field": field}))
                    .collect();
                assert_eq!(status["message"], format!("{INVALID}{listed}"), "{target}");
                let details = json!({"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes});
                assert_eq!(status["details"], details, "{target}");
            }
        }
    }
    // A state that is not reached is reported inside the watch, not as its answer.
    for target in [
        format!("{WIDGETS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99"),
        format!(
            "{WIDGETS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=4503599627370496"
        ),
    ] {
        let mut watching = Watching::open(ground.address, &target).await;
        let event = watching.event().await;
        let asked = target.rsplit_once('=').expect("a revision").1;
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)), "{event}");
        assert_eq!(event["object"]["message"], format!("Timeout: Too large resource version: {asked}, current: 2"));
        assert_eq!(event["object"]["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
        watching.ended().await;
    }
}
