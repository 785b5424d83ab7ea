//! Durable appends to Plimsoll's log, through the trait `Log`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use plimsoll_disk::clock::SystemClock;
use plimsoll_log::draft::{CommitTimes, Draft, DraftEntry};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

use super::Appender;
use crate::counting_disk::CountingDisk;
use crate::payload;

const BUDGET_BYTES: u64 = 64 << 20;
const POOL_BYTES: u64 = 8 << 20;

/// A log; each append is one record of some entries.
pub(crate) struct FileLogAppender {
    log: FileLog,
    payload: Vec<u8>,
    entries: usize,
}

impl FileLogAppender {
    /// Makes the log in a folder named `log`.
    pub(crate) fn make(
        folder: &Path,
        disk: Arc<CountingDisk>,
        entries: usize,
        payload_bytes: usize,
    ) -> Result<Self> {
        let budget = Budget::new(BUDGET_BYTES, Backing::Mapped)?;
        let pool = Pool::new(&budget, POOL_BYTES)?;
        let clock = Arc::new(SystemClock::new());
        let (log, _) =
            FileLog::open(FileLogOptions::new(disk, clock, folder.to_owned(), pool, budget))?;
        let mut payload = vec![0; payload_bytes];
        payload::fill(1, &mut payload);
        Ok(Self { log, payload, entries })
    }
}

impl Appender for FileLogAppender {
    fn append(&self, _: u64) -> Result<()> {
        let parts = [self.payload.as_slice()];
        let entries = vec![DraftEntry { stream: StreamId(1), parts: &parts }; self.entries];
        let ticket = self.log.submit(
            &Draft { entries: &entries, read_at: Glsn::NONE, blobs: &[], times: CommitTimes::ANY },
            None,
        )?;
        Ok(self.log.wait_durable(ticket.last)?)
    }
}
