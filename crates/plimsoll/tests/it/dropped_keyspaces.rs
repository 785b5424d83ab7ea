//! Dropped keyspaces: which data is gone, stays readable, or is freed; and the reported sizes of
//! keyspaces.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::{Db, DropReport, Error, Glsn, Keyspace, Moment, Options, Retention, VersionInfo};
use plimsoll_disk::random::Random;
use tempfile::TempDir;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20)
}

fn store() -> (TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    (dir, db)
}

fn put(db: &Db, keyspace: &Keyspace, numbers: std::ops::Range<u32>, value: &[u8]) -> u64 {
    let mut tx = db.begin();
    for number in numbers {
        tx.put(keyspace, &number.to_be_bytes(), value).unwrap();
    }
    tx.commit().unwrap().0
}

fn count(db: &Db, keyspace: &Keyspace) -> usize {
    db.snapshot().range(keyspace, ..).unwrap().count()
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    assert!(
        matches!(&result, Err(Error::InvalidInput(what)) if what.to_string().contains(part)),
        "{result:?}"
    );
}

#[test]
fn a_dropped_keyspace_is_gone_with_its_keys_and_its_past_stays() {
    let (dir, db) = store();
    let (users, others) = (db.keyspace("users").unwrap(), db.keyspace("others").unwrap());
    put(&db, &others, 0..10, b"other");
    // More than a transaction holds in memory, so that its deletions are spilled.
    let before = put(&db, &users, 0..60_000, b"user");
    let report = db.drop_keyspace(&users).unwrap();
    assert_eq!((report.glsn, report.keys), (Glsn(before + 1), 60_000));
    let check = |db: &Db| {
        let names: Vec<String> = db.keyspaces().into_iter().map(|keyspace| keyspace.name).collect();
        assert_eq!(names, ["default", "others"]);
        assert_eq!(count(db, &db.keyspace("others").unwrap()), 10);
        let then = db.snapshot_at(Moment::Glsn(Glsn(before))).unwrap();
        let users = then.keyspace("users").unwrap().unwrap();
        assert_eq!(then.range(&users, ..).unwrap().count(), 60_000);
        assert_eq!(count(db, &users), 0, "now it is empty");
        assert!(db.snapshot().keyspace("users").unwrap().is_none());
        let commit = db.log().commit(Glsn(before)).unwrap().unwrap();
        for change in commit.changes().unwrap() {
            assert_eq!(
                change.unwrap().keyspace(),
                Some("users"),
                "the change feed still knows its name"
            );
        }
    };
    check(&db);
    db.compact().unwrap();
    check(&db);
    db.close().unwrap();
    check(&Db::open(dir.path().join("store"), options()).unwrap());
}

#[test]
fn its_id_is_not_reused_by_the_next_keyspace_of_any_name() {
    let (dir, db) = store();
    let old = db.keyspace("users").unwrap();
    let before = put(&db, &old, 0..3, b"old");
    db.drop_keyspace(&old).unwrap();
    db.close().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    for name in ["users", "more"] {
        let new = db.keyspace(name).unwrap();
        assert_eq!(count(&db, &new), 0);
        let then = db.snapshot_at(Moment::Glsn(Glsn(before))).unwrap();
        assert_eq!(then.range(&new, ..).unwrap().count(), 0, "{name}");
        put(&db, &new, 0..1, b"new");
    }
    let then = db.snapshot_at(Moment::Glsn(Glsn(before))).unwrap();
    assert_eq!(then.range(&then.keyspace("users").unwrap().unwrap(), ..).unwrap().count(), 3);
}

#[test]
fn nothing_is_put_into_a_keyspace_that_was_dropped() {
    let (_dir, db) = store();
    let (users, others) = (db.keyspace("users").unwrap(), db.keyspace("others").unwrap());
    put(&db, &users, 0..3, b"user");
    let mut late = db.begin();
    late.put(&users, b"late", b"x").unwrap();
    let mut elsewhere = db.begin();
    elsewhere.put(&others, b"a", b"x").unwrap();
    db.drop_keyspace(&users).unwrap();
    is_refused(late.commit(), "was dropped");
    elsewhere.commit().unwrap();
    let mut tx = db.begin();
    is_refused(tx.put(&users, b"later", b"x"), "was dropped");
    is_refused(tx.put_reader(&users, b"later", &mut &b"x"[..]), "was dropped");
    is_refused(db.set_retention(&users, Retention::Latest), "was dropped");
    is_refused(db.drop_keyspace(&users), "was dropped");
    is_refused(db.drop_keyspace(&db.keyspace("default").unwrap()), "always exists");
    assert_eq!((count(&db, &users), count(&db, &others)), (0, 1));
    let anew = db.keyspace("users").unwrap();
    put(&db, &anew, 0..1, b"x");
    assert_eq!((count(&db, &users), count(&db, &anew)), (0, 1));
}

#[test]
fn concurrent_puts_are_dropped_with_the_keyspace_or_refused() {
    let (_dir, db) = store();
    for round in 0..20 {
        let users = db.keyspace("users").unwrap();
        put(&db, &users, 0..100, b"user");
        let acknowledged = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut acknowledged = Glsn::NONE;
                for number in 100.. {
                    let mut tx = db.begin();
                    let written =
                        tx.put(&users, &u32::to_be_bytes(number), b"x").and_then(|()| tx.commit());
                    match written {
                        Ok(glsn) => acknowledged = glsn,
                        Err(_) => break,
                    }
                }
                acknowledged
            });
            let report = db.drop_keyspace(&users).unwrap();
            let acknowledged = writer.join().unwrap();
            assert!(
                acknowledged < report.glsn,
                "round {round}: {acknowledged} is behind the drop at {}",
                report.glsn
            );
            acknowledged
        });
        assert_eq!(count(&db, &users), 0, "round {round}, the last put at {acknowledged}");
    }
}

#[test]
fn its_space_is_freed_by_merges_unless_it_keeps_its_past() {
    let versions = |retention, drop: fn(&Db, &Keyspace) -> plimsoll::Result<DropReport>| {
        let (_dir, db) = store();
        let keyspace = db.create_keyspace("dropped", retention).unwrap();
        put(&db, &keyspace, 0..5000, b"value");
        db.flush().unwrap();
        drop(&db, &keyspace).unwrap();
        db.compact().unwrap();
        db.stats().index.versions
    };
    let kept = versions(Retention::Forever, Db::drop_keyspace);
    let (freed, forgotten) = (
        versions(Retention::Latest, Db::drop_keyspace),
        versions(Retention::Forever, Db::forget_keyspace),
    );
    assert!(kept >= 10_000, "{kept} versions of 5,000 values and 5,000 deletions");
    assert!(freed < 10 && forgotten < 10, "{freed} and {forgotten} versions are left");
}

#[test]
fn a_size_is_counted_if_that_is_cheap_and_otherwise_marked_as_estimated() {
    let (_dir, db) = store();
    let (users, others) = (db.keyspace("users").unwrap(), db.keyspace("others").unwrap());
    put(&db, &users, 0..5000, b"old");
    put(&db, &users, 0..3000, b"longer");
    put(&db, &others, 0..10, b"other");
    let mut tx = db.begin();
    tx.delete(&users, &0u32.to_be_bytes()).unwrap();
    tx.commit().unwrap();
    for flush in [false, true] {
        if flush {
            db.compact().unwrap();
        }
        let size = db.keyspace_size(&users, 10_000).unwrap();
        let bytes = 4999 * 4 + 2999 * 6 + 2000 * 3;
        assert_eq!((size.keys, size.bytes, size.exact), (4999, bytes, true));
        assert_eq!(db.keyspace_size(&users, 4999).unwrap(), size);
        assert_eq!(db.keyspace_size(&others, 10).unwrap().keys, 10);
        assert!(!db.keyspace_size(&users, 100).unwrap().exact);
    }
    let size = db.keyspace_size(&users, 100).unwrap();
    assert!((2000..=10_000).contains(&size.keys), "{size:?}");
}

/// The rows of a keyspace name at a moment.
fn rows_at(db: &Db, name: &str, at: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let then = db.snapshot_at(Moment::Glsn(Glsn(at))).unwrap();
    let Some(keyspace) = then.keyspace(name).unwrap() else { return BTreeMap::new() };
    then.range(&keyspace, ..)
        .unwrap()
        .map(|row| row.map(|(key, value)| (key, value.to_vec())).unwrap())
        .collect()
}

/// Compares each diff and each history with the snapshots, and with all changes of the name: each
/// key, its commit, and the new length.
fn is_answered(db: &Db, handle: &Keyspace, changes: &[(u8, u64, Option<u64>)], what: &str) {
    let newest = db.newest().0;
    let rows: Vec<_> = (0..=newest).map(|at| rows_at(db, "rows", at)).collect();
    for (a, b) in (0..=newest).flat_map(|a| (0..=newest).map(move |b| (a, b))) {
        let (first, second) = (&rows[a as usize], &rows[b as usize]);
        let keys: BTreeSet<&Vec<u8>> = first.keys().chain(second.keys()).collect();
        let wanted: Vec<_> = keys
            .into_iter()
            .filter(|key| first.get(*key) != second.get(*key))
            .map(|key| {
                let within = |(of, by, _): &&(u8, u64, _)| {
                    *of == key[0] && (a.min(b)..a.max(b)).contains(&(by - 1))
                };
                let by = changes.iter().rfind(within).unwrap().1;
                let bytes = |rows: &BTreeMap<Vec<u8>, Vec<u8>>| {
                    rows.get(key).map(|value| value.len() as u64)
                };
                (key.clone(), by, bytes(first), bytes(second))
            })
            .collect();
        let found = db.diff(handle, Glsn(a), Glsn(b), "").unwrap().map(Result::unwrap);
        let bytes = |info: Option<VersionInfo>| info.and_then(|info| info.bytes);
        let found: Vec<_> =
            found.map(|it| (it.key, it.by.0, bytes(it.before), bytes(it.after))).collect();
        assert_eq!(found, wanted, "{what}: diff {a} {b}");
    }
    for key in 0..6 {
        let wanted: Vec<_> = changes
            .iter()
            .rev()
            .filter(|it| it.0 == key)
            .map(|(_, by, bytes)| (*by, *bytes))
            .collect();
        let found = db.history(handle, [key]).unwrap().map(Result::unwrap);
        assert_eq!(
            found.map(|it| (it.glsn.0, it.bytes)).collect::<Vec<_>>(),
            wanted,
            "{what}: history of {key}"
        );
    }
}

#[test]
fn diffs_and_histories_of_a_name_answer_over_all_keyspaces_that_had_it() {
    for seed in 0..12 {
        let (dir, mut db) = store();
        let mut random = Random::new(seed);
        let mut live = Some(db.keyspace("rows").unwrap());
        let mut last = live.clone().unwrap();
        let (mut changes, mut rows) = (Vec::new(), BTreeMap::new());
        for _ in 0..40 {
            match (random.below(12), live.clone()) {
                (0..7, Some(keyspace)) => {
                    let (key, bytes) = (random.below(6) as u8, random.below(3));
                    let by = db.put(&keyspace, [key], vec![key; bytes as usize]).unwrap();
                    rows.insert(key, bytes);
                    changes.push((key, by.0, Some(bytes)));
                }
                (7, Some(keyspace)) => {
                    let key = random.below(6) as u8;
                    if rows.remove(&key).is_some() {
                        changes.push((key, db.delete(&keyspace, [key]).unwrap().0, None));
                    }
                }
                (8, Some(keyspace)) => {
                    let by = db.drop_keyspace(&keyspace).unwrap().glsn.0;
                    changes
                        .extend(std::mem::take(&mut rows).into_keys().map(|key| (key, by, None)));
                    live = None;
                }
                (9, _) => db.flush().unwrap(),
                (10, _) => db.compact().unwrap(),
                (11, _) => {
                    db.close().unwrap();
                    db = Db::open(dir.path().join("store"), options()).unwrap();
                    last = db.find_keyspace("rows").unwrap().unwrap();
                    live = live.map(|_| last.clone());
                }
                (_, None) => {
                    last = db.keyspace("rows").unwrap();
                    live = Some(last.clone());
                }
                _ => unreachable!(),
            }
        }
        is_answered(&db, &last, &changes, &format!("seed {seed}"));
    }
}

#[test]
fn a_handle_of_any_keyspace_of_a_name_reads_the_history_of_the_name() {
    let (_dir, db) = store();
    assert!(db.find_keyspace("rows").unwrap().is_none());
    let old = db.keyspace("rows").unwrap();
    let first = put(&db, &old, 0..1, b"old");
    let dropped = db.drop_keyspace(&old).unwrap().glsn.0;
    assert_eq!(db.find_keyspace("rows").unwrap(), Some(old.clone()));
    let new = db.keyspace("rows").unwrap();
    let second = put(&db, &new, 0..1, b"newer");
    assert_eq!(db.find_keyspace("rows").unwrap(), Some(new.clone()));
    for handle in [&old, &new] {
        let versions = db.history(handle, 0u32.to_be_bytes()).unwrap().map(Result::unwrap);
        let versions: Vec<_> = versions.map(|it| (it.glsn.0, it.bytes)).collect();
        assert_eq!(versions, [(second, Some(5)), (dropped, None), (first, Some(3))]);
        let changed = db
            .diff(handle, Glsn(first), Glsn(second), "")
            .unwrap()
            .map(Result::unwrap)
            .next()
            .unwrap();
        assert_eq!(
            (changed.by.0, changed.before.unwrap().glsn.0, changed.after.unwrap().glsn.0),
            (second, first, second)
        );
    }
}

#[test]
fn a_diff_reads_each_keyspace_of_a_name_only_while_it_existed() {
    let (_dir, db) = store();
    let old = db.create_keyspace("rows", Retention::Forever).unwrap();
    let first = put(&db, &old, 0..3, b"old");
    db.drop_keyspace(&old).unwrap();
    let new = db.create_keyspace("rows", Retention::Latest).unwrap();
    put(&db, &new, 0..3, b"new");
    put(&db, &new, 1..2, b"newest");
    db.compact().unwrap();
    // The new keyspace keeps no past versions, and is read only at its newest moment.
    let changes = db.diff(&new, Glsn(first), db.newest(), "").unwrap();
    assert_eq!(
        changes.map(|it| it.unwrap().after.unwrap().bytes).collect::<Vec<_>>(),
        [Some(3), Some(6), Some(3)]
    );
    // The past of a forgotten keyspace is gone, and reading it returns an error.
    let new = db.find_keyspace("rows").unwrap().unwrap();
    db.forget_keyspace(&new).unwrap();
    let at = put(&db, &db.keyspace("others").unwrap(), 0..1, b"x");
    db.compact().unwrap();
    let refused =
        db.diff(&new, Glsn(at - 3), Glsn(at), "").and_then(|mut diff| diff.next().transpose());
    assert!(matches!(refused, Err(Error::Trimmed { .. })), "{refused:?}");
}
