//! The time of a watch: its end, its bookmarks, and the bytes that break its silence, by one timer.
//!
//! The timer is set for whatever comes first. Frames that go out put silence off without touching it: it fires where the
//! silence would have ended, and is set anew. So a busy watch sets it as seldom as an idle one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// A watch that sends nothing for so long is cut by load balancers and proxies: those of Debian's haproxy after 50 s,
/// nginx and the clouds' after 60 s.
const SILENCE: Duration = Duration::from_secs(30);

/// A moment that never comes, for times that the clock cannot hold.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// An action that the timer of a watch causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// The watch ends.
    End,
    /// The interval of bookmarks has passed.
    Bookmark,
    /// The watch has sent nothing for as long as it may be silent.
    Blank,
}

/// See the module.
pub(super) struct WatchTimer {
    /// `None`: there is nothing to wait for.
    timer: Option<Pin<Box<Sleep>>>,
    deadline: Option<Instant>,
    pulse: Option<Pulse>,
}

/// The actions that recur: bookmarks and blanks.
struct Pulse {
    interval: Duration,
    bookmark_at: Instant,
    /// How long nothing may go out; `None`: the transport sees to that.
    silence: Option<Duration>,
    sent_at: Instant,
}

impl Pulse {
    fn next(&self) -> Instant {
        let blank_at = self.silence.map(|silence| self.sent_at + silence);
        blank_at.map_or(self.bookmark_at, |at| at.min(self.bookmark_at))
    }
}

/// A moment that the clock cannot hold never comes.
fn later(from: Instant, by: Duration) -> Instant {
    from.checked_add(by).unwrap_or_else(|| from + NEVER)
}

impl WatchTimer {
    /// Creates a timer that ends its watch after `deadline`, if there is one.
    pub(super) fn new(deadline: Option<Duration>) -> WatchTimer {
        let deadline = deadline.map(|after| later(Instant::now(), after));
        WatchTimer { timer: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))), deadline, pulse: None }
    }

    /// With a bookmark each `interval`, and silence broken after that or [`SILENCE`].
    pub(super) fn pulse(&mut self, interval: Duration) {
        let now = Instant::now();
        let pulse =
            Pulse { interval, bookmark_at: later(now, interval), silence: Some(interval.min(SILENCE)), sent_at: now };
        let at = pulse.next();
        self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        self.pulse = Some(pulse);
    }

    /// The transport breaks the silence itself.
    pub(super) fn leave_silence(&mut self) {
        if let Some(pulse) = &mut self.pulse {
            pulse.silence = None;
        }
    }

    /// Something has gone out.
    pub(super) fn sent(&mut self) {
        if let Some(pulse) = &mut self.pulse {
            pulse.sent_at = Instant::now();
        }
    }

    /// Returns the action that is due; if none is, the task is woken when one will be.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Due> {
        loop {
            let next = self.deadline.into_iter().chain(self.pulse.as_ref().map(Pulse::next)).min();
            let (Some(timer), Some(next)) = (&mut self.timer, next) else { return Poll::Pending };
            // Not where it is set for an earlier moment: see the module.
            if timer.deadline() > next {
                timer.as_mut().reset(next);
            }
            ready!(timer.as_mut().poll(context));
            let now = Instant::now();
            if self.deadline.is_some_and(|at| at <= now) {
                return Poll::Ready(Due::End);
            }
            if let Some(pulse) = &mut self.pulse {
                if pulse.bookmark_at <= now {
                    // An interval of zero would be due for ever.
                    pulse.bookmark_at = later(now, pulse.interval.max(Duration::from_millis(1)));
                    return Poll::Ready(Due::Bookmark);
                }
                if pulse.next() <= now {
                    return Poll::Ready(Due::Blank);
                }
            }
            timer.as_mut().reset(next);
        }
    }
}
