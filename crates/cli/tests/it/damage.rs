//! Every kind of damage, in stores with a complete log and with a trimmed one. `verify` names the
//! damage and a command; the test runs that command as printed, and everything except the reported
//! losses is readable in the new store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll::{Db, Glsn, Options};
use serde_json::Value;

use crate::run::{Folder, Ran, run};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

const PAGE: usize = 16 << 10;

fn options() -> Options {
    Options::new().memory_bytes(32 << 20).segment_bytes(256 << 10)
}

/// Builds a store with small values in runs, values in the log and in blob files, several segments
/// and versions; returns its contents.
fn build(path: &str, trimmed: bool) -> Content {
    let db = Db::open(path, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut content = Content::new();
    let mut commit = |pairs: Vec<(String, Vec<u8>)>| {
        let mut tx = db.begin();
        for (key, value) in pairs {
            tx.put(&keyspace, key.as_bytes(), &value).unwrap();
            content.insert(key.into_bytes(), value);
        }
        tx.commit().unwrap();
    };
    let value = |number: usize, bytes: usize| {
        [format!("{number}-").into_bytes(), vec![b'v'; bytes]].concat()
    };
    for round in 0..2 {
        for some in 0..40 {
            commit(
                (0..100)
                    .map(|n| (format!("small-{:05}", some * 100 + n), value(round, 90)))
                    .collect(),
            );
            commit(vec![
                (format!("log-{some:03}"), value(some + round, 9000)),
                (format!("pair-{some:03}"), value(some, 2000)),
            ]);
        }
        if round == 0 {
            commit(vec![("side-a".to_owned(), value(1, 2 << 20))]);
            db.flush().unwrap();
        }
    }
    commit(vec![
        ("side-b".to_owned(), value(2, 1500 << 10)),
        ("side-c".to_owned(), value(3, 1200 << 10)),
    ]);
    db.compact().unwrap();
    if trimmed {
        let newest = db.newest();
        assert!(db.log().trim(Glsn(newest.0 / 2)).unwrap() > 1, "nothing was trimmed");
    }
    for some in 0..60 {
        commit(vec![
            (format!("late-{some:03}"), value(some, 6000)),
            (format!("tiny-{some:03}"), value(some, 10)),
        ]);
    }
    db.compact().unwrap();
    db.close().unwrap();
    content
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        names.filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
    found.sort();
    found
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    // Write a separate file, because other stores may share this one by a hard link.
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

fn largest(mut files: Vec<PathBuf>) -> PathBuf {
    files.sort_by_key(|path| fs::metadata(path).unwrap().len());
    files.pop().unwrap()
}

fn log(store: &Path, ending: &str) -> Vec<PathBuf> {
    files(&store.join("log"), ending)
}

fn manifests(store: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(store.join("index")).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.to_str().unwrap().contains("MANIFEST.")).collect()
}

fn newest_manifest(store: &Path) -> PathBuf {
    manifests(store).into_iter().max().unwrap()
}

/// The last sealed segment; it holds current values.
fn sealed(store: &Path) -> PathBuf {
    let segments = log(store, ".seg");
    assert!(segments.len() > 2, "{segments:?}");
    segments[segments.len() - 2].clone()
}

fn run_file(store: &Path) -> PathBuf {
    largest(files(&store.join("index"), ".run"))
}

/// Damages the first page of a kind in the second half of a run.
fn spoil_page(store: &Path, kind: u8) {
    change(&run_file(store), |bytes| {
        let pages = bytes.len() / PAGE;
        let page =
            (pages / 2..pages).chain(0..pages).find(|page| bytes[page * PAGE + 8] == kind).unwrap();
        bytes[page * PAGE + 100] ^= 1;
    });
}

/// A kind of damage.
struct Kind {
    name: &'static str,
    damage: fn(&Path),
    /// Whether `verify` detects it; some damage affects nothing that is still needed.
    is_found: bool,
    /// Whether values may be lost, without and with a trimmed log.
    loses: [bool; 2],
}

const KINDS: [Kind; 16] = [
    Kind {
        name: "a record of a sealed segment",
        damage: |store| change(&sealed(store), |bytes| bytes[7 * PAGE + 900] ^= 4),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "a block of zeros",
        damage: |store| change(&sealed(store), |bytes| bytes[5 * PAGE..6 * PAGE].fill(0)),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "a sealed segment that was cut",
        damage: |store| change(&sealed(store), |bytes| bytes.truncate(9 * PAGE)),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "a sealed segment that is gone",
        damage: |store| fs::remove_file(sealed(store)).unwrap(),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "the header of a segment",
        damage: |store| change(&sealed(store), |bytes| bytes[40] ^= 1),
        is_found: true,
        loses: [false; 2],
    },
    Kind {
        name: "a page of a blob file",
        damage: |store| change(&largest(log(store, ".blob")), |bytes| bytes[30 * PAGE + 5000] ^= 1),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "a blob file that is gone",
        damage: |store| fs::remove_file(largest(log(store, ".blob"))).unwrap(),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "a leaf of a run",
        damage: |store| spoil_page(store, 16),
        is_found: true,
        loses: [false, true],
    },
    Kind {
        name: "a guide (index and filter) of a run",
        damage: |store| spoil_page(store, 17),
        is_found: true,
        loses: [false, false],
    },
    Kind {
        name: "a table file that is gone",
        damage: |store| fs::remove_file(run_file(store)).unwrap(),
        is_found: true,
        loses: [false, true],
    },
    Kind {
        name: "an offset table",
        damage: |store| change(&log(store, ".idx")[1], |bytes| bytes[200] ^= 1),
        is_found: false,
        loses: [false; 2],
    },
    Kind {
        name: "the warm image",
        damage: |store| {
            for file in files(&store.join("warm"), ".warm") {
                change(&file, |bytes| bytes[50] ^= 1);
            }
        },
        is_found: false,
        loses: [false; 2],
    },
    Kind {
        name: "the manifest",
        damage: |store| change(&newest_manifest(store), |bytes| bytes[70] ^= 1),
        is_found: true,
        loses: [false; 2],
    },
    Kind {
        name: "every manifest",
        damage: |store| {
            for manifest in manifests(store) {
                change(&manifest, |bytes| bytes[70] ^= 1);
            }
        },
        is_found: true,
        loses: [false; 2],
    },
    Kind {
        name: "the last segment cut",
        damage: |store| {
            change(log(store, ".seg").last().unwrap(), |bytes| bytes.truncate(PAGE + 3000))
        },
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "a blob file that was cut",
        damage: |store| {
            change(&largest(log(store, ".blob")), |bytes| bytes.truncate(30 * PAGE + 5000))
        },
        is_found: true,
        loses: [true; 2],
    },
];

/// Damage of a blob file that no log record names, because trimming the log moved values into it.
const KINDS_OF_MOVED_VALUES: [Kind; 6] = [
    Kind {
        name: "moved values that are gone",
        damage: |store| fs::remove_file(largest(log(store, ".blob"))).unwrap(),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "moved values in an empty file",
        damage: |store| change(&largest(log(store, ".blob")), Vec::clear),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "moved values that were cut",
        damage: |store| {
            change(&largest(log(store, ".blob")), |bytes| bytes.truncate(3 * PAGE + 70))
        },
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "a page of moved values",
        damage: |store| change(&largest(log(store, ".blob")), |bytes| bytes[3 * PAGE + 500] ^= 1),
        is_found: true,
        loses: [true; 2],
    },
    Kind {
        name: "the last page of moved values",
        damage: |store| {
            change(&largest(log(store, ".blob")), |bytes| {
                let at = bytes.len() - PAGE + 40;
                bytes[at] ^= 1;
            });
        },
        is_found: true,
        loses: [false; 2],
    },
    Kind {
        name: "moved values without their last page",
        damage: |store| {
            change(&largest(log(store, ".blob")), |bytes| {
                let len = bytes.len() - PAGE;
                bytes.truncate(len);
            });
        },
        is_found: true,
        loses: [false; 2],
    },
];

/// A store with a trimmed log and values moved out of it, with the keyspaces `zoo` (number 16) and
/// `gone` (dropped); returns the contents of the default keyspace.
fn build_with_keyspaces(path: &str) -> Content {
    let db = Db::open(path, options()).unwrap();
    let [default, zoo, gone] = ["default", "zoo", "gone"].map(|name| db.keyspace(name).unwrap());
    let mut content = Content::new();
    let mut tx = db.begin();
    for number in 0..400 {
        let (key, value) = (format!("key{number:06}"), vec![b'd'; 100]);
        tx.put(&default, key.as_bytes(), &value).unwrap();
        content.insert(key.into_bytes(), value);
        tx.put(&zoo, format!("animal{number:06}"), [b'z'; 100]).unwrap();
        tx.put(&gone, format!("was{number:06}"), [b'g'; 40]).unwrap();
    }
    tx.commit().unwrap();
    db.drop_keyspace(&gone).unwrap();
    for number in 0..4 {
        db.put(&zoo, format!("large{number}"), vec![b'l'; 20_000]).unwrap();
    }
    for number in 0..90 {
        let (key, value) = (format!("log-{number:03}"), vec![b'v'; 9000]);
        db.put(&default, key.as_bytes(), &value).unwrap();
        content.insert(key.into_bytes(), value);
    }
    db.compact().unwrap();
    assert!(db.log().trim(db.newest()).unwrap() > 40, "too little was trimmed");
    db.close().unwrap();
    content
}

/// Runs a line in a shell.
fn sh(line: &str) -> Ran {
    let bin = Path::new(env!("CARGO_BIN_EXE_plimsoll")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    Ran::of(
        Command::new("sh")
            .args(["-c", line])
            .env("PATH", path)
            .env("PLIMSOLL_MEMORY", "32MiB")
            .output()
            .unwrap(),
    )
}

fn pairs(ran: &Ran) -> Content {
    let line = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'\t').unwrap();
        (line[..at].to_vec(), line[at + 1..].to_vec())
    };
    ran.out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(line).collect()
}

/// Keys that a report names as lost.
#[derive(Default)]
struct Named {
    keys: BTreeSet<Vec<u8>>,
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Named {
    fn take(&mut self, report: &Value) {
        let key = |value: &Value| value.as_str().unwrap().as_bytes().to_vec();
        self.keys
            .extend(report["values"].as_array().unwrap().iter().map(|value| key(&value["key"])));
        for range in report["lost_ranges"].as_array().unwrap() {
            self.ranges.push((key(&range["first"]), key(&range["last"])));
        }
    }

    fn holds(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
            || self.ranges.iter().any(|(first, last)| first[..] <= *key && *key <= last[..])
    }
}

/// Checks that every command works and that only named keys are lost.
fn is_whole(store: &str, content: &Content, named: &Named, told: &str) -> usize {
    let verified = run(&["verify", store]);
    assert_eq!(verified.code, 0, "{told}: {}", verified.text());
    let scanned = run(&["scan", store]);
    assert_eq!(scanned.code, 0, "{told}: {}", scanned.err);
    let listed = run(&["log", store, "--ops"]);
    assert_eq!(listed.code, 0, "{told}: {}", listed.err);
    let copied = run(&["backup", store, &format!("{store}-backup"), "--verify"]);
    assert_eq!(copied.code, 0, "{told}: {} {}", copied.text(), copied.err);
    let found = pairs(&scanned);
    for (key, value) in &found {
        assert!(
            content.get(key) == Some(value),
            "{told}: {} has another value",
            String::from_utf8_lossy(key)
        );
    }
    let lost: Vec<&Vec<u8>> = content.keys().filter(|key| !found.contains_key(*key)).collect();
    for key in &lost {
        assert!(
            named.holds(key),
            "{told}: {} is lost and was not named",
            String::from_utf8_lossy(key)
        );
    }
    lost.len()
}

fn copy(from: &str, to: &str) {
    assert!(Command::new("cp").args(["-r", from, to]).status().unwrap().success());
}

fn recovers(folder: &Folder, original: &str, content: &Content, trimmed: bool, kind: &Kind) {
    let at = usize::from(trimmed);
    let told = format!("{}{}", kind.name, if trimmed { ", trimmed" } else { "" });
    let store = folder.at(&told.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    copy(original, &store);
    (kind.damage)(Path::new(&store));
    let verified = run(&["verify", &store, "--json"]);
    let report = verified.json();
    assert_eq!(verified.code != 0, kind.is_found, "{told}: {report}");
    let dest = format!("{store}.recovered");
    let command = if kind.is_found {
        let damage = &report["damage"][0];
        assert_eq!(verified.code, if report["opens"] == true { 1 } else { 4 }, "{told}");
        assert!(!damage["file"].as_str().unwrap().is_empty(), "{told}: {report}");
        // The text for people has the same hint.
        let text = run(&["verify", &store]).text();
        assert!(text.contains(damage["hint"].as_str().unwrap()), "{told}: {text}");
        damage["command"].as_str().unwrap().to_owned()
    } else {
        format!("plimsoll recover {store} {dest}")
    };
    let before = verified.text();
    let foreseen = sh(&format!("{command} --dry-run --json"));
    assert!(foreseen.code <= 1 && !Path::new(&dest).exists(), "{told}: {}", foreseen.err);
    let foreseen = foreseen.json();
    let ran = sh(&format!("{command} --json"));
    assert!(ran.code <= 1, "{told}: {}", ran.err);
    let report = ran.json();
    let parts = ["index_from", "lost_entries", "lost_commits", "values", "lost_ranges"];
    parts.iter().for_each(|part| assert_eq!(foreseen[part], report[part], "{told}: {part}"));
    assert_eq!(run(&["verify", &store, "--json"]).text(), before, "{told}: the source has changed");
    let mut named = Named::default();
    named.take(&report);
    let lost = is_whole(&dest, content, &named, &told);
    assert!(
        lost == 0 || (kind.loses[at] && ran.code == 1),
        "{told}: {lost} keys are lost: {report}"
    );
    assert!(ran.code == 1 || report["is_whole"] == true, "{told}");
    // The new store supports writing, compaction and trimming.
    run(&["put", &dest, "zz-new", "value"]).ok();
    run(&["compact", &dest]).ok();
    let newest = run(&["stat", &dest, "--json"]).ok().json()["store"]["newest_glsn"].to_string();
    run(&["trim", &dest, "--until", &newest]).ok();
    let verified = run(&["verify", &dest]);
    assert_eq!(verified.code, 0, "{told}, trimmed afterwards: {}", verified.text());
    assert_eq!(pairs(&run(&["scan", &dest]).ok()).len(), content.len() - lost + 1, "{told}");
    fs::remove_dir_all(&store).unwrap();
    fs::remove_dir_all(&dest).unwrap();
}

#[test]
fn verify_names_a_command_that_recovers() {
    let folder = Folder::new();
    for trimmed in [false, true] {
        let original = folder.at(if trimmed { "trimmed" } else { "whole" });
        let content = build(&original, trimmed);
        for kind in &KINDS {
            recovers(&folder, &original, &content, trimmed, kind);
        }
    }
}

#[test]
fn damage_of_moved_values_is_recovered() {
    let folder = Folder::new();
    let original = folder.at("moved");
    let content = build_with_keyspaces(&original);
    for kind in &KINDS_OF_MOVED_VALUES {
        recovers(&folder, &original, &content, true, kind);
    }
}

#[test]
fn damage_near_keyspace_records_moves_no_key() {
    let folder = Folder::new();
    let original = folder.at("keyspaces");
    build_with_keyspaces(&original);
    let pages = fs::metadata(run_file(Path::new(&original))).unwrap().len() as usize / PAGE;
    let mut renamed = 0;
    for page in 0..pages {
        let (told, store) = (format!("page {page}"), folder.at(&format!("page-{page}")));
        copy(&original, &store);
        change(&run_file(Path::new(&store)), |bytes| bytes[page * PAGE + 100] ^= 1);
        assert_ne!(run(&["verify", &store]).code, 0, "{told}: verify found nothing");
        let damaged = store;
        let store = format!("{damaged}.recovered");
        let ran = run(&["recover", &damaged, &store, "--json"]);
        assert!(ran.code <= 1, "{told}: {}", ran.err);
        run(&["verify", &store]).ok();
        run(&["keyspace", "create", &store, "fresh"]).ok();
        assert_eq!(run(&["scan", &store, "--keyspace", "fresh"]).ok().text(), "", "{told}");
        run(&["keyspace", "create", &store, "gone"]).ok();
        assert_eq!(run(&["scan", &store, "--keyspace", "gone"]).ok().text(), "", "{told}");
        let names = run(&["keyspace", "list", &store]).ok().text();
        let has = |name: &str| names.lines().any(|line| line.split('\t').next() == Some(name));
        let zoo = if has("zoo") { "zoo" } else { "recovered-16" };
        assert!(has(zoo), "{told}: {names}");
        let found = pairs(&run(&["scan", &store, "--keyspace", zoo]).ok());
        let is_of_it = |key: &[u8]| key.starts_with(b"animal") || key.starts_with(b"large");
        assert!(
            found.len() > 150 && found.keys().all(|key| is_of_it(key)),
            "{told}: {} keys",
            found.len()
        );
        if zoo != "zoo" {
            renamed += 1;
            // `gone` was dropped; it has a past name, and is recovered without keys.
            assert_eq!(
                (ran.code, &ran.json()["renamed"][0]),
                (1, &serde_json::json!("recovered-16")),
                "{told}"
            );
        }
        fs::remove_dir_all(&damaged).unwrap();
        fs::remove_dir_all(&store).unwrap();
    }
    assert!(renamed > 0, "no page held the record");
}

#[test]
fn recovered_store_recovers_again() {
    let folder = Folder::new();
    let [store, first, second] = ["store", "first", "second"].map(|name| folder.at(name));
    build(&store, false);
    (KINDS[0].damage)(Path::new(&store));
    run(&["recover", &store, &first]).fails(1, &[]);
    spoil_page(Path::new(&first), 16);
    run(&["verify", &first]).fails(1, &[]);
    assert!(run(&["recover", &first, &second]).code <= 1);
    run(&["verify", &second]).ok();
    run(&["scan", &second]).ok();
}

#[test]
fn scan_and_log_skip_damage() {
    let folder = Folder::new();
    let original = folder.at("whole");
    let content = build(&original, false);
    for (kind, name) in [(0, "late-"), (5, "side-"), (7, "")] {
        let store = folder.at(&format!("store-{kind}"));
        copy(&original, &store);
        (KINDS[kind].damage)(Path::new(&store));
        let told = KINDS[kind].name;
        let all = run(&["log", &original]).ok().text().lines().count();
        // Without the flag, the error names the damage, its place and the remedy.
        let failed = run(&["scan", &store])
            .fails(4, &["keyspace \"default\"", "--skip-damaged", "plimsoll"]);
        if !name.is_empty() {
            assert!(
                failed.err.contains("GLSN")
                    && failed.err.contains("plimsoll recover")
                    && failed.err.contains(name),
                "{}",
                failed.err
            );
        }
        for order in [&[][..], &["--reverse"]] {
            let scanned = run(&[&["scan", &store, "--skip-damaged"], order].concat());
            assert_eq!(scanned.code, 4, "{told}: {}", scanned.err);
            let found = pairs(&scanned);
            assert!(found.iter().all(|(key, value)| content.get(key) == Some(value)), "{told}");
            let lost = content.len() - found.len();
            assert!(lost > 0 && lost < 400, "{told}: {lost} keys were left out: {}", scanned.err);
            let lines: Vec<&str> =
                scanned.err.lines().filter(|line| line.contains("left out")).collect();
            if name.is_empty() {
                assert!(
                    lines.iter().any(|line| line.contains("keys of keyspace")),
                    "{told}: {}",
                    scanned.err
                );
            } else {
                assert_eq!(lines.len(), lost, "{told}: {}", scanned.err);
                for key in content.keys().filter(|key| !found.contains_key(*key)) {
                    let key = String::from_utf8_lossy(key);
                    assert!(
                        lines.iter().any(|line| line.contains(&format!("{key:?}"))),
                        "{told}: {key}: {}",
                        scanned.err
                    );
                }
            }
        }
        let listed = run(&["log", &store, "--skip-damaged"]);
        let left_out = listed
            .err
            .lines()
            .filter(|line| line.contains("left out: the entry with GLSN"))
            .count();
        assert_eq!(listed.text().lines().count() + left_out, all, "{told}: {}", listed.err);
        assert_eq!(listed.code, if left_out > 0 { 4 } else { 0 }, "{told}: {}", listed.err);
        if kind == 0 {
            assert!(left_out > 0, "{told}");
            run(&["log", &store]).fails(4, &["the entry with GLSN", "--skip-damaged", "verify"]);
            // A cursor advances past damage only on request; its own commit is not printed.
            let with_cursor = ["log", &store, "--cursor", "reader"];
            run(&with_cursor).fails(4, &["the entry with GLSN", "--skip-damaged"]);
            let listed = run(&[&with_cursor[..], &["--skip-damaged"]].concat())
                .fails(4, &["left out: the entry"]);
            assert_eq!(listed.text().lines().count() + left_out, all, "{told}: {}", listed.err);
            assert_eq!(run(&with_cursor).ok().text(), "", "{told}");
        }
    }
    run(&["scan", &original, "--skip-damaged"]).ok();
    run(&["log", &original, "--skip-damaged"]).ok();
}

#[test]
fn lost_value_is_reported_at_its_moment() {
    let folder = Folder::new();
    let damaged = folder.at("damaged");
    build(&damaged, false);
    change(&log(Path::new(&damaged), ".blob")[0], |bytes| bytes[30 * PAGE + 5000] ^= 1);
    run(&["put", &damaged, "side-a", "an undamaged newer value"]).ok();
    let before = run(&["scan", &damaged, "--keys"]).ok().text();
    let store = folder.at("store");
    let ran = run(&["recover", &damaged, &store]).fails(1, &[]);
    let lost = "lost: the value of side-a in keyspace default at GLSN 81, 2097154 bytes";
    assert!(ran.text().contains(lost), "{}", ran.text());
    // The newer value stays, nothing is deleted, and the old moment reports the loss.
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), before);
    assert_eq!(run(&["get", &store, "side-a"]).ok().text(), "an undamaged newer value");
    run(&["get", &store, "side-a", "--at", "90"]).fails(4, &["GLSN 81", "lost"]);
    run(&["get", &store, "small-00001", "--at", "90"]).ok();
    run(&["scan", &store, "--at", "90"]).fails(4, &["side-a", "lost"]);
    let scanned = run(&["scan", &store, "--at", "90", "--skip-damaged"]);
    assert_eq!((scanned.code, scanned.text().lines().count()), (4, 4080), "{}", scanned.err);
    run(&["history", &store, "side-a"]).ok();
    run(&["verify", &store]).ok();
}

#[test]
fn reads_report_a_missing_run_as_damage() {
    let folder = Folder::new();
    let store = folder.at("store");
    for key in ["a", "b"] {
        run(&["put", &store, key, "value"]).ok();
    }
    run(&["compact", &store]).ok();
    for entry in fs::read_dir(Path::new(&store).join("index")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "run") {
            fs::remove_file(path).unwrap();
        }
    }
    let copy = folder.at("copy");
    for arguments in [
        &["get", &store, "a"][..],
        &["scan", &store],
        &["stat", &store],
        &["backup", &store, &copy],
    ] {
        run(arguments).fails(4, &["is missing", "`plimsoll verify STORE` lists the damage"]);
    }
}
