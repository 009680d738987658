//! Objects in the log of an embedded cache.
//!
//! A cache's values are bytes, and what a decoder makes of them. Here the first byte says what happened to the object; its key
//! follows where the broadcaster has a function for keys. The log itself has one key: with many, the newest object of each would
//! stay in the cache's state for good.
//!
//! The object itself goes over in a slot beside it. The publisher puts it there, writes the revision, and has it decoded before it
//! returns; the decoder takes it from the slot. A reader may be faster, and then decodes it on its thread: it is the same
//! object, because the slot is filled for one revision at a time and a version is decoded once. From there on the object is the
//! version's: shared by count, and dropped by the thread that frees versions when the log has moved on and nobody has it.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types)] // A mutex that loom looks at, taken by `sync::lock`, which counts.

use crate::event::{Payload, WatchEvent};
use crate::object::{BROADCAST, FromKeyValue, OF_PREFIX, Object};
use crate::sync::{Mutex, lock};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use watchcore::{Batch, Cache, Change, Code, Error, KeyValue, Position, Result, Stats, Writer};

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

/// The function for the keys of a broadcaster's objects. It is called before the log is touched: a panic of it leaves nothing.
pub(super) type Keys<T> = AssertUnwindSafe<Arc<dyn Fn(&T) -> Vec<u8> + Send + Sync>>;

/// The longest key of an object: the log reckons with [`BYTES`] for each of its events.
const LONGEST_KEY: usize = 1024;

/// Bytes that the log may take for each of its events.
const BYTES: u64 = 4096;

/// An object that is to be published, and what the log writes for it.
pub(super) struct Publication<T> {
    /// Until the log has it.
    object: Option<T>,
    what: [u8; 1],
    /// The same byte and the object's key, where it has one.
    keyed: Option<Box<[u8]>>,
}

impl<T> Publication<T> {
    pub(super) fn new(action: Action, object: T, keys: Option<&Keys<T>>) -> Result<Publication<T>> {
        Publication::with(action.byte(), object, keys)
    }

    fn with(what: u8, object: T, keys: Option<&Keys<T>>) -> Result<Publication<T>> {
        let key = keys.map(|keys| (keys.0)(&object));
        if let Some(key) = &key
            && !(1..=LONGEST_KEY).contains(&key.len())
        {
            return Err(Error::new(
                Code::InvalidArgument,
                format!("publish an object with a key of {} bytes: it may have 1 to {LONGEST_KEY}.", key.len()),
            ));
        }
        let keyed = key.map(|key| [&[what], &key[..]].concat().into_boxed_slice());
        Ok(Publication { object: Some(object), what: [what], keyed })
    }

    fn value(&self) -> &[u8] {
        self.keyed.as_deref().unwrap_or(&self.what)
    }
}

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
        let bytes = (capacity as u64).saturating_mul(BYTES).max(1 << 20);
        let cache =
            Cache::builder(BROADCAST).name(name).capacity(capacity).capacity_bytes(bytes).decoder(decode).build()?;
        let writer = cache.writer()?;
        Ok(ObjectLog { cache, writer, slot })
    }

    /// Publishes an object as the revision `number`. One that is refused stays with the caller.
    pub(super) fn push(&mut self, number: u64, publication: &mut Publication<T>) -> Result<()> {
        *lock(&self.slot) = publication.object.take();
        if let Err(error) = self.writer.apply(number, [Change::put(BROADCAST, publication.value())]) {
            publication.object = lock(&self.slot).take();
            return Err(error);
        }
        match self.writer.get(BROADCAST.as_bytes()) {
            Some(kv) => kv.decoded::<T>().map(drop),
            None => unreachable!("it was put just now"),
        }
    }
}

impl<T> ObjectLog<T> {
    /// The last revision: behind it everybody ends.
    pub(super) fn end(&mut self, number: u64) -> Result<()> {
        self.writer.apply(number, [Change::put(BROADCAST, &[END])])
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
    keys: Option<&Keys<T>>,
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
        let made = Publication::with(OF_PREFIX, object, keys).and_then(|mut publication| {
            log.push(number, &mut publication)?;
            let kv = log.writer.get(BROADCAST.as_bytes()).map(|kv| kv.to_owned());
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
        Payload::DeletedUnknown(key) => Payload::DeletedUnknown(key),
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
