//! A watch without events.

#![forbid(unsafe_code)]

use crate::event::WatchEvent;
use crate::watch::{Stopper, Watch};
use futures_core::Stream;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A watch that has ended from the start. Stopping it does nothing.
///
/// ```
/// use std::task::Poll;
/// use watchcore_toolkit::{EmptyWatch, WatchExt};
///
/// let mut watch = EmptyWatch::<u8>::new();
/// watch.stop();
/// assert_eq!(watch.try_recv(), Poll::Ready(None));
/// ```
pub struct EmptyWatch<O>(PhantomData<fn() -> O>);

impl<O> EmptyWatch<O> {
    /// Makes an empty watch.
    pub fn new() -> EmptyWatch<O> {
        EmptyWatch(PhantomData)
    }
}

impl<O> Default for EmptyWatch<O> {
    fn default() -> EmptyWatch<O> {
        EmptyWatch::new()
    }
}

impl<O> std::fmt::Debug for EmptyWatch<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EmptyWatch")
    }
}

impl<O> Stream for EmptyWatch<O> {
    type Item = WatchEvent<O>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        Poll::Ready(None)
    }
}

impl<O> Watch for EmptyWatch<O> {
    type Object = O;

    fn stopper(&self) -> Stopper {
        Stopper::new(|| {})
    }
}
