//! The contract of the C interface as macros: each export reads its arguments by one of these.
//!
//! The head of `lib.rs` states the contract. Only these macros rely on it for the caller's pointers; they are for
//! exports, and for `unsafe fn`s that pass the contract on to their callers. A `?` inside them ends the body of the
//! export with INVALID_ARGUMENT (or, for a handle, BUSY, PANIC, UNSUPPORTED) and a message that names the argument as
//! the export does.
//!
//! | macro | takes | gives |
//! | --- | --- | --- |
//! | `frame!` | the function's name, `error`, a body | the code: counts, catches panics, writes the error |
//! | `read!` | the name, a const handle, a value for a wrong one, a closure | a plain value |
//! | `free!` | the name, a handle or NULL | |
//! | `accessor!` | a function that is inline in the header, with a body that may be `const` | that function |
//! | | `try_handle!` | a const handle | the part for many threads |
//! | | `try_exclusive!` | a handle | the part for one thread at a time |
//! | | `try_out!`, `out_or_null!` | a pointer to an output | a writer of that output, usable once |
//! | | `try_out_array!`, `try_out_text!` | an output array or buffer, and its capacity | a writer that fills it |
//! | | `try_out_struct!` | a sized output struct | a writer that fills it as far as the caller's struct reaches |
//! | `try_struct!`, `struct_or_default!` | a sized struct; or NULL | a copy |
//! | `try_bytes!`, `try_text!` | a `watchcore_bytes` | the bytes, the text, or `None` |
//! | `try_slice!` | a pointer and a length | the bytes, or `None` |

use super::bytes::{Sized32, check_out_struct, write_struct};
use super::error::invalid;
use std::ffi::c_char;
use std::marker::PhantomData;
use std::ptr::NonNull;
use watchcore::Result;

/// An output of the caller: not NULL, aligned, and writable until the call ends.
pub(super) struct Out<'a, T>(NonNull<T>, PhantomData<&'a mut T>);

impl<T> Out<'_, T> {
    /// # Safety
    ///
    /// If it is not NULL and aligned, it is writable during `'a`.
    pub(super) unsafe fn new(pointer: *mut T, what: &str) -> Result<Self> {
        match NonNull::new(pointer) {
            Some(out) if out.is_aligned() => Ok(Out(out, PhantomData)),
            _ => Err(invalid(format!("{what} is NULL or not aligned. Give the address where the answer goes."))),
        }
    }

    pub(super) fn write(self, value: T) {
        // SAFETY: the caller of `new` guaranteed that it is writable.
        unsafe { self.0.write(value) }
    }
}

/// An optional output of the caller.
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
            // SAFETY: the caller of `new` guaranteed that it is writable.
            unsafe { out.write(value) }
        }
    }
}

/// An output array of the caller, which is only written, and need not be initialised.
pub(super) struct OutArray<'a, T> {
    to: *mut T,
    filled: usize,
    capacity: usize,
    of: PhantomData<&'a mut T>,
}

impl<T: Copy> OutArray<'_, T> {
    /// # Safety
    ///
    /// If it is not NULL and aligned, `capacity` elements are writable during `'a`.
    pub(super) unsafe fn new(to: *mut T, capacity: usize, what: &str) -> Result<Self> {
        if capacity > 0 {
            // SAFETY: only NULL and alignment are checked; nothing is written.
            unsafe { Out::new(to, what)? };
        }
        Ok(OutArray { to, filled: 0, capacity, of: PhantomData })
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    pub(super) fn room(&self) -> usize {
        self.capacity - self.filled
    }

    /// Appends as many values as fit.
    pub(super) fn extend(&mut self, values: &[T]) {
        let count = values.len().min(self.room());
        // SAFETY: `filled + count` is within the capacity that the caller of `new` guaranteed.
        unsafe { self.to.add(self.filled).copy_from_nonoverlapping(values.as_ptr(), count) };
        self.filled += count;
    }
}

/// An output buffer of the caller for a NUL-terminated text; NULL if its capacity is 0.
pub(super) struct OutText<'a>(Option<OutArray<'a, u8>>);

impl OutText<'_> {
    /// # Safety
    ///
    /// If it is not NULL, `capacity` bytes are writable during `'a`.
    pub(super) unsafe fn new(to: *mut c_char, capacity: usize, what: &str) -> Result<Self> {
        if capacity == 0 {
            return Ok(OutText(None));
        }
        if to.is_null() {
            return Err(invalid(format!("{what} is NULL with capacity {capacity}. Give a buffer, or capacity 0.")));
        }
        // SAFETY: it is not NULL, so `capacity` bytes are writable by the caller's guarantee.
        Ok(OutText(Some(unsafe { OutArray::new(to.cast(), capacity, what)? })))
    }

    /// Writes as much of the text as fits, and a NUL.
    pub(super) fn write(self, text: &[u8]) {
        if let Some(mut out) = self.0 {
            out.extend(&text[..text.len().min(out.room() - 1)]);
            out.extend(&[0]);
        }
    }
}

/// A sized output struct of the caller.
pub(super) struct OutStruct<'a, T: Sized32> {
    to: *mut T,
    size: usize,
    of: PhantomData<&'a mut T>,
}

impl<T: Sized32> OutStruct<'_, T> {
    /// # Safety
    ///
    /// If it is not NULL and aligned, as many bytes as its `size` says are writable during `'a`.
    pub(super) unsafe fn new(to: *mut T) -> Result<Self> {
        // SAFETY: `check_out_struct` needs a readable `size`, which the caller guarantees.
        Ok(OutStruct { to, size: unsafe { check_out_struct(to)? }, of: PhantomData })
    }

    /// The size of the caller's struct.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn write(self, value: T) {
        // SAFETY: the caller of `new` guaranteed `size` writable bytes.
        unsafe { write_struct(self.to, self.size, value) }
    }
}

/// The body of a function that returns a code.
macro_rules! frame {
    ($fun:ident, $error:expr, $body:block) => {{
        let body = || $body;
        // SAFETY: the contract: `error` is NULL or the caller's struct.
        unsafe { $crate::frame::call($crate::frame::Fun::$fun, $error, body) }
    }};
}

/// The body of a function that returns a plain value from a handle for many threads.
macro_rules! read {
    ($fun:ident, $handle:ident, $otherwise:expr, $body:expr) => {
        $crate::frame::answer($crate::frame::Fun::$fun, $otherwise, || {
            // SAFETY: the contract: the handle is NULL or live, and is not freed during the call.
            let handle = unsafe { $crate::handle::shared($handle, stringify!($handle)) };
            handle.map_or($otherwise, $body)
        })
    };
}

/// The body of a function that frees a handle.
macro_rules! free {
    ($fun:ident, $handle:ident) => {
        // SAFETY: the contract: the handle is NULL or live, and no shared call on it runs or follows.
        unsafe { $crate::handle::free($crate::frame::Fun::$fun, $handle) }
    };
}

/// Defines the out-of-line symbol of a function that is inline in the header. Its body is a `const fn`: it has no
/// cancellation point, and a panic in it aborts at the C boundary, so it needs only the count of the frame.
macro_rules! accessor {
    ($(#[$attribute:meta])* fn $fun:ident($($argument:ident: $type:ty),*) -> $answer:ty $body:block) => {
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fun($($argument: $type),*) -> $answer {
            const unsafe fn body($($argument: $type),*) -> $answer $body
            $crate::frame::accessed($crate::frame::Fun::$fun);
            // SAFETY: the contract of the export, which is also that of the body.
            unsafe { body($($argument),*) }
        }
    };
}

macro_rules! try_handle {
    ($handle:expr) => {
        // SAFETY: the contract: the handle is NULL or live, and is not freed during the call.
        unsafe { $crate::handle::shared($handle, stringify!($handle))? }
    };
}

macro_rules! try_exclusive {
    ($handle:expr) => {
        // SAFETY: the contract: the handle is NULL or live; a free meanwhile is left to this thread.
        unsafe { $crate::handle::exclusive($handle, stringify!($handle))? }
    };
}

macro_rules! try_out {
    ($out:ident) => {
        // SAFETY: the contract: an out-pointer that is not NULL is writable.
        unsafe { $crate::contract::Out::new($out, stringify!($out))? }
    };
}

macro_rules! out_or_null {
    ($out:ident) => {
        // SAFETY: the contract: an optional out-pointer is NULL, or aligned and writable.
        unsafe { $crate::contract::OutOrNull::new($out) }
    };
}

macro_rules! try_out_array {
    ($out:ident, $capacity:expr) => {
        // SAFETY: the contract: an output array has as many writable elements as its capacity says.
        unsafe { $crate::contract::OutArray::new($out, $capacity, stringify!($out))? }
    };
}

macro_rules! try_out_text {
    ($out:ident, $capacity:expr) => {
        // SAFETY: the contract: an output buffer has as many writable bytes as its capacity says.
        unsafe { $crate::contract::OutText::new($out, $capacity, stringify!($out))? }
    };
}

macro_rules! try_out_struct {
    ($out:ident) => {
        // SAFETY: the contract: an output struct is writable for as many bytes as its `size` says.
        unsafe { $crate::contract::OutStruct::new($out)? }
    };
}

macro_rules! try_struct {
    ($given:expr) => {
        // SAFETY: the contract: a struct is readable for as many bytes as its `size` says.
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
        // SAFETY: the contract: a byte string is readable for its length.
        unsafe { $given.get(stringify!($given))? }
    };
}

macro_rules! try_text {
    ($given:expr) => {
        // SAFETY: the contract: a byte string is readable for its length.
        unsafe { $given.text(stringify!($given))? }
    };
}

macro_rules! try_slice {
    ($data:ident, $length:expr) => {
        // SAFETY: the contract: a byte string is readable for its length.
        unsafe { $crate::bytes::slice::<u8>($data, $length, stringify!($data))? }
    };
}

pub(super) use {
    accessor, frame, free, out_or_null, read, struct_or_default, try_bytes, try_exclusive, try_handle, try_out,
    try_out_array, try_out_struct, try_out_text, try_slice, try_struct, try_text,
};
