//! The invariants of sharing, tested on every disk that supports it.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Disk, LockError};

/// Runs a test on each disk, in its own folder.
fn on_each(test: impl Fn(Arc<dyn Disk>, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    test(Arc::new(OsDisk::new()), dir.path());
    for disk in [Arc::new(MemDisk::new()) as Arc<dyn Disk>, Arc::new(LyingDisk::new(1))] {
        let path = PathBuf::from("/folder");
        disk.create_dir(&path).unwrap();
        test(disk, &path);
    }
}

#[test]
fn lock_file_has_one_holder() {
    on_each(|disk, dir| {
        let path = dir.join("turn");
        let (one, two) = (disk.lock_file(&path).unwrap(), disk.lock_file(&path).unwrap());
        assert!(one.try_lock().unwrap());
        assert!(!two.try_lock().unwrap());
        two.unlock();
        assert!(!two.try_lock().unwrap(), "who does not hold it cannot give it back");
        one.unlock();
        assert!(two.try_lock().unwrap());
        drop(two);
        assert!(one.try_lock().unwrap());
        assert!(disk.lock_file(&dir.join("other")).unwrap().try_lock().unwrap());
    });
}

#[test]
fn shared_folder_refuses_exclusive_locks() {
    on_each(|disk, dir| {
        let alone = disk.lock(dir).unwrap();
        assert!(matches!(disk.lock_shared(dir), Err(LockError::Held { .. })));
        alone.share().unwrap();
        alone.check().unwrap();
        let second = disk.lock_shared(dir).unwrap();
        drop(alone);
        assert!(matches!(disk.lock(dir), Err(LockError::Held { .. })));
        second.check().unwrap();
        drop(second);
        let again = disk.lock(dir).unwrap();
        assert!(matches!(disk.lock(dir), Err(LockError::Held { .. })));
        drop(again);
        disk.lock_shared(dir).unwrap();
    });
}

#[test]
fn words_are_shared_and_wake_waiters() {
    on_each(|disk, dir| {
        let path = dir.join("SHARED");
        let (one, two) =
            (disk.shared_words(&path, 700).unwrap(), disk.shared_words(&path, 700).unwrap());
        assert!(one.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        one.words()[699].store(7, Ordering::Release);
        assert_eq!(two.words()[699].load(Ordering::Acquire), 7);
        // The value differs, so the call does not wait.
        two.wait(699, 8, Duration::from_secs(60));
        two.wait(699, 7, Duration::from_millis(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while two.words()[3].load(Ordering::Acquire) == 0 {
                    two.wait(3, 0, Duration::from_secs(60));
                }
            });
            one.words()[3].store(1, Ordering::Release);
            one.wake(3, 1);
        });
        drop((one, two));
        assert_eq!(disk.shared_words(&path, 700).unwrap().words()[699].load(Ordering::Relaxed), 7);
    });
}

#[test]
fn unbounded_wait_lasts_until_woken() {
    on_each(|disk, dir| {
        let words = disk.shared_words(&dir.join("SHARED"), 1).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                words.wait(0, 0, Duration::MAX);
                words.words()[0].load(Ordering::Acquire)
            });
            SystemClock::new().sleep(Duration::from_millis(50));
            words.words()[0].store(1, Ordering::Release);
            words.wake(0, 1);
            assert_eq!(waiting.join().unwrap(), 1);
        });
    });
}

#[test]
fn power_cut_releases_locks_and_words() {
    let disk = LyingDisk::new(1);
    let dir = Path::new("/folder");
    disk.create_dir(dir).unwrap();
    let held = disk.lock_file(&dir.join("turn")).unwrap();
    assert!(held.try_lock().unwrap());
    let shared = disk.lock_shared(dir);
    let words = disk.shared_words(&dir.join("SHARED"), 2).unwrap();
    words.words()[0].store(1, Ordering::Release);
    disk.cut_power();
    disk.restore_power();
    disk.create_dir(dir).unwrap();
    assert!(disk.lock_file(&dir.join("turn")).unwrap().try_lock().unwrap());
    assert!(held.try_lock().is_err(), "it is of before the power cut");
    assert_eq!(
        disk.shared_words(&dir.join("SHARED"), 2).unwrap().words()[0].load(Ordering::Acquire),
        0
    );
    drop(shared);
    disk.lock(dir).unwrap();
}
