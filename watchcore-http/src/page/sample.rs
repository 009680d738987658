//! One sample for the page: statistics of the server, of its caches and of their watchers, as JSON.

use crate::catalog::Served;
use crate::counters::ResourceLabels;
use crate::state::ApiState;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use watchcore::{Cache, Stats, SubscriptionInfo, metrics};

/// At most this many watchers of a cache are shown: the most lagging ones.
const WATCHERS: usize = 50;
/// At most this many resources are shown: the most requested ones.
const RESOURCES: usize = 100;
/// Takes one sample, as `/events` sends it.
pub(super) fn take_sample(state: &ApiState) -> Value {
    let caches = state.catalog.caches();
    let stats: Vec<Stats> = caches.iter().map(Cache::stats).collect();
    let rates = state.viewers.lock().rates.of(stats.iter().map(|stats| stats.events).collect());
    let of_caches = caches.iter().zip(&stats).zip(rates).map(|((cache, stats), rate)| of_cache(cache, stats, rate));
    let (resources, more_resources) = of_resources(state);
    let (events, bytes, refused) = state.open.counters();
    json!({
        "server": {
            "watches": state.open.count(), "connections": state.counters.connections(), "events": events, "bytes": bytes,
            "refused": refused,
        },
        "caches": of_caches.collect::<Vec<_>>(),
        "resources": resources,
        "more_resources": more_resources,
    })
}

/// Returns the resources in the order of declaration; if there are too many, the most requested ones, and how many are
/// missing.
fn of_resources(state: &ApiState) -> (Vec<Value>, usize) {
    let requests = state.counters.requests_by_resource();
    let of = |served: &Arc<Served>| {
        let resource = &served.resource;
        let labels = ResourceLabels::new(&resource.group, &resource.version, &resource.plural);
        requests.get(&labels).copied().unwrap_or(0)
    };
    let mut resources: Vec<_> = state.catalog.resources().iter().map(|served| (of(served), served)).collect();
    let more = resources.len().saturating_sub(RESOURCES);
    if more > 0 {
        resources.sort_by_key(|(requests, _)| std::cmp::Reverse(*requests));
        resources.truncate(RESOURCES);
    }
    let shown = resources.into_iter().map(|(requests, served)| {
        let (frames_found, frames_made, _) = served.frames.counters();
        json!({
            "name": served.resource.to_string(), "prefix": served.resource.prefix, "requests": requests,
            "frames_made": frames_made, "frames_found": frames_found, "left_out": served.skipped.count(),
        })
    });
    (shown.collect(), more)
}

/// Describes a cache and its watchers, the most lagging first. `events_per_second` is unknown in the first sample.
fn of_cache(cache: &Cache, stats: &Stats, events_per_second: Option<f64>) -> Value {
    let status = cache.status();
    let mut watchers = cache.subscriptions();
    watchers.sort_by_key(|info| (std::cmp::Reverse(info.lag.events), info.id));
    let more_watchers = watchers.len().saturating_sub(WATCHERS);
    watchers.truncate(WATCHERS);
    json!({
        "name": status.name, "prefix": String::from_utf8_lossy(cache.prefix()), "state": status.state.name(),
        "revision": status.position.revision, "oldest": status.oldest,
        "window_seconds": status.window_age.as_secs_f64(), "window_bytes": stats.window_bytes,
        "objects": status.objects, "bytes": status.bytes, "events": stats.events,
        "events_per_second": events_per_second,
        // Epoch changes since the cache was created.
        "resyncs": status.position.epoch_number().saturating_sub(1),
        "resyncs_by_reason": reasons(cache), "reconnects": status.source.reconnects, "endpoint": status.source.endpoint,
        "last_error": status.last_error.as_ref().map(|error| error.message()),
        "subscriptions": status.subscriptions, "watchers": watchers.iter().map(of_watcher).collect::<Vec<_>>(),
        "more_watchers": more_watchers,
    })
}

fn of_watcher(info: &SubscriptionInfo) -> Value {
    json!({
        "id": info.id, "name": info.name, "state": info.state.name(), "revision": info.position.revision,
        "lag_events": info.lag.events, "lag_revisions": info.lag.revisions, "lag_seconds": info.lag.age.as_secs_f64(),
        "handed_out": info.handed_out, "lagged": info.lagged,
        "last_poll_seconds": info.last_poll.map(|age| age.as_secs_f64()),
    })
}

/// Returns how often a feeder resynced, by reason. Only the Prometheus metrics expose these counts.
fn reasons(cache: &Cache) -> BTreeMap<String, u64> {
    let text = metrics::text([cache]);
    let series = text.lines().filter(|line| line.contains("resyncs_by_reason") && !line.starts_with('#'));
    series.filter_map(|line| Some((label(line, "reason")?, value(line)?))).filter(|(_, count)| *count > 0).collect()
}

/// Returns a label of a series; its value must not need escapes.
fn label(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

fn value(line: &str) -> Option<u64> {
    line.rsplit_once(' ')?.1.parse::<f64>().ok().map(|value| value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::RequestLabels;
    use std::time::Duration;

    #[test]
    fn series_are_read() {
        let line = r#"requests_total{verb="list",group="matrix.test",resource="widgets",code="200"} 17"#;
        assert_eq!((label(line, "resource").as_deref(), value(line)), (Some("widgets"), Some(17)));
        assert_eq!((label(line, "user"), value("x")), (None, None));
    }

    #[test]
    fn resources_most_asked_for_are_shown() {
        let resource = |number: usize| {
            crate::Resource::new("", "v1", format!("p{number}"), format!("P{number}")).prefix(format!("/{number}/"))
        };
        let cache = Cache::builder("/").build().unwrap();
        let builder = (0..250).fold(crate::Api::builder().cache(cache), |api, number| api.resource(resource(number)));
        let api = builder.build().unwrap();
        let asked = RequestLabels { verb: "get", resource: ResourceLabels::new("", "v1", "p249"), code: 200 };
        drop(api.0.counters.request(asked, Duration::ZERO));
        let (shown, more) = of_resources(&api.0);
        assert_eq!((shown.len(), more), (100, 150));
        let names: Vec<_> = shown[..3].iter().map(|resource| resource["name"].as_str().unwrap()).collect();
        assert_eq!((names, &shown[0]["requests"]), (vec!["p249/v1", "p0/v1", "p1/v1"], &1.into()));
    }
}
