//! Parsing of paths.

use crate::status::Refusal;
use percent_encoding::percent_decode_str;

/// The meaning of a path. The objects that it names may not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// `/`: the live page. `PageEvents`, `/events`: the statistics that the page shows.
    Page,
    PageEvents,
    Health(Health),
    Metrics,
    Version,
    /// `/v1/keys`
    Keys,
    /// `/openapi/v3`, or below it the path of one group's document, such as `apis/apps/v1`.
    OpenApi(Option<String>),
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/<group>`
    Group(String),
    /// `/api/v1`, `/apis/<group>/<version>`: the list of resources.
    Resources(Version),
    /// Objects of a resource.
    Objects {
        version: Version,
        plural: String,
        namespace: Option<String>,
        name: Option<String>,
        old_watch: bool,
    },
    /// A path below an object, such as `/status`. No subresources are served; the error names the object.
    Subresource {
        version: Version,
        plural: String,
        namespace: Option<String>,
        name: String,
    },
}

/// An API group and its version; `""` is the core group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Version {
    pub(crate) group: String,
    pub(crate) version: String,
}

/// A health endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    Live,
    Ready,
    Healthz,
}

impl Route {
    /// Parses a path as it stands in the request line.
    ///
    /// # Errors
    /// 404 if no such path is served; 400 if a segment is not UTF-8.
    pub(crate) fn of(path: &str) -> Result<Route, Refusal> {
        let segments = segments(path)?;
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        Ok(match &words[..] {
            [] => Route::Page,
            ["events"] => Route::PageEvents,
            ["livez"] => Route::Health(Health::Live),
            ["readyz"] => Route::Health(Health::Ready),
            ["healthz"] => Route::Health(Health::Healthz),
            ["metrics"] => Route::Metrics,
            ["version"] => Route::Version,
            ["v1", "keys"] => Route::Keys,
            ["openapi", "v3"] => Route::OpenApi(None),
            ["openapi", "v3", rest @ ..] => Route::OpenApi(Some(rest.join("/"))),
            ["api"] => Route::CoreVersions,
            ["apis"] => Route::Groups,
            ["apis", group] => Route::Group((*group).into()),
            ["api", version, rest @ ..] => Route::versioned("", version, rest)?,
            ["apis", group, version, rest @ ..] => Route::versioned(group, version, rest)?,
            _ => return Err(Refusal::no_such_path()),
        })
    }

    fn versioned(group: &str, version: &str, rest: &[&str]) -> Result<Route, Refusal> {
        let version = Version { group: group.into(), version: version.into() };
        let (old_watch, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            rest => (false, rest),
        };
        let (namespace, plural, name) = match rest {
            [] => return Ok(Route::Resources(version)),
            [plural] => (None, plural, None),
            // The resource `namespaces` has its objects' names at this place: /api/v1/namespaces/shop.
            [plural, name] => (None, plural, Some(name)),
            ["namespaces", namespace, plural] => (Some(namespace), plural, None),
            ["namespaces", namespace, plural, name] => (Some(namespace), plural, Some(name)),
            ["namespaces", namespace, plural, name, ..] => {
                return Ok(Route::subresource(version, plural, Some(namespace), name));
            }
            [plural, name, ..] => return Ok(Route::subresource(version, plural, None, name)),
        };
        let text = |segment: Option<&&str>| segment.map(|segment| (*segment).to_owned());
        Ok(Route::Objects {
            version,
            plural: (*plural).into(),
            namespace: text(namespace),
            name: text(name),
            old_watch,
        })
    }
}

impl Route {
    fn subresource(version: Version, plural: &str, namespace: Option<&str>, name: &str) -> Route {
        let (plural, namespace, name) = (plural.into(), namespace.map(str::to_owned), name.into());
        Route::Subresource { version, plural, namespace, name }
    }
}

/// Returns the canonical spelling of a path: decoded, without a trailing slash. `None` if the path is invalid.
///
/// A segment cannot contain a slash, so two different routes never share a spelling.
pub(crate) fn canonical_path(path: &str) -> Option<String> {
    segments(path).ok().map(|segments| format!("/{}", segments.join("/")))
}

fn segments(path: &str) -> Result<Vec<String>, Refusal> {
    // A trailing slash is ignored, as in Kubernetes.
    let trimmed = path.strip_prefix('/').unwrap_or(path);
    let trimmed = trimmed.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(trimmed);
    trimmed.split('/').filter(|_| !trimmed.is_empty()).map(decoded).collect()
}

/// Decodes a segment. Refuses empty segments, `.`, `..` and slashes, which could be read as another number of segments
/// of a key.
fn decoded(segment: &str) -> Result<String, Refusal> {
    let text = percent_decode_str(segment)
        .decode_utf8()
        .map_err(|_| Refusal::bad_request(format!("path segment {segment:?} is not UTF-8")))?;
    if text.is_empty() || text.contains('/') || text == "." || text == ".." {
        return Err(Refusal::no_such_path());
    }
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(path: &str) -> (String, Option<String>, Option<String>, bool) {
        match Route::of(path).unwrap() {
            Route::Objects { plural, namespace, name, old_watch, .. } => (plural, namespace, name, old_watch),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn objects_are_found_by_path() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(objects("/api/v1/pods"), ("pods".into(), None, None, false));
        assert_eq!(objects("/api/v1/pods/"), ("pods".into(), None, None, false));
        assert_eq!(objects("/api/v1/nodes/n1"), ("nodes".into(), None, text("n1"), false));
        assert_eq!(objects("/api/v1/namespaces/shop"), ("namespaces".into(), None, text("shop"), false));
        assert_eq!(objects("/api/v1/namespaces/shop/pods"), ("pods".into(), text("shop"), None, false));
        assert_eq!(
            objects("/apis/a.b/v2/namespaces/shop/pods/x%3Ay"),
            ("pods".into(), text("shop"), text("x:y"), false)
        );
        assert_eq!(objects("/api/v1/watch/namespaces/shop/pods"), ("pods".into(), text("shop"), None, true));
        assert_eq!(objects("/api/v1/watch"), ("watch".into(), None, None, false), "a resource may be called so");
    }

    #[test]
    fn other_paths_are_not_served() {
        for path in ["/x", "//", "/api//pods", "/api/v1/pods/..", "/api/v1/pods/a%2Fb", "/v1/keys/a"] {
            assert_eq!(Route::of(path).unwrap_err().code(), 404, "{path}");
        }
        let behind = Route::of("/api/v1/namespaces/shop/pods/x/log/y");
        assert!(
            matches!(behind, Ok(Route::Subresource { plural, namespace: Some(_), name, .. }) if plural == "pods" && name == "x")
        );
        let behind = Route::of("/api/v1/nodes/x/status");
        assert!(
            matches!(behind, Ok(Route::Subresource { plural, namespace: None, name, .. }) if plural == "nodes" && name == "x")
        );
        assert_eq!(Route::of("/api/v1/pods/%ff").unwrap_err().code(), 400);
        assert_eq!(Route::of("/"), Ok(Route::Page));
        assert_eq!(canonical_path("/"), Some("/".into()));
        assert_eq!(Route::of("/openapi/v3/apis/apps/v1"), Ok(Route::OpenApi(Some("apis/apps/v1".into()))));
    }

    /// Authorizers decide by the canonical path, so equal spellings must mean equal routes, and different ones
    /// different routes.
    #[test]
    fn routes_have_one_spelling() {
        for (path, spelled) in [
            ("/metrics", "/metrics"),
            ("/metrics/", "/metrics"),
            ("/%6d%65trics", "/metrics"),
            ("/v1/%6Beys/", "/v1/keys"),
            ("/apis/a%2eb", "/apis/a.b"),
            ("/apis/%25", "/apis/%"),
            ("", "/"),
        ] {
            assert_eq!(canonical_path(path).as_deref(), Some(spelled), "{path}");
            let escaped = spelled.replace('%', "%25");
            assert_eq!(Route::of(path), Route::of(&escaped), "{path}");
        }
        for path in ["//", "/metrics//", "/v1%2Fkeys", "/%2e/metrics", "/%ff"] {
            assert_eq!(canonical_path(path), None, "{path}");
        }
    }
}
