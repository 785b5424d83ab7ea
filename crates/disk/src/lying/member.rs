//! A simulated disk as one of several processes sees it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;

use crate::lying::process::{Held, Holding, Process};
use crate::lying::{LyingDisk, dead};
use crate::mutex::lock;
use crate::path_error::at_path;
use crate::sharing::{LockFile, SharedWords};
use crate::vfs::{Caching, DirEntry, DirLock, Disk, File, LockError, Open};

const WHY: &str = "the process was killed";

#[derive(Debug)]
struct MemberDisk {
    disk: LyingDisk,
    process: Process,
}

impl LyingDisk {
    /// Another process of this machine, and its view of the disk. It shares locks and words with
    /// the other processes.
    pub fn process(&self, pid: u32) -> (Process, Arc<dyn Disk>) {
        let process = Process::new(pid);
        let disk = Arc::new(MemberDisk { disk: self.clone(), process: process.clone() });
        (process, disk)
    }
}

impl MemberDisk {
    /// The disk, if the process is alive.
    fn alive(&self, path: &Path) -> io::Result<&LyingDisk> {
        if self.process.begins() { Ok(&self.disk) } else { Err(dead(path, WHY)) }
    }
}

impl MemberDisk {
    /// Like `alive`, for a change of a file or a name.
    fn changes(&self, path: &Path) -> io::Result<&LyingDisk> {
        if self.process.begins_change() { Ok(&self.disk) } else { Err(dead(path, WHY)) }
    }
}

impl Disk for MemberDisk {
    fn process_id(&self) -> u32 {
        self.process.pid()
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let file = if open == Open::CreateNew { self.changes(path)? } else { self.alive(path)? }
            .open(path, open, caching)?;
        Ok(Arc::new(MemberFile { file, process: self.process.clone(), path: path.to_owned() }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.alive(path)?.create_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.alive(dir)?.list(dir)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        self.alive(path)?.entry(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.changes(from)?.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.changes(path)?.remove(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.alive(path)?.remove_dir(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.changes(to)?.hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.changes(dir)?.sync_dir(dir).inspect_err(|_| self.process.note_failed_sync())
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let lock = self.alive(dir).map_err(LockError::Io)?.lock_alone(dir)?;
        Ok(Box::new(MemberLock { holding: self.process.holds(Held::Folder(lock)) }))
    }

    fn lock_shared(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let lock = self.alive(dir).map_err(LockError::Io)?.lock_beside(dir)?;
        Ok(Box::new(MemberLock { holding: self.process.holds(Held::Folder(lock)) }))
    }

    fn lock_file(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        let lock = self.alive(path)?.lock_file(path)?;
        let holding = self.process.holds(Held::File(lock));
        Ok(Box::new(MemberLockFile {
            holding,
            process: self.process.clone(),
            path: path.to_owned(),
        }))
    }

    fn shared_words(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        let words = self.alive(path)?.shared_words(path, count)?;
        Ok(Arc::new(MemberWords { words, process: self.process.clone(), own: OnceLock::new() }))
    }
}

struct MemberFile {
    file: Arc<dyn File>,
    process: Process,
    path: PathBuf,
}

impl fmt::Debug for MemberFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberFile({:?}, process {})", self.file, self.process.pid())
    }
}

impl MemberFile {
    fn alive(&self) -> io::Result<&dyn File> {
        if self.process.begins() { Ok(&*self.file) } else { Err(dead(&self.path, WHY)) }
    }
}

impl MemberFile {
    fn changes(&self) -> io::Result<&dyn File> {
        if self.process.begins_change() { Ok(&*self.file) } else { Err(dead(&self.path, WHY)) }
    }
}

impl File for MemberFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.process.read_fails() {
            return Err(at_path(&self.path, Errno::IO));
        }
        self.alive()?.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let was_dead = self.process.is_dead();
        if self.process.begins_change() {
            return self.file.write_at(buf, offset);
        }
        if !was_dead && self.process.wrote_in_part() {
            let _ = self.file.write_at(&buf[..buf.len() / 8192 * 4096], offset);
        }
        Err(dead(&self.path, WHY))
    }

    fn sync(&self) -> io::Result<()> {
        self.changes()?.sync().inspect_err(|_| self.process.note_failed_sync())
    }

    fn len(&self) -> io::Result<u64> {
        self.alive()?.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changes()?.set_len(len)
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.changes()?.allocate(from, to)
    }
}

/// A folder's lock; released when the process ends.
#[derive(Debug)]
struct MemberLock {
    holding: Holding,
}

impl DirLock for MemberLock {
    fn check(&self) -> io::Result<()> {
        match &*lock(&self.holding) {
            Some(Held::Folder(lock)) => lock.check(),
            _ => Err(io::Error::other(WHY)),
        }
    }

    fn share(&self) -> Result<(), LockError> {
        match &*lock(&self.holding) {
            Some(Held::Folder(lock)) => lock.share(),
            _ => Err(LockError::Io(io::Error::other(WHY))),
        }
    }
}

impl Drop for MemberLock {
    fn drop(&mut self) {
        drop(lock(&self.holding).take());
    }
}

#[derive(Debug)]
struct MemberLockFile {
    holding: Holding,
    process: Process,
    path: PathBuf,
}

impl LockFile for MemberLockFile {
    fn try_lock(&self) -> io::Result<bool> {
        if self.process.begins()
            && let Some(Held::File(lock)) = &*lock(&self.holding)
        {
            return lock.try_lock();
        }
        Err(dead(&self.path, WHY))
    }

    fn unlock(&self) {
        if self.process.begins()
            && let Some(Held::File(lock)) = &*lock(&self.holding)
        {
            lock.unlock();
        }
    }

    fn identity(&self) -> u64 {
        match &*lock(&self.holding) {
            Some(Held::File(lock)) => lock.identity(),
            _ => 0,
        }
    }

    fn check(&self) -> io::Result<()> {
        match &*lock(&self.holding) {
            Some(Held::File(lock)) if !self.process.is_dead() => lock.check(),
            _ => Err(dead(&self.path, WHY)),
        }
    }
}

impl Drop for MemberLockFile {
    fn drop(&mut self) {
        // The lock of a killed process is already released.
        drop(lock(&self.holding).take());
    }
}

#[derive(Debug)]
struct MemberWords {
    words: Arc<dyn SharedWords>,
    process: Process,
    /// The words that a killed process stores to.
    own: OnceLock<Vec<AtomicU64>>,
}

impl SharedWords for MemberWords {
    fn words(&self) -> &[AtomicU64] {
        if self.process.begins() {
            return self.words.words();
        }
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::SeqCst));
        self.own.get_or_init(|| self.words.words().iter().map(copy).collect())
    }

    fn wait(&self, at: usize, seen: u64, timeout: Duration) {
        if self.process.begins()
            && self.words.words()[at].load(Ordering::SeqCst) as u32 == seen as u32
        {
            self.process.idles(timeout);
        }
    }

    fn wake(&self, at: usize, most: u32) {
        if self.process.begins() {
            self.words.wake(at, most);
        }
    }

    fn identity(&self) -> u64 {
        self.words.identity()
    }

    fn check(&self) -> io::Result<()> {
        self.words.check()
    }
}
