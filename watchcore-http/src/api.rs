//! The service that an embedding program builds, and the steps that every request passes.

use crate::access::{Access, Asked, Authenticator, Authorizer, Peer, User, catch_panic};
use crate::catalog::{Catalog, Resource, invalid};
use crate::clients::{Account, BlockingPool, ClientId, Unread};
use crate::counters::Counters;
use crate::keys;
use crate::operate;
use crate::page::{self, Viewers};
use crate::request::{Params, Route, canonical_path};
use crate::request_record::RequestRecord;
use crate::resources::discovery::{self, DiscoveryPath};
use crate::resources::{self, ObjectPath};
use crate::status::Refusal;
use crate::watch::{OpenWatches, Recheck};
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::Method;
use http::request::Parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use watchcore::{Cache, Code, Error, Result};

/// The smallest `header_bytes` that is accepted: browsers and proxies send heads of several KiB.
const MIN_HEADER_BYTES: usize = 8 << 10;

/// Limits of the server: see [`ApiBuilder::limits`].
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
    fn check(&self) -> Result<()> {
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
}

/// State that all requests share.
pub(crate) struct ApiState {
    pub(crate) catalog: Catalog,
    pub(crate) open: Arc<OpenWatches>,
    pub(crate) unread: Arc<Unread>,
    /// Concurrency limit of reads that visit every key of a large cache.
    pub(crate) list_pool: Arc<BlockingPool>,
    /// Concurrency limit of reads that gather from all resources, caches or subscriptions.
    pub(crate) stats_pool: Arc<BlockingPool>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) bookmark_interval: Duration,
    pub(crate) counters: Arc<Counters>,
    pub(crate) viewers: Viewers,
    pub(crate) access: Arc<Access>,
    /// How long a cache may be without its source before `/readyz` fails.
    pub(crate) stale_limit: Duration,
    /// Set once shutdown has begun; `/readyz` then fails.
    pub(crate) is_ending: AtomicBool,
}

/// The service over some caches: a [`Router`] that a program nests, or the base of a [`Server`](crate::Server).
///
/// Clones share the same service.
///
/// ```
/// use axum::{Router, routing::get};
/// use watchcore::Cache;
/// use watchcore_http::Api;
///
/// let api = Api::builder().cache(Cache::builder("/registry/").build()?).build()?;
/// let app: Router = Router::new().route("/hello", get(|| async { "hello" })).merge(api.router());
/// # let _ = app;
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Api(pub(crate) Arc<ApiState>);

/// Builder of an [`Api`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::Cache;
/// use watchcore_http::{Api, Resource};
///
/// let pods = Resource::new("", "v1", "pods", "Pod").namespaced(true).prefix("/registry/pods/");
/// let cache = Resource::declare(Cache::builder("/registry/"), [&pods])?.build()?;
/// let api = Api::builder().cache(cache).resource(pods).bookmark_interval(Duration::from_secs(10)).build()?;
/// # let _ = api;
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Default)]
pub struct ApiBuilder {
    caches: Vec<Cache>,
    resources: Vec<Resource>,
    limits: Limits,
    bookmark_interval: Option<Duration>,
    access: Access,
    stale_limit: Option<Duration>,
    recheck_interval: Option<Duration>,
}

impl Api {
    /// An empty builder.
    pub fn builder() -> ApiBuilder {
        ApiBuilder::default()
    }

    /// Returns the service as a router.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.0.clone())
    }

    /// Ends all watches, spread over `grace`; new ones are refused from now on, and `/readyz` fails. Lists and other
    /// answers continue.
    pub async fn drain(&self, grace: Duration) {
        self.begin_end();
        self.0.open.drain(grace).await;
    }

    /// Answers a request that is refused before its path is routed. The answer is counted, logged and gets an ID like
    /// any other.
    pub(crate) fn refuse(&self, request: &Parts, refusal: Refusal) -> Response {
        let route = Route::of(request.uri.path());
        let subject = operate::subject(&self.0, request, &route);
        let record = RequestRecord::begin(request, subject, self.0.counters.clone());
        let mut response = refusal.into_response();
        response.headers_mut().extend(self.0.access.response_headers(request));
        operate::finish(record, response)
    }

    /// Makes `/readyz` fail from now on.
    pub(crate) fn begin_end(&self) {
        self.0.is_ending.store(true, Relaxed);
    }

    /// Whether requests must be authenticated.
    pub(crate) fn authenticates(&self) -> bool {
        !self.0.access.authenticators.is_empty()
    }
}

impl ApiBuilder {
    /// Adds a cache: its keys are served below `/v1/keys`, and resources may lie in it.
    pub fn cache(mut self, cache: Cache) -> ApiBuilder {
        self.caches.push(cache);
        self
    }

    /// Adds a resource. Its cache must be added too, best prepared by [`Resource::declare`].
    pub fn resource(mut self, resource: Resource) -> ApiBuilder {
        self.resources.push(resource);
        self
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: Limits) -> ApiBuilder {
        self.limits = limits;
        self
    }

    /// Sets how often a watch that asked for bookmarks gets one. Default: a minute.
    pub fn bookmark_interval(mut self, interval: Duration) -> ApiBuilder {
        self.bookmark_interval = Some(interval);
        self
    }

    /// Adds a way to authenticate requests. With at least one, every request but health must be authenticated.
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> ApiBuilder {
        self.access.authenticators.push(Box::new(authenticator));
        self
    }

    /// Adds an authorizer, which decides about each request. Default: every authenticated user may read everything. Of
    /// several, each must allow the request; they are asked in the order in which they were added, up to the first that
    /// denies.
    pub fn authorizer(mut self, authorizer: impl Authorizer) -> ApiBuilder {
        self.access.authorizers.push(Box::new(authorizer));
        self
    }

    /// Adds a host name that the server answers to, such as `watch.example`, with or without a port, where requests
    /// need not be authenticated. Loopback names and the address that a connection came to are accepted without this.
    pub fn host(mut self, name: impl Into<String>) -> ApiBuilder {
        self.access.origins.hosts.push(name.into());
        self
    }

    /// Adds an origin whose pages may call the server and read its answers: `https://ops.example`. The server's own
    /// origin is allowed without this.
    pub fn origin(mut self, origin: impl Into<String>) -> ApiBuilder {
        self.access.origins.origins.push(origin.into());
        self
    }

    /// Sets how long a cache may be without its source before `/readyz` fails and the watches on it end, so that their
    /// clients find another server. Watches that begin after that stay. Default: a minute.
    pub fn stale_limit(mut self, limit: Duration) -> ApiBuilder {
        self.stale_limit = Some(limit);
        self
    }

    /// Sets how often the user of each open watch is authenticated again and its watch authorized again. Default: 15 s.
    /// An authenticator or authorizer has a third of the interval to answer.
    pub fn recheck_interval(mut self, interval: Duration) -> ApiBuilder {
        self.recheck_interval = Some(interval);
        self
    }

    /// Builds the service.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a resource lies in no cache, cannot be served, or was added twice; or if limits are so low
    /// that no request could be served: `header_bytes` below 8 KiB, or zero for a size or time that must not be zero.
    pub fn build(self) -> Result<Api> {
        self.limits.check()?;
        let access = Arc::new(self.access);
        let interval = self.recheck_interval.unwrap_or(Duration::from_secs(15));
        let recheck = Recheck { access: access.clone(), interval };
        let (watches, of_connection) = (self.limits.watches, self.limits.watches_per_connection);
        let stale_limit = self.stale_limit.unwrap_or(Duration::from_secs(60));
        Ok(Api(Arc::new(ApiState {
            catalog: Catalog::new(self.caches, self.resources, self.limits.frame_bytes)?,
            list_pool: Arc::default(),
            stats_pool: Arc::default(),
            unread: Unread::new(self.limits.unread_bytes, self.limits.unread_bytes_per_client),
            open: OpenWatches::rechecked(watches, of_connection, self.limits.stall, stale_limit, recheck),
            limits: Arc::new(self.limits),
            bookmark_interval: self.bookmark_interval.unwrap_or(Duration::from_secs(60)),
            counters: Arc::default(),
            viewers: Viewers::default(),
            access,
            stale_limit,
            is_ending: AtomicBool::new(false),
        })))
    }
}

/// Handles a request: routes it, authenticates and authorizes it, and dispatches it.
async fn answer(State(state): State<Arc<ApiState>>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let route = Route::of(parts.uri.path());
    let record = RequestRecord::begin(&parts, operate::subject(&state, &parts, &route), state.counters.clone());
    parts.extensions.insert(record.clone());
    let headers = state.access.response_headers(&parts);
    let made = async move {
        if let Some(preflight) = state.access.preflight(&parts)? {
            return Ok(preflight);
        }
        let account = admit(&state, &mut parts, &route).await?;
        let mut response = dispatch(state, route?, parts).await?;
        response.extensions_mut().insert(account);
        Ok(response)
    };
    let response = catch_panic(made).await.unwrap_or_else(|| {
        let id = record.id().to_str().unwrap_or_default();
        tracing::error!(target: "watchcore_http", id, "a request panicked");
        Err(Refusal::from(&Error::new(Code::Internal, "it panicked")))
    });
    let mut response = response.unwrap_or_else(IntoResponse::into_response);
    for (name, value) in &headers {
        response.headers_mut().append(name, value.clone());
    }
    operate::finish(record, response)
}

/// Authenticates and authorizes the request, and refuses it if its client has too many unread bytes. Afterwards the
/// request's extensions hold the [`User`], if known, and the client's account.
async fn admit(
    state: &ApiState,
    parts: &mut Parts,
    route: &std::result::Result<Route, Refusal>,
) -> std::result::Result<Arc<Account>, Refusal> {
    let is_health = matches!(route, Ok(Route::Health(_)));
    state.access.check(parts, is_health, |parts| asked(parts, route)).await?;
    if let Some(user) = parts.extensions.get::<User>() {
        if let Some(record) = RequestRecord::of(parts) {
            record.set_user(user.name());
        }
        if let Some(activity) = Peer::of(parts).and_then(|peer| peer.activity.as_ref()) {
            activity.is_known();
        }
    }
    let client = ClientId::of(parts);
    let account = if is_health { state.unread.account(&client) } else { state.unread.admit(&client)? };
    parts.extensions.insert(account.clone());
    Ok(account)
}

/// Describes the request for authorizers.
///
/// # Errors
/// 400 if the parameters are malformed: it is then unknown whether the request is a list or a watch.
fn asked(parts: &Parts, route: &std::result::Result<Route, Refusal>) -> std::result::Result<Asked, Refusal> {
    let path = parts.uri.path();
    let mut asked = Asked::of_path(parts, canonical_path(path).unwrap_or_else(|| path.to_owned()));
    if let Ok(Route::Objects { version, plural, namespace, name, old_watch }) = route {
        if matches!(parts.method, Method::GET | Method::HEAD) {
            let watches = *old_watch || Params::parse(parts.uri.query())?.watch;
            let verb = if watches { "watch" } else { name.as_ref().map_or("list", |_| "get") };
            asked.verb = verb.to_owned();
        }
        asked.group.clone_from(&version.group);
        asked.version.clone_from(&version.version);
        asked.resource.clone_from(plural);
        asked.namespace.clone_from(namespace);
        asked.name.clone_from(name);
    }
    Ok(asked)
}

async fn dispatch(state: Arc<ApiState>, route: Route, parts: Parts) -> std::result::Result<Response, Refusal> {
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return Err(resources::refuse_write(&state, route, &parts.method));
    }
    match route {
        Route::Health(which) => Ok(operate::health(&state, which, &parts).await),
        Route::Metrics => operate::metrics(state, &parts).await,
        Route::CoreVersions => discovery::answer(state, DiscoveryPath::CoreVersions, parts).await,
        Route::Groups => discovery::answer(state, DiscoveryPath::Groups, parts).await,
        Route::Group(group) => discovery::answer(state, DiscoveryPath::Group(group), parts).await,
        Route::Resources(version) => discovery::answer(state, DiscoveryPath::Resources(version), parts).await,
        Route::Version => discovery::answer(state, DiscoveryPath::Version, parts).await,
        Route::OpenApi(path) => discovery::answer(state, DiscoveryPath::OpenApi(path), parts).await,
        Route::Objects { version, plural, namespace, name, old_watch } => {
            let path = ObjectPath { version, plural, namespace, name, old_watch };
            resources::answer(&state, path, &parts).await
        }
        Route::Subresource { .. } => Err(resources::no_subresource(&state, route)),
        Route::Page => Ok(page::page()),
        Route::PageEvents => page::events(&state, &parts),
        Route::Keys => keys::answer(&state, &parts).await,
    }
}
