//! The service that an embedding program builds, and the steps that every request passes.

use crate::access::{Access, Asked, Authenticator, Authorizer, Peer, User, catch_panic};
use crate::catalog::Catalog;
use crate::clients::{Account, ClientId, Unread};
use crate::keys;
use crate::limits::Limits;
use crate::object::Resource;
use crate::operate;
use crate::page;
use crate::request::{Params, Route, canonical_path};
use crate::request_record::RequestRecord;
use crate::resources::discovery::{self, DiscoveryPath};
use crate::resources::{self, ObjectPath};
use crate::state::ApiState;
use crate::status::Refusal;
use crate::viewers::Viewers;
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
