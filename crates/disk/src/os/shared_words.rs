//! Words of memory that processes share: a mapped file with futexes.
//!
//! Invariants:
//! 1. Disk space for the file is allocated before it is mapped, and Plimsoll never truncates it, so
//!    that touching a page cannot fail. Concurrent writes of other processes are not overwritten.
//! 2. If another program truncates the file, the words become zero and private
//!    ([`crate::os::bus_error`]), and threads that sleep at the file's words are woken through the
//!    file.
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
use crate::os::bus_error::Guarded;
use crate::os::group::open_or_make;
use crate::os::named_file::NamedFile;
use crate::os::place::Place;
use crate::os::{OsFile, check_regular};
use crate::path_error::at_path;
use crate::sharing::SharedWords;
use crate::vfs::File;

const WORD_BYTES: usize = size_of::<u64>();

/// The mapped words.
#[derive(Debug)]
pub(super) struct OsWords {
    /// Gives forked children private words in place of these. `None` only during drop.
    kept: Option<Kept>,
    /// `None` only during drop.
    guarded: Option<Guarded>,
    base: NonNull<AtomicU64>,
    count: NonZeroUsize,
    file: OsFile,
    named: NamedFile,
}

// SAFETY: the memory is reached through atomic words only, and stays mapped until this is dropped.
unsafe impl Send for OsWords {}
// SAFETY: as above.
unsafe impl Sync for OsWords {}

impl OsWords {
    /// Maps the first `count` words of a file, creating the file and extending it with zeros as
    /// needed.
    pub(super) fn open(place: &Place<'_>, count: usize) -> io::Result<Self> {
        let path = place.path;
        let count = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = count.get() * WORD_BYTES;
        let fd = open_or_make(place)?;
        check_regular(&fd, path)?;
        let file = OsFile::new(fd, false, path);
        if file.len()? < bytes as u64 {
            allocate(&file, bytes as u64).map_err(|error| at_path(path, error))?;
        }
        Self::map(path, file, count, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps the first `count` words of a file that has all of them, read-only. The system kills a
    /// process that writes to one of them.
    pub(super) fn open_to_read(place: &Place<'_>, count: usize) -> io::Result<Self> {
        let path = place.path;
        let count = NonZeroUsize::new(count).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = place.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        check_regular(&fd, path)?;
        let file = OsFile::new(fd, false, path);
        if file.len()? < (count.get() * WORD_BYTES) as u64 {
            return Err(at_path(path, io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        Self::map(path, file, count, ProtFlags::READ)
    }

    fn map(
        path: &Path,
        file: OsFile,
        count: NonZeroUsize,
        protection: ProtFlags,
    ) -> io::Result<Self> {
        let (bytes, named) = (count.get() * WORD_BYTES, NamedFile::of(path, &file.fd)?);
        // SAFETY: a new mapping overlaps no other memory.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file.fd, 0) };
        let base = mapped.map_err(|errno| at_path(path, errno))?;
        if protection.contains(ProtFlags::WRITE) {
            // SAFETY: exactly the mapped memory. Only a hint; without it the first touch is slower.
            let _ = unsafe { madvise(base, bytes, Advice::LinuxPopulateWrite) };
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| at_path(path, Errno::NOMEM))?;
        let guarded = Some(Guarded::new(base, bytes, &file.fd));
        Ok(Self { kept: Some(fork::mapped(base, bytes)), guarded, base, count, named, file })
    }

    /// Wakes threads that sleep at a word of the file, while this process's words are no longer the
    /// file's.
    fn wake_in_file(&self, at: usize, most: u32) -> io::Result<()> {
        let bytes = self.count.get() * WORD_BYTES;
        if self.file.len()? < bytes as u64 {
            allocate(&self.file, bytes as u64)?;
        }
        let path = &self.file.path;
        let file =
            OsFile::new(self.file.fd.try_clone().map_err(|e| at_path(path, e))?, false, path);
        let again = Self::map(path, file, self.count, ProtFlags::READ | ProtFlags::WRITE)?;
        let _ = futex::wake(again.half(at), futex::Flags::empty(), most.min(i32::MAX as u32));
        Ok(())
    }

    /// The half of a word that futexes use: the lower one.
    fn half(&self, at: usize) -> &AtomicU32 {
        let lower = usize::from(cfg!(target_endian = "big"));
        let word: *const AtomicU64 = &self.words()[at];
        // SAFETY: half of an atomic word is aligned as an atomic half word, and is only read here
        // and by the system.
        unsafe { &*word.cast::<AtomicU32>().add(lower) }
    }
}

/// Makes a file at least `bytes` long with allocated disk space, so that a lack of space fails here
/// and not at a later touch.
fn allocate(file: &OsFile, bytes: u64) -> io::Result<()> {
    loop {
        return match fallocate(&file.fd, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => continue,
            // The file system cannot preallocate. Write after the words, so that other processes'
            // writes are kept.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_at(&[0], bytes),
            made => Ok(made?),
        };
    }
}

impl SharedWords for OsWords {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: this many words are mapped until `self` is dropped, and other processes change
        // them as atomic words.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.count.get()) }
    }

    fn wait(&self, at: usize, seen: u64, timeout: Duration) {
        // A timeout beyond the system's range is infinite.
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let timespec =
            futex::Timespec { tv_sec: seconds, tv_nsec: i64::from(timeout.subsec_nanos()) };
        #[cfg(any(test, feature = "testing"))]
        crate::worker::sleeps::note(timeout);
        // The caller rechecks after every outcome.
        let _ = futex::wait(self.half(at), futex::Flags::empty(), seen as u32, Some(&timespec));
    }

    fn wake(&self, at: usize, most: u32) {
        let _ = futex::wake(self.half(at), futex::Flags::empty(), most.min(i32::MAX as u32));
        if self.guarded.as_ref().is_some_and(Guarded::is_lost) {
            // Without write permission to the file, the sleepers wake up when their timeout is
            // over.
            let _ = self.wake_in_file(at, most);
        }
    }

    fn identity(&self) -> u64 {
        self.named.identity()
    }

    fn check(&self) -> io::Result<()> {
        self.named.check((self.count.get() * WORD_BYTES) as u64)
    }
}

impl Drop for OsWords {
    fn drop(&mut self) {
        drop(self.kept.take());
        drop(self.guarded.take());
        // SAFETY: exactly the mapped memory, and no borrow is left.
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
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn concurrent_creation_overwrites_nothing() {
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
                OsWords::open(&Place::by_path(&path), 1088).unwrap().words()[0]
                    .load(Ordering::SeqCst),
                8,
                "in round {round}"
            );
        }
    }

    #[test]
    fn truncated_words_read_as_zero() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        for left in [0, 4096] {
            let (one, other) = (
                OsWords::open(&Place::by_path(&path), 1088).unwrap(),
                OsWords::open(&Place::by_path(&path), 1088).unwrap(),
            );
            one.words().iter().for_each(|word| word.store(7, Ordering::SeqCst));
            one.check().unwrap();
            cut(&path, left);
            assert!(one.check().unwrap_err().to_string().contains("truncated"));
            assert_eq!(one.words()[1087].load(Ordering::SeqCst), 0);
            assert!(
                one.words().iter().all(|word| word.load(Ordering::SeqCst) == 0),
                "left are {left} bytes"
            );
            one.words()[0].store(8, Ordering::SeqCst);
            assert_eq!(other.words()[0].load(Ordering::SeqCst), if left == 0 { 0 } else { 7 });
            drop((one, other));
            // A slot in the list of mappings is reused.
            let again = OsWords::open(&Place::by_path(&path), 1088).unwrap();
            again.words()[1087].store(1, Ordering::SeqCst);
            again.check().unwrap();
        }
    }

    #[test]
    fn sleeper_at_a_truncated_word_is_woken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("words");
        let words = OsWords::open(&Place::by_path(&path), 1088).unwrap();
        words.words()[1000].store(7, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let sleeping = scope.spawn(|| words.wait(1000, 7, Duration::from_secs(600)));
            SystemClock::new().sleep(Duration::from_millis(50));
            cut(&path, 0);
            while !sleeping.is_finished() {
                words.words()[1000].fetch_add(1, Ordering::SeqCst);
                words.wake(1000, 1);
                SystemClock::new().sleep(Duration::from_millis(1));
            }
        });
    }

    fn cut(path: &Path, bytes: u64) {
        rustix::fs::ftruncate(Place::by_path(path).open(OFlags::RDWR).unwrap(), bytes).unwrap();
    }
}
