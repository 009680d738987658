//! `/metrics`: the counters of the server and the metrics of its caches, as Prometheus text.

use super::log::labels_of;
use crate::clients::{ClientId, read_deadline};
use crate::counters::ResourceLabels;
use crate::state::ApiState;
use crate::status::Refusal;
use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, header};
use std::sync::Arc;
use watchcore::Lag;
use watchcore::metrics::{self as caches, Families, Histogram};

/// Upper bounds of the lag buckets, in events.
const EVENTS: [f64; 8] = [0.0, 1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0];

/// Answers a scrape.
///
/// # Errors
/// 500 if the runtime shuts down, 429 if other reads keep this one from beginning.
pub(crate) async fn metrics(state: Arc<ApiState>, request: &Parts) -> Result<Response, Refusal> {
    let client = ClientId::of(request);
    let stats_pool = state.stats_pool.clone();
    let text = stats_pool.run(&client, read_deadline(), move || {
        let mut text = families(&state).text();
        text.push_str(&caches::text(state.catalog.caches()));
        text
    });
    let text = text.await.map_err(|error| Refusal::from(&error))?;
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(caches::CONTENT_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn families(state: &ApiState) -> Families {
    let mut families = Families::with_prefix("watchcore_http_");
    state.counters.show(&mut families);
    open_watches(state, &mut families);
    lag(state, &mut families);
    resources(state, &mut families);
    families
}

fn open_watches(state: &ApiState, to: &mut Families) {
    let (events, bytes, refused) = state.open.counters();
    let connections = state.counters.connections() as u64;
    to.gauge("connections", "Connections that are open, of this crate's own server.", &[], connections);
    let help = "Bytes of answers that were made, and that their clients have not taken.";
    to.gauge("unread_bytes", help, &[], state.unread.held() as u64);
    let help = "Answers that were cut off, for the budget of unread bytes was used up.";
    to.counter("answers_cut", help, &[], state.unread.cut());
    to.gauge("watches_open", "Watches that are open.", &[], state.open.count() as u64);
    to.counter("watches_refused", "Watches that were refused, at a limit or at the end.", &[], refused);
    let help = "Watches that were ended because their user may not watch any more.";
    to.counter("watches_revoked", help, &[], state.open.revoked());
    to.counter("watch_events", "Events that were framed for watches.", &[], events);
    to.counter("watch_bytes", "Bytes that were framed for watches.", &[], bytes);
}

/// Covers all subscriptions of the caches, including those of an embedding program. The histogram describes the
/// subscriptions open now; unlike a counter, it may fall.
fn lag(state: &ApiState, to: &mut Families) {
    let mut lags = Histogram::new(&EVENTS);
    let mut most = Lag::default();
    for lag in state.catalog.caches().iter().flat_map(|cache| cache.subscriptions()).map(|info| info.lag) {
        lags.observe(lag.events as f64);
        most.events = most.events.max(lag.events);
        most.age = most.age.max(lag.age);
    }
    to.histogram("watch_lag_events", "Events that the subscriptions open now have not taken.", &[], &lags);
    to.gauge("watch_lag_max_events", "Most events that a subscription open now has not taken.", &[], most.events);
    let help = "Longest time since a subscription open now last had everything.";
    to.seconds("watch_lag_max_seconds", help, &[], most.age);
}

fn resources(state: &ApiState, to: &mut Families) {
    let mut of_frames = |labels: &ResourceLabels, (found, made, bytes): (u64, u64, usize)| {
        to.counter("frames_found", "Frames of events that were made already.", &labels.labels(), found);
        to.counter("frames_made", "Frames of events that had to be made.", &labels.labels(), made);
        to.gauge("frames_bytes", "Bytes of the frames that are kept.", &labels.labels(), bytes as u64);
    };
    for served in state.catalog.resources() {
        of_frames(&labels_of(&served.resource), served.frames.counters());
    }
    // The frames of `/v1/keys` are kept per cache, and exported as one sum.
    let of_keys = state.catalog.all_lines().map(|frames| frames.counters());
    if let Some(sum) = of_keys.reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2)) {
        of_frames(&ResourceLabels::path("/v1/keys"), sum);
    }
    for served in state.catalog.resources() {
        let help = "Values that were skipped, because they are no objects.";
        to.counter("values_left_out", help, &labels_of(&served.resource).labels(), served.skipped.count());
    }
}
