//! `dump` and `restore`.

use std::fs;

use crate::run::{Folder, run, run_with_input};

/// A store with binary keys and values, a keyspace of its own, a deletion, and some history.
fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    run(&["keyspace", "create", &store, "notes", "--retention", "latest"]).ok();
    run(&["put", &store, "greeting", "hello"]).ok();
    run(&["put", &store, "greeting", "good day"]).ok();
    run(&["put", "--hex", &store, "00ff", "binary key"]).ok();
    run_with_input(&["put", &store, "binary value"], b"\xff\0\xfe").ok();
    run(&["put", &store, "gone", "soon"]).ok();
    run(&["delete", &store, "gone"]).ok();
    run(&["put", &store, "--keyspace", "notes", "a", "note"]).ok();
    store
}

#[test]
fn a_dump_with_history_is_restored_with_every_moment() {
    let folder = Folder::new();
    let store = store(&folder);
    let (file, copy) = (folder.at("dump"), folder.at("copy"));
    let report = run(&["dump", &store, "--history", "-o", &file, "--json"]);
    assert!(report.err.contains("--history") || report.err.contains("--json"), "{}", report.err);
    let shown = run(&["dump", &store, "--history", "-o", &file]).ok().text();
    assert!(shown.contains("commits"), "{shown}");
    let report = run(&["restore", &copy, &file, "--json"]).ok().json();
    assert_eq!((&report["newest_glsn"], &report["resumed"]), (&8.into(), &false.into()));
    for args in [
        &["log", "--ops"][..],
        &["history", "greeting"],
        &["history", "gone"],
        &["scan"],
        &["scan", "--at", "2"],
    ] {
        let of = |store: &str| {
            let mut line = vec![args[0], store];
            line.extend(&args[1..]);
            run(&line).ok().out
        };
        assert_eq!(of(&copy), of(&store), "{args:?}");
    }
    let keyspaces = |store: &str| run(&["keyspace", "list", store]).ok().out;
    assert_eq!(keyspaces(&copy), keyspaces(&store));
    // Nothing is overwritten.
    assert_eq!(run(&["dump", &store, "-o", &file]).code, 6);
    assert_eq!(run(&["restore", &copy, &file]).code, 2);
    let piped = run(&["dump", &store]).ok().out;
    let newest = folder.at("newest");
    run_with_input(&["restore", &newest, "-"], &piped).ok();
    assert_eq!(run(&["scan", &newest]).ok().out, run(&["scan", &store]).ok().out);
    assert_eq!(run(&["get", &newest, "a", "--keyspace", "notes"]).ok().out, b"note");
}

#[test]
fn a_dump_that_was_cut_short_is_refused_and_the_whole_one_goes_on() {
    let folder = Folder::new();
    let store = store(&folder);
    let whole = run(&["dump", &store, "--history"]).ok().out;
    let copy = folder.at("copy");
    let cut = run_with_input(&["restore", &copy, "-"], &whole[..whole.len() - 20]);
    assert_eq!(cut.code, 4, "{}", cut.err);
    assert!(cut.err.contains("truncated"), "{}", cut.err);
    assert!(!fs::exists(&copy).unwrap());
    let report = run_with_input(&["restore", &copy, "-", "--json"], &whole).ok().json();
    assert_eq!(report["resumed"], true);
    assert_eq!(run(&["log", &copy]).ok().out, run(&["log", &store]).ok().out);
}

#[test]
fn json_lines_of_a_dump_are_loaded_again_with_their_bytes() {
    let folder = Folder::new();
    let store = store(&folder);
    let lines = run(&["dump", &store, "--json"]).ok().out;
    let text = String::from_utf8(lines.clone()).unwrap();
    assert!(text.contains("key_hex") && text.contains("value_hex"), "{text}");
    let copy = folder.at("copy");
    let load = ["load", &copy, "-", "--format", "jsonl", "--key", "key", "--value", "value"];
    run_with_input(&load, &lines).ok();
    assert_eq!(run(&["scan", &copy]).ok().out, run(&["scan", &store]).ok().out);
    let file = folder.at("rows");
    assert_eq!(run(&["dump", &store, "--json", "-o", &file]).code, 2);
}

#[test]
fn a_backup_is_restored_by_its_folder() {
    let folder = Folder::new();
    let store = store(&folder);
    let (backup, copy) = (folder.at("backup"), folder.at("copy"));
    run(&["backup", &store, &backup]).ok();
    run(&["restore", &copy, &backup]).ok();
    assert_eq!(run(&["log", &copy]).ok().out, run(&["log", &store]).ok().out);
}
