//! The open subscriptions of a cache, each as it was when they were listed.

use super::bytes::{Sized32, watchcore_bytes};
use super::cache::watchcore_cache;
use super::contract::{frame, free, read, try_handle, try_out, try_out_struct};
use super::error::{invalid, watchcore_error};
use super::handle::{self, Object};
use super::read::bytes_of;
use super::status::milliseconds;
use super::subscription::{WATCHCORE_READ_PATH_CHAIN, WATCHCORE_READ_PATH_SCAN};
use watchcore::{ReadPath, SubscriptionInfo, SubscriptionState};

/// The cache has no listing yet; the subscription begins with that.
pub const WATCHCORE_SUBSCRIPTION_STATE_AWAITS_LISTING: u32 = 1;
/// The start lies in the future: AFTER or STATE_AT_LEAST a revision that the cache has not reached, or that the
/// consumer of STATE_AT_LEAST has not polled since.
pub const WATCHCORE_SUBSCRIPTION_STATE_AWAITS_REVISION: u32 = 2;
/// The initial state is being handed out.
pub const WATCHCORE_SUBSCRIPTION_STATE_INITIAL_STATE: u32 = 3;
/// The subscription reads the log, and its consumer is awake.
pub const WATCHCORE_SUBSCRIPTION_STATE_LIVE: u32 = 4;
/// The subscription has everything, and its consumer sleeps: it waits, or is armed in a wake set.
pub const WATCHCORE_SUBSCRIPTION_STATE_PARKED: u32 = 5;
/// Unread events have left the window: the next poll answers LAGGED, or catches up.
pub const WATCHCORE_SUBSCRIPTION_STATE_OVERRUN: u32 = 6;
/// A loss was reported; the difference to the state now comes next, or is being handed out.
pub const WATCHCORE_SUBSCRIPTION_STATE_CATCHING_UP: u32 = 7;
/// The subscription was closed because it exceeded its lag limit: the next poll answers LAGGED.
pub const WATCHCORE_SUBSCRIPTION_STATE_TOO_SLOW: u32 = 8;
/// The subscription or its cache was closed: events published before are handed out, then CLOSED.
pub const WATCHCORE_SUBSCRIPTION_STATE_CLOSING: u32 = 9;
/// The subscription has ended: its polls answer CLOSED. It is listed until it is freed.
pub const WATCHCORE_SUBSCRIPTION_STATE_ENDED: u32 = 10;

const _: () = {
    use SubscriptionState::*;
    assert!(WATCHCORE_SUBSCRIPTION_STATE_AWAITS_LISTING == AwaitsListing as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_AWAITS_REVISION == AwaitsRevision as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_INITIAL_STATE == InitialState as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_LIVE == Live as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_PARKED == Parked as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_OVERRUN == Overrun as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_CATCHING_UP == CatchingUp as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_TOO_SLOW == TooSlow as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_CLOSING == Closing as u32);
    assert!(WATCHCORE_SUBSCRIPTION_STATE_ENDED == Ended as u32);
};

/// The open subscriptions of a cache at one moment. Made by watchcore_subscription_list_new.
pub struct watchcore_subscription_list {
    _private: [u8; 0],
}

impl Object for watchcore_subscription_list {
    type Shared = Box<[SubscriptionInfo]>;
    type Exclusive = ();
    const KIND: u32 = 0x5743_000b;
    const NAME: &'static str = "watchcore_subscription_list";
}

/// A subscription as it was when it was listed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_subscription_info {
    /// sizeof(watchcore_subscription_info).
    pub size: u32,
    /// WATCHCORE_SUBSCRIPTION_STATE_...
    pub state: u32,
    /// The subscription's number in this cache: from 1, in the order of opening, never reused.
    pub id: u64,
    /// The name given in watchcore_subscription_options, else of length 0 (UTF-8). Belongs to the list, valid until
    /// that is freed.
    pub name: watchcore_bytes,
    /// The position as of the last poll: its revision.
    pub revision: u64,
    /// The epoch of that position.
    pub epoch: u64,
    /// Events of the log that the subscription has not read, as in watchcore_lag; 0 while it sleeps, while its start
    /// lies in the future, and once it has ended.
    pub lag_events: u64,
    /// Revisions that the subscription has not read.
    pub lag_revisions: u64,
    /// The time since the subscription was last seen to have everything, at most some milliseconds too short; 0 if it
    /// has.
    pub lag_age_ms: u64,
    /// The read path as of the last poll: WATCHCORE_READ_PATH_...
    pub read_path: u32,
    /// 1: the subscription was polled, `last_poll_ms` ago; 0: never.
    pub polled: u32,
    /// CHAIN: the index (UTF-8), such as "key" or "field phase". Belongs to the list, valid until that is freed. SCAN:
    /// absent.
    pub index: watchcore_bytes,
    /// The time since the last poll. If a consumer polls hundreds of times a second, only every 16th poll is recorded.
    pub last_poll_ms: u64,
    /// Events and marks that were handed out.
    pub handed_out: u64,
    /// How often events were lost, reported or not.
    pub lagged: u64,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_subscription_info {
    const NAME: &'static str = "watchcore_subscription_info";
    const DEFAULT: Self = watchcore_subscription_info {
        size: size_of::<Self>() as u32,
        state: 0,
        id: 0,
        name: watchcore_bytes::ABSENT,
        revision: 0,
        epoch: 0,
        lag_events: 0,
        lag_revisions: 0,
        lag_age_ms: 0,
        read_path: WATCHCORE_READ_PATH_SCAN,
        polled: 0,
        index: watchcore_bytes::ABSENT,
        last_poll_ms: 0,
        handed_out: 0,
        lagged: 0,
    };
}

/// Lists the open subscriptions of a cache in the order of their opening, each as it is now, including those
/// that are never polled. Freed subscriptions are not listed; one that is opened or freed during the call may
/// or may not be. `*list`: the caller's, ended by watchcore_subscription_list_free; it never changes. Never
/// blocks, and delays neither the writer nor a consumer; takes time proportional to the open subscriptions.
/// Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_list_new(
    cache: *const watchcore_cache,
    list: *mut *mut watchcore_subscription_list,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_list_new, error, {
        let list = try_out!(list);
        let found = try_handle!(cache).subscriptions();
        list.write(handle::new(found.into_boxed_slice(), ()));
        Ok(())
    })
}

/// The number of subscriptions in a list; 0 for NULL. Never blocks. Any thread, many at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_list_count(list: *const watchcore_subscription_list) -> usize {
    read!(watchcore_subscription_list_count, list, 0, |list| list.len())
}

/// The subscription at an index of a list, below watchcore_subscription_list_count. `info`: the caller's
/// struct; its texts belong to the list. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT (also for an index after the last).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_list_item(
    list: *const watchcore_subscription_list,
    index: usize,
    info: *mut watchcore_subscription_info,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_subscription_list_item, error, {
        let info = try_out_struct!(info);
        let list = try_handle!(list);
        let Some(listed) = list.get(index) else {
            return Err(invalid(format!("index is {index}, but the list has {}. Give one below that.", list.len())));
        };
        // The texts do not move until the handle is freed.
        info.write(info_of(listed));
        Ok(())
    })
}

/// Frees a list; NULL does nothing. Never blocks. Any thread, even after the cache was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_subscription_list_free(list: *mut watchcore_subscription_list) {
    free!(watchcore_subscription_list_free, list);
}

fn info_of(listed: &SubscriptionInfo) -> watchcore_subscription_info {
    let (read_path, index) = match &listed.read_path {
        ReadPath::Chain { index } => (WATCHCORE_READ_PATH_CHAIN, bytes_of(index)),
        _ => (WATCHCORE_READ_PATH_SCAN, watchcore_bytes::ABSENT),
    };
    watchcore_subscription_info {
        size: watchcore_subscription_info::DEFAULT.size,
        state: listed.state as u32,
        id: listed.id,
        name: bytes_of(&listed.name),
        revision: listed.position.revision,
        epoch: listed.position.epoch,
        lag_events: listed.lag.events,
        lag_revisions: listed.lag.revisions,
        lag_age_ms: milliseconds(listed.lag.age),
        read_path,
        polled: listed.last_poll.is_some() as u32,
        index,
        last_poll_ms: listed.last_poll.map_or(0, milliseconds),
        handed_out: listed.handed_out,
        lagged: listed.lagged,
    }
}
