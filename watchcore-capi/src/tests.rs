//! Byte strings, numbers and arrays of a hostile caller: every call returns a code with a message, and writes its
//! outputs only on success.

use super::bytes::{Sized32, watchcore_bytes};
use super::cache::{watchcore_cache, watchcore_cache_free, watchcore_cache_new, watchcore_cache_options};
use super::declare::{watchcore_attribute, watchcore_index};
use super::error::{WATCHCORE_INVALID_ARGUMENT, WATCHCORE_OK, watchcore_error};
use super::filter::watchcore_filter;
use super::log::testing::{level_is_the_functions, set_function, with_function};
use super::log::{WATCHCORE_LOG_ERROR, WATCHCORE_LOG_TRACE, WATCHCORE_LOG_WARN};
use super::read::{watchcore_cache_list, watchcore_page, watchcore_page_free, watchcore_read_options, watchcore_text};
use super::snapshot::{watchcore_snapshot, watchcore_snapshot_count, watchcore_snapshot_free, watchcore_snapshot_new};
use super::subscription::{
    watchcore_subscription, watchcore_subscription_free, watchcore_subscription_new, watchcore_subscription_options,
};
use proptest::prelude::*;
use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use watchcore::{Cache, Code, Filter, Labels, Read, ReadOptions};

/// A panic payload whose drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload's drop");
    }
}

/// A handle whose `close` panics.
struct Panics;

impl super::handle::Object for Panics {
    type Shared = ();
    type Exclusive = ();
    const KIND: u32 = 0x5743_ffff;
    const NAME: &'static str = "panics";
    fn close(_: &()) {
        std::panic::panic_any(Bomb);
    }
}

#[test]
fn no_payload_unwinds_into_c() {
    let handle = super::handle::new::<Panics>((), ());
    // SAFETY: the handle was just made; its memory leaks, like that of every handle whose end panics.
    unsafe { super::handle::free::<Panics>(super::frame::Fun::watchcore_text_free, handle) };
    let code = call(|error| {
        // SAFETY: `call` passes a valid `error`.
        unsafe { super::frame::call(super::frame::Fun::watchcore_cache_new, error, || std::panic::panic_any(Bomb)) }
    });
    assert_eq!(code, Code::Panic as i32);
    let answered = super::frame::answer(super::frame::Fun::watchcore_page_item, 7, || std::panic::panic_any(Bomb));
    assert_eq!(answered, 7);
}

/// A handle that one thread at a time may use.
struct Single;

impl super::handle::Object for Single {
    type Shared = ();
    type Exclusive = u32;
    const KIND: u32 = 0x5743_fffe;
    const NAME: &'static str = "single";
}

/// A second thread is BUSY while another one is inside; while that one is leaving, the second waits for it and then
/// sees its writes. Both are tried thousands of times.
#[test]
fn thread_on_its_way_out_is_waited_for() {
    const ROUNDS: u32 = 2000;
    let handle = super::handle::new::<Single>((), 0);
    let address = handle.expose_provenance();
    let enter = |address: usize| {
        // SAFETY: the handle is freed only after both threads have ended.
        unsafe { super::handle::exclusive::<Single>(std::ptr::with_exposed_provenance_mut(address), "handle") }
    };
    let (turn, busy) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                while turn.load(Acquire) != 2 * round + 1 {
                    std::thread::yield_now();
                }
                let Ok(mut guard) = enter(address) else {
                    busy.fetch_add(1, Relaxed);
                    turn.store(2 * round + 2, Release);
                    continue;
                };
                *guard += 1;
                drop(guard);
                turn.store(2 * round + 2, Release);
            }
        });
        for round in 0..ROUNDS {
            let mut guard = enter(address).expect("the other one waits for this thread");
            assert_eq!(enter(address).err().map(|error| error.code()), Some(Code::Busy));
            *guard += 1;
            let leaving = guard.leaving();
            leaving();
            turn.store(2 * round + 1, Release);
            std::thread::yield_now();
            drop(guard);
            while turn.load(Acquire) != 2 * round + 2 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(busy.into_inner(), 0, "refused by a thread that was on its way out");
    assert_eq!(*enter(address).expect("nobody is inside"), 2 * ROUNDS);
    // SAFETY: the handle was made above, and no thread is inside.
    unsafe { super::handle::free::<Single>(super::frame::Fun::watchcore_text_free, handle) };
}

/// A log function that panics: the message is delivered, and the code that wrote it continues.
#[test]
fn log_function_may_panic() {
    unsafe extern "C-unwind" fn panics(context: *mut c_void, level: u32, text: *const c_char, length: usize) {
        // SAFETY: `counts` has the same contract as this function.
        unsafe { counts(context, level, text, length) };
        std::panic::panic_any(Bomb);
    }
    let calls = AtomicU32::new(0);
    with_function(panics, of(&calls), WATCHCORE_LOG_ERROR, || {
        tracing::error!("one");
        tracing::error!("two");
    });
    assert_eq!(calls.into_inner(), 2, "the second is not taken for one of the function's own");
}

/// A log function that counts its calls.
unsafe extern "C-unwind" fn counts(context: *mut c_void, _: u32, _: *const c_char, _: usize) {
    // SAFETY: the context is the test's counter, see `of`.
    unsafe { (*context.cast::<AtomicU32>()).fetch_add(1, Relaxed) };
}

fn of(calls: &AtomicU32) -> *mut c_void {
    (&raw const *calls).cast_mut().cast()
}

/// If another function is set while a message is being delivered, it gets only messages up to its own level.
#[test]
fn message_on_its_way_to_another_log_function() {
    struct Sets<'a>(&'a AtomicU32, u32);
    impl std::fmt::Debug for Sets<'_> {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            set_function(counts, of(self.0), self.1);
            Ok(())
        }
    }
    let (first, second) = (AtomicU32::new(0), AtomicU32::new(0));
    with_function(counts, of(&first), WATCHCORE_LOG_TRACE, || {
        tracing::warn!(set = ?Sets(&second, WATCHCORE_LOG_ERROR), "not for the second one");
        assert_eq!(second.load(Relaxed), 0);
        set_function(counts, of(&first), WATCHCORE_LOG_TRACE);
        tracing::warn!(set = ?Sets(&second, WATCHCORE_LOG_WARN), "for the second one");
        assert_eq!(second.load(Relaxed), 1);
    });
    assert_eq!(first.into_inner(), 0);
}

/// The level is checked for each message of a call site, so a changed level takes effect at once.
#[test]
fn level_of_a_log_function_changes() {
    let calls = AtomicU32::new(0);
    with_function(counts, of(&calls), WATCHCORE_LOG_ERROR, || {
        for (level, expected) in [(WATCHCORE_LOG_ERROR, 0), (WATCHCORE_LOG_WARN, 1), (WATCHCORE_LOG_ERROR, 1)] {
            set_function(counts, of(&calls), level);
            tracing::warn!("one place");
            assert_eq!(calls.load(Relaxed), expected, "at level {level}");
        }
    });
}

/// Log functions are set on two threads at once: each function is used with its own level.
#[test]
fn log_functions_set_at_once() {
    const ROUNDS: usize = if cfg!(miri) { 2 } else { 50 };
    let calls = AtomicU32::new(0);
    with_function(counts, of(&calls), WATCHCORE_LOG_ERROR, || {
        let (sets, looked) = (AtomicU32::new(0), AtomicBool::new(false));
        let set_others = || {
            while !looked.load(Relaxed) {
                let levels = WATCHCORE_LOG_ERROR..=WATCHCORE_LOG_TRACE;
                set_function(counts, of(&calls), levels.start() + sets.fetch_add(1, Relaxed) % levels.end());
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(set_others);
            scope.spawn(set_others);
            let agree = (0..ROUNDS).all(|_| {
                std::thread::yield_now();
                level_is_the_functions(if cfg!(miri) { 10 } else { 500 })
            });
            looked.store(true, Relaxed);
            assert!(agree, "the level of one with the function of another");
        });
    });
}

fn bytes(of: &[u8]) -> watchcore_bytes {
    watchcore_bytes { data: of.as_ptr().cast(), length: of.len() }
}

/// Makes a call, and checks the properties of every answer.
fn call(body: impl FnOnce(*mut watchcore_error) -> i32) -> i32 {
    let mut error = watchcore_error::DEFAULT;
    let code = body(&raw mut error);
    assert_eq!(error.code, code, "error.code is the code");
    assert_eq!(error.message[0] != 0, code != WATCHCORE_OK, "a message exactly where it fails");
    code
}

/// Makes a cache with these options; NULL if they are refused.
fn cache_of(options: &watchcore_cache_options) -> (i32, *mut watchcore_cache) {
    let mut cache = null_mut();
    // SAFETY: the options' pointers are readable.
    let code = call(|error| unsafe { watchcore_cache_new(options, &raw mut cache, error) });
    assert_eq!(cache.is_null(), code != WATCHCORE_OK, "written exactly on success");
    (code, cache)
}

/// A cache that declares labels and the field `f`.
fn declared() -> *mut watchcore_cache {
    let field =
        watchcore_attribute { kind: 2, name: bytes(b"f"), pointer: bytes(b"/f"), ..watchcore_attribute::DEFAULT };
    let (code, cache) = cache_of(&watchcore_cache_options {
        fields: &raw const field,
        field_count: 1,
        labels_from: bytes(b"/labels"),
        ..watchcore_cache_options::DEFAULT
    });
    assert_eq!(code, WATCHCORE_OK);
    cache
}

/// Selectors: random bytes, and texts that nearly parse.
fn selector() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "f", "app", "a.b/c", "=", "==", "!=", "!", ",", " in ", " notin ", "(", ")", " ", ">", "<", "1", "-1", "\\",
        "é", "\0",
    ]);
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        prop::collection::vec(pieces, 0..12).prop_map(|all| all.concat().into_bytes()),
    ]
}

/// A byte string that is present, empty, absent, or NULL with a length.
fn given() -> impl Strategy<Value = (Option<Vec<u8>>, usize)> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|b| (Some(b), 0)),
        3 => "[a-z/~01]{0,12}".prop_map(|s: String| (Some(s.into_bytes()), 0)),
        1 => Just((None, 0)),
        1 => any::<usize>().prop_map(|length| (None, length)),
    ]
}

fn seen((there, length): &(Option<Vec<u8>>, usize)) -> watchcore_bytes {
    match there {
        Some(there) => bytes(there),
        None => watchcore_bytes { data: null(), length: *length },
    }
}

/// Mostly the right value, sometimes any value.
fn nearly(right: u32) -> impl Strategy<Value = u32> {
    prop_oneof![6 => Just(right), 2 => 0u32..8, 1 => any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn selectors_answer_what_the_core_says(labels in selector(), fields in selector(), nothing in nearly(0)) {
        let cache = declared();
        let core = Cache::builder("").labels(Labels::json("/labels").unwrap())
            .field(watchcore::Attribute::json("f", "/f").unwrap()).build().unwrap();
        let parsed = Filter::any().labels(&labels).and_then(|f| f.fields(&fields));
        let expected = nothing <= 1 && parsed.is_ok_and(|f| core.snapshot().unwrap().filtered(&f).is_ok());
        let expected = if expected { WATCHCORE_OK } else { WATCHCORE_INVALID_ARGUMENT };

        let options = watchcore_subscription_options {
            labels: bytes(&labels), fields: bytes(&fields), nothing, ..watchcore_subscription_options::DEFAULT
        };
        let mut subscription: *mut watchcore_subscription = null_mut();
        // SAFETY: handles are alive, pointers readable and writable, here and below.
        let code = call(|e| unsafe { watchcore_subscription_new(cache, &options, &raw mut subscription, e) });
        prop_assert_eq!((code, subscription.is_null()), (expected, expected != WATCHCORE_OK));

        let filter = watchcore_filter {
            labels: bytes(&labels), fields: bytes(&fields), nothing, ..watchcore_filter::DEFAULT
        };
        let mut snapshot: *mut watchcore_snapshot = null_mut();
        let mut count = u64::MAX;
        // SAFETY: the snapshot and the cache are alive, and the outputs are writable.
        let code = unsafe {
            prop_assert_eq!(call(|e| watchcore_snapshot_new(cache, &raw mut snapshot, e)), WATCHCORE_OK);
            call(|e| watchcore_snapshot_count(snapshot, &filter, &raw mut count, e))
        };
        prop_assert_eq!((code, count), (expected, if expected == WATCHCORE_OK { 0 } else { u64::MAX }));
        // SAFETY: each handle is freed once, and NULL is allowed.
        unsafe {
            watchcore_snapshot_free(snapshot);
            watchcore_subscription_free(subscription);
            watchcore_cache_free(cache);
        }
    }

    #[test]
    fn tokens_are_refused_or_taken_as_the_core_does(
        hostile in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), "[A-Za-z0-9_-]{0,120}".prop_map(String::into_bytes)],
        mode in nearly(0),
        limit in any::<u64>(),
        epoch in prop_oneof![Just(0), any::<u64>()],
    ) {
        let cache = declared();
        let read = watchcore_read_options {
            continue_token: bytes(&hostile), mode, limit, epoch, timeout_ms: 0, ..watchcore_read_options::DEFAULT
        };
        let (mut page, mut token): (*mut watchcore_page, *mut watchcore_text) = (null_mut(), null_mut());
        // SAFETY: handles are alive, pointers readable and writable.
        let code = call(|e| unsafe { watchcore_cache_list(cache, null(), &read, &raw mut page, &raw mut token, e) });
        // No generated text is a valid token.
        prop_assert_eq!(code, WATCHCORE_INVALID_ARGUMENT);
        prop_assert!(page.is_null() && token.is_null());
        // SAFETY: the cache is alive, and freed once.
        unsafe { watchcore_cache_free(cache) };
    }

    #[test]
    fn a_damaged_token_is_never_taken(at in any::<prop::sample::Index>(), other in any::<u8>()) {
        let core = Cache::builder("").name("").build().unwrap();
        let mut writer = core.writer().unwrap();
        writer.apply(1, [watchcore::Change::put(b"a", b""), watchcore::Change::put(b"b", b"")]).unwrap();
        let whole = core.list_with(&watchcore::Range::all(), &ReadOptions::new(Read::Any).limit(1)).unwrap();
        let mut text = whole.continue_token().unwrap().as_bytes().to_vec();
        let at = at.index(text.len());
        let same = std::mem::replace(&mut text[at], other) == other;
        let handle = super::handle::new::<super::cache::watchcore_cache>(core.clone(), ());
        let read = watchcore_read_options { continue_token: bytes(&text), ..watchcore_read_options::DEFAULT };
        let (mut page, mut token): (*mut watchcore_page, *mut watchcore_text) = (null_mut(), null_mut());
        // SAFETY: handles are alive, pointers readable and writable.
        let code = call(|e| unsafe { watchcore_cache_list(handle, null(), &read, &raw mut page, &raw mut token, e) });
        prop_assert_eq!(code, if same { WATCHCORE_OK } else { WATCHCORE_INVALID_ARGUMENT });
        prop_assert_eq!(page.is_null(), !same);
        // SAFETY: each handle is freed once, and NULL is allowed.
        unsafe {
            watchcore_page_free(page);
            watchcore_cache_free(handle);
        }
    }

    #[test]
    fn declarations_are_refused_or_kept(
        kinds in [nearly(1), nearly(2), nearly(2), nearly(4)],
        sizes in [nearly(64), nearly(64), nearly(32), nearly(32)],
        depths in [0u32..4, 0..2, 0..3, 0..2],
        reserved in [nearly(0), nearly(0), nearly(0), nearly(0)],
        names in [given(), given(), given(), given()],
        pointers in [given(), given()],
        labels in given(),
        path in prop::collection::vec(any::<u32>(), 1..4),
        path_length in prop_oneof![Just(0), 1usize..4, Just(usize::MAX)],
        counts in [prop_oneof![4 => Just(2usize), 1 => Just(0), 1 => 65..=usize::MAX],
            prop_oneof![4 => Just(2usize), 1 => Just(0), 1 => 9..=usize::MAX]],
    ) {
        let fields = [0, 1].map(|at| watchcore_attribute {
            // With a wrong step, a second element would lie after the array: its size is then 0, and no more of it is
            // read.
            size: if sizes[at] as usize > size_of::<watchcore_attribute>() { 0 } else { sizes[at] },
            kind: kinds[at],
            name: seen(&names[at]),
            pointer: seen(&pointers[at]),
            depth: depths[at],
            reserved: reserved[at],
            protobuf_path: if at == 1 && path_length != 0 { path.as_ptr() } else { null() },
            protobuf_path_length: if at == 1 && path_length > path.len() { usize::MAX } else { at * path_length },
        });
        let indexes = [2, 3].map(|at| watchcore_index {
            size: if sizes[at] as usize > size_of::<watchcore_index>() { 0 } else { sizes[at] },
            kind: kinds[at],
            name: seen(&names[at]),
            depth: depths[at],
            reserved: reserved[at],
        });
        let (code, cache) = cache_of(&watchcore_cache_options {
            fields: fields.as_ptr(),
            field_count: counts[0],
            labels_from: seen(&labels),
            indexes: indexes.as_ptr(),
            index_count: counts[1],
            ..watchcore_cache_options::DEFAULT
        });
        prop_assert!(code == WATCHCORE_OK || code == Code::InvalidArgument as i32, "{}", code);
        // SAFETY: the cache was just made, or is NULL.
        unsafe { watchcore_cache_free(cache) };
    }
}

/// Go checks the pointers on its stacks: none may have the address of an empty Rust slice.
#[test]
fn empty_answers_have_no_address() {
    let cache = watchcore::Cache::builder("/").build().unwrap();
    let page = cache.list(&watchcore::Range::all(), watchcore::Read::Any, 0).unwrap();
    assert!(page.items().is_empty());
    let mut subscription = cache.subscribe(watchcore::Start::Now).open().unwrap();
    let batch = crate::batch::into_c(subscription.poll(1).unwrap());
    assert!(batch.events.is_null() && batch.count == 0);
}
