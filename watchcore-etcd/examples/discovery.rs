//! Service discovery: clients find the instances of a service by an index that is kept current, without asking a
//! server.
//!
//! ```sh
//! cargo run -p watchcore-etcd --example discovery -- http://127.0.0.1:2379
//! ```
//!
//! An instance registers itself as a key `/discovery/HOST` with the value `SERVICE ADDRESS` and a lease: when it dies,
//! etcd removes the key. A client follows etcd into a cache, and an informer keeps an index of the instances by their
//! service. A lookup in the index costs no round trip. The program plays the instances too, and removes `/discovery/`
//! at its beginning and end. It prints
//!
//! ```text
//! + a offers web at 10.0.0.1:80
//! + b offers web at 10.0.0.2:80
//! + c offers db at 10.0.0.3:5432
//! web: 10.0.0.1:80 10.0.0.2:80
//! db: 10.0.0.3:5432
//! ~ a offers web at 10.0.0.9:80, no more at 10.0.0.1:80
//! - b, which offered web at 10.0.0.2:80
//! web: 10.0.0.9:80
//! services: db web
//! ```

use etcd_client::{Client, DeleteOptions, PutOptions};
use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;
use watchcore::Cache;
use watchcore_etcd::Feeder;
use watchcore_toolkit::{HandlerFns, Informer, Lister, Object};

const PREFIX: &str = "/discovery/";
const BOUND: Duration = Duration::from_secs(30);

/// An instance of a service.
#[derive(Debug)]
struct Instance {
    service: String,
    address: String,
}

/// The cache's decoder: each value is decoded once, for all readers.
fn decode(_: &[u8], value: &[u8]) -> Result<Instance, String> {
    let text = std::str::from_utf8(value).map_err(|error| error.to_string())?;
    let (service, address) = text.split_once(' ').ok_or_else(|| format!("{text:?} is not SERVICE ADDRESS"))?;
    Ok(Instance { service: service.to_owned(), address: address.to_owned() })
}

fn host(instance: &Object<Instance>) -> &str {
    instance.key_str().and_then(|key| key.strip_prefix(PREFIX)).unwrap_or("?")
}

/// Prints each change, and signals that it was printed.
fn announcer(said: mpsc::Sender<()>) -> HandlerFns<Object<Instance>> {
    let (added, updated, deleted) = (said.clone(), said.clone(), said);
    HandlerFns::new()
        .on_added(move |new: &Object<Instance>, _| {
            println!("+ {} offers {} at {}", host(new), new.service, new.address);
            added.send(()).ok();
        })
        .on_updated(move |old: &Object<Instance>, new: &Object<Instance>, _| {
            println!("~ {} offers {} at {}, no more at {}", host(new), new.service, new.address, old.address);
            updated.send(()).ok();
        })
        .on_deleted(move |last: &Object<Instance>, _| {
            println!("- {}, which offered {} at {}", host(last), last.service, last.address);
            deleted.send(()).ok();
        })
}

/// Prints where a service is offered.
fn look_up(instances: &Lister<Object<Instance>>, service: &str) -> watchcore::Result<()> {
    let found = instances.by_index("service", service)?;
    let addresses: Vec<&str> = found.iter().map(|instance| &*instance.address).collect();
    println!("{service}: {}", addresses.join(" "));
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:2379".into());
    let mut etcd = Client::connect([&endpoint], None).await?;
    etcd.delete(PREFIX, Some(DeleteOptions::new().with_prefix())).await?;

    let cache = Cache::builder(PREFIX).decoder(decode).build()?;
    let feeder = Feeder::new([endpoint]).start(cache.writer()?)?;
    let informer = Informer::<Object<Instance>>::builder(&cache)
        .index("service", |instance: &Object<Instance>| vec![instance.service.clone()])
        .build()?;
    let (say, said) = mpsc::channel();
    let _registration = informer.add_handler(announcer(say))?;
    informer.wait_synced(BOUND)?;
    let instances = informer.lister();

    let mut leases = Vec::new();
    for (name, value) in [("a", "web 10.0.0.1:80"), ("b", "web 10.0.0.2:80"), ("c", "db 10.0.0.3:5432")] {
        let lease = etcd.lease_grant(600, None).await?.id();
        let options = PutOptions::new().with_lease(lease);
        etcd.put(format!("{PREFIX}{name}"), value, Some(options)).await?;
        leases.push(lease);
        said.recv_timeout(BOUND)?;
    }
    // The index has reached the cache's position, so it has everything written.
    instances.wait_until(cache.position().revision, BOUND)?;
    look_up(&instances, "web")?;
    look_up(&instances, "db")?;

    etcd.put(format!("{PREFIX}a"), "web 10.0.0.9:80", Some(PutOptions::new().with_lease(leases[0]))).await?;
    said.recv_timeout(BOUND)?;
    // An instance dies: its lease ends, here by revoking it.
    etcd.lease_revoke(leases[1]).await?;
    said.recv_timeout(BOUND)?;
    instances.wait_until(cache.position().revision, BOUND)?;
    look_up(&instances, "web")?;
    println!("services: {}", instances.index_values("service")?.join(" "));

    // The removals from here on are not printed.
    informer.stop();
    etcd.delete(PREFIX, Some(DeleteOptions::new().with_prefix())).await?;
    for lease in [leases[0], leases[2]] {
        etcd.lease_revoke(lease).await?;
    }
    feeder.stop();
    Ok(())
}
