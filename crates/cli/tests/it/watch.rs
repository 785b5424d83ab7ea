//! `plimsoll watch`: changes under a prefix as they are committed.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::run::{Folder, plimsoll, run, run_with_input};

fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    for (key, value) in [("a/1", "one"), ("b/1", "other"), ("a/2", "two lines\nand a\ttab")] {
        run(&["put", &store, key, value]).ok();
    }
    store
}

fn watch(arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = plimsoll();
    let mut child = command.arg("watch").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

#[test]
fn watch_prints_changes_of_another_process() {
    let folder = Folder::new();
    let store = store(&folder);
    let (mut child, mut lines) = watch(&[&store, "a/", "--from", "1", "--limit", "5"]);
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "1\t+\ta/1\tone");
    assert_eq!(next(), "3\t+\ta/2\ttwo lines\\nand a\\ttab");
    // One transaction; the change outside the prefix is skipped.
    run_with_input(&["batch", &store], b"put a/1 new\nput b/2 x\ndelete a/2\n").ok();
    assert_eq!((next(), next()), ("4\t+\ta/1\tnew".to_owned(), "4\t-\ta/2".to_owned()));
    run(&["put", &store, "b/1", "nothing for it"]).ok();
    run(&["put", &store, "a/3", "last"]).ok();
    assert_eq!(next(), "6\t+\ta/3\tlast");
    assert!(child.wait().unwrap().success());
}

#[test]
fn watch_and_log_of_a_branch_end_with_it_although_its_name_is_used_again() {
    for command in [&["watch"][..], &["log", "--follow"]] {
        let folder = Folder::new();
        let store = store(&folder);
        let put = |key: &str| run(&["put", &store, key, "x", "--branch", "draft"]).ok();
        run(&["branch", "create", &store, "draft"]).ok();
        put("first");
        let mut child = plimsoll()
            .args(command)
            .args([&store, "--from", "5", "--branch", "draft"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("5\t"));
        run(&["branch", "create", &store, "other"]).ok();
        put("second");
        run(&["branch", "delete", &store, "draft"]).ok();
        run(&["branch", "create", &store, "draft"]).ok();
        put("third");
        let rest: Vec<_> = lines.map(Result::unwrap).collect();
        assert_eq!(rest.len(), 1, "{command:?}: {rest:?}");
        assert!(rest[0].starts_with("7\t"), "{command:?}: {rest:?}");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        assert!(said.contains("branch `draft` was deleted"), "{command:?}: {said}");
        assert_eq!(child.wait().unwrap().code(), Some(2));
    }
}

#[test]
fn watch_starts_at_the_next_commit() {
    let folder = Folder::new();
    let store = store(&folder);
    let (mut child, mut lines) = watch(&[&store, "--from", "3"]);
    assert!(lines.next().unwrap().unwrap().starts_with("3\t+\ta/2\t"), "it is on its way");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // GLSN 4 or later, depending on when the watch starts.
    let (mut child, mut lines) = watch(&[&store, "--limit", "1"]);
    let mut number = 0;
    let line = std::thread::scope(|scope| {
        let reader = scope.spawn(|| lines.next().unwrap().unwrap());
        while !reader.is_finished() {
            number += 1;
            run(&["put", &store, "key", &number.to_string()]).ok();
        }
        reader.join().unwrap()
    });
    let fields: Vec<&str> = line.split('\t').collect();
    let (glsn, value): (u64, u64) = (fields[0].parse().unwrap(), fields[3].parse().unwrap());
    assert_eq!((glsn, fields[1], fields[2]), (value + 3, "+", "key"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn watch_supports_json_hex_and_keyspaces() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "x", "in the default keyspace"]).ok();
    run(&["put", &store, "--keyspace", "users", "x1", "\u{e9}"]).ok();
    run_with_input(&["put", &store, "--keyspace", "users", "x2"], b"\xff\x00").ok();
    run(&["delete", &store, "--keyspace", "users", "x1"]).ok();
    let users = ["watch", &store, "--keyspace", "users", "--from", "1", "--limit", "3"];
    let lines = run(&[&users[..], &["--json"]].concat()).ok().json_lines();
    let op = |line: usize| (lines[line]["op"].clone(), lines[line]["key"].clone());
    assert_eq!((op(0), &lines[0]["value"]), ((json!("put"), json!("x1")), &json!("\u{e9}")));
    assert_eq!((op(1), &lines[1]["value_hex"]), ((json!("put"), json!("x2")), &json!("ff00")));
    assert_eq!((op(2), lines[2].get("value")), ((json!("delete"), json!("x1")), None));
    assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'), "{}", lines[0]);
    let hex =
        ["watch", &store, "--keyspace", "users", "--from", "1", "--limit", "1", "--hex", "7831"];
    assert!(run(&hex).ok().text().ends_with("\t+\t7831\t\u{e9}\n"));
}

#[test]
fn watch_prints_expiries() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["put", &store, "a/3", "x", "--ttl", "1h"]).ok();
    let (mut child, mut lines) =
        watch(&[&store, "a/", "--from", "4", "--expiries", "--limit", "5"]);
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!(next(), "4\t+\ta/3\tx");
    run(&["put", &store, "a/4", "y", "--ttl", "300ms"]).ok();
    assert_eq!(next(), "5\t+\ta/4\ty");
    // No commit is made meanwhile.
    assert_eq!(next(), "5\t!\ta/4");
    run(&["put", &store, "a/5", "z", "--ttl", "1h"]).ok();
    run(&["persist", &store, "a/5"]).ok();
    assert_eq!((next(), next()), ("6\t+\ta/5\tz".to_owned(), "7\t+\ta/5\tz".to_owned()));
    assert!(child.wait().unwrap().success());

    let (mut child, mut lines) = watch(&[&store, "--expiries", "--json"]);
    let line = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            lines.by_ref().map(Result::unwrap).find(|line| line.contains("expire")).unwrap()
        });
        while !reader.is_finished() {
            run(&["put", &store, "key", "x", "--ttl", "50ms"]).ok();
            std::thread::sleep(Duration::from_millis(100));
        }
        reader.join().unwrap()
    });
    let shown: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&shown["op"], &shown["key"]), (&json!("expire"), &json!("key")));
    assert!(shown["time"].as_str().unwrap().ends_with('Z') && shown.get("value").is_none());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));

    run(&["branch", "create", &store, "draft"]).ok();
    let on_draft = ["watch", &store, "--expiries", "--branch", "draft"];
    run(&on_draft).fails(2, &["expiries are reported only for keys of one keyspace on main"]);
}

#[test]
fn watch_resumes_inside_a_commit() {
    let folder = Folder::new();
    let store = folder.at("store");
    run_with_input(&["batch", &store], b"put a 1\nput b 2\nput c 3\n").ok();
    let first = run(&["watch", &store, "--from", "1", "--limit", "2"]).ok().text();
    assert_eq!(first, "1\t+\ta\t1\n1\t+\tb\t2\n");
    let next = run(&["watch", &store, "--from", "1", "--limit", "3"]).ok().text();
    assert_eq!(next, format!("{first}1\t+\tc\t3\n"));
}

#[test]
fn watch_reports_why_it_cannot_start() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["watch", &store, "--keyspace", "none", "--limit", "1"]).fails(2, &["no keyspace `none`"]);
    run(&["watch", &folder.at("nowhere")]).fails(3, &[]);
    run(&["watch", &store, "--hex", "zz"]).fails(2, &["hexadecimal"]);
}

#[test]
fn follower_ends_when_its_output_closes() {
    let folder = Folder::new();
    let store = store(&folder);
    for follow in
        [&["watch", &store, "--from", "1"][..], &["log", &store, "--follow", "--from", "1"]]
    {
        let mut child = plimsoll().args(follow).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("1\t"));
        drop(lines);
        let ended = (0..3000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            child.try_wait().unwrap()
        });
        if ended.is_none() {
            child.kill().unwrap();
        }
        assert_eq!(ended.and_then(|status| status.code()), Some(0), "{follow:?}");
    }
}
