//! A fake etcd for tests in other languages: it prints its URL, then answers each line of its standard input with one line,
//! a number or `error: …`, and ends with the input. The commands are those of `Fake::command`.

#[path = "fake/mod.rs"]
mod fake;

use fake::Fake;
use std::io::{BufRead, Write};

fn main() -> std::io::Result<()> {
    let etcd = Fake::start();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", etcd.url())?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        match etcd.command(&line?) {
            Ok(number) => writeln!(out, "{number}")?,
            Err(text) => writeln!(out, "error: {text}")?,
        }
        out.flush()?;
    }
    Ok(())
}
