//! Copies values that live in log entries which are wanted back into a blob file of plain bytes, piece by piece.
//!
//! Law: a value is not copied unless it has the checksum that it was written with: a copy of a damaged one would look sound for ever.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use plimsoll_disk::checksum::Running;
use plimsoll_log::blob::{BlobId, BlobWriter};
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::Chunk;

use crate::index::core::{Core, lock};
use crate::types::error::Result;
use crate::types::version::{Stored, Version, running_value_sum};

/// Copies the values of one job. Dropped before its blob file is named by a manifest, it removes it.
pub(crate) struct Relocator {
    log: Arc<dyn Log>,
    in_work: Arc<Mutex<BTreeSet<BlobId>>>,
    budget: Budget,
    below: Glsn,
    piece: Option<Chunk>,
    writer: Option<Box<dyn BlobWriter>>,
    blob: Option<BlobId>,
    copying: Option<Copying>,
    finished: bool,
    named: bool,
}

/// A value of which a part is copied.
#[derive(Debug)]
struct Copying {
    /// Where it begins in the blob file.
    start: u64,
    /// How much of it is there.
    copied: u64,
    /// The checksum over that.
    sum: Running,
}

/// How far a version's value has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved<'a> {
    /// The version can be written: what it stores now.
    Ready(Stored<'a>),
    /// A part of the value is still to be copied.
    Partly,
}

impl Relocator {
    /// Copies what lies in entries below `below`; takes one chunk of `budget`.
    pub(crate) fn new(core: &Core, budget: &Budget, below: Glsn) -> Self {
        Self {
            log: Arc::clone(&core.ground.log),
            in_work: Arc::clone(&core.blobs_in_work),
            budget: budget.clone(),
            below,
            piece: None,
            writer: None,
            blob: None,
            copying: None,
            finished: false,
            named: false,
        }
    }

    /// Whether values of this entry are copied.
    pub(crate) fn wants(&self, glsn: Glsn) -> bool {
        glsn < self.below
    }

    /// What `version` stores once it is moved. Copies at most `allowance` bytes (a piece more) and takes them off it.
    pub(crate) fn relocate<'a>(&mut self, version: &Version<'a>, allowance: &mut u64) -> Result<Moved<'a>> {
        let Stored::InLog { offset, len, sum } = version.stored else { return Ok(Moved::Ready(version.stored)) };
        if !self.wants(version.glsn) {
            return Ok(Moved::Ready(version.stored));
        }
        self.begin()?;
        let (writer, piece) = (self.writer.as_mut().expect("begun"), self.piece.as_mut().expect("begun"));
        let start = writer.position();
        let mut copying = self.copying.take().unwrap_or_else(|| Copying { start, copied: 0, sum: running_value_sum() });
        let blob = writer.id();
        while copying.copied < len {
            if *allowance == 0 {
                self.copying = Some(copying);
                return Ok(Moved::Partly);
            }
            let bytes = (len - copying.copied).min(piece.len() as u64);
            let into = &mut piece[..bytes as usize];
            match self.log.read_range(version.glsn, offset + copying.copied, into) {
                // The entry was dropped: the version says so itself from now on.
                Err(LogError::Dropped { .. }) => return Ok(Moved::Ready(Stored::Dropped { len })),
                read => read?,
            }
            copying.sum.take(into);
            writer.write(into)?;
            copying.copied += bytes;
            *allowance = allowance.saturating_sub(bytes);
        }
        let stored = Stored::InBlob { blob, offset: copying.start, len, sum };
        version.stored.check_sum(version.glsn, copying.sum.sum())?;
        Ok(Moved::Ready(stored))
    }

    fn begin(&mut self) -> Result<()> {
        if self.writer.is_none() {
            self.piece = Some(self.budget.take(Kind::Sort)?);
            let writer = self.log.create_blob()?;
            lock(&self.in_work).insert(writer.id());
            self.blob = Some(writer.id());
            self.writer = Some(writer);
        }
        Ok(())
    }

    /// Syncs the blob file, if there is one.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.finish()?;
            self.finished = true;
        }
        Ok(())
    }

    /// A manifest names the blob file now, or may name it.
    pub(crate) fn set_named(&mut self) {
        self.named = true;
    }
}

impl Drop for Relocator {
    fn drop(&mut self) {
        drop(self.writer.take());
        if let Some(blob) = self.blob {
            if self.finished && !self.named {
                // What cannot be removed now is swept at the next open.
                let _ = self.log.discard_blob(blob);
            }
            lock(&self.in_work).remove(&blob);
        }
    }
}

impl fmt::Debug for Relocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Relocator(below {}, blob file {:?})", self.below, self.blob)
    }
}
