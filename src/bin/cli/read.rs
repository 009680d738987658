//! `watchcore list`, `get` and `status`.

use std::io::Write as _;
use std::time::Duration;

use super::exit::{Failure, Stop};
use super::json::{self, Line};
use super::options::{Options, Task};
use super::output::{Format, Output};
use super::signals::Interrupt;
use super::source::{self, Deadline, FUTURE, Source};
use super::text;
use watchcore::{Code, Error, Range, Read, State, Status};

pub(crate) fn list(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::List { revision } = options.task else { unreachable!("a list") };
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let (source, read, patience) = listed(options, prefix, revision, interrupt)?;
    let page = source.cache.list_within(&Range::all(), read, 0, patience).map_err(|error| unless(interrupt, error))?;
    for kv in page.iter() {
        out.key_value(&kv)?;
    }
    if out.format == Format::Json {
        let (revision, count) = (page.revision(), page.len() as u64);
        out.line(|buffer| json::end_of_list(buffer, revision, count))?;
    }
    out.flush()?;
    source.feeder.stop();
    Ok(())
}

pub(crate) fn get(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::Get { key, revision } = &options.task else { unreachable!("a get") };
    // A key is a prefix of itself: nothing else need be held.
    let prefix = options.prefix.as_deref().unwrap_or(key);
    let (source, read, patience) = listed(options, prefix, *revision, interrupt)?;
    let answer = source.cache.get_within(key, read, patience).map_err(|error| unless(interrupt, error))?;
    source.feeder.stop();
    let Some(kv) = answer.kv else {
        let mut name = Vec::new();
        text::escape(&mut name, key);
        let name = String::from_utf8_lossy(&name);
        let message = format!(
            "{name} does not exist at revision {}. Keys are given in full; `watchcore list --prefix …` shows which there are",
            answer.revision
        );
        return Err(Failure::new(Code::NotFound, message).into());
    };
    out.key_value(&kv)?;
    out.flush()
}

/// A cache with its first listing: the newest, or that of `revision`.
fn listed(
    options: &Options,
    prefix: &[u8],
    revision: Option<u64>,
    interrupt: &Interrupt,
) -> Result<(Source, Read, Duration), Stop> {
    let deadline = Deadline::of(options);
    let cache = source::cache(options, prefix)?;
    let mut feeder = source::feeder(&options.access)?.stop_after_listing(true);
    let mut read = Read::Any;
    if let Some(revision) = revision {
        feeder = feeder.start_revision(revision);
        read = Read::Exact(revision);
    }
    let source = Source::start(&cache, feeder, &options.access, interrupt)?;
    source.wait(deadline, revision, interrupt)?;
    Ok((source, read, deadline.left(options.timeout.unwrap_or(FUTURE))))
}

fn unless(interrupt: &Interrupt, error: watchcore::Error) -> Stop {
    if interrupt.signal().is_some() { Stop::Interrupted } else { error.into() }
}

pub(crate) fn status(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let cache = source::cache(options, prefix)?;
    let source = Source::start(&cache, source::feeder(&options.access)?, &options.access, interrupt)?;
    source.wait(Deadline::of(options), None, interrupt)?;
    let status = cache.status();
    match out.format {
        Format::Json => out.line(|buffer| as_json(buffer, &status))?,
        Format::Text => out.line(|buffer| as_text(buffer, &status))?,
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

fn as_text(buffer: &mut Vec<u8>, status: &Status) {
    let revision = status.position.revision;
    let _ = writeln!(buffer, "revision       {revision}");
    let _ = writeln!(buffer, "window         {} to {revision}", status.oldest);
    let _ = writeln!(buffer, "objects        {}", status.objects);
    let _ = writeln!(buffer, "bytes          {}", status.bytes);
    let _ = writeln!(buffer, "feeder         {} ({})", state(&status.state), status.source.endpoint);
    let _ = writeln!(buffer, "last error     {}", status.last_error.as_ref().map_or("none", Error::message));
    let _ = writeln!(buffer, "epoch          {}", json::epoch(status.position.epoch));
    let _ =
        writeln!(buffer, "subscriptions  {}, at most {} events behind", status.subscriptions, status.max_lag_events);
}
