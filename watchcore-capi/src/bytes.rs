//! Bytes and sized structs that come from the caller.
//!
//! A struct is copied before it is looked at: what the caller changes meanwhile harms nobody. Its `size` says
//! which fields exist for the caller: the others have their default. What lies after the fields known here
//! must be zero, so that an option of a later version is refused, not ignored.
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

    /// The bytes, or `None` where they are absent. `what` they are is written out for an error alone.
    ///
    /// # Safety
    ///
    /// Where `data` is not NULL, `length` bytes must be readable there during `'a`.
    pub(super) unsafe fn get<'a>(self, what: impl Display) -> Result<Option<&'a [u8]>> {
        // SAFETY: the same contract.
        unsafe { slice(self.data, self.length, what) }
    }

    /// The bytes as text, or `None` where they are absent.
    ///
    /// # Safety
    ///
    /// As for `get`.
    pub(super) unsafe fn text<'a>(self, what: impl Display + Copy) -> Result<Option<&'a str>> {
        // SAFETY: the same contract.
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
/// Where `data` is not NULL, `length` elements must be readable there during `'a`.
#[inline]
pub(super) unsafe fn slice<'a, T>(data: *const c_void, length: usize, what: impl Display) -> Result<Option<&'a [T]>> {
    if data.is_null() && length == 0 {
        return Ok(None);
    }
    if data.is_null() || length > isize::MAX as usize / size_of::<T>().max(1) || !data.cast::<T>().is_aligned() {
        return Err(no_slice(data, length, what));
    }
    // SAFETY: not NULL, aligned, readable for `length` elements.
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
    /// What a field is that the caller's struct does not have.
    const DEFAULT: Self;
}

/// No struct of ours comes near; a greater `size` is rubbish.
const LARGEST: usize = 4096;

/// Checks the `size` of a struct of the caller.
///
/// # Safety
///
/// Where `pointer` is not NULL and aligned, a `u32` must be readable there.
unsafe fn size_of_struct<T: Sized32>(pointer: *const T) -> Result<usize> {
    let name = T::NAME;
    if pointer.is_null() {
        return Err(invalid(format!("{name} is NULL. Give a pointer to one.")));
    }
    if !pointer.is_aligned() {
        return Err(invalid(format!("{name} is not aligned to {} bytes.", align_of::<T>())));
    }
    // SAFETY: a `u32` is readable there.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size < align_of::<T>().max(8) || size > LARGEST || !size.is_multiple_of(align_of::<T>()) {
        return Err(invalid(format!(
            "{name} has size {size}; this library's has {}. Initialise it with its _INIT macro.",
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// A copy of a struct of the caller, with the defaults where it has no such field.
///
/// # Safety
///
/// Where `pointer` is not NULL, as many bytes as its `size` says must be readable.
#[inline]
pub(super) unsafe fn read_struct<T: Sized32>(pointer: *const T) -> Result<T> {
    if !pointer.is_null() && pointer.is_aligned() {
        // The caller's is mostly the one that is known here: one copy, of a length that the compiler knows.
        // SAFETY: a `u32` is readable there, and then as many bytes as it says; every bit pattern is a T.
        unsafe {
            if pointer.cast::<u32>().read() as usize == size_of::<T>() {
                return Ok(pointer.read());
            }
        }
    }
    // SAFETY: the same contract.
    unsafe { read_other_struct(pointer) }
}

/// `read_struct` of a struct that is shorter or longer than the one known here, or none.
///
/// # Safety
///
/// As for `read_struct`.
#[cold]
unsafe fn read_other_struct<T: Sized32>(pointer: *const T) -> Result<T> {
    // SAFETY: at least the size is readable, and then as many bytes as it says.
    unsafe { copy_other_struct(pointer, size_of_struct(pointer)?) }
}

/// A copy of a struct of `size` bytes, whatever it says itself.
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
    // SAFETY: the same contract.
    unsafe { copy_other_struct(pointer, size) }
}

/// `copy_struct` of a struct that is shorter or longer than the one known here.
///
/// # Safety
///
/// As for `copy_struct`.
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

/// What is wrong with an element of an array of the caller.
#[cold]
pub(super) fn in_array(what: &str, index: usize, why: &Error) -> Error {
    invalid(format!("{what}[{index}]: {}", why.message()))
}

/// What `one` makes of copies of the elements of an array of the caller, which steps by the `size` of its first element.
///
/// # Safety
///
/// `count` elements of the first one's size are readable. What a later one says of its size may be rubbish: it is compared
/// with the first one's before anything else of that element is read.
pub(super) unsafe fn map_array<T: Sized32, U>(
    array: *const T,
    count: usize,
    what: &str,
    one: impl Fn(usize, T) -> Result<U>,
) -> Result<Vec<U>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: at least one element is there.
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

/// Copies of the elements of an array, as `map_array` reads them. `most`: no more than so many are read.
///
/// # Safety
///
/// As for `map_array`.
pub(super) unsafe fn read_array<T: Sized32>(array: *const T, count: usize, most: usize, what: &str) -> Result<Vec<T>> {
    if count > most {
        return Err(invalid(format!("{what} has {count} elements; {most} are the most. Give fewer.")));
    }
    // SAFETY: the same contract.
    unsafe { map_array(array, count, what, |_, element| Ok(element)) }
}

/// Checks an out-struct before the work is done.
///
/// # Safety
///
/// As for `size_of_struct`.
pub(super) unsafe fn check_out_struct<T: Sized32>(pointer: *mut T) -> Result<usize> {
    // SAFETY: the same contract.
    unsafe { size_of_struct(pointer.cast_const()) }
}

/// Fills a struct of the caller: what it has room for, zero after what is known here; its `size` stays.
///
/// # Safety
///
/// `size` comes from `check_out_struct` and as many bytes are writable at `pointer`.
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

/// A switch that a struct carries as a number.
pub(super) fn switch(value: u32, what: impl Display) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(invalid(format!("{what} is {value}. Give 0 or 1."))),
    }
}
