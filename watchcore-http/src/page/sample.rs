//! What the page shows of one moment: figures of the server, of its caches and of who reads them.

use crate::api::ApiState;
use crate::figures::{Figures, prometheus_text};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use watchcore::{Cache, Stats, Status, SubscriptionInfo, metrics};

/// So many watchers of a cache are shown: those that are furthest behind.
pub(super) const WATCHERS: usize = 50;
/// So many resources are shown: where there are more, those that were asked for most.
const RESOURCES: usize = 100;
/// A rate is taken over at least so long, and at most so long.
const SHORTEST: Duration = Duration::from_millis(900);
const LONGEST: Duration = Duration::from_secs(120);

/// One moment.
pub(super) struct Sample {
    pub(super) server: ServerSample,
    pub(super) caches: Vec<CacheSample>,
    /// In the order of declaration, or where there are too many the most asked for first.
    pub(super) resources: Vec<ResourceSample>,
    pub(super) more_resources: usize,
}

/// The server itself.
pub(super) struct ServerSample {
    pub(super) watches: usize,
    pub(super) connections: usize,
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) refused: u64,
}

/// One cache.
pub(super) struct CacheSample {
    pub(super) prefix: String,
    pub(super) status: Status,
    pub(super) stats: Stats,
    /// None: it was looked at for the first time.
    pub(super) events_per_second: Option<f64>,
    /// Histories since birth, beyond the first.
    pub(super) resyncs: u64,
    /// Of those that a feeder made, by what caused them.
    pub(super) reasons: Vec<(String, u64)>,
    /// The furthest behind first.
    pub(super) watchers: Vec<SubscriptionInfo>,
    pub(super) more_watchers: usize,
}

/// One resource.
pub(super) struct ResourceSample {
    pub(super) name: String,
    pub(super) prefix: String,
    pub(super) requests: u64,
    pub(super) frames_made: u64,
    pub(super) frames_found: u64,
    pub(super) left_out: u64,
}

/// What rates are reckoned from: the events of each cache at an earlier moment, and what came of it then.
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

impl Sample {
    pub(super) fn take(state: &ApiState) -> Sample {
        let caches = state.catalog.caches();
        let stats: Vec<Stats> = caches.iter().map(Cache::stats).collect();
        let rates = state.viewers.lock().rates.of(stats.iter().map(|stats| stats.events).collect());
        let caches = caches
            .iter()
            .zip(stats)
            .zip(rates)
            .map(|((cache, stats), rate)| CacheSample::take(cache, stats, rate))
            .collect();
        let requests = requests(&state.figures);
        let resources = state.catalog.resources().iter().map(|served| {
            let (frames_found, frames_made, _) = served.frames.figures();
            let resource = &served.resource;
            let labels = [&resource.group, &resource.version, &resource.plural].map(String::clone);
            ResourceSample {
                requests: requests.get(&labels).copied().unwrap_or(0),
                name: resource.to_string(),
                prefix: resource.prefix.clone(),
                frames_made,
                frames_found,
                left_out: served.left_out.count(),
            }
        });
        let mut resources: Vec<ResourceSample> = resources.collect();
        let more_resources = resources.len().saturating_sub(RESOURCES);
        if more_resources > 0 {
            resources.sort_by_key(|resource| std::cmp::Reverse(resource.requests));
            resources.truncate(RESOURCES);
        }
        let (events, bytes, refused) = state.open.figures();
        let (watches, connections) = (state.open.count(), state.figures.connections());
        let server = ServerSample { watches, connections, events, bytes, refused };
        Sample { server, caches, resources, more_resources }
    }

    /// As `/events` sends it, with the markup that the page takes over.
    pub(super) fn to_json(&self, markup: &str) -> Value {
        let ServerSample { watches, connections, events, bytes, refused } = self.server;
        let resources = self.resources.iter().map(|resource| {
            json!({
                "name": resource.name, "prefix": resource.prefix, "requests": resource.requests,
                "frames_made": resource.frames_made, "frames_found": resource.frames_found,
                "left_out": resource.left_out,
            })
        });
        json!({
            "server": {
                "watches": watches, "connections": connections, "events": events, "bytes": bytes, "refused": refused,
            },
            "caches": self.caches.iter().map(CacheSample::to_json).collect::<Vec<_>>(),
            "resources": resources.collect::<Vec<_>>(),
            "more_resources": self.more_resources,
            "markup": markup,
        })
    }
}

impl CacheSample {
    fn take(cache: &Cache, stats: Stats, events_per_second: Option<f64>) -> CacheSample {
        let status = cache.status();
        let mut watchers = cache.subscriptions();
        watchers.sort_by_key(|info| (std::cmp::Reverse(info.lag.events), info.id));
        let more_watchers = watchers.len().saturating_sub(WATCHERS);
        watchers.truncate(WATCHERS);
        CacheSample {
            prefix: String::from_utf8_lossy(cache.prefix()).into_owned(),
            resyncs: status.position.epoch_number().saturating_sub(1),
            reasons: reasons(cache),
            status,
            stats,
            events_per_second,
            watchers,
            more_watchers,
        }
    }

    fn to_json(&self) -> Value {
        let CacheSample { status, stats, .. } = self;
        let watchers = self.watchers.iter().map(|info| {
            json!({
                "id": info.id, "name": info.name, "state": info.state.name(), "revision": info.position.revision,
                "lag_events": info.lag.events, "lag_revisions": info.lag.revisions,
                "lag_seconds": info.lag.age.as_secs_f64(), "handed_out": info.handed_out, "lagged": info.lagged,
                "last_poll_seconds": info.last_poll.map(|age| age.as_secs_f64()),
            })
        });
        json!({
            "name": status.name, "prefix": self.prefix, "state": status.state.name(),
            "revision": status.position.revision, "oldest": status.oldest,
            "window_seconds": status.window_age.as_secs_f64(), "window_bytes": stats.window_bytes,
            "objects": status.objects, "bytes": status.bytes, "events": stats.events,
            "events_per_second": self.events_per_second, "resyncs": self.resyncs,
            "resyncs_by_reason": self.reasons.iter().cloned().collect::<BTreeMap<_, _>>(),
            "reconnects": status.source.reconnects, "endpoint": status.source.endpoint,
            "last_error": status.last_error.as_ref().map(|error| error.message()),
            "subscriptions": status.subscriptions, "watchers": watchers.collect::<Vec<_>>(),
            "more_watchers": self.more_watchers,
        })
    }
}

/// Why a feeder listed anew, and how often. Only its figures for Prometheus say so.
fn reasons(cache: &Cache) -> Vec<(String, u64)> {
    let text = metrics::text([cache]);
    let series = text.lines().filter(|line| line.contains("resyncs_by_reason") && !line.starts_with('#'));
    series.filter_map(|line| Some((label(line, "reason")?, value(line)?))).filter(|(_, count)| *count > 0).collect()
}

/// Requests by group, version and resource, of all verbs and codes.
fn requests(figures: &Figures) -> BTreeMap<[String; 3], u64> {
    let mut registry = Registry::default();
    figures.register(&mut registry);
    let mut requests = BTreeMap::new();
    for line in prometheus_text(&registry).lines().filter(|line| line.starts_with("requests_total{")) {
        let labels = ["group", "version", "resource"].map(|name| label(line, name).unwrap_or_default());
        *requests.entry(labels).or_insert(0) += value(line).unwrap_or(0);
    }
    requests
}

/// A label of a series, where its value needs no escape.
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
    use crate::figures::{RequestLabels, ResourceLabels};

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
        drop(api.0.figures.request(asked, Duration::ZERO));
        let sample = Sample::take(&api.0);
        let shown: Vec<&str> = sample.resources.iter().map(|resource| &*resource.name).collect();
        assert_eq!((shown.len(), sample.more_resources), (100, 150));
        assert_eq!(shown[..3], ["p249/v1", "p0/v1", "p1/v1"]);
        let markup = super::super::markup::figures(&sample);
        assert!(markup.contains("and 150 more with no more requests") && markup.len() < 20_000, "{}", markup.len());
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
