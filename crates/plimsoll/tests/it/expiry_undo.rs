//! Reverts and resets keep and restore the expiry of values.

use plimsoll::*;

use crate::expiry::{SECOND, world};

#[test]
fn a_revert_and_a_reset_keep_the_expiry_of_what_they_put_back() {
    let world = world();
    let (db, space) = (&world.db, &world.space);
    world.put("short", "1", 10);
    world.put("long", "1", 100);
    let before = db.newest();
    let overwritten = db
        .transact(|tx| {
            tx.put(space, "short", "2")?;
            tx.put(space, "long", "2")
        })
        .map(|()| db.newest())
        .unwrap();
    assert_eq!(world.left("long"), None);
    world.pass(20);
    assert!(matches!(db.revert(overwritten).run().unwrap(), MergeOutcome::Merged(_)));
    assert_eq!(db.get(space, "long").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(world.left("long"), Some(80));
    assert!(!world.has("short"), "its earlier value has expired");
    db.put(space, "long", "3").unwrap();
    db.reset_to(before).run().unwrap();
    assert_eq!((world.left("long"), world.has("short")), (Some(80), false));
    world.pass(80);
    assert!(!world.has("long"));
    assert_eq!(db.reset_to(before).run().unwrap(), None, "nothing of that moment is left");
}

#[test]
fn a_rule_of_a_revert_keeps_the_expiry_of_the_present_value() {
    let world = world();
    let (db, space) = (&world.db, &world.space);
    let ttl = SECOND * 50;
    db.put_with_ttl(space, "n", 1i64.to_le_bytes(), ttl).unwrap();
    db.add(space, "n", 5, Overflow::Checked).unwrap();
    let wrong = db.newest();
    db.add(space, "n", 2, Overflow::Checked).unwrap();
    db.revert(wrong).rule(space, MergeRule::Counter).run().unwrap();
    assert_eq!(db.get(space, "n").unwrap().as_deref(), Some(&3i64.to_le_bytes()[..]));
    assert_eq!(world.left("n"), Some(50));
}

#[test]
fn a_rule_gives_a_value_that_does_not_expire_no_expiry() {
    let world = world();
    let (db, space) = (&world.db, &world.space);
    db.add(space, "n", 1, Overflow::Checked).unwrap();
    db.set_ttl(space, Some(SECOND * 50)).unwrap();
    db.add(space, "n", 5, Overflow::Checked).unwrap();
    let wrong = db.newest();
    db.add(space, "n", 2, Overflow::Checked).unwrap();
    db.revert(wrong).rule(space, MergeRule::Counter).run().unwrap();
    assert!(matches!(db.ttl(space, "n").unwrap(), Ttl::Unlimited));
}

#[test]
fn a_reset_and_a_revert_undo_a_change_of_the_expiry_alone() {
    for reverts in [false, true] {
        let world = world();
        let (db, space) = (&world.db, &world.space);
        let before = db.put(space, "a", "1").unwrap();
        assert!(db.expire_at(space, "a", world.time(60)).unwrap());
        if reverts {
            assert!(matches!(db.revert(db.newest()).run().unwrap(), MergeOutcome::Merged(_)));
        } else {
            assert!(db.reset_to(before).run().unwrap().is_some());
        }
        world.pass(61);
        assert!(world.has("a"));
    }
}
