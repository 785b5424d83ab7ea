//! Words of memory that processes share: a mapped file, and futexes in it.
//!
//! Law: the file is written with zeros before it is mapped, and never made shorter: a touched page has its room on the disk.
#![allow(unsafe_code, reason = "maps a file and lends it as atomic words")]

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::thread::futex;

use crate::os::group::open_or_make;
use crate::os::{OsFile, check_regular, open_fd};
use crate::path_error::at_path;
use crate::sharing::SharedWords;
use crate::vfs::File;

const WORD_BYTES: usize = size_of::<u64>();

/// The mapped words.
#[derive(Debug)]
pub(super) struct OsWords {
    base: NonNull<AtomicU64>,
    count: NonZeroUsize,
}

// SAFETY: the memory is reached through atomic words only, and stays mapped until this is dropped.
unsafe impl Send for OsWords {}
// SAFETY: as above.
unsafe impl Sync for OsWords {}

impl OsWords {
    /// Maps the first `count` words of a file, which is made and filled with zeros as far as it is missing.
    pub(super) fn open(path: &Path, count: usize) -> io::Result<Self> {
        let count = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = count.get() * WORD_BYTES;
        let fd = open_or_make(path)?;
        check_regular(&fd, path)?;
        let file = OsFile::new(fd, false, path);
        let there = file.len()?.min(bytes as u64);
        if there < bytes as u64 {
            // Written, not only made longer: without room on the disk this fails, and not a later touch.
            file.write_at(&vec![0; bytes - there as usize], there)?;
        }
        Self::map(path, &file, count, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `count` words of a file that has them all. Whoever changes one is ended by the system.
    pub(super) fn open_to_read(path: &Path, count: usize) -> io::Result<Self> {
        let count = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = open_fd(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        check_regular(&fd, path)?;
        let file = OsFile::new(fd, false, path);
        if file.len()? < (count.get() * WORD_BYTES) as u64 {
            return Err(at_path(path, io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        Self::map(path, &file, count, ProtFlags::READ)
    }

    fn map(path: &Path, file: &OsFile, count: NonZeroUsize, protection: ProtFlags) -> io::Result<Self> {
        let bytes = count.get() * WORD_BYTES;
        // SAFETY: a new mapping overlaps no other memory.
        let mapped = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file.fd, 0) };
        let base = mapped.map_err(|errno| at_path(path, errno))?;
        if protection.contains(ProtFlags::WRITE) {
            // SAFETY: exactly the memory that was mapped. A hint: without it the first touch is slower.
            let _ = unsafe { madvise(base, bytes, Advice::LinuxPopulateWrite) };
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| at_path(path, Errno::NOMEM))?;
        Ok(Self { base, count })
    }

    /// The half of a word that futexes look at: the lower one.
    fn half(&self, at: usize) -> &AtomicU32 {
        let lower = usize::from(cfg!(target_endian = "big"));
        let word: *const AtomicU64 = &self.words()[at];
        // SAFETY: a half of an atomic word is aligned as an atomic half word, and is only read here and by the system.
        unsafe { &*word.cast::<AtomicU32>().add(lower) }
    }
}

impl SharedWords for OsWords {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped until `self` is dropped, and other processes change them as atomic words.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.count.get()) }
    }

    fn wait(&self, at: usize, seen: u64, patience: Duration) {
        let timeout =
            futex::Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
        // Every outcome is a reason to look again.
        let _ = futex::wait(self.half(at), futex::Flags::empty(), seen as u32, Some(&timeout));
    }

    fn wake(&self, at: usize, most: u32) {
        let _ = futex::wake(self.half(at), futex::Flags::empty(), most.min(i32::MAX as u32));
    }
}

impl Drop for OsWords {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and no borrow is left.
        unsafe {
            let _ = munmap(self.base.as_ptr().cast(), self.count.get() * WORD_BYTES);
        }
    }
}
