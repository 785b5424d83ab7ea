//! Tests of the disk after power cuts, process exits and faults.

use super::*;

#[test]
fn unreferenced_file_is_dropped() {
    let disk = LyingDisk::new(1);
    let (folder, path) = (Path::new("folder"), Path::new("folder/file"));
    let count = || disk.state().tree.files().count();
    for _ in 0..3 {
        disk.create_dir(folder).unwrap();
        let file = disk.open(path, Open::CreateNew, Caching::Buffered).unwrap();
        disk.sync_dir(folder).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        disk.remove(path).unwrap();
        disk.sync_dir(folder).unwrap();
        assert_eq!(count(), 1, "an open handle keeps its file");
        drop(file);
        assert_eq!(count(), 0);
        disk.remove_dir(folder).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        assert_eq!(disk.state().names.folders().len(), 1);
    }
}

#[test]
fn process_exit_keeps_writes_until_a_power_cut() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..20 {
        let disk = LyingDisk::new(seed);
        let path = Path::new("file");
        let file = disk.open(path, Open::CreateNew, Caching::Buffered).unwrap();
        file.write_at(b"bytes", 0).unwrap();
        disk.cut_power_at_sync(1);
        assert!(disk.sync_dir(Path::new("/")).is_err());
        disk.restart_process();
        assert!(file.len().is_err(), "a handle of the process that ended");
        assert_eq!(disk.open(path, Open::Read, Caching::Buffered).unwrap().len().unwrap(), 5);
        disk.cut_power();
        disk.restore_power();
        let there = disk
            .open(path, Open::Read, Caching::Buffered)
            .is_ok_and(|file| file.len().unwrap() == 5);
        if there { kept += 1 } else { lost += 1 }
    }
    assert!(kept > 0 && lost > 0, "{kept} {lost}");
}

#[test]
fn removed_file_is_kept_until_the_removal_is_durable() {
    let disk = LyingDisk::new(1);
    let path = Path::new("file");
    drop(disk.open(path, Open::CreateNew, Caching::Buffered).unwrap());
    disk.sync_dir(Path::new("/")).unwrap();
    disk.remove(path).unwrap();
    disk.state().sweep();
    assert_eq!(disk.state().tree.files().count(), 1);
}

#[test]
fn process_is_killed_at_or_after_a_change() {
    let path = Path::new("file");
    // The changes: the file is created, written twice, and synced; in between it is read.
    let work = |at: AtChange| {
        let (process, disk) = LyingDisk::new(1).process(7);
        process.kill_at_change(at);
        let steps = || {
            let file = disk.open(path, Open::CreateNew, Caching::Buffered)?;
            file.len()?;
            file.write_at(b"a", 0)?;
            file.len()?;
            file.len()?;
            file.write_at(b"b", 1)?;
            file.sync()
        };
        let ended: io::Result<()> = steps();
        assert_eq!(ended.is_err(), process.is_dead());
        process.operations()
    };
    let at = |nth, later| work(AtChange { nth, later });
    assert_eq!([at(1, 0), at(1, 1), at(2, 0), at(2, 2), at(3, 0), at(4, 0)], [1, 2, 3, 5, 6, 7]);
    assert_eq!(at(5, 0), 7, "there is no fifth");
}

#[test]
fn only_the_chosen_read_fails() {
    let disk = LyingDisk::new(1);
    let file = disk.open(Path::new("file"), Open::CreateNew, Caching::Buffered).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    let mut buf = [0; 5];
    disk.fail_read(2);
    let mut reads = || [0; 3].map(|_| file.read_at(&mut buf, 0).is_ok());
    assert_eq!(reads(), [true, false, true]);
    assert!(!disk.fail_no_read());
    disk.fail_read(7);
    assert!(disk.fail_no_read());
    assert_eq!(reads(), [true, true, true]);
    assert_eq!(disk.injected().failed_reads, 1);
}

#[test]
fn power_is_cut_at_the_chosen_change() {
    let (mut done, mut not_done) = (0, 0);
    for seed in 0..40 {
        let disk = LyingDisk::new(seed);
        let (path, other) = (Path::new("file"), Path::new("other"));
        disk.cut_power_at_change(3);
        let file = disk.open(path, Open::CreateNew, Caching::Buffered).unwrap();
        file.write_at(b"bytes", 0).unwrap();
        assert!(disk.rename(path, other).is_err() && disk.power_is_cut());
        disk.restart_process();
        let renamed = disk.entry(other).unwrap().is_some();
        assert_ne!(renamed, disk.entry(path).unwrap().is_some());
        (done, not_done) = (done + u64::from(renamed), not_done + u64::from(!renamed));
        // The power is cut at one change only, and not in a copy of the disk.
        disk.remove(if renamed { other } else { path }).unwrap();
        disk.cut_power_at_change(1);
        assert!(disk.snapshot().create_dir(Path::new("folder")).is_ok());
    }
    assert!(done > 5 && not_done > 5, "{done}, {not_done}");
}

#[test]
fn process_stops_at_the_chosen_operation() {
    let disk = LyingDisk::new(1);
    let (process, own) = disk.process(7);
    let file = own.open(Path::new("file"), Open::CreateNew, Caching::Buffered).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    process.fail_read(Some(1));
    let mut buf = [0; 5];
    assert!(file.read_at(&mut buf, 0).is_err() && file.read_at(&mut buf, 0).is_ok());
    let stops = process.clone();
    let stopped = crate::thread::spawn("stops", move || stops.stop_here()).unwrap();
    process.wait_until_stopped(&|| false);
    assert!(process.is_stopped() && !stopped.is_finished());
    process.resume();
    stopped.join().unwrap();
}
