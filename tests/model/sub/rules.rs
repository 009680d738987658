//! What holds of a subscription at any time: its position, its lag, how it reads, what it keeps.

use super::*;

impl Sub {
    /// Never back, never ahead of what is pending.
    pub(super) fn position_rule(&mut self, oracle: &Oracle) {
        let position = self.real.position();
        assert!(
            position >= self.seen,
            "the position went back: {:?} to {position:?}, {:?} {:?}",
            self.seen,
            self.phase,
            self.options
        );
        assert!(self.closer.position() <= position, "what others see is ahead");
        self.seen = position;
        let whole = oracle.position_at(self.whole_seen);
        if matches!(self.phase, Phase::Live) && self.floor.is_none() {
            assert!(position >= whole, "{position:?} is behind what was handed out whole, {whole:?}");
        }
        if matches!(self.phase, Phase::Unready | Phase::Waits(_) | Phase::Initial(..)) {
            assert_eq!(position.revision, 0, "the position during the initial state");
        }
        if matches!(self.phase, Phase::Live) && self.floor.is_none() {
            let Pending { found, .. } = self.pending(oracle);
            if let Some((first, _)) = found.first() {
                // Inside a revision: the revision before.
                let first = &oracle.events[*first];
                let rev = &oracle.revs[first.rev];
                let (epoch, revision) =
                    rev.turn.map_or((rev.epoch, rev.revision.saturating_sub(1)), |turn| (turn.epoch - 1, turn.from));
                // Where it was compacted inside a gap, a skip stands there.
                let skipped = self.options.on_lag == OnLag::SkipToOldest && rev.turn.is_some();
                let revision = if skipped { revision.max(oracle.oldest() - 1) } else { revision };
                // So does a start of the future.
                let revision = match self.options.start {
                    Start::After(asked) if rev.turn.is_some_and(|turn| turn.from < asked && asked < turn.to) => {
                        revision.max(asked)
                    }
                    _ => revision,
                };
                let most = Position { epoch, revision };
                assert!(position <= most, "{position:?} is ahead: {first:?} was not handed out");
            }
        }
    }

    /// The lag is the number of events behind the cursor, gaps taken off. At the end of a segment that has left, of which
    /// only the sum of all gaps is known, it is at least that number, and at most that of the numbered slots.
    pub(super) fn lag_rule(&self, oracle: &Oracle) {
        let sure = !self.vague && self.end.is_none() && oracle.indexes.is_empty();
        if matches!(self.phase, Phase::Live) && sure && self.all_live(oracle) {
            let lag = self.real.lag();
            let behind = (oracle.events.len() - self.next) as u64;
            let most = match self.next.checked_sub(1) {
                Some(last) if !oracle.is_live(last) => {
                    oracle.events.last().map_or(0, |e| e.seq) - oracle.events[last].seq
                }
                _ => behind,
            };
            let within = (behind..=most).contains(&lag.events);
            assert!(within, "{} is not {behind} to {most}: {:?}", lag.events, self.options);
            if lag.events == 0 {
                assert_eq!(lag.age, Duration::ZERO);
            }
        }
    }

    /// It reads the chain of a fitting index, and then only its own events.
    pub(super) fn route_rule(&mut self, oracle: &Oracle, stats: &SubscriptionStats, from: usize) {
        let fits = |by: &By| (*by, by.fits(&self.options.filter));
        let fitting: Vec<(By, Vec<Vec<u8>>)> =
            oracle.indexes.iter().map(fits).filter(|(_, values)| !values.is_empty()).collect();
        let ReadPath::Chain { index } = &stats.read_path else {
            self.linked_from = None;
            let answered = matches!(self.phase, Phase::Live) && self.opened_at < oracle.events.len();
            let polled = from != usize::MAX && self.floor.is_none() && !self.ahead;
            let must = answered && polled && !oracle.few_buckets && !fitting.is_empty();
            return assert!(!must, "it scans, though {fitting:?} fits {:?}", self.options.filter);
        };
        let Some((by, buckets)) = fitting.iter().find(|(by, _)| by.name() == *index) else {
            panic!("it reads {index}, which does not fit {:?}", self.options.filter);
        };
        // Where buckets are few it may get its own only once another one is released, and scans what lies below:
        // all there was when it was first seen to read it.
        let first_seen = if oracle.few_buckets { oracle.events.len() } else { self.opened_at };
        let linked_from = *self.linked_from.get_or_insert(first_seen);
        if from == usize::MAX || from < linked_from || from >= oracle.events.len() {
            return;
        }
        let behind = &oracle.events[from..];
        if behind.iter().any(|event| event.is_mark()) {
            return;
        }
        let size = |bucket: &Vec<u8>| behind.iter().filter(|event| by.gathers(bucket, event)).count() as u64;
        let own = buckets.iter().map(size).max().unwrap_or(0);
        let looked = stats.looked_at - self.looked;
        assert!(looked <= own, "looked at {looked} events of {own} of its own, {:?}", self.options);
    }

    /// What it keeps them is what it has delivered.
    pub(super) fn memory_rule(&mut self, oracle: &Oracle, stats: &SubscriptionStats) {
        if !self.options.keeps_delivered() {
            return assert_eq!((stats.delivered_keys, stats.delivered_bytes), (0, 0));
        }
        let Some(delivered) = &self.delivered else { return };
        // A start of the future keeps the state at which it began, until its revision is there.
        let begun = self.floor.is_none();
        if self.exact && begun && matches!(self.phase, Phase::Live) && self.all_live(oracle) {
            assert_eq!(stats.delivered_keys, delivered.len() as u64, "{:?}", self.options);
        }
        self.most_shown = self.most_shown.max(stats.delivered_keys);
        assert!(stats.delivered_bytes <= BYTES_A_KEY * self.most_shown + 1024, "{stats:?}");
    }
}
