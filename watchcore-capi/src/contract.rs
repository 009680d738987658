//! The contract of the C interface as macros: what each export takes from C, it takes by one of these.
//!
//! The contract itself stands at the head of `lib.rs`. These macros are the only place that relies on it for a
//! pointer of the caller's; they are for exports, and for `unsafe fn`s that pass the contract on to their callers.
//! `?` inside them ends the body of the export with INVALID_ARGUMENT (or BUSY, PANIC, UNSUPPORTED of a handle), in a
//! message that names the argument as the export does.
//!
//! | macro | takes | gives |
//! | --- | --- | --- |
//! | `frame!` | the function's name, `error`, a body | the code: counts, catches panics, writes the error |
//! | `read!` | the name, a const handle, a value for a wrong one, a closure | a plain value |
//! | `free!` | the name, a handle or NULL | |
//! | `accessor!` | a function that is inline in the header, with a body that may be `const` | that function |
//! | `try_handle!` | a const handle | what many threads may use of it |
//! | `try_own!` | a handle | what one thread at a time may use of it |
//! | `try_out!`, `out_or_null!` | where an answer goes | what writes it, once |
//! | `try_out_array!`, `try_out_text!` | an array, a buffer where answers go, and its capacity | what fills it |
//! | `try_out_struct!` | a sized struct where an answer goes | what writes it, as far as the caller's reaches |
//! | `try_struct!`, `struct_or_default!` | a sized struct; or NULL | a copy |
//! | `try_bytes!`, `try_text!` | a `watchcore_bytes` | the bytes, the text, or `None` |
//! | `try_slice!` | a pointer and a length | the bytes, or `None` |

use super::bytes::{Sized32, check_out_struct, write_struct};
use super::error::invalid;
use std::ffi::c_char;
use std::marker::PhantomData;
use std::ptr::NonNull;
use watchcore::Result;

/// Where an answer goes: not NULL, aligned, and writable until the call ends.
pub(super) struct Out<'a, T>(NonNull<T>, PhantomData<&'a mut T>);

impl<T> Out<'_, T> {
    /// # Safety
    ///
    /// Where it is not NULL and aligned, it is writable during `'a`.
    pub(super) unsafe fn new(pointer: *mut T, what: &str) -> Result<Self> {
        match NonNull::new(pointer) {
            Some(out) if out.is_aligned() => Ok(Out(out, PhantomData)),
            _ => Err(invalid(format!("{what} is NULL or not aligned. Give the address where the answer goes."))),
        }
    }

    pub(super) fn write(self, value: T) {
        // SAFETY: as `new` was promised.
        unsafe { self.0.write(value) }
    }
}

/// Where an answer goes that the caller need not ask for.
pub(super) struct OutOrNull<'a, T>(Option<NonNull<T>>, PhantomData<&'a mut T>);

impl<T> OutOrNull<'_, T> {
    /// # Safety
    ///
    /// It is NULL, or aligned and writable during `'a`.
    pub(super) unsafe fn new(pointer: *mut T) -> Self {
        OutOrNull(NonNull::new(pointer), PhantomData)
    }

    pub(super) fn write(self, value: T) {
        if let Some(out) = self.0 {
            // SAFETY: as `new` was promised.
            unsafe { out.write(value) }
        }
    }
}

/// An array of the caller where answers go. It need not be initialised: it is only written to.
pub(super) struct OutArray<'a, T> {
    to: *mut T,
    filled: usize,
    capacity: usize,
    of: PhantomData<&'a mut T>,
}

impl<T: Copy> OutArray<'_, T> {
    /// # Safety
    ///
    /// Where it is not NULL and aligned, `capacity` elements are writable during `'a`.
    pub(super) unsafe fn new(to: *mut T, capacity: usize, what: &str) -> Result<Self> {
        // SAFETY: only its address is looked at.
        unsafe { Out::new(to, what)? };
        Ok(OutArray { to, filled: 0, capacity, of: PhantomData })
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    pub(super) fn room(&self) -> usize {
        self.capacity - self.filled
    }

    /// Appends as many as there is room for.
    pub(super) fn extend(&mut self, values: &[T]) {
        let count = values.len().min(self.room());
        // SAFETY: `filled + count` is within the capacity that `new` was promised.
        unsafe { self.to.add(self.filled).copy_from_nonoverlapping(values.as_ptr(), count) };
        self.filled += count;
    }
}

/// A buffer of the caller for a NUL-terminated text; NULL where its capacity is 0.
pub(super) struct OutText<'a>(Option<OutArray<'a, u8>>);

impl OutText<'_> {
    /// # Safety
    ///
    /// Where it is not NULL, `capacity` bytes are writable during `'a`.
    pub(super) unsafe fn new(to: *mut c_char, capacity: usize, what: &str) -> Result<Self> {
        if capacity == 0 {
            return Ok(OutText(None));
        }
        if to.is_null() {
            return Err(invalid(format!("{what} is NULL with capacity {capacity}. Give a buffer, or capacity 0.")));
        }
        // SAFETY: the same contract.
        Ok(OutText(Some(unsafe { OutArray::new(to.cast(), capacity, what)? })))
    }

    /// Writes what there is room for, and a NUL.
    pub(super) fn write(self, text: &[u8]) {
        if let Some(mut out) = self.0 {
            out.extend(&text[..text.len().min(out.room() - 1)]);
            out.extend(&[0]);
        }
    }
}

/// A sized struct of the caller where an answer goes.
pub(super) struct OutStruct<'a, T: Sized32> {
    to: *mut T,
    size: usize,
    of: PhantomData<&'a mut T>,
}

impl<T: Sized32> OutStruct<'_, T> {
    /// # Safety
    ///
    /// Where it is not NULL and aligned, as many bytes as its `size` says are writable during `'a`.
    pub(super) unsafe fn new(to: *mut T) -> Result<Self> {
        // SAFETY: the same contract.
        Ok(OutStruct { to, size: unsafe { check_out_struct(to)? }, of: PhantomData })
    }

    /// The caller's size.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn write(self, value: T) {
        // SAFETY: as `new` was promised; the size comes from there.
        unsafe { write_struct(self.to, self.size, value) }
    }
}

/// The body of a function that answers a code.
macro_rules! frame {
    ($fun:ident, $error:expr, $body:block) => {{
        let body = || $body;
        // SAFETY: the contract, for `error`.
        unsafe { $crate::frame::call($crate::frame::Fun::$fun, $error, body) }
    }};
}

/// The body of a function that answers a plain value of a handle for many threads.
macro_rules! read {
    ($fun:ident, $handle:ident, $otherwise:expr, $body:expr) => {
        $crate::frame::answer($crate::frame::Fun::$fun, $otherwise, || {
            // SAFETY: the contract.
            let handle = unsafe { $crate::handle::shared($handle, stringify!($handle)) };
            handle.map_or($otherwise, $body)
        })
    };
}

/// The body of a function that frees a handle.
macro_rules! free {
    ($fun:ident, $handle:ident) => {
        // SAFETY: the contract.
        unsafe { $crate::handle::free($crate::frame::Fun::$fun, $handle) }
    };
}

/// A function that is inline in the header, as a symbol. Its body is a `const fn`: it reaches no cancellation point and
/// cannot panic across the boundary unseen, so it needs nothing of the frame but the count.
macro_rules! accessor {
    ($(#[$attribute:meta])* fn $fun:ident($($argument:ident: $type:ty),*) -> $answer:ty $body:block) => {
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fun($($argument: $type),*) -> $answer {
            const unsafe fn body($($argument: $type),*) -> $answer $body
            $crate::frame::accessed($crate::frame::Fun::$fun);
            // SAFETY: the contract, which is also that of the body.
            unsafe { body($($argument),*) }
        }
    };
}

macro_rules! try_handle {
    ($handle:expr) => {
        // SAFETY: the contract.
        unsafe { $crate::handle::shared($handle, stringify!($handle))? }
    };
}

macro_rules! try_own {
    ($handle:expr) => {
        // SAFETY: the contract.
        unsafe { $crate::handle::exclusive($handle, stringify!($handle))? }
    };
}

macro_rules! try_out {
    ($out:ident) => {
        // SAFETY: the contract.
        unsafe { $crate::contract::Out::new($out, stringify!($out))? }
    };
}

macro_rules! out_or_null {
    ($out:ident) => {
        // SAFETY: the contract.
        unsafe { $crate::contract::OutOrNull::new($out) }
    };
}

macro_rules! try_out_array {
    ($out:ident, $capacity:expr) => {
        // SAFETY: the contract.
        unsafe { $crate::contract::OutArray::new($out, $capacity, stringify!($out))? }
    };
}

macro_rules! try_out_text {
    ($out:ident, $capacity:expr) => {
        // SAFETY: the contract.
        unsafe { $crate::contract::OutText::new($out, $capacity, stringify!($out))? }
    };
}

macro_rules! try_out_struct {
    ($out:ident) => {
        // SAFETY: the contract.
        unsafe { $crate::contract::OutStruct::new($out)? }
    };
}

macro_rules! try_struct {
    ($given:expr) => {
        // SAFETY: the contract.
        unsafe { $crate::bytes::read_struct($given)? }
    };
}

macro_rules! struct_or_default {
    ($given:ident) => {
        if $given.is_null() { $crate::bytes::Sized32::DEFAULT } else { $crate::contract::try_struct!($given) }
    };
}

macro_rules! try_bytes {
    ($given:expr) => {
        // SAFETY: the contract.
        unsafe { $given.get(stringify!($given))? }
    };
}

macro_rules! try_text {
    ($given:expr) => {
        // SAFETY: the contract.
        unsafe { $given.text(stringify!($given))? }
    };
}

macro_rules! try_slice {
    ($data:ident, $length:expr) => {
        // SAFETY: the contract.
        unsafe { $crate::bytes::slice::<u8>($data, $length, stringify!($data))? }
    };
}

pub(super) use {
    accessor, frame, free, out_or_null, read, struct_or_default, try_bytes, try_handle, try_out, try_out_array,
    try_out_struct, try_out_text, try_own, try_slice, try_struct, try_text,
};
