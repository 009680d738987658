//! Decoding once: what a value means, shared by all its readers and freed with its version.
//!
//! What was decoded is counted at its decoder ([`Decoder::bytes`]), from the first reader that asks to the end of the
//! version. The bytes are the boxes and the struct itself, and what the user says that it holds beyond that.

#![forbid(unsafe_code)]

use crate::error::show;
use crate::error::{Code, Error, Result, say};
use crate::foreign;
use std::any::{Any, type_name};
use std::fmt;
use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

type DecodedBox = Box<dyn Any + Send + Sync>;
/// What it makes, and the bytes of that.
type Decode = dyn Fn(&[u8], &[u8]) -> Result<(DecodedBox, u64)> + Send + Sync;

/// The decoder of a cache.
#[derive(Clone)]
pub(crate) struct Decoder(Arc<SharedDecoder>);

struct SharedDecoder {
    /// What was decoded and lives, and its bytes.
    values: Count,
    bytes: Count,
    decode: Box<Decode>,
}

impl Decoder {
    /// Wraps a user's functions: of key and value, and of the bytes that what was made of them holds beyond itself.
    pub(crate) fn new<T, E>(
        decode: impl Fn(&[u8], &[u8]) -> Result<T, E> + Send + Sync + 'static,
        holds: impl Fn(&T) -> usize + Send + Sync + 'static,
    ) -> Decoder
    where
        T: Send + Sync + 'static,
        E: fmt::Display,
    {
        let decode = move |key: &[u8], value: &[u8]| match decode(key, value) {
            Ok(made) => {
                let bytes = (size_of::<T>() + holds(&made)) as u64;
                Ok((Box::new(made) as DecodedBox, bytes))
            }
            Err(error) => Err(say::invalid(format!(
                "decode the value of key {} as {}: {error}. The value itself is delivered as it is.",
                show(key),
                type_name::<T>()
            ))),
        };
        Decoder(Arc::new(SharedDecoder { values: Count::new(0), bytes: Count::new(0), decode: Box::new(decode) }))
    }

    /// How many decoded values live.
    pub(crate) fn values(&self) -> u64 {
        self.0.values.load(Relaxed)
    }

    /// Bytes of the decoded values that live.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Relaxed)
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("decoder")
    }
}

/// The place of one version's decoded value: filled by the first reader that asks.
pub(crate) struct DecodedCell {
    decoder: Decoder,
    made: OnceLock<Box<DecodedValue>>,
}

struct DecodedValue {
    value: Result<DecodedBox>,
    /// Of all of it.
    bytes: u64,
}

impl DecodedCell {
    pub(crate) fn new(decoder: &Decoder) -> DecodedCell {
        DecodedCell { decoder: decoder.clone(), made: OnceLock::new() }
    }

    /// The value as a `T`, decoded now if nobody did before; others wait for it meanwhile.
    pub(crate) fn get<T: 'static>(&self, key: &[u8], value: &[u8]) -> Result<&T> {
        let made = self.made.get_or_init(|| {
            let called = foreign::guard(|| (self.decoder.0.decode)(key, value)).unwrap_or_else(|| {
                Err(Error::new(
                    Code::Panic,
                    format!(
                        "decode the value of key {}: the decoder panicked. Correct it; the value itself is delivered as it is.",
                        show(key)
                    ),
                ))
            });
            let (value, bytes) = called.map_or_else(|error| (Err(error), 0), |(value, bytes)| (Ok(value), bytes));
            let bytes = bytes + size_of::<DecodedValue>() as u64;
            self.decoder.0.values.fetch_add(1, Relaxed);
            self.decoder.0.bytes.fetch_add(bytes, Relaxed);
            Box::new(DecodedValue { value, bytes })
        });
        match &made.value {
            Ok(made) => made.downcast_ref().ok_or_else(|| {
                say::invalid(format!(
                    "decoded as {}: the cache's decoder makes another type. Ask for that one.",
                    type_name::<T>()
                ))
            }),
            Err(error) => Err(error.clone()),
        }
    }

    /// Bytes of the value, 0 before it was decoded.
    pub(crate) fn bytes(&self) -> u64 {
        self.made.get().map_or(0, |made| made.bytes)
    }
}

impl Drop for DecodedCell {
    fn drop(&mut self) {
        if let Some(made) = self.made.get() {
            self.decoder.0.values.fetch_sub(1, Relaxed);
            self.decoder.0.bytes.fetch_sub(made.bytes, Relaxed);
        }
    }
}
