//! The options of `watchcore serve`, beside those of every command.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueHint};

use super::config;
use crate::cli::values;

#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// Configuration in TOML; options go before what it says
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Where to listen; port 0 is a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address, value_hint = ValueHint::Other)]
    pub(crate) listen: Option<SocketAddr>,
    /// Takes an address other than a loopback one also without TLS and authentication
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// What is served as Kubernetes' objects: [GROUP/]VERSION/PLURAL:KIND[:namespaced]=PREFIX; may be repeated.
    /// Without --prefix and --config it also says what is held
    #[arg(long, value_name = "RESOURCE", action = ArgAction::Append, value_parser = resource, value_hint = ValueHint::Other)]
    pub(crate) resource: Vec<GivenResource>,
    /// The server's certificate (PEM, chain): listens with TLS; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The private key of it (PEM, PKCS#8)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    /// The passphrase of the private key, where that is encrypted (PKCS#8)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key_passphrase_file: Option<PathBuf>,
    /// Authorities (PEM): a client with a certificate of theirs is authenticated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Certificates that the authorities have revoked (CRL, PEM), one list of each; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_client_crl: Option<PathBuf>,
    /// Bearer tokens that authenticate, a line each: token,name; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tokens: Option<PathBuf>,
    /// One more name that the server answers to where nobody is authenticated; may be repeated. Loopback names and the
    /// address that a client has connected to are its own
    #[arg(long, value_name = "NAME", action = ArgAction::Append, value_parser = values::host, value_hint = ValueHint::Hostname)]
    pub(crate) host: Vec<String>,
    /// One more origin whose pages may ask the server: https://ops.example; may be repeated
    #[arg(long, value_name = "ORIGIN", action = ArgAction::Append, value_parser = values::origin, value_hint = ValueHint::Url)]
    pub(crate) origin: Vec<String>,
    /// How often a watch that asked for bookmarks gets one [default: 1m]
    #[arg(long, value_name = "D", value_parser = values::duration)]
    pub(crate) bookmark_interval: Option<Duration>,
    /// How long the watches may take to end after a signal: they end spread over it [default: 10s]
    #[arg(long, value_name = "D", value_parser = values::duration)]
    pub(crate) grace_period: Option<Duration>,
    /// How long a cache may be without etcd before /readyz fails [default: 1m]
    #[arg(long, value_name = "D", value_parser = values::duration)]
    pub(crate) stale_limit: Option<Duration>,
    /// Revisions before now with which a cache begins, as far as etcd has them: a client that was at one of these goes on
    /// behind a restart of the server, and need not list [default: 10000]
    #[arg(long, value_name = "N", value_parser = values::revisions)]
    pub(crate) history: Option<u64>,
    /// How often each cache is compared with etcd, and after a reconnect; 0s: never [default: 1h]
    #[arg(long, value_name = "D", value_parser = values::interval)]
    pub(crate) audit_interval: Option<Duration>,
    /// Watches in all; more are answered with 429 [default: 10000]
    #[arg(long, value_name = "N", value_parser = values::size)]
    pub(crate) max_watches: Option<usize>,
}

/// A resource as `--resource` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenResource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) prefix: String,
}

/// `[GROUP/]VERSION/PLURAL:KIND[:namespaced]=PREFIX`.
fn resource(text: &str) -> Result<GivenResource, String> {
    let expected = "expected [GROUP/]VERSION/PLURAL:KIND[:namespaced]=PREFIX, such as \
        apps/v1/deployments:Deployment:namespaced=/registry/deployments/ or v1/nodes:Node=/registry/nodes/";
    let said = |what: String| format!("{what}; {expected}");
    let named = |what: &str, text: &str| config::name(text).map_err(|error| said(format!("{what} {text:?}: {error}")));
    let (declared, prefix) = text.split_once('=').ok_or_else(|| said("there is no = before the prefix".to_owned()))?;
    let mut words = declared.split(':');
    let path: Vec<&str> = words.next().unwrap_or_default().split('/').collect();
    let (group, version, plural) = match path[..] {
        [version, plural] => (String::new(), version, plural),
        [group, version, plural] => (named("the group", group)?, version, plural),
        _ => return Err(said(format!("{:?} is no [GROUP/]VERSION/PLURAL", path.join("/")))),
    };
    let kind = words.next().ok_or_else(|| said("the kind is missing".to_owned()))?;
    let namespaced = match (words.next(), words.next()) {
        (None, _) => false,
        (Some("namespaced"), None) => true,
        (Some(other), _) => return Err(said(format!("{other:?} stands where only :namespaced can"))),
    };
    Ok(GivenResource {
        group,
        version: named("the version", version)?,
        plural: named("the plural", plural)?,
        kind: named("the kind", kind)?,
        namespaced,
        prefix: values::directory(prefix).map_err(said)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(group: &str, plural: &str, kind: &str, namespaced: bool, prefix: &str) -> GivenResource {
        let [group, plural, kind, prefix] = [group, plural, kind, prefix].map(str::to_owned);
        GivenResource { group, version: "v1".to_owned(), plural, kind, namespaced, prefix }
    }

    #[test]
    fn resources() {
        assert_eq!(
            resource("apps/v1/deployments:Deployment:namespaced=/registry/deployments/"),
            Ok(given("apps", "deployments", "Deployment", true, "/registry/deployments/"))
        );
        assert_eq!(
            resource("v1/pods:Pod:namespaced=/registry/pods/"),
            Ok(given("", "pods", "Pod", true, "/registry/pods/"))
        );
        assert_eq!(resource("v1/nodes:Node=/a=b/"), Ok(given("", "nodes", "Node", false, "/a=b/")));
    }

    #[test]
    fn what_is_wrong_is_said_with_an_example() {
        for (text, says) in [
            ("", "no ="),
            ("v1/pods:Pod", "no ="),
            ("pods:Pod=/p/", "\"pods\" is no [GROUP/]VERSION/PLURAL"),
            ("a/b/v1/pods:Pod=/p/", "is no [GROUP/]VERSION/PLURAL"),
            ("v1/pods=/p/", "the kind is missing"),
            ("v1/pods:=/p/", "the kind \"\": the name is empty"),
            ("/pods:Pod=/p/", "the version \"\""),
            ("/v1/pods:Pod=/p/", "the group \"\""),
            ("v1/:Pod=/p/", "the plural \"\""),
            ("v1/po ds:Pod=/p/", "' ' cannot be in a name"),
            ("v1/pods:Pod:global=/p/", "\"global\" stands where only :namespaced can"),
            ("v1/pods:Pod:namespaced:x=/p/", "only :namespaced"),
            ("v1/pods:Pod=/p", "does not end in \"/\""),
            ("v1/pods:Pod=", "does not end in \"/\""),
        ] {
            let error = resource(text).expect_err(text);
            assert!(error.contains(says) && error.contains("apps/v1/deployments"), "{text:?}: {error}");
        }
    }
}
