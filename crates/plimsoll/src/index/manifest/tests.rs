//! Tests of the manifest: round trips, refused content, and crashes during a write.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::layer::DiskLayer;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;
use plimsoll_log::blob::BlobId;

use super::format::{
    DELETIONS_DROPPED, HAS_BRANCHES, HAS_LOG_BYTES, HEAD_BYTES, LOG_BEGINS, PINNED,
};
use super::*;
use crate::index::env::moment_set::MomentSet;
use crate::index::ranges::end_of_all;
use crate::index::run::table::TableId;
use crate::types::expiry::ExpiryRange;

fn info(n: u64) -> TableInfo {
    TableInfo {
        id: if n.is_multiple_of(3) { TableId::Blob(BlobId(n)) } else { TableId::Run(n) },
        pages: 100 + n as u32,
        root: 7,
        versions: 1000 * n + 1,
        deletions: n,
        first_key: [&[0, 0, 0, 1][..], &n.to_be_bytes(), b"a"].concat(),
        last_key: [&[0, 0, 0, 1][..], &n.to_be_bytes(), b"b"].concat(),
        min_glsn: Glsn(n + 1),
        max_glsn: Glsn(if n == 4 { n + 1 } else { n + 500 }),
        min_pointer: (n == 5).then_some(Glsn(3)),
        log_bytes: (n != 6).then_some(n * 1000),
        expiries: if n % 2 == 1 { ExpiryRange::of_numbers([n, 1 << 50, n, n]) } else { None },
        blobs: (1..n % 4 + 1).map(BlobId).collect(),
        fixed_glsn: (n == 4).then_some(Glsn(5)),
        absorbed: Glsn(n % 3),
        packed: (n % 6 == 1).then_some(50 + n as u32),
    }
}

fn sample(tables: u64) -> Manifest {
    let head = Head {
        number: 12,
        checkpoint: Position { glsn: Glsn(500), chain: 0xfeed },
        durable: Position { glsn: Glsn(510), chain: 0xbeef },
        next_run: 99,
        limits: Limits {
            deletions_moved: Glsn(40),
            oldest_readable: Glsn(30),
            readable_in: vec![
                (2, MomentSet { floor: Glsn(30), pins: [0, 4, 29].map(Glsn).into() }),
                (9, MomentSet::since(Glsn(4))),
                (11, MomentSet { floor: Glsn(9), pins: [Glsn(1)].into() }),
            ],
            deletions_dropped_in: if tables == 8 {
                vec![]
            } else {
                vec![(2, Glsn(25)), (0xffff_ffff, Glsn(7))]
            },
        },
        ranges: {
            let one = RangeSet::default().with(b"\0\0\0\x01a", b"\0\0\0\x01c", Glsn(450));
            Arc::new(one.with(b"\0\0\0\x01b", &end_of_all(), Glsn(460)))
        },
        ..Manifest::empty(0xabcd << 100).head
    };
    Manifest {
        head,
        runs: vec![
            RunInfo { history: false, tables: (0..tables).map(info).collect() },
            RunInfo { history: true, tables: vec![info(7)] },
        ],
    }
}

/// The manifest with another number.
fn numbered(number: u64, manifest: Manifest) -> Manifest {
    Manifest { head: Head { number, ..manifest.head }, ..manifest }
}

#[test]
fn a_manifest_round_trips() {
    let disk = MemDisk::new();
    let dir = Path::new("/");
    assert_eq!(Manifest::read(&disk, dir).unwrap(), None);
    assert_eq!(Manifest::read(&disk, Path::new("/nowhere")).unwrap(), None);
    for (number, manifest) in (3..).zip([Manifest::empty(7), sample(6), sample(5000), sample(8)]) {
        let manifest = numbered(number, manifest);
        manifest.write(&disk, dir).unwrap();
        assert_eq!(Manifest::read_beyond(&disk, dir, None, Some(number)).unwrap(), None);
        assert_eq!(
            Manifest::read_beyond(&disk, dir, None, Some(number - 1)).unwrap(),
            Some(manifest.clone())
        );
        assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(manifest));
    }
    let mut names = disk.names(dir).unwrap();
    names.sort();
    assert_eq!(names, [4, 5, 6].map(manifest_name), "the last three are kept");
}

#[test]
fn a_damaged_or_misnumbered_newest_manifest_is_corruption() {
    let (disk, dir) = (MemDisk::new(), Path::new("/"));
    sample(3).write(&disk, dir).unwrap();
    let newer = numbered(13, sample(6));
    newer.write(&disk, dir).unwrap();
    let path = dir.join(manifest_name(13));
    disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&[1], 200).unwrap();
    let error = Manifest::read(&disk, dir).unwrap_err();
    assert!(
        matches!(error, Error::Corrupt { .. }) && error.to_string().contains(&manifest_name(13)),
        "{error}"
    );
    disk.remove(&path).unwrap();
    newer.write(&disk, dir).unwrap();
    disk.rename(&path, &dir.join(manifest_name(14))).unwrap();
    let error = Manifest::read(&disk, dir).unwrap_err();
    assert!(
        matches!(error, Error::Corrupt { .. })
            && error.to_string().contains("differs from the one in its name"),
        "{error}"
    );
}

#[test]
fn the_highest_manifest_number_has_no_successor() {
    let error = number_after(u64::MAX).unwrap_err();
    assert!(
        matches!(error, Error::Corrupt { .. })
            && error.to_string().contains(&manifest_name(u64::MAX)),
        "{error}"
    );
    assert_eq!(number_after(7).unwrap(), 8);
}

#[test]
fn a_taken_number_is_refused_and_its_manifest_stays() {
    let dir = Path::new("/");
    for links in [true, false] {
        let disk = Links { inner: MemDisk::new(), links };
        sample(3).write(&disk, dir).unwrap();
        let error = sample(6).write(&disk, dir).unwrap_err();
        assert!(error.to_string().contains("already exists"), "{error}");
        assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(sample(3)));
        let next = numbered(13, sample(6));
        next.write(&disk, dir).unwrap();
        assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(next));
    }
}

/// A disk in memory, with or without hard links.
#[derive(Debug)]
struct Links {
    inner: MemDisk,
    links: bool,
}

impl DiskLayer for Links {
    fn below(&self) -> &dyn Disk {
        &self.inner
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.links {
            self.inner.hard_link(from, to)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
}

/// Writes bytes shorter than a block, with a valid checksum.
fn write_bytes(disk: &MemDisk, dir: &Path, bytes: &[u8]) {
    let file = disk.open(&dir.join(manifest_name(12)), Open::ReadWrite, Caching::Buffered).unwrap();
    file.set_len(0).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.write_at(&checksum(0, bytes).to_le_bytes(), bytes.len() as u64).unwrap();
}

#[test]
fn unknown_additions_are_skipped_and_missing_ones_have_defaults() {
    let (disk, dir) = (MemDisk::new(), Path::new("/"));
    let mut manifest = sample(6);
    manifest.head.ranges = Arc::default();
    manifest.head.limits.readable_in =
        [(2, 30), (9, 4)].map(|(keyspace, floor)| (keyspace, MomentSet::since(Glsn(floor)))).into();
    manifest.write(&disk, dir).unwrap();
    let file = disk.open(&dir.join(manifest_name(12)), Open::Read, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize - 8];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let (front, additions) = bytes.split_at(bytes.len() - 14);
    let (count, addition) = additions.split_at(1);
    assert_eq!((count, &addition[..2]), (&[2][..], &[DELETIONS_DROPPED as u8, 8][..]));
    assert_eq!(addition[10..], [LOG_BEGINS as u8, 1, 1]);
    // The encoding of an earlier version.
    write_bytes(&disk, dir, &[front, &[0]].concat());
    let limits = Limits {
        deletions_dropped_in: vec![(2, Glsn(30)), (9, Glsn(4))],
        ..manifest.head.limits.clone()
    };
    let head = Head { limits, log_begins: None, ..manifest.head.clone() };
    let assumed = Manifest { head, ..manifest.clone() };
    assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(assumed));
    // Possible encodings of a later version.
    for bytes in [
        [front, &[3], &[9, 3, 1, 2, 3], addition].concat(),
        [front, &[3], addition, &[9, 0]].concat(),
    ] {
        write_bytes(&disk, dir, &bytes);
        assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(manifest.clone()));
    }
    // Too long for the file, cut within a number, or followed by more bytes.
    for bytes in [
        [front, &[1], &[9, 200, 1]].concat(),
        [front, &[1], &[1, 3, 2, 25, 2, 7]].concat(),
        [front, &[1], &[2, 1, 200, 1]].concat(),
        [front, &[1], &[PINNED as u8, 4, 3, 2, 5, 1]].concat(),
        [front, &[1], &[PINNED as u8, 4, 2, 2, 5, 0]].concat(),
        [front, &[1], &[PINNED as u8, 4, 2, 3, 5, 1]].concat(),
        [front, count, addition, b"and more"].concat(),
    ] {
        write_bytes(&disk, dir, &bytes);
        assert!(matches!(Manifest::read(&disk, dir), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_reported() {
    let disk = MemDisk::new();
    let dir = Path::new("/");
    let manifest = sample(6);
    manifest.write(&disk, dir).unwrap();
    let file = disk.open(&dir.join(manifest_name(12)), Open::ReadWrite, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    for at in 0..bytes.len() {
        file.write_at(&[bytes[at] ^ (1 << (at % 8))], at as u64).unwrap();
        let error = Manifest::read(&disk, dir).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "byte {at}: {error}");
        assert!(error.to_string().contains("`plimsoll verify STORE` lists"), "{error}");
        file.write_at(&bytes[at..=at], at as u64).unwrap();
    }
    assert_eq!(Manifest::read(&disk, dir).unwrap(), Some(manifest));
    for len in (0..bytes.len()).rev() {
        file.set_len(len as u64).unwrap();
        assert!(Manifest::read(&disk, dir).is_err(), "cut at {len}");
    }
}

#[test]
fn a_read_with_a_flipped_bit_fails_or_changes_nothing() {
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
                assert!(
                    matches!(error, Error::Corrupt { .. } | Error::Format { .. }),
                    "seed {seed}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!((1..500).contains(&refused), "{refused}");
}

#[test]
fn inconsistent_content_with_a_valid_checksum_is_reported() {
    let disk = MemDisk::new();
    let dir = Path::new("/");
    sample(3).write(&disk, dir).unwrap();
    let file = disk.open(&dir.join(manifest_name(12)), Open::ReadWrite, Caching::Buffered).unwrap();
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
        // Content that is accepted must round-trip.
        if let Ok(Some(manifest)) = Manifest::read(&disk, dir) {
            let other = MemDisk::new();
            manifest.write(&other, dir).unwrap();
            assert_eq!(Manifest::read(&other, dir).unwrap(), Some(manifest));
        }
    }
}

#[test]
fn a_newer_format_is_reported_as_newer() {
    let dir = Path::new("/");
    for (at, what) in [(8, "format"), (24, "feature")] {
        let disk = MemDisk::new();
        sample(2).write(&disk, dir).unwrap();
        let file =
            disk.open(&dir.join(manifest_name(12)), Open::ReadWrite, Caching::Buffered).unwrap();
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0).unwrap();
        head[at] = 2;
        let sum = checksum(0, &head[..48]);
        head[48..].copy_from_slice(&sum.to_le_bytes());
        file.write_at(&head, 0).unwrap();
        let error = Manifest::read(&disk, dir).unwrap_err();
        assert!(
            matches!(&error, Error::Format { message, .. } if message.contains(what)),
            "{error}"
        );
    }
}

#[test]
fn a_table_with_branch_versions_is_reported_as_newer() {
    let (disk, dir) = (MemDisk::new(), Path::new("/"));
    let manifest = sample(2);
    manifest.write(&disk, dir).unwrap();
    let file = disk.open(&dir.join(manifest_name(12)), Open::Read, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize - 8];
    file.read_exact_at(&mut bytes, 0).unwrap();
    // The offset of the first table's flags: after the head, eight numbers, the limits, and the
    // counts of runs and tables.
    let flags = HEAD_BYTES + 64 + 7 + 1 + 1 + 1 + 1;
    assert_eq!(
        bytes[flags - 4..=flags],
        [2, 0, 2, 1, HAS_LOG_BYTES],
        "two runs, a current one of two tables, the first a blob file"
    );
    bytes[flags] = HAS_BRANCHES;
    write_bytes(&disk, dir, &bytes);
    let error = Manifest::read(&disk, dir).unwrap_err();
    assert!(
        matches!(&error, Error::Format { message, .. } if message.contains("branches")),
        "{error}"
    );
}

#[test]
fn a_power_cut_leaves_the_old_or_the_new_manifest() {
    let dir = Path::new("/");
    let (old, new) = (sample(300), numbered(13, sample(700)));
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
        let next = numbered(read.head.number + 1, new.clone());
        next.write(&disk, dir).unwrap();
        let read = Manifest::read(&disk, dir).unwrap();
        assert_eq!(read, Some(next), "the leftovers of a failed attempt do not matter");
    }
    assert_eq!(seen, [true; 2]);
}

/// A file with unlimited trailing zeros that take no space; counts the bytes that are read.
#[derive(Debug)]
struct Lengthened {
    bytes: Vec<u8>,
    read_bytes: AtomicU64,
}

impl File for Lengthened {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        buf.fill(0);
        let from = self.bytes.len().min(offset as usize);
        let there = (self.bytes.len() - from).min(buf.len());
        buf[..there].copy_from_slice(&self.bytes[from..from + there]);
        Ok(buf.len())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(4 << 30)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        unreachable!("the file is only read")
    }

    fn sync(&self) -> io::Result<()> {
        unreachable!("the file is only read")
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("the file is only read")
    }
}

#[test]
fn a_lengthened_manifest_is_not_read_past_its_content() {
    let (disk, dir) = (MemDisk::new(), Path::new("/"));
    sample(8).write(&disk, dir).unwrap();
    let path = dir.join(manifest_name(12));
    let file = disk.open(&path, Open::Read, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    for len in (HEAD_BYTES..=bytes.len()).rev() {
        // The content is cut anywhere and continues with zeros.
        let file = Lengthened { bytes: bytes[..len].to_vec(), read_bytes: AtomicU64::new(0) };
        let read = read_file(&file, &path, 12);
        assert!(matches!(read, Err(Error::Corrupt { .. })), "cut at {len}: {read:?}");
        let read_bytes = file.read_bytes.into_inner();
        assert!(
            read_bytes <= len as u64 + (64 << 10),
            "cut at {len}: {read_bytes} bytes were read"
        );
    }
}
