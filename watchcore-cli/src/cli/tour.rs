//! `watchcore demo`: a short tour, over an embedded cache or a live etcd.

use std::io::Write as _;
use std::time::Duration;

use super::exit::{Failure, Stop};
use super::json::LineEvent;
use super::options::{Format, Options, Task};
use super::output::Output;
use super::signals::Interrupt;
use super::source::{self, Deadline, Source};
use super::status;
use watchcore::{Cache, Change, Code, Kind, Read, Start, Subscription, Writer};

/// How long the tour waits for a change, or for an answer of etcd, without `--timeout`.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// How long the tour may take to remove its keys when the time limit has passed.
const CLEANING: Duration = Duration::from_millis(500);

/// A change of the tour: a name below the prefix, and a value or `None` for a deletion.
type Step<'a> = (&'a str, Option<&'a str>);

/// The writer of the tour's changes: the tour itself, or etcd.
trait TourWriter {
    /// Writes all steps in one revision and returns it; writes none if another client has written one of the keys.
    fn write(&mut self, steps: &[Step<'_>]) -> Result<u64, Stop>;
    /// Removes the keys that it has written and no other client has written since.
    fn clean(&mut self) -> Result<(), Stop>;
}

pub(crate) fn run(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    debug_assert_eq!(options.task, Task::Demo);
    let deadline = Deadline::of(options);
    if !options.access.asked {
        let prefix = options.prefix.clone().unwrap_or_else(|| b"/demo/".to_vec());
        let cache = Cache::builder(&prefix).capacity(options.capacity).build()?;
        let closing = cache.clone();
        interrupt.on_signal(move || closing.close());
        let mut writer = EmbeddedWriter { writer: cache.writer()?, prefix };
        return Tour { cache: &cache, deadline, who: "this program itself" }.walk(&mut writer, out);
    }
    let prefix =
        options.prefix.clone().unwrap_or_else(|| format!("/watchcore-demo/{}/", std::process::id()).into_bytes());
    if prefix.is_empty() {
        let message =
            "the tour writes keys, and all of etcd is no place for them. Choose an empty --prefix of their own";
        return Err(Failure::new(Code::InvalidArgument, message).into());
    }
    let cache = source::cache(options, &prefix)?;
    let source = Source::start(&cache, source::feeder(&options.access)?, &options.access, interrupt)?;
    source.wait(deadline, None, interrupt)?;
    if !cache.snapshot()?.is_empty() {
        let message =
            "there are keys below the prefix already, and the tour deletes what it wrote. Choose an empty --prefix";
        return Err(Failure::new(Code::InvalidArgument, message).into());
    }
    let ended = etcd::Client::connect(options, &prefix, deadline).and_then(|mut writer| {
        let ended = Tour { cache: &cache, deadline, who: "etcd" }.walk(&mut writer, out);
        ended.and(writer.clean())
    });
    source.feeder.stop();
    ended.map_err(|stop| match stop {
        // Reports the time limit, whichever step it interrupted.
        Stop::Failure(Failure { code: Code::Timeout | Code::Unavailable, .. }) if deadline.has_passed() => {
            deadline.failure("the tour was not over").into()
        }
        stop => stop,
    })
}

/// The cache that the tour shows, and the name of its writer.
struct Tour<'a> {
    cache: &'a Cache,
    deadline: Deadline,
    who: &'static str,
}

impl Tour<'_> {
    fn walk(&self, writer: &mut dyn TourWriter, out: &mut Output) -> Result<(), Stop> {
        let Tour { cache, who, .. } = *self;
        let prefix = String::from_utf8_lossy(cache.prefix()).into_owned();
        let say = |out: &mut Output, text: String| match out.format {
            Format::Text => out.line(|buffer| {
                let _ = writeln!(buffer, "\n# {text}");
            }),
            _ => Ok(()),
        };
        say(
            out,
            format!(
                "A cache of everything below {prefix}, written by {who}, and a subscription that begins with the state."
            ),
        )?;
        let mut all = cache.subscribe(Start::State).name("all").open()?;
        let _idle = cache.subscribe(Start::Now).name("idle").open()?;
        show(&mut all, out)?;

        say(out, "Two puts, each a revision of its own.".to_owned())?;
        writer.write(&[("fruit/apple", Some("green"))])?;
        let before = writer.write(&[("fruit/pear", Some("yellow"))])?;
        self.arrive(&mut all, before, out)?;

        say(
            out,
            "Three changes in one revision: they are seen together, or not at all. A put of a known key is MODIFIED."
                .to_owned(),
        )?;
        let snapshot = cache.snapshot()?;
        let steps = [("fruit/apple", Some("red")), ("fruit/plum", Some("blue")), ("tree/oak", Some("tall"))];
        let together = writer.write(&steps)?;
        self.arrive(&mut all, together, out)?;

        say(out, "A deletion carries the last value (with --format json: prev_value).".to_owned())?;
        let deleted = writer.write(&[("fruit/pear", None)])?;
        self.arrive(&mut all, deleted, out)?;

        say(
            out,
            format!(
                "The past can be read: fruit/pear at revision {before}, and the snapshot taken then, which never changes."
            ),
        )?;
        let pear = [cache.prefix(), b"fruit/pear"].concat();
        if let Some(kv) = cache.get(&pear, Read::Exact(before))?.kv {
            out.key_value(&kv)?;
        }
        for kv in snapshot.iter() {
            out.key_value(&kv)?;
        }

        say(
            out,
            format!(
                "A second consumer comes back and goes on after revision {before}, for fruit/ only: nothing is missing."
            ),
        )?;
        let second = cache.subscribe(Start::After(before)).prefix([cache.prefix(), b"fruit/"].concat());
        let mut fruit = second.name("fruit").open()?;
        show(&mut fruit, out)?;

        say(
            out,
            "How the cache stands, and who reads it. A third consumer, idle, came with the first and never polls."
                .to_owned(),
        )?;
        if out.format == Format::Text {
            out.line(|buffer| status::as_text(buffer, cache))?;
        }
        out.flush()
    }

    /// Waits until `revision` is in the cache, then prints its events.
    fn arrive(&self, subscription: &mut Subscription, revision: u64, out: &mut Output) -> Result<(), Stop> {
        self.cache.wait_until(revision, self.deadline.step_limit(STEP_LIMIT))?;
        show(subscription, out)
    }
}

/// Prints all available events.
fn show(subscription: &mut Subscription, out: &mut Output) -> Result<(), Stop> {
    loop {
        let batch = subscription.poll(256)?;
        if batch.is_empty() {
            return out.flush();
        }
        for event in batch.events() {
            if let Some(shown) = LineEvent::of(event) {
                out.event(&shown)?;
            } else if event.kind() == Kind::Bookmark {
                out.bookmark(event.revision(), event.ends_initial_state())?;
            } else if let Some(resync) = event.resync() {
                out.resync(&resync)?;
            }
        }
    }
}

/// The writer of an embedded cache.
struct EmbeddedWriter {
    writer: Writer,
    prefix: Vec<u8>,
}

impl TourWriter for EmbeddedWriter {
    fn write(&mut self, steps: &[Step<'_>]) -> Result<u64, Stop> {
        let revision = self.writer.position().revision + 1;
        let keys: Vec<Vec<u8>> = steps.iter().map(|(name, _)| [&self.prefix, name.as_bytes()].concat()).collect();
        let changes = steps.iter().zip(&keys).map(|((_, value), key)| match value {
            Some(value) => Change::put(key, *value),
            None => Change::delete(key),
        });
        self.writer.apply(revision, changes)?;
        Ok(revision)
    }

    fn clean(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

mod etcd {
    //! The tour's writer over etcd, with the plain client.

    use super::{CLEANING, Deadline, Options, STEP_LIMIT, Step, Stop, TourWriter};
    use crate::cli::exit::Failure;
    use crate::cli::text;
    use etcd_client::{Certificate, Compare, CompareOp, ConnectOptions, Identity, TlsOptions, Txn, TxnOp};
    use std::collections::BTreeMap;
    use std::future::Future;
    use std::time::Duration;
    use tokio::runtime::Runtime;
    use watchcore::Code;

    pub(super) struct Client {
        runtime: Runtime,
        kv: etcd_client::KvClient,
        prefix: Vec<u8>,
        deadline: Deadline,
        /// The existing keys that this writer has written, each with the revision of its change. If another client
        /// changes a key, its revision differs, and the key is no longer the tour's.
        written: BTreeMap<Vec<u8>, i64>,
    }

    /// The most characters of an error that are shown.
    const LONGEST_ERROR: usize = 512;

    fn failed(what: &str, error: impl std::fmt::Display) -> Stop {
        // The text may be a server's: print one short line of it, and no control characters.
        let error: String = error.to_string().chars().take(LONGEST_ERROR).collect();
        let error = text::escaped(error.as_bytes());
        let message = format!("{what} etcd failed: {error}. The tour needs write access below its prefix");
        Failure::new(Code::Unavailable, message).into()
    }

    /// Waits for an answer of etcd, at most for `most`.
    fn answer<T>(
        runtime: &Runtime,
        what: &str,
        most: Duration,
        asked: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Stop> {
        let answer = runtime.block_on(async { tokio::time::timeout(most, asked).await });
        let answer = answer.map_err(|_| failed(what, format!("there was no answer for {most:?}")))?;
        answer.map_err(|error| failed(what, error))
    }

    /// A condition that the key is unchanged since `revision`; 0: that it does not exist.
    fn unchanged(key: &[u8], revision: i64) -> Compare {
        Compare::mod_revision(key, CompareOp::Equal, revision)
    }

    impl Client {
        pub(super) fn connect(options: &Options, prefix: &[u8], deadline: Deadline) -> Result<Client, Stop> {
            let access = &options.access;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| failed("preparing for", error))?;
            let mut connect = ConnectOptions::new();
            if let Some((name, password)) = &access.user {
                connect = connect.with_user(name, password);
            }
            let read = |path: &std::path::Path| {
                std::fs::read(path).map_err(|error| failed("reading a certificate for", error))
            };
            let is_https = access.endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
            if is_https || access.cacert.is_some() || access.cert_and_key.is_some() {
                let tls = TlsOptions::new();
                let mut tls = match &access.cacert {
                    Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
                    None => tls.with_native_roots(),
                };
                if let Some((cert, key)) = &access.cert_and_key {
                    tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
                }
                connect = connect.with_tls(tls);
            }
            let connecting = etcd_client::Client::connect(&access.endpoints, Some(connect));
            let client = answer(&runtime, "connecting to", deadline.step_limit(STEP_LIMIT), connecting)?;
            let (kv, written) = (client.kv_client(), BTreeMap::new());
            Ok(Client { runtime, kv, prefix: prefix.to_vec(), deadline, written })
        }
    }

    impl TourWriter for Client {
        fn write(&mut self, steps: &[Step<'_>]) -> Result<u64, Stop> {
            let key = |name: &str| [&self.prefix, name.as_bytes()].concat();
            let keys: Vec<Vec<u8>> = steps.iter().map(|(name, _)| key(name)).collect();
            let revision = |key| self.written.get(key).copied().unwrap_or(0);
            let compares: Vec<Compare> = keys.iter().map(|key| unchanged(key, revision(key))).collect();
            let operation = |(key, (_, value)): (&Vec<u8>, &Step<'_>)| match value {
                Some(value) => TxnOp::put(key.as_slice(), *value, None),
                None => TxnOp::delete(key.as_slice(), None),
            };
            let operations: Vec<TxnOp> = keys.iter().zip(steps).map(operation).collect();
            let asked = self.kv.txn(Txn::new().when(compares).and_then(operations));
            let answer = answer(&self.runtime, "writing to", self.deadline.step_limit(STEP_LIMIT), asked)?;
            if !answer.succeeded() {
                let message = "another client has written one of the tour's keys meanwhile, which stays as it is. Choose a --prefix that nobody else has";
                return Err(Failure::new(Code::Busy, message).into());
            }
            let revision = answer.header().map_or(0, |header| header.revision());
            for (key, (_, value)) in keys.into_iter().zip(steps) {
                match value {
                    Some(_) => self.written.insert(key, revision),
                    None => self.written.remove(&key),
                };
            }
            Ok(revision as u64)
        }

        fn clean(&mut self) -> Result<(), Stop> {
            let Client { runtime, kv, deadline, written, .. } = self;
            let deletes = async {
                // Each key in its own transaction, so that a key of another client does not keep the others.
                for (key, revision) in std::mem::take(written) {
                    let delete = TxnOp::delete(key.as_slice(), None);
                    kv.txn(Txn::new().when([unchanged(&key, revision)]).and_then([delete])).await?;
                }
                Ok(())
            };
            answer(runtime, "cleaning up in", deadline.step_limit(STEP_LIMIT).max(CLEANING), deletes)
        }
    }
}
