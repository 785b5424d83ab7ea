//! What power cuts, ends of processes and faults leave behind.

use super::*;

#[test]
fn what_nothing_names_any_more_is_forgotten() {
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
fn a_process_that_ends_loses_nothing_and_a_later_cut_takes_what_it_did_not_sync() {
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
        let there = disk.open(path, Open::Read, Caching::Buffered).is_ok_and(|file| file.len().unwrap() == 5);
        if there { kept += 1 } else { lost += 1 }
    }
    assert!(kept > 0 && lost > 0, "{kept} {lost}");
}

#[test]
fn a_removed_file_is_kept_while_a_crash_may_bring_it_back() {
    let disk = LyingDisk::new(1);
    let path = Path::new("file");
    drop(disk.open(path, Open::CreateNew, Caching::Buffered).unwrap());
    disk.sync_dir(Path::new("/")).unwrap();
    disk.remove(path).unwrap();
    disk.state().sweep();
    assert_eq!(disk.state().tree.files().count(), 1);
}
