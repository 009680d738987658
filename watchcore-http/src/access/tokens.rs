//! Authentication by bearer tokens from a file.

use super::bearer::bearer;
use super::{Authenticator, HookFuture, UNREADABLE_LIMIT, User};
use crate::files::Reloaded;
use crate::status::Refusal;
use http::header::{self, HeaderName};
use http::request::Parts;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use subtle::{ConditionallySelectable, ConstantTimeEq};
use watchcore::{Code, Error, Result};

/// How old the last check of the file may be: a removed token may still be accepted, and a new one refused, for this
/// long.
const INTERVAL: Duration = Duration::from_secs(1);

/// How many faulty lines are named in warnings; one more warning counts the rest.
const MAX_NAMED: usize = 10;

/// Bearer tokens and their users, from a file of lines `token,name`.
///
/// Empty lines and lines that begin with `#` are ignored. The file is read again within a second after it changes. The
/// new contents replace the old ones completely: an empty file admits nobody. A malformed line is skipped with a
/// warning; the other lines count. While the file cannot be read, the previous tokens are accepted for a minute, and
/// then none.
///
/// A request's token is compared with all tokens, in constant time.
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
    /// Reads the file. Malformed lines are logged as warnings, as on later reads.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the file cannot be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokens> {
        Tokens::with(path.as_ref(), INTERVAL, UNREADABLE_LIMIT)
    }

    fn with(path: &Path, interval: Duration, believed: Duration) -> Result<Tokens> {
        let named = path.to_path_buf();
        let make = move |files: &[Vec<u8>]| {
            let (known, faults) = Known::parse(&files[0]);
            for fault in faults {
                tracing::warn!(target: "watchcore_http", "tokens: {}{fault}", named.display());
            }
            Ok(known)
        };
        Reloaded::new("tokens", vec![path.to_path_buf()], interval, make)
            .map(|known| Tokens(Arc::new(known.usable_for(believed))))
            .map_err(|why| {
                Error::new(Code::InvalidArgument, format!("tokens: {why}. Write a line token,name for each."))
            })
    }
}

impl Authenticator for Tokens {
    fn authenticate<'a>(&'a self, head: &'a Parts) -> HookFuture<'a, std::result::Result<Option<User>, Refusal>> {
        Box::pin(async move {
            let Some(token) = bearer(head) else { return Ok(None) };
            self.0.current().await;
            Ok(self.0.usable().and_then(|known| known.user_of(token).cloned()))
        })
    }

    fn reads(&self) -> Option<&[HeaderName]> {
        Some(&[header::AUTHORIZATION])
    }
}

/// Returns the token and the name in a line, or `None` for an empty line or a comment.
fn entry(line: &[u8]) -> std::result::Result<Option<(&str, &str)>, &'static str> {
    let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8")?.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (token, name) = line.split_once(',').ok_or("it has no comma")?;
    let (token, name) = (token.trim(), name.trim());
    if token.is_empty() || name.is_empty() {
        return Err("the token or the name is empty");
    }
    if name.contains(',') {
        return Err("it has more than a token and a name");
    }
    Ok(Some((token, name)))
}

impl Known {
    /// Returns the tokens of a file, and its faults. A fault is the end of a sentence that begins with the path of the
    /// file, and contains no part of a token.
    fn parse(file: &[u8]) -> (Known, Vec<String>) {
        // Some editors put a byte order mark before the first token, which no client would send.
        let file = file.strip_prefix("\u{feff}".as_bytes()).unwrap_or(file);
        let (mut known, mut seen, mut faults, mut unnamed) = (Vec::new(), HashSet::new(), Vec::new(), 0_usize);
        for (line, number) in file.split(|byte| *byte == b'\n').zip(1..) {
            match entry(line) {
                Ok(None) => {}
                Ok(Some((token, name))) if seen.insert(token) => {
                    known.push((token.as_bytes().to_vec(), User::new(name)));
                }
                _ if faults.len() == MAX_NAMED => unnamed += 1,
                Ok(Some(_)) => faults.push(format!(", line {number}: its token is in a line above, too")),
                Err(what) => faults.push(format!(", line {number}: {what}")),
            }
        }
        if unnamed > 0 {
            faults.push(format!(": {unnamed} more lines like these"));
        }
        if known.is_empty() {
            faults.push(": it has no token, and every token is refused".to_owned());
        }
        (Known(known), faults)
    }

    /// Compares with every token, so that the time reveals neither which token matches nor how many bytes do.
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

    fn known(text: &str) -> Known {
        Known::parse(text.as_bytes()).0
    }

    #[test]
    fn each_token_has_its_name() {
        let known = known("# ours\n\nsecret, alice\r\nother,bob \n");
        let name = |token: &str| known.user_of(token.as_bytes()).map(|user| user.name().to_owned());
        assert_eq!(name("secret").as_deref(), Some("alice"));
        assert_eq!(name("other").as_deref(), Some("bob"));
        for token in ["", "secre", "secrets", "secret,alice", "Secret", "# ours"] {
            assert_eq!(name(token), None, "{token}");
        }
    }

    #[test]
    fn mark_of_an_editor_is_no_token() {
        let known = known("\u{feff}secret,alice\n");
        assert_eq!(known.user_of(b"secret").map(User::name), Some("alice"));
    }

    /// A malformed line is reported without its token, and does not affect the others.
    #[test]
    fn wrong_line_is_lost_alone() {
        for (wrong, says) in [
            ("secret", "line 2: it has no comma"),
            ("secret,", "line 2: the token or the name is empty"),
            (",secret", "line 2: the token or the name is empty"),
            ("secret,b,c", "line 2: it has more than a token and a name"),
            ("good,secret", "line 2: its token is in a line above, too"),
        ] {
            let (known, faults) = Known::parse(format!("good,alice\n{wrong}\nlast,carol\n").as_bytes());
            assert!(faults.len() == 1 && faults[0].contains(says) && !faults[0].contains("secret"), "{faults:?}");
            let names = ["good", "secret", "last"].map(|token| known.user_of(token.as_bytes()).map(User::name));
            assert_eq!(names, [Some("alice"), None, Some("carol")], "{wrong}");
        }
        let (known, faults) = Known::parse(b"a,b\n\xff,c\n");
        assert!(known.user_of(b"a").is_some() && faults[0].contains("line 2: it is not UTF-8"), "{faults:?}");
        let (_, faults) = Known::parse("wrong\n".repeat(1000).as_bytes());
        assert_eq!(faults.len(), MAX_NAMED + 2, "named up to a bound: {faults:?}");
    }

    #[test]
    fn file_without_a_token_says_so() {
        for text in ["", "\n", "# nobody any more\n", "wrong\n"] {
            let (known, faults) = Known::parse(text.as_bytes());
            assert!(known.0.is_empty() && faults.last().unwrap().contains("it has no token"), "{text:?}: {faults:?}");
        }
    }

    /// Tokens are refused once their file has been missing for longer than they are believed.
    #[tokio::test]
    async fn file_that_is_gone_is_no_token() {
        let path = std::env::temp_dir().join(format!("watchcore-tokens-{}", std::process::id()));
        std::fs::write(&path, "secret,alice\n").unwrap();
        let tokens = Tokens::with(&path, Duration::ZERO, Duration::from_millis(50)).unwrap();
        let head = http::Request::get("/").header("Authorization", "Bearer secret").body(()).unwrap().into_parts().0;
        assert_eq!(tokens.authenticate(&head).await.unwrap(), Some(User::new("alice")));
        std::fs::remove_file(&path).unwrap();
        let gone = async {
            while tokens.authenticate(&head).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(10), gone).await;
        assert!(seen.is_ok(), "the token is taken for ever");
    }
}
