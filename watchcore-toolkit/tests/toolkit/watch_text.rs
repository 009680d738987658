//! Objects and events of the rows about watches, as text.

use std::borrow::Cow;
use watchcore::{Code, Error};
use watchcore_toolkit::{Keyed, Object, Payload, Status, WatchEvent};

/// `a=1`: a key and a value. Without `=` it is both.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Text(pub(crate) String);

impl Keyed for Text {
    fn object_key(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(key_of(&self.0).as_bytes())
    }

    fn object_revision(&self) -> u64 {
        0
    }
}

pub(crate) fn key_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(key, _)| key)
}

pub(crate) fn value_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(_, value)| value)
}

/// The text of an object, with or without a broadcaster.
pub(crate) trait Textual {
    fn text(&self) -> &str;
}

impl Textual for Text {
    fn text(&self) -> &str {
        &self.0
    }
}

impl Textual for Object<Text> {
    fn text(&self) -> &str {
        &self.0
    }
}

pub(crate) fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

/// `+a=1@3!2`, `~a=2<a=1`, `-a=2`, `?a`, `synced`, `bookmark@7`, `error:500`: behind `<` the old value, behind `@` the position,
/// behind `!` how many were lost.
pub(crate) fn event(text: &str) -> WatchEvent<Text> {
    let (text, lost) = text.split_once('!').unwrap_or((text, "0"));
    let (text, position) = text.split_once('@').unwrap_or((text, "0"));
    let of = |text: &str| Text(text.to_owned());
    let event = match (text, text.split_at(1)) {
        ("synced", _) => WatchEvent::synced(),
        ("bookmark", _) => WatchEvent::bookmark(0),
        (_, ("+", new)) => WatchEvent::added(of(new)),
        (_, ("~", change)) => {
            let (new, old) = change.split_once('<').map_or((change, None), |(new, old)| (new, Some(of(old))));
            WatchEvent::modified(old, of(new))
        }
        (_, ("-", last)) => WatchEvent::deleted(of(last)),
        (_, ("?", key)) => WatchEvent::deleted_unknown(key),
        _ => WatchEvent::error(status(text.strip_prefix("error:").expect("an event"))),
    };
    event.at(number(position)).with_lost(number(lost))
}

pub(crate) fn status(code: &str) -> Status {
    Status::new(number(code) as u16, "as the row says")
}

pub(crate) fn shown<O: Textual>(event: &WatchEvent<O>) -> String {
    let mut text = match &event.payload {
        Payload::Added(new) => format!("+{}", new.text()),
        Payload::Modified { old: Some(old), new } => format!("~{}<{}", new.text(), old.text()),
        Payload::Modified { old: None, new } => format!("~{}", new.text()),
        Payload::Deleted(last) => format!("-{}", last.text()),
        Payload::DeletedUnknown(key) => format!("?{}", String::from_utf8_lossy(key)),
        Payload::Error(status) => format!("error:{}", status.code()),
        _ => event.name().to_lowercase(),
    };
    if event.position.revision > 0 && event.status().is_none() {
        text += &format!("@{}", event.position.revision);
    }
    if event.lost > 0 { format!("{text}!{}", event.lost) } else { text }
}

/// What a call that failed prints.
pub(crate) fn failed(error: &Error) -> String {
    match error.code() {
        Code::Closed if error.message().contains("broadcaster already stopped") => "broadcaster already stopped".into(),
        Code::Closed => "stopped".into(),
        Code::ResourceExhausted if error.message().contains("channel full") => "full".into(),
        Code::InvalidArgument => "refused".into(),
        code => format!("error:{}", code.http_status()),
    }
}

pub(crate) fn line(text: impl ToString) -> Vec<String> {
    vec![text.to_string()]
}

pub(crate) fn printed<T>(result: Result<T, Error>) -> Vec<String> {
    result.map_or_else(|error| line(failed(&error)), |_| Vec::new())
}
