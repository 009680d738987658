//! The classes of a source's errors, for everything that lists and watches: the table "Lists, watches and errors" of
//! docs/TOOLKIT.md.

#![forbid(unsafe_code)]

use crate::event::Status;
use std::time::Duration;

/// An attempt that ended earlier and brought nothing new is a fruitless one.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// What an error says about the revision that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// 410: the revision has left the source's window, so no watch from it can be opened.
    Gone,
    /// 429, 503, and no answer in time: nothing about the revision. The same request is made again later.
    Busy,
    /// Any other 5xx: the server or a gateway has failed, and another watch may succeed. 504 also says that the revision is
    /// not there yet, as after a restored backup.
    Failed,
    /// 401, 403.
    Refused,
    /// Everything else: the request or the stream is wrong, and repeating it does not help.
    Wrong,
}

impl Status {
    pub(crate) fn verdict(&self) -> Verdict {
        match self.code() {
            410 => Verdict::Gone,
            429 | 503 => Verdict::Busy,
            401 | 403 => Verdict::Refused,
            500..=599 => Verdict::Failed,
            _ => Verdict::Wrong,
        }
    }

    /// Whether a list at a revision failed because the source does not have that revision: not any more, or not yet.
    pub(crate) fn lacks_revision(&self) -> bool {
        matches!(self.code(), 410 | 504)
    }
}

/// A list after a 410, or after fruitless attempts of a watch without a backoff, comes at once where none came so for this
/// long.
pub(crate) const RELIST_CALM: Duration = Duration::from_secs(30);

/// Attempts in a row that brought no newer revision. From the third one on a list is due: whatever keeps the source from going
/// on, the state is known again, and no error leaves it stale for ever.
#[derive(Default, Debug)]
pub(crate) struct Fruitless(u32);

impl Fruitless {
    /// How many attempts in a row lead to a list.
    const MOST: u32 = 3;

    /// Records one more. True: a list is due.
    pub(crate) fn one_more(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 >= Fruitless::MOST
    }

    /// A newer revision came, or a list.
    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }
}
