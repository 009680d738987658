//! Assembles whole revisions from the messages of the watch stream.
//!
//! A message without fragments holds whole revisions. A fragment may end inside one; but since revisions rise along
//! the stream, every revision before the last one seen is complete, so only the last one waits for the rest.

use etcd_client::proto::PbEvent;

/// Joins fragments. Each stream has its own: if the stream breaks, its incomplete revision is dropped with it.
pub(super) struct Assembler {
    held: Vec<PbEvent>,
    /// The size of the held events, and its limit: nothing else bounds a revision.
    bytes: usize,
    most: usize,
    open: bool,
}

/// The events that wait for the rest of their revision have this many bytes, more than the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RevisionTooLong(pub(super) usize);

impl Assembler {
    pub(super) fn new(most: usize) -> Assembler {
        Assembler { held: Vec::new(), bytes: 0, most, open: false }
    }

    /// Takes the events of one message and returns those whose revisions are complete. `more`: the message is a
    /// fragment, and others follow.
    pub(super) fn push(&mut self, events: Vec<PbEvent>, more: bool) -> Result<Vec<PbEvent>, RevisionTooLong> {
        self.bytes += events.iter().map(weight).sum::<usize>();
        if self.held.is_empty() {
            self.held = events;
        } else {
            self.held.extend(events);
        }
        self.open = more;
        if !more {
            self.bytes = 0;
            return Ok(std::mem::take(&mut self.held));
        }
        let Some(last) = self.held.last().map(revision_of) else { return Ok(Vec::new()) };
        let cut = self.held.iter().rposition(|event| revision_of(event) != last).map_or(0, |at| at + 1);
        let tail = self.held.split_off(cut);
        let whole = std::mem::replace(&mut self.held, tail);
        self.bytes -= whole.iter().map(weight).sum::<usize>();
        if self.bytes > self.most { Err(RevisionTooLong(self.bytes)) } else { Ok(whole) }
    }

    /// Whether fragments are still to come.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }
}

/// The size of an event in memory.
fn weight(event: &PbEvent) -> usize {
    size_of::<PbEvent>() + event.kv.as_ref().map_or(0, |kv| kv.key.len() + kv.value.len())
}

/// The revision of an event; 0 if the server left it out.
pub(super) fn revision_of(event: &PbEvent) -> u64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision.max(0) as u64)
}

/// Splits events into runs of one revision each.
pub(super) fn revisions(events: &mut [PbEvent]) -> impl Iterator<Item = &mut [PbEvent]> {
    events.chunk_by_mut(|a, b| revision_of(a) == revision_of(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::proto::PbKeyValue;

    fn events(revisions: &[i64]) -> Vec<PbEvent> {
        let event = |revision: &i64| PbEvent {
            kv: Some(PbKeyValue { mod_revision: *revision, ..Default::default() }),
            ..Default::default()
        };
        revisions.iter().map(event).collect()
    }

    fn of(events: &[PbEvent]) -> Vec<u64> {
        events.iter().map(revision_of).collect()
    }

    #[test]
    fn a_whole_message_passes() {
        let mut assembler = Assembler::new(1 << 20);
        assert_eq!(of(&assembler.push(events(&[3, 3, 4]), false).unwrap()), [3, 3, 4]);
        assert!(!assembler.is_open());
    }

    #[test]
    fn the_last_revision_of_a_fragment_waits() {
        let mut assembler = Assembler::new(1 << 20);
        assert_eq!(of(&assembler.push(events(&[3, 4, 4]), true).unwrap()), [3]);
        assert!(assembler.is_open());
        assert_eq!(of(&assembler.push(events(&[4, 4, 5]), true).unwrap()), [4, 4, 4, 4]);
        assert_eq!(of(&assembler.push(events(&[5, 6]), false).unwrap()), [5, 5, 6]);
        assert!(!assembler.is_open());
    }

    #[test]
    fn one_revision_over_many_fragments_comes_whole() {
        let mut assembler = Assembler::new(1 << 20);
        for _ in 0..5 {
            assert!(assembler.push(events(&[7, 7]), true).unwrap().is_empty());
        }
        assert_eq!(assembler.push(events(&[7]), false).unwrap().len(), 11);
    }

    /// A server that claims of each fragment that others follow.
    #[test]
    fn endless_revision_is_refused() {
        let one = weight(&events(&[7])[0]);
        let mut assembler = Assembler::new(3 * one);
        assert_eq!(of(&assembler.push(events(&[5, 6, 7, 7]), true).unwrap()), [5, 6]);
        assert_eq!(assembler.push(events(&[7]), true), Ok(Vec::new()));
        assert_eq!(assembler.push(events(&[7]), true), Err(RevisionTooLong(4 * one)));
        let mut assembler = Assembler::new(3 * one);
        for revision in 1..20 {
            assert!(assembler.push(events(&[revision, revision]), true).is_ok(), "whole ones weigh nothing any more");
        }
    }

    #[test]
    fn an_empty_end_closes() {
        let mut assembler = Assembler::new(1 << 20);
        assert!(assembler.push(Vec::new(), true).unwrap().is_empty());
        assert!(assembler.push(events(&[2]), true).unwrap().is_empty());
        assert_eq!(of(&assembler.push(Vec::new(), false).unwrap()), [2]);
        assert!(assembler.push(Vec::new(), false).unwrap().is_empty());
    }

    #[test]
    fn runs_are_cut_by_revision() {
        let mut all = events(&[3, 3, 4, 9, 9, 9]);
        let cut: Vec<(u64, usize)> = revisions(&mut all).map(|run| (revision_of(&run[0]), run.len())).collect();
        assert_eq!(cut, [(3, 2), (4, 1), (9, 3)]);
        assert_eq!(revisions(&mut []).count(), 0);
    }
}
