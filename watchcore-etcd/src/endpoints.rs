//! Rotates endpoints: a working one is kept, a failed one is avoided for a while.

use std::time::{Duration, Instant};

const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);
/// The second violation within this time switches to another endpoint: a single one may be an accident of a
/// connection.
const VIOLATIONS_APART: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Endpoint {
    url: String,
    failures: u32,
    rests_until: Option<Instant>,
    /// When the endpoint last sent data that broke a rule. A success does not reset it.
    violated: Option<Instant>,
}

/// All endpoints, and the index of the one in use.
#[derive(Debug)]
pub(super) struct Endpoints {
    all: Vec<Endpoint>,
    at: usize,
}

impl Endpoints {
    pub(super) fn new(urls: impl IntoIterator<Item = String>) -> Endpoints {
        let all: Vec<Endpoint> =
            urls.into_iter().map(|url| Endpoint { url, failures: 0, rests_until: None, violated: None }).collect();
        assert!(!all.is_empty(), "the builder refuses an empty list of endpoints");
        Endpoints { all, at: 0 }
    }

    /// The endpoint in use.
    pub(super) fn url(&self) -> &str {
        &self.all[self.at].url
    }

    /// Records that the endpoint in use works.
    pub(super) fn succeeded(&mut self) {
        let endpoint = &mut self.all[self.at];
        endpoint.failures = 0;
        endpoint.rests_until = None;
    }

    /// Records that the endpoint in use failed: it rests (longer each time), and the next endpoint that does not rest
    /// is used; if all rest, the one whose rest ends first.
    pub(super) fn failed(&mut self, now: Instant) {
        let endpoint = &mut self.all[self.at];
        let rest = FIRST_REST.saturating_mul(1 << endpoint.failures.min(16)).min(LONGEST_REST);
        endpoint.failures = endpoint.failures.saturating_add(1);
        endpoint.rests_until = Some(now + rest);
        let count = self.all.len();
        let in_turn = (1..=count).map(|step| (self.at + step) % count);
        self.at = in_turn
            .min_by_key(|&i| self.all[i].rests_until.filter(|until| *until > now))
            .expect("there is at least one endpoint");
    }

    /// Records that the endpoint in use broke a rule. The second time within a minute it counts as failed.
    pub(super) fn violated(&mut self, now: Instant) {
        let before = self.all[self.at].violated.replace(now);
        if before.is_some_and(|before| now.duration_since(before) < VIOLATIONS_APART) {
            self.failed(now);
        }
    }

    /// Whether the endpoint changed from `before` to one that may be tried at once.
    pub(super) fn has_moved(&self, before: &str, now: Instant) -> bool {
        self.url() != before && self.is_rested(now)
    }

    /// Whether the endpoint in use does not rest, so it may be tried at once.
    fn is_rested(&self, now: Instant) -> bool {
        self.all[self.at].rests_until.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Endpoints {
        Endpoints::new(["a", "b", "c"].map(String::from))
    }

    #[test]
    fn a_healthy_endpoint_is_kept() {
        let mut endpoints = three();
        for _ in 0..5 {
            endpoints.succeeded();
            assert_eq!(endpoints.url(), "a");
        }
    }

    #[test]
    fn failures_go_round() {
        let now = Instant::now();
        let mut endpoints = three();
        let mut order = Vec::new();
        for _ in 0..3 {
            order.push(endpoints.url().to_owned());
            endpoints.failed(now);
        }
        assert_eq!(order, ["a", "b", "c"]);
        assert_eq!(endpoints.url(), "a", "all rest equally: the order continues");
        assert!(!endpoints.is_rested(now));
        assert!(endpoints.is_rested(now + FIRST_REST));
    }

    #[test]
    fn a_dead_endpoint_is_not_tried_every_second_call() {
        let start = Instant::now();
        let mut endpoints = Endpoints::new(["dead", "good"].map(String::from));
        let mut tried_dead = 0;
        // The good endpoint loses its connection every 3 seconds; the dead one never answers.
        for round in 0..100u64 {
            let now = start + Duration::from_secs(3 * round);
            while endpoints.url() == "dead" {
                tried_dead += 1;
                endpoints.failed(now);
            }
            endpoints.succeeded();
            endpoints.failed(now);
        }
        assert!(tried_dead <= 15, "tried {tried_dead} times in 100 reconnects");
    }

    #[test]
    fn success_ends_the_rest() {
        let now = Instant::now();
        let mut endpoints = three();
        for _ in 0..3 {
            endpoints.failed(now);
        }
        endpoints.succeeded();
        assert!(endpoints.is_rested(now));
        endpoints.failed(now);
        assert!(endpoints.is_rested(now + FIRST_REST), "the first rest is a short one again");
    }

    #[test]
    fn a_single_endpoint_stays() {
        let mut endpoints = Endpoints::new(["a".to_owned()]);
        endpoints.failed(Instant::now());
        assert_eq!(endpoints.url(), "a");
    }

    #[test]
    fn second_violation_leaves_an_endpoint() {
        let start = Instant::now();
        let mut endpoints = three();
        for seconds in [0, 60, 120] {
            endpoints.violated(start + Duration::from_secs(seconds));
            assert_eq!(endpoints.url(), "a", "once a minute");
        }
        endpoints.succeeded();
        let now = start + Duration::from_secs(179);
        endpoints.violated(now);
        assert_eq!(endpoints.url(), "b", "success between them counts for nothing");
        assert!(endpoints.has_moved("a", now) && !endpoints.has_moved("b", now));
        let mut alone = Endpoints::new(["a".to_owned()]);
        alone.violated(now);
        alone.violated(now);
        assert!(alone.url() == "a" && !alone.has_moved("a", now));
    }
}
