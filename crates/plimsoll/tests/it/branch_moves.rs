//! Reverts and resets on branches.

use plimsoll::{
    Branch, Error, Glsn, InvalidInput, MergeOutcome, MergeRule, MergeSide, Moment, Overflow,
};
use plimsoll_disk::random::Random;

use crate::branch_world::{State, branch, invalid, merged, open, state, state_at};

#[test]
fn a_revert_on_a_branch_leaves_the_others() {
    let (db, keys) = open();
    db.put(&keys, "a", "0").unwrap();
    let inherited = db.put(&keys, "a", "1").unwrap();
    let draft = branch(&db, "draft", &db.main());
    let child = branch(&db, "child", &draft);
    let mut tx = draft.begin();
    tx.put(&keys, "a", vec![7; 300_000]).unwrap();
    tx.put(&keys, "b", "2").unwrap();
    tx.delete(&keys, "none").unwrap();
    let wrong = tx.commit().unwrap();
    draft.put(&keys, "c", "3").unwrap();
    let others = || [state(&db.main(), &keys), state(&child, &keys)];
    let before = others();
    let undone = merged(draft.revert(wrong).run());
    let log = db.log().commit(undone).unwrap().unwrap();
    assert_eq!(log.metadata().unwrap(), format!("revert of GLSN {wrong}").as_bytes());
    assert_eq!(draft.get(&keys, "a").unwrap().unwrap(), b"1");
    assert_eq!((draft.get(&keys, "b").unwrap(), draft.len(&keys).unwrap()), (None, 2));
    merged(draft.revert(undone).run());
    assert_eq!(draft.get(&keys, "a").unwrap().unwrap(), vec![7; 300_000]);
    merged(draft.revert(wrong).rule(&keys, MergeRule::Theirs).run());
    // A commit from before the fork, of the parent or of its parent.
    merged(draft.revert(inherited).run());
    merged(child.revert(inherited).run());
    assert_eq!(draft.get(&keys, "a").unwrap().unwrap(), b"0");
    assert_eq!(child.get(&keys, "a").unwrap().unwrap(), b"0");
    assert_eq!(state(&db.main(), &keys), before[0]);
}

#[test]
fn a_conflict_on_a_branch_has_the_values_of_the_branch() {
    let (db, keys) = open();
    let draft = branch(&db, "draft", &db.main());
    draft.add(&keys, "n", 5, Overflow::Checked).unwrap();
    let wrong = db.newest();
    draft.add(&keys, "n", 2, Overflow::Checked).unwrap();
    db.add(&keys, "n", 100, Overflow::Checked).unwrap();
    let MergeOutcome::Conflicts(mut conflicts) = draft.revert(wrong).run().unwrap() else {
        panic!()
    };
    let conflict = conflicts.next().unwrap().unwrap();
    let value = |side| conflict.value(side).unwrap().map(|value| value.to_vec());
    assert_eq!(value(MergeSide::Base), Some(5i64.to_le_bytes().to_vec()));
    assert_eq!(value(MergeSide::Ours), Some(7i64.to_le_bytes().to_vec()));
    assert_eq!(value(MergeSide::Theirs), None);
    merged(draft.revert(wrong).rule(&keys, MergeRule::Counter).run());
    assert_eq!(draft.get(&keys, "n").unwrap().unwrap(), 2i64.to_le_bytes());
    assert_eq!(db.get(&keys, "n").unwrap().unwrap(), 100i64.to_le_bytes());
}

#[test]
fn a_reverted_merge_is_merged_again_only_by_reverting_the_revert() {
    let (db, keys) = open();
    for key in ["a", "b"] {
        db.put(&keys, key, "0").unwrap();
    }
    for name in ["main", "other"] {
        let into = if name == "main" { db.main() } else { branch(&db, "other", &db.main()) };
        let topic = branch(&db, "topic", &into);
        topic.put(&keys, "a", format!("topic of {name}")).unwrap();
        topic.delete(&keys, "b").unwrap();
        into.put(&keys, "c", "own").unwrap();
        let before = state(&into, &keys);
        let merge = merged(db.merge(&topic).into(&into).run());
        let after = state(&into, &keys);
        assert_ne!(before, after);
        let undone = merged(into.revert(merge).run());
        assert_eq!(state(&into, &keys), before);
        assert!(matches!(db.merge(&topic).into(&into).run().unwrap(), MergeOutcome::UpToDate));
        topic.put(&keys, "d", name).unwrap();
        merged(db.merge(&topic).into(&into).run());
        assert_eq!(into.get(&keys, "b").unwrap().unwrap(), b"0");
        merged(into.revert(undone).run());
        let d = (b"d".to_vec(), name.as_bytes().to_vec());
        assert_eq!(state(&into, &keys), after.into_iter().chain([d]).collect());
        db.put(&keys, "b", "0").unwrap();
        db.delete_branch("topic").unwrap();
    }
}

#[test]
fn a_commit_of_another_branch_is_refused_with_its_name() {
    let (db, keys) = open();
    let draft = branch(&db, "draft", &db.main());
    let child = branch(&db, "child", &draft);
    let on_main = db.put(&keys, "a", "1").unwrap();
    let on_draft = draft.put(&keys, "a", "2").unwrap();
    let on_child = child.put(&keys, "a", "3").unwrap();
    let newest = db.newest();
    let refused = |on: &Branch, glsn: Glsn, made_on: Option<&str>| {
        let branch = on.name().to_owned();
        let wanted =
            InvalidInput::CommitOnOtherBranch { glsn, branch, made_on: made_on.map(str::to_owned) };
        assert_eq!(invalid(on.revert(glsn).run()), wanted);
        assert_eq!(invalid(on.revert(glsn).preview()), wanted);
        wanted.to_string()
    };
    let text = refused(&db.main(), on_draft, Some("draft"));
    let wanted = "branch \"main\" does not contain GLSN";
    assert!(text.contains(wanted), "{text}");
    refused(&db.main(), on_child, Some("child"));
    refused(&draft, on_main, Some("main"));
    refused(&draft, on_child, Some("child"));
    // After the fork of the child.
    refused(&child, on_draft, Some("draft"));
    assert_eq!(invalid(db.revert(on_draft).run()), invalid(db.main().revert(on_draft).run()));
    db.rename_branch("draft", "other").unwrap();
    refused(&db.main(), on_draft, Some("other"));
    db.delete_branch("child").unwrap();
    let deleted = db.newest();
    let nothing = InvalidInput::NothingToRevert { glsn: deleted };
    assert_eq!(invalid(draft.revert(deleted).run()), nothing);
    assert_eq!(invalid(db.revert(deleted).run()), nothing);
    let text = refused(&db.main(), on_child, None);
    assert!(text.contains("a deleted branch"), "{text}");
    assert_eq!(
        invalid(child.revert(on_child).run()),
        InvalidInput::NoBranch { name: "child".into() }
    );
    assert_eq!(
        invalid(child.reset_to(newest).run()),
        InvalidInput::NoBranch { name: "child".into() }
    );
    let created = Glsn(on_main.0 - 1);
    assert_eq!(
        invalid(draft.revert(created).run()),
        InvalidInput::NothingToRevert { glsn: created }
    );
}

#[test]
fn a_commit_that_the_log_no_longer_has_is_reverted_on_its_branch() {
    let (db, keys) = open();
    db.put(&keys, "a", "0").unwrap();
    let draft = branch(&db, "draft", &db.main());
    draft.put(&keys, "a", "1").unwrap();
    let wrong = draft.put(&keys, "a", "2").unwrap();
    draft.put(&keys, "b", "3").unwrap();
    db.flush().unwrap();
    db.log().trim(db.newest().next()).unwrap();
    assert!(matches!(db.log().commit(wrong), Err(Error::Trimmed { .. })));
    merged(draft.revert(wrong).run());
    assert_eq!(draft.get(&keys, "a").unwrap().unwrap(), b"1");
    assert_eq!(draft.get(&keys, "b").unwrap().unwrap(), b"3");
}

#[test]
fn a_reset_of_a_branch_is_one_commit_on_it() {
    let (db, keys) = open();
    let other = db.keyspace("other").unwrap();
    let before = db.put(&keys, "a", "0").unwrap();
    db.put(&keys, "x", "0").unwrap();
    let draft = branch(&db, "draft", &db.main());
    let first = draft.put(&keys, "a", "1").unwrap();
    draft.put(&other, "k", "1").unwrap();
    draft.delete(&keys, "x").unwrap();
    let late = db.keyspace("late").unwrap();
    draft.put(&late, "k", "1").unwrap();
    let main = db.put(&keys, "a", "main").unwrap();
    let reset = draft.reset_to(first).keyspace(&keys);
    assert_eq!(reset.preview().unwrap().count(), 1);
    let glsn = reset.run().unwrap().unwrap();
    assert_eq!(glsn, main.next());
    assert_eq!(draft.get(&keys, "x").unwrap().unwrap(), b"0");
    assert_eq!(draft.get(&other, "k").unwrap().unwrap(), b"1");
    assert_eq!(draft.reset_to(first).keyspace(&keys).run().unwrap(), None);
    // Before the fork; a keyspace that did not exist then is emptied.
    draft.reset_to(before).run().unwrap().unwrap();
    assert_eq!(state(&draft, &keys), State::from([(b"a".to_vec(), b"0".to_vec())]));
    assert_eq!((draft.len(&other).unwrap(), draft.len(&late).unwrap()), (0, 0));
    draft.reset_to(glsn).run().unwrap().unwrap();
    assert_eq!((draft.len(&keys).unwrap(), draft.len(&late).unwrap()), (2, 1));
    assert_eq!(db.get(&keys, "a").unwrap().unwrap(), b"main");
    // Main, to a moment at which a branch was written.
    assert_eq!(db.reset_to(first).run().unwrap(), Some(db.newest()));
    assert_eq!(db.get(&keys, "a").unwrap().unwrap(), b"0");
    assert_eq!(draft.get(&keys, "a").unwrap().unwrap(), b"1");
}

/// The model keeps the state of each branch after each commit, to check reverts and resets.
#[test]
fn random_reverts_and_resets_on_branches_agree_with_the_model() {
    let seed = std::env::var("SEED").map_or(5, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let mut reverts = [0; 3];
    for _ in 0..8 {
        let (db, keys) = open();
        let mut branches = vec![db.main()];
        for _ in 0..150 {
            let on = random.below(branches.len() as u64) as usize;
            let on_branch = branches[on].clone();
            let before = state(&on_branch, &keys);
            let others: Vec<State> = branches.iter().map(|it| state(it, &keys)).collect();
            let at = random.below(db.newest().0 + 1);
            match random.below(8) {
                0 if branches.len() < 6 => {
                    let name = format!("branch-{}", branches.len());
                    let moment = Moment::Glsn(Glsn(at.max(1)));
                    branches.push(db.create_branch_at(&name, &on_branch, moment).unwrap());
                    continue;
                }
                1 => {
                    let wanted = state_at(&on_branch, &keys, Moment::Glsn(Glsn(at)));
                    let done = on_branch.reset_to(Glsn(at)).run().unwrap();
                    assert_eq!(done.is_some(), before != wanted);
                    assert_eq!(state(&on_branch, &keys), wanted);
                }
                2 | 3 => {
                    let at = |at: u64| state_at(&on_branch, &keys, Moment::Glsn(Glsn(at)));
                    let back = random.below(db.newest().0.min(12));
                    let commit = db.newest().0 - back;
                    let (base, theirs) = (at(commit), at(commit - 1));
                    match on_branch.revert(Glsn(commit)).rule(&keys, MergeRule::Theirs).run() {
                        Err(error) => {
                            let is_known = matches!(
                                &error,
                                Error::InvalidInput(
                                    InvalidInput::NothingToRevert { .. }
                                        | InvalidInput::CommitOnOtherBranch { .. }
                                )
                            );
                            assert!(is_known, "{error}");
                            assert_eq!(base, theirs, "{commit}");
                            reverts[0] += 1;
                        }
                        Ok(outcome) => {
                            let mut wanted = before.clone();
                            for key in base.keys().chain(theirs.keys()) {
                                match (base.get(key) == theirs.get(key), theirs.get(key)) {
                                    (true, _) => {}
                                    (_, Some(value)) => {
                                        _ = wanted.insert(key.clone(), value.clone())
                                    }
                                    (_, None) => _ = wanted.remove(key),
                                }
                            }
                            assert_eq!(state(&on_branch, &keys), wanted, "{commit}");
                            let is_changed = matches!(outcome, MergeOutcome::Merged(_));
                            reverts[1 + usize::from(is_changed)] += 1;
                        }
                    }
                }
                _ => {
                    let mut tx = on_branch.begin();
                    if random.below(6) == 0 {
                        let from = random.below(20) as u8;
                        tx.delete_range(&keys, [from]..[from + 8]).unwrap();
                    }
                    for _ in 0..random.below(5) {
                        let key = [random.below(30) as u8];
                        match random.below(3) {
                            0 => tx.delete(&keys, key).unwrap(),
                            _ => tx.put(&keys, key, [random.below(3) as u8]).unwrap(),
                        }
                    }
                    tx.commit().unwrap();
                }
            }
            for (other, was) in others.iter().enumerate().filter(|(other, _)| *other != on) {
                assert_eq!(state(&branches[other], &keys), *was);
            }
        }
        assert!(db.verify(&mut |_| {}).is_ok());
    }
    assert!(reverts.iter().all(|count| *count > 5), "{reverts:?}");
}

#[test]
fn a_reset_brings_back_a_keyspace_that_was_dropped_after_the_fork() {
    for is_created_again in [false, true] {
        let (db, _) = open();
        let notes = db.keyspace("notes").unwrap();
        for key in ["a", "both"] {
            db.put(&notes, key, "main").unwrap();
        }
        let draft = branch(&db, "draft", &db.main());
        let child = branch(&db, "child", &draft);
        draft.put(&notes, "both", "draft").unwrap();
        let at = draft.put(&notes, "b", "draft").unwrap();
        let before = state(&draft, &notes);
        db.drop_keyspace(&notes).unwrap();
        if !is_created_again {
            for branch in [&draft, &child] {
                let gone = InvalidInput::KeyspaceGone { name: "notes".to_owned() };
                assert_eq!(invalid(branch.reset_to(at).run()), gone);
                assert_eq!(invalid(branch.reset_to(at).preview().unwrap().next().unwrap()), gone);
            }
            continue;
        }
        let notes = db.keyspace("notes").unwrap();
        assert_eq!(state(&draft, &notes), State::new());
        db.put(&notes, "a", "new").unwrap();
        let late = branch(&db, "late", &db.main());
        draft.put(&notes, "c", "new").unwrap();
        let newer = draft.snapshot().at();
        draft.reset_to(at).run().unwrap().unwrap();
        assert_eq!(state(&draft, &notes), before);
        child.reset_to(at).keyspace(&notes).run().unwrap().unwrap();
        assert_eq!(state(&child, &notes).len(), 2);
        assert_eq!(child.get(&notes, "both").unwrap().unwrap(), b"main");
        late.reset_to(at).run().unwrap().unwrap();
        assert_eq!(late.get(&notes, "a").unwrap().unwrap(), b"main");
        // Back to the new keyspace.
        draft.reset_to(newer).run().unwrap().unwrap();
        assert_eq!(state(&draft, &notes).into_keys().collect::<Vec<_>>(), [b"c".to_vec()]);
        assert_eq!(draft.reset_to(newer).run().unwrap(), None);
    }
}

#[test]
fn newest_keeps_a_key_that_the_reverted_commit_created() {
    let (db, keys) = open();
    let wrong = db.put(&keys, "a", "1").unwrap();
    db.put(&keys, "a", "2").unwrap();
    let revert = db.revert(wrong).rule(&keys, MergeRule::Newest);
    assert!(matches!(revert.run().unwrap(), MergeOutcome::UpToDate));
    assert_eq!(db.get(&keys, "a").unwrap().unwrap(), b"2");
}
