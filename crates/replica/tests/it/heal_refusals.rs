//! Heals that are refused because commits could be lost, and what is asked after a heal.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::order::PLACE_FILE;
use plimsoll::{Db, Error as StoreError};
use plimsoll_replica::{Error, Heal, Problem, heal, join, open_member, trim};

use crate::heal::{accepting_loss, cluster, files, flip, goes_on, heal_beside, heal_with};
use crate::members::{World, copy, get, options, put, try_put};
use crate::trim::{archives, positions, put_rows, world};

/// Sets the bucket back to its state at the copy `backup`.
fn set_back(world: &World) {
    std::fs::remove_dir_all(world.path("bucket")).unwrap();
    std::fs::rename(world.path("backup"), world.path("bucket")).unwrap();
}

/// Both have the same commits; then `one` has more, and its log begins after those; then the bucket
/// is set back, and `two` commits what only it and the bucket have.
fn forked_below_the_log() -> World {
    let world = cluster(4, false);
    copy(&world.path("bucket"), &world.path("backup"));
    let one = world.open("one");
    put_rows(&one, 4..20);
    one.compact().unwrap();
    one.log().trim(one.newest().next()).unwrap();
    put(&one, "key 20", "1");
    one.close().unwrap();
    set_back(&world);
    let two = world.open("two");
    put(&two, "other", "1");
    put(&two, "other", "2");
    two.close().unwrap();
    world
}

#[test]
fn a_history_that_cannot_be_compared_is_not_given_up_silently() {
    let world = forked_below_the_log();
    let before = files(&world.path("bucket"));
    let refused = heal_with(&world, &["one"]).unwrap_err();
    assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
    assert!(refused.to_string().contains("nothing was changed"), "{refused}");
    let refused = heal_with(&world, &["one", "two"]).unwrap_err();
    assert!(matches!(refused, Error::Unusable { .. }), "{refused}");
    assert_eq!(files(&world.path("bucket")), before);
    // Later, its files are not replaced.
    accepting_loss(&world, &["one"]);
    let refused = open_member(world.path("two"), options()).unwrap_err();
    assert!(matches!(refused, Error::Incomparable { .. }), "{refused}");
    let two = Db::open(world.path("two"), options().read_only(true)).unwrap();
    assert_eq!(get(&two, "other").as_deref(), Some("2"));
}

#[test]
fn a_line_whose_base_is_lost_is_not_dropped() {
    for how in ["flipped", "deleted", "both", "all"] {
        let world = cluster(8, false);
        std::fs::remove_file(&world.log()[1]).unwrap();
        heal_with(&world, &["one"]).unwrap();
        let two = world.open("two");
        two.sync().unwrap();
        two.close().unwrap();
        put_rows(&world.open("one"), 8..13);
        let record = |number: u64| world.path(&format!("bucket/bases/{number:016x}"));
        match how {
            "flipped" => flip(&record(2)),
            "deleted" => std::fs::remove_file(record(2)).unwrap(),
            "both" => [1, 2].iter().for_each(|it| std::fs::remove_file(record(*it)).unwrap()),
            _ => std::fs::remove_dir_all(world.path("bucket/bases")).unwrap(),
        }
        // It applies what only the bucket has.
        heal_with(&world, &["two"]).unwrap();
        goes_on(&world, 13);
    }
}

#[test]
fn a_member_sees_a_fence_whose_number_is_below_its_own() {
    let (world, one) = world(8);
    trim(&one, 4).unwrap();
    put_rows(&one, 8..12);
    trim(&one, 4).unwrap();
    one.close().unwrap();
    let two = Arc::new(world.open("two"));
    put(&two, "key 12", "1");
    let one = world.open("one");
    one.sync().unwrap();
    one.close().unwrap();
    std::fs::remove_file(world.path("bucket/bases/0000000000000002")).unwrap();
    let (other, acknowledged) = (Arc::clone(&two), Arc::new(AtomicBool::new(false)));
    let made = Arc::clone(&acknowledged);
    heal_beside(&world, "log/", move || {
        made.store(try_put(&other, "key 13", "1").is_ok(), Ordering::SeqCst);
    })
    .unwrap();
    assert!(!acknowledged.load(Ordering::SeqCst));
    let refused = try_put(&two, "x", "1").unwrap_err();
    assert!(matches!(refused, StoreError::Behind { .. }), "{refused}");
    Arc::try_unwrap(two).ok().map(Db::close).unwrap().unwrap();
    goes_on(&world, 13);
}

#[test]
fn a_member_without_a_place_waits_for_the_end_of_a_heal() {
    let world = cluster(8, false);
    std::fs::remove_file(&world.log()[1]).unwrap();
    heal_with(&world, &["one"]).unwrap();
    // As if that call had been killed before it stored the base.
    std::fs::remove_file(world.path("bucket/bases/0000000000000002")).unwrap();
    std::fs::remove_file(world.path("two").join(PLACE_FILE)).unwrap();
    let before = files(&world.path("bucket"));
    let refused = open_member(world.path("two"), options()).unwrap_err();
    assert!(matches!(refused, Error::HealUnfinished { .. }), "{refused}");
    assert_eq!(files(&world.path("bucket")), before);
    heal_with(&world, &["one"]).unwrap();
    goes_on(&world, 8);
}

/// An object of the log, and one of another history at its position, and its number.
fn of_another_history() -> (World, PathBuf, Vec<u8>) {
    let world = cluster(4, false);
    copy(&world.path("bucket"), &world.path("backup"));
    copy(&world.path("two"), &world.path("other"));
    put(&world.open("other"), "other", "1");
    let object = world.log().pop().unwrap();
    let bytes = std::fs::read(&object).unwrap();
    set_back(&world);
    std::fs::remove_dir_all(world.path("other")).unwrap();
    put_rows(&world.open("one"), 4..9);
    (world, object, bytes)
}

#[test]
fn a_batch_of_another_history_in_a_gap_is_not_dropped() {
    for has_gap in [false, true] {
        let (world, object, bytes) = of_another_history();
        let at = world.log().iter().position(|it| *it == object).unwrap();
        std::fs::write(&object, &bytes).unwrap();
        if has_gap {
            std::fs::remove_file(&world.log()[at + 1]).unwrap();
        }
        let before = files(&world.path("bucket"));
        let refused = heal_with(&world, &["one"]).unwrap_err();
        assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
        assert!(refused.to_string().contains("another history"), "{refused}");
        assert_eq!(files(&world.path("bucket")), before);
    }
}

#[test]
fn a_batch_that_appears_in_a_gap_during_a_heal_is_not_dropped() {
    let (world, object, bytes) = of_another_history();
    std::fs::remove_file(&object).unwrap();
    let late = object.clone();
    let healed = heal_beside(&world, "bases/", move || std::fs::write(&late, &bytes).unwrap());
    let refused = healed.unwrap_err();
    assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
    assert!(refused.to_string().contains("no member can commit"), "{refused}");
    assert!(object.exists());
}

#[test]
fn a_cluster_does_not_go_on_elsewhere_while_its_bucket_can_be_read() {
    let world = cluster(4, false);
    let url = world.path("elsewhere").display().to_string();
    let how = Heal { url: Some(url), accept_loss: true };
    for is_named in [true, false] {
        if !is_named {
            std::fs::remove_file(world.path("bucket/cluster.json")).unwrap();
        }
        let refused = heal(&[world.path("one")], &how, options()).unwrap_err();
        assert!(matches!(refused, Error::Unusable { .. }), "{refused}");
        assert!(!world.path("elsewhere/log").exists());
    }
}

#[test]
fn a_batch_whose_blob_is_lost_is_given_up_only_on_demand() {
    let world = cluster(4, false);
    let one = world.open("one");
    one.put(&one.keyspace("default").unwrap(), "large", vec![7; 600_000]).unwrap();
    one.close().unwrap();
    for (blob, _) in files(&world.path("bucket/blob")) {
        flip(&blob);
    }
    let refused = heal_with(&world, &["two"]).unwrap_err();
    assert!(matches!(refused, Error::WouldLose { .. }), "{refused}");
    heal_with(&world, &["two", "one"]).unwrap();
    assert_eq!(files(&world.path("bucket/blob")), []);
    goes_on(&world, 4);
}

#[test]
fn a_later_heal_removes_what_one_that_was_killed_has_left() {
    for accept_loss in [false, true] {
        let world = cluster(8, false);
        copy(&world.path("bucket/log"), &world.path("old log"));
        std::fs::remove_file(&world.log()[1]).unwrap();
        let how = Heal { accept_loss, url: None };
        let report = heal(&[world.path("one")], &how, options()).unwrap();
        copy(&world.path("old log"), &world.path("bucket/log"));
        let old = positions(&world).len() - 1;
        let again = heal_with(&world, &["one"]).unwrap();
        assert_eq!((again.problems, again.base), (Vec::new(), None));
        // The objects of commits that were given up stay, also after another heal.
        assert_eq!(again.removed, if accept_loss { 0 } else { old as u64 });
        std::fs::remove_file(world.path(&format!("bucket/log/{:016x}", report.first))).unwrap();
        heal_with(&world, &["one"]).unwrap();
        assert_eq!(positions(&world).len(), if accept_loss { old + 1 } else { 1 });
        goes_on(&world, 8);
    }
}

#[test]
fn a_heal_without_members_with_one_twice_or_with_objects_of_others_is_refused() {
    let world = cluster(4, false);
    let refused = heal_with(&world, &[]).unwrap_err();
    assert!(refused.to_string().starts_with("no member was given; give"), "{refused}");
    let refused = heal_with(&world, &["one", "./one"]).unwrap_err();
    assert!(refused.to_string().contains("given twice"), "{refused}");
    let other = cluster(4, false);
    std::fs::copy(&other.log()[1], &world.log()[1]).unwrap();
    let before = files(&world.path("bucket"));
    let refused = heal_with(&world, &["one"]).unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    assert!(refused.to_string().contains("another store"), "{refused}");
    assert_eq!(files(&world.path("bucket")), before);
    let stray = other.path("bucket/bases");
    std::fs::create_dir_all(&stray).unwrap();
    std::fs::write(stray.join("ffffffffffffffff"), "x").unwrap();
    let refused = heal_with(&other, &["one"]).unwrap_err();
    assert!(refused.to_string().contains("its number is too high"), "{refused}");
}

#[test]
fn a_damaged_archive_is_found_although_the_name_is_lost() {
    let world = cluster(8, false);
    std::fs::remove_file(world.path("bucket/cluster.json")).unwrap();
    for archive in archives(&world) {
        std::fs::remove_dir_all(world.path("bucket").join(archive)).unwrap();
    }
    let report = heal_with(&world, &["one"]).unwrap();
    let is_of_archive = |it: &Problem| it.to_string().contains("manifests");
    assert!(report.base.is_some() && report.problems.iter().any(is_of_archive), "{report:?}");
    join(&world.url(), world.path("three"), options()).unwrap();
    goes_on(&world, 8);
}
