//! `RwLock<BTreeMap>`: a list is walked in place under the lock.

use super::{Keyed, Ordered, Reader, walk};
use crate::load::{self, Object, touched};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

type Map = BTreeMap<Box<[u8]>, Object>;

pub struct Store {
    map: Arc<RwLock<Map>>,
    revision: u64,
}

impl Keyed for Store {
    type Reader = Shared;

    fn filled(objects: usize) -> Store {
        let entry = |number: usize| -> (Box<[u8]>, Object) {
            let key = load::key(number).into_bytes();
            (key.clone().into_boxed_slice(), Object::new(number as u64 + 1, &key, &load::VALUE))
        };
        let map = (0..objects).map(entry).collect();
        Store { map: Arc::new(RwLock::new(map)), revision: objects as u64 }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.revision += 1;
        let object = Object::new(self.revision, key, value);
        let mut map = self.map.write().expect("nobody panics");
        let replaced = match map.get_mut(key) {
            Some(newest) => Some(std::mem::replace(newest, object)),
            None => map.insert(key.into(), object),
        };
        // What was replaced is freed after the lock.
        drop(map);
        drop(replaced);
    }

    fn reader(&self) -> Shared {
        Shared(self.map.clone())
    }
}

/// Lists are walked in place: writers wait meanwhile.
#[derive(Clone)]
pub struct Shared(Arc<RwLock<Map>>);

impl Reader for Shared {
    fn get(&self, key: &[u8]) -> u64 {
        let map = self.0.read().expect("nobody panics");
        let object = map.get(key).expect("is there").clone();
        drop(map);
        touched(object.value())
    }
}

impl Ordered for Shared {
    fn list(&self, prefix: &str, touch: bool) -> usize {
        let map = self.0.read().expect("nobody panics");
        let end = load::end_of(prefix);
        let bounds = (Bound::Included(prefix.as_bytes()), Bound::Excluded(end.as_slice()));
        let items = map.range::<[u8], _>(bounds).map(|(_, object)| object);
        walk(items, touch, |object| touched(object.value()))
    }
}
