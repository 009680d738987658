//! Decoding once: what a value means, shared by all its readers and freed with its version.

#![forbid(unsafe_code)]

use crate::error::show;
use crate::error::{Code, Error, Result, say};
use crate::foreign;
use std::any::{Any, type_name};
use std::fmt;
use std::sync::{Arc, OnceLock};

type DecodedBox = Box<dyn Any + Send + Sync>;
type Decode = dyn Fn(&[u8], &[u8]) -> Result<DecodedBox> + Send + Sync;

/// The decoder of a cache.
#[derive(Clone)]
pub(crate) struct Decoder(Arc<Decode>);

impl Decoder {
    /// Wraps a user's function of key and value.
    pub(crate) fn new<T, E>(decode: impl Fn(&[u8], &[u8]) -> Result<T, E> + Send + Sync + 'static) -> Decoder
    where
        T: Send + Sync + 'static,
        E: fmt::Display,
    {
        Decoder(Arc::new(move |key, value| match decode(key, value) {
            Ok(made) => Ok(Box::new(made)),
            Err(error) => Err(say::invalid(format!(
                "decode the value of key {} as {}: {error}. The value itself is delivered as it is.",
                show(key),
                type_name::<T>()
            ))),
        }))
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
    made: OnceLock<Box<Result<DecodedBox>>>,
}

impl DecodedCell {
    pub(crate) fn new(decoder: &Decoder) -> DecodedCell {
        DecodedCell { decoder: decoder.clone(), made: OnceLock::new() }
    }

    /// The value as a `T`, decoded now if nobody did before; others wait for it meanwhile.
    pub(crate) fn get<T: 'static>(&self, key: &[u8], value: &[u8]) -> Result<&T> {
        let made = self.made.get_or_init(|| {
            let called = foreign::guard(|| (self.decoder.0)(key, value));
            Box::new(called.unwrap_or_else(|| {
                Err(Error::new(
                    Code::Panic,
                    format!(
                        "decode the value of key {}: the decoder panicked. Mend it; the value itself is delivered as it is.",
                        show(key)
                    ),
                ))
            }))
        });
        match &**made {
            Ok(made) => made.downcast_ref().ok_or_else(|| {
                say::invalid(format!("decoded as {}: the cache's decoder makes another type", type_name::<T>()))
            }),
            Err(error) => Err(error.clone()),
        }
    }
}
