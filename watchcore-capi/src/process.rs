//! The library as a whole: its versions, and its shutdown.
//!
//! # In the header: The library
//!
//! The library needs no initialisation. Its threads are started with the first cache: one that wakes consumers, one
//! that frees memory, and one for each feeder, all with all signals blocked. A program need not end them before it
//! exits.

use super::cache::watchcore_cache;
use super::contract::frame;
use super::error::watchcore_error;
use super::feeder::watchcore_feeder;
use super::frame::{Fun, answer};
use super::handle::{check_process, living, timeout};
use super::loading::watchcore_loading;
use super::log;
use super::read::watchcore_page;
use super::snapshot::{watchcore_iterator, watchcore_snapshot};
use super::subscription::watchcore_subscription;
use super::wakeset::watchcore_waiter;
use super::writer::watchcore_writer;
use std::ffi::c_char;
use watchcore::{Code, Error, Result};

/// The library's version, such as "1.2.3". NUL-terminated, static, never freed. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_version() -> *const c_char {
    let version = concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast();
    answer(Fun::watchcore_version, version, || version)
}

/// The number of the binary interface: the one in the shared library's soname. It changes only when a program
/// compiled against an older header would break. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn watchcore_abi_version() -> u32 {
    answer(Fun::watchcore_abi_version, 0, || 0)
}

/// Ends the library's threads, and frees what the library holds. A program that just exits needs no such
/// call: it is for tools that look for leftovers, such as a leak checker, or a host of plug-ins.
///
/// Free every handle that keeps a cache before: caches, writers, loadings, feeders, subscriptions, waiters,
/// snapshots, pages, iterators. While there is one, the answer is BUSY at once, and the message says how many
/// of which kind. Batches, key-values, texts, lists and wake sets may stay: they remain valid until they are
/// released. After OK, no thread of the library is left. On an error everything is as it was. The function
/// may be called again, and then has nothing to do; also from an atexit handler; and a cache that is made
/// afterwards starts the threads again. Valgrind then finds nothing, reachable or not, once the threads that
/// called the library have ended, except for the few blocks that watchcore.supp names (which `make install`
/// installs).
///
/// Blocks until freed memory is returned and the threads have ended, up to `timeout_ms` (-1: for ever, 0: not
/// at all). Any thread, but not from inside the log function. Codes: INVALID_ARGUMENT, BUSY (also if another
/// thread is inside this function, and inside the log function), TIMEOUT (the log function has not returned,
/// or a feeder still looks up a name: call it again).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_shutdown(timeout_ms: i64, error: *mut watchcore_error) -> i32 {
    frame!(watchcore_shutdown, error, {
        let timeout = timeout(timeout_ms)?;
        check_process()?;
        if log::is_inside() {
            return Err(Error::new(
                Code::Busy,
                "watchcore_shutdown was called by the log function: it would wait for itself. Call it outside of that function.",
            ));
        }
        all_freed()?;
        watchcore::shutdown(timeout).map_err(|why| match why.code() {
            Code::Timeout => Error::new(
                Code::Timeout,
                format!(
                    "watchcore_shutdown: the library's threads did not end within {timeout_ms} ms. The log function has not returned, a name is being looked up, or much is being freed: call it again."
                ),
            ),
            _ => why,
        })
    })
}

/// Refuses while a handle keeps a cache.
fn all_freed() -> Result<()> {
    let kinds = [
        living::<watchcore_cache>(),
        living::<watchcore_writer>(),
        living::<watchcore_loading>(),
        living::<watchcore_feeder>(),
        living::<watchcore_subscription>(),
        living::<watchcore_waiter>(),
        living::<watchcore_snapshot>(),
        living::<watchcore_page>(),
        living::<watchcore_iterator>(),
    ];
    let left: Vec<String> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    if left.is_empty() {
        return Ok(());
    }
    let left = left.join(", ");
    Err(Error::new(Code::Busy, format!("watchcore_shutdown: not freed yet: {left}. Free them first.")))
}
