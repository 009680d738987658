//! tokio's broadcast channel: one ring, a receiver for each watcher, no filter.

use super::{Asynchronous, Fanout, Interest};
use crate::load::Object;
use tokio::sync::broadcast::{self, Receiver, Sender, error::TryRecvError};

/// Above any window: nobody lags.
const CAPACITY: usize = 1024;

pub struct Publisher {
    sender: Sender<Object>,
    revision: u64,
}

impl Fanout for Publisher {
    type Receiver = Receiver<Object>;

    fn open(interests: &[Interest]) -> (Publisher, Vec<Receiver<Object>>) {
        assert!(interests.iter().all(|one| *one == Interest::Everything), "it has no filter");
        let sender = Sender::new(CAPACITY);
        let receivers = interests.iter().map(|_| sender.subscribe()).collect();
        (Publisher { sender, revision: 0 }, receivers)
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        self.revision += 1;
        let object = Object::new(self.revision, key.as_bytes(), value);
        self.sender.send(object).map_err(drop).expect("somebody listens");
    }
}

fn read(object: &Object) {
    std::hint::black_box(object.revision.wrapping_add(object.key().as_ptr() as u64));
}

impl Asynchronous for broadcast::Receiver<Object> {
    async fn take(&mut self) -> u64 {
        read(&self.recv().await.expect("does not lag"));
        let mut events = 1;
        loop {
            match self.try_recv() {
                Ok(object) => read(&object),
                Err(TryRecvError::Empty) => return events,
                Err(error) => panic!("{error}"),
            }
            events += 1;
        }
    }
}
