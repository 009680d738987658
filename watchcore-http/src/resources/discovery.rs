//! Discovery: the groups, versions and resources that are served, and the version of the server.
//!
//! Kubernetes' clients request these first. Everything is declared when the service is built, so discovery does not
//! depend on the caches and never waits. `/api` and `/apis` have two forms: the older one names groups and versions,
//! which a client then requests one by one; the aggregated one contains all resources at once, for a client whose
//! header Accept asks for an `APIGroupDiscoveryList`.

use super::groups::{DiscoveredGroup, groups};
use super::openapi;
use crate::clients::{ClientId, read_deadline};
use crate::digest::sha256;
use crate::object::Resource;
use crate::request::{Params, Version, accepts_aggregated, accepts_json};
use crate::state::ApiState;
use crate::status::Refusal;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use std::sync::Arc;

/// The Kubernetes version that the server claims: clients warn if their own is much newer or older.
const MAJOR: &str = "1";
const MINOR: &str = "37";

/// The media type of the aggregated form.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// With more resources a document takes too long for an async thread, and is made on a blocking thread.
const MAX_INLINE_RESOURCES: usize = 500;

/// A path of discovery.
pub(crate) enum DiscoveryPath {
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/<group>`
    Group(String),
    /// `/api/v1`, `/apis/<group>/<version>`
    Resources(Version),
    /// `/version`
    Version,
    /// `/openapi/v3`, or the path of one group and version below it.
    OpenApi(Option<String>),
}

/// Answers a discovery request.
///
/// # Errors
/// 404 if there is no such group or version; 406 if JSON is not accepted; 429 or 500 from the pool of blocking reads.
pub(crate) async fn answer(state: Arc<ApiState>, path: DiscoveryPath, parts: Parts) -> Result<Response, Refusal> {
    if state.catalog.resources().len() <= MAX_INLINE_RESOURCES {
        return document_at(&state, &path, &parts);
    }
    let stats_pool = state.stats_pool.clone();
    stats_pool
        .run(&ClientId::of(&parts), read_deadline(), move || document_at(&state, &path, &parts))
        .await
        .map_err(|error| Refusal::from(&error))?
}

fn document_at(state: &ApiState, path: &DiscoveryPath, parts: &Parts) -> Result<Response, Refusal> {
    let groups = groups(state.catalog.resources().iter().map(|served| &served.resource));
    let chosen = |core: bool| groups.iter().filter(move |group| group.name.is_empty() == core);
    let document = match path {
        // Independent of the resources, and always in the same form.
        DiscoveryPath::Version => return Ok(document(&version(), parts)),
        DiscoveryPath::CoreVersions | DiscoveryPath::Groups if accepts_aggregated(&parts.headers) => {
            let core = matches!(path, DiscoveryPath::CoreVersions);
            return Ok(tagged(&aggregated(chosen(core)), parts));
        }
        DiscoveryPath::CoreVersions => core_versions(chosen(true), parts),
        DiscoveryPath::Groups => {
            let groups: Vec<Value> = chosen(false).map(group_document).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        DiscoveryPath::Group(name) => {
            let group = chosen(false).find(|group| group.name == name).ok_or_else(Refusal::no_such_path)?;
            let mut document = group_document(group);
            document["kind"] = json!("APIGroup");
            document["apiVersion"] = json!("v1");
            document
        }
        DiscoveryPath::Resources(version) => resource_list(&groups, version)?,
        DiscoveryPath::OpenApi(None) => openapi::root(&groups),
        DiscoveryPath::OpenApi(Some(path)) => openapi::of_version(&groups, path).ok_or_else(Refusal::no_such_path)?,
    };
    accepts_json(&parts.headers)?;
    Ok(self::document(&document, parts))
}

fn core_versions<'s>(core: impl Iterator<Item = &'s DiscoveredGroup<'s>>, parts: &Parts) -> Value {
    let versions: Vec<&str> = core.flat_map(|group| group.versions.iter().map(|(version, _)| *version)).collect();
    json!({
        "kind": "APIVersions",
        "versions": versions,
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host(parts)}],
    })
}

/// Returns the address by which the client reached the server, the only one that is known to work for it.
fn host(parts: &Parts) -> &str {
    let header = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    header.or_else(|| parts.uri.authority().map(|authority| authority.as_str())).unwrap_or_default()
}

/// Returns a group in the form of an APIGroupList.
fn group_document(group: &DiscoveredGroup<'_>) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|(version, _)| json!({"groupVersion": group.group_version(version), "version": version}))
        .collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

fn resource_list(groups: &[DiscoveredGroup<'_>], asked: &Version) -> Result<Value, Refusal> {
    let group = groups.iter().find(|group| group.name == asked.group);
    let version = group.and_then(|group| group.versions.iter().find(|(version, _)| *version == asked.version));
    let (Some(group), Some((version, resources))) = (group, version) else { return Err(Refusal::no_such_path()) };
    let resources: Vec<Value> = resources
        .iter()
        .map(|resource| {
            let mut shown = json!({
                "name": resource.plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": ["get", "list", "watch"],
            });
            if !resource.short_names.is_empty() {
                shown["shortNames"] = json!(resource.short_names);
            }
            shown
        })
        .collect();
    Ok(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group.group_version(version),
        "resources": resources,
    }))
}

/// Returns all resources of the groups in the aggregated form.
fn aggregated<'s>(groups: impl Iterator<Item = &'s DiscoveredGroup<'s>>) -> Value {
    let resource = |group: &str, version: &str, resource: &Resource| {
        let mut shown = json!({
            "resource": resource.plural,
            "responseKind": {"group": group, "version": version, "kind": resource.kind},
            "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": resource.singular,
            "verbs": ["get", "list", "watch"],
        });
        if !resource.short_names.is_empty() {
            shown["shortNames"] = json!(resource.short_names);
        }
        shown
    };
    let items: Vec<Value> = groups
        .map(|group| {
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|(version, resources)| {
                    let resources: Vec<Value> =
                        resources.iter().map(|one| resource(group.name, version, one)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

/// Returns the version document. The Kubernetes version is followed by our own, as build metadata after a plus sign.
fn version() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "gitVersion": format!("v{MAJOR}.{MINOR}.0+watchcore-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Returns a document as a response. It may not be cached by proxies: the next server behind the same name may serve
/// other resources.
fn document(document: &Value, parts: &Parts) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-cache, private"),
        (header::VARY, "Accept"),
    ];
    respond(StatusCode::OK, headers, text(document, parts))
}

/// Returns an aggregated document with an ETag, by which clients revalidate their copy.
fn tagged(document: &Value, parts: &Parts) -> Response {
    let body = text(document, parts);
    // Clients keep copies on disk and revalidate them at the next server, perhaps another build, so the tag hashes the
    // contents.
    let tag = format!("\"{}\"", sha256(&body));
    let same = same_tag(&parts.headers, &tag);
    let headers = [(header::CONTENT_TYPE, AGGREGATED), (header::CACHE_CONTROL, "public"), (header::VARY, "Accept")];
    let (code, body) = if same { (StatusCode::NOT_MODIFIED, String::new()) } else { (StatusCode::OK, body) };
    let mut response = respond(code, headers, body);
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Whether the header If-None-Match contains this tag.
fn same_tag(headers: &HeaderMap, tag: &str) -> bool {
    let values = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).any(|there| there == "*" || there == tag)
}

fn text(document: &Value, parts: &Parts) -> String {
    // Malformed parameters are ignored: discovery uses only `pretty`.
    let pretty = Params::parse(parts.uri.query()).is_ok_and(|params| params.pretty);
    if pretty { format!("{document:#}\n") } else { format!("{document}\n") }
}

fn respond<const N: usize>(code: StatusCode, headers: [(HeaderName, &'static str); N], body: String) -> Response {
    let mut response = (code, body).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// The only blocking thread is busy, so a pending answer is one that waits for it.
    #[test]
    fn many_resources_are_shown_off_the_runtime() {
        let cache = watchcore::Cache::builder("/").build().unwrap();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || wait.recv());
        for (count, at_once) in [(MAX_INLINE_RESOURCES, true), (MAX_INLINE_RESOURCES + 1, false)] {
            let api = (0..count).fold(crate::Api::builder().cache(cache.clone()), |api, number| {
                api.resource(Resource::new("g.test", "v1", format!("p{number}"), "Kind").prefix("/p/"))
            });
            let api = api.build().unwrap();
            let (parts, ()) = http::Request::new(()).into_parts();
            let _inside = runtime.enter();
            let answered = answer(api.0, DiscoveryPath::Groups, parts).now_or_never();
            assert_eq!(answered.map(|answer| answer.is_ok()), Some(true).filter(|_| at_once), "{count}");
        }
        drop(go);
    }
}
