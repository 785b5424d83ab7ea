//! Reading the past: by GLSN, by time, by history, by difference, by log.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use plimsoll::{Db, Options};
use serde_json::{Value, json};

use crate::run::{Folder, plimsoll, run, run_with_input};

/// GLSN 1: a=1; 2: a=22, 3: b=3; 4: a deleted.
fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    run(&["put", &store, "a", "22"]).ok();
    run(&["put", &store, "b", "3"]).ok();
    run(&["delete", &store, "a"]).ok();
    store
}

#[test]
fn moment_is_read_by_glsn() {
    let folder = Folder::new();
    let store = store(&folder);
    let cases = [
        ("1", "a\t1\n"),
        ("2", "a\t22\n"),
        ("3", "a\t22\nb\t3\n"),
        ("4", "b\t3\n"),
        ("newest", "b\t3\n"),
        ("0", ""),
    ];
    for (at, expected) in cases {
        assert_eq!(run(&["scan", &store, "--at", at]).ok().text(), expected, "{at}");
    }
}

#[test]
fn moment_is_read_by_time() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    std::thread::sleep(std::time::Duration::from_millis(20));
    run(&["put", &store, "a", "2"]).ok();
    let versions = run(&["history", &store, "a", "--json"]).ok().json_lines();
    for (version, value) in [(1, b"1"), (0, b"2")] {
        // The printed time selects the moment itself.
        let time = versions[version]["time"].as_str().unwrap();
        assert_eq!(run(&["get", &store, "a", "--at", time]).ok().out, value, "{time}");
    }
    assert_eq!(run(&["get", &store, "a", "--at", "2999-12-31 23:59"]).ok().out, b"2");
    assert_eq!(run(&["get", &store, "a", "--at", "now"]).ok().out, b"2");
    run(&["get", &store, "a", "--at", "soon"]).fails(2, &["no tag `soon`", "2024-01-31"]);
}

#[test]
fn history_lists_versions_newest_first() {
    let folder = Folder::new();
    let store = store(&folder);
    let versions = run(&["history", &store, "a", "--json"]).ok().json_lines();
    let facts: Vec<_> = versions
        .iter()
        .map(|version| (version["glsn"].clone(), version["bytes"].clone()))
        .collect();
    assert_eq!(facts, [(json!(4), Value::Null), (json!(2), json!(2)), (json!(1), json!(1))]);
    let lines = run(&["history", &store, "a", "--limit", "1"]).ok().text();
    let fields: Vec<&str> = lines.trim().split('\t').collect();
    assert_eq!((fields[0], fields[2]), ("4", "deleted"));
}

#[test]
fn diff_lists_differences_and_exits_with_1() {
    let folder = Folder::new();
    let store = store(&folder);
    let diff = |a: &str, b: &str| run(&["diff", &store, a, b]);
    assert_eq!(diff("1", "2").fails(1, &[]).text(), "~\t1\t2\ta\t\n");
    assert_eq!(diff("1", "newest").fails(1, &[]).text(), "-\t1\t\ta\t\n+\t\t1\tb\t\n");
    assert_eq!(diff("4", "1").fails(1, &[]).text(), "+\t\t1\ta\t\n-\t1\t\tb\t\n");
    assert_eq!(diff("4", "4").ok().text(), "");
    assert_eq!(run(&["diff", &store, "1", "4", "b"]).fails(1, &[]).text(), "+\t\t1\tb\t\n");
    let change = run(&["diff", &store, "1", "2", "--json"]).fails(1, &[]).json();
    assert_eq!(change["change"], "changed");
    assert_eq!((&change["before"]["glsn"], &change["after"]["glsn"]), (&json!(1), &json!(2)));
}

#[test]
fn log_lists_commits_and_streams() {
    let folder = Folder::new();
    let store = store(&folder);
    let db = Db::open(&store, Options::new().memory_bytes(32 << 20)).unwrap();
    db.log().append(7, &[b"one", b"two\n"]).unwrap();
    let mut transaction = db.begin();
    transaction.put(&db.keyspace("default").unwrap(), b"c", b"4444").unwrap();
    transaction.set_metadata(b"by hand").unwrap();
    transaction.commit().unwrap();
    let newest = db.newest();
    db.close().unwrap();

    let lines = run(&["log", &store, "--stream", "7", "--reverse"]).ok().text();
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(
        lines.iter().map(|fields| fields[2..].to_vec()).collect::<Vec<_>>(),
        [["stream 7", "3", "one"], ["stream 7", "4", "two\\n"]]
    );

    let last = run(&["log", &store, "--from", &newest.to_string()]).ok().text();
    let fields: Vec<&str> = last.trim_end().split('\t').collect();
    assert_eq!(
        (fields[0], &fields[2..]),
        (newest.to_string().as_str(), &["commit", "1", "by hand"][..])
    );

    let entries =
        run(&["log", &store, "--json", "--ops", "--from", "4", "--to", "4"]).ok().json_lines();
    assert_eq!(entries[0]["ops"], json!([{ "keyspace": "default", "key": "a", "op": "delete" }]));
    let entry = &run(&["log", &store, "--json", "--ops", "--from", &newest.to_string()])
        .ok()
        .json_lines()[0];
    assert_eq!(entry["metadata"], "by hand");
    assert_eq!(
        entry["ops"],
        json!([{ "keyspace": "default", "key": "c", "op": "put", "bytes": 4 }])
    );
    let glsns = |options: &[&str]| glsns(&[&["log", &store], options].concat());
    assert_eq!(glsns(&["--limit", "2"]), [newest.0, newest.0 - 1]);
    assert_eq!(glsns(&["--stream", "7", "--limit", "1"]), [newest.0 - 1]);
}

/// The GLSNs that a command prints.
fn glsns(arguments: &[&str]) -> Vec<u64> {
    run(arguments)
        .ok()
        .text()
        .lines()
        .map(|line| line.split('\t').next().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn log_lists_in_either_order_and_by_key() {
    let folder = Folder::new();
    let store = store(&folder);
    let glsns = |options: &[&str]| glsns(&[&["log", &store], options].concat());
    assert_eq!(glsns(&[]), [4, 3, 2, 1]);
    assert_eq!(glsns(&["--limit", "2"]), [4, 3]);
    assert_eq!(glsns(&["--reverse"]), [1, 2, 3, 4]);
    assert_eq!(glsns(&["--reverse", "--limit", "2"]), [1, 2]);
    assert_eq!(glsns(&["--from", "2", "--to", "3"]), [3, 2]);
    assert_eq!(glsns(&["--key", "a"]), [4, 2, 1]);
    assert_eq!(glsns(&["--key", "a", "--reverse", "--limit", "2"]), [1, 2]);
    assert_eq!(glsns(&["--key", "a", "--from", "2", "--to", "3"]), [2]);
    assert_eq!(glsns(&["--key", "61", "--hex", "--limit", "1"]), [4]);
    assert_eq!(glsns(&["--key", "none"]), [0; 0]);
    run(&["log", &store, "--key", "a", "--keyspace", "none"]).fails(2, &["no keyspace `none`"]);
}

#[test]
fn log_lists_between_two_times() {
    let folder = Folder::new();
    let store = store(&folder);
    let entries = run(&["log", &store, "--reverse", "--json"]).ok().json_lines();
    let times: Vec<&str> = entries.iter().map(|entry| entry["time"].as_str().unwrap()).collect();
    let among = |from: usize, to: usize| -> Vec<u64> {
        let inside = |time: &&str| (times[from]..=times[to]).contains(time);
        let glsns = (1..).zip(&times).filter(|(_, time)| inside(time)).map(|(glsn, _)| glsn);
        glsns.collect::<Vec<u64>>().into_iter().rev().collect()
    };
    for (from, to) in [(0, 3), (1, 2), (3, 3), (2, 3)] {
        assert_eq!(
            glsns(&["log", &store, "--since", times[from], "--until", times[to]]),
            among(from, to)
        );
    }
    assert_eq!(glsns(&["log", &store, "--since", "1 hour ago"]), [4, 3, 2, 1]);
    assert_eq!(glsns(&["log", &store, "--until", "1 hour ago"]), [0; 0]);
    assert_eq!(glsns(&["log", &store, "--since", "2999-01-01"]), [0; 0]);
    run(&["log", &store, "--since", "soon"]).fails(2, &["is not a time", "2 hours ago"]);
}

#[test]
fn moment_before_the_first_commit_is_an_error() {
    let folder = Folder::new();
    let store = store(&folder);
    for command in
        [&["get", &store, "a", "--at", "2001-01-01"][..], &["diff", &store, "2001-01-01", "now"]]
    {
        run(command).fails(
            2,
            &["2001-01-01T00:00:00.000000Z is before the first commit", "the store begins at 20"],
        );
    }
    run(&["get", &store, "a", "--at", "commit:1234"]).fails(1, &["nothing was imported"]);
}

#[test]
fn rewritten_value_is_not_a_difference() {
    let folder = Folder::new();
    let store = folder.at("store");
    let large = "x".repeat(100_000);
    for (key, value) in [("a", "1"), ("b", &large), ("c", "1"), ("d", "1")] {
        run_with_input(&["put", &store, key], value.as_bytes()).ok();
    }
    for (key, value) in [("a", "1"), ("b", &large), ("c", "2"), ("d", &large)] {
        run_with_input(&["put", &store, key], value.as_bytes()).ok();
    }
    assert_eq!(run(&["diff", &store, "4", "6"]).ok().text(), "");
    assert_eq!(
        run(&["diff", &store, "4", "8"]).fails(1, &[]).text(),
        "~\t1\t1\tc\t\n~\t1\t100000\td\t\n"
    );
    let last = large[1..].to_owned() + "y";
    run_with_input(&["put", &store, "b"], last.as_bytes()).ok();
    let change = run(&["diff", &store, "newest", "4", "b", "--json"]).fails(1, &[]).json();
    assert_eq!((&change["key"], &change["by"]), (&json!("b"), &json!(9)));
}

#[test]
fn follow_shows_commits_of_another_process() {
    let folder = Folder::new();
    let store = store(&folder);
    let mut command = plimsoll();
    command.args(["log", &store, "--follow", "--from", "4", "--limit", "3"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut glsn = || lines.next().unwrap().unwrap().split('\t').next().unwrap().to_owned();
    assert_eq!(glsn(), "4");
    run(&["put", &store, "c", "5"]).ok();
    assert_eq!(glsn(), "5");
    run(&["put", &store, "c", "6"]).ok();
    assert_eq!(glsn(), "6");
    assert!(child.wait().unwrap().success());
}

#[test]
fn follow_ends_on_interrupt() {
    use rustix::process::{Pid, Signal, kill_process};

    let folder = Folder::new();
    let store = store(&folder);
    let mut command = plimsoll();
    let mut child = command
        .args(["log", &store, "--follow", "--from", "4"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("4\t"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn trimmed_log_error_names_the_earliest_time() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["trim", &store, "--until", "newest"]).ok();
    let refused = run(&["get", &store, "a", "--at", "1 hour ago"]);
    let message = refused.err.clone();
    refused.fails(2, &["times before 20", "can no longer be looked up", "as a GLSN (4 is"]);
    let since = message.split_whitespace().find(|word| word.ends_with('Z')).unwrap();
    for at in [since, "4", "now"] {
        run(&["scan", &store, "--at", at]).ok();
    }
    run(&["restart-time", &store]).ok();
}
