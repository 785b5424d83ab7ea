//! Commands beside another process that writes, merges and trims: what they say is right, or that
//! their moment is gone. Never that the store is damaged.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use plimsoll::{Db, Durability, Keyspace, Options, Retention};

use crate::run::{Folder, Ran, run};

const KEYS: u32 = 60;

/// Some stand in leaves, some in the log. All keys of a round are written by one transaction.
fn value(key: u32, round: u32) -> String {
    format!("{round}-").repeat(if key.is_multiple_of(2) { 1000 } else { 20 })
}

fn open(path: &Path) -> (Db, Keyspace) {
    let options = Options::new()
        .memory_bytes(16 << 20)
        .segment_bytes(64 << 10)
        .durability(Durability::Buffered);
    let db = Db::open(path, options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    db.set_retention(&keyspace, Retention::Latest).unwrap();
    (db, keyspace)
}

fn write(db: &Db, keyspace: &Keyspace, round: u32) {
    let mut tx = db.begin();
    for key in 0..KEYS {
        tx.put(keyspace, format!("{key:03}").as_bytes(), value(key, round).as_bytes()).unwrap();
    }
    tx.commit().unwrap();
}

/// Runs `commands` beside a process (this one) that leaves no file of the store in its place for
/// long.
fn beside_a_trimming_writer(store: &Path, commands: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let rounds = AtomicU32::new(0);
    let (db, keyspace) = open(store);
    write(&db, &keyspace, 0);
    // Durable, so that every process that opens the store from now on sees it.
    db.flush().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut round = 1;
            while !stop.load(Ordering::Relaxed) {
                write(&db, &keyspace, round);
                if round.is_multiple_of(3) {
                    db.flush().unwrap()
                } else {
                    db.compact().unwrap()
                }
                db.log().trim(db.newest()).unwrap();
                round += 1;
                rounds.store(round, Ordering::Relaxed);
            }
        });
        // Nothing of what the store held at first is left in its place.
        while rounds.load(Ordering::Relaxed) < 2 && !writer.is_finished() {
            thread::yield_now();
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(commands));
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        if let Err(failure) = done {
            std::panic::resume_unwind(failure);
        }
    });
}

/// All rows are of one round, and there are all of them.
fn check_rows(ran: &Ran) {
    let text = ran.text();
    let rows: Vec<(&str, &str)> = text.lines().map(|line| line.split_once('\t').unwrap()).collect();
    assert_eq!(rows.len() as u32, KEYS);
    let round: u32 = rows[0].1.split('-').next().unwrap().parse().unwrap();
    for (key, (name, found)) in (0..).zip(&rows) {
        assert_eq!((*name, *found), (&format!("{key:03}")[..], &value(key, round)[..]));
    }
}

#[test]
fn get_scan_and_count_beside_a_process_that_trims_are_right() {
    let folder = Folder::new();
    let store = folder.at("store");
    beside_a_trimming_writer(Path::new(&store), || {
        for turn in 0..12 {
            check_rows(&run(&["scan", &store]).ok());
            let key = turn * 5 % KEYS;
            let found = run(&["get", &store, &format!("{key:03}")]).ok().text();
            let round = found.split('-').next().unwrap().parse().unwrap();
            assert_eq!(found, value(key, round));
            assert_eq!(run(&["count", &store]).ok().text(), format!("{KEYS}\n"));
            run(&["history", &store, "001"]).ok();
            run(&["stat", &store]).ok();
        }
    });
}

#[test]
fn verify_beside_a_process_that_trims_finds_no_problem() {
    let folder = Folder::new();
    let store = folder.at("store");
    beside_a_trimming_writer(Path::new(&store), || {
        for _ in 0..12 {
            run(&["verify", &store]).ok();
        }
    });
}

#[test]
fn backups_beside_a_process_that_trims_are_whole() {
    let folder = Folder::new();
    let store = folder.at("store");
    beside_a_trimming_writer(Path::new(&store), || {
        for turn in 0..10 {
            let backup = folder.at(&format!("backup-{turn}"));
            let how: &[&str] = if turn % 2 == 0 { &["backup"] } else { &["backup", "--copy"] };
            run(&[how, &[&store, &backup]].concat()).ok();
            let verified = run(&["verify", &backup]);
            assert_eq!(verified.code, 0, "{} {}", verified.text(), verified.err);
            check_rows(&run(&["scan", &backup]).ok());
        }
    });
}

#[test]
fn a_moment_that_was_asked_for_and_is_gone_is_told_as_that() {
    let folder = Folder::new();
    let store = folder.at("store");
    beside_a_trimming_writer(Path::new(&store), || {
        let error = (0..1000)
            .find_map(|_| Some(run(&["scan", &store, "--at", "1"])).filter(|ran| ran.code != 0));
        error.unwrap().fails(2, &["no longer retained"]);
    });
}
