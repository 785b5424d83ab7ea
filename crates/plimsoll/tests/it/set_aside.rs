//! A salvage deletes nothing: whatever it takes out of a store stays beside it under a name that ends with `.cut`, wherever the salvage is cut
//! short, and no such name is used twice.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, DropTarget, Glsn, salvage, salvage_drop, salvage_from_index};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::repair::{STORE, files, fill, manifests, mem_disk, options, segments};

/// The key of the one large value.
const LARGE: &[u8] = b"zzz-large";

/// A salvage, which returns the lists of losses.
type Salvage = dyn Fn(&Arc<dyn Disk>) -> plimsoll::Result<Vec<String>>;

/// A trimmed store with a large value whose leaf is damaged; the files of which no byte may be lost.
fn damaged(disk: &Arc<dyn Disk>) -> Vec<(PathBuf, Vec<u8>)> {
    let db = Db::open(STORE, options(disk)).unwrap();
    db.put(&db.keyspace("default").unwrap(), LARGE, vec![7; 400 << 10]).unwrap();
    fill(&db, 300, 2500);
    db.compact().unwrap();
    assert!(db.log().trim(Glsn(200)).unwrap() > 1, "nothing was trimmed");
    db.close().unwrap();
    let (run, bytes) = named(&**disk, ".run").into_iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let at = bytes.windows(LARGE.len()).position(|bytes| bytes == LARGE).expect("the key is on a leaf") as u64;
    let file = disk.open(&run, Open::ReadWrite, Caching::Buffered).unwrap();
    file.write_at(b"Q", at).unwrap();
    file.sync().unwrap();
    let kept = [named(&**disk, ".run"), named(&**disk, ".blob")].concat();
    assert!(kept.iter().any(|(path, _)| path.extension().is_some_and(|ending| ending == "blob")));
    kept
}

fn named(disk: &dyn Disk, ending: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = files(disk, Path::new(STORE));
    found.retain(|(path, _)| path.to_str().unwrap().ends_with(ending));
    found
}

fn target() -> [DropTarget; 1] {
    [DropTarget::Key { keyspace: "default".to_owned(), key: LARGE.to_vec() }]
}

/// Opens the store, which sweeps; every file must still be there under some name.
fn are_kept(disk: &Arc<dyn Disk>, kept: &[(PathBuf, Vec<u8>)], told: &str) {
    if let Ok(db) = Db::open(STORE, options(disk).create(false)) {
        db.close().unwrap();
    }
    let now = files(&**disk, Path::new(STORE));
    for (path, bytes) in kept {
        let is_there = now.iter().any(|(_, other)| other == bytes);
        assert!(is_there, "{told}: {} is gone", path.display());
    }
}

/// Cuts the power at each sync of a salvage, and opens the store or salvages it again.
fn cut_anywhere(disk: &LyingDisk, kept: &[(PathBuf, Vec<u8>)], again: bool, run: &Salvage) {
    for sync in 0.. {
        let lying = disk.snapshot();
        lying.reseed(sync);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        lying.cut_power_at_sync(lying.sync_count() + sync);
        let first = run(&disk);
        let was_cut = lying.power_is_cut();
        lying.restore_power();
        let told = format!("sync {sync}, again: {again}");
        if !was_cut {
            first.unwrap_or_else(|error| panic!("{told}: {error}"));
        } else if again {
            match run(&disk) {
                Ok(losses) => {
                    let texts: Vec<String> = losses.iter().map(|path| text(&*disk, Path::new(path))).collect();
                    assert!(
                        texts.iter().any(|text| text.contains("keys from")),
                        "{told}: the losses are not named: {texts:?}"
                    );
                }
                // What was asked for is done already.
                Err(error) => {
                    assert!(matches!(error, plimsoll::Error::InvalidInput { .. }), "{told}: {error}");
                }
            }
        }
        are_kept(&disk, kept, &told);
        if !was_cut {
            assert!(sync > 3, "{sync}");
            return;
        }
    }
}

fn text(disk: &dyn Disk, path: &Path) -> String {
    let (_, bytes) = files(disk, Path::new(STORE)).into_iter().find(|(other, _)| other == path).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_salvage_by_dropping_that_is_cut_short_anywhere_keeps_every_file_and_names_what_is_lost() {
    for again in [false, true] {
        let lying = LyingDisk::new(5);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let kept = damaged(&disk);
        cut_anywhere(&lying, &kept, again, &|disk| {
            salvage_drop(STORE, options(disk), &[DropTarget::Damaged], false).map(|report| report.losses)
        });
    }
}

#[test]
fn a_salvage_from_the_index_that_is_cut_short_anywhere_keeps_every_file_and_names_what_is_lost() {
    for again in [false, true] {
        let lying = LyingDisk::new(5);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let kept = damaged(&disk);
        for manifest in manifests(&*disk) {
            disk.remove(&manifest).unwrap();
        }
        disk.sync_dir(&Path::new(STORE).join("index")).unwrap();
        cut_anywhere(&lying, &kept, again, &|disk| {
            salvage_from_index(STORE, options(disk)).map(|report| report.losses)
        });
    }
}

#[test]
fn a_salvage_gives_no_file_a_name_that_is_taken() {
    for from_index in [false, true] {
        let disk = mem_disk();
        let kept = damaged(&disk);
        let mut taken = Vec::new();
        let all = kept.iter().map(|(path, _)| path.clone()).chain(manifests(&*disk)).chain(segments(&*disk));
        for path in all {
            let path = PathBuf::from(format!("{}.cut", path.display()));
            disk.open(&path, Open::CreateNew, Caching::Buffered).unwrap().write_at(b"mine", 0).unwrap();
            taken.push(path);
        }
        if from_index {
            for manifest in manifests(&*disk).iter().filter(|path| !path.to_str().unwrap().ends_with(".cut")) {
                disk.open(manifest, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&[0x5a; 3], 70).unwrap();
            }
            salvage_from_index(STORE, options(&disk)).unwrap();
        } else {
            salvage_drop(STORE, options(&disk), &target(), false).unwrap();
        }
        let now = files(&*disk, Path::new(STORE));
        for path in taken {
            let bytes = now.iter().find(|(other, _)| *other == path).map(|(_, bytes)| &bytes[..]);
            assert!(bytes == Some(&b"mine"[..]), "{} was replaced", path.display());
        }
        are_kept(&disk, &kept, "names are taken");
    }
}

#[test]
fn commits_behind_the_index_that_the_lost_log_had_are_named() {
    for log_is_gone in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        fill(&db, 100, 500);
        db.flush().unwrap();
        let known = db.newest();
        fill(&db, 20, 500);
        let newest = db.newest();
        db.close().unwrap();
        if log_is_gone {
            segments(&*disk).iter().for_each(|segment| disk.remove(segment).unwrap());
        } else {
            // The second block of the only segment: all that follows is whole.
            let file = disk.open(&segments(&*disk)[0], Open::ReadWrite, Caching::Buffered).unwrap();
            file.write_at(&[0; 16 << 10], 16 << 10).unwrap();
        }
        let report = salvage_from_index(STORE, options(&disk)).unwrap();
        assert_eq!((report.known, report.lost_commits), (known, Some(known.next()..=newest)), "gone: {log_is_gone}");
        let named = format!("the commits with GLSN {} to {newest}", known.next());
        assert!(report.losses.iter().any(|path| text(&*disk, Path::new(path)).contains(&named)));
    }
}

#[test]
fn the_large_values_of_a_record_that_is_dropped_or_cut_stay_beside_the_log() {
    for is_cut in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        db.put(&keyspace, "sound", vec![6; 300 << 10]).unwrap();
        fill(&db, 20, 500);
        db.flush().unwrap();
        let lost = db.put(&keyspace, LARGE, vec![7; 400 << 10]).unwrap();
        fill(&db, 20, 500);
        db.close().unwrap();
        let kept = named(&*disk, ".blob");
        assert_eq!(kept.len(), 2);
        let (segment, bytes) = named(&*disk, ".seg").pop().unwrap();
        let at = bytes.windows(LARGE.len()).position(|bytes| bytes == LARGE).expect("the record has the key") as u64;
        disk.open(&segment, Open::ReadWrite, Caching::Buffered).unwrap().write_at(b"Q", at).unwrap();
        let moved = if is_cut {
            salvage(STORE, options(&disk), lost).unwrap().moved
        } else {
            salvage_drop(STORE, options(&disk), &[DropTarget::Glsn(lost)], false).unwrap().moved
        };
        are_kept(&disk, &kept, &format!("cut: {is_cut}"));
        let blobs = moved.iter().filter(|path| path.contains(".blob.")).count();
        assert_eq!(blobs, 1, "{moved:?}");
        // A value that is still there has one name only.
        assert_eq!(named(&*disk, ".blob").len(), 1);
    }
}
