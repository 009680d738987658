//! The feeder's log messages. Each carries the name of its cache, so that several caches in one process can be told
//! apart.

#![forbid(unsafe_code)]

use std::cell::RefCell;

thread_local! {
    /// The name of the feeder's cache; each feeder has its own thread.
    static CACHE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Names the cache for the messages of this thread; an empty name is omitted.
pub(crate) fn name_thread(cache: &str) {
    CACHE.set((!cache.is_empty()).then(|| cache.to_string()));
}

/// The cache of this thread's messages.
pub(crate) fn cache() -> Option<String> {
    CACHE.with_borrow(Clone::clone)
}

/// `log!(warn, field = value, "text")`: logs at that level, with the cache's name. A collector that panics does not
/// end the feeder: the core catches and counts the panic.
macro_rules! log {
    ($level:ident, $($message:tt)*) => {
        watchcore::raw::report(|| tracing::$level!(cache = $crate::log::cache(), $($message)*))
    };
}
pub(crate) use log;

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    /// Passes the messages of its thread to a function.
    struct Collector<F>(F);

    struct Fields<'a>(&'a mut String);
    impl tracing::field::Visit for Fields<'_> {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0.push_str(&format!("{}={value:?} ", field.name()));
        }
    }

    impl<F: Fn(&tracing::Event<'_>) + 'static> tracing::Subscriber for Collector<F> {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            (self.0)(event);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[test]
    fn messages_name_their_cache() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let lines = kept.clone();
        let keeps = Collector(move |event: &tracing::Event<'_>| {
            let mut line = String::new();
            event.record(&mut Fields(&mut line));
            lines.lock().unwrap().push(line);
        });
        tracing::subscriber::with_default(keeps, || {
            super::name_thread("pods");
            super::log!(warn, revision = 7, "first");
            super::name_thread("");
            super::log!(info, "second");
        });
        assert_eq!(*kept.lock().unwrap(), ["message=first cache=\"pods\" revision=7 ", "message=second "]);
    }

    #[test]
    fn collector_that_panics_ends_nothing() {
        let breaks = Collector(|_: &tracing::Event<'_>| panic!("the pipe is closed"));
        tracing::subscriber::with_default(breaks, || {
            super::log!(warn, revision = 7, "first");
            super::log!(info, "second");
        });
    }
}
