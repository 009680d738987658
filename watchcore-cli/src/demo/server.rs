//! A temporary etcd on free loopback ports, which can be killed and started again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::ports::Port;

/// Everything that must not outlive the demo: processes and directories.
#[derive(Clone, Default)]
pub(crate) struct Cleanup(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    children: Vec<(String, Child)>,
    directory: Option<PathBuf>,
    swept: bool,
}

impl Cleanup {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts `command` under a name; it is killed when the demo ends.
    pub(crate) fn spawn(&self, name: &str, command: &mut Command) -> io::Result<()> {
        let mut inner = self.inner();
        if inner.swept {
            return Err(io::Error::other("the demo is ending"));
        }
        let child = command.spawn().map_err(|error| io::Error::other(format!("starting {name}: {error}")))?;
        inner.children.push((name.to_owned(), child));
        Ok(())
    }

    /// Calls `act` on the named child, if it has been started.
    pub(crate) fn with<T>(&self, name: &str, act: impl FnOnce(&mut Child) -> T) -> Option<T> {
        let mut inner = self.inner();
        inner.children.iter_mut().find(|(known, _)| known == name).map(|(_, child)| act(child))
    }

    /// Kills a child with SIGKILL and reaps it.
    pub(crate) fn kill(&self, name: &str) {
        let mut inner = self.inner();
        if let Some(place) = inner.children.iter().position(|(known, _)| known == name) {
            let (_, mut child) = inner.children.swap_remove(place);
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends all processes and removes all directories. Nothing can be started afterwards.
    pub(crate) fn run(&self) {
        let mut inner = self.inner();
        inner.swept = true;
        for (_, child) in &mut inner.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        inner.children.clear();
        if let Some(directory) = inner.directory.take() {
            let _ = fs::remove_dir_all(directory);
        }
    }

    /// Creates a directory that is removed when the demo ends.
    pub(crate) fn directory(&self) -> io::Result<PathBuf> {
        let base = std::env::temp_dir();
        let process = std::process::id();
        for attempt in 0..100 {
            let path = base.join(format!("watchcore-demo-{process}-{attempt}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    self.inner().directory = Some(path.clone());
                    return Ok(path);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no free name for a directory"))
    }
}

pub(crate) struct Server {
    program: PathBuf,
    directory: PathBuf,
    ports: [Port; 2],
    cleanup: Cleanup,
}

impl Server {
    /// Starts a new etcd and waits until it serves.
    pub(crate) fn launch(program: &Path, cleanup: &Cleanup) -> io::Result<Server> {
        let directory = cleanup.directory()?;
        let mut tries = 0;
        loop {
            let ports = [Port::reserve(), Port::reserve()];
            let server =
                Server { program: program.to_owned(), directory: directory.clone(), ports, cleanup: cleanup.clone() };
            tries += 1;
            match server.start() {
                Ok(()) => return Ok(server),
                // Another program, which reserves no ports, may have taken one in between.
                Err(error) if tries == 5 => return Err(error),
                Err(_) => {
                    server.kill();
                    let _ = fs::remove_dir_all(directory.join("data"));
                }
            }
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0].number)
    }

    /// Starts etcd, also after a kill, and waits until it serves. It syncs to disk (fsync), so acknowledged writes
    /// survive.
    pub(crate) fn start(&self) -> io::Result<()> {
        let client = self.endpoint();
        let peer = format!("http://127.0.0.1:{}", self.ports[1].number);
        let log = File::options().create(true).append(true).open(self.directory.join("etcd.log"))?;
        let mut command = Command::new(&self.program);
        command
            .args(["--name", "demo", "--log-level", "warn", "--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("demo={peer}")])
            .arg("--data-dir")
            .arg(self.directory.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        for (name, _) in std::env::vars_os() {
            // etcd also reads each of its options from the environment.
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        self.cleanup.spawn("etcd", &mut command)?;
        let begin = Instant::now();
        while !self.is_healthy() {
            let ended = self.cleanup.with("etcd", Child::try_wait);
            if !matches!(ended, Some(Ok(None))) || begin.elapsed() > Duration::from_secs(20) {
                return Err(io::Error::other(format!("etcd does not come up: {}", self.last_words())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills etcd with SIGKILL.
    pub(crate) fn kill(&self) {
        self.cleanup.kill("etcd");
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.directory.join("etcd.log")).unwrap_or_default();
        log.lines().next_back().unwrap_or("it said nothing").to_owned()
    }

    fn is_healthy(&self) -> bool {
        let ask = || -> io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.ports[0].number))?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
    }
}
