//! Helpers of the tests of the file log.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobRef;
use plimsoll_log::draft::{Draft, DraftEntry, Ticket};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::file_log::repair::recover::{Copied, DamagedBlob, write_blobs, write_segments};
use plimsoll_log::file_log::repair::survey::{Scope, Survey, survey};
use plimsoll_log::glsn::{Glsn, Position, StreamId};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

/// A time in 2025.
pub(crate) const NOW: u64 = 1_750_000_000_000_000;

/// The folder of the log under test.
pub(crate) const DIR: &str = "/log";

/// An empty disk in memory.
pub(crate) fn mem_disk() -> Arc<dyn Disk> {
    Arc::new(MemDisk::new())
}

/// Memory for one log.
pub(crate) struct Memory {
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        let budget = Budget::new(bytes, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        Self { budget, pool }
    }
}

/// Options with small segments, without a thread.
pub(crate) fn options(disk: &Arc<dyn Disk>, memory: &Memory) -> FileLogOptions {
    let clock = Arc::new(ManualClock::new(NOW));
    let mut options = FileLogOptions::new(
        Arc::clone(disk),
        clock,
        PathBuf::from(DIR),
        Arc::clone(&memory.pool),
        memory.budget.clone(),
    );
    options.segment_bytes = 1 << 18;
    options.background = false;
    options.id = Some(0x1234_5678_9abc_def0_1122_3344_5566_7788);
    options
}

pub(crate) fn open(disk: &Arc<dyn Disk>, memory: &Memory) -> FileLog {
    FileLog::open(options(disk, memory)).unwrap().0
}

/// Appends one record of one entry; not durable.
pub(crate) fn submit(log: &FileLog, stream: u32, payload: &[u8]) -> Result<Ticket, LogError> {
    submit_with(log, stream, payload, &[])
}

pub(crate) fn submit_with(
    log: &FileLog,
    stream: u32,
    payload: &[u8],
    blobs: &[BlobRef],
) -> Result<Ticket, LogError> {
    let entries = [DraftEntry { stream: StreamId(stream), parts: &[payload] }];
    log.submit(&Draft { blobs, ..Draft::of(&entries) }, None)
}

/// Appends one record with an entry for each payload; not durable.
pub(crate) fn submit_all(
    log: &FileLog,
    stream: u32,
    payloads: &[Vec<u8>],
) -> Result<Ticket, LogError> {
    let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [&payload[..]]).collect();
    let entries: Vec<_> =
        parts.iter().map(|parts| DraftEntry { stream: StreamId(stream), parts }).collect();
    log.submit(&Draft { read_at: Glsn(7), ..Draft::of(&entries) }, None)
}

/// Appends one record of one entry and waits until it is durable.
pub(crate) fn append(log: &FileLog, stream: u32, payload: &[u8]) -> Glsn {
    let ticket = submit(log, stream, payload).unwrap();
    log.wait_durable(ticket.last).unwrap();
    ticket.last
}

/// A payload of `len` bytes that depends on `number`.
pub(crate) fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut random = plimsoll_disk::random::Random::new(number);
    let mut out = vec![0; len];
    for bytes in out.chunks_mut(8) {
        let word = random.next_u64().to_le_bytes();
        bytes.copy_from_slice(&word[..bytes.len()]);
    }
    out
}

/// All entries of a range by a scan.
pub(crate) fn scan_all(
    log: &FileLog,
    from: u64,
    to: u64,
    stream: Option<u32>,
) -> Vec<(u64, Vec<u8>)> {
    let mut scan = log.scan(Glsn(from)..Glsn(to), stream.map(StreamId)).unwrap();
    let mut out = Vec::new();
    while let Some(entry) = scan.next_entry() {
        let entry = entry.unwrap();
        out.push((entry.meta.glsn.0, entry.payload.to_vec()));
    }
    out
}

/// A disk in memory with the same files in the log's folder (and without its lock).
pub(crate) fn copy_of(disk: &dyn Disk) -> Arc<dyn Disk> {
    let copy = MemDisk::new();
    copy.create_dir(Path::new(DIR)).unwrap();
    for entry in disk.list(Path::new(DIR)).unwrap() {
        if entry.name != "LOCK" {
            write_file(&copy, &entry.name, &read_file(disk, &entry.name));
        }
    }
    Arc::new(copy)
}

/// The bytes of a file in the log's folder.
pub(crate) fn read_file(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let file = disk.open(&Path::new(DIR).join(name), Open::Read, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Creates or replaces a file in the log's folder.
pub(crate) fn write_file(disk: &dyn Disk, name: &str, bytes: &[u8]) {
    let path = Path::new(DIR).join(name);
    let _ = disk.remove(&path);
    disk.open(&path, Open::CreateNew, Caching::Buffered).unwrap().write_at(bytes, 0).unwrap();
}

/// The names in the log's folder that end with `ending`.
pub(crate) fn names(disk: &dyn Disk, ending: &str) -> Vec<String> {
    let entries = disk.list(Path::new(DIR)).unwrap();
    entries.into_iter().map(|entry| entry.name).filter(|name| name.ends_with(ending)).collect()
}

/// The survey of a log, and a disk with its copy.
pub(crate) fn recover(
    disk: &Arc<dyn Disk>,
    known: Position,
    blobs: &[DamagedBlob],
    unusable: &dyn Fn(Glsn) -> bool,
) -> (Survey, Arc<dyn Disk>) {
    let memory = Memory::new(16 << 20);
    let options = options(disk, &memory);
    let into = Path::new("/copy");
    disk.create_dir(into).unwrap();
    let before = all_files(&**disk);
    let surveyed = survey(&Scope {
        options: &options,
        log_id: options.id,
        known,
        begins: None,
        unusable,
        asked: &[],
    })
    .unwrap();
    let mut copied = Copied::default();
    write_blobs(&options, surveyed.log_id, blobs, into, &mut copied).unwrap();
    write_segments(&options, &surveyed, into, &mut copied).unwrap();
    assert!(before == all_files(&**disk), "the source has changed");
    let copy = MemDisk::new();
    copy.create_dir(Path::new(DIR)).unwrap();
    for entry in disk.list(into).unwrap() {
        let file = disk.open(&into.join(&entry.name), Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; entry.len as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        write_file(&copy, &entry.name, &bytes);
    }
    (surveyed, Arc::new(copy))
}

fn all_files(disk: &dyn Disk) -> Vec<(String, Vec<u8>)> {
    let names = names(disk, "").into_iter().filter(|name| name != "LOCK");
    names.map(|name| (name.clone(), read_file(disk, &name))).collect()
}

/// For surveys in which every record can be used.
pub(crate) fn no(_: Glsn) -> bool {
    false
}
