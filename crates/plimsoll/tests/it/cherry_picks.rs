//! Cherry-picks of commits.

use plimsoll::{
    Db, Error, Glsn, InvalidInput, MergeAction, MergeOutcome, MergeRule, MergeSide, Overflow,
};
use plimsoll_disk::random::Random;

use crate::branch_world::{State, branch, invalid, merged, open, state};

fn metadata(db: &Db, glsn: Glsn) -> String {
    let commit = db.log().commit(glsn).unwrap().unwrap();
    String::from_utf8(commit.metadata().unwrap().to_vec()).unwrap()
}

#[test]
fn the_changes_of_one_commit_are_applied_to_another_branch() {
    let (db, keys) = open();
    for key in ["a", "b", "c"] {
        db.put(&keys, key, "0").unwrap();
    }
    let (draft, other) = (branch(&db, "draft", &db.main()), branch(&db, "other", &db.main()));
    draft.put(&keys, "before", "1").unwrap();
    let mut tx = draft.begin();
    tx.put(&keys, "a", vec![7; 300_000]).unwrap();
    tx.put(&keys, "new", "1").unwrap();
    tx.delete(&keys, "b").unwrap();
    tx.set_metadata(b"by Ada\n").unwrap();
    let wanted = tx.commit().unwrap();
    draft.put(&keys, "after", "1").unwrap();
    db.put(&keys, "c", "main").unwrap();
    let before = [state(&draft, &keys), state(&other, &keys)];
    assert_eq!(db.cherry_pick(wanted).preview().unwrap().count(), 3);
    let picked = merged(db.cherry_pick(wanted).run());
    assert_eq!(metadata(&db, picked), format!("by Ada\n\n(cherry-pick of GLSN {wanted})"));
    let after = state(&db.main(), &keys);
    assert_eq!(after.keys().map(|key| &key[..]).collect::<Vec<_>>(), [b"a", &b"c"[..], b"new"]);
    assert_eq!(after[&b"a"[..]], vec![7; 300_000]);
    assert_eq!([state(&draft, &keys), state(&other, &keys)], before);
    // Its changes are there.
    assert!(matches!(db.cherry_pick(wanted).run().unwrap(), MergeOutcome::UpToDate));
    // From main into a branch, and from one branch into another; of the picked commit.
    merged(db.cherry_pick(picked).into(&other).run());
    assert_eq!(other.get(&keys, "new").unwrap().unwrap(), b"1");
    assert_eq!((other.len(&keys).unwrap(), other.get(&keys, "before").unwrap()), (3, None));
    let second = branch(&db, "second", &other);
    second.put(&keys, "a", "2").unwrap();
    second.put(&keys, "b", "2").unwrap();
    let MergeOutcome::Conflicts(conflicts) = db.cherry_pick(wanted).into(&second).run().unwrap()
    else {
        panic!()
    };
    let conflicts: Vec<_> = conflicts.map(plimsoll::Result::unwrap).collect();
    assert_eq!(conflicts.iter().map(|it| it.key()).collect::<Vec<_>>(), [b"a", b"b"]);
    assert!(conflicts.iter().all(|it| it.action() == MergeAction::Conflict));
    let value = |side| conflicts[1].value(side).unwrap().map(|value| value.to_vec());
    assert_eq!(value(MergeSide::Base), Some(b"0".to_vec()));
    assert_eq!((value(MergeSide::Ours), value(MergeSide::Theirs)), (Some(b"2".to_vec()), None));
    merged(db.cherry_pick(wanted).into(&second).rule(&keys, MergeRule::Theirs).run());
    assert_eq!(second.get(&keys, "b").unwrap(), None);
    // A pick and a merge of the branch make the same change.
    merged(db.merge(&draft).run());
    assert_eq!(db.get(&keys, "after").unwrap().unwrap(), b"1");
}

#[test]
fn a_merge_is_picked_as_what_it_changed_on_its_branch() {
    let (db, keys) = open();
    let (topic, into) = (branch(&db, "topic", &db.main()), branch(&db, "into", &db.main()));
    topic.put(&keys, "a", "1").unwrap();
    topic.put(&keys, "b", "1").unwrap();
    into.put(&keys, "c", "1").unwrap();
    let merge = merged(db.merge(&topic).into(&into).run());
    let picked = merged(db.cherry_pick(merge).run());
    assert_eq!(state(&db.main(), &keys).len(), 2);
    let text = format!("merge of branch topic\n\n(cherry-pick of GLSN {merge})");
    assert_eq!(metadata(&db, picked), text);
    // It is not recorded as a merge.
    merged(db.merge(&into).run());
    assert_eq!(db.get(&keys, "c").unwrap().unwrap(), b"1");
}

#[test]
fn keyspaces_are_chosen_and_counters_are_added() {
    let (db, keys) = open();
    let other = db.keyspace("other").unwrap();
    let draft = branch(&db, "draft", &db.main());
    let mut tx = draft.begin();
    tx.put(&keys, "a", "1").unwrap();
    tx.put(&other, "a", "1").unwrap();
    let both = tx.commit().unwrap();
    merged(db.cherry_pick(both).keyspace(&keys).metadata("mine").run());
    assert_eq!((db.main().len(&keys).unwrap(), db.main().len(&other).unwrap()), (1, 0));
    assert_eq!(metadata(&db, db.newest()), "mine");
    let nothing = db.cherry_pick(both).except(&keys).except(&other).run();
    assert!(matches!(nothing.unwrap(), MergeOutcome::UpToDate));
    merged(db.cherry_pick(both).except(&keys).run());
    assert_eq!(db.main().len(&other).unwrap(), 1);
    draft.add(&keys, "n", 5, Overflow::Checked).unwrap();
    draft.add(&keys, "n", 2, Overflow::Checked).unwrap();
    let wanted = db.newest();
    db.add(&keys, "n", 100, Overflow::Checked).unwrap();
    merged(db.cherry_pick(wanted).rule(&keys, MergeRule::Counter).run());
    assert_eq!(db.get(&keys, "n").unwrap().unwrap(), 102i64.to_le_bytes());
}

#[test]
fn what_cannot_be_picked_is_refused() {
    let (db, keys) = open();
    let draft = branch(&db, "draft", &db.main());
    let wanted = draft.put(&keys, "a", "1").unwrap();
    let branching = Glsn(wanted.0 - 1);
    let newest = db.newest();
    let asked = newest.next();
    assert_eq!(db.cherry_pick(asked).run().unwrap_err(), Error::Future { asked, newest });
    let not_a_commit = InvalidInput::NotACommit { glsn: Glsn::NONE };
    assert_eq!(invalid(db.cherry_pick(Glsn::NONE).run()), not_a_commit);
    let nothing = InvalidInput::NothingToPick { glsn: branching };
    assert_eq!(invalid(db.cherry_pick(branching).preview()), nothing);
    let (foreign_db, foreign_keys) = open();
    let foreign = branch(&foreign_db, "foreign", &foreign_db.main());
    let refused = invalid(db.cherry_pick(wanted).into(&foreign).run());
    assert_eq!(refused, InvalidInput::ForeignBranch { name: "foreign".into() });
    let refused = invalid(db.cherry_pick(wanted).rule(&foreign_keys, MergeRule::Ours).run());
    assert!(matches!(refused, InvalidInput::ForeignKeyspace { .. }), "{refused}");
    let gone = branch(&db, "gone", &db.main());
    db.delete_branch("gone").unwrap();
    let refused = invalid(db.cherry_pick(wanted).into(&gone).run());
    assert_eq!(refused, InvalidInput::NoBranch { name: "gone".into() });
    let late = db.keyspace("late").unwrap();
    let dropped = draft.put(&late, "a", "1").unwrap();
    db.drop_keyspace(&late).unwrap();
    let refused = invalid(db.cherry_pick(dropped).run());
    assert_eq!(refused, InvalidInput::KeyspaceGone { name: "late".into() });
    let child = branch(&db, "child", &draft);
    db.delete_branch("draft").unwrap();
    let refused = invalid(db.cherry_pick(wanted).into(&child).run());
    assert_eq!(refused, InvalidInput::BranchOfCommitDeleted { glsn: wanted });
    let on_main = db.put(&keys, "b", "1").unwrap();
    db.flush().unwrap();
    db.log().trim(db.newest().next()).unwrap();
    let refused = db.cherry_pick(on_main).into(&child).run().unwrap_err();
    assert!(matches!(refused, Error::Trimmed { .. }), "{refused}");
    assert_eq!(child.len(&keys).unwrap(), 1);
    db.clone().close().unwrap();
    assert_eq!(db.cherry_pick(wanted).run().unwrap_err(), Error::Closed);
}

#[test]
fn random_picks_agree_with_the_model() {
    let seed = std::env::var("SEED").map_or(6, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let mut counts = [0; 3];
    for _ in 0..8 {
        let (db, keys) = open();
        let mut branches = vec![db.main()];
        // The branch of each commit, and the states of the branch before and after it.
        let mut commits: Vec<(Glsn, [State; 2])> = Vec::new();
        for _ in 0..120 {
            let on = branches[random.below(branches.len() as u64) as usize].clone();
            let before = state(&on, &keys);
            match random.below(6) {
                0 if branches.len() < 5 => {
                    let name = format!("branch-{}", branches.len());
                    branches.push(branch(&db, &name, &on));
                }
                1 | 2 if !commits.is_empty() => {
                    let (glsn, [base, theirs]) =
                        &commits[random.below(commits.len() as u64) as usize];
                    let (mut wanted, mut is_conflict) = (before.clone(), false);
                    for key in base.keys().chain(theirs.keys()) {
                        let (was, new, own) = (base.get(key), theirs.get(key), before.get(key));
                        if was == new || own == new {
                            continue;
                        }
                        is_conflict |= own != was;
                        match new {
                            Some(value) => _ = wanted.insert(key.clone(), value.clone()),
                            None => _ = wanted.remove(key),
                        }
                    }
                    let outcome = db.cherry_pick(*glsn).into(&on).run().unwrap();
                    let after = state(&on, &keys);
                    match outcome {
                        MergeOutcome::Conflicts(_) => {
                            assert!(is_conflict && after == before);
                            counts[0] += 1;
                        }
                        MergeOutcome::UpToDate => {
                            assert!(!is_conflict && before == wanted);
                            counts[1] += 1;
                        }
                        _ => {
                            assert!(!is_conflict);
                            assert_eq!(after, wanted);
                            counts[2] += 1;
                            commits.push((db.newest(), [before, after]));
                        }
                    }
                }
                _ => {
                    let mut tx = on.begin();
                    if random.below(6) == 0 {
                        let from = random.below(20) as u8;
                        tx.delete_range(&keys, [from]..[from + 4]).unwrap();
                    }
                    for _ in 0..=random.below(3) {
                        let key = [random.below(30) as u8];
                        match random.below(3) {
                            0 => tx.delete(&keys, key).unwrap(),
                            _ => tx.put(&keys, key, [random.below(3) as u8]).unwrap(),
                        }
                    }
                    let glsn = tx.commit().unwrap();
                    commits.push((glsn, [before, state(&on, &keys)]));
                }
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 15), "{counts:?}");
}
