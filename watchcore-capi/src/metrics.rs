//! All metrics as text for Prometheus.

use super::bytes::{Sized32, slice, switch};
use super::cache::watchcore_cache;
use super::contract::{frame, struct_or_default, try_handle, try_out};
use super::error::watchcore_error;
use super::handle;
use super::read::watchcore_text;
use watchcore::metrics::Metrics;

/// The selection of metrics for watchcore_metrics_text.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_metrics_options {
    /// sizeof(watchcore_metrics_options).
    pub size: u32,
    /// 1: also some ten series for each open subscription, labelled by its name and number.
    pub per_subscription: u32,
}

// SAFETY: repr(C), starts with the size; numbers only.
unsafe impl Sized32 for watchcore_metrics_options {
    const NAME: &'static str = "watchcore_metrics_options";
    const DEFAULT: Self = watchcore_metrics_options { size: size_of::<Self>() as u32, per_subscription: 0 };
}

/// All metrics of these caches, of their feeders, and of the process, as text for Prometheus: a response of
/// the type "text/plain; version=0.0.4; charset=utf-8". `options` NULL: the defaults. Give all caches of a
/// program at once, so that each name has its HELP and TYPE once; the second of two caches with equal names
/// is shown as "name#2". docs/OPERATIONS.md has a table of the names, and which to alert on. The text has
/// some 10 KB per cache. `*text`: the caller's, read by watchcore_text_get, ended by watchcore_text_free.
/// Never blocks; O(open subscriptions). Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_metrics_text(
    caches: *const *const watchcore_cache,
    cache_count: usize,
    options: *const watchcore_metrics_options,
    text: *mut *mut watchcore_text,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_metrics_text, error, {
        let text = try_out!(text);
        handle::check_process()?;
        let options = struct_or_default!(options);
        let metrics = Metrics::new().per_subscription(switch(options.per_subscription, "options.per_subscription")?);
        // SAFETY: the contract: `caches` has `cache_count` elements.
        let caches = unsafe { slice::<*const watchcore_cache>(caches.cast(), cache_count, "caches")? };
        let mut held = Vec::new();
        for cache in caches.unwrap_or_default() {
            held.push(try_handle!(*cache));
        }
        let rendered = metrics.text(held.iter().map(|cache| &**cache));
        text.write(handle::new(rendered.into(), ()));
        Ok(())
    })
}
