//! The files whose pages an image can name, and the pool's view of them.
//!
//! The files are immutable and their ids are never used again: tables of runs, in files of the
//! index or blob files of the log, and segments of the log, up to their filled length.

use plimsoll_memory::budget::{Kind, Lease};
use plimsoll_memory::pool::PoolFile;

use crate::index::run::table::TableId;
use crate::types::error::Result;
use crate::warm::Context;

/// Names an immutable file of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileName {
    /// Its kind: [`RUN`], [`BLOB`] or [`SEGMENT`].
    pub(crate) kind: u8,
    /// Its id within the kind; for a segment, its first GLSN.
    pub(crate) id: u64,
}

/// A run file of the index.
pub(crate) const RUN: u8 = 0;
/// A blob file of the log that is a table of a run.
pub(crate) const BLOB: u8 = 1;
/// A segment of the log.
pub(crate) const SEGMENT: u8 = 2;

impl From<TableId> for FileName {
    fn from(id: TableId) -> Self {
        match id {
            TableId::Run(id) => Self { kind: RUN, id },
            TableId::Blob(blob) => Self { kind: BLOB, id: blob.0 },
        }
    }
}

/// The existing files, sorted by name.
#[derive(Debug)]
pub(crate) struct Files {
    files: Vec<NamedFile>,
    _lease: Lease,
}

/// A file and its readable length.
#[derive(Debug)]
pub(crate) struct NamedFile {
    pub(crate) name: FileName,
    /// Leading pages that never change again.
    pub(crate) pages: u32,
    pub(crate) file: PoolFile,
}

impl Files {
    /// The current files.
    pub(crate) fn now(context: &Context) -> Result<Self> {
        let view = context.index.sources.view();
        let segments = context.log.complete_pages();
        let tables = || view.all_runs().flat_map(|run| run.tables().iter());
        let count = segments.len() + tables().count();
        // The list of segments exists twice for a short time.
        let lease =
            context.budget.lease(Kind::Metadata, (2 * count * size_of::<NamedFile>()) as u64)?;
        let mut files = Vec::with_capacity(count);
        files.extend(tables().map(|table| NamedFile {
            name: table.info.id.into(),
            pages: table.info.pages,
            file: table.file.clone(),
        }));
        files.extend(segments.into_iter().map(|segment| NamedFile {
            name: FileName { kind: SEGMENT, id: segment.first.0 },
            pages: segment.pages,
            file: segment.file,
        }));
        files.sort_unstable_by_key(|file| file.name);
        Ok(Self { files, _lease: lease })
    }

    /// The file of this name, if it exists.
    pub(crate) fn find(&self, name: FileName) -> Option<&NamedFile> {
        let at = self.files.binary_search_by_key(&name, |file| file.name).ok()?;
        Some(&self.files[at])
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[NamedFile] {
        &self.files
    }
}
