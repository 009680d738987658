//! Sources that can be watched from a position, and listed.

#![forbid(unsafe_code)]

use crate::event::Status;
use crate::watch::Watch;
use std::pin::Pin;
use watchcore::Position;

/// A watch that is being opened.
pub type Opening<W> = Pin<Box<dyn Future<Output = Result<Option<W>, Status>> + Send>>;

/// A listing that is being made.
pub type ListingFuture<O> = Pin<Box<dyn Future<Output = Result<Listing<O>, Status>> + Send>>;

/// Anything that can be watched from a position on: a server, a cache, or a closure that opens a watch.
///
/// ```
/// use std::time::Duration;
/// use watchcore::Position;
/// use watchcore_toolkit::{EmptyWatch, RetryWatch, Status, WatchExt};
///
/// // A server that is never there: each attempt fails, and the next one follows a second later.
/// let source = |_from: Position| async { Err::<Option<EmptyWatch<u8>>, _>(Status::new(503, "out of reach")) };
/// let mut watch = RetryWatch::open(source, 5)?;
/// assert!(watch.recv(Duration::ZERO).is_err(), "nothing yet");
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait WatchSource: Send + 'static {
    /// The watch that it opens.
    type Watch: Watch<Object: Send> + 'static;

    /// Opens a watch of everything behind `from`. `None` is an answer without a watch, and is tried again as an error is.
    /// An event's position is where it is resumed. The future must not need anything of the source any more; it is dropped
    /// where it takes longer than [`RetryWatchBuilder::answer_timeout`](crate::RetryWatchBuilder::answer_timeout).
    fn watch(&mut self, from: Position) -> Opening<Self::Watch>;
}

impl<F, Fut, W> WatchSource for F
where
    F: FnMut(Position) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Option<W>, Status>> + Send + 'static,
    W: Watch<Object: Send> + 'static,
{
    type Watch = W;

    fn watch(&mut self, from: Position) -> Opening<W> {
        Box::pin(self(from))
    }
}

/// A state at a position.
///
/// ```
/// use watchcore_toolkit::Listing;
///
/// let listing = Listing::new(7, ["a", "b"]);
/// assert_eq!((listing.position.revision, listing.objects.len()), (7, 2));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Listing<O> {
    /// Where a watch continues behind it.
    pub position: Position,
    /// All objects, each key once, in any order.
    pub objects: Vec<O>,
    /// The keys of what is there too, and of which no object could be made: the last one that was given stays.
    pub refused: Vec<Vec<u8>>,
}

impl<O> Listing<O> {
    /// All objects at a position.
    pub fn new(position: impl Into<Position>, objects: impl IntoIterator<Item = O>) -> Listing<O> {
        Listing { position: position.into(), objects: objects.into_iter().collect(), refused: Vec::new() }
    }
}

/// Anything that can be listed: a server, a cache, or a closure that lists one.
///
/// ```
/// use watchcore_toolkit::{ListSource, Listing, Status};
///
/// fn is_lister<O>(_: &impl ListSource<O>) {}
/// is_lister(&|| async { Ok::<_, Status>(Listing::new(7, ["a", "b"])) });
/// ```
pub trait ListSource<O>: Send + 'static {
    /// Lists the newest state. The future must not need anything of the lister any more. The same bound as for a watch.
    fn list(&mut self) -> ListingFuture<O>;
}

impl<F, Fut, O> ListSource<O> for F
where
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future<Output = Result<Listing<O>, Status>> + Send + 'static,
{
    fn list(&mut self) -> ListingFuture<O> {
        Box::pin(self())
    }
}
