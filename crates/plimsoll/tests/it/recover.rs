//! A recovery reads a damaged store and writes a sound one: it contains everything readable and
//! nothing wrong, every loss is reported, and the source is unchanged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, Error, Glsn, IndexSource, Moment, Options, RecoverReport, Retention, verify};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

pub(crate) const STORE: &str = "/store";

/// The destination of recoveries.
pub(crate) const DEST: &str = "/recovered";

pub(crate) type Model = BTreeMap<(String, Vec<u8>), Vec<u8>>;

pub(crate) fn options(disk: &Arc<dyn Disk>) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    Options::new()
        .memory_bytes(16 << 20)
        .segment_bytes(256 << 10)
        .background(false)
        .world(Arc::clone(disk), clock)
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

/// The contents of the store, by keyspace and key.
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

/// Makes commits with values of up to `bytes`, with deletions and two keyspaces; returns the
/// store's content after each.
pub(crate) fn fill(db: &Db, commits: u64, bytes: usize) -> Vec<Model> {
    let keyspaces = [db.keyspace("default").unwrap(), db.keyspace("more").unwrap()];
    let mut models = vec![content(db); db.newest().0 as usize + 1];
    for number in 0..commits {
        let mut model = models.last().unwrap().clone();
        let mut tx = db.begin();
        let keyspace = &keyspaces[(number % 3 == 0) as usize];
        for key in [number % 40, number] {
            let (key, value) = (
                key.to_be_bytes().to_vec(),
                vec![number as u8; 1 + (number as usize * 131) % bytes],
            );
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

/// All files of a folder with their bytes, except its locks.
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

/// A store with small values whose log lost all but its first segment; returns its earlier content,
/// and the end of the log.
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

fn remove_all(disk: &dyn Disk, dir: &Path) {
    if disk.entry(dir).unwrap().is_none() {
        return;
    }
    for entry in disk.list(dir).unwrap() {
        let path = dir.join(&entry.name);
        if entry.is_dir { remove_all(disk, &path) } else { disk.remove(&path).unwrap() }
    }
    disk.remove_dir(dir).unwrap();
}

pub(crate) fn run(disk: &Arc<dyn Disk>) -> plimsoll::Result<RecoverReport> {
    Db::recover(STORE, DEST, options(disk), &mut |_, _| {})
}

/// Recovers the store into [`DEST`], which is removed first; checks that the source is unchanged
/// and the new store is sound.
pub(crate) fn recover(disk: &Arc<dyn Disk>) -> RecoverReport {
    let before = files(&**disk, Path::new(STORE));
    remove_all(&**disk, Path::new(DEST));
    let foreseen =
        Db::recover_dry_run(STORE, options(disk)).unwrap_or_else(|error| panic!("{error}"));
    let report = run(disk).unwrap_or_else(|error| panic!("{error}"));
    assert!(files(&**disk, Path::new(STORE)) == before, "the source has changed");
    assert_eq!((foreseen.index, &foreseen.lost_entries), (report.index, &report.lost_entries));
    assert_eq!(
        (&foreseen.lost_commits, &foreseen.lost_ranges),
        (&report.lost_commits, &report.lost_ranges)
    );
    let checked = verify(DEST, options(disk), &mut |_| {}).unwrap();
    assert!(checked.problems.is_empty() && checked.opens, "{:?}", checked.problems);
    report
}

/// The content of the recovered store. Checks that rows can be written to it, and that its runs can
/// be merged.
pub(crate) fn recovered(disk: &Arc<dyn Disk>) -> Model {
    let db = Db::open(DEST, options(disk).create(false)).unwrap();
    let found = content(&db);
    db.put(&db.keyspace("default").unwrap(), "new", "value").unwrap();
    db.compact().unwrap();
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    db.close().unwrap();
    found
}

/// Checks that nothing is lost, and that the index came from `source`.
pub(crate) fn is_whole_from(report: &RecoverReport, source: IndexSource) {
    assert!(report.is_whole() && report.index == source, "{report:?}");
}

pub(crate) fn spoil(disk: &dyn Disk, path: &Path, at: u64) {
    let file = disk.open(path, Open::ReadWrite, Caching::Buffered).unwrap();
    let mut bytes = [0; 3];
    file.read_exact_at(&mut bytes, at).unwrap();
    file.write_at(&bytes.map(|byte| byte ^ 0x5a), at).unwrap();
    file.sync().unwrap();
}

pub(crate) fn runs(disk: &dyn Disk) -> Vec<(PathBuf, Vec<u8>)> {
    let mut runs = files(disk, &Path::new(STORE).join("index"));
    runs.retain(|(path, _)| path.extension().is_some_and(|ending| ending == "run"));
    runs
}

/// The contents of a keyspace at a moment.
fn content_at(db: &Db, keyspace: &str, at: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let snapshot = db.snapshot_at(Moment::Glsn(Glsn(at))).unwrap();
    let keyspace = db.keyspace(keyspace).unwrap();
    let pairs = snapshot.range(&keyspace, ..).unwrap().map(Result::unwrap);
    pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// The entries of a log: GLSN, time, stream and bytes.
fn entries(db: &Db) -> Vec<(u64, std::time::SystemTime, u32, Vec<u8>)> {
    let mut scan = db.log().scan(.., None).unwrap();
    let mut all = Vec::new();
    while let Some(entry) = scan.next() {
        let entry = entry.unwrap();
        all.push((entry.glsn.0, entry.time, entry.stream, entry.payload.to_vec()));
    }
    all
}

#[test]
fn a_store_without_damage_is_recovered_into_an_equal_one() {
    for is_trimmed in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let models = fill(&db, 400, 2500);
        let few = db.create_keyspace("few", Retention::Glsns(7)).unwrap();
        db.put(&few, "large", vec![3; 400 << 10]).unwrap();
        db.log().append(7, &[b"of the user", b"and one more"]).unwrap();
        db.log().cursor("reader", Glsn(350)).unwrap();
        db.compact().unwrap();
        let first = if is_trimmed { db.log().trim(Glsn(200)).unwrap() } else { Glsn(1) };
        db.put(&few, "last", "in the log alone").unwrap();
        assert_eq!(first > 1, is_trimmed);
        db.close().unwrap();
        let report = recover(&disk);
        is_whole_from(&report, IndexSource::Index);
        assert!(
            report.bytes_linked > report.bytes_copied && report.damage.is_empty(),
            "{report:?}"
        );
        let (old, new) =
            (Db::open(STORE, options(&disk)).unwrap(), Db::open(DEST, options(&disk)).unwrap());
        assert_eq!(
            (old.id(), old.newest(), old.keyspaces()),
            (new.id(), new.newest(), new.keyspaces())
        );
        assert!(content(&old) == content(&new) && entries(&old) == entries(&new));
        assert_eq!(
            (old.log().bounds(), old.log().cursors()),
            (new.log().bounds(), new.log().cursors())
        );
        for at in (first.0..models.len() as u64).step_by(13) {
            assert!(content_at(&old, "default", at) == content_at(&new, "default", at), "at {at}");
        }
        // Writes to one of them do not change the other.
        let before = content(&old);
        fill(&new, 100, 900);
        new.compact().unwrap();
        new.close().unwrap();
        assert!(content(&old) == before);
        let models = fill(&old, 100, 900);
        old.compact().unwrap();
        old.close().unwrap();
        assert!(content(&Db::open(STORE, options(&disk)).unwrap()) == *models.last().unwrap());
        assert_eq!(
            verify(DEST, options(&disk), &mut |_| {}).unwrap().problems,
            Vec::<String>::new()
        );
    }
}

#[test]
fn an_empty_store_and_one_that_was_killed_are_recovered_as_they_would_open() {
    let disk = mem_disk();
    drop(Db::open(STORE, options(&disk)).unwrap());
    assert!(recover(&disk).is_whole());
    assert!(recovered(&disk).is_empty());
    let lying = LyingDisk::new(11);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let db = Db::open(STORE, options(&disk)).unwrap();
    let models = fill(&db, 60, 900);
    lying.cut_power();
    drop(db);
    lying.restore_power();
    assert!(recover(&disk).is_whole());
    assert!(recovered(&disk) == *models.last().unwrap());
}

#[test]
fn an_index_that_is_damaged_or_missing_over_a_whole_log_is_replayed() {
    for how in 0..5 {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let models = fill(&db, 300, 2500);
        db.compact().unwrap();
        db.close().unwrap();
        let index = Path::new(STORE).join("index");
        match how {
            0 => remove_all(&*disk, &index),
            1 => manifests(&*disk).iter().for_each(|manifest| disk.remove(manifest).unwrap()),
            2 => manifests(&*disk).iter().for_each(|manifest| spoil(&*disk, manifest, 70)),
            3 => runs(&*disk).iter().for_each(|(run, _)| spoil(&*disk, run, 20_000)),
            _ => runs(&*disk).iter().for_each(|(run, _)| disk.remove(run).unwrap()),
        }
        is_whole_from(&recover(&disk), IndexSource::Log);
        let db = Db::open(DEST, options(&disk)).unwrap();
        for at in [20, 150, 299] {
            let model = models[at as usize].iter().filter(|((name, _), _)| name == "default");
            let model: Vec<_> =
                model.map(|((_, key), value)| (key.clone(), value.clone())).collect();
            assert!(content_at(&db, "default", at) == model, "{how}: at {at}");
        }
        db.close().unwrap();
        assert!(recovered(&disk) == *models.last().unwrap(), "{how}");
    }
}

#[test]
fn rows_of_the_index_keep_their_glsns_if_the_end_of_the_log_is_lost() {
    let disk = mem_disk();
    let (models, end) = cut_back(&disk, 900);
    let last = models.len() as u64 - 1;
    let error = Db::open(STORE, options(&disk)).unwrap_err();
    let advice = "plimsoll recover /store /store.recovered";
    assert!(matches!(&error, Error::Forked { message, .. } if message.contains(advice)), "{error}");
    let report = recover(&disk);
    assert_eq!(
        (report.glsn, report.index, report.value_count),
        (Glsn(last), IndexSource::Index, 0)
    );
    assert_eq!(
        (&report.lost_entries[..], report.lost_commits.len()),
        (&[Glsn(end + 1)..=Glsn(last)][..], 0)
    );
    let db = Db::open(DEST, options(&disk).create(false)).unwrap();
    for at in [end / 2, end, end + 10, last] {
        let model = models[at as usize].iter().filter(|((name, _), _)| name == "default");
        let model: Vec<_> = model.map(|((_, key), value)| (key.clone(), value.clone())).collect();
        assert!(content_at(&db, "default", at) == model, "at {at}");
    }
    assert!(matches!(db.log().read(Glsn(last)), Err(Error::Dropped { .. })));
    db.close().unwrap();
    assert!(recovered(&disk) == models[last as usize]);
}

#[test]
fn values_only_in_the_lost_log_are_reported_and_all_others_kept() {
    let disk = mem_disk();
    let (models, end) = cut_back(&disk, 3000);
    let report = recover(&disk);
    assert!(report.deleted > 0 && report.value_count >= report.deleted, "{report:?}");
    let is_lost = |(name, key): &(String, Vec<u8>), glsn: Option<u64>| {
        report.values.iter().any(|it| {
            it.keyspace == *name && it.key == *key && glsn.is_none_or(|glsn| it.glsn == glsn)
        })
    };
    assert!(
        report
            .values
            .iter()
            .all(|value| value.glsn > end && value.bytes > plimsoll::INLINE_BYTES as u64)
    );
    let (newest, found) = (models.last().unwrap(), recovered(&disk));
    for (key, value) in newest {
        let is_here = found.get(key);
        assert!(is_here == Some(value) || (is_here.is_none() && is_lost(key, None)), "{key:?}");
        assert!(is_here.is_some() || value.len() > plimsoll::INLINE_BYTES);
    }
    assert!(found.keys().all(|key| newest.contains_key(key)));
    assert_eq!(newest.len() - found.len(), report.deleted as usize);
    // At its old moment, reading such a value returns that it is lost.
    let lost = report.values.iter().find(|value| value.keyspace == "default").unwrap();
    let db = Db::open(DEST, options(&disk)).unwrap();
    let then = db.snapshot_at(Moment::Glsn(lost.glsn)).unwrap();
    assert!(matches!(
        then.get(&db.keyspace("default").unwrap(), &lost.key),
        Err(Error::Dropped { .. })
    ));
}

#[test]
fn a_store_whose_log_is_gone_or_trimmed_is_recovered_from_its_index() {
    for trimmed in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let models = fill(&db, 700, 900);
        db.compact().unwrap();
        if trimmed {
            assert!(db.log().trim(Glsn(300)).unwrap() > 1);
        }
        db.close().unwrap();
        for lost in &segments(&*disk)[trimmed as usize..] {
            disk.remove(lost).unwrap();
        }
        let last = models.len() as u64 - 1;
        let report = recover(&disk);
        assert_eq!(
            (report.glsn, report.value_count, report.index),
            (Glsn(last), 0, IndexSource::Index),
            "{report:?}"
        );
        assert!(recovered(&disk) == *models.last().unwrap());
    }
}

#[test]
fn commits_in_neither_the_log_nor_the_index_are_reported() {
    for log_is_gone in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        let models = fill(&db, 100, 500);
        db.flush().unwrap();
        let known = db.newest();
        fill(&db, 20, 500);
        let newest = db.newest();
        db.close().unwrap();
        if log_is_gone {
            segments(&*disk).iter().for_each(|segment| disk.remove(segment).unwrap());
        } else {
            // The second block of the only segment; everything after it is intact.
            let file = disk.open(&segments(&*disk)[0], Open::ReadWrite, Caching::Buffered).unwrap();
            file.write_at(&[0; 16 << 10], 16 << 10).unwrap();
        }
        let report = recover(&disk);
        assert_eq!(report.glsn, newest, "gone: {log_is_gone}");
        match log_is_gone {
            true => {
                assert_eq!(report.lost_commits, [known.next()..=newest]);
                assert!(recovered(&disk) == *models.last().unwrap());
            }
            // The index has the commits of that block; those after it are intact.
            false => assert!(
                report.lost_commits.is_empty() && !report.lost_entries.is_empty(),
                "{report:?}"
            ),
        }
    }
}

#[test]
fn an_unreadable_store_is_refused_and_no_destination_is_created() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for key in 0..7_u8 {
        db.put(&keyspace, [key], "value").unwrap();
    }
    // So few rows that closing does not flush them.
    db.close().unwrap();
    let segment = segments(&*disk).pop().unwrap();
    disk.open(&segment, Open::ReadWrite, Caching::Buffered)
        .unwrap()
        .write_at(&[0; 16 << 10], 0)
        .unwrap();
    let before = files(&*disk, Path::new("/"));
    let error = run(&disk).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { message, .. } if message.contains("restore a backup")),
        "{error}"
    );
    assert!(files(&*disk, Path::new("/")) == before);
}

#[test]
fn a_recovery_interrupted_anywhere_leaves_no_store_and_can_be_repeated() {
    for kind in 0..3 {
        let lying = LyingDisk::new(3);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let expected = match kind {
            0 => cut_back(&disk, 900).0.pop().unwrap(),
            _ => {
                let db = Db::open(STORE, options(&disk)).unwrap();
                let models = fill(&db, 300, 2500);
                db.compact().unwrap();
                if kind == 2 {
                    assert!(db.log().trim(Glsn(200)).unwrap() > 1);
                }
                db.close().unwrap();
                manifests(&*disk).iter().for_each(|manifest| disk.remove(manifest).unwrap());
                models.last().unwrap().clone()
            }
        };
        for folder in ["log", "index"] {
            disk.sync_dir(&Path::new(STORE).join(folder)).unwrap();
        }
        for sync in 0.. {
            let lying = lying.snapshot();
            lying.reseed(sync);
            let disk: Arc<dyn Disk> = Arc::new(lying.clone());
            lying.cut_power_at_sync(lying.sync_count() + sync);
            let first = run(&disk);
            let was_cut = lying.power_is_cut();
            lying.restore_power();
            let told = format!("kind {kind}, sync {sync}");
            if was_cut {
                // The destination is complete, or does not exist.
                match disk.entry(Path::new(DEST)).unwrap() {
                    Some(_) => {
                        assert!(
                            verify(DEST, options(&disk), &mut |_| {}).unwrap().problems.is_empty(),
                            "{told}"
                        )
                    }
                    None => {
                        let report = recover(&disk);
                        assert!(report.lost_commits.is_empty(), "{told}: {report:?}");
                    }
                }
            } else {
                first.unwrap_or_else(|error| panic!("{told}: {error}"));
            }
            assert_eq!(disk.names(Path::new("/")).unwrap().len(), 2, "{told}");
            let found = recovered(&disk);
            let lost: Vec<_> = expected
                .iter()
                .filter(|(key, value)| found.get(*key) != Some(*value))
                .map(|(key, _)| key)
                .collect();
            assert!(lost.is_empty() && found.len() == expected.len(), "{told}: {lost:?}");
            if !was_cut {
                assert!(sync > 5, "{told}");
                break;
            }
        }
    }
}

#[test]
fn a_destination_in_use_and_a_store_in_use_are_refused() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    fill(&db, 20, 900);
    assert!(matches!(run(&disk), Err(Error::Locked { .. })));
    assert!(matches!(Db::recover_dry_run(STORE, options(&disk)), Err(Error::Locked { .. })));
    db.close().unwrap();
    for dest in [STORE, "/store/inside", "/store/log/inside"] {
        let refused = Db::recover(STORE, dest, options(&disk), &mut |_, _| {});
        assert!(matches!(refused, Err(Error::InvalidInput(_))), "{dest}: {refused:?}");
    }
    disk.create_dir(Path::new(DEST)).unwrap();
    let file =
        disk.open(&Path::new(DEST).join("mine"), Open::CreateNew, Caching::Buffered).unwrap();
    file.write_at(b"mine", 0).unwrap();
    assert!(matches!(run(&disk), Err(Error::InvalidInput(_))));
    assert_eq!(files(&*disk, Path::new(DEST)).len(), 1);
    // An empty folder is accepted as well.
    disk.remove(&Path::new(DEST).join("mine")).unwrap();
    run(&disk).unwrap();
    let other = Db::recover("/nothing", "/x", options(&disk), &mut |_, _| {});
    assert!(matches!(other, Err(Error::NotAStore { .. })), "{other:?}");
    disk.create_dir(Path::new("/other")).unwrap();
    disk.create_dir(Path::new("/other/index")).unwrap();
    let other = Db::recover("/other", "/x", options(&disk), &mut |_, _| {});
    assert!(matches!(other, Err(Error::NotAStore { .. })), "{other:?}");
    assert_eq!(disk.names(Path::new("/other")).unwrap(), ["index"]);
}

#[test]
fn a_log_wins_over_the_index_of_its_fork() {
    for is_trimmed in [false, true] {
        let disk = mem_disk();
        let db = Db::open(STORE, options(&disk)).unwrap();
        fill(&db, 700, 900);
        db.compact().unwrap();
        if is_trimmed {
            assert!(db.log().trim(Glsn(400)).unwrap() > 1);
        }
        db.backup_copy("/backup").unwrap();
        fill(&db, 60, 1000);
        db.compact().unwrap();
        db.close().unwrap();
        // The backup continued on its own; then its log was put into the store.
        let db = Db::open("/backup", options(&disk)).unwrap();
        let models = fill(&db, 90, 777);
        db.close().unwrap();
        remove_all(&*disk, &Path::new(STORE).join("log"));
        disk.rename(Path::new("/backup/log"), &Path::new(STORE).join("log")).unwrap();
        assert!(matches!(Db::open(STORE, options(&disk)), Err(Error::Forked { .. })));
        let report = recover(&disk);
        let newest = models.last().unwrap();
        let found = recovered(&disk);
        for (key, value) in &found {
            assert!(newest.get(key) == Some(value), "trimmed: {is_trimmed}: {key:?}");
        }
        assert!(is_trimmed || (report.is_whole() && found.len() == newest.len()), "{report:?}");
    }
}

#[test]
fn a_lost_record_of_an_earlier_recovery_stays_and_more_damage_is_recovered() {
    let disk = mem_disk();
    let db = Db::open(STORE, options(&disk)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    fill(&db, 40, 900);
    let lost = db.put(&keyspace, "lost", "value").unwrap();
    let models = fill(&db, 40, 900);
    db.close().unwrap();
    let segment = segments(&*disk).remove(0);
    let at = |key: &[u8]| {
        let (_, bytes) = files(&*disk, &Path::new(STORE).join("log"))
            .into_iter()
            .find(|(path, _)| *path == segment)
            .unwrap();
        bytes.windows(key.len()).position(|bytes| bytes == key).unwrap() as u64
    };
    remove_all(&*disk, &Path::new(STORE).join("index"));
    spoil(&*disk, &segment, at(b"lost"));
    let report = recover(&disk);
    assert_eq!(
        (&report.lost_commits[..], report.index),
        (&[lost..=lost][..], IndexSource::LogAndRuns)
    );
    let mut expected = models.last().unwrap().clone();
    expected.remove(&("default".to_owned(), b"lost".to_vec()));
    // The recovered store is the source of another recovery.
    remove_all(&*disk, Path::new(STORE));
    disk.rename(Path::new(DEST), Path::new(STORE)).unwrap();
    assert!(recover(&disk).is_whole());
    assert!(recovered(&disk) == expected);
}
