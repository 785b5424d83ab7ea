//! The folder of an open store: every file of the store is reached through the folder's
//! descriptors, never by the path that the store was opened by.
//!
//! 1. No operation reaches another folder, whatever happens to the working folder, the path, or the
//!    names inside. A file is named relative to a descriptor of the store's folder, or of one of
//!    its folders that are fixed while it is open.
//! 2. No name is created, changed or removed once the store's folder, its lock file or one of those
//!    folders was moved, removed or replaced ([`Root::check`]). The error's kind is never one with
//!    another meaning, such as `NotFound`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{AtFlags, OFlags, Stat, fstat, stat, statat};
use rustix::io::{Errno, retry_on_intr};

use crate::mutex::lock;
use crate::os::call;
use crate::os::place::Place;
use crate::path_error::at_path;

/// The lock file in a folder.
pub(super) const LOCK_NAME: &str = "LOCK";

/// Identity of a file or folder, independent of its name.
pub(super) type Identity = (u64, u64);

pub(super) fn identity_of(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// The folder of an open store.
#[derive(Debug)]
pub(super) struct Root {
    /// The absolute path, which survives a change of the working folder.
    path: PathBuf,
    folder: Arc<OwnedFd>,
    identity: Identity,
    /// Names of the folders inside that are fixed while the store is open.
    lasting: &'static [&'static str],
    inside: Mutex<Vec<Inside>>,
    /// The identity of the lock file, once this disk has locked the folder.
    lock: Mutex<Option<Identity>>,
}

/// A fixed folder that was used.
#[derive(Debug)]
struct Inside {
    name: &'static str,
    folder: Arc<OwnedFd>,
    identity: Identity,
}

impl Root {
    /// Opens the folder.
    pub(super) fn open(path: &Path, lasting: &'static [&'static str]) -> io::Result<Self> {
        let path = std::path::absolute(path).map_err(|error| at_path(path, error))?;
        let folder = Arc::new(Place::by_path(&path).open(OFlags::RDONLY | OFlags::DIRECTORY)?);
        let identity = identity_of(&call(&path, || fstat(&folder))?);
        Ok(Self {
            path,
            folder,
            identity,
            lasting,
            inside: Mutex::default(),
            lock: Mutex::default(),
        })
    }

    /// The absolute path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The place of a file or folder, or of an entry of a folder; `None` if the path is not inside.
    pub(super) fn place<'a>(&self, path: &'a Path) -> Option<Place<'a>> {
        let below = path.strip_prefix(&self.path).ok()?;
        if let Some(Component::Normal(first)) = below.components().next()
            && let Some(name) = self.lasting.iter().find(|name| first == **name)
            && let Some(folder) = self.folder_of(name)
            && let Ok(rest) = below.strip_prefix(name)
        {
            return Some(Place::below(&folder, rest, path));
        }
        Some(Place::below(&self.folder, below, path))
    }

    /// The place of an entry, at which to look it up, or to create, change or remove it. Unlike for
    /// [`Self::place`], the place of a fixed folder is a name in the store's folder, and not the
    /// fixed folder itself.
    pub(super) fn name_place<'a>(&self, path: &'a Path) -> Option<Place<'a>> {
        match self.lasting_name(path) {
            Some(_) => Some(Place::below(&self.folder, path.strip_prefix(&self.path).ok()?, path)),
            None => self.place(path),
        }
    }

    /// A fixed folder; `None` if it does not exist (yet).
    fn folder_of(&self, name: &'static str) -> Option<Arc<OwnedFd>> {
        let mut inside = lock(&self.inside);
        if let Some(known) = inside.iter().find(|known| known.name == name) {
            return Some(Arc::clone(&known.folder));
        }
        let place = Place::below(&self.folder, Path::new(name), Path::new(name));
        let folder = Arc::new(place.open(OFlags::RDONLY | OFlags::DIRECTORY).ok()?);
        let identity = identity_of(&fstat(&folder).ok()?);
        inside.push(Inside { name, folder: Arc::clone(&folder), identity });
        Some(folder)
    }

    fn lasting_name(&self, path: &Path) -> Option<&'static str> {
        let below = path.strip_prefix(&self.path).ok()?;
        self.lasting.iter().copied().find(|name| below == Path::new(name))
    }

    /// Notes that this disk has given a name to another file, or removed the name.
    pub(super) fn renamed(&self, path: &Path) {
        if let Some(name) = self.lasting_name(path) {
            lock(&self.inside).retain(|known| known.name != name);
        }
    }

    /// Notes that this disk has locked the folder with this lock file.
    pub(super) fn locked(&self, file: Identity) {
        *lock(&self.lock) = Some(file);
    }

    /// Fails if the folder, its lock file or a fixed folder is no longer the one that the store was
    /// opened with.
    pub(super) fn check(&self) -> io::Result<()> {
        compare(&self.path, "this folder", self.identity, || stat(&self.path))?;
        let named = |name: &str| statat(&self.folder, name, AtFlags::empty());
        let locked = *lock(&self.lock);
        if let Some(identity) = locked {
            compare(&self.path.join(LOCK_NAME), "the lock file", identity, || named(LOCK_NAME))?;
        }
        for known in lock(&self.inside).iter() {
            compare(&self.path.join(known.name), "this folder", known.identity, || {
                named(known.name)
            })?;
        }
        Ok(())
    }
}

/// Fails if a name refers to another file than when the store was opened.
pub(super) fn compare(
    path: &Path,
    what: &str,
    opened: Identity,
    mut now: impl FnMut() -> rustix::io::Result<Stat>,
) -> io::Result<()> {
    let happened = match retry_on_intr(&mut now) {
        Ok(now) if identity_of(&now) == opened => return Ok(()),
        Ok(_) => "replaced by another one",
        Err(Errno::NOENT | Errno::NOTDIR) => "removed or moved",
        Err(errno) => return Err(at_path(path, errno)),
    };
    let message = format!(
        "{what} was {happened} while it was open for writing; close it and check what else was \
         changed"
    );
    Err(at_path(path, io::Error::other(message)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::OsDisk;
    use crate::vfs::{Caching, Disk, Open};

    fn make(disk: &dyn Disk, path: &Path, text: &str) {
        disk.open(path, Open::CreateNew, Caching::Buffered)
            .unwrap()
            .write_at(text.as_bytes(), 0)
            .unwrap();
    }

    fn read(disk: &dyn Disk, path: &Path) -> String {
        let file = disk.open(path, Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Creates a folder laid out like a store, with files that hold `text`.
    fn fill(disk: &dyn Disk, path: &Path, text: &str) {
        disk.create_dir(path).unwrap();
        for name in ["log", "warm"] {
            disk.create_dir(&path.join(name)).unwrap();
            make(disk, &path.join(name).join("file"), text);
        }
        make(disk, &path.join("file"), text);
    }

    /// The results of all calls that create, change or remove a name in the folder.
    fn changes(disk: &dyn Disk, path: &Path) -> Vec<io::Result<()>> {
        let mut results = Vec::new();
        for folder in [path.to_owned(), path.join("log"), path.join("warm")] {
            let (file, new) = (folder.join("file"), folder.join("new"));
            results.extend([
                disk.open(&new, Open::CreateNew, Caching::Buffered).map(drop),
                disk.open(&file, Open::ReadWrite, Caching::Buffered).map(drop),
                disk.create_dir(&new),
                disk.rename(&file, &new),
                disk.hard_link(&file, &new),
                disk.remove(&file),
                disk.remove_dir(&folder.join("nothing")),
                disk.lock_file(&new).map(drop),
                disk.shared_words(&new, 1).map(drop),
            ]);
        }
        results
    }

    #[test]
    fn replaced_folder_is_not_changed() {
        let plain = OsDisk::new();
        for replaced in ["store", "store/log"] {
            let dir = tempfile::tempdir().unwrap();
            let (path, other) = (dir.path().join("store"), dir.path().join("other"));
            fill(&plain, &path, "own");
            fill(&plain, &other, "other");
            let (disk, path) = plain.of_store(&path, &["log"]).unwrap().unwrap();
            let _lock = disk.lock(&path).unwrap();
            assert_eq!(read(&*disk, &path.join("log/file")), "own");
            disk.check_own().unwrap();
            plain.rename(&dir.path().join(replaced), &dir.path().join("away")).unwrap();
            for round in 0..2 {
                let text = disk.check_own().unwrap_err().to_string();
                let what = ["was removed or moved", "was replaced by another one"][round];
                assert!(text.contains(what) && text.contains(replaced), "{text}");
                for refused in changes(&*disk, &path).into_iter().map(Result::unwrap_err) {
                    assert_eq!(refused.kind(), io::ErrorKind::Other, "{refused}");
                }
                assert_eq!(read(&*disk, &path.join("log/file")), "own");
                assert_eq!(disk.names(&path.join("log")).unwrap(), ["file"]);
                if round == 0 {
                    let from = if replaced == "store" { other.clone() } else { other.join("log") };
                    plain.rename(&from, &dir.path().join(replaced)).unwrap();
                }
            }
            for name in ["log", "warm"] {
                assert_eq!(plain.names(&path.join(name)).unwrap(), ["file"], "{replaced}");
            }
            assert_eq!(read(&plain, &path.join("log/file")), "other");
        }
    }

    #[test]
    fn renamed_fixed_folder_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, path) = OsDisk::new().of_store(dir.path(), &["log"]).unwrap().unwrap();
        disk.create_dir(&path.join("log")).unwrap();
        make(&*disk, &path.join("log/file"), "old");
        disk.rename(&path.join("log"), &path.join("log.old")).unwrap();
        assert_eq!(read(&*disk, &path.join("log.old/file")), "old");
        disk.create_dir(&path.join("log")).unwrap();
        make(&*disk, &path.join("log/file"), "new");
        assert_eq!(read(&*disk, &path.join("log/file")), "new");
        disk.remove(&path.join("log/file")).unwrap();
        disk.remove_dir(&path.join("log")).unwrap();
        disk.check_own().unwrap();
        assert_eq!(disk.entry(&path.join("log")).unwrap(), None);
    }

    #[test]
    fn file_of_a_removed_folder_names_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        fill(&OsDisk::new(), &path, "own");
        let (disk, path) = OsDisk::new().of_store(&path, &["log"]).unwrap().unwrap();
        let error = disk.open(&path.join("nothing"), Open::Read, Caching::Buffered).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&path).unwrap();
        let error = disk.open(&path.join("file"), Open::Read, Caching::Buffered).unwrap_err();
        assert!(error.to_string().contains("was removed or moved"), "{error}");
    }
}
