//! `/metrics`: what the server counts, and what its caches say, as text for Prometheus.

use super::log::labels_of;
use crate::api::ApiState;
use crate::clients::{Who, soon};
use crate::figures::{ResourceLabels, prometheus_text};
use crate::status::Refusal;
use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, header};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use watchcore::{Lag, metrics as caches};

/// Upper bounds of the buckets of lag, in events.
const EVENTS: [f64; 8] = [0.0, 1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0];

/// What exists elsewhere and is read now: a name, what it means, its value.
#[derive(Debug)]
struct Reading {
    name: &'static str,
    help: &'static str,
    value: ReadingValue,
}

#[derive(Debug)]
enum ReadingValue {
    Counter(u64),
    Gauge(u64),
    Seconds(f64),
}

impl prometheus_client::collector::Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        fn write(
            encoder: &mut DescriptorEncoder<'_>,
            reading: &Reading,
            metric: &impl EncodeMetric,
        ) -> Result<(), fmt::Error> {
            let to = encoder.encode_descriptor(reading.name, reading.help, None, metric.metric_type())?;
            metric.encode(to)
        }
        match self.value {
            ReadingValue::Counter(value) => write(&mut encoder, self, &ConstCounter::new(value)),
            ReadingValue::Gauge(value) => write(&mut encoder, self, &ConstGauge::new(value as i64)),
            ReadingValue::Seconds(value) => write(&mut encoder, self, &ConstGauge::new(value)),
        }
    }
}

/// The answer to a scrape.
///
/// # Errors
/// 500 where the runtime ends.
pub(crate) async fn metrics(state: Arc<ApiState>, request: &Parts) -> Result<Response, Refusal> {
    let who = Who::of(request);
    let readings = state.readings.clone();
    let text = readings.run(&who, soon(), move || {
        let mut text = prometheus_text(&registry(&state));
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

fn registry(state: &ApiState) -> Registry {
    let mut registry = Registry::with_prefix("watchcore_http");
    state.figures.register(&mut registry);
    of_open(state, &mut registry);
    of_lag(state, &mut registry);
    of_resources(state, &mut registry);
    registry
}

fn of_open(state: &ApiState, registry: &mut Registry) {
    let (events, bytes, refused) = state.open.figures();
    let connections = state.figures.connections() as u64;
    let mut add = |name, help, value| registry.register_collector(Box::new(Reading { name, help, value }));
    add("connections", "Connections that are open, of this crate's own server.", ReadingValue::Gauge(connections));
    add(
        "unread_bytes",
        "Bytes of answers that were made, and that their clients have not taken.",
        ReadingValue::Gauge(state.unread.held() as u64),
    );
    add(
        "answers_cut",
        "Answers that were cut off, for the budget of unread bytes was used up.",
        ReadingValue::Counter(state.unread.cut()),
    );
    add("watches_open", "Watches that are open.", ReadingValue::Gauge(state.open.count() as u64));
    add("watches_refused", "Watches that were refused, at a limit or at the end.", ReadingValue::Counter(refused));
    let revoked = ReadingValue::Counter(state.open.revoked());
    add("watches_revoked", "Watches that were ended because their user may not watch any more.", revoked);
    add("watch_events", "Events that were framed for watches.", ReadingValue::Counter(events));
    add("watch_bytes", "Bytes that were framed for watches.", ReadingValue::Counter(bytes));
}

/// Of all subscriptions of the caches, those of an embedding program too. What falls cannot be a counter: the histogram is
/// of the subscriptions that are open now, not of what was observed since the start.
fn of_lag(state: &ApiState, registry: &mut Registry) {
    let lags = Histogram::new(EVENTS);
    let mut most = Lag::default();
    for lag in state.catalog.caches().iter().flat_map(|cache| cache.subscriptions()).map(|info| info.lag) {
        lags.observe(lag.events as f64);
        most.events = most.events.max(lag.events);
        most.age = most.age.max(lag.age);
    }
    registry.register("watch_lag_events", "Events that the subscriptions open now have not taken", lags);
    let mut add = |name, help, value| registry.register_collector(Box::new(Reading { name, help, value }));
    let help = "Most events that a subscription open now has not taken.";
    add("watch_lag_max_events", help, ReadingValue::Gauge(most.events));
    let help = "Longest time since a subscription open now last had everything.";
    add("watch_lag_max_seconds", help, ReadingValue::Seconds(most.age.as_secs_f64()));
}

fn of_resources(state: &ApiState, registry: &mut Registry) {
    type Counters = Family<ResourceLabels, prometheus_client::metrics::counter::Counter>;
    let (found, made, left_out) = (Counters::default(), Counters::default(), Counters::default());
    let bytes: Family<ResourceLabels, Gauge<u64, AtomicU64>> = Family::default();
    for served in state.catalog.resources() {
        let label = labels_of(&served.resource);
        let (of_found, of_made, of_bytes) = served.frames.figures();
        found.get_or_create(&label).inc_by(of_found);
        made.get_or_create(&label).inc_by(of_made);
        bytes.get_or_create(&label).set(of_bytes as u64);
        left_out.get_or_create(&label).inc_by(served.left_out.count());
    }
    // Those of keys are of a cache, and shown as one.
    let of_keys = ResourceLabels::path("/v1/keys");
    for frames in state.catalog.all_lines() {
        let (of_found, of_made, of_bytes) = frames.figures();
        found.get_or_create(&of_keys).inc_by(of_found);
        made.get_or_create(&of_keys).inc_by(of_made);
        bytes.get_or_create(&of_keys).inc_by(of_bytes as u64);
    }
    registry.register("frames_found", "Frames of events that were made already", found);
    registry.register("frames_made", "Frames of events that had to be made", made);
    registry.register("frames_bytes", "Bytes of the frames that are kept", bytes);
    registry.register("values_left_out", "Values that were left out, for they are no objects", left_out);
}
