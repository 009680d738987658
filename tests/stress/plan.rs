//! A history that everybody can compute: what a step changes follows from its number alone, so a
//! reader checks what it sees without a lock and without asking the writer.
//!
//! Step s has revision 2s, so revisions have gaps. A key's visits go put, put, put, delete, and
//! again; a value says its key and visit. Some steps are longer than an eighth of a segment, some
//! longer than the ring, some are a resync.

use watchcore::{Change, Kind, Record, ResyncReason, Writer};

/// Keys of ordinary steps; the others belong to the steps that are longer than a ring.
pub const KEYS: usize = 48;
pub const GIANT_KEYS: usize = 160;
const GROUPS: [&str; 4] = ["/s/a/", "/s/ab/", "/s/b/", "/s/b/c/"];

/// What the log holds at one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    Begin,
    Change { key: usize, visit: usize },
    End,
}

pub struct Plan {
    pub steps: u64,
    pub seed: u64,
    names: Vec<Vec<u8>>,
    /// Keys in the order of their names.
    sorted: Vec<usize>,
    /// Steps that visit a key.
    visits: Vec<Vec<u64>>,
    changes: Vec<Vec<Expected>>,
    resyncs: Vec<u64>,
}

pub fn mix(seed: u64, number: u64) -> u64 {
    let mut x = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub fn revision_of(step: u64) -> u64 {
    2 * step
}

/// Whether the writer says, after this step, that nothing happened up to the next odd revision.
pub fn progresses_after(step: u64) -> bool {
    step.is_multiple_of(5)
}

/// Put, put, put, delete.
pub fn kind_of(visit: usize) -> Kind {
    [Kind::Added, Kind::Modified, Kind::Modified, Kind::Deleted][visit % 4]
}

impl Plan {
    pub fn new(steps: u64, seed: u64) -> Plan {
        let names: Vec<Vec<u8>> =
            (0..GIANT_KEYS).map(|key| format!("{}{:03}", GROUPS[key % 4], key / 4).into_bytes()).collect();
        let mut sorted: Vec<usize> = (0..GIANT_KEYS).collect();
        sorted.sort_by_key(|key| &names[*key]);
        let mut plan = Plan {
            steps,
            seed,
            names,
            sorted,
            visits: vec![Vec::new(); GIANT_KEYS],
            changes: vec![Vec::new()],
            resyncs: Vec::new(),
        };
        (1..=steps).for_each(|step| plan.add(step));
        plan
    }

    fn add(&mut self, step: u64) {
        let entropy = mix(self.seed, step);
        let resync = step % 211 == 101;
        let (width, keys) = match () {
            () if step % 1009 == 500 => (GIANT_KEYS, GIANT_KEYS),
            () if step % 97 == 50 => (40, KEYS),
            () => (1 + (entropy % 4) as usize, KEYS),
        };
        let first = (entropy >> 8) as usize % keys;
        let mut changes = Vec::with_capacity(width);
        for key in (0..width).map(|at| (first + at) % keys) {
            changes.push(Expected::Change { key, visit: self.visits[key].len() });
            self.visits[key].push(step);
        }
        if resync {
            let names = &self.names;
            changes.sort_by_key(|change| match change {
                Expected::Change { key, visit } => (kind_of(*visit) != Kind::Deleted, &names[*key]),
                _ => unreachable!("marks come later"),
            });
            changes.insert(0, Expected::Begin);
            changes.push(Expected::End);
            self.resyncs.push(step);
        }
        self.changes.push(changes);
    }

    pub fn name(&self, key: usize) -> &[u8] {
        &self.names[key]
    }

    pub fn key_of(&self, name: &[u8]) -> usize {
        let at = self.sorted.binary_search_by(|key| self.names[*key][..].cmp(name));
        self.sorted[at.unwrap_or_else(|_| panic!("key {} is of no plan", String::from_utf8_lossy(name)))]
    }

    pub fn is_resync(&self, step: u64) -> bool {
        self.resyncs.binary_search(&step).is_ok()
    }

    /// What the log holds of a step.
    pub fn changes(&self, step: u64) -> &[Expected] {
        &self.changes[step as usize]
    }

    /// The epoch, counted from 1, after a step.
    pub fn epoch(&self, step: u64) -> u64 {
        1 + self.resyncs.partition_point(|resync| *resync <= step) as u64
    }

    /// The last revision that was announced before a step.
    pub fn told_before(&self, step: u64) -> u64 {
        revision_of(step - 1) + u64::from(step > 1 && progresses_after(step - 1))
    }

    /// Whether a revision lies between `from` and `to` of a resync: the cache had no state of it.
    pub fn is_in_a_gap(&self, revision: u64) -> bool {
        let step = revision / 2 + 1;
        revision % 2 == 1 && self.is_resync(step) && self.told_before(step) < revision
    }

    pub fn revision_of_visit(&self, key: usize, visit: usize) -> u64 {
        revision_of(self.visits[key][visit])
    }

    /// (create_revision, mod_revision, version) of what a visit put.
    pub fn numbers(&self, key: usize, visit: usize) -> (u64, u64, u64) {
        let life = visit % 4;
        (self.revision_of_visit(key, visit - life), self.revision_of_visit(key, visit), life as u64 + 1)
    }

    /// The visit that a key shows after a step, if it is there.
    pub fn shown(&self, key: usize, step: u64) -> Option<usize> {
        let visits = self.visits[key].partition_point(|at| *at <= step);
        (visits > 0 && kind_of(visits - 1) != Kind::Deleted).then(|| visits - 1)
    }

    /// (key, visit) of all that is there after a step, in the order of the names.
    pub fn state(&self, step: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.sorted.iter().filter_map(move |key| Some((*key, self.shown(*key, step)?)))
    }

    /// Does a step.
    pub fn write(&self, writer: &mut Writer, step: u64) -> watchcore::Result<()> {
        let revision = revision_of(step);
        if self.is_resync(step) {
            let state: Vec<(usize, usize)> = self.state(step).collect();
            let values: Vec<Value> = state.iter().map(|(key, visit)| Value::of(*key, *visit)).collect();
            let records = state.iter().zip(&values).map(|((key, visit), value)| {
                let (create_revision, mod_revision, version) = self.numbers(*key, *visit);
                Record { key: self.name(*key), value: value.bytes(), create_revision, mod_revision, version, lease: 0 }
            });
            writer.resync(revision, records, ResyncReason::Compacted)?;
        } else {
            let changes: Vec<(usize, usize, Value)> = self
                .changes(step)
                .iter()
                .map(|change| match change {
                    Expected::Change { key, visit } => (*key, *visit, Value::of(*key, *visit)),
                    _ => unreachable!("no resync"),
                })
                .collect();
            let changes = changes.iter().map(|(key, visit, value)| match kind_of(*visit) {
                Kind::Deleted => Change::delete(self.name(*key)),
                _ => Change::put(self.name(*key), value.bytes()),
            });
            writer.apply(revision, changes)?;
        }
        if progresses_after(step) {
            writer.progress(revision + 1)?;
        }
        if step.is_multiple_of(173) && step > 60 {
            writer.compact(revision_of(step - 60))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WATCHCORE_SEED={} steps={}", self.seed, self.steps)
    }
}

/// The value that a visit puts: some are empty.
pub struct Value {
    bytes: [u8; 48],
    len: usize,
}

impl Value {
    pub fn of(key: usize, visit: usize) -> Value {
        let mut bytes = [0; 48];
        bytes[..8].copy_from_slice(&(key as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&(visit as u64).to_le_bytes());
        let len = if visit % 8 == 6 { 0 } else { 16 + 4 * (visit % 9) };
        Value { bytes, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
