//! The initial state, losses, and the way back after one.

use super::*;

impl Sub {
    pub(super) fn check_initial(&mut self, oracle: &Oracle, max: usize, answer: Result<Batch, Error>) -> Option<Batch> {
        let Phase::Initial(left, count, at) = &mut self.phase else { unreachable!() };
        let (count, at) = (*count, *at);
        let looks = self.options.filter.shows(Kind::Added) || self.options.keeps_delivered();
        // All objects were handed out, and the cache knew it: the mark that ends them needs no state any more.
        let ends =
            |batch: &Batch| matches!(batch.events(), [mark] if mark.ends_initial_state()) && batch.position() == at;
        let only_the_end = left.is_empty() && answer.as_ref().is_ok_and(ends);
        if oracle.has_left(count) && looks && !only_the_end {
            let before = Position { epoch: at.epoch, revision: 0 };
            if let Some(delivered) = &mut self.delivered {
                delivered.all_at(count);
            }
            if self.options.on_lag == OnLag::Conflate {
                return self.check_behind(oracle, max, before, (true, false), answer);
            }
            let error = answer.expect_err("the initial state has left the window");
            assert_eq!(error.code(), Code::Lagged);
            let to = self.closed(oracle).map_or(oracle.now.revision, |at| at.revision);
            assert_eq!((error.lost_from(), error.lost_to()), (1, to));
            assert_eq!((error.oldest(), error.current()), (oracle.oldest(), oracle.now.revision));
            let again = self.options.on_lag == OnLag::Resnapshot && self.newest(oracle).is_some();
            self.phase = if again { Phase::Behind(true) } else { Phase::Ended };
            return None;
        }
        let delivered = self.delivered.as_mut().expect("nothing was lost");
        if looks && !self.options.filter.shows(Kind::Added) {
            oracle.matching_at(&self.options.filter, count).iter().for_each(|(key, kv)| delivered.put(key, kv, count));
        }
        let batch = answer.expect("a page of the initial state");
        assert!(!batch.is_empty() && batch.len() <= max && !batch.continues());
        for event in &batch {
            assert_eq!(event.sequence(), 0);
            if left.is_empty() {
                assert!(event.ends_initial_state() && event.kind() == Kind::Bookmark, "{event:?}");
                assert_eq!((event.revision(), event.key(), event.value()), (at.revision, &b""[..], None));
                assert_eq!(batch.position(), at);
                self.live(count, at);
                assert!(std::ptr::eq(event, batch.events().last().unwrap()), "the mark is the last");
                break;
            }
            let (key, kv) = left.remove(0);
            let kind = raw_kind(Kind::Added, self.options.filter.raw);
            assert!(event.is_initial_state() && !event.ends_initial_state());
            assert_eq!((event.kind(), event.revision(), event.prev_value()), (kind, kv.modified, None));
            crate::plan::assert_is(event, &key, &kv);
            delivered.put(&key, &kv, count);
        }
        Some(batch)
    }

    /// The first page of the difference behind a loss.
    pub(super) fn check_behind(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        (initial, begun): (bool, bool),
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Some((count, at)) = self.newest(oracle) else {
            let error = answer.expect_err("the state at the close has left");
            assert_eq!(error.code(), Code::Lagged, "{error}");
            self.phase = Phase::Ended;
            return None;
        };
        // It begins at the listing where that came after it.
        let epoch = if before.epoch == 0 { oracle.birth + 1 } else { before.epoch };
        if self.options.stop_on_resync && at.epoch != epoch {
            let error = answer.expect_err("RESYNCED was expected");
            assert_eq!((error.code(), error.current()), (Code::Resynced, at.revision), "{error}");
            self.phase = Phase::Ended;
            return None;
        }
        let delivered = self.delivered.as_ref().expect("it keeps them");
        let from = before.revision;
        let to = (count, at);
        self.phase =
            Phase::CatchUp(Plan::new(&self.options, oracle, delivered, from, to, (initial, begun), self.exact));
        self.check_page(oracle, max, before, answer)
    }

    pub(super) fn check_catch_up(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Phase::CatchUp(plan) = &self.phase else { unreachable!() };
        let left = oracle.has_left(plan.count);
        if left && !plan.ends_without_its_state(&answer) {
            // Overtaken: it begins again with what was delivered meanwhile.
            let (initial, begun) = (plan.initial, plan.begun);
            if self.options.on_lag == OnLag::Conflate || begun {
                // After its BEGIN it continues, and reports nothing again.
                return self.check_behind(oracle, max, before, (initial, begun), answer);
            }
            let error = answer.expect_err("overtaken again");
            self.assert_lost(oracle, before, &error);
            self.phase = if self.newest(oracle).is_some() { Phase::Behind(initial) } else { Phase::Ended };
            return None;
        }
        self.check_page(oracle, max, before, answer)
    }

    pub(super) fn check_page(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Phase::CatchUp(plan) = &mut self.phase else { unreachable!() };
        let batch = answer.unwrap_or_else(|error| panic!("{error}: a page of {plan:?} was expected"));
        let most = if self.options.whole { usize::MAX } else { max };
        let delivered = self.delivered.as_mut().expect("it keeps them");
        let done = plan.check_page(&self.options.filter, &batch, most, delivered);
        assert_eq!(batch.continues(), !done, "CONTINUES until its end: {:?}", self.options);
        assert_eq!(batch.position(), self.real.position());
        if !done {
            // A conflated loss is found by this very poll, which may have moved on to it first.
            let position = self.real.position();
            let begun = before == Position::default() || before.epoch == position.epoch;
            let moved = self.options.on_lag == OnLag::Conflate && begun && before < position;
            assert!(position == before || moved, "the position before it is complete: {before:?}, {position:?}");
            return Some(batch);
        }
        let (count, at) = (plan.count, plan.at);
        assert_eq!(self.real.position(), at);
        delivered.assert_are(&oracle.matching_at(&self.options.filter, count), "after the difference");
        self.live(count, at);
        (self.reported, self.exact) = (0, !self.options.filter.masks() || oracle.indexes.is_empty());
        (!batch.is_empty()).then_some(batch)
    }

    /// The numbers of a loss.
    pub(super) fn assert_lost(&mut self, oracle: &Oracle, before: Position, error: &Error) {
        assert_eq!(error.code(), Code::Lagged, "{error}");
        let reported = error.position();
        assert!(reported >= before, "{reported:?} {before:?}");
        let from = [reported.revision.max(self.reported) + 1, reported.revision + 1];
        assert!(from.contains(&error.lost_from()), "{error}: {from:?}");
        let met = self.loss_of(oracle, error);
        let behind_the_close = self.closed(oracle).filter(|_| self.end.is_some_and(|end| met.skip >= end));
        let to = behind_the_close.map_or(met.oldest - 1, |at| at.revision);
        assert_eq!(error.lost_to(), to.max(error.lost_from()), "{error}");
        assert_eq!((error.oldest(), error.current()), (met.oldest, met.current));
        self.reported = error.lost_to();
    }

    /// The loss that an error reports: that of now, or the one that a wait met.
    pub(super) fn loss_of(&self, oracle: &Oracle, error: &Error) -> Met {
        let met = self.met.iter().find(|met| met.current == error.current() && met.oldest == error.oldest());
        met.copied().unwrap_or(self.met(oracle))
    }

    /// The position at the close by its owner, where something came after it.
    fn closed(&self, oracle: &Oracle) -> Option<Position> {
        self.end.filter(|end| self.by_owner && *end < oracle.events.len()).map(|_| self.closed_at)
    }

    /// The state that a difference leads to: the newest, or that at the close by its owner. `None`: that one has left.
    pub(super) fn newest(&self, oracle: &Oracle) -> Option<(usize, Position)> {
        match self.end {
            Some(end) if self.by_owner && end < oracle.events.len() => {
                (!oracle.has_left(end)).then_some((end, self.closed_at))
            }
            _ => Some((oracle.events.len(), oracle.now)),
        }
    }

    /// LAGGED was reported, or (Conflate) acted upon.
    pub(super) fn lose(&mut self, oracle: &Oracle, skip: usize) {
        (self.floor, self.ahead) = (None, true);
        // What is masked may have been passed over in a segment that it still held.
        self.exact &= !self.options.filter.masks();
        match self.options.on_lag {
            OnLag::Stop => self.phase = Phase::Ended,
            OnLag::SkipToOldest => {
                // Nothing above a close by its owner concerns it.
                let skip = self.end.filter(|_| self.by_owner).map_or(skip, |end| skip.min(end.max(self.next)));
                (self.next, self.sure, self.whole_seen, self.delivered) = (skip, skip, skip, None);
            }
            OnLag::Resnapshot | OnLag::Conflate => {
                self.delivered.as_mut().expect("it keeps them").all_at(self.next);
                self.phase = if self.newest(oracle).is_some() { Phase::Behind(false) } else { Phase::Ended };
            }
            other => unreachable!("{other} is none that it draws"),
        }
        self.met.clear();
    }
}
