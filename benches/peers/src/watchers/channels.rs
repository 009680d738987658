//! A channel for each watcher, found by what the watcher wants: of tokio for tasks, of crossbeam for threads.

use super::{Asynchronous, Blocking, Fanout, Interest, read};
use crate::load::{self, Object};
use std::collections::HashMap;

/// The sending side of a channel without a bound.
pub trait Channel: Sized {
    type Receiver: Send + 'static;
    fn new() -> (Self, Self::Receiver);
    fn send(&self, object: Object);
}

pub struct Publisher<C> {
    everything: Vec<C>,
    /// By key and by the prefix of a namespace.
    selective: HashMap<String, Vec<C>>,
    revision: u64,
}

impl<C: Channel> Fanout for Publisher<C> {
    type Receiver = C::Receiver;

    fn open(interests: &[Interest]) -> (Self, Vec<C::Receiver>) {
        let mut publisher = Publisher { everything: Vec::new(), selective: HashMap::new(), revision: 0 };
        let receivers = interests.iter().map(|interest| {
            let (sender, receiver) = C::new();
            match interest {
                Interest::Everything => publisher.everything.push(sender),
                Interest::Key(number) => publisher.add(load::key(*number), sender),
                Interest::Namespace(number) => publisher.add(load::namespace(*number), sender),
                Interest::Nothing(number) => publisher.add(format!("/registry/never/{number:06}"), sender),
            }
            receiver
        });
        let receivers = receivers.collect();
        (publisher, receivers)
    }

    fn publish(&mut self, key: &str, value: &[u8]) {
        self.revision += 1;
        let object = Object::new(self.revision, key.as_bytes(), value);
        for sender in &self.everything {
            sender.send(object.clone());
        }
        if self.selective.is_empty() {
            return;
        }
        let namespace = &key[..key.rfind('/').map_or(0, |slash| slash + 1)];
        for wanted in [key, namespace] {
            for sender in self.selective.get(wanted).into_iter().flatten() {
                sender.send(object.clone());
            }
        }
    }
}

impl<C> Publisher<C> {
    fn add(&mut self, wanted: String, sender: C) {
        self.selective.entry(wanted).or_default().push(sender);
    }
}

pub type Tokio = tokio::sync::mpsc::UnboundedSender<Object>;

impl Channel for Tokio {
    type Receiver = tokio::sync::mpsc::UnboundedReceiver<Object>;

    fn new() -> (Tokio, Self::Receiver) {
        tokio::sync::mpsc::unbounded_channel()
    }

    fn send(&self, object: Object) {
        Tokio::send(self, object).expect("somebody listens");
    }
}

impl Asynchronous for tokio::sync::mpsc::UnboundedReceiver<Object> {
    async fn take(&mut self) -> u64 {
        read(&self.recv().await.expect("is open"));
        let mut events = 1;
        while let Ok(object) = self.try_recv() {
            read(&object);
            events += 1;
        }
        events
    }
}

pub type Crossbeam = crossbeam_channel::Sender<Object>;

impl Channel for Crossbeam {
    type Receiver = crossbeam_channel::Receiver<Object>;

    fn new() -> (Crossbeam, Self::Receiver) {
        crossbeam_channel::unbounded()
    }

    fn send(&self, object: Object) {
        Crossbeam::send(self, object).expect("somebody listens");
    }
}

impl Blocking for crossbeam_channel::Receiver<Object> {
    fn take(&mut self) -> u64 {
        read(&self.recv().expect("is open"));
        let mut events = 1;
        while let Ok(object) = self.try_recv() {
            read(&object);
            events += 1;
        }
        events
    }
}
