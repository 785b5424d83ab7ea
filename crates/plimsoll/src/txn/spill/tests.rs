//! Tests of merges of spilled runs: with any number of parts, the result has the newest write of
//! each key, or nothing changes.

use std::collections::BTreeMap;

use plimsoll_disk::random::Random;

use super::*;
use crate::engine::Engine;
use crate::engine::open::open;
use crate::types::error::Error;
use crate::types::options::Options;
use crate::types::version::Stored;

/// A key in the form of an index key, and the number of the run that wrote it last.
type Writes = BTreeMap<Vec<u8>, u8>;

fn store(dir: &tempfile::TempDir) -> Arc<Engine> {
    open(&dir.path().join("store"), Options::new().memory_bytes(16 << 20).background(false))
        .unwrap()
}

/// Overlapping runs of a few MiB; some keys are in several.
fn spilled(store: &Engine, runs: u8) -> (Spill, Writes) {
    let mut random = Random::new(7);
    let mut spill = Spill::new(&store.reader.budget, &store.reader.log, 256 << 10);
    let mut all = Writes::new();
    for run in 0..runs {
        let key = |random: &mut Random| format!("key {:07}", random.below(60_000)).into_bytes();
        let writes: Writes = (0..15_000).map(|_| (key(&mut random), run)).collect();
        let mut builder = spill.begin();
        for key in writes.keys() {
            builder.add(key, Stored::Inline(&[run; 250])).unwrap();
        }
        spill.end(builder).unwrap();
        all.extend(writes);
    }
    (spill, all)
}

/// The writes in the only run.
fn writes(spill: &Spill) -> Writes {
    assert_eq!(spill.runs(), 1);
    let mut cursor = spill.cursors().remove(0);
    let mut found = Writes::new();
    cursor.seek_first().unwrap();
    while let Some(version) = cursor.current() {
        let value = version.stored.inline_value().unwrap();
        assert!(value.len() == 250 && value.iter().all(|byte| *byte == value[0]));
        let before = found.last_key_value().is_none_or(|(last, _)| &last[..] < version.key);
        assert!(before, "each key once, in order");
        found.insert(version.key.to_vec(), value[0]);
        cursor.next().unwrap();
    }
    found
}

#[test]
fn a_merge_in_parts_has_the_newest_write_of_each_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    for threads in 1..=3 {
        let (mut spill, expected) = spilled(&store, 5);
        assert!(spill.bytes() > 3 * PART_BYTES_MIN, "enough input for {threads} threads");
        spill.merge_all(MergeMeans { buffers: 64, threads }).unwrap();
        assert_eq!(writes(&spill), expected, "{threads}");
    }
}

#[test]
fn parts_have_about_equal_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let (spill, all) = spilled(&store, 5);
    let tables = spill.runs.iter().map(|run| Arc::clone(&run.tables)).collect();
    let merged = PartedMerge::new(spill.site.clone(), tables, 1 << 20, 0).write(3).unwrap();
    let keys: Vec<u64> =
        merged.iter().map(|run| run.tables.iter().map(|table| table.info.versions).sum()).collect();
    assert_eq!(keys.iter().sum::<u64>(), all.len() as u64);
    assert!(
        keys.len() == 3 && keys.iter().all(|keys| keys.abs_diff(all.len() as u64 / 3) < 2000),
        "{keys:?}"
    );
    merged.into_iter().for_each(|run| run.discard(&spill.site));
}

#[test]
fn a_merge_refused_by_the_budget_changes_nothing_and_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    let blob_files = || {
        let names = plimsoll_disk::vfs::Disk::list(
            &plimsoll_disk::os::OsDisk::new(),
            &dir.path().join("store/log"),
        )
        .unwrap();
        names.iter().filter(|entry| entry.name.ends_with(".blob")).count()
    };
    let (mut spill, mut expected) = spilled(&store, 5);
    let mut before = blob_files();
    let mut refused = 0;
    for n in (0..60).step_by(3) {
        store.reader.budget.fail_after(n);
        let merged = spill.merge_all(MergeMeans { buffers: 64, threads: 3 });
        store.reader.budget.fail_after(u64::MAX);
        match merged {
            Err(Error::OutOfBudget(_)) => {
                refused += 1;
                assert_eq!((spill.runs(), blob_files()), (5, before), "{n}");
            }
            // The refused reservation was optional, or there were fewer reservations.
            Ok(()) => {
                assert_eq!(writes(&spill), expected, "{n}");
                (spill, expected) = spilled(&store, 5);
                before = blob_files();
            }
            Err(error) => panic!("{n}: {error}"),
        }
    }
    assert!(refused > 3, "{refused}");
    spill.merge_all(MergeMeans { buffers: 64, threads: 3 }).unwrap();
    assert_eq!(writes(&spill), expected);
}

#[test]
fn a_cancelled_merge_fails_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir);
    for threads in [1, 3] {
        let (mut spill, expected) = spilled(&store, 5);
        let blobs = spill.layout();
        let flag = Arc::new(AtomicBool::new(true));
        spill.cancel_by(Cancel::on(Arc::clone(&flag)));
        assert_eq!(spill.merge_all(MergeMeans { buffers: 64, threads }), Err(Error::Cancelled));
        assert_eq!(spill.layout(), blobs);
        flag.store(false, Ordering::Relaxed);
        spill.merge_all(MergeMeans { buffers: 64, threads }).unwrap();
        assert_eq!(writes(&spill), expected);
    }
}
