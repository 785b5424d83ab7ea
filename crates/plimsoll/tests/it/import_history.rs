//! `Db::import_history`: commits with given parents.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::*;

fn time(number: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(number)
}

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false)
}

fn store() -> Db {
    Db::in_memory(options()).unwrap()
}

/// Imports a history of `commits` commits, with two lines that merge each other, an octopus merge
/// and a second root. Stops after `stop` commits.
fn import(db: &Db, commits: u64, stop: u64) -> Result<Vec<CommitId>> {
    let notes = db.keyspace("notes")?;
    let mut import = db.import_history("main")?;
    let mut ids: Vec<CommitId> = Vec::new();
    for number in 0..commits.min(stop) {
        let at = |back: u64| ids[(number - back) as usize];
        let parents = match number {
            0 | 3 => vec![],
            1 | 2 => vec![at(1)],
            _ if number % 7 == 0 => vec![at(2), at(1), at(3)],
            _ if number % 3 == 0 => vec![at(2), at(1)],
            _ => vec![at(2)],
        };
        // The line of the last commit, by first parents.
        let is_on_branch = number % 2 == (commits - 1) % 2 && number > 3;
        let mut commit = import.begin(&parents, time(number), is_on_branch)?;
        commit.delete(&notes, "0")?;
        commit.put(&notes, "a", number.to_string())?;
        commit.put(&notes, format!("b{number}"), "new")?;
        commit.set_metadata(format!("number {number}").as_bytes())?;
        commit.set_source(&number.to_be_bytes())?;
        commit.put_record(b"last", &number.to_be_bytes())?;
        let id = commit.commit()?;
        assert_eq!(import.find(&number.to_be_bytes())?, Some(id));
        ids.push(id);
    }
    if stop >= commits {
        import.set_branch("other", &ids[ids.len() - 2])?;
        import.set_branch("early", &ids[2])?;
        import.finish(ids.last().unwrap())?;
    }
    Ok(ids)
}

#[test]
fn a_history_keeps_its_parents_and_its_ids() {
    let db = store();
    let ids = import(&db, 40, 40).unwrap();
    assert_eq!(db.branches().unwrap().len(), 2, "temporary branches are deleted");
    assert_eq!(db.main().tip().unwrap(), ids.last().copied());
    assert_eq!(db.branch("other").unwrap().tip().unwrap(), Some(ids[38]));
    assert_eq!(db.branch("early").unwrap().tip().unwrap(), Some(ids[2]));
    assert_eq!(db.commit_parents(&ids[21]).unwrap(), [ids[19], ids[20], ids[18]]);
    assert_eq!(db.commit_parents(&ids[3]).unwrap(), []);
    assert_eq!(db.find_imported(&7_u64.to_be_bytes()).unwrap(), Some(ids[7]));
    assert_eq!(db.import_record(b"last").unwrap().unwrap(), 39_u64.to_be_bytes());
    let notes = db.keyspace("notes").unwrap();
    assert_eq!(db.get(&notes, "a").unwrap().unwrap(), b"39");
    let other = db.branch("other").unwrap();
    assert_eq!(other.get(&notes, "a").unwrap().unwrap(), b"38");
    // The same history again changes nothing.
    let versions = || db.history(&notes, "a").unwrap().count();
    let before = versions();
    assert_eq!(import(&db, 40, 40).unwrap(), ids);
    assert_eq!(db.main().tip().unwrap(), ids.last().copied());
    assert_eq!(versions(), before);
    assert_eq!(db.branches().unwrap().len(), 2);
}

#[test]
fn an_imported_history_is_exchanged_under_its_ids() {
    let (db, copy) = (store(), store());
    let ids = import(&db, 60, 60).unwrap();
    copy.fetch_from(&db, "main", "main").unwrap();
    copy.fetch_from(&db, "other", "other").unwrap();
    assert_eq!(copy.main().tip().unwrap(), ids.last().copied());
    assert_eq!(copy.state_hash().unwrap(), db.state_hash().unwrap());
    for id in &ids {
        assert_eq!(copy.commit_parents(id).unwrap(), db.commit_parents(id).unwrap());
    }
}

#[test]
fn an_import_continues_after_an_interruption() {
    let whole = import(&store(), 30, 30).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for stop in [1, 2, 3, 7, 11, 12, 25, 30] {
        let db = Db::open(dir.path(), options()).unwrap();
        let ids = import(&db, 30, stop).unwrap();
        assert_eq!(ids, whole[..stop as usize]);
        drop(db);
    }
    let db = Db::open(dir.path(), options()).unwrap();
    assert_eq!(db.main().tip().unwrap(), whole.last().copied());
    assert_eq!(db.branches().unwrap().len(), 2, "no temporary branch stays");
}

#[test]
fn more_lines_than_are_known_at_once() {
    let db = store();
    let notes = db.keyspace("notes").unwrap();
    let mut import = db.import_history("main").unwrap();
    let mut put = |parents: &[CommitId], key: String, on: bool| {
        let mut commit = import.begin(parents, time(1), on).unwrap();
        commit.put(&notes, key, "value").unwrap();
        commit.commit().unwrap()
    };
    let root = put(&[], "root".into(), true);
    let mut lines: Vec<CommitId> =
        (0..600).map(|n| put(&[root], format!("x{n:03}"), false)).collect();
    for (number, tip) in lines.iter_mut().enumerate() {
        *tip = put(&[*tip], format!("y{number:03}"), false);
    }
    let mut tip = root;
    for line in &lines {
        tip = put(&[tip, *line], format!("merge {line}"), true);
    }
    import.finish(&tip).unwrap();
    assert_eq!(db.main().tip().unwrap(), Some(tip));
    assert_eq!(db.branches().unwrap(), []);
    let copy = store();
    assert_eq!(copy.fetch_from(&db, "main", "main").unwrap().commits, 1801);
    assert_eq!(copy.main().tip().unwrap(), Some(tip));
}

#[test]
fn refused_input_changes_nothing() {
    let db = store();
    let notes = db.keyspace("notes").unwrap();
    let mut import = db.import_history("main").unwrap();
    let missing: CommitId = "7".repeat(64).parse().unwrap();
    let refused = import.begin(&[missing], time(1), true).err().unwrap();
    assert!(matches!(refused, Error::InvalidInput(InvalidInput::NoCommit { .. })), "{refused}");

    let mut commit = import.begin(&[], time(1), true).unwrap();
    commit.put(&notes, "b", "1").unwrap();
    for key in ["a", "b"] {
        let refused = commit.put(&notes, key, "1").unwrap_err();
        assert!(matches!(refused, Error::InvalidInput(InvalidInput::ImportOrder { .. })));
    }
    let first = commit.commit().unwrap();

    let mut commit = import.begin(&[first], time(2), true).unwrap();
    let refused = commit.put_reader(&notes, "c", 5, &mut &b"1234"[..]).unwrap_err();
    assert!(matches!(refused, Error::InvalidInput(InvalidInput::ValueLength { bytes: 4, .. })));
    let refused = commit.commit().unwrap_err();
    assert!(matches!(refused, Error::InvalidInput(InvalidInput::TransactionFailed)));

    // A dropped commit leaves no trace.
    import.begin(&[first], time(2), true).unwrap().put(&notes, "c", "2").unwrap();
    let mut commit = import.begin(&[first], time(2), true).unwrap();
    commit.put_reader(&notes, "d", 4, &mut &b"1234"[..]).unwrap();
    let second = commit.commit().unwrap();
    import.finish(&second).unwrap();
    assert_eq!(db.get(&notes, "c").unwrap(), None);
    assert_eq!(db.get(&notes, "d").unwrap().unwrap(), b"1234");

    // Commits of others are not replaced.
    let own = db.create_branch("own", &db.main()).unwrap();
    own.put(&notes, "e", "own").unwrap();
    db.put(&notes, "e", "main").unwrap();
    let mut import = db.import_history("main").unwrap();
    let refused = import.set_branch("own", &second).unwrap_err();
    assert!(matches!(refused, Error::InvalidInput(InvalidInput::NotFastForward { .. })));
    let refused = import.finish(&second).unwrap_err();
    assert!(matches!(refused, Error::InvalidInput(InvalidInput::NotFastForward { .. })));
    assert_eq!(own.get(&notes, "e").unwrap().unwrap(), b"own");
}

#[test]
fn commits_of_a_deleted_branch_are_imported_again() {
    let db = store();
    let notes = db.keyspace("notes").unwrap();
    let import_side = |db: &Db, is_kept: bool| {
        let mut import = db.import_history("main").unwrap();
        let mut put = |parents: &[CommitId], key: &str, on: bool| {
            if let Some(id) = import.find(key.as_bytes()).unwrap() {
                return (id, false);
            }
            let mut commit = import.begin(parents, time(7), on).unwrap();
            commit.put(&notes, key, "value").unwrap();
            commit.set_source(key.as_bytes()).unwrap();
            (commit.commit().unwrap(), true)
        };
        let (root, _) = put(&[], "root", true);
        let (side, is_new) = put(&[root], "side", false);
        let (last, _) = put(&[side], "last", false);
        if is_kept {
            import.set_branch("side", &last).unwrap();
        }
        import.finish(&root).unwrap();
        (last, is_new)
    };
    let (last, is_new) = import_side(&db, true);
    assert!(is_new);
    assert_eq!(import_side(&db, true), (last, false));
    db.delete_branch("side").unwrap();
    // Once without a branch, and then with one.
    assert_eq!(import_side(&db, false), (last, true));
    assert_eq!(import_side(&db, true), (last, true));
    assert_eq!(db.branch("side").unwrap().tip().unwrap(), Some(last));
    assert_eq!(db.commit_time(&last).unwrap(), time(7));
}

#[test]
fn an_own_commit_has_the_same_time_in_every_store() {
    let (db, copy) = (store(), store());
    let glsn = db.put(&db.keyspace("notes").unwrap(), "a", "1").unwrap();
    let id = db.commit_id(glsn).unwrap().unwrap();
    copy.fetch_from(&db, "main", "main").unwrap();
    let logged = db.log().commit(glsn).unwrap().unwrap().time();
    assert_eq!(db.commit_time(&id).unwrap(), logged);
    assert_eq!(copy.commit_time(&id).unwrap(), logged);
}

#[test]
fn a_branch_survives_a_failed_replacement() {
    let db = store();
    let notes = db.keyspace("notes").unwrap();
    let ids = import(&db, 10, 10).unwrap();
    let import = db.import_history("main").unwrap();
    let before = db.branch("early").unwrap().tip().unwrap();
    drop(import);
    let mut import = db.import_history("main").unwrap();
    let missing: CommitId = "7".repeat(64).parse().unwrap();
    assert!(import.set_branch("early", &missing).is_err());
    assert_eq!(db.branch("early").unwrap().tip().unwrap(), before);
    import.set_branch("early", &ids[9]).unwrap();
    assert_eq!(db.branch("early").unwrap().tip().unwrap(), Some(ids[9]));
    import.finish(&ids[9]).unwrap();
    assert_eq!(db.branch("early").unwrap().get(&notes, "a").unwrap().unwrap(), b"9");
    assert!(db.branches().unwrap().iter().all(|info| !info.name.starts_with("incoming/")));
}
