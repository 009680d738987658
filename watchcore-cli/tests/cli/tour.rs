//! `demo --etcd` beside others that write: it takes away what it wrote, and nothing else.

use crate::run::{Ended, Running, command, run};
use crate::support::etcd::{Ctl, Etcd};
use crate::support::proxy::Proxy;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::ChildStdout;

/// A tour that stands still in the middle: its prefix is so long that a pipe does not take the lines of two keys.
/// It has seen that nothing is there, has written fruit/apple and fruit/pear or soon will, and nothing else.
struct HalfTour {
    running: Running,
    reader: BufReader<ChildStdout>,
    prefix: String,
}

impl HalfTour {
    #[track_caller]
    fn start(endpoint: &str, more: &[&str]) -> HalfTour {
        let prefix = format!("/{}/", "x".repeat(60_000));
        let words = ["demo", "--format", "json", "--prefix", &prefix, "--etcd", endpoint];
        let (running, stdout) = Running::start_unread(command(&[&words[..], more].concat()));
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        reader.read_line(&mut line).expect("readable");
        assert!(line.contains("initial_state_end"), "{line}");
        HalfTour { running, reader, prefix }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Waits until it stands still.
    fn is_stuck(&mut self) {
        assert!(!self.reader.fill_buf().expect("readable").is_empty(), "it ended");
    }

    /// Reads on, to the end.
    fn end(mut self) -> Ended {
        let mut out = String::new();
        self.reader.read_to_string(&mut out).expect("readable");
        Ended { out, ..self.running.end() }
    }
}

/// Keys without their long prefix, and values.
fn held(client: &Ctl) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let name = |key: String| key.trim_start_matches("/x").trim_start_matches(['x', '/']).to_owned();
    client.list(b"/", 0).iter().map(|kv| (name(text(kv.key())), text(kv.value()))).collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn keys_of_others_outlive_the_tour() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    let tour = HalfTour::start(&etcd.url(), &[]);
    client.put(tour.key("mine"), "1");
    tour.end().is(0);
    assert_eq!(held(&client), owned(&[("mine", "1")]));
}

/// What another client has written meanwhile is neither written over nor deleted.
#[test]
fn values_of_others_end_the_tour() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    let mut tour = HalfTour::start(&etcd.url(), &[]);
    tour.is_stuck();
    client.put(tour.key("fruit/plum"), "mine"); // which the tour has yet to write
    client.put(tour.key("fruit/pear"), "mine"); // which it wrote
    let ended = tour.end().is(1);
    assert!(ended.err.contains("another client"), "{}", &ended.err[..200]);
    assert_eq!(held(&client), owned(&[("fruit/pear", "mine"), ("fruit/plum", "mine")]));
}

#[test]
fn tours_of_all_of_etcd_are_refused() {
    let etcd = Etcd::start();
    let ended = run(&["demo", "--etcd", &etcd.url(), "--prefix", ""]).is(2);
    assert!(ended.err.contains("--prefix") && ended.out.is_empty(), "{ended:?}");
    assert_eq!(etcd.ctl().revision(), 1, "nothing was written");
    run(&["demo", "--prefix", ""]).is(0);
}

/// Beyond the listing, too: etcd answers nothing any more.
#[test]
fn timeouts_end_the_tour_in_its_middle() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.address());
    let mut tour = HalfTour::start(&proxy.url(), &["--timeout", "15s"]);
    tour.is_stuck();
    proxy.stall(true);
    tour.end().is(4).error("TIMEOUT");
}
