//! A folder as a bucket: power cuts, killed writers, full disks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::order::{Appended, Order, OrderError};
use plimsoll_archive::{Folder, Folders, Put, bucket_at};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_replica::BucketOrder;

fn order_on(disk: &LyingDisk) -> BucketOrder {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let folder = Folder::new(disk, "/bucket").exclusive();
    let order = BucketOrder::new(Arc::new(folder), "/bucket").unwrap();
    order.patience(Duration::ZERO)
}

/// A batch that was appended, or read by another member, survives a power cut at any sync.
#[test]
fn batches_survive_power_cuts() {
    for cut in 1.. {
        let lying = LyingDisk::new(cut);
        let (writer, reader) = (order_on(&lying), order_on(&lying));
        lying.cut_power_at_sync(lying.sync_count() + cut);
        let (mut acknowledged, mut position) = (0, 1);
        while position <= 6 && !lying.power_is_cut() {
            let batch = vec![position as u8; 3000];
            let done = writer.append(position, &batch);
            let read = reader.read(position);
            if done == Ok(Appended::Done) || matches!(read, Ok(Some(_))) {
                acknowledged = position;
            }
            position += 1;
        }
        let is_over = !lying.power_is_cut();
        lying.cut_power();
        lying.restore_power();
        let order = order_on(&lying);
        let end = order.end().unwrap();
        assert!(end >= acknowledged, "cut at {cut}: {end} of {acknowledged}");
        for position in 1..=end {
            let batch = order.read(position).unwrap().unwrap();
            assert!(batch == vec![position as u8; 3000], "cut at {cut}: {position}");
        }
        assert_eq!(order.append(end + 1, b"next"), Ok(Appended::Done));
        if is_over {
            assert!(cut > 12, "{cut} syncs");
            return;
        }
    }
}

/// What a reader has seen of a writer that was killed before it synced the name is durable.
#[test]
fn a_batch_of_a_killed_writer_is_durable_once_it_was_read() {
    for seed in 0..20 {
        let lying = LyingDisk::new(seed);
        let reader = order_on(&lying);
        assert_eq!(reader.append(1, b"one"), Ok(Appended::Done));
        // As a writer that was killed between its link and its sync leaves it.
        let copy = lying.snapshot();
        assert_eq!(order_on(&copy).append(2, b"two"), Ok(Appended::Done));
        let from = copy.open(
            Path::new("/bucket/log/0000000000000002"),
            plimsoll_disk::vfs::Open::Read,
            plimsoll_disk::vfs::Caching::Buffered,
        );
        let from = from.unwrap();
        let mut bytes = vec![0; from.len().unwrap() as usize];
        from.read_exact_at(&mut bytes, 0).unwrap();
        let file = lying.open(
            Path::new("/bucket/tmp/left"),
            plimsoll_disk::vfs::Open::CreateNew,
            plimsoll_disk::vfs::Caching::Buffered,
        );
        let file = file.unwrap();
        file.write_at(&bytes, 0).unwrap();
        file.sync().unwrap();
        lying
            .hard_link(Path::new("/bucket/tmp/left"), Path::new("/bucket/log/0000000000000002"))
            .unwrap();
        assert_eq!(reader.read(2).unwrap().unwrap(), b"two");
        lying.cut_power();
        lying.restore_power();
        assert_eq!(order_on(&lying).read(2).unwrap().unwrap(), b"two", "seed {seed}");
    }
}

/// A second attempt, whose sync succeeds, does not make the append durable.
#[test]
fn a_failed_sync_is_not_acknowledged() {
    for patience in [Duration::ZERO, Duration::from_millis(20)] {
        let mut refused = 0;
        for failed in 1..40 {
            let lying = LyingDisk::new(failed);
            let order = order_on(&lying).patience(patience);
            assert_eq!(order.append(1, b"one"), Ok(Appended::Done));
            lying.fail_sync(failed);
            let appended = order.append(2, b"two");
            let is_acknowledged = appended == Ok(Appended::Done);
            refused += u64::from(!is_acknowledged);
            lying.cut_power();
            lying.restore_power();
            let order = order_on(&lying);
            let end = order.end().unwrap();
            assert!(end == 2 || !is_acknowledged, "sync {failed}: {appended:?}");
        }
        assert!((1..39).contains(&refused), "{refused}");
    }
}

#[test]
fn a_full_disk_is_unavailable_until_there_is_space() {
    let lying = LyingDisk::new(1);
    let order = order_on(&lying);
    assert_eq!(order.append(1, b"one"), Ok(Appended::Done));
    lying.fill_up(Some(0));
    let refused = order.append(2, &[7; 100_000]).unwrap_err();
    assert!(matches!(&refused, OrderError::Unavailable(what) if what.contains("free space")));
    assert_eq!(order.read(1).unwrap().unwrap(), b"one");
    assert_eq!(order.read(2), Ok(None));
    lying.fill_up(None);
    assert_eq!(order.append(2, &[7; 100_000]), Ok(Appended::Done));
    assert!(lying.names(Path::new("/bucket/tmp")).unwrap().is_empty());
}

#[test]
fn leftovers_of_killed_writers_are_swept_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = bucket_at(dir.path().to_str().unwrap(), Folders::Create).unwrap();
    assert_eq!(bucket.put_new("log/1", &mut &b"x"[..]).unwrap(), Put::New);
    let tmp = dir.path().join("tmp");
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0, "nothing is left");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for (seconds, name) in [(7200, "old"), (60, "new")] {
        let micros = now.as_micros() - seconds * 1_000_000;
        std::fs::write(tmp.join(format!("{micros}-{name}-0")), b"partial").unwrap();
    }
    std::fs::write(tmp.join("of something else"), b"").unwrap();
    assert_eq!(bucket.sweep(Duration::from_secs(3600)).unwrap(), 1);
    let left = std::fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().file_name());
    let mut left: Vec<String> = left.map(|name| name.into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left.len(), 2);
    assert!(left[0].ends_with("-new-0") && left[1] == "of something else", "{left:?}");
}

/// An empty mount point is not taken for an empty bucket.
#[test]
fn a_folder_that_is_missing_is_not_created_by_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("bucket");
    std::fs::create_dir(&root).unwrap();
    for url in [root.to_str().unwrap(), dir.path().join("none").to_str().unwrap()] {
        let bucket = bucket_at(url, Folders::Existing).unwrap();
        let order = BucketOrder::new(bucket, url).unwrap();
        let refused = order.append(1, b"x").unwrap_err();
        assert!(matches!(&refused, OrderError::Unavailable(what) if what.contains("is mounted")));
    }
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    assert!(!dir.path().join("none").exists());
}

#[test]
fn a_name_that_is_taken_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = bucket_at(dir.path().to_str().unwrap(), Folders::Create).unwrap();
    bucket.put_new("log/1", &mut &b"first"[..]).unwrap();
    assert_eq!(bucket.put_new("log/1", &mut &b"second"[..]).unwrap(), Put::Exists);
    assert_eq!(std::fs::read(dir.path().join("log/1")).unwrap(), b"first");
    bucket.replace("hint", b"1").unwrap();
    bucket.replace("hint", b"22").unwrap();
    assert_eq!(std::fs::read(dir.path().join("hint")).unwrap(), b"22");
    assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}
