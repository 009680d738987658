//! `watchcore demo`: a tour in a few steps, over an embedded cache or a live etcd.

use std::io::Write as _;
use std::time::Duration;

use super::exit::{Failure, Stop};
use super::options::{Options, Task};
use super::output::{Format, Output};
use super::shown::Shown;
use super::signals::Interrupt;
use super::source::{self, Deadline, Source};
use super::status;
use watchcore::{Cache, Change, Code, Kind, Read, Start, Subscription, Writer};

const PATIENCE: Duration = Duration::from_secs(10);

/// A change of the tour: a name below the prefix, and a value or a deletion.
type Step<'a> = (&'a str, Option<&'a str>);

/// Who writes: the tour itself, or etcd on its behalf.
trait Hand {
    /// All steps in one revision, which is answered.
    fn write(&mut self, steps: &[Step<'_>]) -> Result<u64, Stop>;
    /// Removes what it has written.
    fn clean(&mut self) -> Result<(), Stop>;
}

pub(crate) fn run(options: &Options, interrupt: &Interrupt, out: &mut Output) -> Result<(), Stop> {
    debug_assert_eq!(options.task, Task::Demo);
    if !options.access.asked {
        let prefix = options.prefix.clone().unwrap_or_else(|| b"/demo/".to_vec());
        let cache = Cache::builder(&prefix).capacity(options.capacity).build()?;
        let closing = cache.clone();
        interrupt.on_signal(move || closing.close());
        let mut hand = Own { writer: cache.writer()?, prefix };
        return tour(&cache, &mut hand, "this program itself", out);
    }
    let prefix =
        options.prefix.clone().unwrap_or_else(|| format!("/watchcore-demo/{}/", std::process::id()).into_bytes());
    let cache = source::cache(options, &prefix)?;
    let source = Source::start(&cache, source::feeder(&options.access)?, &options.access, interrupt)?;
    source.wait(Deadline::of(options), None, interrupt)?;
    if !cache.snapshot()?.is_empty() {
        let message =
            "there are keys below the prefix already, and the tour deletes what it wrote. Choose an empty --prefix";
        return Err(Failure::new(Code::InvalidArgument, message).into());
    }
    let mut hand = etcd::Client::connect(options, &prefix)?;
    let ended = tour(&cache, &mut hand, "etcd", out);
    let cleaned = hand.clean();
    source.feeder.stop();
    ended.and(cleaned)
}

fn tour(cache: &Cache, hand: &mut dyn Hand, who: &str, out: &mut Output) -> Result<(), Stop> {
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
    hand.write(&[("fruit/apple", Some("green"))])?;
    let before = hand.write(&[("fruit/pear", Some("yellow"))])?;
    arrive(cache, &mut all, before, out)?;

    say(
        out,
        "Three changes in one revision: they are seen together, or not at all. A put of a known key is MODIFIED."
            .to_owned(),
    )?;
    let snapshot = cache.snapshot()?;
    let steps = [("fruit/apple", Some("red")), ("fruit/plum", Some("blue")), ("tree/oak", Some("tall"))];
    let together = hand.write(&steps)?;
    arrive(cache, &mut all, together, out)?;

    say(out, "A deletion carries the last value (with --format json: prev_value).".to_owned())?;
    let deleted = hand.write(&[("fruit/pear", None)])?;
    arrive(cache, &mut all, deleted, out)?;

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

/// Waits until `revision` is in the cache, then prints what that brought.
fn arrive(cache: &Cache, subscription: &mut Subscription, revision: u64, out: &mut Output) -> Result<(), Stop> {
    cache.wait_until(revision, PATIENCE)?;
    show(subscription, out)
}

/// Prints all that is there.
fn show(subscription: &mut Subscription, out: &mut Output) -> Result<(), Stop> {
    loop {
        let batch = subscription.poll(256)?;
        if batch.is_empty() {
            return out.flush();
        }
        for event in batch.events() {
            if let Some(shown) = Shown::of(event) {
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
struct Own {
    writer: Writer,
    prefix: Vec<u8>,
}

impl Hand for Own {
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
    //! The same through etcd, by its plain client.

    use super::{Hand, Options, Step, Stop};
    use crate::cli::exit::Failure;
    use etcd_client::{Certificate, ConnectOptions, DeleteOptions, Identity, TlsOptions, Txn, TxnOp};
    use std::time::Duration;
    use tokio::runtime::Runtime;
    use watchcore::Code;

    pub(super) struct Client {
        runtime: Runtime,
        client: etcd_client::Client,
        prefix: Vec<u8>,
    }

    fn failed(what: &str, error: impl std::fmt::Display) -> Stop {
        let message = format!("{what} etcd failed: {error}. The tour needs write access below its prefix");
        Failure::new(Code::Unavailable, message).into()
    }

    impl Client {
        pub(super) fn connect(options: &Options, prefix: &[u8]) -> Result<Client, Stop> {
            let access = &options.access;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| failed("preparing for", error))?;
            let mut connect = ConnectOptions::new().with_timeout(Duration::from_secs(10));
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
            let client = runtime
                .block_on(etcd_client::Client::connect(&access.endpoints, Some(connect)))
                .map_err(|error| failed("connecting to", error))?;
            Ok(Client { runtime, client, prefix: prefix.to_vec() })
        }

        fn key(&self, name: &str) -> Vec<u8> {
            [&self.prefix, name.as_bytes()].concat()
        }
    }

    impl Hand for Client {
        fn write(&mut self, steps: &[Step<'_>]) -> Result<u64, Stop> {
            let operations: Vec<TxnOp> = steps
                .iter()
                .map(|(name, value)| match value {
                    Some(value) => TxnOp::put(self.key(name), *value, None),
                    None => TxnOp::delete(self.key(name), None),
                })
                .collect();
            let answer = self.runtime.block_on(self.client.txn(Txn::new().and_then(operations)));
            let answer = answer.map_err(|error| failed("writing to", error))?;
            Ok(answer.header().map_or(0, |header| header.revision() as u64))
        }

        fn clean(&mut self) -> Result<(), Stop> {
            let everything = Some(DeleteOptions::new().with_prefix());
            let deleted = self.runtime.block_on(self.client.delete(self.prefix.clone(), everything));
            deleted.map(|_| ()).map_err(|error| failed("cleaning up in", error))
        }
    }
}
