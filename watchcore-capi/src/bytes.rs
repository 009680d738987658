//! Byte strings and sized structs from the caller.
//!
//! A struct is copied before it is checked, so that the caller cannot change it in between. Its `size` says which
//! fields the caller has: the others get their default. Bytes after the fields known here must be zero, so that an
//! option of a later version is refused, not ignored.
//!
//! # In the header: Bytes
//!
//! Keys and values are bytes, not strings: a pointer and a length. Texts (names, selectors) are UTF-8, given the same way.

use super::error::invalid;
use std::ffi::c_void;
use std::fmt::Display;
use watchcore::{Error, Result};

/// A pointer and a length. NULL is "absent"; a pointer with length 0 is "empty".
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_bytes {
    /// The first byte, or NULL.
    pub data: *const c_void,
    /// The number of bytes.
    pub length: usize,
}

impl watchcore_bytes {
    pub(super) const ABSENT: watchcore_bytes = watchcore_bytes { data: std::ptr::null(), length: 0 };

    /// The bytes, or `None` if they are absent. `what` names them; it is formatted only for an error.
    ///
    /// # Safety
    ///
    /// If `data` is not NULL, `length` bytes are readable there during `'a`.
    pub(super) unsafe fn get<'a>(self, what: impl Display) -> Result<Option<&'a [u8]>> {
        // SAFETY: the caller guarantees `length` readable bytes, which is what `slice` requires.
        unsafe { slice(self.data, self.length, what) }
    }

    /// The bytes as text, or `None` if they are absent.
    ///
    /// # Safety
    ///
    /// The contract of `get`.
    pub(super) unsafe fn text<'a>(self, what: impl Display + Copy) -> Result<Option<&'a str>> {
        // SAFETY: `get` has the same contract as this function.
        let Some(bytes) = (unsafe { self.get(what)? }) else { return Ok(None) };
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(e) => Err(invalid(format!("{what} is not UTF-8 from byte {} on. Give it as UTF-8.", e.valid_up_to()))),
        }
    }
}

/// The `length` elements at `data`, or `None` for NULL.
///
/// # Safety
///
/// If `data` is not NULL, `length` elements are readable there during `'a`.
#[inline]
pub(super) unsafe fn slice<'a, T>(data: *const c_void, length: usize, what: impl Display) -> Result<Option<&'a [T]>> {
    if data.is_null() && length == 0 {
        return Ok(None);
    }
    if data.is_null() || length > isize::MAX as usize / size_of::<T>().max(1) || !data.cast::<T>().is_aligned() {
        return Err(no_slice(data, length, what));
    }
    // SAFETY: not NULL, aligned, and readable for `length` elements by the caller's guarantee.
    Ok(Some(unsafe { std::slice::from_raw_parts(data.cast(), length) }))
}

#[cold]
fn no_slice(data: *const c_void, length: usize, what: impl Display) -> Error {
    if data.is_null() {
        return invalid(format!("{what} is NULL with length {length}. Give a pointer, or length 0."));
    }
    invalid(format!("{what} has an impossible length ({length}) or alignment."))
}

/// A struct of the caller that starts with `uint32_t size`.
///
/// # Safety
///
/// `repr(C)`, its first field is that `u32`, and every field accepts every bit pattern.
pub(super) unsafe trait Sized32: Copy {
    const NAME: &'static str;
    /// The value of fields that the caller's struct does not have.
    const DEFAULT: Self;
}

/// A `size` above this is invalid: no struct here comes near it.
const LARGEST: usize = 4096;

/// Checks the `size` of a struct of the caller.
///
/// # Safety
///
/// If `pointer` is not NULL and aligned, a `u32` is readable there.
unsafe fn size_of_struct<T: Sized32>(pointer: *const T) -> Result<usize> {
    let name = T::NAME;
    if pointer.is_null() {
        return Err(invalid(format!("{name} is NULL. Give a pointer to one.")));
    }
    if !pointer.is_aligned() {
        return Err(invalid(format!("{name} is not aligned to {} bytes.", align_of::<T>())));
    }
    // SAFETY: not NULL and aligned, so a `u32` is readable there by the caller's guarantee.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size < align_of::<T>().max(8) || size > LARGEST || !size.is_multiple_of(align_of::<T>()) {
        return Err(invalid(format!(
            "{name} has size {size}; this library's has {}. Initialise it with its _INIT macro.",
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// Copies a struct of the caller, with defaults for the fields that it does not have.
///
/// # Safety
///
/// If `pointer` is not NULL, as many bytes as its `size` says are readable.
#[inline]
pub(super) unsafe fn read_struct<T: Sized32>(pointer: *const T) -> Result<T> {
    if !pointer.is_null() && pointer.is_aligned() {
        // The caller's struct mostly has the size known here: one copy, of a length known at compile time.
        // SAFETY: a `u32` is readable there, and then as many bytes as it says; every bit pattern is a T.
        unsafe {
            if pointer.cast::<u32>().read() as usize == size_of::<T>() {
                return Ok(pointer.read());
            }
        }
    }
    // SAFETY: the function has the same contract as this one.
    unsafe { read_other_struct(pointer) }
}

/// `read_struct` for a struct that is shorter or longer than the one known here, or invalid.
///
/// # Safety
///
/// The contract of `read_struct`.
#[cold]
unsafe fn read_other_struct<T: Sized32>(pointer: *const T) -> Result<T> {
    // SAFETY: the size is readable, and then as many bytes as it says, by the caller's guarantee.
    unsafe { copy_other_struct(pointer, size_of_struct(pointer)?) }
}

/// Copies a struct of `size` bytes, whatever its own `size` field says.
///
/// # Safety
///
/// `size` comes from `size_of_struct`, and as many bytes are readable at `pointer`, which is aligned.
#[inline]
unsafe fn copy_struct<T: Sized32>(pointer: *const T, size: usize) -> Result<T> {
    if size == size_of::<T>() {
        // SAFETY: as many bytes are readable; every bit pattern is a T.
        return Ok(unsafe { pointer.read() });
    }
    // SAFETY: the function has the same contract as this one.
    unsafe { copy_other_struct(pointer, size) }
}

/// `copy_struct` for a struct that is shorter or longer than the one known here.
///
/// # Safety
///
/// The contract of `copy_struct`.
#[cold]
unsafe fn copy_other_struct<T: Sized32>(pointer: *const T, size: usize) -> Result<T> {
    let known = size_of::<T>();
    if size > known {
        // SAFETY: `size` bytes are readable.
        let rest = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
        if rest.iter().any(|&b| b != 0) {
            return Err(invalid(format!(
                "{} has size {size} and sets fields after the {known} bytes this library knows. Use a newer library.",
                T::NAME
            )));
        }
    }
    let mut copy = T::DEFAULT;
    // SAFETY: both are at least that long; every bit pattern is a T.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut copy).cast::<u8>(), size.min(known)) };
    Ok(copy)
}

/// Adds the element's index to an error about an array of the caller.
#[cold]
pub(super) fn in_array(what: &str, index: usize, why: &Error) -> Error {
    invalid(format!("{what}[{index}]: {}", why.message()))
}

/// Copies each element of an array of the caller, which steps by the `size` of its first element, and converts it by
/// `one`.
///
/// # Safety
///
/// `count` elements of the first one's size are readable. The `size` of a later element may be garbage: it is compared
/// with the first one's before any other byte of that element is read.
pub(super) unsafe fn map_array<T: Sized32, U>(
    array: *const T,
    count: usize,
    what: &str,
    one: impl Fn(usize, T) -> Result<U>,
) -> Result<Vec<U>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: `count` is not 0, so at least one element is there.
    let stride = unsafe { size_of_struct(array) }.map_err(|e| in_array(what, 0, &e))?;
    if count > isize::MAX as usize / stride {
        return Err(invalid(format!("{what} has an impossible length ({count}).")));
    }
    let mut out = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the element lies inside the array, for `stride` bytes.
        let element = unsafe {
            let element = array.byte_add(index * stride);
            let size = element.cast::<u32>().read() as usize;
            if size != stride {
                return Err(of_another_size(what, index, size, stride));
            }
            copy_struct(element, stride)
        };
        out.push(one(index, element.map_err(|e| in_array(what, index, &e))?)?);
    }
    Ok(out)
}

#[cold]
fn of_another_size(what: &str, index: usize, size: usize, stride: usize) -> Error {
    invalid(format!("{what}[{index}] has size {size}, the first has {stride}. Give all the same."))
}

/// Copies the elements of an array as `map_array` does, refusing more than `most`.
///
/// # Safety
///
/// The contract of `map_array`.
pub(super) unsafe fn read_array<T: Sized32>(array: *const T, count: usize, most: usize, what: &str) -> Result<Vec<T>> {
    if count > most {
        return Err(invalid(format!("{what} has {count} elements; {most} are the most. Give fewer.")));
    }
    // SAFETY: `map_array` has the same contract as this function.
    unsafe { map_array(array, count, what, |_, element| Ok(element)) }
}

/// Checks an out-struct before the call does its work.
///
/// # Safety
///
/// The contract of `size_of_struct`.
pub(super) unsafe fn check_out_struct<T: Sized32>(pointer: *mut T) -> Result<usize> {
    // SAFETY: `size_of_struct` has the same contract as this function.
    unsafe { size_of_struct(pointer.cast_const()) }
}

/// Fills a struct of the caller as far as it reaches, with zeros after the fields known here; its `size` stays.
///
/// # Safety
///
/// `size` comes from `check_out_struct`, and as many bytes are writable at `pointer`.
#[inline]
pub(super) unsafe fn write_struct<T: Sized32>(pointer: *mut T, size: usize, value: T) {
    let (known, head) = (size_of::<T>(), size_of::<u32>());
    if size == known {
        // SAFETY: `size` bytes are writable; the copy starts after the caller's `size`.
        unsafe {
            let (from, to) = ((&raw const value).cast::<u8>(), pointer.cast::<u8>());
            return std::ptr::copy_nonoverlapping(from.add(head), to.add(head), known - head);
        }
    }
    // SAFETY: `size` bytes are writable; the copy starts after the caller's `size`.
    unsafe {
        let to = pointer.cast::<u8>();
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>().add(head), to.add(head), size.min(known) - head);
        if size > known {
            to.add(known).write_bytes(0, size - known);
        }
    }
}

/// The keys of a get of many.
///
/// # Safety
///
/// The contract: `count` elements are readable, and what they point to, during `'a`.
pub(super) unsafe fn keys_of<'a>(keys: *const watchcore_bytes, count: usize) -> Result<Vec<&'a [u8]>> {
    // SAFETY: the function has the same contract as `slice`.
    let keys = unsafe { slice::<watchcore_bytes>(keys.cast(), count, "keys")? }.unwrap_or_default();
    let key = |(at, key): (usize, &watchcore_bytes)| {
        // SAFETY: the contract: each key is readable for its length.
        unsafe { key.get(format_args!("keys[{at}]"))? }
            .ok_or_else(|| invalid(format!("keys[{at}] is NULL. Give the key to read.")))
    };
    keys.iter().enumerate().map(key).collect()
}

/// Converts a switch that a struct carries as a number.
pub(super) fn switch(value: u32, what: impl Display) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(invalid(format!("{what} is {value}. Give 0 or 1."))),
    }
}
