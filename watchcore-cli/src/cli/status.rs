//! `watchcore status`: the state of a cache, and its subscriptions.

use std::io::Write as _;
use std::time::Duration;

use super::exit::Stop;
use super::json::{self, Line};
use super::options::{Format, Options};
use super::output::Output;
use super::signals::Interrupt;
use super::source::{self, Deadline, Source};
use super::text;
use watchcore::{Cache, Error, State, Status, SubscriptionInfo};

pub(crate) fn run(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let cache = source::cache(options, prefix)?;
    let source = Source::start(&cache, source::feeder(&options.access)?, &options.access, interrupt)?;
    source.wait(Deadline::of(options), None, interrupt)?;
    match out.format {
        Format::Json => out.line(|buffer| as_json(buffer, &cache.status()))?,
        Format::Text => out.line(|buffer| as_text(buffer, &cache))?,
        Format::Quiet => {}
    }
    out.flush()?;
    source.feeder.stop();
    Ok(())
}

fn state(state: &State) -> &'static str {
    match state {
        State::NotReady => "NotReady",
        State::Ready => "Ready",
        State::Stale { .. } => "Stale",
        State::Failed => "Failed",
        State::Closed => "Closed",
        #[allow(unreachable_patterns)]
        _ => "Unknown",
    }
}

fn as_json(buffer: &mut Vec<u8>, status: &Status) {
    let revision = status.position.revision;
    Line::new(buffer)
        .number("revision", revision)
        .number("oldest", status.oldest)
        .number("current", revision)
        .number("objects", status.objects)
        .number("bytes", status.bytes)
        .text("state", state(&status.state))
        .text_or_null("last_error", status.last_error.as_ref().map(Error::message))
        .text("endpoint", &status.source.endpoint)
        .number("epoch", json::epoch(status.position.epoch))
        .end();
}

/// Prints the status for people: a line per number, then a line for each subscription of the cache in this process.
pub(crate) fn as_text(buffer: &mut Vec<u8>, cache: &Cache) {
    let status = cache.status();
    let revision = status.position.revision;
    let feeder = match &*status.source.endpoint {
        "" => state(&status.state).to_owned(),
        endpoint => format!("{} ({endpoint})", state(&status.state)),
    };
    let overrun = match status.overrun {
        0 => String::new(),
        overrun => format!(", {overrun} with events lost"),
    };
    let window = match status.oldest {
        // A new process has seen no change yet.
        oldest if oldest > revision => format!("no change yet; from {oldest} on"),
        oldest => format!("{oldest} to {revision}"),
    };
    let _ = writeln!(buffer, "revision       {revision}");
    let _ = writeln!(buffer, "window         {window}");
    let _ = writeln!(buffer, "objects        {}", status.objects);
    let _ = writeln!(buffer, "bytes          {}", status.bytes);
    let _ = writeln!(buffer, "feeder         {feeder}");
    if !status.source.server_version.is_empty() {
        let _ = writeln!(buffer, "etcd           {}", status.source.server_version);
    }
    if !status.source.warning.is_empty() {
        let _ = writeln!(buffer, "warning        {}", status.source.warning);
    }
    let _ = writeln!(buffer, "last error     {}", status.last_error.as_ref().map_or("none", Error::message));
    let _ = writeln!(buffer, "epoch          {}", json::epoch(status.position.epoch));
    let _ = writeln!(
        buffer,
        "subscriptions  {}, at most {} events behind{overrun}",
        status.subscriptions, status.max_lag_events
    );
    table(buffer, &cache.subscriptions());
}

/// The heading of each column, and whether it is right-aligned.
const COLUMNS: [(&str, bool); 7] = [
    ("id", true),
    ("name", false),
    ("state", false),
    ("position", true),
    ("lag", true),
    ("read path", false),
    ("last poll", false),
];

fn table(buffer: &mut Vec<u8>, subscriptions: &[SubscriptionInfo]) {
    if subscriptions.is_empty() {
        return;
    }
    let rows: Vec<[String; 7]> = subscriptions.iter().map(row).collect();
    let heading = COLUMNS.map(|(name, _)| name.to_owned());
    let all = || std::iter::once(&heading).chain(&rows);
    let length = |cell: &String| cell.chars().count();
    let widths: [usize; 7] = std::array::from_fn(|at| all().map(|row| length(&row[at])).max().unwrap_or_default());
    for row in all() {
        let mut line = String::new();
        for ((cell, width), (_, right)) in row.iter().zip(widths).zip(COLUMNS) {
            let padding = " ".repeat(width - length(cell));
            let (before, after) = if right { (&*padding, "") } else { ("", &*padding) };
            line.extend(["  ", before, cell, after]);
        }
        let _ = writeln!(buffer, "{}", line.trim_end());
    }
}

fn row(of: &SubscriptionInfo) -> [String; 7] {
    let mut name = Vec::new();
    text::escape(&mut name, of.name.as_bytes());
    let name = if name.is_empty() { "-".to_owned() } else { String::from_utf8_lossy(&name).into_owned() };
    let last_poll = of.last_poll.map_or_else(|| "never".to_owned(), |age| format!("{} ago", rough(age)));
    [
        of.id.to_string(),
        name,
        of.state.name().to_owned(),
        of.position.revision.to_string(),
        of.lag.events.to_string(),
        of.read_path.to_string(),
        last_poll,
    ]
}

/// Formats a rough duration: `230 ms`, `4.1 s`, `12 min`, `30 h`.
fn rough(time: Duration) -> String {
    match time.as_millis() {
        ms @ ..1_000 => format!("{ms} ms"),
        ms @ ..100_000 => format!("{}.{} s", ms / 1_000, ms / 100 % 10),
        ms @ ..6_000_000 => format!("{} min", ms / 60_000),
        ms => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::{Change, Index, Start};

    fn lines(write: impl FnOnce(&mut Vec<u8>)) -> Vec<String> {
        let mut buffer = Vec::new();
        write(&mut buffer);
        String::from_utf8(buffer).expect("UTF-8").lines().map(str::to_owned).collect()
    }

    #[test]
    fn text_shows_each_subscription() {
        let cache = Cache::builder("/").capacity(128).index(Index::key()).build().expect("a cache");
        let mut writer = cache.writer().expect("the writer");
        let mut apply = |revision| writer.apply(revision, [Change::put("/a", "1")]).expect("a revision");
        let _idle = cache.subscribe(Start::Now).name("bill\ning").open().expect("one that never polls");
        let mut own = cache.subscribe(Start::Now).key("/a").name("caf\u{e9}").open().expect("one of a key");
        (1..=500).for_each(&mut apply);
        assert!(own.poll(10).is_err(), "it has lagged");
        let _nameless = cache.subscribe(Start::Now).open().expect("a third");
        (501..=503).for_each(&mut apply);
        let text = lines(|buffer| as_text(buffer, &cache));
        let from = text.iter().position(|line| line.starts_with("subscriptions ")).expect("a line of all");
        assert_eq!(text[from], "subscriptions  3, at most 503 events behind, 1 with events lost");
        assert_eq!(text[from + 1], "  id  name         state    position  lag  read path  last poll");
        assert_eq!(text[from + 2], "   1  bill\\x0aing  Overrun         0  503  scan       never");
        assert!(text[from + 3].starts_with("   2  caf\u{e9}         Ended           0    0  scan       "), "{text:?}");
        assert!(text[from + 3].ends_with(" ago"), "{text:?}");
        assert_eq!(text[from + 4], "   3  -            Live          500    3  scan       never");
        assert_eq!(text.len(), from + 5);
        assert!(text.contains(&"feeder         Ready".to_owned()), "no feeder, no endpoint: {text:?}");
        assert!(text.iter().any(|line| line.starts_with("window  ") && line.ends_with(" to 503")), "{text:?}");
        assert!(!text.iter().any(|line| line.starts_with("etcd ")), "there is none: {text:?}");
    }

    #[test]
    fn chain_and_parked_are_said() {
        let cache = Cache::builder("/").index(Index::key()).build().expect("a cache");
        let mut writer = cache.writer().expect("the writer");
        let mut own = cache.subscribe(Start::Now).key("/a").name("own").open().expect("a subscription");
        for revision in 1..=2 {
            writer.apply(revision, [Change::put("/a", "1")]).expect("a revision");
        }
        while !own.poll(10).expect("events").is_empty() {}
        let set = watchcore::WakeSet::new().expect("a wake set");
        set.add(&mut own, 1).expect("a member");
        assert!(!own.arm().expect("a member"));
        let text = lines(|buffer| as_text(buffer, &cache));
        let last = text.last().expect("lines");
        assert!(last.starts_with("   1  own   Parked         2    0  chain by key  "), "{text:?}");
    }

    /// The JSON object has the same members with and without subscriptions.
    #[test]
    fn json_has_no_subscriptions() {
        let cache = Cache::builder("/").build().expect("a cache");
        let _one = cache.subscribe(Start::Now).name("one").open().expect("a subscription");
        let text = lines(|buffer| as_json(buffer, &cache.status()));
        let object: serde_json::Value = serde_json::from_str(&text[0]).expect("JSON");
        let names = ["revision", "oldest", "current", "objects", "bytes", "state", "last_error", "endpoint", "epoch"];
        assert_eq!((text.len(), object.as_object().map(|object| object.len())), (1, Some(names.len())));
        assert!(names.iter().all(|name| object.get(name).is_some()), "{object}");
    }

    #[test]
    fn ages_are_rough() {
        let said = [0, 230, 999, 1_000, 4_190, 99_999, 100_000, 5_999_999, 6_000_000, 108_000_000]
            .map(|ms| rough(Duration::from_millis(ms)));
        let expected = ["0 ms", "230 ms", "999 ms", "1.0 s", "4.1 s", "99.9 s", "1 min", "99 min", "1 h", "30 h"];
        assert_eq!(said, expected);
    }
}
