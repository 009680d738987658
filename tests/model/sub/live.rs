//! What a poll of the live stream answers.

use super::*;

impl Sub {
    pub(super) fn check_live(
        &mut self,
        oracle: &Oracle,
        max: usize,
        before: Position,
        answer: Result<Batch, Error>,
    ) -> Option<Batch> {
        let Pending { found, at, stop, overrun, above } = self.pending(oracle);
        let gap = matches!(stop, Some(Stop::Gap(_))) && found.is_empty();
        // What has left is not looked at: a start of the future may have been passed in it.
        let unsure = self.floor.is_some() && !self.all_live(oracle);
        let may_lose = overrun.is_some() || unsure;
        // A wait may have met the gap before what follows had left.
        let gap_told = |error: &Error| match (stop, self.floor) {
            (Some(Stop::Gap(at)), Some(asked)) if gap => {
                let to = oracle.events[at].turn.expect("a mark").to;
                (error.lost_from(), error.lost_to()) == (asked + 1, to)
            }
            _ => false,
        };
        if let Err(error) = &answer
            && self.options.keeps_delivered()
            && loses_the_start(error)
        {
            assert!(self.floor.is_some() && (may_lose || gap), "its start is known: {error}");
            if gap && !unsure {
                assert!(gap_told(error), "{error}");
            }
            self.phase = Phase::Ended;
            return None;
        }
        match &answer {
            Err(error)
                if error.code() == Code::Lagged && may_lose && !(gap && overrun.is_none()) && !gap_told(error) =>
            {
                let skip = self.loss_of(oracle, error).skip;
                let leads_nowhere = self.newest(oracle).is_none();
                assert!(self.options.on_lag != OnLag::Conflate || leads_nowhere, "never reported: {error}");
                match (self.floor, above) {
                    _ if !unsure => self.assert_lost(oracle, before, error),
                    // The loss came behind the start.
                    (Some(asked), Some(above)) if error.position().revision > asked => self.pass(oracle, above),
                    // What the consumer has at a start that left is not to be known.
                    _ => self.exact = false,
                }
                self.lose(oracle, skip);
                let over = self.end.is_some_and(|end| skip >= end);
                self.marks_lost = self.options.on_lag == OnLag::SkipToOldest
                    && self.options.stop_on_resync
                    && oracle.epoch_at(skip) != if before.epoch == 0 { oracle.epoch_at(0) } else { before.epoch }
                    && !over;
                return None;
            }
            Ok(batch) if self.options.on_lag == OnLag::Conflate && may_lose => {
                let made = batch.events().first().is_some_and(|event| event.sequence() == 0 && event.is_synthetic());
                let due = self.end.is_some() || (self.options.bookmarks && self.bookmarked != oracle.now);
                let newest = self.newest(oracle).map(|(_, at)| at);
                let due = due && Some(self.real.position()) == newest;
                if made || (batch.is_empty() && (!found.is_empty() || due)) {
                    self.exact &= !unsure;
                    self.lose(oracle, 0);
                    return self.check_behind(oracle, max, before, (false, false), answer);
                }
            }
            Err(error) if self.options.on_lag == OnLag::Conflate && error.code() == Code::Resynced && may_lose => {
                let newest = self.newest(oracle).map(|(_, at)| at.revision);
                if matches!(stop, Some(Stop::Resynced(_))) && found.is_empty() && Some(error.current()) != newest {
                    self.check_stop(oracle, stop.expect("looked at"), error);
                    self.phase = Phase::Ended;
                    return None;
                }
                self.lose(oracle, 0);
                return self.check_behind(oracle, max, before, (false, false), answer);
            }
            _ => {}
        }
        self.met.clear();
        if found.is_empty() {
            if let Some(stop) = stop {
                let error = answer.err().unwrap_or_else(|| panic!("{stop:?} was expected"));
                self.check_stop(oracle, stop, &error);
                match stop {
                    Stop::Gap(at) if error.code() == Code::Lagged => {
                        assert!(!self.options.keeps_delivered(), "nothing leads from there to the state now: {error}");
                        self.reported = error.lost_to();
                        // Where the state at the gap had left, what the consumer has is that of an earlier one.
                        self.exact &= !unsure;
                        self.pass(oracle, at);
                        self.lose(oracle, at);
                    }
                    _ => self.phase = Phase::Ended,
                }
                return None;
            }
            self.pass(oracle, at);
            // Behind a close it cannot say how far it came where the last event has left.
            if self.end.is_none() || overrun.is_none() {
                self.whole_seen = at;
            }
            return self.check_nothing(oracle, answer);
        }
        let batch = answer.unwrap_or_else(|error| {
            let (at, live) = (oracle.events[self.next].seq, oracle.first_live);
            panic!("{error}: {} were pending from {at}, live from {live}, {:?}", found.len(), self.options)
        });
        assert!(!batch.is_empty(), "{} were pending {:?}", found.len(), self.options);
        assert!(batch.len() <= found.len(), "{} events, {} were pending: {batch:?}", batch.len(), found.len());
        for (event, (at, kind)) in batch.events().iter().zip(&found) {
            let expected = &oracle.events[*at];
            expected.assert_shown_as(event, *kind, self.options.filter.raw);
            assert_eq!(event.sequence(), expected.seq);
        }
        (self.floor, self.ahead) = (None, false);
        self.check_border(oracle, max, &batch, &found, overrun);
        assert_eq!(batch.position(), self.real.position());
        let last = found[batch.len() - 1].0;
        let next = match found.get(batch.len()) {
            // The next match was seen, and the cursor is at its revision, or at it.
            Some((next, _)) if oracle.events[*next].rev == oracle.events[last].rev => *next,
            Some((next, _)) if !self.options.filter.is_plain() => {
                (last + 1).max(oracle.revs[oracle.events[*next].rev].events.start)
            }
            Some(_) => last + 1,
            None if self.views() => last + 1,
            None => at,
        };
        let vague = overrun.is_some_and(|overrun| next > overrun);
        self.exact &= !vague || !self.options.filter.masks();
        self.pass(oracle, if vague { last + 1 } else { next });
        self.vague = vague;
        self.sure = last + 1;
        self.whole_seen = if batch.continues() { oracle.revs[oracle.events[last].rev].events.start } else { last + 1 };
        Some(batch)
    }

    /// Batches are views of one segment.
    pub(super) fn views(&self) -> bool {
        self.options.filter.is_plain() && !self.options.whole && !self.options.stop_on_resync
    }

    /// Where a batch may end.
    pub(super) fn check_border(
        &self,
        oracle: &Oracle,
        max: usize,
        batch: &Batch,
        found: &[(usize, Kind)],
        overrun: Option<usize>,
    ) {
        let last = &oracle.events[found[batch.len() - 1].0];
        let rev = &oracle.revs[last.rev];
        // The rest of the revision may be lost.
        let goes_on = oracle.events[rev.events.end - 1].seq / oracle.slots > last.seq / oracle.slots;
        let cut = goes_on && overrun.is_some_and(|at| rev.events.contains(&at) || rev.events.start > at);
        let inside = found.get(batch.len()).is_some_and(|(next, _)| oracle.events[*next].rev == last.rev)
            || (self.views() && !last.last);
        assert!(batch.continues() == inside || (cut && !last.last), "CONTINUES where the batch ends with {last:?}");
        let of_this = found.iter().filter(|(at, _)| oracle.events[*at].rev == last.rev).count();
        if inside && !cut {
            assert!(!self.options.whole, "a whole revision was asked for");
            assert!(
                rev.events.len() as u64 > oracle.slots / 8 || of_this > max,
                "ends inside a short revision: {last:?}"
            );
        }
        if batch.len() > max {
            let first = &oracle.events[found[0].0];
            assert!(self.options.whole && first.rev == last.rev, "{} events, {max} were asked for", batch.len());
        }
    }

    pub(super) fn check_nothing(&mut self, oracle: &Oracle, answer: Result<Batch, Error>) -> Option<Batch> {
        if let Some(delivered) = &self.delivered
            && self.exact
        {
            delivered.assert_are(&oracle.matching_at(&self.options.filter, self.next), "with nothing pending");
        }
        if self.end.is_some() {
            // Closed: what was published before was handed out, a bookmark may still come.
            return match answer {
                Ok(batch) if self.options.bookmarks => {
                    assert!(batch.events().iter().all(|event| event.kind() == Kind::Bookmark), "{batch:?}");
                    self.bookmarked = self.real.position();
                    None
                }
                answer => self.end_with(answer, Code::Closed),
            };
        }
        if self.floor.is_some_and(|floor| floor <= oracle.now.revision) {
            self.floor = None;
        }
        if self.floor.is_none() {
            assert_eq!(self.real.position(), oracle.now, "everything was handed out, {answer:?} {:?}", self.options);
        }
        if self.options.bookmarks && self.floor.is_none() && self.bookmarked != oracle.now {
            let batch = answer.expect("a bookmark");
            assert_eq!(batch.len(), 1);
            let event = &batch.events()[0];
            assert_eq!((event.kind(), event.revision(), event.flags()), (Kind::Bookmark, oracle.now.revision, 0));
            self.bookmarked = oracle.now;
            return Some(batch);
        }
        assert!(answer.expect("nothing").is_empty());
        None
    }

    pub(super) fn check_stop(&self, oracle: &Oracle, stop: Stop, error: &Error) {
        match stop {
            Stop::Gap(at) => {
                let turn = oracle.events[at].turn.expect("a mark");
                assert_eq!(error.code(), Code::Lagged, "{error}");
                assert_eq!((error.lost_from(), error.lost_to()), (self.floor.expect("it waits") + 1, turn.to));
            }
            // What has left is not looked at: the two cannot be reported apart.
            Stop::Future if !self.all_live(oracle) && error.code() == Code::Lagged => {}
            Stop::Future => assert_eq!(error.code(), Code::FutureRevision, "{error}"),
            Stop::Resynced(at) => {
                assert_eq!(error.code(), Code::Resynced, "{error}");
                let turn = oracle.events[at].turn.expect("a mark");
                assert_eq!(error.current(), turn.to);
                // A start of the future stands at its own revision.
                let revision = match self.options.start {
                    Start::After(asked) if turn.from < asked && asked < turn.to => asked,
                    _ => turn.from,
                };
                assert!(error.position() <= Position { epoch: turn.epoch - 1, revision });
            }
        }
    }
}

/// Whether the error says that nothing leads from the start to the state now.
fn loses_the_start(error: &Error) -> bool {
    error.code() == Code::Lagged && error.message().contains("the state that it was to start from")
}
