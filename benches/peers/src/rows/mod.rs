//! Who is measured at what: each row's contestants stand in the module that does its work.

pub mod delivery;
pub mod informers;
#[cfg(feature = "etcd")]
pub mod listing;
pub mod objects;
pub mod worst;

use crate::measure::Measured;

/// One program at one kind of work. Names that begin with `watchcore` are its own; all others are peers.
pub struct Contestant {
    pub row: &'static str,
    pub name: &'static str,
    /// What it does in this row, where the row's own text leaves that open.
    pub note: &'static str,
    /// Beyond this size it is left out: it is not made for it.
    pub most: usize,
    pub run: fn(usize) -> Measured,
    /// Called for each size before a run, by the driver: it makes what is there for all rounds.
    pub prepare: fn(usize),
}

impl Contestant {
    pub const fn new(row: &'static str, name: &'static str, note: &'static str, run: fn(usize) -> Measured) -> Self {
        Contestant { row, name, note, most: usize::MAX, run, prepare: |_| {} }
    }

    pub const fn up_to(self, most: usize) -> Self {
        Contestant { most, ..self }
    }

    #[cfg(feature = "etcd")]
    const fn prepared(self, prepare: fn(usize)) -> Self {
        Contestant { prepare, ..self }
    }
}

pub fn contestant(row: &str, name: &str) -> Option<&'static Contestant> {
    contestants().find(|one| one.row == row && one.name == name)
}

/// All contestants that are written in Rust.
pub fn contestants() -> impl Iterator<Item = &'static Contestant> {
    [
        delivery::CONTESTANTS,
        objects::CONTESTANTS,
        worst::CONTESTANTS,
        informers::OF_OURS,
        informers::OF_KUBE,
        listings(),
    ]
    .into_iter()
    .flatten()
}

/// Where there is an etcd.
#[cfg(feature = "etcd")]
fn listings() -> &'static [Contestant] {
    if listing::endpoint().is_some() { listing::CONTESTANTS } else { &[] }
}

#[cfg(not(feature = "etcd"))]
fn listings() -> &'static [Contestant] {
    &[]
}
