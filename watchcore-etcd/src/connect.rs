//! Connections: one endpoint each, never the client's own balancer; and reads over them.

use super::config::Options;
use super::failure::{Class, Failure};
use super::integrity::revision_of_header;
use super::range::KeyRange;
use super::tls::{NotedRefusal, TlsConnector};
use super::traffic::{PlainConnector, Received};
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

/// Makes a call of the client, at most `limit` long. Every call goes through here.
///
/// It yields before it begins: a stop that came while the thread was inside the cache is seen first, and drops
/// the call where it stands. So no call begins after a stop, however long the cache held the thread up.
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

/// Between keep-alives of HTTP/2 and of TCP. Pings without a call in flight are what servers punish; within one they
/// are allowed every 5 s.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What the server may send on one stream before the stream's reader takes it: the default of the HTTP/2 client, written
/// down because [`CONNECTION_WINDOW`] depends on it. It bounds what lies in memory between the network and the cache.
const STREAM_WINDOW: u32 = 2 << 20;
/// h2 charges a connection 256 bytes for each DATA frame, less what the frame carries, until its stream is read, and ends the
/// connection ("too_many_data_frames") where the charges exceed half of the connection's window. etcd sends each message of
/// a watch in a frame of its own, so a watch of small events that is not read for a while is such a stream. With this
/// window a full stream of frames of one byte is not charged too much: `STREAM_WINDOW` times 255 lies below the half.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 2 * 256;

/// A client of one endpoint, and what TLS says of its connections. These are made by the first call, and, where one
/// ends, anew by the next.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Client,
    refusal: NotedRefusal,
    received: Received,
}

impl Connection {
    /// The bytes that came on it.
    pub(super) fn received(&self) -> u64 {
        self.received.bytes()
    }

    /// What a call on it came to: where TLS is the cause of a failure, in its words.
    pub(super) fn explained<T>(&self, answer: Result<T, Failure>) -> Result<T, Failure> {
        let refusal = self.refusal.take();
        answer.map_err(|failure| failure.explained(refusal))
    }
}

/// A connection to one endpoint; with a user it has authenticated.
pub(super) async fn dial(options: &Options, url: &str) -> Result<Connection, Failure> {
    let (refusal, received) = (NotedRefusal::default(), Received::default());
    let answer = match channel(options, url, &refusal, &received) {
        Ok(channel) => client(options, url, Channel::Tonic(channel)).await,
        Err(error) => Err(Failure::new(Class::Refused, error)),
    };
    let explained = answer.map_err(|failure| failure.explained(refusal.take()));
    explained.map(|client| Connection { client, refusal, received })
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

/// The connectors are our own: they count what comes, and read the certificates for each connection.
fn channel(
    options: &Options,
    url: &str,
    refusal: &NotedRefusal,
    received: &Received,
) -> Result<tonic::transport::Channel, String> {
    let uri: Uri = url.parse().map_err(|error| format!("the endpoint {url:?} is no URL: {error}"))?;
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
    // The transport is to see a plain connection: TLS is the connector's, so that it reads the certificates each time.
    let host = uri.host().unwrap_or_default();
    let plain = format!("http://{host}:{}", uri.port_u16().unwrap_or(443));
    let plain: Uri = plain.parse().map_err(|error| format!("the endpoint {url:?} is no URL: {error}"))?;
    let endpoint = settings(Endpoint::from(plain)).origin(uri);
    let tls = TlsConnector::new(tcp(&endpoint), credentials.clone(), refusal.clone(), received.clone());
    Ok(endpoint.connect_with_connector_lazy(tls))
}

/// What every response says of the store. Only [`OneCluster`] makes one of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    pub(super) revision: u64,
    pub(super) cluster: u64,
    pub(super) member: u64,
}

/// The one cluster that answers a session, on all of its connections: that of the first answer. Several clusters may
/// be behind one address, and a connection that broke is made anew by itself. An answer of another cluster is a
/// failure, which ends the session; the next one finds out whose history it is.
#[derive(Clone, Default)]
pub(super) struct OneCluster(Rc<Cell<u64>>);

impl OneCluster {
    /// The header of a response; all zeros where it has none. One that names no cluster is taken: proxies of etcd's
    /// make such ones.
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
    cluster: OneCluster,
    /// Of all clones: those are of one connection.
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
            cluster: OneCluster::default(),
            // Who asks for a page's size wants pages.
            streams: Rc::new(Cell::new(options.page_size.is_none())),
        }
    }

    /// A new connection to the same endpoint, and the same cluster.
    pub(super) async fn again(&self, options: &Options) -> Result<Reader, Failure> {
        let connection = dial(options, &self.url).await?;
        let reader = Reader::new(&self.url, connection, options, options.message_limit);
        Ok(Reader { cluster: self.cluster.clone(), ..reader })
    }

    /// The cluster that answers the session.
    pub(super) fn cluster(&self) -> &OneCluster {
        &self.cluster
    }

    /// A range read. It is linearizable unless `options` say otherwise.
    pub(super) async fn get(&self, key: &[u8], options: GetOptions) -> Result<GetResponse, Failure> {
        let answer = within("a read", self.timeout, self.kv.clone().get(key, Some(options))).await;
        let response = self.connection.explained(answer)?;
        self.cluster.header(response.0.header.as_ref())?;
        Ok(response)
    }

    /// A page of a listing, which may take longer.
    pub(super) async fn page(&self, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, Failure> {
        let answer =
            within("a page of the listing", self.page_timeout(), self.kv.clone().get(key, Some(options))).await;
        self.connection.explained(answer)
    }

    /// Begins a stream of a range: etcd cuts it into messages, and keeps it at one revision.
    pub(super) async fn stream(&self, key: Vec<u8>, options: GetOptions) -> Result<GetStreamResponse, Failure> {
        let mut kv = self.kv.clone();
        let answer = within("the stream of the listing", self.timeout, kv.get_stream(key, Some(options))).await;
        self.connection.explained(answer)
    }

    /// The next message of it; none after the last one. `since`: when the last keys came. A message without keys is no
    /// progress, so all that come between keys share the time of one.
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
        self.connection.explained(answer.map_err(timeout))
    }

    /// Whether to ask for streams.
    pub(super) fn streams(&self) -> bool {
        self.streams.get()
    }

    /// One did not come whole: on this connection pages are asked for.
    pub(super) fn leave_streams(&self) {
        self.streams.set(false);
    }

    /// The header of a linearizable read that moves no data: etcd's newest revision, to list at. What the cache
    /// is compared with comes from [`Reader::newest_since`].
    pub(super) async fn pin(&self, range: &KeyRange) -> Result<Header, Failure> {
        // The first key of the range: a user who may read the range may read it.
        Ok(self.count(&range.start, GetOptions::new()).await?.0)
    }

    /// The header of such a read, and how many keys etcd counts.
    pub(super) async fn count(&self, start: &[u8], options: GetOptions) -> Result<(Header, u64), Failure> {
        let response = self.get(start, options.with_count_only()).await?;
        let header = self.cluster.header(response.0.header.as_ref())?;
        if header.revision == 0 {
            return Err(Failure::new(Class::Retry, "etcd answered a read without a revision"));
        }
        Ok((header, response.count().max(0) as u64))
    }

    /// The same, beside the position from before it began.
    pub(super) async fn newest_since(&self, range: &KeyRange, applied: u64) -> Result<Newest, Failure> {
        Ok(Newest { header: self.pin(range).await?, applied })
    }

    /// The same with what the range holds: how many keys, and whether one of them was modified above `applied`.
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

    /// A watch on this connection.
    pub(super) async fn watch(&self, key: &[u8], options: WatchOptions) -> Result<WatchStream, Failure> {
        self.connection.explained(within("the watch", self.timeout, self.watch.clone().watch(key, Some(options))).await)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long a page of a listing may take.
    pub(super) fn page_timeout(&self) -> Duration {
        self.timeout * 6
    }

    /// The longest message that this connection takes.
    pub(super) fn message_limit(&self) -> usize {
        self.message_limit
    }
}

/// What a linearizable read said of the store, beside what had been applied *before the read began*: the one
/// position that its revision may be compared with. What is applied while the read is under way may be newer
/// than its answer, and says nothing of it.
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

    /// Whether etcd's newest revision lies below what had been applied: then it is another history. A single
    /// member may lag behind what was applied, but a linearizable read never does.
    pub(super) fn went_back(&self) -> bool {
        let Newest { header, applied } = self;
        if header.revision < *applied {
            log!(warn, applied, newest = header.revision, "etcd's revision went back: another history");
        }
        header.revision < *applied
    }
}

/// What a linearizable read of the whole range says of its state.
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
        let cluster = OneCluster::default();
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
