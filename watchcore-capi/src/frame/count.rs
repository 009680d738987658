//! In the test build (feature `debug`) the frame counts the calls of every exported function and their results. The C
//! tests fail if a function of the header has no count or a count of 0, or if it answered a code that its comment does
//! not name. Only the frame counts, so a counted function runs inside it.

macro_rules! functions {
    ($($name:ident)*) => {
        /// The exported functions.
        #[derive(Clone, Copy)]
        #[repr(usize)]
        pub(crate) enum Fun { $($name,)* }

        impl Fun {
            #[cfg(feature = "debug")]
            const NAMES: &'static [&'static std::ffi::CStr] = &[$(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without a NUL"),
                },
            )*];

            pub(crate) fn name(self) -> &'static str {
                const NAMES: &[&str] = &[$(stringify!($name),)*];
                NAMES[self as usize]
            }
        }
    };
}

functions! {
    watchcore_bytes_from watchcore_bytes_from_string
    watchcore_version watchcore_abi_version watchcore_name watchcore_shutdown watchcore_error_name watchcore_code_describe
    watchcore_cache_new watchcore_cache_free watchcore_cache_close watchcore_cache_wait_ready
    watchcore_cache_wait_until watchcore_cache_consistent_revision watchcore_cache_position watchcore_cache_is_ready
    watchcore_writer_new watchcore_writer_load watchcore_writer_apply watchcore_writer_resync
    watchcore_writer_progress watchcore_writer_compact watchcore_writer_free
    watchcore_loading_new watchcore_loading_add watchcore_loading_finish watchcore_loading_free
    watchcore_feeder_start watchcore_feeder_stop watchcore_feeder_free watchcore_feeder_request_resync
    watchcore_feeder_counters watchcore_feeder_compact
    watchcore_cache_get watchcore_cache_get_many watchcore_key_value_release watchcore_key_values_release watchcore_cache_list
    watchcore_cache_count watchcore_cache_diff watchcore_text_get watchcore_text_free
    watchcore_page_describe watchcore_page_item watchcore_page_items watchcore_page_free
    watchcore_snapshot_new watchcore_snapshot_position watchcore_snapshot_get watchcore_snapshot_get_many
    watchcore_snapshot_count watchcore_snapshot_free
    watchcore_iterator_new watchcore_iterator_next watchcore_iterator_free
    watchcore_subscription_new watchcore_subscription_poll watchcore_subscription_wait
    watchcore_subscription_close watchcore_subscription_position watchcore_subscription_lag
    watchcore_subscription_stats watchcore_subscription_free
    watchcore_subscription_list_new watchcore_subscription_list_count watchcore_subscription_list_item
    watchcore_subscription_list_free
    watchcore_batch_event watchcore_event_key watchcore_event_value watchcore_event_prev_value
    watchcore_batch_release
    watchcore_waiter_new watchcore_waiter_try watchcore_waiter_free
    watchcore_wakeset_new watchcore_wakeset_add_subscription watchcore_wakeset_add_waiter
    watchcore_wakeset_remove_subscription watchcore_wakeset_remove_waiter watchcore_wakeset_next
    watchcore_wakeset_take watchcore_wakeset_fd watchcore_wakeset_wait watchcore_wakeset_free
    watchcore_cache_status watchcore_cache_stats watchcore_cache_text
    watchcore_metrics_text watchcore_log_set
}

#[cfg(not(feature = "debug"))]
mod counting {
    use super::Fun;

    #[inline(always)]
    pub(in crate::frame) fn succeeded(_: Fun) {}
    #[inline(always)]
    pub(in crate::frame) fn failed(_: Fun, _: i32) {}
    #[inline(always)]
    pub(in crate::frame) fn infallible(_: Fun) {}
    #[inline(always)]
    pub(in crate::frame) fn misused(_: Fun) {}
}

#[cfg(feature = "debug")]
mod counting {
    use super::Fun;
    use std::ffi::c_char;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Count {
        calls: AtomicU64,
        successes: AtomicU64,
        errors: AtomicU64,
        /// A bit for each code that was answered; codes are below 128.
        codes: [AtomicU64; 2],
    }

    impl Count {
        const fn new() -> Count {
            Count {
                calls: AtomicU64::new(0),
                successes: AtomicU64::new(0),
                errors: AtomicU64::new(0),
                codes: [const { AtomicU64::new(0) }; 2],
            }
        }
    }

    static COUNTS: [Count; Fun::NAMES.len()] = [const { Count::new() }; Fun::NAMES.len()];

    fn add(fun: Fun, ended: impl FnOnce(&Count) -> &AtomicU64) {
        let count = &COUNTS[fun as usize];
        count.calls.fetch_add(1, Ordering::Relaxed);
        ended(count).fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::frame) fn succeeded(fun: Fun) {
        add(fun, |c| &c.successes);
    }

    pub(in crate::frame) fn failed(fun: Fun, code: i32) {
        COUNTS[fun as usize].codes[code as usize / 64].fetch_or(1 << (code % 64), Ordering::Relaxed);
        add(fun, |c| &c.errors);
    }

    /// Counts a call of a function that returns no code.
    pub(in crate::frame) fn infallible(fun: Fun) {
        add(fun, |c| &c.successes);
    }

    /// Counts a misuse by a function that has no code to answer: the call did nothing, and this build prints a message.
    pub(in crate::frame) fn misused(fun: Fun) {
        COUNTS[fun as usize].errors.fetch_add(1, Ordering::Relaxed);
        eprintln!("watchcore: {}: the handle was freed already, or is of another kind", fun.name());
    }

    /// The counts of the function with this index; NULL after the last.
    ///
    /// # Safety
    ///
    /// The out-pointers are writable.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn watchcore_debug_count(
        index: usize,
        calls: *mut u64,
        successes: *mut u64,
        errors: *mut u64,
    ) -> *const c_char {
        let Some(count) = COUNTS.get(index) else { return std::ptr::null() };
        // SAFETY: the caller guarantees writable out-pointers.
        unsafe {
            calls.write(count.calls.load(Ordering::Relaxed));
            successes.write(count.successes.load(Ordering::Relaxed));
            errors.write(count.errors.load(Ordering::Relaxed));
        }
        Fun::NAMES[index].as_ptr()
    }

    /// Whether the function with this index has answered a code: 1 or 0.
    #[unsafe(no_mangle)]
    pub extern "C" fn watchcore_debug_answered(index: usize, code: u32) -> u32 {
        let Some(codes) = COUNTS.get(index).and_then(|count| count.codes.get(code as usize / 64)) else { return 0 };
        (codes.load(Ordering::Relaxed) >> (code % 64)) as u32 & 1
    }
}

pub(in crate::frame) use counting::{failed, infallible, misused, succeeded};
