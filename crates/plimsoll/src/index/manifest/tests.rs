//! The manifest: what comes back, what is refused, and what a crash leaves.

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;
use plimsoll_log::blob::BlobId;

use super::format::{DELETIONS_DROPPED, HEAD_BYTES};
use super::*;
use crate::index::run::partition::PartitionId;

fn info(n: u64) -> PartitionInfo {
    PartitionInfo {
        id: if n.is_multiple_of(3) { PartitionId::Blob(BlobId(n)) } else { PartitionId::Run(n) },
        pages: 100 + n as u32,
        root: 7,
        versions: 1000 * n + 1,
        deletions: n,
        first_key: [&[0, 0, 0, 1][..], &n.to_be_bytes(), b"a"].concat(),
        last_key: [&[0, 0, 0, 1][..], &n.to_be_bytes(), b"b"].concat(),
        min_glsn: Glsn(n + 1),
        max_glsn: Glsn(if n == 4 { n + 1 } else { n + 500 }),
        min_pointer: (n == 5).then_some(Glsn(3)),
        blobs: (0..n % 4).map(BlobId).collect(),
        fixed_glsn: (n == 4).then_some(Glsn(5)),
    }
}

fn sample(partitions: u64) -> Manifest {
    Manifest {
        number: 12,
        checkpoint: Position { glsn: Glsn(500), chain: 0xfeed },
        durable: Position { glsn: Glsn(510), chain: 0xbeef },
        next_run: 99,
        deletions_moved: Glsn(40),
        oldest_readable: Glsn(30),
        oldest_readable_in: vec![(2, Glsn(30)), (9, Glsn(4))],
        deletions_dropped_in: if partitions == 8 { vec![] } else { vec![(2, Glsn(25)), (0xffff_ffff, Glsn(7))] },
        runs: vec![
            RunInfo { history: false, partitions: (0..partitions).map(info).collect() },
            RunInfo { history: true, partitions: vec![info(7)] },
        ],
        ..Manifest::empty(0xabcd << 100)
    }
}

#[test]
fn a_manifest_comes_back_as_it_was_written() {
    let disk = MemDisk::new();
    let dir = Path::new("/");
    assert_eq!(Manifest::read(&disk, dir).unwrap(), None);
    assert_eq!(Manifest::read(&disk, Path::new("/nowhere")).unwrap(), None);
    for manifest in [Manifest::empty(7), sample(6), sample(5000), sample(8)] {
        manifest.write(&disk, dir).unwrap();
        assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(manifest));
    }
}

/// Writes what is shorter than a block under a sum that matches it.
fn write_bytes(disk: &MemDisk, dir: &Path, bytes: &[u8]) {
    let file = disk.open(&dir.join(MANIFEST), Open::ReadWrite, Caching::Buffered).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.write_at(&checksum(0, bytes).to_le_bytes(), bytes.len() as u64).unwrap();
}

#[test]
fn what_is_not_known_behind_the_runs_is_passed_over_and_what_is_missing_there_is_assumed() {
    let (disk, dir) = (MemDisk::new(), Path::new("/"));
    let manifest = sample(6);
    manifest.write(&disk, dir).unwrap();
    let file = disk.open(&dir.join(MANIFEST), Open::Read, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize - 8];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let (front, additions) = bytes.split_at(bytes.len() - 11);
    let (count, addition) = additions.split_at(1);
    assert_eq!((count, &addition[..2]), (&[1][..], &[DELETIONS_DROPPED as u8, 8][..]));
    // As an earlier version wrote it.
    write_bytes(&disk, dir, &[front, &[0]].concat());
    let assumed = Manifest { deletions_dropped_in: manifest.oldest_readable_in.clone(), ..manifest.clone() };
    assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(assumed));
    // As a later version may write it.
    for bytes in [
        [front, &[2], &[9, 3, 1, 2, 3], addition].concat(),
        [front, &[2], addition, &[9, 0]].concat(),
        [front, count, addition, b"and more"].concat(),
    ] {
        write_bytes(&disk, dir, &bytes);
        assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(manifest.clone()));
    }
    // It is longer than the file, or ends within a number.
    for bytes in [[front, &[1], &[9, 200, 1]].concat(), [front, &[1], &[1, 3, 2, 25, 2, 7]].concat()] {
        write_bytes(&disk, dir, &bytes);
        assert!(matches!(Manifest::read(&disk, dir), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn every_changed_bit_and_every_cut_is_reported() {
    let disk = MemDisk::new();
    let dir = Path::new("/");
    let manifest = sample(6);
    manifest.write(&disk, dir).unwrap();
    let file = disk.open(&dir.join(MANIFEST), Open::ReadWrite, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    for at in 0..bytes.len() {
        file.write_at(&[bytes[at] ^ (1 << (at % 8))], at as u64).unwrap();
        let error = Manifest::read(&disk, dir).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "byte {at}: {error}");
        assert!(error.to_string().contains("plimsoll verify"), "{error}");
        file.write_at(&bytes[at..=at], at as u64).unwrap();
    }
    assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(manifest));
    for len in (0..bytes.len()).rev() {
        file.set_len(len as u64).unwrap();
        assert!(Manifest::read(&disk, dir).is_err(), "cut at {len}");
    }
}

#[test]
fn a_read_that_returns_a_wrong_bit_is_refused_or_changes_nothing() {
    let dir = Path::new("/");
    let manifest = sample(6);
    let mut refused = 0;
    for seed in 0..500 {
        let disk = LyingDisk::new(seed);
        manifest.write(&disk, dir).unwrap();
        disk.flip_bits(0.3);
        match Manifest::read(&disk, dir) {
            Ok(read) => assert_eq!(read.as_ref(), Some(&manifest), "seed {seed}"),
            Err(error) => {
                assert!(matches!(error, Error::Corrupt { .. } | Error::Format { .. }), "seed {seed}: {error}");
                refused += 1;
            }
        }
    }
    assert!((1..500).contains(&refused), "{refused}");
}

#[test]
fn bytes_that_match_their_checksum_but_make_no_sense_are_reported() {
    let disk = MemDisk::new();
    let dir = Path::new("/");
    sample(3).write(&disk, dir).unwrap();
    let file = disk.open(&dir.join(MANIFEST), Open::ReadWrite, Caching::Buffered).unwrap();
    let mut original = vec![0; file.len().unwrap() as usize - 8];
    file.read_exact_at(&mut original, 0).unwrap();
    let mut random = Random::new(8);
    for round in 0..20_000 {
        let mut bytes = original.clone();
        for _ in 0..=random.below(3) {
            let at = HEAD_BYTES as u64 + 64 + random.below((bytes.len() - HEAD_BYTES - 64) as u64);
            bytes[at as usize] = [0, 1, 0x7f, 0x80, 0xff, round as u8][random.below(6) as usize];
        }
        file.write_at(&bytes, 0).unwrap();
        file.write_at(&checksum(0, &bytes).to_le_bytes(), bytes.len() as u64).unwrap();
        // Either it is refused, or it makes sense: it is then written and read again alike.
        if let Ok(Some(manifest)) = Manifest::read(&disk, dir) {
            manifest.write(&disk, Path::new("/")).unwrap();
            assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(manifest));
            disk.remove(&dir.join(MANIFEST)).unwrap();
            sample(3).write(&disk, dir).unwrap();
            return_to(&disk, dir, &original);
        }
    }
}

fn return_to(disk: &MemDisk, dir: &Path, original: &[u8]) {
    let file = disk.open(&dir.join(MANIFEST), Open::ReadWrite, Caching::Buffered).unwrap();
    file.write_at(original, 0).unwrap();
}

#[test]
fn a_newer_format_is_named_as_such() {
    let disk = MemDisk::new();
    let dir = Path::new("/");
    for (at, what) in [(8, "format"), (24, "feature")] {
        sample(2).write(&disk, dir).unwrap();
        let file = disk.open(&dir.join(MANIFEST), Open::ReadWrite, Caching::Buffered).unwrap();
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0).unwrap();
        head[at] = 2;
        let sum = checksum(0, &head[..48]);
        head[48..].copy_from_slice(&sum.to_le_bytes());
        file.write_at(&head, 0).unwrap();
        let error = Manifest::read(&disk, dir).unwrap_err();
        assert!(matches!(&error, Error::Format { message, .. } if message.contains(what)), "{error}");
    }
}

#[test]
fn a_cut_of_the_power_leaves_the_old_one_or_the_new_one() {
    let dir = Path::new("/");
    let (old, new) = (sample(300), Manifest { number: 13, ..sample(700) });
    let mut seen = [false; 2];
    for seed in 0..200 {
        let disk = LyingDisk::new(seed);
        old.write(&disk, dir).unwrap();
        disk.cut_power_at_sync(disk.sync_count() + 1 + seed % 2);
        let done = new.write(&disk, dir).is_ok();
        disk.restore_power();
        let read = Manifest::read(&disk, dir).unwrap().expect("there was one");
        assert!(read == new || (read == old && !done), "seed {seed}");
        seen[usize::from(read == new)] = true;
        new.write(&disk, dir).unwrap();
        assert_eq!(
            Manifest::read(&disk, dir).unwrap().as_ref(),
            Some(&new),
            "what a failed attempt left is no hindrance"
        );
    }
    assert_eq!(seen, [true; 2]);
}
