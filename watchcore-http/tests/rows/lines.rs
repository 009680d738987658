//! A line of JSON as rows print it. The plain face and the command line print the same lines, which watchcore-http writes.

use crate::words::word;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// An event or a mark, but an ERROR.
pub(crate) fn event(line: &Value, is_initial: bool, full: bool) -> String {
    let kind = text(line, "type");
    match kind {
        "LAGGED" => {
            let lost = format!("lost {}..{}", whole(line, "lost_from"), whole(line, "lost_to"));
            return format!("LAGGED {lost} oldest {} current {}", whole(line, "oldest"), whole(line, "current"));
        }
        "RESYNC" => {
            let (phase, reason, to) = (text(line, "phase"), text(line, "reason"), whole(line, "to"));
            return format!("{to} RESYNC {phase} {reason} {}..{to}", whole(line, "from"));
        }
        _ => {}
    }
    let mut printed = format!("{} {kind}", whole(line, "revision"));
    if kind == "BOOKMARK" {
        return if line["initial_state_end"] == true { printed + " end-of-state" } else { printed };
    }
    printed += &format!(" {}", key_of(line));
    if let Some(value) = bytes_of(line, "value") {
        printed += &format!("={value}");
    }
    if let Some(before) = bytes_of(line, "prev_value") {
        printed += &format!(" was {before}");
    }
    if full && line["version"].is_u64() {
        printed += &numbers(line);
    }
    for (is_marked, mark) in [(is_initial, " initial"), (line["synthetic"] == true, " synthetic")] {
        if is_marked {
            printed += mark;
        }
    }
    printed
}

/// A key-value.
pub(crate) fn object(item: &Value, full: bool) -> String {
    let numbers = if full { numbers(item) } else { String::new() };
    format!("{}={}{numbers}", key_of(item), bytes_of(item, "value").expect("a value"))
}

/// The numbers of a key-value, as they stand behind it with `full`.
fn numbers(item: &Value) -> String {
    let of = |name| whole(item, name);
    let lease = item["lease"].as_u64().map(|lease| format!(" lease {lease}")).unwrap_or_default();
    format!(" create {} modified {} version {}{lease}", of("create_revision"), of("mod_revision"), of("version"))
}

pub(crate) fn key_of(item: &Value) -> String {
    bytes_of(item, "key").expect("a key")
}

/// Text, or base64 under another name, as a word of a row.
fn bytes_of(item: &Value, name: &str) -> Option<String> {
    match (item[name].as_str(), item[format!("{name}_base64")].as_str()) {
        (Some(text), None) => Some(word(text.as_bytes())),
        (None, Some(text)) => Some(word(&STANDARD.decode(text).expect("base64"))),
        (None, None) => None,
        both => panic!("{name} twice: {both:?}"),
    }
}

/// A number that a document has.
pub(crate) fn whole(document: &Value, name: &str) -> u64 {
    document[name].as_u64().unwrap_or_else(|| panic!("no {name}: {document}"))
}

/// A text that a document has.
pub(crate) fn text<'a>(document: &'a Value, name: &str) -> &'a str {
    document[name].as_str().unwrap_or_else(|| panic!("no {name}: {document}"))
}
