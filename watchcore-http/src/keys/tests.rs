use super::*;
use crate::api::Api;
use http_body_util::BodyExt as _;
use std::time::Duration;
use watchcore::Change;

fn parts(target: &str, headers: &[(&str, &str)]) -> Parts {
    let request =
        headers.iter().fold(http::Request::get(target), |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap().into_parts().0
}

fn served() -> (Cache, Api) {
    let cache = Cache::builder("/").build().unwrap();
    (cache.clone(), Api::builder().cache(cache).build().unwrap())
}

/// Returns the next bytes of an answer; `None` at its end.
async fn next(response: &mut Response) -> Option<String> {
    let frame = response.body_mut().frame().await?.expect("a clean end").into_data().unwrap();
    Some(String::from_utf8(frame.to_vec()).unwrap())
}

/// The client resumes from the last revision that it saw.
#[tokio::test(start_paused = true)]
async fn deadline_ends_a_watch_behind_a_whole_revision() {
    for (accept, least) in [("*/*", 1), ("text/event-stream", 2)] {
        let (cache, api) = served();
        let request = parts("/v1/keys?prefix=/&watch=1&after=0&timeoutSeconds=7", &[("accept", accept)]);
        let mut response = answer(&api.0, &request).await.unwrap();
        let keys: Vec<String> = (0..2500).map(|number| format!("/{number:04}")).collect();
        cache.writer().unwrap().apply(1, keys.iter().map(|key| Change::put(key, "x"))).unwrap();
        let mut shown = String::new();
        for _ in 0..least {
            shown += &next(&mut response).await.expect("an event");
        }
        // The deadline passes while the first events wait for the client.
        tokio::time::sleep(Duration::from_secs(8)).await;
        while let Some(more) = next(&mut response).await {
            shown += &more;
        }
        assert_eq!(shown.matches("\"ADDED\"").count(), 2500, "{accept}");
    }
}

/// A watch without `timeoutSeconds` lasts for at most an hour, like watches of resources.
#[tokio::test(start_paused = true)]
async fn watch_lasts_an_hour_at_most() {
    for query in ["", "&timeoutSeconds=0"] {
        let (_cache, api) = served();
        let request = parts(&format!("/v1/keys?prefix=/&watch=1{query}"), &[]);
        let mut response = answer(&api.0, &request).await.unwrap();
        let from = tokio::time::Instant::now();
        let end = async { while next(&mut response).await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(7200), end).await.expect("it ends");
        assert!((1800..=3600).contains(&from.elapsed().as_secs()), "{:?}", from.elapsed());
    }
}

/// A malformed Last-Event-ID is ignored by requests that do not use it.
#[tokio::test]
async fn last_event_is_that_of_events() {
    let (_cache, api) = served();
    let with = |accept: &str| {
        let mut request = parts("/v1/keys?prefix=/", &[("accept", accept)]);
        request.headers.insert("last-event-id", http::HeaderValue::from_bytes(b"\xff").unwrap());
        request
    };
    assert_eq!(answer(&api.0, &with("*/*")).await.unwrap().status(), 200);
    assert_eq!(answer(&api.0, &with("text/event-stream")).await.unwrap_err().code(), 400);
}
