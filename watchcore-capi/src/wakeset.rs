//! Waiting without blocking: waiters, and wake sets of many subscriptions and waiters with one descriptor.
//!
//! # In the header: Event loops
//!
//! Every wait has a form that does not block: a subscription is polled, and a waiter (for the first listing, a
//! revision, a consistent revision) is tried. A wake set tells when to do so: it has one descriptor for epoll, kqueue,
//! poll or libuv (uv_poll_t), for any number of members, each under a tag of 64 bits, which may be a pointer to the
//! program's own data. A wake set has no timers: event loops have their own.
//!
//! The example below uses epoll: sleep on the descriptor, ask for the next ready member until there is none, and poll
//! each member once. No extra step arms anything: a member is armed by being added and by each poll that returns
//! nothing; a member whose poll left something is returned again; and when no member is ready, watchcore_wakeset_next
//! has armed the descriptor. A loop may also sleep before it has asked for all ready members: until then the descriptor
//! stays readable.
//!
//!     #include <sys/epoll.h>
//!     #include <unistd.h>
//!     #include <watchcore.h>
//!
//!     // Serves the subscriptions that were added to `set` with their own address as the tag, until one of them ends;
//!     // `serve` gets each batch.
//!     static int32_t watch_loop(watchcore_wakeset *set, void (*serve)(const watchcore_batch *),
//!                               watchcore_error *error)
//!     {
//!         struct epoll_event interest = { 0 }, happened;
//!         watchcore_batch batch = WATCHCORE_BATCH_INIT;
//!         int32_t rc = WATCHCORE_OK, fd;
//!         uint32_t found;
//!         uint64_t tag;
//!         int loop = epoll_create1(EPOLL_CLOEXEC);
//!         interest.events = EPOLLIN;
//!         watchcore_wakeset_fd(set, &fd, NULL);
//!         epoll_ctl(loop, EPOLL_CTL_ADD, fd, &interest);
//!         while (rc == WATCHCORE_OK) {
//!             epoll_wait(loop, &happened, 1, -1);
//!             while ((rc = watchcore_wakeset_next(set, &tag, &found, error)) == WATCHCORE_OK && found) {
//!                 rc = watchcore_subscription_poll((watchcore_subscription *)(uintptr_t)tag, 256, &batch, error);
//!                 if (rc == WATCHCORE_OK) {
//!                     serve(&batch);
//!                     watchcore_batch_release(&batch);
//!                 } else if (rc != WATCHCORE_LAGGED) {
//!                     break;
//!                 } // LAGGED is reported once a loss; the next polls give what `on_lag` says.
//!             }
//!         }
//!         close(loop);
//!         return rc;
//!     }
//!
//! Several threads may run such a loop on one set: a member that was returned to one thread is returned to no other
//! before it was polled. To end the loop from another thread, close a subscription (watchcore_subscription_close): its
//! tag is returned, and its poll answers CLOSED.

use super::cache::watchcore_cache;
use super::contract::{frame, free, out_or_null, try_exclusive, try_handle, try_out, try_out_array};
use super::error::{invalid, watchcore_error};
use super::handle::{self, Object, timeout};
use super::subscription::watchcore_subscription;
use watchcore::{Code, Error, Position, Result, Waiter, WakeSet, Want, raw};

/// The first listing is published.
pub const WATCHCORE_WANT_READY: u32 = 1;
/// The cache has `revision`.
pub const WATCHCORE_WANT_REVISION: u32 = 2;
/// The cache has the revision that the source had at the time of this request (one linearizable read).
pub const WATCHCORE_WANT_CONSISTENT: u32 = 3;

/// A single wait. Made by watchcore_waiter_new.
pub struct watchcore_waiter {
    _private: [u8; 0],
}

/// Many subscriptions and waiters with one descriptor. Made by watchcore_wakeset_new.
pub struct watchcore_wakeset {
    _private: [u8; 0],
}

/// Begins a wait that does not block: ask with watchcore_waiter_try, or put the waiter into a wake set.
/// `want`: WATCHCORE_WANT_...; `revision`: for REVISION, else 0; `epoch`: its epoch, 0 for the present one;
/// else 0. If the history was replaced since that epoch, the wait ends with RESYNCED. `*waiter`: the
/// caller's, ended by watchcore_waiter_free; it may outlive the cache. It has no time limit: free it to give
/// up.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT, CLOSED, FUTURE_REVISION (above
/// WATCHCORE_REVISION_MAX).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_waiter_new(
    cache: *const watchcore_cache,
    want: u32,
    revision: u64,
    epoch: u64,
    waiter: *mut *mut watchcore_waiter,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_waiter_new, error, {
        // SAFETY: the contract covers `cache` and `waiter`.
        unsafe { make_waiter(cache, want, revision, epoch, waiter) }
    })
}

/// Checks whether the wait is over: `*done` 1, and then `*revision` and `*epoch` (each may be NULL) are the
/// cache's position; or 0: not yet, and they are not written. If the wait failed, the call returns the code
/// that the blocking form would return. A try that gives `*done` 0 arms a member of a wake set.
/// Never blocks. One thread at a time.
/// Codes: INVALID_ARGUMENT, BUSY, NOT_READY, RESYNCED, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_waiter_try(
    waiter: *mut watchcore_waiter,
    done: *mut u32,
    revision: *mut u64,
    epoch: *mut u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_waiter_try, error, {
        let done = try_out!(done);
        let mut waiter = try_exclusive!(waiter);
        let leaving = waiter.leaving();
        let position = raw::poll_waiter(&mut waiter, leaving)?;
        done.write(position.is_some() as u32);
        if let Some(position) = position {
            out_or_null!(revision).write(position.revision);
            out_or_null!(epoch).write(position.epoch);
        }
        Ok(())
    })
}

/// Frees a waiter; NULL does nothing. It leaves its wake set. Never blocks. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_waiter_free(waiter: *mut watchcore_waiter) {
    free!(watchcore_waiter_free, waiter);
}

/// Makes an empty wake set. `*set`: the caller's, ended by watchcore_wakeset_free. Never blocks. Any thread.
/// Codes: INVALID_ARGUMENT, RESOURCE_EXHAUSTED (no descriptor left).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_new(set: *mut *mut watchcore_wakeset, error: *mut watchcore_error) -> i32 {
    frame!(watchcore_wakeset_new, error, {
        let set = try_out!(set);
        handle::check_process()?;
        let made = WakeSet::new()?;
        // An event loop sleeps on the descriptor first, so the set starts armed: the first ready member makes it
        // readable.
        made.arm();
        set.write(handle::new(made, ()));
        Ok(())
    })
}

/// Puts a subscription into a set under a tag of the caller's choice, and arms it; it leaves the set it was
/// in. Never blocks. The set: any thread, many at once; the subscription: one at a time.
/// Codes: INVALID_ARGUMENT, BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_add_subscription(
    set: *const watchcore_wakeset,
    subscription: *mut watchcore_subscription,
    tag: u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_add_subscription, error, {
        let set = try_handle!(set);
        let mut subscription = try_exclusive!(subscription);
        let leaving = subscription.leaving();
        raw::add_armed(&set, &mut subscription, tag, leaving)
    })
}

/// Puts a waiter into a set under a tag of the caller's choice, and arms it; it leaves the set it was in.
/// Never blocks. The set: any thread, many at once; the waiter: one at a time.
/// Codes: INVALID_ARGUMENT, BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_add_waiter(
    set: *const watchcore_wakeset,
    waiter: *mut watchcore_waiter,
    tag: u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_add_waiter, error, {
        let set = try_handle!(set);
        let mut waiter = try_exclusive!(waiter);
        let leaving = waiter.leaving();
        raw::add_waiter_armed(&set, &mut waiter, tag, leaving)
    })
}

/// Removes a subscription from its set; its tag is not returned any more. (Freeing it does the same.) Never
/// blocks. The set: any thread, many at once; the subscription: one at a time.
/// Codes: INVALID_ARGUMENT (it is not in this set), BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_remove_subscription(
    set: *const watchcore_wakeset,
    subscription: *mut watchcore_subscription,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_remove_subscription, error, {
        let set = try_handle!(set);
        let mut subscription = try_exclusive!(subscription);
        if set.remove(&mut subscription) {
            Ok(())
        } else {
            Err(invalid("the subscription is not in this wake set. Add it first."))
        }
    })
}

/// Removes a waiter from its set; its tag is not returned any more. (Freeing it does the same.)
/// Never blocks. The set: any thread, many at once; the waiter: one at a time.
/// Codes: INVALID_ARGUMENT (it is not in this set), BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_remove_waiter(
    set: *const watchcore_wakeset,
    waiter: *mut watchcore_waiter,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_remove_waiter, error, {
        let set = try_handle!(set);
        let mut waiter = try_exclusive!(waiter);
        if set.remove_waiter(&mut waiter) {
            Ok(())
        } else {
            Err(invalid("the waiter is not in this wake set. Add it first."))
        }
    })
}

/// Returns the next ready member: `*found` 1, and `*tag` is its tag; or 0: no member is ready, and the
/// descriptor becomes readable when one is. Poll (or try) the member once: if something is left, it becomes
/// ready again, and if the poll returns nothing, it is armed. A member that is not polled is not returned
/// again before its next poll. Once a member was removed or freed, its tag is not returned any more, so the
/// tag may be a pointer that is freed with the member.
/// Never blocks. Any thread, many at once: each member goes to one of them. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_next(
    set: *const watchcore_wakeset,
    tag: *mut u64,
    found: *mut u32,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_next, error, {
        let (tag, found) = (try_out!(tag), try_out!(found));
        let set = try_handle!(set);
        let next = raw::next_ready(&set);
        found.write(next.is_some() as u32);
        if let Some(next) = next {
            tag.write(next);
        }
        Ok(())
    })
}

/// Takes up to `capacity` tags of ready members at once; `*count`: how many. 0: none is ready, and the
/// descriptor becomes readable when one is. Ready members beyond `capacity` stay ready. For a program, such
/// as a binding, that passes the tags on to its own consumers: each polls its member until a poll returns
/// nothing, which arms it. Unlike after watchcore_wakeset_next, a poll that returns events does not make such
/// a member ready again. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_take(
    set: *const watchcore_wakeset,
    tags: *mut u64,
    capacity: usize,
    count: *mut usize,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_take, error, {
        let count = try_out!(count);
        let mut tags = try_out_array!(tags, capacity);
        let set = try_handle!(set);
        let mut chunk = [0; 256];
        loop {
            let room = chunk.len().min(tags.room());
            let taken = set.take(&mut chunk[..room]);
            tags.extend(&chunk[..taken]);
            let is_all = taken < room || tags.room() == 0;
            // If no tag was taken, the set is armed, unless a member became ready in between.
            if is_all && (capacity == 0 || tags.filled() > 0 || !set.arm()) {
                break;
            }
        }
        count.write(tags.filled());
        Ok(())
    })
}

/// The set's descriptor, for poll(2), epoll or a runtime's poller: non-blocking, closed on exec. It belongs
/// to the set: do not read, write or close it; valid until watchcore_wakeset_free. Never blocks. Any thread,
/// many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_fd(
    set: *const watchcore_wakeset,
    fd: *mut i32,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_fd, error, {
        let fd = try_out!(fd);
        let number = try_handle!(set).fd();
        fd.write(number);
        Ok(())
    })
}

/// Waits until a member is ready, instead of sleeping on the descriptor. Blocks up to `timeout_ms` (-1: for
/// ever, 0: not at all); only a member ends it early, for example one that is closed. Any thread, many at
/// once; watchcore_wakeset_free may not be called meanwhile. Codes: INVALID_ARGUMENT, TIMEOUT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_wait(
    set: *const watchcore_wakeset,
    timeout_ms: i64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_wait, error, {
        let limit = timeout(timeout_ms)?;
        let set = try_handle!(set);
        if set.wait(limit) {
            Ok(())
        } else {
            Err(Error::new(Code::Timeout, format!("no member was ready within {timeout_ms} ms. Wait again.")))
        }
    })
}

/// Frees a wake set; NULL does nothing. Its descriptor is closed, by a wake-up in progress if there is one.
/// Members that are left continue to work, outside of any set. Never blocks. Any thread; no other call on the
/// set may run or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_free(set: *mut watchcore_wakeset) {
    free!(watchcore_wakeset_free, set);
}

/// # Safety
///
/// The contract.
unsafe fn make_waiter(
    cache: *const watchcore_cache,
    want: u32,
    revision: u64,
    epoch: u64,
    waiter: *mut *mut watchcore_waiter,
) -> Result<()> {
    let waiter = try_out!(waiter);
    let want = match (want, revision, epoch) {
        (WATCHCORE_WANT_READY, 0, 0) => Want::Ready,
        (WATCHCORE_WANT_CONSISTENT, 0, 0) => Want::Consistent,
        (WATCHCORE_WANT_REVISION, ..) => Want::RevisionIn(Position { epoch, revision }),
        (WATCHCORE_WANT_READY | WATCHCORE_WANT_CONSISTENT, ..) => {
            return Err(invalid(format!(
                "revision is {revision} and epoch {epoch}, but only WATCHCORE_WANT_REVISION has them. Give 0."
            )));
        }
        _ => {
            return Err(invalid(format!("want is {want}. Give one of WATCHCORE_WANT_READY, _REVISION, _CONSISTENT.")));
        }
    };
    let made = try_handle!(cache).waiter(want)?;
    waiter.write(handle::new((), made));
    Ok(())
}

impl Object for watchcore_waiter {
    type Shared = ();
    type Exclusive = Waiter;
    const KIND: u32 = 0x5743_0008;
    const NAME: &'static str = "watchcore_waiter";
    fn close(_: &()) {}
}

impl Object for watchcore_wakeset {
    type Shared = WakeSet;
    type Exclusive = ();
    const KIND: u32 = 0x5743_0009;
    const NAME: &'static str = "watchcore_wakeset";
}
