//! The parameters of a request, and which combinations are allowed.
//!
//! A query is parsed into [`Params`] once; a value that is not UTF-8 is refused with 400. A parameter's meaning depends
//! on the kind of request, so each handler asks for its own start: [`Params::list_start`], [`Params::get_start`],
//! [`Params::watch_start`]. The first and the last refuse malformed numbers with 400, and forbidden combinations with
//! 422, in Kubernetes' words. A request for one object uses only the revision.

use crate::object::Included;
use crate::status::{Cause, Refusal};
use percent_encoding::percent_decode;
use std::time::Duration;
use watchcore::token_revision;

/// The parsed query of a request. Unknown parameters are ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Params {
    pub(crate) watch: bool,
    /// `None`: absent or empty, which always mean the same.
    pub(crate) resource_version: Option<String>,
    /// 0 or negative: no limit.
    pub(crate) limit: usize,
    pub(crate) continue_token: Option<String>,
    pub(crate) label_selector: Option<String>,
    pub(crate) field_selector: Option<String>,
    /// `None`: absent or 0, which mean the same in Kubernetes.
    pub(crate) timeout: Option<Duration>,
    /// Whether `timeoutSeconds` is negative: ignored by lists, refused by watches.
    is_over: bool,
    /// Error message for the first malformed number.
    malformed: Option<String>,
    pub(crate) bookmarks: bool,
    pub(crate) pretty: bool,
    pub(crate) included: Included,
    /// The value of `includeObject` if it is unknown; only the table form refuses it.
    pub(crate) unknown_included: Option<String>,
    version_match: Option<String>,
    initial_events: Option<bool>,
}

/// The state from which a list is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ListStart {
    /// The newest revision that etcd had when the request came.
    Consistent,
    /// The current state of the cache.
    Any,
    /// This revision or a later one.
    AtLeast(u64),
    /// Exactly this revision.
    Exact(u64),
    /// The position in a continue token, where the previous page ended.
    Continue(String),
}

/// The state from which a request for one object is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GetStart {
    /// The newest revision that etcd had when the request came.
    Consistent,
    /// The current state of the cache.
    Any,
    /// This revision or a later one.
    AtLeast(u64),
}

/// The start of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WatchStart {
    pub(crate) from: WatchFrom,
    /// Whether an annotated bookmark marks the end of the initial state.
    pub(crate) end_mark: bool,
}

/// The first events of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WatchFrom {
    /// The whole state as ADDED events, after the given wait.
    State(StateWait),
    /// The changes after a revision.
    After(u64),
    /// The changes after the newest revision that etcd had when the request came.
    AfterConsistent,
    /// The changes after the cache's current revision.
    Now,
}

/// How far the cache must have come before the initial state is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StateWait {
    None,
    /// To the newest revision that etcd had when the request came.
    Consistent,
    /// To this revision.
    AtLeast(u64),
}

const VERSION: &str = "resourceVersion";
const MATCH: &str = "resourceVersionMatch";
const INITIAL: &str = "sendInitialEvents";
const EXACT: &str = "Exact";
const NOT_OLDER: &str = "NotOlderThan";

impl Params {
    /// Parses the undecoded query of a request. The first of repeated parameters counts.
    ///
    /// # Errors
    /// 400 if a parameter is malformed: an invalid percent escape, or not UTF-8.
    pub(crate) fn parse(query: Option<&str>) -> Result<Params, Refusal> {
        let query = KnownParameters::parse(query.unwrap_or_default())?;
        let included = query.text("includeObject");
        let known = match included.as_deref() {
            None | Some("Metadata") => Some(Included::Metadata),
            Some("None") => Some(Included::None),
            Some("Object") => Some(Included::Object),
            Some(_) => None,
        };
        let (limit, seconds) = (query.number("limit"), query.number("timeoutSeconds"));
        let malformed = limit.as_ref().err().or(seconds.as_ref().err()).cloned();
        let (limit, seconds) = (limit.unwrap_or(0), seconds.unwrap_or(0));
        Ok(Params {
            watch: query.boolean("watch") == Some(true),
            resource_version: query.text(VERSION),
            limit: usize::try_from(limit.max(0)).unwrap_or(usize::MAX),
            continue_token: query.text("continue"),
            label_selector: query.text("labelSelector"),
            field_selector: query.text("fieldSelector"),
            timeout: u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs),
            is_over: seconds < 0,
            malformed,
            bookmarks: query.boolean("allowWatchBookmarks") == Some(true),
            pretty: query.boolean("pretty") == Some(true),
            unknown_included: included.filter(|_| known.is_none()),
            included: known.unwrap_or(Included::Metadata),
            version_match: query.text(MATCH),
            initial_events: query.boolean(INITIAL),
        })
    }

    /// Returns the state from which a list is answered.
    ///
    /// # Errors
    /// 422 if parameters are combined that exclude each other; 400 if a number is malformed, or a revision accompanies
    /// a token.
    pub(crate) fn list_start(&self) -> Result<ListStart, Refusal> {
        self.check_list()?;
        if let Some(token) = &self.continue_token {
            if self.resource_version.as_deref().is_some_and(|version| version != "0") {
                token_revision(token).map_err(|error| Refusal::bad_token(&error))?;
                let message = "specifying resource version is not allowed when using continue";
                return Err(Refusal::bad_request(message));
            }
            return Ok(ListStart::Continue(token.clone()));
        }
        let version_match = self.version_match.as_deref();
        let exact = version_match == Some(EXACT) || (version_match.is_none() && self.limit > 0);
        Ok(match self.revision()? {
            None => ListStart::Consistent,
            Some(0) => ListStart::Any,
            Some(revision) if exact => ListStart::Exact(revision),
            Some(revision) => ListStart::AtLeast(revision),
        })
    }

    /// # Errors
    /// 400 if a number is malformed.
    fn check_numbers(&self) -> Result<(), Refusal> {
        self.malformed.as_ref().map_or(Ok(()), |why| Err(Refusal::bad_request(why)))
    }

    /// Refuses combinations that are forbidden in a list. A watch by the deprecated path without `watch` in its query
    /// follows the same rules.
    fn check_list(&self) -> Result<(), Refusal> {
        self.check_numbers()?;
        let version_match = self.version_match.as_deref();
        let zero = self.resource_version.as_deref() == Some("0");
        let mut causes = Vec::new();
        if let Some(asked) = version_match {
            if self.resource_version.is_none() {
                causes.push(Cause::forbidden(
                    MATCH,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if self.continue_token.is_some() {
                causes.push(match_with_continue());
            }
            if asked != EXACT && asked != NOT_OLDER {
                causes.push(Cause::not_supported(MATCH, asked, &[EXACT, NOT_OLDER, ""]));
            }
            if asked == EXACT && zero {
                causes.push(Cause::forbidden(
                    MATCH,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
        }
        if self.initial_events.is_some() {
            causes.push(Cause::forbidden(INITIAL, "sendInitialEvents is forbidden for list"));
        }
        refuse(&causes)
    }

    /// Returns the state from which a request for one object is answered. Only the revision matters.
    ///
    /// # Errors
    /// 400 if the revision is not a number.
    pub(crate) fn get_start(&self) -> Result<GetStart, Refusal> {
        Ok(match self.revision()? {
            None => GetStart::Consistent,
            Some(0) => GetStart::Any,
            Some(revision) => GetStart::AtLeast(revision),
        })
    }

    /// Returns the start of a watch.
    ///
    /// Without `sendInitialEvents` and `resourceVersionMatch`, a watch with no revision or revision 0 gets the initial
    /// state, as in Kubernetes since it streams lists.
    ///
    /// # Errors
    /// 422 if parameters are combined that exclude each other; 400 if the revision is not a number.
    pub(crate) fn watch_start(&self) -> Result<WatchStart, Refusal> {
        self.check_watch()?;
        self.check_timeout()?;
        let revision = self.revision()?;
        let defaulted = self.version_match.is_none() && revision.unwrap_or(0) == 0;
        let state = self.initial_events.unwrap_or(defaulted);
        Ok(WatchStart { from: self.watch_from(revision, state), end_mark: state && self.bookmarks })
    }

    /// Returns the start of a watch by the deprecated path (`/api/v1/watch/...`). Such a watch gets no end mark, and
    /// without a revision it begins with the current state of the cache.
    ///
    /// # Errors
    /// As [`Params::watch_start`].
    pub(crate) fn old_watch_start(&self) -> Result<WatchStart, Refusal> {
        if self.watch {
            self.check_watch()?
        } else {
            self.check_list()?
        }
        self.check_timeout()?;
        let revision = self.revision()?;
        let from = match (self.initial_events, revision) {
            (None, None | Some(0)) => WatchFrom::State(StateWait::None),
            (asked, revision) => self.watch_from(revision, asked == Some(true)),
        };
        Ok(WatchStart { from, end_mark: false })
    }

    fn watch_from(&self, revision: Option<u64>, state: bool) -> WatchFrom {
        match (state, revision) {
            (true, None) => WatchFrom::State(StateWait::Consistent),
            (true, Some(0)) => WatchFrom::State(StateWait::None),
            (true, Some(revision)) => WatchFrom::State(StateWait::AtLeast(revision)),
            (false, None) => WatchFrom::AfterConsistent,
            (false, Some(0)) => WatchFrom::Now,
            (false, Some(revision)) => WatchFrom::After(revision),
        }
    }

    /// Refuses a negative timeout, which would end the watch before it begins. Kubernetes answers it with an ERROR
    /// event of code 500.
    fn check_timeout(&self) -> Result<(), Refusal> {
        match self.is_over {
            true => Err(Refusal::bad_request("parameter timeoutSeconds is negative: the watch would be over at once")),
            false => Ok(()),
        }
    }

    fn check_watch(&self) -> Result<(), Refusal> {
        self.check_numbers()?;
        // A watch without parameters gets the initial state by default, so it follows the rules of `sendInitialEvents`.
        let from_now = matches!(self.resource_version.as_deref(), None | Some("0"));
        let defaulted = from_now && self.version_match.is_none() && self.initial_events.is_none();
        let version_match = if defaulted { Some(NOT_OLDER) } else { self.version_match.as_deref() };
        let asks_for_state = defaulted || self.initial_events.is_some();
        let mut causes = Vec::new();
        if asks_for_state && version_match != Some(NOT_OLDER) {
            causes.push(Cause::forbidden(
                MATCH,
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if let Some(asked) = version_match {
            if !asks_for_state {
                causes.push(Cause::forbidden(
                    MATCH,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            if asked != NOT_OLDER {
                causes.push(Cause::not_supported(MATCH, asked, &[NOT_OLDER]));
            }
            if self.continue_token.is_some() {
                causes.push(match_with_continue());
            }
        }
        refuse(&causes)
    }

    /// Parses the revision: an unsigned number, as in etcd.
    fn revision(&self) -> Result<Option<u64>, Refusal> {
        let Some(text) = &self.resource_version else { return Ok(None) };
        match text.parse() {
            Ok(revision) if !text.starts_with('+') => Ok(Some(revision)),
            _ => Err(Refusal::bad_request(format!(
                "invalid resource version {text:?}: it is a decimal number from 0 to {}, as a list or an event has it",
                u64::MAX
            ))),
        }
    }
}

fn match_with_continue() -> Cause {
    Cause::forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided")
}

fn refuse(causes: &[Cause]) -> Result<(), Refusal> {
    if causes.is_empty() { Ok(()) } else { Err(Refusal::invalid_options(causes)) }
}

/// The known parameters of a query, decoded; of repeated ones the first.
struct KnownParameters(Vec<(&'static str, String)>);

impl KnownParameters {
    const NAMES: [&'static str; 12] = [
        "watch",
        VERSION,
        MATCH,
        "limit",
        "continue",
        "labelSelector",
        "fieldSelector",
        "timeoutSeconds",
        "allowWatchBookmarks",
        INITIAL,
        "pretty",
        "includeObject",
    ];

    fn parse(query: &str) -> Result<KnownParameters, Refusal> {
        let mut known: Vec<(&'static str, String)> = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // An undecodable name cannot equal a known one.
            let Some(name) = decoded(name) else { continue };
            let Some(name) = KnownParameters::NAMES.into_iter().find(|known| *known == name) else { continue };
            if known.iter().any(|(there, _)| *there == name) {
                continue;
            }
            let Some(value) = decoded(value) else {
                return Err(Refusal::bad_request(format!(
                    "parameter {name} is malformed: {value:?} is not percent-encoded UTF-8"
                )));
            };
            known.push((name, value));
        }
        Ok(KnownParameters(known))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(there, _)| *there == name).map(|(_, value)| value.as_str())
    }

    /// Returns a text; an empty one counts as absent.
    fn text(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// Every value but `0` and `false` is true.
    fn boolean(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// Returns a signed 64-bit number, or 0 if it is absent. The error is a message for the client.
    fn number(&self, name: &str) -> Result<i64, String> {
        let Some(value) = self.get(name) else { return Ok(0) };
        value.parse().map_err(|_| format!("parameter {name} is malformed: {value:?} is no number up to {}", i64::MAX))
    }
}

/// Decodes a query component, with `+` as a space; `None` if an escape is invalid or the result is not UTF-8.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    let bytes = spaced.as_bytes();
    for (at, _) in bytes.iter().enumerate().filter(|(_, b)| **b == b'%') {
        let digits = bytes.get(at + 1..at + 3)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
    }
    percent_decode(bytes).decode_utf8().ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests;
