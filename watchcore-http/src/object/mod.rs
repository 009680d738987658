//! A declared resource, and its objects in the forms that clients accept.

mod age;
mod resource;
mod table;

pub use resource::Resource;
pub(crate) use resource::{Field, LAYOUT, invalid};
pub(crate) use table::TableShape;

use crate::json::layout::{Identity, Layout};
use bytes::Bytes;
use watchcore::KeyValue;

/// A form in which a client accepts objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Form {
    /// The object as it is stored.
    Json,
    /// PartialObjectMetadata: only the metadata.
    Metadata,
    /// Table: the object as a row of columns.
    Table(Included),
}

/// The object inside a table row: the parameter `includeObject`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Included {
    None,
    Metadata,
    Object,
}

/// Values of at least this many bytes are sent from the cache's memory instead of being copied for each client.
const SLICED: usize = 16 << 10;

/// Keeps a key-value alive while its value is being sent.
struct ValueOf(KeyValue);

impl AsRef<[u8]> for ValueOf {
    fn as_ref(&self) -> &[u8] {
        self.0.value().unwrap_or_default()
    }
}

/// A value that is an object of a resource, and its layout.
#[derive(Clone, Copy)]
pub(crate) struct Object<'k> {
    pub(crate) value: &'k [u8],
    pub(crate) identity: Identity<'k>,
    pub(crate) layout: Layout,
}

impl Object<'_> {
    /// Returns about how many bytes the object takes in a form.
    pub(crate) fn room(&self, form: Form) -> usize {
        match form {
            Form::Json | Form::Table(Included::Object) => self.value.len(),
            Form::Metadata | Form::Table(Included::Metadata) => self.layout.metadata().len(),
            Form::Table(Included::None) => 0,
        }
    }

    /// Appends the stored object with this revision and with the name and namespace of its key.
    pub(crate) fn write(&self, revision: u64, out: &mut Vec<u8>) {
        self.layout.write(self.value, self.identity, revision, out);
    }

    /// Appends the object up to the last change and returns the rest of the value without copying it; `None` if the
    /// object is too small for that to pay, or changes near its end.
    pub(crate) fn slice(kv: &KeyValue, object: &Object<'_>, revision: u64, out: &mut Vec<u8>) -> Option<Bytes> {
        if object.value.len() < SLICED {
            return None;
        }
        let before = out.len();
        let rest = object.layout.begin(object.value, object.identity, revision, out);
        if object.value.len() - rest < SLICED / 2 {
            out.truncate(before);
            return None;
        }
        Some(Bytes::from_owner(ValueOf(kv.clone())).slice(rest..))
    }

    /// Appends the object's PartialObjectMetadata.
    pub(crate) fn write_partial(&self, revision: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#);
        self.layout.write_metadata(self.value, self.identity, revision, out);
        out.push(b'}');
    }
}
