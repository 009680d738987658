//! One sample for the page: statistics of the server, of its caches and of their watchers, as JSON.

use crate::api::ApiState;
use crate::catalog::Served;
use crate::counters::ResourceLabels;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use watchcore::{Cache, Stats, SubscriptionInfo, metrics};

/// At most this many watchers of a cache are shown: the most lagging ones.
const WATCHERS: usize = 50;
/// At most this many resources are shown: the most requested ones.
const RESOURCES: usize = 100;
/// Bounds on the time over which a rate is computed.
const SHORTEST: Duration = Duration::from_millis(900);
const LONGEST: Duration = Duration::from_secs(120);

/// The state for computing rates: the event count of each cache at an earlier moment, and the last computed rates.
#[derive(Default)]
pub(super) struct Rates {
    before: Option<(Instant, Vec<u64>)>,
    newest: Vec<Option<f64>>,
}

impl Rates {
    fn of(&mut self, events: Vec<u64>) -> Vec<Option<f64>> {
        let now = Instant::now();
        let elapsed = self.before.as_ref().map(|(at, _)| now.duration_since(*at));
        match (&self.before, elapsed) {
            (Some(_), Some(elapsed)) if elapsed < SHORTEST => return self.newest.clone(),
            (Some((_, before)), Some(elapsed)) if elapsed <= LONGEST => {
                let rate = |(now, before): (&u64, &u64)| now.saturating_sub(*before) as f64 / elapsed.as_secs_f64();
                self.newest = events.iter().zip(before).map(|pair| Some(rate(pair))).collect();
            }
            _ => self.newest = vec![None; events.len()],
        }
        self.before = Some((now, events));
        self.newest.clone()
    }
}

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

    #[test]
    fn rates_are_of_the_time_between() {
        let mut rates = Rates::default();
        assert_eq!(rates.of(vec![5]), [None], "nothing to compare with");
        assert_eq!(rates.of(vec![500]), [None], "too soon");
        let (at, _) = rates.before.clone().unwrap();
        rates.before = Some((at - Duration::from_secs(2), vec![100]));
        let rate = rates.of(vec![300])[0].unwrap();
        assert!((99.0..=100.0).contains(&rate), "{rate}");
    }
}
