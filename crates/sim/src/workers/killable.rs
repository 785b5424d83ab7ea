//! A disk wrapper that can kill its process at each call: before, in the middle, or after.
//!
//! The kill is a real SIGKILL, and the disk is the real one. In the middle of a write, part of the
//! bytes is in the file; in the middle of a sync, another thread sends the signal while the call is
//! in progress.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use plimsoll_disk::layer::DiskLayer;
use plimsoll_disk::sharing::{LockFile, SharedWords};
use plimsoll_disk::thread::spawn;
use plimsoll_disk::vfs::{Caching, DIRECT_ALIGN, DirEntry, DirLock, Disk, File, LockError, Open};

use crate::workers::points::{EndState, Moment, die, kind_of};

/// The disk.
#[derive(Debug)]
pub(crate) struct KillableDisk {
    disk: Arc<dyn Disk>,
    end_state: Arc<EndState>,
}

/// A call, with the points before it and after it.
fn around<T>(
    end_state: &EndState,
    call: &'static str,
    what: &'static str,
    body: impl FnOnce() -> T,
) -> T {
    end_state.passes(Moment::Before, call, what);
    let done = body();
    end_state.passes(Moment::After, call, what);
    done
}

/// A sync, which also has a point in the middle.
fn around_sync<T>(end_state: &EndState, what: &'static str, body: impl FnOnce() -> T) -> T {
    around(end_state, "sync", what, || {
        if end_state.ends(Moment::Amid, "sync", what) {
            let killer = spawn("killer", || die());
            body();
            let _ = killer.map(std::thread::JoinHandle::join);
            die()
        }
        body()
    })
}

impl KillableDisk {
    /// Wraps `disk` for a process whose planned end is `end_state`.
    pub(crate) fn new(disk: Arc<dyn Disk>, end_state: Arc<EndState>) -> Self {
        Self { disk, end_state }
    }

    fn call<T>(&self, call: &'static str, path: &Path, body: impl FnOnce(&dyn Disk) -> T) -> T {
        around(&self.end_state, call, kind_of(path), || body(&*self.disk))
    }

    fn lock_of(&self, file: Box<dyn LockFile>, path: &Path) -> Box<dyn LockFile> {
        Box::new(KillableLock { file, what: kind_of(path), end_state: Arc::clone(&self.end_state) })
    }

    fn words_of(&self, words: Arc<dyn SharedWords>) -> Arc<dyn SharedWords> {
        Arc::new(KillableWords { words, end_state: Arc::clone(&self.end_state) })
    }

    fn lock_dir(
        &self,
        call: &'static str,
        dir: &Path,
        lock: impl FnOnce(&dyn Disk) -> Result<Box<dyn DirLock>, LockError>,
    ) -> Result<Box<dyn DirLock>, LockError> {
        let what = kind_of(dir);
        self.end_state.passes(Moment::Before, call, what);
        let locked = lock(&*self.disk);
        self.end_state.passes(
            if locked.is_ok() { Moment::After } else { Moment::Refused },
            call,
            what,
        );
        Ok(Box::new(KillableDirLock {
            lock: locked?,
            what,
            end_state: Arc::clone(&self.end_state),
        }))
    }
}

impl DiskLayer for KillableDisk {
    fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    fn of_store(
        &self,
        folder: &Path,
        lasting: &'static [&'static str],
    ) -> io::Result<Option<(Arc<dyn Disk>, PathBuf)>> {
        let of_store = self.disk.of_store(folder, lasting)?;
        Ok(of_store.map(|(disk, path)| {
            (Arc::new(Self { disk, end_state: Arc::clone(&self.end_state) }) as Arc<dyn Disk>, path)
        }))
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let call = if open == Open::CreateNew { "create" } else { "open" };
        let file = self.call(call, path, |disk| disk.open(path, open, caching))?;
        Ok(Arc::new(KillableFile {
            file,
            what: kind_of(path),
            end_state: Arc::clone(&self.end_state),
        }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.call("make", path, |disk| disk.create_dir(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.call("list", dir, |disk| disk.list(dir))
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call("list", dir, |disk| disk.names(dir))
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        self.call("look for", path, |disk| disk.entry(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("rename to", to, |disk| disk.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call("remove", path, |disk| disk.remove(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.call("remove", path, |disk| disk.remove_dir(path))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("link to", to, |disk| disk.hard_link(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        around_sync(&self.end_state, kind_of(dir), || self.disk.sync_dir(dir))
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.lock_dir("lock alone", dir, |disk| disk.lock(dir))
    }

    fn lock_shared(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.lock_dir("lock shared", dir, |disk| disk.lock_shared(dir))
    }

    fn lock_file(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        let file = self.call("open", path, |disk| disk.lock_file(path))?;
        Ok(self.lock_of(file, path))
    }

    fn lock_file_to_read(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        let file = self.call("open", path, |disk| disk.lock_file_to_read(path))?;
        Ok(self.lock_of(file, path))
    }

    fn shared_words(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        let words = self.call("map", path, |disk| disk.shared_words(path, count))?;
        Ok(self.words_of(words))
    }

    fn shared_words_to_read(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        let words = self.call("map", path, |disk| disk.shared_words_to_read(path, count))?;
        Ok(self.words_of(words))
    }
}

#[derive(Debug)]
struct KillableFile {
    file: Arc<dyn File>,
    what: &'static str,
    end_state: Arc<EndState>,
}

impl KillableFile {
    fn call<T>(&self, call: &'static str, body: impl FnOnce(&dyn File) -> T) -> T {
        around(&self.end_state, call, self.what, || body(&*self.file))
    }

    /// Writes part of the bytes and kills the process, if its end is planned there.
    fn write_amid<'b>(&self, bytes: impl FnOnce() -> std::borrow::Cow<'b, [u8]>, offset: u64) {
        if self.end_state.ends(Moment::Amid, "write", self.what) {
            let bytes = bytes();
            let _ = self.file.write_at(&bytes[..part_of(bytes.len(), offset)], offset);
            die();
        }
    }
}

/// Length of a partial write, derived from its offset; for direct writes, whole pages.
fn part_of(bytes: usize, offset: u64) -> usize {
    let part = (offset.wrapping_add(bytes as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32)
        as usize
        % bytes.max(1);
    if bytes.is_multiple_of(DIRECT_ALIGN) { part / DIRECT_ALIGN * DIRECT_ALIGN } else { part }
}

impl File for KillableFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.call("read", |file| file.read_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_amid(|| buf.into(), offset);
        self.call("write", |file| file.write_at(buf, offset))
    }

    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_amid(|| parts.concat().into(), offset);
        self.call("write", |file| file.write_parts_at(parts, offset))
    }

    fn sync(&self) -> io::Result<()> {
        around_sync(&self.end_state, self.what, || self.file.sync())
    }

    fn begin_sync(&self) {
        self.file.begin_sync();
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call("cut", |file| file.set_len(len))
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.call("allocate", |file| file.allocate(from, to))
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        self.file.will_read(offset, bytes);
    }

    fn turn(&self, caching: Caching) {
        self.file.turn(caching);
    }
}

#[derive(Debug)]
struct KillableDirLock {
    lock: Box<dyn DirLock>,
    what: &'static str,
    end_state: Arc<EndState>,
}

impl DirLock for KillableDirLock {
    fn check(&self) -> io::Result<()> {
        self.lock.check()
    }

    fn share(&self) -> Result<(), LockError> {
        around(&self.end_state, "share the lock of", self.what, || self.lock.share())
    }
}

#[derive(Debug)]
struct KillableLock {
    file: Box<dyn LockFile>,
    what: &'static str,
    end_state: Arc<EndState>,
}

impl LockFile for KillableLock {
    fn try_lock(&self) -> io::Result<bool> {
        self.end_state.passes(Moment::Before, "lock", self.what);
        let got = self.file.try_lock()?;
        if got {
            self.end_state.holds(self.what, true);
        }
        self.end_state.passes(if got { Moment::After } else { Moment::Refused }, "lock", self.what);
        Ok(got)
    }

    fn unlock(&self) {
        self.end_state.passes(Moment::Before, "unlock", self.what);
        self.file.unlock();
        self.end_state.holds(self.what, false);
        self.end_state.passes(Moment::After, "unlock", self.what);
    }

    fn identity(&self) -> u64 {
        self.file.identity()
    }

    fn check(&self) -> io::Result<()> {
        self.file.check()
    }
}

#[derive(Debug)]
struct KillableWords {
    words: Arc<dyn SharedWords>,
    end_state: Arc<EndState>,
}

impl SharedWords for KillableWords {
    fn words(&self) -> &[AtomicU64] {
        self.end_state.looks();
        self.words.words()
    }

    fn wait(&self, at: usize, seen: u64, patience: Duration) {
        around(&self.end_state, "wait", "words", || self.words.wait(at, seen, patience));
    }

    fn wake(&self, at: usize, most: u32) {
        around(&self.end_state, "wake", "words", || self.words.wake(at, most));
    }

    fn identity(&self) -> u64 {
        self.words.identity()
    }

    fn check(&self) -> io::Result<()> {
        self.words.check()
    }

    fn between_stores(&self) {
        self.end_state.stores();
    }
}
