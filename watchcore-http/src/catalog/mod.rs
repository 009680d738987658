//! The served caches, and the resources that lie in them.

mod resource;
mod skipped;

pub use resource::Resource;
pub(crate) use resource::{Field, LAYOUT, invalid};
pub(crate) use skipped::SkippedValues;

use crate::frame::{Frames, LineForm, TableShape};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use watchcore::{Cache, Result, State};

/// Returns how long a cache has been without its source, or `None` if it is connected.
pub(crate) fn stale_for(cache: &Cache) -> Option<Duration> {
    match cache.state() {
        State::Stale { since } => Some(SystemTime::now().duration_since(since).unwrap_or_default()),
        _ => None,
    }
}

/// A resource with the cache that holds its objects.
pub(crate) struct Served {
    pub(crate) resource: Resource,
    pub(crate) cache: Cache,
    /// Number of the cache attribute that holds a value's layout, if the cache was prepared for it.
    pub(crate) layout: Option<usize>,
    pub(crate) frames: Frames,
    pub(crate) table: TableShape,
    pub(crate) skipped: SkippedValues,
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
