//! Runs one handler: its watch, and the calls for its events.

#![forbid(unsafe_code)]

use super::handler::Handler;
use super::poll::poll_event;
use super::registration::RegistrationShared;
use crate::event::{Payload, Status, WatchEvent};
use crate::object::FromKeyValue;
use crate::objects::ObjectWatch;
use crate::park::yield_now;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The number of calls after which a handler yields to other tasks of its runtime.
const CALLS_PER_POLL: usize = 64;

/// A running handler, as a future: the program's executor runs the calls. Dropping it ends the handler.
///
/// ```
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::{HandlerFns, HandlerOptions, Informer};
///
/// async fn follow(informer: Informer<KeyValue>) -> watchcore::Result<()> {
///     let handler = HandlerFns::new().on_added(|new: &KeyValue, _| println!("{:?}", new.key_str()));
///     let (registration, run) = informer.handler(handler, HandlerOptions::new())?;
///     // tokio::spawn(run), or here:
///     run.await;
///     drop(registration);
///     Ok(())
/// }
/// ```
#[must_use = "a handler does nothing unless its run is spawned or awaited"]
pub struct HandlerRun(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for HandlerRun {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl fmt::Debug for HandlerRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandlerRun")
    }
}

impl HandlerRun {
    pub(super) fn new<O, H>(watch: ObjectWatch<O>, handler: H, shared: Arc<RegistrationShared>) -> HandlerRun
    where
        O: FromKeyValue,
        H: Handler<O>,
    {
        let work = Work { handler: Some(handler), shared, reason: Some("its future was dropped".into()) };
        HandlerRun(Box::pin(work.run(watch)))
    }
}

/// A handler with the state of its calls. Its end is reported however it comes, also when the future is dropped.
struct Work<H> {
    handler: Option<H>,
    shared: Arc<RegistrationShared>,
    reason: Option<String>,
}

impl<H> Work<H> {
    async fn run<O>(mut self, mut watch: ObjectWatch<O>)
    where
        O: FromKeyValue,
        H: Handler<O>,
    {
        let mut calls = 0;
        let mut error = None;
        while let Some(event) = poll_fn(|context| poll_event(&mut watch, context)).await {
            if let Payload::Error(status) = event.payload {
                error = Some(status);
                break;
            }
            if !self.handle(&event) {
                break;
            }
            calls += 1;
            if calls % CALLS_PER_POLL == 0 {
                yield_now().await;
            }
        }
        self.end(error.as_ref());
    }

    /// Calls the handler with an event; returns false after it was removed.
    fn handle<O: FromKeyValue>(&mut self, event: &WatchEvent<O>) -> bool
    where
        H: Handler<O>,
    {
        let origin = event.origin;
        if event.lost > 0 && !self.call(None, |handler| handler.lost(event.lost)) {
            return false;
        }
        match &event.payload {
            Payload::Added(new) => self.call(Some(new), |handler| handler.added(new, origin)),
            // With a policy that remembers no objects, the log may have no old value: then the
            // object is new to this handler.
            Payload::Modified { old: None, new } => self.call(Some(new), |handler| handler.added(new, origin)),
            Payload::Modified { old: Some(old), new } => {
                self.call(Some(new), |handler| handler.updated(old, new, origin))
            }
            Payload::Deleted(last) => self.call(Some(last), |handler| handler.deleted(last, origin)),
            Payload::DeletedUnknown(key) => self.call(None, |handler| handler.deleted_unknown(key, origin)),
            Payload::Synced => {
                if !self.shared.calls.begin(None) {
                    return false;
                }
                self.guard(|handler| handler.synced());
                self.shared.calls.end(true);
                true
            }
            Payload::Bookmark | Payload::Error(_) => true,
        }
    }

    fn call<O: FromKeyValue>(&mut self, object: Option<&O>, call: impl FnOnce(&mut H)) -> bool
    where
        H: Handler<O>,
    {
        if !self.shared.calls.begin(object.map(O::key_value)) {
            return false;
        }
        self.guard(call);
        self.shared.calls.end(false);
        self.shared.count_handled(object.is_some());
        true
    }

    fn guard(&mut self, call: impl FnOnce(&mut H)) {
        let Some(handler) = &mut self.handler else { return };
        self.shared.guard(|| call(handler));
    }

    fn end<O: FromKeyValue>(&mut self, error: Option<&Status>)
    where
        H: Handler<O>,
    {
        if self.shared.calls.begin(None) {
            self.guard(|handler| handler.ended(error));
            self.shared.calls.end(false);
        }
        self.reason = error.map(ToString::to_string);
    }
}

impl<H> Drop for Work<H> {
    fn drop(&mut self) {
        // The handler is foreign code, so its drop may panic, too.
        let handler = self.handler.take();
        self.shared.guard(|| drop(handler));
        self.shared.calls.finish(self.reason.take());
    }
}
