//! The live page that the server shows in a browser.
//!
//! `/` is [`DOCUMENT`], the same bytes for every user: it contains no data and no foreign asset. Its script follows
//! `/events`, which sends one JSON sample per second ([`sample`]), and builds elements from it. A content security
//! policy allows only the document's own style and script, by their hashes, and forbids turning text into markup
//! (Trusted Types), so that a bug in the script cannot execute the name of an object. Without scripts, the document
//! points to `/metrics` and `/readyz`.
//!
//! All viewers share one task that takes the samples. It starts with the first viewer and ends with the last.

mod sample;

use crate::clients::{ClientId, read_deadline};
use crate::digest::sha256;
use crate::lines;
use crate::state::ApiState;
use crate::status::Refusal;
use crate::transport::sse;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use http::{HeaderValue, header};
use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::{Instant, timeout_at};
use watchcore::Error;

const DOCUMENT: &str = include_str!("page.html");

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The content security policy: only the document's own script and style, no markup from text, no other resources, no
/// framing.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; require-trusted-types-for 'script'; trusted-types 'none'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source_of(element_text("style")),
        source_of(element_text("script"))
    );
    // Always a valid header value: the hashes are base64.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// Returns the text of the first element of this name in the document, over which a browser computes the hash.
fn element_text(element: &str) -> &'static str {
    let behind = DOCUMENT.split_once(&format!("<{element}>")).map_or("", |(_, behind)| behind);
    behind.split_once(&format!("</{element}>")).map_or("", |(text, _)| text)
}

/// Returns the hash of a text in the policy's syntax.
fn source_of(text: &str) -> String {
    format!("'sha256-{}'", sha256(text))
}

/// Answers `/` with the document.
pub(crate) fn page() -> Response {
    let mut response = Response::new(Body::from(DOCUMENT));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Answers `/events`. A viewer counts as a watch and lasts at most as long: the browser then reconnects by itself, and
/// is authenticated again.
///
/// # Errors
/// 429 if the limit on watches is reached.
pub(crate) fn events(state: &Arc<ApiState>, request: &Parts) -> Result<Response, Refusal> {
    let mut permit = state.open.open(request)?;
    let revocation = permit.revocation().clone();
    let deadline = Instant::now() + state.limits.watch_duration(None);
    permit.ends_at(deadline);
    let begin = Some((subscribe(state), permit, revocation));
    let events = stream::unfold(begin, move |viewing| async move {
        let (mut samples, permit, revocation) = viewing?;
        tokio::select! {
            biased;
            error = revocation.revoked() => Some((Ok::<_, Infallible>(revoked(error)), None)),
            // A slow viewer skips samples. When the server shuts down, the sampling task ends, which ends this stream.
            changed = timeout_at(deadline, samples.changed()) => {
                changed.ok()?.ok()?;
                let sample = samples.borrow_and_update().clone();
                Some((Ok(sample), Some((samples, permit, revocation))))
            }
        }
    });
    Ok(sse::with_head(Body::from_stream(events)))
}

/// Returns the last event of a viewer whose user may no longer watch.
fn revoked(error: &Error) -> Bytes {
    let mut event = b"event: ERROR\ndata: ".to_vec();
    lines::error(&mut event, None, error.code(), error.message(), 0, None);
    event.push(b'\n');
    Bytes::from(event)
}

/// Returns a receiver of the samples. The first viewer starts the sampling task.
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

/// Takes samples until there are no viewers, or the server shuts down.
async fn take_samples(state: Weak<ApiState>, samples: Sender<Bytes>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let Some(state) = state.upgrade() else { return };
        {
            let mut viewers = state.viewers.lock();
            // One receiver belongs to `ViewersState`, from which viewers get clones.
            if samples.receiver_count() <= 1 || state.open.is_draining() {
                // Under the lock, so that the next viewer starts a new task.
                viewers.samples = None;
                return;
            }
        }
        let stats_pool = state.stats_pool.clone();
        let event = stats_pool.run(&ClientId::Unknown, read_deadline(), move || {
            Bytes::from(format!("data: {}\n\n", sample::take_sample(&state)))
        });
        // If the read could not begin in time, this sample is skipped.
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
            assert!(
                policy.contains(&source_of(element_text(element))) && element_text(element).len() > 1000,
                "{element}"
            );
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

    /// A viewer, whether it reads or not, is gone within an hour plus the stall limit, so a removed token is noticed.
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
        // A sample that was taken meanwhile may precede the end.
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

    /// A service outlives a runtime that it was used on.
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
