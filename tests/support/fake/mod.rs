//! A fake etcd on the loopback: a small store of versions that answers as etcd does, until a test names a fault.
//!
//! ```ignore
//! let etcd = Fake::start();
//! etcd.put("/x/a", "1");
//! let feeder = Feeder::new([etcd.url()]).start(cache.writer()?)?;
//! etcd.fault(Fault::SendsTwice);      // from now on; `fault_times` ends it after so many uses, `heal` ends all
//! etcd.put("/x/b", "2");
//! etcd.send(PbWatchResponse { .. });  // a message of the test's own, on each open watch
//! assert_eq!(etcd.calls("RangeStream"), 1);
//! ```
//!
//! It takes Status, Range, RangeStream and Watch; the test writes by the methods of [`Fake`]. As a program of its own it is
//! the example `fake_etcd` of `watchcore-etcd`, which takes the same commands from its standard input, a line each
//! ([`Fake::command`]).
//!
//! A value goes this way: [`store::Store`] keeps its versions, `server` answers a call or a watch from there, and
//! [`faults`] changes the answer in the last moment.
#![allow(dead_code)]

pub(crate) mod faults;
mod server;
mod store;

pub(crate) use faults::Fault;

use etcd_client::proto::{PbEvent, PbKeyValue, PbResponseHeader, PbWatchResponse};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use store::Store;
use tokio::sync::watch;

/// Numbers that a seed determines, by SplitMix64.
pub(crate) struct Entropy(pub(crate) u64);

impl Entropy {
    /// One below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((number ^ (number >> 31)) % end as u64) as usize
    }
}

/// What calls, watches and the test share.
struct World {
    state: Mutex<State>,
    /// Is sent a new number when the state changes.
    changed: watch::Sender<u64>,
    /// Is sent a new number when the connections are to be cut.
    cuts: watch::Sender<u64>,
}

struct State {
    store: Store,
    cluster: u64,
    /// How often each fault is still to be used.
    faults: BTreeMap<Fault, u64>,
    /// The store's revision when the faults began.
    faulty_since: i64,
    /// Messages of the test's own, for each watch that was open when they were sent.
    sent: Vec<PbWatchResponse>,
    calls: BTreeMap<String, u64>,
    /// Watch streams that are open.
    watches: u64,
    /// Watches that were accepted, and reads that were refused as of the future: each of these clients waits for a change.
    waits: u64,
    /// How often the history was replaced by another one.
    history: u64,
    /// Of faults that are random.
    entropy: Entropy,
    /// The messages with another bit: the method, before and after.
    flipped: Vec<(String, Vec<u8>, Vec<u8>)>,
}

/// A change of a revision that the caller chooses.
pub(crate) enum Change<'a> {
    Put(&'a [u8], &'a [u8]),
    /// It brings its numbers.
    Exact(PbKeyValue),
    Delete(&'a [u8]),
}

impl State {
    /// Uses a fault once, where it is there.
    fn uses(&mut self, fault: Fault) -> bool {
        let Some(times) = self.faults.get_mut(&fault) else { return false };
        *times -= 1;
        if *times == 0 {
            self.faults.remove(&fault);
        }
        true
    }

    fn header(&mut self) -> PbResponseHeader {
        let cluster_id = if self.uses(Fault::NoCluster) { 0 } else { self.cluster };
        let revision = if self.uses(Fault::FarHeader) { 1_000_000_000_000 } else { self.store.revision() };
        PbResponseHeader { cluster_id, member_id: 7, revision, raft_term: 2 }
    }
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; open watches see it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.send_modify(|number| *number += 1);
        result
    }
}

/// A running fake etcd. It ends with the value.
pub(crate) struct Fake {
    world: Arc<World>,
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start() -> Fake {
        Fake::of_cluster(0xfa4e)
    }

    /// Another member of a cluster is one of the same number.
    pub(crate) fn of_cluster(cluster: u64) -> Fake {
        let state = State {
            store: Store::default(),
            cluster,
            faults: BTreeMap::new(),
            faulty_since: 0,
            sent: Vec::new(),
            calls: BTreeMap::new(),
            watches: 0,
            waits: 0,
            history: 0,
            entropy: Entropy(0),
            flipped: Vec::new(),
        };
        let world = World { state: Mutex::new(state), changed: watch::Sender::new(0), cuts: watch::Sender::new(0) };
        let world = Arc::new(world);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        listener.set_nonblocking(true).expect("a listener");
        let of_thread = world.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = server::serve(listener, of_thread) => {}
                    _ = stopped => {}
                }
            });
        });
        Fake { world, address, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Each writing call gives the revision after it.
    pub(crate) fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> u64 {
        self.txn(&[(key.as_ref(), Some(value.as_ref()))])
    }

    pub(crate) fn delete(&self, key: impl AsRef<[u8]>) -> u64 {
        self.txn(&[(key.as_ref(), None)])
    }

    /// Puts and deletions (of keys that are there) in one revision.
    pub(crate) fn txn(&self, changes: &[(&[u8], Option<&[u8]>)]) -> u64 {
        self.world.change(|state| state.store.txn(changes)) as u64
    }

    /// Changes of one revision, which the caller chooses and which lies above those before. The scripts of contract/core
    /// feed it so (contract/README.md).
    pub(crate) fn apply(&self, revision: u64, changes: &[Change<'_>]) {
        let revision = revision as i64;
        self.world.change(|state| {
            assert!(revision > state.store.revision(), "{revision} does not rise");
            for change in changes {
                match *change {
                    Change::Put(key, value) => _ = state.store.txn_at(revision, &[(key, Some(value))]),
                    Change::Delete(key) => _ = state.store.txn_at(revision, &[(key, None)]),
                    Change::Exact(ref kv) => state.store.put_exact(kv.clone()),
                }
            }
        });
    }

    /// The revision rises, and no key that a test looks at has changed.
    pub(crate) fn progress(&self, revision: u64) {
        self.world.change(|state| state.store.progress(revision as i64));
    }

    /// Replaces the history by one that begins with this state at that revision; of another cluster, if asked. Each open
    /// watch ends, and has seen nothing of the new one.
    pub(crate) fn replace(&self, revision: u64, contents: Vec<PbKeyValue>, is_other_cluster: bool) {
        self.world.change(|state| {
            state.store = Store::beginning(revision as i64, contents);
            state.history += 1;
            state.cluster += u64::from(is_other_cluster);
        });
    }

    /// Watches that were accepted so far, and reads of a revision to come that were refused: each of these clients now
    /// waits for a change.
    pub(crate) fn waits(&self) -> u64 {
        self.world.state().waits
    }

    pub(crate) fn compact(&self, revision: u64) {
        self.world.change(|state| state.store.compact(revision as i64));
    }

    pub(crate) fn revision(&self) -> u64 {
        self.world.state().store.revision() as u64
    }

    /// Keys and values of a prefix.
    pub(crate) fn contents(&self, prefix: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let state = self.world.state();
        let all = state.store.range(b"\0", b"\0", state.store.revision()).into_iter();
        all.filter(|kv| kv.key.starts_with(prefix.as_bytes())).map(|kv| (kv.key, kv.value)).collect()
    }

    /// The events of a prefix so far.
    pub(crate) fn events(&self, prefix: &str) -> Vec<PbEvent> {
        let of_prefix = |event: &PbEvent| event.kv.as_ref().is_some_and(|kv| kv.key.starts_with(prefix.as_bytes()));
        self.world.state().store.events(b"\0", b"\0", 0).into_iter().filter(of_prefix).collect()
    }

    /// What random faults do from now on.
    pub(crate) fn seed(&self, seed: u64) {
        self.world.change(|state| state.entropy = Entropy(seed));
    }

    /// The messages with another bit: the method, before and after.
    pub(crate) fn flipped(&self) -> Vec<(String, Vec<u8>, Vec<u8>)> {
        self.world.state().flipped.clone()
    }

    /// An empty store of the same cluster and member, as after a restore from nothing.
    pub(crate) fn wipe(&self) {
        self.world.change(|state| state.store = Store::default());
    }

    /// Another history of the same cluster and member, with these puts, one a revision. Nobody sees a moment between.
    pub(crate) fn refill(&self, puts: &[(String, String)]) {
        self.world.change(|state| {
            state.store = Store::default();
            for (key, value) in puts {
                state.store.txn(&[(key.as_bytes(), Some(value.as_bytes()))]);
            }
        });
    }

    /// Another value of a key that is there, at the same revision: what a corrupt member has.
    pub(crate) fn corrupt(&self, key: &str, value: &str) -> Result<(), String> {
        let is_there = self.world.change(|state| state.store.corrupt(key.as_bytes(), value.as_bytes()));
        is_there.then_some(()).ok_or_else(|| format!("no key: {key:?}"))
    }

    /// From now on.
    pub(crate) fn fault(&self, fault: Fault) {
        self.fault_times(fault, u64::MAX);
    }

    /// For so many uses.
    pub(crate) fn fault_times(&self, fault: Fault, times: u64) {
        self.world.change(|state| {
            state.faults.insert(fault, times);
            state.faulty_since = state.store.revision();
        });
    }

    /// Whether it has uses left.
    pub(crate) fn has_fault(&self, fault: Fault) -> bool {
        self.world.state().faults.contains_key(&fault)
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.world.change(|state| state.faults.clear());
    }

    /// Sends a message on each open watch. Its header is filled in where it has none, and no fault changes it.
    pub(crate) fn send(&self, mut message: PbWatchResponse) {
        self.world.change(|state| {
            let header = state.header();
            message.header.get_or_insert(header);
            state.sent.push(message);
        });
    }

    /// Calls of a method so far, such as `Range`.
    pub(crate) fn calls(&self, method: &str) -> u64 {
        self.world.state().calls.get(method).copied().unwrap_or(0)
    }

    /// Watch streams that are open.
    pub(crate) fn watches(&self) -> u64 {
        self.world.state().watches
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.world.cuts.send_modify(|number| *number += 1);
    }

    /// A command of the program: `put KEY VALUE ...` (all in one revision), `puts KEY TIMES`, `fill KEY BYTES`, `delete KEY`,
    /// `corrupt KEY VALUE`, `compact REVISION`, `wipe`, `fault NAME [TIMES]`, `seed NUMBER`, `heal`, `cut`, `calls METHOD`,
    /// `watches`. Gives a revision or a count.
    pub(crate) fn command(&self, line: &str) -> Result<u64, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        match *words.as_slice() {
            ["put", ref pairs @ ..] if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                let changes: Vec<_> =
                    pairs.chunks(2).map(|pair| (pair[0].as_bytes(), Some(pair[1].as_bytes()))).collect();
                return Ok(self.txn(&changes));
            }
            ["puts", key, times] => (0..number(times)?).for_each(|value| _ = self.put(key, value.to_string())),
            ["fill", key, bytes] => _ = self.put(key, vec![b'v'; number(bytes)? as usize]),
            ["delete", key] => return Ok(self.delete(key)),
            ["corrupt", key, value] => self.corrupt(key, value)?,
            ["compact", revision] => self.compact(number(revision)?),
            ["wipe"] => self.wipe(),
            ["fault", name] => self.fault(Fault::of_name(name)?),
            ["fault", name, times] => self.fault_times(Fault::of_name(name)?, number(times)?),
            ["seed", seed] => self.seed(number(seed)?),
            ["heal"] => self.heal(),
            ["cut"] => self.cut(),
            ["calls", method] => return Ok(self.calls(method)),
            ["watches"] => return Ok(self.watches()),
            _ => return Err(format!("no command: {line:?}")),
        }
        Ok(self.revision())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
