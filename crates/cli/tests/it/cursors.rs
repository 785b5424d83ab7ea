//! `plimsoll cursor`, and `plimsoll log --cursor`: each entry is printed at least once, regardless
//! of how the command ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use plimsoll::{Db, Durability, Options};
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Folder, Ran, plimsoll, run};

/// GLSNs 1 to 3.
fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3")] {
        run(&["put", &store, key, value]).ok();
    }
    store
}

fn list(store: &str) -> String {
    run(&["cursor", "list", store]).ok().text()
}

/// The printed GLSNs, from the fields before the first tab.
fn glsns(ran: &Ran) -> Vec<u64> {
    ran.text().lines().map(|line| line.split('\t').next().unwrap().parse().unwrap()).collect()
}

/// Keeps exclusive use of the store until closed.
fn holder(store: &str) -> Db {
    Db::open(store, Options::new().memory_bytes(32 << 20)).unwrap()
}

#[test]
fn cursors_are_created_listed_advanced_and_dropped() {
    let folder = Folder::new();
    let store = store(&folder);
    assert_eq!(list(&store), "");
    assert_eq!(run(&["cursor", "create", &store, "mailer"]).ok().text(), "mailer\t4\n");
    assert_eq!(run(&["cursor", "create", &store, "audit", "--at", "2"]).ok().text(), "audit\t2\n");
    // It exists already.
    assert_eq!(run(&["cursor", "create", &store, "audit", "--at", "1"]).ok().text(), "audit\t2\n");
    assert_eq!(list(&store), "audit\t2\nmailer\t4\n");
    let stat = run(&["stat", &store, "--json"]).ok().json();
    assert_eq!(
        (&stat["cursors"]["audit"]["next"], &stat["cursors"]["audit"]["behind"]),
        (&2.into(), &4.into())
    );
    assert_eq!(run(&["cursor", "advance", &store, "audit", "3"]).ok().text(), "audit\t3\n");
    run(&["cursor", "advance", &store, "audit", "2"]).fails(2, &["cannot move back"]);
    run(&["cursor", "advance", &store, "audit", "100"]).fails(2, &["100"]);
    for command in [&["advance", &store, "unknown", "3"][..], &["drop", &store, "unknown"]] {
        let arguments = [&["cursor"], command].concat();
        run(&arguments)
            .fails(2, &["no cursor `unknown`", "audit, mailer", "plimsoll cursor create"]);
    }
    run(&["cursor", "drop", &store, "mailer"]).ok();
    assert_eq!(run(&["cursor", "list", &store, "--json"]).ok().json_lines()[0]["name"], "audit");
    run(&["cursor", "create", &store, "late", "--at", "1000"]).fails(2, &["1000"]);
    run(&["cursor", "list", &folder.at("nowhere")]).fails(3, &[]);
}

#[test]
fn log_resumes_at_the_cursor() {
    let folder = Folder::new();
    let store = store(&folder);
    let next = || run(&["log", &store, "--cursor", "mailer"]).ok();
    // Entries 4 and 5 created and advanced the cursor; later ones advanced it too.
    assert_eq!(glsns(&next()), [1, 2, 3]);
    assert_eq!(glsns(&next()), [] as [u64; 0]);
    assert_eq!(list(&store), "mailer\t4\n");
    run(&["put", &store, "d", "4"]).ok();
    run(&["put", &store, "e", "5"]).ok();
    let one = run(&["log", &store, "--cursor", "mailer", "--limit", "1"]).ok();
    assert_eq!(glsns(&one), [6]);
    assert_eq!(glsns(&next()), [7]);
    assert_eq!(glsns(&next()), [] as [u64; 0]);
    // Filtered entries count as processed.
    run(&["put", &store, "f", "6"]).ok();
    assert_eq!(
        glsns(&run(&["log", &store, "--cursor", "mailer", "--key", "a"]).ok()),
        [] as [u64; 0]
    );
    assert_eq!(glsns(&next()), [] as [u64; 0]);
    // Without a cursor everything is shown; a new cursor starts where it is created.
    let all = run(&["log", &store, "--color", "always"]).ok().text();
    assert!(all.contains("cursor mailer") && !all.contains("keyspace mailer"), "{all}");
    assert_eq!(glsns(&run(&["log", &store, "--cursor", "other", "--from", "7"]).ok())[0], 7);
    run(&["log", &store, "--cursor", "x", "--reverse"]).fails(2, &["--reverse"]);
    run(&["log", &store, "--cursor", ""]).fails(2, &[]);
}

#[test]
fn entry_committed_during_printing_is_printed_next() {
    let folder = Folder::new();
    let store = folder.at("store");
    let db = Db::open(&store, Options::new().memory_bytes(32 << 20).shared(true)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    db.put(&keyspace, "first", "").unwrap();
    let printed = || glsns(&run(&["log", &store, "--cursor", "mailer"]).ok());
    let (mut all, put) = std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (db, keyspace) = (&db, &keyspace);
        let writer = scope.spawn(move || {
            let mut put = BTreeSet::new();
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) =
                stopped.recv_timeout(Duration::from_micros(300))
            {
                put.insert(db.put(keyspace, "key", "value").unwrap().0);
            }
            put
        });
        let all: Vec<u64> = (0..60).flat_map(|_| printed()).collect();
        drop(stop);
        (all, writer.join().unwrap())
    });
    all.extend(printed());
    all.retain(|glsn| put.contains(glsn));
    assert!(all.iter().eq(&put), "{} of {} were printed", all.len(), put.len());
    db.close().unwrap();
}

#[test]
fn cursor_retains_the_log() {
    let folder = Folder::new();
    let store = folder.at("store");
    let options = Options::new()
        .memory_bytes(32 << 20)
        .segment_bytes(64 << 10)
        .durability(Durability::Buffered);
    let db = Db::open(&store, options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for number in 0..100u8 {
        let mut tx = db.begin();
        tx.put(&keyspace, &[number], &[number; 3000]).unwrap();
        tx.commit().unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    run(&["cursor", "create", &store, "mailer", "--at", "1"]).ok();
    let first =
        || run(&["trim", &store, "--until", "newest", "--json"]).ok().json()["first_glsn"].clone();
    assert_eq!(first(), 1);
    run(&["cursor", "drop", &store, "mailer"]).ok();
    assert!(first().as_u64().unwrap() > 1);
}

#[test]
fn follower_advances_its_cursor() {
    let folder = Folder::new();
    let store = store(&folder);
    let follow = |limit: &str| {
        let mut command = plimsoll();
        command.args([
            "log", &store, "--follow", "--cursor", "mailer", "--wait", "60s", "--limit", limit,
        ]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    run(&["cursor", "create", &store, "mailer", "--at", "2"]).ok();
    let first = Ran::of(follow("2").wait_with_output().unwrap()).ok();
    assert_eq!(glsns(&first), [2, 3]);
    assert_eq!(list(&store), "mailer\t4\n");
    let mut child = follow("2");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for _ in 0..2 {
        let glsn: u64 =
            run(&["put", &store, "d", "4", "--wait", "60s"]).ok().text().trim().parse().unwrap();
        let line = lines.next().unwrap().unwrap();
        seen.push((glsn, line.split('\t').next().unwrap().parse().unwrap()));
    }
    assert!(seen.iter().all(|(put, printed)| put == printed), "{seen:?}");
    assert!(child.wait().unwrap().success());
    assert_eq!(list(&store), format!("mailer\t{}\n", seen[1].0 + 1));
}

#[test]
fn cursor_advances_when_the_writer_closes() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["cursor", "create", &store, "mailer", "--at", "3"]).ok();
    let holder = holder(&store);
    holder.put(&holder.keyspace("default").unwrap(), "d", "4").unwrap();
    let follow = |wait: &[&str]| {
        let arguments = ["log", &store, "--follow", "--cursor", "mailer", "--limit", "2"];
        plimsoll()
            .args(arguments)
            .args(wait)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let ran = Ran::of(follow(&[]).wait_with_output().unwrap());
    assert_eq!(glsns(&ran), [3, 5]);
    ran.fails(8, &["Cursor mailer stays at GLSN 3", "printed again", "--wait"]);
    run(&["log", &store, "--cursor", "mailer"]).fails(8, &["open for writing"]);
    let mut waiting = follow(&["--wait", "60s"]);
    let mut lines = BufReader::new(waiting.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("3\t"));
    assert!(lines.next().unwrap().unwrap().starts_with("5\t"));
    let mut stopped = follow(&["--wait", "10m"]);
    // Everything is printed; from now on it waits only for the lock.
    let mut printed = BufReader::new(stopped.stdout.take().unwrap()).lines();
    assert!(printed.by_ref().take(2).all(|line| line.is_ok()));
    kill_process(Pid::from_child(&stopped), Signal::INT).unwrap();
    let stopped = Ran::of(stopped.wait_with_output().unwrap());
    stopped
        .fails(130, &["interrupted while waiting for the store", "Cursor mailer stays at GLSN 3"]);
    holder.close().unwrap();
    assert!(waiting.wait().unwrap().success());
    assert_eq!(list(&store), "mailer\t6\n");
}

#[test]
fn killed_follower_prints_entries_again() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["cursor", "create", &store, "mailer", "--at", "1"]).ok();
    let holder = holder(&store);
    let mut command = plimsoll();
    command
        .args(["log", &store, "--follow", "--cursor", "mailer"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for glsn in 1..=3 {
        assert!(lines.next().unwrap().unwrap().starts_with(&format!("{glsn}\t")));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    holder.close().unwrap();
    assert_eq!(glsns(&run(&["log", &store, "--cursor", "mailer"]).ok()), [1, 2, 3]);
    assert_eq!(glsns(&run(&["log", &store, "--cursor", "mailer"]).ok()), [] as [u64; 0]);
}
