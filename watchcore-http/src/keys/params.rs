//! Parameters of the `/v1/keys` API.

use crate::object::Field;
use crate::request::{Selection, field_requirements};
use crate::status::Refusal;
use percent_encoding::percent_decode;
use std::borrow::Cow;
use std::time::Duration;
use watchcore::{Cache, FieldRequirement, Filter, Range};

/// The decoded parameters: bytes, because a prefix need not be UTF-8. The first of repeated parameters counts, and
/// unknown ones are ignored.
pub(super) struct Query<'q>(Vec<(Text<'q>, Text<'q>)>);

/// A name or a value, decoded.
type Text<'q> = Cow<'q, [u8]>;

/// The operation on the keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeysTask {
    List(KeysList),
    Watch(KeysWatch),
}

/// The state that is listed, and the page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeysList {
    /// `None`: the newest state, by a consistent read; 0: the current state of the cache; otherwise exactly this
    /// revision.
    pub(super) revision: Option<u64>,
    /// 0: no limit.
    pub(super) limit: usize,
    pub(super) continue_token: Option<String>,
}

/// The start of a watch, and its options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeysWatch {
    /// `None`: the watch begins with the whole state.
    pub(super) after: Option<u64>,
    pub(super) bookmarks: bool,
    /// The requested duration.
    pub(super) timeout: Option<Duration>,
}

impl<'q> Query<'q> {
    pub(super) fn of(query: Option<&'q str>) -> Query<'q> {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decoded(name), decoded(value))
                })
                .collect(),
        )
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        let (_, value) = self.0.iter().find(|(known, _)| known.as_ref() == name.as_bytes())?;
        Some(value)
    }

    /// Returns a parameter as text; an empty one counts as absent.
    fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let Some(bytes) = self.bytes(name).filter(|bytes| !bytes.is_empty()) else { return Ok(None) };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Refusal::bad_request(format!("the parameter {name} is not UTF-8"))),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        number_of(text).map(Some).ok_or_else(|| {
            Refusal::bad_request(format!(
                "{name}={text}: expected a whole number, as in {name}=17; see `revision` of a list"
            ))
        })
    }

    /// Whether a parameter is present with a value other than `0` and `false`.
    fn truth(&self, name: &str) -> bool {
        self.bytes(name).is_some_and(|value| value != b"0" && value != b"false")
    }

    /// Returns the prefix. `prefix=` selects every key, but the parameter is required.
    pub(super) fn prefix(&self) -> Result<&[u8], Refusal> {
        self.bytes("prefix").ok_or_else(|| {
            Refusal::bad_request(
                "the parameter prefix is required: which keys, as in /v1/keys?prefix=/registry/. prefix= is every key",
            )
        })
    }

    /// Parses the operation. `streams` is true if the client accepts only a stream, so that it watches. `last_event` is
    /// where a stream of server-sent events broke off; it takes precedence over `after`, which stays in the URL on
    /// reconnects.
    pub(super) fn task(&self, streams: bool, last_event: Option<&str>) -> Result<KeysTask, Refusal> {
        let of_a_watch = ["after", "bookmarks", "timeoutSeconds"];
        let of_a_list = ["limit", "continue", "revision"];
        let watches = streams || self.truth("watch");
        let (what, other, advice) = match watches {
            true => (of_a_list, "list", "leave it out, or list without watch"),
            false => (of_a_watch, "watch", "add watch=1, or leave it out"),
        };
        for name in what {
            if self.bytes(name).is_some_and(|value| !value.is_empty()) {
                return Err(Refusal::bad_request(format!("the parameter {name} is that of a {other}: {advice}")));
            }
        }
        if !watches {
            let list = KeysList {
                revision: self.number("revision")?,
                limit: usize::try_from(self.number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX),
                continue_token: self.text("continue")?.map(str::to_owned),
            };
            if list.continue_token.is_some() && list.revision.is_some() {
                return Err(Refusal::bad_request(
                    "a list that continues has the revision of its token: leave revision out",
                ));
            }
            return Ok(KeysTask::List(list));
        }
        let after = match last_event.map(str::trim).filter(|id| !id.is_empty()) {
            Some(id) => Some(number_of(id).ok_or_else(|| {
                Refusal::bad_request(format!(
                    "Last-Event-ID {id:?} is no revision: send the id of an event of this stream"
                ))
            })?),
            None => self.number("after")?,
        };
        let timeout = self.number("timeoutSeconds")?.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        Ok(KeysTask::Watch(KeysWatch { after, bookmarks: self.truth("bookmarks"), timeout }))
    }

    /// Returns the selection of keys with the prefix that match both selectors.
    pub(super) fn selection(&self, cache: &Cache, prefix: &[u8]) -> Result<Selection, Refusal> {
        let refused = |error: watchcore::Error| Refusal::bad_request(error.message());
        let range = Range::prefix(prefix);
        let mut filter = Filter::any().range(range.clone());
        let (labels, fields) = (self.text("labels")?, self.text("fields")?);
        if let Some(selector) = labels {
            filter = filter.labels(selector).map_err(refused)?;
        }
        if let Some(selector) = fields {
            filter = filter.fields(declared(cache, selector)?).map_err(refused)?;
        }
        Ok(Selection { filter, range, only_range: labels.is_none() && fields.is_none() })
    }
}

/// Rewrites a selector to the cache's attribute names: a field is either named as declared, or `spec.node` stands for
/// the attribute of the pointer `/spec/node`.
fn declared(cache: &Cache, selector: &str) -> Result<String, Refusal> {
    let mut terms = Vec::new();
    for term in field_requirements(selector)? {
        let members = term.name.split('.').map(|member| member.replace('~', "~0").replace('/', "~1"));
        let pointer: String = members.map(|member| format!("/{member}")).collect();
        let field = Field { name: term.name.into(), pointer };
        let attribute = [field.name.clone(), field.attribute()];
        match attribute.iter().find(|name| cache.attribute_number(name).is_some()) {
            Some(name) => {
                let name = name.as_str().into();
                terms.push(FieldRequirement { name, equal: term.equal, value: term.value }.to_string());
            }
            None => return Err(Refusal::bad_request(format!("field label not supported: {}", field.name))),
        }
    }
    Ok(terms.join(","))
}

/// Parses a number without a sign.
fn number_of(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Decodes a form-encoded text: `+` is a space, `%2F` a byte.
fn decoded(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        return Cow::Owned(percent_decode(text.replace('+', " ").as_bytes()).collect());
    }
    percent_decode(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::Attribute;

    fn task(query: &str) -> Result<KeysTask, Refusal> {
        Query::of(Some(query)).task(false, None)
    }

    fn list(query: &str) -> KeysList {
        match task(query) {
            Ok(KeysTask::List(list)) => list,
            other => panic!("{query}: {other:?}"),
        }
    }

    fn watch(query: &str, streams: bool, last_event: Option<&str>) -> KeysWatch {
        match Query::of(Some(query)).task(streams, last_event) {
            Ok(KeysTask::Watch(watch)) => watch,
            other => panic!("{query}: {other:?}"),
        }
    }

    #[test]
    fn a_prefix_is_any_bytes() {
        assert_eq!(Query::of(Some("prefix=%2Fa%ff+b&x")).prefix().unwrap(), b"/a\xff b");
        assert_eq!(Query::of(Some("prefix=")).prefix().unwrap(), b"");
        assert_eq!(Query::of(Some("prefix=1&prefix=2")).prefix().unwrap(), b"1");
        assert_eq!(Query::of(None).prefix().unwrap_err().code(), 400);
        assert_eq!(Query::of(Some("prefixes=1")).prefix().unwrap_err().code(), 400);
    }

    #[test]
    fn lists_and_watches_have_their_own_parameters() {
        assert_eq!(list("prefix=/"), KeysList::default());
        assert_eq!(list("limit=7&revision=0&watch=0&after="), KeysList { limit: 7, revision: Some(0), ..list("") });
        assert_eq!(list("continue=x%3d&watch=false").continue_token.as_deref(), Some("x="));
        assert_eq!(watch("watch", false, None), KeysWatch::default());
        assert_eq!(watch("watch=1&after=9&bookmarks=true", false, None).after, Some(9));
        assert_eq!(watch("timeoutSeconds=3", true, None).timeout, Some(Duration::from_secs(3)));
        for refused in [
            "after=1",
            "bookmarks=1",
            "watch=1&limit=2",
            "watch=1&revision=2",
            "watch=1&after=-1",
            "watch=1&after=+1",
            "watch=1&after=1x",
            "revision=18446744073709551616",
            "limit=%ff",
            "continue=a&revision=3",
        ] {
            assert_eq!(task(refused).unwrap_err().code(), 400, "{refused}");
        }
    }

    #[test]
    fn where_a_stream_broke_off_counts_before_the_address() {
        assert_eq!(watch("after=9", true, Some("12")).after, Some(12));
        assert_eq!(watch("after=9", true, Some("")).after, Some(9));
        for wrong in ["12x", "+12", "-1", "18446744073709551616"] {
            assert_eq!(Query::of(None).task(true, Some(wrong)).unwrap_err().code(), 400, "{wrong}");
        }
    }

    #[test]
    fn fields_are_found_by_name_and_by_pointer() {
        let cache = Cache::builder("/")
            .field(Attribute::json("node", "/spec/node").unwrap())
            .field(Attribute::json("watchcore.http/spec/color", "/spec/color").unwrap())
            .build()
            .unwrap();
        assert_eq!(declared(&cache, r"node=a,spec.color!=b\=c").unwrap(), r"node=a,watchcore.http/spec/color!=b\=c");
        assert_eq!(declared(&cache, r"node==a\,b,node=").unwrap(), r"node=,node=a\,b");
        let refusal = declared(&cache, "node=a,spec.size=1").unwrap_err();
        assert_eq!((refusal.code(), refusal.message()), (400, "field label not supported: spec.size"));
    }
}
