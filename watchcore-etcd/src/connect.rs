//! Connections to one endpoint each (the client's own balancer is not used), and reads over them.

use super::config::{Options, UNIX};
use super::failure::{Class, Failure};
use super::integrity::revision_of_header;
use super::range::KeyRange;
use super::tls::{RecordedRefusal, TlsConnector};
use super::traffic::{PlainConnector, Received, UnixConnector};
use crate::log::log;
use etcd_client::proto::PbResponseHeader;
use etcd_client::{
    Channel, Client, GetOptions, GetResponse, GetStreamResponse, KvClient, WatchClient, WatchOptions, WatchStream,
};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tonic::transport::Endpoint;

/// Runs a call of the client for at most `limit`. Every call to etcd goes through here.
///
/// The function yields before the call begins: a stop that came while the thread was inside the cache is seen first
/// and drops the call. So no call begins after a stop, however long the cache delayed the thread.
pub(super) async fn within<T>(
    what: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Failure> {
    tokio::task::yield_now().await;
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| Failure::of(&error)),
        Err(_) => Err(Failure::timeout(what, limit.as_secs_f64())),
    }
}

/// The interval of keep-alives, of HTTP/2 and of TCP. Servers punish pings without a call in progress; during a call
/// they allow one every 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How many bytes the server may send on one stream before they are read: the default of the HTTP/2 client, written
/// down because [`CONNECTION_WINDOW`] depends on it. It bounds the memory between the network and the cache.
const STREAM_WINDOW: u32 = 2 << 20;
/// h2 charges a connection 256 bytes for each unread DATA frame, less the bytes the frame carries, and ends the
/// connection ("too_many_data_frames") when the charges exceed half of the connection's window. etcd sends each
/// message of a watch in its own frame, so a watch of small events that is not read for a while accumulates such
/// charges. With this window even a full stream of one-byte frames is allowed: `STREAM_WINDOW` times 255 is below the
/// half.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 2 * 256;

/// A client of one endpoint, and the recorded TLS failures of its connections. The first call opens a connection; if
/// one ends, the next call opens another.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    refusal: RecordedRefusal,
    received: Received,
}

impl Connection {
    /// The number of bytes received.
    pub(super) fn received(&self) -> u64 {
        self.received.bytes()
    }

    /// Replaces a failure by its TLS cause, if it has one.
    pub(super) fn with_tls_cause<T>(&self, answer: Result<T, Failure>) -> Result<T, Failure> {
        let refusal = self.refusal.take();
        answer.map_err(|failure| failure.with_tls_cause(refusal))
    }
}

/// Prepares a connection to one endpoint, authenticated if a user is configured.
pub(super) async fn dial(options: &Options, url: &str) -> Result<Connection, Failure> {
    let (refusal, received) = (RecordedRefusal::default(), Received::default());
    let answer = match channel(options, url, &refusal, &received) {
        Ok(channel) => client(options, url, Channel::Tonic(channel)).await,
        Err(error) => Err(Failure::new(Class::Refused, error)),
    };
    let checked = answer.map_err(|failure| failure.with_tls_cause(refusal.take()));
    checked.map(|client| Connection { client, refusal, received })
}

async fn client(options: &Options, url: &str, channel: Channel) -> Result<Client, Failure> {
    let limit = options.dial_timeout + options.request_timeout;
    let connect = |with_user| {
        let client = Client::from_channel(channel.clone(), Some(options.connect(with_user)));
        within("the connection", limit, client)
    };
    match connect(true).await {
        Err(Failure { class: Class::AuthenticationOff, .. }) => {
            log!(debug, endpoint = url, "etcd has authentication switched off; continuing without a user");
            connect(false).await
        }
        other => other,
    }
}

/// Builds the channel with our own connectors: they count bytes, and read the certificates for each connection.
fn channel(
    options: &Options,
    url: &str,
    refusal: &RecordedRefusal,
    received: &Received,
) -> Result<tonic::transport::Channel, String> {
    let settings = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(options.dial_timeout)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(false)
            .tcp_keepalive(Some(KEEP_ALIVE))
    };
    if let Some(socket) = url.strip_prefix(UNIX) {
        // The host is a name for the requests only: the connector opens the socket.
        let endpoint = settings(Endpoint::from_static("http://localhost"));
        return Ok(endpoint.connect_with_connector_lazy(UnixConnector::new(socket, received.clone())));
    }
    let uri: Uri = url.parse().map_err(|error| format!("the endpoint {url:?} is no URL: {error}"))?;
    let tcp = |endpoint: &Endpoint| {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(endpoint.get_tcp_nodelay());
        tcp.set_keepalive(endpoint.get_tcp_keepalive());
        tcp.set_connect_timeout(endpoint.get_connect_timeout());
        tcp
    };
    let Some(credentials) = &options.credentials else {
        let endpoint = settings(Endpoint::from(uri));
        return Ok(endpoint.connect_with_connector_lazy(PlainConnector::new(tcp(&endpoint), received.clone())));
    };
    // The transport sees a plain URL, because the connector does TLS itself and reads the certificates each time.
    let host = uri.host().unwrap_or_default();
    let plain = format!("http://{host}:{}", uri.port_u16().unwrap_or(443));
    let plain: Uri = plain.parse().map_err(|error| format!("the endpoint {url:?} is no URL: {error}"))?;
    let endpoint = settings(Endpoint::from(plain)).origin(uri);
    let tls = TlsConnector::new(tcp(&endpoint), credentials.clone(), refusal.clone(), received.clone());
    Ok(endpoint.connect_with_connector_lazy(tls))
}

/// The part of every response that describes the store. Only [`ClusterPin`] makes one from a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    pub(super) revision: u64,
    pub(super) cluster: u64,
    pub(super) member: u64,
}

/// Pins a session to one cluster, on all of its connections: the cluster of the first answer. Several clusters may be
/// behind one address, and a broken connection is reopened automatically. An answer of another cluster fails the
/// session; the next one finds out which history that is.
#[derive(Clone, Default)]
pub(super) struct ClusterPin(Rc<Cell<u64>>);

impl ClusterPin {
    /// Returns the header of a response; all zeros if it has none. A header without a cluster is accepted: proxies of
    /// etcd send such ones.
    pub(super) fn header(&self, header: Option<&PbResponseHeader>) -> Result<Header, Failure> {
        let Some(header) = header else { return Ok(Header::default()) };
        let (first, cluster) = (self.0.get(), header.cluster_id);
        if first == 0 {
            self.0.set(cluster);
        } else if cluster != 0 && cluster != first {
            let text = format!("the cluster {cluster:x} answered in a session with the cluster {first:x}");
            return Err(Failure::new(Class::Retry, text));
        }
        Ok(Header { revision: revision_of_header(header.revision)?, cluster, member: header.member_id })
    }
}

/// The connection for lists and single reads; the session's watch has its own.
#[derive(Clone)]
pub(super) struct Reader {
    url: Rc<str>,
    connection: Connection,
    kv: KvClient,
    watch: WatchClient,
    timeout: Duration,
    message_limit: usize,
    cluster: ClusterPin,
    /// Whether to ask for streams; shared by all clones, which use the same connection.
    streams: Rc<Cell<bool>>,
}

impl Reader {
    pub(super) fn new(url: &str, connection: Connection, options: &Options, message_limit: usize) -> Reader {
        let kv = connection.client.kv_client().max_decoding_message_size(message_limit);
        Reader {
            url: url.into(),
            kv,
            watch: connection.client.watch_client(),
            connection,
            timeout: options.request_timeout,
            message_limit,
            cluster: ClusterPin::default(),
            // A user who sets a page size wants pages.
            streams: Rc::new(Cell::new(options.page_size.is_none())),
        }
    }

    /// Opens a new connection to the same endpoint, pinned to the same cluster.
    pub(super) async fn reconnect(&self, options: &Options) -> Result<Reader, Failure> {
        let connection = dial(options, &self.url).await?;
        let reader = Reader::new(&self.url, connection, options, options.message_limit);
        Ok(Reader { cluster: self.cluster.clone(), ..reader })
    }

    /// The cluster from which all answers to this client must come.
    pub(super) fn cluster(&self) -> &ClusterPin {
        &self.cluster
    }

    /// A range read, linearizable unless `options` say otherwise.
    pub(super) async fn get(&self, key: &[u8], options: GetOptions) -> Result<GetResponse, Failure> {
        let answer = within("a read", self.timeout, self.kv.clone().get(key, Some(options))).await;
        let response = self.connection.with_tls_cause(answer)?;
        self.cluster.header(response.0.header.as_ref())?;
        Ok(response)
    }

    /// Reads a page of a listing, with a longer timeout.
    pub(super) async fn page(&self, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, Failure> {
        let answer =
            within("a page of the listing", self.page_timeout(), self.kv.clone().get(key, Some(options))).await;
        self.connection.with_tls_cause(answer)
    }

    /// Begins a stream of a range: etcd sends it in several messages, all of one revision.
    pub(super) async fn stream(&self, key: Vec<u8>, options: GetOptions) -> Result<GetStreamResponse, Failure> {
        let mut kv = self.kv.clone();
        let answer = within("the stream of the listing", self.timeout, kv.get_stream(key, Some(options))).await;
        self.connection.with_tls_cause(answer)
    }

    /// Returns the next message of a stream, `None` after the last one. `since` is when the last keys came: a message
    /// without keys is no progress, so all messages between keys share one timeout.
    pub(super) async fn message(
        &self,
        stream: &mut GetStreamResponse,
        since: Instant,
    ) -> Result<Option<GetResponse>, Failure> {
        let limit = self.timeout.saturating_sub(since.elapsed());
        let answer = within("the next message of the listing", limit, stream.message()).await;
        let timeout = |failure: Failure| match failure.kind {
            Some(kind) => Failure::timeout(kind, self.timeout.as_secs_f64()),
            None => failure,
        };
        self.connection.with_tls_cause(answer.map_err(timeout))
    }

    /// Whether to ask for streams.
    pub(super) fn streams(&self) -> bool {
        self.streams.get()
    }

    /// Switches this connection to pages, after a stream that did not arrive whole.
    pub(super) fn use_pages(&self) {
        self.streams.set(false);
    }

    /// The header of a linearizable read that moves no data: etcd's newest revision, to list at. Comparisons with the
    /// cache use [`Reader::newest_since`] instead.
    pub(super) async fn pin(&self, range: &KeyRange) -> Result<Header, Failure> {
        // The first key of the range: a user who may read the range may read this key.
        Ok(self.count(&range.start, GetOptions::new()).await?.0)
    }

    /// The header of a linearizable count, and the count.
    pub(super) async fn count(&self, start: &[u8], options: GetOptions) -> Result<(Header, u64), Failure> {
        let response = self.get(start, options.with_count_only()).await?;
        let header = self.cluster.header(response.0.header.as_ref())?;
        if header.revision == 0 {
            return Err(Failure::new(Class::Retry, "etcd answered a read without a revision"));
        }
        Ok((header, response.count().max(0) as u64))
    }

    /// A linearizable read without data, beside the position from before it began.
    pub(super) async fn newest_since(&self, range: &KeyRange, applied: u64) -> Result<Newest, Failure> {
        Ok(Newest { header: self.pin(range).await?, applied })
    }

    /// A linearizable read of the range's size and of whether a key was modified above `applied`.
    pub(super) async fn state_since(&self, range: &KeyRange, applied: u64) -> Result<StateSince, Failure> {
        let above = i64::try_from(applied).unwrap_or(i64::MAX).saturating_add(1);
        let options = GetOptions::new().with_range(range.end.clone()).with_keys_only();
        let response = self.get(&range.start, options.with_min_mod_revision(above).with_limit(1)).await?;
        let header = self.cluster.header(response.0.header.as_ref())?;
        if header.revision == 0 {
            return Err(Failure::new(Class::Retry, "etcd answered a read without a revision"));
        }
        let (keys, has_newer) = (response.count().max(0) as u64, !response.kvs().is_empty());
        Ok(StateSince { newest: Newest { header, applied }, keys, has_newer })
    }

    /// Opens a watch on this connection.
    pub(super) async fn watch(&self, key: &[u8], options: WatchOptions) -> Result<WatchStream, Failure> {
        self.connection
            .with_tls_cause(within("the watch", self.timeout, self.watch.clone().watch(key, Some(options))).await)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The timeout of a page of a listing.
    pub(super) fn page_timeout(&self) -> Duration {
        self.timeout * 6
    }

    /// The length limit of messages on this connection.
    pub(super) fn message_limit(&self) -> usize {
        self.message_limit
    }
}

/// The header of a linearizable read, and the revision that had been applied *before the read began*: the only
/// position that may be compared with the header. Revisions applied during the read may be newer than its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    header: Header,
    applied: u64,
}

impl Newest {
    #[cfg(test)]
    pub(super) fn for_tests(revision: u64, applied: u64) -> Newest {
        Newest { header: Header { revision, ..Header::default() }, applied }
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Whether etcd's newest revision lies below the applied one: then it is another history. A single member may lag
    /// behind the applied revision, but a linearizable read never does.
    pub(super) fn went_back(&self) -> bool {
        let Newest { header, applied } = self;
        if header.revision < *applied {
            log!(warn, applied, newest = header.revision, "etcd's revision went back, so it has another history");
        }
        header.revision < *applied
    }
}

/// The result of a linearizable read of the whole range: how many keys, and whether one is newer.
pub(super) struct StateSince {
    pub(super) newest: Newest,
    pub(super) keys: u64,
    pub(super) has_newer: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_has_one_cluster() {
        let of = |cluster_id| PbResponseHeader { cluster_id, revision: 7, ..PbResponseHeader::default() };
        let cluster = ClusterPin::default();
        assert_eq!(cluster.header(None), Ok(Header::default()));
        assert!(cluster.header(Some(&of(0))).is_ok(), "nothing is known yet");
        assert_eq!(cluster.header(Some(&of(1))).unwrap().cluster, 1);
        assert!(cluster.clone().header(Some(&of(2))).is_err_and(|failure| failure.class == Class::Retry));
        assert!(cluster.header(Some(&of(1))).is_ok() && cluster.header(Some(&of(0))).is_ok());
    }

    #[test]
    fn newest_is_compared_with_before() {
        assert!(Newest::for_tests(9, 10).went_back());
        assert!(!Newest::for_tests(10, 10).went_back());
        assert!(!Newest::for_tests(12, 10).went_back());
    }
}
