//! The watch toolkit provides the layers between a subscription of [`watchcore`] and a controller.
//!
//! A subscription delivers batches of key-values. The toolkit adds a broadcaster for events that a program makes
//! itself, filters and fakes for tests, "wait until", a watch that survives its server, informers with handlers and
//! indexes, and a work queue. Everything that delivers events is a [`Watch`]: a `Stream` of [`WatchEvent`] that can be
//! stopped, which can be read by blocking calls as well as in futures. No runtime is needed.
//!
//! A slow consumer delays nobody and lets no queue grow: it is a cursor that falls behind, and the
//! next event that it gets reports its loss.
//!
//! ```
//! use std::time::Duration;
//! use watchcore::{Cache, Change, Result};
//! use watchcore_toolkit::{HandlerFns, Informer, Object};
//!
//! struct Pod { node: String }
//!
//! fn main() -> Result<()> {
//!     let decode = |_: &[u8], value: &[u8]| String::from_utf8(value.to_vec()).map(|node| Pod { node });
//!     let cache = Cache::builder("/pods/").decoder(decode).build()?; // or one that follows etcd
//!     let informer = Informer::<Object<Pod>>::builder(&cache)
//!         .index("node", |pod| vec![pod.node.clone()])
//!         .build()?;
//!     let registration = informer.add_handler(
//!         HandlerFns::new()
//!             .on_added(|pod: &Object<Pod>, _| println!("+ {:?} on {}", pod.key_str(), pod.node))
//!             .on_updated(|old, new, _| println!("~ {:?} from {} to {}", new.key_str(), old.node, new.node))
//!             .on_deleted(|last, _| println!("- {:?}, last on {}", last.key_str(), last.node)),
//!     )?;
//!     cache.writer()?.apply(17, [Change::put("/pods/a", "node-7"), Change::put("/pods/b", "node-8")])?;
//!
//!     let lister = informer.lister();
//!     lister.wait_until(17, Duration::from_secs(3))?; // read your own writes, by index too
//!     assert_eq!(lister.by_index("node", "node-7")?.len(), 1);
//!     registration.remove_and_wait(Duration::from_secs(3)) // from here on no callback runs
//! }
//! ```
//!
//! # Coming from Go
//!
//! | apimachinery's `watch` | here |
//! | --- | --- |
//! | `Interface`: `Stop()`, `ResultChan()` | [`Watch`], [`WatchExt::stop`], [`WatchExt::recv`] or `Stream` |
//! | `Event{Type, Object}` | [`WatchEvent`], [`Payload`]; also `old`, `lost` and a position |
//! | `NewBroadcaster(n, WaitIfChannelFull)`, `DropIfChannelFull` | [`Broadcaster::new`], [`WhenFull::Wait`], [`WhenFull::Drop`] |
//! | `NewLongQueueBroadcaster` | the same: there is no incoming queue that could be longer |
//! | `Watch()`, `WatchWithPrefix(events)` | [`Broadcaster::watch`], [`Broadcaster::with_prefix`], and [`Broadcaster::after`] for history |
//! | `Action`, `ActionOrDrop`, `Shutdown` | [`Broadcaster::action`] and its future, [`Broadcaster::action_or_drop`], [`Broadcaster::shutdown`] |
//! | `NewEmptyWatch()` | [`EmptyWatch`] |
//! | `NewFake()`: `Add`, `Modify`, `Delete`, `Error`, `Action`, `Reset` | [`FakeWatch::pair`], [`FakeSource`] |
//! | `NewRaceFreeFake()` | [`FakeWatch::race_free`] |
//! | `NewProxyWatcher(ch)`, `MockWatcher` | a stream of events: [`StreamWatch::of`] |
//! | `Filter(w, f)` | [`WatchExt::filter_events`]; [`WatchExt::filter_objects`] if types must be right; over a broadcaster with [`BroadcasterBuilder::keys`] |
//! | `NewRecorder(w)`, `Events()` | [`WatchExt::record`], [`Recording::events`] |
//! | `NewStreamWatcher(d, r)`, `Decoder`, `Reporter` | [`StreamWatch`], [`Decoder`], [`Reporter`] |

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(test, allow(clippy::disallowed_types, clippy::disallowed_methods))]
#![forbid(unsafe_code)]

mod blocking;
mod broadcaster;
mod clock;
mod decode;
mod empty;
mod event;
mod fake;
mod filter;
mod foreign;
mod guarded_source;
mod informer;
mod keyed;
mod machine;
mod object;
mod objects;
mod pages;
mod park;
mod pipe;
pub mod predicates;
mod queue;
mod recorder;
mod reflector;
mod retry;
mod source;
mod sync;
mod touched;
mod until;
mod watch;
mod watch_ext;

pub use blocking::Blocking;
pub use broadcaster::{
    Action, BroadcastEvent, BroadcastWatch, Broadcaster, BroadcasterBuilder, WatchOptions, WhenFull,
};
pub use clock::{Clock, Delay, ManualClock, SystemClock};
pub use decode::{DecodeError, Decoder, InternalError, Reporter, StreamWatch};
pub use empty::EmptyWatch;
pub use event::{Origin, Payload, Status, WatchEvent};
pub use fake::{FakeSource, FakeWatch};
pub use filter::{FilterWatch, ObjectFilter};
pub use informer::{
    Handler, HandlerFns, HandlerOptions, HandlerRun, HandlerState, HandlerStatus, IndexStatus, Informer,
    InformerBuilder, Listed, Lister, Registration, SnapshotLister,
};
pub use keyed::Keyed;
pub use object::{FromKeyValue, Object};
pub use objects::{ObjectWatch, ObjectWatchBuilder, WatchStats};
pub use queue::{
    ExponentialLimiter, LongestDelay, QueueStats, RateLimiter, TokenBucket, WorkItem, WorkQueue, WorkQueueBuilder,
};
pub use recorder::{Recorder, Recording};
pub use reflector::{Reflector, ReflectorHandle, ReflectorState, ReflectorStatus, ReflectorThread};
pub use retry::{CacheSource, RetryWatch, RetryWatchBuilder};
pub use source::{Entry, ListAt, ListPage, ListRequest, ListWatch, ListerWatcher, SourceFuture, WatchRequest};
pub use touched::{Predicate, PredicateExt, PredicateFilter, Touched};
pub use until::{Held, Until, UntilEnd, UntilError, UntilWithSync, until, until_with_sync};
pub use watch::{BoxWatch, Stopper, Watch};
pub use watch_ext::WatchExt;
