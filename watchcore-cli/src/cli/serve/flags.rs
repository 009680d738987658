//! The options of `watchcore serve`, beside those of every command.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueHint};

use super::config;
use crate::cli::values;

#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// Configuration in TOML; options take precedence over it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// The address to listen on; port 0 is a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = values::address, value_hint = ValueHint::Other)]
    pub(crate) listen: Option<SocketAddr>,
    /// Accepts an address other than a loopback one even without TLS and authentication
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// A resource served as Kubernetes objects: [GROUP/]VERSION/PLURAL:KIND[:namespaced]=PREFIX; may be repeated.
    /// Without --prefix and --config it also says which keys are held
    #[arg(long, value_name = "RESOURCE", action = ArgAction::Append, value_parser = resource, value_hint = ValueHint::Other)]
    pub(crate) resource: Vec<GivenResource>,
    /// The server's certificate (PEM, chain): listens with TLS; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The certificate's private key (PEM, PKCS#8)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key: Option<PathBuf>,
    /// The passphrase of the private key, if that is encrypted (PKCS#8)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_key_passphrase_file: Option<PathBuf>,
    /// Authorities (PEM): a client with a certificate signed by one of them is authenticated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Certificates that the authorities have revoked (CRL, PEM), one list of each; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_client_crl: Option<PathBuf>,
    /// Bearer tokens that authenticate, a line each: token,name; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tokens: Option<PathBuf>,
    /// An additional name that the server answers to without authentication; may be repeated. Loopback names and the
    /// address that a client has connected to are always accepted
    #[arg(long, value_name = "NAME", action = ArgAction::Append, value_parser = values::host, value_hint = ValueHint::Hostname)]
    pub(crate) host: Vec<String>,
    /// An additional origin whose pages may call the server: https://ops.example; may be repeated
    #[arg(long, value_name = "ORIGIN", action = ArgAction::Append, value_parser = values::origin, value_hint = ValueHint::Url)]
    pub(crate) origin: Vec<String>,
    /// How often a watch that asked for bookmarks gets one [default: 1m]
    #[arg(long, value_name = "D", value_parser = values::duration)]
    pub(crate) bookmark_interval: Option<Duration>,
    /// How long the watches may take to end after a signal: their ends are spread over it [default: 10s]
    #[arg(long, value_name = "D", value_parser = values::duration)]
    pub(crate) grace_period: Option<Duration>,
    /// How long a cache may be without etcd before /readyz fails [default: 1m]
    #[arg(long, value_name = "D", value_parser = values::duration)]
    pub(crate) stale_limit: Option<Duration>,
    /// Revisions before the newest with which a cache begins, as far as etcd has them: a client at one of them resumes
    /// after a restart of the server without listing again [default: 10000]
    #[arg(long, value_name = "N", value_parser = values::revisions)]
    pub(crate) history: Option<u64>,
    /// How often each cache is compared with etcd, and after a reconnect; 0s: never [default: 1h]
    #[arg(long, value_name = "D", value_parser = values::interval)]
    pub(crate) audit_interval: Option<Duration>,
    /// Watches in all; more are answered with 429 [default: 10000]
    #[arg(long, value_name = "N", value_parser = values::size)]
    pub(crate) max_watches: Option<usize>,
}

/// A resource as `--resource` gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenResource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) prefix: String,
}

/// Parses `[GROUP/]VERSION/PLURAL:KIND[:namespaced]=PREFIX`.
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
