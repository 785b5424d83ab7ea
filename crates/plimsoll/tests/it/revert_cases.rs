//! Cases of reverts and resets: conflicts and rules, large values, keyspaces, concurrent writers,
//! failures, bad input.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll::{
    Compression, Db, Error, Glsn, InvalidInput, Keyspace, MergeAction, MergeDecision, MergeOutcome,
    MergeRule, MergeSide, MergeStep, Moment, Options, Overflow, Result, Retention,
};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::lying::LyingDisk;

use crate::branch_world::merged;

fn open() -> (Db, Keyspace) {
    let db = Db::in_memory(Options::new().memory_bytes(16 << 20).background(false)).unwrap();
    let keyspace = db.keyspace("notes").unwrap();
    (db, keyspace)
}

fn rows(db: &Db, keyspace: &Keyspace, at: impl Into<Moment>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let snapshot = db.snapshot_at(at.into()).unwrap();
    let rows = snapshot.range(keyspace, ..).unwrap();
    rows.map(|row| row.map(|(key, value)| (key, value.to_vec())).unwrap()).collect()
}

#[track_caller]
fn conflicts(outcome: Result<MergeOutcome>) -> Vec<MergeStep> {
    match outcome.unwrap() {
        MergeOutcome::Conflicts(conflicts) => conflicts.map(|conflict| conflict.unwrap()).collect(),
        other => panic!("{other:?}"),
    }
}

/// The values of a key in base, ours and theirs, and what a revert with the default rule does.
#[test]
fn each_combination_of_three_values_is_merged_or_a_conflict() {
    let values = [None, Some("a"), Some("b"), Some("c")];
    let set = |db: &Db, keyspace: &Keyspace, value: Option<&str>| match value {
        Some(value) => db.put(keyspace, "key", value).unwrap(),
        None => db.delete(keyspace, "key").unwrap(),
    };
    for theirs in values {
        for base in values {
            for ours in values {
                let (db, keyspace) = open();
                set(&db, &keyspace, theirs);
                let commit = set(&db, &keyspace, base);
                let newest = set(&db, &keyspace, ours);
                let outcome = db.revert(commit).run();
                let now = db.get(&keyspace, "key").unwrap().map(plimsoll::Value::into_vec);
                let place = format!("base {base:?}, ours {ours:?}, theirs {theirs:?}");
                let wanted = if base == theirs || ours == theirs {
                    assert!(matches!(outcome, Ok(MergeOutcome::UpToDate)), "{place}");
                    ours
                } else if base == ours {
                    assert!(merged(outcome) > newest, "{place}");
                    theirs
                } else {
                    let found = conflicts(outcome);
                    assert_eq!(found.len(), 1, "{place}");
                    for (side, value) in [
                        (MergeSide::Base, base),
                        (MergeSide::Ours, ours),
                        (MergeSide::Theirs, theirs),
                    ] {
                        let read = found[0].value(side).unwrap().map(plimsoll::Value::into_vec);
                        assert_eq!(read.as_deref(), value.map(str::as_bytes), "{place}");
                        let len = found[0].reader(side).unwrap().map(|reader| reader.len());
                        assert_eq!(len, value.map(|value| value.len() as u64));
                    }
                    assert_eq!(found[0].merged().unwrap(), None);
                    assert_eq!(db.newest(), newest, "{place}");
                    ours
                };
                assert_eq!(now.as_deref(), wanted.map(str::as_bytes), "{place}");
            }
        }
    }
}

#[test]
fn a_conflict_keeps_its_values_while_others_write() {
    let (db, keyspace) = open();
    db.put(&keyspace, "a", "theirs").unwrap();
    let wrong = db.put(&keyspace, "a", "base").unwrap();
    db.put(&keyspace, "a", "ours").unwrap();
    let Ok(MergeOutcome::Conflicts(mut found)) = db.revert(wrong).run() else { panic!() };
    db.put(&keyspace, "a", "later").unwrap();
    db.compact().unwrap();
    let conflict = found.next().unwrap().unwrap();
    assert_eq!(conflict.value(MergeSide::Ours).unwrap().unwrap(), b"ours");
    assert!(found.next().is_none() && found.next().is_none());
    let text = format!("{conflict:?}");
    assert!(text.contains("notes") && text.contains("Conflict") && text.contains("\\\"a\\\""));
}

#[test]
fn rules_decide_about_conflicts_only() {
    let begin = || {
        let (db, keyspace) = open();
        db.put(&keyspace, "both", "theirs").unwrap();
        let wrong = db
            .transact(|tx| {
                tx.put(&keyspace, "both", "base")?;
                tx.put(&keyspace, "once", "base")
            })
            .map(|()| db.newest())
            .unwrap();
        db.put(&keyspace, "both", "ours").unwrap();
        (db, keyspace, wrong)
    };
    let cases: [(MergeRule, Option<&str>); 5] = [
        (MergeRule::Ours, Some("ours")),
        (MergeRule::Theirs, Some("theirs")),
        (MergeRule::function(|_| MergeDecision::Delete), None),
        (MergeRule::function(|_| MergeDecision::Put(b"own".to_vec())), Some("own")),
        (
            MergeRule::function(|input| {
                let all = [input.base, input.ours, input.theirs].map(Option::unwrap);
                assert_eq!((input.keyspace, input.key), ("notes", &b"both"[..]));
                MergeDecision::Put(all.join(&b' '))
            }),
            Some("base ours theirs"),
        ),
    ];
    for (rule, wanted) in cases {
        let (db, keyspace, wrong) = begin();
        let shown = format!("{rule:?}");
        let revert = db.revert(wrong).rule(&keyspace, MergeRule::Conflict).rule(&keyspace, rule);
        let steps: Vec<_> = revert.preview().unwrap().map(|step| step.unwrap()).collect();
        assert!(steps.iter().all(|step| step.action() != MergeAction::Conflict), "{shown}");
        merged(revert.run());
        let now = db.get(&keyspace, "both").unwrap();
        assert_eq!(now.as_deref(), wanted.map(str::as_bytes), "{shown}");
        assert_eq!(db.get(&keyspace, "once").unwrap(), None, "{shown}");
    }
    let (db, keyspace, wrong) = begin();
    let rule = MergeRule::function(|_| MergeDecision::Conflict);
    assert_eq!(conflicts(db.revert(wrong).rule(&keyspace, rule).run()).len(), 1);
    // The rule of another keyspace does not count.
    let other = db.keyspace("other").unwrap();
    assert_eq!(conflicts(db.revert(wrong).rule(&other, MergeRule::Ours).run()).len(), 1);
}

#[test]
fn a_function_that_panics_is_an_error_and_nothing_is_written() {
    let (db, keyspace) = open();
    db.put(&keyspace, "a", "1").unwrap();
    let wrong = db.put(&keyspace, "a", "2").unwrap();
    let newest = db.put(&keyspace, "a", "3").unwrap();
    let rule = MergeRule::function(|input| panic!("no rule for {} bytes", input.key.len()));
    let revert = db.revert(wrong).rule(&keyspace, rule);
    for error in [revert.run().unwrap_err(), revert.preview().unwrap().next().unwrap().unwrap_err()]
    {
        let Error::InvalidInput(InvalidInput::MergeFunctionPanicked { keyspace, key, message }) =
            &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(
            (&keyspace[..], &key[..], &message[..]),
            ("notes", &b"a"[..], "no rule for 1 bytes")
        );
    }
    assert_eq!(db.newest(), newest);
    merged(db.revert(wrong).rule(&keyspace, MergeRule::Theirs).run());
}

#[test]
fn counters_keep_the_other_additions() {
    let run = |theirs: Option<i64>, base: Option<i64>, ours: Option<i64>| {
        let (db, keyspace) = open();
        let set = |value: Option<i64>| match value {
            Some(value) => db.put(&keyspace, "n", value.to_le_bytes()).unwrap(),
            None => db.delete(&keyspace, "n").unwrap(),
        };
        set(theirs);
        let wrong = set(base);
        set(ours);
        match db.revert(wrong).rule(&keyspace, MergeRule::Counter).run().unwrap() {
            MergeOutcome::Conflicts(_) => None,
            _ => Some(db.add(&keyspace, "n", 0, Overflow::Checked).unwrap()),
        }
    };
    assert_eq!(run(Some(10), Some(15), Some(20)), Some(15));
    assert_eq!(run(Some(10), Some(15), Some(10)), Some(5));
    assert_eq!(run(None, Some(5), Some(7)), Some(2));
    assert_eq!(run(Some(3), None, Some(4)), Some(7));
    assert_eq!(run(Some(3), Some(5), None), None, "it was deleted since");
    // It is deleted already.
    assert_eq!(run(None, Some(5), None), Some(0));
    assert_eq!(run(Some(i64::MAX), Some(0), Some(1)), None);
    assert_eq!(run(Some(i64::MIN), Some(i64::MAX), Some(-1)), None);
    assert_eq!(run(Some(i64::MAX), Some(i64::MAX - 1), Some(-1)), Some(0));
    let (db, keyspace) = open();
    db.put(&keyspace, "n", "no number").unwrap();
    let wrong = db.put(&keyspace, "n", 5i64.to_le_bytes()).unwrap();
    db.put(&keyspace, "n", 6i64.to_le_bytes()).unwrap();
    let revert = db.revert(wrong).rule(&keyspace, MergeRule::Counter);
    assert_eq!(conflicts(revert.run()).len(), 1);
    db.put(&keyspace, "n", "no number").unwrap();
    assert!(matches!(revert.run(), Ok(MergeOutcome::UpToDate)));
}

#[test]
fn texts_are_merged_by_lines() {
    let (db, keyspace) = open();
    let text = |from: u32| -> String { (from..20_000).map(|line| format!("{line}\n")).collect() };
    db.put(&keyspace, "t", text(0)).unwrap();
    let wrong = db.put(&keyspace, "t", format!("wrong\n{}", text(1))).unwrap();
    db.put(&keyspace, "t", format!("wrong\n{}last", text(1))).unwrap();
    assert_eq!(conflicts(db.revert(wrong).run()).len(), 1);
    merged(db.revert(wrong).rule(&keyspace, MergeRule::Text).run());
    assert_eq!(db.get(&keyspace, "t").unwrap().unwrap(), format!("{}last", text(0)).as_bytes());
    // A text that was added or deleted, and a change of the same line.
    db.put(&keyspace, "t", "one").unwrap();
    let wrong = db.put(&keyspace, "t", "two").unwrap();
    db.put(&keyspace, "t", "three").unwrap();
    assert_eq!(conflicts(db.revert(wrong).rule(&keyspace, MergeRule::Text).run()).len(), 1);
    db.delete(&keyspace, "t").unwrap();
    assert_eq!(conflicts(db.revert(wrong).rule(&keyspace, MergeRule::Text).run()).len(), 1);
}

#[test]
fn values_above_the_budget_are_compared_and_copied_in_pieces() {
    let (db, keyspace) = open();
    let put = |byte: u8| {
        let mut tx = db.begin();
        let mut value = std::io::Read::take(std::io::repeat(byte), 20 << 20);
        tx.put_reader(&keyspace, "large", &mut value).unwrap();
        tx.commit().unwrap()
    };
    let has = |byte: u8| {
        let mut reader = db.snapshot().get_reader(&keyspace, "large").unwrap().unwrap();
        assert_eq!(reader.len(), 20 << 20);
        let mut piece = vec![0; 1 << 20];
        while std::io::Read::read(&mut reader, &mut piece).unwrap() > 0 {
            assert!(piece.iter().all(|found| *found == byte));
        }
    };
    put(1);
    let wrong = put(2);
    merged(db.revert(wrong).run());
    has(1);
    // Written again with the same bytes: no conflict, and nothing to do.
    put(2);
    merged(db.revert(wrong).run());
    put(1);
    assert!(matches!(db.revert(wrong).run(), Ok(MergeOutcome::UpToDate)));
    put(3);
    assert_eq!(conflicts(db.revert(wrong).run()).len(), 1);
    let gone = db.delete(&keyspace, "large").unwrap();
    merged(db.revert(gone).run());
    has(3);
    // A function gets values in memory, and these do not fit.
    let rule = MergeRule::function(|_| MergeDecision::Delete);
    let error = db.revert(wrong).rule(&keyspace, rule).run().unwrap_err();
    assert!(matches!(error, Error::OutOfBudget(_)), "{error:?}");
    has(3);
    assert!(db.reset_to(wrong).run().unwrap().is_some());
    has(2);
}

#[test]
fn range_deletions_and_bulk_loads_are_reverted() {
    let (db, keyspace) = open();
    let load = (0..5000u32).map(|row| (row.to_be_bytes(), row.to_le_bytes()));
    let loaded = db.bulk_load(&keyspace, load).unwrap();
    let full = rows(&db, &keyspace, Moment::Newest);
    let wrong = db
        .transact(|tx| {
            tx.delete_range(&keyspace, 100u32.to_be_bytes()..4900u32.to_be_bytes())?;
            tx.put(&keyspace, 200u32.to_be_bytes(), "new")?;
            tx.put(&keyspace, "outside", "new")
        })
        .map(|()| db.newest())
        .unwrap();
    assert_eq!(rows(&db, &keyspace, Moment::Newest).len(), 202);
    db.put(&keyspace, 300u32.to_be_bytes(), "later").unwrap();
    let found = conflicts(db.revert(wrong).run());
    assert_eq!(found.iter().map(MergeStep::key).collect::<Vec<_>>(), [300u32.to_be_bytes()]);
    db.compact().unwrap();
    merged(db.revert(wrong).rule(&keyspace, MergeRule::Theirs).run());
    assert_eq!(rows(&db, &keyspace, Moment::Newest), full);
    let all = db.delete_prefix(&keyspace, "").unwrap();
    merged(db.revert(all).run());
    assert_eq!(rows(&db, &keyspace, Moment::Newest), full);
    let undone = merged(db.revert(loaded).run());
    assert_eq!(rows(&db, &keyspace, Moment::Newest), BTreeMap::new());
    merged(db.revert(undone).run());
    assert_eq!(rows(&db, &keyspace, Moment::Newest), full);
}

#[test]
fn a_dropped_keyspace_is_filled_again_once_it_exists() {
    let (db, keyspace) = open();
    db.put(&keyspace, "a", "1").unwrap();
    let before = db.newest();
    let dropped = db.drop_keyspace(&keyspace).unwrap().glsn;
    let gone = |error| {
        error == Error::InvalidInput(InvalidInput::KeyspaceGone { name: "notes".to_owned() })
    };
    assert!(gone(db.revert(dropped).run().unwrap_err()));
    assert!(gone(db.reset_to(before).run().unwrap_err()));
    let again = db.keyspace("notes").unwrap();
    let created = db.newest();
    let undone = merged(db.revert(dropped).run());
    assert_eq!(db.get(&again, "a").unwrap().unwrap(), b"1");
    // At that moment the keyspace of that name was another one.
    assert!(db.reset_to(before).run().unwrap().is_none());
    merged(db.revert(undone).run());
    assert_eq!(db.get(&again, "a").unwrap(), None);
    assert!(db.reset_to(before).run().unwrap().is_some());
    assert_eq!(db.get(&again, "a").unwrap().unwrap(), b"1");
    let error = db.revert(created).run().unwrap_err();
    let nothing = InvalidInput::NothingToRevert { glsn: created };
    assert_eq!(error, Error::InvalidInput(nothing));
    // A keyspace that did not exist at the moment is emptied.
    let other = db.keyspace("other").unwrap();
    db.put(&other, "b", "2").unwrap();
    assert!(db.reset_to(before).run().unwrap().is_some());
    assert_eq!(db.snapshot().len(&other).unwrap(), 0);
}

#[test]
fn a_commit_that_the_log_no_longer_has_is_found_in_the_index() {
    let (db, keyspace) = open();
    db.put(&keyspace, "a", "1").unwrap();
    let wrong = db.put(&keyspace, "a", "2").unwrap();
    db.put(&keyspace, "b", "3").unwrap();
    db.flush().unwrap();
    db.log().trim(db.newest().next()).unwrap();
    assert!(matches!(db.log().commit(wrong), Err(Error::Trimmed { .. })));
    merged(db.revert(wrong).run());
    let wanted = [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"3".to_vec())];
    assert_eq!(rows(&db, &keyspace, Moment::Newest), BTreeMap::from(wanted));
}

#[test]
fn moments_and_commits_that_cannot_be_reverted_are_refused() {
    let (db, keyspace) = open();
    let newest = db.put(&keyspace, "a", "1").unwrap();
    let not_a_commit = |glsn| Error::InvalidInput(InvalidInput::NotACommit { glsn });
    assert_eq!(db.revert(Glsn::NONE).run().unwrap_err(), not_a_commit(Glsn::NONE));
    let asked = newest.next();
    assert_eq!(db.revert(asked).run().unwrap_err(), Error::Future { asked, newest });
    assert_eq!(db.reset_to(asked).run().unwrap_err(), Error::Future { asked, newest });
    let entry = *db.log().append(1, &[b"text"]).unwrap().start();
    assert_eq!(db.revert(entry).run().unwrap_err(), not_a_commit(entry));
    db.log().cursor("reader", Glsn(1)).unwrap();
    let cursor = db.newest();
    let error = db.revert(cursor).preview().unwrap_err();
    assert_eq!(error, Error::InvalidInput(InvalidInput::NothingToRevert { glsn: cursor }));
    let (_other, foreign) = open();
    let foreign_handle =
        |error| matches!(error, Error::InvalidInput(InvalidInput::ForeignKeyspace { .. }));
    let revert = db.revert(newest).rule(&foreign, MergeRule::Ours);
    assert!(foreign_handle(revert.run().unwrap_err()));
    assert!(foreign_handle(db.reset_to(newest).keyspace(&foreign).run().unwrap_err()));
    let long = vec![0; plimsoll::MAX_METADATA_BYTES + 1];
    let error = db.revert(newest).metadata(long).run().unwrap_err();
    assert!(matches!(error, Error::InvalidInput(InvalidInput::MetadataTooLong { .. })));
    assert!(db.get(&keyspace, "a").unwrap().is_some());
    let glsn = merged(db.revert(newest).metadata("why").run());
    assert_eq!(db.log().commit(glsn).unwrap().unwrap().metadata().unwrap(), b"why");
    let latest = db.create_keyspace("latest", Retention::Latest).unwrap();
    let first = db.put(&latest, "k", "1").unwrap();
    for value in 2..50 {
        db.put(&latest, "k", [value]).unwrap();
    }
    db.compact().unwrap();
    for refused in
        [db.revert(first.next()).run().unwrap_err(), db.reset_to(first).run().unwrap_err()]
    {
        let is_named = matches!(&refused, Error::Trimmed { keyspace, .. }
            if keyspace.as_deref() == Some("latest"));
        assert!(is_named && refused.to_string().contains("in the keyspace `latest`"), "{refused}");
    }
    // The other keyspaces still have that moment.
    assert!(db.reset_to(newest).keyspace(&keyspace).run().unwrap().is_some());
    db.clone().close().unwrap();
    assert_eq!(db.revert(newest).run().unwrap_err(), Error::Closed);
    assert_eq!(db.reset_to(newest).run().unwrap_err(), Error::Closed);
}

#[test]
fn a_revert_of_one_keyspace_leaves_the_others() {
    let (db, keyspace) = open();
    let other = db.keyspace("other").unwrap();
    let wrong = db
        .transact(|tx| {
            tx.put(&keyspace, "a", "1")?;
            tx.put(&other, "b", "2")
        })
        .map(|()| db.newest())
        .unwrap();
    db.put(&other, "b", "3").unwrap();
    merged(db.revert(wrong).keyspace(&keyspace).run());
    assert_eq!(db.get(&keyspace, "a").unwrap(), None);
    assert_eq!(conflicts(db.revert(wrong).run()).len(), 1);
    let outcome = db.revert(wrong).keyspace(&keyspace).run();
    assert!(matches!(outcome, Ok(MergeOutcome::UpToDate)));
}

#[test]
fn a_read_only_store_previews_and_refuses_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = Options::new().memory_bytes(16 << 20).background(false);
    let db = Db::open(&path, options.clone()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let wrong = db.put(&keyspace, "a", "1").unwrap();
    db.close().unwrap();
    let db = Db::open(&path, options.read_only(true)).unwrap();
    for steps in [db.revert(wrong).preview().unwrap(), db.reset_to(Glsn::NONE).preview().unwrap()] {
        let steps: Vec<_> = steps.map(|step| step.unwrap()).collect();
        assert_eq!((steps.len(), steps[0].action()), (1, MergeAction::Delete));
    }
    assert_eq!(db.revert(wrong).run().unwrap_err(), Error::ReadOnly);
    assert_eq!(db.reset_to(wrong).run().unwrap_err(), Error::ReadOnly);
}

/// Writers move units between two keys in each transaction, so that the sum never changes; resets
/// and reverts in between keep it.
/// Ends other threads even if this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each value has a number that no other one has. Otherwise a revert would find that later
/// transfers had given one of its accounts its earlier value, and change only the other one.
#[test]
fn reverts_and_resets_are_serializable_with_concurrent_writers() {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let value = |amount: u32| {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        [&amount.to_le_bytes()[..], &number.to_le_bytes()].concat()
    };
    let amount = |value: &[u8]| u32::from_le_bytes(value[..4].try_into().unwrap());
    let db = Db::in_memory(Options::new().memory_bytes(32 << 20)).unwrap();
    let accounts = db.keyspace("accounts").unwrap();
    let begin = db
        .transact(|tx| (0..50u8).try_for_each(|key| tx.put(&accounts, [key], value(100))))
        .map(|()| db.newest())
        .unwrap();
    let (ends, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let (db, accounts, ends, moves) = (&db, &accounts, &ends, &moves);
            scope.spawn(move || {
                let mut turn = thread;
                while !ends.load(Ordering::Relaxed) {
                    turn = turn.wrapping_mul(31).wrapping_add(7);
                    let (from, to) = (turn % 50, (turn / 3 + 1) % 50);
                    if from == to {
                        continue;
                    }
                    let moved = db.transact(|tx| {
                        let read = |key: u8| -> Result<u32> {
                            Ok(amount(&tx.get(accounts, [key])?.unwrap()))
                        };
                        let (a, b) = (read(from)?, read(to)?);
                        tx.put(accounts, [from], value(a.wrapping_sub(1)))?;
                        tx.put(accounts, [to], value(b.wrapping_add(1)))
                    });
                    match moved {
                        Ok(()) => _ = moves.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    std::thread::sleep(std::time::Duration::from_millis(8));
                }
            });
        }
        let _ends = SetOnDrop(&ends);
        let wanted = rows(&db, &accounts, begin);
        let (mut resets, mut reverts) = (0, 0);
        for round in 0..60 {
            let before = moves.load(Ordering::Relaxed);
            while moves.load(Ordering::Relaxed) == before {
                std::thread::yield_now();
            }
            if round % 2 == 0 {
                match db.reset_to(begin).run() {
                    Ok(Some(glsn)) => {
                        resets += 1;
                        assert!(rows(&db, &accounts, glsn) == wanted, "reset at {glsn}");
                    }
                    Ok(None) | Err(Error::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            } else {
                match db.revert(db.newest()).run() {
                    Ok(MergeOutcome::Merged(_)) => reverts += 1,
                    Ok(_) | Err(Error::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            let rows = rows(&db, &accounts, Moment::Newest);
            let sum = rows.values().fold(0u32, |sum, value| sum.wrapping_add(amount(value)));
            assert_eq!(sum, 5000, "round {round}");
        }
        assert!(resets > 5 && reverts > 5, "{resets} resets, {reverts} reverts");
    });
}

/// The commits of another process are seen, and judged.
#[test]
fn processes_that_share_a_store_revert_each_others_commits() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = Options::new().memory_bytes(16 << 20).background(false).shared(true);
    let (one, two) = (Db::open(&path, options.clone()).unwrap(), Db::open(&path, options).unwrap());
    let (a, b) = (one.keyspace("notes").unwrap(), two.keyspace("notes").unwrap());
    one.put(&a, "k", "1").unwrap();
    let wrong = one.put(&a, "k", "2").unwrap();
    merged(two.revert(wrong).run());
    assert_eq!(one.get(&a, "k").unwrap().unwrap(), b"1");
    two.put(&b, "k", "3").unwrap();
    assert_eq!(conflicts(one.revert(wrong).run()).len(), 1);
    two.put(&b, "l", "4").unwrap();
    assert!(one.reset_to(wrong).run().unwrap().is_some());
    assert_eq!(rows(&two, &b, Moment::Newest), BTreeMap::from([(b"k".to_vec(), b"2".to_vec())]));
}

/// A failure at any point leaves the state as it was, and the same call succeeds afterwards.
#[test]
fn a_failed_read_or_reservation_leaves_nothing_half_done() {
    let disk = LyingDisk::new(5);
    let options = Options::new()
        .memory_bytes(16 << 20)
        .background(false)
        .warm(false)
        .world(Arc::new(disk.clone()), Arc::new(SystemClock::new()));
    let db = Db::open("/store", options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let put_all = |byte: u8| {
        db.transact(|tx| {
            (0..300u32).try_for_each(|key| {
                let bytes = if key % 60 == 0 { 300 << 10 } else { 40 * (key as usize % 50) };
                tx.put(&keyspace, key.to_be_bytes(), vec![byte; bytes])
            })
        })
        .unwrap();
        db.newest()
    };
    put_all(1);
    let wrong = put_all(2);
    db.flush().unwrap();
    let before = rows(&db, &keyspace, Moment::Newest);
    let (mut failed, mut memory) = (0, 0);
    for turn in 0..60 {
        db.drop_caches();
        let newest = db.newest();
        let is_memory = turn % 2 == 0;
        match is_memory {
            true => db.refuse_after(turn / 2, 1),
            false => disk.fail_reads(0.002 * turn as f64),
        }
        let done = match turn % 4 < 2 {
            true => db.revert(wrong).run().map(drop),
            false => db.reset_to(Glsn(wrong.0 - 1)).run().map(drop),
        };
        db.refuse_after(u64::MAX, 0);
        disk.fail_reads(0.0);
        match done {
            Ok(()) => assert!(db.reset_to(newest).run().unwrap().is_some()),
            Err(Error::OutOfBudget(_)) if is_memory => (failed, memory) = (failed + 1, memory + 1),
            Err(Error::Io { .. }) if !is_memory => failed += 1,
            Err(error) => panic!("{error:?}"),
        }
        assert!(rows(&db, &keyspace, Moment::Newest) == before, "turn {turn}");
    }
    assert!(failed - memory > 5 && memory > 3, "{failed} failed, {memory} for memory");
    merged(db.revert(wrong).run());
    assert!(rows(&db, &keyspace, Moment::Newest) == rows(&db, &keyspace, Glsn(wrong.0 - 1)));
}

#[test]
fn an_error_of_a_reader_is_the_error_of_the_store() {
    let disk = LyingDisk::new(6);
    let options = Options::new()
        .memory_bytes(16 << 20)
        .background(false)
        .world(Arc::new(disk.clone()), Arc::new(SystemClock::new()));
    let db = Db::open("/store", options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    db.put(&keyspace, "a", vec![7; 1 << 20]).unwrap();
    let blob = disk_names(&disk).into_iter().find(|name| name.ends_with(".blob")).unwrap();
    db.drop_caches();
    disk.corrupt(std::path::Path::new("/store/log").join(blob).as_path(), 500_000, 1).unwrap();
    let mut tx = db.begin();
    let mut value = tx.get_reader(&keyspace, "a").unwrap().unwrap();
    let error = tx.put_reader(&keyspace, "b", &mut value).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

fn disk_names(disk: &LyingDisk) -> Vec<String> {
    use plimsoll_disk::vfs::Disk as _;
    disk.names(std::path::Path::new("/store/log")).unwrap()
}

/// Values are compared and then written by the same reader.
#[test]
fn large_values_that_differ_in_one_byte_are_told_apart_and_put_back_whole() {
    for compression in [Compression::None, Compression::Lz4] {
        let (db, keyspace) = open();
        db.set_compression(&keyspace, compression).unwrap();
        // Longer than a piece of a comparison, a chunk of a compressed value and a value in a run.
        let value = |last: u8| [vec![7; 300_000], vec![last]].concat();
        db.put(&keyspace, "changed", value(1)).unwrap();
        db.put(&keyspace, "rewritten", value(1)).unwrap();
        let mut tx = db.begin();
        tx.put(&keyspace, "changed", value(2)).unwrap();
        tx.put(&keyspace, "rewritten", value(1)).unwrap();
        let commit = tx.commit().unwrap();
        db.put(&keyspace, "changed", value(2)).unwrap();
        db.flush().unwrap();
        let steps: Vec<_> =
            db.revert(commit).preview().unwrap().map(|step| step.unwrap()).collect();
        assert_eq!(steps.iter().map(MergeStep::key).collect::<Vec<_>>(), [b"changed"]);
        let reverted = merged(db.revert(commit).run());
        assert_eq!(db.get(&keyspace, "changed").unwrap().unwrap(), value(1));
        let changed = db.diff(&keyspace, commit, reverted, "").unwrap();
        assert_eq!(changed.count(), 1);
        db.put(&keyspace, "changed", value(3)).unwrap();
        assert_eq!(conflicts(db.revert(commit).run()).len(), 1);
    }
}
