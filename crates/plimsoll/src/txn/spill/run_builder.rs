//! A run of blob files, while it is written and afterwards.

use std::sync::Arc;

use plimsoll_disk::fork::Origin;
use plimsoll_log::blob::{BlobId, BlobRef};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::page::PAGE_BYTES;

use crate::index::run::builder::TableBuilder;
use crate::index::run::file::BlobSink;
use crate::index::run::table::{Table, TableInfo};
use crate::types::error::{Lift, Result};
use crate::types::version::{Stored, Version};

/// Divisor: a table of a long run takes at least this part of what was written before it.
const GROWTH_PART: u64 = 8;

/// The destination of runs: the log with their files, and the memory.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) origin: Origin,
    pub(super) budget: Budget,
    pub(super) log: Arc<FileLog>,
}

impl Site {
    /// Removes blob files that no record names. A forked child leaves its parent's files alone.
    pub(super) fn discard(&self, blobs: &[BlobRef]) {
        if self.origin.is_foreign() {
            return;
        }
        for blob in blobs {
            // A file that cannot be removed now is swept at the next open.
            let _ = self.log.discard_blob(blob.id);
        }
    }
}

/// A finished run.
pub(super) struct SpilledRun {
    pub(super) tier: u32,
    pub(super) tables: Arc<[Table]>,
    pub(super) blobs: Vec<BlobRef>,
}

impl SpilledRun {
    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| u64::from(table.info.pages) * PAGE_BYTES as u64).sum()
    }

    pub(super) fn first_key(&self) -> &[u8] {
        &self.tables.first().expect("a run is never empty").info.first_key
    }

    pub(super) fn last_key(&self) -> &[u8] {
        &self.tables.last().expect("a run is never empty").info.last_key
    }

    /// Removes the files.
    pub(super) fn discard(self, site: &Site) {
        drop(self.tables);
        site.discard(&self.blobs);
    }
}

/// A run that is being written. If it is dropped unfinished, its files are removed.
pub(crate) struct SpillBuilder {
    site: Site,
    table_bytes: u64,
    open: Option<TableBuilder<BlobSink>>,
    /// Whether its files may be synced together with the record that names them.
    synced_later: bool,
    /// Size of the finished tables.
    written_bytes: u64,
    tables: Vec<Table>,
    blobs: Vec<BlobRef>,
}

impl SpillBuilder {
    /// A run with tables of `table_bytes`, and larger ones once it is long.
    pub(super) fn new(site: Site, table_bytes: u64, synced_later: bool) -> Self {
        let (tables, blobs) = (Vec::new(), Vec::new());
        Self { site, table_bytes, open: None, synced_later, written_bytes: 0, tables, blobs }
    }

    /// Adds a write: keys ascending, each once.
    pub(crate) fn add(&mut self, key: &[u8], stored: Stored<'_>) -> Result<()> {
        let table_bytes = self.table_bytes.max(self.written_bytes / GROWTH_PART);
        if self.open.as_ref().is_some_and(|open| open.bytes() >= table_bytes) {
            self.finish_table()?;
        }
        if self.open.is_none() {
            let log = &self.site.log;
            let blob =
                if self.synced_later { log.create_blob_for_record() } else { log.create_blob() };
            let sink = BlobSink::new(blob.lift()?);
            self.open = Some(TableBuilder::new(sink, &self.site.budget, true)?);
        }
        let open = self.open.as_mut().expect("made above");
        open.add(&Version { key, glsn: Glsn::NONE, stored })
    }

    fn finish_table(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        self.written_bytes += open.bytes();
        let (sink, info) = open.finish()?;
        let blob = sink.finish()?;
        self.blobs.push(blob);
        self.tables.push(self.open(info, blob.id)?);
        Ok(())
    }

    fn open(&self, info: TableInfo, blob: BlobId) -> Result<Table> {
        let blob = self.site.log.open_blob(blob).lift()?;
        Ok(Table { info: Arc::new(info), file: blob.file })
    }

    /// Ends the run; `None` if nothing was added.
    pub(super) fn finish(mut self, tier: u32) -> Result<Option<SpilledRun>> {
        self.finish_table()?;
        let (tables, blobs) = (std::mem::take(&mut self.tables), std::mem::take(&mut self.blobs));
        Ok((!tables.is_empty()).then(|| SpilledRun { tier, tables: tables.into(), blobs }))
    }
}

impl Drop for SpillBuilder {
    fn drop(&mut self) {
        self.tables.clear();
        self.site.discard(&self.blobs);
    }
}
