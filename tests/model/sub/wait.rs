//! What a wait answers, and when it may.

use super::*;

impl Sub {
    /// Blocks for no time, or arms it, and checks what it says.
    pub fn wait(&mut self, oracle: &Oracle, arms: bool) {
        self.check_wait(oracle, arms);
        self.looked = self.real.stats().looked_at;
    }

    pub(super) fn check_wait(&mut self, oracle: &Oracle, arms: bool) {
        let answer = if arms {
            let answer = self.real.arm();
            if self.is_ended() || self.end.is_some() {
                // A late start is fixed by the arming, also of one that its owner has closed.
                if matches!(self.phase, Phase::Unready)
                    && oracle.loaded
                    && !self.never
                    && !self.is_ended()
                    && self.begin(oracle, true).is_err()
                {
                    self.refused = true;
                }
                // The poll reports.
                assert!(answer.unwrap());
                self.met.push(self.met(oracle));
                return;
            }
            answer
        } else {
            self.real.wait(Duration::ZERO)
        };
        crate::trace(|| format!("  {} waits: {answer:?}, {:?} at {}", self.name, self.phase, self.next));
        match self.phase {
            Phase::Ended => return assert_eq!(answer.expect_err("ended").code(), Code::Closed),
            Phase::Unknown => return assert!(answer.expect("a loss is to be reported")),
            Phase::Initial(..) | Phase::Behind(_) | Phase::CatchUp(_) => {
                return assert!(answer.expect("something of the state"));
            }
            _ => {}
        }
        if self.refused || self.marks_lost {
            return assert!(answer.expect("an error is to be reported"));
        }
        if let Phase::Unready = self.phase
            && oracle.loaded
            && !self.never
            && self.begin(oracle, true).is_err()
        {
            self.refused = true;
        }
        if let Phase::Waits(revision) = self.phase
            && oracle.now.revision >= revision
            && !self.by_owner
        {
            self.initial(oracle, oracle.events.len(), oracle.now);
        }
        if !matches!(self.phase, Phase::Live) {
            let something =
                matches!(self.phase, Phase::Initial(..) | Phase::Unknown) || self.refused || self.end.is_some();
            return assert_eq!(answer.expect("not over yet"), something);
        }
        let Pending { found, at, stop, overrun, .. } = self.pending(oracle);
        if overrun.is_some() || (self.floor.is_some() && !self.all_live(oracle)) {
            self.exact &= !self.options.filter.masks();
            match answer {
                Ok(true) => self.met.push(self.met(oracle)),
                Ok(false) => assert!(found.is_empty() && stop.is_none(), "{found:?} {stop:?}"),
                Err(error) => {
                    assert_eq!(error.code(), Code::Closed);
                    assert!(found.is_empty() && self.end.is_some(), "{error}");
                }
            }
            return;
        }
        // A look that moves over events, which an unfiltered one need not do.
        let moves = !self.options.filter.is_plain() || self.floor.is_some();
        let (next, wake) = match found.first() {
            Some((found, _)) => (*found, true),
            None => (at, stop.is_some()),
        };
        let passed = |floor: &u64| oracle.events[self.next..next].iter().any(|event| event.revision > *floor);
        if self.floor.as_ref().is_some_and(passed) {
            self.floor = None;
        }
        if wake {
            assert!(answer.unwrap_or_else(|error| panic!("{error}: {found:?} {stop:?}")), "{found:?} {stop:?}");
            if moves {
                self.pass(oracle, next);
            }
            if !found.is_empty() {
                self.floor = None;
            }
        } else if self.end.is_some() {
            assert_eq!(answer.expect_err("closed and read").code(), Code::Closed);
            self.pass(oracle, at);
        } else {
            let due = self.options.bookmarks && self.floor.is_none() && self.bookmarked != oracle.now;
            let passed = self.floor.is_some();
            if self.options.bookmarks && self.floor.is_some_and(|floor| floor <= oracle.now.revision) {
                self.floor = None;
            }
            let answer = answer.expect("open");
            assert!(answer == due || passed, "said {answer}: floor {:?}, {:?}", self.floor, self.bookmarked);
            if moves {
                self.pass(oracle, at);
            }
        }
        self.position_rule(oracle);
    }

    pub(super) fn all_live(&self, oracle: &Oracle) -> bool {
        (self.next..self.limit(oracle)).all(|at| oracle.is_live(at))
    }

    pub(super) fn met(&self, oracle: &Oracle) -> Met {
        let skip = oracle.above(oracle.oldest() - 1);
        Met { oldest: oracle.oldest(), current: oracle.now.revision, skip: skip.max(self.sure) }
    }
}
