//! Merges of branches: compared with a model that knows every commit, and its parents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll::borders::{Border, at_nth, forget, without_pending};
use plimsoll::{
    Branch, Db, Error, InvalidInput, Keyspace, MergeAction, MergeDecision, MergeOutcome, MergeRule,
    MergeSide, Options, Overflow, Retention,
};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;

use crate::branch_world::{branch, is_merged, state};

struct World {
    disk: MemDisk,
    clock: Arc<ManualClock>,
    db: Db,
    keys: Keyspace,
}

fn open(disk: MemDisk, clock: Arc<ManualClock>) -> World {
    let options = Options::new().memory_bytes(16 << 20).segment_bytes(1 << 20);
    let options = options.retention(Retention::Latest).background(false).warm(false);
    let options = options.world(Arc::new(disk.clone()), clock.clone());
    let db = Db::open("/store", options).unwrap();
    let keys = db.keyspace("keys").unwrap();
    World { disk, clock, db, keys }
}

fn world() -> World {
    open(MemDisk::new(), Arc::new(ManualClock::new(1_780_000_000_000_000)))
}

#[test]
fn a_merge_applies_what_changed_since_the_last_one() {
    let World { db, keys, .. } = world();
    let main = db.main();
    for key in ["a", "b", "c", "d"] {
        db.put(&keys, key, "0").unwrap();
    }
    let draft = branch(&db, "draft", &main);
    draft.put(&keys, "a", "1").unwrap();
    draft.delete(&keys, "b").unwrap();
    draft.put(&keys, "e", vec![7; 300_000]).unwrap();
    db.put(&keys, "c", "2").unwrap();
    db.delete(&keys, "d").unwrap();
    assert_eq!(db.merge(&draft).preview().unwrap().count(), 3);
    assert!(is_merged(db.merge(&draft).run()));
    assert!(!is_merged(db.merge(&draft).run()));
    let merged = state(&main, &keys);
    assert_eq!(merged.keys().map(|key| key[0]).collect::<Vec<_>>(), b"ace");
    assert_eq!((&merged[&b"a"[..]][..], &merged[&b"c"[..]][..]), (&b"1"[..], &b"2"[..]));
    assert_eq!(merged[&b"e"[..]], vec![7; 300_000]);
    // The other way, main's own changes.
    assert!(is_merged(db.merge(&main).into(&draft).run()));
    assert_eq!(state(&draft, &keys), merged);
    assert!(!is_merged(db.merge(&main).into(&draft).run()));
    // A key that both change again is a conflict, with the merged value as base.
    draft.put(&keys, "a", "3").unwrap();
    db.put(&keys, "a", "4").unwrap();
    db.put(&keys, "c", "5").unwrap();
    let before = db.newest();
    let MergeOutcome::Conflicts(conflicts) = db.merge(&draft).run().unwrap() else { panic!() };
    let conflicts: Vec<_> = conflicts.map(plimsoll::Result::unwrap).collect();
    assert_eq!((conflicts.len(), conflicts[0].key()), (1, &b"a"[..]));
    assert_eq!(conflicts[0].action(), MergeAction::Conflict);
    let value = |side| conflicts[0].value(side).unwrap().unwrap().to_vec();
    assert_eq!(value(MergeSide::Base), b"1");
    assert_eq!((value(MergeSide::Ours), value(MergeSide::Theirs)), (b"4".to_vec(), b"3".to_vec()));
    assert_eq!(db.newest(), before, "nothing was written");
    assert!(is_merged(db.merge(&draft).rule(&keys, MergeRule::Theirs).run()));
    assert_eq!(main.get(&keys, "a").unwrap().unwrap(), b"3");
    assert_eq!(main.get(&keys, "c").unwrap().unwrap(), b"5");
}

#[test]
fn a_merge_whose_base_another_merge_releases_begins_again() {
    let mut crossed = 0;
    for opened in 1.. {
        let World { db, keys, .. } = world();
        let draft = branch(&db, "draft", &db.main());
        let change = |value: &str| {
            draft.put(&keys, "a", value).unwrap();
            db.put(&keys, "b", value).unwrap();
        };
        change("0");
        assert!(is_merged(db.merge(&draft).run()));
        change("1");
        // When the merge opens its first moment, its second, and so on.
        let (other, from, space) = (db.clone(), draft.clone(), keys.clone());
        let merge = db.merge(&draft);
        at_nth(Border::MomentAsked, opened, move || {
            assert!(is_merged(other.merge(&from).run()));
            other.put(&space, "c", "2").unwrap();
            other.compact().unwrap();
        });
        assert!(merge.run().is_ok(), "opening {opened}");
        let is_over = without_pending(|| db.get(&keys, "c").unwrap().is_none());
        forget();
        if is_over {
            break;
        }
        assert_eq!(db.get(&keys, "a").unwrap().unwrap(), b"1");
        crossed += 1;
    }
    assert!(crossed >= 3, "{crossed}");
}

/// Runs `merge`, of which one key is a conflict, again and again, and another merge that releases
/// its base when it opens its first moment, its second, and so on; returns how often that happened.
fn while_bases_are_released(merge: impl Fn(&plimsoll::BranchMerge)) -> usize {
    for opened in 1.. {
        let World { db, keys, .. } = world();
        let draft = branch(&db, "draft", &db.main());
        draft.put(&keys, "a", "0").unwrap();
        assert!(is_merged(db.merge(&draft).run()));
        draft.put(&keys, "a", "1").unwrap();
        db.put(&keys, "a", "2").unwrap();
        let (other, from, space) = (db.clone(), draft.clone(), keys.clone());
        let merged = db.merge(&draft);
        at_nth(Border::MomentAsked, opened, move || {
            let rule = MergeRule::Theirs;
            assert!(is_merged(other.merge(&from).rule(&space, rule).run()));
            other.put(&space, "c", "2").unwrap();
            other.compact().unwrap();
        });
        merge(&merged);
        let is_over = without_pending(|| db.get(&keys, "c").unwrap().is_none());
        forget();
        if is_over {
            return opened as usize - 1;
        }
    }
    unreachable!("a merge opens some moments");
}

#[test]
fn conflicts_stay_readable_when_another_merge_releases_their_base() {
    let crossed = while_bases_are_released(|merge| match merge.run().unwrap() {
        MergeOutcome::Conflicts(conflicts) => {
            let conflicts: Vec<_> = conflicts.map(|step| step.unwrap()).collect();
            assert_eq!(conflicts.len(), 1, "{conflicts:?}");
            assert_eq!(conflicts[0].value(MergeSide::Base).unwrap().unwrap(), b"0");
        }
        outcome => assert!(matches!(outcome, MergeOutcome::UpToDate), "{outcome:?}"),
    });
    assert!(crossed >= 3, "{crossed}");
}

#[test]
fn a_preview_is_complete_when_another_merge_releases_its_base() {
    let crossed = while_bases_are_released(|merge| {
        let steps: Vec<_> = merge.preview().unwrap().map(|step| step.unwrap()).collect();
        for step in &steps {
            assert_eq!(step.action(), MergeAction::Conflict);
            assert_eq!(step.value(MergeSide::Base).unwrap().unwrap(), b"0");
        }
        assert!(steps.len() <= 1, "{steps:?}");
    });
    assert!(crossed >= 3, "{crossed}");
}

#[test]
fn counters_of_branches_are_added_once() {
    let World { db, keys, .. } = world();
    let main = db.main();
    db.add(&keys, "n", 10, Overflow::Checked).unwrap();
    let other = branch(&db, "other", &main);
    let mut sum = 10;
    for round in 1..5 {
        other.add(&keys, "n", round, Overflow::Checked).unwrap();
        db.add(&keys, "n", 100 * round, Overflow::Checked).unwrap();
        sum += 101 * round;
        let merge = |from: &Branch, into: &Branch| {
            db.merge(from).into(into).rule(&keys, MergeRule::Counter).run()
        };
        assert!(is_merged(merge(&other, &main)));
        assert!(!is_merged(merge(&other, &main)));
        assert_eq!(main.get(&keys, "n").unwrap().unwrap(), sum.to_le_bytes());
        if round % 2 == 0 {
            assert!(is_merged(merge(&main, &other)));
            assert_eq!(other.get(&keys, "n").unwrap().unwrap(), sum.to_le_bytes());
        }
    }
}

#[test]
fn equal_changes_are_merged_so_that_a_later_one_stays() {
    let World { db, keys, .. } = world();
    db.put(&keys, "k", "0").unwrap();
    let draft = branch(&db, "draft", &db.main());
    draft.put(&keys, "k", "1").unwrap();
    db.put(&keys, "k", "1").unwrap();
    assert!(is_merged(db.merge(&draft).run()));
    db.put(&keys, "k", "0").unwrap();
    assert!(!is_merged(db.merge(&draft).run()));
    assert_eq!(db.get(&keys, "k").unwrap().unwrap(), b"0");
}

#[test]
fn what_came_through_a_deleted_branch_is_not_merged_again() {
    let World { db, keys, .. } = world();
    let (x, f) = (branch(&db, "x", &db.main()), branch(&db, "f", &db.main()));
    x.add(&keys, "n", 5, Overflow::Checked).unwrap();
    assert!(is_merged(db.merge(&x).into(&f).run()));
    assert!(is_merged(db.merge(&f).run()));
    db.delete_branch("f").unwrap();
    assert!(!is_merged(db.merge(&x).rule(&keys, MergeRule::Counter).run()));
    x.add(&keys, "n", 1, Overflow::Checked).unwrap();
    assert!(is_merged(db.merge(&x).rule(&keys, MergeRule::Counter).run()));
    assert_eq!(db.get(&keys, "n").unwrap().unwrap(), 6i64.to_le_bytes());
    // Two branches contain a third one by themselves, which is deleted: it is still their base.
    let (a, b) = (branch(&db, "a", &db.main()), branch(&db, "b", &db.main()));
    let both = branch(&db, "both", &db.main());
    both.add(&keys, "n", 10, Overflow::Checked).unwrap();
    assert!(is_merged(db.merge(&both).into(&a).run()));
    assert!(is_merged(db.merge(&both).into(&b).run()));
    db.delete_branch("both").unwrap();
    db.compact().unwrap();
    b.add(&keys, "n", 100, Overflow::Checked).unwrap();
    assert!(is_merged(db.merge(&b).into(&a).rule(&keys, MergeRule::Counter).run()));
    assert_eq!(a.get(&keys, "n").unwrap().unwrap(), 116i64.to_le_bytes());
    assert_eq!(b.get(&keys, "n").unwrap().unwrap(), 116i64.to_le_bytes());
}

#[test]
fn a_branch_that_was_merged_and_deleted_retains_nothing() {
    let World { db, keys, .. } = world();
    for round in 0..40_u8 {
        db.put(&keys, "a", "one").unwrap();
        let draft = branch(&db, "draft", &db.main());
        let child = branch(&db, "child", &draft);
        child.put(&keys, "c", [round; 2000]).unwrap();
        draft.put(&keys, "b", [round; 2000]).unwrap();
        assert!(is_merged(db.merge(&child).into(&draft).run()));
        db.put(&keys, "d", [round]).unwrap();
        assert!(is_merged(db.merge(&db.main()).into(&draft).run()));
        draft.put(&keys, "b", [round; 2001]).unwrap();
        assert!(is_merged(db.merge(&draft).run()));
        db.delete_branch("child").unwrap();
        db.delete_branch("draft").unwrap();
    }
    for value in 0..20_u8 {
        db.put(&keys, "a", [value]).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    db.put(&keys, "a", "new").unwrap();
    db.compact().unwrap();
    assert_eq!(db.history(&keys, "a").unwrap().count(), 1);
    let versions = db.stats().index.versions;
    assert!(versions < 60, "{versions} versions");
}

#[test]
fn a_key_that_several_chains_of_a_lineage_wrote_is_one_step() {
    let World { db, keys, .. } = world();
    let parent = branch(&db, "parent", &db.main());
    parent.put(&keys, "x", "1").unwrap();
    let child = branch(&db, "child", &parent);
    child.put(&keys, "x", "2").unwrap();
    child.put(&keys, "y", "2").unwrap();
    assert_eq!(db.merge(&child).preview().unwrap().count(), 2);
}

#[test]
fn a_branch_that_is_deleted_during_its_merge_is_not_merged() {
    let World { db, keys, .. } = world();
    let (one, two) = (branch(&db, "one", &db.main()), branch(&db, "two", &db.main()));
    one.put(&keys, "a", "1").unwrap();
    two.put(&keys, "b", "2").unwrap();
    db.put(&keys, "a", "0").unwrap();
    let other = db.clone();
    let rule = MergeRule::function(move |_| {
        let _ = other.delete_branch("one");
        MergeDecision::Put(b"3".to_vec())
    });
    match db.merge(&one).rule(&keys, rule).run() {
        Err(Error::InvalidInput(InvalidInput::NoBranch { name })) => assert_eq!(name, "one"),
        other => panic!("{other:?}"),
    }
    assert_eq!(db.get(&keys, "a").unwrap().unwrap(), b"0");
    assert!(is_merged(db.merge(&two).run()));
}

#[test]
fn concurrent_merges_of_two_branches_conflict() {
    let World { db, keys, .. } = world();
    let (a, b) = (branch(&db, "a", &db.main()), branch(&db, "b", &db.main()));
    a.put(&keys, "k", "a").unwrap();
    b.put(&keys, "k", "b").unwrap();
    b.put(&keys, "x", "1").unwrap();
    let (db2, a2, b2, keys2) = (db.clone(), a.clone(), b.clone(), keys.clone());
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let rule = MergeRule::function(move |_| {
        if is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
            b2.delete(&keys2, "x").unwrap();
            b2.put(&keys2, "y", "2").unwrap();
            let inner = db2.merge(&b2).into(&a2).rule(&keys2, MergeRule::Ours);
            assert!(is_merged(inner.run()));
        }
        MergeDecision::Put(b"both".to_vec())
    });
    db.merge(&b).into(&a).rule(&keys, rule).run().unwrap();
    db.merge(&b).into(&a).rule(&keys, MergeRule::Ours).run().unwrap();
    assert_eq!(a.get(&keys, "x").unwrap(), None);
    assert_eq!(a.get(&keys, "y").unwrap().unwrap(), b"2");
}

#[test]
fn merges_of_a_deleted_branch_are_in_a_dump() {
    let World { db, keys, .. } = world();
    let one = branch(&db, "one", &db.main());
    let two = branch(&db, "two", &db.main());
    for round in 0..120_u8 {
        one.put(&keys, [round], "1").unwrap();
        assert!(is_merged(db.merge(&one).into(&two).run()));
    }
    db.delete_branch("two").unwrap();
    db.delete_branch("one").unwrap();
    let mut dump = Vec::new();
    db.dump(plimsoll::DumpOptions::new().history(true), &mut dump).unwrap();
    let disk = MemDisk::new();
    let options = Options::new().memory_bytes(16 << 20).background(false);
    let clock = Arc::new(ManualClock::new(1_790_000_000_000_000));
    let options = options.world(Arc::new(disk), clock);
    Db::restore("/restored", options.clone(), &mut &dump[..]).unwrap();
    let restored = Db::open("/restored", options).unwrap();
    assert_eq!(restored.branches().unwrap(), []);
}

#[test]
fn what_cannot_be_merged_is_refused() {
    let World { db, keys, .. } = world();
    let one = branch(&db, "one", &db.main());
    one.put(&keys, "a", "1").unwrap();
    let newest = db.newest();
    let invalid = |outcome: plimsoll::Result<MergeOutcome>| match outcome {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        invalid(db.merge(&one).into(&one).run()),
        InvalidInput::MergeWithItself { name: "one".into() }
    );
    let other = world();
    let foreign = branch(&other.db, "two", &other.db.main());
    let refused = InvalidInput::ForeignBranch { name: "two".into() };
    assert_eq!(invalid(db.merge(&foreign).run()), refused);
    assert_eq!(invalid(db.merge(&one).into(&foreign).run()), refused);
    db.put(&keys, "a", "2").unwrap();
    let rule = MergeRule::function(|_| panic!("on purpose"));
    let panicked = invalid(db.merge(&one).rule(&keys, rule).run());
    assert!(matches!(panicked, InvalidInput::MergeFunctionPanicked { .. }), "{panicked:?}");
    assert_eq!(db.newest(), newest.next(), "only the put was written");
    db.delete_branch("one").unwrap();
    assert_eq!(invalid(db.merge(&one).run()), InvalidInput::NoBranch { name: "one".into() });
    assert_eq!(
        invalid(db.merge(&db.main()).into(&one).run()),
        InvalidInput::NoBranch { name: "one".into() }
    );
}

#[test]
fn a_key_whose_bases_differ_is_decided_by_the_rule() {
    let World { db, keys, .. } = world();
    let main = db.main();
    db.put(&keys, "k", "0").unwrap();
    let (a, b) = (branch(&db, "a", &main), branch(&db, "b", &main));
    a.put(&keys, "k", "a").unwrap();
    b.put(&keys, "k", "b").unwrap();
    let (a_was, b_was) = (branch(&db, "a1", &a), branch(&db, "b1", &b));
    assert!(is_merged(db.merge(&b_was).into(&a).rule(&keys, MergeRule::Ours).run()));
    assert!(!is_merged(db.merge(&b_was).into(&a).run()), "what a rule has decided is merged");
    assert!(is_merged(db.merge(&a_was).into(&b).rule(&keys, MergeRule::Ours).run()));
    a.put(&keys, "k", "new").unwrap();
    let MergeOutcome::Conflicts(conflicts) = db.merge(&b).into(&a).run().unwrap() else { panic!() };
    let conflicts: Vec<_> = conflicts.map(|step| step.unwrap().key().to_vec()).collect();
    assert_eq!(conflicts, [b"k"]);
    let rule = MergeRule::function(|input| {
        assert_eq!((input.base, input.is_one_base), (None, false));
        assert_eq!((input.ours.unwrap(), input.theirs.unwrap()), (&b"new"[..], &b"b"[..]));
        MergeDecision::Put(b"both".to_vec())
    });
    assert!(is_merged(db.merge(&b).into(&a).rule(&keys, rule).run()));
    assert_eq!(a.get(&keys, "k").unwrap().unwrap(), b"both");
}

#[test]
fn a_fork_without_commits_before_it_is_no_second_base() {
    for rule in [MergeRule::Conflict, MergeRule::Ours] {
        let World { db, keys, .. } = world();
        let main = db.main();
        let one = branch(&db, "one", &main);
        one.put(&keys, "x", "1").unwrap();
        assert!(is_merged(db.merge(&one).run()));
        let two = branch(&db, "two", &one);
        two.put(&keys, "y", "2").unwrap();
        db.put(&keys, "k", "3").unwrap();
        assert!(is_merged(db.merge(&main).into(&one).run()));
        assert!(is_merged(db.merge(&two).run()));
        // Only main changes it.
        db.delete(&keys, "k").unwrap();
        assert!(is_merged(db.merge(&main).into(&one).rule(&keys, rule).run()));
        assert_eq!(state(&one, &keys), state(&main, &keys));
    }
}

#[test]
fn a_value_that_expired_between_two_bases_is_one_base() {
    let World { db, keys, clock, .. } = world();
    let second = std::time::Duration::from_secs(1);
    db.put_with_ttl(&keys, "k", "0", second).unwrap();
    let (a, b) = (branch(&db, "a", &db.main()), branch(&db, "b", &db.main()));
    a.put(&keys, "x", "1").unwrap();
    let a_was = branch(&db, "a1", &a);
    clock.advance(2 * second);
    b.put(&keys, "y", "2").unwrap();
    let b_was = branch(&db, "b1", &b);
    assert!(is_merged(db.merge(&b_was).into(&a).run()));
    assert!(is_merged(db.merge(&a_was).into(&b).run()));
    // Only one side changes it.
    a.put(&keys, "k", "1").unwrap();
    assert!(is_merged(db.merge(&a).into(&b).run()));
    assert_eq!(b.get(&keys, "k").unwrap().unwrap(), b"1");
}

#[test]
fn a_branch_that_begins_at_a_tag_is_merged_with_a_branch_that_main_contained_there() {
    let World { db, keys, .. } = world();
    let side = branch(&db, "side", &db.main());
    side.put(&keys, "a", "1").unwrap();
    assert!(is_merged(db.merge(&side).run()));
    side.put(&keys, "a", "2").unwrap();
    db.tag("then", plimsoll::Moment::Newest).unwrap();
    side.put(&keys, "a", "3").unwrap();
    // This merge makes that of the first value superfluous, but the tag can see it.
    assert!(is_merged(db.merge(&side).run()));
    side.put(&keys, "a", "4").unwrap();
    db.compact().unwrap();
    db.put(&keys, "b", "1").unwrap();
    db.compact().unwrap();
    let then = db.tag_at("then").unwrap();
    let late = db.create_branch_at("late", &db.main(), then.into()).unwrap();
    assert!(is_merged(db.merge(&side).into(&late).run()));
    assert_eq!(late.get(&keys, "a").unwrap().unwrap(), b"4");
}

#[test]
fn a_deleted_tag_retains_no_base_of_a_merge() {
    let World { db, keys, .. } = world();
    let side = branch(&db, "side", &db.main());
    side.put(&keys, "a", "1").unwrap();
    assert!(is_merged(db.merge(&side).run()));
    db.tag("then", plimsoll::Moment::Newest).unwrap();
    side.put(&keys, "a", "2").unwrap();
    assert!(is_merged(db.merge(&side).run()));
    side.put(&keys, "a", "3").unwrap();
    let versions = || {
        db.flush().unwrap();
        db.compact().unwrap();
        db.put(&keys, "b", "1").unwrap();
        db.compact().unwrap();
        side.history(&keys, "a").unwrap().count()
    };
    assert_eq!(versions(), 3, "the bases of both merges, and the newest");
    db.delete_tag("then").unwrap();
    assert_eq!(versions(), 2);
}

#[test]
fn a_key_that_one_base_does_not_have_is_no_conflict() {
    let World { db, keys, .. } = world();
    let (a, b) = (branch(&db, "a", &db.main()), branch(&db, "b", &db.main()));
    a.put(&keys, "k", "1").unwrap();
    b.put(&keys, "x", "1").unwrap();
    let (a_was, b_was) = (branch(&db, "a1", &a), branch(&db, "b1", &b));
    assert!(is_merged(db.merge(&b_was).into(&a).run()));
    assert!(is_merged(db.merge(&a_was).into(&b).run()));
    // Only one side changes it; `b1`, the other base, does not have it.
    a.put(&keys, "k", "2").unwrap();
    assert!(is_merged(db.merge(&a).into(&b).run()));
    assert_eq!(b.get(&keys, "k").unwrap().unwrap(), b"2");
}

/// The number of keys of the model.
const KEYS: u8 = 12;

/// A commit of the model: its parents, and the state after it.
#[derive(Clone, Default)]
struct Node {
    parents: Vec<usize>,
    state: BTreeMap<u8, u64>,
}

#[derive(Default)]
struct Model {
    nodes: Vec<Node>,
    /// The newest commit of each branch.
    tips: Vec<usize>,
}

impl Model {
    fn ancestors(&self, tip: usize) -> BTreeSet<usize> {
        let (mut all, mut open) = (BTreeSet::new(), vec![tip]);
        while let Some(node) = open.pop() {
            if all.insert(node) {
                open.extend(&self.nodes[node].parents);
            }
        }
        all
    }

    /// The common ancestors of two sets of commits that no other one contains, newest first.
    fn newest_common(&self, a: &BTreeSet<usize>, b: &BTreeSet<usize>) -> Vec<usize> {
        let common: BTreeSet<usize> = a.intersection(b).copied().collect();
        let is_newest = |node: &usize| {
            common.iter().all(|other| other == node || !self.ancestors(*other).contains(node))
        };
        common.iter().rev().copied().filter(is_newest).collect()
    }

    /// The value of a key in the merge of some commits; `None`: they changed it in different ways.
    fn merged_value(&self, commits: &[usize], key: u8) -> Option<Option<u64>> {
        let value = |commit: usize| self.nodes[commit].state.get(&key).copied();
        let mut merged = value(commits[0]);
        let mut contained = self.ancestors(commits[0]);
        for other in &commits[1..] {
            let (theirs, ancestors) = (value(*other), self.ancestors(*other));
            if merged != theirs {
                let base = self.merged_value(&self.newest_common(&contained, &ancestors), key)?;
                if base == merged {
                    merged = theirs;
                } else if base != theirs {
                    return None;
                }
            }
            contained.extend(ancestors);
        }
        Some(merged)
    }

    fn commit(&mut self, branch: usize, parents: Vec<usize>, state: BTreeMap<u8, u64>) {
        self.nodes.push(Node { parents, state });
        self.tips[branch] = self.nodes.len() - 1;
    }

    /// The merged state, and the keys in conflict; `None`: nothing is to be done.
    fn merge(&self, from: usize, into: usize) -> Option<(BTreeMap<u8, u64>, BTreeSet<u8>)> {
        let (ours, theirs) = (&self.nodes[into].state, &self.nodes[from].state);
        let bases = self.newest_common(&self.ancestors(into), &self.ancestors(from));
        let (mut merged, mut conflicts, mut is_changed) = (ours.clone(), BTreeSet::new(), false);
        // A key that both changed equally is merged, too.
        for key in 0..KEYS {
            let (our, their) = (ours.get(&key).copied(), theirs.get(&key).copied());
            let base = self.merged_value(&bases, key);
            if base == Some(their) {
                continue;
            }
            is_changed = true;
            if our == their {
                continue;
            }
            if base != Some(our) {
                conflicts.insert(key);
                continue;
            }
            match their {
                Some(value) => _ = merged.insert(key, value),
                None => _ = merged.remove(&key),
            }
        }
        is_changed.then_some((merged, conflicts))
    }
}

fn bytes_of(value: u64) -> Vec<u8> {
    // Some in the index, some in the log.
    vec![value as u8; if value.is_multiple_of(5) { 3000 } else { 9 }]
}

fn run_model(seed: u64, merges: &mut usize) {
    let mut random = Random::new(seed);
    let mut world = world();
    let mut model = Model::default();
    model.nodes.push(Node::default());
    model.tips.push(0);
    let mut names = vec!["main".to_owned()];
    let mut value = 0;
    for step in 0..120 {
        let at = random.below(names.len() as u64) as usize;
        let here = world.db.branch(&names[at]).unwrap();
        match random.below(12) {
            0 if names.len() < 7 => {
                let name = format!("b{step}");
                world.db.create_branch(&name, &here).unwrap();
                names.push(name);
                model.tips.push(model.tips[at]);
            }
            0..=6 => {
                let mut state = model.nodes[model.tips[at]].state.clone();
                here.transact(|tx| {
                    for _ in 0..=random.below(3) {
                        let key = random.below(u64::from(KEYS)) as u8;
                        value += 1;
                        if random.below(4) == 0 {
                            tx.delete(&world.keys, [key])?;
                            state.remove(&key);
                        } else {
                            tx.put(&world.keys, [key], bytes_of(value))?;
                            state.insert(key, value);
                        }
                    }
                    Ok::<(), Error>(())
                })
                .unwrap();
                let parent = model.tips[at];
                model.commit(at, vec![parent], state);
            }
            7..=9 => {
                let from = random.below(names.len() as u64) as usize;
                if from == at {
                    continue;
                }
                let theirs = world.db.branch(&names[from]).unwrap();
                let rule =
                    if random.below(2) == 0 { MergeRule::Conflict } else { MergeRule::Theirs };
                let keeps_theirs = matches!(rule, MergeRule::Theirs);
                let merge = world.db.merge(&theirs).into(&here).rule(&world.keys, rule);
                let outcome = merge.run().unwrap();
                let (tip, their_tip) = (model.tips[at], model.tips[from]);
                let expected = model.merge(their_tip, tip);
                let (mut merged, expected) = match expected {
                    None => {
                        let is_done = matches!(outcome, MergeOutcome::UpToDate);
                        assert!(is_done, "seed {seed}, step {step}: {outcome:?}");
                        continue;
                    }
                    Some(expected) => expected,
                };
                let found: BTreeSet<u8> = match outcome {
                    MergeOutcome::UpToDate => panic!("seed {seed}, step {step}"),
                    MergeOutcome::Conflicts(steps) => {
                        assert!(!keeps_theirs, "seed {seed}, step {step}");
                        steps.map(|it| it.unwrap().key()[0]).collect()
                    }
                    _ => BTreeSet::new(),
                };
                *merges += 1;
                let is_decided = keeps_theirs && found.is_empty();
                assert!(is_decided || found == expected, "seed {seed}, step {step}: {found:?}");
                if !found.is_empty() {
                    continue;
                }
                let theirs = &model.nodes[their_tip].state;
                for key in expected {
                    match theirs.get(&key) {
                        Some(value) => _ = merged.insert(key, *value),
                        None => _ = merged.remove(&key),
                    }
                }
                model.commit(at, vec![tip, their_tip], merged);
            }
            10 => {
                world.db.flush().unwrap();
                if random.below(2) == 0 {
                    world.db.compact().unwrap();
                }
            }
            _ => {
                world.db.close().unwrap();
                world = open(world.disk, world.clock);
            }
        }
        for (name, tip) in names.iter().zip(&model.tips) {
            let found = state(&world.db.branch(name).unwrap(), &world.keys);
            let expected = &model.nodes[*tip].state;
            let expected: BTreeMap<Vec<u8>, Vec<u8>> =
                expected.iter().map(|(key, value)| (vec![*key], bytes_of(*value))).collect();
            assert_eq!(found, expected, "seed {seed}, step {step}, branch {name}");
        }
    }
}

#[test]
fn merges_agree_with_the_model() {
    let mut merges = 0;
    (0..60).for_each(|seed| run_model(seed, &mut merges));
    assert!(merges > 500, "{merges} merges");
}
