//! A disk on which writes to segments can be blocked.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use plimsoll_disk::layer::DiskLayer;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};

/// A disk in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldDisk {
    disk: Arc<MemDisk>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    /// The number of blocked writes.
    waiting: usize,
}

impl HeldDisk {
    /// From now on, writes to segments block, or no longer do.
    pub(super) fn hold_writes(&self, holds: bool) {
        self.gate.state.lock().unwrap().is_shut = holds;
        self.gate.changed.notify_all();
    }

    /// Waits until a write is blocked.
    pub(super) fn wait_for_held(&self) {
        let state = self.gate.state.lock().unwrap();
        drop(self.gate.changed.wait_while(state, |state| state.waiting == 0).unwrap());
    }
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.is_shut).unwrap();
        state.waiting -= 1;
    }
}

impl DiskLayer for HeldDisk {
    fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, open, caching)?;
        let is_segment = path.extension().is_some_and(|extension| extension == "seg");
        Ok(if is_segment {
            Arc::new(HeldFile { file, gate: Arc::clone(&self.gate) })
        } else {
            file
        })
    }
}

#[derive(Debug)]
struct HeldFile {
    file: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for HeldFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.gate.pass();
        self.file.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}
