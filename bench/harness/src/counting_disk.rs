//! The machine's disk with counters: the log's syncs, writes and written bytes, and the reads of
//! each thread.
//!
//! Syncs and writes count only for files with the folder `log` in their path, because a store's
//! index writes in the background. Reads count for all files, which shows which thread had to read
//! from the disk.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::os::OsDisk;
use plimsoll_disk::sharing::{LockFile, SharedWords};
use plimsoll_disk::vfs::{Caching, DirEntry, DirLock, Disk, File, LockError, Open};

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Reads of this thread so far on any of these disks.
pub(crate) fn reads_of_this_thread() -> u64 {
    READS.get()
}

/// Operations on the log's files since the start.
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
    /// For the log's files.
    counts: Option<Arc<Counts>>,
}

impl File for CountingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        READS.set(READS.get() + 1);
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if let Some(counts) = &self.counts {
            counts.writes.fetch_add(1, Ordering::Relaxed);
            counts.written_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        }
        self.file.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        if let Some(counts) = &self.counts {
            counts.syncs.fetch_add(1, Ordering::Relaxed);
        }
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
        let is_log = path.components().any(|part| part.as_os_str() == "log");
        let file = self.disk.open(path, open, caching)?;
        Ok(Arc::new(CountingFile { file, counts: is_log.then(|| self.counts()) }))
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

    fn lock_shared(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.disk.lock_shared(dir)
    }

    fn lock_file(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        self.disk.lock_file(path)
    }

    fn shared_words(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        self.disk.shared_words(path, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_read_of_this_thread_is_counted_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), [7; 100]).unwrap();
        let disk = CountingDisk::default();
        let file = disk.open(&folder.path().join("file"), Open::Read, Caching::Buffered).unwrap();
        let before = reads_of_this_thread();
        let read = |file: &dyn File| file.read_exact_at(&mut [0; 10], 5).unwrap();
        read(&*file);
        std::thread::scope(|scope| _ = scope.spawn(|| read(&*file)));
        assert_eq!(reads_of_this_thread(), before + 1);
    }

    #[test]
    fn syncs_and_writes_of_the_log_are_counted_and_of_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let disk = CountingDisk::default();
        for name in ["log", "index"] {
            disk.create_dir(&folder.path().join(name)).unwrap();
            let file = disk
                .open(&folder.path().join(name).join("file"), Open::CreateNew, Caching::Buffered)
                .unwrap();
            file.write_at(&[7; 100], 0).unwrap();
            file.sync().unwrap();
        }
        assert_eq!(disk.counts().now(), [1, 1, 100]);
    }
}
