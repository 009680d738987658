//! Linearizable reads beside a watch: they show whether a mute watch lives, and whether a synced one is behind.
//!
//! A server may answer each progress request and still deliver nothing, because it serves the watch from an old
//! store. So at intervals a synced watch is compared with a linearizable read: the revision of its answer is the
//! **goal**. A watch that is notified of progress repeatedly without coming nearer to the goal is given up.

use super::config::Options;
use super::connect::Newest;
use super::failure::Failure;
use super::health::silence;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// A read in progress. Its result carries the position from before it began.
type Read = Pin<Box<dyn Future<Output = Result<Newest, Failure>>>>;

/// This many progress notifications without reaching a goal show that the watch holds nothing back.
const NOTIFICATIONS: u32 = 2;

/// The liveness reads of one watch.
pub(super) struct Liveness {
    read: Option<Read>,
    /// When a synced watch is compared next.
    due: Instant,
    goal: Option<Goal>,
}

/// A revision that etcd has and the watch has not reached.
struct Goal {
    revision: u64,
    /// The watch's point, since when it stands there, and how many progress notifications came since.
    point: u64,
    since: Instant,
    notifications: u32,
}

impl Liveness {
    /// The reads of a watch that is opened now.
    pub(super) fn new(options: &Options, now: Instant) -> Liveness {
        Liveness { read: None, due: now + interval(options, fastrand::f64()), goal: None }
    }

    /// When a synced watch is to be compared next; `None` while a read is in progress.
    pub(super) fn due(&self) -> Option<Instant> {
        self.read.is_none().then_some(self.due)
    }

    /// Begins a read, unless one is in progress; returns whether it did.
    pub(super) fn begin<R>(&mut self, read: impl FnOnce() -> R, options: &Options, now: Instant) -> bool
    where
        R: Future<Output = Result<Newest, Failure>> + 'static,
    {
        let is_first = self.read.is_none();
        if is_first {
            self.read = Some(Box::pin(read()));
            self.due = now + interval(options, fastrand::f64());
        }
        is_first
    }

    /// Waits for the answer of the read; pending while there is none.
    pub(super) async fn answer(&mut self) -> Result<Newest, Failure> {
        match &mut self.read {
            Some(under_way) => {
                let answer = under_way.await;
                self.read = None;
                answer
            }
            None => std::future::pending().await,
        }
    }

    /// Records that etcd has this revision while the watch is complete up to `point`.
    pub(super) fn record_newest(&mut self, revision: u64, point: u64, now: Instant) {
        if revision > point && self.goal.is_none() {
            self.goal = Some(Goal { revision, point, since: now, notifications: 0 });
        }
    }

    /// Records a progress notification of the watch.
    pub(super) fn notified(&mut self) {
        if let Some(goal) = &mut self.goal {
            goal.notifications += 1;
        }
    }

    /// Records that the watch is now complete up to `point`.
    pub(super) fn moved(&mut self, point: u64, now: Instant) {
        match &mut self.goal {
            Some(goal) if goal.revision <= point => self.goal = None,
            Some(goal) if goal.point < point => {
                (goal.point, goal.since, goal.notifications) = (point, now, 0);
            }
            _ => {}
        }
    }

    /// When a watch that makes no progress has been behind for too long, and the revision that it does not reach.
    pub(super) fn stale_due(&self, options: &Options) -> Option<(Instant, u64)> {
        let goal = self.goal.as_ref().filter(|goal| goal.notifications >= NOTIFICATIONS)?;
        Some((goal.since + silence(options), goal.revision))
    }
}

/// The time from one comparison to the next: 30 to 60 progress intervals, each counted as at most a second. `random`
/// is in [0, 1).
fn interval(options: &Options, random: f64) -> Duration {
    options.progress_interval.min(Duration::from_secs(1)).mul_f64(30.0 + 30.0 * random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Feeder;

    #[test]
    fn comparisons_are_half_a_minute_apart() {
        let of = |interval_of: u64, random| {
            let feeder = Feeder::new(["a"]).progress_interval(Duration::from_millis(interval_of));
            interval(&Options::for_tests(feeder), random).as_secs_f64()
        };
        assert_eq!([of(1000, 0.0), of(1000, 1.0), of(600_000, 0.5), of(10, 0.0)], [30.0, 60.0, 45.0, 0.3]);
    }

    #[test]
    fn watch_that_stands_still_is_stale() {
        let options = Options::for_tests(Feeder::new(["a"]));
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut liveness = Liveness::new(&options, start);
        liveness.record_newest(10, 10, start);
        liveness.notified();
        liveness.notified();
        assert_eq!(liveness.stale_due(&options), None, "it is where etcd is");
        liveness.record_newest(20, 10, start);
        liveness.notified();
        assert_eq!(liveness.stale_due(&options), None, "what it holds back may be under way");
        liveness.notified();
        assert_eq!(liveness.stale_due(&options), Some((start + 3 * second, 20)));
        liveness.moved(15, start + second);
        assert_eq!(liveness.stale_due(&options), None, "it comes nearer");
        liveness.notified();
        liveness.notified();
        liveness.record_newest(30, 15, start + 2 * second);
        assert_eq!(liveness.stale_due(&options), Some((start + 4 * second, 20)), "the first goal counts");
        liveness.moved(20, start + 2 * second);
        assert_eq!(liveness.stale_due(&options), None, "it is reached");
    }
}
