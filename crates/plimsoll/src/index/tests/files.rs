//! Tests of the index's files: failed jobs, sweeps, damage, and a manifest in doubt.

use std::path::Path;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Open};

use super::jobs::{FLUSHED, key, world};
use super::*;
use crate::index::env::Progress;
use crate::index::manifest::names::{manifest_name, new_manifest_name};
use crate::index::run::table::run_file_name;
use crate::types::error::Error;

#[test]
fn a_failed_job_leaves_no_blob_file_behind() {
    let disk = LyingDisk::new(1);
    let mut world = World::new(Arc::new(disk.clone()), 1, FLUSHED);
    let writes = (0..5).map(|number| (key(FOREVER, number), Some(vec![3; 100_000])));
    world.commit(writes.collect()).unwrap();
    world.index().memtables.flush_up_to(world.applied).unwrap();
    world.horizon.relocate_below.store(9, Ordering::Relaxed);
    disk.fill_up(Some(0));
    assert!(world.index().compaction.run_all(Glsn::MAX).is_err());
    assert!(world.index().stats().last_error.is_some());
    assert_eq!(
        world.log.sweep_blobs(&|blob| world.index().runs.uses_blob(blob)).unwrap(),
        0,
        "it was removed immediately"
    );
    disk.fill_up(None);
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    assert_eq!(world.index().stats().last_error, None);
    assert_eq!(world.index().sources.view().min_pointer(), None);
    world.check_all();
}

#[test]
fn a_view_keeps_its_files_until_it_is_dropped() {
    let mut world = world(FLUSHED);
    for _ in 0..3 {
        world.flush_keys(FOREVER, 0..1000, Some(b"value"));
    }
    let (manifest, paths, view) = world.index().runs.files();
    assert_eq!(manifest.runs.len(), 3);
    world.index().compaction.run_all(Glsn::MAX).unwrap();
    for path in &paths {
        assert!(world.disk.entry(path).unwrap().is_some(), "{}", path.display());
    }
    assert_eq!(view.get(&key(FOREVER, 5), Glsn::MAX).unwrap().unwrap().glsn(), Glsn(3));
    drop(view);
    assert_eq!(world.run_files(), world.named_files());
    assert!(paths.iter().all(|path| world.disk.entry(path).unwrap().is_none()));
}

#[test]
fn unnamed_run_files_are_swept_and_their_ids_not_reused() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    let stray = dir().join(run_file_name(70));
    world.disk.open(&stray, Open::CreateNew, Caching::Buffered).unwrap();
    let unfinished = dir().join(new_manifest_name(5, 0));
    world.disk.open(&unfinished, Open::CreateNew, Caching::Buffered).unwrap();
    world.disk.open(&dir().join("notes.txt"), Open::CreateNew, Caching::Buffered).unwrap();
    world.open().unwrap();
    assert_eq!(world.disk.entry(&stray).unwrap(), None);
    let names: Vec<_> =
        world.disk.list(&dir()).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [run_file_name(1), manifest_name(1), "notes.txt".to_owned()]);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    let files = world.run_files();
    assert!(
        files.len() == 2 && files[0] == run_file_name(1) && files[1] > run_file_name(70),
        "{files:?}"
    );
}

#[test]
fn damage_stops_only_compaction() {
    let disk = LyingDisk::new(1);
    let mut world = World::new(Arc::new(disk.clone()), 1, FLUSHED);
    for _ in 0..3 {
        world.flush_keys(FOREVER, 0..3000, Some(&[1; 40]));
    }
    disk.corrupt(&dir().join(run_file_name(2)), 40_000, 4).unwrap();
    world.pool.clear();
    let error = world.index().compaction.run_all(Glsn::MAX).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { message, .. } if message.contains("verify")),
        "{error}"
    );
    assert!(world.index().stats().last_error.is_some());
    assert_eq!(world.index().compaction.step().unwrap(), Progress::Idle);
    assert!(world.index().compaction.run_all(Glsn::MAX).is_err(), "the damage is remembered");
    world.flush_keys(FOREVER, 0..3000, Some(&[2; 40]));
    assert_eq!(world.view().get(&key(FOREVER, 7), Glsn::MAX).unwrap().unwrap().glsn(), Glsn(4));
    assert!(!world.problems().is_empty());
}

#[test]
fn a_missing_run_file_is_reported_at_open() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    world.index = None;
    world.disk.remove(&dir().join(run_file_name(1))).unwrap();
    let error = world.open().unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { message, .. } if message.contains("plimsoll verify")),
        "{error}"
    );
}

#[test]
fn an_index_of_another_log_is_refused() {
    let mut world = world(FLUSHED);
    world.flush_keys(FOREVER, 0..10, Some(b"value"));
    world.index = None;
    let other = World::new(Arc::new(MemDisk::new()), 2, FLUSHED);
    let manifest = Manifest::read(&*world.disk, Path::new("/index")).unwrap().unwrap();
    let context = Context { log: Arc::clone(&other.log) as _, ..world.context() };
    let refused = OpenIndex::open(context, manifest, Arc::clone(&world.horizon) as _);
    assert!(matches!(refused, Err(Error::Forked { .. })));
}

#[test]
fn the_number_of_a_manifest_in_doubt_is_not_reused() {
    let mut took_effect = [false; 2];
    for seed in 0..12 {
        let disk = LyingDisk::new(seed);
        let mut world = World::new(Arc::new(disk.clone()), 2, FLUSHED);
        world.flush_keys(FOREVER, 0..10, Some(b"value"));
        world.commit(BTreeMap::from([(key(FOREVER, 3), Some(b"newer".to_vec()))])).unwrap();
        disk.fail_rename(1);
        assert!(world.index().memtables.flush_up_to(world.applied).is_err());
        let number = Manifest::read(&disk, &dir()).unwrap().unwrap().head.number;
        took_effect[usize::from(number == 2)] = true;
        world.index().memtables.flush_up_to(world.applied).unwrap();
        let manifest = Manifest::read(&disk, &dir()).unwrap().unwrap();
        assert_eq!(
            (number.max(2) + 1, manifest.head.checkpoint.glsn),
            (manifest.head.number, world.applied),
            "seed {seed}"
        );
        world.check_all();
        world.open().unwrap();
        world.check_all();
    }
    assert_eq!(took_effect, [true; 2]);
}
