//! Several processes share one memory limit.
#![allow(clippy::disallowed_methods, reason = "tests look at the files")]

use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll::{Db, Error, InvalidInput, Options, Retention};

use crate::members::{default, open, options, verify};

/// Waits until the budgets of all members satisfy `is_wanted`; checks that their sum never exceeds
/// `total`.
fn until_memory(path: &Path, total: u64, is_wanted: impl Fn(&[u64]) -> bool) {
    let begun = Instant::now();
    let look = || -> Vec<u64> {
        let members = plimsoll::members(path, &Options::new()).unwrap();
        members.iter().map(|member| member.memory_bytes).collect()
    };
    loop {
        // The members are read one after the other, so only a result that two consecutive reads
        // agree on was true at one time.
        let budgets = look();
        if look() == budgets {
            assert!(budgets.iter().sum::<u64>() <= total, "{budgets:?}");
            if is_wanted(&budgets) {
                return;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{budgets:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_total_above_the_memory_of_the_machine_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let refused = Db::open(&path, Options::new().shared(true).memory_total(1 << 50));
    assert!(matches!(
        refused,
        Err(Error::InvalidInput(InvalidInput::BudgetTooLarge { bytes, .. })) if bytes == 1 << 50
    ));
    assert!(!path.exists());
    let one = open(&path);
    let refused = Db::open(&path, Options::new().shared(true).memory_total(1 << 50));
    assert!(matches!(refused, Err(Error::InvalidInput(InvalidInput::BudgetTooLarge { .. }))));
    one.set_memory(32 << 20).unwrap();
}

#[test]
fn members_share_one_memory_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let total = 96 << 20;
    let sharing = || Options::new().shared(true).memory_total(total);
    let one = Db::open(&path, sharing()).unwrap();
    let space = default(&one);
    until_memory(&path, total, |budgets| budgets == [total]);
    // The first member must release memory when others join.
    let fill = |db: &Db, from: u64| {
        for some in from..from + 60 {
            let mut tx = db.begin();
            for row in 0..100 {
                tx.put(&space, format!("{:06}", some * 100 + row), vec![some as u8; 3000]).unwrap();
            }
            tx.commit().unwrap();
        }
    };
    fill(&one, 0);
    let two = Db::open(&path, sharing()).unwrap();
    let three = Db::open(&path, sharing()).unwrap();
    until_memory(&path, total, |budgets| budgets == [total / 3; 3]);
    for db in [&one, &two, &three] {
        assert_eq!(db.stats().memory.limit_bytes, total / 3);
        assert_eq!(db.get(&default(db), "000017").unwrap().unwrap()[..], [0; 3000]);
    }
    // A member that wants less gets what it wants.
    let visitor = open(&path);
    let left = (total - (16 << 20)) / 3;
    until_memory(&path, total, |budgets| budgets == [left, left, left, 16 << 20]);
    assert_eq!(visitor.members().unwrap().iter().filter(|member| member.is_here).count(), 1);
    fill(&one, 60);
    let refused = two.set_memory(32 << 20);
    assert!(matches!(
        refused,
        Err(Error::InvalidInput(InvalidInput::MemoryIsShared { total_bytes }))
            if total_bytes == total
    ));
    let more: Vec<Db> = (0..2).map(|_| Db::open(&path, sharing()).unwrap()).collect();
    until_memory(&path, total, |budgets| budgets == [16 << 20; 6]);
    let refused = Db::open(&path, sharing());
    let Err(Error::InvalidInput(InvalidInput::NoMemoryForAnother { members: 6, .. })) = refused
    else {
        panic!("{refused:?}");
    };
    drop((one, more, visitor));
    until_memory(&path, total, |budgets| budgets == [total / 2; 2]);
    // The total that was given last applies to all.
    let four = Db::open(&path, sharing().memory_total(60 << 20)).unwrap();
    until_memory(&path, total, |budgets| budgets == [20 << 20; 3]);
    assert_eq!(four.get(&default(&four), "000017").unwrap().unwrap()[..], [0; 3000]);
    drop((two, three, four));
    assert_eq!(plimsoll::members(&path, &Options::new()).unwrap(), []);
    verify(&path);
}

#[test]
fn a_member_that_closes_gives_memory_to_one_that_joins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    // Without threads, the first member releases memory only while it is stepped or closes.
    let sharing = || Options::new().shared(true).memory_total(64 << 20).background(false);
    let one = Db::open(&path, sharing()).unwrap();
    let joining = std::thread::spawn({
        let path = path.clone();
        move || Db::open(&path, sharing()).map(|db| db.stats().memory.limit_bytes)
    });
    // From now on the second member waits for memory; others may leave meanwhile.
    while one.members().unwrap().len() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    one.close().unwrap();
    let bytes = joining.join().unwrap().unwrap();
    // Its share beside the first member, or alone.
    assert!([32 << 20, 64 << 20].contains(&bytes), "{bytes}");
    verify(&path);
}

#[test]
fn a_member_that_was_far_behind_applies_everything_within_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let quick =
        || options().memtable_bytes(256 << 10).segment_bytes(1 << 20).retention(Retention::Latest);
    let one = Db::open(&path, quick()).unwrap();
    let of_one = default(&one);
    // Without threads it applies commits only when it is read.
    let two = Db::open(&path, quick().background(false)).unwrap();
    let of_two = default(&two);
    for round in 0..20_000u64 {
        let mut tx = one.begin();
        for at in 0..4 {
            let bytes = if round % 64 == 0 { 5_000 } else { 200 };
            tx.put(&of_one, format!("{:03}", (round * 7 + at) % 200), vec![round as u8; bytes])
                .unwrap();
        }
        tx.commit().unwrap();
    }
    one.put(&of_one, "last", "1").unwrap();
    assert_eq!(two.get(&of_two, "last").unwrap().unwrap(), b"1");
    let memory = two.stats().memory;
    let memtables: u64 = memory
        .by_kind
        .iter()
        .filter(|(kind, _)| *kind == "memtables")
        .map(|(_, bytes)| *bytes)
        .sum();
    assert!(memtables > 0);
    assert!(memtables < 2 << 20, "{memory:?}");
    drop((one, two));
    verify(&path);
}
