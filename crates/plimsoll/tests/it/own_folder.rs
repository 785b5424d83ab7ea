//! A store whose folder is moved, removed or replaced while it is open, or that is opened by a
//! relative path: no operation of it reaches another folder, and none that changes files succeeds
//! once the folder is not its own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use plimsoll::{Db, Error, Keyspace, Options, Retention, verify};
use rustix::thread::{set_thread_gid, set_thread_uid};

use crate::forks::{close_standard_streams, in_child, wait_for};

const ROWS: u32 = 3000;

fn options(is_shared: bool) -> Options {
    Options::new().memory_bytes(16 << 20).retention(Retention::Latest).shared(is_shared)
}

/// Puts rows of about 3 MB in total, some of them large.
fn fill(db: &Db, space: &Keyspace, mark: u8) {
    for chunk in 0..ROWS / 100 {
        db.transact(|tx| {
            for row in 0..100 {
                tx.put(space, format!("{mark}-{:06}", chunk * 100 + row), [mark; 1000])?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    }
    db.put(space, format!("{mark}-large"), vec![mark; 600 << 10]).unwrap();
}

fn made(path: &Path, is_shared: bool, mark: u8) -> (Db, Keyspace) {
    let db = Db::open(path, options(is_shared)).unwrap();
    let space = db.keyspace("default").unwrap();
    fill(&db, &space, mark);
    db.flush().unwrap();
    // Pending work at a close: a memtable, a blob file that only the log names, and a warm image.
    db.put(&space, format!("{mark}-last"), "value").unwrap();
    (db, space)
}

/// Every file below a folder, except those that processes share while they have it open.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn is_whole(path: &Path, mark: u8) {
    let db = Db::open(path, options(false)).unwrap();
    let space = db.keyspace("default").unwrap();
    for row in (0..ROWS).step_by(7) {
        let value = db.get(&space, format!("{mark}-{row:06}")).unwrap();
        assert_eq!(value.as_deref(), Some(&[mark; 1000][..]), "row {row} of {}", path.display());
    }
    assert_eq!(db.get(&space, format!("{mark}-last")).unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

/// The errors of the calls that change files.
fn refusals(db: &Db, space: &Keyspace) -> Vec<(&'static str, Error)> {
    let calls: [(&'static str, &dyn Fn() -> plimsoll::Result<()>); 7] = [
        ("trim", &|| db.log().trim(db.newest().next()).map(drop)),
        ("compact", &|| db.compact()),
        ("flush", &|| db.flush()),
        ("large put", &|| db.put(space, "new large", vec![9; 1 << 20]).map(drop)),
        ("put", &|| db.put(space, "new", "value").map(drop)),
        ("bulk load", &|| db.bulk_load(space, [("x", "y")]).map(drop)),
        ("keyspace", &|| db.keyspace("another").map(drop)),
    ];
    let refused = calls.into_iter().map(|(name, call)| {
        let error = call().expect_err(name);
        (name, error)
    });
    refused.collect()
}

/// Moves or removes the folder of an open store, puts another one in its place, and continues to
/// use the first one.
fn replaced_by(is_shared: bool, replace: impl Fn(&Path, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("store"), dir.path().join("away"));
    let (db, space) = made(&path, is_shared, 1);
    replace(&path, &away);
    let before = files(&path);
    for (name, error) in refusals(&db, &space) {
        let text = error.to_string();
        assert!(matches!(error, Error::Poisoned { .. }), "{name}: {error:?}");
        assert!(
            text.contains(path.to_str().unwrap()) && text.contains(" was re"),
            "{name}: {text}"
        );
        assert!(!text.contains("salvage") && !text.contains("verify"), "{name}: {text}");
    }
    let _ = db.close();
    assert!(files(&path) == before, "files of the other store were changed");
}

#[test]
fn a_store_that_was_moved_does_not_touch_the_new_one_at_its_path() {
    for is_shared in [false, true] {
        replaced_by(is_shared, |path, away| {
            fs::rename(path, away).unwrap();
            drop(made(path, false, 2));
        });
    }
}

#[test]
fn a_store_that_was_removed_does_not_touch_the_new_one_at_its_path() {
    for is_shared in [false, true] {
        replaced_by(is_shared, |path, _| {
            fs::remove_dir_all(path).unwrap();
            drop(made(path, is_shared, 2));
        });
    }
}

#[test]
fn a_store_does_not_touch_its_backup_that_is_restored_at_its_path() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, away, backup) =
            (dir.path().join("store"), dir.path().join("away"), dir.path().join("backup"));
        let (db, space) = made(&path, is_shared, 1);
        // Its files share their bytes with the store's, including the lock file.
        db.backup(&backup).unwrap();
        fs::hard_link(path.join("LOCK"), backup.join("LOCK")).unwrap();
        fs::rename(&path, &away).unwrap();
        fs::rename(&backup, &path).unwrap();
        let before = files(&path);
        refusals(&db, &space);
        let _ = db.close();
        assert!(files(&path) == before, "is shared: {is_shared}");
        is_whole(&path, 1);
        is_whole(&away, 1);
    }
}

#[test]
fn reads_continue_in_a_folder_that_was_moved() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("store"), dir.path().join("away"));
    let (db, space) = made(&path, false, 1);
    fs::rename(&path, &away).unwrap();
    drop(made(&path, false, 2));
    db.drop_caches();
    for row in (0..ROWS).step_by(11) {
        assert_eq!(db.get(&space, format!("1-{row:06}")).unwrap().as_deref(), Some(&[1; 1000][..]));
    }
    drop(db);
    is_whole(&path, 2);
    is_whole(&away, 1);
}

#[test]
fn a_replaced_subfolder_of_the_store_is_detected_and_not_touched() {
    for (is_shared, name) in [(false, "log"), (false, "index"), (true, "log"), (true, "index")] {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("store"), dir.path().join("other"));
        drop(made(&other, false, 2));
        let (db, space) = made(&path, is_shared, 1);
        fs::rename(path.join(name), dir.path().join("away")).unwrap();
        fs::rename(other.join(name), path.join(name)).unwrap();
        let before = files(&path.join(name));
        for (call, error) in refusals(&db, &space) {
            // A thread may have checked between the two renames.
            let is_told = ["replaced by another one", "removed or moved"]
                .iter()
                .any(|what| error.to_string().contains(what));
            assert!(is_told, "{call} with another {name}: {error}");
        }
        let _ = db.close();
        assert!(files(&path.join(name)) == before, "the other {name} was changed");
    }
}

#[test]
fn a_lock_file_that_was_removed_stops_every_change() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (db, space) = made(&path, is_shared, 1);
        fs::remove_file(path.join("LOCK")).unwrap();
        let data = |name: &str| files(&path.join(name)).into_keys().collect::<Vec<_>>();
        let before = (data("log"), data("index"));
        for (call, error) in refusals(&db, &space) {
            assert!(error.to_string().contains("the lock file was removed"), "{call}: {error}");
        }
        let _ = db.close();
        assert!((data("log"), data("index")) == before, "is shared: {is_shared}");
        is_whole(&path, 1);
    }
}

#[test]
fn a_warm_image_may_be_deleted_while_the_store_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (db, _) = made(&path, false, 1);
    db.close().unwrap();
    let (db, space) = made(&path, false, 1);
    // Files may still be replaced while the folder is removed.
    while path.join("warm").exists() {
        let _ = fs::remove_dir_all(path.join("warm"));
    }
    db.get(&space, "1-000000").unwrap();
    db.close().unwrap();
    is_whole(&path, 1);
    // A process that had no room to restore all of an image does not replace it, but the next
    // process finds none.
    assert!(!files(&path.join("warm")).is_empty(), "it was not saved again");
}

/// In a separate process, because the working folder belongs to the process.
#[test]
fn a_store_that_was_opened_by_a_relative_path_survives_a_change_of_the_working_folder() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (home, elsewhere) = (dir.path().join("home"), dir.path().join("elsewhere"));
        for place in [&home, &elsewhere] {
            fs::create_dir(place).unwrap();
        }
        drop(made(&elsewhere.join("store"), false, 2));
        let before = files(&elsewhere);
        let child = in_child(|| {
            std::env::set_current_dir(&home).unwrap();
            let (db, space) = made(Path::new("store"), is_shared, 1);
            std::env::set_current_dir(&elsewhere).unwrap();
            fill(&db, &space, 3);
            db.drop_caches();
            db.compact().unwrap();
            db.log().trim(db.newest().next()).unwrap();
            for row in (0..ROWS).step_by(13) {
                assert_eq!(
                    db.get(&space, format!("1-{row:06}")).unwrap().as_deref(),
                    Some(&[1; 1000][..])
                );
            }
            assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
            db.backup("backup").unwrap();
            db.close().unwrap();
            0
        });
        assert_eq!(wait_for(child), Some(0));
        is_whole(&elsewhere.join("backup"), 3 - 2);
        fs::remove_dir_all(elsewhere.join("backup")).unwrap();
        assert!(files(&elsewhere) == before, "another store was changed");
        is_whole(&home.join("store"), 1);
    }
}

#[test]
fn no_file_of_a_store_has_the_descriptor_of_a_standard_stream() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let child = in_child(|| {
            close_standard_streams();
            let (db, space) = made(&path, is_shared, 1);
            db.compact().unwrap();
            db.drop_caches();
            db.get(&space, "1-large").unwrap().unwrap();
            let taken: Vec<_> =
                (0..3).filter_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok()).collect();
            db.close().unwrap();
            fs::write(dir.path().join("taken"), format!("{taken:?}")).unwrap();
            0
        });
        assert_eq!(wait_for(child), Some(0), "is shared: {is_shared}");
        assert_eq!(
            fs::read_to_string(dir.path().join("taken")).unwrap(),
            "[]",
            "is shared: {is_shared}"
        );
        is_whole(&path, 1);
    }
}

/// Only the superuser can run this.
#[test]
fn the_owner_of_a_store_writes_to_it_after_the_superuser_has() {
    const OWNER: u32 = 4321;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let path = dir.path().join("store");
        fs::create_dir(&path).unwrap();
        chown(&path, Some(OWNER), Some(OWNER)).unwrap();
        let by_owner = |is_shared: bool, mark: u8| {
            let child = in_child(|| {
                set_thread_gid(rustix::fs::Gid::from_raw(OWNER)).unwrap();
                set_thread_uid(rustix::fs::Uid::from_raw(OWNER)).unwrap();
                made(&path, is_shared, mark).0.close().unwrap();
                0
            });
            assert_eq!(wait_for(child), Some(0), "is shared: {is_shared}, row {mark}");
        };
        by_owner(false, 1);
        let (db, _) = made(&path, is_shared, 2);
        db.log().trim(db.newest().next()).unwrap();
        db.compact().unwrap();
        db.close().unwrap();
        for file in files(&path).into_keys() {
            let of = fs::metadata(&file).unwrap();
            assert_eq!((of.uid(), of.gid()), (OWNER, OWNER), "{}", file.display());
        }
        by_owner(is_shared, 3);
        for mark in [1, 2, 3] {
            is_whole(&path, mark);
        }
    }
}

#[test]
fn runs_without_a_log_and_a_manifest_are_refused_and_kept() {
    for is_shared in [false, true] {
        for left in ["index", "warm"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            made(&path, is_shared, 1).0.close().unwrap();
            fs::remove_dir_all(path.join("log")).unwrap();
            fs::remove_dir_all(path.join(if left == "index" { "warm" } else { "index" })).unwrap();
            for file in files(&path.join(left)).into_keys() {
                if file.file_name().unwrap().to_str().unwrap().starts_with("MANIFEST") {
                    fs::remove_file(file).unwrap();
                }
            }
            // An interrupted creation leaves these folders.
            fs::create_dir(path.join("log")).unwrap();
            fs::write(path.join("log/00000000000000000001.seg.tmp"), "").unwrap();
            let before = files(&path.join(left));
            assert!(!before.is_empty());
            for options in [options(false), options(true), options(false).read_only(true)] {
                let error = Db::open(&path, options).unwrap_err();
                assert!(matches!(&error, Error::Corrupt { .. }), "{error:?}");
                assert!(error.to_string().contains("restore the log"), "{error}");
            }
            assert!(files(&path.join(left)) == before, "{left} was changed");
        }
    }
}

#[test]
fn a_creation_that_was_interrupted_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for name in ["index", "log", "warm", "members"] {
        fs::create_dir_all(path.join(name)).unwrap();
    }
    fs::write(path.join("LOCK"), "").unwrap();
    fs::write(path.join("log/LOCK"), "").unwrap();
    fs::write(path.join("log/00000000000000000001.seg.tmp"), "").unwrap();
    drop(made(&path, false, 1));
    is_whole(&path, 1);
}

#[test]
fn a_folder_with_other_files_is_refused_with_their_names() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    let refusal = || Db::open(dir.path(), options(false)).unwrap_err().to_string();
    assert!(refusal().contains("holds `lost+found` and no store"), "{}", refusal());
    assert!(refusal().contains("a new folder in it"), "{}", refusal());
    fs::write(dir.path().join("a file"), "").unwrap();
    assert!(refusal().contains("holds `a file` and 1 more and no store"), "{}", refusal());
}

fn newest_manifest(path: &Path) -> PathBuf {
    let is_manifest =
        |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with("MANIFEST.");
    files(&path.join("index")).into_keys().rfind(is_manifest).unwrap()
}

#[test]
fn a_manifest_of_another_log_is_never_used_and_is_reported() {
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("store"), dir.path().join("other"));
        made(&path, false, 1).0.close().unwrap();
        let (db, space) = made(&other, false, 2);
        for round in 0..6 {
            db.put(&space, format!("{round}"), "value").unwrap();
            db.flush().unwrap();
        }
        drop(db);
        let foreign = newest_manifest(&other);
        let name = foreign.file_name().unwrap().to_owned();
        assert!(*name > *newest_manifest(&path).file_name().unwrap());
        fs::copy(&foreign, path.join("index").join(&name)).unwrap();
        let name = name.to_str().unwrap();
        let is_named = |text: &Vec<String>| {
            text.iter().any(|note| note.contains(name) && note.contains("another log"))
        };
        let reader = Db::open(&path, options(false).read_only(true)).unwrap();
        let report = reader.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty() && is_named(&report.notes), "{report:?}");
        drop(reader);
        // The store's next manifest may have the same number.
        let (db, space) = made(&path, is_shared, 3);
        for round in 0..10 {
            db.put(&space, format!("{round}"), "value").unwrap();
            db.flush().unwrap();
        }
        assert!(is_named(&db.verify(&mut |_| {}).unwrap().notes));
        drop(db);
        is_whole(&path, 1);
        is_whole(&path, 3);
    }
}

#[test]
fn an_index_of_another_log_alone_is_refused_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("store"), dir.path().join("other"));
    made(&path, false, 1).0.close().unwrap();
    made(&other, false, 2).0.close().unwrap();
    fs::rename(path.join("index"), dir.path().join("away")).unwrap();
    fs::rename(other.join("index"), path.join("index")).unwrap();
    let before = files(&path.join("index"));
    let error = Db::open(&path, options(false)).unwrap_err();
    assert!(
        matches!(&error, Error::Forked { .. }) && error.to_string().contains("index/MANIFEST."),
        "{error}"
    );
    assert!(
        verify(&path, options(false), &mut |_| {})
            .unwrap()
            .notes
            .iter()
            .any(|note| note.contains("MANIFEST."))
    );
    assert!(files(&path.join("index")) == before);
}
