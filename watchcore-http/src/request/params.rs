//! The parameters of a request, and which may stand together.
//!
//! A query is read into [`Params`] once; a value that is no UTF-8 text is refused there, as 400. Parameters mean different
//! things for each kind of path, so the handler of a list, of one object, or of a watch asks for its start:
//! [`Params::list_start`], [`Params::get_start`], [`Params::watch_start`]. The first and the last refuse malformed
//! numbers, as 400, and combinations that are forbidden, as 422, in the words of Kubernetes. A request for one object uses
//! the revision alone.

use crate::frame::Included;
use crate::status::{Cause, Refusal};
use percent_encoding::percent_decode;
use std::time::Duration;
use watchcore::token_revision;

/// What the query of a request asks for. Parameters that are not known are ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Params {
    pub(crate) watch: bool,
    /// `None`: absent, or the empty string, which means the same everywhere.
    pub(crate) resource_version: Option<String>,
    /// 0, as a negative one: no limit.
    pub(crate) limit: usize,
    pub(crate) continue_token: Option<String>,
    pub(crate) label_selector: Option<String>,
    pub(crate) field_selector: Option<String>,
    /// `None`: absent, or 0, which means the same as with Kubernetes.
    pub(crate) timeout: Option<Duration>,
    /// `timeoutSeconds` is negative: a list does not look at it, and a watch would be over.
    is_over: bool,
    /// Which number is none.
    malformed: Option<String>,
    pub(crate) bookmarks: bool,
    pub(crate) pretty: bool,
    pub(crate) included: Included,
    /// What `includeObject` said, where that is none of the words it can say. Only a table looks at it.
    pub(crate) unknown_included: Option<String>,
    version_match: Option<String>,
    initial_events: Option<bool>,
}

/// Which state a list is answered from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ListStart {
    /// The newest that etcd had when the request came.
    Consistent,
    /// What there is.
    Any,
    /// At least this revision.
    AtLeast(u64),
    /// Exactly this revision.
    Exact(u64),
    /// Where the page before ended, by its token.
    Continue(String),
}

/// Which state one object is answered from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GetStart {
    /// The newest that etcd had when the request came.
    Consistent,
    /// What there is.
    Any,
    /// At least this revision.
    AtLeast(u64),
}

/// Where a watch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WatchStart {
    pub(crate) from: WatchFrom,
    /// Whether a bookmark with an annotation says where the initial state ends.
    pub(crate) end_mark: bool,
}

/// What a watch sees first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WatchFrom {
    /// The whole state as ADDED, after a wait.
    State(StateWait),
    /// What happened above a revision.
    After(u64),
    /// What happens above the newest revision that etcd had when the request came.
    AfterConsistent,
    /// What happens from now on.
    Now,
}

/// What the initial state of a watch waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StateWait {
    None,
    /// The newest revision that etcd had when the request came.
    Consistent,
    /// This revision.
    AtLeast(u64),
}

const VERSION: &str = "resourceVersion";
const MATCH: &str = "resourceVersionMatch";
const INITIAL: &str = "sendInitialEvents";
const EXACT: &str = "Exact";
const NOT_OLDER: &str = "NotOlderThan";

impl Params {
    /// Reads the query of a request as it stands in the request line. A parameter that is there twice counts as it is
    /// there first.
    ///
    /// # Errors
    /// 400 where a parameter is malformed: an escape that is none, text that is not UTF-8.
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

    /// Which state a list is answered from.
    ///
    /// # Errors
    /// 422 where parameters must not stand together; 400 where a number is none, and where a token has a revision beside it.
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
    /// 400 where a number is none.
    fn well_formed(&self) -> Result<(), Refusal> {
        self.malformed.as_ref().map_or(Ok(()), |why| Err(Refusal::bad_request(why)))
    }

    /// Refuses combinations that are forbidden in a list. A watch by the old form of the path alone has the same rules.
    fn check_list(&self) -> Result<(), Refusal> {
        self.well_formed()?;
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

    /// Which state one object is answered from. Of the parameters only the revision has a say in it.
    ///
    /// # Errors
    /// 400 where the revision is no number.
    pub(crate) fn get_start(&self) -> Result<GetStart, Refusal> {
        Ok(match self.revision()? {
            None => GetStart::Consistent,
            Some(0) => GetStart::Any,
            Some(revision) => GetStart::AtLeast(revision),
        })
    }

    /// Where a watch begins.
    ///
    /// A watch without a revision, or of revision 0, that does not say what it wants acts as one that asks for its
    /// initial state: so Kubernetes has it since it streams lists.
    ///
    /// # Errors
    /// 422 where parameters must not stand together; 400 where the revision is no number.
    pub(crate) fn watch_start(&self) -> Result<WatchStart, Refusal> {
        self.check_watch()?;
        self.check_time()?;
        let revision = self.revision()?;
        let defaulted = self.version_match.is_none() && revision.unwrap_or(0) == 0;
        let state = self.initial_events.unwrap_or(defaulted);
        Ok(WatchStart { from: self.watch_from(revision, state), end_mark: state && self.bookmarks })
    }

    /// Where a watch begins whose path has the old form (`/api/v1/watch/...`): it knows of no end mark, and without a
    /// revision it sees the state that there is.
    ///
    /// # Errors
    /// As [`Params::watch_start`].
    pub(crate) fn old_watch_start(&self) -> Result<WatchStart, Refusal> {
        if self.watch {
            self.check_watch()?
        } else {
            self.check_list()?
        }
        self.check_time()?;
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

    /// A watch whose time is over before it begins. Kubernetes answers it with an ERROR event of code 500.
    fn check_time(&self) -> Result<(), Refusal> {
        match self.is_over {
            true => Err(Refusal::bad_request("parameter timeoutSeconds is negative: the watch would be over at once")),
            false => Ok(()),
        }
    }

    fn check_watch(&self) -> Result<(), Refusal> {
        self.well_formed()?;
        // A watch without parameters begins as one that asks for its initial state, so the same rules hold for it.
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

    /// The revision as a number; it is etcd's, so it has no sign.
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

/// The parameters that are known, decoded, each as it stands first.
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
            // A name that cannot be decoded is no name that is known.
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

    /// A text; an empty one is as if it were not there.
    fn text(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// Whatever is there is true but for `0` and `false`.
    fn boolean(&self, name: &str) -> Option<bool> {
        self.get(name).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// A number of 64 bits with its sign, as with Kubernetes; 0 where it is absent. Why it is none.
    fn number(&self, name: &str) -> Result<i64, String> {
        let Some(value) = self.get(name) else { return Ok(0) };
        value.parse().map_err(|_| format!("parameter {name} is malformed: {value:?} is no number up to {}", i64::MAX))
    }
}

/// What stands in a query, with `+` for a space; `None`: an escape is broken, or it is no text.
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
