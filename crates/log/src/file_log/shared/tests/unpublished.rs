//! Tests of removing an unpublished record durably.

use super::*;

#[test]
fn leftovers_are_removed_durably_although_an_earlier_sync_failed_unseen() {
    (0..16).for_each(remove_leftovers_after_an_unseen_failure);
}

/// `seed` decides which unsynced bytes the power cut drops.
fn remove_leftovers_after_an_unseen_failure(seed: u64) {
    let (disk, store) = (LyingDisk::new(seed), PathBuf::from("/store"));
    disk.create_dir(&store).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let (one, two) = (Process::join(&shared, &store, true), Process::join(&shared, &store, false));
    one.append("a");
    let end = one.members.marks.end();
    let path = FileName::Segment(end.segment).path(&store.join("log"));
    let file = shared.open(&path, Open::ReadWrite, Caching::Buffered).unwrap();
    // The first process dies in the middle of a large record, and the system writes that part to
    // the disk.
    let len = file.len().unwrap();
    file.write_at(&vec![0xff; (len - u64::from(end.offset)) as usize], u64::from(end.offset))
        .unwrap();
    file.sync().unwrap();
    let mut turn = one.log.turn().unwrap().unwrap();
    turn.begin().unwrap();
    std::mem::forget(turn);
    drop(one);
    // Another process overwrites it with zeros. Its sync fails, after which the system regards the
    // zeros as written, and the process is killed before it can report the failure.
    file.write_at(&vec![0; (len - u64::from(end.offset)) as usize], u64::from(end.offset)).unwrap();
    disk.fail_next_sync();
    file.sync().unwrap_err();
    assert_eq!(two.append("b"), Glsn(2));
    let end = two.members.marks.end();
    disk.cut_power();
    drop((two, file));
    disk.restore_power();
    let file = shared.open(&path, Open::Read, Caching::Buffered).unwrap();
    let mut behind = vec![0xff; (len - u64::from(end.offset)) as usize];
    file.read_exact_at(&mut behind, u64::from(end.offset)).unwrap();
    assert!(behind.iter().all(|byte| *byte == 0), "an unpublished record came back");
    assert_eq!(verify(&shared, &store), ["a", "b"]);
}
