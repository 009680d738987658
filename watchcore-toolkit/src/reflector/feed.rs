//! From what a source says to revisions of the cache.
//!
//! A revision of the cache is published whole. What changes at one revision of the source is gathered until the source says
//! that it is complete (a position that has reached the revision), or has nothing more at hand. What comes for a revision
//! that was published already is a repeat, which the cache knows, or a source that broke its promise: then a list
//! is taken, which is right whatever came before.

#![forbid(unsafe_code)]

use super::source::Entry;
use std::collections::HashMap;
use watchcore::{Change, Error, Record, ResyncReason, Writer};

/// What an event is to the cache.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// Gathered.
    Gathered,
    /// The cache knows it already.
    Repeat,
    /// It does not fit what was published: a list is due.
    Misfit,
    /// Its key is outside of the prefix.
    Outside,
}

/// The writer of a cache, and the revision that is being gathered.
pub(super) struct Feed {
    pub(super) writer: Writer,
    group: Vec<(Entry, bool)>,
    /// Of the group.
    revision: u64,
    /// Behind everything that was published: where a watch resumes.
    pub(super) resume: u64,
    /// Behind the group, once it is published.
    resume_behind: u64,
}

impl Feed {
    pub(super) fn new(writer: Writer) -> Feed {
        Feed { writer, group: Vec::new(), revision: 0, resume: 0, resume_behind: 0 }
    }

    /// Whether something is gathered that is only waiting for the rest of its revision.
    pub(super) fn is_incomplete(&self) -> bool {
        !self.group.is_empty() && self.resume_behind < self.revision
    }

    /// A watch has ended: publishes what was gathered. Where the rest of its revision is missing it is dropped, and
    /// the next watch brings it again.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        if self.is_incomplete() {
            self.group.clear();
        }
        self.flush()
    }

    /// Takes a change. `position` is where a watch resumes behind it, 0 where the source does not say.
    pub(super) fn take(&mut self, entry: Entry, deleted: bool, position: u64) -> Result<Taken, Error> {
        let revision = if entry.revision == 0 { position } else { entry.revision };
        if !entry.key.starts_with(self.writer.prefix()) {
            if self.group.is_empty() {
                // Its revision has passed nevertheless.
                self.progress(position)?;
            }
            return Ok(Taken::Outside);
        }
        if revision == 0 {
            return Ok(Taken::Misfit);
        }
        if !self.group.is_empty() && self.revision != revision {
            if revision < self.revision {
                return Ok(Taken::Misfit);
            }
            self.flush()?;
        }
        if revision <= self.writer.position().revision {
            let known = self.writer.get(&entry.key).map(|kv| kv.mod_revision());
            let is_repeat = match (known, deleted) {
                (Some(known), false) => known >= revision,
                (Some(known), true) => known > revision,
                (None, deleted) => deleted,
            };
            return Ok(if is_repeat { Taken::Repeat } else { Taken::Misfit });
        }
        self.revision = revision;
        self.resume_behind = if position == 0 { revision } else { position };
        // The last change of a key within a revision is what the revision says.
        self.group.retain(|(other, _)| other.key != entry.key);
        self.group.push((entry, deleted));
        Ok(Taken::Gathered)
    }

    /// Publishes what was gathered.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.group.is_empty() {
            return Ok(());
        }
        let group = std::mem::take(&mut self.group);
        let changes: Vec<Change<'_>> = group
            .iter()
            .filter(|(entry, deleted)| !deleted || self.writer.get(&entry.key).is_some())
            .map(|(entry, deleted)| match deleted {
                true => Change::delete(&entry.key),
                false => Change::put(&entry.key, &entry.value),
            })
            .collect();
        // Without changes it is progress: something was deleted that had never been there.
        self.writer.apply(self.revision, changes)?;
        self.resume = self.resume_behind.max(self.resume);
        Ok(())
    }

    /// Everything up to here was delivered.
    pub(super) fn progress(&mut self, revision: u64) -> Result<(), Error> {
        self.flush()?;
        if revision > self.writer.position().revision {
            self.writer.progress(revision)?;
        }
        self.resume = self.resume.max(revision);
        Ok(())
    }

    /// Replaces the state: by a load the first time, then by the difference in one revision. How many entries were left
    /// out because their keys are outside of the prefix, and whether there was a state before.
    pub(super) fn replace(&mut self, revision: u64, entries: &[Entry]) -> Result<(u64, bool), Error> {
        self.group.clear();
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
        (self.resume, self.resume_behind) = (revision, revision);
        Ok((outside, was_loaded))
    }

    /// The numbers of an entry of a list: those that the cache has where it is the same version, so that it is no change;
    /// else those that follow from them.
    fn record<'a>(&self, entry: &'a Entry, listed: u64) -> Record<'a> {
        let (key, value) = (&entry.key[..], &entry.value[..]);
        let before = self.writer.get(key);
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
            // Changed while nobody looked, or deleted and made again: that cannot be seen from a list.
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

/// The initial state of a watch, as it comes: in any order, with changes in between.
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

    pub(super) fn delete(&mut self, entry: &Entry) {
        self.entries.remove(&entry.key);
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
