//! The interface of a disk: folders of files that are read and written at offsets.
//!
//! Invariants of every implementation (tests of `os`, `mem` and `lying` share one suite for them):
//! 1. A write is durable only after `sync` of its file returned `Ok`; a created, renamed or removed
//!    *name* only after `sync_dir` of its folder did.
//! 2. `read_at` returns fewer bytes than requested only at the end of the file.
//! 3. After a failed `sync`, nothing is guaranteed about the writes since the last successful one.

use std::fmt::Debug;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::path_error::of_kind;
use crate::sharing::{LockFile, SharedWords};

/// Direct I/O requires offsets, lengths and memory addresses to be multiples of this many bytes.
pub const DIRECT_ALIGN: usize = 4096;

/// Marks the temporary name of a folder that is being created, such as `NAME.new-PID-NUMBER`. A
/// leftover folder is empty.
pub const NEW_FOLDER_MARK: &str = ".new-";

/// Rejects operations that a direct handle does not support: an unaligned buffer, offset or length.
/// A read may extend past the end of the file.
pub(crate) fn check_direct(buf: &[u8], offset: u64) -> io::Result<()> {
    let address = buf.as_ptr().addr();
    if [address as u64, buf.len() as u64, offset]
        .iter()
        .all(|n| n.is_multiple_of(DIRECT_ALIGN as u64))
    {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "a direct handle needs multiples of {DIRECT_ALIGN}: buffer at {address:#x}, offset \
             {offset}, length {}",
            buf.len()
        ),
    ))
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new file, for reading and writing; fails with `AlreadyExists` if it exists.
    CreateNew,
}

/// Whether the operating system keeps a second copy of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Through the page cache.
    Buffered,
    /// Bypasses the page cache if the file system supports it (`O_DIRECT`). Every buffer, offset
    /// and length must then be aligned to [`DIRECT_ALIGN`]. Falls back to `Buffered` otherwise.
    Direct,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without its folder. Names that are not UTF-8 are not listed; Plimsoll never
    /// creates one.
    pub name: String,
    /// Length in bytes; 0 for a folder.
    pub len: u64,
    /// Whether it is a folder.
    pub is_dir: bool,
    /// Number of names of the file; 1 for a folder.
    pub links: u64,
}

/// Identifies a file: its copies have another id. A renamed file keeps its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileId {
    /// The inode number.
    pub inode: u64,
    /// The time of its creation, in nanoseconds since 1970 UTC.
    pub born_nanos: u64,
}

impl FileId {
    /// Whether both parts differ. One of them may change without a copy: the first where a file
    /// system numbers its files anew, the second if the system reports another precision.
    pub fn is_other(self, than: Self) -> bool {
        self.inode != than.inode && self.born_nanos != than.born_nanos
    }
}

/// An open file. Closed on drop. All methods may be called concurrently.
pub trait File: Send + Sync + Debug {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file (0 beyond it).
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `buf` at `offset`, growing the file if needed.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Writes the parts one after the other, like [`File::write_at`], with fewer system calls if
    /// possible.
    fn write_parts_at(&self, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
        for part in parts {
            self.write_at(part, offset)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    /// Makes all writes durable (fdatasync: data, and the length if it changed).
    fn sync(&self) -> io::Result<()>;

    /// Announces a `sync`; after it, the page cache need not keep the bytes. An implementation may
    /// start writing them out, but does not wait. Makes nothing durable.
    fn begin_sync(&self) {}

    /// The id of the file; `None` if the file system does not report when files were created.
    fn id(&self) -> io::Result<Option<FileId>> {
        Ok(None)
    }

    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Sets the length: truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Allocates disk space for the bytes from `from` up to `to`, so that later writes to them do
    /// not fail for lack of space, and makes the file at least that long. Existing bytes stay; the
    /// rest reads as zeros.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the file system cannot do it; the errors of a write.
    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Announces that these bytes will be read soon. An implementation may start fetching them, and
    /// does not wait. Does not change any result; has no effect for reads that bypass the page
    /// cache.
    fn will_read(&self, offset: u64, bytes: u64) {
        let _ = (offset, bytes);
    }

    /// Switches a handle that was opened with [`Caching::Direct`] to use the page cache, or back,
    /// if the file system supports both. Alignment rules stay. Does not change any result; has no
    /// effect without a page cache.
    fn turn(&self, caching: Caching) {
        let _ = caching;
    }

    /// Reads exactly `buf.len()` bytes at `offset`; `UnexpectedEof` if the file is shorter.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let n = self.read_at(buf, offset)?;
        if n == buf.len() {
            Ok(())
        } else {
            Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "the file ends {} bytes before the end of a read at offset {offset}",
                    buf.len() - n
                ),
            ))
        }
    }
}

/// A lock on a folder, held until dropped or until the process ends.
pub trait DirLock: Send + Sync + Debug {
    /// Fails if the lock no longer excludes others, because its file was removed or replaced, or
    /// because this is a forked child, which must not write while the process that took the lock
    /// can still write.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// Lets other processes lock the folder too, with [`Disk::lock_shared`]; exclusive lockers are
    /// still refused. If another process takes the lock in between, fails with `Held`; this lock is
    /// lost then, and [`DirLock::check`] fails.
    fn share(&self) -> Result<(), LockError> {
        Err(LockError::Io(io::ErrorKind::Unsupported.into()))
    }
}

/// The text of [`LockError::Held`] if the holder is another handle of this process.
pub(crate) const HELD_BY_THIS_PROCESS: &str =
    "in this process already; share that handle, close it first, or open read-only";

/// Why a folder could not be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process, or another handle in this one, holds it. Has the process id if known.
    Held {
        /// The holder's process id.
        pid: Option<u32>,
        /// The holder and the remedy; completes the sentence "it is open for writing".
        who: String,
    },
    /// The lock file could not be created or read.
    Io(io::Error),
}

/// A tree of folders and files.
pub trait Disk: Send + Sync + Debug {
    /// Whether the system keeps a page cache for these files; otherwise [`File::turn`] has no
    /// effect.
    fn has_page_cache(&self) -> bool {
        false
    }

    /// The id of the process that uses this disk, as other processes see it.
    fn process_id(&self) -> u32 {
        std::process::id()
    }

    /// Restricts this disk to the store that this process opens in a folder. Returns the restricted
    /// disk, and the path by which the store names its files from then on. No operation of the
    /// returned disk reaches another folder that later appears at the path, and a forked child
    /// cannot change anything through it. The folders inside that `lasting` names are fixed while
    /// the store is open. `None` if this disk needs no restriction.
    fn of_store(
        &self,
        folder: &Path,
        lasting: &'static [&'static str],
    ) -> io::Result<Option<(Arc<dyn Disk>, PathBuf)>> {
        let _ = (folder, lasting);
        Ok(None)
    }

    /// For the disk of a store ([`Disk::of_store`]): fails once the store's folder, its lock file
    /// or a fixed folder was moved, removed or replaced. From then on no name of the store is
    /// changed.
    fn check_own(&self) -> io::Result<()> {
        Ok(())
    }

    /// Opens a file.
    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>>;

    /// Creates a folder; its parent must exist. Fails with `AlreadyExists` if the name is taken.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// The entries of a folder, sorted by name.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// The names in a folder, in no order and without other attributes; much cheaper than
    /// [`Disk::list`] for thousands of entries.
    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.list(dir)?.into_iter().map(|entry| entry.name).collect())
    }

    /// The entry at a path, `None` if there is none.
    fn entry(&self, path: &Path) -> io::Result<Option<DirEntry>>;

    /// Renames atomically, replacing an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name. Open handles can still read its bytes.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a hard link; an error if the file system does not support them.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes all writes of several files durable, like [`File::sync`] of each; an implementation
    /// may sync several concurrently.
    fn sync_files(&self, files: &[Arc<dyn File>]) -> io::Result<()> {
        files.iter().try_for_each(|file| file.sync())
    }

    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// The canonical form of `path`, without symbolic links, `.` and `..`: all paths of one folder
    /// become equal.
    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.entry(path)?.ok_or_else(|| of_kind(path, io::ErrorKind::NotFound))?;
        let mut resolved = PathBuf::from("/");
        for part in path.components() {
            match part {
                Component::Normal(name) => resolved.push(name),
                Component::ParentDir => drop(resolved.pop()),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        Ok(resolved)
    }

    /// Locks a folder for a single writer. A file `LOCK` inside it names the holder's process id.
    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError>;

    /// Locks a folder for one of several writers. Others may do the same, and [`Disk::lock`] fails
    /// meanwhile.
    fn lock_shared(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Err(LockError::Io(of_kind(dir, io::ErrorKind::Unsupported)))
    }

    /// Opens a lock between processes; creates the file if it is missing.
    fn lock_file(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        Err(of_kind(path, io::ErrorKind::Unsupported))
    }

    /// Like [`Disk::lock_file`] for an existing file, without write permission.
    fn lock_file_to_read(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        self.lock_file(path)
    }

    /// The process that has the folder locked exclusively, as [`Disk::lock`] would report it;
    /// `None` if there is none (others may share the lock). Locks nothing and creates no file.
    fn locked_by(&self, dir: &Path) -> io::Result<Option<(Option<u32>, String)>> {
        let _ = dir;
        Ok(None)
    }

    /// Whether any process has the folder locked, exclusively or shared. Creates no file. `true` if
    /// unknown.
    fn is_in_use(&self, dir: &Path) -> io::Result<bool> {
        let _ = dir;
        Ok(true)
    }

    /// The name of the file system at `path`, if processes cannot share a store there.
    fn not_for_sharing(&self, path: &Path) -> io::Result<Option<&'static str>> {
        let _ = path;
        Ok(None)
    }

    /// Opens words that processes share; creates the file with zeros if it is missing.
    fn shared_words(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        let _ = count;
        Err(of_kind(path, io::ErrorKind::Unsupported))
    }

    /// Like [`Disk::shared_words`] for an existing file, without write permission; the words must
    /// not be changed.
    fn shared_words_to_read(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        self.shared_words(path, count)
    }
}
