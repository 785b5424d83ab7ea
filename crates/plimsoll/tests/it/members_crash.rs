//! Several members on a disk that loses unsynced data: the power is cut at every sync, and the
//! store is opened afterwards, by one process or by members again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use plimsoll::{Db, Error, Keyspace, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;

const MEMBERS: u64 = 3;
const STEPS: u64 = 120;
const KEYS: u64 = 30;

fn options(disk: &LyingDisk) -> Options {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    let sizes =
        Options::new().memory_bytes(16 << 20).memtable_bytes(64 << 10).segment_bytes(64 << 10);
    sizes.background(false).warm(false).world(Arc::new(disk.clone()), clock)
}

/// The acknowledged values, and the one commit whose outcome is unknown.
#[derive(Default)]
struct Model {
    values: BTreeMap<u64, Vec<u8>>,
    in_doubt: Option<(u64, Vec<u8>)>,
}

fn value(random: &mut Random, step: u64) -> Vec<u8> {
    let bytes = match random.below(12) {
        0 => 9_000,
        1 => 300_000,
        _ => 20 + random.below(600) as usize,
    };
    let mut value = vec![step as u8; bytes];
    value[..8].copy_from_slice(&step.to_le_bytes());
    value
}

fn check(db: &Db, space: &Keyspace, model: &Model, what: &str) {
    for key in 0..KEYS {
        let found = db.get(space, key.to_be_bytes()).unwrap().map(|value| value.to_vec());
        let in_doubt = model.in_doubt.as_ref().filter(|(of, _)| *of == key).map(|(_, value)| value);
        let is_right = found.as_ref() == model.values.get(&key)
            || (found.is_some() && found.as_ref() == in_doubt);
        assert!(is_right, "{what}: key {key} is that of step {:?}", found.map(|value| value[0]));
    }
}

/// Works until the power is cut; returns whether it was.
fn work(disk: &LyingDisk, seed: u64, model: &mut Model) -> Result<(), Error> {
    let mut random = Random::new(seed);
    let path = Path::new("/store");
    let mut members: Vec<Db> = Vec::new();
    for _ in 0..MEMBERS {
        members.push(Db::open(path, options(disk).shared(true))?);
    }
    for step in 0..STEPS {
        let at = random.below(members.len() as u64) as usize;
        let db = &members[at];
        let space = db.create_keyspace("rows", Retention::Latest)?;
        match random.below(20) {
            0 => drop(db.step()?),
            1 if members.len() > 1 => members.remove(at).close()?,
            2 if (members.len() as u64) < MEMBERS => {
                members.push(Db::open(path, options(disk).shared(true))?)
            }
            3 => {
                // The keeper flushes and merges.
                for db in &members {
                    match db.compact() {
                        Err(Error::NotKeeper { .. }) => {}
                        done => done?,
                    }
                }
                for db in &members {
                    db.step()?;
                }
            }
            4 => check(db, &space, model, "while the power is on"),
            _ => {
                let (key, value) = (random.below(KEYS), value(&mut random, step));
                model.in_doubt = Some((key, value.clone()));
                db.put(&space, key.to_be_bytes(), &value)?;
                model.values.insert(key, value);
                model.in_doubt = None;
            }
        }
    }
    for db in members {
        db.close()?;
    }
    Ok(())
}

fn verify(disk: &LyingDisk, model: &Model, what: &str) {
    let db = Db::open("/store", options(disk)).unwrap();
    let space = db.create_keyspace("rows", Retention::Latest).unwrap();
    check(&db, &space, model, what);
    let report = db.verify(&mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{what}: {report:?}");
    db.close().unwrap();
}

#[test]
fn members_lose_nothing_at_a_power_cut_at_any_sync() {
    for seed in 0..6 {
        // First without a power cut.
        let disk = LyingDisk::new(seed);
        let mut model = Model::default();
        work(&disk, seed, &mut model).unwrap();
        let syncs = disk.sync_count();
        verify(&disk, &model, &format!("seed {seed}, no cut"));
        let every = (syncs / 25).max(1);
        for at in (1..syncs).step_by(every as usize) {
            let what = format!("seed {seed}, the power cut at sync {at} of {syncs}");
            let disk = LyingDisk::new(seed);
            let mut model = Model::default();
            disk.cut_power_at_sync(at);
            let cut = work(&disk, seed, &mut model);
            assert!(cut.is_err(), "{what}");
            disk.restore_power();
            if disk.entry(Path::new("/store")).unwrap().is_none() {
                assert!(model.values.is_empty(), "{what}");
                continue;
            }
            // By members again, and then by one process.
            if at % 2 == 0 {
                let (one, two) = (
                    Db::open("/store", options(&disk).shared(true)).unwrap(),
                    Db::open("/store", options(&disk).shared(true)).unwrap(),
                );
                let space = two.create_keyspace("rows", Retention::Latest).unwrap();
                check(&two, &space, &model, &what);
                drop(one);
                two.put(&space, 0u64.to_be_bytes(), "after").unwrap();
                model.values.insert(0, b"after".to_vec());
                model.in_doubt = model.in_doubt.filter(|(key, _)| *key != 0);
            }
            verify(&disk, &model, &what);
        }
    }
}

#[test]
fn members_stop_when_a_sync_fails_and_lose_nothing() {
    for seed in 0..20 {
        let disk = LyingDisk::new(seed);
        let mut model = Model::default();
        work(&disk, seed, &mut model).unwrap();
        let syncs = disk.sync_count();
        let disk = LyingDisk::new(seed);
        let mut model = Model::default();
        disk.fail_sync(1 + seed * 37 % syncs);
        // If nothing depended on the failed sync, the work continues to the end.
        let _ = work(&disk, seed, &mut model);
        disk.cut_power();
        disk.restore_power();
        verify(&disk, &model, &format!("seed {seed}"));
    }
}
