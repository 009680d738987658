//! The limits of a server.

use crate::object::invalid;
use std::time::Duration;
use watchcore::Result;

/// The smallest `header_bytes` that is accepted: browsers and proxies send heads of several KiB.
const MIN_HEADER_BYTES: usize = 8 << 10;

/// Limits of the server: see [`ApiBuilder::limits`](crate::ApiBuilder::limits).
///
/// ```
/// let mut limits = watchcore_http::Limits::default();
/// limits.watches = 50_000;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Watches in all. Once nine tenths are in use, a user (or an address, where users are not authenticated) that
    /// already has its even share gets no more. Default 10,000.
    pub watches: usize,
    /// Watches of one connection (HTTP/2 multiplexes many). Default 1,000.
    pub watches_per_connection: usize,
    /// Bytes of frames cached for each resource, and for the keys of each cache as `/v1/keys` shows them, so that an
    /// event is framed once for all watchers. Default 16 MiB.
    pub frame_bytes: usize,
    /// How long a connection of a [`Server`](crate::Server) may have unsent data for its client, a watch included,
    /// without the client taking a byte; then it is cut off. Default 60 s.
    pub stall: Duration,
    /// How long a list may take from its beginning, even if its client keeps reading; then it is cut off. A list is of
    /// one revision, so the cache keeps later changes in memory until it ends. Default 10 minutes.
    pub list: Duration,
    /// How long a watch may take, whatever `timeoutSeconds` says. A watch without `timeoutSeconds` ends after a random
    /// time between half of this and all of it. Default an hour.
    pub watch: Duration,
    /// Bytes of answers of a [`Server`](crate::Server) that were produced and not yet taken by their clients. Beyond:
    /// 429, and the answer whose client has taken nothing for longest is cut off. Default 256 MiB.
    pub unread_bytes: usize,
    /// `unread_bytes` for each client: a user, or an address where users are not authenticated. Default 64 MiB.
    pub unread_bytes_per_client: usize,
    /// Connections of a [`Server`](crate::Server); the limit on open files may lower this. Beyond, only health probes
    /// are answered. Once nine tenths are in use, an address that already has its even share gets no more. Default
    /// 20,000.
    pub connections: usize,
    /// How old a connection may become, varied at random by a tenth; then HTTP/2 gets GOAWAY, and HTTP/1.1 closes with
    /// its next answer. Default an hour.
    pub connection_age: Duration,
    /// Bytes of a request's head, its first line and its headers. Beyond: 431. Default 32 KiB, and at least 8 KiB.
    pub header_bytes: usize,
    /// Bytes of path and query. Beyond: 414. Default 16 KiB.
    pub url_bytes: usize,
    /// How long the head of a request may take from its first byte, and the first request of a connection from when the
    /// connection was accepted; then the connection is closed. Default 10 s.
    pub header_timeout: Duration,
    /// How long the TLS handshake may take. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long a connection may wait for its next request. Default 2 minutes: longer than most clients wait, so that
    /// the client closes and no request crosses the server's close.
    pub idle: Duration,
    /// `idle` for a connection without an authenticated request, where authentication is required: strangers then do
    /// not hold connections that others need. Default 10 s.
    pub idle_unknown: Duration,
    /// Bytes queued for a client in one stream, in addition to the kernel's buffers. Default 64 KiB.
    pub queued_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            watches: 10_000,
            watches_per_connection: 1_000,
            frame_bytes: 16 << 20,
            stall: Duration::from_secs(60),
            list: Duration::from_secs(600),
            watch: Duration::from_secs(3600),
            unread_bytes: 256 << 20,
            unread_bytes_per_client: 64 << 20,
            connections: 20_000,
            connection_age: Duration::from_secs(3600),
            header_bytes: 32 << 10,
            url_bytes: 16 << 10,
            header_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            idle_unknown: Duration::from_secs(10),
            queued_bytes: 64 << 10,
        }
    }
}

impl Limits {
    /// # Errors
    /// INVALID_ARGUMENT if no request could be served within these limits.
    pub(crate) fn check(&self) -> Result<()> {
        if self.header_bytes < MIN_HEADER_BYTES {
            let given = self.header_bytes;
            let message = format!("header_bytes is {given}: requests would not fit. Give {MIN_HEADER_BYTES} or more.");
            return Err(invalid(message));
        }
        let zeros = [
            ("queued_bytes", self.queued_bytes == 0),
            ("url_bytes", self.url_bytes == 0),
            ("header_timeout", self.header_timeout.is_zero()),
            ("handshake_timeout", self.handshake_timeout.is_zero()),
            ("stall", self.stall.is_zero()),
            ("list", self.list.is_zero()),
            ("watch", self.watch.is_zero()),
            ("unread_bytes", self.unread_bytes == 0),
            ("unread_bytes_per_client", self.unread_bytes_per_client == 0),
            ("connection_age", self.connection_age.is_zero()),
        ];
        match zeros.iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(invalid(format!("{name} is 0: nothing would be served. Give more."))),
            None => Ok(()),
        }
    }

    /// Returns the duration of a watch: as requested, up to nine tenths of `watch`. Longer requests last a random
    /// time between that and the limit, and watches without a request between half and all of it, so that watches that
    /// began together do not end together.
    pub(crate) fn watch_duration(&self, asked: Option<Duration>) -> Duration {
        let least = match asked {
            Some(asked) if asked <= self.watch.mul_f64(0.9) => return asked,
            Some(_) => 0.9,
            None => 0.5,
        };
        self.watch.mul_f64(least + (1.0 - least) * fastrand::f64())
    }
}
