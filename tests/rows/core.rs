//! The words of a cache: contract/README.md, "Steps of the core".

use crate::script::Machine;
use crate::words::*;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;
use watchcore::*;

/// What the steps of a case have made.
#[derive(Default)]
pub(crate) struct Core {
    cache: Option<Cache>,
    writers: Vec<Writer>,
    subscriptions: BTreeMap<String, Subscription>,
    closers: BTreeMap<String, Closer>,
    snapshots: BTreeMap<String, Snapshot>,
    lists: BTreeMap<String, List>,
    jobs: BTreeMap<String, Receiver<Done>>,
    /// The last refusal, and what its step printed before it.
    last: Option<Error>,
    before: Vec<String>,
}

/// What a step on its own thread gives back: the subscription that it has borrowed, and what it printed, first what came
/// before a refusal.
type Done = (Option<(String, Subscription)>, Vec<String>, Printed);

/// Waits for a condition.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < BOUND, "not within {BOUND:?}: {what}");
        std::thread::yield_now();
    }
}

impl Machine for Core {
    fn run(&mut self, step: &[String]) -> Vec<String> {
        let printed = self.step(step);
        let mut lines = std::mem::take(&mut self.before);
        match printed {
            Ok(printed) => lines.extend(printed),
            Err(error) => {
                lines.push(refused(&error));
                self.last = Some(error);
            }
        }
        lines
    }
}

impl Core {
    fn step(&mut self, step: &[String]) -> Printed {
        let mut words = Words(step);
        match words.next() {
            "cache" => self.make(&mut words).map(nothing),
            word @ ("apply" | "load" | "load-behind" | "caught-up" | "resync" | "progress" | "compact") => {
                self.write(word, &mut words).map(nothing)
            }
            "writer" => {
                let writer = self.cache().writer()?;
                self.writers.push(writer);
                Ok(Vec::new())
            }
            "free" => {
                match words.next() {
                    "writer" => drop(self.writers.pop()),
                    "cache" => drop(self.cache.take()),
                    name => drop(self.subscriptions.remove(name)),
                }
                Ok(Vec::new())
            }
            "subscribe" => self.subscribe(&mut words).map(nothing),
            "position" => one(self.subscription(words.next()).position().revision),
            "between" => {
                let (from, to) = words.next().split_once("..").expect("between A..B");
                let bounds = number::<u64>(from)..=number(to);
                let printed = self.step(words.0)?;
                Ok(if matches!(&*printed, [one] if bounds.contains(&number(one))) { Vec::new() } else { printed })
            }
            "message" => {
                let message = self.last.as_ref().expect("a refusal").message();
                let has_all = words.0.iter().all(|part| message.contains(&**part));
                Ok(if has_all { Vec::new() } else { vec![message.to_owned()] })
            }
            "numbers" => one(fields(self.last.as_ref().expect("a refusal"))),
            "codes" => Ok(Code::ALL.iter().filter(|&&code| code != Code::Ok).map(|&code| of_code(code)).collect()),
            "stats" => {
                let (status, stats) = (self.cache().status(), self.cache().stats());
                let all: Vec<String> =
                    words.0.iter().map(|name| statistic(&status, &stats, name).to_string()).collect();
                one(all.join(" "))
            }
            "subscriptions" => Ok(self.cache().subscriptions().iter().map(of_subscription).collect()),
            "token" => one(self.lists[words.next()].token.as_deref().unwrap_or("none")),
            "lag" => {
                let lag = self.subscription(words.next()).lag();
                one(format!("{} events {} revisions", lag.events, lag.revisions))
            }
            "delivered" => one(self.subscription(words.next()).stats().delivered_keys),
            "epoch" => one(match words.maybe() {
                Some(name) => self.subscription(name).position().epoch_number(),
                None => self.cache().position().epoch_number(),
            }),
            "close" => {
                match words.maybe() {
                    Some(name) => self.closers[name].close(),
                    None => self.cache().close(),
                }
                Ok(Vec::new())
            }
            "start" => {
                let (name, step) = (words.next(), words.0.to_vec());
                self.start(name, step);
                Ok(Vec::new())
            }
            "join" => self.join(words.next()),
            "asleep" => {
                let (cache, count) = (self.cache(), words.number::<u64>());
                until("calls sleep", || cache.stats().waiting >= count);
                Ok(Vec::new())
            }
            "next" => {
                let name = words.next();
                let list = self.lists[name].clone();
                self.page(list, Some(name.to_owned()))
            }
            "list" => {
                let (list, name) = words.list()?;
                self.page(list, name)
            }
            "snapshot" => {
                let snapshot = self.cache().snapshot()?;
                let at = format!("at {}", snapshot.revision());
                self.snapshots.insert(words.next().to_owned(), snapshot);
                one(at)
            }
            "in" => {
                let snapshot = &self.snapshots[words.next()];
                inside(snapshot, &mut words)
            }
            _ if ["poll", "drain", "batches", "wait"].contains(&&*step[0]) => {
                let mut lines = Vec::new();
                let end = taken(self.subscription(&step[1]), &step[0], &step[2..], &mut lines);
                self.before = lines;
                end.map(nothing)
            }
            _ => read(self.cache(), step),
        }
    }

    fn write(&mut self, word: &str, words: &mut Words) -> Result<()> {
        if word == "caught-up" {
            self.writer().caught_up();
            return Ok(());
        }
        let revision = words.number();
        match word {
            "load-behind" => {
                let mut loading = self.writer().begin_load(revision)?;
                self.writer().load_more(&mut loading, items(words.0).iter().map(Item::record))?;
                self.writer().finish_load_behind(loading)
            }
            "apply" => self.apply(revision, words.0),
            "load" => self.writer().load(revision, items(words.0).iter().map(Item::record)),
            "resync" => {
                let reason = words.next().parse().expect("a reason");
                self.writer().resync(revision, items(words.0).iter().map(Item::record), reason).map(drop)
            }
            "progress" => self.writer().progress(revision),
            _ => self.writer().compact(revision),
        }
    }

    fn make(&mut self, words: &mut Words) -> Result<()> {
        self.writers.clear();
        let (mut prefix, mut options) = (b"/".to_vec(), Vec::new());
        while let Some(word) = words.maybe() {
            if word == "prefix" {
                prefix = words.key();
                continue;
            }
            let count = match word {
                "load" => 0,
                "field" | "segment" => 2,
                "index" if words.0[0] == "key" => 1,
                "index" => 2,
                _ => 1,
            };
            let (more, rest) = words.0.split_at(count);
            words.0 = rest;
            options.push((word, more));
        }
        let mut builder = Cache::builder(prefix);
        for (word, more) in options {
            builder = match (word, more) {
                ("name", [name]) => builder.name(name),
                ("load", []) => builder.expect_load(true),
                ("capacity", [events]) => builder.capacity(number(events)),
                ("bytes", [bytes]) => builder.capacity_bytes(number(bytes)),
                ("max-key", [bytes]) => builder.max_key_bytes(number(bytes)),
                ("max-value", [bytes]) => builder.max_value_bytes(number(bytes)),
                ("labels", [pointer]) => builder.labels(Labels::json(pointer)?),
                ("field", [name, pointer]) => builder.field(Attribute::json(name, pointer)?),
                ("segment", [name, depth]) => builder.field(Attribute::key_segment(name, number(depth))),
                ("index", [kind]) if kind == "key" => builder.index(Index::key()),
                ("index", [kind, depth]) if kind == "prefix" => builder.index(Index::prefix(number(depth))),
                ("index", [kind, name]) if kind == "label" => builder.index(Index::label(name)),
                ("index", [kind, name]) if kind == "field" => builder.index(Index::field(name)),
                _ => panic!("{word}?"),
            };
        }
        self.cache = Some(builder.build()?);
        Ok(())
    }

    pub(crate) fn cache(&mut self) -> &Cache {
        self.cache.get_or_insert_with(|| Cache::builder("/").build().expect("a cache"))
    }

    fn writer(&mut self) -> &mut Writer {
        if self.writers.is_empty() {
            let writer = self.cache().writer().expect("a writer");
            self.writers.push(writer);
        }
        &mut self.writers[0]
    }

    fn apply(&mut self, revision: u64, changes: &[String]) -> Result<()> {
        enum Owned {
            Delete(Vec<u8>),
            Put(Item),
        }
        let owned = changes.iter().map(|text| match text.strip_prefix('-') {
            Some(key) => Owned::Delete(bytes(key)),
            None => Owned::Put(Item::new(text)),
        });
        let owned: Vec<Owned> = owned.collect();
        let changes = owned.iter().map(|change| match change {
            Owned::Delete(key) => Change::delete(key),
            Owned::Put(item) if item.numbers.is_empty() => Change::put(&item.key, &item.value),
            Owned::Put(item) => Change::put_exact(item.record()),
        });
        self.writer().apply(revision, changes)
    }

    fn subscribe(&mut self, words: &mut Words) -> Result<()> {
        let name = words.next();
        let mut start = match words.next() {
            "now" => Start::Now,
            "state" => Start::State,
            "state-at-least" => Start::StateAtLeast(words.number()),
            "after" => Start::After(words.number()),
            "within" => Start::Within(words.number()),
            word => panic!("{word}?"),
        };
        if let Start::After(revision) = start {
            start = Start::AfterIn(position_in(self.cache(), revision, words.epoch()));
        }
        let mut builder = self.cache().subscribe(start);
        while let Some(word) = words.maybe() {
            builder = match word {
                "types" => {
                    let kinds: Vec<Kind> = words.next().split(',').map(|kind| kind.parse().expect("a type")).collect();
                    builder.types(&kinds)
                }
                "name" => builder.name(words.next()),
                "raw" => builder.raw_types(true),
                "lag" => builder.on_lag(match words.next() {
                    "stop" => OnLag::Stop,
                    "skip" => OnLag::SkipToOldest,
                    "resnapshot" => OnLag::Resnapshot,
                    "conflate" => OnLag::Conflate,
                    policy => panic!("{policy}?"),
                }),
                "max-lag" => builder.max_lag_events(words.number()),
                "bookmarks" => builder.bookmarks(true).bookmark_interval(words.duration()),
                "whole" => builder.whole_revisions(true),
                "stop-on-resync" => builder.stop_on_resync(true),
                "timeout" => builder.start_timeout(words.duration()),
                _ => match words.range(word) {
                    Some(range) => builder.range(range),
                    None => builder.filter(words.filter(word)?.unwrap_or_else(|| panic!("{word}?"))),
                },
            };
        }
        let subscription = builder.open()?;
        self.closers.insert(name.to_owned(), subscription.closer());
        self.subscriptions.insert(name.to_owned(), subscription);
        Ok(())
    }

    fn subscription(&mut self, name: &str) -> &mut Subscription {
        self.subscriptions.get_mut(name).unwrap_or_else(|| panic!("{name} is no subscription"))
    }

    fn page(&mut self, mut list: List, name: Option<String>) -> Printed {
        let printed = page(self.cache(), &mut list);
        if let Some(name) = name {
            self.lists.insert(name, list);
        }
        printed
    }

    fn start(&mut self, name: &str, step: Vec<String>) {
        let (send, receive) = channel();
        let cache = self.cache().clone();
        let borrowed = step.get(1).and_then(|name| self.subscriptions.remove_entry(name));
        std::thread::spawn(move || {
            let mut borrowed = borrowed;
            let mut before = Vec::new();
            let printed = match &mut borrowed {
                Some((_, subscription)) => taken(subscription, &step[0], &step[2..], &mut before).map(nothing),
                None => read(&cache, &step),
            };
            // A row that has failed meanwhile does not listen.
            let _ = send.send((borrowed, before, printed));
        });
        self.jobs.insert(name.to_owned(), receive);
    }

    fn join(&mut self, name: &str) -> Printed {
        let job = self.jobs.remove(name).unwrap_or_else(|| panic!("{name} is no job"));
        let (borrowed, before, printed) = job.recv_timeout(2 * BOUND).unwrap_or_else(|_| panic!("{name} hangs"));
        self.subscriptions.extend(borrowed);
        self.before = before;
        printed
    }
}

/// What a subscription gives.
fn taken(subscription: &mut Subscription, how: &str, mut more: &[String], lines: &mut Vec<String>) -> Result<()> {
    let full = more.last().is_some_and(|word| word == "full");
    more = &more[..more.len() - usize::from(full)];
    if how == "wait" {
        let is_ready = subscription.wait(more.first().map_or(BOUND, |word| duration(word)))?;
        lines.push(if is_ready { "ready" } else { "nothing" }.to_owned());
        return Ok(());
    }
    let most = more.first().map_or(1000, |word| number(word));
    loop {
        let batch = subscription.poll(most)?;
        let continues = batch.continues();
        if how != "batches" {
            lines.extend(batch.events().iter().map(|one| event(one, full)));
        } else if !batch.is_empty() {
            let mark = if continues { " continues" } else { "" };
            lines.push(format!("{} events at {}{mark}", batch.len(), batch.position().revision));
        }
        if how == "poll" && continues {
            lines.push("continues".to_owned());
        }
        if how == "poll" || batch.is_empty() {
            return Ok(());
        }
    }
}

/// A page of a list, which goes on after it.
fn page(cache: &Cache, list: &mut List) -> Printed {
    let answered = cache.list_with(&list.range, &list.options(cache));
    list.token = match &answered {
        Ok(page) => page.continue_token().map(str::to_owned),
        Err(error) => error.continue_token().map(str::to_owned),
    };
    // A token says at which revision it goes on.
    list.read = Read::Any;
    let page = answered?;
    let mut lines = vec![format!("at {}", page.revision())];
    lines.extend(page.items().iter().map(|kv| object(kv, list.full)));
    if page.more() {
        // How many of those that follow match a filter is not known.
        let count = if page.remaining() > 0 { format!(", {} remain", page.remaining()) } else { String::new() };
        lines.push(format!("more{count}"));
    }
    Ok(lines)
}

/// What many keys have at a revision.
fn many<'a>(revision: u64, kvs: impl Iterator<Item = Option<&'a KeyValue>>, full: bool) -> Vec<String> {
    let found = kvs.map(|kv| kv.map_or("none".to_owned(), |kv| object(kv, full)));
    [format!("at {revision}")].into_iter().chain(found).collect()
}

/// What a cache answers by itself.
fn read(cache: &Cache, step: &[String]) -> Printed {
    let mut words = Words(step);
    match words.next() {
        "ready" => cache.wait_ready(words.maybe().map_or(BOUND, duration)).map(nothing),
        "state" => one(cache.state().name()),
        "oldest" => one(cache.oldest()),
        "current" => one(cache.position().revision),
        "objects" => one(cache.objects()),
        "get" => {
            let key = words.key();
            let (list, _) = words.list()?;
            let answer = cache.get_with(key, &list.options(cache))?;
            let found = answer.kv.map_or("none".to_owned(), |kv| object(&kv, list.full));
            one(format!("{}: {found}", answer.revision))
        }
        "get-many" => {
            let keys = words.keys();
            let (list, _) = words.list()?;
            let answers = cache.get_many_with(&keys, &list.options(cache))?;
            Ok(many(answers.revision, answers.kvs.iter().map(Option::as_ref), list.full))
        }
        "list" => page(cache, &mut words.list()?.0),
        "count" => {
            let (list, _) = words.list()?;
            let counted = cache.count_with(&list.range, &list.options(cache))?;
            one(format!("{}: {}", counted.revision, counted.count))
        }
        "diff" => {
            let mut end = || position_in(cache, words.number(), words.epoch());
            let (from, to) = (end(), end());
            let (list, _) = words.list()?;
            let batch = cache.diff(from, to, &list.filter.range(list.range))?;
            Ok(batch.events().iter().map(|one| event(one, list.full)).collect())
        }
        "until" => {
            let revision = words.number();
            let timeout = words.maybe().map_or(BOUND, |_| words.duration());
            one(cache.wait_until(revision, timeout)?.revision)
        }
        "consistent" => one(cache.consistent_revision(BOUND)?),
        word => panic!("{word} is no step"),
    }
}

/// What a snapshot answers.
fn inside(snapshot: &Snapshot, words: &mut Words) -> Printed {
    match words.next() {
        "get" => {
            let found = snapshot.get(words.key()).map_or("none".to_owned(), |kv| object(&kv, false));
            one(format!("{}: {found}", snapshot.revision()))
        }
        "get-many" => {
            let kvs = snapshot.get_many(&words.keys());
            Ok(many(snapshot.revision(), kvs.iter().map(Option::as_deref), false))
        }
        "epoch" => one(snapshot.position().epoch_number()),
        "list" => {
            let (list, _) = words.list()?;
            let objects = snapshot.filtered(&list.filter.range(list.range))?.map(|kv| object(&kv, list.full));
            Ok([format!("at {}", snapshot.revision())].into_iter().chain(objects).collect())
        }
        _ => {
            let (list, _) = words.list()?;
            let everything = list.filter == Filter::any();
            let filtered = snapshot.filtered(&list.filter.range(list.range.clone()))?.count() as u64;
            let count = if everything { snapshot.count(&list.range) } else { filtered };
            one(format!("{}: {count}", snapshot.revision()))
        }
    }
}
