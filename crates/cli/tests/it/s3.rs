//! Clusters and archives on a real server of the S3 interface: versitygw, over a local folder.
//!
//! `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0` installs it; the variable
//! `VERSITYGW` names the program if it is not in the path.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::member_load::{check_members, commit_during_faults};
use crate::run::{Folder, Ran, plimsoll, run_with_input};

/// The bucket, which is a folder of the server's folder.
const BUCKET: &str = "bucket";

/// A server on a port of its own. Killed when it is dropped.
struct Server {
    folder: String,
    port: u16,
    child: Child,
}

impl Server {
    fn start(folder: &Folder) -> Self {
        let root = folder.at("server");
        std::fs::create_dir_all(folder.path().join("server").join(BUCKET)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Self::spawn(&root, port);
        Self { folder: root, port, child }
    }

    fn spawn(root: &str, port: u16) -> Child {
        let program = std::env::var("VERSITYGW").unwrap_or_else(|_| "versitygw".to_owned());
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(program);
        command.args(["--access", "access", "--secret", "secret-key", "--port", &address]);
        command.args(["--region", "us-east-1", "posix", root]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().expect("versitygw must be installed for this test");
        let begun = Instant::now();
        while TcpStream::connect(&address).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "versitygw does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.kill();
        self.child = Self::spawn(&self.folder, self.port);
    }

    /// The file of an object.
    fn object(&self, name: &str) -> PathBuf {
        PathBuf::from(&self.folder).join(BUCKET).join(name)
    }

    fn command(&self) -> Command {
        let mut command = plimsoll();
        command.env("AWS_ACCESS_KEY_ID", "access").env("AWS_SECRET_ACCESS_KEY", "secret-key");
        command.env("AWS_REGION", "us-east-1").env("AWS_ALLOW_HTTP", "true");
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command().args(arguments).output().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The URL of a prefix of the bucket.
fn url(prefix: &str) -> String {
    format!("s3://{BUCKET}/{prefix}")
}

/// A cluster with the members `one` and `two`.
fn cluster(folder: &Folder, server: &Server) -> [String; 2] {
    let stores = ["one", "two"].map(|name| folder.at(name));
    server.run(&["put", &stores[0], "first", "1"]).ok();
    server.run(&["cluster", "create", &url("users"), "--from", &stores[0]]).ok();
    server.run(&["cluster", "join", &url("users"), &stores[1]]).ok();
    stores
}

#[test]
#[ignore = "needs the server versitygw; .ci/run runs it"]
fn members_commit_while_the_server_is_killed_and_restarted() {
    const INCREMENTS: u64 = 60;
    let folder = Folder::new();
    let mut server = Server::start(&folder);
    let stores = cluster(&folder, &server);
    let shells = stores.each_ref().map(|store| {
        let mut shell = server.command();
        shell.args(["shell", store]);
        shell
    });
    let restarts = commit_during_faults(shells.into(), INCREMENTS, |_| server.restart());
    assert!(restarts >= 2, "{restarts} restarts");
    let run = |arguments: &[&str]| server.run(arguments);
    check_members(&run, &url("users"), &stores, &folder.at("three"), INCREMENTS);
}

#[test]
#[ignore = "needs the server versitygw; .ci/run runs it"]
fn an_object_that_is_damaged_or_missing_is_named() {
    let folder = Folder::new();
    let server = Server::start(&folder);
    let [one, two] = cluster(&folder, &server);
    server.run(&["put", &one, "second", "2"]).ok();
    let logs = std::fs::read_dir(server.object("users/log")).unwrap();
    let newest = logs.map(|file| file.unwrap().path()).max().unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap().to_owned();
    let whole = std::fs::read(&newest).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&newest, &damaged).unwrap();
    server.run(&["put", &two, "third", "3"]).fails(4, &[&name]);
    assert_eq!(server.run(&["get", &two, "first"]).ok().out, b"1");
    // The member that has applied it notices that it is gone.
    std::fs::remove_file(&newest).unwrap();
    let position = format!("position {}", u64::from_str_radix(&name, 16).unwrap());
    let refused = server.run(&["put", &one, "third", "3"]);
    refused.fails(4, &[&position, "it is missing, but was applied here"]);
    std::fs::write(&newest, &whole).unwrap();
    server.run(&["put", &two, "third", "3"]).ok();
    assert_eq!(server.run(&["get", &one, "third"]).ok().out, b"3");
}

#[test]
#[ignore = "needs the server versitygw; .ci/run runs it"]
fn an_archive_is_written_verified_and_restored() {
    let folder = Folder::new();
    let mut server = Server::start(&folder);
    let (store, archive) = (folder.at("store"), url("archive"));
    server.run(&["put", &store, "a", "one"]).ok();
    // More than one part of an upload.
    let large = folder.file("large", vec![7; 20 << 20]);
    run_with_input(&["batch", &store], format!("put b --file {large}\n").as_bytes()).ok();
    server.run(&["archive", &store, &archive]).ok();
    server.run(&["put", &store, "a", "two"]).ok();
    server.restart();
    server.run(&["archive", &store, &archive]).ok();
    server.run(&["verify", &archive]).ok();
    for (name, at, expected) in [("then", "1", "one"), ("now", "now", "two")] {
        let restored = folder.at(name);
        server.run(&["restore", &restored, &archive, "--at", at]).ok();
        assert_eq!(server.run(&["get", &restored, "a"]).ok().text().trim(), expected);
    }
    let value = server.run(&["get", &folder.at("now"), "b"]).ok().out;
    assert!(value.len() == 20 << 20 && value.iter().all(|byte| *byte == 7));
}

#[test]
#[ignore = "needs the server versitygw; .ci/run runs it"]
fn wrong_credentials_and_a_missing_bucket_are_told() {
    let folder = Folder::new();
    let server = Server::start(&folder);
    let store = folder.at("store");
    server.run(&["put", &store, "a", "1"]).ok();
    let from = ["--from", &store];
    let create = |url: &str, secret: &str| {
        let mut command = server.command();
        command.env("AWS_SECRET_ACCESS_KEY", secret).args(["cluster", "create", url]);
        Ran::of(command.args(from).output().unwrap())
    };
    create(&url("users"), "wrong-secret").fails(6, &["SignatureDoesNotMatch", "the credentials"]);
    create("s3://nowhere/users", "secret-key").fails(6, &["NoSuchBucket", "create the bucket"]);
    // The store is not a member of anything.
    server.run(&["put", &store, "a", "2"]).ok();
    create(&url("users"), "secret-key").ok();
}
