//! The way to reach etcd: from options, from WATCHCORE_* and from ETCDCTL_*.
//!
//! An option takes precedence over WATCHCORE_*. The variables of etcdctl count only if they also name the endpoints:
//! credentials of one cluster are never sent to another.

use std::ffi::OsString;
use std::path::PathBuf;

use super::values;

/// Looks up a variable of the environment.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads a text variable. An empty one counts as unset. Bytes that are no UTF-8 are an error, which does not quote
/// them: they may be a password.
fn text(variable: Variables<'_>, name: &str) -> Result<Option<String>, String> {
    let set = variable(name).filter(|value| !value.is_empty());
    set.map(|value| value.into_string().map_err(|_| format!("{name} is no UTF-8"))).transpose()
}

/// The endpoint when nothing else is given.
pub(crate) const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:2379";

/// The way to reach etcd: endpoints, user and certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) endpoints: Vec<String>,
    /// The option or variable that named the endpoints, for messages.
    pub(crate) origin: &'static str,
    /// Whether `--etcd` was given on the command line.
    pub(crate) asked: bool,
    pub(crate) user: Option<(String, String)>,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert_and_key: Option<(PathBuf, PathBuf)>,
}

impl Default for Access {
    fn default() -> Access {
        Access {
            endpoints: vec![DEFAULT_ENDPOINT.to_owned()],
            origin: DEFAULT_ORIGIN,
            asked: false,
            user: None,
            cacert: None,
            cert_and_key: None,
        }
    }
}

const DEFAULT_ORIGIN: &str = "the default";

/// The command line's options for reaching etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) etcd: Option<Vec<String>>,
    /// The endpoints of a configuration file; WATCHCORE_ETCD takes precedence.
    pub(crate) file: Option<Vec<String>>,
    pub(crate) user: Option<String>,
    pub(crate) cacert: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
}

/// Completes the options from the environment, and checks that they fit each other.
pub(crate) fn resolve(given: Given, variable: Variables<'_>) -> Result<Access, String> {
    let set = |name: &str| text(variable, name);
    let asked = given.etcd.is_some();
    let (endpoints, origin) = match given.etcd {
        Some(endpoints) => (endpoints, "--etcd"),
        None => of_environment(&set, given.file)?,
    };
    let is_etcdctls = origin == ETCDCTL;
    let password = match set("WATCHCORE_PASSWORD")? {
        None if is_etcdctls => set("ETCDCTL_PASSWORD")?,
        own => own,
    };
    let (user, named) = match (given.user, set("WATCHCORE_USER")?) {
        (Some(user), _) => (Some(user), "--user"),
        (None, Some(user)) => (Some(user), "WATCHCORE_USER"),
        (None, None) if is_etcdctls => (set("ETCDCTL_USER")?, "ETCDCTL_USER"),
        (None, None) => (None, ""),
    };
    let user = user.map(|user| values::user(&user, password)).transpose();
    // A path may be any bytes.
    let path = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let of_etcdctl = |name: &str| if is_etcdctls { path(name) } else { None };
    let file = |given: Option<PathBuf>, own, etcdctl| given.or_else(|| path(own)).or_else(|| of_etcdctl(etcdctl));
    let cert = file(given.cert, "WATCHCORE_CERT", "ETCDCTL_CERT");
    let key_file = file(given.key_file, "WATCHCORE_KEY_FILE", "ETCDCTL_KEY");
    let access = Access {
        endpoints,
        origin,
        asked,
        user: user.map_err(|message| format!("{named}: {message}"))?,
        cacert: file(given.cacert, "WATCHCORE_CACERT", "ETCDCTL_CACERT"),
        cert_and_key: pair(cert, key_file)?,
    };
    check_security(&access)?;
    Ok(access)
}

const ETCDCTL: &str = "ETCDCTL_ENDPOINTS";

type Named = (Vec<String>, &'static str);
type Texts<'a> = &'a dyn Fn(&str) -> Result<Option<String>, String>;

fn of_environment(set: Texts<'_>, file: Option<Vec<String>>) -> Result<Named, String> {
    let named = |origin, endpoints: &str| {
        let endpoints = values::endpoints(endpoints).map_err(|message| format!("{origin}: {message}"))?;
        Ok((endpoints, origin))
    };
    if let Some(own) = set("WATCHCORE_ETCD")?.filter(|value| !values::is_path(value)) {
        return named("WATCHCORE_ETCD", &own);
    }
    if let Some(file) = file {
        return Ok((file, "the configuration"));
    }
    match set(ETCDCTL)? {
        Some(etcdctls) => named(ETCDCTL, &etcdctls),
        None => Ok((vec![DEFAULT_ENDPOINT.to_owned()], DEFAULT_ORIGIN)),
    }
}

fn pair(cert: Option<PathBuf>, key_file: Option<PathBuf>) -> Result<Option<(PathBuf, PathBuf)>, String> {
    let missing = |one, other, variable| {
        Err(format!(
            "{one} without {other}: a client's certificate needs its private key. Name it with {other} or {variable}"
        ))
    };
    match (cert, key_file) {
        (Some(cert), Some(key_file)) => Ok(Some((cert, key_file))),
        (None, None) => Ok(None),
        (Some(_), None) => missing("--cert", "--key-file", "WATCHCORE_KEY_FILE"),
        (None, Some(_)) => missing("--key-file", "--cert", "WATCHCORE_CERT"),
    }
}

/// Checks that schemes and certificates fit each other.
fn check_security(access: &Access) -> Result<(), String> {
    let is_https = |endpoint: &&String| endpoint.starts_with("https://");
    let why = match access.endpoints.iter().find(is_https) {
        _ if access.cacert.is_some() => "--cacert asks for TLS".to_owned(),
        _ if access.cert_and_key.is_some() => "--cert asks for TLS".to_owned(),
        Some(other) => format!("{other} is https"),
        None => return Ok(()),
    };
    match access.endpoints.iter().find(|endpoint| endpoint.starts_with("http://")) {
        Some(endpoint) => Err(format!("the endpoint {endpoint} is http, but {why}: write https")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(given: Given, environment: &[(&str, &str)]) -> Result<Access, String> {
        let variable =
            |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
        resolve(given, &variable)
    }

    const OWN: [(&str, &str); 6] = [
        ("WATCHCORE_ETCD", "https://own:1"),
        ("WATCHCORE_USER", "own"),
        ("WATCHCORE_PASSWORD", "own-secret"),
        ("WATCHCORE_CACERT", "own-ca"),
        ("WATCHCORE_CERT", "own-cert"),
        ("WATCHCORE_KEY_FILE", "own-key"),
    ];
    const OF_ETCDCTL: [(&str, &str); 6] = [
        ("ETCDCTL_ENDPOINTS", "https://theirs:1,theirs:2"),
        ("ETCDCTL_USER", "their"),
        ("ETCDCTL_PASSWORD", "their-secret"),
        ("ETCDCTL_CACERT", "their-ca"),
        ("ETCDCTL_CERT", "their-cert"),
        ("ETCDCTL_KEY", "their-key"),
    ];

    fn shown(access: &Access) -> String {
        let Access { endpoints, origin, user, cacert, cert_and_key, .. } = access;
        let user = user.as_ref().map(|(name, password)| format!("{name}:{password}"));
        let files = cacert.iter().chain(cert_and_key.iter().flat_map(|(cert, key)| [cert, key]));
        let files: Vec<_> = files.map(|path| path.display().to_string()).collect();
        format!("{origin} {} {} {}", endpoints.join(","), user.unwrap_or_default(), files.join(" "))
    }

    #[test]
    fn every_setting_comes_from_the_environment() {
        let of = |environment: &[(&str, &str)]| shown(&resolved(Given::default(), environment).unwrap());
        assert_eq!(of(&[]), "the default http://127.0.0.1:2379  ");
        assert_eq!(of(&OWN), "WATCHCORE_ETCD https://own:1 own:own-secret own-ca own-cert own-key");
        let theirs = "ETCDCTL_ENDPOINTS https://theirs:1,theirs:2 their:their-secret their-ca their-cert their-key";
        assert_eq!(of(&OF_ETCDCTL), theirs);
        assert_eq!(of(&[&OF_ETCDCTL[..], &OWN].concat()), of(&OWN), "the own variables go first");
        let empty = OWN.map(|(name, _)| (name, ""));
        assert_eq!(of(&empty), of(&[]), "an empty variable is none");
    }

    #[test]
    fn an_option_goes_before_each_variable() {
        let given = Given {
            etcd: Some(vec!["https://option:1".to_owned()]),
            file: Some(vec!["https://file:1".to_owned()]),
            user: Some("option:o".to_owned()),
            cacert: Some("option-ca".into()),
            cert: Some("option-cert".into()),
            key_file: Some("option-key".into()),
        };
        let access = resolved(given, &[&OWN[..], &OF_ETCDCTL].concat()).unwrap();
        assert_eq!(shown(&access), "--etcd https://option:1 option:o option-ca option-cert option-key");
        assert!(access.asked);
        let one = Given { cert: Some("option-cert".into()), ..Given::default() };
        let access = resolved(one, &OWN).unwrap();
        assert_eq!(shown(&access), "WATCHCORE_ETCD https://own:1 own:own-secret own-ca option-cert own-key");
    }

    /// The credentials of etcdctl's variables are not sent to an etcd that something else names.
    #[test]
    fn credentials_of_etcdctl_stay_with_its_endpoints() {
        let elsewhere = Given { etcd: Some(vec!["http://option:1".to_owned()]), ..Given::default() };
        assert_eq!(shown(&resolved(elsewhere, &OF_ETCDCTL).unwrap()), "--etcd http://option:1  ");
        let own = [&OF_ETCDCTL[..], &[("WATCHCORE_ETCD", "http://own:1")]].concat();
        assert_eq!(shown(&resolved(Given::default(), &own).unwrap()), "WATCHCORE_ETCD http://own:1  ");
        let default = shown(&resolved(Given::default(), &OF_ETCDCTL[1..]).unwrap());
        assert_eq!(default, "the default http://127.0.0.1:2379  ");
    }

    #[test]
    fn a_file_stands_between_the_own_variable_and_etcdctls() {
        let file = Given { file: Some(vec!["http://file:1".to_owned()]), ..Given::default() };
        let with = |environment: &[(&str, &str)]| shown(&resolved(file.clone(), environment).unwrap());
        assert_eq!(with(&OF_ETCDCTL), "the configuration http://file:1  ");
        assert_eq!(with(&[("WATCHCORE_ETCD", "http://own:1")]), "WATCHCORE_ETCD http://own:1  ");
        assert_eq!(with(&[("WATCHCORE_USER", "a:b")]), "the configuration http://file:1 a:b ");
    }

    #[test]
    fn what_is_wrong_says_whose_it_is() {
        for (environment, says) in [
            (&[("WATCHCORE_ETCD", "ftp://x")][..], "WATCHCORE_ETCD: \"ftp\""),
            (&[("ETCDCTL_ENDPOINTS", "ftp://x")], "ETCDCTL_ENDPOINTS: \"ftp\""),
            (&[("WATCHCORE_ETCD", "etcd.prod"), ("ETCDCTL_ENDPOINTS", "a:1")], "\"etcd.prod\" has no port"),
            (&[("ETCDCTL_ENDPOINTS", "/usr/bin")], "ETCDCTL_ENDPOINTS: \"/usr/bin\" has no port"),
            (&[("WATCHCORE_USER", "app")], "WATCHCORE_USER: the password is missing"),
            (&[("WATCHCORE_CERT", "c")], "--cert without --key-file"),
            (&[("WATCHCORE_KEY_FILE", "c")], "WATCHCORE_CERT"),
        ] {
            let error = resolved(Given::default(), environment).unwrap_err();
            assert!(error.contains(says), "{environment:?}: {error}");
        }
    }
}
