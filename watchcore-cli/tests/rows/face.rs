//! The words of a row over the command line. Those that write go to a fake etcd; `subscribe` starts a `watchcore watch`, and
//! each read is a process of its own. A row that needs another word is not claimed by this face.
//!
//! etcd's revisions are those of the row plus one: an empty etcd is at 1, where the row's cache is at 0. The fake takes a
//! revision from the row, and [`line`] takes one off each that a process prints.

use crate::fake::{Change, Fake};
use crate::lines::{key_of, object, text, whole};
use crate::run::{Ended, Running, command, members};
use crate::script::Machine;
use crate::stream::Stream;
use crate::words::{BOUND, Item, bytes, items, number};
use etcd_client::proto::PbKeyValue;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a step prints, or the line of the refusal.
pub(crate) type Printed<T = Vec<String>> = Result<T, String>;

/// The members of all lines, in the order in which they stand.
const MEMBERS: &str = "type code message oldest phase reason from to epoch revision oldest current objects bytes state \
    last_error endpoint epoch initial_state_end synthetic key value prev_value create_revision mod_revision version lease \
    count continue";

/// Waits for a condition.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A line of JSON, with the row's revisions.
pub(crate) fn line(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text:?} is no JSON"));
    let mut order = MEMBERS.split_ascii_whitespace();
    for name in members(text) {
        let name = name.trim_end_matches("_base64");
        assert!(order.any(|member| member == name), "{name} stands in another place: {text}");
    }
    for name in ["revision", "create_revision", "mod_revision", "oldest", "current", "from", "to"] {
        if let Some(revision) = value[name].as_u64() {
            value[name] = (revision - 1).into();
        }
    }
    value
}

/// How processes reach etcd, and what all of them are told of the cache.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) etcd: Arc<Fake>,
    prefix: Vec<u8>,
    options: Vec<OsString>,
}

impl Place {
    /// The revision that etcd has now.
    pub(crate) fn current(&self) -> u64 {
        self.etcd.revision() - 1
    }

    /// A process, with words and options of the row.
    pub(crate) fn start(&self, name: &str, words: &[OsString], question: &Question) -> Running {
        let mut process = command(&[name, "--format", "json", "--etcd", &self.etcd.url(), "--prefix"]);
        process.arg(OsStr::from_bytes(question.prefix.as_deref().unwrap_or(&self.prefix)));
        process.args(&self.options).args(&question.options).args(words);
        Running::start(process)
    }

    /// What a process printed; `asked` is the revision that it was asked for.
    pub(crate) fn printed(&self, ended: Ended, asked: Option<u64>) -> Printed<Vec<Value>> {
        if ended.code == Some(2) {
            assert_eq!(ended.out, "", "a usage error prints nothing there");
            return Err("INVALID_ARGUMENT".to_owned());
        }
        let lines: Vec<Value> = ended.lines().into_iter().map(line).collect();
        match lines.last().filter(|last| last["type"] == "ERROR") {
            Some(error) => Err(self.refusal(error, ended, asked)),
            None => {
                ended.is(0);
                Ok(lines)
            }
        }
    }

    /// The refusal of an ERROR line, after which the process ended. The line does not say what was asked nor what is there
    /// now; its message names the first.
    pub(crate) fn refusal(&self, error: &Value, ended: Ended, asked: Option<u64>) -> String {
        let code = text(error, "code");
        let exits = [("COMPACTED", 5), ("LAGGED", 5), ("FUTURE_REVISION", 4), ("TIMEOUT", 4)];
        let exit = exits.iter().find(|(name, _)| *name == code).map_or(1, |(_, exit)| *exit);
        let ended = ended.is(exit);
        let message = text(error, "message");
        assert!(ended.err.contains(&format!("error: {message}\n")), "{error}, but: {}", ended.err);
        let asked = asked.unwrap_or_default();
        let oldest = || error["oldest"].as_u64().map_or("unknown".to_owned(), |oldest| oldest.to_string());
        let refusal = match code {
            "COMPACTED" => format!("COMPACTED asked {asked} oldest {} current {}", oldest(), self.current()),
            "FUTURE_REVISION" => format!("FUTURE_REVISION asked {asked} current {}", self.current()),
            _ => return format!("{code} {message}"),
        };
        assert!(message.contains(&format!("{}", asked + 1)), "{asked} + 1 is not in: {message}");
        refusal
    }

    /// What needs no subscription.
    fn read(&self, step: &[String], patience: Option<Duration>) -> Printed {
        let (word, rest) = (&*step[0], &step[1..]);
        match word {
            "get" => self.get(bytes(&rest[0]), &Question::of(&rest[1..]), patience),
            "list" | "count" => {
                let question = Question::of(rest);
                match &question.key {
                    // A range of one key is asked for by `get`.
                    Some(key) => self.key(word, key.clone(), &question),
                    None if word == "list" => self.page(&mut List { question, token: None }),
                    None => {
                        let ended = self.start(word, question.at().as_slice(), &question).end();
                        let counted = self.printed(ended, question.exact)?;
                        Ok(vec![format!("{}: {}", whole(&counted[0], "revision"), whole(&counted[0], "count"))])
                    }
                }
            }
            "diff" => {
                let (from, to): (u64, u64) = (number(&rest[0]), number(&rest[1]));
                let question = Question::of(&rest[2..]);
                let words = [from, to].map(|revision| (revision + 1).to_string().into());
                let ended = self.start(word, &words, &question).end();
                // Only one of the two is refused.
                let asked = if to > self.current() { to } else { from };
                let lines = self.printed(ended, Some(asked))?;
                let (end, events) = lines.split_last().expect("an END line");
                assert_eq!((&end["type"], whole(end, "count")), (&"END".into(), events.len() as u64));
                assert_eq!((whole(end, "from"), whole(end, "to")), (from, to));
                Ok(events.iter().map(|event| crate::lines::event(event, false, false)).collect())
            }
            "oldest" => {
                let first = Question { exact: Some(0), limit: Some(1), ..Question::default() };
                // How far back etcd's history reaches, as who asks for its beginning learns it.
                match self.page(&mut List { question: first, token: None }) {
                    Ok(_) => Ok(vec!["1".to_owned()]),
                    Err(refusal) => {
                        let oldest = refusal.split(' ').skip_while(|word| *word != "oldest").nth(1);
                        Ok(vec![oldest.unwrap_or(&refusal).to_owned()])
                    }
                }
            }
            "state" | "current" | "objects" => {
                let ended = self.start("status", &[], &Question::default()).end();
                let status = self.printed(ended, None)?.remove(0);
                let said = &status[word];
                Ok(vec![said.as_str().map_or_else(|| said.to_string(), str::to_owned)])
            }
            word => panic!("this face has no {word}"),
        }
    }

    /// One key-value. The command prints no revision: it is the one that was asked for, or what etcd has now.
    fn get(&self, key: Vec<u8>, question: &Question, patience: Option<Duration>) -> Printed {
        let at = question.exact.unwrap_or_else(|| self.current());
        if question.is_filtered {
            // Which command takes a filter lists: the first of the keys that begin with it is the key itself.
            let mut list = List { question: question.clone(), token: None };
            list.question.prefix = Some(key.clone());
            let (items, end) = self.listed(&mut list)?;
            let first = items.first().filter(|item| bytes(&key_of(item)) == key);
            let found = first.map_or("none".to_owned(), |item| object(item, question.full));
            return Ok(vec![format!("{}: {found}", whole(&end, "revision"))]);
        }
        let mut words = vec![OsString::from_vec(key)];
        words.extend(question.at());
        words.extend(patience.map(|time| format!("--timeout={}s", time.as_secs()).into()));
        let ended = self.start("get", &words, question).end();
        if ended.code == Some(3) {
            let ended = ended.is(3);
            assert_eq!(ended.out, "", "what is not there is not printed");
            assert!(ended.err.contains(&format!("does not exist at revision {}.", at + 1)), "{}", ended.err);
            return Ok(vec![format!("{at}: none")]);
        }
        let lines = self.printed(ended, question.exact)?;
        let [item] = &*lines else { panic!("not one line: {lines:?}") };
        Ok(vec![format!("{at}: {}", object(item, question.full))])
    }

    /// A list or a count of one key.
    fn key(&self, word: &str, key: Vec<u8>, question: &Question) -> Printed {
        let found = self.get(key, question, None)?.remove(0);
        let (at, item) = found.split_once(": ").expect("REVISION: ITEM");
        let item = Some(item.to_owned()).filter(|item| item != "none");
        Ok(match word {
            "list" => [format!("at {at}")].into_iter().chain(item).collect(),
            _ => vec![format!("{at}: {}", u64::from(item.is_some()))],
        })
    }

    /// Key-values, and the END line. That has the token to go on with, or the ERROR line has one.
    fn listed(&self, list: &mut List) -> Printed<(Vec<Value>, Value)> {
        let question = &list.question;
        let mut words: Vec<OsString> = question.limit.iter().map(|limit| format!("--limit={limit}").into()).collect();
        match &list.token {
            Some(token) => words.push(format!("--continue={token}").into()),
            None => words.extend(question.at()),
        }
        let ended = self.start("list", &words, question).end();
        let last = ended.lines().last().map(|last| line(last));
        list.token = last.and_then(|last| last["continue"].as_str().map(str::to_owned));
        let mut lines = self.printed(ended, question.exact)?;
        let end = lines.pop().expect("an END line");
        assert_eq!((&end["type"], whole(&end, "count")), (&"END".into(), lines.len() as u64));
        Ok((lines, end))
    }

    /// A page of a list, which goes on after it.
    fn page(&self, list: &mut List) -> Printed {
        let (items, end) = self.listed(list)?;
        let question = &mut list.question;
        // What follows is of the same revision, whatever etcd has then.
        question.exact = Some(whole(&end, "revision"));
        let mut lines = vec![format!("at {}", whole(&end, "revision"))];
        lines.extend(items.iter().map(|item| object(item, question.full)));
        if list.token.is_some() {
            // A page does not say how many remain. Without a limit the next one has them all.
            let question = Question { limit: None, ..list.question.clone() };
            let mut rest = List { question, token: list.token.clone() };
            let remain = if rest.question.is_filtered { None } else { Some(self.listed(&mut rest)?.0.len()) };
            lines.push(remain.map_or("more".to_owned(), |count| format!("more, {count} remain")));
        }
        Ok(lines)
    }
}

/// Options of a read or a subscription.
#[derive(Clone, Default)]
pub(crate) struct Question {
    pub(crate) prefix: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
    options: Vec<OsString>,
    is_filtered: bool,
    exact: Option<u64>,
    limit: Option<u64>,
    full: bool,
    name: Option<String>,
    /// A subscription prints its bookmarks.
    pub(crate) bookmarks: bool,
}

impl Question {
    pub(crate) fn of(words: &[String]) -> Question {
        let mut all = Question::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut next = || words.next().expect("one more word");
            match &**word {
                "key" => all.key = Some(bytes(next())),
                "prefix" => all.prefix = Some(bytes(next())),
                "where-labels" | "where-fields" => {
                    let option = word.replace("where-", "--");
                    all.options.extend([option.into(), OsString::from_vec(bytes(next()))]);
                    all.is_filtered = true;
                }
                "lag" => all.options.extend(["--lag".into(), next().into()]),
                "exact" => all.exact = Some(number(next())),
                "limit" => all.limit = Some(number(next())),
                "full" => all.full = true,
                "as" => all.name = Some(next().clone()),
                // The command's time begins with its process.
                "timeout" => drop(next()),
                // How often they come is the command's.
                "bookmarks" => (all.bookmarks, _) = (true, next()),
                word => panic!("this face has no {word}"),
            }
        }
        all
    }

    /// The revision that is asked for.
    fn at(&self) -> Option<OsString> {
        self.exact.map(|revision| format!("--revision={}", revision + 1).into())
    }
}

/// A list that is read page by page.
struct List {
    question: Question,
    token: Option<String>,
}

/// A step that goes on while others run.
enum Job {
    /// A subscription's process reads in any case: its step is run when it is joined.
    Wait(String),
    Read(JoinHandle<Printed>),
}

/// A fake etcd, and the processes that follow it.
pub(crate) struct Cli {
    place: Place,
    streams: BTreeMap<String, Stream>,
    lists: BTreeMap<String, List>,
    snapshots: BTreeMap<String, String>,
    jobs: BTreeMap<String, Job>,
    /// How many clients of etcd had come to a wait when the last job began.
    before: u64,
    /// The number of the present history, from 1.
    history: u64,
}

impl Default for Cli {
    fn default() -> Cli {
        let place = Place { etcd: Arc::new(Fake::start()), prefix: b"/".to_vec(), options: Vec::new() };
        let (streams, lists, snapshots, jobs) = Default::default();
        Cli { place, streams, lists, snapshots, jobs, before: 0, history: 1 }
    }
}

impl Machine for Cli {
    fn run(&mut self, step: &[String]) -> Vec<String> {
        self.step(step).unwrap_or_else(|refusal| vec![refusal])
    }
}

impl Cli {
    fn step(&mut self, step: &[String]) -> Printed {
        let rest = &step[1..];
        let now = (self.history, self.place.current());
        match &*step[0] {
            "cache" => self.make(rest),
            // As etcd refuses it.
            "compact" if number::<u64>(&rest[0]) > now.1 => {
                return Err(format!("FUTURE_REVISION asked {} current {}", rest[0], now.1));
            }
            "apply" | "load" | "resync" | "progress" | "compact" => self.write(&step[0], number(&rest[0]), &rest[1..]),
            "subscribe" => {
                let stream = Stream::open(&self.place, self.history, &rest[1..])?;
                self.streams.insert(rest[0].clone(), stream);
            }
            "close" => self.stream(&rest[0]).close(),
            "poll" | "drain" => {
                let full = rest.last().is_some_and(|word| word == "full");
                // A drain takes all, however it is divided.
                let most = rest.get(1).filter(|word| *word != "full" && step[0] == "poll");
                let most = most.map_or(usize::MAX, |word| number(word));
                let (place, stream) = (self.place.clone(), self.stream(&rest[0]));
                return Ok(stream.take(&place, now, step[0] == "poll", most, full));
            }
            "wait" => {
                let (place, stream) = (self.place.clone(), self.stream(&rest[0]));
                return Ok(vec![stream.wait(&place, now).to_owned()]);
            }
            "position" => return Ok(vec![self.stream(&rest[0]).position.to_string()]),
            "epoch" if !rest.is_empty() => return Ok(vec![self.stream(&rest[0]).history.to_string()]),
            "list" if rest.iter().any(|word| word == "as") => {
                let question = Question::of(rest);
                let name = question.name.clone().expect("a name");
                return self.page(name, List { question, token: None });
            }
            "next" => {
                let list = self.lists.remove(&rest[0]).expect("a list");
                return self.page(rest[0].clone(), list);
            }
            // The revision is what a snapshot is there: etcd has its state for each process that asks.
            "snapshot" => {
                let counted = self.place.read(&["count".to_owned()], None)?.remove(0);
                let revision = counted.split(':').next().unwrap_or_default().to_owned();
                self.snapshots.insert(rest[0].clone(), revision.clone());
                return Ok(vec![format!("at {revision}")]);
            }
            "in" => {
                let exact = ["exact".to_owned(), self.snapshots[&rest[0]].clone()];
                return self.place.read(&[&rest[1..], &exact].concat(), None);
            }
            "start" => {
                self.before = self.place.etcd.waits();
                let job = match &*rest[1] {
                    "wait" => Job::Wait(rest[2].clone()),
                    _ => {
                        let (place, step) = (self.place.clone(), rest[1..].to_vec());
                        Job::Read(std::thread::spawn(move || place.read(&step, Some(BOUND))))
                    }
                };
                self.jobs.insert(rest[0].clone(), job);
            }
            // A process waits when etcd has refused it a revision to come; a subscription's process did before it was open.
            "asleep" => {
                let is_asleep = |job: &Job| matches!(job, Job::Wait(_));
                until("it waits", || self.jobs.values().all(is_asleep) || self.place.etcd.waits() > self.before);
            }
            "join" => match self.jobs.remove(&rest[0]).expect("a job") {
                Job::Wait(name) => return self.step(&["wait".to_owned(), name]),
                Job::Read(job) => return job.join().expect("a job without a panic"),
            },
            _ => return self.place.read(step, None),
        }
        Ok(Vec::new())
    }

    fn make(&mut self, words: &[String]) {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut next = || words.next().expect("one more word");
            let option = match &**word {
                "prefix" => {
                    self.place.prefix = bytes(next());
                    continue;
                }
                // etcd is empty before its listing.
                "load" => continue,
                // An index changes no answer, and this face declares none.
                "index" => {
                    if next() != "key" {
                        next();
                    }
                    continue;
                }
                "capacity" => ["--capacity".to_owned(), next().clone()],
                "labels" => ["--labels-from".to_owned(), next().clone()],
                "field" => ["--field".to_owned(), format!("{}={}", next(), next())],
                word => panic!("this face has no {word}"),
            };
            self.place.options.extend(option.map(OsString::from));
        }
    }

    fn write(&mut self, word: &str, revision: u64, words: &[String]) {
        let (etcd, revision) = (self.place.etcd.clone(), revision + 1);
        match word {
            "apply" => {
                let items: Vec<(Vec<u8>, Option<Item>)> = words.iter().map(|text| changed(text)).collect();
                let changes = items.iter().map(|(key, item)| match item {
                    None => Change::Delete(key),
                    Some(item) if item.numbers.is_empty() => Change::Put(key, &item.value),
                    Some(item) => Change::Exact(key_value(item)),
                });
                etcd.apply(revision, &changes.collect::<Vec<_>>());
            }
            "progress" => etcd.progress(revision),
            "compact" => etcd.compact(revision),
            "load" => etcd.replace(revision, items(words).iter().map(key_value).collect(), false),
            _ => {
                let is_other = match &*words[0] {
                    "Compacted" => false,
                    "HistoryReset" => true,
                    reason => panic!("no etcd makes a resync {reason}"),
                };
                let (before, open) = (etcd.waits(), self.streams.values().filter(|stream| stream.is_open()).count());
                etcd.replace(revision, items(&words[1..]).iter().map(key_value).collect(), is_other);
                self.history += 1;
                until("each watch follows again", || etcd.waits() >= before + open as u64);
            }
        }
    }

    fn stream(&mut self, name: &str) -> &mut Stream {
        self.streams.get_mut(name).unwrap_or_else(|| panic!("{name} is no subscription"))
    }

    fn page(&mut self, name: String, mut list: List) -> Printed {
        let printed = self.place.page(&mut list);
        self.lists.insert(name, list);
        printed
    }
}

/// A change of a row: the key, and what is put there.
fn changed(text: &str) -> (Vec<u8>, Option<Item>) {
    match text.strip_prefix('-') {
        Some(key) => (bytes(key), None),
        None => {
            let item = Item::new(text);
            (item.key.clone(), Some(item))
        }
    }
}

/// As etcd has it.
fn key_value(item: &Item) -> PbKeyValue {
    let record = item.record();
    PbKeyValue {
        key: item.key.clone(),
        value: item.value.clone(),
        create_revision: record.create_revision as i64 + 1,
        mod_revision: record.mod_revision as i64 + 1,
        version: record.version as i64,
        lease: record.lease,
    }
}
