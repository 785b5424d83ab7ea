//! Words of memory that processes share: a mapped file, and futexes in it.
//!
//! Law: the file has its room on the disk before it is mapped, and is never made shorter: a touched page has a place. What another process has
//! written to it meanwhile is not overwritten.
#![allow(unsafe_code, reason = "maps a file and lends it as atomic words")]

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::thread::futex;

use crate::fork::{self, Kept};
use crate::os::group::open_or_make;
use crate::os::place::Place;
use crate::os::{OsFile, check_regular};
use crate::path_error::at_path;
use crate::sharing::SharedWords;
use crate::vfs::File;

const WORD_BYTES: usize = size_of::<u64>();

/// The mapped words.
#[derive(Debug)]
pub(super) struct OsWords {
    /// A forked child has words of its own in their place. `None` only while this is dropped.
    kept: Option<Kept>,
    base: NonNull<AtomicU64>,
    count: NonZeroUsize,
}

// SAFETY: the memory is reached through atomic words only, and stays mapped until this is dropped.
unsafe impl Send for OsWords {}
// SAFETY: as above.
unsafe impl Sync for OsWords {}

impl OsWords {
    /// Maps the first `count` words of a file, which is made, and made longer by zeros, as far as it is missing.
    pub(super) fn open(place: &Place<'_>, count: usize) -> io::Result<Self> {
        let path = place.path;
        let count = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = count.get() * WORD_BYTES;
        let fd = open_or_make(place)?;
        check_regular(&fd, path)?;
        let file = OsFile::new(fd, false, path);
        if file.len()? < bytes as u64 {
            make_room(&file, bytes as u64).map_err(|error| at_path(path, error))?;
        }
        Self::map(path, &file, count, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `count` words of a file that has them all, to read only: the system kills a process that writes to one.
    pub(super) fn open_to_read(place: &Place<'_>, count: usize) -> io::Result<Self> {
        let path = place.path;
        let count = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = place.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
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
        Ok(Self { kept: Some(fork::mapped(base, bytes)), base, count })
    }

    /// The half of a word that futexes look at: the lower one.
    fn half(&self, at: usize) -> &AtomicU32 {
        let lower = usize::from(cfg!(target_endian = "big"));
        let word: *const AtomicU64 = &self.words()[at];
        // SAFETY: a half of an atomic word is aligned as an atomic half word, and is only read here and by the system.
        unsafe { &*word.cast::<AtomicU32>().add(lower) }
    }
}

/// Makes a file at least `bytes` long, with room on the disk: without, this fails, and not a later touch.
fn make_room(file: &OsFile, bytes: u64) -> io::Result<()> {
    loop {
        return match fallocate(&file.fd, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => continue,
            // Where the file system does not know how. Behind the words: what others have written to them stays.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_at(&[0], bytes),
            made => Ok(made?),
        };
    }
}

impl SharedWords for OsWords {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped until `self` is dropped, and other processes change them as atomic words.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.count.get()) }
    }

    fn wait(&self, at: usize, seen: u64, patience: Duration) {
        // More than the system can count is without end.
        let seconds = i64::try_from(patience.as_secs()).unwrap_or(i64::MAX);
        let timeout = futex::Timespec { tv_sec: seconds, tv_nsec: i64::from(patience.subsec_nanos()) };
        #[cfg(any(test, feature = "testing"))]
        crate::worker::sleeps::note(patience);
        // Every outcome is a reason to look again.
        let _ = futex::wait(self.half(at), futex::Flags::empty(), seen as u32, Some(&timeout));
    }

    fn wake(&self, at: usize, most: u32) {
        let _ = futex::wake(self.half(at), futex::Flags::empty(), most.min(i32::MAX as u32));
    }
}

impl Drop for OsWords {
    fn drop(&mut self) {
        drop(self.kept.take());
        // SAFETY: exactly what was mapped, and no borrow is left.
        unsafe {
            let _ = munmap(self.base.as_ptr().cast(), self.count.get() * WORD_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_process_that_makes_the_words_beside_another_one_overwrites_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..500 {
            let path = dir.path().join(round.to_string());
            let barrier = Barrier::new(8);
            let add = || {
                barrier.wait();
                let words = OsWords::open(&Place::by_path(&path), 1088).unwrap();
                words.words()[0].fetch_add(1, Ordering::SeqCst);
            };
            std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(add))));
            assert_eq!(
                OsWords::open(&Place::by_path(&path), 1088).unwrap().words()[0].load(Ordering::SeqCst),
                8,
                "in round {round}"
            );
        }
    }
}
