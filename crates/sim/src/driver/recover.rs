//! Recovery of a closed store.
//!
//! In a copy of it, files are damaged and `recover` makes a new store. The new store has everything
//! readable and nothing wrong, and the report names all losses. An undamaged store is recovered
//! into an equal one. Alternatively the index is removed, and opening the store rebuilds it from
//! the log; the warm image stays and refers to runs that no longer exist.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll::{DamagedKeys, Db, Error, Glsn, RecoverReport};
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::driver::Driver;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::{is_value, show};
use crate::model::{Writes, space_name};
use crate::op::{Edge, Span};
use crate::world::World;

/// Longer values are only in the log or in blob files.
const INLINE_BYTES: u32 = 1024;

const ALL: Span = Span::Range(Edge::Open, Edge::Open);

/// The destination of recoveries.
const DEST: &str = "/recovered";

impl Driver {
    /// Removes the index.
    pub(super) fn lose_index(&mut self) -> Outcome<String> {
        if self.model.first() > 1 {
            return Ok("left alone".to_owned());
        }
        self.heal();
        self.close()?;
        if !self.world.disk.power_is_cut() && self.closed_cleanly {
            let taken = self.take_index_away();
            let cut = self.world.disk.power_is_cut();
            taken.or_else(|error| {
                if cut { Ok(()) } else { Err(Failure::new(format!("removing the index: {error}"))) }
            })?;
            self.was_hurt = true;
            self.wait_for_somebody();
        }
        if self.world.disk.power_is_cut() {
            self.recover(0)?;
            return Ok("cut".to_owned());
        }
        self.open_store(0)?;
        Ok("made anew".to_owned())
    }

    fn take_index_away(&mut self) -> std::io::Result<()> {
        let (disk, store) = (&self.world.disk, self.world.store_path());
        self.backups += 1;
        // One rename, so that a power cut leaves the whole index in one place or the other.
        let away = PathBuf::from(format!("/away{}", self.backups));
        disk.rename(&store.join("index"), &away)?;
        disk.sync_dir(&store)?;
        disk.sync_dir(Path::new("/"))
    }

    /// Recovers the undamaged store, without any loss.
    pub(super) fn recover_whole(&mut self) -> Outcome<String> {
        if !self.close_for_copying()? {
            return Ok("failed".to_owned());
        }
        let world = self.world.copy();
        let report = Db::recover(world.store_path(), DEST, world.options(), &mut |_, _| {});
        let report = report.map_err(|error| {
            Failure::new(format!("recovering a whole store: {error} [{error:?}]"))
        })?;
        ensure(report.is_whole(), || {
            format!("recovering an undamaged store reports losses: {report:?}")
        })?;
        same("newest moment of a recovered undamaged store", &report.glsn.0, &self.model.newest())?;
        self.judge_recovered(&world, &report, &[], report.glsn)?;
        self.open_store(0)?;
        Ok(format!("up to {}", report.glsn))
    }

    /// Flushes everything into the index at times, damages a copy of the store, and recovers the
    /// copy.
    pub(super) fn recover_damaged(&mut self, seed: u64) -> Outcome<String> {
        if self.model.last_commit() == 0 {
            return Ok("nothing to recover".to_owned());
        }
        let mut random = Random::new(seed);
        self.heal();
        let flushes = random.chance(0.7);
        if flushes && self.upkeep("flush", |db| db.flush())? != "answered" {
            self.reopen()?;
            return Ok("failed".to_owned());
        }
        if !self.close_for_copying()? {
            return Ok("failed".to_owned());
        }
        let world = self.world.copy();
        let mut kinds = Vec::new();
        for _ in 0..=random.below(2) {
            let damaged = damage(&world, &mut random);
            kinds.push(damaged.map_err(|error| Failure::new(format!("damaging a copy: {error}")))?);
        }
        let foreseen = Db::recover_dry_run(world.store_path(), world.options());
        let report = Db::recover(world.store_path(), DEST, world.options(), &mut |_, _| {});
        let said = match (report, foreseen) {
            (Ok(report), Ok(foreseen)) => {
                let what = || format!("after {}", kinds.join(", "));
                self.judge_recovered(&world, &report, &kinds, foreseen.glsn)
                    .map_err(|failure| Failure::new(format!("{}: {}", what(), failure.message)))?;
                same(
                    format!("lost entries, {}", what()),
                    &foreseen.lost_entries,
                    &report.lost_entries,
                )?;
                if report.is_whole() { "whole" } else { "recovered" }
            }
            // No segment is readable, and the index is empty.
            (Err(Error::Corrupt { .. }), _) => "refused",
            (Err(error), _) | (_, Err(error)) => {
                return Err(Failure::new(format!(
                    "recovering after {}: {error} [{error:?}]",
                    kinds.join(", ")
                )));
            }
        };
        self.open_store(0)?;
        Ok(format!("{said} after {}", kinds.join(", ")))
    }

    /// Compares a recovered store with the model; `told` is the damage, `end` the last entry that
    /// the damaged log is known to have had.
    fn judge_recovered(
        &self,
        world: &World,
        report: &RecoverReport,
        told: &[String],
        end: Glsn,
    ) -> Outcome<()> {
        let failed = |what: &str, error: &Error| {
            Failure::new(format!("{what} a recovered store: {error} [{error:?}]"))
        };
        let db = Db::open(DEST, world.options().create(false))
            .map_err(|error| failed("opening", &error))?;
        same("newest moment of a recovered store", &db.newest(), &report.glsn)?;
        let problems =
            db.verify(&mut |_| {}).map_err(|error| failed("verifying", &error))?.problems;
        ensure(problems.is_empty(), || format!("a recovered store is damaged: {problems:?}"))?;
        let newest = self.model.newest();
        let is_run_gone = told.iter().any(|what| what.contains("removed") && what.contains(".run"));
        // Without the manifest, the original end of a log that has lost its end is unknown.
        let is_end_unknown = told.iter().any(|what| what.contains("MANIFEST."))
            && told.iter().any(|what| what.contains(".seg"));
        let is_lost_commit = |glsn: u64| {
            report.lost_commits.iter().any(|lost| lost.contains(&Glsn(glsn)))
                || (is_end_unknown && glsn > end.0)
        };
        // The age of the rows of a run without a manifest and a footer is unknown.
        let is_of_run = |what: &String| {
            what.contains("no readable header or footer")
                || what.contains("is a run that no readable manifest names")
                || (is_run_gone && what.contains("if a run file is missing"))
        };
        for (space, _) in self.model.spaces() {
            let name = space_name(space);
            let keyspace =
                db.keyspaces().iter().any(|info| info.name == name).then(|| db.keyspace(&name));
            let Some(keyspace) = keyspace else {
                // The record that names it is lost, and its keys are in a keyspace of another name.
                ensure(!report.is_whole(), || {
                    format!("keyspace {name} is missing in a recovered store")
                })?;
                continue;
            };
            let keyspace = keyspace.map_err(|error| failed("a keyspace of", &error))?;
            let walk = db
                .snapshot()
                .range(&keyspace, ..)
                .map_err(|error| failed("walking over", &error))?;
            let found: Vec<_> = walk
                .collect::<plimsoll::Result<_>>()
                .map_err(|error| failed("walking over", &error))?;
            let as_life = |life: u8| -> Outcome<()> {
                for (key, value) in &found {
                    let mut at = self.model.version_at(life, key, newest);
                    // An older version is there only if all newer ones were in lost commits. But a
                    // run may have the versions of lost commits.
                    while let Some((glsn, content)) = at.filter(|(glsn, _)| is_lost_commit(*glsn)) {
                        if is_value(String::new, Some(value), content).is_ok() {
                            break;
                        }
                        at = self.model.version_at(life, key, glsn - 1);
                    }
                    let content = at.and_then(|(_, content)| content);
                    if !report.unresolved.iter().any(is_of_run) {
                        is_value(
                            || format!("{} in {name} of a recovered store", show(key)),
                            Some(value),
                            content,
                        )?;
                    }
                }
                Ok(())
            };
            if let Err(failure) = as_life(space) {
                // The record of the drop is lost, so the keyspace of this name exists again.
                let is_stale_record = format!("the record of keyspace {name} may be");
                let is_named = report.renamed.contains(&name)
                    || report.unresolved.iter().any(|what| what.contains(&is_stale_record));
                let is_lost_drop = |life: &u8| {
                    self.model.dropped_at(*life).is_some_and(|at| is_named || is_lost_commit(at))
                };
                let mut lives = self.model.lives(space).into_iter().filter(is_lost_drop);
                if lives.any(|life| as_life(life).is_ok()) {
                    continue;
                }
                return Err(Failure::new(format!("{} [{report:?}]", failure.message)));
            }
            for (key, content) in self.model.walk(space, &ALL, newest, &Writes::new()) {
                if found.iter().any(|(there, _)| *there == key) {
                    continue;
                }
                let glsn = self.model.version_at(space, &key, newest).map_or(0, |(glsn, _)| glsn);
                let is_value =
                    |value: &plimsoll::DamagedKey| value.keyspace == name && value.key == key;
                let is_named = (content.bytes > INLINE_BYTES && report.values.iter().any(is_value))
                    || is_lost_commit(glsn)
                    || report.lost_ranges.iter().any(|range| may_hold(range, &name, &key))
                    || report.unresolved.iter().any(is_of_run);
                ensure(is_named, || {
                    format!(
                        "{} in {name}, of commit {glsn}, is not in a recovered store, and was not \
                         named [{report:?}]",
                        show(&key)
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Advances the clock, because a manual repair takes time.
    fn wait_for_somebody(&self) {
        self.world.clock.advance(Duration::from_secs(1));
    }
}

/// Whether a range of lost keys may contain a key. It may contain any key if its keyspaces have
/// lost their names.
fn may_hold(range: &DamagedKeys, keyspace: &str, key: &[u8]) -> bool {
    let (from, to) = (range.keyspace == keyspace, range.last_keyspace == keyspace);
    if from || to {
        return (!from || &range.first[..] <= key) && (!to || key <= &range.last[..]);
    }
    let is_unnamed = |name: &String| name.starts_with('(') || name.starts_with("recovered-");
    range.between.iter().any(|name| name == keyspace)
        || [&range.keyspace, &range.last_keyspace].into_iter().any(is_unnamed)
}

/// Damages a file of a closed store; returns a description of the damage.
fn damage(world: &World, random: &mut Random) -> std::io::Result<String> {
    let disk = &world.disk;
    let mut files = world.files(&world.store_path())?;
    let endings = ["seg", "seg", "run", "blob", "idx", ""];
    let ending = endings[random.below(endings.len() as u64) as usize];
    let is_meant = |path: &Path| match ending {
        "" => path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("MANIFEST.")),
        ending => path.extension().is_some_and(|extension| extension == ending),
    };
    files.retain(|(path, len)| is_meant(path) && *len > 0);
    files.sort();
    if files.is_empty() {
        return Ok("nothing".to_owned());
    }
    let (path, len) = files[random.below(files.len() as u64) as usize].clone();
    let at = random.below(len);
    let how = match random.below(4) {
        0 => {
            // Write a new file, because backups may share this one.
            disk.remove(&path)?;
            "removed"
        }
        how => {
            let mut bytes = vec![0; len as usize];
            disk.open(&path, Open::Read, Caching::Buffered)?.read_exact_at(&mut bytes, 0)?;
            disk.remove(&path)?;
            let from = at as usize;
            let reach = 1 << random.below(16);
            let end = (from + 1 + random.below(reach) as usize).min(bytes.len());
            match how {
                1 => bytes.truncate(from),
                2 => bytes[from..end].fill(0),
                _ => bytes[from] ^= 1 << random.below(8),
            }
            disk.open(&path, Open::CreateNew, Caching::Buffered)?.write_at(&bytes, 0)?;
            ["cut", "zeros in", "a bit of"][how as usize - 1]
        }
    };
    Ok(format!("{how} {} at {at}", path.display()))
}
