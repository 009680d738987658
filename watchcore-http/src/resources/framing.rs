//! Turns an event of a resource into a frame of a watch.
//!
//! The core reports what changed for the filter: a key came to match it, changed, or ceased to match. A client sees
//! objects: a value that is not an object counts as an absent key. [`visible_change`] has the table that combines both.

use crate::catalog::Served;
use crate::frame::Frame;
use crate::json::layout::{quoted, quoted_number};
use crate::object::{Form, Object};
use crate::status::Refusal;
use crate::watch::Framing;
use std::sync::Arc;
use watchcore::{Error, Event, Kind, Phase, Position, Resync, ResyncReason};

/// Annotation of the bookmark that ends the initial state.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Upper bound of a frame's bytes besides its object: the event type, the added metadata, the form's wrapper.
const FRAME_OVERHEAD: usize = 256;

/// Most bytes of a resync that are held back until its end: more than etcd accepts in one transaction by default.
const MAX_HELD: usize = 2 << 20;

/// The change that a client sees for an event.
struct VisibleChange<'e> {
    kind: Kind,
    object: Object<'e>,
    revision: u64,
}

/// A resync in progress.
///
/// The log gives a resync one revision, `to`, but the client gets many events. If a connection breaks after one of
/// them, the client resumes from the revision of that event. Resuming from `to` would skip the rest of the resync;
/// resuming from `from` repeats all of it; anything between gets 410, and the client lists again. So deletions carry
/// the revision `from`, and objects written at `to` are held back until all other events were sent.
struct Difference {
    from: u64,
    to: u64,
    /// The client resumes at `to`: it can lack only objects of that revision, and has at least one of them.
    resumes: bool,
    /// Frames of the objects written at `to`.
    held: Vec<Frame>,
    held_bytes: usize,
}

impl Difference {
    fn new(resync: &Resync, resumed: Option<&Resumed>) -> Difference {
        let resumes = resumed.is_some_and(|resumed| resumed.at == resync.to);
        Difference { from: resync.from, to: resync.to, resumes, held: Vec::new(), held_bytes: 0 }
    }

    /// Returns the frames that are sent after all other events of the resync.
    fn into_last(self) -> Vec<Frame> {
        if self.resumes && self.held.len() == 1 { Vec::new() } else { self.held }
    }

    /// Whether the frame of an event is held back until the end.
    fn holds(&self, event: &Event) -> bool {
        event.kind() != Kind::Deleted && event.mod_revision() >= self.to
    }

    /// Holds a frame back. `false`: the held frames exceed [`MAX_HELD`].
    fn hold(&mut self, frame: Frame) -> bool {
        self.held_bytes += frame.len();
        self.held.push(frame);
        self.held_bytes <= MAX_HELD
    }

    /// The error when the held frames exceed [`MAX_HELD`].
    fn refusal(&self) -> Refusal {
        Refusal::expired(format!(
            "too old resource version: {} ({}): the watch of etcd began anew, and more than {} MiB were written at its first revision; list again",
            self.from,
            self.to,
            MAX_HELD >> 20
        ))
    }
}

/// Framing of a resource's watch in one form.
pub(crate) struct ResourceFraming {
    served: Arc<Served>,
    form: Form,
    bookmarks: bool,
    /// Whether a bookmark marks the end of the initial state.
    end_mark: bool,
    /// Revision at which the watch began, or of the last bookmark; a bookmark at or below it would be redundant.
    last_bookmark: u64,
    difference: Option<Difference>,
    resumed: Option<Resumed>,
}

/// The revision of the last event that the client got before its connection broke. If the revision has several events,
/// the client may have only some of them, so the subscription delivers all of them again.
struct Resumed {
    at: u64,
    /// Whether an event of this revision was delivered.
    has_begun: bool,
}

impl ResourceFraming {
    /// Creates the framing of a watch that begins at revision `begin`.
    pub(crate) fn new(served: Arc<Served>, form: Form, bookmarks: bool, end_mark: bool, begin: u64) -> ResourceFraming {
        ResourceFraming { served, form, bookmarks, end_mark, last_bookmark: begin, difference: None, resumed: None }
    }

    /// For a subscription that begins within `begin` ([`Start::Within`](watchcore::Start)).
    pub(crate) fn within_begin(mut self) -> ResourceFraming {
        self.resumed = Some(Resumed { at: self.last_bookmark, has_begun: false });
        self
    }

    /// Whether the event is the only visible one of the revision at which the client resumes; the client then has it
    /// already.
    fn already_delivered(&mut self, event: &Event, is_last: bool) -> bool {
        let resumed = self.resumed.as_mut().filter(|resumed| resumed.at == event.revision());
        resumed.is_some_and(|resumed| !std::mem::replace(&mut resumed.has_begun, true) && is_last)
    }

    /// Returns the frame of a change, or `None` if the client sees no change.
    fn change(&self, event: &Event) -> Option<Frame> {
        // All watchers see the same resync marks, so a frame made inside a resync can be shared too.
        let gone_at = self.difference.as_ref().map_or(event.revision(), |difference| difference.from);
        let make = || {
            let change = visible_change(&self.served, event, gone_at)?;
            Some(Frame::new(change.object.room(self.form) + FRAME_OVERHEAD, |out| {
                begin(change.kind.name(), out);
                let from = out.len();
                self.served.table.write_as(&change.object, self.form, change.revision, out);
                one_line(&mut out[from..]);
                out.extend_from_slice(b"}\n");
            }))
        };
        // Not cached: an initial state is as large as the cache, and would evict the frames that all watchers are about
        // to need.
        if event.is_initial_state() {
            return self.uncopied_frame(event).or_else(make);
        }
        self.served.frames.get(event.sequence(), self.form, event.kind(), make)
    }

    /// Returns the frame of a large object of the initial state, whose value is referenced and not copied.
    fn uncopied_frame(&self, event: &Event) -> Option<Frame> {
        if self.form != Form::Json {
            return None;
        }
        let kv = event.kv()?;
        let object = self.served.object(kv)?;
        let mut start = Vec::new();
        begin(event.kind().name(), &mut start);
        let rest = Object::slice(kv, &object, kv.mod_revision(), &mut start)?;
        // An event must be one line: a value with line breaks inside is copied and rewritten instead.
        let rest = rest.slice(..rest.trim_ascii_end().len());
        let is_line = memchr::memchr2(b'\n', b'\r', &rest).is_none();
        is_line.then(|| {
            one_line(&mut start);
            Frame::around(start.len(), |out| out.extend_from_slice(&start), rest, b"}\n")
        })
    }

    fn bookmark_at(&mut self, revision: u64, ends_initial_state: bool) -> Frame {
        self.last_bookmark = revision;
        Frame::new(FRAME_OVERHEAD, |out| {
            begin("BOOKMARK", out);
            self.write_bookmark(revision, ends_initial_state, out);
            out.extend_from_slice(b"}\n");
        })
    }

    /// Writes the object of a bookmark: an object of the form that has only its revision.
    fn write_bookmark(&self, revision: u64, ends_initial_state: bool, out: &mut Vec<u8>) {
        let resource = &self.served.resource;
        let (kind, version) = match self.form {
            Form::Json => (resource.kind.as_str(), resource.api_version()),
            Form::Metadata | Form::Table(_) => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        };
        let mut object = Vec::with_capacity(FRAME_OVERHEAD);
        object.extend_from_slice(b"{\"kind\":");
        quoted(kind, &mut object);
        object.extend_from_slice(b",\"apiVersion\":");
        quoted(&version, &mut object);
        object.extend_from_slice(b",\"metadata\":{\"resourceVersion\":");
        quoted_number(revision, &mut object);
        if ends_initial_state {
            object.extend_from_slice(b",\"annotations\":{\"");
            object.extend_from_slice(INITIAL_EVENTS_END.as_bytes());
            object.extend_from_slice(b"\":\"true\"}");
        }
        object.extend_from_slice(b"}}");
        match self.form {
            Form::Table(_) => self.served.table.write_bookmark(revision, &object, out),
            Form::Json | Form::Metadata => out.extend_from_slice(&object),
        }
    }
}

impl Framing for ResourceFraming {
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
        match event.kind() {
            Kind::Bookmark => {
                // The subscription gives only the bookmark at the end of the initial state; periodic ones come from the
                // watch's timer.
                if self.end_mark {
                    out.push(self.bookmark_at(event.revision(), true));
                } else {
                    self.last_bookmark = self.last_bookmark.max(event.revision());
                }
            }
            Kind::Resync => {
                // After a history reset the client's revisions are meaningless, so the watch ends. Any other resync is
                // sent as the events between its marks.
                let reset = event
                    .resync()
                    .filter(|resync| resync.phase == Phase::Begin && resync.reason == ResyncReason::HistoryReset);
                if let Some(resync) = reset {
                    let message = format!(
                        "too old resource version: {} ({}): the history of the store was replaced; list again",
                        resync.from, resync.to
                    );
                    out.push(error_event(&Refusal::expired(message)));
                    return false;
                }
                let begun = event.resync().filter(|resync| resync.phase == Phase::Begin);
                let begun = begun.map(|resync| Difference::new(&resync, self.resumed.as_ref()));
                let before = std::mem::replace(&mut self.difference, begun);
                out.extend(before.into_iter().flat_map(Difference::into_last));
            }
            _ => {
                let frame = self.change(event);
                match &mut self.difference {
                    Some(difference) if difference.holds(event) => {
                        if !frame.is_none_or(|frame| difference.hold(frame)) {
                            out.push(error_event(&difference.refusal()));
                            return false;
                        }
                    }
                    Some(difference) if difference.resumes => {}
                    _ => out.extend(frame),
                }
            }
        }
        true
    }

    fn event_of_revision(&mut self, event: &Event, is_last: bool, out: &mut Vec<Frame>) -> bool {
        let is_change = !matches!(event.kind(), Kind::Bookmark | Kind::Resync);
        if is_change && self.difference.is_none() && self.already_delivered(event, is_last) {
            return true;
        }
        self.event(event, out)
    }

    fn failed(&mut self, error: &Error, out: &mut Vec<Frame>) {
        out.push(error_event(&Refusal::from(error)));
    }

    fn bookmark(&mut self, position: Position, out: &mut Vec<Frame>) {
        if self.bookmarks && position.revision >= self.last_bookmark {
            out.push(self.bookmark_at(position.revision, false));
        }
    }

    fn deadline(&mut self, position: Position, out: &mut Vec<Frame>) {
        if self.bookmarks && position.revision > self.last_bookmark {
            out.push(self.bookmark_at(position.revision, false));
        }
    }
}

fn begin(kind: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
}

/// Replaces line breaks by spaces: an event is one line, but a value may be stored with line breaks inside, or with one
/// at the end as Kubernetes stores custom resources. Inside JSON strings line breaks are escaped, so all others are
/// white space.
fn one_line(text: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\n', b'\r', &text[at..]) {
        text[at + found] = b' ';
        at += found + 1;
    }
}

/// Returns an ERROR event.
fn error_event(refusal: &Refusal) -> Frame {
    let status = refusal.to_json();
    Frame::new(status.len() + FRAME_OVERHEAD, |out| {
        begin("ERROR", out);
        out.extend_from_slice(status.as_bytes());
        out.extend_from_slice(b"}\n");
    })
}

/// Returns what a client sees of a change, or `None`. A deleted object gets the revision `gone_at`.
///
/// | the core | new is an object | old is an object | visible |
/// | --- | --- | --- | --- |
/// | ADDED | yes | | ADDED |
/// | MODIFIED | yes | yes | MODIFIED |
/// | MODIFIED | yes | no | ADDED |
/// | MODIFIED | no | yes | DELETED |
/// | DELETED | | yes | DELETED |
fn visible_change<'e>(served: &Served, event: &'e Event, gone_at: u64) -> Option<VisibleChange<'e>> {
    let new = || event.kv().and_then(|kv| Some((served.object_or_report(kv)?, kv.mod_revision())));
    let old = || event.prev().and_then(|kv| served.object(kv));
    // A deleted object is sent as it last was, with the revision of the deletion.
    let gone = |object| VisibleChange { kind: Kind::Deleted, object, revision: gone_at };
    match event.kind() {
        Kind::Added => new().map(|(object, revision)| VisibleChange { kind: Kind::Added, object, revision }),
        Kind::Modified => match (new(), old()) {
            (Some((object, revision)), Some(_)) => Some(VisibleChange { kind: Kind::Modified, object, revision }),
            (Some((object, revision)), None) => Some(VisibleChange { kind: Kind::Added, object, revision }),
            (None, old) => old.map(gone),
        },
        Kind::Deleted => old().map(gone),
        _ => None,
    }
}
