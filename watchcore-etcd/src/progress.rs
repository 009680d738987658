//! Decides when a watch requests progress from etcd, without input or output.
//!
//! An idle watch requests progress each interval. While a caller waits for a revision, the watch asks at once, then
//! after pauses that double up to [`LONGEST_PAUSE`]: a revision that never comes costs one request a second. A new
//! wait asks at once again, but only one request is in progress at a time, so simultaneous waits share one.

use std::time::Duration;
use tokio::time::Instant;

/// The first pause between two requests while a caller waits.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The requests of one watch.
pub(super) struct ProgressRequests {
    /// How long an idle watch is silent before it asks; `None`: it never asks.
    idle: Option<Duration>,
    /// The highest revision that is waited for, 0 for none.
    wanted: u64,
    /// Whether a wait began since the last request.
    urgent: bool,
    /// When the last request was sent, and whether it is unanswered.
    sent: Instant,
    is_under_way: bool,
    /// The pause from the last request to the next while a caller waits.
    pause: Duration,
}

impl ProgressRequests {
    pub(super) fn new(idle: Option<Duration>, now: Instant) -> ProgressRequests {
        ProgressRequests { idle, wanted: 0, urgent: false, sent: now, is_under_way: false, pause: FIRST_PAUSE }
    }

    /// Records that a wait may have begun; `wanted` is the highest revision of all waits.
    pub(super) fn set_wanted(&mut self, wanted: u64) {
        self.wanted = wanted;
        self.urgent = wanted > 0;
    }

    /// Records that a request was sent; `wanted` is the highest revision waited for now.
    pub(super) fn sent(&mut self, now: Instant, wanted: u64) {
        self.pause = if self.urgent { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        (self.wanted, self.urgent) = (wanted, false);
        (self.sent, self.is_under_way) = (now, true);
    }

    /// Records a progress notification.
    pub(super) fn answered(&mut self) {
        self.is_under_way = false;
    }

    /// When the next request is due, if at all, on a watch that is complete up to `point` and last sent something at
    /// `heard`.
    pub(super) fn due(&self, point: u64, heard: Instant) -> Option<Instant> {
        let idle = self.idle.map(|interval| heard.max(self.sent) + interval);
        let waited_for = (self.wanted > point).then(|| match (self.urgent, self.is_under_way) {
            (true, false) => self.sent,
            // The request in progress may be answered with the wanted revision, or never.
            (true, true) => self.sent + FIRST_PAUSE,
            (false, _) => self.sent + self.pause,
        });
        idle.into_iter().chain(waited_for).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: u64 = 1 << 51;

    /// Sends each due request until `end`, answered at once with the point `point`; returns the times.
    fn run(requests: &mut ProgressRequests, point: u64, start: Instant, end: Duration) -> Vec<u128> {
        let mut sent = Vec::new();
        let mut now = start;
        while let Some(due) = requests.due(point, start)
            && due <= start + end
        {
            now = now.max(due);
            requests.sent(now, requests.wanted);
            requests.answered();
            sent.push((now - start).as_millis());
        }
        sent
    }

    #[test]
    fn never_coming_revision_costs_little() {
        let start = Instant::now();
        let mut requests = ProgressRequests::new(None, start);
        assert_eq!(requests.due(10, start), None, "nobody waits");
        requests.set_wanted(NEVER);
        let sent = run(&mut requests, 10, start, Duration::from_secs(60));
        assert_eq!(sent[..7], [0, 100, 300, 700, 1500, 2500, 3500]);
        assert_eq!(sent.len(), 63);
    }

    /// A new wait asks at once even if another wait, for a revision that never comes, has made the pauses long.
    #[test]
    fn new_wait_asks_at_once() {
        let start = Instant::now();
        let mut requests = ProgressRequests::new(None, start);
        requests.set_wanted(NEVER);
        run(&mut requests, 10, start, Duration::from_secs(10));
        let later = start + Duration::from_secs(10);
        // The highest revision of all waits does not change.
        requests.set_wanted(NEVER);
        assert!(requests.due(10, start).is_some_and(|due| due <= later));
    }

    #[test]
    fn simultaneous_waits_share_a_request() {
        let start = Instant::now();
        let mut requests = ProgressRequests::new(None, start);
        let mut count = 0;
        for wanted in 11..1011 {
            requests.set_wanted(wanted);
            if requests.due(10, start).is_some_and(|due| due <= start) {
                requests.sent(start, wanted);
                count += 1;
            }
        }
        assert_eq!(count, 1, "no answer came");
        requests.answered();
        assert!(requests.due(10, start).is_some_and(|due| due <= start), "the later ones ask again");
        assert_eq!(requests.due(1010, start), None, "unless the answer was enough");
    }

    #[test]
    fn an_idle_watch_asks_each_interval() {
        let start = Instant::now();
        let interval = Duration::from_secs(1);
        let mut requests = ProgressRequests::new(Some(interval), start);
        assert_eq!(requests.due(10, start), Some(start + interval));
        assert_eq!(requests.due(10, start + interval / 2), Some(start + interval * 3 / 2));
        requests.set_wanted(NEVER);
        // A wait never makes the watch ask less often than an idle one.
        let sent = run(&mut requests, 10, start, Duration::from_secs(10));
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] <= 1000), "{sent:?}");
    }
}
