//! Copies values out of log entries that are to be freed into a blob file of plain bytes, piece by piece.
//!
//! Law: a value is copied only if it matches its checksum: a copy of a damaged value would look sound for ever.

use std::fmt;
use std::sync::Arc;

use plimsoll_disk::checksum::Running;
use plimsoll_log::blob::{BlobId, BlobWriter};
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::Chunk;

use crate::index::blobs::Blobs;
use crate::index::core::Core;
use crate::types::error::{Lift, Result};
use crate::types::version::{Stored, Version, running_value_sum};

/// Copies the values of one job. If it is dropped before a manifest names its blob file, it removes the file.
pub(crate) struct Relocator {
    log: Arc<dyn Log>,
    blobs: Arc<Blobs>,
    budget: Budget,
    below: Glsn,
    piece: Option<Chunk>,
    writer: Option<Box<dyn BlobWriter>>,
    blob: Option<BlobId>,
    copying: Option<Copying>,
    finished: bool,
    named: bool,
}

/// A partly copied value.
#[derive(Debug)]
struct Copying {
    /// Where it begins in the blob file.
    start: u64,
    /// Bytes copied so far.
    copied: u64,
    /// The checksum over them.
    sum: Running,
}

/// The state of a version's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved<'a> {
    /// The version can be written; this is its new stored form.
    Ready(Stored<'a>),
    /// Part of the value is still to be copied.
    Partly,
}

impl Relocator {
    /// Copies the values in entries below `below`; takes one chunk of `budget`.
    pub(crate) fn new(core: &Core, budget: &Budget, below: Glsn) -> Self {
        Self {
            log: Arc::clone(&core.context.log),
            blobs: Arc::clone(&core.blobs),
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

    /// Values of entries below this one are copied.
    pub(crate) fn below(&self) -> Glsn {
        self.below
    }

    /// Whether it has copied nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.blob.is_none()
    }

    /// Whether values of this entry are copied.
    pub(crate) fn wants(&self, glsn: Glsn) -> bool {
        glsn < self.below
    }

    /// The stored form of `version` after the move. Copies at most `allowance` bytes (plus one piece) and subtracts them from it.
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
                // The entry was dropped: the version records it from now on.
                Err(LogError::Dropped { .. }) => return Ok(Moved::Ready(Stored::Dropped { len })),
                read => _ = read.lift()?,
            }
            copying.sum.take(into);
            writer.write(into).lift()?;
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
            let writer = self.log.create_blob().lift()?;
            self.blobs.begin(writer.id());
            self.blob = Some(writer.id());
            self.writer = Some(writer);
        }
        Ok(())
    }

    /// Syncs the blob file, if there is one.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.finish().lift()?;
            self.finished = true;
        }
        Ok(())
    }

    /// Call when a manifest names the blob file, or may name it.
    pub(crate) fn set_named(&mut self) {
        self.named = true;
    }

    /// Call when the view has the runs that use the blob file: once no run does, a sweep may remove it.
    pub(crate) fn hand_over(&self) {
        if let Some(blob) = self.blob {
            self.log.hand_over_blob(blob);
        }
    }
}

impl Drop for Relocator {
    fn drop(&mut self) {
        drop(self.writer.take());
        if let Some(blob) = self.blob {
            if self.finished && !self.named {
                // A file that cannot be removed now is swept at the next open.
                let _ = self.log.discard_blob(blob);
            }
            self.blobs.end(blob);
        }
    }
}

impl fmt::Debug for Relocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Relocator(below {}, blob file {:?})", self.below, self.blob)
    }
}
