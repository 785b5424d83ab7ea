//! Bad input of every kind that can be reached from a command line: a message that says what to do, and an exit code.

use std::fs;
use std::process::{Command, Stdio};

use plimsoll::{Db, MAX_VALUE_BYTES, Options, Retention};
use plimsoll_disk::checksum::checksum;

use crate::repository::Repository;
use crate::run::{Folder, Ran, plimsoll, run, run_with_input};

#[test]
fn what_is_no_store_is_named_and_left_alone() {
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
            vec!["rebuild", path],
            vec!["salvage", path, "--cut-at", "1"],
            vec!["backup", path, "x"],
        ] {
            run(&command).fails(3, &["plimsoll: ", path]);
        }
    }
    run(&["put", &file, "k", "v"]).fails(3, &[&file]);
    run(&["put", &folder.at("other"), "k", "v"]).fails(3, &["other"]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert_eq!(fs::read_dir(folder.at("other")).unwrap().count(), 1);
}

#[test]
fn a_budget_below_the_minimum_or_that_is_none_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v", "--memory", "1MiB"]).fails(2, &["16"]);
    run(&["put", &store, "k", "v", "--memory", "much"]).fails(2, &["much", "is not a size", "64MiB"]);
    run(&["put", &store, "k", "v", "--memory", "16MiB"]).ok();
    let output = plimsoll().args(["get", &store, "k"]).env("PLIMSOLL_MEMORY", "1KiB").output().unwrap();
    Ran::of(output).fails(2, &["16"]);
}

#[test]
fn a_key_that_is_too_long_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    let longest = "k".repeat(4096);
    run(&["put", &store, &longest, "v"]).ok();
    assert_eq!(run(&["get", &store, &longest]).ok().out, b"v");
    let longer = "k".repeat(4097);
    for command in [vec!["put", &store, &longer, "v"], vec!["get", &store, &longer], vec!["scan", &store, &longer]] {
        run(&command).fails(2, &["4097", "4096"]);
    }
}

#[test]
fn a_value_that_is_too_long_is_refused_and_nothing_of_it_stays() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v"]).ok();
    let mut zeros = Command::new("head");
    let mut zeros =
        zeros.args(["-c", &(MAX_VALUE_BYTES + 1).to_string(), "/dev/zero"]).stdout(Stdio::piped()).spawn().unwrap();
    let output = plimsoll().args(["put", &store, "k"]).stdin(zeros.stdout.take().unwrap()).output().unwrap();
    let _ = zeros.wait();
    Ran::of(output).fails(2, &["1 GiB"]);
    assert_eq!(run(&["get", &store, "k"]).ok().out, b"v");
    run(&["put", &store, "k", "w"]).ok();
    let bytes = run(&["stat", &store, "--json"]).ok().json()["store"]["bytes_on_disk"].as_u64().unwrap();
    assert!(bytes < 100 << 20, "{bytes}");
}

#[test]
fn a_moment_in_the_future_is_refused_with_the_newest_one() {
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
fn a_moment_that_is_not_retained_is_refused_with_the_oldest_one() {
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
fn a_store_of_a_newer_format_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v"]).ok();
    let segment = fs::read_dir(format!("{store}/log")).unwrap().map(|entry| entry.unwrap().path());
    let segment =
        segment.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "seg")).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[8..12].copy_from_slice(&2_u32.to_le_bytes());
    // As docs/format.md draws a segment's header: the checksum of its first 120 bytes stands behind them.
    let sum = checksum(0x5345_474d_454e_5431, &bytes[..120]);
    bytes[120..128].copy_from_slice(&sum.to_le_bytes());
    fs::write(&segment, bytes).unwrap();
    for command in [vec!["get", &store, "k"], vec!["put", &store, "k", "w"], vec!["rebuild", &store]] {
        run(&command).fails(3, &["format 2", "use a newer one"]);
    }
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["get"],
        &["salvage", "x"],
        &["load", "x", "y.csv", "--batch", "0"],
        &["log", "x", "--from", "abc"],
    ] {
        assert_eq!(run(arguments).code, 2, "{arguments:?}");
    }
}

/// Runs a script with a small file system at `$MOUNT`; `None` where the system does not let us mount one.
fn with_small_disk(script: &str) -> Option<Ran> {
    let folder = Folder::new();
    let mount = "mount -t tmpfs -o size=24m plimsoll \"$MOUNT\" || exit 99\n";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &format!("{mount}{script}")]);
    command.env("MOUNT", folder.path()).env("PLIMSOLL", env!("CARGO_BIN_EXE_plimsoll")).env("PLIMSOLL_MEMORY", "16MiB");
    let ran = Ran::of(command.output().ok()?);
    let refused = ran.code == 99 || ran.err.starts_with("unshare:");
    if refused {
        println!("not tested: the system does not let us mount a small file system: {}", ran.err);
    }
    (!refused).then_some(ran)
}

#[test]
fn a_full_disk_fails_the_transaction_and_the_store_stays_usable() {
    let script = r#"
        set -e
        "$PLIMSOLL" put "$MOUNT/store" k v > /dev/null
        head -c 40000000 /dev/zero | "$PLIMSOLL" put "$MOUNT/store" large && exit 98 || echo "put ended with $?"
        head -c 30000000 /dev/zero > "$MOUNT/filler" 2> /dev/null || true
        "$PLIMSOLL" get "$MOUNT/store" k && echo
        "$PLIMSOLL" get "$MOUNT/store" large || echo "get ended with $?"
        rm "$MOUNT/filler"
        "$PLIMSOLL" put "$MOUNT/store" k w
        "$PLIMSOLL" get "$MOUNT/store" k && echo
        "$PLIMSOLL" verify "$MOUNT/store" && echo sound
    "#;
    let Some(ran) = with_small_disk(script) else { return };
    let ran = ran.fails(0, &["No space left", "free some space"]);
    assert_eq!(ran.text(), "put ended with 6\nv\nget ended with 1\n2\nw\nsound\n", "{}", ran.err);
}

#[test]
fn an_import_that_fills_the_disk_goes_on_once_there_is_space() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut random = fastrand::Rng::with_seed(5);
    for number in 0..20 {
        let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(2 << 20).collect();
        repository.commit("c", &[(&format!("{number}"), &content)]);
    }
    let script = format!(
        r#"
        "$PLIMSOLL" import git "{path}" "$MOUNT/store" > /dev/null; echo "ended with $?"
        "$PLIMSOLL" scan "$MOUNT/store" --keys | head -n 1
        mount -o remount,size=100m "$MOUNT"
        "$PLIMSOLL" import git "{path}" "$MOUNT/store" > /dev/null; echo "ended with $?"
        "$PLIMSOLL" scan "$MOUNT/store" --keys | wc -l
        "$PLIMSOLL" get "$MOUNT/store" 19 | cmp - "{path}/19" && echo same
        "#,
        path = repository.path()
    );
    let Some(ran) = with_small_disk(&script) else { return };
    let ran = ran.fails(0, &["No space left", "commits were imported", "run the same command again to continue"]);
    assert_eq!(ran.text(), "ended with 6\n0\nended with 0\n20\nsame\n", "{}", ran.err);
}

#[test]
fn a_file_system_that_is_read_only_can_be_read_and_says_so_to_writers() {
    let script = r#"
        set -e
        "$PLIMSOLL" put "$MOUNT/store" k v > /dev/null
        mount -o remount,ro "$MOUNT"
        "$PLIMSOLL" get "$MOUNT/store" k && echo
        "$PLIMSOLL" verify "$MOUNT/store" && echo sound
        "$PLIMSOLL" put "$MOUNT/store" k w || echo "put ended with $?"
        "$PLIMSOLL" put "$MOUNT/new" k w || echo "put ended with $?"
    "#;
    let Some(ran) = with_small_disk(script) else { return };
    let ran = ran.fails(0, &["ead-only file system"]);
    assert_eq!(ran.text(), "v\nsound\nput ended with 6\nput ended with 6\n", "{}", ran.err);
}

#[test]
fn damage_ends_a_read_with_4_and_is_listed_by_verify() {
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
