//! Keys, filters and indexes, drawn from entropy.

use crate::filter::{By, FieldNeed, Filter, Keys, LABELS, Need};
use crate::ops::Entropy;
use watchcore::Kind;

pub const KEYS: [&[u8]; 12] = [
    b"/a",
    b"/a/foo",
    b"/a/foo/1",
    b"/a/foo/2",
    b"/a/foobar",
    b"/a/x",
    b"/b",
    b"/b\0",
    b"/b/\xff",
    b"/c/1",
    b"/c/2",
    b"/\xff",
];

pub fn key_of(entropy: u32) -> Vec<u8> {
    // Low keys more often: they are overwritten and come back.
    let at = (entropy % 12).min(entropy / 12 % 12);
    KEYS[at as usize].to_vec()
}

pub const APPS: [&str; 3] = ["x", "y", "z"];
pub const NUMBERS: [&str; 3] = ["1", "5", "many"];

fn need_of(entropy: u32) -> Need {
    let name = LABELS[(entropy / 8 % 3 / 2) as usize];
    let values = if name == "app" { APPS } else { NUMBERS };
    let (one, other) = (values[(entropy / 32 % 3) as usize], values[(entropy / 128 % 3) as usize]);
    match entropy % 8 {
        0..=2 => Need::In(name, vec![one]),
        3 => Need::In(name, vec![one, other, ""]),
        4 => Need::NotIn(name, if (entropy / 512).is_multiple_of(2) { vec![one] } else { vec![one, other] }),
        5 => Need::Has(name),
        6 => Need::Lacks(name),
        _ if (entropy / 512).is_multiple_of(2) => Need::Above("n", i64::from(entropy / 1024 % 6)),
        _ => Need::Below("n", i64::from(entropy / 1024 % 6)),
    }
}

fn field_of(entropy: u32) -> FieldNeed {
    let equal = !(entropy / 2).is_multiple_of(4);
    match entropy % 2 {
        0 => FieldNeed("f", equal, ["a", "b", ""][(entropy / 8 % 3) as usize]),
        _ => FieldNeed("seg", equal, ["foo", "x", "1", ""][(entropy / 8 % 4) as usize]),
    }
}

pub fn filter_of((keys, kinds, raw, selectors): Entropy) -> Filter {
    let key = match keys / 8 % 16 {
        0 => b"/a/".to_vec(),
        1 => b"/a/foo/".to_vec(),
        2 => b"/c/".to_vec(),
        _ => key_of(keys / 128),
    };
    let keys = match keys % 8 {
        0..=2 => Keys::All,
        3 => Keys::Key(key),
        4 => Keys::Prefix(key),
        5 => Keys::Path(key),
        6 => {
            // A range that ends before it begins is refused.
            let other = key_of(kinds / 8);
            Keys::Between(key.clone().min(other.clone()), key.max(other))
        }
        _ => Keys::Between(key, Vec::new()),
    };
    let raw = raw % 4 == 0;
    let kinds = match kinds % 8 {
        1 => vec![Kind::Deleted],
        2 => vec![Kind::Added],
        3 => vec![Kind::Modified, Kind::Deleted],
        4 if raw => vec![Kind::Put],
        5 if raw => vec![Kind::Delete],
        6 => vec![Kind::Added, Kind::Modified, Kind::Deleted],
        _ => Vec::new(),
    };
    let mut filter = Filter { kinds, raw, ..Filter::of_keys(keys) };
    let (which, rest) = (selectors % 16, selectors / 16);
    if matches!(which, 1..=4 | 8 | 9) {
        filter.labels.push(need_of(rest));
    }
    if matches!(which, 5..=8) {
        filter.fields.push(field_of(rest / 7));
    }
    if which == 9 {
        filter.labels.push(need_of(rest / 11));
        filter.fields.push(field_of(rest / 13));
        filter.fields.push(field_of(rest / 17));
    }
    filter.even = which == 10;
    filter.nothing = which == 11 && rest % 4 == 0;
    filter
}

pub fn indexes_of(entropy: u32) -> Vec<By> {
    use By::{Field, Key, Label, Prefix};
    match entropy {
        0..=2 => vec![],
        3 => vec![Key],
        4 => vec![Prefix(1), Prefix(2)],
        5 => vec![Field("f")],
        6 => vec![Label("app")],
        7 => vec![Key, Prefix(1), Label("app"), Field("seg")],
        _ => vec![Label("n"), Field("f"), Prefix(2), Key, Prefix(1), Field("seg"), Label("app")],
    }
}
