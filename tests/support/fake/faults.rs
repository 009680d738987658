//! What a fake etcd does wrong, by name.

use super::State;
use etcd_client::proto::{PbEvent, PbKeyValue, PbRangeResponse, PbWatchResponse};
use prost::Message;

macro_rules! faults {
    ($($(#[doc = $text:literal])+ $fault:ident $name:literal,)*) => {
        /// A fault; each use of it counts once for [`super::Fake::fault_times`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub(crate) enum Fault {
            $($(#[doc = $text])+ $fault,)*
        }

        impl Fault {
            pub(crate) fn of_name(name: &str) -> Result<Fault, String> {
                match name {
                    $($name => Ok(Fault::$fault),)*
                    _ => Err(format!("no fault: {name:?}")),
                }
            }
        }
    };
}

faults! {
    /// Sends each message with events twice.
    SendsTwice "sends-twice",
    /// Has each event twice, one after the other in the message.
    EventsTwice "events-twice",
    /// Adds an event of a key outside the range to each message with events.
    SendsForeignKey "sends-foreign-key",
    /// Adds an event of an empty key.
    SendsEmptyKey "sends-empty-key",
    /// Adds the next version of the last key, in the same revision.
    SendsKeyTwice "sends-key-twice",
    /// The last event has a revision of 2^52.
    SendsLargeRevision "sends-large-revision",
    /// The last event has a negative revision.
    SendsNegativeRevision "sends-negative-revision",
    /// The last event's revision lies above that of its message, as that of a key that was there before.
    SendsFutureEvent "sends-future-event",
    /// The last event is a version that cannot follow.
    SendsWrongVersion "sends-wrong-version",
    /// Before each message with events comes one with the next version of its last key, for another watch.
    OtherWatch "other-watch",
    /// Each event is a fragment of its own.
    Fragments "fragments",
    /// The same, with a progress notification of the store's revision behind each but the last.
    ProgressInFragments "progress-in-fragments",
    /// No event comes, and progress is that of when the fault began.
    OldProgress "old-progress",
    /// Requests for progress have no answer.
    NoProgress "no-progress",
    /// Each new watch is cancelled as compacted.
    CompactedWatches "compacted-watches",
    /// Each read at a revision is answered as compacted.
    CompactedReads "compacted-reads",
    /// After the first message of a stream its revision is compacted.
    CompactedStreams "compacted-streams",
    /// Listings have a key outside the range.
    ListsForeignKey "lists-foreign-key",
    /// Listings have an empty key.
    ListsEmptyKey "lists-empty-key",
    /// Listings have their last key twice.
    ListsKeyTwice "lists-key-twice",
    /// The last key of a listing has a revision of 2^52.
    ListsLargeRevision "lists-large-revision",
    /// The last key of a listing has a negative version.
    ListsNegativeVersion "lists-negative-version",
    /// The last key of a listing was modified after the listing's revision.
    ListsFutureKey "lists-future-key",
    /// The revision of each read is 2^52.
    LargeRevision "large-revision",
    /// Unimplemented, as before etcd 3.7.
    NoStreams "no-streams",
    /// After the first message of a stream an empty one comes every 10 ms, for ever.
    EndlessStream "endless-stream",
    /// The last key of the first message of a stream comes again for ever, with 1 MiB.
    RepeatingStream "repeating-stream",
    /// A stream has keys that rise for ever.
    RisingStream "rising-stream",
    /// Each page says that more follow, and is the first one.
    EndlessPages "endless-pages",
    /// Headers name no cluster.
    NoCluster "no-cluster",
    /// Headers have the revision 10^12.
    FarHeader "far-header",
    /// What a watch or a stream sends comes at 10 kB a second.
    Slow "slow",
    /// Each call is answered as by a gateway that has no server: with an HTML page, and status 502.
    GatewayPage "gateway-page",
    /// The same page with status 200, as of a web server.
    WebPage "web-page",
    /// A bit of each message of a watch is another one; which one the seed says.
    FlipsWatchBit "flips-watch-bit",
    /// The same of each answer to a read of keys.
    FlipsListBit "flips-list-bit",
}

/// A message, as it is sent.
pub(super) fn encoded(state: &mut State, message: &impl Message, method: &str) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    let fault = if method == "Watch" { Fault::FlipsWatchBit } else { Fault::FlipsListBit };
    if !bytes.is_empty() && method != "Status" && state.uses(fault) {
        let right = bytes.clone();
        let at = state.entropy.below(bytes.len() * 8);
        bytes[at / 8] ^= 1 << (at % 8);
        state.flipped.push((method.to_owned(), right, bytes.clone()));
    }
    bytes
}

/// A revision above the largest that a cache takes.
const LARGE: i64 = 1 << 52;

/// An answer to a read of keys, as the faults make it.
pub(super) fn answer(state: &mut State, response: &mut PbRangeResponse) {
    let at = response.header.as_ref().map_or(0, |header| header.revision);
    let first = |key: &[u8]| PbKeyValue {
        key: key.to_vec(),
        create_revision: at,
        mod_revision: at,
        version: 1,
        ..PbKeyValue::default()
    };
    if state.uses(Fault::ListsForeignKey) {
        response.kvs.push(first(b"\xf0elsewhere"));
    }
    if state.uses(Fault::ListsEmptyKey) {
        response.kvs.insert(0, first(b""));
    }
    if response.kvs.is_empty() {
        return;
    }
    let mut last = response.kvs.pop().expect("a key");
    if state.uses(Fault::ListsKeyTwice) {
        response.kvs.push(last.clone());
    }
    if state.uses(Fault::ListsLargeRevision) {
        last.mod_revision = LARGE;
    }
    if state.uses(Fault::ListsNegativeVersion) {
        last.version = -1;
    }
    if state.uses(Fault::ListsFutureKey) {
        last.mod_revision = at + 1;
    }
    response.kvs.push(last);
}

/// The messages that a message with events becomes.
pub(super) fn messages(state: &mut State, mut response: PbWatchResponse) -> Vec<PbWatchResponse> {
    let last = response.events.last().cloned().expect("an event");
    let add = |response: &mut PbWatchResponse, change: &dyn Fn(&mut PbKeyValue)| {
        let mut event = PbEvent { r#type: 0, ..last.clone() };
        change(event.kv.as_mut().expect("a key"));
        response.events.push(event);
    };
    let revision = last.kv.as_ref().map_or(0, |kv| kv.mod_revision);
    let first = |key: &'static [u8]| {
        move |kv: &mut PbKeyValue| {
            *kv = PbKeyValue {
                key: key.to_vec(),
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                ..PbKeyValue::default()
            };
        }
    };
    let mut messages = Vec::new();
    if state.uses(Fault::OtherWatch) {
        let mut other = PbWatchResponse { watch_id: 99, events: Vec::new(), ..response.clone() };
        add(&mut other, &first(b"/x/of-another-watch"));
        messages.push(other);
    }
    if state.uses(Fault::SendsForeignKey) {
        add(&mut response, &first(b"\xf0elsewhere"));
    }
    if state.uses(Fault::SendsEmptyKey) {
        add(&mut response, &first(b""));
    }
    if state.uses(Fault::SendsKeyTwice) {
        add(&mut response, &|kv| kv.version += 1);
    }
    type Changes = fn(&mut PbKeyValue);
    let wrong: [(Fault, Changes); 4] = [
        (Fault::SendsFutureEvent, |kv| kv.mod_revision += 4),
        (Fault::SendsLargeRevision, |kv| (kv.create_revision, kv.mod_revision) = (LARGE, LARGE)),
        (Fault::SendsNegativeRevision, |kv| kv.mod_revision = -1),
        (Fault::SendsWrongVersion, |kv| kv.version += 5),
    ];
    for (fault, change) in wrong {
        if state.uses(fault) {
            response.events.pop();
            add(&mut response, &change);
        }
    }
    if state.uses(Fault::EventsTwice) {
        response.events = response.events.iter().flat_map(|event| [event.clone(), event.clone()]).collect();
    }
    let with_progress = state.uses(Fault::ProgressInFragments);
    if with_progress || state.uses(Fault::Fragments) {
        let count = response.events.len();
        for (i, event) in std::mem::take(&mut response.events).into_iter().enumerate() {
            let fragment = i + 1 < count;
            messages.push(PbWatchResponse { events: vec![event], fragment, ..response.clone() });
            if fragment && with_progress {
                messages.push(PbWatchResponse { watch_id: -1, ..response.clone() });
            }
        }
    } else {
        messages.push(response);
    }
    if state.uses(Fault::SendsTwice) {
        messages.extend(messages.clone());
    }
    messages
}
