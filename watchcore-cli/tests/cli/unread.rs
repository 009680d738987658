//! Outputs that nobody reads: a pipe whose other end is open, and is left alone.

use crate::run::{NOBODY, Running, command};
use crate::support::etcd::Etcd;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

/// More than any pipe takes: whoever writes it to one that is not read stands still.
fn more_than_a_pipe() -> String {
    "v".repeat(300_000)
}

/// Both outputs are one pipe, as behind `2>&1 |`. Neither the first signal nor a second waits for a reader.
#[test]
fn signals_end_a_watch_whose_outputs_nobody_reads() {
    let etcd = Etcd::start();
    etcd.ctl().put("/a/x", more_than_a_pipe());
    let endpoint = etcd.url();
    for signals in [&["TERM"][..], &["INT"], &["TERM", "TERM"]] {
        let (running, mut pipe) =
            Running::start_joined(command(&["watch", "--prefix", "/a/", "--format", "json", "--etcd", &endpoint]));
        // It writes, so it is stuck or soon will be.
        pipe.read_exact(&mut [0]).expect("readable");
        signals.iter().for_each(|signal| running.signal(signal));
        running.end().is(if signals == ["INT"] { 130 } else { 143 });
        drop(pipe);
    }
}

/// No deadline is looked at inside of a write.
#[test]
fn timeouts_end_a_list_that_nobody_reads() {
    let etcd = Etcd::start();
    etcd.ctl().put("/a/x", more_than_a_pipe());
    let endpoint = etcd.url();
    let list = ["list", "--prefix", "/a/", "--etcd", &endpoint, "--timeout", "1s"];
    let (running, stdout) = Running::start_unread(command(&list));
    let ended = running.end().is(4);
    assert!(ended.err.contains("--timeout"), "{ended:?}");
    drop(stdout);
}

/// Requests are answered, and the end is clean, though the log went into a pipe until nothing fitted any more.
#[test]
fn servers_answer_though_nobody_reads_their_log() {
    let words = ["serve", "--listen", "127.0.0.1:0", "--prefix", "/", "--etcd", NOBODY, "-v"];
    let (running, pipe) = Running::start_joined(command(&words));
    let mut heard = BufReader::new(pipe);
    let mut line = String::new();
    while !line.starts_with("serving ") {
        line.clear();
        assert_ne!(heard.read_line(&mut line).expect("readable"), 0, "it ended");
    }
    let address = line.split(' ').nth(1).and_then(|url| url.strip_prefix("http://")).expect("where").to_owned();
    // Each is a line of the log; all of them together are more than the pipe and the queue take.
    let path = format!("/livez?{}", "x".repeat(8_000));
    for _ in 0..400 {
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(crate::run::TIMEOUT)).expect("a timeout");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("a whole answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    running.signal("TERM");
    running.end().is(0);
    drop(heard);
}
