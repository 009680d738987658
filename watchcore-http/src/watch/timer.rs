//! The timer of a watch: its deadline, its bookmarks, and its keep-alives.
//!
//! One timer is set for whichever comes first. Sending a frame postpones the keep-alive without touching the timer: the
//! timer fires at the old time and is set anew. So a busy watch resets it as rarely as an idle one.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Load balancers and proxies close silent connections: Debian's haproxy after 50 s, nginx and cloud load balancers
/// after 60 s.
const SILENCE: Duration = Duration::from_secs(30);

/// Stands for a moment beyond the range of the clock.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// An action of the timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// The deadline has passed.
    End,
    /// The bookmark interval has passed.
    Bookmark,
    /// Nothing was sent for as long as the watch may be silent.
    KeepAlive,
}

/// See the module.
pub(super) struct WatchTimer {
    /// `None` if there is nothing to wait for.
    timer: Option<Pin<Box<Sleep>>>,
    deadline: Option<Instant>,
    heartbeat: Option<Heartbeat>,
}

/// The recurring actions: bookmarks and keep-alives.
struct Heartbeat {
    interval: Duration,
    bookmark_at: Instant,
    /// How long the watch may be silent; `None` if the transport has its own keep-alive.
    silence: Option<Duration>,
    sent_at: Instant,
}

impl Heartbeat {
    fn next(&self) -> Instant {
        let keep_alive_at = self.silence.map(|silence| self.sent_at + silence);
        keep_alive_at.map_or(self.bookmark_at, |at| at.min(self.bookmark_at))
    }
}

/// Adds a duration; a result beyond the range of the clock becomes a moment that is never reached.
fn later(from: Instant, by: Duration) -> Instant {
    from.checked_add(by).unwrap_or_else(|| from + NEVER)
}

impl WatchTimer {
    /// Creates a timer that ends its watch after `deadline`, if given.
    pub(super) fn new(deadline: Option<Duration>) -> WatchTimer {
        let deadline = deadline.map(|after| later(Instant::now(), after));
        WatchTimer { timer: deadline.map(|at| Box::pin(tokio::time::sleep_until(at))), deadline, heartbeat: None }
    }

    /// Enables a bookmark per `interval`, and a keep-alive after that much silence or [`SILENCE`].
    pub(super) fn heartbeat(&mut self, interval: Duration) {
        let now = Instant::now();
        let heartbeat = Heartbeat {
            interval,
            bookmark_at: later(now, interval),
            silence: Some(interval.min(SILENCE)),
            sent_at: now,
        };
        let at = heartbeat.next();
        self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        self.heartbeat = Some(heartbeat);
    }

    /// Disables keep-alives: the transport has its own.
    pub(super) fn disable_keep_alive(&mut self) {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.silence = None;
        }
    }

    /// Records that something was sent.
    pub(super) fn sent(&mut self) {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.sent_at = Instant::now();
        }
    }

    /// Returns the action that is due; if none is, the task is woken when one will be.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Due> {
        loop {
            let next = self.deadline.into_iter().chain(self.heartbeat.as_ref().map(Heartbeat::next)).min();
            let (Some(timer), Some(next)) = (&mut self.timer, next) else { return Poll::Pending };
            // An earlier setting stays: see the module.
            if timer.deadline() > next {
                timer.as_mut().reset(next);
            }
            ready!(timer.as_mut().poll(context));
            let now = Instant::now();
            if self.deadline.is_some_and(|at| at <= now) {
                return Poll::Ready(Due::End);
            }
            if let Some(heartbeat) = &mut self.heartbeat {
                if heartbeat.bookmark_at <= now {
                    // An interval of zero would always be due.
                    heartbeat.bookmark_at = later(now, heartbeat.interval.max(Duration::from_millis(1)));
                    return Poll::Ready(Due::Bookmark);
                }
                if heartbeat.next() <= now {
                    return Poll::Ready(Due::KeepAlive);
                }
            }
            timer.as_mut().reset(next);
        }
    }
}
