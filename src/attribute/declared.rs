//! The attributes and labels that a user declares: by key, by JSON pointer, by protobuf path, by function.
//!
//! A declaration is plain data. [`super::schema::Schema`] compiles those of a cache, and extracts.

#![forbid(unsafe_code)]

use super::json::Pointer;
use super::protobuf;
use crate::error::{Code, Error, Result, say};
use std::fmt;
use std::sync::Arc;

/// A declared attribute of key-values: extracted once, when a change is written.
///
/// A field selector names it, and an index can be built on it. On a value that does not have it, it is
/// the empty string.
///
/// ```
/// use watchcore::{Attribute, Cache, Change, Start};
///
/// let cache = Cache::builder("/")
///     .field(Attribute::extractor("size", |_key, value| {
///         Ok::<_, std::convert::Infallible>(Some(value.len().to_string().into_bytes()))
///     }))
///     .build()?;
/// let mut three = cache.subscribe(Start::Now).fields("size=3")?.open()?;
/// cache.writer()?.apply(1, [Change::put("/a", "abc"), Change::put("/b", "ab")])?;
/// assert_eq!(three.poll(10)?.events()[0].key(), b"/a");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Attribute {
    pub(super) name: Box<str>,
    pub(super) origin: Origin,
}

/// The source of an attribute.
#[derive(Clone)]
pub(super) enum Origin {
    Segment(usize),
    Json { pointer: Pointer, protobuf: Option<Box<[u32]>> },
    Call(Arc<FieldCall>),
}

/// `Err` stands for an error of the extractor.
pub(super) type FieldCall = dyn Fn(&[u8], &[u8]) -> Result<Option<Vec<u8>>, ()> + Send + Sync;
pub(super) type LabelsCall = dyn Fn(&[u8], &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, ()> + Send + Sync;

impl Attribute {
    /// Segment `depth` of the key, split at `/`, where a leading `/` does not count: of
    /// `/registry/pods/ns/x`, segment 2 is `ns`. A key with fewer segments does not have it.
    pub fn key_segment(name: impl Into<String>, depth: usize) -> Attribute {
        Attribute { name: name.into().into(), origin: Origin::Segment(depth) }
    }

    /// A scalar of a JSON value by its RFC 6901 pointer: a string as it is, a number or boolean by its
    /// JSON text. Arrays, objects and null are absent.
    ///
    /// All pointers of a cache are found in one pass over the value, which always goes to its end: of
    /// members with the same name the last holds. A value that is not JSON has none of them and is
    /// counted once.
    ///
    /// In a value of Kubernetes' protobuf storage form (`k8s\0`) the pointers `/metadata/name` and
    /// `/metadata/namespace` are known too; others are absent there, unless [`Attribute::protobuf`] says
    /// where they are.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the 0-based byte position where the pointer is malformed. UNSUPPORTED
    /// without the crate's feature `json`.
    ///
    /// ```
    /// use watchcore::{Attribute, Cache, Change};
    ///
    /// let cache = Cache::builder("/")
    ///     .field(Attribute::json("replicas", "/spec/replicas")?)
    ///     .field(Attribute::json("first", "/spec/hosts/0")?)
    ///     .field(Attribute::json("hosts", "/spec/hosts")?)
    ///     .build()?;
    /// cache.writer()?.apply(1, [Change::put("/a", r#"{"spec":{"replicas":3,"hosts":["h1"]}}"#)])?;
    /// let snapshot = cache.snapshot()?;
    /// let kv = snapshot.get("/a").unwrap();
    /// let of = |name| kv.attribute(cache.attribute_number(name).unwrap());
    /// assert_eq!((of("replicas"), of("first"), of("hosts")), (Some(&b"3"[..]), Some(&b"h1"[..]), None));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn json(name: impl Into<String>, pointer: &str) -> Result<Attribute> {
        let name = name.into();
        let pointer = json_pointer(&format!("attribute {name:?}, JSON pointer"), pointer)?;
        Ok(Attribute { name: name.into(), origin: Origin::Json { pointer, protobuf: None } })
    }

    /// Adds the place of an attribute of [`Attribute::json`] in values of Kubernetes' protobuf storage form: a path of
    /// field numbers in the object. A pod's `spec.nodeName` is `&[2, 10]`.
    ///
    /// A string or bytes are taken as they are, a varint as a signed decimal number; numbers of fixed
    /// width and groups are absent. The last of several occurrences holds.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the path is empty or longer than 100, if a number is not in 1..=536870911, or
    /// if the attribute does not come from JSON.
    pub fn protobuf(mut self, path: &[u32]) -> Result<Attribute> {
        let name = &self.name;
        let Origin::Json { protobuf, .. } = &mut self.origin else {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path {path:?}: only an attribute by JSON pointer has one. Declare it with json."
            )));
        };
        if path.is_empty() || path.len() > protobuf::MAX_DEPTH {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path: it has {} field numbers. Name 1 to {}.",
                path.len(),
                protobuf::MAX_DEPTH
            )));
        }
        if let Some((at, number)) =
            path.iter().enumerate().find(|(_, number)| !(1..=protobuf::MAX_FIELD).contains(*number))
        {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path: number {at} is {number}. Field numbers are 1 to {}.",
                protobuf::MAX_FIELD
            )));
        }
        *protobuf = Some(path.into());
        Ok(self)
    }

    /// An attribute that a function computes from key and value, on the writer's thread, once for each put.
    ///
    /// An `Err` or a panic leaves the attribute absent and is counted; the change is written all the
    /// same.
    pub fn extractor<E: fmt::Display>(
        name: impl Into<String>,
        extract: impl Fn(&[u8], &[u8]) -> Result<Option<Vec<u8>>, E> + Send + Sync + 'static,
    ) -> Attribute {
        let name: Box<str> = name.into().into();
        let call = {
            let name = name.clone();
            move |key: &[u8], value: &[u8]| {
                extract(key, value)
                    .map_err(|error| tracing::debug!(attribute = &*name, "the extractor refused a value: {error}"))
            }
        };
        Attribute { name, origin: Origin::Call(Arc::new(call)) }
    }

    /// The name that selectors use.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Attribute");
        fields.field("name", &self.name);
        match &self.origin {
            Origin::Segment(depth) => fields.field("key_segment", depth),
            Origin::Json { pointer, protobuf } => fields.field("json", pointer).field("protobuf", protobuf),
            Origin::Call(_) => fields.field("extractor", &format_args!("..")),
        };
        fields.finish()
    }
}

/// The source of the labels of key-values, which label selectors look at.
///
/// ```
/// use watchcore::{Cache, Change, Labels, Start};
///
/// let cache = Cache::builder("/")
///     .labels(Labels::extractor(|_key, value| {
///         Ok::<_, std::convert::Infallible>(vec![(b"first".to_vec(), value[..1].to_vec())])
///     }))
///     .build()?;
/// let mut with_a = cache.subscribe(Start::Now).labels("first in (a, b)")?.open()?;
/// cache.writer()?.apply(1, [Change::put("/1", "abc"), Change::put("/2", "xyz")])?;
/// assert_eq!(with_a.poll(10)?.len(), 1);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone)]
pub struct Labels(pub(super) LabelsOrigin);

/// The source of labels.
#[derive(Clone)]
pub(super) enum LabelsOrigin {
    Json(Pointer),
    Call(Arc<LabelsCall>),
}

impl Labels {
    /// The members of the JSON object at an RFC 6901 pointer: strings as they are, numbers and booleans
    /// by their JSON text; other members are no labels. For Kubernetes' objects: `/metadata/labels`.
    ///
    /// In a value of Kubernetes' protobuf storage form (`k8s\0`) the labels are metadata.labels, whatever
    /// the pointer says.
    ///
    /// # Errors
    /// As [`Attribute::json`].
    pub fn json(pointer: &str) -> Result<Labels> {
        json_pointer("labels, JSON pointer", pointer).map(|pointer| Labels(LabelsOrigin::Json(pointer)))
    }

    /// Labels that a function computes from key and value, on the writer's thread, once for each put. The last of several
    /// pairs with the same key holds.
    ///
    /// An `Err` or a panic leaves the key-value without labels and is counted; the change is written all
    /// the same.
    pub fn extractor<E: fmt::Display>(
        extract: impl Fn(&[u8], &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, E> + Send + Sync + 'static,
    ) -> Labels {
        Labels(LabelsOrigin::Call(Arc::new(move |key: &[u8], value: &[u8]| {
            extract(key, value).map_err(|error| tracing::debug!("the extractor of labels refused a value: {error}"))
        })))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Labels");
        match &self.0 {
            LabelsOrigin::Json(pointer) => fields.field("json", pointer),
            LabelsOrigin::Call(_) => fields.field("extractor", &format_args!("..")),
        };
        fields.finish()
    }
}

fn json_pointer(what: &str, pointer: &str) -> Result<Pointer> {
    if cfg!(feature = "json") {
        Pointer::parse(what, pointer)
    } else {
        Err(Error::new(
            Code::Unsupported,
            format!("{what} {pointer:?}: this build reads no JSON. Build watchcore with its feature json."),
        ))
    }
}
