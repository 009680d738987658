//! The declarations of a cache: attributes of its key-values, and indexes over them.
//!
//! # In the header: Caches
//!
//! A cache declares once, when it is made, which keys it holds and what must be found quickly in it: the range of keys,
//! the length of its log (the window within which a reader may be behind), attributes of values that selectors name,
//! and indexes for subscriptions that each select few of many keys.
//!
//! A cache is embedded (the program writes into it, section @SECTION:writer@) or fed (a feeder writes into it, section
//! @SECTION:feeder@). A revision is a number that rises with each change; in a fed cache it is etcd's. An epoch
//! identifies a history: it changes only when the state is replaced by one that did not follow from it, such as a
//! restored backup. A position is both together; save both.

use super::bytes::{Sized32, slice, watchcore_bytes};
use super::error::invalid;
use watchcore::raw::MAX_PROTOBUF_PATH;
use watchcore::{Attribute, Index, Result};

/// An attribute is a segment of the key.
pub const WATCHCORE_ATTRIBUTE_KEY_SEGMENT: u32 = 1;
/// An attribute is a scalar of the value, a JSON document or of Kubernetes' protobuf storage form.
pub const WATCHCORE_ATTRIBUTE_JSON: u32 = 2;

/// A declared attribute of key-values, for field selectors and indexes. It is extracted once, when a change is written.
/// A value without the attribute has the empty string.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_attribute {
    /// sizeof(watchcore_attribute).
    pub size: u32,
    /// WATCHCORE_ATTRIBUTE_...
    pub kind: u32,
    /// The name that selectors use (UTF-8): not empty, each once.
    pub name: watchcore_bytes,
    /// JSON: an RFC 6901 pointer (UTF-8), such as "/spec/nodeName". A string counts as it is, a number or a boolean as
    /// its JSON text; arrays, objects and null count as absent. KEY_SEGMENT: absent.
    pub pointer: watchcore_bytes,
    /// KEY_SEGMENT: the number of the segment, split at '/', not counting a leading '/': in "/registry/pods/ns/x",
    /// segment 2 is "ns". JSON: 0.
    pub depth: u32,
    /// 0.
    pub reserved: u32,
    /// JSON: the field numbers that lead to the attribute in a value of Kubernetes' protobuf storage form: for a pod's
    /// spec.nodeName 2, 10. NULL: only "/metadata/name" and "/metadata/namespace" are known without.
    pub protobuf_path: *const u32,
    /// The number of field numbers: 1 to 100; 0 if `protobuf_path` is NULL.
    pub protobuf_path_length: usize,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_attribute {
    const NAME: &'static str = "watchcore_attribute";
    const DEFAULT: Self = watchcore_attribute {
        size: size_of::<Self>() as u32,
        kind: 0,
        name: watchcore_bytes::ABSENT,
        pointer: watchcore_bytes::ABSENT,
        depth: 0,
        reserved: 0,
        protobuf_path: std::ptr::null(),
        protobuf_path_length: 0,
    };
}

/// An index by the exact key, for subscriptions to single keys.
pub const WATCHCORE_INDEX_KEY: u32 = 1;
/// An index by the first `depth` segments of the key.
pub const WATCHCORE_INDEX_PREFIX: u32 = 2;
/// An index by the value of the declared attribute `name`: for field selectors `name=value`.
pub const WATCHCORE_INDEX_FIELD: u32 = 3;
/// An index by the value of the label `name`: for label selectors `name=value`.
pub const WATCHCORE_INDEX_LABEL: u32 = 4;

/// A declared index: a subscription whose filter fits it reads only the events of its own bucket. The index costs the
/// writer one lookup per event, and 16 bytes (FIELD and LABEL 32) in each slot of the log.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct watchcore_index {
    /// sizeof(watchcore_index).
    pub size: u32,
    /// WATCHCORE_INDEX_...
    pub kind: u32,
    /// FIELD, LABEL: the name of the attribute or of the label (UTF-8). Else absent.
    pub name: watchcore_bytes,
    /// PREFIX: the number of segments, at least 1, split as WATCHCORE_ATTRIBUTE_KEY_SEGMENT says: at depth 3
    /// "/registry/pods/ns/a" is in the bucket "/registry/pods/ns/". Else 0.
    pub depth: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), starts with the size; numbers and pointers.
unsafe impl Sized32 for watchcore_index {
    const NAME: &'static str = "watchcore_index";
    const DEFAULT: Self = watchcore_index {
        size: size_of::<Self>() as u32,
        kind: 0,
        name: watchcore_bytes::ABSENT,
        depth: 0,
        reserved: 0,
    };
}

/// The error for a member that does not apply to the kind.
fn extra(what: &str, kind: u32, member: &str) -> watchcore::Error {
    invalid(format!("{what}.{member} is set, but kind {kind} has none. Leave it out (0 or absent)."))
}

fn reserved(what: &str, value: u32) -> Result<()> {
    if value == 0 { Ok(()) } else { Err(invalid(format!("{what}.reserved is {value}. Give 0."))) }
}

/// # Safety
///
/// The contract, for the pointers in `given`.
pub(super) unsafe fn attribute(given: &watchcore_attribute, what: &str) -> Result<Attribute> {
    reserved(what, given.reserved)?;
    // SAFETY: the contract: the texts in `given` are readable for their lengths.
    let (name, pointer) =
        unsafe { (given.name.text(format_args!("{what}.name"))?, given.pointer.text(format_args!("{what}.pointer"))?) };
    let Some(name) = name else { return Err(invalid(format!("{what}.name is absent. Give the attribute a name."))) };
    let length = given.protobuf_path_length;
    if length > MAX_PROTOBUF_PATH {
        return Err(invalid(format!(
            "{what}.protobuf_path_length is {length}. Name 1 to {} field numbers.",
            MAX_PROTOBUF_PATH
        )));
    }
    // SAFETY: the contract: `protobuf_path` is readable for `protobuf_path_length` numbers.
    let path = unsafe { slice::<u32>(given.protobuf_path.cast(), length, format_args!("{what}.protobuf_path"))? };
    match given.kind {
        WATCHCORE_ATTRIBUTE_KEY_SEGMENT if pointer.is_some() => Err(extra(what, given.kind, "pointer")),
        WATCHCORE_ATTRIBUTE_KEY_SEGMENT if path.is_some() => Err(extra(what, given.kind, "protobuf_path")),
        WATCHCORE_ATTRIBUTE_KEY_SEGMENT => Ok(Attribute::key_segment(name, given.depth as usize)),
        WATCHCORE_ATTRIBUTE_JSON if given.depth != 0 => Err(extra(what, given.kind, "depth")),
        WATCHCORE_ATTRIBUTE_JSON => {
            let Some(pointer) = pointer else {
                return Err(invalid(format!("{what}.pointer is absent. Give a JSON pointer; length 0 is allowed.")));
            };
            let attribute = Attribute::json(name, pointer)?;
            path.map_or(Ok(attribute.clone()), |path| attribute.protobuf(path))
        }
        kind => Err(invalid(format!("{what}.kind is {kind}. Give one of WATCHCORE_ATTRIBUTE_KEY_SEGMENT, _JSON."))),
    }
}

/// # Safety
///
/// The contract, for the pointers in `given`.
pub(super) unsafe fn index(given: &watchcore_index, what: &str) -> Result<Index> {
    reserved(what, given.reserved)?;
    // SAFETY: the contract: the name in `given` is readable for its length.
    let name = unsafe { given.name.text(format_args!("{what}.name"))? };
    let kind = given.kind;
    match (kind, name) {
        (WATCHCORE_INDEX_KEY | WATCHCORE_INDEX_PREFIX, Some(_)) => Err(extra(what, kind, "name")),
        (WATCHCORE_INDEX_KEY | WATCHCORE_INDEX_FIELD | WATCHCORE_INDEX_LABEL, _) if given.depth != 0 => {
            Err(extra(what, kind, "depth"))
        }
        (WATCHCORE_INDEX_KEY, None) => Ok(Index::key()),
        (WATCHCORE_INDEX_PREFIX, None) => Ok(Index::prefix(given.depth as usize)),
        (WATCHCORE_INDEX_FIELD, Some(name)) => Ok(Index::field(name)),
        (WATCHCORE_INDEX_LABEL, Some(name)) => Ok(Index::label(name)),
        (WATCHCORE_INDEX_FIELD | WATCHCORE_INDEX_LABEL, None) => {
            Err(invalid(format!("{what}.name is absent, but kind {kind} needs it. Give the attribute's or label's.")))
        }
        _ => Err(invalid(format!("{what}.kind is {kind}. Give one of WATCHCORE_INDEX_KEY to _LABEL."))),
    }
}
