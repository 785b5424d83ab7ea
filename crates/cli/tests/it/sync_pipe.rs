//! `clone`, `fetch`, `pull` and `push` with a store that `plimsoll sync-server` serves, over a
//! stand-in for ssh and over `exec:`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll::{Db, Options, Retention};
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Folder, Ran, plimsoll, run};

/// Stands in for ssh: drops the options and the host, writes its process id beside itself, and runs
/// the command in a shell, as sshd does.
const SSH: &str = "#!/bin/sh
echo \"$*\" >> \"$0.log\"
if [ \"$1\" = -p ]; then shift 2; fi
[ \"$1\" = nowhere ] && { echo 'no such host' >&2; exit 255; }
[ \"$1\" = chatty ] && echo 'Welcome!'
echo $$ > \"$0.pid\"
exec sh -c \"exec $2\"
";

struct Far {
    folder: Folder,
    ssh: String,
}

impl Far {
    fn new() -> Self {
        let folder = Folder::new();
        let script = folder.file("script", SSH);
        let ssh = folder.program("ssh", &script);
        Self { folder, ssh }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = plimsoll();
        let server = format!("{} sync-server", env!("CARGO_BIN_EXE_plimsoll"));
        command.args(arguments).env("PLIMSOLL_SSH", &self.ssh);
        command.env("PLIMSOLL_SYNC_SERVER", server);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    fn at(&self, name: &str) -> String {
        self.folder.at(name)
    }

    /// The process of the last server.
    fn server(&self) -> Option<u32> {
        std::fs::read_to_string(format!("{}.pid", self.ssh)).ok()?.trim().parse().ok()
    }

    /// Forgets the last server.
    fn forget(&self) {
        let _ = std::fs::remove_file(format!("{}.pid", self.ssh));
    }
}

fn state(store: &str, branch: &str) -> String {
    run(&["state-hash", store, "--branch", branch]).ok().text()
}

#[test]
fn stores_exchange_commits_over_ssh() {
    let far = Far::new();
    let hub = far.at("it's a hub");
    run(&["put", &hub, "tea", "3.00"]).ok();
    run(&["branch", "create", &hub, "draft"]).ok();
    run(&["put", &hub, "cocoa", "4.00", "--branch", "draft"]).ok();
    let ada = far.at("ada");
    far.run(&["clone", &format!("ssh://ada@host:2222{hub}"), &ada]).ok();
    let log = std::fs::read_to_string(format!("{}.log", far.ssh)).unwrap();
    assert!(log.starts_with("-p 2222 ada@host "), "{log}");
    assert_eq!(state(&ada, "main"), state(&hub, "main"));
    assert_eq!(state(&ada, "origin/draft"), state(&hub, "draft"));

    run(&["put", &ada, "milk", "1.00"]).ok();
    far.run(&["push", &ada]).ok();
    assert_eq!(state(&ada, "main"), state(&hub, "main"));
    run(&["put", &hub, "milk", "1.10"]).ok();
    far.run(&["fetch", &ada]).ok();
    assert_eq!(state(&ada, "origin/main"), state(&hub, "main"));
    run(&["put", &ada, "tea", "3.10"]).ok();
    far.run(&["push", &ada]).fails(2, &["does not contain", "plimsoll pull"]);
    far.run(&["pull", &ada]).ok();
    far.run(&["push", &ada]).ok();
    assert_eq!(state(&ada, "main"), state(&hub, "main"));
    far.run(&["fetch", &ada, "origin", "none"]).fails(2, &["no branch `none`", "`origin`"]);
    far.run(&["pull", &ada, "origin", "draft"]).ok();
    // By the address, without a name.
    run(&["put", &ada, "tea", "3.20"]).ok();
    far.run(&["push", &ada, &format!("host:{hub}")]).ok();
    assert_eq!(state(&ada, "main"), state(&hub, "main"));
}

#[test]
fn settings_of_keyspaces_are_cloned() {
    let far = Far::new();
    let hub = far.at("hub");
    run(&["put", &hub, "tea", "3.00"]).ok();
    run(&["keyspace", "create", &hub, "short", "--retention", "100glsns"]).ok();
    run(&["keyspace", "compression", &hub, "short", "lz4"]).ok();
    run(&["keyspace", "ttl", &hub, "short", "7d"]).ok();
    let ada = far.at("ada");
    far.run(&["clone", &format!("host:{hub}"), &ada]).ok();
    assert_eq!(
        run(&["keyspace", "list", &ada]).ok().text(),
        run(&["keyspace", "list", &hub]).ok().text()
    );
    let db = Db::open(&ada, Options::new().memory_bytes(16 << 20).read_only(true)).unwrap();
    let short = db.keyspaces().into_iter().find(|it| it.name == "short").unwrap();
    assert_eq!(short.retention, Retention::Glsns(100));
}

#[test]
fn errors_on_the_way_are_named() {
    let far = Far::new();
    let (hub, ada) = (far.at("hub"), far.at("ada"));
    run(&["put", &hub, "tea", "3.00"]).ok();
    let none = far.at("none");
    far.run(&["clone", &format!("host:{none}"), &ada]).fails(3, &["there is no store", &none]);
    far.run(&["clone", &format!("nowhere:{hub}"), &ada]).fails(
        6,
        &["no such host", "ended before the transfer did", "ended with exit status: 255"],
    );
    far.run(&["clone", &format!("chatty:{hub}"), &ada])
        .fails(6, &["sent \"Welcome!", "shell on that machine prints nothing"]);
    far.run(&["clone", "ssh://-oProxyCommand=touch/hub", &ada]).fails(2, &["not the address"]);
    let mut missing = far.command(&["clone", &format!("host:{hub}"), &ada]);
    missing.env("PLIMSOLL_SSH", far.at("no such program"));
    Ran::of(missing.output().unwrap()).fails(6, &["cannot be started"]);
    assert!(!Path::new(&ada).exists());

    far.run(&["clone", &format!("host:{hub}"), &ada]).ok();
    // The server serves for itself alone; the client hears that it is locked, and may wait.
    let db = Db::open(&hub, Options::new().memory_bytes(16 << 20)).unwrap();
    far.run(&["fetch", &ada]).fails(8, &[&hub, "open for writing"]);
    db.close().unwrap();
    far.run(&["fetch", &ada, "--wait", "5s"]).ok();
}

#[test]
fn a_command_serves_a_store_if_the_user_permits_it() {
    let far = Far::new();
    let (hub, ada) = (far.at("hub"), far.at("ada"));
    run(&["put", &hub, "tea", "3.00"]).ok();
    let server = env!("CARGO_BIN_EXE_plimsoll");
    let address = format!("exec:{server} sync-server --read-only {hub}");
    run(&["clone", &address, &ada]).fails(2, &["would run a command", "PLIMSOLL_ALLOW_EXEC"]);
    let allowed = |arguments: &[&str]| {
        Ran::of(plimsoll().args(arguments).env("PLIMSOLL_ALLOW_EXEC", "1").output().unwrap())
    };
    allowed(&["clone", &address, &ada]).ok();
    assert_eq!(state(&ada, "main"), state(&hub, "main"));
    run(&["put", &ada, "milk", "1.00"]).ok();
    allowed(&["push", &ada]).fails(3, &["read-only"]);
    allowed(&["clone", "exec:cat", &far.at("cat")]).fails(6, &["echoes its input"]);
    allowed(&["clone", "exec:true", &far.at("true")]).fails(6, &["ended before the transfer did"]);
    allowed(&["clone", "exec:echo hello", &far.at("echo")]).fails(6, &["sent \"hello"]);
}

#[test]
fn a_server_without_a_client_ends() {
    let folder = Folder::new();
    let hub = folder.at("hub");
    run(&["put", &hub, "tea", "3.00"]).ok();
    assert_eq!(run(&["sync-server", &hub]).ok().out.len(), 36, "the greeting");
    let garbage = crate::run::run_with_input(&["sync-server", &hub], &[7; 4096]);
    garbage.fails(6, &["instead of the greeting"]);
    run(&["sync-server", &folder.at("none")]).fails(3, &["there is no store"]);
}

/// A store with `commits` commits of about 60 KB, above what a pipe holds.
fn large(path: &str, commits: u8) {
    let db = Db::open(path, Options::new().memory_bytes(16 << 20)).unwrap();
    let notes = db.keyspace("notes").unwrap();
    for n in 0..commits {
        db.put(&notes, [n], vec![n; 60_000]).unwrap();
    }
    db.close().unwrap();
}

/// Whether a process runs: it exists, and is not one that its parent has not yet waited for.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('Z'));
    state == Some(false)
}

/// Waits until the client has started a server.
fn server_of(far: &Far, client: &mut Child) -> Option<u32> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(20) {
        if let Some(pid) = far.server() {
            return Some(pid);
        }
        if client.try_wait().unwrap().is_some() {
            return far.server();
        }
        sleep(Duration::from_millis(1));
    }
    panic!("there is no server");
}

#[track_caller]
fn ends(pid: u32) {
    let begun = Instant::now();
    while runs(pid) {
        assert!(begun.elapsed() < Duration::from_secs(20), "process {pid} still runs");
        sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_transfer_that_is_killed_on_either_side_is_continued() {
    let far = Far::new();
    let (hub, ada) = (far.at("hub"), far.at("ada"));
    run(&["put", &hub, "tea", "3.00"]).ok();
    far.run(&["clone", &format!("host:{hub}"), &ada]).ok();
    large(&ada, 120);
    let (mut killed, mut rounds) = (0, 0);
    for (kills_client, is_push) in
        [(true, true), (false, true), (true, false), (false, false), (true, true), (false, true)]
    {
        let (arguments, source, target) = match is_push {
            true => (["push", &*ada], &ada, (&hub, "main")),
            false => (["fetch", &*ada], &hub, (&ada, "origin/main")),
        };
        // New commits to transfer, on the side that sends.
        if rounds > 0 {
            let db = Db::open(source, Options::new().memory_bytes(16 << 20)).unwrap();
            let notes = db.keyspace("notes").unwrap();
            for n in 0..120_u8 {
                db.put(&notes, [n], vec![n ^ rounds; 60_000]).unwrap();
            }
            db.close().unwrap();
        }
        rounds += 1;
        far.forget();
        let mut client =
            far.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = server_of(&far, &mut client).unwrap();
        // The server starts, then transfers about 7 MB.
        sleep(Duration::from_millis([0, 3, 6, 12, 25, 50][usize::from(rounds) - 1]));
        let victim = if kills_client { client.id() } else { server };
        if runs(victim) {
            kill_process(Pid::from_raw(victim as i32).unwrap(), Signal::KILL).unwrap();
            killed += 1;
        }
        let status = client.wait().unwrap();
        ends(server);
        assert!(kills_client || !status.success() || status.code() == Some(0));
        far.run(&arguments).ok();
        assert_eq!(state(target.0, target.1), state(source, "main"));
        if !is_push {
            far.run(&["pull", &ada]).ok();
        }
        let branches = run(&["branch", "list", target.0]).ok().text();
        assert!(!branches.contains("incoming/"), "{branches}");
    }
    assert!(killed >= 3, "most transfers were killed on their way: {killed}");
}

#[test]
fn a_server_ends_if_nobody_reads_its_answers() {
    let folder = Folder::new();
    let hub = folder.at("hub");
    run(&["put", &hub, "tea", "3.00"]).ok();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut server = plimsoll()
        .args(["sync-server", &hub])
        .stdin(Stdio::piped())
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _input = server.stdin.take();
    let begun = Instant::now();
    while server.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the server still runs");
        sleep(Duration::from_millis(2));
    }
}
