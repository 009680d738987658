//! The feeder: the thread that keeps a cache up to date from etcd.
//!
//! # In the header: Following etcd
//!
//! A feeder is a thread that lists a range of etcd's keys, watches it, and writes the changes into a cache, for as long
//! as it runs: it reconnects, checks that the history is still the same, and lists again if it is not.

use super::bytes::{Sized32, watchcore_bytes};
use super::cache::watchcore_cache;
use super::contract::{
    frame, free, try_bytes, try_exclusive, try_handle, try_out, try_out_struct, try_struct, try_text,
};
use super::error::watchcore_error;
use super::handle::{self, Object};
use super::subscription::watchcore_subscription;
use watchcore::{Cache, Result};

/// A running feeder. Made by watchcore_feeder_start.
pub struct watchcore_feeder {
    _private: [u8; 0],
}

/// How to reach etcd, and what to request from it. For times, 0 means the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_etcd_options {
    /// sizeof(watchcore_etcd_options).
    pub size: u32,
    /// 1: stop after the first listing.
    pub stop_after_listing: u32,
    /// The servers, separated by commas: "http://127.0.0.1:2379,http://127.0.0.1:22379".
    /// "unix:///run/etcd.sock" is a Unix socket.
    pub endpoints: watchcore_bytes,
    /// The user's name (UTF-8). Absent: no authentication.
    pub user: watchcore_bytes,
    /// The user's password (UTF-8).
    pub password: watchcore_bytes,
    /// The file (PEM) of the authorities that may sign the server's certificate. With neither this nor `ca_pem`: the
    /// system's authorities. The three files are read again for each new connection, so they can be replaced at any
    /// time.
    pub ca_file: watchcore_bytes,
    /// The file (PEM) of the client's certificate, if etcd asks for one; with `key_file`.
    pub cert_file: watchcore_bytes,
    /// The file (PEM) of the client's private key.
    pub key_file: watchcore_bytes,
    /// The authorities themselves, PEM, instead of `ca_file`.
    pub ca_pem: watchcore_bytes,
    /// The client's certificate itself, PEM, instead of `cert_file`; with `key_pem`.
    pub cert_pem: watchcore_bytes,
    /// The client's private key itself, PEM.
    pub key_pem: watchcore_bytes,
    /// The name that the server's certificate must be for (UTF-8). Absent: the endpoint's host.
    pub server_name: watchcore_bytes,
    /// Begin with etcd's own history from this revision on. 0: at the newest revision.
    pub start_revision: u64,
    /// The most keys per page of a listing. 0: one stream, if etcd has streams; else as many keys as fit into some 32
    /// MiB.
    pub page_size: u64,
    /// Lists instead of replaying if more than this many revisions were missed. 0: 20000.
    pub too_far_behind: u64,
    /// A progress request is sent after this long without a message. 0: 1000.
    pub progress_interval_ms: i64,
    /// The longest time to connect. 0: 5000.
    pub dial_timeout_ms: i64,
    /// The longest time of a request. 0: 10000.
    pub request_timeout_ms: i64,
    /// 1: send no progress requests.
    pub no_progress_requests: u32,
    /// The oldest version of TLS: 0x0303 for TLS 1.2, 0x0304 for TLS 1.3, as on the wire. 0: TLS 1.2.
    pub min_tls_version: u32,
    /// With `start_revision`: the feeder stays at most half a window ahead of this subscription of the cache, so that
    /// the subscription sees a history longer than the log. NULL: no limit. Only read by the call that starts the
    /// feeder.
    pub pace: *mut watchcore_subscription,
    /// How often to ask etcd whether the oldest revision of the window still exists; the cache drops what etcd has
    /// compacted. 0: never; 15000 is a good interval.
    pub follow_compaction_ms: i64,
    /// Lists and watches only this key of the cache's prefix, so that read access to this key is enough. Absent: the
    /// whole prefix.
    pub only_key: watchcore_bytes,
    /// Begins this many revisions below the newest one, or at the oldest that etcd still has, so that a client that was
    /// at one of them before the program began can resume there. The cache is ready once that history is replayed. 0:
    /// at the newest revision. A `start_revision` takes precedence, and with `stop_after_listing` the newest revision
    /// is listed.
    pub history: u64,
    /// How often the whole cache is compared with etcd, page by page, besides once after each reconnect; if a key
    /// differs twice, the cache is listed again as of another history. 0: 3600000. Negative: never.
    pub audit_interval_ms: i64,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_etcd_options {
    const NAME: &'static str = "watchcore_etcd_options";
    const DEFAULT: Self = watchcore_etcd_options {
        size: size_of::<Self>() as u32,
        stop_after_listing: 0,
        endpoints: watchcore_bytes::ABSENT,
        user: watchcore_bytes::ABSENT,
        password: watchcore_bytes::ABSENT,
        ca_file: watchcore_bytes::ABSENT,
        cert_file: watchcore_bytes::ABSENT,
        key_file: watchcore_bytes::ABSENT,
        ca_pem: watchcore_bytes::ABSENT,
        cert_pem: watchcore_bytes::ABSENT,
        key_pem: watchcore_bytes::ABSENT,
        server_name: watchcore_bytes::ABSENT,
        start_revision: 0,
        page_size: 0,
        too_far_behind: 0,
        progress_interval_ms: 0,
        dial_timeout_ms: 0,
        request_timeout_ms: 0,
        no_progress_requests: 0,
        min_tls_version: 0,
        pace: std::ptr::null_mut(),
        follow_compaction_ms: 0,
        only_key: watchcore_bytes::ABSENT,
        history: 0,
        audit_interval_ms: 0,
    };
}

/// The counters of a feeder since its start.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_counters {
    /// sizeof(watchcore_counters).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Resyncs by reason (WATCHCORE_RESYNC_...); element 0 is their sum.
    pub resyncs: [u64; 7],
    /// Watches opened.
    pub connects: u64,
    /// Watches opened beyond the first.
    pub reconnects: u64,
    /// Sessions that failed, including those that never connected.
    pub failures: u64,
    /// Watches given up because they were silent for too long.
    pub silences: u64,
    /// Watches opened again with fragments, because a message was too long.
    pub fragment_switches: u64,
    /// Listings that were begun.
    pub listings: u64,
    /// Pages of listings, and messages of those that came as streams.
    pub pages: u64,
    /// Reads that proved, after a reconnect, that the history is still the same.
    pub probes: u64,
    /// Messages on the watch.
    pub responses: u64,
    /// Fragments among those messages.
    pub fragments: u64,
    /// Revisions applied.
    pub revisions: u64,
    /// Events applied.
    pub events: u64,
    /// Bytes of keys and values in those events.
    pub bytes: u64,
    /// Messages that broke a rule of etcd's API, or did not fit what the cache held.
    pub integrity_violations: u64,
    /// Progress notifications that came.
    pub progress_notifications: u64,
    /// Progress notifications that were requested.
    pub progress_requests: u64,
    /// Linearizable reads for consistent revisions, those that failed included: one serves all
    /// requests that came before it began.
    pub consistent_reads: u64,
    /// Times that changed certificate files were taken into use for new connections.
    pub certificate_reloads: u64,
    /// Connections for which the certificate files could not be used.
    pub certificate_failures: u64,
    /// The most events in one message.
    pub max_events_queued: u64,
    /// The most events of one revision.
    pub max_revision_events: u64,
    /// Keys that were compared with etcd at once after a reconnect.
    pub sampled_keys: u64,
    /// Audits: comparisons of the whole range with etcd.
    pub audits: u64,
    /// Keys that audits compared.
    pub audited_keys: u64,
    /// Milliseconds that the audits took.
    pub audit_milliseconds: u64,
    /// Times that a sample or an audit found that etcd does not hold what the cache has at the same revision.
    pub differences: u64,
    /// Consistent reads that compared the cache with etcd's state, because progress requests are not answered.
    pub compared_reads: u64,
    /// 1 while progress requests are not answered, though etcd moves on.
    pub progress_unanswered: u64,
    /// Events that came again unchanged after they had been applied, and were dropped.
    pub repeated_events: u64,
    /// Linearizable reads beside a watch that show whether it lives and is not behind.
    pub liveness_reads: u64,
    /// Watches given up because they did not reach a revision that etcd had.
    pub stale_watches: u64,
}

// SAFETY: repr(C), starts with the size; numbers only.
unsafe impl Sized32 for watchcore_counters {
    const NAME: &'static str = "watchcore_counters";
    const DEFAULT: Self = watchcore_counters {
        size: size_of::<Self>() as u32,
        reserved: 0,
        resyncs: [0; 7],
        connects: 0,
        reconnects: 0,
        failures: 0,
        silences: 0,
        fragment_switches: 0,
        listings: 0,
        pages: 0,
        probes: 0,
        responses: 0,
        fragments: 0,
        revisions: 0,
        events: 0,
        bytes: 0,
        integrity_violations: 0,
        progress_notifications: 0,
        progress_requests: 0,
        consistent_reads: 0,
        certificate_reloads: 0,
        certificate_failures: 0,
        max_events_queued: 0,
        max_revision_events: 0,
        sampled_keys: 0,
        audits: 0,
        audited_keys: 0,
        audit_milliseconds: 0,
        differences: 0,
        compared_reads: 0,
        progress_unanswered: 0,
        repeated_events: 0,
        liveness_reads: 0,
        stale_watches: 0,
    };
}

/// Starts the thread that lists and watches etcd and keeps the cache up to date. It takes the cache's writer;
/// the cache is ready when its first listing is published. An unreachable server is no error here: the feeder
/// retries, and watchcore_cache_status shows the state.
/// `*feeder`: the caller's, ended by watchcore_feeder_free. Never blocks. Any thread, many at once. Codes:
/// INVALID_ARGUMENT, BUSY (the cache has a writer; or it was made without `expect_load` and has
/// subscriptions, which would miss the listing), CLOSED, RESOURCE_EXHAUSTED (no thread or no event loop; the
/// cache is unchanged), UNSUPPORTED (built without etcd).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_feeder_start(
    cache: *const watchcore_cache,
    options: *const watchcore_etcd_options,
    feeder: *mut *mut watchcore_feeder,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_feeder_start, error, {
        let feeder = try_out!(feeder);
        let cache = try_handle!(cache);
        let options = try_struct!(options);
        // SAFETY: the contract covers everything that `options` points to.
        let started = unsafe { imp::start(&cache, &options)? };
        feeder.write(handle::new(started, ()));
        Ok(())
    })
}

/// Stops the feeder: no call to etcd is made after it returns. All waits for the feeder end with CLOSED; the
/// cache can still be read. Idempotent. Blocks, at most until 2 s after the first stop. Any thread, many at
/// once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_feeder_stop(feeder: *const watchcore_feeder, error: *mut watchcore_error) -> i32 {
    frame!(watchcore_feeder_stop, error, {
        imp::stop(&*try_handle!(feeder));
        Ok(())
    })
}

/// Stops the feeder and frees the handle; NULL does nothing. Blocks, at most until 2 s after the first stop.
/// Any thread; no other call on the handle may run or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_feeder_free(feeder: *mut watchcore_feeder) {
    free!(watchcore_feeder_free, feeder);
}

/// Makes the feeder list again; the difference comes as a resync with reason REQUESTED. Returns at once.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_feeder_request_resync(
    feeder: *const watchcore_feeder,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_feeder_request_resync, error, {
        imp::request_resync(&*try_handle!(feeder));
        Ok(())
    })
}

/// Makes the feeder compact the cache up to and including a revision, as watchcore_writer_compact does: for a
/// program that learns of etcd's compactions first. Returns at once: the feeder's thread compacts up to the
/// cache's present position, and again when the cache has reached the revision.
/// Never blocks. Any thread, many at once. Codes: INVALID_ARGUMENT, CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_feeder_compact(
    feeder: *const watchcore_feeder,
    revision: u64,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_feeder_compact, error, { imp::compact(&*try_handle!(feeder), revision) })
}

/// The feeder's counters so far. `counters`: the caller's struct. Never blocks. Any thread, many at once.
/// Codes: INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchcore_feeder_counters(
    feeder: *const watchcore_feeder,
    counters: *mut watchcore_counters,
    error: *mut watchcore_error,
) -> i32 {
    frame!(watchcore_feeder_counters, error, {
        let counters = try_out_struct!(counters);
        let now = imp::counters(&*try_handle!(feeder));
        counters.write(now);
        Ok(())
    })
}

impl Object for watchcore_feeder {
    type Shared = imp::Running;
    type Exclusive = ();
    const KIND: u32 = 0x5743_0003;
    const NAME: &'static str = "watchcore_feeder";
    fn close(running: &imp::Running) {
        imp::stop(running);
    }
}

#[cfg(feature = "etcd")]
mod imp {
    use super::super::bytes::switch;
    use super::super::error::invalid;

    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::time::Duration;
    use watchcore_etcd::{Feeder, Tls, TlsVersion};

    pub(crate) type Running = Feeder;

    fn milliseconds(value: i64, what: &str) -> Result<Option<Duration>> {
        match value {
            0 => Ok(None),
            1.. => Ok(Some(Duration::from_millis(value.unsigned_abs()))),
            _ => Err(invalid(format!("options.{what} is {value}. Give milliseconds, or 0 for the default."))),
        }
    }

    fn path(bytes: &[u8]) -> &Path {
        Path::new(OsStr::from_bytes(bytes))
    }

    /// # Safety
    ///
    /// The contract, for the pointers in `options`.
    unsafe fn tls(options: &watchcore_etcd_options) -> Result<Option<Tls>> {
        let mut tls = Tls::new();
        let mut asked = true;
        tls = match (try_bytes!(options.ca_file), try_bytes!(options.ca_pem)) {
            (Some(_), Some(_)) => return Err(invalid("options.ca_file and options.ca_pem. Give one of them.")),
            (Some(file), None) => tls.ca_file(path(file)),
            (None, Some(pem)) => tls.ca_pem(pem),
            (None, None) => {
                asked = false;
                tls
            }
        };
        let files = (try_bytes!(options.cert_file), try_bytes!(options.key_file));
        let pems = (try_bytes!(options.cert_pem), try_bytes!(options.key_pem));
        match (files, pems) {
            ((None, None), (None, None)) => {}
            ((Some(certificate), Some(key)), (None, None)) => {
                (tls, asked) = (tls.client_files(path(certificate), path(key)), true);
            }
            ((None, None), (Some(certificate), Some(key))) => (tls, asked) = (tls.client_pem(certificate, key), true),
            _ => {
                return Err(invalid(
                    "options.cert_file without options.key_file, or cert_pem without key_pem, or the reverse, or all of them. Give a certificate and its key, both as files or both as bytes.",
                ));
            }
        }
        if let Some(name) = try_text!(options.server_name) {
            (tls, asked) = (tls.server_name(name), true);
        }
        match options.min_tls_version {
            0 => {}
            0x0303 => (tls, asked) = (tls.min_version(TlsVersion::V1_2), true),
            0x0304 => (tls, asked) = (tls.min_version(TlsVersion::V1_3), true),
            other => {
                return Err(invalid(format!(
                    "options.min_tls_version is {other:#06x}. Give 0x0303 for TLS 1.2, 0x0304 for TLS 1.3, or 0."
                )));
            }
        }
        Ok(asked.then_some(tls))
    }

    /// # Safety
    ///
    /// The contract, for the pointers in `options`.
    pub(super) unsafe fn start(cache: &Cache, options: &watchcore_etcd_options) -> Result<Running> {
        let endpoints = try_text!(options.endpoints).unwrap_or_default();
        // SAFETY: the contract of this function covers the pointers in `options`.
        let tls = unsafe { tls(options)? };
        let endpoints: Vec<&str> = endpoints.split(',').map(str::trim).filter(|e| !e.is_empty()).collect();
        if endpoints.is_empty() {
            return Err(invalid("options.endpoints names no server. Give one, such as \"http://127.0.0.1:2379\"."));
        }
        let mut builder = Feeder::new(endpoints)
            .stop_after_listing(switch(options.stop_after_listing, "options.stop_after_listing")?)
            .progress_requests(!switch(options.no_progress_requests, "options.no_progress_requests")?)
            .history(options.history);
        match (try_text!(options.user), try_text!(options.password)) {
            (Some(user), password) => builder = builder.user(user, password.unwrap_or_default()),
            (None, Some(_)) => return Err(invalid("options.password without options.user. Give the user's name too.")),
            (None, None) => {}
        }
        if let Some(tls) = tls {
            builder = builder.tls(tls);
        }
        if options.start_revision != 0 {
            builder = builder.start_revision(options.start_revision);
        }
        if options.page_size != 0 {
            builder = builder.page_size(options.page_size);
        }
        if options.too_far_behind != 0 {
            builder = builder.too_far_behind(options.too_far_behind);
        }
        if let Some(interval) = milliseconds(options.progress_interval_ms, "progress_interval_ms")? {
            builder = builder.progress_interval(interval);
        }
        if let Some(time) = milliseconds(options.dial_timeout_ms, "dial_timeout_ms")? {
            builder = builder.dial_timeout(time);
        }
        if let Some(time) = milliseconds(options.request_timeout_ms, "request_timeout_ms")? {
            builder = builder.request_timeout(time);
        }
        if let Some(interval) = milliseconds(options.follow_compaction_ms, "follow_compaction_ms")? {
            builder = builder.follow_compaction(interval);
        }
        if options.audit_interval_ms != 0 {
            // A negative interval becomes 0, which means never.
            let interval = u64::try_from(options.audit_interval_ms).unwrap_or(0);
            builder = builder.audit_interval(Duration::from_millis(interval));
        }
        if let Some(key) = try_bytes!(options.only_key) {
            builder = builder.only_key(key);
        }
        if !options.pace.is_null() {
            builder = builder.pace(&*try_exclusive!(options.pace));
        }
        builder.start(cache.writer()?)
    }

    pub(super) fn stop(running: &Running) {
        running.stop();
    }

    pub(super) fn request_resync(running: &Running) {
        running.request_resync();
    }

    pub(super) fn compact(running: &Running, revision: u64) -> Result<()> {
        running.compact(revision)
    }

    pub(super) fn counters(running: &Running) -> watchcore_counters {
        let now = running.counters();
        let mut resyncs = [0; 7];
        resyncs[0] = now.resyncs();
        for (number, counted) in (0..).zip(&mut resyncs).skip(1) {
            *counted = watchcore::ResyncReason::from_u32(number).map_or(0, |reason| now.resyncs_for(reason));
        }
        watchcore_counters {
            size: watchcore_counters::DEFAULT.size,
            reserved: 0,
            resyncs,
            connects: now.connects,
            reconnects: now.reconnects,
            failures: now.failures,
            silences: now.silences,
            fragment_switches: now.fragment_switches,
            listings: now.listings,
            pages: now.pages,
            probes: now.probes,
            responses: now.responses,
            fragments: now.fragments,
            revisions: now.revisions,
            events: now.events,
            bytes: now.bytes,
            integrity_violations: now.integrity_violations,
            progress_notifications: now.progress_notifications,
            progress_requests: now.progress_requests,
            consistent_reads: now.consistent_reads,
            certificate_reloads: now.certificate_reloads,
            certificate_failures: now.certificate_failures,
            max_events_queued: now.max_events_queued,
            max_revision_events: now.max_revision_events,
            sampled_keys: now.sampled_keys,
            audits: now.audits,
            audited_keys: now.audited_keys,
            audit_milliseconds: now.audit_milliseconds,
            differences: now.differences,
            compared_reads: now.compared_reads,
            progress_unanswered: now.progress_unanswered,
            repeated_events: now.repeated_events,
            liveness_reads: now.liveness_reads,
            stale_watches: now.stale_watches,
        }
    }
}

#[cfg(not(feature = "etcd"))]
mod imp {
    use super::*;

    /// A build without etcd has no feeder.
    pub(crate) enum Running {}

    /// # Safety
    ///
    /// The function has no requirements.
    pub(super) unsafe fn start(_: &Cache, _: &watchcore_etcd_options) -> Result<Running> {
        Err(super::super::error::unsupported(
            "this build of watchcore has no etcd feeder. Build it with the feature etcd, or take the writer and feed the cache yourself.",
        ))
    }

    pub(super) fn stop(running: &Running) {
        match *running {}
    }

    pub(super) fn request_resync(running: &Running) {
        match *running {}
    }

    pub(super) fn compact(running: &Running, _: u64) -> Result<()> {
        match *running {}
    }

    pub(super) fn counters(running: &Running) -> watchcore_counters {
        match *running {}
    }
}
