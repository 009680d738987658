//! The operations of a random history.

use proptest::collection::vec;
use proptest::prelude::*;

/// Entropy of a filter: keys, kinds, raw types, selectors.
pub type Entropy = (u32, u32, u32, u32);

/// Numbers are entropy: they are reduced to what is possible where they are used.
#[derive(Clone, Debug)]
pub enum Op {
    /// Changes of one revision: (key, verb, value).
    Apply {
        changes: Vec<(u32, u32, u32)>,
        gap: u32,
    },
    /// A revision of this many eighths of the ring.
    Giant {
        eighths: u32,
        gap: u32,
    },
    /// Single puts until this many slots were used.
    Flood {
        slots: u32,
        key: u32,
    },
    Resync {
        reason: u32,
        way: u32,
        changes: Vec<(u32, u32, u32)>,
        gap: u32,
    },
    Load {
        changes: Vec<(u32, u32, u32)>,
        gap: u32,
    },
    Progress {
        gap: u32,
    },
    Compact {
        place: u32,
    },
    Subscribe {
        start: u32,
        revision: u32,
        epoch: u32,
        filter: Entropy,
        options: u32,
    },
    Poll {
        which: u32,
        max: u32,
        times: u32,
    },
    Wait {
        which: u32,
    },
    /// In a wake set.
    Arm {
        which: u32,
    },
    Close {
        which: u32,
    },
    Drop {
        which: u32,
    },
    Keep {
        which: u32,
        max: u32,
    },
    Snapshot,
    Release {
        which: u32,
    },
    Read {
        revision: u32,
        key: u32,
        filter: Entropy,
        limit: u32,
    },
    /// The first page of a list.
    Pages {
        revision: u32,
        filter: Entropy,
        limit: u32,
    },
    /// The next page of one that was begun.
    Page {
        which: u32,
    },
    Diff {
        from: u32,
        to: u32,
        epoch: u32,
        filter: Entropy,
    },
    Waiter {
        revision: u32,
        epoch: u32,
    },
    Refuse {
        what: u32,
        key: u32,
    },
    Retake,
}

fn changes(most: usize) -> impl Strategy<Value = Vec<(u32, u32, u32)>> {
    vec((any::<u32>(), any::<u32>(), any::<u32>()), 1..=most)
}

fn filter() -> impl Strategy<Value = Entropy> {
    (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>())
}

pub fn op() -> impl Strategy<Value = Op> {
    let entropy = any::<u32>;
    prop_oneof![
        24 => (changes(2), entropy()).prop_map(|(changes, gap)| Op::Apply { changes, gap }),
        6 => (changes(12), entropy()).prop_map(|(changes, gap)| Op::Apply { changes, gap }),
        1 => (1u32..40, entropy()).prop_map(|(eighths, gap)| Op::Giant { eighths, gap }),
        4 => (1u32..60, entropy()).prop_map(|(slots, key)| Op::Flood { slots, key }),
        3 => (entropy(), entropy(), changes(6), entropy())
            .prop_map(|(reason, way, changes, gap)| Op::Resync { reason, way, changes, gap }),
        2 => (changes(8), entropy()).prop_map(|(changes, gap)| Op::Load { changes, gap }),
        3 => entropy().prop_map(|gap| Op::Progress { gap }),
        2 => entropy().prop_map(|place| Op::Compact { place }),
        12 => (entropy(), entropy(), entropy(), filter(), entropy()).prop_map(|(start, revision, epoch, filter, options)| {
            Op::Subscribe { start, revision, epoch, filter, options }
        }),
        30 => (entropy(), entropy(), 1u32..6).prop_map(|(which, max, times)| Op::Poll { which, max, times }),
        8 => entropy().prop_map(|which| Op::Wait { which }),
        3 => entropy().prop_map(|which| Op::Arm { which }),
        1 => entropy().prop_map(|which| Op::Close { which }),
        2 => entropy().prop_map(|which| Op::Drop { which }),
        3 => (entropy(), entropy()).prop_map(|(which, max)| Op::Keep { which, max }),
        3 => Just(Op::Snapshot),
        1 => entropy().prop_map(|which| Op::Release { which }),
        8 => (entropy(), entropy(), filter(), entropy())
            .prop_map(|(revision, key, filter, limit)| Op::Read { revision, key, filter, limit }),
        3 => (entropy(), filter(), entropy()).prop_map(|(revision, filter, limit)| Op::Pages { revision, filter, limit }),
        6 => entropy().prop_map(|which| Op::Page { which }),
        4 => (entropy(), entropy(), entropy(), filter())
            .prop_map(|(from, to, epoch, filter)| Op::Diff { from, to, epoch, filter }),
        2 => (entropy(), entropy()).prop_map(|(revision, epoch)| Op::Waiter { revision, epoch }),
        4 => (entropy(), entropy()).prop_map(|(what, key)| Op::Refuse { what, key }),
        1 => Just(Op::Retake),
    ]
}

/// How the cache of a case is built.
#[derive(Clone, Debug)]
pub struct Setup {
    pub shape: u32,
    pub tight: bool,
    pub expect_load: bool,
    pub indexes: u32,
    /// So few buckets that some requests are refused.
    pub few_buckets: bool,
}

pub fn setup() -> impl Strategy<Value = Setup> {
    let weighted = proptest::bool::weighted;
    (0u32..5, weighted(0.3), weighted(0.25), 0u32..10, weighted(0.3)).prop_map(
        |(shape, tight, expect_load, indexes, few_buckets)| Setup { shape, tight, expect_load, indexes, few_buckets },
    )
}
