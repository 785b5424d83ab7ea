//! A disk whose files are read through the page cache or past it. A [`Switch`] decides at each
//! read.
//!
//! Only handles opened for reading with [`Caching::Direct`] are switched; handles that write are
//! unchanged. Files read this way are never written again once they can be read, so the page cache
//! cannot hold stale bytes of them.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::layer::DiskLayer;
use crate::mutex::lock;
use crate::vfs::{Caching, Disk, File, FileId, Open};

/// Decides how files are read.
pub trait Switch: Send + Sync + std::fmt::Debug {
    /// Called before each read by any thread; must be cheap.
    fn caching(&self) -> Caching;
}

/// A disk that wraps another with a switch.
#[derive(Debug)]
pub struct SwitchingDisk {
    disk: Arc<dyn Disk>,
    switch: Arc<dyn Switch>,
}

impl SwitchingDisk {
    /// Reads files of `disk` as `switch` decides.
    pub fn new(disk: Arc<dyn Disk>, switch: Arc<dyn Switch>) -> Self {
        Self { disk, switch }
    }
}

impl DiskLayer for SwitchingDisk {
    fn below(&self) -> &dyn Disk {
        &*self.disk
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let file = self.disk.open(path, open, caching)?;
        if (open, caching) != (Open::Read, Caching::Direct) {
            return Ok(file);
        }
        let switch = Arc::clone(&self.switch);
        Ok(Arc::new(SwitchingFile {
            file,
            switch,
            cached: AtomicBool::new(false),
            turning: Mutex::new(()),
        }))
    }
}

#[derive(Debug)]
struct SwitchingFile {
    file: Arc<dyn File>,
    switch: Arc<dyn Switch>,
    /// The last mode of the handle.
    cached: AtomicBool,
    /// Held during a switch: `cached` then agrees with the handle's last mode.
    turning: Mutex<()>,
}

impl SwitchingFile {
    /// Switches the handle if the decision has changed. A concurrent read in another thread
    /// finishes in the mode in which it began.
    fn turn(&self) {
        let wanted = self.switch.caching();
        let cached = wanted == Caching::Buffered;
        // Relaxed: both modes read the same bytes.
        if self.cached.load(Ordering::Relaxed) == cached {
            return;
        }
        let _turning = lock(&self.turning);
        if self.cached.load(Ordering::Relaxed) != cached {
            self.file.turn(wanted);
            self.cached.store(cached, Ordering::Relaxed);
        }
    }
}

impl File for SwitchingFile {
    fn id(&self) -> io::Result<Option<FileId>> {
        self.file.id()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.turn();
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(buf, offset)
    }

    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.file.write_parts_at(parts, offset)
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

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.file.allocate(from, to)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        self.turn();
        self.file.will_read(offset, bytes);
    }
}
