//! The file of a run, as whole pages: an unpacked table, or the directory of a packed one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::checksum::seed;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::page::{PAGE_BYTES, check_page};
use plimsoll_memory::pool::{LoadError, PageSource};

use crate::index::run::table::run_file_name;
use crate::types::error::{Error, Result};

pub(crate) fn run_seed(log_id: u128, id: u64) -> u64 {
    seed(&[log_id as u64, (log_id >> 64) as u64, id])
}

/// A run file that is open for reading.
pub(super) struct RunFile {
    pub(super) file: Arc<dyn File>,
    pub(super) path: PathBuf,
    pub(super) seed: u64,
}

impl RunFile {
    pub(super) fn open(disk: &dyn Disk, dir: &Path, id: u64, log_id: u128) -> Result<Self> {
        let path = dir.join(run_file_name(id));
        let file = disk.open(&path, Open::Read, Caching::Direct)?;
        Ok(Self { file, path, seed: run_seed(log_id, id) })
    }

    /// The number of pages; an error if the length is too large or not a multiple of the page size.
    pub(super) fn pages(&self) -> Result<u32> {
        let bytes = self.file.len()?;
        match u32::try_from(bytes / PAGE_BYTES as u64) {
            Ok(pages) if bytes.is_multiple_of(PAGE_BYTES as u64) => Ok(pages),
            _ => Err(Error::damaged(format_args!(
                "{}: {bytes} bytes are not a whole number of pages",
                self.path.display()
            ))),
        }
    }

    pub(super) fn corrupt(&self, number: u32, what: &str) -> LoadError {
        let message = format!("{}, page {number}: {what}", self.path.display());
        LoadError::Corrupt { message }
    }
}

impl PageSource for RunFile {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        self.load_run(number, page)
    }

    fn load_run(&self, first: u32, pages: &mut [u8]) -> Result<(), LoadError> {
        match self.file.read_exact_at(pages, u64::from(first) * PAGE_BYTES as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.corrupt(first, "the file ends before it"));
            }
            read => read?,
        }
        for (number, page) in (first..).zip(pages.chunks_exact(PAGE_BYTES)) {
            check_page(page, self.seed, number).map_err(|what| self.corrupt(number, what))?;
        }
        Ok(())
    }

    fn is_sound(&self, number: u32, page: &[u8]) -> bool {
        check_page(page, self.seed, number).is_ok()
    }
}
