//! Two who write: who is refused, with which exit code, and who waits.

use std::process::Stdio;

use plimsoll::{Db, Options};

use crate::run::{Folder, Ran, plimsoll, run};

#[test]
fn a_locked_store_and_one_that_is_not_there_have_exit_codes_of_their_own() {
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
        vec!["rebuild", &store],
        vec!["salvage", &store, "--cut-at", "1"],
    ] {
        run(&command).fails(8, &["open for writing", &pid, "--wait 10s"]);
    }
    run(&["put", &store, "a", "1", "--wait", "50ms"]).fails(8, &["open for writing", "waited for for 50 ms"]);
    run(&["count", &store]).ok();
    writer.close().unwrap();
    run(&["put", &store, "a", "1"]).ok();
    run(&["put", &store, "a", "1", "--wait", "soon"]).fails(2, &["5s"]);
}

#[test]
fn one_who_waits_writes_when_the_other_has_closed() {
    let folder = Folder::new();
    let store = folder.at("store");
    let writer = Db::open(&store, Options::new().memory_bytes(16 << 20)).unwrap();
    let mut command = plimsoll();
    command.args(["put", &store, "a", "1", "--wait", "10m"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let mut transaction = writer.begin();
    transaction.put(&writer.keyspace("default").unwrap(), b"b", b"2").unwrap();
    transaction.commit().unwrap();
    writer.close().unwrap();
    Ran::of(child.wait_with_output().unwrap()).ok();
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t1\nb\t2\n");
}
