//! What is listed and watched: the one trait of sources, and what it is asked and answers.

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

/// A key, its value, and the revision of its last change: what a source delivers, and a cache keeps.
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
    /// The value. In a deletion the last one, or empty.
    pub value: Vec<u8>,
    /// The revision of its last change; in a deletion that of the deletion. 0: not known.
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
    /// The length of the value, never its bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("value", &format_args!("{} bytes", self.value.len()))
            .field("revision", &self.revision)
            .finish()
    }
}

/// Which state a list shall be of.
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
    /// Any that the source has at hand: the first list.
    Any,
    /// Not older than this revision: a later list does not go back in time.
    AtLeast(u64),
    /// The newest of all, by the source's word: after the source has said that it does not know the revision any more, or
    /// not yet.
    Newest,
}

/// What a source is asked to list.
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
    /// Which state. Of no meaning where there is a token, which has it inside.
    pub at: ListAt,
    /// At most so many objects a page; 0 is all of them. A source may give all of them whatever this says.
    pub limit: usize,
    /// Where the page begins: what the page before said; `None` in the first.
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
    /// Where a watch continues behind the whole list: the same in all of its pages. Revision 0 is "not known".
    pub position: Position,
    /// The objects, each key once, in any order.
    pub objects: Vec<O>,
    /// The keys of what is there too, and of which no object could be made: the last one that was given stays.
    pub refused: Vec<Vec<u8>>,
    /// Where the next page begins, another place each time; `None` in the last.
    pub continue_token: Option<String>,
}

impl<O> ListPage<O> {
    /// A page that is the last one.
    pub fn new(position: impl Into<Position>, objects: impl IntoIterator<Item = O>) -> ListPage<O> {
        let objects = objects.into_iter().collect();
        ListPage { position: position.into(), objects, refused: Vec::new(), continue_token: None }
    }

    /// The same with pages behind it.
    pub fn continued(self, token: impl Into<String>) -> ListPage<O> {
        ListPage { continue_token: Some(token.into()), ..self }
    }
}

/// What a source is asked to watch.
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
    /// Everything behind this. With the initial state: not older than this; revision 0 is any.
    pub from: Position,
    /// The state first, as Added in any order, then Synced at its revision, then changes.
    pub initial_state: bool,
    /// When the source shall end the watch: between 5 and 10 minutes, another each time, so that watches do not all end at
    /// once. A reflector ends it itself half a minute later.
    pub timeout: Duration,
}

impl WatchRequest {
    /// One with a time-out of its own.
    pub(crate) fn new(from: Position, initial_state: bool) -> WatchRequest {
        WatchRequest { from, initial_state, timeout: Duration::from_secs(300).mul_f64(1.0 + fastrand::f64()) }
    }
}

/// A page that is being listed.
pub type PageFuture<O = Entry> = Pin<Box<dyn Future<Output = Result<ListPage<O>, Status>> + Send>>;

/// A watch that is being opened.
pub type Opening<W> = Pin<Box<dyn Future<Output = Result<Option<W>, Status>> + Send>>;

/// The objects of a source.
pub(crate) type ObjectOf<S> = <<S as ListerWatcher>::Watch as Watch>::Object;

/// Anything that can be watched from a position, and listed: a server, a cache, or a closure that opens a watch. A
/// [`Reflector`](crate::Reflector) takes one whose objects are [`Entry`], a [`RetryWatch`](crate::RetryWatch) any, and lists
/// only where it is told to. With closures for both it is a [`ListWatch`], with calls that block a
/// [`Blocking`](crate::Blocking).
///
/// # What a source promises
///
/// - Revisions rise; a change has a greater one than all before it. Where several objects change at one revision, the
///   position of each but the last of its events lies below that revision: then all of them become one revision of the
///   cache. A source that cannot say so delivers them one directly after the other; then the end of a watch, with nothing
///   behind it, is no proof that the revision was whole, and a watch begins at the revision before. A source whose watches
///   are short (a long poll) ends each with a bookmark, which is that proof.
/// - An event's position is where a watch resumes behind it; without one it is the entry's revision. An event or a bookmark
///   of a later position says that nothing is missing before: a source may leave out the last event of a revision.
/// - Deleted has the revision of the deletion.
/// - 410 where the revision is gone, 504 where it is not there yet, 429 and 503 where it is to be tried again later, other
///   numbers for all else.
///
/// What breaks these is found and mended by a list, and counted.
///
/// ```
/// use std::future::ready;
/// use watchcore_toolkit::{EmptyWatch, Entry, ListPage, ListRequest, ListerWatcher, Opening, PageFuture, WatchRequest};
///
/// /// A source that never changes.
/// struct Fixed;
///
/// impl ListerWatcher for Fixed {
///     type Watch = EmptyWatch<Entry>;
///
///     fn list(&mut self, _: ListRequest) -> PageFuture {
///         Box::pin(ready(Ok(ListPage::new(1, [Entry::new("/a", "1", 1)]))))
///     }
///     fn watch(&mut self, _: WatchRequest) -> Opening<EmptyWatch<Entry>> {
///         Box::pin(ready(Ok(Some(EmptyWatch::new()))))
///     }
/// }
/// # let _ = Fixed;
/// ```
pub trait ListerWatcher: Send + 'static {
    /// The watch that it opens.
    type Watch: Watch<Object: Send> + 'static;

    /// Lists a page; 405 where the source cannot. The future must not need anything of the source any more; it is dropped
    /// where it takes longer than the answer timeout of what asks
    /// ([`Reflector::answer_timeout`](crate::Reflector::answer_timeout)).
    fn list(&mut self, _request: ListRequest) -> PageFuture<<Self::Watch as Watch>::Object> {
        Box::pin(ready(Err(Status::new(405, "this source cannot be listed"))))
    }

    /// Opens a watch. `None` is an answer without a watch, and is tried again as an error is. The same bound as for a list.
    fn watch(&mut self, request: WatchRequest) -> Opening<Self::Watch>;
}

/// A closure is a source that is watched from a position, and cannot be listed.
impl<F, Fut, W> ListerWatcher for F
where
    F: FnMut(Position) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Option<W>, Status>> + Send + 'static,
    W: Watch<Object: Send> + 'static,
{
    type Watch = W;

    fn watch(&mut self, request: WatchRequest) -> Opening<W> {
        Box::pin(self(request.from))
    }
}

/// A source made of a closure that lists, and one that watches, or any other source to be watched.
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
    /// A source that lists by this closure, and is watched by this source.
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

    fn list(&mut self, request: ListRequest) -> PageFuture<ObjectOf<W>> {
        Box::pin((self.list)(request))
    }

    fn watch(&mut self, request: WatchRequest) -> Opening<W::Watch> {
        self.watch.watch(request)
    }
}
