//! Plimsoll's log through its public interface, `Db::log`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use plimsoll::{Db, Glsn, Options};

use super::file_log::{Shape, touch};
use super::{LogPeer, Operation, Setting, Slices, slices};
use crate::payload;

const STREAM: u32 = 1;
const RESIDENT_BYTES: u64 = 256 << 20;
const SEGMENT_BYTES: u64 = 16 << 20;

/// A store whose log holds the entries; the first of them is `first`.
pub(crate) struct StoreLogPeer {
    db: Db,
    first: u64,
    entries: u64,
    random: fastrand::Rng,
}

impl StoreLogPeer {
    /// Creates the store, writes the entries and reopens it.
    pub(crate) fn make(folder: &Path, shape: Shape) -> Result<Self> {
        let folder: PathBuf = folder.to_owned();
        let options = || Options::new().memory_bytes(RESIDENT_BYTES).segment_bytes(SEGMENT_BYTES);
        let db = Db::open(&folder, options())?;
        let first = write(&db, shape)?;
        db.close()?;
        let peer = Self {
            db: Db::open(&folder, options())?,
            first,
            entries: shape.entries,
            random: fastrand::Rng::with_seed(1),
        };
        peer.check(shape)?;
        Ok(peer)
    }

    fn check(&self, shape: Shape) -> Result<()> {
        let mut expected = vec![0; shape.payload_bytes];
        let log = self.db.log();
        let mut scan = log.scan(Glsn(self.first)..Glsn(self.first + self.entries), None)?;
        for number in 1..=shape.entries {
            let entry = scan
                .next()
                .ok_or_else(|| anyhow::anyhow!("the log ends before entry {number}"))??;
            payload::fill(number, &mut expected);
            ensure!(entry.payload == expected, "entry {number} is not what was written");
        }
        Ok(())
    }
}

/// Appends the entries; GLSN of the first of them.
fn write(db: &Db, shape: Shape) -> Result<u64> {
    let size = shape.payload_bytes;
    let mut bytes = vec![0; size * shape.entries_of_a_record as usize];
    let mut first = None;
    let mut newest = None;
    for number in (1..=shape.entries).step_by(shape.entries_of_a_record as usize) {
        let count = shape.entries_of_a_record.min(shape.entries + 1 - number);
        for (number, payload) in (number..number + count).zip(bytes.chunks_mut(size)) {
            payload::fill(number, payload);
        }
        let payloads: Vec<&[u8]> = bytes.chunks(size).take(count as usize).collect();
        let ticket = db.log().append_submit(STREAM, &payloads)?;
        first.get_or_insert(ticket.glsn() + 1 - count);
        newest = Some(ticket);
    }
    if let Some(newest) = newest {
        newest.wait()?;
    }
    Ok(first.unwrap_or(Glsn(1)).0)
}

impl LogPeer for StoreLogPeer {
    fn name(&self) -> &'static str {
        "store"
    }

    fn takes(&self, setting: Setting, _: Operation) -> bool {
        // The smallest budget of a store is 16 MiB.
        setting != Setting::SmallCache
    }

    fn measure(&mut self, _: Setting, operation: Operation, slices: usize) -> Result<Slices> {
        let log = self.db.log();
        let (first, entries) = (self.first, self.entries);
        let random = &mut self.random;
        let mut start = |count: u64| first + random.u64(0..=entries - count);
        match operation {
            Operation::Read => slices::measure(slices, || {
                touch(log.read(Glsn(start(1)))?.payload());
                Ok(())
            }),
            Operation::Scan(count) => slices::measure(slices, || {
                let first = start(count);
                let mut seen = 0;
                let mut scan = log.scan(Glsn(first)..Glsn(first + count), None)?;
                while let Some(entry) = scan.next() {
                    touch(entry?.payload);
                    seen += 1;
                }
                ensure!(seen == count, "a scan of {count} entries from {first} saw {seen}");
                Ok(())
            }),
        }
    }
}
