//! An interrupted backup leaves nothing behind; a killed one is reported as unfinished.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::run::{Folder, plimsoll, run, run_with_input};
use crate::signals::stopped;

/// A store that takes a while to copy.
fn large_store(folder: &Folder) -> String {
    let store = folder.at("store");
    run_with_input(&["put", &store, "large", "-"], &vec![7; 300 << 20]).ok();
    store
}

/// Starts a backup and waits until it copies the log; the manifest exists by then.
fn begun(store: &str, backup: &str) -> Child {
    let mut command = plimsoll();
    command.args(["backup", store, backup, "--copy"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    while fs::read_dir(format!("{backup}/log.partial")).map_or(0, Iterator::count) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it copied anything");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

#[test]
fn interrupted_backup_leaves_nothing() {
    let folder = Folder::new();
    let (store, backup) = (large_store(&folder), folder.at("backup"));
    for signal in [Signal::INT, Signal::TERM] {
        stopped(begun(&store, &backup), signal)
            .fails(130, &["plimsoll: interrupted. No backup was made."]);
        assert!(!fs::exists(&backup).unwrap());
    }
    run(&["backup", &store, &backup, "--copy", "--verify"]).ok();
}

#[test]
fn killed_backup_is_named_and_deletable() {
    let folder = Folder::new();
    let (store, backup) = (large_store(&folder), folder.at("backup"));
    let mut child = begun(&store, &backup);
    child.kill().unwrap();
    child.wait().unwrap();
    let unfinished = "this folder holds an unfinished backup; unless one is being made there now, \
                      delete the folder";
    run(&["backup", &store, &backup]).fails(2, &[&backup, unfinished]);
    for command in
        [["verify", &backup].as_slice(), &["get", &backup, "large"], &["put", &backup, "k", "v"]]
    {
        run(command).fails(
            3,
            &[
                &backup,
                "this folder holds an unfinished backup; unless it is being made now, delete it",
            ],
        );
    }
    fs::remove_dir_all(&backup).unwrap();
    run(&["backup", &store, &backup]).ok();
}
