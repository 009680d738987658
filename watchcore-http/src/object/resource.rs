//! The declaration of a resource, and the mapping between keys and objects.

use crate::json::layout::Layout;
use std::collections::BTreeSet;
use std::fmt;
use watchcore::{Attribute, Builder, Code, Error, Index, Labels, Result};

/// Name of the cache attribute that holds the layout of each value.
pub(crate) const LAYOUT: &str = "watchcore.http/layout";

/// Prefix indexes per cache, at most: each costs every event 16 bytes and a hash lookup.
const MAX_PREFIXES: usize = 3;

/// A kind of objects to serve, and the prefix in etcd below which they lie.
///
/// The key of an object is `<prefix><namespace>/<name>`, or `<prefix><name>` if the resource has no namespaces; its
/// value is its JSON.
///
/// ```
/// use watchcore::Cache;
/// use watchcore_http::Resource;
///
/// let widgets = Resource::new("matrix.test", "v1", "widgets", "Widget")
///     .namespaced(true)
///     .prefix("/registry/matrix.test/widgets/")
///     .short_name("wd")
///     .field("spec.color", "/spec/color")
///     .column("Color", "string", "/spec/color");
/// let cache = Resource::declare(Cache::builder("/registry/"), [&widgets])?.build()?;
/// # let _ = cache;
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) prefix: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) labels: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) columns: Vec<Column>,
}

/// A field that selectors may name, and the JSON pointer of its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) pointer: String,
}

/// A column of the table form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// OpenAPI type: `string`, `integer`, `number`, `boolean`, or `date`.
    pub(crate) kind: String,
    pub(crate) pointer: String,
}

impl Resource {
    /// Creates a resource from its group (`""` is the core group), version, plural name and kind. By default its
    /// singular is the kind in lower case, its labels are at `/metadata/labels`, and it has no namespaces.
    pub fn new(
        group: impl Into<String>,
        version: impl Into<String>,
        plural: impl Into<String>,
        kind: impl Into<String>,
    ) -> Resource {
        let kind = kind.into();
        Resource {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            singular: kind.to_lowercase(),
            kind,
            namespaced: false,
            prefix: String::new(),
            short_names: Vec::new(),
            labels: "/metadata/labels".into(),
            fields: Vec::new(),
            columns: Vec::new(),
        }
    }

    /// Sets whether the objects lie in namespaces. Default: no.
    pub fn namespaced(mut self, namespaced: bool) -> Resource {
        self.namespaced = namespaced;
        self
    }

    /// Sets the prefix of the objects' keys, which must end in `/`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Resource {
        self.prefix = prefix.into();
        self
    }

    /// Sets the singular name. Default: the kind in lower case.
    pub fn singular(mut self, singular: impl Into<String>) -> Resource {
        self.singular = singular.into();
        self
    }

    /// Adds a short name for kubectl, such as `po` for pods.
    pub fn short_name(mut self, name: impl Into<String>) -> Resource {
        self.short_names.push(name.into());
        self
    }

    /// Sets the JSON pointer of the map of labels. Default: `/metadata/labels`. All resources of a cache must have the
    /// same.
    pub fn labels(mut self, pointer: impl Into<String>) -> Resource {
        self.labels = pointer.into();
        self
    }

    /// Adds a field that selectors may name, by the JSON pointer of its value. `metadata.name` and `metadata.namespace`
    /// always exist: they come from the key.
    pub fn field(mut self, name: impl Into<String>, pointer: impl Into<String>) -> Resource {
        self.fields.push(Field { name: name.into(), pointer: pointer.into() });
        self
    }

    /// Adds a column of the table form, between Name and Age: its name, its type (`string`, `integer`, `number`,
    /// `boolean`, `date`), and the JSON pointer of its value.
    pub fn column(mut self, name: impl Into<String>, kind: impl Into<String>, pointer: impl Into<String>) -> Resource {
        self.columns.push(Column { name: name.into(), kind: kind.into(), pointer: pointer.into() });
        self
    }

    /// Prepares a cache for its resources: adds attributes for their fields, labels and value layouts, and indexes on
    /// namespace and name, so that a watch of one namespace or name pays only for its own events.
    ///
    /// An unprepared cache is served too: its values are then scanned at each use, and field selectors other than
    /// `metadata.name` and `metadata.namespace` are refused unless the cache has the attributes.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if a pointer is malformed, or if two resources have their labels at different pointers.
    pub fn declare<'r>(cache: Builder, resources: impl IntoIterator<Item = &'r Resource>) -> Result<Builder> {
        let resources: Vec<&Resource> = resources.into_iter().collect();
        let (mut pointers, mut segments, mut prefixes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut cache = cache.field(Attribute::extractor(LAYOUT, |key, value| {
            Ok::<_, std::convert::Infallible>(Layout::of(key, value).map(|layout| layout.to_bytes().to_vec()))
        }));
        for resource in &resources {
            resource.check()?;
            let first = resources[0];
            if first.labels != resource.labels {
                return Err(invalid(format!(
                    "resource {resource}: labels at {:?}, but {first} in the same cache has them at {:?}. Serve one of them from a cache of its own.",
                    resource.labels, first.labels
                )));
            }
            for field in &resource.fields {
                if pointers.insert(&field.pointer) {
                    cache = cache.field(Attribute::json(field.attribute(), &field.pointer)?);
                }
            }
            segments.extend([resource.depth(), resource.name_depth()]);
            if resource.namespaced {
                prefixes.insert(resource.depth() + 1);
            }
            if resources.len() > 1 {
                prefixes.insert(resource.depth());
            }
        }
        if let Some(first) = resources.first() {
            cache = cache.labels(Labels::json(&first.labels)?);
        }
        for depth in segments {
            cache = cache.field(Attribute::key_segment(segment_attribute(depth), depth));
        }
        // Deeper prefixes select fewer events, so if not all fit, the shallowest are dropped.
        for depth in prefixes.into_iter().rev().take(MAX_PREFIXES) {
            cache = cache.index(Index::prefix(depth));
        }
        Ok(cache.index(Index::key()))
    }

    /// Checks that the resource can be served.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(invalid(format!("resource {self}: {what}")));
        if !self.prefix.ends_with('/') {
            return bad(&format!("prefix {:?} does not end in \"/\"", self.prefix));
        }
        let names =
            [("version", &self.version), ("plural", &self.plural), ("kind", &self.kind), ("singular", &self.singular)];
        let group = Some(("group", &self.group)).filter(|(_, group)| !group.is_empty());
        let short_names = self.short_names.iter().map(|name| ("short name", name));
        for (what, name) in names.into_iter().chain(group).chain(short_names) {
            // Names appear unescaped in paths, documents, metric labels and log lines.
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
                return bad(&format!("{what} {name:?} is no name. Take letters, digits, \"-\", \".\" and \"_\"."));
            }
        }
        for pointer in self.fields.iter().map(|field| &field.pointer).chain(self.columns.iter().map(|c| &c.pointer)) {
            Attribute::json("checked", pointer).map_err(|error| invalid(format!("resource {self}: {error}")))?;
        }
        Labels::json(&self.labels).map_err(|error| invalid(format!("resource {self}: {error}")))?;
        Ok(())
    }

    /// Index of the key segment that is the namespace, or the name if there are no namespaces.
    fn depth(&self) -> usize {
        self.prefix.trim_start_matches('/').matches('/').count()
    }

    /// Index of the key segment that is the name.
    fn name_depth(&self) -> usize {
        self.depth() + usize::from(self.namespaced)
    }

    /// Name of the cache attribute that holds an object's name.
    pub(crate) fn name_attribute(&self) -> String {
        segment_attribute(self.name_depth())
    }

    /// Name of the cache attribute that holds an object's namespace, if the resource has namespaces.
    pub(crate) fn namespace_attribute(&self) -> Option<String> {
        self.namespaced.then(|| segment_attribute(self.depth()))
    }

    /// `v1` or `group/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the key of one object.
    pub(crate) fn key(&self, namespace: Option<&str>, name: &str) -> Vec<u8> {
        match namespace {
            Some(namespace) => format!("{}{namespace}/{name}", self.prefix).into_bytes(),
            None => format!("{}{name}", self.prefix).into_bytes(),
        }
    }

    /// Returns the key range of all objects, or of those in a namespace.
    pub(crate) fn range(&self, namespace: Option<&str>) -> watchcore::Range {
        match namespace {
            Some(namespace) => watchcore::Range::prefix(format!("{}{namespace}/", self.prefix)),
            None => watchcore::Range::prefix(&self.prefix),
        }
    }

    /// Returns namespace and name of the object at a key; `None` if the key does not have the resource's shape.
    pub(crate) fn identity<'k>(&self, key: &'k [u8]) -> Option<(Option<&'k str>, &'k str)> {
        let rest = std::str::from_utf8(key.strip_prefix(self.prefix.as_bytes())?).ok()?;
        let (namespace, name) = match self.namespaced {
            true => rest.split_once('/').map(|(namespace, name)| (Some(namespace), name))?,
            false => (None, rest),
        };
        let whole = !name.is_empty() && !name.contains('/') && namespace != Some("");
        whole.then_some((namespace, name))
    }
}

/// `widgets.matrix.test/v1`, for messages.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{}{dot}{}/{}", self.plural, self.group, self.version)
    }
}

impl Field {
    /// Returns the name of the cache attribute that holds the field. Derived from the pointer, so resources that name
    /// one pointer differently share the attribute.
    ///
    /// Selector names have no escapes, so the characters that end a name in a selector are percent-encoded.
    pub(crate) fn attribute(&self) -> String {
        let mut name = String::from("watchcore.http");
        for c in self.pointer.chars() {
            match c {
                '=' | '!' | ',' | '\\' | '%' => name.push_str(&format!("%{:02x}", u32::from(c))),
                c => name.push(c),
            }
        }
        name
    }
}

fn segment_attribute(depth: usize) -> String {
    format!("watchcore.http/segment/{depth}")
}

pub(crate) fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_no_escape() {
        let widgets = || Resource::new("matrix.test", "v1", "widgets", "Widget").prefix("/w/").short_name("wd");
        assert!(widgets().check().is_ok());
        for wild in ["", "a b", "a/b", "a%2f", "a\"b", "a\\b", "a\nb", "a\0b", "\u{202e}a", "<a>", "a?b"] {
            let resources = [
                Resource { version: wild.into(), ..widgets() },
                Resource { plural: wild.into(), ..widgets() },
                Resource { kind: wild.into(), ..widgets() },
                widgets().singular(wild),
                widgets().short_name(wild),
            ];
            let group = Some(Resource { group: wild.into(), ..widgets() }).filter(|_| !wild.is_empty());
            for resource in resources.into_iter().chain(group) {
                let error = resource.check().expect_err(wild);
                assert!(error.message().contains(&format!("{wild:?} is no name")), "{error:?}");
            }
        }
    }
}
