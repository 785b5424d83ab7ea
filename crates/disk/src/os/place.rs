//! The place of a file: a folder's descriptor, and a name relative to it.
//!
//! 1. Every descriptor that the real disk keeps comes from [`Place::open`].
//! 2. None has the number of a standard stream ([`crate::descriptor`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, openat, statat};
use rustix::io::retry_on_intr;

use crate::descriptor::above_standard_streams;
use crate::os::call;
use crate::path_error::at_path;

/// A path, and how to pass it to the system.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    /// `None`: the name is the whole path.
    folder: Option<Arc<OwnedFd>>,
    name: &'a Path,
    /// The path, for messages.
    pub(super) path: &'a Path,
}

impl<'a> Place<'a> {
    /// A place given by its path alone.
    pub(super) fn by_path(path: &'a Path) -> Self {
        Self { folder: None, name: path, path }
    }

    /// A place below an open folder: renames above that folder do not affect it.
    pub(super) fn below(folder: &Arc<OwnedFd>, name: &'a Path, path: &'a Path) -> Self {
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        Self { folder: Some(Arc::clone(folder)), name, path }
    }

    /// Another name relative to the same folder.
    pub(super) fn beside<'b>(&self, name: &'b Path, path: &'b Path) -> Place<'b> {
        Place { folder: self.folder.clone(), name, path }
    }

    /// The descriptor that the name is relative to.
    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_ref().map_or(CWD, |folder| folder.as_fd())
    }

    /// The name below [`Place::folder`].
    pub(super) fn name(&self) -> &'a Path {
        self.name
    }

    /// Whether the place is inside an open store.
    pub(super) fn is_below(&self) -> bool {
        self.folder.is_some()
    }

    /// Opens the file with close-on-exec. A new file gets the permissions that the `umask` leaves.
    pub(super) fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let mode =
            if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o666) } else { Mode::empty() };
        let fd =
            call(self.path, || openat(self.folder(), self.name, flags | OFlags::CLOEXEC, mode))?;
        above_standard_streams(fd).map_err(|errno| at_path(self.path, errno))
    }

    /// Attributes of the file or folder.
    pub(super) fn stat(&self) -> rustix::io::Result<Stat> {
        retry_on_intr(|| statat(self.folder(), self.name, AtFlags::empty()))
    }

    /// Attributes of the folder that contains the name.
    pub(super) fn stat_parent(&self) -> io::Result<Stat> {
        let parent = self.name.parent().unwrap_or(self.name);
        // An empty parent is the folder that the name is relative to.
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let shown = self.path.parent().unwrap_or(self.path);
        call(shown, || statat(self.folder(), parent, AtFlags::empty()))
    }

    /// Attributes of the folder that contains the parent folder.
    pub(super) fn stat_grandparent(&self) -> io::Result<Stat> {
        let parent = self.name.parent().unwrap_or(self.name);
        call(self.path, || statat(self.folder(), parent.join(".."), AtFlags::empty()))
    }
}
