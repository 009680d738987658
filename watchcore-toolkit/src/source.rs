//! The trait of all sources, which can be listed and watched, with its requests and answers.

#![forbid(unsafe_code)]

use crate::event::Status;
use crate::keyed::Keyed;
use crate::watch::Watch;
use std::borrow::Cow;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::time::Duration;
use watchcore::Position;

/// A key, its value, and the revision of its last change, as sources deliver and caches store it.
///
/// ```
/// use watchcore_toolkit::{Entry, WatchEvent};
///
/// let entry = Entry::new("/pods/a", "node-1", 17);
/// let event = WatchEvent::added(entry).at(17);
/// assert_eq!(event.object().unwrap().revision, 17);
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Entry {
    /// The key: below the prefix of the cache.
    pub key: Vec<u8>,
    /// The value; in a deletion the last value, or empty.
    pub value: Vec<u8>,
    /// The revision of the last change; in a deletion, the deletion's. 0: unknown.
    pub revision: u64,
}

impl Entry {
    /// An entry.
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, revision: u64) -> Entry {
        Entry { key: key.into(), value: value.into(), revision }
    }
}

impl Keyed for Entry {
    fn object_key(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.key)
    }

    fn object_revision(&self) -> u64 {
        self.revision
    }
}

impl fmt::Debug for Entry {
    /// Prints the length of the value, never its bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("value", &format_args!("{} bytes", self.value.len()))
            .field("revision", &self.revision)
            .finish()
    }
}

/// The state that a list shall show.
///
/// ```
/// use watchcore_toolkit::ListAt;
///
/// // What Kubernetes' `resourceVersion` says.
/// let parameter = |at| match at {
///     ListAt::Any => Some("0".to_owned()),
///     ListAt::AtLeast(revision) => Some(revision.to_string()),
///     ListAt::Newest => None,
/// };
/// assert_eq!(parameter(ListAt::AtLeast(7)).as_deref(), Some("7"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListAt {
    /// Any state that the source has: for the first list.
    Any,
    /// A state not older than this revision, so that a later list does not go back in time.
    AtLeast(u64),
    /// The newest state according to the source, after the source has said that it does not have
    /// the revision, any more or yet.
    Newest,
}

/// A request to a source for a list.
///
/// ```
/// use watchcore_toolkit::{ListAt, ListRequest};
///
/// fn describe(request: &ListRequest) -> String {
///     format!("at most {} of {:?}", request.limit, request.at)
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListRequest {
    /// The requested state. Ignored if there is a token, which includes it.
    pub at: ListAt,
    /// The maximum number of objects per page; 0 is all of them. A source may exceed it.
    pub limit: usize,
    /// The token of the page before; `None` for the first page.
    pub continue_token: Option<String>,
}

/// One page of a list.
///
/// ```
/// use watchcore_toolkit::{Entry, ListPage};
///
/// let first = ListPage::new(7, [Entry::new("/a", "1", 3)]).continued("next");
/// assert_eq!((first.position.revision, first.continue_token.as_deref()), (7, Some("next")));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ListPage<O = Entry> {
    /// The position after which a watch continues the list, the same in all pages. Revision 0 means unknown.
    pub position: Position,
    /// The objects, each key once, in any order.
    pub objects: Vec<O>,
    /// The keys of further objects that could not be made: consumers keep the last value that they have.
    pub refused: Vec<Vec<u8>>,
    /// The token of the next page, another one each time; `None` in the last page.
    pub continue_token: Option<String>,
}

impl<O> ListPage<O> {
    /// A page that is the last one.
    pub fn new(position: impl Into<Position>, objects: impl IntoIterator<Item = O>) -> ListPage<O> {
        let objects = objects.into_iter().collect();
        ListPage { position: position.into(), objects, refused: Vec::new(), continue_token: None }
    }

    /// The page with a token for the next one.
    pub fn continued(self, token: impl Into<String>) -> ListPage<O> {
        ListPage { continue_token: Some(token.into()), ..self }
    }
}

/// A request to a source for a watch.
///
/// ```
/// use watchcore_toolkit::WatchRequest;
///
/// fn parameters(request: &WatchRequest) -> String {
///     let seconds = request.timeout.as_secs();
///     let from = request.from.revision;
///     format!("resourceVersion={from}&sendInitialEvents={}&timeoutSeconds={seconds}", request.initial_state)
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WatchRequest {
    /// The position after which the watch starts. With the initial state: the state is not older
    /// than this; revision 0 is any.
    pub from: Position,
    /// Requests the state first, as Added in any order, then Synced at its revision, then changes.
    pub initial_state: bool,
    /// When the source shall end the watch: a random time between 5 and 10 minutes, so that watches
    /// do not all end at once. A reflector ends the watch itself half a minute later.
    pub timeout: Duration,
}

impl WatchRequest {
    /// A request with a random time-out.
    pub(crate) fn new(from: Position, initial_state: bool) -> WatchRequest {
        WatchRequest { from, initial_state, timeout: Duration::from_secs(300).mul_f64(1.0 + fastrand::f64()) }
    }
}

/// The future of a source's answer: a page of a list, or a watch.
///
/// The caller polls it while it asks the source for something else, and may drop the source first: the future owns what
/// it uses.
///
/// ```
/// use watchcore_toolkit::{ListPage, SourceFuture, Status};
///
/// fn unreachable() -> SourceFuture<ListPage> {
///     Box::pin(async { Err(Status::new(503, "out of reach")) })
/// }
/// # drop(unreachable());
/// ```
pub type SourceFuture<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// The objects of a source.
pub(crate) type ObjectOf<S> = <<S as ListerWatcher>::Watch as Watch>::Object;

/// A source that can be watched from a position, and listed: a server, a cache, or a closure that
/// opens a watch. A [`Reflector`](crate::Reflector) needs one whose objects are [`Entry`]; a
/// [`RetryWatch`](crate::RetryWatch) takes any, and lists only if it is configured so.
/// [`ListWatch`] makes a source of closures, [`Blocking`](crate::Blocking) of calls that block.
///
/// # Requirements
///
/// - Revisions rise: a change has a greater one than all before it. If several objects change at one revision, the
///   position of each but the last of its events is below that revision: then all of them become one revision of the
///   cache. A source that cannot do that delivers them directly one after the other. Then the end of a watch right
///   after them does not prove that the revision was whole, and the next watch starts at the revision before. A source
///   with short watches (a long poll) ends each with a bookmark as that proof.
/// - An event's position is where a watch resumes after it; without a position it is the entry's revision. An event or a bookmark
///   of a later position says that nothing before is missing: a source may omit the last event of a revision.
/// - Deleted has the revision of the deletion.
/// - Errors are 410 if the revision is gone, 504 if it is not reached yet, 429 and 503 if the request is to be repeated later, and other
///   codes for everything else.
///
/// A detected violation is counted, and repaired by a list.
///
/// ```
/// use std::future::ready;
/// use watchcore_toolkit::{EmptyWatch, Entry, ListPage, ListRequest, ListerWatcher, SourceFuture, WatchRequest};
///
/// /// A source that never changes.
/// struct Fixed;
///
/// impl ListerWatcher for Fixed {
///     type Watch = EmptyWatch<Entry>;
///
///     fn list(&mut self, _: ListRequest) -> SourceFuture<ListPage> {
///         Box::pin(ready(Ok(ListPage::new(1, [Entry::new("/a", "1", 1)]))))
///     }
///     fn watch(&mut self, _: WatchRequest) -> SourceFuture<Option<EmptyWatch<Entry>>> {
///         Box::pin(ready(Ok(Some(EmptyWatch::new()))))
///     }
/// }
/// # let _ = Fixed;
/// ```
pub trait ListerWatcher: Send + 'static {
    /// The type of watches that it opens.
    type Watch: Watch<Object: Send> + 'static;

    /// Lists a page; 405 if the source cannot. The future must not refer to the source; it is
    /// dropped if it takes longer than the caller's answer timeout
    /// ([`Reflector::answer_timeout`](crate::Reflector::answer_timeout)).
    fn list(&mut self, _request: ListRequest) -> SourceFuture<ListPage<<Self::Watch as Watch>::Object>> {
        Box::pin(ready(Err(Status::new(405, "this source cannot be listed"))))
    }

    /// Opens a watch. `None` means that there is no watch, and is retried like an error. The same
    /// time limit applies as for a list.
    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<Self::Watch>>;
}

/// A closure is a source that can be watched from a position, and not listed.
impl<F, Fut, W> ListerWatcher for F
where
    F: FnMut(Position) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Option<W>, Status>> + Send + 'static,
    W: Watch<Object: Send> + 'static,
{
    type Watch = W;

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<W>> {
        Box::pin(self(request.from))
    }
}

/// A source made of a closure that lists, and of another source that watches, such as a closure.
///
/// ```
/// use std::time::Duration;
/// use watchcore::Position;
/// use watchcore_toolkit::{EmptyWatch, Entry, ListPage, ListRequest, ListWatch, RetryWatch, Status, WatchExt};
///
/// let list = |_: ListRequest| async { Ok(ListPage::new(7, [Entry::new("/a", "1", 5)])) };
/// // A server that is out of reach: each attempt fails, and the next one follows a second later.
/// let watch = |_: Position| async { Err::<Option<EmptyWatch<Entry>>, _>(Status::new(503, "out of reach")) };
/// let mut watch = RetryWatch::builder(ListWatch::new(list, watch), 0).relist().open()?;
/// assert_eq!(watch.recv(Duration::from_secs(10))?.unwrap().name(), "ADDED");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Debug)]
pub struct ListWatch<L, W> {
    list: L,
    watch: W,
}

impl<L, W> ListWatch<L, W> {
    /// Makes a source that is listed by this closure, and watched by this source.
    pub fn new<Fut>(list: L, watch: W) -> ListWatch<L, W>
    where
        W: ListerWatcher,
        L: FnMut(ListRequest) -> Fut + Send + 'static,
        Fut: Future<Output = Result<ListPage<ObjectOf<W>>, Status>> + Send + 'static,
    {
        ListWatch { list, watch }
    }
}

impl<L, W, Fut> ListerWatcher for ListWatch<L, W>
where
    W: ListerWatcher,
    L: FnMut(ListRequest) -> Fut + Send + 'static,
    Fut: Future<Output = Result<ListPage<ObjectOf<W>>, Status>> + Send + 'static,
{
    type Watch = W::Watch;

    fn list(&mut self, request: ListRequest) -> SourceFuture<ListPage<ObjectOf<W>>> {
        Box::pin((self.list)(request))
    }

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<W::Watch>> {
        self.watch.watch(request)
    }
}
