//! Plimsoll's log as the store uses it, through the trait `Log`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Caching;
use plimsoll_log::draft::{CommitTimes, Draft, DraftEntry};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::chunk::Chunk;
use plimsoll_memory::pool::Pool;

use super::{LogPeer, Operation, Setting, Slices, slices};
use crate::payload;

const STREAM: StreamId = StreamId(1);

/// Smaller than usual, so that the entries are in sealed segments and in the active one.
const SEGMENT_BYTES: u32 = 16 << 20;

const RESIDENT_BYTES: u64 = 256 << 20;
const SMALL_CACHE_BYTES: u64 = 1 << 20;
/// A budget for the small cache: the log's needs beside its pages, and the pages.
const SMALL_BUDGET_BYTES: u64 = 16 << 20;
/// Chunks that the pool never takes; the log's buffers for a scan come from them.
const FREE_CHUNKS: usize = 8;

/// The number of entries, and how they were appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) entries: u64,
    pub(crate) payload_bytes: usize,
    pub(crate) entries_of_a_record: u64,
}

/// A file log.
pub(crate) struct FileLogPeer {
    folder: PathBuf,
    shape: Shape,
    caching: Caching,
    random: fastrand::Rng,
    open: Option<(Setting, OpenLog)>,
}

struct OpenLog {
    log: Arc<FileLog>,
    /// Keeps the pool small.
    _ballast: Vec<Chunk>,
}

impl FileLogPeer {
    /// Writes the entries.
    pub(crate) fn make(folder: &Path, shape: Shape) -> Result<Self> {
        let peer = Self::again(folder, shape, Caching::Buffered);
        let open = peer.open_with(RESIDENT_BYTES)?;
        write(&open.log, shape)?;
        Ok(peer)
    }

    /// For entries that are written already.
    pub(crate) fn again(folder: &Path, shape: Shape, caching: Caching) -> Self {
        Self {
            folder: folder.to_owned(),
            shape,
            caching,
            random: fastrand::Rng::with_seed(1),
            open: None,
        }
    }

    fn open_with(&self, budget_bytes: u64) -> Result<OpenLog> {
        let budget = Budget::new(budget_bytes, Backing::Mapped)?;
        let pool = Pool::new(&budget, SMALL_CACHE_BYTES)?;
        let (disk, clock) = (Arc::new(OsDisk::new()), Arc::new(SystemClock::new()));
        let mut options =
            FileLogOptions::new(disk, clock, self.folder.clone(), pool, budget.clone());
        options.segment_bytes = SEGMENT_BYTES;
        options.caching = self.caching;
        let (log, _) = FileLog::open(options)?;
        let ballast =
            if budget_bytes == SMALL_BUDGET_BYTES { ballast(&budget) } else { Vec::new() };
        Ok(OpenLog { log: Arc::new(log), _ballast: ballast })
    }

    fn show(&mut self, setting: Setting) -> Result<Arc<FileLog>> {
        if self.open.as_ref().is_none_or(|(shown, _)| *shown != setting) {
            self.open = None;
            let bytes =
                if setting == Setting::SmallCache { SMALL_BUDGET_BYTES } else { RESIDENT_BYTES };
            let open = self.open_with(bytes)?;
            check(&open.log, self.shape)?;
            self.open = Some((setting, open));
        }
        let (_, open) = self.open.as_ref().expect("it was opened above");
        Ok(Arc::clone(&open.log))
    }
}

/// Takes the whole budget except the pool's minimum and a few working chunks.
fn ballast(budget: &Budget) -> Vec<Chunk> {
    let mut taken: Vec<Chunk> = std::iter::from_fn(|| budget.take(Kind::Staging).ok()).collect();
    taken.truncate(taken.len().saturating_sub(FREE_CHUNKS));
    taken
}

fn write(log: &FileLog, shape: Shape) -> Result<()> {
    let size = shape.payload_bytes;
    let mut bytes = vec![0; size * shape.entries_of_a_record as usize];
    let mut last = Glsn::NONE;
    for first in (1..=shape.entries).step_by(shape.entries_of_a_record as usize) {
        let count = shape.entries_of_a_record.min(shape.entries + 1 - first);
        for (number, payload) in (first..first + count).zip(bytes.chunks_mut(size)) {
            payload::fill(number, payload);
        }
        let parts: Vec<[&[u8]; 1]> =
            bytes.chunks(size).take(count as usize).map(|payload| [payload]).collect();
        let entries: Vec<_> =
            parts.iter().map(|parts| DraftEntry { stream: STREAM, parts }).collect();
        let ticket = log.submit(
            &Draft { entries: &entries, read_at: Glsn::NONE, blobs: &[], times: CommitTimes::ANY },
            None,
        )?;
        ensure!(ticket.first == Glsn(first), "entry {first} became GLSN {}", ticket.first);
        last = ticket.last;
    }
    Ok(log.wait_durable(last)?)
}

/// Reads every entry, which also loads it into memory if there is room.
fn check(log: &FileLog, shape: Shape) -> Result<()> {
    let mut expected = vec![0; shape.payload_bytes];
    let mut scan = log.scan(Glsn(1)..Glsn(shape.entries + 1), None)?;
    for number in 1..=shape.entries {
        let entry = scan
            .next_entry()
            .ok_or_else(|| anyhow::anyhow!("the log ends before entry {number}"))??;
        payload::fill(number, &mut expected);
        ensure!(entry.payload == expected, "entry {number} is not what was written");
    }
    Ok(())
}

impl LogPeer for FileLogPeer {
    fn name(&self) -> &'static str {
        match self.caching {
            Caching::Buffered => "log",
            Caching::Direct => "log-direct",
        }
    }

    fn takes(&self, setting: Setting, _: Operation) -> bool {
        // With everything resident, the read mode of files does not matter.
        self.caching == Caching::Buffered || setting == Setting::SmallCache
    }

    fn measure(&mut self, setting: Setting, operation: Operation, slices: usize) -> Result<Slices> {
        let log = self.show(setting)?;
        let entries = self.shape.entries;
        let random = &mut self.random;
        let mut start = |count: u64| 1 + random.u64(0..=entries - count);
        match operation {
            Operation::Read => slices::measure(slices, || {
                let entry = log.read(Glsn(start(1)))?;
                touch(&entry);
                Ok(())
            }),
            Operation::Scan(count) => slices::measure(slices, || {
                let first = start(count);
                let mut seen = 0;
                let mut scan = log.scan(Glsn(first)..Glsn(first + count), None)?;
                while let Some(entry) = scan.next_entry() {
                    touch(entry?.payload);
                    seen += 1;
                }
                ensure!(seen == count, "a scan of {count} entries from {first} saw {seen}");
                Ok(())
            }),
        }
    }
}

/// Reads both ends of a payload, so that the borrowed bytes must be in the processor's cache.
pub(crate) fn touch(payload: &[u8]) {
    std::hint::black_box((payload.first(), payload.last()));
}
