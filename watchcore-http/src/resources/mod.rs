//! Objects of resources: list, get, watch, and discovery.

pub(crate) mod discovery;
mod framing;
mod get;
mod groups;
mod list;
mod openapi;
pub(crate) mod watch;

use crate::access::watcher;
use crate::catalog::Served;
use crate::list::ListClient;
use crate::request::{self, Params, Route, form};
use crate::state::ApiState;
use crate::status::Refusal;
use crate::transport;
use axum::response::Response;
use http::Method;
use http::request::Parts;
use std::sync::Arc;

/// The objects that a path names.
pub(crate) struct ObjectPath {
    pub(crate) version: request::Version,
    pub(crate) plural: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) old_watch: bool,
}

impl ObjectPath {
    /// Returns the resource. Refuses a path of the wrong shape: a namespaced object needs a namespace, and a resource
    /// without namespaces must not have one.
    pub(crate) fn served<'s>(&self, state: &'s ApiState) -> Result<&'s Arc<Served>, Refusal> {
        let found = state.catalog.resource(&self.version.group, &self.version.version, &self.plural);
        let served = found.ok_or_else(Refusal::no_such_path)?;
        let fits = match served.resource.namespaced {
            true => self.namespace.is_some() || self.name.is_none(),
            false => self.namespace.is_none(),
        };
        if fits { Ok(served) } else { Err(Refusal::no_such_path()) }
    }
}

/// Answers a request for objects.
pub(crate) async fn answer(state: &ApiState, path: ObjectPath, parts: &Parts) -> Result<Response, Refusal> {
    let served = path.served(state)?;
    let params = Params::parse(parts.uri.query())?;
    let form = form(&parts.headers, &params)?;
    if params.watch || path.old_watch {
        let upgrade = transport::websocket::Upgrade::of(parts)?;
        let watched = watch::Watched {
            served,
            namespace: path.namespace.as_deref(),
            name: path.name.as_deref(),
            form,
            old_path: path.old_watch,
            watcher: watcher(parts),
            request: parts,
        };
        let stream = watch::open(state, watched, &params).await?;
        return Ok(match upgrade {
            Some(upgrade) => upgrade.respond(stream.without_keep_alives(), state.open.clone(), state.limits.stall),
            None => transport::respond(stream, "application/json"),
        });
    }
    let client = ListClient::of(parts, state);
    if let Some(name) = &path.name {
        return get::get(served, path.namespace.as_deref(), name, &params, form, client).await;
    }
    list::list(served, path.namespace.as_deref(), &params, form, client).await
}

/// Answers a request for a subresource with Kubernetes' error that it was not found.
pub(crate) fn no_subresource(state: &ApiState, route: Route) -> Refusal {
    let Route::Subresource { version, plural, namespace, name } = route else { return Refusal::no_such_path() };
    let path = ObjectPath { version, plural, namespace, name: Some(name), old_watch: false };
    match (path.served(state), &path.name) {
        (Ok(served), Some(name)) => Refusal::no_such_object(&served.resource.group, &served.resource.plural, name),
        (refused, _) => refused.err().unwrap_or_else(Refusal::no_such_path),
    }
}

/// Refuses a write, with the verb that Kubernetes has for it.
pub(crate) fn refuse_write(state: &ApiState, route: Route, method: &Method) -> Refusal {
    let Route::Objects { version, plural, namespace, name, old_watch } = route else {
        return match route {
            Route::Subresource { .. } => no_subresource(state, route),
            _ => Refusal::read_only(method),
        };
    };
    let verb = match (method, &name) {
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, Some(_)) => "delete",
        (&Method::DELETE, None) => "deletecollection",
        _ => return Refusal::read_only(method),
    };
    match (ObjectPath { version, plural, namespace, name, old_watch }).served(state) {
        Ok(served) => Refusal::not_supported(verb, &served.resource.group, &served.resource.plural),
        Err(refusal) => refusal,
    }
}
