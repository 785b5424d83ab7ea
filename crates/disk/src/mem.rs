//! A perfect disk in memory for tests: writes are durable at once, and operations do not fail
//! spontaneously.
//!
//! Clones are the same disk. Paths start at its root, whether they are absolute or not. Direct
//! handles require alignment, as on the real disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::image::{Image, end_of};
use crate::mutex::lock;
use crate::path_error::{at_path, of_kind};
use crate::sharing::{LockFile, SharedWords};
use crate::sharing_in_memory::SharingInMemory;
use crate::tree::{Change, NodeId, Tree};
use crate::vfs::{
    Caching, DirEntry, DirLock, Disk, File, HELD_BY_THIS_PROCESS, LockError, Open, check_direct,
};

const LOCK_NAME: &str = "LOCK";

/// A disk in memory.
#[derive(Clone, Debug, Default)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
    sharing: SharingInMemory,
    file_bytes_max: Option<u64>,
}

#[derive(Debug)]
struct State {
    tree: Tree<Bytes>,
    locked: BTreeSet<NodeId>,
    /// Number of holders that share the lock of a folder.
    shared: BTreeMap<NodeId, usize>,
}

impl Default for State {
    fn default() -> Self {
        Self { tree: Tree::new(), locked: BTreeSet::new(), shared: BTreeMap::new() }
    }
}

/// The bytes of a file, shared by its names and its open handles.
#[derive(Clone, Debug, Default)]
struct Bytes(Arc<RwLock<Image>>);

impl Bytes {
    fn read(&self) -> RwLockReadGuard<'_, Image> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Image> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn len(&self) -> u64 {
        self.read().len()
    }
}

impl MemDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty disk whose files have at most this many bytes; a write beyond that fails with
    /// `FileTooLarge`, as under `ulimit -f`.
    pub fn with_file_limit(bytes: u64) -> Self {
        Self { file_bytes_max: Some(bytes), ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn open(&mut self, path: &Path, open: Open) -> io::Result<Bytes> {
        if open == Open::CreateNew {
            let bytes = Bytes::default();
            self.tree.create_file(path, bytes.clone())?;
            return Ok(bytes);
        }
        let id = self.tree.file(path)?;
        self.tree.get(id).cloned().ok_or_else(|| of_kind(path, ErrorKind::NotFound))
    }

    /// Drops files that have lost their last name.
    fn settle(&mut self, changes: &[Change]) {
        for id in changes.iter().filter_map(|change| change.was) {
            if self.tree.links(id) == 0 {
                self.tree.forget(id);
            }
        }
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let bytes = self.state().open(path, open)?;
        let (writable, direct) = (open != Open::Read, caching == Caching::Direct);
        let bytes_max = self.file_bytes_max.unwrap_or(u64::MAX);
        Ok(Arc::new(MemFile { bytes, bytes_max, writable, direct, path: path.to_owned() }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.state().tree.create_dir(path).map(|_| ())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.state().tree.list(dir, Bytes::len)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        self.state().tree.entry(path, Bytes::len)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let changes = state.tree.rename(from, to)?;
        // A moved file has a name again; only the one it replaced can be without a name.
        state.settle(&changes);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let changes = state.tree.remove(path)?;
        state.settle(&changes);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let changes = state.tree.remove_dir(path)?;
        state.settle(&changes);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.state().tree.hard_link(from, to).map(|_| ())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.state().tree.folder(dir).map(|_| ())
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let mut state = self.state();
        let folder = state.tree.folder(dir).map_err(LockError::Io)?;
        if state.locked.contains(&folder) || state.shared.contains_key(&folder) {
            return Err(LockError::Held {
                pid: Some(std::process::id()),
                who: HELD_BY_THIS_PROCESS.to_owned(),
            });
        }
        let path = dir.join(LOCK_NAME);
        let bytes = match state.open(&path, Open::CreateNew) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                state.open(&path, Open::ReadWrite)
            }
            opened => opened,
        }
        .map_err(LockError::Io)?;
        bytes.write().set_len(0);
        bytes.write().write(format!("{}\n", std::process::id()).as_bytes(), 0);
        state.locked.insert(folder);
        Ok(Box::new(MemLock {
            disk: self.clone(),
            folder,
            bytes,
            is_shared: AtomicBool::new(false),
        }))
    }

    fn lock_shared(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        let mut state = self.state();
        let folder = state.tree.folder(dir).map_err(LockError::Io)?;
        if state.locked.contains(&folder) {
            return Err(LockError::Held {
                pid: Some(std::process::id()),
                who: HELD_BY_THIS_PROCESS.to_owned(),
            });
        }
        *state.shared.entry(folder).or_default() += 1;
        Ok(Box::new(MemLock {
            disk: self.clone(),
            folder,
            bytes: Bytes::default(),
            is_shared: AtomicBool::new(true),
        }))
    }

    fn locked_by(&self, dir: &Path) -> io::Result<Option<(Option<u32>, String)>> {
        let state = self.state();
        let folder = state.tree.folder(dir)?;
        Ok(state
            .locked
            .contains(&folder)
            .then(|| (Some(std::process::id()), HELD_BY_THIS_PROCESS.to_owned())))
    }

    fn lock_file(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        Ok(self.sharing.lock_file(path))
    }

    fn shared_words(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        Ok(self.sharing.words(path, count))
    }
}

#[derive(Debug)]
struct MemFile {
    bytes: Bytes,
    /// The most bytes that the file may have.
    bytes_max: u64,
    writable: bool,
    direct: bool,
    path: PathBuf,
}

impl MemFile {
    fn check(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.direct {
            check_direct(buf, offset).map_err(|e| at_path(&self.path, e))
        } else {
            Ok(())
        }
    }

    /// Checks that a write may extend to the end of `len` bytes at `offset`.
    fn check_write(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.writable {
            return Err(of_kind(&self.path, ErrorKind::PermissionDenied));
        }
        let end = end_of(offset, len).map_err(|e| at_path(&self.path, e))?;
        if end > self.bytes_max {
            return Err(of_kind(&self.path, ErrorKind::FileTooLarge));
        }
        Ok(())
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check(buf, offset)?;
        Ok(self.bytes.read().read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(buf, offset)?;
        self.check_write(offset, buf.len() as u64)?;
        self.bytes.write().write(buf, offset);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_write(0, len)?;
        self.bytes.write().set_len(len);
        Ok(())
    }

    fn allocate(&self, _: u64, to: u64) -> io::Result<()> {
        self.check_write(0, to)?;
        let mut bytes = self.bytes.write();
        let len = bytes.len().max(to);
        bytes.set_len(len);
        Ok(())
    }
}

#[derive(Debug)]
struct MemLock {
    disk: MemDisk,
    folder: NodeId,
    bytes: Bytes,
    is_shared: AtomicBool,
}

impl DirLock for MemLock {
    fn share(&self) -> Result<(), LockError> {
        let mut state = self.disk.state();
        state.locked.remove(&self.folder);
        *state.shared.entry(self.folder).or_default() += 1;
        self.is_shared.store(true, Ordering::Relaxed);
        self.bytes.write().set_len(0);
        Ok(())
    }
}

impl State {
    /// Releases one holder of a shared lock.
    fn unshare(&mut self, folder: NodeId) {
        if let Some(count) = self.shared.get_mut(&folder) {
            *count -= 1;
            if *count == 0 {
                self.shared.remove(&folder);
            }
        }
    }
}

impl Drop for MemLock {
    fn drop(&mut self) {
        if *self.is_shared.get_mut() {
            self.disk.state().unshare(self.folder);
            return;
        }
        self.bytes.write().set_len(0);
        self.disk.state().locked.remove(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_names_and_handles_is_dropped() {
        let disk = MemDisk::new();
        let (one, two) = (Path::new("one"), Path::new("two"));
        let file = disk.open(one, Open::CreateNew, Caching::Buffered).unwrap();
        disk.open(two, Open::CreateNew, Caching::Buffered).unwrap();
        disk.rename(one, two).unwrap();
        assert_eq!(disk.state().tree.files().count(), 1);
        disk.remove(two).unwrap();
        assert_eq!(disk.state().tree.files().count(), 0);
        file.write_at(b"abc", 0).unwrap();
        assert_eq!(file.len().unwrap(), 3);
    }

    #[test]
    fn a_file_does_not_grow_beyond_the_limit() {
        let disk = MemDisk::with_file_limit(8);
        let file = disk.open(Path::new("one"), Open::CreateNew, Caching::Buffered).unwrap();
        file.write_at(b"abcdefgh", 0).unwrap();
        let errors = [file.write_at(b"i", 8), file.set_len(9), file.allocate(0, 9)];
        for error in errors.map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::FileTooLarge, "{error}");
        }
        assert_eq!(file.len().unwrap(), 8);
    }
}
