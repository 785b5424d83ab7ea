//! The bound: one thread that loops over one write and one fdatasync on a preallocated, zeroed
//! file.
//!
//! It writes as many appends per sync as the compared contestant reached on average, and only their
//! payloads: no header, no checksum, no other thread to wake.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Turn, new_histogram};
use crate::payload;

const FILE_BYTES: u64 = 64 << 20;

/// A file of zeros, and the offset of the next write.
#[derive(Debug)]
pub(crate) struct ZeroedFile {
    pub(crate) file: File,
    next: u64,
}

impl ZeroedFile {
    pub(crate) fn make(path: &Path) -> Result<Self> {
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..FILE_BYTES >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        Ok(Self { file, next: 0 })
    }

    /// Offset of the next `bytes` bytes; wraps around at the end.
    pub(crate) fn take(&mut self, bytes: u64) -> u64 {
        if self.next + bytes > FILE_BYTES {
            self.next = 0;
        }
        let offset = self.next;
        self.next += bytes;
        offset
    }
}

/// Runs the loop for a while; every append of a batch has the latency of its sync.
pub(crate) fn turn(
    file: &mut ZeroedFile,
    append_bytes: usize,
    appends_per_sync: f64,
    length: Duration,
) -> Result<Turn> {
    let mut buffer = vec![0; append_bytes * appends_per_sync.ceil().max(1.0) as usize];
    payload::fill(1, &mut buffer);
    let mut latency = new_histogram();
    let mut owed = 0.0;
    let start = Instant::now();
    while start.elapsed() < length {
        // A whole number of appends whose mean is the requested one.
        owed += appends_per_sync.max(1.0);
        let count = owed.floor();
        owed -= count;
        let bytes = &buffer[..append_bytes * count as usize];
        let begin = Instant::now();
        let offset = file.take(bytes.len() as u64);
        file.file.write_all_at(bytes, offset)?;
        file.file.sync_data()?;
        latency.saturating_record_n(begin.elapsed().as_nanos() as u64, count as u64);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Turn { appends: latency.len(), seconds, latency })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_batch_is_the_wanted_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ZeroedFile::make(&folder.path().join("zeroed")).unwrap();
        // A busy disk needs longer for two syncs.
        let mut of = |millis| turn(&mut file, 128, 2.5, Duration::from_millis(millis)).unwrap();
        let turn =
            [50, 1000, 60_000].into_iter().map(&mut of).find(|turn| turn.appends >= 5).unwrap();
        let mut by_latency = 0;
        for value in turn.latency.iter_recorded() {
            by_latency += value.count_since_last_iteration();
        }
        assert_eq!(by_latency, turn.appends);
        // Pairs of a two and a three.
        assert!([0, 2].contains(&(turn.appends % 5)), "{}", turn.appends);
    }
}
