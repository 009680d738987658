//! Bearer tokens from a file.

use super::{Authenticator, HookFuture, User};
use crate::files::Reloaded;
use crate::status::Refusal;
use http::header;
use http::request::Parts;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use subtle::{ConditionallySelectable, ConstantTimeEq};
use watchcore::{Code, Error, Result};

/// How long a token may still be taken that has left the file, or not be taken that is new in it.
const INTERVAL: Duration = Duration::from_secs(1);

/// Bearer tokens, and whose they are: a file of lines `token,name`.
///
/// Empty lines and those that begin with `#` are passed over. The file is read again when it changes, within a second;
/// while it cannot be read, or has a line that is none, the tokens before are taken. A token is compared with all of
/// them, each in a time that does not depend on where they differ.
///
/// ```no_run
/// use watchcore_http::{Api, Tokens};
///
/// let api = Api::builder().authenticator(Tokens::from_file("tokens")?).build()?;
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Tokens(Arc<Reloaded<Known>>);

struct Known(Vec<(Vec<u8>, User)>);

impl Tokens {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where it cannot be read, has no token, or a line that is none; the line is named, its text is
    /// not.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokens> {
        let path = path.as_ref().to_path_buf();
        let named = path.clone();
        Reloaded::new("tokens", vec![path], INTERVAL, move |files| Known::parse(&named, &files[0]))
            .map(|known| Tokens(Arc::new(known)))
            .map_err(|why| {
                Error::new(Code::InvalidArgument, format!("tokens: {why}. Write a line token,name for each."))
            })
    }
}

impl Authenticator for Tokens {
    fn authenticate<'a>(&'a self, head: &'a Parts) -> HookFuture<'a, std::result::Result<Option<User>, Refusal>> {
        Box::pin(async move {
            let Some(token) = bearer(head) else { return Ok(None) };
            let known = self.0.current().await;
            Ok(known.user_of(token).cloned())
        })
    }
}

/// The token of the header Authorization, if it is there once.
fn bearer(head: &Parts) -> Option<&[u8]> {
    let mut all = head.headers.get_all(header::AUTHORIZATION).iter();
    let (Some(one), None) = (all.next(), all.next()) else { return None };
    let bytes = one.as_bytes();
    let (scheme, token) = (bytes.get(..7)?, bytes.get(7..)?.trim_ascii());
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

impl Known {
    fn parse(path: &Path, file: &[u8]) -> std::result::Result<Known, String> {
        let place = |number: usize, what: &str| format!("{}, line {}: {what}", path.display(), number + 1);
        let text = std::str::from_utf8(file).map_err(|_| format!("{}: it is not UTF-8", path.display()))?;
        // Some editors put a mark before the first token, with which nobody would send it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (mut known, mut seen) = (Vec::new(), HashSet::new());
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (token, name) = line.split_once(',').ok_or_else(|| place(number, "it has no comma"))?;
            let (token, name) = (token.trim(), name.trim());
            if token.is_empty() || name.is_empty() {
                return Err(place(number, "the token or the name is empty"));
            }
            if name.contains(',') {
                return Err(place(number, "it has more than a token and a name"));
            }
            if !seen.insert(token) {
                return Err(place(number, "its token is in a line above, too"));
            }
            known.push((token.as_bytes().to_vec(), User::new(name)));
        }
        if known.is_empty() {
            return Err(format!("{}: it has no token", path.display()));
        }
        Ok(Known(known))
    }

    /// Compares with all, so that the time says nothing about which, nor how much of one, is right.
    fn user_of(&self, token: &[u8]) -> Option<&User> {
        let mut found = 0_u64;
        for (number, (known, _)) in (1..).zip(&self.0) {
            found.conditional_assign(&number, known.as_slice().ct_eq(token));
        }
        let at = usize::try_from(found.checked_sub(1)?).ok()?;
        self.0.get(at).map(|(_, user)| user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> std::result::Result<Known, String> {
        Known::parse(Path::new("tokens"), text.as_bytes())
    }

    #[test]
    fn each_token_has_its_name() {
        let known = known("# ours\n\nsecret, alice\r\nother,bob \n").unwrap();
        let name = |token: &str| known.user_of(token.as_bytes()).map(|user| user.name().to_owned());
        assert_eq!(name("secret").as_deref(), Some("alice"));
        assert_eq!(name("other").as_deref(), Some("bob"));
        for token in ["", "secre", "secrets", "secret,alice", "Secret", "# ours"] {
            assert_eq!(name(token), None, "{token}");
        }
    }

    #[test]
    fn mark_of_an_editor_is_no_token() {
        let known = known("\u{feff}secret,alice\n").unwrap();
        assert_eq!(known.user_of(b"secret").map(User::name), Some("alice"));
    }

    #[test]
    fn a_wrong_line_is_named_without_its_token() {
        for (text, says) in [
            ("a,b\nsecret\n", "line 2: it has no comma"),
            ("secret,", "line 1: the token or the name is empty"),
            (",b", "line 1: the token"),
            ("secret,b,c", "line 1: it has more"),
            ("a,b\nc,d\na,e", "line 3: its token is in a line above"),
            ("# none", "it has no token"),
        ] {
            let error = known(text).err().unwrap();
            assert!(error.contains(says) && !error.contains("secret"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_bearer_is_found_in_its_header() {
        let head = |values: &[&str]| {
            let builder =
                values.iter().fold(http::Request::builder(), |builder, value| builder.header("Authorization", *value));
            builder.body(()).unwrap().into_parts().0
        };
        assert_eq!(bearer(&head(&["Bearer a.b"])), Some(&b"a.b"[..]));
        assert_eq!(bearer(&head(&["bearer  a.b "])), Some(&b"a.b"[..]));
        for values in [&[][..], &["Bearer"], &["Bearer "], &["Basic YTpi"], &["Bearer a", "Bearer a"]] {
            assert_eq!(bearer(&head(values)), None, "{values:?}");
        }
    }
}
