//! Kubernetes' protobuf storage form, walked by field numbers.
//!
//! A value is the bytes `k8s\0` and a message `Unknown` (k8s.io/apimachinery `runtime/generated.proto`):
//! field 2 is the object, field 3 its encoding, which the storage leaves empty. The walk looks only at fields of the
//! object that a path leads to: metadata is field 1 of every kind, and in it (`meta/v1/generated.proto`)
//! 1 is name, 3 namespace, and 11 labels, a map with key 1 and value 2.
//!
//! Protobuf's rules hold: the last occurrence of a scalar counts, and messages that occur again are merged.
//! The bytes do not show whether a field is a string or a message. A path that ends at a message gives the bytes of
//! its last occurrence. A path that leads through a string finds nothing: `spec.nodeName` of pods is field 10 of field 2,
//! and field 2 of a StorageClass is the name of its provisioner. Only metadata has the same form in every kind, so
//! only there bytes that are no message make the value malformed.

#![forbid(unsafe_code)]

use super::encode::Extracted;
use super::json::Malformed;
use std::borrow::Cow;

pub(crate) const MAGIC: &[u8] = b"k8s\0";
pub(crate) const MAX_FIELD: u32 = (1 << 29) - 1;
/// Messages inside each other; the limit of most readers of protobuf.
pub const MAX_DEPTH: usize = 100;

const METADATA: u32 = 1;
pub(crate) const NAME: &[u32] = &[METADATA, 1];
pub(crate) const NAMESPACE: &[u32] = &[METADATA, 3];
const LABELS: &[u32] = &[METADATA, 11];

/// All paths of a schema.
#[derive(Default)]
pub(crate) struct Paths {
    /// The first is the object; there is none while there is no path.
    nodes: Vec<PathNode>,
}

#[derive(Default)]
struct PathNode {
    /// The children: field number and index of the node.
    children: Vec<(u32, usize)>,
    /// The fields whose path ends here.
    fields: Vec<usize>,
    /// Whether this is an entry of the labels.
    labels: bool,
    /// Whether this is metadata, or inside of it.
    metadata: bool,
}

impl Paths {
    pub(crate) fn add_field(&mut self, path: &[u32], field: usize) {
        let node = self.path(path);
        self.nodes[node].fields.push(field);
    }

    pub(crate) fn set_labels(&mut self) {
        let node = self.path(LABELS);
        self.nodes[node].labels = true;
    }

    fn path(&mut self, path: &[u32]) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(PathNode::default());
        }
        let mut at = 0;
        let metadata = path.first() == Some(&METADATA);
        for number in path {
            let known = self.nodes[at].children.iter().find(|child| child.0 == *number);
            at = match known {
                Some(child) => child.1,
                None => {
                    let node = self.nodes.len();
                    self.nodes.push(PathNode { metadata, ..PathNode::default() });
                    self.nodes[at].children.push((*number, node));
                    node
                }
            };
        }
        at
    }

    /// Fills in what the paths find in `value`, which begins with [`MAGIC`]. After an error `found`
    /// holds some of it.
    pub(crate) fn read<'v>(&self, value: &'v [u8], found: &mut Extracted<'v>) -> Result<(), Malformed> {
        let Some(object) = self.nodes.first() else { return Ok(()) };
        let mut raw: &[u8] = &[];
        let mut fields = Fields(value.get(MAGIC.len()..).ok_or(Malformed)?);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (2, Field::Bytes(bytes)) => raw = bytes,
                // Nobody knows how to read this.
                (3, Field::Bytes(encoding)) if !encoding.is_empty() => return Err(Malformed),
                _ => {}
            }
        }
        self.message(object, raw, found)
    }

    /// Recursion ends with the longest path.
    fn message<'v>(&self, node: &PathNode, message: &'v [u8], found: &mut Extracted<'v>) -> Result<(), Malformed> {
        let mut fields = Fields(message);
        while let Some((number, field)) = fields.next()? {
            let Some((_, child)) = node.children.iter().find(|child| child.0 == number) else { continue };
            let child = &self.nodes[*child];
            if !child.fields.is_empty() {
                let scalar = match field {
                    Field::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
                    Field::Varint(number) => Some(Cow::Owned(number.cast_signed().to_string().into_bytes())),
                    Field::Other => None,
                };
                for field in &child.fields {
                    found.fields[*field] = scalar.clone();
                }
            }
            if let Field::Bytes(bytes) = field {
                if child.labels {
                    found.labels.push(entry(bytes)?);
                }
                if !child.children.is_empty() {
                    match self.message(child, bytes, found) {
                        Err(Malformed) if !child.metadata => self.clear(child, found),
                        read => read?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the fields below a node absent.
    fn clear(&self, node: &PathNode, found: &mut Extracted<'_>) {
        for (_, child) in &node.children {
            let child = &self.nodes[*child];
            for field in &child.fields {
                found.fields[*field] = None;
            }
            self.clear(child, found);
        }
    }
}

/// An entry of a map of strings. A missing key or value is empty.
fn entry(message: &[u8]) -> Result<super::encode::Label<'_>, Malformed> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    let mut fields = Fields(message);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => key = bytes,
            (2, Field::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((Cow::Borrowed(key), Some(Cow::Borrowed(value))))
}

#[derive(Clone, Copy)]
enum Field<'v> {
    Varint(u64),
    Bytes(&'v [u8]),
    /// A number of fixed width, or a group.
    Other,
}

/// The fields of a message that are still to be read.
struct Fields<'v>(&'v [u8]);

impl<'v> Fields<'v> {
    #[inline]
    fn next(&mut self) -> Result<Option<(u32, Field<'v>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, kind) = self.tag()?;
        let field = match kind {
            0 => Field::Varint(self.varint()?),
            2 => Field::Bytes(self.bytes()?),
            3 => {
                self.group(number)?;
                Field::Other
            }
            kind => {
                self.fixed(kind)?;
                Field::Other
            }
        };
        Ok(Some((number, field)))
    }

    #[inline]
    fn tag(&mut self) -> Result<(u32, u8), Malformed> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        if tag >> 3 == 0 { Err(Malformed) } else { Ok((tag >> 3, (tag & 7) as u8)) }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (at, b) in self.0.iter().take(10).enumerate() {
            // The tenth byte holds the last bit.
            if at == 9 && *b > 1 {
                return Err(Malformed);
            }
            number |= u64::from(b & 0x7f) << (7 * at);
            if b & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'v [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn fixed(&mut self, kind: u8) -> Result<(), Malformed> {
        let length = match kind {
            1 => 8,
            5 => 4,
            _ => return Err(Malformed),
        };
        self.0 = self.0.get(length..).ok_or(Malformed)?;
        Ok(())
    }

    /// Skips a group whose start was read, to its end.
    fn group(&mut self, number: u32) -> Result<(), Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            let (number, kind) = self.tag()?;
            match kind {
                0 => {
                    self.varint()?;
                }
                2 => {
                    self.bytes()?;
                }
                3 if open.len() < MAX_DEPTH => open.push(number),
                4 if number == *innermost => {
                    open.pop();
                }
                kind => self.fixed(kind)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn varint(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number > 0x7f {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    fn tag(number: u32, kind: u32) -> Vec<u8> {
        varint(u64::from(number << 3 | kind))
    }

    /// A string, bytes or a message.
    fn bytes(number: u32, bytes: &[u8]) -> Vec<u8> {
        [&tag(number, 2)[..], &varint(bytes.len() as u64), bytes].concat()
    }

    fn number(field: u32, number: i64) -> Vec<u8> {
        [tag(field, 0), varint(number.cast_unsigned())].concat()
    }

    fn label(key: &str, value: &str) -> Vec<u8> {
        bytes(11, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat())
    }

    /// An object in storage form, as Kubernetes writes it.
    fn stored(object: &[u8]) -> Vec<u8> {
        let kind = [bytes(1, b"v1"), bytes(2, b"Pod")].concat();
        [MAGIC, &bytes(1, &kind), &bytes(2, object), &bytes(3, b""), &bytes(4, b"")].concat()
    }

    /// Fields and labels as text.
    type Texts = (Vec<Option<String>>, Vec<(String, String)>);

    fn read(paths: &[&[u32]], value: &[u8]) -> Result<Texts, Malformed> {
        let mut all = Paths::default();
        for (number, path) in paths.iter().enumerate() {
            all.add_field(path, number);
        }
        all.set_labels();
        let mut found = Extracted { fields: vec![None; paths.len()], labels: Vec::new() };
        all.read(value, &mut found)?;
        let string = |text: Cow<[u8]>| String::from_utf8_lossy(&text).into_owned();
        let labels = found.labels.into_iter().map(|(key, value)| (string(key), string(value.expect("has a value"))));
        Ok((found.fields.into_iter().map(|field| field.map(string)).collect(), labels.collect()))
    }

    fn one(path: &[u32], object: &[u8]) -> Result<Option<String>, Malformed> {
        read(&[path], &stored(object)).map(|(mut fields, _)| fields.remove(0))
    }

    /// A pod as Kubernetes' own serializer writes it: web-1 in shop, on node-17, with priority -7.
    pub(crate) fn pod() -> Vec<u8> {
        let text = "
            6b3873000a090a0276311203506f6412b5010a420a057765622d3112001a0473686f7022002a03752d313200380042005a0a
            0a0361707012037765625a090a05656d70747912005a0d0a0474696572120566726f6e741253121a0a01631201692a004200
            6a007200800100880100900100a201001a06416c77617973201e320042004a0052076e6f64652d3137580160006800820100
            8a01009a0100c20100c801f9ffffffffffffffff011a1a0a0752756e6e696e671a0022002a0032004a005a0072008801001a
            002200";
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let digit = |b: u8| char::from(b).to_digit(16).expect("is a digit") as u8;
        digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    #[test]
    fn a_pod_of_kubernetes() {
        let paths: &[&[u32]] =
            &[NAME, NAMESPACE, &[1, 5], &[2, 10], &[2, 4], &[2, 25], &[2, 11], &[2, 2, 1], &[3, 1], &[9]];
        let (fields, labels) = read(paths, &pod()).expect("is right");
        let wanted = ["web-1", "shop", "u-1", "node-17", "30", "-7", "1", "c", "Running"];
        assert_eq!(fields, wanted.iter().map(|text| Some((*text).into())).chain([None]).collect::<Vec<_>>());
        let wanted = [("app", "web"), ("empty", ""), ("tier", "front")];
        assert_eq!(labels, wanted.map(|(key, value)| (key.into(), value.into())));
    }

    #[test]
    fn scalars_by_their_path() {
        let inner = [number(1, 7), bytes(2, b"in"), number(3, -1), number(4, i64::MIN), number(5, 0)].concat();
        let object = [
            bytes(7, &inner),
            [tag(8, 1), vec![1; 8]].concat(),
            [tag(9, 5), vec![1; 4]].concat(),
            bytes(MAX_FIELD, b"far"),
            bytes(10, b""),
        ]
        .concat();
        for (path, value) in [
            (&[7, 1][..], Some("7")),
            (&[7, 2], Some("in")),
            (&[7, 3], Some("-1")),
            (&[7, 4], Some("-9223372036854775808")),
            (&[7, 5], Some("0")),
            (&[7, 6], None),
            (&[8], None),
            (&[9], None),
            (&[MAX_FIELD], Some("far")),
            (&[10], Some("")),
            (&[11], None),
            (&[7, 1, 1], None),
        ] {
            assert_eq!(one(path, &object), Ok(value.map(str::to_owned)), "{path:?}");
        }
        // Bytes as they are; a message is bytes.
        assert_eq!(one(&[7], &bytes(7, &number(1, 7))), Ok(Some("\u{8}\u{7}".into())));
        assert_eq!(
            read(&[&[1], NAME], &stored(&bytes(1, &bytes(1, b"x")))).expect("is right").0,
            [Some("\n\u{1}x".into()), Some("x".into())]
        );
    }

    #[test]
    fn the_last_scalar_holds_and_messages_merge() {
        let object = [
            bytes(1, &[bytes(1, b"old"), bytes(3, b"shop"), label("a", "1"), label("b", "2")].concat()),
            bytes(1, &[bytes(1, b"older"), bytes(1, b"new"), label("a", "3")].concat()),
        ]
        .concat();
        let (fields, labels) = read(&[NAME, NAMESPACE], &stored(&object)).expect("is right");
        assert_eq!(fields, [Some("new".into()), Some("shop".into())]);
        let wanted = [("a", "1"), ("b", "2"), ("a", "3")];
        assert_eq!(labels, wanted.map(|(key, value)| (key.into(), value.into())));
        // The last `raw` of the envelope holds; fixed width at the path is no scalar.
        let value = [stored(&bytes(1, &bytes(1, b"x"))), bytes(2, &bytes(1, &bytes(3, b"y")))].concat();
        assert_eq!(read(&[NAME, NAMESPACE], &value).expect("is right").0, [None, Some("y".into())]);
        assert_eq!(one(&[5], &[number(5, 1), [tag(5, 5), vec![0; 4]].concat()].concat()), Ok(None));
        // What an entry leaves out is empty; value may come before key.
        let entries = [bytes(11, b""), bytes(11, &[bytes(2, b"v"), bytes(1, b"k"), number(3, 1)].concat())].concat();
        let labels = read(&[], &stored(&bytes(1, &entries))).expect("is right").1;
        assert_eq!(labels, [("".into(), "".into()), ("k".into(), "v".into())]);
    }

    #[test]
    fn unknown_fields_and_groups_are_skipped() {
        let group =
            [tag(6, 3), number(1, 1), bytes(2, b"xx"), tag(6, 3), tag(6, 4), tag(7, 1), vec![0; 8], tag(6, 4)].concat();
        let object = [group.clone(), bytes(1, &[group.clone(), bytes(1, b"x")].concat()), number(99, 1)].concat();
        assert_eq!(one(NAME, &object), Ok(Some("x".into())));
        assert_eq!(one(&[6], &object), Ok(None));
        let deep = |depth| [tag(6, 3).repeat(depth), tag(6, 4).repeat(depth), bytes(5, b"x")].concat();
        assert_eq!(one(&[5], &deep(MAX_DEPTH)), Ok(Some("x".into())));
        assert_eq!(one(&[5], &deep(MAX_DEPTH + 1)), Err(Malformed));
        assert_eq!(one(&[5], &tag(6, 3).repeat(100_000)), Err(Malformed));
        // An envelope without an object has nothing.
        assert_eq!(read(&[NAME], MAGIC), Ok((vec![None], vec![])));
    }

    #[test]
    fn malformed_values() {
        let objects = [
            vec![0x08],                                   // a varint without its bytes
            [tag(1, 0), vec![0x80; 10]].concat(),         // longer than ten bytes
            [tag(1, 0), vec![0xff; 9], vec![2]].concat(), // more than 64 bits
            vec![0x0a, 5, b'x'],                          // shorter than its length
            [tag(1, 2), varint(u64::MAX)].concat(),
            vec![0x00],      // field 0
            varint(1 << 35), // field number too large
            tag(1, 6),
            tag(1, 7),
            tag(1, 4),                       // an end without a start
            [tag(1, 3), tag(2, 4)].concat(), // the end of another group
            tag(1, 3),
            [tag(1, 1), vec![0; 7]].concat(),
            [tag(1, 5), vec![0; 3]].concat(),
        ];
        for object in &objects {
            assert_eq!(one(&[5], object), Err(Malformed), "{object:x?}");
            assert_eq!(one(NAME, &bytes(1, object)), Err(Malformed), "{object:x?}");
            assert_eq!(read(&[], &stored(&bytes(1, &bytes(11, object)))), Err(Malformed), "{object:x?}");
            assert_eq!(read(&[&[5]], &[MAGIC, object].concat()), Err(Malformed), "{object:x?}");
            // Inside of what nobody asked for it is only bytes.
            assert_eq!(one(&[5], &bytes(4, object)), Ok(None));
        }
        assert_eq!(read(&[NAME], &[MAGIC, &bytes(2, b""), &bytes(3, b"gzip")].concat()), Err(Malformed));
        assert_eq!(read(&[NAME], b"k8"), Err(Malformed));
    }

    /// Kinds have different things at the same path. What is no message there leaves the other attributes alone.
    #[test]
    fn a_path_through_a_string_finds_nothing() {
        let metadata = bytes(1, &[bytes(1, b"local"), label("a", "1")].concat());
        for text in [&b"kubernetes.io/no-provisioner"[..], b"\x52\x01x\x00", b"\x0a"] {
            let object = [metadata.clone(), bytes(2, text)].concat();
            let (fields, labels) = read(&[NAME, &[2, 10], &[2, 1, 1]], &stored(&object)).expect("is right");
            assert_eq!((fields, labels), (vec![Some("local".into()), None, None], vec![("a".into(), "1".into())]));
        }
    }

    #[test]
    fn a_pod_that_is_cut_off_is_malformed() {
        let pod = pod();
        let paths: &[&[u32]] = &[NAME, &[2, 10]];
        let whole = read(paths, &pod).expect("is right");
        // Where the value could end: after the magic, after the kind, after the object, before its last field.
        let nothing = Ok((vec![None, None], vec![]));
        let ends =
            [(4, nothing.clone()), (15, nothing), (pod.len() - 4, Ok(whole.clone())), (pod.len() - 2, Ok(whole))];
        for end in MAGIC.len()..pod.len() {
            let wanted = ends.iter().find(|(at, _)| *at == end).map_or(Err(Malformed), |(_, wanted)| wanted.clone());
            assert_eq!(read(paths, &pod[..end]), wanted, "{end}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_malformed(value in prop::collection::vec(any::<u8>(), 0..300), depth in 0..3usize) {
            let value = (0..depth).fold(value, |value, _| bytes(1, &value));
            let _ = read(&[NAME, &[1], &[1, 1, 1], &[2, 10]], &stored(&value));
            let _ = read(&[NAME, &[1], &[1, 1, 1], &[2, 10]], &[MAGIC, &value].concat());
        }

        #[test]
        fn a_damaged_pod_is_read_or_malformed(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>()) {
            let mut value = pod();
            for (at, b) in changes {
                let at = at.index(value.len());
                value[at] = b;
            }
            let _ = read(&[NAME, &[2, 10], &[2, 2, 1]], &value);
            let _ = read(&[NAME, &[2, 10], &[2, 2, 1]], &value[..MAGIC.len() + cut.index(value.len() - MAGIC.len())]);
        }

        #[test]
        fn what_was_written_is_read(name in "[a-z]{0,20}", priority: i64, labels in prop::collection::vec(("[a-z]{1,8}", "[a-z]{0,8}"), 0..6), junk in 12..1000u32) {
            let metadata = [bytes(junk, b"junk"), bytes(1, name.as_bytes()), labels.iter().map(|(k, v)| label(k, v)).collect::<Vec<_>>().concat()].concat();
            let object = [bytes(1, &metadata), number(junk, 1), bytes(2, &number(25, priority))].concat();
            let (fields, found) = read(&[NAME, &[2, 25]], &stored(&object)).expect("is right");
            prop_assert_eq!(fields, [Some(name), Some(priority.to_string())]);
            prop_assert_eq!(found, labels);
        }
    }
}
