//! Framing of keys' events as JSON lines, or as server-sent events around such lines.

use crate::frame::{Frame, Frames, LineForm};
use crate::lines::{self, LineEvent};
use crate::watch::Framing;
use std::io::Write as _;
use std::sync::Arc;
use watchcore::{Code, Error, Event, Kind, Phase, Position};

/// Upper bound of a line's bytes besides its key and values.
const LINE_OVERHEAD: usize = 256;

/// The framing of a watch of keys.
pub(super) struct LineFraming {
    /// Whether lines are sent as server-sent events.
    is_sse: bool,
    /// The frames that all watches of the cache share.
    frames: Arc<Frames<LineForm>>,
    bookmarks: bool,
    /// Whether a resync is in progress: it is one change, so a client cannot resume inside it.
    in_difference: bool,
    /// The last revision up to which the client knows that it has everything.
    last_revision: u64,
}

impl LineFraming {
    /// Creates a framing. `is_sse`: as server-sent events. `after`: the revision that the client has already.
    pub(super) fn new(frames: Arc<Frames<LineForm>>, is_sse: bool, bookmarks: bool, after: u64) -> LineFraming {
        LineFraming { is_sse, frames, bookmarks, in_difference: false, last_revision: after }
    }

    /// Returns the frame of a line of this type. `id` is the revision that is complete with this event.
    fn frame(&self, kind: &str, id: Option<u64>, room: usize, line: impl FnOnce(&mut Vec<u8>)) -> Frame {
        if !self.is_sse {
            return Frame::new(room, line);
        }
        Frame::new(room + LINE_OVERHEAD / 2, |out| {
            // Writes to a Vec succeed.
            let _ = write!(out, "event: {kind}\ndata: ");
            line(out);
            if let Some(id) = id {
                let _ = writeln!(out, "id: {id}");
            }
            out.push(b'\n');
        })
    }

    fn bookmark_at(&mut self, revision: u64, ends_initial_state: bool) -> Frame {
        self.last_revision = revision;
        self.frame("BOOKMARK", Some(revision), LINE_OVERHEAD, |out| {
            lines::bookmark(out, None, revision, ends_initial_state)
        })
    }

    /// Returns the frame of an event. `id` is given if the event completes its revision.
    fn frame_of(&mut self, event: &Event, id: Option<u64>) -> Option<Frame> {
        let revision = event.revision();
        if event.kind() == Kind::Bookmark {
            // The subscription gives only the bookmark at the end of the initial state; periodic ones come from the
            // watch's timer.
            return Some(self.bookmark_at(revision, true));
        }
        if let Some(resync) = event.resync() {
            self.in_difference = resync.phase == Phase::Begin;
            if !self.in_difference {
                // The end mark tells the client this revision. After a history reset it may be lower than the last one.
                self.last_revision = resync.to;
            }
            let id = id.filter(|_| !self.in_difference);
            return Some(self.frame("RESYNC", id, LINE_OVERHEAD, |out| lines::resync(out, None, &resync)));
        }
        let id = id.filter(|_| self.is_sse && !event.is_initial_state() && !self.in_difference);
        let make = || {
            let shown = LineEvent::of(event)?;
            let bytes = [Some(shown.key), shown.value, shown.prev_value];
            let room = LINE_OVERHEAD + bytes.into_iter().flatten().map(<[u8]>::len).sum::<usize>();
            Some(self.frame(shown.kind, id, room, |out| lines::event(out, None, &shown)))
        };
        // Not cached: an initial state is as large as the cache, and would evict the frames that all watchers are about
        // to need.
        if event.is_initial_state() {
            return make();
        }
        let form = match (self.is_sse, id) {
            (false, _) => LineForm::Lines,
            (true, None) => LineForm::Events,
            (true, Some(_)) => LineForm::EventsWithId,
        };
        self.frames.get(event.sequence(), form, event.kind(), make)
    }
}

impl Framing for LineFraming {
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
        out.extend(self.frame_of(event, None));
        true
    }

    fn event_of_revision(&mut self, event: &Event, is_last: bool, out: &mut Vec<Frame>) -> bool {
        out.extend(self.frame_of(event, is_last.then(|| event.revision())));
        true
    }

    fn failed(&mut self, error: &Error, out: &mut Vec<Frame>) {
        let (code, message, oldest) = (error.code(), error.message(), error.oldest());
        if code == Code::Closed {
            // The server or its cache shuts down, which is not an error of this watch.
            return;
        }
        if code == Code::Lagged {
            out.push(self.frame("LAGGED", None, LINE_OVERHEAD, |out| lines::lagged(out, None, error)));
        }
        let token = error.continue_token();
        out.push(self.frame("ERROR", None, LINE_OVERHEAD + message.len(), |out| {
            lines::error(out, None, code, message, oldest, token);
        }));
    }

    fn deadline(&mut self, position: Position, out: &mut Vec<Frame>) {
        let revision = position.revision;
        if self.bookmarks && !self.in_difference && revision > self.last_revision {
            out.push(self.bookmark_at(revision, false));
        }
    }

    fn bookmark(&mut self, position: Position, out: &mut Vec<Frame>) {
        let revision = position.revision;
        if self.bookmarks && !self.in_difference && revision >= self.last_revision {
            out.push(self.bookmark_at(revision, false));
        }
    }

    fn keep_alive(&self) -> &'static [u8] {
        if self.is_sse { b": keep-alive\n\n" } else { b" " }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::{Cache, Change, ResyncReason, Start};

    fn framing(is_sse: bool, after: u64) -> LineFraming {
        LineFraming::new(Arc::new(Frames::new(1 << 20)), is_sse, true, after)
    }

    fn frame_of(is_sse: bool, error: &Error) -> String {
        let mut out = Vec::new();
        framing(is_sse, 0).failed(error, &mut out);
        out.iter().map(|frame| String::from_utf8(frame.payload().to_vec()).unwrap()).collect()
    }

    #[test]
    fn errors_are_lines() {
        let compacted = Error::new(Code::Compacted, "gone").with_oldest(41);
        let line = "{\"type\":\"ERROR\",\"code\":\"COMPACTED\",\"message\":\"gone\",\"oldest\":41}\n";
        assert_eq!(frame_of(false, &compacted), line);
        assert_eq!(frame_of(true, &compacted), format!("event: ERROR\ndata: {line}\n"));
        assert_eq!(frame_of(false, &Error::new(Code::Closed, "closed")), "", "an end is no error");
    }

    #[test]
    fn deadline_is_a_bookmark_where_the_position_moved() {
        let mut framing = framing(false, 7);
        let mut out = Vec::new();
        framing.deadline(Position { epoch: 1, revision: 7 }, &mut out);
        assert!(out.is_empty());
        framing.deadline(Position { epoch: 1, revision: 8 }, &mut out);
        assert_eq!(out[0].payload(), &b"{\"type\":\"BOOKMARK\",\"revision\":8}\n"[..]);
    }

    /// A restored backup is another history: revisions of the previous one must not suppress bookmarks.
    #[test]
    fn bookmarks_go_on_in_another_history() {
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.apply(1000, [Change::put("/a", "1")]).unwrap();
        let mut all = cache.subscribe(Start::Now).open().unwrap();
        writer.resync(50, [], ResyncReason::HistoryReset).unwrap();
        let mut framing = framing(true, 1000);
        let mut out = Vec::new();
        for event in all.poll(9).unwrap().events() {
            framing.event_of_revision(event, true, &mut out);
        }
        out.clear();
        framing.deadline(Position { revision: 50, ..cache.position() }, &mut out);
        assert!(out.is_empty(), "the mark that ended the resync has said it");
        framing.deadline(Position { revision: 51, ..cache.position() }, &mut out);
        assert_eq!(
            out[0].payload(),
            &b"event: BOOKMARK\ndata: {\"type\":\"BOOKMARK\",\"revision\":51}\nid: 51\n\n"[..]
        );
    }

    #[test]
    fn watches_of_a_cache_share_frames() {
        let cache = Cache::builder("/").build().unwrap();
        let mut all = cache.subscribe(Start::Now).open().unwrap();
        cache.writer().unwrap().apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
        let batch = all.poll(9).unwrap();
        let frames = Arc::new(Frames::new(1 << 20));
        let framed = |is_sse| {
            let mut out = Vec::new();
            let mut framing = LineFraming::new(frames.clone(), is_sse, false, 0);
            for (event, is_last) in batch.events().iter().zip([false, true]) {
                framing.event_of_revision(event, is_last, &mut out);
            }
            out
        };
        let (lines, again, sent) = (framed(false), framed(false), framed(true));
        assert_eq!(lines.len(), 2);
        for (one, other) in lines.iter().zip(&again) {
            assert_eq!(one.chunk().as_ptr(), other.chunk().as_ptr(), "the same memory");
        }
        assert!(sent[1].payload().ends_with(b"\nid: 1\n\n") && !sent[0].payload().ends_with(b"\nid: 1\n\n"));
        // With another selector the first event may be the last of its revision, which is a different frame.
        let mut out = Vec::new();
        LineFraming::new(frames.clone(), true, false, 0).event_of_revision(&batch.events()[0], true, &mut out);
        assert!(out[0].payload().ends_with(b"\nid: 1\n\n"));
    }
}
