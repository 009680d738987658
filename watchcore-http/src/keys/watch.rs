//! Events of keys as lines of JSON, and as server-sent events round such lines.

use crate::frame::Frame;
use crate::lines::{self, Shown};
use crate::watch::Framing;
use std::io::Write as _;
use watchcore::{Code, Error, Event, Kind, Phase, Position};

/// Bytes of a line beside its key and values, or a little more.
const LINE: usize = 256;

/// In what the lines go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineForm {
    /// As they are: one a frame.
    Lines,
    /// Each as one event with its type, and with an id where a stream can go on behind it.
    Events,
}

/// The framing of a watch of keys.
pub(super) struct LineFraming {
    form: LineForm,
    bookmarks: bool,
    /// Inside a difference: nothing in there is a place to go on from, for it is one change.
    in_difference: bool,
    /// The last revision that the client was told to have whole.
    told: u64,
}

impl LineFraming {
    /// `after`: what the client has already.
    pub(super) fn new(form: LineForm, bookmarks: bool, after: u64) -> LineFraming {
        LineFraming { form, bookmarks, in_difference: false, told: after }
    }

    /// The frame of a line of this type; `id`: the revision that is whole behind it.
    fn frame(&self, kind: &str, id: Option<u64>, room: usize, line: impl FnOnce(&mut Vec<u8>)) -> Frame {
        match self.form {
            LineForm::Lines => Frame::new(room, line),
            LineForm::Events => Frame::new(room + LINE / 2, |out| {
                // A Vec takes all that is written.
                let _ = write!(out, "event: {kind}\ndata: ");
                line(out);
                if let Some(id) = id {
                    let _ = writeln!(out, "id: {id}");
                }
                out.push(b'\n');
            }),
        }
    }

    /// What is said of an event, with the id that it has if its revision ends with it.
    fn said(&mut self, event: &Event, id: Option<u64>) -> Option<Frame> {
        let revision = event.revision();
        if event.kind() == Kind::Bookmark {
            let ends = event.ends_initial_state();
            if !ends && !(self.bookmarks && revision > self.told) {
                return None;
            }
            self.told = revision;
            return Some(self.frame("BOOKMARK", Some(revision), LINE, |out| {
                lines::bookmark(out, None, revision, ends);
            }));
        }
        if let Some(resync) = event.resync() {
            self.in_difference = resync.phase == Phase::Begin;
            let id = id.filter(|_| !self.in_difference);
            return Some(self.frame("RESYNC", id, LINE, |out| lines::resync(out, None, &resync)));
        }
        let shown = Shown::of(event)?;
        let id = id.filter(|_| !event.is_initial_state() && !self.in_difference);
        let bytes = [Some(shown.key), shown.value, shown.prev_value];
        let room = LINE + bytes.into_iter().flatten().map(<[u8]>::len).sum::<usize>();
        Some(self.frame(shown.kind, id, room, |out| lines::event(out, None, &shown)))
    }
}

impl Framing for LineFraming {
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
        out.extend(self.said(event, None));
        true
    }

    fn event_of_revision(&mut self, event: &Event, is_last: bool, out: &mut Vec<Frame>) -> bool {
        out.extend(self.said(event, is_last.then(|| event.revision())));
        true
    }

    fn failed(&mut self, error: &Error, out: &mut Vec<Frame>) {
        let (code, message, oldest) = (error.code(), error.message(), error.oldest());
        if code == Code::Closed {
            // The server or its cache ends, which is no error of this watch.
            return;
        }
        if code == Code::Lagged {
            out.push(self.frame("LAGGED", None, LINE, |out| lines::lagged(out, None, error)));
        }
        let token = error.continue_token();
        out.push(self.frame("ERROR", None, LINE + message.len(), |out| {
            lines::error(out, None, code, message, oldest, token);
        }));
    }

    fn deadline(&mut self, position: Position, out: &mut Vec<Frame>) {
        let revision = position.revision;
        if self.bookmarks && !self.in_difference && revision > self.told {
            out.push(self.frame("BOOKMARK", Some(revision), LINE, |out| {
                lines::bookmark(out, None, revision, false);
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(form: LineForm, error: &Error) -> String {
        let mut out = Vec::new();
        LineFraming::new(form, true, 0).failed(error, &mut out);
        out.iter().map(|frame| String::from_utf8(frame.payload().to_vec()).unwrap()).collect()
    }

    #[test]
    fn errors_are_lines() {
        let compacted = Error::new(Code::Compacted, "gone").with_oldest(41);
        let line = "{\"type\":\"ERROR\",\"code\":\"COMPACTED\",\"message\":\"gone\",\"oldest\":41}\n";
        assert_eq!(said(LineForm::Lines, &compacted), line);
        assert_eq!(said(LineForm::Events, &compacted), format!("event: ERROR\ndata: {line}\n"));
        assert_eq!(said(LineForm::Lines, &Error::new(Code::Closed, "closed")), "", "an end is no error");
    }

    #[test]
    fn deadline_is_a_bookmark_where_the_position_moved() {
        let mut framing = LineFraming::new(LineForm::Lines, true, 7);
        let mut out = Vec::new();
        framing.deadline(Position { epoch: 1, revision: 7 }, &mut out);
        assert!(out.is_empty());
        framing.deadline(Position { epoch: 1, revision: 8 }, &mut out);
        assert_eq!(out[0].payload(), &b"{\"type\":\"BOOKMARK\",\"revision\":8}\n"[..]);
    }
}
