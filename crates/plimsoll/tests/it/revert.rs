//! Reverts and resets against a model, with random states, keyspaces and values of all sizes.

use std::collections::BTreeMap;

use plimsoll::{
    Db, Durability, Glsn, MergeAction, MergeOutcome, Moment, Options, Overflow, Retention,
};
use plimsoll_disk::random::Random;

type State = BTreeMap<(String, Vec<u8>), Vec<u8>>;

const NAMES: [&str; 3] = ["default", "notes", "other"];

fn seed(default: u64) -> Random {
    let seed = std::env::var("SEED").map_or(default, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    Random::new(seed)
}

fn options() -> Options {
    Options::new()
        .memory_bytes(16 << 20)
        .background(false)
        .warm(false)
        .durability(Durability::Buffered)
}

/// All keys of the user at a moment.
fn state(db: &Db, at: Glsn) -> State {
    let snapshot = db.snapshot_at(Moment::Glsn(at)).unwrap();
    let mut state = State::new();
    for name in NAMES {
        let Some(keyspace) = snapshot.keyspace(name).unwrap() else { continue };
        for row in snapshot.range(&keyspace, ..).unwrap() {
            let (key, value) = row.unwrap();
            state.insert((name.to_owned(), key), value.to_vec());
        }
    }
    state
}

/// A value that is inline, in the log, in a blob file, or empty.
fn value(random: &mut Random) -> Vec<u8> {
    let bytes = match random.below(40) {
        0 => 300 << 10,
        1 => 70 << 10,
        2..=5 => 2000,
        6 => 0,
        _ => 1 + random.below(20),
    };
    // Few contents, so that keys return to earlier values.
    vec![random.below(3) as u8; bytes as usize]
}

fn change(db: &Db, random: &mut Random) {
    let name = NAMES[random.below(3) as usize];
    let keyspace = db.keyspace(name).unwrap();
    let mut tx = db.begin();
    if random.below(8) == 0 {
        let from = random.below(150) as u8;
        tx.delete_range(&keyspace, [from]..[from + 100]).unwrap();
    }
    for _ in 0..random.below(20) {
        let other = db.keyspace(NAMES[random.below(3) as usize]).unwrap();
        let key = [random.below(250) as u8];
        match random.below(4) {
            0 => tx.delete(&other, key).unwrap(),
            _ => tx.put(&other, key, value(random)).unwrap(),
        }
    }
    tx.commit().unwrap();
    match random.below(12) {
        0 => db.flush().unwrap(),
        1 => db.compact().unwrap(),
        2 => drop(db.step().unwrap()),
        3 => db.drop_caches(),
        4 if name == "other" => drop(db.drop_keyspace(&keyspace).unwrap()),
        _ => {}
    }
}

/// The merge of three states by key; `None` if there is a conflict.
fn merge(base: &State, ours: &State, theirs: &State) -> Option<State> {
    let mut merged = ours.clone();
    for key in base.keys().chain(theirs.keys()) {
        let (base, our, their) = (base.get(key), ours.get(key), theirs.get(key));
        if base == their || our == their {
            continue;
        }
        if base != our {
            return None;
        }
        match their {
            Some(value) => _ = merged.insert(key.clone(), value.clone()),
            None => _ = merged.remove(key),
        }
    }
    Some(merged)
}

#[test]
fn random_reverts_merge_as_the_model_does_and_reverting_them_restores() {
    let mut random = seed(1);
    let (mut merged, mut conflicts) = (0, 0);
    for round in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("store"), options()).unwrap();
        for name in NAMES {
            db.keyspace(name).unwrap();
        }
        for _ in 0..40 {
            change(&db, &mut random);
        }
        for _ in 0..40 {
            change(&db, &mut random);
            // So that every name exists, as a put needs.
            db.keyspace("other").unwrap();
            let before = state(&db, db.newest());
            let newest = db.newest();
            let back = random.below(newest.0.min(if round % 2 == 0 { 6 } else { 60 }));
            let commit = Glsn(newest.0 - back);
            let (base, theirs) = (state(&db, commit), state(&db, Glsn(commit.0 - 1)));
            let revert = db.revert(commit);
            let steps = revert.preview().and_then(|steps| steps.collect::<Result<Vec<_>, _>>());
            let outcome = match revert.run() {
                Ok(outcome) => outcome,
                Err(plimsoll::Error::InvalidInput(plimsoll::InvalidInput::NothingToRevert {
                    ..
                })) => {
                    assert_eq!(base, theirs);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let steps = steps.unwrap();
            let wanted = merge(&base, &before, &theirs);
            match (outcome, wanted) {
                (MergeOutcome::UpToDate, Some(wanted)) => {
                    assert_eq!((&wanted, db.newest()), (&before, newest));
                    assert!(steps.is_empty());
                }
                (MergeOutcome::Conflicts(found), None) => {
                    conflicts += 1;
                    let found: Vec<_> = found.map(|found| found.unwrap()).collect();
                    let previewed =
                        steps.iter().filter(|step| step.action() == MergeAction::Conflict);
                    assert!(!found.is_empty());
                    assert!(found.iter().map(|it| it.key()).eq(previewed.map(|it| it.key())));
                    assert_eq!((state(&db, db.newest()), db.newest()), (before, newest));
                }
                (MergeOutcome::Merged(glsn), Some(wanted)) => {
                    merged += 1;
                    assert!(state(&db, db.newest()) == wanted, "revert of {commit}");
                    for step in &steps {
                        let key = (step.keyspace().to_owned(), step.key().to_vec());
                        let value = step.merged().unwrap().map(|value| value.to_vec());
                        assert_eq!(value.as_ref(), wanted.get(&key));
                        assert_ne!(before.get(&key), wanted.get(&key));
                    }
                    assert!(matches!(db.revert(glsn).run().unwrap(), MergeOutcome::Merged(_)));
                    assert!(state(&db, db.newest()) == before, "revert of the revert {glsn}");
                    if random.below(2) == 0 {
                        assert!(db.reset_to(glsn).run().unwrap().is_some());
                        assert!(state(&db, db.newest()) == wanted, "reset to {glsn}");
                    }
                }
                (outcome, wanted) => panic!("{outcome:?}, conflict: {}", wanted.is_none()),
            }
        }
        db.close().unwrap();
    }
    assert!(merged > 40 && conflicts > 40, "{merged} merged, {conflicts} conflicts");
}

#[test]
fn reset_makes_the_state_equal_to_that_of_the_moment() {
    let mut random = seed(2);
    for _ in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("store"), options()).unwrap();
        for _ in 0..60 {
            change(&db, &mut random);
        }
        for _ in 0..20 {
            change(&db, &mut random);
            db.keyspace("other").unwrap();
            let to = Glsn(random.below(db.newest().0 + 1));
            let (wanted, before) = (state(&db, to), state(&db, db.newest()));
            let steps = db.reset_to(to).preview().unwrap().count();
            let done = db.reset_to(to).run().unwrap();
            assert!(state(&db, db.newest()) == wanted, "reset to {to}");
            let differing =
                before.keys().chain(wanted.keys().filter(|key| !before.contains_key(key)));
            let differing = differing.filter(|key| before.get(key) != wanted.get(key)).count();
            assert_eq!((steps, done.is_some()), (differing, differing > 0));
            assert!(db.reset_to(to).run().unwrap().is_none());
        }
        db.close().unwrap();
    }
}

#[test]
fn reset_of_one_keyspace_leaves_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let [a, b, _] = NAMES.map(|name| db.keyspace(name).unwrap());
    let before = db.put(&a, "k", "1").unwrap();
    db.put(&a, "k", "2").unwrap();
    db.put(&b, "k", "3").unwrap();
    let glsn = db.reset_to(before).keyspace(&a).metadata("why").run().unwrap().unwrap();
    assert_eq!(db.get(&a, "k").unwrap().unwrap(), b"1");
    assert_eq!(db.get(&b, "k").unwrap().unwrap(), b"3");
    assert_eq!(db.log().commit(glsn).unwrap().unwrap().metadata().unwrap(), b"why");
    let glsn = db.reset_to(before).run().unwrap().unwrap();
    let metadata = format!("reset to GLSN {before}");
    assert_eq!(db.log().commit(glsn).unwrap().unwrap().metadata().unwrap(), metadata.as_bytes());
    assert_eq!(db.get(&b, "k").unwrap(), None);
    assert!(db.reset_to(Moment::Newest).run().unwrap().is_none());
}

#[test]
fn a_million_changed_keys_are_reverted_and_reset_within_the_smallest_budget() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options().background(true)).unwrap();
    let keyspace = db.create_keyspace("rows", Retention::Forever).unwrap();
    let load = |value: u64| {
        let rows = (0..1_000_000u64).map(|row| (row.to_be_bytes(), (row ^ value).to_le_bytes()));
        db.bulk_load(&keyspace, rows).unwrap()
    };
    let first = load(0);
    let wrong = load(1 << 40);
    db.add(&keyspace, "later", 1, Overflow::Checked).unwrap();
    let check = |value: u64, keys: u64| {
        let snapshot = db.snapshot();
        assert_eq!(snapshot.len(&keyspace).unwrap(), keys);
        for row in (0..1_000_000u64).step_by(10_007) {
            let found = snapshot.get(&keyspace, row.to_be_bytes()).unwrap().unwrap();
            assert_eq!(found, (row ^ value).to_le_bytes());
        }
    };
    assert!(matches!(db.revert(wrong).run().unwrap(), MergeOutcome::Merged(_)));
    check(0, 1_000_001);
    assert!(db.reset_to(wrong).run().unwrap().is_some());
    check(1 << 40, 1_000_000);
    let MergeOutcome::Conflicts(conflicts) = db.revert(first).run().unwrap() else {
        panic!("every key was changed again")
    };
    assert_eq!(conflicts.take(100_000).filter(Result::is_ok).count(), 100_000);
    check(1 << 40, 1_000_000);
    db.close().unwrap();
}
