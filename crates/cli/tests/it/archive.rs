//! `archive`, and `restore` and `verify` of an archive.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use plimsoll::{Db, Options, Retention};
use rustix::process::Signal;

use crate::run::{Folder, plimsoll, run};
use crate::signals::{stopped, wait_until_signals_are_heard};

fn put(store: &str, value: &str) -> u64 {
    run(&["put", store, "key", value]).ok().text().trim().parse().unwrap()
}

fn value(store: &str) -> String {
    run(&["get", store, "key"]).ok().text()
}

#[test]
fn any_archived_moment_is_restored() {
    let folder = Folder::new();
    let (store, archive) = (folder.at("store"), folder.at("archive"));
    let first = put(&store, "one");
    run(&["archive", &store, &archive]).ok();
    put(&store, "two");
    let url = format!("file://{archive}");
    let sent = run(&["archive", &store, &url, "--json"]).ok().json();
    assert_eq!(sent["newest_glsn"], first + 1);
    assert_eq!(sent["objects_sent"], 1);
    let again = run(&["archive", &store, &archive, "--json"]).ok().json();
    assert_eq!(again["objects_sent"], 0);
    for (name, at, expected) in [
        ("a", Some(first.to_string()), "one"),
        ("b", None, "two"),
        ("c", Some("now".into()), "two"),
    ] {
        let new = folder.at(name);
        let at = at.iter().flat_map(|at| ["--at", at.as_str()]);
        let arguments: Vec<&str> = ["restore", &new, &url].into_iter().chain(at).collect();
        run(&arguments).ok();
        assert_eq!(value(&new), expected);
    }
    let verified = run(&["verify", &archive, "--json"]).ok().json();
    assert_eq!(verified["restorable"], serde_json::json!([[0, first + 1]]));
}

#[test]
fn wrong_places_and_moments_are_named() {
    let folder = Folder::new();
    let (store, archive, new) = (folder.at("store"), folder.at("archive"), folder.at("new"));
    let newest = put(&store, "one");
    run(&["archive", &folder.at("nowhere"), &archive]).fails(3, &["nowhere"]);
    run(&["archive", &store, "s3://bucket/archive"]).fails(2, &["--features cloud"]);
    run(&["archive", &store, &archive]).ok();
    let other = folder.at("other");
    put(&other, "two");
    run(&["archive", &other, &archive]).fails(2, &[&archive, "of another store"]);
    let beyond = (newest + 1).to_string();
    run(&["restore", &new, &archive, "--at", &beyond]).fails(2, &["is not in the archive"]);
    run(&["restore", &new, &archive, "--at", "2001-01-01"]).fails(2, &["not in the archive"]);
    run(&["restore", &new, &archive, "--at", "commit:1a2b"]).fails(2, &["commit ids"]);
    run(&["restore", &store, &archive]).fails(2, &["the destination exists"]);
    run(&["restore", &new, &format!("file://{}", folder.at("none"))])
        .fails(3, &["there is no archive here"]);
    run(&["restore", &new, &store, "--at", "1"]).fails(2, &["--at is for archives"]);
    run(&["archive", &store, &archive, "--every", "2s"]).fails(2, &["--follow"]);
    run(&["archive", &store, &format!("{store}/archive")]).fails(2, &["is inside the store"]);
    run(&["archive", &store, &folder.at("")]).fails(2, &["is inside this folder"]);
    assert!(!fs::exists(&new).unwrap());
}

#[test]
fn a_store_that_was_set_back_is_refused() {
    let folder = Folder::new();
    let (store, archive, back) = (folder.at("store"), folder.at("archive"), folder.at("back"));
    let first = put(&store, "one");
    put(&store, "two");
    run(&["archive", &store, &archive]).ok();
    run(&["restore", &back, &archive, "--at", &first.to_string()]).ok();
    put(&back, "another");
    run(&["archive", &back, &archive]).fails(2, &["does not continue this archive"]);
}

#[test]
fn damage_is_named_and_what_is_before_it_is_restored() {
    let folder = Folder::new();
    let (store, archive, new) = (folder.at("store"), folder.at("archive"), folder.at("new"));
    let large = "x".repeat(40_000);
    for value in ["one", &large, "three"] {
        put(&store, value);
        run(&["archive", &store, &archive]).ok();
    }
    let pieces = fs::read_dir(format!("{archive}/segments")).unwrap();
    let mut pieces: Vec<_> = pieces.map(|piece| piece.unwrap().path()).collect();
    pieces.sort();
    // The last piece does not replace the one before it.
    let last = pieces.pop().unwrap();
    let mut bytes = fs::read(&last).unwrap();
    bytes[40] ^= 1;
    fs::write(&last, bytes).unwrap();
    let name = last.file_name().unwrap().to_str().unwrap();
    let verified = run(&["verify", &archive]);
    assert_eq!(verified.code, 1);
    assert!(verified.text().contains(name), "{}", verified.text());
    let restored = run(&["restore", &new, &archive]);
    assert_eq!(restored.code, 1, "{}", restored.err);
    assert!(restored.text().contains(name), "{}", restored.text());
    assert_eq!(value(&new), large);
    for name in fs::read_dir(format!("{archive}/manifests")).unwrap() {
        fs::write(name.unwrap().path(), "").unwrap();
    }
    run(&["restore", &folder.at("newer"), &archive]).fails(4, &["manifests/", "damaged"]);
}

/// Starts `archive --follow`.
fn follow(store: &str, archive: &str) -> Child {
    let mut command = plimsoll();
    command.args(["archive", store, archive, "--follow", "--every", "20ms", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_signals_are_heard(&child);
    child
}

/// Waits until a GLSN is in the archive.
fn wait_for(archive: &str, glsn: u64) {
    let begun = Instant::now();
    loop {
        let verified = run(&["verify", archive, "--json"]);
        if verified.code == 0 && verified.json()["newest_glsn"].as_u64().unwrap() >= glsn {
            return;
        }
        let (is, err) = (verified.text(), &verified.err);
        assert!(begun.elapsed() < Duration::from_secs(60), "GLSN {glsn}: {is} {err}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_follower_archives_each_commit_until_it_is_stopped_or_killed() {
    let folder = Folder::new();
    let (store, archive) = (folder.at("store"), folder.at("archive"));
    put(&store, "0");
    for (round, signal) in
        [Signal::INT, Signal::TERM, Signal::KILL, Signal::KILL].iter().enumerate()
    {
        let mut child = follow(&store, &archive);
        let mut newest = 0;
        for number in 0..3 {
            newest = put(&store, &format!("{round} {number}"));
            wait_for(&archive, newest);
        }
        // More commits, which it may or may not archive.
        put(&store, "more");
        if *signal == Signal::KILL {
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            let ended = stopped(child, *signal).fails(130, &[]);
            assert!(!ended.json_lines().is_empty());
        }
        let (at, new) = (newest.to_string(), folder.at(&format!("new-{round}")));
        run(&["restore", &new, &archive, "--at", &at]).ok();
        assert_eq!(value(&new), format!("{round} 2"));
    }
    run(&["archive", &store, &archive]).ok();
    let new = folder.at("newest");
    run(&["restore", &new, &archive]).ok();
    assert_eq!(value(&new), "more");
}

#[test]
fn a_second_follower_is_refused() {
    let folder = Folder::new();
    let (store, archive) = (folder.at("store"), folder.at("archive"));
    let newest = put(&store, "one");
    let child = follow(&store, &archive);
    wait_for(&archive, newest);
    run(&["archive", &store, &archive])
        .fails(8, &["another archiver", &format!("process {}", child.id())]);
    stopped(child, Signal::INT).fails(130, &[]);
    run(&["archive", &store, &archive]).ok();
}

/// A follower beside this process, which writes and trims.
fn beside_a_writer(is_shared: bool) {
    let folder = Folder::new();
    let (store, archive, new) = (folder.at("store"), folder.at("archive"), folder.at("new"));
    let options = || Options::new().memory_bytes(16 << 20).segment_bytes(64 << 10);
    let db = Db::open(&store, options().shared(is_shared).retention(Retention::Latest)).unwrap();
    let rows = db.keyspace("default").unwrap();
    let child = follow(&store, &archive);
    wait_for(&archive, db.put(&rows, "first", "").unwrap().0);
    for number in 0..400_u32 {
        let value = number.to_string().repeat(if number % 5 == 0 { 1000 } else { 5 });
        db.put(&rows, (number % 37).to_be_bytes(), value).unwrap();
        if number % 50 == 49 {
            db.compact().unwrap();
            db.log().trim(db.newest().next()).unwrap();
        }
    }
    wait_for(&archive, db.newest().0);
    stopped(child, Signal::INT).fails(130, &[]);
    if is_shared {
        // A member keeps the log between its passes.
        let verified = run(&["verify", &archive, "--json"]).ok().json();
        assert_eq!(verified["restorable"].as_array().unwrap().len(), 1, "{verified}");
    }
    run(&["restore", &new, &archive]).ok();
    let restored = Db::open(&new, options()).unwrap();
    assert_eq!(restored.newest(), db.newest());
    let copy = restored.keyspace("default").unwrap();
    for key in 0..37_u32 {
        let key = key.to_be_bytes();
        assert_eq!(restored.get(&copy, key).unwrap(), db.get(&rows, key).unwrap());
    }
}

#[test]
fn a_follower_archives_a_store_that_another_process_has_for_itself() {
    beside_a_writer(false);
}

#[test]
fn a_follower_archives_a_store_that_it_shares() {
    beside_a_writer(true);
}
