//! The load: objects first, then changes from several clients at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};

pub(crate) const PREFIX: &str = "/demo/";
/// The last key that is written: a consumer that sees it has seen everything.
pub(crate) const LAST: &str = "/demo/~last";
/// The prefix of keys that are removed with their leases.
const LEASED: &str = "/demo/leased/";

const CLIENTS: u64 = 8;
/// The number of concurrent requests of a client.
const LANES: u64 = 4;
/// How long a request is retried, through the crash.
const RETRY_LIMIT: Duration = Duration::from_secs(30);

pub(crate) type Outcome<T> = Result<T, String>;

pub(crate) fn runtime() -> Outcome<Runtime> {
    Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())
}

pub(crate) async fn connect(endpoint: &str) -> Outcome<Client> {
    let options = ConnectOptions::new().with_timeout(Duration::from_secs(5));
    Client::connect([endpoint], Some(options)).await.map_err(|error| format!("connecting to etcd: {error}"))
}

/// Random numbers: the same in every run, different in every lane.
struct Random(fastrand::Rng);

impl Random {
    fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    fn key(&mut self, objects: u64) -> String {
        key(self.below(objects + objects / 10))
    }

    /// Mostly text, sometimes bytes that are no text, sometimes empty.
    fn value(&mut self) -> Vec<u8> {
        let number = self.below(u64::MAX);
        match number % 20 {
            0 => Vec::new(),
            1 => [&b"\xff\xfe\x00"[..], &number.to_le_bytes()].concat(),
            _ => format!("{{\"number\":{number},\"text\":\"a \\\"value\\\" of the demo\"}}").into_bytes(),
        }
    }
}

fn key(object: u64) -> String {
    format!("{PREFIX}group-{:02}/object-{object:05}", object % 100)
}

/// Puts the objects, a hundred per transaction; `done` counts them.
pub(crate) async fn objects(endpoint: &str, objects: u64, done: &AtomicU64) -> Outcome<()> {
    let mut client = connect(endpoint).await?;
    let mut random = Random::new(99);
    let numbers: Vec<u64> = (0..objects).collect();
    for some in numbers.chunks(100) {
        let puts: Vec<TxnOp> = some.iter().map(|&number| TxnOp::put(key(number), random.value(), None)).collect();
        client.txn(Txn::new().and_then(puts)).await.map_err(|error| format!("loading: {error}"))?;
        done.fetch_add(some.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Makes at least `changes` changes; `done` counts the acknowledged ones.
pub(crate) async fn changes(endpoint: &str, objects: u64, changes: u64, done: &Arc<AtomicU64>) -> Outcome<()> {
    let mut lanes = Vec::new();
    for client in 0..CLIENTS {
        let connection = connect(endpoint).await?;
        for lane in 0..LANES {
            let lane = Lane {
                client: connection.clone(),
                random: Random::new(client * LANES + lane),
                objects,
                number: client * LANES + lane,
                done: Arc::clone(done),
            };
            lanes.push(lane.run(changes));
        }
    }
    futures_all(lanes).await?;
    // Keys with a lease of two seconds must be gone before the end.
    let mut client = connect(endpoint).await?;
    let begin = Instant::now();
    loop {
        let options = GetOptions::new().with_prefix().with_count_only();
        let left = client.get(LEASED, Some(options)).await.map_err(|error| error.to_string())?.count();
        if left == 0 {
            return Ok(());
        }
        if begin.elapsed() > RETRY_LIMIT {
            return Err(format!("{left} keys are still there after their lease"));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Makes the last change and returns its revision.
pub(crate) async fn last(endpoint: &str) -> Outcome<u64> {
    let mut client = connect(endpoint).await?;
    let answer = client.put(LAST, "the end", None).await.map_err(|error| format!("the last put: {error}"))?;
    answer.header().map(|header| header.revision() as u64).ok_or_else(|| "an answer without a header".to_owned())
}

/// Runs all lanes concurrently, on this thread.
async fn futures_all(lanes: Vec<impl Future<Output = Outcome<()>>>) -> Outcome<()> {
    let mut lanes: Vec<_> = lanes.into_iter().map(|lane| Some(Box::pin(lane))).collect();
    std::future::poll_fn(|context| {
        let mut open = false;
        for lane in &mut lanes {
            if let Some(future) = lane {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(Ok(())) => *lane = None,
                    std::task::Poll::Ready(Err(error)) => return std::task::Poll::Ready(Err(error)),
                    std::task::Poll::Pending => open = true,
                }
            }
        }
        if open { std::task::Poll::Pending } else { std::task::Poll::Ready(Ok(())) }
    })
    .await
}

/// A lane of requests, each sent after the answer to the one before.
struct Lane {
    client: Client,
    random: Random,
    objects: u64,
    number: u64,
    done: Arc<AtomicU64>,
}

impl Lane {
    async fn run(mut self, changes: u64) -> Outcome<()> {
        while self.done.load(Ordering::Relaxed) < changes {
            let made = match self.random.below(100) {
                0..50 => self.put().await?,
                50..62 => self.delete().await?,
                62..92 => self.transaction().await?,
                92..95 => self.outside().await?,
                _ => self.lease().await?,
            };
            self.done.fetch_add(made, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn put(&mut self) -> Outcome<u64> {
        let (key, value) = (self.random.key(self.objects), self.random.value());
        retry(async || self.client.clone().put(key.clone(), value.clone(), None).await).await?;
        Ok(1)
    }

    async fn delete(&mut self) -> Outcome<u64> {
        let key = self.random.key(self.objects);
        let answer = retry(async || self.client.clone().delete(key.clone(), None).await).await?;
        Ok(answer.map_or(0, |answer| answer.deleted() as u64))
    }

    /// 5 to 30 keys in one revision, puts and deletes.
    async fn transaction(&mut self) -> Outcome<u64> {
        let size = 5 + self.random.below(26);
        let mut keys: Vec<String> = (0..size).map(|_| self.random.key(self.objects)).collect();
        keys.sort_unstable();
        keys.dedup();
        let operations: Vec<TxnOp> = keys
            .into_iter()
            .map(|key| match self.random.below(8) {
                0 => TxnOp::delete(key, None),
                _ => TxnOp::put(key, self.random.value(), None),
            })
            .collect();
        let answer = retry(async || self.client.clone().txn(Txn::new().and_then(operations.clone())).await).await?;
        let made = answer.map_or(0, |answer| {
            let count = |response: &TxnOpResponse| match response {
                TxnOpResponse::Put(_) => 1,
                TxnOpResponse::Delete(deleted) => deleted.deleted() as u64,
                _ => 0,
            };
            answer.op_responses().iter().map(count).sum()
        });
        Ok(made)
    }

    /// Writes outside the prefix: the consumers see a gap in the revisions.
    async fn outside(&mut self) -> Outcome<u64> {
        let key = format!("/elsewhere/{}", self.number);
        retry(async || self.client.clone().put(key.clone(), "x", None).await).await?;
        Ok(0)
    }

    /// Puts three keys with a lease that is revoked, runs out, or stays.
    async fn lease(&mut self) -> Outcome<u64> {
        let fate = self.random.below(3);
        let (ttl, place) = if fate == 2 { (3600, "kept/") } else { (2, "leased/") };
        let Some(lease) = retry(async || self.client.clone().lease_grant(ttl, None).await).await? else { return Ok(0) };
        let lease = lease.id();
        let (mut made, below) = (0, self.random.below(1000));
        for place in (0..3).map(|number| format!("{PREFIX}{place}{below:03}-{number}")) {
            let options = PutOptions::new().with_lease(lease);
            let put = retry(async || self.client.clone().put(place.clone(), "by lease", Some(options.clone())).await);
            made += u64::from(put.await?.is_some());
        }
        if fate == 0 {
            retry(async || self.client.clone().lease_revoke(lease).await).await?;
            made += 3;
        }
        Ok(made)
    }
}

/// Retries a request while etcd is down. `None`: etcd was up and refused it, such as a put whose lease has run out.
async fn retry<T>(request: impl AsyncFn() -> Result<T, Error>) -> Outcome<Option<T>> {
    let begin = Instant::now();
    loop {
        match request().await {
            Ok(answer) => return Ok(Some(answer)),
            Err(Error::GRpcStatus(status)) if status.message().contains("lease not found") => return Ok(None),
            Err(error) if begin.elapsed() > RETRY_LIMIT => return Err(format!("writing: {error}")),
            Err(_) => sleep(Duration::from_millis(30)).await,
        }
    }
}
