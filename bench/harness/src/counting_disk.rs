//! The machine's disk, counting what the log does to it: syncs, writes and their bytes.
//!
//! Only files whose path has the folder `log` in it count: the index of a store writes in its own time.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, DirEntry, DirLock, Disk, File, LockError, Open};

/// What was done to the log's files since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    syncs: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counts {
    /// Syncs, writes, bytes written.
    pub(crate) fn now(&self) -> [u64; 3] {
        [&self.syncs, &self.writes, &self.written_bytes].map(|count| count.load(Ordering::Relaxed))
    }
}

/// The disk.
#[derive(Debug, Default)]
pub(crate) struct CountingDisk {
    disk: OsDisk,
    counts: Arc<Counts>,
}

impl CountingDisk {
    pub(crate) fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn File>,
    counts: Arc<Counts>,
}

impl File for CountingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        self.counts.written_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.file.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

impl Disk for CountingDisk {
    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, open, caching)?;
        if path.components().any(|part| part.as_os_str() == "log") {
            return Ok(Arc::new(CountingFile { file, counts: self.counts() }));
        }
        Ok(file)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(dir)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        self.disk.entry(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.disk.lock(dir)
    }
}
