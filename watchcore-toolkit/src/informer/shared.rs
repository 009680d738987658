//! The state that an informer, its handlers and its listers share.

#![forbid(unsafe_code)]

use super::index::Indexes;
use super::registration::RegistrationShared;
use crate::clock::Clock;
use crate::sync::Lock;
use crate::watch::Stopper;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use watchcore::{Cache, Code, Error, Filter, Range, Result};

pub(crate) struct InformerShared<O> {
    pub(super) cache: Cache,
    /// `None` is the whole cache.
    pub(super) filter: Option<Filter>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) indexes: Option<Arc<Indexes<O>>>,
    /// Stops the watch of the indexes.
    pub(super) index_stopper: Option<Stopper>,
    /// The handlers that may still run; others are removed when a handler is added.
    pub(super) handlers: Lock<Vec<Weak<RegistrationShared>>>,
    pub(super) next_id: AtomicU64,
    pub(super) stopped: AtomicBool,
    /// The number of objects when the first handler was added, if the cache was ready: later tables start with this
    /// capacity. It is read only once, because the cache computes it by a walk over its subscriptions.
    pub(super) expected: OnceLock<usize>,
}

impl<O> InformerShared<O> {
    /// Combines the informer's filter with another one.
    pub(super) fn with(&self, filter: Option<&Filter>) -> Option<Filter> {
        match (&self.filter, filter) {
            (Some(own), Some(other)) => Some(own.clone().and(other.clone())),
            (own, other) => own.as_ref().or(other).cloned(),
        }
    }

    pub(super) fn namespace(&self, namespace: &str) -> Range {
        let prefix = self.cache.prefix();
        let slash: &[u8] = if prefix.ends_with(b"/") { b"" } else { b"/" };
        Range::prefix([prefix, slash, namespace.as_bytes(), b"/"].concat())
    }

    pub(super) fn indexes(&self, name: &str) -> Result<&Indexes<O>> {
        self.indexes.as_deref().ok_or_else(|| {
            Error::new(
                Code::InvalidArgument,
                format!("read index {name}: this informer has none. Give its builder one: .index({name:?}, ..)."),
            )
        })
    }

    pub(super) fn stop(&self) {
        // The flag is set under the lock of the handler list: a handler that is added concurrently
        // is either in the list or refused.
        let handlers = {
            let mut handlers = self.handlers.lock();
            self.stopped.store(true, Ordering::Release);
            std::mem::take(&mut *handlers)
        };
        handlers.iter().filter_map(Weak::upgrade).for_each(|handler| handler.remove());
        if let Some(stopper) = &self.index_stopper {
            stopper.stop();
        }
    }
}

impl<O> Drop for InformerShared<O> {
    fn drop(&mut self) {
        // Only the informer could end detached handlers, with their threads and their cache, so it does so here.
        let handlers = std::mem::take(&mut *self.handlers.lock());
        handlers.iter().filter_map(Weak::upgrade).for_each(|handler| handler.informer_dropped());
        if let Some(stopper) = &self.index_stopper {
            stopper.stop();
        }
    }
}
