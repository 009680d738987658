//! The command line: what can be given, and what is made of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};

use super::output::Format;
use super::values::{self, StartMode};
use watchcore::{Filter, OnLag};

/// Where etcd is looked for when nothing says otherwise.
pub(crate) const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:2379";

#[derive(Parser, Debug)]
#[command(
    name = "watchcore",
    version,
    about = "Looks into a live etcd: follows changes, lists and gets at any revision of its history, measures this machine.",
    after_help = "Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 timeout, 5 compacted or lagged, 130 and 143 interrupted.",
    max_term_width = 110
)]
pub(crate) struct CommandLine {
    #[command(flatten, next_help_heading = "Options of every command")]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args, Debug)]
struct Common {
    /// Endpoints of etcd; also from WATCHCORE_ETCD [default: http://127.0.0.1:2379]
    #[arg(long, global = true, value_name = "URL[,URL…]", value_delimiter = ',', value_parser = values::endpoint)]
    etcd: Option<Vec<String>>,
    /// The user of etcd; a password also from WATCHCORE_PASSWORD
    #[arg(long, global = true, value_name = "NAME[:PASSWORD]")]
    user: Option<String>,
    /// Certificates (PEM) that the server's must come from
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// The client's certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "key_file")]
    cert: Option<PathBuf>,
    /// The client's private key (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    key_file: Option<PathBuf>,
    /// The range that the cache holds and that is shown, a plain byte prefix; "" is everything
    #[arg(long, global = true, value_name = "P")]
    prefix: Option<OsString>,
    /// Events that the log holds
    #[arg(long, global = true, value_name = "N", default_value_t = 65_536, value_parser = capacity)]
    capacity: usize,
    /// What standard output looks like; quiet: only the summary
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Gives up (exit 4) when not done after this: 500ms, 10s, 5m
    #[arg(long, global = true, value_name = "D", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// Logs on standard error; twice for more
    #[arg(short, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Where --labels looks: the JSON pointer of the label map in a value
    #[arg(long, global = true, value_name = "POINTER", default_value = "/metadata/labels", value_parser = values::labels_pointer)]
    labels_from: String,
    /// A name for --fields and the JSON pointer of what it stands for; may be repeated
    #[arg(long, global = true, value_name = "NAME=POINTER", action = ArgAction::Append, value_parser = values::field)]
    field: Vec<(String, String)>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Follows changes
    Watch {
        /// One key, in full, inside the prefix
        #[arg(long, value_name = "K")]
        key: Option<OsString>,
        /// Where it begins: now, after:R, state, state-at-least:R
        #[arg(long, value_name = "MODE", default_value = "state", value_parser = values::start)]
        start: StartMode,
        /// Ends when everything up to and with R is printed
        #[arg(long, value_name = "R", value_parser = values::revision)]
        until_revision: Option<u64>,
        /// Ends after N event lines, initial ones among them
        #[arg(long, value_name = "N", value_parser = values::count)]
        count: Option<u64>,
        /// What follows when it has fallen behind the log
        #[arg(long, value_name = "POLICY", value_enum, default_value_t = Lag::Stop)]
        lag: Lag,
        /// Also prints bookmarks: a revision up to which everything was printed
        #[arg(long)]
        bookmarks: bool,
        /// So many subscriptions at once; with more than one each line says whose it is
        #[arg(long, value_name = "N", default_value = "1", value_parser = values::count)]
        subscribers: u64,
        #[command(flatten)]
        selectors: Selectors,
    },
    /// Key-values in key order
    List {
        /// The state at exactly this revision
        #[arg(long, value_name = "R", value_parser = values::revision)]
        revision: Option<u64>,
        /// At most N key-values; the END line then has a token for --continue
        #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, value_parser = values::limit)]
        limit: usize,
        /// Goes on behind the page that gave this token, at exactly its revision
        #[arg(long = "continue", value_name = "TOKEN", conflicts_with = "revision", value_parser = values::token)]
        continue_token: Option<String>,
        #[command(flatten)]
        selectors: Selectors,
    },
    /// One key-value; exit 3 if absent
    Get {
        key: OsString,
        /// The state at exactly this revision
        #[arg(long, value_name = "R", value_parser = values::revision)]
        revision: Option<u64>,
    },
    /// Revision, window, objects, bytes, state of the feeder
    Status,
    /// What this machine does: an embedded load without etcd, then a table
    Bench {
        /// Keys
        #[arg(long, value_name = "N", default_value = "10000", value_parser = values::count)]
        objects: u64,
        /// Changes to write
        #[arg(long, value_name = "N", default_value = "200000", value_parser = values::count)]
        events: u64,
        /// Subscriptions that read them
        #[arg(long, value_name = "N", default_value = "10", value_parser = values::count)]
        subscribers: u64,
        /// Bytes of a value
        #[arg(long, value_name = "B", default_value = "512", value_parser = values::value_size)]
        value_size: usize,
        /// Each subscription follows its own share of the keys, not all
        #[arg(long)]
        selective: bool,
    },
    /// A tour; with --etcd through that etcd, below /watchcore-demo/ or --prefix
    Demo,
}

#[derive(Args, Debug)]
struct Selectors {
    /// Only values with such labels: a=b, a!=b, a in (x,y), a notin (x,y), a, !a, a>1, a<1, joined by commas
    #[arg(long, value_name = "SELECTOR", value_parser = values::labels)]
    labels: Option<String>,
    /// Only values with such fields: a.b=x, a.b!=x, joined by commas; a.b is the JSON pointer /a/b unless
    /// --field says otherwise (a member with a dot in its name needs --field)
    #[arg(long, value_name = "SELECTOR", value_parser = values::fields)]
    fields: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Lag {
    /// Says what was lost (LAGGED) and ends with exit 5
    Stop,
    /// Says what was lost and goes on at the oldest revision of the log
    Skip,
    /// Says what was lost, then the difference to what was shown, between RESYNC marks
    Resnapshot,
    /// Never says so: the latest change of each key, relative to what was shown
    Conflate,
}

impl From<Lag> for OnLag {
    fn from(lag: Lag) -> OnLag {
        match lag {
            Lag::Stop => OnLag::Stop,
            Lag::Skip => OnLag::SkipToOldest,
            Lag::Resnapshot => OnLag::Resnapshot,
            Lag::Conflate => OnLag::Conflate,
        }
    }
}

fn capacity(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(capacity) => Ok(capacity),
        Err(_) => Err("expected a whole number from 1".to_owned()),
    }
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Watch(Watch),
    List { revision: Option<u64>, limit: usize, token: Option<String>, filter: Filter },
    Get { key: Vec<u8>, revision: Option<u64> },
    Status,
    Bench { objects: u64, events: u64, subscribers: u64, value_size: usize, selective: bool },
    Demo,
}

/// What `watch` is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) start: StartMode,
    pub(crate) until: Option<u64>,
    pub(crate) count: Option<u64>,
    pub(crate) subscribers: u64,
    pub(crate) filter: Filter,
    pub(crate) lag: OnLag,
    pub(crate) bookmarks: bool,
}

/// What the cache is to extract from values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The pointer of the label map, where labels are looked at.
    pub(crate) labels: Option<String>,
    /// Names and pointers.
    pub(crate) fields: Vec<(String, String)>,
}

/// How etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) endpoints: Vec<String>,
    /// `--etcd` stood on the command line.
    pub(crate) asked: bool,
    pub(crate) user: Option<(String, String)>,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert_and_key: Option<(PathBuf, PathBuf)>,
}

/// A command line that makes sense.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) task: Task,
    pub(crate) access: Access,
    pub(crate) prefix: Option<Vec<u8>>,
    pub(crate) attributes: Attributes,
    pub(crate) capacity: usize,
    pub(crate) format: Format,
    pub(crate) timeout: Option<Duration>,
    pub(crate) verbosity: u8,
}

/// Reads the process's command line and environment; ends the process (2, or
/// 0 after help and version) if there is nothing to do.
pub(crate) fn of_process() -> Options {
    read(std::env::args_os(), |name: &str| std::env::var(name).ok()).unwrap_or_else(|error| error.exit())
}

/// The same for any words and environment.
pub(crate) fn read(
    words: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Options, clap::Error> {
    let CommandLine { common, command } = CommandLine::try_parse_from(words)?;
    let usage = |kind, message: String| CommandLine::command().error(kind, message);
    let invalid = |message: String| usage(ErrorKind::ValueValidation, message);

    let asked = common.etcd.is_some();
    let mut endpoints = match common.etcd {
        Some(endpoints) => endpoints,
        None => values::endpoints_of_environment(variable("WATCHCORE_ETCD").as_deref())
            .map_err(|message| invalid(format!("WATCHCORE_ETCD: {message}")))?,
    };
    if endpoints.is_empty() {
        endpoints.push(DEFAULT_ENDPOINT.to_owned());
    }
    let user = common.user.map(|user| values::user(&user, variable("WATCHCORE_PASSWORD"))).transpose();
    let access = Access {
        endpoints,
        asked,
        user: user.map_err(|message| invalid(format!("--user: {message}")))?,
        cacert: common.cacert,
        cert_and_key: common.cert.zip(common.key_file),
    };
    let prefix = common.prefix.map(OsString::into_vec);
    let mut attributes = Attributes { labels: None, fields: common.field };
    let task = match command {
        Command::Watch { key, start, until_revision, count, lag, bookmarks, subscribers, selectors } => {
            let key = key.map(OsString::into_vec);
            let filter = attributes.select(&selectors, &common.labels_from).map_err(invalid)?;
            let lag = lag.into();
            Task::Watch(Watch { key, start, until: until_revision, count, subscribers, filter, lag, bookmarks })
        }
        Command::List { revision, limit, continue_token, selectors } => {
            let filter = attributes.select(&selectors, &common.labels_from).map_err(invalid)?;
            Task::List { revision, limit, token: continue_token, filter }
        }
        Command::Get { key, revision } => Task::Get { key: key.into_vec(), revision },
        Command::Status => Task::Status,
        Command::Bench { objects, events, subscribers, value_size, selective } => {
            Task::Bench { objects, events, subscribers, value_size, selective }
        }
        Command::Demo => Task::Demo,
    };
    if asked || !matches!(task, Task::Bench { .. } | Task::Demo) {
        check_security(&access).map_err(invalid)?;
    }
    if prefix.is_none() && matches!(task, Task::Watch(_) | Task::List { .. } | Task::Status) {
        let message = "--prefix is required: the range to hold and to show; --prefix \"\" is everything";
        return Err(usage(ErrorKind::MissingRequiredArgument, message.to_owned()));
    }
    if let (Task::Watch(Watch { key: Some(key), .. }) | Task::Get { key, .. }, Some(prefix)) = (&task, &prefix)
        && !key.starts_with(prefix)
    {
        let (key, prefix) = (String::from_utf8_lossy(key), String::from_utf8_lossy(prefix));
        return Err(invalid(format!("the key {key:?} is outside the prefix {prefix:?}; keys are given in full")));
    }
    if let Task::Watch(Watch { key: Some(key), .. }) | Task::Get { key, .. } = &task
        && key.is_empty()
    {
        return Err(invalid("the key is empty; etcd has no empty key".to_owned()));
    }
    let Common { capacity, format, timeout, verbose, .. } = common;
    Ok(Options { task, access, prefix, attributes, capacity, format, timeout, verbosity: verbose })
}

/// Schemes and certificates must fit each other.
fn check_security(access: &Access) -> Result<(), String> {
    if access.cert_and_key.is_some() && access.cacert.is_none() {
        return Err("--cert without --cacert: name the authorities that sign the server's certificate".to_owned());
    }
    for endpoint in &access.endpoints {
        let problem = match (endpoint.split_once("://"), &access.cacert) {
            (Some(("https", _)), None) => "is https: name the authorities that sign its certificate with --cacert",
            (Some(("http", _)), Some(_)) => "is http, but --cacert asks for TLS: write https",
            _ => continue,
        };
        return Err(format!("the endpoint {endpoint} {problem}"));
    }
    Ok(())
}

impl Attributes {
    /// The filter of the selectors; what they look at is declared.
    fn select(&mut self, selectors: &Selectors, labels_from: &str) -> Result<Filter, String> {
        let said = |error: watchcore::Error| error.message().to_owned();
        let mut filter = Filter::any();
        if let Some(selector) = &selectors.labels {
            filter = filter.labels(selector).map_err(said)?;
            self.labels = Some(labels_from.to_owned());
        }
        if let Some(selector) = &selectors.fields {
            filter = filter.fields(selector).map_err(said)?;
            for name in values::field_names(selector) {
                self.declare(name)?;
            }
        }
        Ok(filter)
    }

    fn declare(&mut self, name: &str) -> Result<(), String> {
        if self.fields.iter().any(|(known, _)| known == name) {
            return Ok(());
        }
        if name.trim() != name {
            return Err(format!(
                "--fields: the name {name:?} has white space around it. Leave it out, or declare the name with --field"
            ));
        }
        if name.is_empty() {
            return Err("--fields: a term has no name. Write name=value, such as spec.nodeName=x".to_owned());
        }
        self.fields.push((name.to_owned(), values::pointer_of_name(name)));
        Ok(())
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
