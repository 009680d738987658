//! imbl's persistent ordered map: a reader takes the newest version under a short lock and walks it in place.

use super::{Keyed, Ordered, Reader, walk};
use crate::load::{self, Object, touched};
use imbl::OrdMap;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

type Map = OrdMap<Arc<[u8]>, Object>;

pub struct Store {
    working: Map,
    published: Arc<RwLock<Map>>,
    revision: u64,
}

impl Keyed for Store {
    type Reader = Shared;

    fn filled(objects: usize) -> Store {
        let entry = |number: usize| -> (Arc<[u8]>, Object) {
            let key = load::key(number).into_bytes();
            (Arc::from(key.as_slice()), Object::new(number as u64 + 1, &key, &load::VALUE))
        };
        let working: Map = (0..objects).map(entry).collect();
        Store { published: Arc::new(RwLock::new(working.clone())), working, revision: objects as u64 }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.revision += 1;
        let object = Object::new(self.revision, key, value);
        match self.working.get_mut(key) {
            Some(newest) => *newest = object,
            None => _ = self.working.insert(key.into(), object),
        }
        let newest = self.working.clone();
        let replaced = std::mem::replace(&mut *self.published.write().expect("nobody panics"), newest);
        drop(replaced);
    }

    fn reader(&self) -> Shared {
        Shared(self.published.clone())
    }
}

#[derive(Clone)]
pub struct Shared(Arc<RwLock<Map>>);

impl Shared {
    fn newest(&self) -> Map {
        self.0.read().expect("nobody panics").clone()
    }
}

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
        let map = self.newest();
        let end = load::end_of(prefix);
        let bounds = (Bound::Included(prefix.as_bytes()), Bound::Excluded(end.as_slice()));
        let items = map.range::<_, [u8]>(bounds).map(|(_, object)| object);
        walk(items, touch, |object| touched(object.value()))
    }
}
