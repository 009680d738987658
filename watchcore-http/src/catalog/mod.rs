//! The served caches, and the resources that lie in them.

mod skipped;

pub(crate) use skipped::SkippedValues;

use crate::frame::{Frames, LineForm};
use crate::json::layout::{Identity, Layout};
use crate::object::{Form, LAYOUT, Object, Resource, TableShape, invalid};
use crate::status::Refusal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use watchcore::{Cache, Code, KeyValue, Result, State};

/// Returns how long a cache has been without its source, or `None` if it is connected.
pub(crate) fn stale_for(cache: &Cache) -> Option<Duration> {
    match cache.state() {
        State::Stale { since } => Some(SystemTime::now().duration_since(since).unwrap_or_default()),
        _ => None,
    }
}

/// Returns 503: the cache is not filled yet and the client should try again, or it is closed and the client should not.
pub(crate) fn not_ready(cache: &Cache) -> Refusal {
    let (status, prefix) = (cache.status(), String::from_utf8_lossy(cache.prefix()));
    if status.state == State::Closed {
        let message = format!("the cache of {prefix:?} is closed: it serves again when the server is restarted");
        return Refusal::of_code(Code::Closed, message);
    }
    let why = cache.source_error().map_or(String::new(), |error| format!(": {}", error.message()));
    Refusal::of_code(Code::NotReady, format!("the cache of {prefix:?} is {}{why}; try again", status.state.name()))
}

/// A resource with the cache that holds its objects.
pub(crate) struct Served {
    pub(crate) resource: Resource,
    pub(crate) cache: Cache,
    /// Number of the cache attribute that holds a value's layout, if the cache was prepared for it.
    pub(crate) layout: Option<usize>,
    pub(crate) frames: Frames<Form>,
    pub(crate) table: TableShape,
    pub(crate) skipped: SkippedValues,
}

impl Served {
    /// Returns the object in a key-value; `None` if the key does not have the resource's shape or the value is not a
    /// JSON object.
    pub(crate) fn object<'k>(&self, kv: &'k KeyValue) -> Option<Object<'k>> {
        let (namespace, name) = self.resource.identity(kv.key())?;
        let value = kv.value()?;
        let layout = match self.layout {
            Some(number) => Layout::from_bytes(kv.attribute(number)?)?,
            None => Layout::of(kv.key(), value)?,
        };
        Some(Object { value, identity: Identity { namespace, name }, layout })
    }

    /// Like [`object`](Self::object); in addition, a value that is not an object is counted as skipped, and logged once
    /// per key.
    pub(crate) fn object_or_report<'k>(&self, kv: &'k KeyValue) -> Option<Object<'k>> {
        let object = self.object(kv);
        if object.is_none() {
            self.skipped.report(&self.resource, kv.key(), kv.value());
        }
        object
    }
}

/// The served caches and resources, looked up by the names in a request.
pub(crate) struct Catalog {
    /// Sorted by length of the prefix, longest first.
    caches: Vec<Cache>,
    /// In the order of declaration, in which discovery lists them.
    resources: Vec<Arc<Served>>,
    by_name: BTreeMap<(String, String, String), Arc<Served>>,
    /// Frames of the `/v1/keys` API, by the prefix of the cache.
    lines: BTreeMap<Vec<u8>, Arc<Frames<LineForm>>>,
}

impl Catalog {
    /// # Errors
    /// INVALID_ARGUMENT if a resource lies in no cache, cannot be served, or is declared twice, or if two caches have
    /// the same prefix.
    pub(crate) fn new(mut caches: Vec<Cache>, resources: Vec<Resource>, frame_bytes: usize) -> Result<Catalog> {
        caches
            .sort_by(|one, other| other.prefix().len().cmp(&one.prefix().len()).then(one.prefix().cmp(other.prefix())));
        if let Some(pair) = caches.windows(2).find(|pair| pair[0].prefix() == pair[1].prefix()) {
            return Err(invalid(format!(
                "two caches of prefix {:?}: serve one of them",
                String::from_utf8_lossy(pair[0].prefix())
            )));
        }
        let lines = caches.iter().map(|cache| (cache.prefix().to_vec(), Arc::new(Frames::new(frame_bytes)))).collect();
        let mut catalog = Catalog { caches, resources: Vec::new(), by_name: BTreeMap::new(), lines };
        for resource in resources {
            resource.check()?;
            let Some(cache) = catalog.cache_of(resource.prefix.as_bytes()).cloned() else {
                let prefixes: Vec<_> =
                    catalog.caches.iter().map(|cache| String::from_utf8_lossy(cache.prefix()).into_owned()).collect();
                return Err(invalid(format!(
                    "resource {resource}: its prefix {:?} lies in no cache; their prefixes are {prefixes:?}. Add a cache of {:?} or above it.",
                    resource.prefix, resource.prefix
                )));
            };
            let name = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
            let layout = cache.attribute_number(LAYOUT);
            let (table, frames) = (TableShape::new(&resource), Frames::new(frame_bytes));
            let skipped = SkippedValues::default();
            let served = Arc::new(Served { resource, cache, layout, frames, table, skipped });
            if catalog.by_name.insert(name, served.clone()).is_some() {
                return Err(invalid(format!("resource {}: it is declared twice. Remove one.", served.resource)));
            }
            catalog.resources.push(served);
        }
        Ok(catalog)
    }

    /// Returns the resource that a path names.
    pub(crate) fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Served>> {
        // The map cannot be searched by a tuple of borrowed strings; one allocation per request is cheap enough.
        self.by_name.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// Returns all resources, in the order of declaration.
    pub(crate) fn resources(&self) -> &[Arc<Served>] {
        &self.resources
    }

    /// Returns the line frames of every cache.
    pub(crate) fn all_lines(&self) -> impl Iterator<Item = &Arc<Frames<LineForm>>> {
        self.lines.values()
    }

    /// Returns the line frames of a cache.
    pub(crate) fn lines(&self, cache: &Cache) -> Option<&Arc<Frames<LineForm>>> {
        self.lines.get(cache.prefix())
    }

    /// Returns the caches, longest prefix first.
    pub(crate) fn caches(&self) -> &[Cache] {
        &self.caches
    }

    /// Returns the cache that holds all keys with a prefix.
    pub(crate) fn cache_of(&self, prefix: &[u8]) -> Option<&Cache> {
        self.caches.iter().find(|cache| prefix.starts_with(cache.prefix()))
    }
}
