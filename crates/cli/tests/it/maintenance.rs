//! Store maintenance: stat, verify, backup, recover.

use std::fs;
use std::process::Command;

use crate::run::{Folder, Ran, plimsoll, run, run_without_reader};

fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    for number in 1..=5 {
        run(&["put", &store, &format!("k{number}"), "v"]).ok();
    }
    store
}

#[test]
fn stat_json_matches_the_text() {
    let folder = Folder::new();
    let store = store(&folder);
    let stats = run(&["stat", &store, "--json"]).ok().json();
    assert_eq!(stats["store"]["newest_glsn"], 5);
    assert_eq!(stats["log"]["next_glsn"], 6);
    assert_eq!(stats["memory"]["budget"], 32 << 20);
    assert_eq!(
        (&stats["row_cache"]["hits"], &stats["row cache"]),
        (&0.into(), &serde_json::Value::Null)
    );
    // One JSON object, although people see two sections.
    assert_eq!((&stats["index"]["tables"], &stats["index"]["flushes"]), (&0.into(), &0.into()));
    assert_eq!(stats["keyspaces"]["default"]["retention"], "forever");
    // A pipe gets the text for people too.
    let lines = run(&["stat", &store]).ok().text();
    let words = lines.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["newest GLSN 5 ", "budget 32.0 MiB ", "keyspaces default 5 keys, "] {
        assert!(words.contains(part), "{part}: {lines}");
    }
    assert!(!lines.contains(['{', '\t', '\x1b']), "{lines}");
}

#[test]
fn verify_of_a_sound_store_finds_nothing() {
    let folder = Folder::new();
    let store = store(&folder);
    assert!(run(&["verify", &store]).ok().text().starts_with("no problems; read "));
    let report = run(&["verify", &store, "--json"]).ok().json();
    assert_eq!(report["problems"], serde_json::json!([]));
    assert!(report["bytes"].as_u64().unwrap() > 0 && report["files"].as_u64().unwrap() > 0);
}

#[test]
fn backup_is_a_store_at_its_moment() {
    let folder = Folder::new();
    let store = store(&folder);
    let backup = folder.at("backup");
    let report = run(&["backup", &store, &backup, "--json"]).ok().json();
    assert_eq!(report["newest_glsn"], 5);
    run(&["put", &store, "k6", "later"]).ok();
    assert_eq!(run(&["scan", &backup, "--keys"]).ok().text(), "k1\nk2\nk3\nk4\nk5\n");
    run(&["verify", &backup]).ok();
    run(&["put", &backup, "k7", "of its own"]).ok();
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "k1\nk2\nk3\nk4\nk5\nk6\n");
    run(&["backup", &store, &backup]).fails(2, &["backup", "this path already exists"]);
    run(&["backup", &store, &format!("{store}/sub")]).fails(2, &["sub", "inside the store"]);
    let report = run(&["backup", "--copy", &store, &folder.at("copy"), "--json"]).ok().json();
    assert_eq!(report["bytes_linked"], 0);
    run(&["verify", &folder.at("copy")]).ok();
}

#[test]
fn failed_output_states_what_was_done() {
    let folder = Folder::new();
    let store = store(&folder);
    let backup = folder.at("backup");
    let into_full = |arguments: &[&str]| {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        Ran::of(plimsoll().args(arguments).stdout(full).output().unwrap())
    };
    into_full(&["backup", &store, &backup])
        .fails(6, &["cannot write the output", "The backup is complete."]);
    run(&["verify", &backup]).ok();
    let recovered = folder.at("recovered");
    into_full(&["recover", &backup, &recovered])
        .fails(6, &["nothing is lost; the newest GLSN is 5."]);
    into_full(&["recover", &backup, "--dry-run"]).fails(6, &["Nothing was written."]);
    // A closed output is not an error, and does not turn a damaged store into a sound one.
    run_without_reader(&["verify", &backup], b"").ok();
    let segment = fs::read_dir(format!("{backup}/log")).unwrap().map(|entry| entry.unwrap().path());
    let segment =
        segment.into_iter().find(|path| path.extension().is_some_and(|it| it == "seg")).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[40] ^= 1;
    fs::remove_file(&segment).unwrap();
    fs::write(&segment, bytes).unwrap();
    let code = run(&["verify", &backup]).code;
    assert!(code != 0 && run_without_reader(&["verify", &backup], b"").code == code);
}

#[test]
fn recover_rebuilds_a_damaged_index_and_keeps_the_source() {
    let folder = Folder::new();
    let store = store(&folder);
    let index = format!("{store}/index");
    for entry in fs::read_dir(&index).unwrap() {
        let path = entry.unwrap().path();
        let damaged: Vec<u8> = fs::read(&path).unwrap().iter().map(|byte| byte ^ 0x55).collect();
        fs::write(&path, damaged).unwrap();
    }
    let ran = run(&["get", &store, "k1"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains("verify"), "{}", ran.err);
    let found = run(&["verify", &store]);
    let advice = format!("run `plimsoll recover {store} {store}.recovered`");
    assert!(found.code == 4 && found.text().contains(&advice), "{}", found.text());
    let dest = folder.at("recovered");
    let foreseen = run(&["recover", &store, "--dry-run"]).ok().text();
    assert!(
        foreseen.contains("index from   the log") && !std::path::Path::new(&dest).exists(),
        "{foreseen}"
    );
    let report = run(&["recover", &store, &dest, "--json"]).ok().json();
    assert_eq!(
        (&report["newest_glsn"], &report["is_whole"]),
        (&5.into(), &true.into()),
        "{report}"
    );
    assert_eq!(run(&["scan", &dest, "--keys"]).ok().text(), "k1\nk2\nk3\nk4\nk5\n");
    run(&["verify", &dest]).ok();
    assert_eq!(run(&["verify", &store]).text(), found.text());
    run(&["recover", &store, &dest]).fails(2, &["recovered", "this path already exists"]);
    run(&["recover", &store, &format!("{store}/sub")]).fails(2, &["sub", "inside the store"]);
    run(&["recover", &store]).fails(2, &["--dry-run"]);
}

#[test]
fn recover_names_lost_durable_commits() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let log = std::path::Path::new(&store).join("log/00000000000000000001.seg");
    let before = std::fs::read(&log).unwrap();
    for key in ["b", "c", "d"] {
        run(&["put", &store, key, "1"]).ok();
    }
    std::fs::write(&log, before).unwrap();
    let advice = format!(
        "(GLSN 2 to 4): the log ends before the last durable entry; run `plimsoll recover {store} \
         {store}.recovered`"
    );
    let found = run(&["verify", &store]);
    assert!(found.code == 4 && found.text().contains(&advice), "{}", found.text());
    let dest = folder.at("recovered");
    let ran = run(&["recover", &store, &dest]);
    assert!(
        ran.code == 1 && ran.text().contains("lost: everything that GLSN 2 to 4 wrote"),
        "{} {}",
        ran.text(),
        ran.err
    );
    assert_eq!(run(&["scan", &dest, "--keys"]).ok().text(), "a\n");
    assert_eq!(run(&["put", &dest, "e", "1"]).ok().text(), "5\n");
    run(&["verify", &dest]).ok();
}

#[test]
fn warm_image_is_shown_and_deleted() {
    let folder = Folder::new();
    let store = folder.at("store");
    let db = plimsoll::Db::open(&store, plimsoll::Options::new().memory_bytes(32 << 20)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&keyspace, b"key", b"value").unwrap();
    tx.commit().unwrap();
    db.flush().unwrap();
    assert!(db.snapshot().get(&keyspace, b"key").unwrap().is_some());
    db.close().unwrap();
    let shown = run(&["warm", &store, "--json"]).ok().json();
    // A segment of pages, and one of rows if the read no longer found the page in memory.
    let rows = shown["rows"].as_u64().unwrap();
    assert_eq!(shown["segments"].as_u64(), Some(1 + u64::from(rows > 0)), "{shown}");
    assert!(shown["pages_named"].as_u64() > Some(0), "{shown}");
    assert_eq!(run(&["stat", &store, "--json"]).ok().json()["warm"], shown);
    for arguments in
        [["get", &store, "key"].as_slice(), &["put", &store, "key", "other", "--no-warm"]]
    {
        run(arguments).ok();
        assert_eq!(run(&["warm", &store, "--json"]).ok().json(), shown, "{arguments:?}");
    }
    // Beside another store, the image is reported as ignored, with the reason.
    let other = folder.at("other");
    run(&["put", &other, "key", "value", "--no-warm"]).ok();
    let copy_to = |to: &str| {
        assert!(
            Command::new("cp")
                .args(["-r", &format!("{store}/warm"), to])
                .status()
                .unwrap()
                .success()
        )
    };
    copy_to(&other);
    let problem =
        |store: &str| run(&["stat", store, "--json"]).ok().json()["warm"]["problem"].to_string();
    assert!(problem(&other).contains("belongs to another store"), "{}", problem(&other));
    // A warm path that is not a folder must not hide the rest of the report.
    fs::remove_dir_all(format!("{other}/warm")).unwrap();
    fs::write(format!("{other}/warm"), "text").unwrap();
    assert!(problem(&other).contains("Not a directory"), "{}", problem(&other));
    let deleted = run(&["warm", "--delete", &store, "--json"]).ok().json();
    assert_eq!(deleted["bytes_deleted"], shown["bytes"]);
    assert_eq!(run(&["warm", &store, "--json"]).ok().json()["segments"], 0);
    run(&["warm", &folder.at("nothing")]).fails(3, &["no store"]);
}
