//! An archive in a folder of a file system.
//!
//! An object is written under a temporary name, synced, and linked to its final name, which fails
//! if the name is taken.

use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::entropy;
use plimsoll_disk::vfs::{Caching, Disk, File, LockError, Open};

use crate::bucket::{Bucket, Object, Put};
use crate::error::{Error, Result};
use crate::manifest;

/// The folder of temporary names.
const TMP: &str = "tmp";

/// The file by which the folder is locked.
const LOCK: &str = "LOCK";

/// Bytes that are read and written at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A folder as a bucket.
#[derive(Debug)]
pub struct Folder {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    drafts: AtomicU64,
    /// Whether there are several writers.
    is_exclusive: bool,
    /// Whether missing folders are created.
    makes: bool,
    /// Whether the sync of a folder failed. The system reports such an error once. The next sync
    /// succeeds although names may be lost in a power cut, so every later sync fails here.
    has_failed_sync: AtomicBool,
}

impl Folder {
    /// The folder at `root`, which is created by the first write.
    pub fn new(disk: Arc<dyn Disk>, root: impl Into<PathBuf>) -> Self {
        Self {
            disk,
            root: root.into(),
            drafts: AtomicU64::new(0),
            is_exclusive: false,
            makes: true,
            has_failed_sync: AtomicBool::new(false),
        }
    }

    /// For a folder with several writers. If several store an object under one name, exactly one of
    /// them succeeds. Without this setting, two may both succeed on a file system without hard
    /// links; with it, such a file system is refused.
    #[must_use]
    pub fn exclusive(self) -> Self {
        Self { is_exclusive: true, ..self }
    }

    /// Creates no folder, neither the root nor one in it: a write into a folder that is missing
    /// fails with `NotFound`. An empty mount point is then not taken for an empty bucket.
    #[must_use]
    pub fn existing(self) -> Self {
        Self { makes: false, ..self }
    }

    /// Creates a folder in the root, and the root itself, unless they exist.
    fn make(&self, folder: &str) -> io::Result<PathBuf> {
        let path = self.root.join(folder);
        if self.makes && self.disk.entry(&path)?.is_none() {
            for dir in [&self.root, &path] {
                match self.disk.create_dir(dir) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    made => made?,
                }
            }
            self.sync_folders()?;
        }
        Ok(path)
    }

    /// Makes the names in a folder durable.
    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        if self.has_failed_sync.load(Ordering::Acquire) {
            return Err(io::Error::other(
                "an earlier sync of this folder failed, so what was written may be lost; check \
                 the disk, and open it again",
            ));
        }
        self.disk.sync_dir(dir).inspect_err(|error| {
            // A folder that is missing has no names.
            if error.kind() != ErrorKind::NotFound {
                self.has_failed_sync.store(true, Ordering::Release);
            }
        })
    }

    /// Makes the names of the folders in the root durable, and that of the root.
    fn sync_folders(&self) -> io::Result<()> {
        self.sync_names(&self.root)?;
        match self.root.parent() {
            Some(parent) if parent.as_os_str().is_empty() => self.sync_names(Path::new(".")),
            Some(parent) => self.sync_names(parent),
            None => Ok(()),
        }
    }

    /// The error if the folder holds something else than an archive.
    fn refuse_other(&self) -> io::Result<Option<Error>> {
        if self.disk.entry(&self.root)?.is_none() {
            return Ok(None);
        }
        let names = self.disk.names(&self.root)?;
        let is_own = |name: &String| [TMP, LOCK].contains(&name.as_str());
        let is_archive = names.iter().any(|name| name == manifest::FOLDER);
        let is_other = !is_archive && !names.iter().all(is_own);
        Ok(is_other.then(|| Error::NotEmpty { place: self.root.display().to_string() }))
    }

    /// A temporary name: the time at which it was chosen, in microseconds, and a number that no
    /// other process has, on any machine.
    fn draft(&self) -> io::Result<PathBuf> {
        let micros = SystemClock::new().wall_micros();
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        Ok(self.make(TMP)?.join(format!("{micros}-{:032x}-{number}", entropy()?)))
    }

    fn write(&self, draft: &Path, bytes: &mut dyn Read) -> io::Result<()> {
        let file = self.disk.open(draft, Open::CreateNew, Caching::Buffered)?;
        let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
        loop {
            let n = match bytes.read(&mut piece) {
                Ok(0) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                n => n?,
            };
            file.write_at(&piece[..n], at)?;
            at += n as u64;
        }
        file.sync()
    }

    /// Renames a draft to the object's name, unless an object has that name.
    fn publish(&self, draft: &Path, path: &Path) -> io::Result<Put> {
        match self.disk.hard_link(draft, path) {
            Ok(()) => Ok(Put::New),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Put::Exists),
            Err(error) if self.is_exclusive => Err(error),
            // A file system without hard links.
            Err(_) if self.disk.entry(path)?.is_none() => {
                self.disk.rename(draft, path).map(|()| Put::New)
            }
            Err(_) => Ok(Put::Exists),
        }
    }
}

impl Bucket for Folder {
    fn folder(&self) -> io::Result<Option<PathBuf>> {
        let (mut path, mut missing) = (self.root.as_path(), Vec::new());
        loop {
            let is_empty = path.as_os_str().is_empty();
            match self.disk.resolve(if is_empty { Path::new(".") } else { path }) {
                Ok(mut folder) => {
                    folder.extend(missing.iter().rev());
                    return Ok(Some(folder));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                        return Err(error);
                    };
                    missing.push(name);
                    path = parent;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        let path = self.root.join(name);
        let folder = self.make(folder_of(name))?;
        // A stopped archiver may have named the object without syncing the name.
        if self.disk.entry(&path)?.is_some() {
            return self.sync_names(&folder).map(|()| Put::Exists);
        }
        let draft = self.draft()?;
        let put = self.write(&draft, bytes).and_then(|()| self.publish(&draft, &path));
        // A draft that stays is removed by the next archiver, or swept.
        let _ = self.disk.remove(&draft);
        let put = put?;
        self.sync_names(&folder).map(|()| put)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.disk.entry(&self.root.join(name))?.is_some())
    }

    fn replace(&self, name: &str, mut bytes: &[u8]) -> io::Result<()> {
        let folder = self.make(folder_of(name))?;
        let draft = self.draft()?;
        let path = self.root.join(name);
        let put = self.write(&draft, &mut bytes).and_then(|()| self.disk.rename(&draft, &path));
        if put.is_err() {
            let _ = self.disk.remove(&draft);
        }
        put.and_then(|()| self.sync_names(&folder))
    }

    fn sync(&self, folder: &str) -> io::Result<()> {
        self.sync_names(&self.root.join(folder))
    }

    fn sweep(&self, age: Duration) -> io::Result<u64> {
        let tmp = self.root.join(TMP);
        if self.disk.entry(&tmp)?.is_none() {
            return Ok(0);
        }
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let until = SystemClock::new().wall_micros().saturating_sub(age);
        let mut removed = 0;
        for name in self.disk.names(&tmp)? {
            let began = name.split('-').next().and_then(|digits| digits.parse::<u64>().ok());
            if began.is_some_and(|began| began < until) {
                match self.disk.remove(&tmp.join(name)) {
                    // Another process sweeps, too.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    swept => {
                        swept?;
                        removed += 1;
                    }
                }
            }
        }
        Ok(removed)
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        match self.disk.open(&self.root.join(name), Open::Read, Caching::Buffered) {
            Ok(file) => {
                let bytes = file.len()?;
                Ok(Some(Object { bytes, reader: Box::new(FileReader { file, at: 0 }) }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        match self.disk.names(&self.root.join(folder)) {
            Ok(mut names) => {
                names.sort_unstable();
                Ok(names.into_iter().map(|name| format!("{folder}/{name}")).collect())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        match self.disk.remove(&self.root.join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn lock(&self) -> Result<Option<Box<dyn Send + Sync>>> {
        let failed = |source| Error::storage("the archive's folder", source);
        self.refuse_other().map_err(failed)?.map_or(Ok(()), Err)?;
        // Create the folder by which an archive is recognized, so that it is one even if the first
        // pass is stopped.
        self.make(manifest::FOLDER).map_err(failed)?;
        let tmp = self.make(TMP).map_err(failed)?;
        // A stopped archiver may have created these folders without syncing their names.
        self.sync_folders().map_err(failed)?;
        let lock = match self.disk.lock(&self.root) {
            Ok(lock) => lock,
            Err(LockError::Held { pid, .. }) => {
                return Err(Error::OtherArchiver { place: self.root.display().to_string(), pid });
            }
            // A file system without locks.
            Err(LockError::Io(error)) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            Err(LockError::Io(error)) => return Err(failed(error)),
        };
        // Remove the drafts of killed archivers.
        for name in self.disk.names(&tmp).map_err(failed)? {
            self.disk.remove(&tmp.join(name)).map_err(failed)?;
        }
        Ok(Some(Box::new(lock)))
    }
}

/// The folder of an object; empty if it is in none.
fn folder_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(folder, _)| folder)
}

struct FileReader {
    file: Arc<dyn File>,
    at: u64,
}

impl Read for FileReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(into, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}
