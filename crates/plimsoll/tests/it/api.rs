//! The guarantees of the public calls.

use std::ops::Bound;
use std::time::{Duration, SystemTime};

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Retention};

fn open(dir: &tempfile::TempDir) -> Db {
    Db::open(dir.path().join("store"), options()).unwrap()
}

fn options() -> Options {
    Options::new().memory_bytes(16 << 20)
}

fn put(db: &Db, keyspace: &Keyspace, pairs: &[(&str, &str)]) -> u64 {
    let mut tx = db.begin();
    for (key, value) in pairs {
        tx.put(keyspace, key.as_bytes(), value.as_bytes()).unwrap();
    }
    tx.commit().unwrap().0
}

fn get(db: &Db, keyspace: &Keyspace, key: &str) -> Option<String> {
    let value = db.snapshot().get(keyspace, key.as_bytes()).unwrap();
    value.map(|value| String::from_utf8(value.into_vec()).unwrap())
}

fn keys(range: plimsoll::Range<'_>) -> Vec<String> {
    range.map(|item| String::from_utf8(item.unwrap().0).unwrap()).collect()
}

#[test]
fn commits_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let users = db.keyspace("users").unwrap();
    let glsn = put(&db, &users, &[("ada", "1815"), ("alan", "1912")]);
    db.close().unwrap();

    let db = open(&dir);
    let users = db.keyspace("users").unwrap();
    assert_eq!(get(&db, &users, "ada").as_deref(), Some("1815"));
    assert_eq!(get(&db, &users, "grace"), None);
    assert_eq!(db.newest(), glsn);
}

#[test]
fn commits_survive_without_a_clean_close() {
    let dir = tempfile::tempdir().unwrap();
    let copy = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let users = db.keyspace("users").unwrap();
    put(&db, &users, &[("ada", "1815")]);
    // The folder as a power cut would leave it, without any state of this process.
    copy_folder(&dir.path().join("store"), &copy.path().join("store"));
    let other = open(&copy);
    let users = other.keyspace("users").unwrap();
    assert_eq!(get(&other, &users, "ada").as_deref(), Some("1815"));
}

#[allow(clippy::disallowed_methods, reason = "a test that copies a folder")]
pub(crate) fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn only_a_transaction_itself_sees_its_writes() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    put(&db, &ks, &[("a", "1"), ("b", "2"), ("c", "3")]);
    let mut tx = db.begin();
    tx.put(&ks, b"b", b"two").unwrap();
    tx.delete(&ks, b"c").unwrap();
    tx.put(&ks, b"bb", b"new").unwrap();
    assert_eq!(tx.get(&ks, b"b").unwrap().unwrap(), b"two");
    assert_eq!(tx.get(&ks, b"c").unwrap(), None);
    assert!(tx.contains_key(&ks, b"bb").unwrap() && !tx.contains_key(&ks, b"c").unwrap());
    assert_eq!(keys(tx.range(&ks, ..).unwrap()), ["a", "b", "bb"]);
    assert_eq!(keys(tx.range(&ks, ..).unwrap().reverse()), ["bb", "b", "a"]);
    assert_eq!(keys(tx.prefix(&ks, b"b").unwrap()), ["b", "bb"]);
    assert_eq!(get(&db, &ks, "b").as_deref(), Some("2"));
    tx.abort();
    assert_eq!(get(&db, &ks, "b").as_deref(), Some("2"));
}

#[test]
fn ranges_respect_their_bounds_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let other = db.keyspace("other").unwrap();
    put(&db, &ks, &[("a", ""), ("b", ""), ("c", ""), ("d", "")]);
    put(&db, &other, &[("b", ""), ("z", "")]);
    let snapshot = db.snapshot();
    let cases: [(Bound<&str>, Bound<&str>, &str); 6] = [
        (Bound::Included("b"), Bound::Excluded("d"), "bc"),
        (Bound::Excluded("b"), Bound::Included("d"), "cd"),
        (Bound::Unbounded, Bound::Included("b"), "ab"),
        (Bound::Excluded("a"), Bound::Unbounded, "bcd"),
        (Bound::Included("bb"), Bound::Excluded("bc"), ""),
        (Bound::Included("d"), Bound::Included("a"), ""),
    ];
    for (lower, upper, expected) in cases {
        let bounds = (lower.map(str::as_bytes), upper.map(str::as_bytes));
        assert_eq!(keys(snapshot.range(&ks, bounds).unwrap()).concat(), expected, "{bounds:?}");
        let backwards: String = expected.chars().rev().collect();
        assert_eq!(
            keys(snapshot.range(&ks, bounds).unwrap().reverse()).concat(),
            backwards,
            "{bounds:?}"
        );
        let mut tx = db.begin();
        tx.put(&ks, b"0", b"").unwrap();
        tx.delete(&ks, b"0").unwrap();
        assert_eq!(
            keys(tx.range(&ks, bounds).unwrap()).concat(),
            expected,
            "{bounds:?}, own writes"
        );
        assert_eq!(
            keys(tx.range(&ks, bounds).unwrap().reverse()).concat(),
            backwards,
            "{bounds:?}, own writes"
        );
    }
    let mut empty_values = snapshot.range(&ks, ..).unwrap().keys_only();
    assert_eq!(empty_values.advance().unwrap(), Some((&b"a"[..], &b""[..])));
}

#[test]
fn a_conflict_names_the_changed_key_and_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    put(&db, &ks, &[("a", "1")]);
    let mut tx = db.begin();
    let at = tx.at();
    tx.get(&ks, b"a").unwrap();
    tx.put(&ks, b"b", b"from a").unwrap();
    let by = put(&db, &ks, &[("a", "2")]);
    assert_eq!(tx.commit(), Err(Error::Conflict { key: b"a".to_vec(), at, by: Glsn(by) }));
    assert_eq!(get(&db, &ks, "b"), None);
}

#[test]
fn a_range_read_conflicts_with_inserts_in_that_range_only() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    put(&db, &ks, &[("a", "1"), ("m", "1"), ("z", "1")]);
    let walk = |outside: &str| {
        let mut tx = db.begin();
        assert_eq!(
            keys(tx.range(&ks, (Bound::Included(&b"a"[..]), Bound::Excluded(&b"m"[..]))).unwrap()),
            ["a"]
        );
        tx.put(&ks, b"result", b"one key").unwrap();
        put(&db, &ks, &[(outside, "new")]);
        tx.commit()
    };
    assert!(walk("n").is_ok());
    assert!(matches!(walk("c"), Err(Error::Conflict { key, .. }) if key == b"c"));
}

#[test]
fn blind_writes_do_not_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&ks, b"a", b"mine").unwrap();
    put(&db, &ks, &[("a", "theirs")]);
    tx.commit().unwrap();
    assert_eq!(get(&db, &ks, "a").as_deref(), Some("mine"));
}

#[test]
fn the_past_can_be_read_by_glsn_and_by_time() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let first = put(&db, &ks, &[("a", "1")]);
    let then = db.snapshot_at(Moment::Glsn(Glsn(first))).unwrap().time().unwrap().unwrap();
    let mut tx = db.begin();
    tx.delete(&ks, b"a").unwrap();
    let second = tx.commit().unwrap();
    put(&db, &ks, &[("a", "3")]);
    for _ in 0..2 {
        let at = |glsn| db.snapshot_at(Moment::Glsn(glsn)).unwrap();
        assert_eq!(at(Glsn(first)).get(&ks, b"a").unwrap().unwrap(), b"1");
        assert_eq!(at(second).get(&ks, b"a").unwrap(), None);
        assert_eq!(at(Glsn(first - 1)).get(&ks, b"a").unwrap(), None);
        let by_time = db.snapshot_at(Moment::Time(then + Duration::from_micros(0))).unwrap();
        assert_eq!(by_time.get(&ks, b"a").unwrap().unwrap(), b"1");
        let history: Vec<_> = db.history(&ks, b"a").unwrap().map(|v| v.unwrap().bytes).collect();
        assert_eq!(history, [Some(1), None, Some(1)]);
        // Again after all runs were merged.
        db.compact().unwrap();
    }
    let future = db.newest() + 1;
    assert_eq!(
        db.snapshot_at(Moment::Glsn(future)).unwrap_err(),
        Error::Future { asked: future, newest: future - 1 }
    );
    let newest = db.snapshot_at(Moment::Time(SystemTime::now() + Duration::from_secs(60))).unwrap();
    assert_eq!(newest.at(), db.newest());
}

#[test]
fn a_diff_names_what_was_added_changed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let a = put(&db, &ks, &[("p/changed", "1"), ("p/removed", "1"), ("p/same", "1"), ("q", "1")]);
    put(&db, &ks, &[("p/passing", "x"), ("q", "2")]);
    let mut tx = db.begin();
    tx.delete(&ks, b"p/removed").unwrap();
    tx.delete(&ks, b"p/passing").unwrap();
    tx.put(&ks, b"p/changed", b"22").unwrap();
    tx.put(&ks, b"p/added", b"333").unwrap();
    let b = tx.commit().unwrap();
    let diff = |from, to| -> Vec<(String, Option<u64>, Option<u64>)> {
        let bytes =
            |version: Option<plimsoll::VersionInfo>| version.and_then(|version| version.bytes);
        let changes = db.diff(&ks, from, to, b"p/").unwrap().map(Result::unwrap);
        changes
            .map(|c| (String::from_utf8(c.key).unwrap(), bytes(c.before), bytes(c.after)))
            .collect()
    };
    let expected =
        [("p/added", None, Some(3)), ("p/changed", Some(1), Some(2)), ("p/removed", Some(1), None)];
    let named = |list: &[(&str, Option<u64>, Option<u64>)]| -> Vec<_> {
        list.iter().map(|(key, before, after)| ((*key).to_owned(), *before, *after)).collect()
    };
    assert_eq!(diff(Glsn(a), b), named(&expected));
    assert_eq!(diff(b, Glsn(a)), named(&expected.map(|(key, before, after)| (key, after, before))));
    assert_eq!(diff(b, b), []);
}

#[test]
fn rewriting_the_same_value_is_no_difference() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    // Inline, in the log, and longer than the bytes that are compared at a time; with equal lengths
    // and different ends.
    let (large, other) = ("x".repeat(20_000), "x".repeat(19_999) + "y");
    let a = put(
        &db,
        &ks,
        &[("same", "1"), ("large", &large), ("other", &large), ("back", "1"), ("empty", "")],
    );
    put(&db, &ks, &[("back", "2")]);
    let b = put(
        &db,
        &ks,
        &[("same", "1"), ("large", &large), ("other", &other), ("back", "1"), ("empty", "")],
    );
    for flushed in [false, true] {
        if flushed {
            db.flush().unwrap();
        }
        for (from, to) in [(a, b), (b, a)] {
            let changes: Vec<_> =
                db.diff(&ks, Glsn(from), Glsn(to), b"").unwrap().map(Result::unwrap).collect();
            let named: Vec<_> = changes.iter().map(|change| (&change.key[..], change.by)).collect();
            assert_eq!(named, [(&b"other"[..], Glsn(b))]);
        }
    }
}

#[test]
fn a_follower_sees_commits_with_their_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let from = db.newest() + 1;
    let mut tx = db.begin();
    tx.put(&ks, b"a", b"12345").unwrap();
    tx.delete(&ks, b"b").unwrap();
    tx.set_metadata(b"who and why").unwrap();
    let glsn = tx.commit().unwrap();
    let log = db.log();
    let mut follow = log.follow(from, Some(0)).unwrap();
    let entry = follow.next_timeout(Duration::from_secs(5)).unwrap().unwrap();
    let commit = log.commit(entry.glsn).unwrap().unwrap();
    assert_eq!((commit.glsn(), commit.metadata().unwrap()), (glsn, &b"who and why"[..]));
    let mut seen = Vec::new();
    for change in commit.changes().unwrap() {
        let change = change.unwrap();
        let value = change.value().unwrap().map(|value| value.to_vec());
        assert_eq!(
            (change.glsn(), change.time(), change.keyspace()),
            (glsn, commit.time(), Some("default"))
        );
        assert_eq!(change.value_len(), value.as_ref().map(|value| value.len() as u64));
        seen.push((change.key().to_vec(), value));
    }
    assert_eq!(seen, [(b"a".to_vec(), Some(b"12345".to_vec())), (b"b".to_vec(), None)]);
    assert!(follow.next_timeout(Duration::from_millis(1)).unwrap().is_none());
}

#[test]
fn streams_and_commits_share_one_order() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let log = db.log();
    let first = log.append(7, &[b"one", b"two"]).unwrap();
    let commit = put(&db, &ks, &[("a", "1")]);
    let last = log.append(9, &[b"three"]).unwrap();
    assert!(*first.end() < commit && commit < last.start().0);
    let mut scan = log.scan(.., Some(7)).unwrap();
    let mut seen = Vec::new();
    while let Some(entry) = scan.next() {
        seen.push(entry.unwrap().payload.to_vec());
    }
    assert_eq!(seen, [b"one".to_vec(), b"two".to_vec()]);
    assert_eq!(log.read(*last.start()).unwrap().payload(), b"three");
    assert!(log.commit(*last.start()).unwrap().is_none());
    assert!(matches!(log.append(0, &[b"x"]), Err(Error::InvalidInput { .. })));
}

#[test]
fn reads_of_dropped_versions_fail_in_a_keyspace_that_keeps_the_latest() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let latest = db.create_keyspace("latest", Retention::Latest).unwrap();
    let forever = db.keyspace("forever").unwrap();
    let first = put(&db, &latest, &[("a", "1")]);
    put(&db, &forever, &[("a", "1")]);
    for i in 0..5 {
        put(&db, &latest, &[("a", &i.to_string())]);
        put(&db, &forever, &[("a", &i.to_string())]);
    }
    db.compact().unwrap();
    let past = db.snapshot_at(Moment::Glsn(Glsn(first))).unwrap();
    assert!(
        matches!(past.get(&latest, b"a"), Err(Error::Trimmed { .. })),
        "{:?}",
        past.get(&latest, b"a")
    );
    assert_eq!(past.get(&forever, b"a").unwrap(), None);
    assert_eq!(db.history(&latest, b"a").unwrap().count(), 1);
    assert_eq!(db.history(&forever, b"a").unwrap().count(), 6);
    assert_eq!(get(&db, &latest, "a").as_deref(), Some("4"));
}

#[test]
fn an_open_snapshot_retains_the_versions_that_it_sees() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let latest = db.create_keyspace("latest", Retention::Latest).unwrap();
    put(&db, &latest, &[("a", "1"), ("b", "1")]);
    let snapshot = db.snapshot();
    for _ in 0..3 {
        put(&db, &latest, &[("a", "2")]);
        let mut tx = db.begin();
        tx.delete(&latest, b"b").unwrap();
        tx.commit().unwrap();
        db.compact().unwrap();
        assert_eq!(snapshot.get(&latest, b"a").unwrap().unwrap(), b"1");
        assert_eq!(keys(snapshot.range(&latest, ..).unwrap()), ["a", "b"]);
    }
}

#[test]
fn a_keyspace_that_keeps_everything_retains_the_log_from_its_first_key_on() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options().segment_bytes(64 << 10)).unwrap();
    let (latest, forever) =
        (db.create_keyspace("latest", Retention::Latest).unwrap(), db.keyspace("default").unwrap());
    let fill = || {
        let value = "x".repeat(500);
        let pairs: Vec<(String, &str)> =
            (0..300).map(|i| (format!("key {i:03}"), &value[..])).collect();
        let pairs: Vec<(&str, &str)> =
            pairs.iter().map(|(key, value)| (&key[..], *value)).collect();
        for some in pairs.chunks(10) {
            put(&db, &latest, some);
        }
        // A compaction skips freeing the log while another thread does so; a trim waits for that
        // thread.
        for _ in 0..2 {
            db.compact().unwrap();
            db.log().trim(Glsn(1)).unwrap();
        }
        db.log().bounds().first
    };
    let trimmed = fill();
    assert!(trimmed > Glsn(1), "`default` was never written to");
    put(&db, &forever, &[("a", "1")]);
    let held = fill();
    assert_eq!(fill(), held);
    let mut tx = db.begin();
    tx.delete(&forever, b"a").unwrap();
    tx.commit().unwrap();
    assert_eq!(fill(), held, "its past is retained, too");
}

#[test]
fn a_value_that_is_never_overwritten_does_not_pin_the_log_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(
        dir.path().join("store"),
        options().segment_bytes(64 << 10).memtable_bytes(64 << 10),
    )
    .unwrap();
    let latest = db.create_keyspace("latest", Retention::Latest).unwrap();
    // Too long for a leaf and too short for a blob file, so it is in the log.
    let static_value = "s".repeat(3000);
    put(&db, &latest, &[("static", &static_value)]);
    let mut written = 0;
    while db.log().bounds().first == Glsn(1) {
        put(
            &db,
            &latest,
            &[(&format!("key {:02}", written % 50), &format!("{written} {}", "x".repeat(3000)))],
        );
        written += 1;
        assert!(
            written < 20_000,
            "60 MB were written over 150 KB, and the log still has all of them"
        );
        if written % 100 == 0 {
            db.flush().unwrap();
        }
    }
    assert_eq!(get(&db, &latest, "static"), Some(static_value));
}

#[test]
fn a_trimmed_log_keeps_every_key_and_reports_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options().segment_bytes(64 << 10)).unwrap();
    let ks = db.keyspace("default").unwrap();
    let large = "x".repeat(5000);
    for i in 0..60 {
        put(&db, &ks, &[(&format!("key {i:02}"), &format!("{i} {large}"))]);
    }
    let first = db.log().trim(db.newest()).unwrap();
    assert!(first > 10, "{first}");
    assert_eq!(db.log().bounds().first, first);
    assert!(matches!(db.log().read(Glsn(1)), Err(Error::Trimmed { .. })));
    for reopened in [false, true] {
        for i in 0..60 {
            assert_eq!(
                get(&db, &ks, &format!("key {i:02}")),
                Some(format!("{i} {large}")),
                "{i}, {reopened}"
            );
        }
    }
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    db.close().unwrap();
    let db = open(&dir);
    assert_eq!(get(&db, &db.keyspace("default").unwrap(), "key 00"), Some(format!("0 {large}")));
}

#[test]
fn a_backup_is_a_store_as_of_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    put(&db, &ks, &[("a", "1")]);
    db.flush().unwrap();
    let glsn = put(&db, &ks, &[("b", "2")]);
    let report = db.backup(dir.path().join("copy")).unwrap();
    assert_eq!(report.glsn, glsn);
    put(&db, &ks, &[("a", "changed later")]);
    let copy = Db::open(dir.path().join("copy"), options()).unwrap();
    let ks = copy.keyspace("default").unwrap();
    assert_eq!(
        (get(&copy, &ks, "a").as_deref(), get(&copy, &ks, "b").as_deref()),
        (Some("1"), Some("2"))
    );
    assert_eq!(copy.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    put(&copy, &ks, &[("c", "its own life")]);
    assert!(matches!(db.backup(dir.path().join("copy")), Err(Error::InvalidInput { .. })));
}

#[test]
fn a_read_only_store_opens_beside_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    put(&db, &ks, &[("a", "1")]);
    let reader = Db::open(dir.path().join("store"), options().read_only(true)).unwrap();
    assert_eq!(get(&reader, &reader.keyspace("default").unwrap(), "a").as_deref(), Some("1"));
    let seen = reader.keyspace("default").unwrap();
    let mut tx = reader.begin();
    assert_eq!(tx.put(&seen, b"a", b"2"), Err(Error::ReadOnly));
    put(&db, &ks, &[("a", "2")]);
    assert_eq!(get(&reader, &seen, "a").as_deref(), Some("1"));
}

#[test]
fn the_index_can_be_rebuilt_from_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let mut glsns = Vec::new();
    for i in 0..50 {
        glsns.push(put(&db, &ks, &[("a", &i.to_string()), (&format!("k{i}"), "x")]));
    }
    db.compact().unwrap();
    db.close().unwrap();
    std::fs::remove_dir_all(path.join("index")).unwrap();
    let dest = dir.path().join("recovered");
    let report = Db::recover(&path, &dest, options(), &mut |_, _| {}).unwrap();
    assert_eq!(report.glsn, *glsns.last().unwrap());
    let db = Db::open(&dest, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    for (i, &glsn) in glsns.iter().enumerate() {
        let then = db.snapshot_at(Moment::Glsn(Glsn(glsn))).unwrap();
        assert_eq!(then.get(&ks, b"a").unwrap().unwrap(), i.to_string().as_bytes());
    }
}

#[test]
fn tickets_become_durable_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let tickets: Vec<_> = (0..20u8)
        .map(|i| {
            let mut tx = db.begin();
            tx.put(&ks, &[i], b"x").unwrap();
            tx.commit_submit().unwrap()
        })
        .collect();
    let glsns: Vec<_> = tickets.iter().map(plimsoll::CommitTicket::glsn).collect();
    assert!(glsns.windows(2).all(|pair| pair[0] < pair[1]));
    let last = tickets.into_iter().next_back().unwrap();
    assert_eq!(last.wait().unwrap(), *glsns.last().unwrap());
    assert_eq!(db.log().bounds().durable, *glsns.last().unwrap());
    assert_eq!(db.snapshot().range(&ks, ..).unwrap().count(), 20);
}

#[test]
fn the_memory_of_transactions_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let of =
        |name: &str| db.stats().memory.by_kind.iter().find(|(kind, _)| *kind == name).unwrap().1;
    for round in 0..3u32 {
        let mut tx = db.begin();
        for i in 0..2000u32 {
            tx.get(&ks, &i.to_be_bytes()).unwrap();
            tx.put(&ks, &i.to_be_bytes(), &[round as u8; 100]).unwrap();
        }
        assert!(of("write sets") > 0 && of("read sets") > 0);
        if round == 1 {
            tx.abort();
        } else {
            tx.commit().unwrap();
        }
        assert_eq!((of("write sets"), of("read sets"), of("staging")), (0, 0, 0));
    }
}

#[test]
fn a_scan_does_not_conflict_with_its_excluded_bound() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    let walk = tx.range(&ks, (Bound::Excluded(&b"b"[..]), Bound::Excluded(&b"d"[..]))).unwrap();
    assert_eq!(keys(walk), Vec::<String>::new());
    tx.put(&ks, b"x", b"").unwrap();
    put(&db, &ks, &[("b", "changed"), ("d", "changed")]);
    tx.commit().unwrap();
}

#[test]
fn a_backup_of_an_empty_store_is_an_empty_store() {
    let dir = tempfile::tempdir().unwrap();
    let db = open(&dir);
    db.backup(dir.path().join("copy")).unwrap();
    let copy = Db::open(dir.path().join("copy"), options()).unwrap();
    assert_eq!((copy.newest(), copy.id()), (Glsn::NONE, db.id()));
}
