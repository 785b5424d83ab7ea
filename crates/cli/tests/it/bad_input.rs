//! Bad input on the command line produces a message with a remedy and an exit code.

use std::fs;
use std::process::{Command, Stdio};

use plimsoll::{Db, MAX_VALUE_BYTES, Options, Retention};
use plimsoll_disk::checksum::checksum;

use crate::run::{Folder, Ran, plimsoll, run, run_with_input};

#[test]
fn path_without_store_is_refused_and_unchanged() {
    let folder = Folder::new();
    let file = folder.file("file", "precious");
    fs::create_dir(folder.at("other")).unwrap();
    folder.file("other/file", "precious");
    for path in [&file, &folder.at("other"), &folder.at("nowhere")] {
        for command in [
            vec!["get", path, "k"],
            vec!["scan", path],
            vec!["stat", path],
            vec!["verify", path],
            vec!["log", path],
            vec!["delete", path, "k"],
            vec!["recover", path, "x"],
            vec!["recover", path, "--dry-run"],
            vec!["warm", path],
            vec!["warm", path, "--delete"],
            vec!["backup", path, "x"],
        ] {
            let what = if path == &file { "this is a file, but a store is a folder" } else { "" };
            run(&command).fails(3, &["plimsoll: ", path, what]);
        }
    }
    run(&["put", &file, "k", "v"]).fails(3, &[&file]);
    run(&["put", &folder.at("other"), "k", "v"]).fails(3, &["other"]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert_eq!(fs::read_dir(folder.at("other")).unwrap().count(), 1);
}

#[test]
fn unreadable_path_is_not_reported_as_missing_store() {
    let folder = Folder::new();
    let circle = folder.at("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    for command in
        [["get", &circle, "k"].as_slice(), &["warm", &circle], &["warm", &circle, "--delete"]]
    {
        run(command).fails(6, &[&circle, "symbolic link"]);
    }
}

#[test]
fn invalid_cursor_name_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v"]).ok();
    for command in [["cursor", "create", &store, ""].as_slice(), &["log", &store, "--cursor", ""]] {
        let ran = run(command).fails(2, &["use 1 to 255 bytes"]);
        assert!(!ran.err.contains("keyspace"), "{}", ran.err);
    }
}

#[test]
fn invalid_budget_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v", "--memory", "1MiB"]).fails(2, &["16"]);
    run(&["put", &store, "k", "v", "--memory", "much"])
        .fails(2, &["much", "is not a size", "64MiB"]);
    run(&["put", &store, "k", "v", "--memory", "16MiB"]).ok();
    let output =
        plimsoll().args(["get", &store, "k"]).env("PLIMSOLL_MEMORY", "1KiB").output().unwrap();
    Ran::of(output).fails(2, &["16"]);
}

#[test]
fn overlong_key_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    let longest = "k".repeat(4096);
    run(&["put", &store, &longest, "v"]).ok();
    assert_eq!(run(&["get", &store, &longest]).ok().out, b"v");
    let longer = "k".repeat(4097);
    for command in [vec!["put", &store, &longer, "v"], vec!["get", &store, &longer]] {
        run(&command).fails(2, &["4097", "4096"]);
    }
    // A prefix may be longer than a key; no key begins with it.
    assert_eq!(run(&["scan", &store, &longer]).ok().out, b"");
}

#[test]
fn overlong_value_is_refused_without_residue() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v"]).ok();
    let mut zeros = Command::new("head");
    let mut zeros = zeros
        .args(["-c", &(MAX_VALUE_BYTES + 1).to_string(), "/dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output =
        plimsoll().args(["put", &store, "k"]).stdin(zeros.stdout.take().unwrap()).output().unwrap();
    let _ = zeros.wait();
    Ran::of(output).fails(2, &["1 GiB", "the value has at least 1073"]);
    assert_eq!(run(&["get", &store, "k"]).ok().out, b"v");
    run(&["put", &store, "k", "w"]).ok();
    let bytes =
        run(&["stat", &store, "--json"]).ok().json()["store"]["bytes_on_disk"].as_u64().unwrap();
    assert!(bytes < 100 << 20, "{bytes}");
}

#[test]
fn future_moment_error_names_the_newest() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v"]).ok();
    for command in [
        vec!["get", &store, "k", "--at", "9"],
        vec!["scan", &store, "--at", "9"],
        vec!["diff", &store, "1", "9"],
        vec!["log", &store, "--from", "9"],
    ] {
        run(&command).fails(2, &["GLSN 9 is in the future", "newest is 1"]);
    }
}

#[test]
fn unretained_moment_error_names_the_oldest() {
    let folder = Folder::new();
    let store = folder.at("store");
    let db = Db::open(&store, Options::new().memory_bytes(32 << 20)).unwrap();
    let keyspace = db.create_keyspace("latest", Retention::Latest).unwrap();
    for value in [b"1", b"2", b"3"] {
        let mut transaction = db.begin();
        transaction.put(&keyspace, b"k", value).unwrap();
        transaction.commit().unwrap();
    }
    db.compact().unwrap();
    db.close().unwrap();
    let get = |at: &str| run(&["get", &store, "k", "--keyspace", "latest", "--at", at]);
    get("2").fails(2, &["GLSN 2 is no longer retained", "oldest"]);
    assert_eq!(get("newest").ok().out, b"3");
}

#[test]
fn newer_format_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v"]).ok();
    let segment = fs::read_dir(format!("{store}/log")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment
        .into_iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[8..12].copy_from_slice(&3_u32.to_le_bytes());
    // The segment header as specified in docs/reference/format.md: the checksum of its first 120
    // bytes follows them.
    let sum = checksum(0x5345_474d_454e_5431, &bytes[..120]);
    bytes[120..128].copy_from_slice(&sum.to_le_bytes());
    fs::write(&segment, bytes).unwrap();
    for command in
        [vec!["get", &store, "k"], vec!["put", &store, "k", "w"], vec!["recover", &store, "x"]]
    {
        run(&command).fails(3, &["format 3", "use a newer one"]);
    }
}

#[test]
fn wrong_command_line_exits_with_2() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["get"],
        &["recover", "x"],
        &["load", "x", "y.csv", "--batch", "0"],
        &["log", "x", "--from", "abc"],
    ] {
        assert_eq!(run(arguments).code, 2, "{arguments:?}");
    }
}

#[test]
fn damage_exits_with_4_and_verify_lists_it() {
    let folder = Folder::new();
    let store = folder.at("store");
    run_with_input(&["put", &store, "k"], &[7; 500_000]).ok();
    run(&["put", &store, "l", "after it"]).ok();
    let files = fs::read_dir(format!("{store}/log")).unwrap().map(|entry| entry.unwrap().path());
    let largest = files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    bytes[200_000] ^= 1;
    fs::write(&largest, bytes).unwrap();
    let ran = run(&["get", &store, "k"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    let ran = run(&["verify", &store]);
    let name = largest.file_name().unwrap().to_str().unwrap();
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.text().contains(name), "{name} is not in {}", ran.text());
}
