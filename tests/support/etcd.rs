//! A throw-away etcd: free loopback ports, its own data directory, gone with the value.

use super::ports::Port;
use super::{BOUND, wait_for};
use etcd_client::{
    Client, CompactionOptions, ConnectOptions, Error, GetOptions, KeyValue, LeaseGrantOptions, Permission, PutOptions,
    Txn, TxnOp,
};
use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The directory of the binaries: the script answers it, and builds them if need be.
fn binaries() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/etcd.sh");
        let output = Command::new(&script).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.unwrap_or_else(|error| panic!("{} does not run: {error}", script.display()));
        assert!(output.status.success(), "{} failed: {}", script.display(), output.status);
        PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
    })
}

/// The version of the etcd under test, such as 3.7.3.
pub(crate) fn version() -> String {
    let output = Command::new(binaries().join("etcd")).arg("--version").output().expect("etcd runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("etcd Version:"));
    line.expect("etcd prints its version").trim().to_owned()
}

/// Whether the etcd under test streams ranges.
pub(crate) fn has_streams() -> bool {
    let version = version();
    let mut numbers = version.split('.').map_while(|number| number.parse::<u64>().ok());
    (numbers.next(), numbers.next()) >= (Some(3), Some(7))
}

/// Where the certificates of a server with TLS lie.
#[derive(Clone)]
pub(crate) struct ServerTls {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Whether clients have to show a certificate of the same authority.
    pub(crate) client_auth: bool,
}

pub(crate) struct Etcd {
    directory: PathBuf,
    /// For clients, for peers, and for its health.
    ports: [Port; 3],
    extra: Vec<String>,
    tls: Option<ServerTls>,
    /// Whether it listens on a Unix socket too.
    has_socket: bool,
    child: Option<Child>,
}

impl Etcd {
    pub(crate) fn start() -> Etcd {
        Etcd::with(&[])
    }

    pub(crate) fn with(extra: &[&str]) -> Etcd {
        Etcd::launched(extra, None, false)
    }

    pub(crate) fn with_socket() -> Etcd {
        Etcd::launched(&[], None, true)
    }

    pub(crate) fn with_tls(tls: ServerTls, extra: &[&str]) -> Etcd {
        Etcd::launched(extra, Some(tls), false)
    }

    fn launched(extra: &[&str], tls: Option<ServerTls>, has_socket: bool) -> Etcd {
        let mut etcd = Etcd::absent();
        etcd.has_socket = has_socket;
        etcd.extra = extra.iter().map(|argument| argument.to_string()).collect();
        etcd.tls = tls;
        for _ in 0..10 {
            if etcd.try_launch() {
                return etcd;
            }
            // Somebody who does not reserve ports took one in between.
            etcd.ports = ports();
            etcd.wipe();
        }
        panic!("etcd did not start: {}", etcd.last_words());
    }

    /// A server that is not running yet; its address is known already.
    pub(crate) fn absent() -> Etcd {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("watchcore-etcd-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        Etcd { directory, ports: ports(), extra: Vec::new(), tls: None, has_socket: false, child: None }
    }

    /// Starts it (again), on the same ports and data.
    pub(crate) fn launch(&mut self) {
        for _ in 0..50 {
            if self.try_launch() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("etcd did not start again: {}", self.last_words());
    }

    /// Three members of one cluster.
    pub(crate) fn cluster() -> Vec<Etcd> {
        for _ in 0..10 {
            let mut members: Vec<Etcd> = (0..3).map(|_| Etcd::absent()).collect();
            let peer = |(i, member): (usize, &Etcd)| format!("s{i}=http://127.0.0.1:{}", member.ports[1].number);
            let peers = members.iter().enumerate().map(peer).collect::<Vec<_>>().join(",");
            for (i, member) in members.iter_mut().enumerate() {
                // The last of an option counts. Elections need more time than a member alone.
                let more = ["--name", &format!("s{i}"), "--initial-cluster", &peers];
                let slower = ["--heartbeat-interval", "50", "--election-timeout", "500"];
                member.extra = [&more[..], &slower].concat().into_iter().map(str::to_owned).collect();
                member.spawn();
            }
            if members.iter_mut().all(Etcd::comes_up) {
                return members;
            }
        }
        panic!("no cluster came up");
    }

    fn try_launch(&mut self) -> bool {
        self.spawn();
        self.comes_up()
    }

    fn spawn(&mut self) {
        let [client_port, peer, metrics] = self.ports.each_ref().map(|port| port.number);
        let peer = format!("http://127.0.0.1:{peer}");
        let client = format!("{}://127.0.0.1:{client_port}", if self.tls.is_some() { "https" } else { "http" });
        let listen = if self.has_socket { format!("{client},{}", self.socket_url()) } else { client.clone() };
        let log = std::fs::File::create(self.directory.join("log")).expect("a log file");
        let mut command = Command::new(binaries().join("etcd"));
        command
            .args(["--name", "s1", "--unsafe-no-fsync", "--log-level", "warn"])
            .args(["--heartbeat-interval", "10", "--election-timeout", "100"])
            .arg("--data-dir")
            .arg(self.directory.join("data"))
            .args(["--listen-client-urls", &listen, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("s1={peer}")])
            .args(["--listen-metrics-urls", &format!("http://127.0.0.1:{metrics}")])
            .args(&self.extra)
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().expect("a log file")))
            .stderr(Stdio::from(log));
        if let Some(tls) = &self.tls {
            command.arg("--cert-file").arg(&tls.cert).arg("--key-file").arg(&tls.key);
            if tls.client_auth {
                command.arg("--trusted-ca-file").arg(&tls.ca).arg("--client-cert-auth");
            }
        }
        for (name, _) in std::env::vars_os() {
            // etcd takes each of its options from the environment, too.
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        self.child = Some(command.spawn().expect("etcd runs"));
    }

    /// Waits until it serves; false if it ended instead.
    fn comes_up(&mut self) -> bool {
        let [client_port, _, metrics] = self.ports.each_ref().map(|port| port.number);
        let mut exited = false;
        wait_for("etcd is healthy", || {
            let child = self.child.as_mut().expect("spawned");
            let up = healthy(metrics) && TcpStream::connect(("127.0.0.1", client_port)).is_ok();
            // Last: the server that answered is ours only if ours still runs.
            exited = child.try_wait().expect("a child of ours").is_some();
            exited || up
        });
        if exited {
            self.child = None;
        }
        !exited
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[0].number))
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address())
    }

    /// The endpoint of the Unix socket.
    pub(crate) fn socket_url(&self) -> String {
        format!("unix://{}", self.directory.join("socket").display())
    }

    /// kill -9: nothing is said to anybody, the data stay.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Deletes the data of a server that does not run.
    pub(crate) fn wipe(&mut self) {
        assert!(self.child.is_none(), "etcd still runs");
        let _ = std::fs::remove_dir_all(self.directory.join("data"));
    }

    fn tool(&self, name: &str, arguments: &[&str]) {
        let mut command = Command::new(binaries().join(name));
        for (name, _) in std::env::vars_os() {
            // The tools take their options from the environment, too.
            let name = name.to_string_lossy();
            if name.starts_with("ETCD_") || name.starts_with("ETCDCTL_") {
                command.env_remove(&*name);
            }
        }
        let output = command.args(arguments).stdin(Stdio::null()).output().expect("the tool runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} {arguments:?}: {}\n{said}", output.status);
    }

    /// Saves a backup; it goes with the server.
    pub(crate) fn back_up(&self) -> PathBuf {
        let file = self.directory.join("backup");
        let _ = std::fs::remove_file(&file);
        self.tool("etcdctl", &["--endpoints", &self.url(), "snapshot", "save", &file.to_string_lossy()]);
        file
    }

    /// Replaces the data of a server that does not run by a backup. Its revisions may be raised by
    /// `bump`: then all of them are compacted, as etcd's manual wants it.
    pub(crate) fn restore(&mut self, backup: &Path, bump: Option<u64>) {
        self.wipe();
        let peer = format!("http://127.0.0.1:{}", self.ports[1].number);
        let data = self.directory.join("data");
        let cluster = format!("s1={peer}");
        let bump = bump.map(|bump| bump.to_string());
        let (backup, data) = (backup.to_string_lossy(), data.to_string_lossy());
        let mut arguments = vec!["snapshot", "restore", &backup, "--data-dir", &data, "--name", "s1"];
        arguments.extend(["--initial-cluster", &cluster, "--initial-advertise-peer-urls", &peer]);
        if let Some(bump) = &bump {
            arguments.extend(["--bump-revision", bump, "--mark-compacted"]);
        }
        self.tool("etcdutl", &arguments);
    }

    /// The sum of the server's counters whose line begins with `name`, such as
    /// `grpc_server_started_total{grpc_method="Watch"`.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[2].number)).expect("etcd serves its metrics");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let lines = answer.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }

    fn signal(&self, signal: i32) {
        let pid = self.child.as_ref().expect("etcd runs").id();
        // SAFETY: a signal to a child of ours that was not waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
    }

    /// The server stands still; its connections stay open.
    pub(crate) fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    pub(crate) fn ctl(&self) -> Ctl {
        Ctl::connect(&self.url(), ConnectOptions::new())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("etcd said last:\n{}", self.last_words());
        }
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// etcd's own gRPC proxy before a server.
pub(crate) struct GrpcProxy {
    port: Port,
    child: Child,
}

impl GrpcProxy {
    /// One that takes messages of at most `longest` bytes from the server.
    pub(crate) fn to(etcd: &Etcd, longest: usize) -> GrpcProxy {
        let port = Port::reserve();
        let mut command = Command::new(binaries().join("etcd"));
        let address = format!("127.0.0.1:{}", port.number);
        command
            .args(["grpc-proxy", "start", "--endpoints", &etcd.url(), "--listen-addr", &address])
            .args(["--data-dir", &etcd.directory.join("proxy").to_string_lossy()])
            // It wants to send less than it takes.
            .args(["--max-recv-bytes", &longest.to_string(), "--max-send-bytes", &(longest / 2).to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let proxy = GrpcProxy { port, child: command.spawn().expect("the proxy runs") };
        wait_for("the proxy listens", || TcpStream::connect(("127.0.0.1", proxy.port.number)).is_ok());
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number)
    }
}

impl Drop for GrpcProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ports() -> [Port; 3] {
    [(); 3].map(|()| Port::reserve())
}

fn healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains("\"true\""))
    };
    ask().unwrap_or(false)
}

/// A client that blocks, for tests that write.
pub(crate) struct Ctl {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Ctl {
    pub(crate) fn connect(url: &str, options: ConnectOptions) -> Ctl {
        Ctl::try_connect(url, options).expect("a connection")
    }

    pub(crate) fn try_connect(url: &str, options: ConnectOptions) -> Result<Ctl, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(Client::connect([url], Some(options)))?;
        Ok(Ctl { runtime, client })
    }

    /// Runs a call; it has to come back in time.
    #[track_caller]
    pub(crate) fn run<T>(&self, call: impl AsyncFnOnce(Client) -> Result<T, Error>) -> T {
        self.attempt(call).expect("etcd does what it is asked")
    }

    #[track_caller]
    pub(crate) fn attempt<T>(&self, call: impl AsyncFnOnce(Client) -> Result<T, Error>) -> Result<T, Error> {
        let client = self.client.clone();
        self.block(call(client))
    }

    #[track_caller]
    fn block<T>(&self, call: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(BOUND, call).await };
        self.runtime.block_on(bounded).expect("etcd answers in time")
    }

    /// Turns authentication on, with a user "root", and a user "app" who may do what `permissions` say.
    #[track_caller]
    pub(crate) fn enable_auth(&self, root: &str, app: &str, permissions: &[Permission]) {
        self.run(async |mut client| {
            for (user, password, role) in [("root", root, "root"), ("app", app, "reader")] {
                client.user_add(user, password, None).await?;
                client.role_add(role).await?;
                client.user_grant_role(user, role).await?;
            }
            for permission in permissions {
                client.role_grant_permission("reader", permission.clone()).await?;
            }
            client.auth_enable().await.map(drop)
        });
    }

    /// Every writing call answers the revision of the store after it.
    #[track_caller]
    pub(crate) fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> u64 {
        let (key, value) = (key.as_ref().to_vec(), value.as_ref().to_vec());
        self.run(async |mut client| Ok(client.put(key, value, None).await?.header().unwrap().revision() as u64))
    }

    #[track_caller]
    pub(crate) fn put_leased(&self, key: &str, value: &str, lease: i64) -> u64 {
        let options = PutOptions::new().with_lease(lease);
        self.run(
            async |mut client| Ok(client.put(key, value, Some(options)).await?.header().unwrap().revision() as u64),
        )
    }

    #[track_caller]
    pub(crate) fn grant(&self, seconds: i64) -> i64 {
        self.run(async |mut client| Ok(client.lease_grant(seconds, None::<LeaseGrantOptions>).await?.id()))
    }

    #[track_caller]
    pub(crate) fn delete(&self, key: impl AsRef<[u8]>) -> u64 {
        let key = key.as_ref().to_vec();
        self.run(async |mut client| Ok(client.delete(key, None).await?.header().unwrap().revision() as u64))
    }

    #[track_caller]
    pub(crate) fn txn(&self, operations: Vec<TxnOp>) -> u64 {
        let txn = Txn::new().and_then(operations);
        self.run(async |mut client| Ok(client.txn(txn).await?.header().unwrap().revision() as u64))
    }

    #[track_caller]
    pub(crate) fn compact(&self, revision: u64) {
        let options = CompactionOptions::new().with_physical();
        self.run(async |mut client| client.compact(revision as i64, Some(options)).await.map(drop))
    }

    #[track_caller]
    pub(crate) fn revision(&self) -> u64 {
        self.run(async |mut client| Ok(client.get("any", None).await?.header().unwrap().revision() as u64))
    }

    /// All key-values of a prefix, at a revision (0: the newest).
    #[track_caller]
    pub(crate) fn list(&self, prefix: &[u8], revision: u64) -> Vec<KeyValue> {
        let options = GetOptions::new().with_prefix().with_revision(revision as i64);
        self.run(async |client| {
            let mut kv = client.kv_client().max_decoding_message_size(1 << 30);
            Ok(kv.get(prefix.to_vec(), Some(options)).await?.take_kvs())
        })
    }
}
