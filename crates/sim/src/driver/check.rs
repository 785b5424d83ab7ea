//! Compares the whole store with the model: at several moments, forwards and backwards, key by key,
//! with its histories and its log.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll::{Db, DumpOptions, Error, Glsn, Keyspace, Moment, Options, TagInfo};
use plimsoll_disk::clock::Clock;
use plimsoll_disk::mem::MemDisk;

use crate::driver::Driver;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::{Judge, Place, View, WalkOptions};
use crate::model::{Model, NAMES, space_name};
use crate::op::{Edge, Get, Span};
use crate::world::World;

/// Number of past moments compared.
const MOMENTS: u64 = 4;

/// Number of keys of a keyspace compared one by one.
const KEYS: usize = 64;

impl Driver {
    /// Compares the whole store with the model.
    pub(crate) fn check(&mut self) -> Outcome {
        let excuse = |error: &Error| self.excused(error);
        if !self.in_doubt {
            self.judge(&excuse).keyspaces()?;
        }
        compare(self.db(), &self.model, &excuse)
    }

    /// Makes all submitted commits durable and records that in a manifest; returns the last GLSN.
    pub(crate) fn note_all(&mut self) -> Outcome<u64> {
        let flushed = self.db().flush();
        self.expect("flush", flushed)?;
        self.model.acknowledge(self.model.newest());
        self.raise_floors();
        Ok(self.model.newest())
    }

    /// Makes all submitted commits durable; returns the last GLSN.
    pub(crate) fn sync_all(&mut self) -> Outcome<u64> {
        let synced = self.db().sync();
        self.expect("sync", synced)?;
        self.model.acknowledge(self.model.newest());
        Ok(self.model.newest())
    }

    /// Opens the store a second time, read-only alongside the writer, and compares its reads.
    pub(super) fn read_beside(&mut self) -> Outcome<String> {
        let excuses = self.excuses;
        if self.in_doubt || excuses.reads || excuses.flips || excuses.sync || excuses.full {
            // The reader cannot see commits that are only in memory or lost.
            return Ok(String::new());
        }
        let opened = Db::open(self.world.store_path(), self.world.options().read_only(true));
        let Some(db) = self.expect("opening the store a second time", opened)? else {
            return Ok(String::new());
        };
        let (newest, mut model) = (db.newest(), self.model.clone());
        ensure(model.may_end_at(newest.0), || {
            format!("a read-only process begins at {newest}, but {} is acknowledged", model.acked())
        })?;
        model.cut_behind(newest.0);
        compare(&db, &model, &|error: &Error| self.excused(error))?;
        Ok(String::new())
    }

    /// Reads every byte of the store.
    pub(crate) fn verify(&mut self) -> Outcome {
        let Some(report) = self.expect("verify", self.db().verify(&mut |_| {}))? else {
            return Ok(());
        };
        let faulty = self.excuses.flips || self.excuses.reads || self.world.disk.power_is_cut();
        ensure(report.problems.is_empty() || faulty, || format!("verify: {:?}", report.problems))?;
        // Leftovers of crashes and failed writes are not damage. Without crashes, there are none.
        ensure(report.notes.is_empty() || self.was_hurt || faulty, || {
            format!("notes of verify: {:?}", report.notes)
        })
    }

    /// Makes a backup, opens it as a store, and compares it.
    pub(super) fn back_up(&mut self) -> Outcome<String> {
        self.backups += 1;
        let dest = PathBuf::from(format!("/backup{}", self.backups));
        let backed_up = self.db().backup(&dest);
        if let Err(Error::Poisoned { .. }) = &backed_up {
            self.in_doubt = true;
        }
        let Some(report) = self.expect("backup", backed_up)? else {
            self.discard_backup(&dest);
            return Ok("failed".to_owned());
        };
        let mut model = self.model.clone();
        ensure(model.may_end_at(report.glsn.0) && report.glsn <= model.newest(), || {
            format!(
                "backed up to {}; acknowledged {}, submitted {}",
                report.glsn,
                model.acked(),
                model.newest()
            )
        })?;
        model.cut_behind(report.glsn.0);
        let well =
            !(self.excuses.reads || self.excuses.flips || self.excuses.full || self.excuses.sync);
        if well {
            self.compare_backup(&dest, &model)?;
        }
        self.discard_backup(&dest);
        Ok(format!("glsn {}", report.glsn))
    }

    /// Backs the store up and cuts the power: a finished backup is complete.
    pub(super) fn back_up_and_cut(&mut self) -> Outcome<String> {
        self.backups += 1;
        let dest = PathBuf::from(format!("/backup{}", self.backups));
        let backed_up = self.db().backup(&dest);
        if let Err(Error::Poisoned { .. }) = &backed_up {
            self.in_doubt = true;
        }
        let report = self.expect("backup", backed_up)?;
        let mut model = self.model.clone();
        let excuses = self.excuses;
        self.ends_process = false;
        self.world.disk.cut_power();
        self.recover(0)?;
        let well = !(excuses.reads || excuses.flips || excuses.full || excuses.sync);
        if let Some(report) = report.filter(|_| well) {
            model.cut_behind(report.glsn.0);
            self.compare_backup(&dest, &model)?;
        }
        self.discard_backup(&dest);
        Ok("cut".to_owned())
    }

    fn compare_backup(&self, dest: &PathBuf, model: &Model) -> Outcome {
        let excuse = |error: &Error| self.excused(error);
        let options = self.world.options();
        let opened = Db::open(dest, options.clone().create(false));
        let Some(db) = self.expect("opening a backup", opened)? else {
            return Ok(());
        };
        let mut model = model.clone();
        model.trimmed(db.log().bounds().first.0);
        Judge { db: &db, model: &model, excuse: &excuse }.keyspaces()?;
        compare(&db, &model, &excuse)?;
        self.compare_restored(&db, options, &model)?;
        // Writes to the backup must not show in the store, although the two share files.
        let touched = touch(&db);
        self.expect("writing to a backup", touched)?;
        Ok(())
    }

    /// Dumps a store with its history, restores it on another disk, and compares that.
    fn compare_restored(&self, db: &Db, options: Options, model: &Model) -> Outcome {
        let mut dump = Vec::new();
        let dumped = db.dump(DumpOptions::new().history(true), &mut dump);
        if self.expect("dump", dumped)?.is_none() {
            return Ok(());
        }
        let of = |what: &'static str| move |error| Failure::new(format!("{what}: {error}"));
        let clock = Arc::clone(&self.world.clock) as _;
        let options = options.world(Arc::new(MemDisk::new()), clock);
        Db::restore("/restored", options.clone(), &dump[..]).map_err(of("restore"))?;
        let copy = Db::open("/restored", options).map_err(of("opening a restored store"))?;
        // Reads may cause flushes, which drop versions that are no longer retained.
        let mut model = model.clone();
        model.raise_floors(&BTreeSet::new(), copy.newest().0, self.world.clock.wall_micros());
        let excuse = |_: &Error| false;
        Judge { db: &copy, model: &model, excuse: &excuse }.keyspaces()?;
        compare(&copy, &model, &excuse)
    }

    /// Removes a backup, complete or not.
    fn discard_backup(&self, dest: &std::path::Path) {
        // After a power cut it remains, which is harmless.
        let _ = self.world.remove_all(dest);
    }
}

fn touch(db: &Db) -> plimsoll::Result<()> {
    let keyspace = db.keyspace("default")?;
    let mut tx = db.begin();
    tx.put(&keyspace, b"touched", &[7; 3000])?;
    tx.commit()?;
    db.compact()
}

/// Compares a whole store with a model.
pub(crate) fn compare(db: &Db, model: &Model, excuse: &dyn Fn(&Error) -> bool) -> Outcome {
    let judge = Judge { db, model, excuse };
    let newest = db.newest();
    let step = (newest.0 / MOMENTS).max(1);
    let moments: BTreeSet<u64> = (0..=MOMENTS)
        .map(|i| newest.0.saturating_sub(i * step))
        .chain([model.first().min(newest.0)])
        .chain(model.tags().into_values())
        .collect();
    for (space, _) in model.spaces() {
        let keyspace = match db.keyspace(&space_name(space)) {
            Err(error) if excuse(&error) => continue,
            keyspace => keyspace.map_err(|error| {
                crate::failure::Failure::new(format!("keyspace {space}: {error}"))
            })?,
        };
        for at in &moments {
            compare_moment(&judge, space, &keyspace, *at)?;
        }
        compare_keys(&judge, space, &keyspace, &moments)?;
        judge.size(Place { space, keyspace: &keyspace })?;
    }
    compare_names(&judge, &moments)?;
    if let Some(tags) = judge.settle(|| "tags".to_owned(), None, db.tags())? {
        same("tags", &tags_of(&tags), &model.tags())?;
    }
    compare_log(&judge)?;
    same("GLSN of the newest moment, once more", &db.newest(), &newest)
}

/// The numbers of tags, and their moments.
pub(super) fn tags_of(tags: &[TagInfo]) -> BTreeMap<u8, u64> {
    let number = |tag: &TagInfo| tag.name.strip_prefix("tag").and_then(|name| name.parse().ok());
    tags.iter().map(|tag| (number(tag).unwrap_or(u8::MAX), tag.glsn.0)).collect()
}

fn compare_moment(judge: &Judge<'_>, space: u8, keyspace: &Keyspace, at: u64) -> Outcome {
    let (what, opened) =
        (|| format!("snapshot at {at}"), judge.db.snapshot_at(Moment::Glsn(Glsn(at))));
    let Some(snapshot) = judge.settle(what, None, opened)? else { return Ok(()) };
    let place = Place { space, keyspace };
    let all = Span::Range(Edge::Open, Edge::Open);
    judge.walk(View::Snapshot(&snapshot), place, &all, WalkOptions::whole(false))?;
    judge.walk(View::Snapshot(&snapshot), place, &all, WalkOptions::whole(true))?;
    judge.ends(View::Snapshot(&snapshot), place)?;
    for (number, key) in judge.model.keys(space).into_iter().take(KEYS).enumerate() {
        let how = [Get::Value, Get::Streamed, Get::Contains, Get::Lent][number % 4];
        judge.get(View::Snapshot(&snapshot), place, &key, how)?;
    }
    judge.get(View::Snapshot(&snapshot), place, b"never written", Get::Value)?;
    Ok(())
}

/// At each moment, a name refers to the keyspace that had it then, which may have been dropped
/// since.
fn compare_names(judge: &Judge<'_>, moments: &BTreeSet<u64>) -> Outcome {
    for space in 1..NAMES {
        for at in moments {
            let Ok(snapshot) = judge.db.snapshot_at(Moment::Glsn(Glsn(*at))) else { continue };
            let found = snapshot.keyspace(&space_name(space));
            let what = || format!("the keyspace {} at {at}", space_name(space));
            let Some(found) = judge.settle(what, None, found)? else { continue };
            let wanted = judge.model.space_at(space, *at);
            same(format!("{}: existence", what()), &found.is_some(), &wanted.is_some())?;
            let (Some(keyspace), Some(number)) = (found, wanted) else { continue };
            if judge.model.is_dropped(number) {
                compare_moment(judge, number, &keyspace, *at)?;
            }
        }
    }
    Ok(())
}

fn compare_keys(
    judge: &Judge<'_>,
    space: u8,
    keyspace: &Keyspace,
    moments: &BTreeSet<u64>,
) -> Outcome {
    let place = Place { space, keyspace };
    for key in judge.model.keys(space).into_iter().take(KEYS) {
        judge.history(place, &key)?;
    }
    let moments: Vec<u64> = moments.iter().copied().collect();
    for pair in moments.windows(2) {
        judge.diff(place, pair[0], pair[1], b"")?;
    }
    if let [first, .., last] = moments[..] {
        judge.diff(place, last, first, b"")?;
    }
    Ok(())
}

fn compare_log(judge: &Judge<'_>) -> Outcome {
    let (first, newest) = (judge.model.first(), judge.db.newest());
    judge.scan(first, u64::MAX - first, None)?;
    for stream in 0..3 {
        judge.scan(first, u64::MAX - first, Some(stream))?;
    }
    let step = ((newest.0 + 1).saturating_sub(first) / 16).max(1);
    for glsn in (first..=newest.0).step_by(step as usize) {
        judge.read(glsn)?;
    }
    if first > 1 {
        judge.read(first - 1)?;
    }
    Ok(())
}

/// Opens the store in a world, compares it with a model, and reads every byte: returns the problems
/// found, or the error of opening it. The store may end before the model does, at a whole record,
/// but not before `sure`.
pub(crate) fn inspect(
    world: &World,
    model: &Model,
    sure: u64,
    excuse: &dyn Fn(&Error) -> bool,
) -> Outcome<plimsoll::Result<Vec<String>>> {
    let db = match world.open() {
        Ok(db) => db,
        Err(error) => return Ok(Err(error)),
    };
    let newest = db.newest();
    ensure((sure..=model.newest()).contains(&newest.0) && model.is_border(newest.0), || {
        format!(
            "the newest moment is {newest}: it may be one from {sure} to {}, at the end of a \
             record",
            model.newest()
        )
    })?;
    let mut model = model.clone();
    model.cut_behind(newest.0);
    let model = &model;
    Judge { db: &db, model, excuse }.keyspaces()?;
    compare(&db, model, excuse)?;
    Ok(db.verify(&mut |_| {}).map(|report| report.problems))
}
