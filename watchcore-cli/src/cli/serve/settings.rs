//! Combines the settings of the server: the options, then the configuration file, then the defaults.
//!
//! An option takes precedence over the file. An option that names all of a list replaces the file's list (`--etcd`, and
//! `--prefix` for the caches); `--resource` replaces the file's resource of the same name, or adds one.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::config::{CacheSection, Config, Length, ResourceSection};
use super::document::Document;
use super::flags::{Flags, GivenResource};
use crate::cli::access::{self, Access, Given, Variables};
use crate::cli::exit::Failure;
use crate::cli::values;
use watchcore::{Cache, Code};
use watchcore_http::{Limits, Resource};

/// The default address.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// How long the watches may take to end after a signal, by default.
const GRACE: Duration = Duration::from_secs(10);

/// How many revisions before the newest one a cache begins, by default.
const HISTORY: u64 = 10_000;

/// The options that every command has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommonOptions {
    pub(crate) access: Given,
    pub(crate) prefix: Option<Vec<u8>>,
    pub(crate) capacity: Option<usize>,
    /// The values of `--labels-from` and `--field`, for the resources of `--resource`.
    pub(crate) labels: String,
    pub(crate) fields: Vec<(String, String)>,
}

/// The command's own options, and the common options that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serve {
    pub(crate) flags: Flags,
    pub(crate) common: CommonOptions,
}

/// The checked settings of a server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) access: Access,
    pub(crate) listen: SocketAddr,
    pub(crate) insecure_listen: bool,
    pub(crate) bookmark_interval: Option<Duration>,
    pub(crate) grace_period: Duration,
    pub(crate) stale_limit: Option<Duration>,
    pub(crate) history: u64,
    pub(crate) audit_interval: Option<Duration>,
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) tokens: Option<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) caches: Vec<CacheSettings>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) key_passphrase: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_crl: Option<PathBuf>,
}

/// A cache, and the resources that it is prepared for.
#[derive(Clone, Debug)]
pub(crate) struct CacheSettings {
    pub(crate) prefix: Vec<u8>,
    pub(crate) capacity: usize,
    pub(crate) resources: Vec<Resource>,
}

/// The origin of a setting: a span of the file, or an option.
#[derive(Clone, Debug)]
enum Origin {
    File(Range<usize>),
    Option(&'static str),
}

/// A declared resource, the origin of the declaration, and the name by which two of them are compared.
struct Declared {
    origin: Origin,
    labels_origin: Origin,
    name: [String; 3],
    prefix: String,
    labels: String,
    resource: Resource,
}

/// Reads the file of `--config`, and combines it with the options.
pub(crate) fn settings(flags: &Flags, common: CommonOptions, variable: Variables<'_>) -> Result<Settings, Failure> {
    let document = flags.config.as_ref().map(|path| Document::read(path)).transpose()?;
    Merge { document: document.as_ref(), flags, common }.settings(variable)
}

/// The options, and the file to which its paths are relative.
struct Merge<'a> {
    document: Option<&'a Document>,
    flags: &'a Flags,
    common: CommonOptions,
}

impl Merge<'_> {
    fn settings(self, variable: Variables<'_>) -> Result<Settings, Failure> {
        let mut config = self.document.map(Config::of).transpose()?.unwrap_or_default();
        let caches = self.caches(&mut config)?;
        let endpoints = config.etcd.take().map(|etcd| etcd.0.into_iter().map(|endpoint| endpoint.0).collect());
        let given = Given { file: endpoints, ..self.common.access.clone() };
        let access =
            access::resolve(given, variable).map_err(|message| Failure::new(Code::InvalidArgument, message))?;
        let tls = self.tls(&config)?;
        let tokens = self.path(self.flags.tokens.as_ref(), config.auth.as_ref().map(|auth| &auth.tokens));
        let (listen, origin) = match (self.flags.listen, &config.listen) {
            (Some(listen), _) => (listen, Origin::Option("--listen")),
            (None, Some(listen)) => (listen.get_ref().0, Origin::File(listen.span())),
            (None, None) => (LISTEN, Origin::Option("--listen")),
        };
        let insecure_listen = self.flags.insecure_listen || config.insecure_listen == Some(true);
        let guarded = tls.as_ref().is_some_and(|tls| tls.client_ca.is_some() || tokens.is_some());
        if !listen.ip().to_canonical().is_loopback() && !guarded && !insecure_listen {
            return Err(self.at(&origin, &insecure(listen, tls.is_some())));
        }
        let length = |length: &Option<Length>| length.as_ref().map(|length| length.0);
        let (flags, limits) = (self.flags, self.limits(&config));
        Ok(Settings {
            access,
            listen,
            insecure_listen,
            bookmark_interval: flags.bookmark_interval.or(length(&config.bookmark_interval)),
            grace_period: flags.grace_period.or(length(&config.grace_period)).unwrap_or(GRACE),
            stale_limit: flags.stale_limit.or(length(&config.stale_limit)),
            history: flags.history.or(config.history.map(|revisions| revisions.0)).unwrap_or(HISTORY),
            audit_interval: flags.audit_interval.or(config.audit_interval.as_ref().map(|interval| interval.0)),
            hosts: list(&flags.host, config.hosts.into_iter().map(|host| host.0)),
            origins: list(&flags.origin, config.origins.into_iter().map(|origin| origin.0)),
            tls,
            tokens,
            limits,
            caches,
        })
    }

    /// An error with its place in the file, or with its option.
    fn at(&self, origin: &Origin, message: &str) -> Failure {
        match (origin, self.document) {
            (Origin::File(span), Some(document)) => document.at(span, message),
            (Origin::Option(option), _) => Failure::new(Code::InvalidArgument, format!("{option}: {message}")),
            (Origin::File(_), None) => Failure::new(Code::InvalidArgument, message),
        }
    }

    /// A path of an option, or else of the file, which is relative to the file.
    fn path(&self, option: Option<&PathBuf>, of_file: Option<&PathBuf>) -> Option<PathBuf> {
        match (option, of_file, self.document) {
            (Some(path), ..) => Some(path.clone()),
            (None, Some(path), Some(document)) => Some(document.resolve(path)),
            _ => None,
        }
    }

    fn tls(&self, config: &Config) -> Result<Option<TlsFiles>, Failure> {
        let (flags, section) = (self.flags, config.tls.as_ref());
        let certificate = self.path(flags.tls_certificate.as_ref(), section.map(|tls| &tls.certificate));
        let key = self.path(flags.tls_key.as_ref(), section.map(|tls| &tls.key));
        let client_ca = self.path(flags.tls_client_ca.as_ref(), section.and_then(|tls| tls.client_ca.as_ref()));
        let client_crl = self.path(flags.tls_client_crl.as_ref(), section.and_then(|tls| tls.client_crl.as_ref()));
        let key_passphrase =
            self.path(flags.tls_key_passphrase_file.as_ref(), section.and_then(|tls| tls.key_passphrase_file.as_ref()));
        let others = [
            ("--tls-client-ca", client_ca.is_some()),
            ("--tls-client-crl", client_crl.is_some()),
            ("--tls-key-passphrase-file", key_passphrase.is_some()),
        ];
        let missing = |given: &str, other: &str| {
            let what =
                format!("{given} without {other}: TLS needs the server's certificate and its private key. Give both");
            Err(Failure::new(Code::InvalidArgument, what))
        };
        match (certificate, key) {
            (Some(certificate), Some(key)) => {
                Ok(Some(TlsFiles { certificate, key, key_passphrase, client_ca, client_crl }))
            }
            (Some(_), None) => missing("--tls-certificate", "--tls-key"),
            (None, Some(_)) => missing("--tls-key", "--tls-certificate"),
            (None, None) => match others.iter().find(|(_, is_given)| *is_given) {
                Some((given, _)) => missing(given, "--tls-certificate and --tls-key"),
                None => Ok(None),
            },
        }
    }

    fn limits(&self, config: &Config) -> Limits {
        let mut limits = config.limits.limits();
        limits.watches = self.flags.max_watches.unwrap_or(limits.watches);
        limits
    }

    /// The caches, each with the resources whose longest enclosing prefix is the cache's.
    fn caches(&self, config: &mut Config) -> Result<Vec<CacheSettings>, Failure> {
        let declared = self.resources(std::mem::take(&mut config.resources))?;
        let mut caches = match &self.common.prefix {
            Some(prefix) => vec![self.cache(prefix.clone(), None)],
            None if config.caches.is_empty() && declared.iter().all(|one| matches!(one.origin, Origin::Option(_))) => {
                self.derived(&declared)
            }
            None => self.of_file(&config.caches)?,
        };
        if caches.is_empty() && declared.is_empty() {
            let message = "there is nothing to serve. Name keys with --prefix, such as --prefix /registry/, \
                and objects in them with --resource; or give a file of them with --config";
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let mut labels: Vec<Option<String>> = vec![None; caches.len()];
        for one in declared {
            let around = |cache: &CacheSettings| one.prefix.as_bytes().starts_with(&cache.prefix);
            let longest = (0..caches.len()).filter(|at| around(&caches[*at])).max_by_key(|at| caches[*at].prefix.len());
            let Some(at) = longest else { return Err(self.outside(&one, &caches)) };
            let others = labels[at].get_or_insert_with(|| one.labels.clone());
            if *others != one.labels {
                let message = format!(
                    "labels at {:?}, but another resource of the same cache has them at {others:?}. Serve one of the two from a cache of its own",
                    one.labels
                );
                return Err(self.at(&one.labels_origin, &message));
            }
            caches[at].resources.push(one.resource);
        }
        Ok(caches)
    }

    fn cache(&self, prefix: Vec<u8>, capacity: Option<usize>) -> CacheSettings {
        let capacity = self.common.capacity.or(capacity).unwrap_or(values::CAPACITY);
        CacheSettings { prefix, capacity, resources: Vec::new() }
    }

    fn of_file(&self, sections: &[CacheSection]) -> Result<Vec<CacheSettings>, Failure> {
        let mut caches: Vec<CacheSettings> = Vec::new();
        for section in sections {
            let prefix = section.prefix.get_ref().as_bytes();
            let place = Origin::File(section.prefix.span());
            if caches.iter().any(|cache| cache.prefix == prefix) {
                let message =
                    format!("there is a cache of {:?} already. Remove one of the two", section.prefix.get_ref());
                return Err(self.at(&place, &message));
            }
            let cache = self.cache(prefix.to_vec(), section.capacity.as_ref().map(|capacity| capacity.get_ref().0));
            let tried = Cache::builder(&cache.prefix).capacity(cache.capacity).build();
            let place = match (self.common.capacity, &section.capacity) {
                (Some(_), _) => Origin::Option("--capacity"),
                (None, Some(capacity)) => Origin::File(capacity.span()),
                (None, None) => place,
            };
            tried.map_err(|error| self.at(&place, error.message()))?;
            caches.push(cache);
        }
        Ok(caches)
    }

    /// The caches if no prefixes are given: one for each resource's prefix, except for prefixes inside another one.
    fn derived(&self, declared: &[Declared]) -> Vec<CacheSettings> {
        let mut prefixes: Vec<&str> = declared.iter().map(|one| &*one.prefix).collect();
        prefixes.sort_unstable();
        prefixes.dedup_by(|later, first| later.starts_with(&**first));
        prefixes.into_iter().map(|prefix| self.cache(prefix.into(), None)).collect()
    }

    fn outside(&self, one: &Declared, caches: &[CacheSettings]) -> Failure {
        let known: Vec<String> =
            caches.iter().map(|cache| format!("{:?}", String::from_utf8_lossy(&cache.prefix))).collect();
        let known = match &known[..] {
            [] => "there is none".to_owned(),
            known => format!("they are of {}", known.join(" and ")),
        };
        let advice = match self.common.prefix {
            Some(_) => "Give a shorter --prefix".to_owned(),
            None => format!("Write a [[cache]] of prefix = {:?} or of one above it", one.prefix),
        };
        let message = format!("{:?} lies outside of every cache: {known}. {advice}", one.prefix);
        self.at(&one.origin, &message)
    }

    /// The resources of the file, replaced by the options' resources of the same name, and the options' other
    /// resources.
    fn resources(&self, sections: Vec<ResourceSection>) -> Result<Vec<Declared>, Failure> {
        let mut all: Vec<Declared> = Vec::new();
        for section in sections {
            let place = Origin::File(section.plural.span());
            self.declare(&mut all, of_section(section), &place)?;
        }
        let mut given = Vec::new();
        for resource in &self.flags.resource {
            self.declare(&mut given, self.of_option(resource)?, &Origin::Option("--resource"))?;
        }
        for one in given {
            match all.iter_mut().find(|known| known.name == one.name) {
                Some(known) => *known = one,
                None => all.push(one),
            }
        }
        Ok(all)
    }

    /// Adds a resource if its name is new and it can be served.
    fn declare(&self, all: &mut Vec<Declared>, one: Declared, place: &Origin) -> Result<(), Failure> {
        if all.iter().any(|known| known.name == one.name) {
            let message = format!("the resource {} is declared twice. Remove one of the two", one.resource);
            return Err(self.at(place, &message));
        }
        let alone = Resource::declare(Cache::builder(&one.prefix), [&one.resource]);
        alone.and_then(|cache| cache.build()).map_err(|error| self.at(place, error.message()))?;
        all.push(one);
        Ok(())
    }

    fn of_option(&self, given: &GivenResource) -> Result<Declared, Failure> {
        let GivenResource { group, version, plural, kind, namespaced, prefix } = given;
        let labels = self.common.labels.clone();
        let mut resource =
            Resource::new(group, version, plural, kind).namespaced(*namespaced).prefix(prefix).labels(&labels);
        for (name, pointer) in &self.common.fields {
            resource = resource.field(name, pointer);
        }
        Ok(Declared {
            origin: Origin::Option("--resource"),
            labels_origin: Origin::Option("--labels-from"),
            name: [group, version, plural].map(String::clone),
            prefix: prefix.clone(),
            labels,
            resource,
        })
    }
}

/// A list from the options, or from the file if the options give none.
fn list(given: &[String], of_file: impl Iterator<Item = String>) -> Vec<String> {
    if given.is_empty() { of_file.collect() } else { given.to_vec() }
}

fn of_section(section: ResourceSection) -> Declared {
    let (plural_place, prefix_place) = (section.plural.span(), section.prefix.span());
    let labels_place = section.labels.as_ref().map_or(plural_place, |labels| labels.span());
    let group = section.group.map_or(String::new(), |group| group.0);
    let name = [group, section.version.0, section.plural.into_inner().0];
    let prefix = section.prefix.into_inner().0;
    let mut resource =
        Resource::new(&*name[0], &*name[1], &*name[2], section.kind.0).namespaced(section.namespaced).prefix(&*prefix);
    let mut labels = "/metadata/labels".to_owned();
    if let Some(given) = section.labels {
        labels = given.into_inner().0;
        resource = resource.labels(&*labels);
    }
    if let Some(singular) = section.singular {
        resource = resource.singular(singular.0);
    }
    for short in section.short_names {
        resource = resource.short_name(short.0);
    }
    for (name, pointer) in section.fields {
        resource = resource.field(name, pointer.0);
    }
    for column in section.columns {
        resource = resource.column(column.name, column.kind.0, column.pointer.0);
    }
    Declared {
        origin: Origin::File(prefix_place),
        labels_origin: Origin::File(labels_place),
        name,
        prefix,
        labels,
        resource,
    }
}

/// Why the server refuses to listen on an address.
fn insecure(listen: SocketAddr, tls: bool) -> String {
    let lacks = match tls {
        true => "without authentication everyone who reaches it could read what is served",
        false => "without TLS and authentication everyone who reaches it could read what is served",
    };
    format!(
        "{listen} is no loopback address, and is insecure: {lacks}. Give [tls] with client_ca or [auth] with tokens \
         (--tls-certificate, --tls-key, and --tls-client-ca or --tokens), listen at 127.0.0.1, or ask for it in so many words with --insecure-listen"
    )
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
