//! A controller: it keeps as many pods of each app as the app wants, whoever changes either.
//!
//! ```sh
//! cargo run -p watchcore-etcd --example controller -- http://127.0.0.1:2379
//! ```
//!
//! An app is a key `/controller/apps/NAME` whose value is the wanted number of pods; a pod is a key
//! `/controller/pods/NAME/NUMBER`. A feeder follows etcd into a cache. Handlers of an informer put the names of apps
//! into a work queue; two workers take them, compare the wanted with the existing pods, and write the difference to
//! etcd. The program plays the users too, and removes `/controller/` at its beginning and end. It prints
//!
//! ```text
//! user: web shall have 2
//!   web makes 0
//!   web makes 1
//! user: db shall have 1
//!   db makes 0
//! user: web shall have 1
//!   web removes 1
//! somebody deletes web's pod 0
//!   web makes 0
//! user: db is not wanted any more
//!   db removes 0
//! done
//! ```

use etcd_client::{Client, DeleteOptions};
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::Runtime;
use watchcore::{Cache, Filter, Range};
use watchcore_etcd::Feeder;
use watchcore_toolkit::{HandlerFns, Informer, Lister, Object, WorkItem, WorkQueue, until_with_sync};

const APPS: &str = "/controller/apps/";
const PODS: &str = "/controller/pods/";
const BOUND: Duration = Duration::from_secs(30);

type Text = Object<String>;
type Anything<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A writer to etcd for threads that block.
#[derive(Clone)]
struct Etcd {
    runtime: Arc<Runtime>,
    client: Client,
}

impl Etcd {
    fn connect(endpoint: &str) -> Anything<Etcd> {
        let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?);
        let client = runtime.block_on(Client::connect([endpoint], None))?;
        Ok(Etcd { runtime, client })
    }

    /// Puts a key and returns the revision of the change.
    fn put(&self, key: &str, value: &str) -> Anything<u64> {
        let answer = self.runtime.block_on(self.client.clone().put(key, value, None))?;
        Ok(answer.header().map_or(0, |header| header.revision() as u64))
    }

    fn delete(&self, key: &str, options: Option<DeleteOptions>) -> Anything<u64> {
        let answer = self.runtime.block_on(self.client.clone().delete(key, options))?;
        Ok(answer.header().map_or(0, |header| header.revision() as u64))
    }
}

struct Controller {
    etcd: Etcd,
    apps: Lister<Text>,
    pods: Lister<Text>,
}

impl Controller {
    /// Compares the wanted with the existing pods: the result depends only on the present state, however often it is
    /// called.
    fn reconcile(&self, app: &str) -> Anything<()> {
        let wanted: usize = match self.apps.get(format!("{APPS}{app}"))? {
            Some(app) => app.parse()?,
            None => 0,
        };
        let wanted: BTreeSet<String> = (0..wanted).map(|number| number.to_string()).collect();
        let prefix = format!("{PODS}{app}/");
        let there = self.pods.range(&Range::prefix(&prefix))?;
        let there: BTreeSet<String> =
            there.iter().filter_map(|pod| pod.key_str()?.strip_prefix(&prefix).map(str::to_owned)).collect();
        let mut revision = 0;
        for number in wanted.difference(&there) {
            println!("  {app} makes {number}");
            revision = self.etcd.put(&format!("{prefix}{number}"), "running")?;
        }
        for number in there.difference(&wanted) {
            println!("  {app} removes {number}");
            revision = self.etcd.delete(&format!("{prefix}{number}"), None)?;
        }
        // Waits for these writes, so that the next reconciliation of this app sees them.
        self.pods.wait_until(revision, BOUND)?;
        Ok(())
    }

    fn work(&self, queue: &WorkQueue<String>) {
        while let Ok(Some(item)) = queue.get(Duration::MAX) {
            match self.reconcile(&item) {
                Ok(()) => WorkItem::forget(item),
                Err(error) => {
                    eprintln!("  {} failed, and is tried again: {error}", *item);
                    item.retry();
                }
            }
        }
    }
}

/// The app to which a key belongs.
fn app_of(object: &Text) -> Option<String> {
    let key = object.key_str()?;
    let name = key.strip_prefix(APPS).or_else(|| key.strip_prefix(PODS)?.split('/').next())?;
    Some(name.to_owned())
}

/// Puts the app of each changed object into the queue.
fn enqueue(queue: &WorkQueue<String>) -> HandlerFns<Text> {
    let add = |queue: &WorkQueue<String>| {
        let queue = queue.clone();
        move |object: &Text| app_of(object).into_iter().for_each(|app| queue.add(app))
    };
    let (added, updated, deleted) = (add(queue), add(queue), add(queue));
    HandlerFns::new()
        .on_added(move |new, _| added(new))
        .on_updated(move |_, new, _| updated(new))
        .on_deleted(move |last, _| deleted(last))
}

/// Waits until an app has this many pods.
fn wait_for_pods(cache: &Cache, app: &str, count: usize) -> Anything<()> {
    let (mut there, mut complete) = (BTreeSet::new(), false);
    let prefix = format!("{PODS}{app}/");
    until_with_sync::<Text>(cache)
        .filter(Filter::any().prefix(&prefix))
        .precondition({
            let prefix = prefix.clone();
            move |state| state.prefix(&prefix).count() == count
        })
        .then(move |event| {
            if let Some(pod) = event.object() {
                let key = pod.key().to_vec();
                let _ = if event.name() == "DELETED" { there.remove(&key) } else { there.insert(key) };
            }
            // The state arrives object by object, so the number counts only once the state is complete.
            complete |= event.name() == "SYNCED";
            complete && there.len() == count
        })
        .timeout(BOUND)
        .wait()?;
    Ok(())
}

/// The changes of the users, and their effects.
fn story(etcd: &Etcd, cache: &Cache) -> Anything<()> {
    println!("user: web shall have 2");
    etcd.put(&format!("{APPS}web"), "2")?;
    wait_for_pods(cache, "web", 2)?;

    println!("user: db shall have 1");
    etcd.put(&format!("{APPS}db"), "1")?;
    wait_for_pods(cache, "db", 1)?;

    println!("user: web shall have 1");
    etcd.put(&format!("{APPS}web"), "1")?;
    wait_for_pods(cache, "web", 1)?;

    println!("somebody deletes web's pod 0");
    let gone = etcd.delete(&format!("{PODS}web/0"), None)?;
    cache.wait_until(gone, BOUND)?;
    wait_for_pods(cache, "web", 1)?;

    println!("user: db is not wanted any more");
    etcd.delete(&format!("{APPS}db"), None)?;
    wait_for_pods(cache, "db", 0)
}

fn main() -> Anything<()> {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:2379".into());
    let etcd = Etcd::connect(&endpoint)?;
    etcd.delete("/controller/", Some(DeleteOptions::new().with_prefix()))?;

    let cache = Cache::builder("/controller/").decoder(|_, value: &[u8]| String::from_utf8(value.to_vec())).build()?;
    let feeder = Feeder::new([endpoint]).start(cache.writer()?)?;
    let informer = |path| Informer::<Text>::builder(&cache).filter(Filter::any().prefix(path)).build();
    let (apps, pods) = (informer(APPS)?, informer(PODS)?);
    let queue = WorkQueue::new();
    let _registrations = [apps.add_handler(enqueue(&queue))?, pods.add_handler(enqueue(&queue))?];
    apps.wait_synced(BOUND)?;
    pods.wait_synced(BOUND)?;

    let controller = Arc::new(Controller { etcd: etcd.clone(), apps: apps.lister(), pods: pods.lister() });
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (controller, queue) = (Arc::clone(&controller), queue.clone());
            thread::spawn(move || controller.work(&queue))
        })
        .collect();
    let told = story(&etcd, &cache);

    queue.shut_down_with_drain(BOUND)?;
    workers.into_iter().for_each(|worker| worker.join().expect("a worker does not panic"));
    etcd.delete("/controller/", Some(DeleteOptions::new().with_prefix()))?;
    feeder.stop();
    told?;
    println!("done");
    Ok(())
}
