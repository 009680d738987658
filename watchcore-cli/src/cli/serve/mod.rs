//! `watchcore serve`: serves caches that are fed from etcd over HTTP.
//!
//! 1. `settings` combines options, configuration file and environment, or says what is invalid and where.
//! 2. Each prefix gets a cache, prepared for its resources; then the `Api` over the caches is built, and the address bound.
//! 3. Each cache gets a feeder, which retries until it reaches etcd. Until then every list is answered with 503.
//! 4. After a signal the watches end, spread over the grace period; then the connections, then the feeders.

mod config;
mod document;
mod files;
pub(crate) mod flags;
mod notify;
pub(crate) mod settings;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::exit::{Failure, Stop};
use super::options::Options;
use super::signals::Interrupt;
use super::source;
use super::stderr;
use settings::{CacheSettings, CommonOptions, Serve, Settings};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::Notify;
use watchcore::{Attribute, Cache, Code, Labels};
use watchcore_etcd::Feeder;
use watchcore_http::{Api, Resource, Server, Tls, Tokens};

/// How long the feeders may take to end, all at once, and then the threads of the runtime.
const FEEDERS: Duration = Duration::from_secs(2);
const RUNTIME: Duration = Duration::from_secs(1);

/// The longest time after the grace period: for requests of connections that were cut off, the feeders, the runtime,
/// and a second for the steps in between. A process that is forced to end earlier has not ended cleanly.
const ENDING: Duration = Duration::from_secs(Server::CUT.as_secs() + FEEDERS.as_secs() + RUNTIME.as_secs() + 1);

pub(crate) fn run(serve: &Serve, options: &Options, interrupt: &Interrupt) -> Result<(), Stop> {
    let settings = settings::settings(&serve.flags, serve.common.clone(), &|name| std::env::var_os(name))?;
    // Set before the first step that a signal may have to end.
    interrupt.set_end_timeout(settings.grace_period.saturating_add(ENDING));
    files::raise_limit();
    let caches =
        settings.caches.iter().map(|cache| self::cache(cache, &serve.common)).collect::<Result<Vec<_>, _>>()?;
    let api = api(&settings, &caches)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("watchcore-http")
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::ResourceExhausted, format!("the threads of the server do not start: {error}. Raise the limit of processes (ulimit -u), or end others")))?;
    let ended = runtime.block_on(serving(&settings, api, &caches, options, interrupt));
    runtime.shutdown_timeout(RUNTIME);
    ended
}

/// A cache that is not fed yet.
fn cache(settings: &CacheSettings, common: &CommonOptions) -> Result<Cache, Stop> {
    // All waiting is done by tasks of the runtime, whose wakers only put them on a queue.
    let mut builder = Cache::builder(&settings.prefix).capacity(settings.capacity).expect_load(true).trust_wakers(true);
    if settings.resources.is_empty() {
        // Only the plain API shows this cache, and its selectors use these names.
        builder = builder.labels(Labels::json(&common.labels)?);
        for (name, pointer) in &common.fields {
            builder = builder.field(Attribute::json(name, pointer)?);
        }
    } else {
        builder = Resource::declare(builder, &settings.resources)?;
    }
    Ok(builder.build()?)
}

/// Builds the service over these caches.
fn api(settings: &Settings, caches: &[Cache]) -> Result<Api, Stop> {
    let mut builder = Api::builder().limits(settings.limits.clone());
    for cache in caches {
        builder = builder.cache(cache.clone());
    }
    for resource in settings.caches.iter().flat_map(|cache| &cache.resources) {
        builder = builder.resource(resource.clone());
    }
    for host in &settings.hosts {
        builder = builder.host(host);
    }
    for origin in &settings.origins {
        builder = builder.origin(origin);
    }
    if let Some(path) = &settings.tokens {
        builder = builder.authenticator(Tokens::from_file(path)?);
    }
    if let Some(interval) = settings.bookmark_interval {
        builder = builder.bookmark_interval(interval);
    }
    if let Some(limit) = settings.stale_limit {
        builder = builder.stale_limit(limit);
    }
    Ok(builder.build()?)
}

async fn serving(
    settings: &Settings,
    api: Api,
    caches: &[Cache],
    options: &Options,
    interrupt: &Interrupt,
) -> Result<(), Stop> {
    let mut builder = Server::builder(api).address(settings.listen.to_string()).insecure(settings.insecure_listen);
    if let Some(files) = &settings.tls {
        let mut tls = Tls::new(&files.certificate, &files.key);
        if let Some(path) = &files.key_passphrase {
            tls = tls.key_passphrase_file(path);
        }
        if let Some(path) = &files.client_ca {
            tls = tls.client_ca(path);
        }
        if let Some(path) = &files.client_crl {
            tls = tls.client_crl(path);
        }
        builder = builder.tls(tls);
    }
    let server = builder.start().await?;
    let mut feeder = source::feeder(&settings.access)?.history(settings.history);
    if let Some(interval) = settings.audit_interval {
        feeder = feeder.audit_interval(interval);
    }
    let start = |cache: &Cache| Ok(feeder.clone().start(cache.writer()?)?);
    let feeders = caches.iter().map(start).collect::<Result<Vec<Feeder>, Stop>>()?;
    ignore_hangups();
    let said = announcement(settings, server.address());
    stderr::say(&said);
    notify::send_state(&format!("READY=1\nSTATUS={said}"));
    let ended = until_asked(options.timeout, interrupt).await;
    // systemd waits for as long as the configuration says, whatever the unit says.
    let timeout = interrupt.end_timeout().as_micros().min(u128::from(u64::MAX)); // which is no limit, to systemd
    notify::send_state(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={timeout}\nSTATUS=the watches end"));
    server.shutdown(settings.grace_period).await;
    stop(&feeders);
    ended
}

/// Stops all feeders concurrently, so that all together take no longer than the slowest.
fn stop(feeders: &[Feeder]) {
    std::thread::scope(|scope| {
        for feeder in feeders {
            if std::thread::Builder::new().spawn_scoped(scope, || feeder.stop()).is_err() {
                feeder.stop();
            }
        }
    });
}

/// Ignores SIGHUP, by which operators ask servers to reload: it would end this one. At a terminal SIGHUP means that the
/// terminal is gone, so it still ends the server.
fn ignore_hangups() {
    if std::io::stderr().is_terminal() {
        return;
    }
    let Ok(mut signals) = Signals::new([SIGHUP]) else { return };
    let say = move || {
        for _ in signals.forever() {
            super::stderr::log(
                b"SIGHUP is ignored: tokens and certificates are read when they change, the configuration at the start\n",
            );
        }
    };
    let _ = std::thread::Builder::new().name("hangups".to_owned()).spawn(say);
}

/// Waits for a signal or for the end of `--timeout`; returns the command's result.
async fn until_asked(timeout: Option<Duration>, interrupt: &Interrupt) -> Result<(), Stop> {
    let asked = Arc::new(Notify::new());
    let signal = Arc::clone(&asked);
    interrupt.on_signal(move || signal.notify_one());
    match timeout {
        Some(timeout) => {
            let _ = interrupt.limit(timeout);
            if tokio::time::timeout(timeout, asked.notified()).await.is_err() {
                let message =
                    format!("the server has run for {timeout:?}. Give it longer with --timeout, or leave that out");
                return Err(Failure::new(Code::Timeout, message).into());
            }
        }
        None => asked.notified().await,
    }
    match interrupt.signal() {
        Some(SIGTERM) => Ok(()),
        _ => Err(Stop::Interrupted),
    }
}

fn announcement(settings: &Settings, address: SocketAddr) -> String {
    let scheme = if settings.tls.is_some() { "https" } else { "http" };
    let shown = |cache: &CacheSettings| {
        // Escaped to stay on one line: here, and for systemd, which parses each line separately.
        let prefix = match &*String::from_utf8_lossy(&cache.prefix) {
            "" => "every key".to_owned(),
            prefix => prefix.escape_debug().to_string(),
        };
        match cache.resources.len() {
            0 => prefix,
            1 => format!("{prefix} (1 resource)"),
            many => format!("{prefix} ({many} resources)"),
        }
    };
    let caches: Vec<String> = settings.caches.iter().map(shown).collect();
    let etcd = settings.access.endpoints.join(",");
    format!("serving {scheme}://{address} from etcd {etcd}: {}", caches.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::options::{self, Task};
    use super::*;
    use std::ffi::OsString;

    /// A signal may come as soon as the server is known, and even before.
    #[test]
    fn end_timeout_is_configured_from_the_start() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let taken = other.local_addr().expect("bound").to_string();
        let words = ["watchcore", "serve", "--prefix", "/", "--grace-period", "1m", "--listen", &taken];
        let options = options::read(words.map(OsString::from), |_| None).expect("makes sense");
        let Task::Serve(serve) = &options.task else { panic!("another task") };
        let interrupt = Interrupt::default();
        assert!(run(serve, &options, &interrupt).is_err(), "the address is taken");
        assert_eq!(interrupt.end_timeout(), Duration::from_secs(60) + ENDING);
    }
}
