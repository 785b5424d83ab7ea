//! Keeps the blob files that no record names any more once records are dropped or cut.
//!
//! A damaged record does not tell its blob files. So every blob file that neither a remaining record nor the caller names gets a second
//! name that ends with `.cut`, before a record is taken out: the next sweep removes the first one. Leftovers of unfinished transactions
//! are kept with them.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::blob::{BlobId, BlobRef};
use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::repair::aside::keep_aside;
use crate::file_log::segments::walk::Visitor;
use crate::format::record::RecordHeader;
use crate::glsn::{Glsn, StreamId};

/// Gives each blob file outside `named` and `kept` a second name.
pub(crate) fn keep_spare_blobs(
    disk: &dyn Disk,
    dir: &Path,
    named: &BTreeSet<BlobId>,
    kept: &dyn Fn(BlobId) -> bool,
    staging: &mut [u8],
    aside: &mut Vec<String>,
) -> Result<(), LogError> {
    let names = disk.names(dir)?;
    let blobs = names.iter().filter_map(|name| match FileName::parse(name) {
        Some(FileName::Blob(id)) => Some(id),
        _ => None,
    });
    for id in blobs.filter(|id| !named.contains(id) && !kept(*id)) {
        let name = FileName::Blob(id);
        if has_second_name(disk, dir, &names, &name.name())? {
            continue;
        }
        let file = disk.open(&name.path(dir), Open::Read, Caching::Buffered)?;
        keep_aside(disk, dir, name, &*file, staging, aside)?;
    }
    Ok(())
}

/// Whether an earlier run gave a file a second name.
fn has_second_name(disk: &dyn Disk, dir: &Path, names: &[String], name: &str) -> Result<bool, LogError> {
    let links = |name: &str| Ok::<_, LogError>(disk.entry(&dir.join(name))?.map(|entry| (entry.len, entry.links)));
    let own = links(name)?;
    let is_cut = |other: &&String| other.strip_prefix(name).is_some_and(|rest| rest.ends_with(".cut"));
    for other in names.iter().filter(is_cut) {
        if own.is_some_and(|(_, links)| links > 1) && links(other)? == own {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Collects the blob files that the records before a GLSN name.
pub(crate) struct NamesVisitor<'a> {
    pub(crate) before: Glsn,
    pub(crate) named: &'a mut BTreeSet<BlobId>,
    /// Whether there are records at or behind it.
    pub(crate) is_beyond: bool,
}

impl Visitor for NamesVisitor<'_> {
    fn entry(&mut self, _: u32, _: StreamId) -> Result<(), LogError> {
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, blobs: &[BlobRef]) -> Result<(), LogError> {
        if header.last() < self.before {
            self.named.extend(blobs.iter().map(|blob| blob.id));
        } else {
            self.is_beyond = true;
        }
        Ok(())
    }

    fn abandon(&mut self) {}
}
