//! The public words as text: `Display` and `FromStr`.
//!
//! Each word is written as the command line, C and the logs write it. Parsing takes the printed words, in any case; any
//! other text is INVALID_ARGUMENT, with the list of the words.

#![forbid(unsafe_code)]

use crate::cache::{Lag, State, SubscriptionState};
use crate::data::event::{Kind, ResyncReason};
use crate::error::{Code, Error, Result, say};
use crate::position::Position;
use crate::subscription::{OnLag, Start};
use std::fmt;
use std::str::FromStr;

/// Printed by their names.
macro_rules! printed {
    ($($name:ty),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    )+};
}

/// Typed by their names, too: one of these.
macro_rules! typed {
    ($($name:ty, $what:literal, $all:expr;)+) => {$(
        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<$name> {
                let all = $all;
                let found = all.iter().copied().find(|one| one.name().eq_ignore_ascii_case(text));
                found.ok_or_else(|| unknown($what, text, all.iter().map(|one| one.name())))
            }
        }
    )+};
}

printed!(Code, Kind, ResyncReason, State, SubscriptionState, OnLag);

typed! {
    Code, "code", Code::ALL;
    Kind, "kind of event", Kind::ALL;
    ResyncReason, "reason of a resync", ResyncReason::ALL;
    SubscriptionState, "state of a subscription", SubscriptionState::ALL;
    OnLag, "policy of lag", OnLag::ALL;
}

fn unknown<'a>(what: &str, text: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known = known.collect::<Vec<_>>().join(", ");
    say::invalid(format!("{what} {text:?}: there is no such name. Give one of {known}."))
}

fn number(what: &str, text: &str, form: &str) -> Result<u64> {
    text.parse().map_err(|_| say::invalid(format!("{what} {text:?}: a number was expected. Give {form}.")))
}

/// `EPOCH:REVISION`, as [`Position`]'s `FromStr` reads it again.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.revision)
    }
}

/// `EPOCH:REVISION`, or `REVISION` alone: of an epoch that is unchecked.
///
/// ```
/// use watchcore::Position;
///
/// let saved = Position { epoch: 4294967297, revision: 57 }.to_string();
/// assert_eq!(saved, "4294967297:57");
/// assert_eq!(saved.parse::<Position>()?, Position { epoch: 4294967297, revision: 57 });
/// assert_eq!("57".parse::<Position>()?, Position::from(57));
/// # Ok::<(), watchcore::Error>(())
/// ```
impl FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Position> {
        let form = "EPOCH:REVISION, or REVISION alone";
        let (epoch, revision) = text.split_once(':').unwrap_or(("0", text));
        Ok(Position {
            epoch: number("position: epoch", epoch, form)?,
            revision: number("position: revision", revision, form)?,
        })
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Start::Now => f.write_str("now"),
            Start::After(revision) => write!(f, "after:{revision}"),
            Start::State => f.write_str("state"),
            Start::StateAtLeast(revision) => write!(f, "state-at-least:{revision}"),
            Start::AfterIn(position) => write!(f, "after:{position}"),
            Start::Within(revision) => write!(f, "within:{revision}"),
        }
    }
}

/// `now`, `after:R` or `after:EPOCH:R`, `within:R`, `state` or `state-at-least:R`.
///
/// ```
/// use watchcore::Start;
///
/// assert_eq!("after:17".parse::<Start>()?, Start::After(17));
/// assert_eq!(Start::StateAtLeast(3).to_string(), "state-at-least:3");
/// assert!("before:17".parse::<Start>().is_err());
/// # Ok::<(), watchcore::Error>(())
/// ```
impl FromStr for Start {
    type Err = Error;

    fn from_str(text: &str) -> Result<Start> {
        let revision = |revision| number("start: revision", revision, "one behind the colon, as in after:17");
        match text.split_once(':') {
            None if text == "now" => Ok(Start::Now),
            None if text == "state" => Ok(Start::State),
            Some(("after", position)) if position.contains(':') => position.parse().map(Start::AfterIn),
            Some(("after", after)) => revision(after).map(Start::After),
            Some(("within", within)) => revision(within).map(Start::Within),
            Some(("state-at-least", least)) => revision(least).map(Start::StateAtLeast),
            _ => Err(unknown(
                "start",
                text,
                ["now", "after:R", "after:EPOCH:R", "within:R", "state", "state-at-least:R"].into_iter(),
            )),
        }
    }
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.events == 0 && self.revisions == 0 {
            return f.write_str("none");
        }
        write!(f, "{} events, {} revisions, {} ms", self.events, self.revisions, self.age.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each variant of each enum is parsed from its printed text.
    #[test]
    fn printed_words_are_read_again() {
        fn again<T: FromStr<Err = Error> + fmt::Display + Copy + PartialEq + fmt::Debug>(all: &[T]) {
            for one in all {
                assert_eq!(one.to_string().parse::<T>().unwrap(), *one);
                assert_eq!(one.to_string().to_ascii_lowercase().parse::<T>().unwrap(), *one);
            }
        }
        again(Code::ALL);
        again(Kind::ALL);
        again(ResyncReason::ALL);
        again(SubscriptionState::ALL);
        again(OnLag::ALL);
        again(&[Start::Now, Start::After(u64::MAX), Start::State, Start::StateAtLeast(0)]);
        again(&[Start::Within(7)]);
        again(&[Start::AfterIn(Position { epoch: 1 << 32, revision: 7 })]);
        // Larger than any revision: whoever asks for it is told so, as after `after:R`.
        again(&[Position::default(), Position { epoch: u64::MAX, revision: u64::MAX }]);
    }

    #[test]
    fn refused_words_name_the_known_ones() {
        let refused = |error: Error| (error.code(), error.to_string());
        assert_eq!(
            refused("drop".parse::<OnLag>().unwrap_err()),
            (
                Code::InvalidArgument,
                "policy of lag \"drop\": there is no such name. Give one of stop, skip, resnapshot, conflate.".into()
            )
        );
        assert!("after:".parse::<Start>().unwrap_err().to_string().contains("as in after:17"));
        for text in ["", ":", "1:", ":1", "1:2:3", "-1", "0:18446744073709551616"] {
            assert_eq!(text.parse::<Position>().unwrap_err().code(), Code::InvalidArgument, "{text:?}");
        }
    }
}
