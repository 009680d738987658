//! One object in one of the forms.

use super::table::write_table;
use crate::catalog::Served;
use crate::json::layout::{Identity, Layout};
use bytes::Bytes;
use watchcore::KeyValue;

/// The form in which a client takes objects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Form {
    /// As they are stored.
    Json,
    /// PartialObjectMetadata: the metadata alone.
    Metadata,
    /// Table: a row of columns.
    Table(Included),
}

/// What the row of a table has as its object: the parameter `includeObject`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Included {
    None,
    Metadata,
    Object,
}

/// From so many bytes on a value goes out from where the cache has it, and is not copied for each who asks.
const SLICED: usize = 16 << 10;

/// The value of a version of a key, which it keeps.
struct ValueOf(KeyValue);

impl AsRef<[u8]> for ValueOf {
    fn as_ref(&self) -> &[u8] {
        self.0.value().unwrap_or_default()
    }
}

/// A value that is an object of a resource, and where things lie in it.
#[derive(Clone, Copy)]
pub(crate) struct Object<'k> {
    pub(crate) value: &'k [u8],
    pub(crate) identity: Identity<'k>,
    pub(crate) layout: Layout,
}

impl<'k> Object<'k> {
    /// The object in a version of a key. `None`: it is none; it lies at a key of another shape, or is no JSON object.
    pub(crate) fn of(served: &Served, kv: &'k KeyValue) -> Option<Object<'k>> {
        let (namespace, name) = served.resource.identity(kv.key())?;
        let value = kv.value()?;
        let layout = match served.layout {
            Some(number) => Layout::from_bytes(kv.attribute(number)?)?,
            None => Layout::of(kv.key(), value)?,
        };
        Some(Object { value, identity: Identity { namespace, name }, layout })
    }

    /// The same; what is none is counted, and named in the log once a key. Lists and watches leave it out.
    pub(crate) fn or_report(served: &Served, kv: &'k KeyValue) -> Option<Object<'k>> {
        let object = Object::of(served, kv);
        if object.is_none() {
            served.left_out.report(&served.resource, kv.key(), kv.value());
        }
        object
    }

    /// About as many bytes as it has in a form.
    pub(crate) fn room(&self, form: Form) -> usize {
        match form {
            Form::Json | Form::Table(Included::Object) => self.value.len(),
            Form::Metadata | Form::Table(Included::Metadata) => self.layout.metadata().len(),
            Form::Table(Included::None) => 0,
        }
    }

    /// Appends it in a form, as a watch event or a GET has it, with this revision.
    pub(crate) fn write_as(&self, served: &Served, form: Form, revision: u64, out: &mut Vec<u8>) {
        match form {
            Form::Json => self.write(revision, out),
            Form::Metadata => self.write_partial(revision, out),
            Form::Table(included) => write_table(served, Some(self), revision, included, out),
        }
    }

    /// Appends it as it is stored, with this revision, and with the name and namespace of its key.
    pub(crate) fn write(&self, revision: u64, out: &mut Vec<u8>) {
        self.layout.write(self.value, self.identity, revision, out);
    }

    /// The same up to where the rest is as it is stored, and that, where it lies in the cache; `None`: the object is too
    /// small for that to pay, or changes near its end.
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

    /// Appends its PartialObjectMetadata.
    pub(crate) fn write_partial(&self, revision: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#);
        self.layout.write_metadata(self.value, self.identity, revision, out);
        out.push(b'}');
    }
}
