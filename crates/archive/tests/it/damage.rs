//! Each object of an archive is damaged in each way once. The report names it, and no restore uses
//! its bytes.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use plimsoll::{Glsn, Moment, Retention};
use plimsoll_archive::Error;

use crate::support::{World, files};

/// An archive with pieces of an active segment, sealed segments, blob files, two bases and several
/// manifests.
fn world() -> World {
    let mut world = World::new(20, Retention::Latest);
    let mut archive = world.archive().base_every(1);
    let mut bases = 0;
    for _ in 0..5 {
        world.write(80);
        world.db().compact().unwrap();
        bases += u32::from(archive.push(world.db()).unwrap().is_base);
    }
    assert!(bases >= 2, "{bases} bases");
    world
}

/// A way to damage an object, whose bytes and predecessor's bytes are given.
type Way = fn(&[u8], &[u8]) -> Option<Vec<u8>>;

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1;
    bytes
}

const WAYS: [(&str, Way); 7] = [
    ("truncated", |bytes, _| Some(bytes[..bytes.len() - 1].to_vec())),
    ("empty", |_, _| Some(Vec::new())),
    ("first bit", |bytes, _| Some(flipped(bytes, 0))),
    ("bit in the middle", |bytes, _| Some(flipped(bytes, bytes.len() / 2))),
    ("last bit", |bytes, _| Some(flipped(bytes, bytes.len() - 1))),
    ("removed", |_, _| None),
    ("exchanged or rolled back", |_, other| Some(other.to_vec())),
];

#[test]
fn every_damage_of_every_object_is_named_and_never_believed() {
    let mut world = world();
    let newest = world.newest();
    let root = world.path("archive");
    let sound = files(&root);
    let names: Vec<&String> = sound.keys().collect();
    let kinds: BTreeSet<_> = names.iter().map(|name| name.split('/').next().unwrap()).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["blobs", "index", "manifests", "segments"]);
    let (mut partial, mut refused) = (0, 0);
    for (at, name) in names.iter().enumerate() {
        // The object before it of the same kind; a copy of the same manifest is no other object.
        let folder = name.split('/').next().unwrap();
        let before = names[..at]
            .iter()
            .chain(&names[at + 1..])
            .rev()
            .find(|other| other.starts_with(folder) && sound[**other] != sound[*name]);
        for (way, damage) in WAYS {
            let path = root.join(name);
            match damage(&sound[*name], &sound[before.copied().unwrap()]) {
                Some(bytes) => std::fs::write(&path, bytes).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let report = world.archive().verify(&mut |_| {}).unwrap();
            let found = report.damage.iter().chain(&report.notes);
            assert!(found.clone().any(|it| it.object == **name), "{name}, {way}: {report:?}");
            assert!(found.clone().all(|it| it.object == **name || folder == "manifests"));
            // The rows are compared with the model at the GLSN that the report says.
            match world.restore(Moment::Newest) {
                Ok(report) if report.is_whole => assert_eq!(report.glsn, newest),
                Ok(report) => {
                    assert!(report.glsn < newest);
                    assert!(report.damage.iter().any(|it| it.object == **name));
                    partial += 1;
                }
                Err(Error::Damaged { damage }) => {
                    assert!(damage.iter().any(|it| it.object == **name));
                    refused += 1;
                }
                Err(error) => panic!("{name}, {way}: {error}"),
            }
            std::fs::write(&path, &sound[*name]).unwrap();
        }
    }
    assert!(partial > 0, "{partial} {refused}");
    assert!(world.restore(Moment::Newest).unwrap().is_whole);
}

#[test]
fn without_its_newest_manifest_an_archive_ends_with_the_one_before() {
    let mut world = World::new(21, Retention::Forever);
    let mut archive = world.archive();
    let mut ends = Vec::new();
    for _ in 0..3 {
        world.write(5);
        archive.push(world.db()).unwrap();
        ends.push(world.newest());
    }
    for name in ["00000000000000000003", "00000000000000000003.copy"] {
        std::fs::write(world.path("archive/manifests").join(name), "damaged").unwrap();
    }
    let report = world.restore(Moment::Newest).unwrap();
    assert_eq!((report.glsn, report.is_whole, report.damage.len()), (ends[1], false, 2));
    assert!(world.restore(Moment::Glsn(ends[0])).unwrap().is_whole);
    assert!(!world.restore(Moment::Glsn(ends[2])).unwrap().is_whole);
    // The next pass sends what is missing.
    drop(archive);
    assert_eq!(world.archive().push(world.db()).unwrap().damage, report.damage);
    assert!(world.restore(Moment::Glsn(ends[2])).unwrap().is_whole);
    assert_eq!(world.archive().push(world.db()).unwrap().damage, []);
}

#[test]
fn behind_a_damaged_part_of_the_log_a_later_base_is_used() {
    let mut world = world();
    let root = world.path("archive");
    let first = files(&root).into_keys().find(|name| name.starts_with("segments/")).unwrap();
    std::fs::remove_file(root.join(&first)).unwrap();
    let report = world.archive().verify(&mut |_| {}).unwrap();
    let newest = world.newest();
    assert_eq!(report.damage.len(), 1);
    for range in report.restorable {
        for glsn in [*range.start(), *range.end()] {
            assert!(world.restore(Moment::Glsn(glsn)).unwrap().is_whole, "{glsn} of {newest}");
        }
    }
    assert!(matches!(world.restore(Moment::Glsn(Glsn(0))), Err(Error::Damaged { .. })));
}

#[test]
fn without_one_of_its_lists_an_archive_is_not_believed_to_be_whole() {
    let mut world = World::new(22, Retention::Forever);
    let root = world.path("archive");
    let lists = || std::fs::read_dir(root.join("lists")).map_or(0, Iterator::count);
    let mut archive = world.archive();
    let mut moments = Vec::new();
    // Right after the third list was written, the newest manifest has no entries of its own.
    while lists() < 3 {
        world.write(1);
        std::thread::sleep(Duration::from_millis(2));
        moments.push((Moment::Time(SystemTime::now()), world.newest()));
        std::thread::sleep(Duration::from_millis(2));
        archive.push(world.db()).unwrap();
    }
    drop(archive);
    let newest = world.newest();
    let mut asked: Vec<(Moment, Glsn)> = moments.iter().step_by(9).copied().collect();
    asked.extend([(Moment::Newest, newest), (Moment::Glsn(newest), newest)]);
    asked.push((Moment::Time(SystemTime::now()), newest));
    let names: Vec<String> =
        files(&root).into_keys().filter(|name| name.starts_with("lists/")).collect();
    let (mut wholes, mut partial) = (0, 0);
    for (at, name) in names.iter().enumerate() {
        let path = root.join(name);
        let sound = std::fs::read(&path).unwrap();
        match at {
            0 => std::fs::write(&path, &sound[..sound.len() - 1]).unwrap(),
            1 => std::fs::write(&path, std::fs::read(root.join(&names[0])).unwrap()).unwrap(),
            _ => std::fs::remove_file(&path).unwrap(),
        }
        let report = world.archive().verify(&mut |_| {}).unwrap();
        assert!(report.damage.iter().any(|it| it.object == *name), "{name}: {report:?}");
        for (moment, glsn) in &asked {
            match world.restore(*moment) {
                Ok(report) if report.is_whole => {
                    assert_eq!(report.glsn, *glsn, "{name}, {moment:?}");
                    wholes += 1;
                }
                Ok(report) => {
                    assert!(report.glsn <= *glsn);
                    assert!(report.damage.iter().any(|it| it.object == *name));
                    partial += 1;
                }
                Err(Error::Damaged { damage }) => {
                    assert!(damage.iter().any(|it| it.object == *name));
                }
                Err(error) => panic!("{name}, {moment:?}: {error}"),
            }
        }
        std::fs::write(&path, sound).unwrap();
    }
    assert!(wholes > 0 && partial > 0, "{wholes} {partial}");
    assert!(world.restore(Moment::Newest).unwrap().is_whole);
}
