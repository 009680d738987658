//! Connections: one endpoint each, never the client's own balancer; and reads over them.

use super::config::Options;
use super::failure::{Class, Failure};
use super::range::KeyRange;
use etcd_client::{Client, GetOptions, GetResponse, KvClient};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

/// Awaits a call of the client, at most `limit`.
pub(super) async fn within<T>(
    what: &str,
    limit: Duration,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| Failure::of(&error)),
        Err(_) => Err(Failure::timeout(what, limit.as_secs_f64())),
    }
}

/// A client of one endpoint; with a user it has authenticated.
pub(super) async fn dial(options: &Options, url: &str) -> Result<Client, Failure> {
    let limit = options.dial_timeout + options.request_timeout;
    let connect = |with_user| within("the connection", limit, Client::connect([url], Some(options.connect(with_user))));
    match connect(true).await {
        Err(Failure { class: Class::AuthenticationOff, .. }) => {
            tracing::debug!(endpoint = url, "etcd has authentication switched off; going on without a user");
            connect(false).await
        }
        other => other,
    }
}

/// What every response says of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    pub(super) revision: u64,
    pub(super) cluster: u64,
    pub(super) member: u64,
}

impl Header {
    pub(super) fn of(header: Option<&etcd_client::ResponseHeader>) -> Header {
        header.map_or_else(Header::default, |header| Header {
            revision: header.revision().max(0) as u64,
            cluster: header.cluster_id(),
            member: header.member_id(),
        })
    }
}

/// The connection for lists and single reads; the watch has its own.
#[derive(Clone)]
pub(super) struct Reader {
    url: Rc<str>,
    kv: KvClient,
    timeout: Duration,
}

impl Reader {
    pub(super) fn new(url: &str, client: &Client, options: &Options, message_limit: usize) -> Reader {
        let kv = client.kv_client().max_decoding_message_size(message_limit);
        Reader { url: url.into(), kv, timeout: options.request_timeout }
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
        within("a page of the listing", self.timeout * 6, self.kv.clone().get(key, Some(options))).await
    }

    /// The newest revision, by a linearizable read that moves no data.
    pub(super) async fn newest(&self, range: &KeyRange) -> Result<Header, Failure> {
        // The first key of the range: a user who may read the range may read it.
        let response = self.get(&range.start, GetOptions::new().with_count_only()).await?;
        let header = Header::of(response.header());
        if header.revision == 0 {
            return Err(Failure::new(Class::Retry, "etcd answered a read without a revision"));
        }
        Ok(header)
    }
}
