//! The data that is stored and delivered: key-values, the slots of keys, events, decoded values.

pub(crate) mod decoded;
pub(crate) mod event;
pub(crate) mod key_number;
pub(crate) mod key_value;
pub(crate) mod numbered;
pub(crate) mod slot;
