//! Parses and checks the command line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use super::access::{self, Access};
use super::examples;
use super::serve::flags::Flags;
use super::serve::settings::{CommonOptions, Serve};
use super::values::{self, StartMode};
use watchcore::{Filter, OnLag};

/// The form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people; may change.
    Text,
    /// One JSON object per line.
    Json,
    /// No line per event.
    Quiet,
}

#[derive(Parser, Debug)]
#[command(
    name = "watchcore",
    version,
    about = "Looks into a live etcd: follows changes, lists, gets, counts and compares at any revision of its history.",
    after_help = examples::ALL,
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
    #[arg(long, global = true, value_name = "URL[,URL…]", value_delimiter = ',', value_parser = values::endpoint, value_hint = ValueHint::Url)]
    etcd: Option<Vec<String>>,
    /// The user of etcd; also from WATCHCORE_USER, a password also from WATCHCORE_PASSWORD
    #[arg(long, global = true, value_name = "NAME[:PASSWORD]", value_hint = ValueHint::Other)]
    user: Option<String>,
    /// Authorities (PEM) that sign the server's certificate, if the system's do not; also from WATCHCORE_CACERT
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cacert: Option<PathBuf>,
    /// The client's certificate (PEM); also from WATCHCORE_CERT
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cert: Option<PathBuf>,
    /// The client's private key (PEM); also from WATCHCORE_KEY_FILE
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
    /// The range that is held and shown: the keys that begin with P, such as /registry/pods/; "" is every key
    #[arg(long, global = true, value_name = "P", value_hint = ValueHint::Other)]
    prefix: Option<OsString>,
    /// Events that the log holds: how far a watch may fall behind [default: 65536]
    #[arg(long, global = true, value_name = "N", value_parser = values::capacity)]
    capacity: Option<usize>,
    /// The form of standard output; quiet: only the summary
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Gives up (exit 4) when not done after this: 500ms, 10s, 5m
    #[arg(long, global = true, value_name = "D", value_parser = values::duration)]
    timeout: Option<Duration>,
    /// Logs on standard error: -v what the feeder does, -vv each step; RUST_LOG adds to it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// The JSON pointer of the label map in a value, for --labels
    #[arg(long, global = true, value_name = "POINTER", default_value = "/metadata/labels", value_parser = values::labels_pointer)]
    labels_from: String,
    /// A name for --fields and its JSON pointer; may be repeated
    #[arg(long, global = true, value_name = "NAME=POINTER", action = ArgAction::Append, value_parser = values::field)]
    field: Vec<(String, String)>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Follows changes
    #[command(after_help = examples::WATCH)]
    Watch {
        /// A single key, in full; without --prefix nothing else is requested
        #[arg(long, value_name = "K", value_hint = ValueHint::Other)]
        key: Option<OsString>,
        /// The start: now, after:R, state, state-at-least:R
        #[arg(long, value_name = "MODE", default_value = "state", value_parser = values::start)]
        start: StartMode,
        /// Ends when everything up to and including R is printed
        #[arg(long, value_name = "R", value_parser = values::revision)]
        until_revision: Option<u64>,
        /// Ends after N event lines, including initial ones
        #[arg(long, value_name = "N", value_parser = values::count)]
        count: Option<u64>,
        /// The reaction to falling behind the log
        #[arg(long, value_name = "POLICY", value_enum, default_value_t = Lag::Stop)]
        lag: Lag,
        /// Also prints bookmarks: a revision up to which everything was printed
        #[arg(long)]
        bookmarks: bool,
        /// The number of concurrent subscriptions; with more than one each line says which it is from
        #[arg(long, value_name = "N", default_value = "1", value_parser = values::count)]
        subscribers: u64,
        #[command(flatten)]
        selectors: Selectors,
        #[command(flatten)]
        shape: Shape,
    },
    /// Prints key-values in key order
    #[command(after_help = examples::LIST)]
    List {
        /// The state at exactly this revision
        #[arg(long, value_name = "R", value_parser = values::revision)]
        revision: Option<u64>,
        /// At most N key-values; if keys remain, the output has a token for --continue
        #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, value_parser = values::limit)]
        limit: usize,
        /// Continues after the page that gave this token, at exactly its revision
        #[arg(long = "continue", value_name = "TOKEN", conflicts_with = "revision", value_parser = values::token, value_hint = ValueHint::Other)]
        continue_token: Option<String>,
        #[command(flatten)]
        selectors: Selectors,
        #[command(flatten)]
        shape: Shape,
    },
    /// Prints one key-value; exit 3 if it is absent
    #[command(after_help = examples::GET)]
    Get {
        /// The key, in full; nothing else is requested
        #[arg(value_hint = ValueHint::Other)]
        key: OsString,
        /// The state at exactly this revision
        #[arg(long, value_name = "R", value_parser = values::revision)]
        revision: Option<u64>,
    },
    /// Prints how many keys there are
    #[command(after_help = examples::COUNT)]
    Count {
        /// The state at exactly this revision
        #[arg(long, value_name = "R", value_parser = values::revision)]
        revision: Option<u64>,
        #[command(flatten)]
        selectors: Selectors,
    },
    /// Prints what changed between two revisions, once for each key
    #[command(after_help = examples::DIFF)]
    Diff {
        /// The earlier revision
        #[arg(value_name = "R1", value_parser = values::revision)]
        from: u64,
        /// The later revision; the newest by default
        #[arg(value_name = "R2", value_parser = values::revision)]
        to: Option<u64>,
        #[command(flatten)]
        selectors: Selectors,
        #[command(flatten)]
        shape: Shape,
    },
    /// Prints revision, window, objects, bytes and the state of the feeder
    #[command(after_help = examples::STATUS)]
    Status,
    /// Serves lists and watches over HTTP, as the Kubernetes API server does
    #[command(after_help = examples::SERVE)]
    Serve(Box<Flags>),
    /// Measures this machine: an embedded load without etcd, then a table
    #[command(after_help = examples::BENCH)]
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
    /// Shows a tour; with --etcd through that etcd, below /watchcore-demo/ or --prefix
    #[command(after_help = examples::DEMO)]
    Demo,
    /// Prints a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions {
        /// The shell that will read it
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Writes the man pages of this program into a directory
    #[command(after_help = examples::MANUAL)]
    Manual {
        /// The directory; it has to exist
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Watch { .. } => "watch",
            Command::List { .. } => "list",
            Command::Get { .. } => "get",
            Command::Count { .. } => "count",
            Command::Diff { .. } => "diff",
            Command::Status => "status",
            Command::Serve(_) => "serve",
            Command::Bench { .. } => "bench",
            Command::Demo => "demo",
            Command::Completions { .. } => "completions",
            Command::Manual { .. } => "manual",
        }
    }
}

/// The commands that show a range of keys, and so need `--prefix`.
const OF_A_RANGE: [&str; 5] = ["watch", "list", "count", "diff", "status"];

#[derive(Args, Debug)]
struct Shape {
    /// Prints keys without their values (in JSON without value and prev_value)
    #[arg(long)]
    keys_only: bool,
}

#[derive(Args, Debug)]
struct Selectors {
    /// Only values with such labels: a=b, a!=b, a in (x,y), a notin (x,y), a, !a, a>1, a<1, joined by commas
    #[arg(long, value_name = "SELECTOR", value_parser = values::labels, value_hint = ValueHint::Other)]
    labels: Option<String>,
    /// Only values with such fields: a.b=x, a.b!=x, joined by commas; a.b is the JSON pointer /a/b unless
    /// --field says otherwise (a member with a dot in its name needs --field)
    #[arg(long, value_name = "SELECTOR", value_parser = values::fields, value_hint = ValueHint::Other)]
    fields: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Lag {
    /// Reports what was lost (LAGGED) and ends with exit 5
    Stop,
    /// Reports what was lost and continues at the oldest revision of the log
    Skip,
    /// Reports what was lost, then the difference to what was printed, between RESYNC marks
    Resnapshot,
    /// Never reports a loss: prints the latest change of each key, relative to what was printed
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

/// The command to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Watch(Watch),
    List { revision: Option<u64>, limit: usize, token: Option<String>, filter: Filter },
    Get { key: Vec<u8>, revision: Option<u64> },
    Count { revision: Option<u64>, filter: Filter },
    Diff { from: u64, to: Option<u64>, filter: Filter },
    Status,
    Serve(Box<Serve>),
    Bench { objects: u64, events: u64, subscribers: u64, value_size: usize, selective: bool },
    Demo,
    Completions(Shell),
    Manual(PathBuf),
}

/// The options of `watch`.
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

/// The attributes that the cache extracts from values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// The pointer of the label map, if labels are selected by.
    pub(crate) labels: Option<String>,
    /// Names and pointers of fields.
    pub(crate) fields: Vec<(String, String)>,
}

/// A valid command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) task: Task,
    pub(crate) access: Access,
    pub(crate) prefix: Option<Vec<u8>>,
    pub(crate) attributes: Attributes,
    pub(crate) capacity: usize,
    pub(crate) format: Format,
    /// Whether values are omitted from the output.
    pub(crate) keys_only: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) verbosity: u8,
    /// The value of RUST_LOG, if set.
    pub(crate) log: Option<String>,
}

/// The description of the command line.
pub(crate) fn command() -> clap::Command {
    CommandLine::command()
}

/// Parses the process's command line and environment. Exits with 2, or with 0 after help and version, if there is no
/// command to run.
pub(crate) fn of_process() -> Options {
    read(std::env::args_os(), |name: &str| std::env::var_os(name)).unwrap_or_else(|error| error.exit())
}

/// Parses a given command line and environment.
pub(crate) fn read(
    words: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Options, clap::Error> {
    let words: Vec<OsString> = words.into_iter().collect();
    let CommandLine { common, command } =
        CommandLine::try_parse_from(&words).map_err(|error| with_advice(error, &words))?;
    let name = command.name();
    let usage = |kind, message: String| usage(name, kind, message);
    let invalid = |message: String| usage(ErrorKind::ValueValidation, message);

    let given = access::Given {
        etcd: common.etcd,
        file: None,
        user: common.user,
        cacert: common.cacert,
        cert: common.cert,
        key_file: common.key_file,
    };
    let mut prefix = common.prefix.map(OsString::into_vec);
    let mut attributes = Attributes { labels: None, fields: common.field };
    let mut select = |selectors: &Selectors| attributes.select(selectors, &common.labels_from).map_err(invalid);
    let mut keys_only = false;
    let task = match command {
        Command::Watch { key, start, until_revision, count, lag, bookmarks, subscribers, selectors, shape } => {
            keys_only = shape.keys_only;
            let (key, filter, lag) = (key.map(OsString::into_vec), select(&selectors)?, lag.into());
            Task::Watch(Watch { key, start, until: until_revision, count, subscribers, filter, lag, bookmarks })
        }
        Command::List { revision, limit, continue_token, selectors, shape } => {
            keys_only = shape.keys_only;
            Task::List { revision, limit, token: continue_token, filter: select(&selectors)? }
        }
        Command::Get { key, revision } => Task::Get { key: key.into_vec(), revision },
        Command::Count { revision, selectors } => Task::Count { revision, filter: select(&selectors)? },
        Command::Diff { from, to, selectors, shape } => {
            keys_only = shape.keys_only;
            if let Some(to) = to.filter(|to| *to < from) {
                return Err(invalid(format!(
                    "{from} is after {to}: give the earlier revision first, diff {to} {from}"
                )));
            }
            Task::Diff { from, to, filter: select(&selectors)? }
        }
        Command::Status => Task::Status,
        Command::Serve(flags) => {
            let (access, prefix, capacity) = (given.clone(), prefix.clone(), common.capacity);
            let (labels, fields) = (common.labels_from, std::mem::take(&mut attributes.fields));
            let common = CommonOptions { access, prefix, capacity, labels, fields };
            Task::Serve(Box::new(Serve { flags: *flags, common }))
        }
        Command::Bench { objects, events, subscribers, value_size, selective } => {
            Task::Bench { objects, events, subscribers, value_size, selective }
        }
        Command::Demo => Task::Demo,
        Command::Completions { shell } => Task::Completions(shell),
        Command::Manual { directory } => Task::Manual(directory),
    };
    // Commands that need no etcd ignore the settings for reaching one, unless `--etcd` is given.
    let asked = given.etcd.is_some() && !matches!(task, Task::Serve(_));
    let without =
        matches!(task, Task::Serve(_) | Task::Bench { .. } | Task::Demo | Task::Completions(_) | Task::Manual(_));
    let access =
        if asked || !without { access::resolve(given, &variable).map_err(invalid)? } else { Access::default() };
    if let Task::Watch(Watch { key: Some(key), .. }) | Task::Get { key, .. } = &task {
        check_key(key, prefix.as_deref()).map_err(invalid)?;
        // A key is also a prefix that contains it.
        prefix = prefix.or_else(|| Some(key.clone()));
    }
    if prefix.is_none() && OF_A_RANGE.contains(&name) {
        let or_key = if name == "watch" { ", or watch a single key with --key" } else { "" };
        let message = format!(
            "--prefix is required: the keys to show, such as --prefix /registry/pods/. --prefix \"\" is every key{or_key}"
        );
        return Err(usage(ErrorKind::MissingRequiredArgument, message));
    }
    let Common { format, timeout, verbose, .. } = common;
    let capacity = common.capacity.unwrap_or(values::CAPACITY);
    let log = variable("RUST_LOG").map(|directives| directives.to_string_lossy().into_owned());
    let log = log.filter(|directives| !directives.trim().is_empty());
    Ok(Options { task, access, prefix, attributes, capacity, format, keys_only, timeout, verbosity: verbose, log })
}

/// A usage error of a command.
fn usage(name: &str, kind: ErrorKind, message: String) -> clap::Error {
    let mut all = CommandLine::command();
    all.build();
    match all.find_subcommand_mut(name) {
        Some(command) => command.error(kind, message),
        None => all.error(kind, message),
    }
}

/// Adds advice to the error about an unexpected word: most often it is the range, which etcdctl takes without an option
/// name.
fn with_advice(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let of_a_range = words.iter().any(|word| OF_A_RANGE.iter().any(|name| word.as_os_str() == *name));
    let word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if !word.starts_with('-') => word.clone(),
        _ => return error,
    };
    if error.kind() == ErrorKind::UnknownArgument && of_a_range {
        let advice = format!("the keys to show are named by an option: --prefix {word}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    error
}

fn check_key(key: &[u8], prefix: Option<&[u8]>) -> Result<(), String> {
    if key.is_empty() {
        return Err("the key is empty; etcd has no empty key".to_owned());
    }
    match prefix.filter(|prefix| !key.starts_with(prefix)) {
        None => Ok(()),
        Some(prefix) => {
            let (key, prefix) = (String::from_utf8_lossy(key), String::from_utf8_lossy(prefix));
            Err(format!("the key {key:?} is outside the prefix {prefix:?}; keys are given in full"))
        }
    }
}

impl Attributes {
    /// Builds the filter of the selectors, and declares the attributes that they need.
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
