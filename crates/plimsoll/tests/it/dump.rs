//! Dumps of a store, and restores of them: the same answers, or an error.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{
    Db, DumpOptions, Error, Glsn, InvalidInput, Moment, Options, RestoreReport, Retention,
};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::Disk;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).warm(false)
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect()
}

fn dump(db: &Db, options: DumpOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let report = db.dump(options, &mut out).unwrap();
    assert_eq!(report.bytes, out.len() as u64);
    out
}

fn history() -> DumpOptions {
    DumpOptions::new().history(true)
}

fn restore(dump: &[u8], dest: &Path) -> Db {
    let report = Db::restore(dest, options(), dump).unwrap();
    let db = Db::open(dest, options().create(false)).unwrap();
    assert_eq!(db.newest(), report.glsn);
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    db
}

/// Keyspaces, keys of any bytes, values of all sizes, deletions, metadata, a stream, a cursor, and
/// a keyspace that is dropped and made again.
fn fill(db: &Db, megabytes: &[usize]) {
    let rows = db.keyspace("rows").unwrap();
    let latest = db.create_keyspace("latest", Retention::Latest).unwrap();
    let window = db.create_keyspace("window", Retention::Glsns(5)).unwrap();
    db.create_keyspace("age", Retention::Time(Duration::from_secs(3600))).unwrap();
    db.put(&rows, b"", b"the empty key").unwrap();
    for (number, len) in [0, 1, 1024, 1025, 70_000, 300_000].into_iter().enumerate() {
        let mut tx = db.begin();
        tx.put(&rows, [0xff, 0, number as u8], bytes(len, 1)).unwrap();
        tx.put(&latest, b"one", bytes(len, 2)).unwrap();
        tx.put(&window, format!("{number}"), bytes(len / 2, 3)).unwrap();
        tx.set_metadata(format!("commit {number}").as_bytes()).unwrap();
        tx.commit().unwrap();
    }
    for len in megabytes {
        let mut tx = db.begin();
        tx.put_reader(&rows, format!("large {len}"), &mut &bytes(len << 20, 4)[..]).unwrap();
        tx.commit().unwrap();
    }
    db.put(&rows, b"gone", b"for now").unwrap();
    db.delete(&rows, b"gone").unwrap();
    db.log().append(7, &[b"one", &bytes(200_000, 5), b""]).unwrap();
    db.log().cursor("mailer", Glsn(3)).unwrap();
    let dropped = db.keyspace("dropped").unwrap();
    db.put(&dropped, b"a", b"before").unwrap();
    db.drop_keyspace(&dropped).unwrap();
    let again = db.keyspace("dropped").unwrap();
    db.put(&again, b"a", b"after").unwrap();
    db.set_retention(&rows, Retention::Glsns(1 << 40)).unwrap();
}

type Rows = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// All rows at a moment; `None` if it cannot be read.
fn rows_at(db: &Db, at: Moment) -> Option<Rows> {
    let snapshot = match db.snapshot_at(at) {
        Err(Error::Trimmed { .. } | Error::TimeTrimmed { .. }) => return None,
        snapshot => snapshot.unwrap(),
    };
    let mut all = Rows::new();
    for name in ["default", "rows", "latest", "window", "age", "dropped"] {
        let Some(keyspace) = snapshot.keyspace(name).unwrap() else { continue };
        let mut rows = match snapshot.range(&keyspace, ..) {
            Err(Error::Trimmed { .. }) => return None,
            rows => rows.unwrap().keys_only(),
        };
        let mut keys = Vec::new();
        while let Some((key, _)) = rows.advance().unwrap() {
            keys.push(key.to_vec());
        }
        drop(rows);
        for key in keys {
            let mut value = Vec::new();
            snapshot.get_reader(&keyspace, &key).unwrap().unwrap().read_to_end(&mut value).unwrap();
            all.insert((name.to_owned(), key), value);
        }
    }
    Some(all)
}

fn settings(db: &Db) -> Vec<(String, Retention)> {
    db.keyspaces().into_iter().map(|info| (info.name, info.retention)).collect()
}

/// Every version of a few keys.
fn versions(db: &Db) -> Vec<plimsoll::VersionInfo> {
    let mut all = Vec::new();
    for (name, key) in [
        ("rows", &b"gone"[..]),
        ("rows", b"\xff\0\x03"),
        ("latest", b"one"),
        ("dropped", b"a"),
        ("window", b"1"),
    ] {
        let keyspace = db.find_keyspace(name).unwrap().unwrap();
        all.extend(db.history(&keyspace, key).unwrap().map(Result::unwrap));
    }
    all
}

/// Each entry of the log: its GLSN, stream, time, the moment that it has read, and its content.
fn log_of(db: &Db) -> Vec<String> {
    let mut all = Vec::new();
    let bounds = db.log().bounds();
    for glsn in (bounds.first.0..bounds.next.0).map(Glsn) {
        let entry = match db.log().read(glsn) {
            Err(Error::Dropped { .. }) => {
                all.push(format!("{glsn} lost"));
                continue;
            }
            entry => entry.unwrap(),
        };
        let head = format!("{glsn} {} {:?}", entry.stream, entry.time);
        match db.log().commit(glsn).unwrap() {
            None => all.push(format!("{head} {:?}", entry.payload())),
            Some(commit) => {
                let metadata = commit.metadata().unwrap().escape_ascii().to_string();
                let mut changes = String::new();
                for change in commit.changes().unwrap() {
                    let change = change.unwrap();
                    let mut value = Vec::new();
                    if let Some(mut reader) = change.value_reader().unwrap() {
                        reader.read_to_end(&mut value).unwrap();
                    }
                    let digest = plimsoll_disk::checksum::checksum(0, &value);
                    changes += &format!("{change:?} {digest:x}");
                }
                all.push(format!("{head} {} {metadata} {changes}", commit.read_at()));
            }
        }
    }
    all
}

fn check_same_history(db: &Db, copy: &Db, first: u64) {
    assert_eq!(log_of(copy), log_of(db));
    assert_eq!(copy.newest(), db.newest());
    assert_eq!(settings(copy), settings(db));
    assert_eq!(versions(copy), versions(db));
    assert_eq!(copy.log().cursors(), db.log().cursors());
    for glsn in (first..=db.newest().0).map(Glsn) {
        assert_eq!(rows_at(copy, Moment::Glsn(glsn)), rows_at(db, Moment::Glsn(glsn)), "{glsn}");
        if glsn >= db.log().bounds().first {
            let time = db.log().read(glsn).unwrap().time;
            let at = |db: &Db| db.snapshot_at(Moment::Time(time)).unwrap().at();
            assert_eq!(at(copy), at(db));
        }
    }
}

#[test]
fn restored_history_answers_as_the_store_at_every_moment() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    fill(&db, &[1, 10]);
    let dump = dump(&db, history());
    let copy = restore(&dump, &dir.path().join("copy"));
    check_same_history(&db, &copy, 1);
    // It is a store like any other.
    copy.put(&copy.keyspace("rows").unwrap(), b"new", b"row").unwrap();
    let again = copy.create_keyspace("fresh", Retention::Forever).unwrap();
    copy.put(&again, b"a", b"b").unwrap();
    copy.compact().unwrap();
    let rows = rows_at(&copy, Moment::Newest).unwrap();
    assert_eq!(rows[&("dropped".to_owned(), b"a".to_vec())], b"after");
}

#[test]
fn restored_history_of_a_trimmed_log_answers_from_its_oldest_moment_on() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options().segment_bytes(512 << 10)).unwrap();
    fill(&db, &[1]);
    db.log().drop_cursor("mailer").unwrap();
    db.compact().unwrap();
    let trimmed = db.log().trim(db.newest().next()).unwrap();
    assert!(trimmed > Glsn(20), "{trimmed}");
    let rows = db.keyspace("rows").unwrap();
    for number in 0..10 {
        db.put(&rows, format!("late {number}"), bytes(number * 500, 6)).unwrap();
    }
    db.delete(&rows, b"late 3").unwrap();
    let first = db.log().bounds().first;
    assert!(first > Glsn::FIRST);
    let dump = dump(&db, history());
    let copy = restore(&dump, &dir.path().join("copy"));
    assert_eq!(copy.log().bounds().first, first);
    check_same_history(&db, &copy, 1);
    copy.compact().unwrap();
    check_same_history(&db, &copy, 1);
    // A time before the log's is refused with the same bound.
    let old = Moment::Time(std::time::UNIX_EPOCH + Duration::from_secs(5));
    assert_eq!(db.snapshot_at(old).unwrap_err(), copy.snapshot_at(old).unwrap_err());
}

#[test]
fn a_log_whose_time_was_restarted_keeps_its_times() {
    let clock = Arc::new(ManualClock::new(5_000_000_000_000));
    let disk = Arc::new(MemDisk::new());
    let at = || options().background(false).world(disk.clone(), clock.clone());
    let db = Db::open("/store", at()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    db.put(&rows, "a", "1").unwrap();
    clock.set_wall_micros(1_000_000_000_000);
    assert!(db.log().restart_time().unwrap().is_some());
    db.put(&rows, "a", "2").unwrap();
    clock.advance(Duration::from_secs(9));
    db.put(&rows, "a", "3").unwrap();
    let dump = dump(&db, history());
    Db::restore("/copy", at(), &dump[..]).unwrap();
    let copy = Db::open("/copy", at()).unwrap();
    assert_eq!(log_of(&copy), log_of(&db));
    copy.put(&copy.keyspace("rows").unwrap(), "a", "4").unwrap();
}

#[test]
fn a_restore_without_history_has_the_newest_values_and_the_settings() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    fill(&db, &[1, 10, 40]);
    let copy = restore(&dump(&db, DumpOptions::new()), &dir.path().join("copy"));
    assert_eq!(rows_at(&copy, Moment::Newest), rows_at(&db, Moment::Newest));
    assert_eq!(settings(&copy), settings(&db));
}

#[test]
fn one_keyspace_is_dumped_alone_and_its_history_keeps_its_glsns() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    fill(&db, &[]);
    let of_dropped = |options: DumpOptions| options.keyspace("dropped");
    let copy = restore(&dump(&db, of_dropped(DumpOptions::new())), &dir.path().join("newest"));
    assert_eq!(settings(&copy).len(), 2);
    assert_eq!(rows_at(&copy, Moment::Newest).unwrap().len(), 1);
    let copy = restore(&dump(&db, of_dropped(history())), &dir.path().join("history"));
    assert_eq!(settings(&copy).len(), 2);
    let of = |db: &Db| {
        let keyspace = db.keyspace("dropped").unwrap();
        db.history(&keyspace, "a").unwrap().map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(of(&copy), of(&db));
    let only = |db: &Db, at| -> Vec<_> {
        let rows = rows_at(db, Moment::Glsn(at)).unwrap_or_default();
        rows.into_iter().filter(|((name, _), _)| name == "dropped").collect()
    };
    for glsn in (1..=db.newest().0).map(Glsn) {
        assert_eq!(only(&copy, glsn), only(&db, glsn), "{glsn}");
    }
    let none = db.dump(DumpOptions::new().keyspace("nothing"), io::sink());
    assert!(matches!(none, Err(Error::InvalidInput(_))), "{none:?}");
}

/// A store on a disk in memory, small enough that each byte of its dump can be tried.
fn small() -> Db {
    let db = Db::in_memory(options().background(false)).unwrap();
    let rows = db.create_keyspace("rows", Retention::Glsns(9)).unwrap();
    db.put(&rows, "a", "1").unwrap();
    let mut tx = db.begin();
    tx.put(&rows, [0xff], "2").unwrap();
    tx.delete(&rows, "a").unwrap();
    tx.set_metadata(b"m").unwrap();
    tx.commit().unwrap();
    db.log().append(7, &[b"x"]).unwrap();
    db
}

fn restore_in_memory(dump: &[u8]) -> Result<RestoreReport, Error> {
    let world = || {
        let clock = Arc::new(ManualClock::new(1 << 50));
        options().background(false).world(Arc::new(MemDisk::new()), clock)
    };
    Db::restore("/copy", world(), dump)
}

#[test]
fn a_dump_with_any_byte_changed_is_refused() {
    for options in [history(), DumpOptions::new()] {
        let whole = dump(&small(), options);
        restore_in_memory(&whole).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            let refused = restore_in_memory(&changed);
            let is_refused = matches!(refused, Err(Error::Corrupt { .. } | Error::Format { .. }));
            assert!(is_refused, "byte {at}: {refused:?}");
        }
    }
}

#[test]
fn a_dump_that_is_cut_anywhere_or_has_more_bytes_is_refused_and_nothing_is_restored() {
    for options in [history(), DumpOptions::new()] {
        let whole = dump(&small(), options);
        for len in 0..whole.len() {
            let refused = restore_in_memory(&whole[..len]);
            let is_refused = matches!(refused, Err(Error::Corrupt { .. } | Error::Format { .. }));
            assert!(is_refused, "{len} bytes: {refused:?}");
        }
        let longer = [&whole[..], b"\0"].concat();
        assert!(matches!(restore_in_memory(&longer), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn an_interrupted_restore_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options().segment_bytes(512 << 10)).unwrap();
    fill(&db, &[1]);
    let untrimmed = dump(&db, history());
    let newest = dump(&db, DumpOptions::new());
    db.log().drop_cursor("mailer").unwrap();
    db.log().trim(db.newest().next()).unwrap();
    let default = db.keyspace("default").unwrap();
    for number in 0..100u8 {
        db.put(&default, [number], bytes(3000, number)).unwrap();
    }
    let trimmed = dump(&db, history());
    let rows = rows_at(&db, Moment::Newest);
    for (number, whole) in [untrimmed, newest, trimmed].iter().enumerate() {
        let dest = dir.path().join(format!("copy {number}"));
        let mut resumed = 0;
        for part in 1..8 {
            let cut = Db::restore(&dest, options(), &whole[..whole.len() * part / 8]);
            assert!(matches!(cut, Err(Error::Corrupt { .. })), "{cut:?}");
            assert!(!dest.exists(), "there is no store before all of it was read");
        }
        let around = dir.path().join(format!("copy {number}.new-restore"));
        let opened = Db::open(&around, options());
        assert!(matches!(opened, Err(Error::NotAStore { .. })), "{opened:?}");
        let report = Db::restore(&dest, options(), &whole[..]).unwrap();
        resumed += u32::from(report.resumed);
        assert_eq!(resumed, 1, "{report:?}");
        assert!(!around.exists());
        let copy = Db::open(&dest, options()).unwrap();
        if number == 2 {
            assert_eq!(rows_at(&copy, Moment::Newest), rows);
            check_same_history(&db, &copy, 1);
        }
    }
}

#[test]
fn a_restore_goes_on_with_a_later_dump_and_not_with_another_history() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    fill(&db, &[]);
    let first = dump(&db, history());
    let dest = dir.path().join("copy");
    Db::restore(&dest, options(), &first[..first.len() - 30]).unwrap_err();
    db.backup(dir.path().join("fork")).unwrap();
    fill_more(&db);
    let fork = Db::open(dir.path().join("fork"), options()).unwrap();
    fork.put(&fork.keyspace("rows").unwrap(), "fork", "x").unwrap();
    let report = Db::restore(&dest, options(), &dump(&db, history())[..]).unwrap();
    assert!(report.resumed && report.glsn == db.newest(), "{report:?}");
    check_same_history(&db, &Db::open(&dest, options()).unwrap(), 1);
    // All but the end of the store was restored; then comes the dump of a fork of it.
    let (dest, whole) = (dir.path().join("second"), dump(&db, history()));
    Db::restore(&dest, options(), &whole[..whole.len() - 1]).unwrap_err();
    fill_more(&fork);
    fill_more(&fork);
    let other = Db::restore(&dest, options(), &dump(&fork, history())[..]);
    let Err(Error::Corrupt { message, .. }) = &other else { panic!("{other:?}") };
    assert!(message.contains("different histories"), "{message}");
    // A dump of another store begins anew.
    let small = small();
    let report = Db::restore(&dest, options(), &dump(&small, history())[..]).unwrap();
    assert!(!report.resumed && report.glsn == small.newest(), "{report:?}");
}

fn fill_more(db: &Db) {
    let rows = db.keyspace("rows").unwrap();
    (0..20u8).for_each(|number| _ = db.put(&rows, [number], [number]).unwrap());
}

#[test]
fn a_destination_that_is_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dump = dump(&small(), history());
    let store = dir.path().join("store");
    restore(&dump, &store).close().unwrap();
    let again = Db::restore(&store, options(), &dump[..]);
    let is_refused = |refused: &Result<RestoreReport, Error>| {
        matches!(refused, Err(Error::InvalidInput(InvalidInput::DestinationExists { .. })))
    };
    assert!(is_refused(&again), "{again:?}");
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let on_file = Db::restore(&file, options(), &dump[..]);
    assert!(is_refused(&on_file), "{on_file:?}");
    let no_dump = Db::restore(dir.path().join("none"), options(), &b"(\xb5/\xfd zstd"[..]);
    assert!(matches!(no_dump, Err(Error::Format { .. })), "{no_dump:?}");
    // A folder that no restore has made is left as it is.
    let foreign = dir.path().join("foreign.new-restore/store");
    std::fs::create_dir_all(&foreign).unwrap();
    std::fs::write(foreign.join("file"), "x").unwrap();
    let beside = Db::restore(dir.path().join("foreign"), options(), &dump[..]);
    assert!(is_refused(&beside), "{beside:?}");
    assert!(foreign.join("file").exists());
    // An empty folder is taken.
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    restore(&dump, &dir.path().join("empty"));
}

#[test]
fn a_dump_whose_output_fails_or_that_is_cancelled_says_so() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let db = small();
    let full = db.dump(history(), Full);
    assert!(matches!(full, Err(Error::Io { kind: io::ErrorKind::StorageFull, .. })), "{full:?}");
    let flag = Arc::new(true.into());
    let cancelled = db.dump(DumpOptions::new().cancel_on(flag), io::sink());
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
}

#[test]
fn a_transaction_larger_than_memory_is_dumped_and_restored_within_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    let mut tx = db.begin();
    for number in 0..40_000u32 {
        tx.put(&rows, number.to_be_bytes(), bytes(300, number as u8)).unwrap();
    }
    tx.commit().unwrap();
    db.bulk_load(&rows, (0..20_000u32).map(|number| (number.to_le_bytes(), [7; 500]))).unwrap();
    let dump = dump(&db, history());
    let copy = restore(&dump, &dir.path().join("copy"));
    assert_eq!(rows_at(&copy, Moment::Glsn(Glsn(2))), rows_at(&db, Moment::Glsn(Glsn(2))));
    assert_eq!(rows_at(&copy, Moment::Newest), rows_at(&db, Moment::Newest));
}

#[test]
fn entries_that_a_recovery_has_lost_are_lost_in_the_restored_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    for number in 0..200u8 {
        db.put(&rows, [number], bytes(500, number)).unwrap();
    }
    db.close().unwrap();
    let log = std::fs::read_dir(path.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let segment =
        log.into_iter().find(|path| path.extension().is_some_and(|it| it == "seg")).unwrap();
    let mut damaged = std::fs::read(&segment).unwrap();
    damaged[40_000] ^= 1;
    std::fs::write(&segment, damaged).unwrap();
    let recovered = dir.path().join("recovered");
    let report = Db::recover(&path, &recovered, options(), &mut |_, _| {}).unwrap();
    assert!(!report.lost_entries.is_empty(), "{report:?}");
    let db = Db::open(&recovered, options()).unwrap();
    let copy = restore(&dump(&db, history()), &dir.path().join("copy"));
    assert!(log_of(&copy).iter().any(|entry| entry.ends_with("lost")));
    assert_eq!(log_of(&copy), log_of(&db));
    assert_eq!(rows_at(&copy, Moment::Newest), rows_at(&db, Moment::Newest));
}

#[test]
fn a_restore_that_is_cut_short_at_any_sync_leaves_no_store_and_goes_on() {
    let small = || options().background(false).segment_bytes(256 << 10);
    let clock = Arc::new(ManualClock::new(1 << 50));
    let on = |disk: Arc<dyn Disk>| small().world(disk, clock.clone());
    let db = Db::open("/store", on(Arc::new(MemDisk::new()))).unwrap();
    let rows = db.keyspace("rows").unwrap();
    for number in 0..60u8 {
        db.put(&rows, [number], bytes(if number % 9 == 0 { 90_000 } else { 900 }, 1)).unwrap();
        clock.advance(Duration::from_millis(1));
    }
    let mut dumps = vec![dump(&db, DumpOptions::new()), dump(&db, history())];
    db.log().trim(db.newest().next()).unwrap();
    for number in 0..40u8 {
        db.put(&rows, [number], bytes(2_000, 2)).unwrap();
        clock.advance(Duration::from_millis(1));
    }
    dumps.push(dump(&db, history()));
    let rows = |copy: &Db| rows_at(copy, Moment::Newest).unwrap();
    let mut resumed = 0;
    for (number, dump) in dumps.iter().enumerate() {
        for sync in 0.. {
            let lying = LyingDisk::new(sync);
            let disk: Arc<dyn Disk> = Arc::new(lying.clone());
            lying.cut_power_at_sync(lying.sync_count() + sync);
            let first = Db::restore("/copy", on(disk.clone()), &dump[..]);
            let was_cut = lying.power_is_cut();
            lying.restore_power();
            let told = format!("dump {number}, sync {sync}");
            if !was_cut {
                first.unwrap_or_else(|error| panic!("{told}: {error}"));
            } else if disk.entry(Path::new("/copy")).unwrap().is_none() {
                let again = Db::restore("/copy", on(disk.clone()), &dump[..]);
                let report = again.unwrap_or_else(|error| panic!("{told}: {error}"));
                resumed += u32::from(report.resumed);
            }
            let copy = Db::open("/copy", on(disk).create(false)).unwrap();
            if number == 2 {
                assert_eq!(log_of(&copy), log_of(&db), "{told}");
                assert_eq!(rows(&copy), rows(&db), "{told}");
            }
            assert_eq!(rows(&copy).len(), 60, "{told}");
            assert!(copy.verify(&mut |_| {}).unwrap().problems.is_empty(), "{told}");
            if !was_cut {
                assert!(sync > 5, "{told}");
                break;
            }
        }
    }
    assert!(resumed > 3, "{resumed}");
}

#[test]
fn a_retention_that_is_longer_later_in_the_history_drops_nothing_early() {
    let dir = tempfile::tempdir().unwrap();
    let small = || options().segment_bytes(256 << 10).memtable_bytes(64 << 10);
    let db = Db::open(dir.path().join("store"), small()).unwrap();
    let rows = db.create_keyspace("rows", Retention::Latest).unwrap();
    db.put(&rows, "a", "1").unwrap();
    db.log().trim(db.newest().next()).unwrap();
    db.set_retention(&rows, Retention::Forever).unwrap();
    let first = db.newest();
    for number in 0..2_000u32 {
        db.put(&rows, (number % 50).to_be_bytes(), bytes(300, number as u8)).unwrap();
    }
    let dest = dir.path().join("copy");
    Db::restore(&dest, small(), &dump(&db, history())[..]).unwrap();
    let copy = Db::open(&dest, small()).unwrap();
    for glsn in (first.0..=db.newest().0).step_by(100).map(Glsn) {
        let at = |db: &Db| rows_at(db, Moment::Glsn(glsn));
        assert!(at(&db).is_some());
        assert_eq!(at(&copy), at(&db), "{glsn}");
    }
}

#[test]
fn a_history_whose_oldest_readable_moment_is_within_the_log_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let small = || options().segment_bytes(256 << 10).retention(Retention::Latest);
    let db = Db::open(dir.path().join("store"), small()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    let put = |number: u32, len| {
        db.put(&rows, number.to_be_bytes(), bytes(len, number as u8)).unwrap();
    };
    (0..20).for_each(|number| put(number, 30_000));
    let from = db.newest();
    db.log().cursor("reader", from).unwrap();
    (0..20).for_each(|number| put(number, 300));
    // Its old position is dropped.
    db.log().advance_cursor("reader", from.next()).unwrap();
    db.set_retention(&rows, Retention::Glsns(1)).unwrap();
    db.compact().unwrap();
    db.log().trim(db.newest().next()).unwrap();
    let first = db.log().bounds().first;
    assert!(first > Glsn::FIRST && first < db.newest());
    assert!(rows_at(&db, Moment::Glsn(first)).is_none(), "it is not readable that early");
    let dest = dir.path().join("copy");
    Db::restore(&dest, small(), &dump(&db, history())[..]).unwrap();
    let copy = Db::open(&dest, small()).unwrap();
    for glsn in (first.0..=db.newest().0).map(Glsn) {
        let at = |db: &Db| rows_at(db, Moment::Glsn(glsn));
        assert_eq!(at(&copy), at(&db), "{glsn}");
    }
}
