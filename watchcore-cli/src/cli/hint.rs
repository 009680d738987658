//! Hints for a person at a terminal, beside the data. A script gets none.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal as _;
use std::os::unix::ffi::OsStrExt as _;

use super::stderr;

/// Prints a line on standard error if a person reads both it and the data.
pub(crate) fn hint(line: impl FnOnce() -> String) {
    if std::io::stdout().is_terminal() && std::io::stderr().is_terminal() {
        stderr::say(&line());
    }
}

/// The command line of this process, changed to print the page of `token`.
pub(crate) fn of_next_page(token: &str) -> String {
    next_page(std::env::args_os(), token)
}

fn next_page(words: impl IntoIterator<Item = OsString>, token: &str) -> String {
    let mut command = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "--continue" {
            words.next();
        } else if !word.as_bytes().starts_with(b"--continue=") {
            command.push(quoted(&word));
        }
    }
    command.extend(["--continue".to_owned(), token.to_owned()]);
    command.join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &OsStr) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:,=@%+".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(|byte| plain(&byte)) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => format!("$'{}'", word.as_bytes().iter().map(byte).collect::<String>()),
    }
}

fn byte(byte: &u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", *byte as char),
        b' '..=b'~' => (*byte as char).to_string(),
        _ => format!("\\{byte:03o}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;

    fn next(words: &[&str]) -> String {
        next_page(words.iter().map(OsString::from), "TOKEN")
    }

    #[test]
    fn the_next_page_is_the_same_command_with_its_token() {
        assert_eq!(next(&["w", "list", "--prefix=/a/"]), "w list --prefix=/a/ --continue TOKEN");
        assert_eq!(next(&["w", "list", "--continue", "old", "--limit", "2"]), "w list --limit 2 --continue TOKEN");
        assert_eq!(next(&["w", "list", "--continue=old"]), "w list --continue TOKEN");
    }

    /// A real shell shows that the quoted words are read back unchanged.
    #[test]
    fn a_shell_reads_the_words_as_they_were() {
        let words = ["", "a b", "it's", "$HOME", "a,b=c", "x in (y)", "caf\u{e9}", "tab\there", "back\\slash"];
        let mut words: Vec<OsString> = words.iter().map(OsString::from).collect();
        words.push(OsString::from_vec(b"/\xff'\\3".to_vec()));
        for word in words {
            let script = format!("printf %s {}", quoted(&word));
            let said = std::process::Command::new("bash").args(["-c", &script]).output().expect("bash runs");
            assert_eq!(said.stdout, word.as_bytes(), "{script}");
        }
    }
}
