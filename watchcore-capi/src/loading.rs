//! A first listing that comes in pieces.

use super::contract::{frame, free, try_exclusive, try_out};
use super::error::{invalid, watchcore_error};
use super::handle::{self, Object};
use super::writer::{records_of, watchcore_change, watchcore_writer};
use watchcore::{Error, Loading};

/// A first listing in progress, in pieces. Made by watchcore_loading_new.
pub struct watchcore_loading {
    _private: [u8; 0],
}

impl Object for watchcore_loading {
    type Shared = ();
    /// `None` once `watchcore_loading_finish` has consumed it.
    type Exclusive = Option<Loading>;
    const KIND: u32 = 0x5743_000c;
    const NAME: &'static str = "watchcore_loading";
}

#[cold]
fn spent() -> Error {
    invalid("loading is spent: watchcore_loading_finish was called. Free it; watchcore_loading_new makes another.")
}

/// Begins a first listing that comes in pieces: the key-values of each watchcore_loading_add are copied, and
/// may be freed before the next call. The listing is invisible before watchcore_loading_finish. Only on a
/// cache made with `expect_load`. `*loading`: the caller's, ended by watchcore_loading_free. It keeps the
/// cache's memory, not its writer: a writer that is made later may continue it.
/// Never blocks. One thread at a time. Codes: INVALID_ARGUMENT, OUT_OF_ORDER, BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_loading_new(
    writer: *mut watchcore_writer,
    revision: u64,
    loading: *mut *mut watchcore_loading,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_loading_new, error, {
        let loading = try_out!(loading);
        let made = try_exclusive!(writer).begin_load(revision)?;
        loading.write(handle::new((), Some(made)));
        Ok(())
    })
}

/// Adds key-values to a listing, in any order, each key once. `writer`: a writer of the same cache.
/// `changes`: `count` elements (op PUT_EXACT); copied. After an error that names a key, the elements before
/// it are part of the listing; after any other nothing has changed.
/// Never blocks, but takes time in proportion to `count`. One thread at a time, also for the writer. Codes:
/// INVALID_ARGUMENT (also if the listing was finished, or is of another cache), BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_loading_add(
    loading: *mut watchcore_loading,
    writer: *mut watchcore_writer,
    changes: *const watchcore_change,
    count: usize,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_loading_add, error, {
        let mut loading = try_exclusive!(loading);
        let mut writer = try_exclusive!(writer);
        let listing = loading.as_mut().ok_or_else(spent)?;
        // SAFETY: the contract: `changes` has `count` elements.
        writer.load_more(listing, unsafe { records_of(changes, count)? })
    })
}

/// Publishes a listing and makes the cache ready. `writer`: a writer of the same cache. On an error the cache
/// has not changed. After the call the loading is spent and can only be freed, unless a handle was refused or
/// is in use. Never blocks, but takes time in proportion to the listing. One thread at a time, also for the
/// writer. Codes: INVALID_ARGUMENT (a key twice; finished before; another cache), OUT_OF_ORDER (the cache has
/// its listing), BUSY, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_loading_finish(
    loading: *mut watchcore_loading,
    writer: *mut watchcore_writer,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_loading_finish, error, {
        let mut loading = try_exclusive!(loading);
        let mut writer = try_exclusive!(writer);
        let listing = loading.take().ok_or_else(spent)?;
        writer.finish_load(listing)
    })
}

/// Frees a loading; NULL does nothing. An unfinished listing is discarded, and the cache is unchanged. Never
/// blocks. Any thread, even while another one is inside a call (which then frees it on leaving).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_loading_free(loading: *mut watchcore_loading) {
    free!(watchcore_loading_free, loading);
}
