//! The configuration file: its keys, the values of each, and an example of each.
//!
//! serde parses the file and refuses unknown keys; the types here refuse invalid values. The parser records the place
//! of both errors, and `Document` makes a message of it. `settings` checks combinations of keys.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::document::Document;
use crate::cli::exit::Failure;
use crate::cli::values;
use watchcore_http::Limits;

/// The whole file. An absent key comes from an option or has a default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) etcd: Option<Endpoints>,
    pub(crate) listen: Option<Spanned<Address>>,
    pub(crate) insecure_listen: Option<bool>,
    pub(crate) bookmark_interval: Option<Length>,
    pub(crate) grace_period: Option<Length>,
    pub(crate) stale_limit: Option<Length>,
    pub(crate) history: Option<Revisions>,
    pub(crate) audit_interval: Option<Interval>,
    #[serde(default)]
    pub(crate) hosts: Vec<HostName>,
    #[serde(default)]
    pub(crate) origins: Vec<Origin>,
    pub(crate) tls: Option<TlsSection>,
    pub(crate) auth: Option<AuthSection>,
    #[serde(default)]
    pub(crate) limits: LimitsSection,
    #[serde(default, rename = "cache")]
    pub(crate) caches: Vec<CacheSection>,
    #[serde(default, rename = "resource")]
    pub(crate) resources: Vec<ResourceSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsSection {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) key_passphrase_file: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_crl: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuthSection {
    pub(crate) tokens: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsSection {
    watches: Option<Count>,
    watches_per_connection: Option<Count>,
    connections: Option<Count>,
    header_bytes: Option<HeaderBytes>,
    url_bytes: Option<UrlBytes>,
    queued_bytes: Option<Count>,
    frame_bytes: Option<Count>,
    header_timeout: Option<Length>,
    handshake_timeout: Option<Length>,
    idle: Option<Length>,
    idle_unknown: Option<Length>,
    stall: Option<Length>,
    list: Option<Length>,
    watch: Option<Length>,
    connection_age: Option<Length>,
    unread_bytes: Option<Count>,
    unread_bytes_per_client: Option<Count>,
}

impl LimitsSection {
    /// The given limits, over the defaults.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        let set = |limit: &mut usize, given: &Option<Count>| *limit = given.map_or(*limit, |given| given.0);
        set(&mut limits.watches, &self.watches);
        set(&mut limits.watches_per_connection, &self.watches_per_connection);
        set(&mut limits.connections, &self.connections);
        limits.header_bytes = self.header_bytes.map_or(limits.header_bytes, |given| given.0);
        limits.url_bytes = self.url_bytes.map_or(limits.url_bytes, |given| given.0);
        set(&mut limits.queued_bytes, &self.queued_bytes);
        set(&mut limits.frame_bytes, &self.frame_bytes);
        set(&mut limits.unread_bytes, &self.unread_bytes);
        set(&mut limits.unread_bytes_per_client, &self.unread_bytes_per_client);
        let set =
            |limit: &mut Duration, given: &Option<Length>| *limit = given.as_ref().map_or(*limit, |given| given.0);
        set(&mut limits.header_timeout, &self.header_timeout);
        set(&mut limits.handshake_timeout, &self.handshake_timeout);
        set(&mut limits.idle, &self.idle);
        set(&mut limits.idle_unknown, &self.idle_unknown);
        set(&mut limits.stall, &self.stall);
        set(&mut limits.list, &self.list);
        set(&mut limits.watch, &self.watch);
        set(&mut limits.connection_age, &self.connection_age);
        limits
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CacheSection {
    pub(crate) prefix: Spanned<String>,
    pub(crate) capacity: Option<Spanned<Count>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResourceSection {
    pub(crate) group: Option<Group>,
    pub(crate) version: Name,
    pub(crate) plural: Spanned<Name>,
    pub(crate) singular: Option<Name>,
    pub(crate) kind: Name,
    #[serde(default)]
    pub(crate) namespaced: bool,
    pub(crate) prefix: Spanned<Directory>,
    #[serde(default)]
    pub(crate) short_names: Vec<Name>,
    pub(crate) labels: Option<Spanned<LabelsPointer>>,
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, Pointer>,
    #[serde(default)]
    pub(crate) columns: Vec<ColumnSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ColumnSection {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: ColumnType,
    pub(crate) pointer: Pointer,
}

/// An example line for each key, for the message about an invalid one.
const EXAMPLES: [(&str, &str); 49] = [
    ("etcd", r#"etcd = ["http://127.0.0.1:2379"]"#),
    ("listen", r#"listen = "127.0.0.1:8080""#),
    ("insecure_listen", "insecure_listen = false"),
    ("bookmark_interval", r#"bookmark_interval = "1m0s""#),
    ("grace_period", r#"grace_period = "10s""#),
    ("stale_limit", r#"stale_limit = "1m0s""#),
    ("history", "history = 10000"),
    ("audit_interval", r#"audit_interval = "1h0m0s""#),
    ("hosts", r#"hosts = ["watch.example"]"#),
    ("origins", r#"origins = ["https://ops.example"]"#),
    ("tls", "[tls]"),
    ("tls.certificate", r#"certificate = "server.crt""#),
    ("tls.key", r#"key = "server.key""#),
    ("tls.key_passphrase_file", r#"key_passphrase_file = "passphrase""#),
    ("tls.client_ca", r#"client_ca = "ca.crt""#),
    ("tls.client_crl", r#"client_crl = "ca.crl""#),
    ("auth", "[auth]"),
    ("auth.tokens", r#"tokens = "tokens""#),
    ("limits", "[limits]"),
    ("limits.watches", "watches = 10000"),
    ("limits.watches_per_connection", "watches_per_connection = 1000"),
    ("limits.connections", "connections = 20000"),
    ("limits.header_bytes", "header_bytes = 32768"),
    ("limits.url_bytes", "url_bytes = 16384"),
    ("limits.queued_bytes", "queued_bytes = 65536"),
    ("limits.frame_bytes", "frame_bytes = 16777216"),
    ("limits.header_timeout", r#"header_timeout = "10s""#),
    ("limits.handshake_timeout", r#"handshake_timeout = "10s""#),
    ("limits.idle", r#"idle = "2m0s""#),
    ("limits.idle_unknown", r#"idle_unknown = "10s""#),
    ("limits.stall", r#"stall = "1m0s""#),
    ("limits.list", r#"list = "10m0s""#),
    ("limits.watch", r#"watch = "1h0m0s""#),
    ("limits.connection_age", r#"connection_age = "1h0m0s""#),
    ("limits.unread_bytes", "unread_bytes = 268435456"),
    ("limits.unread_bytes_per_client", "unread_bytes_per_client = 67108864"),
    ("cache", "[[cache]]"),
    ("cache.prefix", r#"prefix = "/registry/""#),
    ("cache.capacity", "capacity = 65536"),
    ("resource", "[[resource]]"),
    ("resource.group", r#"group = "apps""#),
    ("resource.version", r#"version = "v1""#),
    ("resource.plural", r#"plural = "deployments""#),
    ("resource.singular", r#"singular = "deployment""#),
    ("resource.kind", r#"kind = "Deployment""#),
    ("resource.namespaced", "namespaced = true"),
    ("resource.prefix", r#"prefix = "/registry/deployments/""#),
    ("resource.short_names", r#"short_names = ["deploy"]"#),
    ("resource.labels", r#"labels = "/metadata/labels""#),
];

/// Examples for the keys inside a resource.
const FIELDS: &str = r#"fields = { "spec.color" = "/spec/color" }"#;
const COLUMNS: &str = r#"columns = [ { name = "Color", type = "string", pointer = "/spec/color" } ]"#;

/// An example line for a key.
pub(crate) fn example(key: &str) -> Option<&'static str> {
    match key {
        _ if key.starts_with("resource.fields") => Some(FIELDS),
        _ if key.starts_with("resource.columns") => Some(COLUMNS),
        _ => EXAMPLES.iter().find(|(known, _)| *known == key).map(|(_, line)| *line),
    }
}

impl Config {
    pub(crate) fn of(document: &Document) -> Result<Config, Failure> {
        toml::from_str(document.text()).map_err(|error| document.error(&error, example))
    }
}

/// Defines a type that is parsed from a string.
macro_rules! of_text {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $make:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                from.deserialize_str(Text($make)).map($name)
            }
        }
    )*};
}

of_text! {
    /// An endpoint of etcd.
    Endpoint(String) = endpoint;
    /// The address on which the server listens.
    Address(SocketAddr) = values::address;
    /// A name that the server answers to.
    HostName(String) = values::host;
    /// An origin whose pages may call the server.
    Origin(String) = values::origin;
    /// A duration.
    Length(Duration) = values::duration;
    /// An interval; zero means never.
    Interval(Duration) = values::interval;
    /// The name of a version or of a kind, in one word.
    Name(String) = name;
    /// The name of a group, which is empty for the core group.
    Group(String) = |text| if text.is_empty() { Ok(String::new()) } else { name(text) };
    /// The prefix of a resource's keys.
    Directory(String) = values::directory;
    /// The JSON pointer of a value.
    Pointer(String) = values::pointer;
    /// The JSON pointer of the map of labels.
    LabelsPointer(String) = values::labels_pointer;
    /// The type of a column.
    ColumnType(String) = column_type;
}

/// Parses a value from a string. An error of a visitor has the place of the string itself, also inside an array.
struct Text<T>(fn(&str) -> Result<T, String>);

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}

/// A number from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Count, D::Error> {
        from.deserialize_i64(Counted { least: 1 }).map(Count)
    }
}

/// Bytes of a request head, no fewer than the library requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeaderBytes(usize);

impl<'de> Deserialize<'de> for HeaderBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<HeaderBytes, D::Error> {
        from.deserialize_i64(Counted { least: 8 << 10 }).map(HeaderBytes)
    }
}

/// Bytes of a URL. With a smaller limit, ordinary requests, including health checks, would get 414.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UrlBytes(usize);

impl<'de> Deserialize<'de> for UrlBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<UrlBytes, D::Error> {
        from.deserialize_i64(Counted { least: 1 << 10 }).map(UrlBytes)
    }
}

/// Endpoints of etcd, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints(pub(crate) Vec<Endpoint>);

impl<'de> Deserialize<'de> for Endpoints {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Endpoints, D::Error> {
        match Vec::deserialize(from)? {
            none if none.is_empty() => Err(serde::de::Error::custom("there is no endpoint in it")),
            endpoints => Ok(Endpoints(endpoints)),
        }
    }
}

/// A number of revisions, which may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Revisions(pub(crate) u64);

impl<'de> Deserialize<'de> for Revisions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Revisions, D::Error> {
        from.deserialize_i64(Counted { least: 0 }).map(|revisions| Revisions(revisions as u64))
    }
}

struct Counted {
    least: usize,
}

impl Visitor<'_> for Counted {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {}", self.least)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<usize, E> {
        let count = usize::try_from(number).ok().filter(|count| *count >= self.least);
        count.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }
}

/// Refuses an endpoint with an `@`: endpoints are shown in logs, metrics and on the status page, and the text before
/// the `@` may be a password.
fn endpoint(text: &str) -> Result<String, String> {
    match text.contains('@') {
        true => Err("an endpoint has no user: give it by --user or WATCHCORE_USER, and WATCHCORE_PASSWORD".to_owned()),
        false => values::endpoint(text),
    }
}

/// Applies the rule of [`Resource`](watchcore_http::Resource), so that the error has its place in the file.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    match text.chars().find(|c| !is_of_name(*c)) {
        _ if text.is_empty() => Err("the name is empty".to_owned()),
        Some(c) => Err(format!("{c:?} cannot be in a name, which has letters, digits, \"-\", \".\" and \"_\"")),
        None => Ok(text.to_owned()),
    }
}

fn column_type(text: &str) -> Result<String, String> {
    const TYPES: [&str; 5] = ["string", "integer", "number", "boolean", "date"];
    match TYPES.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is no type of a column: expected one of {}", TYPES.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that gives one key in the given way.
    fn with(key: &str, line: &str) -> Document {
        let rest = "version = \"v1\"\nplural = \"x\"\nkind = \"X\"\nprefix = \"/x/\"\n";
        let others = |rest: &str| -> String {
            let name = line.split_once(" =").map_or("", |(name, _)| name);
            rest.lines()
                .filter(|other| !other.starts_with(&format!("{name} =")))
                .map(|line| format!("{line}\n"))
                .collect()
        };
        let text = match key.split_once('.') {
            None if line.starts_with("[[cache") => format!("{line}\nprefix = \"/x/\"\n"),
            None if line.starts_with("[[resource") => format!("{line}\n{rest}"),
            None if line == "[auth]" => "[auth]\ntokens = \"x\"\n".to_owned(),
            None if line == "[tls]" => "[tls]\ncertificate = \"x\"\nkey = \"x\"\n".to_owned(),
            None => format!("{line}\n"),
            Some(("tls", _)) => format!("[tls]\n{line}\n{}", others("certificate = \"x\"\nkey = \"x\"\n")),
            Some(("cache", _)) => format!("[[cache]]\n{line}\n{}", others("prefix = \"/x/\"\n")),
            Some(("resource", _)) => format!("[[resource]]\n{line}\n{}", others(rest)),
            Some((section, _)) => format!("[{section}]\n{line}\n"),
        };
        Document::new("x.toml", text)
    }

    fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        EXAMPLES.into_iter().chain([("resource.fields", FIELDS), ("resource.columns", COLUMNS)])
    }

    #[test]
    fn every_example_is_taken() {
        for (key, line) in all() {
            let config = Config::of(&with(key, line)).unwrap_or_else(|error| panic!("{key}: {}", error.message));
            let read = format!("{config:?}") != format!("{:?}", Config::default());
            assert!(read || key == "limits", "{key}: nothing was read");
        }
    }

    #[test]
    fn every_key_stands_in_the_page_of_the_server() {
        let page = include_str!("../../../../docs/SERVER.md");
        for (key, _) in all().filter(|(key, line)| key.contains('.') || !line.starts_with('[')) {
            assert!(page.contains(&format!("`{key}`")), "docs/SERVER.md has no `{key}`");
        }
    }

    /// No key accepts a date.
    #[test]
    fn every_key_refuses_another_type_at_its_place() {
        for (key, line) in all() {
            let Some((name, _)) = line.split_once(" = ") else { continue };
            let error = Config::of(&with(key, &format!("{name} = 1979-05-27"))).expect_err(key).message;
            let number = if key.contains('.') { 2 } else { 1 };
            let place = format!("x.toml:{number}:{}: {key}: ", name.len() + 4);
            assert!(error.starts_with(&place), "{key}: {error}");
            assert!(error.contains("expected ") && error.ends_with(&format!("Write it such as: {line}")), "{error}");
        }
    }

    #[test]
    fn a_key_that_must_be_there_is_asked_for() {
        for (text, place, key) in [
            ("[tls]\ncertificate = \"x\"\n", "x.toml:1:1: tls: ", "tls.key"),
            ("[tls]\nkey = \"x\"\n", "x.toml:1:1: tls: ", "tls.certificate"),
            ("\n[auth]\n", "x.toml:2:1: auth: ", "auth.tokens"),
            ("[[cache]]\ncapacity = 9\n", "x.toml:1:1: cache: ", "cache.prefix"),
            ("[[resource]]\n", "x.toml:1:1: resource: ", "resource.version"),
            ("[[resource]]\nversion = \"v1\"\n", "x.toml:1:1: resource: ", "resource.plural"),
            ("[[resource]]\nversion = \"v1\"\nplural = \"x\"\n", "x.toml:1:1: resource: ", "resource.kind"),
            (
                "[[resource]]\nversion = \"v1\"\nplural = \"x\"\nkind = \"X\"\n",
                "x.toml:1:1: resource: ",
                "resource.prefix",
            ),
        ] {
            let error = Config::of(&Document::new("x.toml", text)).expect_err(key).message;
            let (_, name) = key.rsplit_once('.').expect("in a section");
            let expected = format!("{place}missing key `{name}`. Add it: {}", example(key).expect("of every key"));
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn what_a_key_cannot_mean_is_refused_at_its_place() {
        let resource = "[[resource]]\nversion = \"v1\"\nplural = \"x\"\nkind = \"X\"\nprefix = \"/x/\"\n";
        for (text, says) in [
            ("etcd = [\"http://a:1\", \"ftp://b\"]", "x.toml:1:23: etcd: \"ftp\" is not a known scheme"),
            ("etcd = []", "x.toml:1:8: etcd: there is no endpoint in it. Write it such as: etcd = ["),
            ("hosts = [\"*.example\"]", "x.toml:1:10: hosts: \"*.example\" is no name of a server"),
            ("origins = [\"https://*\"]", "x.toml:1:12: origins: \"https://*\" is no origin"),
            (
                "[limits]\nurl_bytes = 1023",
                "x.toml:2:13: limits.url_bytes: invalid value: integer `1023`, expected a whole number from 1024",
            ),
            ("etcd = [\"http://root:hidden@a:1\"]", "x.toml:1:9: etcd: an endpoint has no user: give it by --user or"),
            ("etcd = \"http://a:1\"", "x.toml:1:8: etcd: invalid type: string \"http://a:1\", expected a sequence"),
            ("listen = \"example.org:8080\"", "x.toml:1:10: listen: \"example.org:8080\" is no address"),
            ("listen = \"127.0.0.1:65536\"", "x.toml:1:10: listen: \"127.0.0.1:65536\" is no address"),
            ("insecure_listen = 1", "x.toml:1:19: insecure_listen: invalid type: integer `1`, expected a boolean"),
            ("bookmark_interval = \"60\"", "x.toml:1:21: bookmark_interval: the unit is missing"),
            ("bookmark_interval = \"0s\"", "x.toml:1:21: bookmark_interval: must be above zero"),
            ("hosts = [\"watch.example\", \"https://x\"]", "x.toml:1:27: hosts: \"https://x\" is no name of a server"),
            ("origins = [\"ops.example\"]", "x.toml:1:12: origins: \"ops.example\" is no origin"),
            ("stale_limit = \"1\"", "x.toml:1:15: stale_limit: the unit is missing"),
            ("grace_period = \"1 minute\"", "x.toml:1:16: grace_period: expected a number with a unit"),
            (
                "[limits]\nwatches = 0",
                "x.toml:2:11: limits.watches: invalid value: integer `0`, expected a whole number from 1.",
            ),
            (
                "[limits]\nwatches = -1",
                "x.toml:2:11: limits.watches: invalid value: integer `-1`, expected a whole number from 1",
            ),
            ("history = -1", "x.toml:1:11: history: invalid value: integer `-1`, expected a whole number from 0"),
            (
                "[limits]\nheader_bytes = 8191",
                "x.toml:2:16: limits.header_bytes: invalid value: integer `8191`, expected a whole number from 8192",
            ),
            ("limits = { watches = \"9\" }", "x.toml:1:22: limits.watches: invalid type: string \"9\""),
            ("[limit]\nwatches = 9", "x.toml:1:2: limit: unknown key `limit`, expected one of `etcd`,"),
            ("[limits]\nwatched = 9", "x.toml:2:1: limits.watched: unknown key `watched`, expected one of `watches`,"),
            ("[auth]\ntokens = \"x\"\nuser = \"y\"", "x.toml:3:1: auth.user: unknown key `user`, expected `tokens`."),
            ("a.b = 1", "x.toml:1:1: a: unknown key `a`,"),
            (
                "listen = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:1\"",
                "x.toml:2:1: listen: duplicate key. Remove one of the two",
            ),
            ("listen = ", "x.toml:1:10: listen: string values must be quoted"),
            ("[[cache]\n", "x.toml:1:9: unclosed array table, expected `]`"),
            ("[[cache]]\nprefix = [\"a\"]", "x.toml:2:10: cache.prefix: invalid type: sequence, expected a string"),
            (
                &format!("{resource}columns = [\n  {{ name = \"C\", type = \"text\", pointer = \"/c\" }},\n]"),
                "x.toml:7:24: resource.columns.type: \"text\" is no type of a column: expected one of string,",
            ),
            (
                &format!("{resource}columns = [ {{ name = \"C\", type = \"string\" }} ]"),
                "x.toml:6:13: resource.columns: missing key `pointer`. Add it: columns = [",
            ),
            (&format!("{resource}labels = \"metadata\""), "x.toml:6:10: resource.labels: "),
            (&format!("{resource}fields = {{ \"a.b\" = \"/a~2\" }}"), "x.toml:6:20: resource.fields.a.b: "),
            (&resource.replace("/x/", "/x"), "x.toml:5:10: resource.prefix: the prefix \"/x\" does not end in \"/\""),
            (&resource.replace("\"x\"", "\"x/y\""), "x.toml:3:10: resource.plural: '/' cannot be in a name"),
            (&resource.replace("\"X\"", "\"X\\\"\""), "x.toml:4:8: resource.kind: '\"' cannot be in a name"),
            (&resource.replace("\"v1\"", "\"v\\u0000\""), "x.toml:2:11: resource.version: '\\0' cannot be in a name"),
            (&resource.replace("\"v1\"", "\"\""), "x.toml:2:11: resource.version: the name is empty"),
        ] {
            let error = Config::of(&Document::new("x.toml", text)).expect_err(text).message;
            assert!(error.starts_with(says) && !error.contains("hidden"), "{text}\n{error}\n{says}");
        }
    }
}
