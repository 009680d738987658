//! The words of a row that read and need no subscription: a process of `watchcore` for each.

use crate::fake::Fake;
use crate::lines::{event, key_of, object, text, whole};
use crate::run::{Ended, Running, command, members};
use crate::words::{BOUND, bytes, number};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;
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
    pub(crate) prefix: Vec<u8>,
    pub(crate) options: Vec<OsString>,
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
    pub(crate) fn read(&self, step: &[String], timeout: Option<Duration>) -> Printed {
        let (word, rest) = (&*step[0], &step[1..]);
        match word {
            "get" => self.get(bytes(&rest[0]), &Question::of(&rest[1..]), timeout),
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
                Ok(events.iter().map(|line| event(line, false, false)).collect())
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
    fn get(&self, key: Vec<u8>, question: &Question, timeout: Option<Duration>) -> Printed {
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
        words.extend(timeout.map(|time| format!("--timeout={}s", time.as_secs()).into()));
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
    pub(crate) fn page(&self, list: &mut List) -> Printed {
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
    pub(crate) name: Option<String>,
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
pub(crate) struct List {
    pub(crate) question: Question,
    pub(crate) token: Option<String>,
}
