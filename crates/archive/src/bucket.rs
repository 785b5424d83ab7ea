//! The place of an archive: a set of named objects that are written once.

use std::fmt::Debug;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};

/// The state of the name before [`Bucket::put_new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The name was free: the object is stored now.
    New,
    /// An object has the name already, and was not changed.
    Exists,
}

/// An object to be read.
pub struct Object {
    /// Its length in bytes.
    pub bytes: u64,
    /// Its contents.
    pub reader: Box<dyn Read + Send>,
}

/// Objects under names such as `blobs/7-0a1b`: one folder, then a name of letters, digits, `-` and
/// `.`. An object appears as a whole, and never changes.
pub trait Bucket: Send + Sync + Debug {
    /// Stores an object unless there is one with this name. When this returns, it is durable.
    ///
    /// # Errors
    /// The storage, or `bytes`. It is then unknown whether the object was stored.
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put>;

    /// Opens an object; `None` if there is none.
    ///
    /// # Errors
    /// The storage.
    fn get(&self, name: &str) -> io::Result<Option<Object>>;

    /// The names of the objects in a folder, each with its folder; none if there is no such folder.
    ///
    /// # Errors
    /// The storage.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// The storage.
    fn delete(&self, name: &str) -> io::Result<()>;

    /// Whether there is an object with this name. Costs less than [`Bucket::get`].
    ///
    /// # Errors
    /// The storage.
    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.get(name)?.is_some())
    }

    /// Returns once there may be an object with this name, at the latest after `timeout`. `None` if
    /// the storage sends no notifications: the caller then has to ask for the object itself.
    ///
    /// # Errors
    /// The storage.
    fn wait_for(&self, name: &str, timeout: Duration) -> Option<io::Result<()>> {
        let _ = (name, timeout);
        None
    }

    /// Grows when a connection was made to a server that may have an older copy of the storage than
    /// the server before: a standby that was promoted. A caller that knows more than the storage
    /// then has to check it.
    fn epoch(&self) -> u64 {
        0
    }

    /// Stores a small object whether or not there is one with this name. Readers see the old object
    /// or the new one as a whole.
    ///
    /// # Errors
    /// `Unsupported` if the storage cannot do this; the storage. It is then unknown which of the
    /// two objects is stored.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let _ = (name, bytes);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the objects in a folder durable that other writers have stored, and whose
    /// [`Bucket::put_new`] may not have returned yet. Without effect where an object is durable as
    /// soon as it can be read.
    ///
    /// # Errors
    /// The storage.
    fn sync(&self, folder: &str) -> io::Result<()> {
        let _ = folder;
        Ok(())
    }

    /// Removes what writers that were killed have left, if they began to write it longer ago than
    /// `age`. Returns how many leftovers were removed.
    ///
    /// # Errors
    /// The storage.
    fn sweep(&self, age: Duration) -> io::Result<u64> {
        let _ = age;
        Ok(0)
    }

    /// Checks that the storage keeps every object that it has confirmed, and creates what it needs,
    /// if it was opened to be created. Returns the reason and the remedy if it may lose objects.
    ///
    /// # Errors
    /// The storage.
    fn check(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    /// The folder of the objects, without symbolic links, `.` and `..`; `None` if they are not in
    /// one.
    ///
    /// # Errors
    /// The storage.
    fn folder(&self) -> io::Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Excludes other archivers until the result is dropped, if the storage supports locks. Even
    /// without locks, [`Bucket::put_new`] keeps archivers from overwriting each other.
    ///
    /// # Errors
    /// [`crate::Error::OtherArchiver`]; the storage.
    fn lock(&self) -> Result<Option<Box<dyn Send + Sync>>> {
        Ok(None)
    }
}

/// The archive of one call.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) bucket: &'a dyn Bucket,
    /// Its name in messages.
    pub(crate) place: &'a str,
    /// Cancels the call.
    pub(crate) cancel: &'a AtomicBool,
}

impl Call<'_> {
    /// Fails once the call is cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        // Relaxed: the flag passes nothing but itself.
        match self.cancel.load(Ordering::Relaxed) {
            true => Err(Error::Store(plimsoll::Error::Cancelled)),
            false => Ok(()),
        }
    }
}
