//! Opaque handles as C sees them.
//!
//! Every handle is one allocation that begins with a `Head`: its kind, and one state word. The part that many threads
//! may use at once (`Shared`) is separate from the part that only one thread at a time may use (`Own`).
//!
//! | state bit | set by | meaning |
//! | --- | --- | --- |
//! | INSIDE | `exclusive` | a thread is inside; a second one is answered BUSY |
//! | LEAVING | `Guard::leaving` | that thread is on its way out: a second one waits for it |
//! | POISONED | a panic that leaves a guard | every later call answers PANIC |
//! | FREED | `free` | the thread that clears INSIDE last frees |
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | enter: compare_exchange(0, INSIDE) | leave: compare_exchange(INSIDE, 0), else fetch_and(!(INSIDE \| LEAVING)) | Acquire / Release: `Own` is handed over |
//! | free: close, then fetch_or(FREED) | leave | AcqRel: exactly one of the two frees |
//!
//! LEAVING is for members of wake sets. A poll arms its member, so another thread may take the member's tag and poll it
//! before the first thread has left the handle. Both are used correctly, so the second thread is not answered BUSY: it
//! waits for the few instructions that the first still has to execute.
//!
//! `free` closes before it sets FREED: until FREED is set no other thread frees, so the handle is still valid.
//!
//! A forked child has the memory but not the threads: an atfork handler sets `CHILD`, and from then on no handle is
//! made, and each call on a handle answers UNSUPPORTED. (Comparing the pid would cost a system call for each poll.)

use super::error::{invalid, unsupported};
use super::frame::{Fun, freeing};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use watchcore::{Code, Error, Result};

const INSIDE: u32 = 1;
const POISONED: u32 = 2;
const FREED: u32 = 4;
const LEAVING: u32 = 8;

/// The `kind` of a freed handle; the debug build keeps its memory readable.
const DEAD: u32 = 0xdead_5743;

/// Whether this process is a child of the one that first used the library. Every call that makes a handle either checks
/// this or takes an older handle, so in a child all handles are the parent's.
static CHILD: AtomicBool = AtomicBool::new(false);

#[repr(C)]
struct Head {
    kind: AtomicU32,
    state: AtomicU32,
}

/// The parts of a kind of handle; implemented by the opaque type that C sees.
pub(super) trait Object: Sized {
    /// The part for many threads at once.
    type Shared: Send + Sync;
    /// The part for one thread at a time.
    type Exclusive: Send;
    /// A number that distinguishes the kinds of handles; its lowest four bits do too.
    const KIND: u32;
    /// The type's name, for messages.
    const NAME: &'static str;
    /// Ends the waits inside; called on any thread, idempotent.
    fn close(_: &Self::Shared) {}
}

#[repr(C)]
struct Handle<O: Object> {
    head: Head,
    exclusive: UnsafeCell<O::Exclusive>,
    shared: O::Shared,
}

#[cfg(unix)]
fn watch_forks() {
    extern "C" fn in_child() {
        CHILD.store(true, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only touches an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[cfg(not(unix))]
fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {});
}

/// Whether this is the process in which the library was first used.
#[inline]
pub(super) fn same_process() -> bool {
    // Relaxed: a child begins with one thread, and that thread stored the value.
    !CHILD.load(Ordering::Relaxed)
}

/// Refuses in a forked child; called before anything is made.
pub(super) fn check_process() -> Result<()> {
    watch_forks();
    if same_process() { Ok(()) } else { Err(forked()) }
}

#[cold]
fn forked() -> Error {
    unsupported(
        "this is a forked child: the threads of watchcore stayed with the parent. Use it before fork and exec, or in one of the two only.",
    )
}

/// Converts a caller's `timeout_ms`.
pub(super) fn timeout(milliseconds: i64) -> Result<Duration> {
    match milliseconds {
        -1 => Ok(Duration::MAX),
        0.. => Ok(Duration::from_millis(milliseconds.unsigned_abs())),
        _ => Err(invalid(format!("timeout_ms is {milliseconds}. Give -1 (for ever), 0 (no waiting) or more."))),
    }
}

/// Makes a handle, which belongs to C until `free`.
pub(super) fn new<O: Object>(shared: O::Shared, exclusive: O::Exclusive) -> *mut O {
    let head = Head { kind: AtomicU32::new(O::KIND), state: AtomicU32::new(0) };
    let handle =
        Box::into_raw(Box::new(Handle::<O> { head, exclusive: UnsafeCell::new(exclusive), shared })).cast::<O>();
    debug::register(handle as usize, O::KIND);
    // Relaxed: the count is only a statistic; a caller frees its handles before it asks.
    count_of(O::KIND).fetch_add(1, Ordering::Relaxed);
    handle
}

/// The number of handles that were made and not destroyed. Each kind has its own cache line.
#[repr(align(64))]
struct AlignedCount(AtomicUsize);

static LIVE_COUNTS: [AlignedCount; 16] = [const { AlignedCount(AtomicUsize::new(0)) }; 16];

fn count_of(kind: u32) -> &'static AtomicUsize {
    &LIVE_COUNTS[kind as usize % LIVE_COUNTS.len()].0
}

/// How many handles of a kind exist, and the kind's name.
pub(super) fn living<O: Object>() -> (usize, &'static str) {
    (count_of(O::KIND).load(Ordering::Relaxed), O::NAME)
}

/// A checked pointer to a live handle.
///
/// This stays a raw pointer, because the last thread inside frees through it: a reference would forbid that while it
/// exists, and memory must not be freed through a pointer derived from a shared reference. References go to single
/// fields only.
struct Live<O: Object>(NonNull<Handle<O>>);

impl<O: Object> Clone for Live<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Object> Copy for Live<O> {}

impl<O: Object> Live<O> {
    /// Checks that a pointer of C is a live handle of this kind. In a forked child it never is.
    ///
    /// # Safety
    ///
    /// `pointer` is NULL, or a `Head` is readable there; if its kind is right, it is a handle that is not freed while
    /// the value is used (or, for an exclusive one, that `free` leaves to the thread inside).
    #[inline]
    unsafe fn check(pointer: *mut O, what: &str) -> Result<Live<O>> {
        // Checked first: a lock that another thread of the parent held at the fork stays locked in the child forever.
        if !same_process() {
            return Err(forked());
        }
        let Some(handle) = NonNull::new(pointer.cast::<Handle<O>>()).filter(|handle| handle.is_aligned()) else {
            return Err(wrong_handle::<O>(what, "is NULL or not aligned"));
        };
        if !debug::is_live(handle.as_ptr() as usize, O::KIND) {
            return Err(wrong_handle::<O>(what, "was freed, or is of another kind"));
        }
        // SAFETY: the caller guarantees a readable `Head` behind any aligned pointer that is not NULL.
        let kind = unsafe { &handle.cast::<Head>().as_ref().kind };
        // Relaxed: the kind was written before the pointer was handed out; detecting DEAD is best effort.
        if kind.load(Ordering::Relaxed) != O::KIND {
            return Err(wrong_handle::<O>(what, "is another kind of handle, or was freed"));
        }
        Ok(Live(handle))
    }

    fn head(&self) -> &Head {
        // SAFETY: `check` found a live handle, which stays live while this value is used.
        unsafe { &(*self.0.as_ptr()).head }
    }

    fn shared(&self) -> &O::Shared {
        // SAFETY: the handle is live (`check`), and `shared` is not written to before it is destroyed.
        unsafe { &(*self.0.as_ptr()).shared }
    }

    fn exclusive(&self) -> *mut O::Exclusive {
        // SAFETY: the handle is live (`check`), and only the address of `exclusive` is taken.
        unsafe { (*self.0.as_ptr()).exclusive.get() }
    }
}

#[cold]
fn wrong_handle<O: Object>(what: &str, why: &str) -> Error {
    invalid(format!("{what} {why}. Give a {} that was not freed.", O::NAME))
}

#[cold]
fn poisoned<O: Object>(what: &str) -> Error {
    Error::new(
        Code::Panic,
        format!("{what} was poisoned by a panic in an earlier call. Free it and make a new {}.", O::NAME),
    )
}

/// Access to the part of a handle that many threads may use.
pub(super) struct SharedGuard<'a, O: Object>(Live<O>, PhantomData<&'a O>);

/// # Safety
///
/// The contract of `Live::check`.
#[inline]
pub(super) unsafe fn shared<'a, O: Object>(pointer: *const O, what: &str) -> Result<SharedGuard<'a, O>> {
    // SAFETY: `check` has the same contract as this function.
    let handle = unsafe { Live::<O>::check(pointer.cast_mut(), what)? };
    // Relaxed: a best-effort check; a panic at this moment may be noticed only by the next call.
    if handle.head().state.load(Ordering::Relaxed) & POISONED != 0 {
        return Err(poisoned::<O>(what));
    }
    let guard = SharedGuard(handle, PhantomData);
    debug::panic_point();
    Ok(guard)
}

impl<O: Object> SharedGuard<'_, O>
where
    O::Shared: Clone,
{
    /// Clones the shared part to wait on: the handle may be freed during the wait.
    pub(super) fn leave(self) -> O::Shared {
        self.0.shared().clone()
    }
}

impl<O: Object> Deref for SharedGuard<'_, O> {
    type Target = O::Shared;
    #[inline]
    fn deref(&self) -> &O::Shared {
        self.0.shared()
    }
}

impl<O: Object> Drop for SharedGuard<'_, O> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.head().state.fetch_or(POISONED, Ordering::Relaxed);
        }
    }
}

/// Exclusive access to the part of a handle that one thread at a time may use.
pub(super) struct Guard<'a, O: Object>(Live<O>, PhantomData<&'a mut O>);

/// # Safety
///
/// The contract of `Live::check`.
#[inline]
pub(super) unsafe fn exclusive<'a, O: Object>(pointer: *mut O, what: &str) -> Result<Guard<'a, O>> {
    // SAFETY: `check` has the same contract as this function.
    let handle = unsafe { Live::<O>::check(pointer, what)? };
    // Acquire: sees the writes of the thread that was inside before. Partner: Release in `Guard::drop`.
    while let Err(before) = handle.head().state.compare_exchange(0, INSIDE, Ordering::Acquire, Ordering::Relaxed) {
        if before & LEAVING == 0 {
            return Err(refused::<O>(before, what));
        }
        std::thread::yield_now();
    }
    let guard = Guard(handle, PhantomData);
    debug::panic_point();
    Ok(guard)
}

#[cold]
fn refused<O: Object>(state: u32, what: &str) -> Error {
    if state & INSIDE != 0 {
        return Error::new(
            Code::Busy,
            format!(
                "{what} is in use by another thread; a {} is for one at a time. Try again when that call is over.",
                O::NAME
            ),
        );
    }
    if state & FREED != 0 { wrong_handle::<O>(what, "was freed") } else { poisoned::<O>(what) }
}

impl<O: Object> Guard<'_, O> {
    /// Returns a function that announces that this thread is leaving: a second thread then waits instead of failing
    /// with BUSY.
    pub(super) fn leaving(&self) -> impl Fn() + use<O> {
        let handle = self.0;
        // Relaxed: it publishes no data; the guard's drop does.
        move || _ = handle.head().state.fetch_or(LEAVING, Ordering::Relaxed)
    }
}

impl<O: Object> Deref for Guard<'_, O> {
    type Target = O::Exclusive;
    #[inline]
    fn deref(&self) -> &O::Exclusive {
        // SAFETY: this thread set INSIDE, so no other thread accesses `exclusive`.
        unsafe { &*self.0.exclusive() }
    }
}

impl<O: Object> DerefMut for Guard<'_, O> {
    #[inline]
    fn deref_mut(&mut self) -> &mut O::Exclusive {
        // SAFETY: this thread set INSIDE, so no other thread accesses `exclusive`.
        unsafe { &mut *self.0.exclusive() }
    }
}

impl<O: Object> Drop for Guard<'_, O> {
    #[inline]
    fn drop(&mut self) {
        let state = &self.0.head().state;
        if std::thread::panicking() {
            state.fetch_or(POISONED, Ordering::Relaxed);
        }
        // Release: publishes this thread's writes to the Acquire in `exclusive`.
        if state.compare_exchange(INSIDE, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        // Acquire: sees the FREED that `free` stored with Release.
        if state.fetch_and(!(INSIDE | LEAVING), Ordering::AcqRel) & FREED != 0 {
            // SAFETY: `free` saw INSIDE and left the handle to the thread inside, which is this one.
            unsafe { destroy(self.0) };
        }
    }
}

/// Ends a handle; if a thread is inside an exclusive call, that thread frees it on leaving.
///
/// # Safety
///
/// `pointer` is NULL or a handle that was not freed, and no shared call on it runs or follows.
pub(super) unsafe fn free<O: Object>(fun: Fun, pointer: *mut O) {
    freeing(fun, || {
        if pointer.is_null() || !same_process() {
            return true;
        }
        // SAFETY: the caller passes NULL or a handle that no other thread frees.
        let Ok(handle) = (unsafe { Live::<O>::check(pointer, "handle") }) else { return false };
        if !debug::unregister(pointer as usize, O::KIND) {
            return false;
        }
        O::close(handle.shared());
        // AcqRel: either the thread inside sees FREED, or this thread sees that it has left, and its writes.
        if handle.head().state.fetch_or(FREED, Ordering::AcqRel) & INSIDE == 0 {
            // SAFETY: no thread is inside, and none enters any more, because FREED is set.
            unsafe { destroy(handle) };
        }
        true
    });
}

/// # Safety
///
/// No thread uses the handle any more.
unsafe fn destroy<O: Object>(handle: Live<O>) {
    let handle = handle.0.as_ptr();
    count_of(O::KIND).fetch_sub(1, Ordering::Relaxed);
    // SAFETY: the pointer is the one that `new` made from a box.
    unsafe {
        (*handle).head.kind.store(DEAD, Ordering::Relaxed);
        #[cfg(not(feature = "debug"))]
        drop(Box::from_raw(handle));
        #[cfg(feature = "debug")]
        {
            // The debug build keeps the memory, so that no other handle gets the address.
            std::ptr::drop_in_place((*handle).exclusive.get());
            std::ptr::drop_in_place(&raw mut (*handle).shared);
        }
    }
}

/// The empty registry of the normal build: a pointer is only known by the memory it points to.
#[cfg(not(feature = "debug"))]
mod debug {
    #[inline(always)]
    pub(super) fn register(_: usize, _: u32) {}
    #[inline(always)]
    pub(super) fn is_live(_: usize, _: u32) -> bool {
        true
    }
    #[inline(always)]
    pub(super) fn unregister(_: usize, _: u32) -> bool {
        true
    }
    #[inline(always)]
    pub(super) fn panic_point() {}
}

/// The registry of the debug build: every handle that ever existed (its memory is kept), and a planted panic for tests.
#[cfg(feature = "debug")]
mod debug {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    static HANDLES: Mutex<Option<HashMap<usize, (u32, bool)>>> = Mutex::new(None);
    static PANIC: AtomicBool = AtomicBool::new(false);

    fn handles() -> MutexGuard<'static, Option<HashMap<usize, (u32, bool)>>> {
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(address: usize, kind: u32) {
        handles().get_or_insert_default().insert(address, (kind, true));
    }

    pub(super) fn is_live(address: usize, kind: u32) -> bool {
        handles().get_or_insert_default().get(&address) == Some(&(kind, true))
    }

    /// Marks a handle as freed; false if it was not live.
    pub(super) fn unregister(address: usize, kind: u32) -> bool {
        handles().get_or_insert_default().insert(address, (kind, false)) == Some((kind, true))
    }

    pub(super) fn panic_point() {
        if PANIC.swap(false, Ordering::Relaxed) {
            panic!("planted by watchcore_debug_panic_next");
        }
    }

    /// Makes the next call on a handle panic inside.
    #[unsafe(no_mangle)]
    pub extern "C" fn watchcore_debug_panic_next() {
        PANIC.store(true, Ordering::Relaxed);
    }
}
