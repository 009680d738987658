//! `watchcore serve` as a process: where it listens, what it refuses, how it ends. What it answers is tested in
//! watchcore-http.

use crate::fake::{Fake, Fault};
use crate::run::{NOBODY, Running, TIMEOUT, command, run};
use crate::support::etcd::Etcd;
use crate::support::tls::Authority;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;

/// A directory that is gone with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("watchcore-serve-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Scratch(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server at work.
struct Serving {
    running: Running,
    heard: Receiver<String>,
    /// What it said when it listened.
    said: String,
    /// `127.0.0.1:PORT`.
    address: String,
}

impl Serving {
    #[track_caller]
    fn start(command: Command) -> Serving {
        let (running, heard) = Running::start_heard(command);
        let said = until(&heard, |line| line.starts_with("serving ")).pop().expect("it listens");
        let url = said.split(' ').nth(1).expect("where");
        let address = url.split_once("://").unwrap_or_else(|| panic!("{said}")).1.to_owned();
        Serving { running, heard, said, address }
    }

    /// What a watch says that ends by itself, with 410.
    #[track_caller]
    fn all_of_watch_after(&self, revision: u64) -> String {
        let mut watch = self.ask(&format!("{LIST}?watch=1&resourceVersion={revision}"));
        let mut all = String::new();
        watch.read_to_string(&mut all).expect("it ends by itself");
        assert!(all.contains("\"code\":410"), "{all}");
        all
    }

    /// A request and the connection, from which nothing was read yet.
    #[track_caller]
    fn ask(&self, path: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address).expect("sent");
        BufReader::new(stream)
    }

    /// The first line of an answer and all that follows.
    #[track_caller]
    fn get(&self, path: &str) -> (String, String) {
        let mut answer = String::new();
        self.ask(path).read_to_string(&mut answer).expect("a whole answer");
        let (first, rest) = answer.split_once("\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
        (first.to_owned(), rest.to_owned())
    }

    /// Asks until the answer begins so.
    #[track_caller]
    fn until(&self, path: &str, first: &str) -> String {
        let mut last = String::new();
        let deadline = std::time::Instant::now() + TIMEOUT;
        while std::time::Instant::now() < deadline {
            let (said, rest) = self.get(path);
            if said.starts_with(first) {
                return rest;
            }
            last = said;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{path} never answers {first}: {last}")
    }

    /// Sends a signal; the end, and what was said before it.
    #[track_caller]
    fn end(self, signal: &str, code: i32) -> Vec<String> {
        self.running.signal(signal);
        self.ended(code)
    }

    #[track_caller]
    fn ended(self, code: i32) -> Vec<String> {
        let said = self.running.end();
        assert_eq!((said.code, &*said.out), (Some(code), ""), "{said:?}");
        self.heard.iter().collect()
    }
}

/// Lines up to one of which that holds.
#[track_caller]
fn until(heard: &Receiver<String>, is: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        match heard.recv_timeout(TIMEOUT) {
            Ok(line) => lines.push(line),
            Err(error) => panic!("{error}; it said {lines:?}"),
        }
        if is(&lines[lines.len() - 1]) {
            return lines;
        }
    }
}

fn serve(words: &[&str]) -> Command {
    command(&[&["serve", "--listen", "127.0.0.1:0"], words].concat())
}

const LIST: &str = "/apis/matrix.test/v1/widgets";
const WIDGETS: &str = "matrix.test/v1/widgets:Widget:namespaced=/registry/matrix.test/widgets/";

fn widget(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"matrix.test/v1","kind":"Widget","metadata":{{"name":"{name}","namespace":"a"}},"spec":{{}}}}"#
    )
}

fn key(name: &str) -> String {
    format!("/registry/matrix.test/widgets/a/{name}")
}

/// A watch that is confirmed and cancelled each time made the server ready again each time.
#[test]
fn server_without_a_lasting_watch_is_not_ready() {
    let etcd = Fake::start();
    etcd.put(key("one"), widget("one"));
    let server = Serving::start(serve(&[
        "--prefix",
        "/registry/",
        "--resource",
        WIDGETS,
        "--stale-limit",
        "2s",
        "--etcd",
        &etcd.url(),
    ]));
    server.until("/readyz", "HTTP/1.1 200");
    etcd.fault(Fault::CompactedWatches);
    etcd.cut();
    server.until("/readyz", "HTTP/1.1 500");
    // A list without a revision would be of etcd's newest state, and wait for a session in which etcd can be asked.
    let (first, list) = server.get(&format!("{LIST}?resourceVersion=0"));
    assert!(list.contains("\"one\""), "it is served what is known: {first}\n{list}");
    etcd.heal();
    server.until("/readyz", "HTTP/1.1 200");
}

/// Behind a proxy that drops requests for progress, as etcd's own does: the first list was answered 504 after three seconds.
#[test]
fn first_list_needs_no_progress() {
    let etcd = Fake::start();
    etcd.put(key("one"), widget("one"));
    etcd.fault(Fault::NoProgress);
    let server = Serving::start(serve(&["--prefix", "/registry/", "--resource", WIDGETS, "--etcd", &etcd.url()]));
    server.until("/readyz", "HTTP/1.1 200");
    for name in ["two", "three"] {
        etcd.put(key(name), widget(name));
        etcd.put("/elsewhere", "");
        let (first, list) = server.get(LIST);
        assert!(first.starts_with("HTTP/1.1 200") && list.contains(&format!("\"{name}\"")), "{first}\n{list}");
    }
}

#[test]
fn it_listens_at_once_and_says_where() {
    let server = Serving::start(serve(&["--prefix", "/registry/", "--resource", WIDGETS, "--etcd", NOBODY]));
    let expected = format!("serving http://{} from etcd {NOBODY}: /registry/ (1 resource)", server.address);
    assert_eq!(server.said, expected);
    assert!(!server.address.ends_with(":0") && server.address.starts_with("127.0.0.1:"));
    assert!(server.get("/livez").0.starts_with("HTTP/1.1 200"));
    assert!(server.get("/readyz").0.starts_with("HTTP/1.1 500"), "there is no etcd");
    let (first, rest) = server.get(LIST);
    assert!(first.starts_with("HTTP/1.1 503") && rest.to_lowercase().contains("\r\nretry-after: "), "{first}\n{rest}");
    server.end("TERM", 0);
}

#[test]
fn it_serves_what_the_file_declares() {
    let (etcd, scratch) = (Etcd::start(), Scratch::new("file"));
    let client = etcd.ctl();
    client.put(key("one"), widget("one"));
    let file = scratch.file(
        "watchcore.toml",
        &format!(
            "etcd = [\"{}\"]\nlisten = \"127.0.0.1:0\"\n[[cache]]\nprefix = \"/registry/\"\n[[resource]]\ngroup = \"matrix.test\"\nversion = \"v1\"\nplural = \"widgets\"\nkind = \"Widget\"\nnamespaced = true\nprefix = \"/registry/matrix.test/widgets/\"\n",
            etcd.url()
        ),
    );
    let server = Serving::start(command(&["serve", "--config", &file]));
    let list = server.until(LIST, "HTTP/1.1 200");
    assert!(list.contains("\"kind\":\"WidgetList\"") && list.contains("\"name\":\"one\""), "{list}");
    server.until("/readyz", "HTTP/1.1 200");
    server.end("TERM", 0);
}

/// resourceVersion is etcd's revision: what one server has given, another continues from.
#[test]
fn a_watch_goes_on_at_another_server() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    client.put(key("one"), widget("one")); // 2
    let endpoint = etcd.url();
    let words = ["--prefix", "/registry/", "--resource", WIDGETS, "--etcd", &endpoint];
    let first = Serving::start(serve(&words));
    first.until(LIST, "HTTP/1.1 200");
    let second = Serving::start(serve(&words));
    second.until(LIST, "HTTP/1.1 200");
    let list = first.until(LIST, "HTTP/1.1 200");
    assert!(list.contains("\"resourceVersion\":\"2\""), "{list}");
    first.end("TERM", 0);
    client.put(key("two"), widget("two")); // 3
    let mut watch = second.ask("/apis/matrix.test/v1/widgets?watch=1&resourceVersion=2");
    let event = line_with(&mut watch, "\"type\"");
    assert!(
        event.contains("\"ADDED\"") && event.contains("\"two\"") && event.contains("\"resourceVersion\":\"3\""),
        "{event}"
    );
    second.end("TERM", 0);
    let mut rest = String::new();
    watch.read_to_string(&mut rest).expect("a clean end");
    assert!(rest.ends_with("0\r\n\r\n"), "the last chunk: {rest:?}");
}

/// What a new server has not seen it does not pretend to know.
#[test]
fn a_restarted_server_refuses_what_is_before_its_window() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for name in ["one", "two", "three"] {
        client.put(key(name), widget(name)); // 2, 3, 4
    }
    let endpoint = etcd.url();
    let server = Serving::start(serve(&["--resource", WIDGETS, "--etcd", &endpoint, "--history", "0"]));
    server.until(LIST, "HTTP/1.1 200");
    assert!(server.all_of_watch_after(2).contains("Expired"));
    server.end("TERM", 0);
}

/// A client that was at a revision before the server began goes on from there, as far back as etcd has it.
#[test]
fn a_restarted_server_knows_the_history_of_before() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for name in ["one", "two", "three", "four"] {
        client.put(key(name), widget(name)); // 2 to 5
    }
    let endpoint = etcd.url();
    for (compacted, begins) in [(0, 1), (3, 3)] {
        if compacted > 0 {
            client.compact(compacted);
        }
        let server = Serving::start(serve(&["--resource", WIDGETS, "--etcd", &endpoint]));
        server.until(LIST, "HTTP/1.1 200");
        for after in begins..5 {
            let mut watch = server.ask(&format!("{LIST}?watch=1&resourceVersion={after}"));
            for revision in after + 1..=5 {
                let event = line_with(&mut watch, "\"type\"");
                let is_it = format!("\"resourceVersion\":\"{revision}\"");
                assert!(event.contains("\"ADDED\"") && event.contains(&is_it), "after {after}: {event}");
            }
        }
        if begins > 1 {
            assert!(server.all_of_watch_after(begins - 1).contains("Expired"));
        }
        server.end("TERM", 0);
    }
}

#[track_caller]
fn line_with(stream: &mut BufReader<TcpStream>, word: &str) -> String {
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert_ne!(stream.read_line(&mut line).expect("a line"), 0, "the end, without {word}");
    }
    line
}

#[test]
fn options_go_before_the_file() {
    let scratch = Scratch::new("options");
    let file = scratch
        .file("x.toml", "etcd = [\"http://127.0.0.1:2\"]\nlisten = \"192.0.2.1:1\"\n[[cache]]\nprefix = \"/file/\"\n");
    let flags = ["--config", &file, "--etcd", NOBODY, "--prefix", "/flag/"];
    let server = Serving::start(serve(&flags));
    assert!(server.said.ends_with(&format!(" from etcd {NOBODY}: /flag/")), "{}", server.said);
    server.end("TERM", 0);
    // The environment's etcd too, and nothing else of it.
    let mut command = serve(&["--config", &file]);
    command.env("WATCHCORE_ETCD", NOBODY).env("WATCHCORE_LISTEN", "127.0.0.1:3").env("ETCDCTL_ENDPOINTS", "http://x:1");
    let server = Serving::start(command);
    assert!(server.said.ends_with(&format!(" from etcd {NOBODY}: /file/")), "{}", server.said);
    server.end("TERM", 0);
    let mut command = serve(&["--config", &file]);
    command.env("ETCDCTL_ENDPOINTS", NOBODY);
    let server = Serving::start(command);
    assert!(server.said.contains(" from etcd http://127.0.0.1:2: "), "the file goes before etcdctl's: {}", server.said);
    server.end("TERM", 0);
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let scratch = Scratch::new("wrong");
    let cache = "[[cache]]\nprefix = \"/registry/\"\n";
    for (text, place, says) in [
        (format!("lisen = \"x\"\n{cache}"), "1:1: lisen: ", "unknown key `lisen`, expected one of `etcd`, `listen`"),
        (format!("listen = 8080\n{cache}"), "1:10: listen: ", "Write it such as: listen = \"127.0.0.1:8080\""),
        (
            format!("bookmark_interval = \"soon\"\n{cache}"),
            "1:21: bookmark_interval: ",
            "expected a number with a unit",
        ),
        (format!("listen = \n{cache}"), "1:10: listen: ", "string values must be quoted"),
        (
            format!("{cache}[[resource]]\nversion = \"v1\"\nplural = \"pods\"\nkind = \"Pod\"\nprefix = \"/pods/\"\n"),
            "7:10: resource.prefix: ",
            "\"/pods/\" lies outside of every cache: they are of \"/registry/\"",
        ),
        (format!("listen = \"0.0.0.0:0\"\n{cache}"), "1:10: listen: ", "insecure"),
    ] {
        let file = scratch.file("x.toml", &text);
        let ended = run(&["serve", "--config", &file, "--etcd", NOBODY]).is(2);
        let line = ended.err.lines().next().unwrap_or_default();
        assert!(line.starts_with(&format!("error: {file}:{place}")) && line.contains(says), "{text}\n{ended:?}");
        assert_eq!((ended.out.len(), ended.err.lines().count()), (0, 1), "{ended:?}");
    }
    let ended = run(&["serve", "--config", "/no/such/file.toml"]).is(2);
    assert!(ended.err.contains("/no/such/file.toml: the configuration cannot be read"), "{ended:?}");
}

#[test]
fn wrong_options_are_refused() {
    for (words, says) in [
        (&[][..], "there is nothing to serve"),
        (&["--prefix", "/", "--listen", "0.0.0.0:0"], "insecure"),
        (&["--prefix", "/", "--listen", "8080"], "no address to listen at"),
        (&["--prefix", "/", "--resource", "pods"], "expected [GROUP/]VERSION/PLURAL"),
        (&["--prefix", "/a/", "--resource", "v1/pods:Pod=/b/"], "lies outside of every cache"),
        (&["--prefix", "/", "--tls-key", "k"], "--tls-key without --tls-certificate"),
        (&["--prefix", "/", "--capacity", "1"], "capacity"),
        (&["--prefix", "/", "--etcd", "ftp://x"], "not a known scheme"),
        (&["--prefix", "/", "--user", "nobody"], "the password is missing"),
        (&["--prefix", "/", "--tls-certificate", "/no/c", "--tls-key", "/no/k"], "/no/"),
        (&["/registry/"], "unexpected argument"),
    ] {
        let ended = run(&[&["serve"], words].concat()).is(2);
        assert!(
            ended.err.contains(says) && ended.err.contains("error: ") && ended.out.is_empty(),
            "{words:?} {ended:?}"
        );
    }
}

#[test]
fn insecure_listen_is_asked_for_in_so_many_words() {
    let words = ["serve", "--prefix", "/", "--etcd", NOBODY, "--listen", "0.0.0.0:0"];
    assert!(run(&words).is(2).err.contains("insecure"));
    let server = Serving::start(command(&[&words[..], &["--insecure-listen"]].concat()));
    assert!(server.said.starts_with("serving http://0.0.0.0:"), "{}", server.said);
    server.end("TERM", 0);
}

#[test]
fn a_taken_address_is_an_error() {
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("bound").to_string();
    let ended = run(&["serve", "--prefix", "/", "--etcd", NOBODY, "--listen", &address]).is(1);
    assert!(ended.err.contains(&format!("cannot listen on {address}")) && ended.out.is_empty(), "{ended:?}");
}

#[test]
fn signals_and_the_timeout_end_it() {
    let words = ["--prefix", "/", "--etcd", NOBODY];
    for (signal, code) in [("TERM", 0), ("INT", 130)] {
        let server = Serving::start(serve(&words));
        let said = server.end(signal, code);
        assert!(said.iter().all(|line| line.contains("WARN")), "no other word: {said:?}");
    }
    let server = Serving::start(serve(&[&words[..], &["--timeout", "300ms"]].concat()));
    let said = server.ended(4);
    assert!(said.last().is_some_and(|line| line.starts_with("error: the server has run for 300ms")), "{said:?}");
}

/// The first line is also what systemd is told, line by line.
#[test]
fn a_prefix_of_any_bytes_is_one_line() {
    let server = Serving::start(serve(&["--prefix", "/a\nMAINPID=1\u{202e}/", "--etcd", NOBODY]));
    assert!(server.said.ends_with(r": /a\nMAINPID=1\u{202e}/"), "{}", server.said);
    server.end("TERM", 0);
}

/// A duration is at most what 64 bits of seconds hold; the server gives itself some more on top.
#[test]
fn the_longest_grace_period_is_taken() {
    let longest = format!("{}s2047s", u64::MAX - 2047);
    let server = Serving::start(serve(&["--prefix", "/", "--etcd", NOBODY, "--grace-period", &longest]));
    assert!(server.get("/livez").0.starts_with("HTTP/1.1 200"), "it lives");
    server.end("TERM", 0);
}

#[test]
fn hangups_are_passed_over() {
    let server = Serving::start(serve(&["--prefix", "/", "--etcd", NOBODY]));
    server.running.signal("HUP");
    until(&server.heard, |line| line.starts_with("SIGHUP is ignored: "));
    assert!(server.get("/livez").0.starts_with("HTTP/1.1 200"), "it lives");
    server.end("TERM", 0);
}

/// `watchcore serve | head` must not end it, nor a supervisor that reads only its log.
#[test]
fn it_lives_on_when_nobody_reads_its_output() {
    let (running, heard) = Running::start_heard({
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$@\" | true; exit 0", "sh", env!("CARGO_BIN_EXE_watchcore")]);
        shell.args(["serve", "--listen", "127.0.0.1:0", "--prefix", "/", "--etcd", NOBODY, "--timeout", "1s"]);
        shell
    });
    let said = until(&heard, |line| line.starts_with("error: the server has run for"));
    assert!(said.iter().any(|line| line.starts_with("serving ")), "{said:?}");
    running.end().is(0);
}

#[test]
fn systemd_is_told_when_it_listens_and_when_it_stops() {
    let scratch = Scratch::new("notify");
    let path = scratch.0.join("socket");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let told = || {
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).expect("a word");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut command = serve(&["--prefix", "/", "--etcd", NOBODY, "--grace-period", "2m"]);
    command.env("NOTIFY_SOCKET", &path);
    let server = Serving::start(command);
    assert_eq!(told(), format!("READY=1\nSTATUS={}", server.said));
    server.end("TERM", 0);
    let said = told();
    assert!(said.starts_with("STOPPING=1\n"), "{said}");
    // The unit's own limit is 30 s.
    assert!(said.contains("\nEXTEND_TIMEOUT_USEC=129000000\n"), "{said}");
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 256; ulimit -Hn 4096; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_watchcore")]);
    shell.args(["serve", "--listen", "127.0.0.1:0", "--prefix", "/", "--etcd", NOBODY]);
    let server = Serving::start(shell);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.running.id())).expect("it runs");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("the limit");
    assert_eq!(files.split_whitespace().collect::<Vec<_>>()[3..5], ["4096", "4096"]);
    server.end("TERM", 0);
}

/// Paths in the file are relative to it, wherever the process was started.
#[test]
fn certificates_lie_beside_the_file() {
    let scratch = Scratch::new("tls");
    let (certificate, key) = Authority::new("serve").sign(&["127.0.0.1"]);
    scratch.file("server.crt", &String::from_utf8(certificate).expect("PEM"));
    scratch.file("server.key", &String::from_utf8(key).expect("PEM"));
    let text =
        "listen = \"127.0.0.1:0\"\n[tls]\ncertificate = \"server.crt\"\nkey = \"KEY\"\n[[cache]]\nprefix = \"/\"\n";
    let file = scratch.file("x.toml", &text.replace("KEY", "server.key"));
    let mut command = command(&["serve", "--config", &file, "--etcd", NOBODY]);
    command.current_dir(Path::new("/"));
    let server = Serving::start(command);
    assert!(server.said.starts_with("serving https://127.0.0.1:"), "{}", server.said);
    server.end("TERM", 0);
    let file = scratch.file("x.toml", &text.replace("KEY", "absent.key"));
    let ended = run(&["serve", "--config", &file, "--etcd", NOBODY]).is(2);
    assert!(ended.err.contains(scratch.0.join("absent.key").to_str().expect("UTF-8")), "{ended:?}");
}

/// The file's tokens, hosts and origins reach the server.
#[test]
fn who_may_ask_is_configured() {
    let scratch = Scratch::new("auth");
    scratch.file("tokens", "secret,alice\n");
    let text = format!(
        "etcd = [\"{NOBODY}\"]\nlisten = \"127.0.0.1:0\"\nhosts = [\"watch.example\"]\norigins = [\"https://ops.example\"]\n[[cache]]\nprefix = \"/\"\n"
    );
    let open = scratch.file("open.toml", &text);
    let closed = scratch.file("closed.toml", &text.replace("[[cache]]", "[auth]\ntokens = \"tokens\"\n[[cache]]"));
    let code = |server: &Serving, headers: &str| {
        let mut stream = TcpStream::connect(&server.address).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        write!(stream, "GET /version HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").expect("sent");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        line.split(' ').nth(1).expect("a code").to_owned()
    };
    let server = Serving::start(command(&["serve", "--config", &open]));
    for (headers, expected) in [
        ("Host: watch.example\r\n", "200"),
        ("Host: other.example\r\n", "403"),
        ("Host: localhost\r\nOrigin: https://ops.example\r\n", "200"),
        ("Host: localhost\r\nOrigin: https://other.example\r\n", "403"),
    ] {
        assert_eq!(code(&server, headers), expected, "{headers}");
    }
    server.end("TERM", 0);
    let server = Serving::start(command(&["serve", "--config", &closed]));
    assert_eq!(code(&server, "Host: localhost\r\n"), "401");
    assert_eq!(code(&server, "Host: localhost\r\nAuthorization: Bearer secret\r\n"), "200");
    assert_eq!(code(&server, "Host: localhost\r\nAuthorization: Bearer other\r\n"), "401");
    server.end("TERM", 0);
    let server = {
        scratch.file("tokens", "no token\n");
        Serving::start(command(&["serve", "--config", &closed]))
    };
    assert_eq!(code(&server, "Host: localhost\r\nAuthorization: Bearer secret\r\n"), "401", "nobody has a token");
    server.end("TERM", 0);
    std::fs::remove_file(scratch.0.join("tokens")).expect("a file");
    let ended = run(&["serve", "--config", &closed]).is(2);
    assert!(ended.err.contains(scratch.0.join("tokens").to_str().expect("UTF-8")), "{ended:?}");
}

/// systemd takes the unit as it is, where the machine has systemd.
#[test]
fn the_unit_is_one() {
    let scratch = Scratch::new("unit");
    let unit = include_str!("../../../packaging/watchcore.service");
    let installed = "ExecStart=/usr/local/bin/watchcore serve ";
    assert!(unit.contains(installed));
    let here = format!("ExecStart={} serve ", env!("CARGO_BIN_EXE_watchcore"));
    let file = scratch.file("watchcore.service", &unit.replace(installed, &here));
    let Ok(said) = Command::new("systemd-analyze").args(["verify", "--man=no", &file]).output() else { return };
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && words.is_empty(), "{words}");
}
