//! Copies values out of log entries that are to be freed, and out of blob files that are to be
//! vacated, into a blob file of plain bytes, piece by piece.
//!
//! Invariant: a value is copied only if it matches its checksum, because a copy of a damaged value
//! would look valid forever.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use plimsoll_disk::checksum::Running;
use plimsoll_log::blob::BlobId;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::BlobWriter;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::Chunk;

use crate::index::blob_bytes;
use crate::index::run::table::TableInfo;
use crate::index::runs::blobs::Blobs;
use crate::types::error::{Error, Lift, Result};
use crate::types::version::{Stored, Version, running_value_sum};

/// Copies the values of one job. If it is dropped before a manifest names its blob file, it removes
/// the file.
pub(crate) struct Relocator {
    log: Arc<FileLog>,
    blobs: Arc<Blobs>,
    budget: Budget,
    below: Glsn,
    vacated: Arc<BTreeSet<BlobId>>,
    piece: Option<Chunk>,
    writer: Option<BlobWriter>,
    blob: Option<BlobId>,
    copying: Option<Copying>,
    finished: bool,
    named: bool,
}

/// A partly copied value.
#[derive(Debug)]
struct Copying {
    /// Offset of its beginning in the blob file.
    start: u64,
    /// Number of bytes copied so far.
    copied: u64,
    /// The checksum of the copied bytes.
    sum: Running,
}

/// The progress of moving a version's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved<'a> {
    /// The version can be written with this new stored form.
    Ready(Stored<'a>),
    /// Part of the value is not copied yet.
    Partly,
}

impl Relocator {
    /// Copies the values in entries below `below` and in the blob files that are to be vacated.
    /// Takes one chunk of `budget`.
    pub(crate) fn new(
        log: &Arc<FileLog>,
        blobs: &Arc<Blobs>,
        budget: &Budget,
        below: Glsn,
    ) -> Self {
        Self {
            log: Arc::clone(log),
            blobs: Arc::clone(blobs),
            budget: budget.clone(),
            below,
            vacated: blobs.vacated(),
            piece: None,
            writer: None,
            blob: None,
            copying: None,
            finished: false,
            named: false,
        }
    }

    /// Values in entries below this one are copied.
    pub(crate) fn below(&self) -> Glsn {
        self.below
    }

    /// Whether nothing was copied.
    pub(crate) fn is_idle(&self) -> bool {
        self.blob.is_none()
    }

    /// Whether values in this entry are copied.
    fn relocates(&self, glsn: Glsn) -> bool {
        glsn < self.below
    }

    /// Whether any value of this table is copied.
    pub(crate) fn relocates_any(&self, table: &TableInfo) -> bool {
        table.min_pointer.is_some_and(|pointer| self.relocates(pointer))
            || points_into(table, &self.vacated)
    }

    /// The stored form of `version` after the move. Copies at most `allowance` bytes (plus one
    /// piece) and subtracts the copied bytes from it.
    pub(crate) fn relocate<'a>(
        &mut self,
        version: &Version<'a>,
        allowance: &mut u64,
    ) -> Result<Moved<'a>> {
        let expiry = version.stored.expiry();
        let (from, offset, len, sum, packed) = match version.stored.value() {
            Stored::InLog { offset, len, sum, packed } if self.relocates(version.glsn) => {
                (None, offset, len, sum, packed)
            }
            Stored::InBlob { blob, offset, len, sum, packed } if self.vacated.contains(&blob) => {
                (Some(blob), offset, len, sum, packed)
            }
            _ => return Ok(Moved::Ready(version.stored)),
        };
        self.begin()?;
        let (writer, piece) =
            (self.writer.as_mut().expect("begun"), self.piece.as_mut().expect("begun"));
        let start = writer.position();
        let mut copying = self.copying.take().unwrap_or_else(|| Copying {
            start,
            copied: 0,
            sum: running_value_sum(),
        });
        let blob = writer.id();
        while copying.copied < len {
            if *allowance == 0 {
                self.copying = Some(copying);
                return Ok(Moved::Partly);
            }
            let bytes = (len - copying.copied).min(piece.len() as u64);
            let into = &mut piece[..bytes as usize];
            let at = offset + copying.copied;
            match from {
                None => match self.log.read_range(version.glsn, at, into) {
                    // The entry was dropped; the version records that from now on.
                    Err(LogError::Dropped { .. }) => {
                        let len = version.stored.value_bytes();
                        return Ok(Moved::Ready(Stored::Dropped { len }.expiring(expiry)));
                    }
                    read => _ = read.lift()?,
                },
                Some(blob) => match blob_bytes::read(&self.log, version.glsn, blob, at, into) {
                    Err(error) if is_damage(&error) => return Ok(self.leave(version, blob)),
                    read => _ = read?,
                },
            }
            copying.sum.take(into);
            writer.write(into).lift()?;
            copying.copied += bytes;
            *allowance = allowance.saturating_sub(bytes);
        }
        let stored = Stored::InBlob { blob, offset: copying.start, len, sum, packed };
        let stored = stored.expiring(expiry);
        match (version.stored.check_sum(version.glsn, copying.sum.sum()), from) {
            (Err(_), Some(vacated)) => Ok(self.leave(version, vacated)),
            (checked, _) => checked.map(|()| Moved::Ready(stored)),
        }
    }

    /// Leaves a damaged value in its file. The job does not fail, because nothing requires the
    /// removal of the file.
    fn leave<'a>(&self, version: &Version<'a>, blob: BlobId) -> Moved<'a> {
        self.blobs.stop_vacating(blob);
        Moved::Ready(version.stored)
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

    /// Records that a manifest names the blob file, or may name it.
    pub(crate) fn set_named(&mut self) {
        self.named = true;
    }

    /// Call once the view has the runs that use the blob file. A sweep may then remove the blob
    /// file once no run uses it.
    pub(crate) fn release_to_sweep(&self) {
        if let Some(blob) = self.blob {
            self.log.hand_over_blob(blob);
        }
    }
}

/// Whether any value of a table is in one of these files.
pub(crate) fn points_into(table: &TableInfo, blobs: &BTreeSet<BlobId>) -> bool {
    !blobs.is_empty() && table.blobs.iter().any(|blob| blobs.contains(blob))
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Format { .. } | Error::Dropped { .. })
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
