//! papaya, a concurrent hash map: it has no order, so it answers no lists.

use super::{Keyed, Reader};
use crate::load::{self, Object, touched};
use papaya::HashMap;
use std::sync::Arc;

type Map = HashMap<Box<[u8]>, Object>;

pub struct Store {
    map: Arc<Map>,
    revision: u64,
}

impl Keyed for Store {
    type Reader = Shared;

    fn filled(objects: usize) -> Store {
        let mut store = Store { map: Arc::new(Map::with_capacity(objects)), revision: 0 };
        (0..objects).for_each(|number| store.put(load::key(number).as_bytes(), &load::VALUE));
        store
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.revision += 1;
        let object = Object::new(self.revision, key, value);
        self.map.pin().insert(key.into(), object);
    }

    fn reader(&self) -> Shared {
        Shared(self.map.clone())
    }
}

#[derive(Clone)]
pub struct Shared(Arc<Map>);

impl Reader for Shared {
    fn get(&self, key: &[u8]) -> u64 {
        let object = self.0.pin().get(key).expect("is there").clone();
        touched(object.value())
    }
}
