//! The objects of a cache: key-values, or the values that its decoder makes of them.

#![forbid(unsafe_code)]

use crate::foreign::{Panicked, guard};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use watchcore::{Code, Error, KeyValue, Result};

/// The conversion of a typed watch: from a key-value to itself, or to an [`Object`] of the cache's decoder.
///
/// ```
/// use watchcore::{Cache, Change, Read};
/// use watchcore_toolkit::{FromKeyValue, Object};
///
/// let cache = Cache::builder("/").decoder(|_, value: &[u8]| String::from_utf8(value.to_vec())).build()?;
/// cache.writer()?.apply(1, [Change::put("/a", "hello")])?;
/// let kv = cache.get("/a", Read::Any)?.kv.unwrap();
/// assert_eq!(Object::<String>::from_key_value(&kv)?.len(), 5);
/// assert!(Object::<u64>::from_key_value(&kv).is_err(), "the decoder makes another type");
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait FromKeyValue: Clone + Send + Sync + Unpin + 'static {
    /// Makes the object of a key-value. It increments a count and copies no bytes. INVALID_ARGUMENT if the decoder
    /// refuses the value, or makes another type; PANIC if it panicked. A panic of this method itself counts as a value
    /// that cannot be decoded, in watches, handlers, indexes and lists alike.
    fn from_key_value(kv: &KeyValue) -> Result<Self>;

    /// The key-value from which the object was made.
    fn key_value(&self) -> &KeyValue;

    /// The type that is read without keeping it: the key-value itself, or the decoder's value.
    type View: ?Sized;

    /// The view of a key-value, without incrementing a count. Errors are those of [`FromKeyValue::from_key_value`].
    fn view(kv: &KeyValue) -> Result<&Self::View>;
}

/// The name of a type's conversion from key-values, for messages.
pub(crate) struct Conversion<O>(PhantomData<fn() -> O>);

impl<O> Conversion<O> {
    pub(crate) fn new() -> Conversion<O> {
        Conversion(PhantomData)
    }

    /// The error for a key-value whose conversion panicked.
    pub(crate) fn refused(panicked: &Panicked, key: &[u8]) -> Error {
        let key = String::from_utf8_lossy(key);
        Error::new(
            Code::Panic,
            format!("take the value at {key}: {panicked}. It counts as one that cannot be decoded."),
        )
    }
}

impl<O> fmt::Display for Conversion<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FromKeyValue for {}", std::any::type_name::<O>())
    }
}

/// [`FromKeyValue::from_key_value`], whose panic becomes an error of this one value.
pub(crate) fn object_of<O: FromKeyValue>(kv: &KeyValue) -> Result<O> {
    guard(Conversion::<O>::new(), || O::from_key_value(kv))
        .unwrap_or_else(|panicked| Err(Conversion::<O>::refused(&panicked, kv.key())))
}

/// [`FromKeyValue::view`], whose panic becomes an error of this one value.
pub(crate) fn view_of<O: FromKeyValue>(kv: &KeyValue) -> Result<&O::View> {
    guard(Conversion::<O>::new(), || O::view(kv))
        .unwrap_or_else(|panicked| Err(Conversion::<O>::refused(&panicked, kv.key())))
}

impl FromKeyValue for KeyValue {
    fn from_key_value(kv: &KeyValue) -> Result<KeyValue> {
        Ok(kv.clone())
    }

    fn key_value(&self) -> &KeyValue {
        self
    }

    type View = KeyValue;

    fn view(kv: &KeyValue) -> Result<&KeyValue> {
        Ok(kv)
    }
}

/// A decoded object: the `T` that the cache's decoder made, kept alive with its key-value by one
/// count. It is one pointer wide, and decoded once for all its owners.
///
/// ```
/// use watchcore::{Cache, Change, Read};
/// use watchcore_toolkit::{FromKeyValue, Object};
///
/// #[derive(Debug)]
/// struct Pod { node: String }
///
/// let decode = |_: &[u8], value: &[u8]| String::from_utf8(value.to_vec()).map(|node| Pod { node });
/// let cache = Cache::builder("/pods/").decoder(decode).build()?;
/// cache.writer()?.apply(4, [Change::put("/pods/a", "node-1")])?;
/// let pod = Object::<Pod>::from_key_value(&cache.get("/pods/a", Read::Any)?.kv.unwrap())?;
/// assert_eq!(pod.node, "node-1");
/// assert_eq!((pod.key(), pod.revision()), (&b"/pods/a"[..], 4));
/// # Ok::<(), watchcore::Error>(())
/// ```
///
/// An object of a [`crate::Broadcaster`] has the key that the broadcaster's [`keys`](crate::BroadcasterBuilder::keys)
/// returned, and the number of its event as its revision. Without such a function it has no key of its own: `key` is
/// `/` for all of them, and adapters that use keys refuse it.
pub struct Object<T> {
    /// Its decoder made a `T`: this was checked when the object was made, and a decoded value never changes.
    kv: KeyValue,
    decoded: PhantomData<fn() -> T>,
}

/// The only key of a broadcaster's log. Its values are a byte, which says what happened, and the
/// object's own key. No cache of a program has this key; if one had, adapters that use keys would
/// refuse its object, and not mistake it for another.
pub(crate) const BROADCAST: &str = "\0watchcore-toolkit/broadcast";

/// The first byte of the value of an object that was in no log: an object of a watch's prefix.
pub(crate) const OF_PREFIX: u8 = b'p';

impl<T: 'static> Object<T> {
    /// Makes an object of a cache whose decoder makes only `T`, and refuses no value.
    pub(crate) fn of_decoded(kv: &KeyValue) -> Object<T> {
        Object { kv: kv.clone(), decoded: PhantomData }
    }

    /// The object's value in a broadcaster's log, if it comes from one.
    pub(crate) fn broadcast(&self) -> Option<&[u8]> {
        if self.kv.key() == BROADCAST.as_bytes() { self.kv.value() } else { None }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        match self.broadcast() {
            None => self.kv.key(),
            Some([_, key @ ..]) if !key.is_empty() => key,
            Some(_) => b"/",
        }
    }

    /// The key, if it is UTF-8.
    pub fn key_str(&self) -> Option<&str> {
        std::str::from_utf8(self.key()).ok()
    }

    /// The revision of its last change.
    pub fn revision(&self) -> u64 {
        self.kv.mod_revision()
    }
}

impl<T: Send + Sync + 'static> FromKeyValue for Object<T> {
    fn from_key_value(kv: &KeyValue) -> Result<Object<T>> {
        Self::view(kv).map(|_| Object { kv: kv.clone(), decoded: PhantomData })
    }

    fn key_value(&self) -> &KeyValue {
        &self.kv
    }

    type View = T;

    fn view(kv: &KeyValue) -> Result<&T> {
        kv.decoded::<T>()?.ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                format!(
                    "take a value as {}: the cache has no decoder, or this is a deletion. Give Cache::builder(..).decoder(..) \
                     one, or watch plain key-values.",
                    std::any::type_name::<T>()
                ),
            )
        })
    }
}

impl<T: 'static> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self.kv.decoded::<T>() {
            Ok(Some(decoded)) => decoded,
            // The value was a `T` when the object was made, and a decoded value never changes.
            _ => unreachable!("a decoded value never changes"),
        }
    }
}

impl<T> Clone for Object<T> {
    fn clone(&self) -> Object<T> {
        Object { kv: self.kv.clone(), decoded: PhantomData }
    }
}

impl<T: fmt::Debug + 'static> fmt::Debug for Object<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq + 'static> PartialEq for Object<T> {
    /// Compares keys and objects.
    fn eq(&self, other: &Object<T>) -> bool {
        self.key() == other.key() && **self == **other
    }
}

impl<T: Eq + 'static> Eq for Object<T> {}
