//! Objects in the log of an embedded cache.
//!
//! A cache's values are bytes, and what a decoder makes of them. Here the bytes are one: what happened to the object. The object
//! itself goes over in a slot beside it. The publisher puts it there, writes the revision, and has it decoded before it
//! returns; the decoder takes it from the slot. A reader may be faster, and then decodes it on its thread: it is the same
//! object, because the slot is filled for one revision at a time and a version is decoded once. From there on the object is the
//! version's: shared by count, and dropped by the thread that frees versions when the log has moved on and nobody has it.

#![forbid(unsafe_code)]

use crate::event::{Payload, WatchEvent};
use crate::object::{FromKeyValue, Object};
use crate::sync::{Mutex, lock};
use std::sync::Arc;
use watchcore::{Batch, Cache, Change, KeyValue, Position, Result, Stats, Writer};

/// The only key.
const KEY: &str = "/";

/// What happened to a published object.
///
/// ```
/// use watchcore_toolkit::Action;
///
/// assert_eq!(Action::Added.name(), "ADDED");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// It appeared.
    Added,
    /// It changed: this is what it is now.
    Modified,
    /// It went: this is what it was last.
    Deleted,
}

impl Action {
    /// Its name, as Kubernetes has it.
    pub fn name(self) -> &'static str {
        match self {
            Action::Added => "ADDED",
            Action::Modified => "MODIFIED",
            Action::Deleted => "DELETED",
        }
    }

    fn byte(self) -> u8 {
        match self {
            Action::Added => b'a',
            Action::Modified => b'm',
            Action::Deleted => b'd',
        }
    }
}

/// The value of the revision that ends the log.
const END: u8 = b'e';

/// The log's writer, and the slot of the object that is written now.
pub(super) struct ObjectLog<T> {
    cache: Cache,
    writer: Writer,
    slot: Arc<Mutex<Option<T>>>,
}

impl<T: Send + Sync + 'static> ObjectLog<T> {
    /// One that keeps at least 3/4 of so many events.
    pub(super) fn new(name: &str, capacity: usize) -> Result<ObjectLog<T>> {
        let slot = Arc::new(Mutex::new(None));
        let decode = {
            let slot = Arc::clone(&slot);
            move |_: &[u8], _: &[u8]| lock(&slot).take().ok_or("no object was published with it")
        };
        // Bytes enough for the events: an eighth of them bounds what waits to be freed.
        let bytes = (capacity as u64).saturating_mul(4096).max(1 << 20);
        let cache = Cache::builder(KEY).name(name).capacity(capacity).capacity_bytes(bytes).decoder(decode).build()?;
        let writer = cache.writer()?;
        Ok(ObjectLog { cache, writer, slot })
    }

    /// Publishes an object as the revision `number`. One that is refused stays with the caller.
    pub(super) fn push(&mut self, number: u64, action: Action, object: &mut Option<T>) -> Result<()> {
        *lock(&self.slot) = object.take();
        if let Err(error) = self.writer.apply(number, [Change::put(KEY, &[action.byte()])]) {
            *object = lock(&self.slot).take();
            return Err(error);
        }
        match self.writer.get(KEY.as_bytes()) {
            Some(kv) => kv.decoded::<T>().map(drop),
            None => unreachable!("it was put just now"),
        }
    }
}

impl<T> ObjectLog<T> {
    /// The last revision: behind it everybody ends.
    pub(super) fn end(&mut self, number: u64) -> Result<()> {
        self.writer.apply(number, [Change::put(KEY, &[END])])
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(super) fn stats(&self) -> Stats {
        self.cache.stats()
    }

    pub(super) fn position(&self) -> Position {
        self.writer.position()
    }
}

/// Objects outside of a log: made in one that is dropped again; what was made stays by its count.
pub(super) fn objects_of<T: Send + Sync + 'static>(
    events: impl IntoIterator<Item = WatchEvent<T>>,
) -> Result<Vec<WatchEvent<Object<T>>>> {
    let mut events = events.into_iter().peekable();
    if events.peek().is_none() {
        return Ok(Vec::new());
    }
    let mut log = ObjectLog::new("", 128)?;
    let mut number = 0;
    let mut failed = None;
    let mut make = |object: T| -> Option<Object<T>> {
        number += 1;
        let made = log.push(number, Action::Added, &mut Some(object)).and_then(|()| {
            let kv = log.writer.get(KEY.as_bytes()).map(|kv| kv.to_owned());
            kv.as_ref().map(Object::from_key_value).transpose()
        });
        made.unwrap_or_else(|error| {
            failed = Some(error);
            None
        })
    };
    let made: Option<Vec<_>> = events.map(|event| transposed(event.map(&mut make))).collect();
    match (made, failed) {
        (Some(made), None) => Ok(made),
        (_, Some(error)) => Err(error),
        (None, None) => unreachable!("an object is missing only where its making failed"),
    }
}

/// An event of objects that are all there.
fn transposed<O>(event: WatchEvent<Option<O>>) -> Option<WatchEvent<O>> {
    let payload = match event.payload {
        Payload::Added(object) => Payload::Added(object?),
        // What is unknown stays unknown.
        Payload::Modified { old, new } => Payload::Modified { old: old.flatten(), new: new? },
        Payload::Deleted(object) => Payload::Deleted(object?),
        Payload::Synced => Payload::Synced,
        Payload::Bookmark => Payload::Bookmark,
        Payload::Error(status) => Payload::Error(status),
    };
    Some(WatchEvent { position: event.position, lost: event.lost, origin: event.origin, payload })
}

/// What a revision of the log says; `None` is the end.
#[inline]
pub(super) fn payload_of<T: Send + Sync + 'static>(kv: &KeyValue) -> Option<Payload<Object<T>>> {
    let action = kv.value().and_then(|value| value.first()).copied();
    if action == Some(END) {
        return None;
    }
    // The decoder has made it, or makes it when it is looked at: see the module's head.
    let object = Object::of_decoded(kv);
    Some(match action {
        Some(b'm') => Payload::Modified { old: None, new: object },
        Some(b'd') => Payload::Deleted(object),
        _ => Payload::Added(object),
    })
}

/// The same without a count; `None` is the end, too.
pub(super) fn action_of<T: Send + Sync + 'static>(kv: &KeyValue) -> Option<(Action, &T)> {
    let action = match kv.value()?.first()? {
        b'm' => Action::Modified,
        b'd' => Action::Deleted,
        b'a' => Action::Added,
        _ => return None,
    };
    kv.decoded().ok().flatten().map(|object| (action, object))
}

/// Whether the last revision of a batch ends the log.
pub(super) fn ends(batch: &Batch) -> bool {
    let last = batch.events().last().and_then(|event| event.value());
    last.is_some_and(|value| value.first() == Some(&END))
}
