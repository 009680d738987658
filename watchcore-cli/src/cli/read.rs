//! `watchcore list` and `get`.

use std::time::Duration;

use super::exit::{Failure, Stop};
use super::hint::{hint, of_next_page};
use super::json;
use super::options::{Format, Options, Task};
use super::output::Output;
use super::signals::Interrupt;
use super::source::{self, Deadline, FUTURE_LIMIT, Source};
use super::text;
use watchcore::{Code, Page, Range, Read, ReadOptions};

pub(crate) fn list(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::List { revision, limit, token, filter } = &options.task else { unreachable!("a list") };
    let deadline = Deadline::of(options);
    let request = |read| ReadOptions::new(read).filter(filter.clone()).limit(*limit);
    let page = match token {
        None => page_of(options, *revision, request, deadline, interrupt)?,
        Some(token) => continued(options, token, &request(Read::Any), deadline, interrupt)?,
    };
    for kv in page.iter() {
        out.key_value(&kv)?;
    }
    match out.format {
        Format::Json => {
            let (revision, count) = (page.revision(), page.len() as u64);
            out.line(|buffer| json::end_of_list(buffer, revision, count, page.continue_token()))?;
        }
        Format::Text => {
            if let Some(token) = page.continue_token() {
                out.flush()?;
                hint(|| format!("there may be more; the next page: {}", of_next_page(token)));
            } else if page.is_empty() && token.is_none() {
                let prefix = text::escaped(options.prefix.as_deref().unwrap_or_default());
                hint(|| format!("no key below {prefix} at revision {} is in what was asked for", page.revision()));
            }
        }
        Format::Quiet => {}
    }
    out.flush()
}

/// Reads the page after a token, at the token's revision: the feeder begins there.
fn continued(
    options: &Options,
    token: &str,
    request: &ReadOptions,
    deadline: Deadline,
    interrupt: &Interrupt,
) -> Result<Page, Stop> {
    let revision = Some(watchcore::token_revision(token)?.revision).filter(|revision| *revision > 0);
    let request = |_| request.clone().continue_from(token);
    let gone = match page_of(options, revision, request, deadline, interrupt) {
        Err(Stop::Failure(failure)) if failure.code == Code::Compacted => failure,
        other => return other,
    };
    // A list of the newest state gives the token with which the list continues there.
    let mut failure = match page_of(options, None, request, deadline, interrupt) {
        Err(Stop::Failure(failure)) if failure.code == Code::Compacted && failure.token.is_some() => failure,
        other => return other,
    };
    failure.oldest = gone.oldest;
    let (revision, next) = (revision.unwrap_or_default(), failure.token.as_deref().unwrap_or_default());
    failure.message = format!(
        "etcd has compacted revision {revision}, of which the list was{}. Go on at the same key in the newest state, where other keys may have changed, with --continue {next}; or list from the start, without --continue",
        match gone.oldest {
            0 => String::new(),
            oldest => format!("; it holds the changes from {oldest} on"),
        }
    );
    Err(failure.into())
}

/// Reads a page of the newest state, or of the state at `revision`.
pub(crate) fn page_of(
    options: &Options,
    revision: Option<u64>,
    request: impl FnOnce(Read) -> ReadOptions,
    deadline: Deadline,
    interrupt: &Interrupt,
) -> Result<Page, Stop> {
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let (source, read, wait_limit) = listed(options, prefix, None, revision, deadline, interrupt)?;
    let request = request(read).timeout(wait_limit);
    let page = source.cache.list_with(&Range::all(), &request).map_err(|error| unless(interrupt, error));
    source.feeder.stop();
    page
}

pub(crate) fn get(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::Get { key, revision } = &options.task else { unreachable!("a get") };
    // The key as its own prefix: the cache holds, and the feeder requests, nothing else.
    let prefix = options.prefix.as_deref().unwrap_or(key);
    let (source, read, wait_limit) = listed(options, prefix, Some(key), *revision, Deadline::of(options), interrupt)?;
    let answer = source
        .cache
        .get_with(key, &ReadOptions::new(read).timeout(wait_limit))
        .map_err(|error| unless(interrupt, error))?;
    source.feeder.stop();
    let Some(kv) = answer.kv else {
        let name = text::escaped(key);
        let message = format!(
            "{name} does not exist at revision {}. Keys are given in full; `watchcore list --prefix …` shows which there are",
            answer.revision
        );
        return Err(Failure::new(Code::NotFound, message).into());
    };
    out.key_value(&kv)?;
    out.flush()
}

pub(crate) fn count(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::Count { revision, filter } = &options.task else { unreachable!("a count") };
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let (source, read, wait_limit) = listed(options, prefix, None, *revision, Deadline::of(options), interrupt)?;
    let request = ReadOptions::new(read).filter(filter.clone()).timeout(wait_limit);
    let counted = source.cache.count_with(&Range::all(), &request).map_err(|error| unless(interrupt, error))?;
    source.feeder.stop();
    match out.format {
        Format::Json => out.line(|buffer| json::counted(buffer, counted.revision, counted.count))?,
        Format::Text => out.line(|buffer| buffer.extend_from_slice(format!("{}\n", counted.count).as_bytes()))?,
        Format::Quiet => {}
    }
    out.flush()
}

/// A cache with its first listing, of the newest state or of `revision`; only of one key, if one is named.
pub(crate) fn listed(
    options: &Options,
    prefix: &[u8],
    only: Option<&[u8]>,
    revision: Option<u64>,
    deadline: Deadline,
    interrupt: &Interrupt,
) -> Result<(Source, Read, Duration), Stop> {
    let cache = source::cache(options, prefix)?;
    let mut feeder = source::feeder(&options.access)?.stop_after_listing(true);
    if let Some(key) = only {
        feeder = feeder.only_key(key);
    }
    let mut read = Read::Any;
    if let Some(revision) = revision {
        source::reachable(&cache, revision)?;
        feeder = feeder.start_revision(revision);
        read = Read::Exact(revision);
    }
    let source = Source::start(&cache, feeder, &options.access, interrupt)?;
    source.wait(deadline, revision, interrupt)?;
    Ok((source, read, deadline.left(options.timeout.unwrap_or(FUTURE_LIMIT))))
}

pub(crate) fn unless(interrupt: &Interrupt, error: watchcore::Error) -> Stop {
    if interrupt.signal().is_some() { Stop::Interrupted } else { error.into() }
}
