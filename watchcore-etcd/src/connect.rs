//! Connections: one endpoint each, never the client's own balancer; and reads over them.

use super::config::Options;
use super::failure::{Class, Failure};
use super::range::KeyRange;
use super::tls::TlsConnector;
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
use std::time::Duration;
use tonic::transport::Endpoint;

/// Makes a call of the client, at most `limit` long. Every call goes through here.
///
/// It yields before it begins: a stop that came while the thread was inside the cache is seen first, and drops
/// the call where it stands. So no call begins after a stop, however long the cache held the thread up.
pub(super) async fn within<T>(
    what: &str,
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

/// A client of one endpoint; with a user it has authenticated. The connection itself is made by its first call, and,
/// where it ends, made anew by the next one.
pub(super) async fn dial(options: &Options, url: &str) -> Result<Client, Failure> {
    let limit = options.dial_timeout + options.request_timeout;
    let channel = Channel::Tonic(channel(options, url).map_err(|error| Failure::new(Class::Refused, error))?);
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

fn channel(options: &Options, url: &str) -> Result<tonic::transport::Channel, String> {
    let uri: Uri = url.parse().map_err(|error| format!("the endpoint {url:?} is no URL: {error}"))?;
    let settings = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(options.dial_timeout)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(false)
            .tcp_keepalive(Some(KEEP_ALIVE))
    };
    let Some(credentials) = &options.credentials else {
        return Ok(settings(Endpoint::from(uri)).connect_lazy());
    };
    // The transport is to see a plain connection: TLS is the connector's, so that it reads the certificates each time.
    let host = uri.host().unwrap_or_default();
    let plain = format!("http://{host}:{}", uri.port_u16().unwrap_or(443));
    let plain: Uri = plain.parse().map_err(|error| format!("the endpoint {url:?} is no URL: {error}"))?;
    let endpoint = settings(Endpoint::from(plain)).origin(uri);
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(endpoint.get_tcp_nodelay());
    tcp.set_keepalive(endpoint.get_tcp_keepalive());
    tcp.set_connect_timeout(endpoint.get_connect_timeout());
    Ok(endpoint.connect_with_connector_lazy(TlsConnector::new(tcp, credentials.clone())))
}

/// What every response says of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    pub(super) revision: u64,
    pub(super) cluster: u64,
    pub(super) member: u64,
}

impl Header {
    /// Of a message on a watch stream.
    pub(super) fn of_message(header: Option<&PbResponseHeader>) -> Header {
        header.map_or_else(Header::default, |header| Header {
            revision: header.revision.max(0) as u64,
            cluster: header.cluster_id,
            member: header.member_id,
        })
    }

    pub(super) fn of(header: Option<&etcd_client::ResponseHeader>) -> Header {
        header.map_or_else(Header::default, |header| Header {
            revision: header.revision().max(0) as u64,
            cluster: header.cluster_id(),
            member: header.member_id(),
        })
    }
}

/// The connection for lists and single reads; the session's watch has its own.
#[derive(Clone)]
pub(super) struct Reader {
    url: Rc<str>,
    kv: KvClient,
    watch: WatchClient,
    timeout: Duration,
    message_limit: usize,
    /// Of all clones: those are of one connection.
    streams: Rc<Cell<bool>>,
}

impl Reader {
    pub(super) fn new(url: &str, client: &Client, options: &Options, message_limit: usize) -> Reader {
        let kv = client.kv_client().max_decoding_message_size(message_limit);
        Reader {
            url: url.into(),
            kv,
            watch: client.watch_client(),
            timeout: options.request_timeout,
            message_limit,
            // Who asks for a page's size wants pages.
            streams: Rc::new(Cell::new(options.page_size.is_none())),
        }
    }

    /// A new connection to the same endpoint.
    pub(super) async fn again(&self, options: &Options) -> Result<Reader, Failure> {
        let client = dial(options, &self.url).await?;
        Ok(Reader::new(&self.url, &client, options, options.message_limit))
    }

    /// A range read. It is linearizable unless `options` say otherwise.
    pub(super) async fn get(&self, key: &[u8], options: GetOptions) -> Result<GetResponse, Failure> {
        within("a read", self.timeout, self.kv.clone().get(key, Some(options))).await
    }

    /// A page of a listing, which may take longer.
    pub(super) async fn page(&self, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, Failure> {
        within("a page of the listing", self.page_timeout(), self.kv.clone().get(key, Some(options))).await
    }

    /// Begins a stream of a range: etcd cuts it into messages, and keeps it at one revision.
    pub(super) async fn stream(&self, key: Vec<u8>, options: GetOptions) -> Result<GetStreamResponse, Failure> {
        within("the stream of the listing", self.timeout, self.kv.clone().get_stream(key, Some(options))).await
    }

    /// The next message of it; none after the last one.
    pub(super) async fn message(&self, stream: &mut GetStreamResponse) -> Result<Option<GetResponse>, Failure> {
        within("the next message of the listing", self.timeout, stream.message()).await
    }

    /// Whether to ask for streams.
    pub(super) fn streams(&self) -> bool {
        self.streams.get()
    }

    /// One did not come whole: on this connection pages are asked for.
    pub(super) fn leave_streams(&self) {
        self.streams.set(false);
    }

    /// The header of a linearizable read that moves no data: etcd's newest revision.
    pub(super) async fn newest(&self, range: &KeyRange) -> Result<Header, Failure> {
        // The first key of the range: a user who may read the range may read it.
        let response = self.get(&range.start, GetOptions::new().with_count_only()).await?;
        let header = Header::of(response.header());
        if header.revision == 0 {
            return Err(Failure::new(Class::Retry, "etcd answered a read without a revision"));
        }
        Ok(header)
    }

    /// The same, beside the position from before it began.
    pub(super) async fn newest_since(&self, range: &KeyRange, applied: u64) -> Result<Newest, Failure> {
        Ok(Newest { header: self.newest(range).await?, applied })
    }

    /// A watch on this connection.
    pub(super) async fn watch(&self, key: &[u8], options: WatchOptions) -> Result<WatchStream, Failure> {
        within("the watch", self.timeout, self.watch.clone().watch(key, Some(options))).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_is_compared_with_before() {
        let newest = |revision, applied| Newest { header: Header { revision, ..Header::default() }, applied };
        assert!(newest(9, 10).went_back());
        assert!(!newest(10, 10).went_back());
        assert!(!newest(12, 10).went_back());
    }
}
