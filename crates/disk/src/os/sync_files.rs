//! Syncs several files concurrently. Each sync asks the device to flush its cache and waits; the
//! system merges concurrent requests into one.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use crate::mutex::lock;
use crate::thread::STACK_BYTES;
use crate::vfs::File;

/// Threads in addition to the caller's.
const THREADS: usize = 3;

/// Makes all writes of these files durable; returns the first error after trying all.
pub(super) fn sync_files(files: &[Arc<dyn File>]) -> io::Result<()> {
    files.iter().for_each(|file| file.begin_sync());
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let sync_rest = || {
        // Relaxed: each index is taken once; the files are shared by reference.
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = file.sync() {
                lock(&failed).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(files.len().saturating_sub(1)) {
            let thread = Builder::new().name("plimsoll-sync".to_owned()).stack_size(STACK_BYTES);
            // If the thread cannot be started, the other threads sync its share.
            let _ = thread.spawn_scoped(scope, sync_rest);
        }
        sync_rest();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that supports only `sync`; some fail.
    #[derive(Debug)]
    struct Counted {
        syncs: AtomicUsize,
        fails: bool,
    }

    impl File for Counted {
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync(&self) -> io::Result<()> {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            if self.fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn len(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn set_len(&self, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn each_file_is_synced_once_and_failures_are_reported() {
        for bad in [None, Some(0), Some(7), Some(19)] {
            let counted: Vec<_> = (0..20)
                .map(|i| Arc::new(Counted { syncs: AtomicUsize::new(0), fails: Some(i) == bad }))
                .collect();
            let files: Vec<_> =
                counted.iter().map(|file| Arc::clone(file) as Arc<dyn File>).collect();
            let told = sync_files(&files).map_err(|error| error.kind());
            assert_eq!(told, if bad.is_some() { Err(io::ErrorKind::StorageFull) } else { Ok(()) });
            assert!(counted.iter().all(|file| file.syncs.load(Ordering::Relaxed) == 1));
        }
    }
}
