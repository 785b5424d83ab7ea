//! Commands beside another process that writes, merges and trims either return correct results or
//! report that their moment is gone. They never report damage.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use plimsoll::{Db, Durability, Keyspace, Options, Retention};

use crate::run::{Folder, Ran, run};

const KEYS: u32 = 60;

/// Some values are in leaves, some in the log. One transaction writes all keys of a round.
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

/// Runs `commands` beside a writer (this process) that keeps replacing the store's files.
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
        // By then every original file of the store has been replaced.
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

/// All rows exist and belong to one round.
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
fn reads_beside_a_trimming_process_are_correct() {
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
fn verify_beside_a_trimming_process_finds_no_problem() {
    let folder = Folder::new();
    let store = folder.at("store");
    beside_a_trimming_writer(Path::new(&store), || {
        for _ in 0..12 {
            run(&["verify", &store]).ok();
        }
    });
}

#[test]
fn backup_beside_a_trimming_process_is_complete() {
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
fn requested_moment_that_is_gone_is_reported() {
    let folder = Folder::new();
    let store = folder.at("store");
    beside_a_trimming_writer(Path::new(&store), || {
        let error = (0..1000)
            .find_map(|_| Some(run(&["scan", &store, "--at", "1"])).filter(|ran| ran.code != 0));
        error.unwrap().fails(2, &["no longer retained"]);
    });
}
