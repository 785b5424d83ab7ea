//! Open file handles of the log: a bounded number, however many files it has.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_disk::vfs::{Caching, Disk, File, Open};

use crate::file_log::files::names::FileName;
use crate::glsn::Glsn;

/// Handles kept open for reading.
const OPEN_FILES_MAX: usize = 64;

/// Opens files for reading and keeps the most recently used handles.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The active segment while its file has a temporary name, because it cannot be opened by its
    /// final name yet.
    unnamed: Option<(FileName, Arc<dyn File>)>,
    handles: HashMap<FileName, Handle>,
    clock: u64,
}

#[derive(Debug)]
struct Handle {
    file: Arc<dyn File>,
    caching: Caching,
    used: u64,
}

impl OpenFiles {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf) -> Self {
        Self { disk, dir, kept: Mutex::default() }
    }

    /// The path of a file.
    pub(crate) fn path(&self, name: FileName) -> PathBuf {
        name.path(&self.dir)
    }

    /// A handle to read from.
    pub(crate) fn get(&self, name: FileName, caching: Caching) -> io::Result<Arc<dyn File>> {
        if let Some(file) = self.kept().find(name, caching) {
            return Ok(file);
        }
        let file = self.disk.open(&self.path(name), Open::Read, caching)?;
        self.kept().keep(name, Handle { file: Arc::clone(&file), caching, used: 0 });
        Ok(file)
    }

    /// Lends the file of a segment that does not have its name yet.
    pub(crate) fn lend_unnamed(&self, first: Glsn, file: Arc<dyn File>) {
        self.kept().unnamed = Some((FileName::Segment(first), file));
    }

    /// Notes that the segment has its final name.
    pub(crate) fn named(&self, first: Glsn) {
        self.kept().unnamed.take_if(|(name, _)| *name == FileName::Segment(first));
    }

    /// Closes a handle whose file is about to be removed or replaced.
    pub(crate) fn forget(&self, name: FileName) {
        self.kept().handles.remove(&name);
    }

    /// Closes the handles of files whose names are gone, because an open handle keeps the space of
    /// a removed file. Returns these names.
    pub(crate) fn close_removed(&self) -> Vec<FileName> {
        let mut names: Vec<FileName> = self.kept().handles.keys().copied().collect();
        names.retain(|name| matches!(self.disk.entry(&self.path(*name)), Ok(None)));
        names.iter().for_each(|name| self.forget(*name));
        names
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn find(&mut self, name: FileName, caching: Caching) -> Option<Arc<dyn File>> {
        if let Some((_, file)) = self.unnamed.as_ref().filter(|(unnamed, _)| *unnamed == name) {
            return Some(Arc::clone(file));
        }
        self.clock += 1;
        let now = self.clock;
        let handle = self.handles.get_mut(&name).filter(|handle| handle.caching == caching)?;
        handle.used = now;
        Some(Arc::clone(&handle.file))
    }

    fn keep(&mut self, name: FileName, mut handle: Handle) {
        handle.used = self.clock;
        if self.handles.len() >= OPEN_FILES_MAX
            && let Some(oldest) =
                self.handles.iter().min_by_key(|(_, handle)| handle.used).map(|(name, _)| *name)
        {
            self.handles.remove(&oldest);
        }
        self.handles.insert(name, handle);
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::mem::MemDisk;

    use super::*;

    #[test]
    fn few_files_are_open_at_a_time() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let files = OpenFiles::new(Arc::clone(&disk), PathBuf::from("/"));
        for first in 0..200 {
            let name = FileName::Segment(Glsn(first));
            disk.open(&files.path(name), Open::CreateNew, Caching::Buffered).unwrap();
            files.get(name, Caching::Direct).unwrap();
        }
        assert_eq!(files.kept().handles.len(), OPEN_FILES_MAX);
        assert!(files.kept().handles.contains_key(&FileName::Segment(Glsn(199))));
        files.forget(FileName::Segment(Glsn(199)));
        assert!(!files.kept().handles.contains_key(&FileName::Segment(Glsn(199))));
    }
}
