//! Counting, merging, trimming, the first lines of `stat`, and the files that small writes leave.

use std::process::Command;

use crate::run::{Folder, run, run_with_input};

fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    let lines: String = (0..100).map(|number| format!("put key{number:02} value\n")).collect();
    run_with_input(&["batch", &store], lines.as_bytes()).ok();
    store
}

#[test]
fn count_accepts_ranges_and_moments() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["delete", &store, "key00", "key01"]).ok();
    let cases: [(&[&str], &str); 6] = [
        (&[], "98\n"),
        (&["--at", "1"], "100\n"),
        (&["key1"], "10\n"),
        (&["key1", "--from", "key15"], "5\n"),
        (&["--from", "key90", "--to", "key95"], "5\n"),
        (&["nothing"], "0\n"),
    ];
    for (options, count) in cases {
        assert_eq!(run(&[&["count", &store], options].concat()).ok().text(), count, "{options:?}");
    }
    assert_eq!(
        run(&["count", &store, "--hex", "6b65793031", "--at", "1", "--json"]).ok().json()["keys"],
        1
    );
    run(&["count", &store, "--keyspace", "nowhere"]).fails(2, &["no keyspace"]);
}

#[test]
fn stat_begins_with_the_contents() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["put", &store, "key00", "longer value"]).ok();
    run(&["put", &store, "a", "b", "--keyspace", "other"]).ok();
    run(&["delete", &store, "key99"]).ok();
    let stat = run(&["stat", &store, "--json"]).ok().json();
    let bytes = 99 * 5 + 98 * 5 + 12;
    assert_eq!(stat["store"]["keys"], 100);
    assert_eq!(stat["store"]["counts_are_exact"], true);
    assert_eq!(stat["store"]["bytes_of_keys_and_values"], bytes + 2);
    assert_eq!(stat["keyspaces"]["default"]["keys"], 99);
    assert_eq!(stat["keyspaces"]["default"]["bytes"], bytes);
    assert_eq!(stat["keyspaces"]["default"]["exact"], true);
    assert_eq!(stat["keyspaces"]["other"]["keys"], 1);
    assert!(stat["store"]["first_readable_time"].as_str().unwrap().ends_with('Z'), "{stat}");
    let lines = run(&["stat", &store]).ok().text();
    let words: Vec<&str> = lines.split_whitespace().collect();
    assert_eq!(words[..3], ["store", "keys", "100"], "{lines}");
    assert!(lines.contains("; retention forever\n"), "{lines}");
}

#[test]
fn compact_merges_and_trim_frees() {
    let folder = Folder::new();
    let store = store(&folder);
    for number in 0..3 {
        run(&["put", &store, "key00", &number.to_string()]).ok();
        run(&["compact", &store]).ok();
    }
    let report = run(&["compact", &store, "--json"]).ok().json();
    assert_eq!(report["runs_after"], 2, "one of what is current, one of history: {report}");
    let report = run(&["trim", &store, "--until", "3", "--json"]).ok().json();
    assert!(report["first_glsn"].as_u64().unwrap() <= 3, "{report}");
    run(&["trim", &store, "--until", "100"]).fails(2, &["future"]);
    run(&["trim", &folder.at("nothing"), "--until", "1"]).fails(3, &[]);
    assert_eq!(run(&["get", &store, "key00", "--at", "1"]).ok().out, b"value");
    run(&["verify", &store]).ok();
}

#[test]
fn trim_names_what_retains_the_log() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["put", &store, "key00", "again"]).ok();
    let trim = |until: &str| run(&["trim", &store, "--until", until]).ok().err;
    let same_segment = "plimsoll: nothing was freed: only whole segments can be freed, and the \
                        oldest one also holds entries from GLSN 2 on\n";
    assert_eq!(trim("2"), same_segment);
    assert_eq!(trim("1"), "plimsoll: nothing was freed: the log has no entry before GLSN 1\n");
    let options = plimsoll::Options::new().memory_bytes(32 << 20).shared(true);
    let other = plimsoll::Db::open(&store, options).unwrap();
    let held = other.snapshot_at(plimsoll::Moment::Glsn(plimsoll::Glsn(1))).unwrap();
    let told = format!(
        "plimsoll: nothing was freed: process {} reads from GLSN 1 on\n",
        std::process::id()
    );
    let begun = std::time::Instant::now();
    // A process publishes its floor within a moment.
    while trim("2") != told {
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "{}", trim("2"));
    }
    drop(held);
    other.close().unwrap();
    run(&["cursor", "create", &store, "late", "--at", "2"]).ok();
    run(&["cursor", "create", &store, "mailer", "--at", "1"]).ok();
    assert_eq!(trim("newest"), "plimsoll: nothing was freed: cursor `mailer` is at GLSN 1\n");
}

#[test]
fn trim_until_newest_frees_the_whole_log() {
    let folder = Folder::new();
    let store = store(&folder);
    let newest =
        run(&["stat", &store, "--json"]).ok().json()["store"]["newest_glsn"].as_u64().unwrap();
    let ran = run(&["trim", &store, "--until", "newest", "--json"]).ok();
    assert_eq!((ran.json()["first_glsn"].as_u64().unwrap(), ran.err.as_str()), (newest + 1, ""));
    for at in ["newest", "0 seconds ago", &newest.to_string()] {
        assert_eq!(run(&["get", &store, "key00", "--at", at]).ok().out, b"value", "{at}");
    }
    run(&["get", &store, "key00", "--at", "2001-01-01"]).fails(2, &["can no longer be looked up"]);
    run(&["put", &store, "key00", "again"]).ok();
    assert_eq!(run(&["get", &store, "key00"]).ok().out, b"again");
    run(&["verify", &store]).ok();
}

#[test]
fn reported_freed_space_is_free() {
    let folder = Folder::new();
    let store = folder.at("store");
    let du = || {
        let ran =
            Command::new("du").args(["-s", "-B1", "--exclude=*.tmp", &store]).output().unwrap();
        let text = String::from_utf8(ran.stdout).unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let large: Vec<u8> =
        (0..4_000_000_u32).map(|at| at.wrapping_mul(2_654_435_761) as u8).collect();
    for _ in 0..3 {
        run_with_input(&["put", &store, "key"], &large).ok();
    }
    run(&["keyspace", "retention", &store, "default", "latest"]).ok();
    for command in [&["compact", &store][..], &["trim", &store, "--until", "newest"]] {
        let before = du();
        let report = run(&[command, &["--json"]].concat()).ok().json();
        let bytes = |name: &str| report[name].as_u64().unwrap();
        let (from, to) = (bytes("bytes_before"), bytes("bytes_after"));
        // Folders occupy blocks too.
        assert!(
            from.abs_diff(before) < 128 << 10 && to.abs_diff(du()) < 128 << 10,
            "{before}, {}: {report}",
            du()
        );
        assert_eq!(bytes("bytes_freed"), from.saturating_sub(to));
    }
    assert!(du() < 5_000_000);
}

#[test]
fn delete_of_missing_keys_commits_nothing() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let ran =
        run(&["delete", &store, "nope", "no pe"]).fails(1, &["no key `nope`", "no key `no\\ pe`"]);
    assert_eq!(ran.text(), "");
    let ran = run(&["delete", &store, "nope", "--json"]).fails(1, &[]);
    assert_eq!(ran.json(), serde_json::json!({ "glsn": null, "deleted": 0 }));
    let ran = run_with_input(&["shell", &store], b"delete nope\n").fails(1, &["no key `nope`"]);
    assert_eq!(ran.text(), "");
    assert_eq!(run(&["log", &store]).ok().text().lines().count(), 1);
    assert_eq!(run(&["delete", &store, "a", "nope"]).fails(1, &["no key `nope`"]).text(), "2\n");
}

#[test]
fn small_writes_leave_no_runs() {
    let folder = Folder::new();
    let store = folder.at("store");
    for number in 0..100 {
        run(&["put", &store, &format!("key{number}"), "value"]).ok();
    }
    let stat = run(&["stat", &store, "--json"]).ok().json();
    let bytes = stat["store"]["bytes_on_disk"].as_u64().unwrap();
    assert!(bytes < 256 << 10, "{bytes}");
    assert_eq!(stat["index"]["tables"], 0);
    assert_eq!(run(&["count", &store]).ok().text(), "100\n");
}
