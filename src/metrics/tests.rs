//! The text is held against a grammar that is stricter than Prometheus' own.

use super::*;
use crate::{Change, Source, SourceMetric, Start};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A series: its name and its labels, in order.
type Series = (String, Vec<(String, String)>);

#[derive(Default)]
struct Parsed {
    values: BTreeMap<Series, f64>,
    /// Kind by name.
    families: BTreeMap<String, String>,
}

impl Parsed {
    #[track_caller]
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        *self.values.get(&(name.to_owned(), labels)).unwrap_or_else(|| panic!("{name} is not there"))
    }
}

fn is_name(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    first && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Labels in braces, and what follows them.
fn labels(mut rest: &str) -> (Vec<(String, String)>, &str) {
    let mut all = Vec::new();
    loop {
        let (name, behind) = rest.split_once("=\"").expect("a label and its value");
        assert!(is_name(name), "{name}");
        let mut value = String::new();
        let mut chars = behind.char_indices();
        let end = loop {
            match chars.next().expect("a label's value ends") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().expect("what is escaped").1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("\\{c} is no escape"),
                }),
                (_, '\n') => panic!("a line end in a label"),
                (_, c) => value.push(c),
            }
        };
        all.push((name.to_owned(), value));
        rest = &behind[end + 1..];
        match rest.split_at(1) {
            (",", more) => rest = more,
            ("}", more) => return (all, more),
            other => panic!("{other:?} behind a label"),
        }
    }
}

#[track_caller]
fn parsed(text: &str) -> Parsed {
    assert!(text.ends_with('\n'));
    let mut parsed = Parsed::default();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(line);
        assert!(is_name(name) && name.starts_with("watchcore_"), "{name}");
        assert!(help.ends_with('.') && help.len() > 8, "{name}: {help}");
        let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} "))).expect(name);
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        assert!(["counter", "gauge"].contains(&kind), "{name} is a {kind}");
        assert!(parsed.families.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
        let mut count = 0;
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("{line:?} stands below {name}"));
            let (labels, rest) = match rest.strip_prefix('{') {
                Some(rest) => labels(rest),
                None => (Vec::new(), rest),
            };
            let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line:?} has a value"));
            assert!(value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'), "{line}");
            let names: BTreeSet<_> = labels.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), labels.len(), "{line}: a label comes twice");
            let series = (name.to_owned(), labels);
            assert!(parsed.values.insert(series, value.parse().expect(line)).is_none(), "{line} comes twice");
            count += 1;
        }
        assert!(count > 0, "{name} has no series");
    }
    parsed
}

struct Counting;

impl Source for Counting {
    fn wake(&self) {}
    fn metrics(&self, each: &mut dyn FnMut(SourceMetric)) {
        each(SourceMetric::counter("listings", "Listings that were begun.", 3));
        each(SourceMetric::counter("why", "Resyncs by reason.", 1).with_label("reason", "Compacted"));
        each(SourceMetric::counter("why", "Resyncs by reason.", 2).with_label("reason", "Requested"));
        each(SourceMetric::gauge("high", "A high-water mark.", 9));
        // Neither is shown.
        each(SourceMetric::counter("connects", "Already in the report.", 8));
        each(SourceMetric::counter("not a name", "Not a name at all.", 8));
    }
}

#[test]
fn metrics_are_those_of_status() {
    let cache = Cache::builder("/a/").name("pods").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(3, [Change::put("/a/1", "x"), Change::put("/a/2", "y")]).unwrap();
    writer.apply(5, [Change::delete("/a/1")]).unwrap();
    let _idle = cache.subscribe(Start::After(0)).open().unwrap();
    // What was replaced comes back to the cache's heap when the reclaimer has freed it: not between the two looks.
    assert!(crate::reclaim::quiesce(Duration::from_secs(60)));
    let text = parsed(&text([&cache]));
    let own = [("cache", "pods")];
    let (status, stats) = (cache.status(), cache.stats());
    assert_eq!(text.value("watchcore_revision", &own), 5.0);
    assert_eq!(text.value("watchcore_epoch", &own), 1.0);
    assert_eq!(text.value("watchcore_oldest_revision", &own), status.oldest as f64);
    assert_eq!(text.value("watchcore_objects", &own), 1.0);
    assert_eq!(text.value("watchcore_events_total", &own), 3.0);
    assert_eq!(text.value("watchcore_revisions_total", &own), 2.0);
    assert_eq!(text.value("watchcore_subscriptions", &own), 1.0);
    assert_eq!(text.value("watchcore_subscription_max_lag_events", &own), 3.0);
    assert_eq!(text.value("watchcore_tombstones", &own), stats.tombstones as f64);
    assert_eq!(text.value("watchcore_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    assert_eq!(text.value("watchcore_cache_info", &[own[0], ("prefix", "/a/")]), 1.0);
    for state in ["NotReady", "Ready", "Stale", "Failed", "Closed"] {
        assert_eq!(text.value("watchcore_state", &[own[0], ("state", state)]), f64::from(state == "Ready"));
    }
    for state in SubscriptionState::ALL {
        let of_state = [own[0], ("state", state.name())];
        let expected = f64::from(*state == SubscriptionState::Live);
        assert_eq!(text.value("watchcore_subscriptions_in_state", &of_state), expected, "{state}");
    }
    let parts = ["versions", "index", "log", "delivered", "links", "decoded"];
    let sum: f64 = parts.iter().map(|part| text.value("watchcore_memory_bytes", &[own[0], ("part", part)])).sum();
    assert_eq!(sum, status.bytes as f64);
    assert!(!text.families.keys().any(|name| name.starts_with("watchcore_feeder")), "nothing feeds it");
    assert!(!text.families.contains_key("watchcore_subscription_info"), "nobody asked for it");
}

#[test]
fn a_source_brings_its_own() {
    let cache = Cache::builder("/").name("fed").expect_load(true).build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.attach(Arc::new(Counting)).unwrap();
    let report = SourceReport {
        endpoint: "https://a:1".into(),
        connects: 2,
        warning: "a file is missing".into(),
        cluster_id: 255,
        member_id: 16,
        ..SourceReport::default()
    };
    writer.set_report(report);
    writer.set_state(crate::SourceState::Failed(crate::Error::new(crate::Code::Unavailable, "away")));
    let text = parsed(&text([&cache]));
    let own = ("cache", "fed");
    let info = [own, ("endpoint", "https://a:1"), ("server_version", ""), ("cluster_id", "ff"), ("member_id", "10")];
    assert_eq!(text.value("watchcore_feeder_info", &info), 1.0);
    assert_eq!(text.value("watchcore_feeder_connects_total", &[own]), 2.0);
    assert_eq!(text.value("watchcore_feeder_warning", &[own]), 1.0);
    assert_eq!(text.value("watchcore_feeder_listings_total", &[own]), 3.0);
    assert_eq!(text.value("watchcore_feeder_why_total", &[own, ("reason", "Requested")]), 2.0);
    assert_eq!(text.value("watchcore_feeder_high", &[own]), 9.0);
    assert_eq!(text.value("watchcore_last_error_info", &[own, ("code", "UNAVAILABLE")]), 1.0);
    assert_eq!(text.value("watchcore_state", &[own, ("state", "Failed")]), 1.0);
}

/// One HELP a name, whatever caches there are; names are told apart, and escaped.
#[test]
fn several_caches_are_one_text() {
    let evil = "a\"b\\c\nd}, e=\"";
    let new = |name: &str| Cache::builder("/").name(name).build().unwrap();
    let nameless = Cache::builder("").build().unwrap();
    let by_prefix = Cache::builder("/b/").build().unwrap();
    let all = [new("same"), new(evil), new("same"), new("same#2"), new("same"), nameless, by_prefix];
    let text = parsed(&Metrics::new().per_subscription(true).text(&all));
    for name in ["same", evil, "same#2", "same#2#2", "same#3", "unnamed", "/b/"] {
        assert_eq!(text.value("watchcore_objects", &[("cache", name)]), 0.0, "{name:?}");
    }
    assert_eq!(text.families["watchcore_process_unfreed_bytes"], "gauge");
    assert_eq!(text.values.keys().filter(|(name, _)| name == "watchcore_process_unfreed_bytes").count(), 1);
    assert_eq!(parsed(&super::text([])).families.len(), 1, "the version");
}

#[test]
fn subscriptions_are_shown_when_asked() {
    let cache = Cache::builder("/").name("c").build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut polled = cache.subscribe(Start::Now).name("x\"").open().unwrap();
    let _idle = cache.subscribe(Start::Now).open().unwrap();
    writer.apply(4, [Change::put("/a", "1")]).unwrap();
    assert_eq!(polled.poll(9).unwrap().len(), 1);
    let text = parsed(&Metrics::new().per_subscription(true).text([&cache]));
    let first = [("cache", "c"), ("subscription", "x\""), ("id", "1")];
    let second = [("cache", "c"), ("subscription", ""), ("id", "2")];
    assert_eq!(text.value("watchcore_subscription_delivered_total", &first), 1.0);
    assert_eq!(text.value("watchcore_subscription_position_revision", &first), 4.0);
    assert_eq!(text.value("watchcore_subscription_lag_events", &first), 0.0);
    assert_eq!(text.value("watchcore_subscription_lag_events", &second), 1.0);
    let info = [second[0], second[1], second[2], ("state", "Live"), ("read_path", "scan")];
    assert_eq!(text.value("watchcore_subscription_info", &info), 1.0);
    let ages = text.values.keys().filter(|(name, _)| name == "watchcore_subscription_last_poll_age_seconds");
    assert_eq!(ages.count(), 1, "the other one never polled");
}

/// Scrapes at any time are whole, and no counter of a living cache falls.
#[test]
fn counters_rise_under_churn() {
    const ROUNDS: u64 = 3_000;
    let cache = Cache::builder("/").name("busy").capacity(128).build().unwrap();
    let over = AtomicBool::new(false);
    /// Also where the writer fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _end = Over(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut before = BTreeMap::<Series, f64>::new();
                while !over.load(Relaxed) {
                    let now = parsed(&text([&cache]));
                    for (series, value) in now.values {
                        if now.families[&series.0] == "counter" {
                            let was = before.insert(series.clone(), value).unwrap_or_default();
                            assert!(value >= was, "{series:?} fell from {was} to {value}");
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Relaxed) {
                // Some lose events, some are dropped before a poll reports it.
                let mut one = cache.subscribe(Start::Now).open().unwrap();
                let _ = one.poll(1);
                std::thread::yield_now();
                let _ = one.poll(1);
            }
        });
        let mut writer = cache.writer().unwrap();
        for round in 2..=ROUNDS {
            let key = format!("/{}", round / 2 % 7);
            let change = if round % 2 == 1 { Change::delete(&key) } else { Change::put(&key, "x") };
            writer.apply(round, [change]).unwrap();
        }
    });
    let text = parsed(&text([&cache]));
    assert_eq!(text.value("watchcore_events_total", &[("cache", "busy")]), cache.stats().events as f64);
}
