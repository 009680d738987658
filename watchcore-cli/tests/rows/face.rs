//! The words of a row over the command line. Those that write go to a fake etcd; `subscribe` starts a `watchcore watch`, and
//! each read is a process of its own. A row that needs another word is not claimed by this face.
//!
//! etcd's revisions are those of the row plus one: an empty etcd is at 1, where the row's cache is at 0. The fake takes a
//! revision from the row, and [`crate::place::line`] takes one off each that a process prints.

use crate::fake::{Change, Fake};
use crate::place::{List, Place, Printed, Question, until};
use crate::script::Machine;
use crate::stream::Stream;
use crate::words::{BOUND, Item, bytes, items, number};
use etcd_client::proto::PbKeyValue;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::thread::JoinHandle;

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
            "start" | "asleep" | "join" => return self.job(&step[0], rest),
            _ => return self.place.read(step, None),
        }
        Ok(Vec::new())
    }

    /// A step on a thread of its own: begun, waited for, ended.
    fn job(&mut self, word: &str, rest: &[String]) -> Printed {
        match word {
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
            _ => match self.jobs.remove(&rest[0]).expect("a job") {
                Job::Wait(name) => return self.step(&["wait".to_owned(), name]),
                Job::Read(job) => return job.join().expect("a job without a panic"),
            },
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
