//! Two writers: which one is refused or waits, and with which exit code.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use plimsoll::{Db, MAX_PROCESSES, Options};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;
use rustix::process::{Pid, Signal, kill_process};

use crate::repository::Repository;
use crate::run::{Folder, Ran, plimsoll, run};
use crate::signals::wait_until_signals_are_heard;

#[test]
fn locked_and_missing_stores_have_distinct_exit_codes() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["delete", &store, "a"]).fails(3, &["there is no store"]);
    let writer = Db::open(&store, Options::new().memory_bytes(16 << 20)).unwrap();
    let pid = format!("pid {}", std::process::id());
    for command in [
        vec!["put", &store, "a", "1"],
        vec!["delete", &store, "a"],
        vec!["batch", &store],
        vec!["compact", &store],
        vec!["trim", &store, "--until", "1"],
        vec!["keyspace", "create", &store, "users"],
        vec!["recover", &store, "x"],
        vec!["recover", &store, "--dry-run"],
    ] {
        let ran = run(&command).fails(8, &["open for writing", &pid, "--wait 10s"]);
        assert!(!ran.err.contains("read-only"), "it is no remedy: {}", ran.err);
        let needs_it_alone = command[0] == "recover";
        assert_eq!(
            ran.err.contains("; close it there, or have that process open it shared\n"),
            !needs_it_alone,
            "{}",
            ran.err
        );
    }
    run(&["put", &store, "a", "1", "--wait", "50ms"])
        .fails(8, &["open for writing", "\nWaited 50 ms (--wait)."]);
    run(&["count", &store]).ok();
    let processes = || run(&["stat", &store, "--json"]).ok().json()["processes"].clone();
    assert_eq!(
        processes(),
        serde_json::json!({ std::process::id().to_string(): { "role": "alone" } })
    );
    writer.close().unwrap();
    assert_eq!(processes(), serde_json::json!({}));
    run(&["put", &store, "a", "1"]).ok();
    run(&["put", &store, "a", "1", "--wait", "soon"]).fails(2, &["5s"]);
}

#[test]
fn exclusive_command_is_not_advised_to_share() {
    let folder = Folder::new();
    let store = folder.at("store");
    let sharing = Db::open(&store, Options::new().memory_bytes(16 << 20).shared(true)).unwrap();
    for command in [["recover", &store, "x"], ["recover", &store, "--dry-run"]] {
        let ran = run(&command).fails(8, &["open for writing", "; close it there\n", "--wait 10s"]);
        assert!(!ran.err.contains("shared, too"), "{}", ran.err);
    }
    sharing.close().unwrap();
}

#[test]
fn store_with_maximum_processes_is_locked() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let disk = OsDisk::new();
    let slots: Vec<_> = (0..MAX_PROCESSES)
        .map(|slot| {
            disk.lock_file(&folder.path().join(format!("store/members/{slot:02}"))).unwrap()
        })
        .collect();
    assert!(slots.iter().all(|slot| slot.try_lock().unwrap()));
    let processes = format!("{MAX_PROCESSES} processes that share it");
    run(&["put", &store, "a", "2"]).fails(8, &[&processes, "close one of them", "--wait 10s"]);
    let help = run(&["--help"]).ok().text();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains(&format!("or {MAX_PROCESSES} processes share it")), "{help}");
    assert_eq!(run(&["get", &store, "a"]).ok().out, b"1");
    drop(slots);
    run(&["put", &store, "a", "2"]).ok();
}

#[test]
fn waiting_writer_proceeds_after_close() {
    let folder = Folder::new();
    let store = folder.at("store");
    let writer = Db::open(&store, Options::new().memory_bytes(16 << 20)).unwrap();
    let mut command = plimsoll();
    command
        .args(["put", &store, "a", "1", "--wait", "10m"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let mut transaction = writer.begin();
    transaction.put(&writer.keyspace("default").unwrap(), b"b", b"2").unwrap();
    transaction.commit().unwrap();
    writer.close().unwrap();
    Ran::of(child.wait_with_output().unwrap()).ok();
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t1\nb\t2\n");
}

#[test]
fn interrupt_ends_the_wait_for_a_store() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    repository.commit("c", &[("a", b"1")]);
    let (store, rows) = (folder.at("store"), folder.file("rows.csv", "key,value\na,1\n"));
    let writer = Db::open(&store, Options::new().memory_bytes(16 << 20)).unwrap();
    for arguments in [
        vec!["import", "git", repository.path(), &store],
        vec!["load", &store, &rows],
        vec!["batch", &store, &rows],
        vec!["log", &store, "--follow", "--cursor", "mailer"],
        vec!["put", &store, "a", "1"],
    ] {
        let mut command = plimsoll();
        command
            .args(&arguments)
            .args(["--wait", "10m"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // If this process ignores Ctrl-C, as in the background of a script, a command without a
        // handler ignores it too.
        let signal = if arguments[0] == "put" { Signal::TERM } else { Signal::INT };
        if arguments[0] != "put" {
            wait_until_signals_are_heard(&child);
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        if arguments[0] == "put" {
            assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()));
        } else {
            Ran::of(output).fails(130, &["interrupted while waiting for the store"]);
        }
    }
    writer.close().unwrap();
    assert_eq!(run(&["count", &store]).ok().text(), "0\n");
}
