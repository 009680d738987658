//! The reading words of a row, over HTTP: `get`, `list`, `next`, `count` and `subscribe` at `/v1/keys`, the metrics at
//! `/metrics`. Writing words run in Rust. A row that needs any other word does not claim `http`.

use crate::client::get;
use crate::core::Core;
use crate::lines::{key_of, object, whole};
use crate::script::Machine;
use crate::stream::Stream;
use crate::words::{bytes, number};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use watchcore::Cache;
use watchcore_http::{Api, Server};

/// The output of a step, or the line of the refusal.
pub(crate) type Printed<T = Vec<String>> = Result<T, String>;

/// A cache, and a server over it. The server runs on this thread's runtime, and only while a step waits for it: it sees
/// all writes between two steps at once, so a loss is the same in every run.
pub(crate) struct Http {
    core: Core,
    runtime: Runtime,
    server: Option<(SocketAddr, Server)>,
    streams: BTreeMap<String, Stream>,
    lists: BTreeMap<String, List>,
    jobs: BTreeMap<String, JoinHandle<Vec<String>>>,
}

impl Default for Http {
    fn default() -> Http {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (streams, lists, jobs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Http { core: Core::default(), runtime, server: None, streams, lists, jobs }
    }
}

/// A list that is read page by page.
#[derive(Clone, Debug, Default)]
struct List {
    /// `prefix=…` and the selectors.
    target: String,
    /// `&revision=R`, which following pages must omit.
    revision: String,
    limit: String,
    token: Option<String>,
    full: bool,
    name: Option<String>,
}

impl Machine for Http {
    fn run(&mut self, step: &[String]) -> Vec<String> {
        self.step(step).unwrap_or_else(|refusal| vec![refusal])
    }
}

impl Http {
    fn step(&mut self, step: &[String]) -> Printed {
        let rest = &step[1..];
        match &*step[0] {
            "cache" | "apply" | "load" | "resync" | "progress" | "compact" | "writer" => Ok(self.core.run(step)),
            "free" | "close" if rest.is_empty() || rest[0] == "writer" => Ok(self.core.run(step)),
            "close" => {
                self.stream(&rest[0]).watching = None;
                Ok(Vec::new())
            }
            "subscribe" => self.subscribe(rest),
            "poll" | "drain" => {
                let full = rest.last().is_some_and(|word| word == "full");
                // A drain takes everything, in any number of batches.
                let most = rest.get(1).filter(|word| *word != "full" && step[0] == "poll");
                let most = most.map_or(usize::MAX, |word| number(word));
                let (cache, stream) = (self.cache(), self.streams.get_mut(&rest[0]).expect("a stream"));
                let taken = stream.take(&cache, step[0] == "poll", most, full);
                Ok(self.runtime.block_on(crate::within("the lines", taken)))
            }
            "position" => Ok(vec![self.stream(&rest[0]).position.to_string()]),
            "epoch" if !rest.is_empty() => Ok(vec![self.stream(&rest[0]).epoch.to_string()]),
            "list" | "next" => {
                let mut list = match &*step[0] {
                    "next" => self.lists.remove(&rest[0]).expect("a list"),
                    _ => List::of(&self.prefix(), rest),
                };
                let address = self.address();
                let printed = self.runtime.block_on(page(address, &mut list));
                list.name.clone().map(|name| self.lists.insert(name, list));
                printed
            }
            "start" => {
                let (address, prefix, step) = (self.address(), self.prefix(), rest[1..].to_vec());
                let job = async move { read(address, &prefix, &step).await.unwrap_or_else(|refusal| vec![refusal]) };
                self.jobs.insert(rest[0].clone(), self.runtime.spawn(job));
                Ok(Vec::new())
            }
            "asleep" => {
                let (cache, count) = (self.cache(), number::<u64>(&rest[0]));
                let asleep = async {
                    while cache.stats().waiting < count {
                        tokio::time::sleep(Duration::from_micros(100)).await;
                    }
                };
                self.runtime.block_on(crate::within("calls sleep", asleep));
                Ok(Vec::new())
            }
            "join" => {
                let job = self.jobs.remove(&rest[0]).expect("a job");
                Ok(self.runtime.block_on(crate::within("the job", job)).expect("a job without a panic"))
            }
            _ => {
                let (address, prefix) = (self.address(), self.prefix());
                self.runtime.block_on(crate::within("an answer", read(address, &prefix, step)))
            }
        }
    }

    fn cache(&mut self) -> Cache {
        self.core.cache().clone()
    }

    fn prefix(&mut self) -> String {
        percent(self.cache().prefix())
    }

    /// Returns the server's address; the first reading step starts it.
    fn address(&mut self) -> SocketAddr {
        let cache = self.cache();
        let start = || {
            self.runtime.block_on(async {
                let api = Api::builder().cache(cache).bookmark_interval(Duration::from_millis(1)).build();
                let server = Server::builder(api.expect("a service")).direct(true).address("127.0.0.1:0").start().await;
                let server = server.expect("serves");
                (server.address(), server)
            })
        };
        self.server.get_or_insert_with(start).0
    }

    fn stream(&mut self, name: &str) -> &mut Stream {
        self.streams.get_mut(name).unwrap_or_else(|| panic!("{name} is no subscription"))
    }

    fn subscribe(&mut self, words: &[String]) -> Printed {
        let (address, cache) = (self.address(), self.cache());
        let (after, options) = match &*words[1] {
            "state" => (None, &words[2..]),
            "after" => (Some(number(&words[2])), &words[3..]),
            // Over HTTP, "now" begins as Kubernetes' clients do: with a list, and a watch after its revision.
            "now" => {
                let list = get_json(address, format!("/v1/keys?prefix={}&limit=1", percent(cache.prefix())));
                (Some(whole(&self.runtime.block_on(list)?, "revision")), &words[2..])
            }
            start => panic!("{start} is no start of this face"),
        };
        let list = List::of(&percent(cache.prefix()), options);
        let target = format!("/v1/keys?{}", list.target);
        let now = cache.position();
        let epoch = if after.is_some_and(|after| after > now.revision) { 0 } else { now.epoch_number() };
        let stream = self.runtime.block_on(Stream::open(address, &target, after, epoch))?;
        self.streams.insert(words[0].clone(), stream);
        Ok(Vec::new())
    }
}

impl List {
    /// Parses the options of a list, a count or a watch; the default range is the cache's prefix.
    fn of(prefix: &str, words: &[String]) -> List {
        let (mut list, mut prefix, mut selectors) = (List::default(), prefix.to_owned(), String::new());
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let mut next = || words.next().expect("one more word");
            match &**option {
                // The API has no range of a single key, so the keys that begin with it are listed.
                "prefix" | "key" => prefix = percent(&bytes(next())),
                "where-labels" => selectors += &format!("&labels={}", percent(next().as_bytes())),
                "where-fields" => selectors += &format!("&fields={}", percent(next().as_bytes())),
                "any" => list.revision = "&revision=0".to_owned(),
                "exact" => list.revision = format!("&revision={}", next()),
                "limit" => list.limit = format!("&limit={}", next()),
                // The server decides how long a read waits for its revision.
                "timeout" => drop(next()),
                "full" => list.full = true,
                "as" => list.name = Some(next().clone()),
                word => panic!("this face has no {word}"),
            }
        }
        list.target = format!("prefix={prefix}{selectors}");
        list
    }
}

/// Reads the next page of a list.
async fn page(address: SocketAddr, list: &mut List) -> Printed {
    let of = match &list.token {
        Some(token) => format!("&continue={}", percent(token.as_bytes())),
        None => list.revision.clone(),
    };
    let answer = get(address, &format!("/v1/keys?{}{}{of}", list.target, list.limit)).await;
    let (page, code) = (answer.json(), answer.code());
    // A refusal may contain a token that continues at another revision.
    let token = if code == 200 { &page["continue"] } else { &page["metadata"]["continue"] };
    list.token = token.as_str().map(str::to_owned);
    if code != 200 {
        return Err(refusal(address, code, &page).await);
    }
    let items = page["items"].as_array().expect("items");
    assert_eq!(page["count"], items.len(), "{page}");
    let mut lines = vec![format!("at {}", whole(&page, "revision"))];
    lines.extend(items.iter().map(|item| object(item, list.full)));
    if list.token.is_some() {
        lines.push(page["remaining"].as_u64().map_or("more".to_owned(), |count| format!("more, {count} remain")));
    }
    Ok(lines)
}

/// Runs a reading step that needs no subscription.
async fn read(address: SocketAddr, prefix: &str, step: &[String]) -> Printed {
    let rest = &step[1..];
    match &*step[0] {
        "get" => {
            // The first of the keys that begin with it is the key itself, if it exists.
            let list = List::of(&percent(&bytes(&rest[0])), &rest[1..]);
            let found = get_json(address, format!("/v1/keys?{}&limit=1{}", list.target, list.revision)).await?;
            let first = found["items"].get(0).filter(|item| key_of(item) == rest[0]);
            let item = first.map_or("none".to_owned(), |item| object(item, list.full));
            Ok(vec![format!("{}: {item}", whole(&found, "revision"))])
        }
        "count" => {
            let list = List::of(prefix, rest);
            let found = get_json(address, format!("/v1/keys?{}{}", list.target, list.revision)).await?;
            Ok(vec![format!("{}: {}", whole(&found, "revision"), whole(&found, "count"))])
        }
        "ready" => {
            while get(address, "/readyz").await.code() != 200 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(Vec::new())
        }
        "state" => {
            let text = get(address, "/metrics").await.text();
            let mut states = text.lines().filter(|line| line.starts_with("watchcore_state{") && line.ends_with(" 1"));
            let state = states.next().and_then(|line| line.split_once("state=\"")).expect("a state").1;
            Ok(vec![state.split('"').next().unwrap_or_default().to_owned()])
        }
        "oldest" => Ok(vec![figure(address, "watchcore_oldest_revision").await]),
        "current" => Ok(vec![figure(address, "watchcore_revision").await]),
        "objects" => Ok(vec![figure(address, "watchcore_objects").await]),
        "epoch" => Ok(vec![figure(address, "watchcore_epoch").await]),
        word => panic!("this face has no {word}"),
    }
}

async fn get_json(address: SocketAddr, target: String) -> Printed<Value> {
    let answer = get(address, &target).await;
    if answer.code() == 200 { Ok(answer.json()) } else { Err(refusal(address, answer.code(), &answer.json()).await) }
}

/// Returns a metric of the only cache.
async fn figure(address: SocketAddr, name: &str) -> String {
    let text = get(address, "/metrics").await.text();
    let series = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
    series.and_then(|line| line.rsplit_once(' ')).unwrap_or_else(|| panic!("no {name} in:\n{text}")).1.to_owned()
}

/// Returns the core's code for a Status. A 410 does not contain the current revision, so another request asks for it.
pub(crate) async fn refusal(address: SocketAddr, code: u16, status: &Value) -> String {
    let message = status["message"].as_str().unwrap_or_default();
    let numbers: Vec<u64> =
        message.split(|byte: char| !byte.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    match (code, status["reason"].as_str().unwrap_or_default(), &*numbers) {
        (400, "BadRequest", _) => "INVALID_ARGUMENT".to_owned(),
        (410, "Expired", [asked, before]) => {
            let current = figure(address, "watchcore_revision").await;
            format!("COMPACTED asked {asked} oldest {} current {current}", before + 1)
        }
        (503, "ServiceUnavailable", _) => "NOT_READY".to_owned(),
        (504, "Timeout", [asked, current]) => format!("FUTURE_REVISION asked {asked} current {current}"),
        _ => format!("{code} {status}"),
    }
}

/// Percent-encodes bytes.
fn percent(bytes: &[u8]) -> String {
    percent_encode(bytes, NON_ALPHANUMERIC).to_string()
}
