//! Groups the events of a source into revisions of the cache.
//!
//! A revision of the cache is published whole. The changes of one revision of the source are collected until the source
//! shows that it is complete (a position that has reached the revision), or, if positions do not show that, until no
//! further event is available. Changes outside of the cache's prefix belong to their revision, and change nothing. A
//! change of a revision that was published already is either a repeat, which the cache has already, or the source broke
//! its promise: then the reflector lists, which is correct whatever came before.

#![forbid(unsafe_code)]

use crate::source::Entry;
use std::collections::HashMap;
use watchcore::{Change, Error, Record, ResyncReason, Writer};

/// The effect of an event on the cache.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// The event was collected.
    Gathered,
    /// The cache has the change already.
    Repeat,
    /// The event contradicts the published state: a list is due.
    Misfit,
    /// The key is outside of the prefix.
    Outside,
}

/// The writer of a cache, and the revision that is being collected.
pub(super) struct Feed {
    pub(super) writer: Writer,
    group: Option<RevisionGroup>,
    /// The position after everything that was published, where a watch resumes.
    pub(super) resume: u64,
}

/// The events received of one revision.
struct RevisionGroup {
    revision: u64,
    /// The position of its last event.
    position: u64,
    /// An event of the revision had a lower position: the source marks the last event of a revision.
    is_marked: bool,
    /// The changes inside of the prefix; `true` is a deletion.
    changes: Vec<(Entry, bool)>,
}

impl RevisionGroup {
    /// The revision up to which everything was delivered, whatever comes next.
    fn proven(&self) -> u64 {
        match self.position == self.revision && !self.is_marked {
            true => self.revision - 1,
            false => self.position,
        }
    }
}

impl Feed {
    pub(super) fn new(writer: Writer) -> Feed {
        Feed { writer, group: None, resume: 0 }
    }

    /// The newest revision that has arrived. If an attempt does not raise it, the attempt was fruitless.
    pub(super) fn newest(&self) -> u64 {
        self.resume.max(self.writer.position().revision)
    }

    /// Whether the source has announced more of the collected revision.
    pub(super) fn is_incomplete(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.position < group.revision)
    }

    /// Handles the end of a watch: publishes the collected revision if it is known to be whole;
    /// otherwise drops it, and the next watch repeats it. Returns whether it was dropped.
    pub(super) fn settle(&mut self) -> Result<bool, Error> {
        let is_dropped = self.group.as_ref().is_some_and(|group| group.proven() < group.revision);
        if is_dropped {
            self.group = None;
        }
        self.flush()?;
        Ok(is_dropped)
    }

    /// Takes a change. `position` is where a watch resumes after it, or 0 if the source does not say.
    pub(super) fn take(&mut self, entry: Entry, deleted: bool, position: u64) -> Result<Taken, Error> {
        let revision = if entry.revision == 0 { position } else { entry.revision };
        let position = if position == 0 { revision } else { position };
        let is_outside = !entry.key.starts_with(self.writer.prefix());
        let gathered = self.group.as_ref().map_or(0, |group| group.revision);
        if revision > gathered {
            // Nothing is missing below the position, so the former revision is complete, even if
            // its last event was filtered out.
            self.flush()?;
        }
        if revision < gathered || revision <= self.writer.position().revision {
            if is_outside {
                self.progress(if position > revision { position } else { position.saturating_sub(1) })?;
                return Ok(Taken::Outside);
            }
            let known = self.writer.get(&entry.key).map(|kv| kv.mod_revision());
            let is_repeat = match (known, deleted) {
                (Some(known), false) => known >= revision,
                (Some(known), true) => known > revision,
                (None, deleted) => deleted,
            };
            let is_repeat = is_repeat && revision != 0 && revision >= gathered;
            return Ok(if is_repeat { Taken::Repeat } else { Taken::Misfit });
        }
        // The revisions below this one are whole. Its own events are not published yet, whatever its position.
        self.resume = self.resume.max(position.min(revision - 1));
        let group =
            self.group.get_or_insert(RevisionGroup { revision, position, is_marked: false, changes: Vec::new() });
        group.position = position;
        group.is_marked |= position < revision;
        if is_outside {
            return Ok(Taken::Outside);
        }
        // The last change of a key within a revision counts.
        group.changes.retain(|(other, _)| other.key != entry.key);
        group.changes.push((entry, deleted));
        Ok(Taken::Gathered)
    }

    /// Publishes the collected revision.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let changes = group.changes.iter().filter(|(entry, deleted)| !deleted || self.writer.get(&entry.key).is_some());
        let changes = changes.map(|(entry, deleted)| match deleted {
            true => Change::delete(&entry.key),
            false => Change::put(&entry.key, &entry.value),
        });
        let changes: Vec<Change<'_>> = changes.collect();
        if changes.is_empty() {
            // All changes were outside of the prefix, or deleted absent keys.
            let end = group.revision.max(group.position);
            if end > self.writer.position().revision {
                self.writer.progress(end)?;
            }
        } else {
            self.writer.apply(group.revision, changes)?;
        }
        self.resume = self.resume.max(group.proven());
        Ok(())
    }

    /// Everything up to this position was delivered. A collected revision above it stays incomplete.
    pub(super) fn progress(&mut self, position: u64) -> Result<(), Error> {
        if self.group.as_ref().is_some_and(|group| position >= group.revision) {
            self.flush()?;
        }
        if position > self.writer.position().revision {
            self.writer.progress(position)?;
        }
        self.resume = self.resume.max(position);
        Ok(())
    }

    /// Replaces the state: by a load the first time, later by the difference, in one revision. Returns how many entries
    /// were skipped because their keys are outside of the prefix, and whether there was a state before.
    pub(super) fn replace(&mut self, revision: u64, entries: &[Entry]) -> Result<(u64, bool), Error> {
        self.group = None;
        let was_loaded = self.writer.is_loaded();
        let prefix = self.writer.prefix();
        let inside: Vec<&Entry> = entries.iter().filter(|entry| entry.key.starts_with(prefix)).collect();
        let outside = (entries.len() - inside.len()) as u64;
        let records: Vec<Record<'_>> = inside.into_iter().map(|entry| self.record(entry, revision)).collect();
        if was_loaded {
            self.writer.resync(revision, records, ResyncReason::Compacted)?;
        } else {
            self.writer.load(revision, records)?;
        }
        self.resume = revision;
        Ok((outside, was_loaded))
    }

    /// The numbers of a listed entry: those of the cache if it is the same version, so that it is
    /// no change; otherwise numbers that follow from the cache's.
    fn record<'a>(&self, entry: &'a Entry, listed: u64) -> Record<'a> {
        let (key, value) = (&entry.key[..], &entry.value[..]);
        // If the history went back below the key's creation, the former object cannot be identified
        // with the listed one.
        let before = self.writer.get(key).filter(|before| before.create_revision() <= listed);
        if let Some(before) = &before {
            let is_same = match entry.revision {
                0 => before.value() == Some(value),
                revision => before.mod_revision() == revision,
            };
            if is_same {
                return Record {
                    key,
                    value,
                    create_revision: before.create_revision(),
                    mod_revision: before.mod_revision().min(listed),
                    version: before.version(),
                    lease: before.lease(),
                };
            }
        }
        let mod_revision = if entry.revision == 0 { listed } else { entry.revision };
        match before {
            // The object has changed meanwhile, or was deleted and created again: a list does not tell.
            Some(before) if before.create_revision() <= mod_revision => Record {
                key,
                value,
                create_revision: before.create_revision(),
                mod_revision,
                version: before.version() + 1,
                lease: 0,
            },
            _ => Record { key, value, create_revision: mod_revision, mod_revision, version: 1, lease: 0 },
        }
    }
}

/// The initial state of a watch as it arrives: in any order, with changes in between.
#[derive(Default)]
pub(super) struct Gathering {
    entries: HashMap<Vec<u8>, Entry>,
}

impl Gathering {
    pub(super) fn put(&mut self, entry: Entry) {
        match self.entries.get(&entry.key) {
            Some(known) if known.revision > entry.revision => {}
            _ => {
                self.entries.insert(entry.key.clone(), entry);
            }
        }
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn newest(&self) -> u64 {
        self.entries.values().map(|entry| entry.revision).max().unwrap_or(0)
    }

    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.entries.into_values().collect()
    }
}
