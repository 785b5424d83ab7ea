//! The machine's disk, counting reads of each thread: so one can tell who found what he wanted in memory, and who had to read.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, DirEntry, DirLock, Disk, File, LockError, Open};

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Reads of this thread so far.
pub(crate) fn count() -> u64 {
    READS.with(Cell::get)
}

/// The disk.
#[derive(Debug, Default)]
pub(crate) struct ReadCountingDisk {
    disk: OsDisk,
}

#[derive(Debug)]
struct ReadCountingFile(Arc<dyn File>);

impl File for ReadCountingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        READS.with(|reads| reads.set(reads.get() + 1));
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

impl Disk for ReadCountingDisk {
    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(ReadCountingFile(self.disk.open(path, open, caching)?)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_read_of_this_thread_is_counted_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), [7; 100]).unwrap();
        let disk = ReadCountingDisk::default();
        let file = disk.open(&folder.path().join("file"), Open::Read, Caching::Buffered).unwrap();
        let before = count();
        let read = |file: &dyn File| file.read_exact_at(&mut [0; 10], 5).unwrap();
        read(&*file);
        std::thread::scope(|scope| _ = scope.spawn(|| read(&*file)));
        assert_eq!(count(), before + 1);
    }
}
