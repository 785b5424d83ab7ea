//! Three servers of NATS JetStream on ports of their own, for tests; killed when they are dropped.
//!
//! `go install github.com/nats-io/nats-server/v2@v2.15.3` installs the server; the variable
//! `NATS_SERVER` names the program if it is not in the path.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest start of the servers, and the longest election.
const START: Duration = Duration::from_secs(60);

/// One server.
struct Node {
    port: u16,
    monitor: u16,
    child: Option<Child>,
}

/// Servers that replicate their streams.
pub(crate) struct Servers {
    folder: tempfile::TempDir,
    nodes: Vec<Node>,
}

impl Servers {
    /// Three servers that sync each message.
    pub(crate) fn start() -> Self {
        Self::with(3, "sync_interval: always")
    }

    /// Servers with a line in their `jetstream` block.
    pub(crate) fn with(count: usize, setting: &str) -> Self {
        // All at once, so that they differ.
        let bound: Vec<_> =
            (0..3 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = bound.iter().map(|it| it.local_addr().unwrap().port()).collect();
        drop(bound);
        let folder = tempfile::tempdir().unwrap();
        let routes: Vec<String> =
            (0..count).map(|n| format!("\"nats://127.0.0.1:{}\"", ports[3 * n + 2])).collect();
        let mut nodes = Vec::new();
        for n in 0..count {
            let [port, monitor, route] = [0, 1, 2].map(|kind| ports[3 * n + kind]);
            let cluster = match count {
                1 => String::new(),
                _ => format!(
                    "cluster {{ name: test, listen: \"127.0.0.1:{route}\", routes: [{}] }}\n",
                    routes.join(", ")
                ),
            };
            let text = format!(
                "server_name: n{n}\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n\
                 jetstream {{ store_dir: \"{}\", max_mem: 64MB, max_file: 4GB, {setting} }}\n\
                 {cluster}",
                folder.path().join(format!("n{n}")).display()
            );
            std::fs::write(folder.path().join(format!("n{n}.conf")), text).unwrap();
            nodes.push(Node { port, monitor, child: None });
        }
        let mut servers = Self { folder, nodes };
        (0..count).for_each(|n| servers.restart(n));
        servers.wait_until_healthy();
        servers
    }

    /// Starts a server, after killing it if it runs.
    pub(crate) fn restart(&mut self, n: usize) {
        self.kill(n);
        let program = std::env::var("NATS_SERVER").unwrap_or_else(|_| "nats-server".to_owned());
        let mut command = Command::new(program);
        command.arg("-c").arg(self.folder.path().join(format!("n{n}.conf")));
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(format!("n{n}.log")))
            .unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.nodes[n].child = Some(child.expect("nats-server must be installed for this test"));
    }

    pub(crate) fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.nodes[n].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends a signal, such as `STOP` or `CONT`.
    pub(crate) fn signal(&self, n: usize, signal: &str) {
        let id = self.nodes[n].child.as_ref().unwrap().id().to_string();
        assert!(
            Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success()
        );
    }

    /// Waits until all servers are ready for requests.
    pub(crate) fn wait_until_healthy(&self) {
        let begun = Instant::now();
        while !(0..self.nodes.len())
            .all(|n| self.ask(n, "/healthz").is_some_and(|answer| answer["status"] == "ok"))
        {
            assert!(begun.elapsed() < START, "the servers are not ready");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// An answer of a monitoring port.
    fn ask(&self, n: usize, path: &str) -> Option<serde_json::Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.nodes[n].monitor)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// The server that leads a stream.
    pub(crate) fn leader(&self, stream: &str) -> Option<usize> {
        (0..self.nodes.len()).find(|n| {
            let state = self.ask(*n, "/jsz?streams=true").unwrap_or_default();
            let streams = state.pointer("/account_details/0/stream_detail");
            let mut streams = streams.and_then(|it| it.as_array()).into_iter().flatten();
            streams.any(|it| it["name"] == stream && it["cluster"]["leader"] == format!("n{n}"))
        })
    }

    /// The URL of a stream, without parameters.
    pub(crate) fn bare_url(&self, stream: &str) -> String {
        let hosts: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("nats://{}/{stream}", hosts.join(","))
    }

    /// The URL of a stream that is checked.
    pub(crate) fn url(&self, stream: &str) -> String {
        let monitors: Vec<_> =
            self.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.monitor)).collect();
        format!("{}?monitor={}", self.bare_url(stream), monitors.join(","))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
