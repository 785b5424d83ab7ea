//! The rules `Newest`, `Json` and `JsonSet` of merges.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll::{Branch, Db, Keyspace, MergeOutcome, MergeRule, Options, Retention, Ttl};
use plimsoll_disk::random::Random;

use crate::branch_world::{branch, is_merged};

fn open() -> (Db, Keyspace) {
    let options = Options::new().memory_bytes(16 << 20).background(false);
    let db = Db::in_memory(options.retention(Retention::Latest)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    (db, keys)
}

fn value(branch: &Branch, keys: &Keyspace, key: &str) -> Option<Vec<u8>> {
    branch.get(keys, key).unwrap().map(|value| value.to_vec())
}

#[track_caller]
fn run(db: &Db, from: &Branch, into: &Branch, keys: &Keyspace, rule: MergeRule) -> bool {
    is_merged(db.merge(from).into(into).rule(keys, rule).run())
}

#[test]
fn newest_takes_the_version_that_was_committed_last() {
    let (db, keys) = open();
    for key in ["ours", "theirs", "deleted", "undeleted", "range", "expired"] {
        db.put(&keys, key, "0").unwrap();
    }
    let draft = branch(&db, "draft", &db.main());
    let soon = Duration::from_micros(1);
    draft.put(&keys, "ours", "theirs").unwrap();
    db.put(&keys, "ours", "ours").unwrap();
    db.put(&keys, "theirs", "ours").unwrap();
    draft.put(&keys, "theirs", "theirs").unwrap();
    db.put(&keys, "deleted", "ours").unwrap();
    draft.delete(&keys, "deleted").unwrap();
    db.delete(&keys, "undeleted").unwrap();
    draft.put(&keys, "undeleted", "theirs").unwrap();
    draft.put(&keys, "range", "theirs").unwrap();
    db.delete_range(&keys, "range"..="range").unwrap();
    draft.put(&keys, "expired", "theirs").unwrap();
    db.put_with_ttl(&keys, "expired", "ours", soon).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    // Deletions are then in other runs than the keys' newest versions.
    db.flush().unwrap();
    db.compact().unwrap();
    let copy = branch(&db, "copy", &db.main());
    assert!(run(&db, &draft, &db.main(), &keys, MergeRule::Newest));
    assert!(!run(&db, &draft, &db.main(), &keys, MergeRule::Newest));
    for (key, wanted) in [
        ("ours", Some("ours")),
        ("theirs", Some("theirs")),
        ("deleted", None),
        ("undeleted", Some("theirs")),
        ("range", None),
        ("expired", None),
    ] {
        let wanted = wanted.map(|wanted| wanted.as_bytes().to_vec());
        assert_eq!(value(&db.main(), &keys, key), wanted, "{key}");
    }
    // The other way around.
    assert!(run(&db, &copy, &draft, &keys, MergeRule::Newest));
    for key in ["ours", "theirs", "deleted", "undeleted", "range", "expired"] {
        assert_eq!(value(&draft, &keys, key), value(&db.main(), &keys, key), "{key}");
    }
}

#[test]
fn newest_counts_the_first_of_several_range_deletions() {
    for is_compacted in [false, true] {
        let (db, keys) = open();
        for key in ["a", "b"] {
            db.put(&keys, key, "0").unwrap();
        }
        let draft = branch(&db, "draft", &db.main());
        db.delete_range(&keys, "a"..="a").unwrap();
        draft.put(&keys, "a", "draft").unwrap();
        draft.put(&keys, "b", "draft").unwrap();
        db.delete_range(&keys, "a"..="b").unwrap();
        if is_compacted {
            db.flush().unwrap();
            db.compact().unwrap();
        }
        assert!(run(&db, &draft, &db.main(), &keys, MergeRule::Newest));
        assert_eq!(value(&db.main(), &keys, "a").unwrap(), b"draft", "{is_compacted}");
        assert_eq!(value(&db.main(), &keys, "b"), None, "{is_compacted}");
    }
}

#[test]
fn json_merges_fields_and_keeps_the_expiry() {
    let (db, keys) = open();
    db.put(&keys, "k", r#"{"name":"Ada","born":1815}"#).unwrap();
    db.put(&keys, "set", "[1,2]").unwrap();
    let draft = branch(&db, "draft", &db.main());
    let hour = Duration::from_secs(3600);
    db.put_with_ttl(&keys, "k", r#"{"name":"Ada King","born":1815}"#, hour).unwrap();
    draft.put(&keys, "k", r#"{"name":"Ada","born":1815,"died":1852.50}"#).unwrap();
    db.put(&keys, "new", r#"{"a":1}"#).unwrap();
    draft.put(&keys, "new", r#"{"b":2}"#).unwrap();
    let (copy, draft_copy) = (branch(&db, "copy", &db.main()), branch(&db, "twin", &draft));
    assert!(run(&db, &draft, &db.main(), &keys, MergeRule::Json));
    let merged = br#"{"name":"Ada King","born":1815,"died":1852.50}"#;
    assert_eq!(value(&db.main(), &keys, "k").unwrap(), merged);
    assert!(matches!(db.ttl(&keys, "k").unwrap(), Ttl::Expires { .. }));
    assert_eq!(value(&db.main(), &keys, "new").unwrap(), br#"{"a":1,"b":2}"#);
    assert!(!run(&db, &draft, &db.main(), &keys, MergeRule::Json));
    assert!(run(&db, &copy, &draft_copy, &keys, MergeRule::Json));
    for key in ["k", "new"] {
        assert_eq!(value(&draft_copy, &keys, key), value(&db.main(), &keys, key));
    }
    // Values that a rule cannot merge are a conflict.
    draft.put(&keys, "set", "[2,3]").unwrap();
    db.put(&keys, "set", "[1,2,4]").unwrap();
    let merge = db.merge(&draft);
    let outcome = merge.clone().rule(&keys, MergeRule::Json).run().unwrap();
    assert!(matches!(outcome, MergeOutcome::Conflicts(_)));
    assert!(run(&db, &draft, &db.main(), &keys, MergeRule::JsonSet));
    assert_eq!(value(&db.main(), &keys, "set").unwrap(), b"[2,4,3]");
    draft.delete(&keys, "k").unwrap();
    db.put(&keys, "k", "{}").unwrap();
    for rule in [MergeRule::Json, MergeRule::JsonSet] {
        let outcome = merge.clone().rule(&keys, rule).run().unwrap();
        assert!(matches!(outcome, MergeOutcome::Conflicts(_)));
    }
}

/// Random changes of two branches: a merge has the same result in both directions, and merging
/// again changes nothing.
#[test]
fn symmetric_rules_have_one_result_in_both_directions() {
    let seed = std::env::var("SEED").map_or(9, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let mut merges = 0;
    for round in 0..40 {
        let (db, keys) = open();
        let rule = match round % 2 {
            0 => MergeRule::Newest,
            _ => MergeRule::JsonSet,
        };
        let change = |branch: &Branch, random: &mut Random| {
            let key = [random.below(12) as u8];
            match random.below(8) {
                // Not with sets, because a deletion may be a conflict.
                0 | 1 if round % 2 == 0 => _ = branch.delete(&keys, key).unwrap(),
                2 if round % 2 == 0 => {
                    branch.delete_range(&keys, key..=[key[0] + 2]).unwrap();
                }
                _ => {
                    let set: Vec<_> = (0..random.below(4)).map(|_| random.below(5)).collect();
                    branch.put(&keys, key, format!("{set:?}")).unwrap();
                }
            }
            if random.below(20) == 0 {
                db.flush().unwrap();
                db.compact().unwrap();
            }
        };
        for _ in 0..10 {
            change(&db.main(), &mut random);
        }
        let (a, b) = (branch(&db, "a", &db.main()), branch(&db, "b", &db.main()));
        for _ in 0..3 {
            for _ in 0..20 {
                change(if random.below(2) == 0 { &a } else { &b }, &mut random);
            }
            // So that each direction begins with the same states.
            let (a_was, b_was) = (branch(&db, "a was", &a), branch(&db, "b was", &b));
            merges += usize::from(run(&db, &b_was, &a, &keys, rule.clone()));
            run(&db, &a_was, &b, &keys, rule.clone());
            let state = |branch: &Branch| -> BTreeMap<Vec<u8>, Vec<u8>> {
                let rows = branch.iter(&keys).unwrap().map(plimsoll::Result::unwrap);
                rows.map(|(key, value)| (key, value.to_vec())).collect()
            };
            assert_eq!(state(&a), state(&b), "round {round}");
            let newest = db.newest();
            assert!(!run(&db, &b_was, &a, &keys, rule.clone()));
            assert!(!run(&db, &a_was, &b, &keys, rule.clone()));
            assert_eq!(db.newest(), newest);
            run(&db, &a, &b, &keys, rule.clone());
            run(&db, &b, &a, &keys, rule.clone());
            assert_eq!(state(&a), state(&b));
            db.delete_branch("a was").unwrap();
            db.delete_branch("b was").unwrap();
        }
    }
    assert!(merges > 60, "{merges}");
}
