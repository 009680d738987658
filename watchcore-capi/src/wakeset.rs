//! Waiting without blocking: waiters, and wake sets of many subscriptions and waiters with one descriptor.
//!
//! # In the header: Event loops
//!
//! Every wait has a form that does not block: a subscription is polled, and a waiter (for the first listing, a revision, a
//! consistent revision) is tried. A wake set says when: it has one descriptor for epoll, kqueue, poll or libuv (uv_poll_t),
//! for any number of members, each under a tag of 64 bits, which may be a pointer to what the program has for it. There are
//! no timers in it: a loop has its own.
//!
//! A loop with epoll. A member is armed when it is added, and again whenever it had nothing; the set, before sleeping.
//!
//!     #include <sys/epoll.h>
//!     #include <unistd.h>
//!     #include <watchcore.h>
//!
//!     // Serves the subscriptions that were added to `set` with their own address as the tag, and armed, until
//!     // one of them ends; `serve` gets each batch.
//!     int32_t watch_loop(watchcore_wakeset *set, void (*serve)(const watchcore_batch *), watchcore_error *error);
//!     int32_t watch_loop(watchcore_wakeset *set, void (*serve)(const watchcore_batch *), watchcore_error *error)
//!     {
//!         struct epoll_event interest = { 0 }, happened;
//!         int32_t rc = WATCHCORE_OK, fd;
//!         int loop = epoll_create1(EPOLL_CLOEXEC);
//!         interest.events = EPOLLIN;
//!         watchcore_wakeset_fd(set, &fd, NULL);
//!         epoll_ctl(loop, EPOLL_CTL_ADD, fd, &interest);
//!         while (rc == WATCHCORE_OK) {
//!             uint64_t tags[64];
//!             uint32_t ready = 0;
//!             size_t count = 0, i;
//!             watchcore_wakeset_take(set, tags, 64, &count, NULL);
//!             for (i = 0; i < count && rc == WATCHCORE_OK; i++) {
//!                 watchcore_subscription *subscription = (watchcore_subscription *)(uintptr_t)tags[i];
//!                 watchcore_batch batch = WATCHCORE_BATCH_INIT;
//!                 rc = watchcore_subscription_poll(subscription, 256, &batch, error);
//!                 if (rc == WATCHCORE_OK) {
//!                     serve(&batch);
//!                     // Armed with something to come, it is listed at once.
//!                     rc = watchcore_subscription_arm(subscription, &ready, error);
//!                 }
//!                 watchcore_batch_release(&batch);
//!             }
//!             if (count == 0 && watchcore_wakeset_arm(set, &ready, NULL) == WATCHCORE_OK && !ready) {
//!                 epoll_wait(loop, &happened, 1, -1);
//!             }
//!         }
//!         close(loop);
//!         return rc;
//!     }
//!
//! Several threads may run such a loop on one set: each tag goes to one of them. To end it from another thread, close the
//! subscription (watchcore_subscription_close): its tag is listed, and its poll answers CLOSED.

use super::cache::watchcore_cache;
use super::contract::{frame, free, out_or_null, try_handle, try_out, try_out_array, try_own};
use super::error::{invalid, watchcore_error};
use super::handle::{self, Object, timeout};
use super::subscription::watchcore_subscription;
use watchcore::{Code, Error, Position, Result, Waiter, WakeSet, Want};

/// The first listing is published.
pub const WATCHCORE_WANT_READY: u32 = 1;
/// The cache has `revision`.
pub const WATCHCORE_WANT_REVISION: u32 = 2;
/// The cache has what the source had when this was asked (one linearizable read).
pub const WATCHCORE_WANT_CONSISTENT: u32 = 3;

/// Something to wait for, once. Made by watchcore_waiter_new.
pub struct watchcore_waiter {
    _private: [u8; 0],
}

/// Many subscriptions and waiters with one descriptor. Made by watchcore_wakeset_new.
pub struct watchcore_wakeset {
    _private: [u8; 0],
}

/// Begins to wait for something without blocking: ask with watchcore_waiter_try, or put it into a wake set.
/// `want`: WATCHCORE_WANT_...; `revision`: for REVISION, else 0; `epoch`: its epoch, 0 for the present one; else 0. Where
/// the history was replaced since then, the wait ends with RESYNCED. `*waiter`: the caller's, ended by
/// watchcore_waiter_free; it may outlive the cache. It has no time limit: free it when its time is over.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT, CLOSED.
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
        // SAFETY: the contract.
        unsafe { make_waiter(cache, want, revision, epoch, waiter) }
    })
}

/// Asks whether it has come: `*done` 1, and then `*revision` and `*epoch` (each may be NULL) are the cache's
/// position; or 0: not yet, and they are not written. An error of the wait is the code that the waiting form
/// would answer. It ends the arming in a wake set: after `*done` 0, call watchcore_waiter_arm again to be woken.
/// Never blocks. One thread at a time.
/// Codes: INVALID_ARGUMENT, BUSY, CLOSED, RESYNCED, UNAVAILABLE.
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
        let position = try_own!(waiter).poll()?;
        done.write(position.is_some() as u32);
        if let Some(position) = position {
            out_or_null!(revision).write(position.revision);
            out_or_null!(epoch).write(position.epoch);
        }
        Ok(())
    })
}

/// Arms a member of a wake set: `*ready` 0: its tag will be listed, unless it is tried before; 1: it has come (or
/// failed), try it; its tag is listed, too. Arm again whenever watchcore_waiter_try gave `*done` 0. Never blocks. One thread at a time. Codes: INVALID_ARGUMENT (it is in no set), BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_waiter_arm(
    waiter: *mut watchcore_waiter,
    ready: *mut u32,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_waiter_arm, error, {
        let ready = try_out!(ready);
        let now = try_own!(waiter).arm()?;
        ready.write(now as u32);
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
///
/// How to use it: add members under your own tags and arm each; then in a loop: take the tags, serve each
/// member until a poll gives nothing, arm it again; when nothing is left, watchcore_wakeset_arm: 1 means
/// something came meanwhile, 0 means sleep in poll(2), epoll or the like until the descriptor is readable.
/// Several threads may do so with one set: each tag goes to one of them.
/// Never read or write the descriptor: it is a hint, the set empties it when it is armed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_new(set: *mut *mut watchcore_wakeset, error: *mut watchcore_error) -> i32 {
    frame!(watchcore_wakeset_new, error, {
        let set = try_out!(set);
        handle::check_process()?;
        let made = WakeSet::new()?;
        set.write(handle::new(made, ()));
        Ok(())
    })
}

/// Puts a subscription into a set under a tag of the caller's choice; it leaves the set it was in. Arm it next.
/// Never blocks. The set: any thread, many at once; the subscription: one at a time.
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
        let mut subscription = try_own!(subscription);
        set.add(&mut subscription, tag)
    })
}

/// Puts a waiter into a set under a tag of the caller's choice; it leaves the set it was in. Arm it next.
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
        let mut waiter = try_own!(waiter);
        set.add_waiter(&mut waiter, tag)
    })
}

/// Takes a subscription out of its set; a tag of it that is listed already is dropped. (Freeing it does the
/// same.) Never blocks. The set: any thread, many at once; the subscription: one at a time.
/// Codes: INVALID_ARGUMENT (it is not in this set), BUSY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_remove_subscription(
    set: *const watchcore_wakeset,
    subscription: *mut watchcore_subscription,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_remove_subscription, error, {
        let set = try_handle!(set);
        let mut subscription = try_own!(subscription);
        if set.remove(&mut subscription) {
            Ok(())
        } else {
            Err(invalid("the subscription is not in this wake set. Add it first."))
        }
    })
}

/// Takes a waiter out of its set; a tag of it that is listed already is dropped. (Freeing it does the same.)
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
        let mut waiter = try_own!(waiter);
        if set.remove_waiter(&mut waiter) {
            Ok(())
        } else {
            Err(invalid("the waiter is not in this wake set. Add it first."))
        }
    })
}

/// Arms the set: `*ready` 0: it is armed, the descriptor becomes readable when a tag is listed; 1: tags are listed, and it
/// is not armed. Take them then, and arm it again before you sleep, also where there was none to take: a member that was
/// listed may have left the set meanwhile. Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_wakeset_arm(
    set: *const watchcore_wakeset,
    ready: *mut u32,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_wakeset_arm, error, {
        let ready = try_out!(ready);
        let now = try_handle!(set).arm();
        ready.write(now as u32);
        Ok(())
    })
}

/// Takes up to `capacity` tags of members that are ready off the list; `*count`: how many. What there was no room
/// for stays listed. A member is listed at most once until it is taken, however often it was armed, and not any more
/// once it was removed or freed: a tag may be a pointer that is freed with its member.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
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
            if taken < room || tags.room() == 0 {
                break;
            }
        }
        count.write(tags.filled());
        Ok(())
    })
}

/// The set's descriptor, for poll(2), epoll or a runtime's poller: non-blocking, closed on exec. The set's: do
/// not read, write or close it; valid until watchcore_wakeset_free. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT.
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

/// Waits until a tag is listed; it arms the set itself.
/// Blocks up to `timeout_ms` (-1: for ever, 0: not at all). Any thread, many at once; watchcore_wakeset_free
/// may not be called meanwhile. Codes: INVALID_ARGUMENT, TIMEOUT.
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

/// Frees a wake set; NULL does nothing. Its descriptor is closed, by a wake-up in progress if there is one, also
/// where it has members: they stay what they are, outside of any set. Never blocks. Any thread; no other call on the set may run or
/// follow.
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
    type Own = Waiter;
    const KIND: u32 = 0x5743_0008;
    const NAME: &'static str = "watchcore_waiter";
    fn close(_: &()) {}
}

impl Object for watchcore_wakeset {
    type Shared = WakeSet;
    type Own = ();
    const KIND: u32 = 0x5743_0009;
    const NAME: &'static str = "watchcore_wakeset";
}
