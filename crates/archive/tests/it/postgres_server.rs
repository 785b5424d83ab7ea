//! A PostgreSQL server of a test, on a port of its own. Also used by the tests of other crates.
//!
//! `apt-get install postgresql` installs it; the variable `POSTGRES_BIN` names the folder of its
//! programs if it is not one of Debian's.

#![allow(dead_code, reason = "not every crate uses all of it")]

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The role, which owns everything, and its password.
const ROLE: &str = "ada";
const PASSWORD: &str = "lovelace";

/// A server. Ended when it is dropped.
pub(crate) struct Server {
    dir: TempDir,
    programs: PathBuf,
    /// Settings of the command line.
    settings: Vec<String>,
    pub(crate) port: u16,
    child: Child,
}

/// Whether this test is run by root, for whom PostgreSQL does not start.
fn is_root() -> bool {
    output(Command::new("id").arg("-u")).trim() == "0"
}

fn output(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The folder of the newest server's programs.
fn programs() -> PathBuf {
    if let Some(folder) = std::env::var_os("POSTGRES_BIN") {
        return folder.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.expect("PostgreSQL must be installed for this test");
    let newest = versions.map(|version| version.unwrap().path()).max();
    newest.expect("PostgreSQL must be installed for this test").join("bin")
}

impl Server {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(folder.join("password"), PASSWORD).unwrap();
        let secret = folder.join("pass");
        std::fs::write(&secret, format!("*:*:*:{ROLE}:{PASSWORD}\n")).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (programs, data) = (programs(), folder.join("data"));
        std::fs::create_dir(&data).unwrap();
        own(&data);
        let mut command = unprivileged(&programs.join("initdb"));
        command.arg("-D").arg(&data).arg("--pwfile").arg(folder.join("password"));
        command.args(["-U", ROLE, "-A", "scram-sha-256", "-E", "UTF8", "--no-sync"]);
        output(&mut command);
        let child = spawn(&programs, folder, port, &[]);
        Self { dir, programs, settings: Vec::new(), port, child }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The URL of a schema.
    pub(crate) fn url(&self, schema: &str) -> String {
        self.url_in("postgres", schema)
    }

    pub(crate) fn url_in(&self, database: &str, schema: &str) -> String {
        let (port, dir) = (self.port, self.path().display());
        format!("postgres://{ROLE}@127.0.0.1:{port}/{database}/{schema}?passfile={dir}/pass")
    }

    /// Runs a statement. Returns the rows.
    pub(crate) fn sql(&self, statement: &str) -> String {
        let mut command = Command::new(self.programs.join("psql"));
        command.env("PGPASSFILE", self.path().join("pass"));
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", ROLE, "-d"]);
        output(command.args(["postgres", "-v", "ON_ERROR_STOP=1", "-Atc", statement]))
    }

    /// The postmaster and its children.
    fn processes(&self) -> Vec<String> {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap();
        let children = children.split_whitespace().map(str::to_owned);
        std::iter::once(pid.to_string()).chain(children).collect()
    }

    /// Sends a signal to the postmaster and its children. Some may end by themselves meanwhile.
    pub(crate) fn signal(&self, signal: &str) {
        signal_to(signal, &self.processes());
    }

    pub(crate) fn kill(&mut self) {
        self.signal("-KILL");
        self.child.wait().unwrap();
    }

    /// Starts the server again after [`Server::kill`].
    pub(crate) fn revive(&mut self) {
        self.child = spawn(&self.programs, self.dir.path(), self.port, &self.settings);
    }

    /// Restarts the server with other settings.
    pub(crate) fn restart_with(&mut self, settings: &[&str]) {
        self.kill();
        self.settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        self.revive();
    }

    /// Closes every connection.
    pub(crate) fn terminate_backends(&self) {
        self.sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
    }

    /// Makes the server a standby at the next start, or a primary again.
    pub(crate) fn set_standby(&self, is_standby: bool) {
        let file = self.path().join("data/standby.signal");
        match is_standby {
            true => std::fs::write(&file, "").map(|()| own(&file)).unwrap(),
            false => std::fs::remove_file(&file).unwrap(),
        }
    }

    /// Gives the server a file that it alone may read.
    pub(crate) fn give(&self, file: &Path) {
        own(file);
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal("-CONT");
            self.signal("-KILL");
            self.child.wait().unwrap();
        }
    }
}

fn signal_to(signal: &str, processes: &[String]) {
    let mut command = Command::new("kill");
    command.arg(signal).arg("--").args(processes).stderr(Stdio::null());
    let _: Output = command.output().unwrap();
}

/// A command that is not run by root.
fn unprivileged(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command.current_dir("/");
    command
}

/// Gives a file to the user of [`unprivileged`].
fn own(path: &Path) {
    if is_root() {
        let id = |of: &str| {
            output(Command::new("id").args([of, "postgres"])).trim().parse::<u32>().unwrap()
        };
        chown(path, Some(id("-u")), Some(id("-g"))).unwrap();
    }
}

/// Starts the server, and waits until it accepts connections.
fn spawn(programs: &Path, folder: &Path, port: u16, settings: &[String]) -> Child {
    let begun = Instant::now();
    loop {
        let mut command = unprivileged(&programs.join("postgres"));
        command.arg("-D").arg(folder.join("data")).args(["-p", &port.to_string()]);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        command.args(["-c", "shared_buffers=16MB", "-c", "max_wal_size=200MB"]);
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        // It ends while processes of an earlier server are ending.
        while child.try_wait().unwrap().is_none() {
            let mut command = Command::new(programs.join("pg_isready"));
            command.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
            if command.status().unwrap().success() {
                return child;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the server ends at once");
        std::thread::sleep(Duration::from_millis(50));
    }
}
