//! An open file of the simulated disk.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::MutexGuard;

use crate::image::end_of;
use crate::lying::{LyingDisk, State, dead};
use crate::path_error::{at_path, of_kind};
use crate::tree::NodeId;
use crate::vfs::{File, check_direct};

/// A handle of a file; invalid after the next crash.
pub(super) struct LyingFile {
    pub(super) disk: LyingDisk,
    pub(super) generation: u64,
    pub(super) id: NodeId,
    pub(super) writable: bool,
    pub(super) direct: bool,
    pub(super) path: PathBuf,
}

impl fmt::Debug for LyingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LyingFile")
            .field("path", &self.path)
            .field("direct", &self.direct)
            .finish_non_exhaustive()
    }
}

impl LyingFile {
    /// The disk's state; fails if the power was cut since this handle was opened.
    fn powered(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.powered(&self.path)?;
        if state.generation != self.generation {
            return Err(dead(&self.path, "the power was cut since this handle was opened"));
        }
        Ok(state)
    }

    fn writable(&self) -> io::Result<MutexGuard<'_, State>> {
        if self.writable {
            self.powered()
        } else {
            Err(of_kind(&self.path, ErrorKind::PermissionDenied))
        }
    }

    fn check(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.direct {
            check_direct(buf, offset).map_err(|e| at_path(&self.path, e))
        } else {
            Ok(())
        }
    }
}

impl File for LyingFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check(buf, offset)?;
        self.powered()?.read(self.id, &self.path, buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.check(buf, offset)?;
        self.writable()?.write(self.id, &self.path, buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.powered()?.sync(self.id, &self.path)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.powered()?.file(self.id, &self.path)?.current().len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?.set_len(self.id, &self.path, len)
    }

    fn will_read(&self, _: u64, bytes: u64) {
        self.disk.state().announced_bytes += bytes;
    }

    /// Has the effect of a write of zeros beyond the end, so any part of it may survive a power
    /// cut.
    fn allocate(&self, _: u64, to: u64) -> io::Result<()> {
        let mut state = self.writable()?;
        end_of(0, to).map_err(|e| at_path(&self.path, e))?;
        if state.refuses_room {
            return Err(of_kind(&self.path, ErrorKind::Unsupported));
        }
        let len = state.file(self.id, &self.path)?.current().len();
        match to.checked_sub(len) {
            Some(more) if more > 0 => {
                state.write(self.id, &self.path, &vec![0; more as usize], len)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for LyingFile {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.generation == self.generation {
            state.close(self.id);
        }
    }
}
