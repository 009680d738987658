//! Objects in the log of an embedded cache.
//!
//! A cache's values are bytes, from which a decoder makes objects. Here the first byte says what happened to the
//! object; its key follows if the broadcaster has a function for keys. The log itself has a single key: with many keys,
//! the newest object of each would stay in the cache's state for ever.
//!
//! The object itself is passed in a slot beside the log. The publisher puts it there, writes the revision, and has it
//! decoded before it returns; the decoder takes the object from the slot. A faster reader decodes it on its own thread
//! and gets the same object, because the slot is filled for one revision at a time and a version is decoded once. From
//! then on the version owns the object: it is shared by count, and dropped by the thread that frees versions when it
//! has left the log and nobody uses it.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types)] // Loom instruments this mutex, and `sync::lock` counts its guards.

use crate::event::{Payload, WatchEvent};
use crate::object::{BROADCAST, FromKeyValue, OF_PREFIX, Object};
use crate::sync::{Mutex, lock};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use watchcore::{Batch, Cache, Change, Code, Error, KeyValue, Position, Result, Stats, Writer};

/// The kind of a publication.
///
/// ```
/// use watchcore_toolkit::Action;
///
/// assert_eq!(Action::Added.name(), "ADDED");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The object is new.
    Added,
    /// The object has changed; this is its new state.
    Modified,
    /// The object was deleted; this is its last state.
    Deleted,
}

impl Action {
    /// The name, as in Kubernetes.
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

/// The function that returns the keys of a broadcaster's objects. The broadcaster calls it before
/// it changes the log, so a panic of it has no effect.
pub(super) type Keys<T> = AssertUnwindSafe<Arc<dyn Fn(&T) -> Vec<u8> + Send + Sync>>;

/// The longest key of an object: the log budgets [`BYTES`] for each of its events.
const LONGEST_KEY: usize = 1024;

/// The bytes that the log may use per event.
const BYTES: u64 = 4096;

/// An object to be published, and the value that the log writes for it.
pub(super) struct Publication<T> {
    /// `None` once the log has it.
    object: Option<T>,
    what: [u8; 1],
    /// The action's byte and the object's key, if there is a key.
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

/// The log's writer, and the slot for the object that is being written.
pub(super) struct ObjectLog<T> {
    cache: Cache,
    writer: Writer,
    slot: Arc<Mutex<Option<T>>>,
}

impl<T: Send + Sync + 'static> ObjectLog<T> {
    /// Makes a log that keeps at least 3/4 of `capacity` events.
    pub(super) fn new(name: &str, capacity: usize) -> Result<ObjectLog<T>> {
        let slot = Arc::new(Mutex::new(None));
        let decode = {
            let slot = Arc::clone(&slot);
            move |_: &[u8], _: &[u8]| lock(&slot).take().ok_or("no object was published with it")
        };
        // Enough bytes for the events: an eighth of them bounds the memory that waits to be freed.
        let bytes = (capacity as u64).saturating_mul(BYTES).max(1 << 20);
        let cache =
            Cache::builder(BROADCAST).name(name).capacity(capacity).capacity_bytes(bytes).decoder(decode).build()?;
        let writer = cache.writer()?;
        Ok(ObjectLog { cache, writer, slot })
    }

    /// Publishes an object as the revision `number`. A refused object goes back into `publication`.
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
    /// Writes the last revision, after which all watchers end.
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

/// Makes objects outside of a broadcaster's log: in a temporary log, whose objects live on by their counts.
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
    let mut make = |object: T| -> Result<Object<T>> {
        number += 1;
        log.push(number, &mut Publication::with(OF_PREFIX, object, keys)?)?;
        match log.writer.get(BROADCAST.as_bytes()) {
            Some(kv) => Object::from_key_value(&kv.to_owned()),
            None => unreachable!("it was put just now"),
        }
    };
    events.map(|event| event.try_map(&mut make)).collect()
}

/// Converts a revision of the log; `None` is the end.
#[inline]
pub(super) fn payload_of<T: Send + Sync + 'static>(kv: &KeyValue) -> Option<Payload<Object<T>>> {
    let action = kv.value().and_then(|value| value.first()).copied();
    if action == Some(END) {
        return None;
    }
    // The decoder has made the object, or makes it when it is used: see the module's documentation.
    let object = Object::of_decoded(kv);
    Some(match action {
        Some(b'm') => Payload::Modified { old: None, new: object },
        Some(b'd') => Payload::Deleted(object),
        _ => Payload::Added(object),
    })
}

/// Borrows the action and the object of a revision without incrementing a count; `None` is the end, too.
pub(super) fn action_of<T: Send + Sync + 'static>(kv: &KeyValue) -> Option<(Action, &T)> {
    let action = match kv.value()?.first()? {
        b'm' => Action::Modified,
        b'd' => Action::Deleted,
        b'a' => Action::Added,
        _ => return None,
    };
    kv.decoded().ok().flatten().map(|object| (action, object))
}

/// Whether the last revision of a batch is the one that ends the log.
pub(super) fn ends(batch: &Batch) -> bool {
    let last = batch.events().last().and_then(|event| event.value());
    last.is_some_and(|value| value.first() == Some(&END))
}
