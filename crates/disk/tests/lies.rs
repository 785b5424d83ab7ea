//! Each fault of the simulated disk, and its guarantees.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::lying::{Injected, LyingDisk};
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, File, LockError, Open};

fn at(path: &str) -> &Path {
    Path::new(path)
}

fn open(disk: &LyingDisk, path: &str) -> Arc<dyn File> {
    disk.open(at(path), Open::ReadWrite, Caching::Buffered).unwrap()
}

fn create(disk: &LyingDisk, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = disk.open(at(path), Open::CreateNew, Caching::Buffered).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

/// A file whose bytes and name are durable; every folder above it is the root.
fn create_durable(disk: &LyingDisk, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(disk, path, bytes);
    file.sync().unwrap();
    disk.sync_dir(at("/")).unwrap();
    file
}

fn read(disk: &LyingDisk, path: &str) -> Vec<u8> {
    let file = disk.open(at(path), Open::Read, Caching::Buffered).unwrap();
    let mut bytes = vec![0xee; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn names(disk: &LyingDisk) -> Vec<String> {
    disk.list(at("/")).unwrap().into_iter().map(|entry| entry.name).collect()
}

fn exists(disk: &LyingDisk, path: &str) -> bool {
    disk.entry(at(path)).unwrap().is_some()
}

#[test]
fn unsynced_write_survives_is_torn_or_lost() {
    let (mut whole, mut torn, mut lost) = (0, 0, 0);
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        let file = create_durable(&disk, "file", &[1; 4096]);
        file.write_at(&[2; 4096], 0).unwrap();
        disk.restore_power();
        let bytes = read(&disk, "file");
        assert_eq!(bytes.len(), 4096);
        let sectors: Vec<&[u8]> = bytes.chunks(512).collect();
        assert!(
            sectors.iter().all(|sector| sector == &[1; 512] || sector == &[2; 512]),
            "a tear runs along sectors"
        );
        match sectors.iter().filter(|sector| sector[0] == 2).count() {
            0 => lost += 1,
            8 => whole += 1,
            _ => torn += 1,
        }
        let injected = disk.injected();
        assert_eq!(injected.power_cuts, 1);
        assert_eq!(
            (injected.lost_writes, injected.torn_writes) == (0, 0),
            bytes == [2; 4096],
            "seed {seed}"
        );
    }
    assert!(whole >= 10 && torn >= 10 && lost >= 10, "whole {whole}, torn {torn}, lost {lost}");
}

#[test]
fn write_within_a_sector_is_atomic() {
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        create_durable(&disk, "file", b"old").write_at(b"new", 0).unwrap();
        disk.restore_power();
        let bytes = read(&disk, "file");
        assert!(bytes == b"old" || bytes == b"new");
        let injected = disk.injected();
        assert_eq!(
            (injected.lost_writes, injected.torn_writes),
            (u64::from(bytes == b"old"), 0),
            "seed {seed}"
        );
    }
}

#[test]
fn a_later_write_may_survive_an_earlier_one() {
    let outcomes: BTreeSet<Vec<u8>> = (0..100)
        .map(|seed| {
            let disk = LyingDisk::new(seed);
            let file = create_durable(&disk, "file", b"..");
            file.write_at(b"1", 0).unwrap();
            file.write_at(b"2", 1).unwrap();
            disk.restore_power();
            read(&disk, "file")
        })
        .collect();
    assert_eq!(
        outcomes,
        BTreeSet::from(["..", "1.", ".2", "12"].map(|bytes| bytes.as_bytes().to_vec()))
    );
}

#[test]
fn length_may_grow_without_bytes() {
    let outcomes: BTreeSet<Vec<u8>> = (0..100)
        .map(|seed| {
            let disk = LyingDisk::new(seed);
            let file = create_durable(&disk, "file", b"a");
            file.write_at(b"b", 1).unwrap();
            disk.restore_power();
            read(&disk, "file")
        })
        .collect();
    assert_eq!(outcomes, BTreeSet::from(["a", "a\0", "ab"].map(|bytes| bytes.as_bytes().to_vec())));
}

#[test]
fn an_unsynced_cut_may_be_undone() {
    let lens: BTreeSet<usize> = (0..100)
        .map(|seed| {
            let disk = LyingDisk::new(seed);
            create_durable(&disk, "file", b"abcdef").set_len(2).unwrap();
            disk.restore_power();
            let bytes = read(&disk, "file");
            assert!(b"abcdef".starts_with(&bytes));
            bytes.len()
        })
        .collect();
    assert_eq!(lens, BTreeSet::from([2, 6]));
}

#[test]
fn synced_data_survives_every_crash() {
    for seed in 0..300 {
        let disk = LyingDisk::new(seed);
        let mut random = Random::new(seed);
        let mut synced = Vec::new();
        let file = create_durable(&disk, "file", b"");
        for _ in 0..random.below(20) {
            let bytes = vec![random.below(256) as u8; random.below(3000) as usize + 1];
            match random.below(4) {
                0 => {
                    let len = random.below(synced.len() as u64 + 1) as usize;
                    file.set_len(len as u64).unwrap();
                    synced.truncate(len);
                }
                _ => {
                    file.write_at(&bytes, synced.len() as u64).unwrap();
                    synced.extend(bytes);
                }
            }
        }
        file.sync().unwrap();
        // Anything may happen after the synced prefix.
        file.write_at(&[7; 2000], synced.len() as u64).unwrap();
        for crash in 0..3 {
            disk.restore_power();
            assert!(read(&disk, "file").starts_with(&synced), "seed {seed}, crash {crash}");
        }
    }
}

#[test]
fn nothing_more_is_lost_after_a_crash() {
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        create_durable(&disk, "file", b"").write_at(&[1; 5000], 0).unwrap();
        create(&disk, "other", b"x");
        disk.restore_power();
        let (bytes, found) = (read(&disk, "file"), names(&disk));
        disk.restore_power();
        assert_eq!((read(&disk, "file"), names(&disk)), (bytes, found), "seed {seed}");
    }
}

#[test]
fn synced_file_with_unsynced_name_may_be_missing() {
    let mut found = 0;
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        create(&disk, "file", b"abc").sync().unwrap();
        disk.restore_power();
        if exists(&disk, "file") {
            assert_eq!(read(&disk, "file"), b"abc");
            found += 1;
        }
        assert_eq!(disk.injected().lost_names, u64::from(!exists(&disk, "file")));
    }
    assert!((10..90).contains(&found), "{found}");
}

#[test]
fn synced_name_of_unsynced_file_may_be_empty() {
    let lens: BTreeSet<usize> = (0..100)
        .map(|seed| {
            let disk = LyingDisk::new(seed);
            create(&disk, "file", b"abc");
            disk.sync_dir(at("/")).unwrap();
            disk.restore_power();
            read(&disk, "file").len()
        })
        .collect();
    assert_eq!(lens, BTreeSet::from([0, 3]));
}

#[test]
fn unsynced_rename_is_atomic() {
    let mut renamed = 0;
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        create_durable(&disk, "manifest", b"old");
        create_durable(&disk, "manifest.new", b"new");
        disk.rename(at("manifest.new"), at("manifest")).unwrap();
        disk.restore_power();
        if names(&disk) == ["manifest"] {
            assert_eq!(read(&disk, "manifest"), b"new");
            renamed += 1;
        } else {
            assert_eq!(names(&disk), ["manifest", "manifest.new"]);
            assert_eq!(read(&disk, "manifest"), b"old");
        }
    }
    assert!((10..90).contains(&renamed), "{renamed}");
}

#[test]
fn only_unsynced_removal_may_be_undone() {
    let mut back = 0;
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        create_durable(&disk, "synced", b"abc");
        create_durable(&disk, "unsynced", b"abc");
        disk.remove(at("synced")).unwrap();
        disk.sync_dir(at("/")).unwrap();
        disk.remove(at("unsynced")).unwrap();
        disk.restore_power();
        assert!(!exists(&disk, "synced"));
        if exists(&disk, "unsynced") {
            assert_eq!(read(&disk, "unsynced"), b"abc");
            back += 1;
        }
    }
    assert!((10..90).contains(&back), "{back}");
}

#[test]
fn removed_unsynced_file_may_reappear() {
    let mut back = 0;
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        let file = create(&disk, "file", b"abc");
        file.sync().unwrap();
        disk.remove(at("file")).unwrap();
        drop(file);
        disk.restore_power();
        if exists(&disk, "file") {
            assert_eq!(read(&disk, "file"), b"abc");
            back += 1;
        }
    }
    assert!((10..90).contains(&back), "{back}");
}

#[test]
fn prefix_of_folder_operations_survives() {
    let fronts: BTreeSet<usize> = (0..100)
        .map(|seed| {
            let disk = LyingDisk::new(seed);
            ["a", "b", "c"].iter().for_each(|name| drop(create(&disk, name, b"")));
            disk.restore_power();
            let found = names(&disk);
            assert!(
                ["a", "b", "c"].starts_with(&found.iter().map(String::as_str).collect::<Vec<_>>()),
                "{found:?}"
            );
            found.len()
        })
        .collect();
    assert_eq!(fronts, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn syncing_a_folder_saves_only_its_entries() {
    let mut found = 0;
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        disk.create_dir(at("folder")).unwrap();
        create(&disk, "folder/file", b"abc").sync().unwrap();
        disk.sync_dir(at("folder")).unwrap();
        disk.restore_power();
        if exists(&disk, "folder") {
            assert_eq!(read(&disk, "folder/file"), b"abc");
            found += 1;
        }
    }
    assert!((10..90).contains(&found), "{found}");
}

#[test]
fn hard_link_is_durable_with_its_folder() {
    let disk = LyingDisk::new(1);
    create_durable(&disk, "one", b"abc");
    disk.hard_link(at("one"), at("two")).unwrap();
    disk.sync_dir(at("/")).unwrap();
    disk.remove(at("one")).unwrap();
    disk.sync_dir(at("/")).unwrap();
    disk.restore_power();
    assert_eq!(names(&disk), ["two"]);
    assert_eq!(read(&disk, "two"), b"abc");
}

#[test]
fn everything_fails_from_the_power_cut_on() {
    let mut took_effect = 0;
    for seed in 0..200 {
        let disk = LyingDisk::new(seed);
        let file = create_durable(&disk, "file", b"old");
        assert_eq!(disk.sync_count(), 2);
        disk.cut_power_at_sync(4);
        file.sync().unwrap();
        assert!(!disk.power_is_cut());
        // Too small to be torn, and the length stays, so all or nothing survives.
        file.write_at(b"new", 0).unwrap();
        assert!(file.sync().is_err());
        assert!(disk.power_is_cut());
        assert_eq!(disk.sync_count(), 4);
        assert!(file.read_at(&mut [0], 0).is_err());
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.len().is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.sync().is_err());
        assert!(disk.open(at("file"), Open::Read, Caching::Buffered).is_err());
        assert!(disk.list(at("/")).is_err());
        assert!(disk.entry(at("file")).is_err());
        assert!(disk.create_dir(at("folder")).is_err());
        assert!(disk.rename(at("file"), at("other")).is_err());
        assert!(disk.hard_link(at("file"), at("other")).is_err());
        assert!(disk.remove(at("file")).is_err());
        assert!(disk.remove_dir(at("folder")).is_err());
        assert!(disk.sync_dir(at("/")).is_err());
        assert!(matches!(disk.lock(at("/")), Err(LockError::Io(_))));
        assert_eq!(disk.sync_count(), 4);
        disk.restore_power();
        assert!(!disk.power_is_cut());
        took_effect += u32::from(read(&disk, "file") == b"new");
        assert_eq!(disk.injected().power_cuts, 1);
        open(&disk, "file").sync().unwrap();
    }
    // Half of the syncs took effect, and about half of the others' writes survived.
    assert!((120..180).contains(&took_effect), "{took_effect}");
}

#[test]
fn folder_sync_counts_for_the_power_cut() {
    let disk = LyingDisk::new(1);
    create(&disk, "file", b"");
    disk.cut_power_at_sync(1);
    assert!(disk.sync_dir(at("/")).is_err());
    assert!(disk.power_is_cut());
}

#[test]
fn handles_and_locks_do_not_survive_a_crash() {
    let disk = LyingDisk::new(1);
    let file = create_durable(&disk, "file", b"abc");
    let lock = disk.lock(at("/")).unwrap();
    disk.cut_power();
    disk.restore_power();
    assert!(file.read_at(&mut [0], 0).is_err());
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.sync().is_err());
    let _new = disk.lock(at("/")).unwrap();
    drop(lock);
    assert!(
        matches!(disk.lock(at("/")), Err(LockError::Held { .. })),
        "the old lock took the new one with it"
    );
    drop(file);
    assert_eq!(read(&disk, "file"), b"abc");
}

#[test]
fn closing_an_old_handle_keeps_new_ones() {
    let disk = LyingDisk::new(1);
    let old = create_durable(&disk, "file", b"abc");
    disk.restore_power();
    let new = open(&disk, "file");
    disk.remove(at("file")).unwrap();
    disk.sync_dir(at("/")).unwrap();
    drop(old);
    let mut bytes = [0; 3];
    new.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"abc");
}

#[test]
fn seed_and_calls_determine_the_disk() {
    let run = |seed| {
        let disk = LyingDisk::new(seed);
        let mut random = Random::new(99);
        disk.flip_bits(0.2);
        let files: Vec<_> =
            ["a", "b", "c"].iter().map(|name| create_durable(&disk, name, b"")).collect();
        let mut read = Vec::new();
        for _ in 0..200 {
            let file = &files[random.below(3) as usize];
            file.write_at(
                &vec![random.below(256) as u8; random.below(2000) as usize],
                random.below(9000),
            )
            .unwrap();
            let mut buf = [0; 100];
            file.read_at(&mut buf, random.below(9000)).unwrap();
            read.extend(buf);
            if random.chance(0.1) {
                file.sync().unwrap();
            }
        }
        disk.restore_power();
        disk.flip_bits(0.0);
        (read, ["a", "b", "c"].map(|name| self::read(&disk, name)), disk.injected())
    };
    assert!((0..10).all(|seed| run(seed) == run(seed)));
    assert_ne!(run(0).1, run(1).1);
    assert_ne!(run(0).0, run(1).0);
}

#[test]
fn reads_do_not_change_what_survives() {
    let run = |reads: usize| {
        let disk = LyingDisk::new(3);
        disk.flip_bits(0.5);
        let file = create_durable(&disk, "file", &[1; 10_000]);
        (0..20).for_each(|i| file.write_at(&[2; 500], i * 500).unwrap());
        (0..reads).for_each(|_| drop(file.read_at(&mut [0; 10], 0)));
        disk.restore_power();
        disk.flip_bits(0.0);
        read(&disk, "file")
    };
    assert_eq!(run(0), run(17));
}

#[test]
fn failed_sync_shows_loss_only_after_a_crash() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = LyingDisk::new(seed);
        let file = create_durable(&disk, "file", b"....");
        file.write_at(b"1", 0).unwrap();
        disk.fail_next_sync();
        assert!(file.sync().is_err());
        file.write_at(b"2", 3).unwrap();
        file.sync().unwrap();
        assert_eq!(read(&disk, "file"), b"1..2");
        assert_eq!(disk.injected().failed_syncs, 1);
        disk.restore_power();
        match &read(&disk, "file")[..] {
            b"...2" => lost += 1,
            bytes => assert_eq!(bytes, b"1..2"),
        }
    }
    assert!((10..90).contains(&lost), "{lost}");
}

#[test]
fn a_failed_folder_sync_leaves_its_names_unsynced() {
    let found: BTreeSet<usize> = (0..50)
        .map(|seed| {
            let disk = LyingDisk::new(seed);
            create(&disk, "file", b"");
            disk.fail_next_sync();
            assert!(disk.sync_dir(at("/")).is_err());
            disk.restore_power();
            names(&disk).len()
        })
        .collect();
    assert_eq!(found, BTreeSet::from([0, 1]));
}

#[test]
fn reads_fail_with_the_given_probability() {
    let disk = LyingDisk::new(1);
    let file = create(&disk, "file", b"abc");
    disk.fail_reads(0.25);
    let failed = (0..1000).filter(|_| file.read_at(&mut [0; 3], 0).is_err()).count();
    assert!((200..300).contains(&failed), "{failed}");
    assert_eq!(disk.injected().failed_reads, failed as u64);
    disk.fail_reads(0.0);
    assert!((0..100).all(|_| file.read_at(&mut [0; 3], 0).is_ok()));
}

#[test]
fn flipped_bit_is_transient() {
    let disk = LyingDisk::new(1);
    let file = create(&disk, "file", &[0; 1000]);
    disk.flip_bits(0.5);
    let mut flipped = 0;
    let mut places = BTreeSet::new();
    for _ in 0..200 {
        let mut buf = [0; 1000];
        file.read_exact_at(&mut buf, 0).unwrap();
        let ones: u32 = buf.iter().map(|byte| byte.count_ones()).sum();
        assert!(ones <= 1);
        flipped += u64::from(ones);
        places.extend(buf.iter().position(|byte| *byte != 0));
    }
    assert!(
        (70..130).contains(&flipped) && places.len() > 50,
        "{flipped} flips in {} places",
        places.len()
    );
    assert_eq!(disk.injected().flipped_bits, flipped);
    disk.flip_bits(0.0);
    assert_eq!(read(&disk, "file"), [0; 1000]);
}

#[test]
fn corrupted_byte_survives_syncs_and_crashes() {
    let disk = LyingDisk::new(1);
    let file = create_durable(&disk, "file", b"abc");
    disk.corrupt(at("file"), 1, 0x01).unwrap();
    file.sync().unwrap();
    assert_eq!(read(&disk, "file"), b"acc");
    disk.restore_power();
    assert_eq!(read(&disk, "file"), b"acc");
    // A byte that is not durable yet too.
    let file = open(&disk, "file");
    file.write_at(b"xyz", 0).unwrap();
    disk.corrupt(at("file"), 2, 0x03).unwrap();
    file.sync().unwrap();
    disk.restore_power();
    assert_eq!(read(&disk, "file"), b"xyy");
    assert_eq!(disk.injected().corrupted_bytes, 2);
    assert_eq!(disk.corrupt(at("file"), 3, 1).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(disk.corrupt(at("nothing"), 0, 1).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn full_disk_writes_the_fitting_prefix() {
    let disk = LyingDisk::new(1);
    let file = create(&disk, "file", &[1; 4096]);
    disk.fill_up(Some(8192));
    let error = file.write_at(&[2; 12_288], 4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 4096 + 8192);
    assert_eq!(disk.injected().refused_writes, 1);
    // Existing blocks need no space.
    file.write_at(&[3; 4096], 0).unwrap();
    disk.fill_up(None);
    file.write_at(&[2; 12_288], 4096).unwrap();
}

#[test]
fn closed_file_keeps_its_space() {
    let disk = LyingDisk::new(1);
    disk.fill_up(Some(4096));
    drop(create(&disk, "file", &[1; 4096]));
    let other = create(&disk, "other", b"");
    assert_eq!(other.write_at(b"x", 0).unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
fn removing_and_truncating_frees_space() {
    let disk = LyingDisk::new(1);
    let file = create(&disk, "file", &[1; 8192]);
    let other = create(&disk, "other", &[1; 4096]);
    disk.fill_up(Some(0));
    let fits = |len: usize| {
        let file = create(&disk, "probe", b"");
        let result = file.write_at(&vec![1; len], 0);
        disk.remove(at("probe")).unwrap();
        result.is_ok()
    };
    assert!(!fits(1));
    file.set_len(4096).unwrap();
    assert!(fits(4096) && !fits(4097));
    disk.remove(at("other")).unwrap();
    assert!(!fits(4097), "an open handle keeps the space");
    drop(other);
    assert!(fits(8192) && !fits(8193));
}

#[test]
fn zeroed_file_has_its_space() {
    let disk = LyingDisk::new(1);
    let file = create(&disk, "file", &[0; 8192]);
    let sparse = create(&disk, "sparse", b"");
    sparse.set_len(8192).unwrap();
    disk.fill_up(Some(0));
    file.write_at(&[1; 8192], 0).unwrap();
    assert_eq!(sparse.write_at(&[1; 8192], 0).unwrap_err().kind(), ErrorKind::StorageFull);
}

#[test]
fn full_disk_can_be_locked_again() {
    let disk = LyingDisk::new(1);
    disk.fill_up(Some(0));
    let _lock = disk.lock(at("/")).unwrap();
    assert!(matches!(disk.lock(at("/")), Err(LockError::Held { .. })));
}

#[test]
fn snapshot_is_independent() {
    let disk = LyingDisk::new(1);
    let file = create_durable(&disk, "file", b"abc");
    let _lock = disk.lock(at("/")).unwrap();
    let copy = disk.snapshot();
    file.write_at(b"xyz", 0).unwrap();
    disk.remove(at("file")).unwrap();
    assert_eq!(read(&copy, "file"), b"abc");
    open(&copy, "file").write_at(b"ABC", 0).unwrap();
    assert!(!exists(&disk, "file"));
    let _its_own = copy.lock(at("/")).unwrap();
    copy.restore_power();
    assert!(exists(&copy, "file"));
    assert!(!disk.power_is_cut());
    assert_eq!(disk.injected(), Injected::default());
}

#[test]
fn seeds_show_different_outcomes() {
    let disk = LyingDisk::new(1);
    let file = create_durable(&disk, "file", &[1; 4096]);
    file.write_at(&[2; 4096], 0).unwrap();
    disk.cut_power();
    let outcomes: BTreeSet<Vec<u8>> = (0..50)
        .map(|seed| {
            let outcome = disk.snapshot();
            outcome.reseed(seed);
            outcome.restore_power();
            read(&outcome, "file")
        })
        .collect();
    assert!(outcomes.len() > 10, "{}", outcomes.len());
}

#[test]
fn slow_disk_advances_the_clock() {
    use plimsoll_disk::clock::{Clock, ManualClock};
    let (disk, clock) = (LyingDisk::new(1), std::sync::Arc::new(ManualClock::new(0)));
    let most = std::time::Duration::from_millis(3);
    disk.slow_down(Some((std::sync::Arc::clone(&clock), most)));
    let file = disk.open(Path::new("file"), Open::CreateNew, Caching::Buffered).unwrap();
    file.write_at(b"x", 0).unwrap();
    for _ in 0..20 {
        file.sync().unwrap();
        file.read_at(&mut [0], 0).unwrap();
    }
    let taken = clock.monotonic_nanos();
    assert!((1..=40 * 3_000_000).contains(&taken), "{taken}");
    assert_eq!(disk.injected().slow_calls, 40);
    disk.slow_down(None);
    file.sync().unwrap();
    assert_eq!(clock.monotonic_nanos(), taken);
}
