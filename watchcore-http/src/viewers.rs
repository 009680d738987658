//! The state that the viewers of the live page share: the newest sample, and the rates between samples.

use bytes::Bytes;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch::Receiver;

/// Bounds on the time over which a rate is computed.
const SHORTEST: Duration = Duration::from_millis(900);
const LONGEST: Duration = Duration::from_secs(120);

/// The state for computing rates: the event count of each cache at an earlier moment, and the last computed rates.
#[derive(Default)]
pub(crate) struct Rates {
    before: Option<(Instant, Vec<u64>)>,
    newest: Vec<Option<f64>>,
}

impl Rates {
    pub(crate) fn of(&mut self, events: Vec<u64>) -> Vec<Option<f64>> {
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

/// The sampling state that all viewers of an [`Api`](crate::Api) share.
#[derive(Default)]
pub(crate) struct Viewers(Mutex<ViewersState>);

#[derive(Default)]
pub(crate) struct ViewersState {
    /// Receiver of the newest sample, while a sampling task runs. The sender belongs to the task, so the channel closes
    /// with it, also when the task's runtime ends and the service continues on another.
    pub(crate) samples: Option<Receiver<Bytes>>,
    pub(crate) rates: Rates,
}

impl Viewers {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ViewersState> {
        // A panic can leave at most one wrong rate.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
