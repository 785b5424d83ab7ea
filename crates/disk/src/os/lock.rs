//! The lock on a folder: at most one writer, even if files in the folder are replaced or removed.
//!
//! 1. The lock is on the folder's own descriptor. A folder in use cannot be unlinked, so no second
//!    writer finds an unlocked one in its place. The file `LOCK` in it is locked too (for file
//!    systems that cannot lock a folder, such as NFS) and names the holder.
//! 2. The system releases both locks when the last copy of the descriptors closes, however the
//!    process ends. Forked children have no copies ([`crate::fork`]), but children created
//!    otherwise may. The holder therefore unlocks explicitly on release, and a child that inherited
//!    a lock does not unlock it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, test_kill_process};

use crate::fork::{self, Kept};
use crate::os::group::open_or_make;
use crate::os::place::Place;
use crate::os::root::{Identity, LOCK_NAME, compare, identity_of};
use crate::os::{OsFile, call, check_regular};
use crate::path_error::at_path;
use crate::vfs::{DirLock, File, HELD_BY_THIS_PROCESS, LockError};

/// Folders locked by this process, with the id of the process that locked them; a forked child sees
/// its parent's entries.
static LOCKED_HERE: Mutex<BTreeMap<Identity, u32>> = Mutex::new(BTreeMap::new());

/// Accesses the locked folders. A forked child finds the mutex unlocked.
fn locked_here<T>(look: impl FnOnce(&mut BTreeMap<Identity, u32>) -> T) -> T {
    let _no_fork = fork::block_forks();
    look(&mut LOCKED_HERE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A locked folder.
#[derive(Debug)]
pub(super) struct OsLock {
    /// Withholds the descriptors from forked children, which would otherwise keep the lock of a
    /// dead parent.
    _kept: [Kept; 2],
    folder: Arc<OwnedFd>,
    /// The absolute path, which survives a change of the working folder.
    path: PathBuf,
    folder_identity: Identity,
    file: OsFile,
    file_identity: Identity,
    /// The process that took it.
    pid: u32,
    held: AtomicU8,
}

/// Exclusive; names this process in the lock file.
const ALONE: u8 = 0;
/// Shared with other processes.
const SHARED: u8 = 1;
/// Another process took the lock while this one was switching to shared.
const LOST: u8 = 2;

impl OsLock {
    /// Locks a folder exclusively; fails with the holder.
    pub(super) fn take(dir: &Place<'_>) -> Result<Self, LockError> {
        let lock = Self::take_as(dir, FlockOperation::NonBlockingLockExclusive, ALONE)?;
        lock.file.name_holder(lock.pid);
        locked_here(|locked| locked.insert(lock.folder_identity, lock.pid));
        Ok(lock)
    }

    /// Locks a folder together with others that share it; fails with the exclusive holder.
    pub(super) fn take_shared(dir: &Place<'_>) -> Result<Self, LockError> {
        Self::take_as(dir, FlockOperation::NonBlockingLockShared, SHARED)
    }

    fn take_as(dir: &Place<'_>, how: FlockOperation, held_as: u8) -> Result<Self, LockError> {
        let folder = fork::opened(|| dir.open(OFlags::RDONLY | OFlags::DIRECTORY));
        let (folder_kept, folder) = folder.map_err(LockError::Io)?;
        let (folder, dir) = (Arc::new(folder), dir.path);
        let absolute =
            std::path::absolute(dir).map_err(|error| LockError::Io(at_path(dir, error)))?;
        let folder_identity = identity(dir, &folder).map_err(LockError::Io)?;
        let path = dir.join(LOCK_NAME);
        let place = Place::below(&folder, Path::new(LOCK_NAME), &path);
        match lock(&folder, how) {
            // Not every file system can lock a folder. Then the file's lock is the only one.
            Ok(())
            | Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => {}
            Err(Errno::WOULDBLOCK) => return Err(held(&place, folder_identity)),
            Err(errno) => return Err(LockError::Io(at_path(dir, errno))),
        }
        let (file_kept, fd) = fork::opened(|| open_or_make(&place)).map_err(LockError::Io)?;
        check_regular(&fd, &path).map_err(LockError::Io)?;
        let file = OsFile::new(fd, false, &path);
        let file_identity = identity(&path, &file.fd).map_err(LockError::Io)?;
        match lock(&file.fd, how) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(held(&place, folder_identity)),
            Err(errno) => return Err(LockError::Io(at_path(&path, errno))),
        }
        drop(place);
        let (_kept, path) = ([folder_kept, file_kept], absolute);
        let (pid, held) = (std::process::id(), AtomicU8::new(held_as));
        Ok(Self { _kept, folder, path, folder_identity, file, file_identity, pid, held })
    }

    /// The identity of the lock file.
    pub(super) fn file_identity(&self) -> Identity {
        self.file_identity
    }

    fn held(&self) -> u8 {
        self.held.load(Ordering::Acquire)
    }

    /// Removes this process's name as exclusive holder.
    fn clear_holder(&self) {
        // Skip this if the file belongs to another process by now.
        if self.check().is_ok() {
            let _ = self.file.set_len(0);
        }
        locked_here(|locked| locked.remove(&self.folder_identity));
    }
}

/// The process that has a folder locked exclusively, or is about to.
pub(super) fn locked_by(dir: &Place<'_>) -> io::Result<Option<(Option<u32>, String)>> {
    let folder = Arc::new(dir.open(OFlags::RDONLY | OFlags::DIRECTORY)?);
    let path = dir.path.join(LOCK_NAME);
    let place = Place::below(&folder, Path::new(LOCK_NAME), &path);
    let file = match place.open(OFlags::RDONLY | OFlags::NONBLOCK) {
        Ok(fd) => Some(fd),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    for fd in [Some(&*folder), file.as_ref()].into_iter().flatten() {
        // Unlocked at once. A process that tries to lock exclusively at that moment is refused, and
        // retries.
        match lock(fd, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => {
                let LockError::Held { pid, who } = held(&place, identity(dir.path, &folder)?)
                else {
                    return Ok(None);
                };
                return Ok(Some((pid, who)));
            }
            Ok(()) => drop(rustix::fs::flock(fd, FlockOperation::Unlock)),
            Err(_) => {}
        }
    }
    Ok(None)
}

/// Whether any process has a folder locked, exclusively or shared.
pub(super) fn is_in_use(dir: &Place<'_>) -> io::Result<bool> {
    let folder = dir.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
    // Unlocked at once. A process that tries to lock at that moment is refused, and retries.
    match lock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            let _ = rustix::fs::flock(&folder, FlockOperation::Unlock);
            Ok(false)
        }
        // If the system does not report this, assume that it is in use.
        Err(_) => Ok(true),
    }
}

fn lock(fd: &OwnedFd, how: FlockOperation) -> rustix::io::Result<()> {
    retry_on_intr(|| rustix::fs::flock(fd, how))
}

fn identity(path: &Path, fd: &OwnedFd) -> io::Result<Identity> {
    Ok(identity_of(&call(path, || rustix::fs::fstat(fd))?))
}

/// Describes the holder of a locked folder.
fn held(file: &Place<'_>, folder: Identity) -> LockError {
    let here = locked_here(|locked| locked.get(&folder).copied());
    let pid = holder(file);
    let who = match pid.or(here) {
        Some(pid) if here == Some(std::process::id()) && pid == std::process::id() => {
            HELD_BY_THIS_PROCESS.to_owned()
        }
        Some(pid) if here == Some(pid) => {
            format!(
                "in process {pid}, which forked this process; close it there, or open read-only"
            )
        }
        Some(pid) if is_running(pid) => {
            format!("in another process (pid {pid}); close it there, or open read-only")
        }
        Some(pid) => format!(
            "by process {pid}, which is not running (unless it is in another container): a child \
             that it forked may still hold the lock; end that child, or open read-only"
        ),
        None => "in another process; close it there, or open read-only".to_owned(),
    };
    LockError::Held { pid, who }
}

/// The process id in a lock file.
fn holder(file: &Place<'_>) -> Option<u32> {
    let fd = file.open(OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    check_regular(&fd, file.path).ok()?;
    let file = OsFile::new(fd, false, file.path);
    let mut text = [0; 16];
    let n = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..n]).ok()?.lines().next()?.parse().ok()
}

fn is_running(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // A process of another user cannot be signalled, but exists.
    !matches!(test_kill_process(pid), Err(Errno::SRCH))
}

impl OsFile {
    /// Writes the process id into the lock file, so that a refused process can name the holder. The
    /// lock holds even without the id in its file, because a full disk must not keep a store from
    /// being opened.
    fn name_holder(&self, pid: u32) {
        let text = format!("{pid}\n");
        // Overwrite first and truncate afterwards, because overwriting needs no space.
        if self.write_at(text.as_bytes(), 0).and_then(|()| self.set_len(text.len() as u64)).is_err()
        {
            let _ = self.set_len(0);
        }
    }
}

impl DirLock for OsLock {
    fn check(&self) -> io::Result<()> {
        let pid = std::process::id();
        if pid != self.pid {
            let what = format!(
                "process {} opened this for writing, and its forked child, process {pid}, must \
                 not write to it; open it again in the child once the parent has closed it",
                self.pid
            );
            return Err(at_path(
                &self.file.path,
                io::Error::new(io::ErrorKind::PermissionDenied, what),
            ));
        }
        // Look up the file by path, as other processes do. Check the folder too, because copies of
        // a store may share a lock file through a hard link.
        compare(&self.path, "this folder", self.folder_identity, || rustix::fs::stat(&self.path))?;
        let file = self.path.join(LOCK_NAME);
        compare(&file, "the lock file", self.file_identity, || rustix::fs::stat(&file))?;
        if self.held() == LOST {
            let what = "another process locked this while it was being opened; open it again";
            return Err(at_path(&self.file.path, io::Error::other(what)));
        }
        Ok(())
    }

    fn share(&self) -> Result<(), LockError> {
        self.clear_holder();
        // The system releases the lock before it takes the other mode; another process may take it
        // in between.
        for fd in [&*self.folder, &self.file.fd] {
            match lock(fd, FlockOperation::NonBlockingLockShared) {
                Ok(())
                | Err(
                    Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS,
                ) => {}
                Err(Errno::WOULDBLOCK) => {
                    self.held.store(LOST, Ordering::Release);
                    let file = Place::below(&self.folder, Path::new(LOCK_NAME), &self.file.path);
                    return Err(held(&file, self.folder_identity));
                }
                Err(errno) => {
                    self.held.store(LOST, Ordering::Release);
                    return Err(LockError::Io(at_path(&self.file.path, errno)));
                }
            }
        }
        self.held.store(SHARED, Ordering::Release);
        Ok(())
    }
}

impl Drop for OsLock {
    fn drop(&mut self) {
        if std::process::id() != self.pid {
            // A forked child's copy; the lock belongs to its parent.
            return;
        }
        if self.held() == ALONE {
            // The lock file names no holder while the lock is free.
            self.clear_holder();
        }
        // Unlock explicitly, because closing the descriptors would not, while forked children have
        // copies.
        let _ = rustix::fs::flock(&self.file.fd, FlockOperation::Unlock);
        let _ = rustix::fs::flock(&self.folder, FlockOperation::Unlock);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests change files while they are locked")]
mod tests {
    use std::fs;

    use super::*;

    fn tempdir() -> tempfile::TempDir {
        tempfile::tempdir().expect("the machine has a folder for temporary files")
    }

    fn refusal(dir: &Path) -> (Option<u32>, String) {
        match OsLock::take(&Place::by_path(dir)) {
            Err(LockError::Held { pid, who }) => (pid, who),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lock_file_names_the_holder_until_release() {
        let dir = tempdir();
        let lock = OsLock::take(&Place::by_path(dir.path())).unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join("LOCK")).unwrap(),
            format!("{}\n", std::process::id())
        );
        let (pid, who) = refusal(dir.path());
        assert_eq!(pid, Some(std::process::id()));
        assert!(who.contains("in this process already"), "{who}");
        drop(lock);
        assert_eq!(fs::read_to_string(dir.path().join("LOCK")).unwrap(), "");
    }

    #[test]
    fn lock_of_a_dead_process_is_free() {
        let dir = tempdir();
        fs::write(dir.path().join("LOCK"), "4294967295\n").unwrap();
        let _lock = OsLock::take(&Place::by_path(dir.path())).unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join("LOCK")).unwrap(),
            format!("{}\n", std::process::id())
        );
    }

    #[test]
    fn lock_file_without_a_pid_names_no_holder() {
        let dir = tempdir();
        let path = dir.path().join("LOCK");
        for text in [&b""[..], b"\n", b"nobody\n", b"\xff\xff", b"99999999999\n"] {
            fs::write(&path, text).unwrap();
            assert_eq!(holder(&Place::by_path(&path)), None);
        }
        assert_eq!(holder(&Place::by_path(&dir.path().join("nothing"))), None);
    }

    #[test]
    fn replacing_the_lock_file_admits_no_second_writer() {
        let dir = tempdir();
        let path = dir.path().join("LOCK");
        let lock = OsLock::take(&Place::by_path(dir.path())).unwrap();
        lock.check().unwrap();
        fs::remove_file(&path).unwrap();
        let error = lock.check().unwrap_err();
        assert!(error.to_string().contains("LOCK: the lock file was removed"), "{error}");
        assert!(refusal(dir.path()).1.contains("in this process already"));
        fs::write(&path, "1\n").unwrap();
        let error = lock.check().unwrap_err();
        assert!(error.to_string().contains("LOCK: the lock file was replaced"), "{error}");
        refusal(dir.path());
        drop(lock);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n", "another's lock file was emptied");
        OsLock::take(&Place::by_path(dir.path())).unwrap().check().unwrap();
    }

    #[test]
    fn replaced_folder_is_detected() {
        let dir = tempdir();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        fs::create_dir(&here).unwrap();
        let lock = OsLock::take(&Place::by_path(&here)).unwrap();
        fs::rename(&here, &there).unwrap();
        assert!(lock.check().unwrap_err().to_string().contains("this folder was removed or moved"));
        refusal(&there);
        fs::create_dir(&here).unwrap();
        let _other = OsLock::take(&Place::by_path(&here)).unwrap();
        assert!(lock.check().unwrap_err().to_string().contains("this folder was replaced"));
    }

    #[test]
    fn copied_descriptors_do_not_keep_a_released_lock() {
        let dir = tempdir();
        let lock = OsLock::take(&Place::by_path(dir.path())).unwrap();
        // The copies that a forked child has.
        let _copies =
            [rustix::io::dup(&lock.folder).unwrap(), rustix::io::dup(&lock.file.fd).unwrap()];
        drop(lock);
        drop(OsLock::take(&Place::by_path(dir.path())).unwrap());
    }

    #[test]
    fn forked_child_neither_uses_nor_releases_the_lock() {
        let dir = tempdir();
        let lock = OsLock::take(&Place::by_path(dir.path())).unwrap();
        // The state in a forked child: the same open files and another process id.
        let child = OsLock {
            _kept: [Kept::Descriptor(-1), Kept::Descriptor(-1)],
            folder: Arc::new(rustix::io::dup(&lock.folder).unwrap()),
            path: lock.path.clone(),
            folder_identity: lock.folder_identity,
            file: OsFile::new(rustix::io::dup(&lock.file.fd).unwrap(), false, &lock.file.path),
            file_identity: lock.file_identity,
            pid: std::process::id() + 1,
            held: AtomicU8::new(ALONE),
        };
        assert!(child.check().unwrap_err().to_string().contains("forked child"));
        drop(child);
        refusal(dir.path());
        lock.check().unwrap();
    }

    #[test]
    fn lock_held_by_a_dead_process_is_reported() {
        let dir = tempdir();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let holder = Place::by_path(dir.path()).open(OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
        super::lock(&holder, FlockOperation::NonBlockingLockExclusive).unwrap();
        fs::write(dir.path().join("LOCK"), format!("{dead}\n")).unwrap();
        let (pid, who) = refusal(dir.path());
        assert_eq!(pid, Some(dead));
        assert!(who.contains(&format!("by process {dead}, which is not running")), "{who}");
        fs::write(dir.path().join("LOCK"), "1\n").unwrap();
        assert!(refusal(dir.path()).1.contains("in another process (pid 1)"));
    }
}
