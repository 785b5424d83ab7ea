//! Folder locks of a simulated disk.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lying::{LOCK_NAME, LyingDisk, PID, State};
use crate::tree::NodeId;
use crate::vfs::{DirLock, HELD_BY_THIS_PROCESS, LockError, Open};

#[derive(Debug)]
pub(super) struct LyingLock {
    disk: LyingDisk,
    generation: u64,
    folder: NodeId,
    file: Option<NodeId>,
    is_shared: AtomicBool,
}

impl LyingLock {
    /// Creates a lock that is held. A lock without a file is shared.
    pub(super) fn new(
        disk: LyingDisk,
        generation: u64,
        folder: NodeId,
        file: Option<NodeId>,
    ) -> Self {
        Self { disk, generation, folder, file, is_shared: AtomicBool::new(file.is_none()) }
    }

    /// Drops the lock of a killed process. The lock file still names the process.
    pub(super) fn abandon(mut self) {
        self.file = None;
    }
}

impl DirLock for LyingLock {
    fn share(&self) -> Result<(), LockError> {
        let mut state = self.disk.state();
        if state.generation == self.generation && !state.power_is_cut {
            state.locked.remove(&self.folder);
            *state.shared.entry(self.folder).or_default() += 1;
            if let Some(file) = self.file.and_then(|file| state.tree.get_mut(file)) {
                file.set_len(0);
            }
        }
        self.is_shared.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl State {
    /// Creates or finds the lock file of a folder and writes the holder's id into it.
    pub(super) fn lock(&mut self, dir: &Path) -> Result<(NodeId, NodeId), LockError> {
        let folder = self.tree.folder(dir).map_err(LockError::Io)?;
        if self.locked.contains(&folder) || self.shared.contains_key(&folder) {
            return Err(LockError::Held { pid: Some(PID), who: HELD_BY_THIS_PROCESS.to_owned() });
        }
        let path = dir.join(LOCK_NAME);
        let opened = match self.open(&path, Open::CreateNew) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.open(&path, Open::ReadWrite)
            }
            opened => opened,
        };
        let file = opened.map_err(LockError::Io)?;
        // The lock holds even without the id in its file, because a full disk must not keep a store
        // from being opened.
        let text = format!("{PID}\n");
        let named = self.write(file, &path, text.as_bytes(), 0);
        self.set_len(file, &path, if named.is_ok() { text.len() as u64 } else { 0 })
            .map_err(LockError::Io)?;
        self.locked.insert(folder);
        Ok((folder, file))
    }

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

impl Drop for LyingLock {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        if state.generation == self.generation && !state.power_is_cut {
            if *self.is_shared.get_mut() {
                state.unshare(self.folder);
                return;
            }
            state.locked.remove(&self.folder);
            if let Some(file) = self.file.and_then(|file| state.tree.get_mut(file)) {
                file.set_len(0);
            }
        }
    }
}
