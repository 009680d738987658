//! The command line: what can be given, and what is made of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};

use super::output::Format;
use super::values::{self, StartMode};

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
    #[command(flatten)]
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
    #[arg(long, global = true, hide = true)]
    labels_from: Option<OsString>,
    #[arg(long, global = true, hide = true, action = ArgAction::Append)]
    field: Vec<OsString>,
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
        /// When it falls behind the log: stop ends it (exit 5)
        #[arg(long, value_name = "POLICY", default_value = "stop")]
        lag: Lag,
        /// Also prints bookmarks: a revision up to which everything was printed
        #[arg(long)]
        bookmarks: bool,
        #[arg(long, hide = true)]
        subscribers: Option<OsString>,
        #[command(flatten)]
        selectors: Selectors,
    },
    /// Key-values in key order
    List {
        /// The state at exactly this revision
        #[arg(long, value_name = "R", value_parser = values::revision)]
        revision: Option<u64>,
        #[arg(long, hide = true)]
        limit: Option<OsString>,
        #[arg(long = "continue", hide = true)]
        continue_token: Option<OsString>,
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
        #[arg(long, value_name = "B", default_value_t = 512)]
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
    #[arg(long, hide = true)]
    labels: Option<OsString>,
    #[arg(long, hide = true)]
    fields: Option<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Lag {
    Stop,
    #[value(hide = true)]
    Skip,
    #[value(hide = true)]
    Resnapshot,
    #[value(hide = true)]
    Conflate,
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
    Watch { key: Option<Vec<u8>>, start: StartMode, until: Option<u64>, count: Option<u64>, bookmarks: bool },
    List { revision: Option<u64> },
    Get { key: Vec<u8>, revision: Option<u64> },
    Status,
    Bench { objects: u64, events: u64, subscribers: u64, value_size: usize, selective: bool },
    Demo,
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
    refuse_unsupported(&common, &command)?;
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
    let task = match command {
        Command::Watch { key, start, until_revision, count, bookmarks, .. } => {
            Task::Watch { key: key.map(OsString::into_vec), start, until: until_revision, count, bookmarks }
        }
        Command::List { revision, .. } => Task::List { revision },
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
    if prefix.is_none() && matches!(task, Task::Watch { .. } | Task::List { .. } | Task::Status) {
        let message = "--prefix is required: the range to hold and to show; --prefix \"\" is everything";
        return Err(usage(ErrorKind::MissingRequiredArgument, message.to_owned()));
    }
    if let (Task::Watch { key: Some(key), .. } | Task::Get { key, .. }, Some(prefix)) = (&task, &prefix)
        && !key.starts_with(prefix)
    {
        let (key, prefix) = (String::from_utf8_lossy(key), String::from_utf8_lossy(prefix));
        return Err(invalid(format!("the key {key:?} is outside the prefix {prefix:?}; keys are given in full")));
    }
    if let Task::Watch { key: Some(key), .. } | Task::Get { key, .. } = &task
        && key.is_empty()
    {
        return Err(invalid("the key is empty; etcd has no empty key".to_owned()));
    }
    let Common { capacity, format, timeout, verbose, .. } = common;
    Ok(Options { task, access, prefix, capacity, format, timeout, verbosity: verbose })
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

/// What the command line knows by name but this version cannot do yet.
fn refuse_unsupported(common: &Common, command: &Command) -> Result<(), clap::Error> {
    let mut found = Vec::new();
    let mut note = |given: bool, name: &'static str| {
        if given {
            found.push(name);
        }
    };
    note(common.labels_from.is_some(), "--labels-from");
    note(!common.field.is_empty(), "--field");
    if let Command::Watch { selectors, .. } | Command::List { selectors, .. } = command {
        note(selectors.labels.is_some(), "--labels");
        note(selectors.fields.is_some(), "--fields");
    }
    match command {
        Command::Watch { subscribers, lag, .. } => {
            note(subscribers.is_some(), "--subscribers");
            note(*lag == Lag::Skip, "--lag skip");
            note(*lag == Lag::Resnapshot, "--lag resnapshot");
            note(*lag == Lag::Conflate, "--lag conflate");
        }
        Command::List { limit, continue_token, .. } => {
            note(limit.is_some(), "--limit");
            note(continue_token.is_some(), "--continue");
        }
        _ => {}
    }
    if found.is_empty() {
        return Ok(());
    }
    let message = format!("not supported by this version: {}", found.join(", "));
    Err(CommandLine::command().error(ErrorKind::ArgumentConflict, message))
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
