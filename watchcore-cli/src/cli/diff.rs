//! `watchcore diff`.
//!
//! Both states are listed from etcd into a private cache, the earlier as its first listing, the later as a resync; the
//! library's own `diff` then compares them. So `diff` reaches back as far as etcd does, however many revisions lie
//! between, and reads none of them. Two states do not tell at which revision a key was deleted.

use super::exit::Stop;
use super::json;
use super::json::LineEvent;
use super::options::{Format, Options, Task};
use super::output::Output;
use super::read;
use super::signals::Interrupt;
use super::source::{self, Deadline};
use super::{hint, text};
use watchcore::{KeyValue, ReadOptions, Record, ResyncReason};

pub(crate) fn run(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    let Task::Diff { from, to, filter } = &options.task else { unreachable!("a diff") };
    let from = *from;
    let deadline = Deadline::of(options);
    let prefix = options.prefix.as_deref().unwrap_or_default();
    let state = |revision| read::page_of(options, revision, ReadOptions::new, deadline, interrupt);
    let both = source::cache(options, prefix)?;
    let mut writer = both.writer()?;
    writer.load(from, state(Some(from))?.items().iter().map(record))?;
    let later = state(*to)?;
    let to = later.revision();
    if to > from {
        writer.resync(to, later.items().iter().map(record), ResyncReason::Requested)?;
    }
    drop(later);
    let changes = both.diff(from, to, filter)?;
    for event in changes.events() {
        let Some(shown) = LineEvent::of(event) else { continue };
        // The event carries the revision of the later state, not of the change.
        let revision = shown.value.map(|_| event.mod_revision());
        out.event(&LineEvent { revision, synthetic: false, ..shown })?;
    }
    let count = changes.len() as u64;
    if out.format == Format::Json {
        out.line(|buffer| json::end_of_diff(buffer, from, to, count))?;
    }
    out.flush()?;
    if count == 0 && out.format == Format::Text {
        hint::hint(|| format!("nothing changed below {} between {from} and {to}", text::escaped(prefix)));
    }
    Ok(())
}

fn record(kv: &KeyValue) -> Record<'_> {
    Record {
        key: kv.key(),
        value: kv.value().unwrap_or_default(),
        create_revision: kv.create_revision(),
        mod_revision: kv.mod_revision(),
        version: kv.version(),
        lease: kv.lease(),
    }
}
