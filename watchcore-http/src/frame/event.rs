//! How an event of a resource becomes the frame of a watch.
//!
//! The core says what changed for the filter: a key came into it, changed inside, or left it. What a client sees is about
//! objects: a value that is none is as if the key were not there. [`shown`] has the table of both.

use super::{Form, Frame, Object, table};
use crate::catalog::Served;
use crate::json::layout::{quoted, quoted_number};
use crate::status::Refusal;
use crate::watch::Framing;
use std::sync::Arc;
use watchcore::{Error, Event, Kind, Phase, Position, Resync, ResyncReason};

/// The annotation of the bookmark that ends the initial state.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Bytes of a frame round its object: the type, the metadata that is added, the form's own.
const AROUND: usize = 256;

/// The most bytes of a difference that wait for its end: more than etcd takes in one transaction, but where it is told to.
const MOST_HELD: usize = 2 << 20;

/// What goes out for an event.
struct Shown<'e> {
    kind: Kind,
    object: Object<'e>,
    revision: u64,
}

/// The difference of a resync while it goes out.
///
/// It is one revision of the log, `to`, and goes out as many events. A client whose connection breaks behind one of them comes
/// back with the revision of that one, and gets nothing more of the difference if that is `to`. With `from` it gets all of it
/// again, and with what lies between the two it is told to list. So what is gone has the revision `from`, and an object that
/// was written at `to` goes out behind all others.
struct Difference {
    from: u64,
    to: u64,
    /// The client resumes at `to`: all that it may lack are objects of that revision, of which it has one.
    resumes: bool,
    /// Objects of `to`.
    held: Vec<Frame>,
    held_bytes: usize,
}

impl Difference {
    fn new(resync: &Resync, resumed: Option<&Resumed>) -> Difference {
        let resumes = resumed.is_some_and(|resumed| resumed.at == resync.to);
        Difference { from: resync.from, to: resync.to, resumes, held: Vec::new(), held_bytes: 0 }
    }

    /// The objects that are sent behind all other events of the difference.
    fn into_last(self) -> Vec<Frame> {
        if self.resumes && self.held.len() == 1 { Vec::new() } else { self.held }
    }

    /// Whether the frame of a change waits for the others.
    fn holds(&self, event: &Event) -> bool {
        event.kind() != Kind::Deleted && event.mod_revision() >= self.to
    }

    /// Takes a frame that waits; `false`: they are too many.
    fn hold(&mut self, frame: Frame) -> bool {
        self.held_bytes += frame.len();
        self.held.push(frame);
        self.held_bytes <= MOST_HELD
    }

    /// What is said where they are too many.
    fn refusal(&self) -> Refusal {
        Refusal::expired(format!(
            "too old resource version: {} ({}): the watch of etcd began anew, and more than {} MiB were written at its first revision; list again",
            self.from,
            self.to,
            MOST_HELD >> 20
        ))
    }
}

/// The watch of a resource in one form.
pub(crate) struct ResourceFraming {
    served: Arc<Served>,
    form: Form,
    bookmarks: bool,
    /// The end of the initial state is marked.
    end_mark: bool,
    /// The last revision that a bookmark would not tell anybody: where the watch began, or that of the last one.
    told: u64,
    difference: Option<Difference>,
    resumed: Option<Resumed>,
}

/// The revision of which a client may have only some objects: that of the last event that it got before its connection
/// broke. Its subscription gives that revision again, where it has several events.
struct Resumed {
    at: u64,
    /// An event of it has come.
    has_begun: bool,
}

impl ResourceFraming {
    /// A watch that begins at revision `begin`.
    pub(crate) fn new(served: Arc<Served>, form: Form, bookmarks: bool, end_mark: bool, begin: u64) -> ResourceFraming {
        ResourceFraming { served, form, bookmarks, end_mark, told: begin, difference: None, resumed: None }
    }

    /// For a subscription that begins within `begin` ([`Start::Within`](watchcore::Start)).
    pub(crate) fn within_begin(mut self) -> ResourceFraming {
        self.resumed = Some(Resumed { at: self.told, has_begun: false });
        self
    }

    /// Whether an event is the only one of its revision that the client is to see, and the client resumes there: then it
    /// has it.
    fn is_known(&mut self, event: &Event, is_last: bool) -> bool {
        let resumed = self.resumed.as_mut().filter(|resumed| resumed.at == event.revision());
        resumed.is_some_and(|resumed| !std::mem::replace(&mut resumed.has_begun, true) && is_last)
    }

    /// The frame of a change, where it goes out.
    fn change(&self, event: &Event) -> Option<Frame> {
        // Of a difference all watchers see the same marks, so they may share what is made of them.
        let gone_at = self.difference.as_ref().map_or(event.revision(), |difference| difference.from);
        let make = || {
            let shown = shown(&self.served, event, gone_at)?;
            Some(Frame::new(shown.object.room(self.form) + AROUND, |out| {
                begin(shown.kind.name(), out);
                let from = out.len();
                shown.object.write_as(&self.served, self.form, shown.revision, out);
                one_line(&mut out[from..]);
                out.extend_from_slice(b"}\n");
            }))
        };
        // An initial state is as large as the cache, and would push out of the table what everybody is about to ask for.
        if event.is_initial_state() {
            return self.large(event).or_else(make);
        }
        self.served.frames.get(event.sequence(), self.form, event.kind(), make)
    }

    /// The frame of a large object of the initial state, which lies where the cache has it.
    fn large(&self, event: &Event) -> Option<Frame> {
        if self.form != Form::Json {
            return None;
        }
        let kv = event.kv()?;
        let object = Object::of(&self.served, kv)?;
        let mut start = Vec::new();
        begin(event.kind().name(), &mut start);
        let rest = Object::slice(kv, &object, kv.mod_revision(), &mut start)?;
        // An event is a line: one whose value has several is made anew.
        let rest = rest.slice(..rest.trim_ascii_end().len());
        let is_line = memchr::memchr2(b'\n', b'\r', &rest).is_none();
        is_line.then(|| {
            one_line(&mut start);
            Frame::around(start.len(), |out| out.extend_from_slice(&start), rest, b"}\n")
        })
    }

    fn bookmark_at(&mut self, revision: u64, ends_initial_state: bool) -> Frame {
        self.told = revision;
        Frame::new(AROUND, |out| {
            begin("BOOKMARK", out);
            self.write_bookmark(revision, ends_initial_state, out);
            out.extend_from_slice(b"}\n");
        })
    }

    /// The object of a bookmark: one of the form, with nothing but its revision.
    fn write_bookmark(&self, revision: u64, ends_initial_state: bool, out: &mut Vec<u8>) {
        let resource = &self.served.resource;
        let (kind, version) = match self.form {
            Form::Json => (resource.kind.as_str(), resource.api_version()),
            Form::Metadata | Form::Table(_) => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        };
        let mut object = Vec::with_capacity(AROUND);
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
            Form::Table(_) => table::write_bookmark(&self.served, revision, &object, out),
            Form::Json | Form::Metadata => out.extend_from_slice(&object),
        }
    }
}

impl Framing for ResourceFraming {
    fn event(&mut self, event: &Event, out: &mut Vec<Frame>) -> bool {
        match event.kind() {
            Kind::Bookmark => {
                // The only one that the subscription gives: those of the interval are the clock's.
                if self.end_mark {
                    out.push(self.bookmark_at(event.revision(), true));
                } else {
                    self.told = self.told.max(event.revision());
                }
            }
            Kind::Resync => {
                // Every revision that the client holds means something else from here on. Any other resync is the
                // difference between its marks, and goes out as that.
                let reset = event
                    .resync()
                    .filter(|resync| resync.phase == Phase::Begin && resync.reason == ResyncReason::HistoryReset);
                if let Some(resync) = reset {
                    let message = format!(
                        "too old resource version: {} ({}): the history of the store was replaced; list again",
                        resync.from, resync.to
                    );
                    out.push(refused(&Refusal::expired(message)));
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
                            out.push(refused(&difference.refusal()));
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
        if is_change && self.difference.is_none() && self.is_known(event, is_last) {
            return true;
        }
        self.event(event, out)
    }

    fn failed(&mut self, error: &Error, out: &mut Vec<Frame>) {
        out.push(refused(&Refusal::from(error)));
    }

    fn bookmark(&mut self, position: Position, out: &mut Vec<Frame>) {
        if self.bookmarks && position.revision >= self.told {
            out.push(self.bookmark_at(position.revision, false));
        }
    }

    fn deadline(&mut self, position: Position, out: &mut Vec<Frame>) {
        if self.bookmarks && position.revision > self.told {
            out.push(self.bookmark_at(position.revision, false));
        }
    }
}

fn begin(kind: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
}

/// Makes one line of JSON: an event is a line, and a value may have been stored as many, or with a line's end behind it
/// as Kubernetes stores custom resources. What ends a line in a JSON text is white space, for in a string it is escaped.
fn one_line(text: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\n', b'\r', &text[at..]) {
        text[at + found] = b' ';
        at += found + 1;
    }
}

/// An ERROR event.
fn refused(refusal: &Refusal) -> Frame {
    let status = refusal.to_json();
    Frame::new(status.len() + AROUND, |out| {
        begin("ERROR", out);
        out.extend_from_slice(status.as_bytes());
        out.extend_from_slice(b"}\n");
    })
}

/// What goes out for a change; `None`: nothing. What has gone has the revision `gone_at`.
///
/// | the core | new is an object | old is an object | shown |
/// | --- | --- | --- | --- |
/// | ADDED | yes | | ADDED |
/// | MODIFIED | yes | yes | MODIFIED |
/// | MODIFIED | yes | no | ADDED |
/// | MODIFIED | no | yes | DELETED |
/// | DELETED | | yes | DELETED |
fn shown<'e>(served: &Served, event: &'e Event, gone_at: u64) -> Option<Shown<'e>> {
    let new = || event.kv().and_then(|kv| Some((Object::or_report(served, kv)?, kv.mod_revision())));
    let old = || event.prev().and_then(|kv| Object::of(served, kv));
    // What has gone is shown as it last was, with the revision of its going.
    let gone = |object| Shown { kind: Kind::Deleted, object, revision: gone_at };
    match event.kind() {
        Kind::Added => new().map(|(object, revision)| Shown { kind: Kind::Added, object, revision }),
        Kind::Modified => match (new(), old()) {
            (Some((object, revision)), Some(_)) => Some(Shown { kind: Kind::Modified, object, revision }),
            (Some((object, revision)), None) => Some(Shown { kind: Kind::Added, object, revision }),
            (None, old) => old.map(gone),
        },
        Kind::Deleted => old().map(gone),
        _ => None,
    }
}
