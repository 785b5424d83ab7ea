//! The manifest: which files the index consists of, replaced atomically.
//!
//! Laws:
//! 1. It is written whole beside the old one, synced, and renamed into its place: whoever opens the index finds the one or the other.
//! 2. A checksum covers every byte. Nothing is taken from a manifest before all of it was checked, and no length in it is believed
//!    beyond the file's end.
//! 3. Writing and reading hold one small buffer, however many partitions there are.
//!
//! The bytes are drawn in `docs/format.md`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::codec::push_varint;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_log::side::SideId;

use crate::error::{Error, Result};
use crate::index::view::Limits;
use crate::run::partition::{PartitionId, PartitionInfo};
use crate::version::MAX_INDEX_KEY_BYTES;

/// Name of the manifest in the index's folder.
pub(crate) const MANIFEST: &str = "MANIFEST";

/// Name under which the next manifest is written.
pub(crate) const NEW_MANIFEST: &str = "MANIFEST.new";

const MAGIC: [u8; 8] = *b"PLIMMANI";
const FORMAT: u32 = 1;
const HEAD_BYTES: usize = 56;
/// The checksum goes over blocks of so many bytes, each seeded with the sum of the one before.
const BLOCK_BYTES: usize = 16 << 10;
const SUM_BYTES: u64 = 8;
/// No manifest is so long: a length beyond it is damage.
const MAX_BYTES: u64 = 4 << 30;

const HAS_POINTER: u8 = 1;
const HAS_FIXED_GLSN: u8 = 2;

/// A run as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunInfo {
    /// Whether it holds superseded versions.
    pub(crate) history: bool,
    /// Its partitions, sorted.
    pub(crate) partitions: Vec<PartitionInfo>,
}

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The log's id; a manifest of another log is refused.
    pub(crate) log_id: u128,
    /// Counts manifests of this store.
    pub(crate) number: u64,
    /// The place in the log up to which the runs hold everything.
    pub(crate) checkpoint: Position,
    /// The newest durable place of the log when it was written.
    pub(crate) durable: Position,
    /// Id of the next run file.
    pub(crate) next_run: u64,
    /// Youngest deletion that compaction took out of the current runs: at or above it, a key that is not found does not exist.
    pub(crate) deletions_moved: Glsn,
    /// Oldest moment that can still be read (superseded versions below it may be gone).
    pub(crate) oldest_readable: Glsn,
    /// The same for single keyspaces, sorted by id; those that are not named lost nothing.
    pub(crate) oldest_readable_in: Vec<(u32, Glsn)>,
    /// Runs, newest first; history runs behind, the one that was made last in front.
    pub(crate) runs: Vec<RunInfo>,
}

/// Everything in a manifest but the runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) log_id: u128,
    pub(crate) number: u64,
    pub(crate) checkpoint: Position,
    pub(crate) durable: Position,
    pub(crate) next_run: u64,
    pub(crate) limits: Limits,
}

impl Manifest {
    /// The manifest of an empty index.
    pub(crate) fn empty(log_id: u128) -> Self {
        Self {
            log_id,
            number: 0,
            checkpoint: Position::default(),
            durable: Position::default(),
            next_run: 1,
            deletions_moved: Glsn::NONE,
            oldest_readable: Glsn::NONE,
            oldest_readable_in: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Everything but the runs.
    pub(crate) fn head(&self) -> Head {
        Head {
            log_id: self.log_id,
            number: self.number,
            checkpoint: self.checkpoint,
            durable: self.durable,
            next_run: self.next_run,
            limits: Limits {
                deletions_moved: self.deletions_moved,
                oldest_readable: self.oldest_readable,
                oldest_readable_in: self.oldest_readable_in.clone(),
            },
        }
    }

    /// Puts a head and runs together.
    pub(crate) fn of(head: Head, runs: Vec<RunInfo>) -> Self {
        Self {
            log_id: head.log_id,
            number: head.number,
            checkpoint: head.checkpoint,
            durable: head.durable,
            next_run: head.next_run,
            deletions_moved: head.limits.deletions_moved,
            oldest_readable: head.limits.oldest_readable,
            oldest_readable_in: head.limits.oldest_readable_in,
            runs,
        }
    }

    /// Reads the manifest of a folder; `None` if there is none (the index is then made from the log).
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>> {
        let path = dir.join(MANIFEST);
        if disk.entry(dir)?.is_none() || disk.entry(&path)?.is_none() {
            return Ok(None);
        }
        let file = disk.open(&path, Open::Read, Caching::Buffered)?;
        read_checked(&*file).map(Some).map_err(|error| match error {
            Failure::Error(error) => error,
            Failure::Damaged(what) => damaged(&path, what),
            Failure::Newer(what) => Error::Format {
                message: format!("{}: {what} that this version does not know; use a newer Plimsoll", path.display()),
            },
        })
    }

    /// Writes it beside the old one, syncs it, and puts it in the old one's place.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let runs = self.runs.iter().map(|run| (run.history, run.partitions.iter()));
        write(disk, dir, &self.head(), runs).map_err(|(_, error)| error)
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::corrupt(format!(
        "{}: {what}; the index can be made anew from the log: run `plimsoll rebuild`",
        path.display()
    ))
}

/// Whether a manifest that could not be written may stand in the old one's place all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The old one stands.
    Old,
    /// The one or the other: the rename or its sync failed.
    Unknown,
}

/// Writes a manifest of `runs` (whether it is history, and its partitions) beside the old one, syncs it, and puts it in the old one's
/// place.
pub(crate) fn write<'a, R, P>(disk: &dyn Disk, dir: &Path, head: &Head, runs: R) -> Result<(), (Outcome, Error)>
where
    R: ExactSizeIterator<Item = (bool, P)>,
    P: ExactSizeIterator<Item = &'a PartitionInfo>,
{
    let (new, old) = (dir.join(NEW_MANIFEST), dir.join(MANIFEST));
    write_new(disk, &new, head, runs).map_err(|error| (Outcome::Old, error.into()))?;
    let placed = disk.rename(&new, &old).and_then(|()| disk.sync_dir(dir));
    placed.map_err(|error| (Outcome::Unknown, error.into()))
}

fn write_new<'a, R, P>(disk: &dyn Disk, path: &Path, head: &Head, runs: R) -> io::Result<()>
where
    R: ExactSizeIterator<Item = (bool, P)>,
    P: ExactSizeIterator<Item = &'a PartitionInfo>,
{
    // Left by an attempt that failed.
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(path, Open::CreateNew, Caching::Buffered)?;
    let mut out = Writer { file: &*file, block: Vec::with_capacity(2 * BLOCK_BYTES), at: 0, sum: 0 };
    encode_head(head, &mut out)?;
    out.number(runs.len() as u64)?;
    for (history, partitions) in runs {
        out.block.push(u8::from(history));
        out.number(partitions.len() as u64)?;
        for info in partitions {
            encode_partition(info, &mut out.block);
            out.drain()?;
        }
    }
    // Room for later additions: an older version passes over it.
    out.number(0)?;
    out.finish()?;
    file.sync()
}

/// Sums up blocks and writes them.
struct Writer<'f> {
    file: &'f dyn File,
    block: Vec<u8>,
    at: u64,
    sum: u64,
}

impl Writer<'_> {
    fn number(&mut self, number: u64) -> io::Result<()> {
        push_varint(&mut self.block, number);
        self.drain()
    }

    fn drain(&mut self) -> io::Result<()> {
        while self.block.len() >= BLOCK_BYTES {
            self.write(BLOCK_BYTES)?;
        }
        Ok(())
    }

    fn write(&mut self, len: usize) -> io::Result<()> {
        let block = &self.block[..len];
        self.sum = checksum(self.sum, block);
        self.file.write_at(block, self.at)?;
        self.at += len as u64;
        self.block.drain(..len);
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.drain()?;
        if !self.block.is_empty() {
            self.write(self.block.len())?;
        }
        self.file.write_at(&self.sum.to_le_bytes(), self.at)
    }
}

fn encode_head(head: &Head, out: &mut Writer<'_>) -> io::Result<()> {
    let block = &mut out.block;
    block.extend_from_slice(&MAGIC);
    block.extend_from_slice(&FORMAT.to_le_bytes());
    // Reserved, compatible features, incompatible features: none yet.
    block.extend_from_slice(&[0; 4 + 8 + 8]);
    block.extend_from_slice(&head.log_id.to_le_bytes());
    let sum = checksum(0, block);
    block.extend_from_slice(&sum.to_le_bytes());
    let limits = &head.limits;
    for number in [
        head.number,
        head.checkpoint.glsn.0,
        head.checkpoint.chain,
        head.durable.glsn.0,
        head.durable.chain,
        head.next_run,
        limits.deletions_moved.0,
        limits.oldest_readable.0,
    ] {
        block.extend_from_slice(&number.to_le_bytes());
    }
    out.number(limits.oldest_readable_in.len() as u64)?;
    for (keyspace, glsn) in &limits.oldest_readable_in {
        out.number(u64::from(*keyspace))?;
        out.number(glsn.0)?;
    }
    Ok(())
}

fn encode_partition(info: &PartitionInfo, out: &mut Vec<u8>) {
    let (place, id) = match info.id {
        PartitionId::Run(id) => (0, id),
        PartitionId::Side(side) => (1, side.0),
    };
    out.push(place);
    let pointer = if info.min_pointer.is_some() { HAS_POINTER } else { 0 };
    let fixed = if info.fixed_glsn.is_some() { HAS_FIXED_GLSN } else { 0 };
    out.push(pointer | fixed);
    for number in [id, u64::from(info.pages), u64::from(info.root), info.versions, info.deletions] {
        push_varint(out, number);
    }
    for key in [&info.first_key, &info.last_key] {
        push_varint(out, key.len() as u64);
        out.extend_from_slice(key);
    }
    push_varint(out, info.min_glsn.0);
    push_varint(out, info.max_glsn.0);
    for glsn in [info.min_pointer, info.fixed_glsn].into_iter().flatten() {
        push_varint(out, glsn.0);
    }
    push_varint(out, info.sides.len() as u64);
    info.sides.iter().for_each(|side| push_varint(out, side.0));
}

/// Why a manifest was not read.
enum Failure {
    Damaged(&'static str),
    Newer(&'static str),
    Error(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Error(error.into())
    }
}

const CUT: Failure = Failure::Damaged("the manifest ends in the middle of something");
const SENSELESS: Failure = Failure::Damaged("the manifest describes a run that cannot be");

fn read_checked(file: &dyn File) -> Result<Manifest, Failure> {
    let len = file.len()?;
    let end = len.checked_sub(SUM_BYTES).filter(|&end| end >= HEAD_BYTES as u64 && len <= MAX_BYTES);
    let end = end.ok_or(Failure::Damaged("the manifest has a length that none can have"))?;
    let log_id = check_head(file)?;
    let mut input = Input { file, at: 0, end, block: Vec::with_capacity(BLOCK_BYTES), used: 0, sum: 0 };
    for _ in 0..HEAD_BYTES {
        input.byte()?;
    }
    let manifest = decode(log_id, &mut input)?;
    input.check_sum()?;
    Ok(manifest)
}

/// Checks what every format begins with; the log's id.
fn check_head(file: &dyn File) -> Result<u128, Failure> {
    let mut head = [0; HEAD_BYTES];
    file.read_exact_at(&mut head, 0)?;
    if head[..8] != MAGIC {
        return Err(Failure::Damaged("this is no manifest"));
    }
    if head[48..] != checksum(0, &head[..48]).to_le_bytes() {
        return Err(Failure::Damaged("the manifest's head does not match its checksum"));
    }
    let mut reader = plimsoll_disk::codec::Reader::new(&head[8..48]);
    let (format, _, _, incompatible) = (reader.u32(), reader.u32(), reader.u64(), reader.u64());
    if format != Some(FORMAT) {
        return Err(Failure::Newer("the manifest is of a format"));
    }
    if incompatible != Some(0) {
        return Err(Failure::Newer("the manifest needs a feature"));
    }
    reader.u128().ok_or(CUT)
}

/// Reads a file from the front, a block at a time. What it gives out is to be believed once [`Input::check_sum`] says so: the bytes are
/// read only once, because a second time they might come back otherwise.
struct Input<'f> {
    file: &'f dyn File,
    /// Where the next block begins.
    at: u64,
    end: u64,
    block: Vec<u8>,
    used: usize,
    /// Checksum of what was read so far.
    sum: u64,
}

impl Input<'_> {
    fn byte(&mut self) -> Result<u8, Failure> {
        if self.used == self.block.len() && !self.next_block()? {
            return Err(CUT);
        }
        self.used += 1;
        Ok(self.block[self.used - 1])
    }

    /// False at the end.
    fn next_block(&mut self) -> Result<bool, Failure> {
        let len = (self.end - self.at).min(BLOCK_BYTES as u64) as usize;
        if len == 0 {
            return Ok(false);
        }
        self.block.resize(len, 0);
        self.file.read_exact_at(&mut self.block, self.at)?;
        self.sum = checksum(self.sum, &self.block);
        self.at += len as u64;
        self.used = 0;
        Ok(true)
    }

    /// Reads on to the end, and compares everything with the checksum behind it.
    fn check_sum(mut self) -> Result<(), Failure> {
        while self.at < self.end {
            self.next_block()?;
        }
        let mut expected = [0; SUM_BYTES as usize];
        self.file.read_exact_at(&mut expected, self.end)?;
        if self.sum.to_le_bytes() == expected {
            Ok(())
        } else {
            Err(Failure::Damaged("the manifest does not match its checksum"))
        }
    }

    fn u64(&mut self) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    fn varint(&mut self) -> Result<u64, Failure> {
        let mut bytes = [0; 10];
        for at in 0..bytes.len() {
            bytes[at] = self.byte()?;
            if bytes[at] & 0x80 == 0 {
                return plimsoll_disk::codec::Reader::new(&bytes[..=at]).varint().ok_or(SENSELESS);
            }
        }
        Err(SENSELESS)
    }

    fn u32(&mut self) -> Result<u32, Failure> {
        u32::try_from(self.varint()?).map_err(|_| SENSELESS)
    }

    fn glsn(&mut self) -> Result<Glsn, Failure> {
        self.varint().map(Glsn)
    }

    fn key(&mut self) -> Result<Vec<u8>, Failure> {
        let len = self.varint()?;
        if !(4..=MAX_INDEX_KEY_BYTES as u64).contains(&len) {
            return Err(SENSELESS);
        }
        let mut key = Vec::with_capacity(len as usize);
        for _ in 0..len {
            key.push(self.byte()?);
        }
        Ok(key)
    }
}

fn decode(log_id: u128, input: &mut Input<'_>) -> Result<Manifest, Failure> {
    let number = input.u64()?;
    let checkpoint = Position { glsn: Glsn(input.u64()?), chain: input.u64()? };
    let durable = Position { glsn: Glsn(input.u64()?), chain: input.u64()? };
    let next_run = input.u64()?;
    let (deletions_moved, oldest_readable) = (Glsn(input.u64()?), Glsn(input.u64()?));
    let mut oldest_readable_in = Vec::new();
    for _ in 0..input.varint()? {
        oldest_readable_in.push((input.u32()?, input.glsn()?));
    }
    if !oldest_readable_in.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(SENSELESS);
    }
    let limits = Limits { deletions_moved, oldest_readable, oldest_readable_in };
    let head = Head { log_id, number, checkpoint, durable, next_run, limits };
    let mut runs = Vec::new();
    // Each run and each partition takes bytes of the file, so what is pushed is bounded by its length.
    for _ in 0..input.varint()? {
        runs.push(decode_run(input)?);
    }
    Ok(Manifest::of(head, runs))
}

fn decode_run(input: &mut Input<'_>) -> Result<RunInfo, Failure> {
    let history = match input.byte()? {
        0 => false,
        1 => true,
        _ => return Err(SENSELESS),
    };
    let mut partitions: Vec<PartitionInfo> = Vec::new();
    for _ in 0..input.varint()? {
        let info = decode_partition(input)?;
        if partitions.last().is_some_and(|before| before.last_key >= info.first_key) {
            return Err(SENSELESS);
        }
        partitions.push(info);
    }
    if partitions.is_empty() { Err(SENSELESS) } else { Ok(RunInfo { history, partitions }) }
}

fn decode_partition(input: &mut Input<'_>) -> Result<PartitionInfo, Failure> {
    let (place, flags) = (input.byte()?, input.byte()?);
    let id = match (place, input.varint()?) {
        (0, id) => PartitionId::Run(id),
        (1, id) => PartitionId::Side(SideId(id)),
        _ => return Err(SENSELESS),
    };
    let (pages, root) = (input.u32()?, input.u32()?);
    let (versions, deletions) = (input.varint()?, input.varint()?);
    let (first_key, last_key) = (input.key()?, input.key()?);
    let (min_glsn, max_glsn) = (input.glsn()?, input.glsn()?);
    let min_pointer = if flags & HAS_POINTER > 0 { Some(input.glsn()?) } else { None };
    let fixed_glsn = if flags & HAS_FIXED_GLSN > 0 { Some(input.glsn()?) } else { None };
    let mut sides = Vec::new();
    for _ in 0..input.varint()? {
        sides.push(SideId(input.varint()?));
    }
    let sound = flags & !(HAS_POINTER | HAS_FIXED_GLSN) == 0
        && root < pages
        && (1..=u64::MAX).contains(&versions)
        && deletions <= versions
        && first_key <= last_key
        && min_glsn <= max_glsn
        && fixed_glsn.is_none_or(|glsn| glsn == min_glsn && glsn == max_glsn)
        && sides.is_sorted();
    if !sound {
        return Err(SENSELESS);
    }
    Ok(PartitionInfo {
        id,
        pages,
        root,
        versions,
        deletions,
        first_key,
        last_key,
        min_glsn,
        max_glsn,
        min_pointer,
        sides,
        fixed_glsn,
    })
}

/// The infos of a run, for [`write`].
pub(crate) fn run_infos(
    partitions: &Arc<[crate::run::partition::Partition]>,
) -> impl ExactSizeIterator<Item = &PartitionInfo> {
    partitions.iter().map(|partition| &*partition.info)
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::lying::LyingDisk;
    use plimsoll_disk::mem::MemDisk;
    use plimsoll_disk::random::Random;

    use super::*;

    fn info(n: u64) -> PartitionInfo {
        PartitionInfo {
            id: if n.is_multiple_of(3) { PartitionId::Side(SideId(n)) } else { PartitionId::Run(n) },
            pages: 100 + n as u32,
            root: 7,
            versions: 1000 * n + 1,
            deletions: n,
            first_key: [&[0, 0, 0, 1][..], &n.to_be_bytes(), b"a"].concat(),
            last_key: [&[0, 0, 0, 1][..], &n.to_be_bytes(), b"b"].concat(),
            min_glsn: Glsn(n + 1),
            max_glsn: Glsn(if n == 4 { n + 1 } else { n + 500 }),
            min_pointer: (n == 5).then_some(Glsn(3)),
            sides: (0..n % 4).map(SideId).collect(),
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
            assert!(error.to_string().contains("plimsoll rebuild"), "{error}");
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
            assert!(matches!(&error, Error::Format { message } if message.contains(what)), "{error}");
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
}
