//! The words of a row as values of Rust, and what is printed of values.

use std::fmt::Write as _;
use std::time::Duration;
use watchcore::*;

/// A wait that takes this long has failed.
pub(super) const BOUND: Duration = Duration::from_secs(60);

/// What a step prints, or the code that refuses it.
pub(super) type Printed = Result<Vec<String>>;

/// A list that is read page by page.
#[derive(Clone)]
pub(super) struct List {
    pub(super) range: Range,
    pub(super) read: Read,
    pub(super) epoch: u64,
    pub(super) filter: Filter,
    pub(super) limit: usize,
    pub(super) timeout: Duration,
    pub(super) full: bool,
    pub(super) token: Option<String>,
}

impl List {
    pub(super) fn options(&self, cache: &Cache) -> ReadOptions {
        let read = match self.read {
            Read::Exact(revision) => Read::ExactIn(position_in(cache, revision, self.epoch)),
            Read::AtLeast(revision) => Read::AtLeastIn(position_in(cache, revision, self.epoch)),
            read => read,
        };
        let options = ReadOptions::new(read).filter(self.filter.clone()).limit(self.limit).timeout(self.timeout);
        match &self.token {
            Some(token) => options.continue_from(token),
            None => options,
        }
    }
}

/// The words of a step that are left.
pub(super) struct Words<'a>(pub(super) &'a [String]);

impl<'a> Words<'a> {
    pub(super) fn next(&mut self) -> &'a str {
        let (first, rest) = self.0.split_first().expect("one more word");
        self.0 = rest;
        first
    }

    pub(super) fn maybe(&mut self) -> Option<&'a str> {
        if self.0.is_empty() { None } else { Some(self.next()) }
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self) -> T {
        number(self.next())
    }

    pub(super) fn key(&mut self) -> Vec<u8> {
        bytes(self.next())
    }

    /// Keys between commas; `-` is none.
    pub(super) fn keys(&mut self) -> Vec<Vec<u8>> {
        match self.next() {
            "-" => Vec::new(),
            word => word.split(',').map(bytes).collect(),
        }
    }

    pub(super) fn duration(&mut self) -> Duration {
        duration(self.next())
    }

    /// `in E`, if that comes next; else 0.
    pub(super) fn epoch(&mut self) -> u64 {
        match self.0 {
            [word, epoch, rest @ ..] if word == "in" => {
                self.0 = rest;
                epoch
                    .split_once('/')
                    .map_or_else(|| number(epoch), |(birth, of)| number::<u64>(birth) << 32 | number::<u64>(of))
            }
            _ => 0,
        }
    }

    /// A range that begins with this word, if it does.
    pub(super) fn range(&mut self, word: &str) -> Option<Range> {
        Some(match word {
            "key" => Range::key(self.key()),
            "prefix" => Range::prefix(self.key()),
            "path" => Range::path(self.key()),
            "from" => {
                let from = self.key();
                assert_eq!(self.next(), "to");
                Range::between(from, self.key())
            }
            _ => return None,
        })
    }

    /// A filter that begins with this word, if it does.
    pub(super) fn filter(&mut self, word: &str) -> Result<Option<Filter>> {
        Ok(Some(match word {
            "where-labels" => Filter::any().labels(self.next())?,
            "where-fields" => Filter::any().fields(self.next())?,
            "none" => Filter::none(),
            _ => return Ok(None),
        }))
    }

    /// Range, read and filter of a list or a count, in any order; and the name of its pages.
    pub(super) fn list(&mut self) -> Result<(List, Option<String>)> {
        let (range, read, filter) = (Range::all(), Read::Any, Filter::any());
        let mut list = List { range, read, epoch: 0, filter, limit: 0, timeout: BOUND, full: false, token: None };
        let mut name = None;
        while let Some(word) = self.maybe() {
            match word {
                "any" => list.read = Read::Any,
                "at-least" => (list.read, list.epoch) = (Read::AtLeast(self.number()), self.epoch()),
                "exact" => (list.read, list.epoch) = (Read::Exact(self.number()), self.epoch()),
                "limit" => list.limit = self.number(),
                "timeout" => list.timeout = self.duration(),
                "full" => list.full = true,
                "continue" => list.token = Some(self.next().to_owned()),
                "as" => name = Some(self.next().to_owned()),
                _ => match self.range(word) {
                    Some(range) => list.range = list.range.and(&range),
                    None => {
                        let filter = self.filter(word)?.unwrap_or_else(|| panic!("{word}?"));
                        list.filter = list.filter.and(filter);
                    }
                },
            }
        }
        Ok((list, name))
    }
}

/// A revision of an epoch of this cache, or of another birth; with 0 of any. The lower half of an epoch counts, the upper is the cache's.
pub(super) fn position_in(cache: &Cache, revision: u64, epoch: u64) -> Position {
    let now = cache.position();
    let is_of_this_birth = epoch != 0 && epoch >> 32 == 0;
    let epoch = if is_of_this_birth { now.epoch - now.epoch_number() + epoch } else { epoch };
    Position { epoch, revision }
}

pub(super) fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

pub(super) fn duration(word: &str) -> Duration {
    match word.strip_suffix("ms") {
        Some(milliseconds) => Duration::from_millis(number(milliseconds)),
        None => Duration::from_secs(number(word.strip_suffix('s').expect("s or ms"))),
    }
}

/// `/k=v`, and the numbers behind an `@`.
pub(super) struct Item {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) numbers: Vec<u64>,
}

impl Item {
    pub(super) fn new(text: &str) -> Item {
        let (key, value) = text.split_once('=').expect("KEY=VALUE");
        let (value, numbers) = value.split_once('@').unwrap_or((value, ""));
        let numbers = numbers.split(',').filter(|text| !text.is_empty()).map(number).collect();
        Item { key: bytes(key), value: bytes(value), numbers }
    }

    pub(super) fn record(&self) -> Record<'_> {
        let (create_revision, mod_revision, version, lease) = match *self.numbers {
            [modified] => (modified, modified, 1, 0),
            [created, modified, version] => (created, modified, version, 0),
            [created, modified, version, lease] => (created, modified, version, lease.cast_signed()),
            _ => panic!("numbers of an item"),
        };
        Record { key: &self.key, value: &self.value, create_revision, mod_revision, version, lease }
    }
}

pub(super) fn items(words: &[String]) -> Vec<Item> {
    words.iter().map(|word| Item::new(word)).collect()
}

pub(super) fn refused(error: &Error) -> String {
    let code = error.code().name();
    match error.code() {
        Code::Compacted => {
            format!("{code} asked {} oldest {} current {}", error.asked(), error.oldest(), error.current())
        }
        Code::FutureRevision => format!("{code} asked {} current {}", error.asked(), error.current()),
        Code::Lagged => {
            let (from, to) = (error.lost_from(), error.lost_to());
            format!("{code} lost {from}..{to} oldest {} current {}", error.oldest(), error.current())
        }
        _ => code.to_owned(),
    }
}

/// All numbers of a refusal.
pub(super) fn fields(error: &Error) -> String {
    let (asked, oldest, current) = (error.asked(), error.oldest(), error.current());
    let (from, to) = (error.lost_from(), error.lost_to());
    let (at, epoch) = (error.position().revision, error.position().epoch_number());
    format!("asked {asked} oldest {oldest} current {current} lost {from}..{to} position {at} in {epoch}")
}

pub(super) fn of_code(code: Code) -> String {
    let mut line = format!("{} {} {}", code as i32, code.name(), code.http_status());
    if !code.reason().is_empty() {
        line += &format!(" {}", code.reason());
    }
    line += if code.is_retryable() { " retryable" } else { "" };
    line += if code.is_fatal() { " fatal" } else { "" };
    line + &code.retry_after().map_or(String::new(), |wait| format!(" after {}s", wait.as_secs()))
}

/// A number that a cache says of itself.
pub(super) fn statistic(status: &Status, stats: &Stats, name: &str) -> u64 {
    match name {
        "events" => stats.events,
        "extract-failures" => stats.extract_failures,
        "lagged" => stats.lagged,
        "overrun" => status.overrun,
        "max-lag" => status.max_lag_events,
        "max-lag-seen" => status.max_lag_seen,
        "pages" => stats.pages,
        "revisions" => stats.revisions,
        "snapshots" => stats.snapshots,
        "subscriptions" => status.subscriptions,
        "tombstones" => stats.tombstones,
        "tombstone-bytes" => stats.tombstone_bytes,
        "window-bytes" => stats.window_bytes,
        "window-segments" => stats.window_segments,
        _ => panic!("{name} is no statistic"),
    }
}

pub(super) fn of_subscription(info: &SubscriptionInfo) -> String {
    let name = if info.name.is_empty() { "-".to_owned() } else { word(info.name.as_bytes()) };
    let polled = if info.last_poll.is_some() { "polled" } else { "never polled" };
    format!(
        "{} {name} {} at {} behind {} events {} revisions, {}, {polled}, handed out {}, lost {}",
        info.id,
        info.state.name(),
        info.position.revision,
        info.lag.events,
        info.lag.revisions,
        info.read_path,
        info.handed_out,
        info.lagged
    )
}

pub(super) fn event(event: &Event, full: bool) -> String {
    let mut line = format!("{} {}", event.revision(), event.kind().name());
    if let Some(mark) = event.resync() {
        let phase = if mark.phase == Phase::Begin { "begin" } else { "end" };
        line += &format!(" {phase} {} {}..{}", mark.reason.name(), mark.from, mark.to);
        return line;
    }
    if !event.key().is_empty() {
        line += &format!(" {}", word(event.key()));
    }
    if let Some(value) = event.value() {
        line += &format!("={}", word(value));
    }
    if let Some(before) = event.prev_value() {
        line += &format!(" was {}", word(before));
    }
    if full && let Some(kv) = event.kv() {
        line += &numbers(kv);
    }
    for (is_marked, mark) in [
        (event.is_initial_state(), " initial"),
        (event.ends_initial_state(), " end-of-state"),
        (event.is_synthetic(), " synthetic"),
    ] {
        if is_marked {
            line += mark;
        }
    }
    line
}

pub(super) fn object(kv: &KeyValue, full: bool) -> String {
    let mut line = format!("{}={}", word(kv.key()), word(kv.value().unwrap_or_default()));
    if full {
        line += &numbers(kv);
    }
    line
}

pub(super) fn numbers(kv: &KeyValue) -> String {
    let numbers = (kv.create_revision(), kv.mod_revision(), kv.version());
    let lease = if kv.lease() == 0 { String::new() } else { format!(" lease {}", kv.lease()) };
    format!(" create {} modified {} version {}{lease}", numbers.0, numbers.1, numbers.2)
}

pub(super) fn one(line: impl ToString) -> Printed {
    Ok(vec![line.to_string()])
}

pub(super) fn nothing<T>(_: T) -> Vec<String> {
    Vec::new()
}

/// Bytes of a word: `\x0a` is one.
pub(super) fn bytes(word: &str) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = word.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let hexadecimal = rest.strip_prefix(b"\\x").and_then(|rest| std::str::from_utf8(rest.get(..2)?).ok());
        match hexadecimal.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                all.push(byte);
                rest = &rest[4..];
            }
            None => {
                all.push(first);
                rest = more;
            }
        }
    }
    all
}

/// Bytes as a word.
pub(super) fn word(bytes: &[u8]) -> String {
    let mut all = String::new();
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'\\' {
            all.push(char::from(byte));
        } else {
            let _ = write!(all, "\\x{byte:02x}");
        }
    }
    all
}
