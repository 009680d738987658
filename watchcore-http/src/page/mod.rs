//! The live page: what a person sees who opens the server in a browser.
//!
//! `/` is [`DOCUMENT`], the same bytes for everybody: it has no figure, no name and no foreign asset. Its script follows
//! `/events`, where each second one JSON comes ([`sample`]), and makes elements of that. A policy goes with the document:
//! only its own style and script count, known by their hashes, and no text may become markup (Trusted Types), so a browser
//! refuses what a mistake in the script would do with a name. Without script the document names `/metrics` and `/readyz`.
//!
//! All viewers share one task that takes the samples. It begins with the first of them and ends with the last.

mod sample;

use crate::api::ApiState;
use crate::clients::{Who, soon};
use crate::digest::sha256;
use crate::lines;
use crate::resources::watch::deadline;
use crate::status::Refusal;
use crate::transport::sse;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use http::{HeaderValue, header};
use sample::Rates;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::{Instant, timeout_at};
use watchcore::Error;

const DOCUMENT: &str = include_str!("page.html");

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// What runs and what styles the page is what stands in it, and text stays text; it loads nothing, and is shown in no frame.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; require-trusted-types-for 'script'; trusted-types 'none'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source_of(inside("style")),
        source_of(inside("script"))
    );
    // Hashes in base64 are what a header takes.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The text of the first element of this name in the document, as a browser takes its hash.
fn inside(element: &str) -> &'static str {
    let behind = DOCUMENT.split_once(&format!("<{element}>")).map_or("", |(_, behind)| behind);
    behind.split_once(&format!("</{element}>")).map_or("", |(text, _)| text)
}

/// A text that stands in the page, as the policy names it.
fn source_of(text: &str) -> String {
    format!("'sha256-{}'", sha256(text))
}

/// What all viewers of an [`Api`](crate::Api) share.
#[derive(Default)]
pub(crate) struct Viewers(Mutex<ViewersState>);

#[derive(Default)]
struct ViewersState {
    /// Where the newest sample is seen, while there is a task: the sender is the task's, so that it is gone with it,
    /// also where the runtime of that task ends and the service goes on upon another.
    samples: Option<Receiver<Bytes>>,
    rates: Rates,
}

impl Viewers {
    fn lock(&self) -> MutexGuard<'_, ViewersState> {
        // What a panic could leave is a rate that is off once.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `/`: the document.
pub(crate) fn page() -> Response {
    let mut response = Response::new(Body::from(DOCUMENT));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// `/events`: what keeps the page alive. A viewer counts as a watch, and lasts as long as one: a browser comes back by
/// itself, and asks then with what it is known by.
///
/// # Errors
/// 429 where there are as many watches as there may be.
pub(crate) fn events(state: &Arc<ApiState>, request: &Parts) -> Result<Response, Refusal> {
    let mut place = state.open.open(request)?;
    let revocation = place.revocation().clone();
    let deadline = Instant::now() + deadline(None, &state.limits);
    place.ends_at(deadline);
    let begin = Some((subscribe(state), place, revocation));
    let events = stream::unfold(begin, move |viewing| async move {
        let (mut samples, place, revocation) = viewing?;
        tokio::select! {
            biased;
            error = revocation.revoked() => Some((Ok::<_, Infallible>(revoked(error)), None)),
            // A viewer that is slow sees the newest, not all. The task ends when the server does, and this with it.
            changed = timeout_at(deadline, samples.changed()) => {
                changed.ok()?.ok()?;
                let sample = samples.borrow_and_update().clone();
                Some((Ok(sample), Some((samples, place, revocation))))
            }
        }
    });
    Ok(sse::with_head(Body::from_stream(events)))
}

/// What a viewer is told who may not look any more.
fn revoked(error: &Error) -> Bytes {
    let mut event = b"event: ERROR\ndata: ".to_vec();
    lines::error(&mut event, None, error.code(), error.message(), 0, None);
    event.push(b'\n');
    Bytes::from(event)
}

/// The samples, from now on; the first viewer starts the task that takes them.
fn subscribe(state: &Arc<ApiState>) -> Receiver<Bytes> {
    let mut viewers = state.viewers.lock();
    if let Some(samples) = &viewers.samples
        && samples.has_changed().is_ok()
    {
        return samples.clone();
    }
    let (sender, samples) = tokio::sync::watch::channel(Bytes::new());
    viewers.samples = Some(samples.clone());
    tokio::spawn(take_samples(Arc::downgrade(state), sender));
    samples
}

/// Takes samples until nobody listens, or the server ends.
async fn take_samples(state: Weak<ApiState>, samples: Sender<Bytes>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let Some(state) = state.upgrade() else { return };
        {
            let mut viewers = state.viewers.lock();
            // One receiver is the one that viewers are given copies of.
            if samples.receiver_count() <= 1 || state.open.is_draining() {
                // Under the lock: who comes now starts another.
                viewers.samples = None;
                return;
            }
        }
        let readings = state.readings.clone();
        let event =
            readings.run(&Who::Somebody, soon(), move || Bytes::from(format!("data: {}\n\n", sample::take(&state))));
        // Where its turn did not come there is the next one.
        if let Ok(event) = event.await {
            samples.send_replace(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_hashes() {
        assert_eq!(source_of(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='", "of nothing");
        let policy = POLICY.to_str().unwrap();
        assert!(!policy.contains("unsafe") && !policy.contains("sha256-'"), "{policy}");
        for element in ["style", "script"] {
            assert!(policy.contains(&source_of(inside(element))) && inside(element).len() > 1000, "{element}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn samples_are_taken_while_somebody_looks() {
        let cache = watchcore::Cache::builder("/").build().unwrap();
        let api = crate::Api::builder().cache(cache).build().unwrap();
        let is_running = || api.0.viewers.lock().samples.is_some();
        assert!(!is_running());
        let (mut one, mut other) = (subscribe(&api.0), subscribe(&api.0));
        for _ in 0..3 {
            one.changed().await.unwrap();
            other.changed().await.unwrap();
            let (one, other) = (one.borrow().clone(), other.borrow().clone());
            assert_eq!(one.as_ptr(), other.as_ptr(), "one sample, and the same memory");
        }
        drop(one);
        other.changed().await.unwrap();
        drop(other);
        tokio::time::sleep(INTERVAL * 2).await;
        assert!(!is_running(), "nobody looks");
        let mut again = subscribe(&api.0);
        again.changed().await.unwrap();
        api.drain(Duration::ZERO).await;
        assert!(again.changed().await.is_err() && !is_running(), "the server ends");
    }

    /// Whether it reads or not, a viewer is gone within an hour and the time of one that stalls: a token that left the file
    /// is asked for again.
    #[tokio::test(start_paused = true)]
    async fn viewer_lasts_an_hour_at_most() {
        const HOUR: Duration = Duration::from_secs(3600);
        let cache = watchcore::Cache::builder("/").build().unwrap();
        let api = crate::Api::builder().cache(cache).build().unwrap();
        let request = http::Request::get("/events").body(()).unwrap().into_parts().0;
        let mut reads = events(&api.0, &request).unwrap().into_body();
        let idle = events(&api.0, &request).unwrap();
        let mut next = async || http_body_util::BodyExt::frame(&mut reads).await;
        assert!(next().await.is_some() && api.0.open.count() == 2);
        tokio::time::advance(HOUR / 2 - INTERVAL * 2).await;
        assert!(next().await.is_some(), "half an hour at least");
        tokio::time::advance(HOUR / 2 + INTERVAL * 2).await;
        // What was made meanwhile may come before the end.
        assert!(next().await.is_none() || next().await.is_none(), "a clean end");
        drop(reads);
        let gone = async {
            while api.0.open.count() > 0 {
                tokio::time::sleep(INTERVAL).await;
            }
        };
        tokio::time::timeout(api.0.limits.stall * 2, gone).await.expect("its place is free");
        drop(idle);
    }

    /// A service outlives a runtime that it is used on.
    #[test]
    fn samples_go_on_upon_another_runtime() {
        let cache = watchcore::Cache::builder("/").build().unwrap();
        let api = crate::Api::builder().cache(cache).build().unwrap();
        for round in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let seen = runtime.block_on(async {
                let mut samples = subscribe(&api.0);
                tokio::time::timeout(Duration::from_secs(10), samples.changed()).await
            });
            assert!(matches!(seen, Ok(Ok(()))), "round {round}: {seen:?}");
        }
    }
}
