//! Rebuild and salvage drop nothing that anybody could still want: a rebuild refuses where the log does not have what the index knows, a salvage
//! keeps what the index holds, and both leave the store as it was where they fail or are cut short.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, DropTarget, Error, Glsn, Options, rebuild, salvage, salvage_drop, salvage_from_index};
use plimsoll_disk::checksum::checksum;
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

pub(crate) const STORE: &str = "/store";

pub(crate) type Model = BTreeMap<(String, Vec<u8>), Vec<u8>>;

pub(crate) fn options(disk: &Arc<dyn Disk>) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    Options::new().memory_bytes(16 << 20).segment_bytes(256 << 10).background(false).world(Arc::clone(disk), clock)
}

pub(crate) fn mem_disk() -> Arc<dyn Disk> {
    Arc::new(MemDisk::new())
}

/// The manifests of the index, oldest first.
pub(crate) fn manifests(disk: &dyn Disk) -> Vec<PathBuf> {
    let index = Path::new(STORE).join("index");
    let mut names = disk.names(&index).unwrap();
    names.retain(|name| name.starts_with("MANIFEST."));
    names.sort();
    names.iter().map(|name| index.join(name)).collect()
}

/// What the store holds, by keyspace and key.
pub(crate) fn content(db: &Db) -> Model {
    let snapshot = db.snapshot();
    let mut all = Model::new();
    for info in db.keyspaces() {
        let keyspace = db.keyspace(&info.name).unwrap();
        for pair in snapshot.range(&keyspace, ..).unwrap() {
            let (key, value) = pair.unwrap();
            all.insert((info.name.clone(), key.to_vec()), value.to_vec());
        }
    }
    all
}

/// Commits with values of up to `bytes`, deletions and two keyspaces among them; the store's content after each.
pub(crate) fn fill(db: &Db, commits: u64, bytes: usize) -> Vec<Model> {
    let keyspaces = [db.keyspace("default").unwrap(), db.keyspace("more").unwrap()];
    let mut models = vec![content(db); db.newest().0 as usize + 1];
    for number in 0..commits {
        let mut model = models.last().unwrap().clone();
        let mut tx = db.begin();
        let keyspace = &keyspaces[(number % 3 == 0) as usize];
        for key in [number % 40, number] {
            let (key, value) = (key.to_be_bytes().to_vec(), vec![number as u8; 1 + (number as usize * 131) % bytes]);
            tx.put(keyspace, &key, &value).unwrap();
            model.insert((keyspace.name().to_owned(), key), value);
        }
        let gone = (number / 2).to_be_bytes().to_vec();
        if number % 5 == 4 && model.remove(&(keyspace.name().to_owned(), gone.clone())).is_some() {
            tx.delete(keyspace, &gone).unwrap();
        }
        assert_eq!(tx.commit().unwrap().0 as usize, models.len());
        models.push(model);
    }
    models
}

pub(crate) fn segments(disk: &dyn Disk) -> Vec<PathBuf> {
    let log = Path::new(STORE).join("log");
    let names = disk.list(&log).unwrap().into_iter().map(|entry| entry.name);
    names.filter(|name| name.ends_with(".seg")).map(|name| log.join(name)).collect()
}

fn first_of(segment: &Path) -> u64 {
    segment.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

/// All files of a folder with their bytes, its locks aside.
pub(crate) fn files(disk: &dyn Disk, dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in disk.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            found.extend(files(disk, &path));
        } else if entry.name != "LOCK" {
            let file = disk.open(&path, Open::Read, Caching::Buffered).unwrap();
            let mut bytes = vec![0; entry.len as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            found.push((path, bytes));
        }
    }
    found
}

/// A store with small values whose log lost all but its first segment; its content before, and the end of the log.
fn cut_back(disk: &Arc<dyn Disk>, bytes: usize) -> (Vec<Model>, u64) {
    let db = Db::open(STORE, options(disk)).unwrap();
    let models = fill(&db, 700, bytes);
    db.flush().unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    let segments = segments(&**disk);
    assert!(segments.len() > 1, "{segments:?}");
    for lost in &segments[1..] {
        disk.remove(lost).unwrap();
    }
    (models, first_of(&segments[1]) - 1)
}

#[test]
fn a_rebuild_refuses_to_lose_what_only_the_index_holds_and_changes_nothing() {
    let disk = mem_disk();
    let (models, end) = cut_back(&disk, 900);
    let last = models.len() as u64 - 1;
    let before = files(&*disk, Path::new(STORE));
    let error = Db::open(STORE, options(&disk)).unwrap_err();
    assert!(matches!(&error, Error::Forked { message, .. } if !message.contains("rebuild")), "{error}");
    let error = rebuild(STORE, options(&disk), &mut |_, _| {}).unwrap_err();
    let named = format!("GLSNs {} to {last} are only in the index", end + 1);
    assert!(matches!(&error, Error::Forked { message, .. } if message.contains(&named)), "{error}");
    assert!(files(&*disk, Path::new(STORE)) == before);
    // Also without its manifest the index is known to hold more.
    for manifest in manifests(&*disk) {
        disk.remove(&manifest).unwrap();
    }
    let error = rebuild(STORE, options(&disk), &mut |_, _| {}).unwrap_err();
    assert!(matches!(&error, Error::Forked { message, .. } if message.contains(&named)), "{error}");
    // Who gives them up says so; nothing is deleted.
    let cut = salvage(STORE, options(&disk), Glsn(end + 1)).unwrap();
    assert_eq!(cut.glsn, end);
}

#[test]
fn a_salvage_from_the_index_keeps_its_newest_state_behind_the_front_of_the_log() {
    let disk = mem_disk();
    let (models, end) = cut_back(&disk, 900);
    let last = models.len() as u64 - 1;
    let report = salvage_from_index(STORE, options(&disk)).unwrap();
    assert_eq!((report.front, report.known, report.glsn, report.lost_count), (Glsn(end), Glsn(last), Glsn(end + 1), 0));
    assert_eq!(report.moved.len(), 2);
    let db = Db::open(STORE, options(&disk).create(false)).unwrap();
    assert!(content(&db) == models[last as usize]);
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    // The past that the log's front holds is there too.
    for at in [end / 2, end] {
        let snapshot = db.snapshot_at(plimsoll::Moment::Glsn(Glsn(at))).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        let found = snapshot
            .range(&keyspace, ..)
            .unwrap()
            .map(Result::unwrap)
            .map(|(key, value)| (key.to_vec(), value.to_vec()));
        let model = models[at as usize].iter().filter(|((name, _), _)| name == "default");
        assert!(found.eq(model.map(|((_, key), value)| (key.clone(), value.clone()))), "at {at}");
    }
    let commit = db.log().commit(Glsn(end + 1)).unwrap().unwrap();
    assert!(String::from_utf8_lossy(commit.metadata().unwrap()).contains("salvaged_from_index"));
    db.close().unwrap();
    // What was there before is aside, whole.
    for name in ["index.cut", "log.cut"] {
        assert!(!files(&*disk, &Path::new(STORE).join(name)).is_empty());
    }
    let error = salvage_from_index(STORE, options(&disk)).unwrap_err();
    assert!(error.to_string().contains("nothing to salvage"), "{error}");
}

#[test]
fn values_that_only_the_lost_log_had_are_named_and_all_others_are_kept() {
    let disk = mem_disk();
    let (models, end) = cut_back(&disk, 3000);
    let report = salvage_from_index(STORE, options(&disk)).unwrap();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let found = content(&db);
    let lost = report.lost.to_vec();
    assert!(report.lost_count > 0 && report.written > 0, "{report:?}");
    let (front, newest) = (&models[end as usize], models.last().unwrap());
    for key in newest.keys().chain(front.keys()) {
        let expected = if lost.contains(key) { front.get(key) } else { newest.get(key) };
        assert!(found.get(key) == expected, "{key:?}");
    }
    assert!(lost.iter().all(|key| newest[key].len() > plimsoll::INLINE_BYTES));
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

#[test]
fn a_store_whose_log_is_gone_or_trimmed_is_salvaged_from_its_index() {
    for trimmed in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let models = fill(&db, 700, 900);
        db.compact().unwrap();
        if trimmed {
            assert!(db.log().trim(Glsn(300)).unwrap() > 1);
        }
        db.close().unwrap();
        let segments = segments(&*disk);
        for lost in &segments[trimmed as usize..] {
            disk.remove(lost).unwrap();
        }
        let error = Db::open(STORE, options(&disk)).unwrap_err();
        assert!(!error.to_string().contains("rebuild"), "{error}");
        assert!(rebuild(STORE, options(&disk), &mut |_, _| {}).is_err());
        let report = salvage_from_index(STORE, options(&disk)).unwrap();
        assert_eq!((report.front, report.lost_count), (Glsn::NONE, 0));
        let db = Db::open(STORE, options(&disk)).unwrap();
        assert!(content(&db) == *models.last().unwrap());
        assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    }
}

/// A store with a trimmed log whose index knows of more commits than it holds; its content after each, and the last one that the index holds.
fn trimmed(disk: &Arc<dyn Disk>) -> (Vec<Model>, Glsn) {
    let db = Db::open(STORE, options(disk)).unwrap();
    fill(&db, 700, 900);
    assert!(db.log().trim(Glsn(300)).unwrap() > 1);
    fill(&db, 60, 900);
    db.flush().unwrap();
    let held = db.newest();
    let models = fill(&db, 30, 900);
    db.close().unwrap();
    (models, held)
}

#[test]
fn a_trimmed_log_is_cut_behind_what_the_index_holds_and_the_store_opens() {
    let disk = mem_disk();
    let (models, held) = trimmed(&disk);
    let report = salvage(STORE, options(&disk), Glsn(held.0 + 11)).unwrap();
    assert_eq!(report.glsn.0, held.0 + 10);
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert_eq!(db.newest(), report.glsn);
    assert!(content(&db) == models[report.glsn.0 as usize]);
    let models = fill(&db, 40, 900);
    db.compact().unwrap();
    db.close().unwrap();
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert!(content(&db) == *models.last().unwrap());
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
}

/// A cut before what the index holds is refused, and changes nothing.
fn is_not_cut(disk: &Arc<dyn Disk>, held: Glsn, newest: &Model) {
    let before = files(&**disk, Path::new(STORE));
    let error = salvage(STORE, options(disk), held).unwrap_err();
    assert!(matches!(&error, Error::InvalidInput(_)) && error.to_string().contains("--from-index"), "{error}");
    assert!(files(&**disk, Path::new(STORE)) == before);
    assert!(content(&Db::open(STORE, options(disk)).unwrap()) == *newest);
}

#[test]
fn a_trimmed_log_is_not_cut_before_what_the_index_holds() {
    let disk = mem_disk();
    let (models, held) = trimmed(&disk);
    is_not_cut(&disk, held, models.last().unwrap());
}

#[test]
fn a_log_from_which_something_was_dropped_is_not_cut_before_what_the_index_holds() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    fill(&db, 40, 900);
    let keyspace = db.keyspace("default").unwrap();
    let lost = db.put(&keyspace, "dropped", "value").unwrap();
    fill(&db, 40, 900);
    db.flush().unwrap();
    db.close().unwrap();
    let segment = segments(&*disk).remove(0);
    let file = disk.open(&segment, Open::ReadWrite, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(7).position(|bytes| bytes == b"dropped").expect("the record has the key") as u64;
    file.write_at(b"D", at).unwrap();
    let report = salvage_drop(STORE, options(&disk), &[DropTarget::Glsn(lost)], false).unwrap();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let models = fill(&db, 60, 900);
    db.flush().unwrap();
    let held = db.newest();
    assert!(held > report.glsn);
    db.close().unwrap();
    is_not_cut(&disk, held, models.last().unwrap());
}

#[test]
fn an_index_that_cannot_be_rebuilt_stays_where_a_trimmed_log_is_cut_at_damage_before_what_it_holds() {
    let disk = mem_disk();
    let (models, held) = trimmed(&disk);
    // Of the segment in which the last commits are, all is gone but the first block.
    let segment = segments(&*disk).pop().unwrap();
    let len = disk.entry(&segment).unwrap().unwrap().len as usize;
    let bytes = vec![0; len - (16 << 10)];
    disk.open(&segment, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&bytes, 16 << 10).unwrap();
    let error = salvage(STORE, options(&disk), Glsn(held.0 + 11)).unwrap_err();
    assert!(matches!(&error, Error::InvalidInput(_)) && error.to_string().contains("--from-index"), "{error}");
    let report = salvage_from_index(STORE, options(&disk)).unwrap();
    assert_eq!(report.known, held);
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert!(content(&db) == models[held.0 as usize]);
}

#[test]
fn an_index_that_holds_nothing_takes_the_place_of_no_log() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for key in 0..7_u8 {
        db.put(&keyspace, [key], "value").unwrap();
    }
    // So few that closing does not flush them.
    db.close().unwrap();
    let segment = segments(&*disk).pop().unwrap();
    disk.open(&segment, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&[0; 16 << 10], 0).unwrap();
    let before = files(&*disk, Path::new(STORE));
    let error = salvage_from_index(STORE, options(&disk)).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { message, .. } if message.contains("restore a backup")), "{error}");
    assert!(files(&*disk, Path::new(STORE)) == before);
}

#[test]
fn a_salvage_from_the_index_that_is_cut_short_anywhere_can_be_run_again() {
    let lying = LyingDisk::new(3);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let (models, _) = cut_back(&disk, 900);
    disk.sync_dir(&Path::new(STORE).join("log")).unwrap();
    for sync in 0.. {
        let lying = lying.snapshot();
        lying.reseed(sync);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        lying.cut_power_at_sync(lying.sync_count() + sync);
        let first = salvage_from_index(STORE, options(&disk));
        let was_cut = lying.power_is_cut();
        lying.restore_power();
        if was_cut {
            // It opens as what it is to be, or not at all.
            match Db::open(STORE, options(&disk).read_only(true)) {
                Ok(db) => assert!(content(&db) == *models.last().unwrap(), "sync {sync}"),
                Err(error) => {
                    assert!(matches!(error, Error::Forked { .. } | Error::NotAStore { .. }), "sync {sync}: {error}");
                    salvage_from_index(STORE, options(&disk)).unwrap_or_else(|error| panic!("sync {sync}: {error}"));
                }
            }
        } else {
            first.unwrap();
        }
        let db = Db::open(STORE, options(&disk).create(false)).unwrap();
        assert!(content(&db) == *models.last().unwrap(), "sync {sync}");
        if !was_cut {
            assert!(sync > 10, "{sync}");
            return;
        }
    }
}

#[test]
fn a_rebuild_that_fails_or_is_cut_short_leaves_a_store_that_opens() {
    let lying = LyingDisk::new(5);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let db = Db::open(STORE, options(&disk)).unwrap();
    let models = fill(&db, 300, 900);
    db.compact().unwrap();
    db.close().unwrap();
    for sync in 0.. {
        let lying = lying.snapshot();
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        lying.cut_power_at_sync(lying.sync_count() + sync);
        let rebuilt = rebuild(STORE, options(&disk), &mut |_, _| {});
        let was_cut = lying.power_is_cut();
        assert!(was_cut || rebuilt.is_ok(), "{rebuilt:?}");
        lying.restore_power();
        let db = Db::open(STORE, options(&disk).create(false)).unwrap();
        assert!(content(&db) == *models.last().unwrap(), "sync {sync}");
        drop(db);
        assert!(disk.entry(&Path::new(STORE).join("index.old")).unwrap().is_none());
        if !was_cut {
            break;
        }
    }
    // A record in the middle is damaged: the index does not need it, a rebuild does.
    let segment = segments(&*disk)[0].clone();
    disk.open(&segment, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&[0x55; 64], 40_000).unwrap();
    let before = files(&*disk, &Path::new(STORE).join("index"));
    let error = rebuild(STORE, options(&disk), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert!(files(&*disk, &Path::new(STORE).join("index")) == before);
    assert!(content(&Db::open(STORE, options(&disk)).unwrap()) == *models.last().unwrap());
}

/// As a rebuild leaves it that ended before it had a new index.
fn leave_old_index(disk: &dyn Disk) {
    let store = Path::new(STORE);
    disk.rename(&store.join("index"), &store.join("index.old")).unwrap();
    disk.sync_dir(store).unwrap();
}

#[test]
fn the_old_index_of_a_rebuild_does_not_come_back_once_the_store_was_opened() {
    for seed in 0..20 {
        let lying = LyingDisk::new(seed);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let db = Db::open(STORE, options(&disk)).unwrap();
        fill(&db, 40, 900);
        db.flush().unwrap();
        db.close().unwrap();
        leave_old_index(&*disk);
        let db = Db::open(STORE, options(&disk)).unwrap();
        lying.cut_power();
        drop(db);
        lying.restore_power();
        assert!(disk.entry(&Path::new(STORE).join("index.old")).unwrap().is_none(), "{seed}");
    }
}

#[test]
fn a_rebuild_of_a_trimmed_log_puts_no_old_index_in_the_place_of_the_only_one() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    fill(&db, 40, 900);
    db.flush().unwrap();
    db.close().unwrap();
    leave_old_index(&*disk);
    let store = Path::new(STORE);
    let old = files(&*disk, &store.join("index.old"));
    let (models, _) = trimmed(&disk);
    disk.create_dir(&store.join("index.old")).unwrap();
    for (path, bytes) in old {
        disk.open(&path, Open::CreateNew, Caching::Buffered).unwrap().write_at(&bytes, 0).unwrap();
    }
    let refused = rebuild(STORE, options(&disk), &mut |_, _| {});
    assert!(matches!(refused, Err(Error::InvalidInput(_))), "{refused:?}");
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert!(content(&db) == *models.last().unwrap());
}

#[test]
fn a_salvage_amid_a_rebuild_is_refused_until_the_old_index_is_back() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let models = fill(&db, 300, 900);
    db.flush().unwrap();
    db.close().unwrap();
    // The index does not need what is damaged, a rebuild does.
    let segment = segments(&*disk)[0].clone();
    disk.open(&segment, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&[0x55; 64], 40_000).unwrap();
    leave_old_index(&*disk);
    let damaged = Db::open(STORE, options(&disk));
    assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");
    let store = Path::new(STORE);
    let before = [files(&*disk, &store.join("index.old")), files(&*disk, &store.join("log"))];
    for dry_run in [true, false] {
        let dropped = salvage_drop(STORE, options(&disk), &[DropTarget::Damaged], dry_run);
        assert!(matches!(dropped, Err(Error::InvalidInput(_))), "{dropped:?}");
    }
    let cut = salvage(STORE, options(&disk), Glsn(20));
    assert!(matches!(cut, Err(Error::InvalidInput(_))), "{cut:?}");
    assert!([files(&*disk, &store.join("index.old")), files(&*disk, &store.join("log"))] == before);
    let rebuilt = rebuild(STORE, options(&disk), &mut |_, _| {});
    assert!(matches!(rebuilt, Err(Error::Corrupt { .. })), "{rebuilt:?}");
    assert!(content(&Db::open(STORE, options(&disk)).unwrap()) == *models.last().unwrap());
}

#[test]
fn a_log_that_is_lost_amid_a_rebuild_is_salvaged_from_the_old_index() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let models = fill(&db, 300, 900);
    db.compact().unwrap();
    db.close().unwrap();
    leave_old_index(&*disk);
    segments(&*disk).iter().for_each(|segment| disk.remove(segment).unwrap());
    salvage_from_index(STORE, options(&disk)).unwrap();
    assert!(content(&Db::open(STORE, options(&disk)).unwrap()) == *models.last().unwrap());
}

#[test]
fn a_rebuild_gives_no_file_a_name_that_one_of_the_old_index_had() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    fill(&db, 300, 900);
    db.compact().unwrap();
    db.close().unwrap();
    let runs = || -> Vec<String> {
        let names = disk.names(&Path::new(STORE).join("index")).unwrap();
        names.into_iter().filter(|name| name.ends_with(".run")).collect()
    };
    let old = runs();
    let manifest = manifests(&*disk).pop();
    rebuild(STORE, options(&disk), &mut |_, _| {}).unwrap();
    // Manifests are numbered on, so that a reader that knows one of the old index finds the new one.
    assert!(manifests(&*disk)[0] > manifest.unwrap());
    let new = runs();
    assert!(!old.is_empty() && !new.is_empty());
    // A block of an old file in a new one of the same name would have a right checksum.
    assert!(new.iter().all(|name| old.iter().all(|old| old < name)), "{old:?} {new:?}");
}

#[test]
fn a_store_whose_manifest_is_of_a_newer_format_is_left_alone() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    fill(&db, 20, 900);
    db.flush().unwrap();
    db.close().unwrap();
    let manifest = manifests(&*disk).pop().unwrap();
    let (_, mut bytes) =
        files(&*disk, &Path::new(STORE).join("index")).into_iter().find(|(path, _)| *path == manifest).unwrap();
    bytes[8..12].copy_from_slice(&99u32.to_le_bytes());
    let sum = checksum(0, &bytes[..48]);
    bytes[48..56].copy_from_slice(&sum.to_le_bytes());
    disk.open(&manifest, Open::ReadWrite, Caching::Buffered).unwrap().write_at(&bytes, 0).unwrap();
    let before = files(&*disk, Path::new(STORE));
    let errors = [
        Db::open(STORE, options(&disk)).map(drop).unwrap_err(),
        rebuild(STORE, options(&disk), &mut |_, _| {}).map(drop).unwrap_err(),
        salvage(STORE, options(&disk), Glsn(5)).map(drop).unwrap_err(),
        salvage_from_index(STORE, options(&disk)).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, Error::Format { message, .. } if message.contains("newer")), "{error}");
    }
    assert!(files(&*disk, Path::new(STORE)) == before);
}

#[test]
fn an_index_that_comes_after_one_that_was_removed_by_hand_uses_none_of_its_files_names() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let mut models = fill(&db, 300, 900);
    db.compact().unwrap();
    db.close().unwrap();
    let index = Path::new(STORE).join("index");
    let runs = |disk: &dyn Disk| {
        let names = disk.names(&index).unwrap().into_iter();
        names.filter(|name| name.ends_with(".run")).collect::<std::collections::BTreeSet<_>>()
    };
    let before = runs(&*disk);
    for name in disk.names(&index).unwrap() {
        disk.remove(&index.join(name)).unwrap();
    }
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert!(content(&db) == models.pop().unwrap());
    db.compact().unwrap();
    db.close().unwrap();
    let after = runs(&*disk);
    // A page that the first index left where one of the second was to be written has the same checksum if the names are the same.
    assert!(!before.is_empty() && !after.is_empty() && before.is_disjoint(&after), "{before:?} {after:?}");
}

#[test]
fn a_file_with_a_name_that_no_run_gets_is_let_alone() {
    let disk = mem_disk();
    drop(Db::open(STORE, options(&disk)).unwrap());
    let stray = Path::new(STORE).join("index").join(format!("{:020}.run", u64::MAX));
    disk.open(&stray, Open::CreateNew, Caching::Buffered).unwrap();
    let mut models = Vec::new();
    for round in 0..3 {
        let db = Db::open(STORE, options(&disk)).unwrap();
        models = fill(&db, 100, 900 + round);
        db.compact().unwrap();
        db.close().unwrap();
    }
    let db = Db::open(STORE, options(&disk)).unwrap();
    assert!(content(&db) == models.pop().unwrap());
    assert!(disk.open(&stray, Open::Read, Caching::Buffered).is_ok());
}

#[test]
fn an_older_manifest_does_not_take_the_place_of_the_newest() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    for round in 0..4 {
        fill(&db, 200, 900 + round);
        db.compact().unwrap();
    }
    let expected = content(&db);
    db.close().unwrap();
    let newest = manifests(&*disk).pop().unwrap();
    assert_eq!(manifests(&*disk).len(), 3, "the last three are kept");
    let file = disk.open(&newest, Open::ReadWrite, Caching::Buffered).unwrap();
    file.write_at(&[0xff; 4], 100).unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap();
    for read_only in [false, true] {
        let error = Db::open(STORE, options(&disk).read_only(read_only)).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(name), "{error}");
    }
    // Also if it is gone: the one before it names runs that were merged away, or is complete with the log.
    disk.remove(&newest).unwrap();
    match Db::open(STORE, options(&disk)) {
        Ok(db) => assert!(content(&db) == expected),
        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
    }
    rebuild(STORE, options(&disk), &mut |_, _| {}).unwrap();
    assert!(content(&Db::open(STORE, options(&disk)).unwrap()) == expected);
}
