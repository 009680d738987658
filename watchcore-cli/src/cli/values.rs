//! The values of options: durations, start modes, endpoints, credentials.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use watchcore::{Attribute, Filter, Labels};

/// The default number of events that the log of a cache holds.
pub(crate) const CAPACITY: usize = 65_536;

/// The start of a `watch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartMode {
    Now,
    After(u64),
    State,
    StateAtLeast(u64),
}

/// The longest value that a cache accepts.
const LONGEST_VALUE: usize = i32::MAX as usize;

/// Parses `500ms`, `10s`, `1.5m`, `2h`, and sums of these: `1m30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let length = interval(text)?;
    if length.is_zero() {
        return Err(format!("must be above zero; {DURATIONS}"));
    }
    Ok(length)
}

const DURATIONS: &str = "expected a number with a unit: 500ms, 10s, 5m, 1h, 1m30s";

/// Parses an interval; zero means never.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let expected = DURATIONS;
    let (mut length, mut rest) = (Duration::ZERO, text);
    loop {
        let part;
        (part, rest) = part_of_duration(rest, expected)?;
        length = length.checked_add(part).ok_or_else(|| format!("too long; {expected}"))?;
        if rest.is_empty() {
            break;
        }
    }
    Ok(length)
}

/// Parses a number with its unit, and returns the rest of the text.
fn part_of_duration<'t>(text: &'t str, expected: &str) -> Result<(Duration, &'t str), String> {
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, rest) = text.split_at(digits);
    let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(letters);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "" if digits > 0 => return Err(format!("the unit is missing; {expected}")),
        _ => return Err(expected.to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| expected.to_owned())?;
    let length = Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("too long; {expected}"))?;
    Ok((length, rest))
}

/// Parses `now`, `after:R`, `state`, `state-at-least:R`.
pub(crate) fn start(text: &str) -> Result<StartMode, String> {
    let expected = "expected now, after:R, state or state-at-least:R";
    let number = |digits: &str| match digits.parse() {
        Ok(revision) => Ok(revision),
        Err(_) => Err(format!("{digits:?} is no revision; {expected}")),
    };
    match text.split_once(':') {
        None if text == "now" => Ok(StartMode::Now),
        None if text == "state" => Ok(StartMode::State),
        Some(("after", revision)) => Ok(StartMode::After(number(revision)?)),
        Some(("state-at-least", revision)) => Ok(StartMode::StateAtLeast(number(revision)?)),
        _ if text.parse::<u64>().is_ok() => Err(format!("{expected}; to go on behind revision {text}, after:{text}")),
        _ => Err(expected.to_owned()),
    }
}

/// Parses a revision of etcd, from 1.
pub(crate) fn revision(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("revisions begin at 1".to_owned()),
        Ok(revision) => Ok(revision),
        Err(_) => Err("expected a revision, a whole number from 1".to_owned()),
    }
}

/// Parses a count, from 1.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a whole number from 1".to_owned()),
    }
}

/// Parses how many events a log holds, from 1.
pub(crate) fn capacity(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(capacity) => Ok(capacity),
        Err(_) => Err("expected a whole number from 1".to_owned()),
    }
}

/// Parses a count of items that are kept in memory, from 1.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    count(text).and_then(|count| count.try_into().map_err(|_| "too many".to_owned()))
}

/// Parses a number of revisions, which may be 0.
pub(crate) fn revisions(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number; 0 is none".to_owned())
}

/// Parses a count; 0 means all.
pub(crate) fn limit(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number; 0 is all".to_owned())
}

/// Parses the size of a value in bytes.
pub(crate) fn value_size(text: &str) -> Result<usize, String> {
    let size = text.parse().ok().filter(|size| *size <= LONGEST_VALUE);
    size.ok_or_else(|| format!("expected a whole number of bytes, at most {LONGEST_VALUE}"))
}

/// Checks a label selector.
pub(crate) fn labels(text: &str) -> Result<String, String> {
    Filter::any().labels(text).map(|_| text.to_owned()).map_err(said)
}

/// Checks a field selector.
pub(crate) fn fields(text: &str) -> Result<String, String> {
    Filter::any().fields(text).map(|_| text.to_owned()).map_err(said)
}

/// Checks the JSON pointer of the label map.
pub(crate) fn labels_pointer(text: &str) -> Result<String, String> {
    Labels::json(text).map(|_| text.to_owned()).map_err(said)
}

/// Parses `NAME=POINTER`.
pub(crate) fn field(text: &str) -> Result<(String, String), String> {
    let expected = "expected NAME=POINTER, such as node=/spec/nodeName";
    let (name, pointer) = text.split_once('=').ok_or(expected)?;
    if name.is_empty() {
        return Err(format!("the name is empty; {expected}"));
    }
    Attribute::json(name, pointer).map_err(said)?;
    Ok((name.to_owned(), pointer.to_owned()))
}

/// Checks the JSON pointer of a value.
pub(crate) fn pointer(text: &str) -> Result<String, String> {
    Attribute::json("a value", text).map(|_| text.to_owned()).map_err(said)
}

/// Parses the address and port of a server.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let expected =
        "expected an address and a port: 127.0.0.1:8080, [::1]:8080, or 0.0.0.0:8080 for all; port 0 is a free one";
    let number = match text.strip_prefix("localhost:") {
        Some(port) => port.parse().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).ok(),
        None => text.parse().ok(),
    };
    number.ok_or_else(|| format!("{text:?} is no address to listen at; {expected}"))
}

/// Checks a server's name as clients send it in the Host header: without a scheme, and no pattern, because a pattern
/// would match nothing.
pub(crate) fn host(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(['/', ' ', '@', '*']) || text.contains(char::is_control) {
        true => Err(format!(
            "{text:?} is no name of a server; expected a name or an address, such as watch.example or 192.0.2.7:8080"
        )),
        false => Ok(text.to_owned()),
    }
}

/// Checks an origin as browsers send it in the Origin header.
pub(crate) fn origin(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest.is_some_and(|rest| host(rest).is_ok()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is no origin; expected a scheme and a name, such as https://ops.example, without a path"
        )),
    }
}

/// Checks the prefix of a resource's keys.
pub(crate) fn directory(text: &str) -> Result<String, String> {
    match text.strip_suffix('/') {
        Some(_) => Ok(text.to_owned()),
        None => Err(format!(
            "the prefix {text:?} does not end in \"/\": the keys of its objects are <prefix>[<namespace>/]<name>"
        )),
    }
}

/// Checks a token that `list` has printed.
pub(crate) fn token(text: &str) -> Result<String, String> {
    watchcore::token_revision(text).map(|_| text.to_owned()).map_err(said)
}

fn said(error: watchcore::Error) -> String {
    error.message().to_owned()
}

/// The names in a valid field selector.
pub(crate) fn field_names(selector: &str) -> Vec<&str> {
    let mut escaped = false;
    let terms = selector.split(|character| {
        let ends = character == ',' && !escaped;
        escaped = character == '\\' && !escaped;
        ends
    });
    terms.filter(|term| !matches!(*term, "" | "=" | "==" | "!=")).map(name_of).collect()
}

/// The text before the first operator.
fn name_of(term: &str) -> &str {
    let end = term.find("!=").into_iter().chain(term.find('=')).min();
    &term[..end.unwrap_or(term.len())]
}

/// The pointer of an undeclared name: `a.b` is `/a/b`.
pub(crate) fn pointer_of_name(name: &str) -> String {
    name.split('.').map(|member| format!("/{}", member.replace('~', "~0").replace('/', "~1"))).collect()
}

/// Checks an endpoint: `http://host:port`, `https://host:port`, `unix:///path` or `host:port`.
pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    let rest = match text.split_once("://") {
        Some(("http" | "https" | "unix", rest)) => rest,
        Some((scheme, _)) => {
            return Err(format!("{scheme:?} is not a known scheme; expected http://, https:// or unix://"));
        }
        None => text,
    };
    if rest.is_empty() || rest.contains(char::is_whitespace) {
        return Err("expected http://host:port".to_owned());
    }
    if rest == text && !rest.contains(':') {
        return Err(format!("{text:?} has no port; expected host:port, such as {text}:2379"));
    }
    Ok(text.to_owned())
}

/// Checks the comma-separated endpoints of a variable.
pub(crate) fn endpoints(text: &str) -> Result<Vec<String>, String> {
    text.split(',').map(endpoint).collect()
}

/// In this repository's tests, `WATCHCORE_ETCD` names a directory of binaries instead: an absolute path, one that
/// begins with a dot, or one that exists. No endpoint looks like that. Any other invalid value is refused: ignoring it
/// would read another etcd.
pub(crate) fn is_path(text: &str) -> bool {
    let is_there = || text.contains('/') && !text.contains("://") && Path::new(text).exists();
    text.starts_with(['/', '.']) || is_there()
}

/// Parses `NAME[:PASSWORD]`; the password may come from the environment.
pub(crate) fn user(text: &str, password: Option<String>) -> Result<(String, String), String> {
    let (name, password) = match text.split_once(':') {
        Some((name, password)) => (name, password.to_owned()),
        None => {
            let missing = || "the password is missing: give NAME:PASSWORD or set WATCHCORE_PASSWORD".to_owned();
            (text, password.ok_or_else(missing)?)
        }
    };
    if name.is_empty() {
        return Err("the name is empty; expected NAME[:PASSWORD]".to_owned());
    }
    Ok((name.to_owned(), password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(duration("1m0s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("1h2m3.5s"), Ok(Duration::from_millis(3_723_500)));
        for wrong in [
            "",
            "10",
            "s",
            "ten s",
            "10 s",
            "-1s",
            "1d",
            "1.2.3s",
            "0s",
            "0ms",
            "0m0s",
            "10S",
            "1m0",
            "1ms.",
            "1m 0s",
            "99999999999999999999h",
            "5000000000000000h5000000000000000h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong:?} was taken");
        }
        assert!(duration("10").unwrap_err().contains("unit"));
    }

    #[test]
    fn addresses() {
        for (text, number) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:80", "[::1]:80"),
            ("0.0.0.0:1", "0.0.0.0:1"),
        ] {
            assert_eq!(address(text).map(|address| address.to_string()).as_deref(), Ok(number), "{text}");
        }
        for wrong in ["", ":8080", "8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "localhost", "::1:80", "a:80"]
        {
            assert!(address(wrong).is_err_and(|said| said.contains("127.0.0.1:8080")), "{wrong:?} was taken");
        }
    }

    #[test]
    fn starts() {
        assert_eq!(start("now"), Ok(StartMode::Now));
        assert_eq!(start("state"), Ok(StartMode::State));
        assert_eq!(start("after:0"), Ok(StartMode::After(0)));
        assert_eq!(start("after:17"), Ok(StartMode::After(17)));
        assert_eq!(start("state-at-least:9"), Ok(StartMode::StateAtLeast(9)));
        for wrong in ["", "after", "after:", "after:x", "after:-1", "now:3", "state:3", "State", "state-at-least:"] {
            assert!(start(wrong).is_err(), "{wrong:?} was taken");
        }
        assert!(start("17").unwrap_err().contains("after:17"));
        // Parsing does not check whether a cache can reach the revision.
        assert_eq!(start("after:18446744073709551615"), Ok(StartMode::After(u64::MAX)));
        assert!(start("after:18446744073709551616").is_err());
    }

    #[test]
    fn numbers_begin_at_one() {
        assert_eq!(revision("1"), Ok(1));
        assert_eq!(revision("18446744073709551615"), Ok(u64::MAX));
        assert!(revision("18446744073709551616").is_err());
        assert_eq!((value_size("0"), value_size("2147483647")), (Ok(0), Ok(LONGEST_VALUE)));
        assert!(value_size("2147483648").is_err() && value_size("-1").is_err());
        assert_eq!(count("7"), Ok(7));
        for wrong in ["0", "", "x", "-3", "1.0"] {
            assert!(revision(wrong).is_err() && count(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn endpoints() {
        assert_eq!(endpoint("http://127.0.0.1:2379").as_deref(), Ok("http://127.0.0.1:2379"));
        assert_eq!(endpoint("etcd:2379").as_deref(), Ok("etcd:2379"));
        assert_eq!(endpoint("unix:///run/etcd.sock").as_deref(), Ok("unix:///run/etcd.sock"));
        for wrong in ["", "http://", "ftp://x", "unix://", "http://a b", "localhost"] {
            assert!(endpoint(wrong).is_err(), "{wrong:?} was taken");
        }
        assert!(endpoint("localhost").unwrap_err().contains("localhost:2379"));
        let two = super::endpoints("http://a:1,https://b:2");
        assert_eq!(two, Ok(vec!["http://a:1".to_owned(), "https://b:2".to_owned()]));
        assert_eq!(super::endpoints("a:1,b:2"), Ok(vec!["a:1".to_owned(), "b:2".to_owned()]));
        for wrong in ["http://a:1,ftp://b", "a:1,", "etcd.prod", "etcd.prod/", "/usr/bin"] {
            assert!(super::endpoints(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn paths_are_no_endpoints() {
        let here = env!("CARGO_MANIFEST_DIR").trim_start_matches('/');
        let from_here = "../".repeat(40) + here;
        for path in ["/usr/local/bin", "/none", "./etcd", "../etcd", "src/cli", &from_here] {
            assert!(is_path(path), "{path:?}");
        }
        for other in ["etcd.prod", "etcd.prod:2379/", "etcd.prod/", "none/etcd", "src", "http://src/cli", "a:1,b:2"] {
            assert!(!is_path(other), "{other:?}");
        }
    }

    #[test]
    fn names_of_fields_are_those_that_the_library_reads() {
        for (selector, names) in [
            ("", &[][..]),
            ("a=b", &["a"]),
            ("a.b!=,c==x", &["a.b", "c"]),
            (r"a=x\,y\=z\\,b=c", &["a", "b"]),
            (r"a\,b=c", &[r"a\,b"]),
            (",a=b,,c=d,", &["a", "c"]),
            (" a=b, c=d", &[" a", " c"]),
            ("a!b=c", &["a!b"]),
            ("=,a=,!=", &["a"]),
            ("=x", &[""]),
        ] {
            assert!(fields(selector).is_ok(), "{selector:?}");
            assert_eq!(field_names(selector), names, "{selector:?}");
        }
    }

    #[test]
    fn undeclared_names_are_pointers() {
        assert_eq!(pointer_of_name("a.b"), "/a/b");
        assert_eq!(pointer_of_name("a"), "/a");
        assert_eq!(pointer_of_name("a/b.c~d"), "/a~1b/c~0d");
    }

    #[test]
    fn what_the_library_refuses_is_refused_in_its_words() {
        let of_library = Filter::any().labels("a in (b").expect_err("not closed");
        assert_eq!(labels("a in (b"), Err(of_library.message().to_owned()));
        assert!(fields("a").unwrap_err().contains("byte 1"));
        assert!(labels_pointer("metadata").unwrap_err().contains("JSON pointer"));
        assert!(token("x").unwrap_err().contains("continue token"));
        assert_eq!(field("n=/a/b=c"), Ok(("n".into(), "/a/b=c".into())));
        for wrong in ["n", "=/a", "n=a", "n=/a~2"] {
            assert!(field(wrong).is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn users() {
        assert_eq!(user("app:s:3", None), Ok(("app".into(), "s:3".into())));
        assert_eq!(user("app", Some("s".into())), Ok(("app".into(), "s".into())));
        assert_eq!(user("app:x", Some("s".into())), Ok(("app".into(), "x".into())), "the option goes first");
        assert!(user("app", None).unwrap_err().contains("WATCHCORE_PASSWORD"));
        assert!(user(":x", None).is_err());
    }
}
