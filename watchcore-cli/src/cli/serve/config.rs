//! The configuration file: its keys, what each takes, and an example of each.
//!
//! serde reads it and refuses what it does not know; the types here refuse what a key cannot mean. Both leave the place
//! to the parser, and `Document` makes a message of it. What concerns two keys is looked at in `settings`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::document::Document;
use crate::cli::exit::Failure;
use crate::cli::values;

/// The whole file. What is absent is a flag's or has a default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) etcd: Option<Vec<Endpoint>>,
    pub(crate) listen: Option<Spanned<Address>>,
    pub(crate) insecure_listen: Option<bool>,
    pub(crate) bookmark_interval: Option<Length>,
    pub(crate) grace_period: Option<Length>,
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
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuthSection {
    pub(crate) tokens: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsSection {
    pub(crate) watches: Option<Count>,
    pub(crate) watches_per_connection: Option<Count>,
    pub(crate) frame_bytes: Option<usize>,
    pub(crate) stall: Option<Length>,
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
    #[serde(default)]
    pub(crate) group: Group,
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

/// A line for each key, for who has written it wrong.
const EXAMPLES: [(&str, &str); 29] = [
    ("etcd", r#"etcd = ["http://127.0.0.1:2379"]"#),
    ("listen", r#"listen = "127.0.0.1:8080""#),
    ("insecure_listen", "insecure_listen = false"),
    ("bookmark_interval", r#"bookmark_interval = "1m0s""#),
    ("grace_period", r#"grace_period = "10s""#),
    ("tls", "[tls]"),
    ("tls.certificate", r#"certificate = "server.crt""#),
    ("tls.key", r#"key = "server.key""#),
    ("tls.client_ca", r#"client_ca = "ca.crt""#),
    ("auth", "[auth]"),
    ("auth.tokens", r#"tokens = "tokens""#),
    ("limits", "[limits]"),
    ("limits.watches", "watches = 10000"),
    ("limits.watches_per_connection", "watches_per_connection = 1000"),
    ("limits.frame_bytes", "frame_bytes = 16777216"),
    ("limits.stall", r#"stall = "1m0s""#),
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

/// The same for what stands inside of a resource.
const FIELDS: &str = r#"fields = { "spec.color" = "/spec/color" }"#;
const COLUMNS: &str = r#"columns = [ { name = "Color", type = "string", pointer = "/spec/color" } ]"#;

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

/// A type that is made of a string, or refuses it.
macro_rules! of_text {
    ($($(#[$doc:meta])* $name:ident($inner:ty) = $make:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                let make: fn(&str) -> Result<$inner, String> = $make;
                make(&String::deserialize(from)?).map($name).map_err(D::Error::custom)
            }
        }
    )*};
}

of_text! {
    /// An endpoint of etcd.
    Endpoint(String) = values::endpoint;
    /// Where the server listens.
    Address(SocketAddr) = values::address;
    /// A time.
    Length(Duration) = values::duration;
    /// The name of a version, of a kind, in one word.
    Name(String) = name;
    /// The name of a group, which is empty for the core group.
    Group(String) = |text| if text.is_empty() { Ok(String::new()) } else { name(text) };
    /// What the keys of a resource begin with.
    Directory(String) = values::directory;
    /// The JSON pointer of a value.
    Pointer(String) = values::pointer;
    /// The JSON pointer of the map of labels.
    LabelsPointer(String) = values::labels_pointer;
    /// What a column shows.
    ColumnType(String) = column_type;
}

impl Default for Group {
    fn default() -> Group {
        Group(String::new())
    }
}

/// A number from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Count, D::Error> {
        match usize::deserialize(from)? {
            0 => Err(D::Error::custom("must be at least 1")),
            count => Ok(Count(count)),
        }
    }
}

pub(crate) fn name(text: &str) -> Result<String, String> {
    let no_name = |c: char| matches!(c, '/' | '%' | ' ' | ':' | '=') || c.is_control();
    match text.find(no_name) {
        _ if text.is_empty() => Err("the name is empty".to_owned()),
        Some(at) => Err(format!("{:?} cannot be in a name", text[at..].chars().next().unwrap_or_default())),
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
