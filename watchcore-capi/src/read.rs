//! Reads of the newest state or of one revision: a key, a range, a count.
//!
//! # In the header: Reads
//!
//! A read answers from one revision, and says which. ANY reads the cache's present state; AT_LEAST waits for a
//! revision, such as that of the program's own write, or of watchcore_cache_consistent_revision; EXACT reads the state
//! at one revision of the window.

use super::batch::{self, watchcore_batch};
use super::bytes::{Sized32, keys_of, watchcore_bytes};
use super::cache::watchcore_cache;
use super::contract::{
    frame, free, out_or_null, read, try_handle, try_out, try_out_array, try_out_struct, try_slice, try_struct,
};
use super::error::{invalid, watchcore_error};
use super::filter::{filter_of, selected, watchcore_filter};
use super::handle::{self, Object, timeout};
use super::key_value::{all_into_c, into_c, watchcore_key_value};
use super::range::{range_of, watchcore_range};
use std::ffi::c_void;
use std::mem::offset_of;
use watchcore::{Error, Page, Position, Read, ReadOptions, Result};

/// The cache's present state; never waits.
pub const WATCHCORE_READ_ANY: u32 = 0;
/// The newest state, at least at `revision`; waits for it.
pub const WATCHCORE_READ_AT_LEAST: u32 = 1;
/// The state at exactly `revision`; waits for a future one.
pub const WATCHCORE_READ_EXACT: u32 = 2;

/// The state to read, a filter for its key-values, and the time to wait for it. NULL means ANY without a filter or a
/// limit.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_read_options {
    /// sizeof(watchcore_read_options).
    pub size: u32,
    /// WATCHCORE_READ_...
    pub mode: u32,
    /// AT_LEAST, EXACT: the revision.
    pub revision: u64,
    /// The longest wait. 0: none; -1: for ever. The _INIT macro sets 3000.
    pub timeout_ms: i64,
    /// watchcore_cache_list: the most items of the page, 0 for all. Else 0.
    pub limit: u64,
    /// AT_LEAST, EXACT: the epoch of `revision`; 0: unchecked.
    pub epoch: u64,
    /// A label selector: see watchcore_filter. Absent or empty: everything.
    pub labels: watchcore_bytes,
    /// A field selector: see watchcore_filter. Absent or empty: everything.
    pub fields: watchcore_bytes,
    /// watchcore_cache_list: continue after the page that gave this token (UTF-8), at the same revision: with the same
    /// range and filter, and mode ANY. Absent: from the start. Else absent.
    pub continue_token: watchcore_bytes,
    /// 1: the read returns nothing.
    pub nothing: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_read_options {
    const NAME: &'static str = "watchcore_read_options";
    const DEFAULT: Self = watchcore_read_options {
        size: size_of::<Self>() as u32,
        mode: WATCHCORE_READ_ANY,
        revision: 0,
        timeout_ms: 3000,
        limit: 0,
        epoch: 0,
        labels: watchcore_bytes::ABSENT,
        fields: watchcore_bytes::ABSENT,
        continue_token: watchcore_bytes::ABSENT,
        nothing: 0,
        reserved: 0,
    };
}

/// The answer of watchcore_cache_get.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_answer {
    /// sizeof(watchcore_answer).
    pub size: u32,
    /// 1: `kv` is the key-value; 0: the key was absent at `revision`.
    pub found: u32,
    /// The revision of the state that answered.
    pub revision: u64,
    /// The epoch of that state.
    pub epoch: u64,
    /// The caller's, released by watchcore_key_value_release; NULL if `found` is 0.
    pub kv: *const watchcore_key_value,
}

// SAFETY: repr(C), starts with the size; numbers and a pointer.
unsafe impl Sized32 for watchcore_answer {
    const NAME: &'static str = "watchcore_answer";
    const DEFAULT: Self =
        watchcore_answer { size: size_of::<Self>() as u32, found: 0, revision: 0, epoch: 0, kv: std::ptr::null() };
}

/// Some key-values of one revision. Made by watchcore_cache_list. It keeps them until watchcore_page_free, but no part
/// of the log outside the window. Copy items that are needed for long.
pub struct watchcore_page {
    _private: [u8; 0],
}

/// A text that belongs to the caller. Made by watchcore_cache_list.
pub struct watchcore_text {
    _private: [u8; 0],
}

/// Reads one key. An absent key is no error: `found` is 0, and `revision` is the revision of the answer. A
/// key-value that the options' filter excludes is absent.
/// `key`: a key inside the cache's prefix. `read`: NULL for ANY. `answer`: the caller's struct; release its
/// `kv` with watchcore_key_value_release.
/// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
/// Codes: INVALID_ARGUMENT, NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_get(
    cache: *const watchcore_cache,
    key: *const c_void,
    key_length: usize,
    read: *const watchcore_read_options,
    answer: *mut watchcore_answer,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_get, error, {
        let answer = try_out_struct!(answer);
        let Some(key) = try_slice!(key, key_length) else {
            return Err(invalid("key is NULL. Give the key to read."));
        };
        let size = answer.size();
        // A later header's struct is longer: what a caller of this one has room for stays enough.
        if size < offset_of!(watchcore_answer, kv) + size_of::<*const watchcore_key_value>() {
            return Err(invalid(format!(
                "watchcore_answer has size {size}, without room for the key-value. Initialise it with its _INIT macro."
            )));
        }
        let found = if read.is_null() {
            // The common case builds no options.
            try_handle!(cache).get(key, Read::Any)?
        } else {
            // SAFETY: the contract: `read` is not NULL, so it is the caller's struct.
            let options = unsafe { read_options(read, false)? };
            let cache = try_handle!(cache);
            if options.waits {
                // Waits on a clone, because the handle may be freed meanwhile.
                cache.leave().get_with(key, &options.core)?
            } else {
                cache.get_with(key, &options.core)?
            }
        };
        let value = watchcore_answer {
            found: found.kv.is_some() as u32,
            revision: found.revision,
            epoch: found.epoch,
            kv: found.kv.map_or(std::ptr::null(), into_c),
            ..watchcore_answer::DEFAULT
        };
        answer.write(value);
        Ok(())
    })
}

/// Reads many keys of one state, in less time than as many calls of watchcore_cache_get: with many objects in a third.
/// `keys`, `count`: the keys, each inside the cache's prefix; if one is not, none is read. A key may occur twice. 0 keys
/// are no error. `read`: NULL for ANY. `kvs`: the caller's array of `count` pointers; kvs[i] is the key-value of keys[i],
/// or NULL if that key is absent at `*revision` or excluded by the options' filter. Release all of them at once with
/// watchcore_key_values_release, or each with watchcore_key_value_release. `*revision`, `*epoch`: the position of the
/// state that answered; each may be NULL. Nothing is written on failure. Takes time proportional to `count`.
///
///     const watchcore_key_value *kvs[2];
///     watchcore_bytes keys[2] = {watchcore_bytes_from_string("/a"), watchcore_bytes_from_string("/b")};
///     if (watchcore_cache_get_many(cache, keys, 2, NULL, kvs, NULL, NULL, &error) == WATCHCORE_OK) {
///         printf("/b is %s\n", kvs[1] != NULL ? "there" : "absent");
///         watchcore_key_values_release(kvs, 2);
///     }
///
/// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
/// Codes: INVALID_ARGUMENT, NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_get_many(
    cache: *const watchcore_cache,
    keys: *const watchcore_bytes,
    count: usize,
    read: *const watchcore_read_options,
    kvs: *mut *const watchcore_key_value,
    revision: *mut u64,
    epoch: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_get_many, error, {
        // SAFETY: the contract covers the array of keys and what it points to, and the options.
        let (keys, options) = unsafe { (keys_of(keys, count)?, read_options(read, false)?) };
        let kvs = try_out_array!(kvs, count);
        let cache = try_handle!(cache);
        let found = if options.waits {
            cache.leave().get_many_with(&keys, &options.core)?
        } else {
            cache.get_many_with(&keys, &options.core)?
        };
        out_or_null!(revision).write(found.revision);
        out_or_null!(epoch).write(found.epoch);
        all_into_c(found.kvs, kvs);
        Ok(())
    })
}

/// Reads the key-values of a range in key order. With a limit, page by page: give the token of the last page
/// (watchcore_page_info.continue_token) as `read->continue_token`; later pages are of exactly the revision of
/// the first. If that revision has left the window meanwhile: COMPACTED; and `*token` is then another token,
/// which continues at the same key in the newest state: the pages before are of an older revision.
/// `range`: NULL for all. `read`: NULL for ANY without a limit. `*page`: the caller's, ended by
/// watchcore_page_free. `*token` (`token` may be NULL): set it to NULL before; it is written only with that
/// COMPACTED, and is the caller's, ended by watchcore_text_free.
/// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
/// Codes: INVALID_ARGUMENT (also for a token that is damaged, or of another cache, range or filter),
/// NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_list(
    cache: *const watchcore_cache,
    range: *const watchcore_range,
    read: *const watchcore_read_options,
    page: *mut *mut watchcore_page,
    token: *mut *mut watchcore_text,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_list, error, {
        let token = if token.is_null() { None } else { Some(try_out!(token)) };
        // SAFETY: the contract covers all of these pointers.
        let listed = unsafe { list(cache, range, read, page) };
        if let (Some(token), Some(text)) = (token, listed.as_ref().err().and_then(Error::continue_token)) {
            token.write(handle::new(text.into(), ()));
        }
        listed
    })
}

/// # Safety
///
/// The contract.
unsafe fn list(
    cache: *const watchcore_cache,
    range: *const watchcore_range,
    read: *const watchcore_read_options,
    page: *mut *mut watchcore_page,
) -> Result<()> {
    let page = try_out!(page);
    // SAFETY: the contract covers both structs and everything that they point to.
    let (range, options) = unsafe { (range_of(range)?, read_options(read, true)?) };
    let cache = try_handle!(cache);
    let found = if options.waits {
        cache.leave().list_with(&range, &options.core)?
    } else {
        cache.list_with(&range, &options.core)?
    };
    page.write(handle::new(found, ()));
    Ok(())
}

/// The bytes of a text (UTF-8). They belong to the text and are valid until it is freed; absent for NULL.
/// Never blocks. Any thread, many at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_text_get(text: *const watchcore_text) -> watchcore_bytes {
    // The bytes do not move until the handle is freed.
    read!(watchcore_text_get, text, watchcore_bytes::ABSENT, |text| bytes_of(&text))
}

/// Frees a text; NULL does nothing. Never blocks. Any thread, even after the cache was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_text_free(text: *mut watchcore_text) {
    free!(watchcore_text_free, text);
}

/// Counts the key-values of a range that the options' filter lets pass, in time proportional to the range.
/// `range`: NULL for all. `read`: NULL for ANY. `*count`: the number. `*revision`, `*epoch`: the position of
/// the counted state; each may be NULL.
/// Blocks up to `read->timeout_ms` if the revision is not there yet; ANY never. Any thread, many at once.
/// Codes: INVALID_ARGUMENT, NOT_READY, COMPACTED, FUTURE_REVISION, RESYNCED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_count(
    cache: *const watchcore_cache,
    range: *const watchcore_range,
    read: *const watchcore_read_options,
    count: *mut u64,
    revision: *mut u64,
    epoch: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_count, error, {
        let count = try_out!(count);
        // SAFETY: the contract covers both structs and everything that they point to.
        let (range, options) = unsafe { (range_of(range)?, read_options(read, false)?) };
        let cache = try_handle!(cache);
        let found = if options.waits {
            cache.leave().count_with(&range, &options.core)?
        } else {
            cache.count_with(&range, &options.core)?
        };
        count.write(found.count);
        out_or_null!(revision).write(found.revision);
        out_or_null!(epoch).write(found.epoch);
        Ok(())
    })
}

/// The net changes between the states at two revisions: at most one event per key, in key order, ADDED,
/// MODIFIED or DELETED relative to the key at `from`, with the revision of its own newest change; `prev_kv`
/// is the key-value at `from`. An object that entered the filter or left it meanwhile is ADDED or DELETED.
/// `from_epoch`, `to_epoch`: the epochs of the revisions, 0 for unchecked. `filter`: NULL for everything.
/// `batch`: the caller's struct, overwritten on success: release its previous content first, with
/// watchcore_batch_release. It has all events, and its position is `to`.
/// Never blocks; takes time proportional to the filter's range. Any thread, many at once.
/// Codes: INVALID_ARGUMENT (also if `to` is before `from`), NOT_READY, COMPACTED (below the window),
/// FUTURE_REVISION (above the cache's revision).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_cache_diff(
    cache: *const watchcore_cache,
    from: u64,
    from_epoch: u64,
    to: u64,
    to_epoch: u64,
    filter: *const watchcore_filter,
    batch: *mut watchcore_batch,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_cache_diff, error, {
        let batch = try_out!(batch);
        // SAFETY: the contract covers `filter` and everything that it points to.
        let filter = unsafe { filter_of(filter)? };
        let cache = try_handle!(cache);
        let from = Position { epoch: from_epoch, revision: from };
        let to = Position { epoch: to_epoch, revision: to };
        let found = cache.diff(from, to, &filter)?;
        batch.write(batch::into_c(found));
        Ok(())
    })
}

/// The properties of a page.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_page_info {
    /// sizeof(watchcore_page_info).
    pub size: u32,
    /// 1: keys of the range remain after the last one that was read, whether the filter lets them pass or not.
    pub more: u32,
    /// The number of items.
    pub count: usize,
    /// How many keys of the range remain after the page's last item; 0 if the read had a selector, because they are not
    /// counted then.
    pub remaining: u64,
    /// The revision of the state that the page was read from.
    pub revision: u64,
    /// The epoch of that state.
    pub epoch: u64,
    /// The token of the next page (UTF-8), for watchcore_read_options.continue_token; absent if there is no next page.
    /// It works in another process too, while the page's revision is in the window there. The bytes belong to the page
    /// and are valid until it is freed: copy them to keep them.
    pub continue_token: watchcore_bytes,
}

// SAFETY: repr(C), starts with the size; numbers and a pointer.
unsafe impl Sized32 for watchcore_page_info {
    const NAME: &'static str = "watchcore_page_info";
    const DEFAULT: Self = watchcore_page_info {
        size: size_of::<Self>() as u32,
        more: 0,
        count: 0,
        remaining: 0,
        revision: 0,
        epoch: 0,
        continue_token: watchcore_bytes::ABSENT,
    };
}

/// The properties of a page: the number of its items, the state that it was read from, and what follows it.
/// `info`: the caller's struct. Never blocks, O(1). Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_page_describe(
    page: *const watchcore_page,
    info: *mut watchcore_page_info,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_page_describe, error, {
        let info = try_out_struct!(info);
        let page = try_handle!(page);
        let value = watchcore_page_info {
            more: u32::from(page.more()),
            count: page.len(),
            remaining: page.remaining(),
            revision: page.revision(),
            epoch: page.epoch(),
            // The bytes do not move until the handle is freed.
            continue_token: page.continue_token().map_or(watchcore_bytes::ABSENT, bytes_of),
            ..watchcore_page_info::DEFAULT
        };
        info.write(value);
        Ok(())
    })
}

/// An item of a page in key order; NULL after the last. It belongs to the page and is valid until the page is
/// freed. Never blocks. Any thread, many at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_page_item(page: *const watchcore_page, index: usize) -> *const watchcore_key_value {
    read!(watchcore_page_item, page, std::ptr::null(), |page| {
        items(&page).get(index).copied().unwrap_or(std::ptr::null())
    })
}

/// All items of a page at once: an array of as many pointers as watchcore_page_info.count says; NULL for NULL
/// and for an empty page. The array belongs to the page and is valid until the page is freed. Never blocks.
/// Any thread, many at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_page_items(page: *const watchcore_page) -> *const *const watchcore_key_value {
    read!(watchcore_page_items, page, std::ptr::null(), |page| {
        let items = items(&page);
        // An empty slice of Rust points to address 8, and Go would abort on that pointer, as it does for an empty text.
        if items.is_empty() { std::ptr::null() } else { items.as_ptr() }
    })
}

/// Frees a page, and its items with it; NULL does nothing. Never blocks. Any thread, even after the cache was
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_page_free(page: *mut watchcore_page) {
    free!(watchcore_page_free, page);
}

impl Object for watchcore_page {
    type Shared = Page;
    type Exclusive = ();
    const KIND: u32 = 0x5743_0006;
    const NAME: &'static str = "watchcore_page";
}

impl Object for watchcore_text {
    type Shared = Box<str>;
    type Exclusive = ();
    const KIND: u32 = 0x5743_000a;
    const NAME: &'static str = "watchcore_text";
}

/// The bytes of a text for C.
pub(super) fn bytes_of(text: &str) -> watchcore_bytes {
    // An empty text of Rust may point to address 1. Go takes that for a damaged pointer, and aborts the program when it
    // moves a stack that holds it.
    let data = if text.is_empty() { c"".as_ptr().cast() } else { text.as_ptr().cast() };
    watchcore_bytes { data, length: text.len() }
}

/// The items of a page for C.
fn items(page: &Page) -> &[*const watchcore_key_value] {
    let items = page.items();
    // SAFETY: a `KeyValue` is one pointer to the struct that C sees (`into_c` hands out that pointer).
    unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), items.len()) }
}

/// The options of a read for the core.
struct CoreRead {
    core: ReadOptions,
    /// Whether the read may wait for its revision.
    waits: bool,
}

/// `is_list`: whether the options are of watchcore_cache_list, which has members that other reads lack.
///
/// # Safety
///
/// The contract.
unsafe fn read_options(read: *const watchcore_read_options, is_list: bool) -> Result<CoreRead> {
    if read.is_null() {
        return Ok(CoreRead { core: ReadOptions::default(), waits: false });
    }
    let options = try_struct!(read);
    if options.limit != 0 && !is_list {
        return Err(invalid(format!(
            "read.limit is {}, but only watchcore_cache_list has one. Give 0.",
            options.limit
        )));
    }
    if options.reserved != 0 {
        return Err(invalid(format!("read.reserved is {}. Give 0.", options.reserved)));
    }
    // SAFETY: the contract: the texts in the options are readable for their lengths.
    let (token, filter) = unsafe {
        (
            options.continue_token.text("read.continue_token")?,
            selected(options.labels, options.fields, options.nothing, "read")?,
        )
    };
    if token.is_some() && !is_list {
        return Err(invalid("read.continue_token is set, but only watchcore_cache_list has one. Leave it absent."));
    }
    let asked = Position { epoch: options.epoch, revision: options.revision };
    let mode = match options.mode {
        WATCHCORE_READ_ANY if options.revision != 0 => {
            return Err(invalid(format!(
                "read.revision is {}, but WATCHCORE_READ_ANY has none. Give 0.",
                options.revision
            )));
        }
        WATCHCORE_READ_ANY if options.epoch != 0 => {
            return Err(invalid(format!("read.epoch is {}, but WATCHCORE_READ_ANY has none. Give 0.", options.epoch)));
        }
        WATCHCORE_READ_ANY => Read::Any,
        WATCHCORE_READ_AT_LEAST => Read::AtLeastIn(asked),
        WATCHCORE_READ_EXACT => Read::ExactIn(asked),
        other => {
            return Err(invalid(format!("read.mode is {other}. Give one of WATCHCORE_READ_ANY, _AT_LEAST, _EXACT.")));
        }
    };
    let mut core = ReadOptions::new(mode)
        .filter(filter)
        .limit(usize::try_from(options.limit).unwrap_or(usize::MAX))
        .timeout(timeout(options.timeout_ms)?);
    if let Some(token) = token {
        core = core.continue_from(token);
    }
    Ok(CoreRead { core, waits: mode != Read::Any || token.is_some() })
}
