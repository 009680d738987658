//! tokio's broadcast channel: one ring, a receiver for each watcher, no filter.

use super::{Asynchronous, Fanout, Interest, all, read};
use crate::load::Object;
use std::borrow::Borrow;
use tokio::sync::broadcast::{Receiver, Sender, error::TryRecvError};

/// A channel of objects, or of counts of them; its room is above any window, so that nobody lags.
pub struct Publisher<O, const CAPACITY: usize> {
    sender: Sender<O>,
    revision: u64,
}

impl<O, const CAPACITY: usize> Fanout for Publisher<O, CAPACITY>
where
    O: From<Object> + Clone + Send + 'static,
{
    type Receiver = Receiver<O>;

    fn open(interests: &[Interest]) -> (Self, Vec<Receiver<O>>) {
        all(interests);
        let sender = Sender::new(CAPACITY);
        let receivers = interests.iter().map(|_| sender.subscribe()).collect();
        (Publisher { sender, revision: 0 }, receivers)
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        self.revision += 1;
        let object = Object::new(self.revision, key.as_bytes(), value);
        self.sender.send(object.into()).map_err(drop).expect("somebody listens");
    }
}

impl<O: Borrow<Object> + Clone + Send + 'static> Asynchronous for Receiver<O> {
    async fn take(&mut self) -> u64 {
        read(self.recv().await.expect("does not lag").borrow());
        let mut events = 1;
        loop {
            match self.try_recv() {
                Ok(object) => read(object.borrow()),
                Err(TryRecvError::Empty) => return events,
                Err(error) => panic!("{error}"),
            }
            events += 1;
        }
    }
}
