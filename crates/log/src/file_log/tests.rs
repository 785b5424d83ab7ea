//! Concurrent calls of a log.

mod held_disk;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::vfs::Disk;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

use super::FileLog;
use super::options::FileLogOptions;
use super::tests::held_disk::HeldDisk;
use crate::draft::{Draft, DraftEntry};
use crate::error::LogError;
use crate::glsn::StreamId;

fn open(disk: &HeldDisk) -> Result<FileLog, LogError> {
    let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 1 << 20).unwrap();
    let clock = Arc::new(SystemClock::new());
    let options =
        FileLogOptions::new(Arc::new(disk.clone()), clock, PathBuf::from("/log"), pool, budget);
    FileLog::open(FileLogOptions { background: false, ..options }).map(|(log, _)| log)
}

#[test]
fn the_folder_stays_locked_while_a_thread_writes_though_the_log_is_closed() {
    let disk = HeldDisk::default();
    let log = open(&disk).unwrap();
    let entries = [DraftEntry { stream: StreamId(9), parts: &[b"a"] }];
    let glsn = log.submit(&Draft::of(&entries), None).unwrap().last;
    disk.hold_writes(true);
    std::thread::scope(|scope| {
        scope.spawn(|| log.wait_durable(glsn));
        disk.wait_for_held();
        // Poison the log, because closing would otherwise wait for a sync.
        log.log
            .durability
            .group
            .poison(&LogError::Format { message: "another thread failed".to_owned() });
        let closing = scope.spawn(|| log.close());
        SystemClock::new().sleep(Duration::from_millis(50));
        let is_locked = disk.lock(Path::new("/log")).is_err();
        disk.hold_writes(false);
        assert!(is_locked);
        assert!(matches!(closing.join().unwrap(), Err(LogError::Poisoned { .. })));
    });
    open(&disk).unwrap();
}
