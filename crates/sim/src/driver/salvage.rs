//! Manual repairs of a closed store. Its log is cut, and the store is then as at the end of the record before the cut; or its index is
//! removed, and is rebuilt from the log; or, in a copy, the log loses its end and the index is what is left. The warm image stays, with
//! data on runs and moments that are gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_disk::vfs::Disk;

use plimsoll::{Error, Glsn};

use crate::driver::Driver;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::{is_value, show};
use crate::model::{Writes, space_name};
use crate::op::{Edge, Span};
use crate::world::World;

/// Longer values are in the log only, or in blob files.
const INLINE_BYTES: u32 = 1024;

const ALL: Span = Span::Range(Edge::Open, Edge::Open);

impl Driver {
    /// Takes the index away.
    pub(super) fn lose_index(&mut self) -> Outcome<String> {
        if self.model.first() > 1 {
            return Ok("left alone".to_owned());
        }
        self.heal();
        self.close()?;
        if !self.world.disk.power_is_cut() && self.closed_cleanly {
            let taken = self.take_index_away();
            let cut = self.world.disk.power_is_cut();
            taken.or_else(
                |error| if cut { Ok(()) } else { Err(Failure::new(format!("taking the index away: {error}"))) },
            )?;
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
        // In one rename: a power cut leaves it whole, in one place or the other.
        let away = PathBuf::from(format!("/away{}", self.backups));
        disk.rename(&store.join("index"), &away)?;
        disk.sync_dir(&store)?;
        disk.sync_dir(Path::new("/"))
    }

    /// Cuts the log this many GLSNs before its end.
    pub(super) fn salvage(&mut self, back: u64) -> Outcome<String> {
        let (first, cut_at) = (self.model.first(), self.model.newest().saturating_sub(back));
        let kept = (0..cut_at).rev().find(|glsn| self.model.is_border(*glsn)).unwrap_or(0);
        // A log of which nothing would be left is not cut.
        if kept < first || !self.close_for_copying()? {
            return Ok("left alone".to_owned());
        }
        let salvaged = plimsoll::salvage(self.world.store_path(), self.world.options(), Glsn(cut_at));
        if first > 1 && matches!(salvaged, Err(Error::InvalidInput { .. })) {
            // The index holds what was to be cut, and could not be rebuilt: nothing has changed.
            self.open_store(0)?;
            return Ok("refused".to_owned());
        }
        let Some(report) = self.expect("salvage", salvaged)? else {
            self.open_store(0)?;
            return Ok("failed".to_owned());
        };
        same("GLSN that a salvage keeps", &report.glsn.0, &kept)?;
        self.was_hurt = true;
        self.model.give_up_behind(kept);
        self.wait_for_somebody();
        self.closed_cleanly = false;
        self.open_store(0)?;
        let newest = self.db().newest();
        ensure(newest == kept, || format!("salvaged up to {kept}, and opened at {newest}"))?;
        Ok(format!("kept {kept}"))
    }

    /// Has the index know everything, and salvages a copy of the store whose log has lost its end.
    pub(super) fn lose_log(&mut self, segments: u8) -> Outcome<String> {
        if self.model.last_commit() == 0 {
            return Ok("nothing to salvage".to_owned());
        }
        self.heal();
        let flushed = self.upkeep("flush", |db| db.flush())?;
        if flushed != "answered" || !self.close_for_copying()? {
            self.reopen()?;
            return Ok("failed".to_owned());
        }
        let world = self.world.copy();
        let salvaged = self.salvage_without_end(&world, segments)?;
        self.open_store(0)?;
        Ok(salvaged)
    }

    fn salvage_without_end(&self, world: &World, segments: u8) -> Outcome<String> {
        let told = |error: std::io::Error| Failure::new(format!("taking the end of the log away: {error}"));
        let mut files = world.files(&world.store_path().join("log")).map_err(told)?;
        files.retain(|(path, _)| path.extension().is_some_and(|ending| ending == "seg"));
        files.sort();
        for (path, _) in files.iter().rev().take(usize::from(segments)) {
            world.disk.remove(path).map_err(told)?;
        }
        let report = match plimsoll::salvage_from_index(world.store_path(), world.options()) {
            // No commit was in what is gone.
            Err(Error::InvalidInput { .. }) => return Ok("whole".to_owned()),
            report => report.map_err(|error| Failure::new(format!("salvage from the index: {error} [{error:?}]")))?,
        };
        let failed = |what: &str, error: &Error| Failure::new(format!("{what} a salvaged store: {error} [{error:?}]"));
        let db = world.open().map_err(|error| failed("opening", &error))?;
        same("newest moment of a salvaged store", &db.newest(), &report.glsn)?;
        let problems = db.verify(&mut |_| {}).map_err(|error| failed("verifying", &error))?.problems;
        ensure(problems.is_empty(), || format!("a salvaged store is damaged: {problems:?}"))?;
        let newest = self.model.newest();
        for (space, _) in self.model.spaces() {
            let name = space_name(space);
            let is_lost = |key: &[u8]| report.lost.iter().any(|(of, lost)| *of == name && lost == key);
            for (key, _) in self.model.walk(space, &ALL, newest, &Writes::new()) {
                let Some((glsn, Some(content))) = self.model.version_at(space, &key, newest) else { continue };
                ensure(!is_lost(&key) || glsn > report.front.0 && content.bytes > INLINE_BYTES, || {
                    format!("{} in {name} was lost, although commit {glsn} is not in what is gone", show(&key))
                })?;
            }
            let keyspace = db.keyspace(&name).map_err(|error| failed("a keyspace of", &error))?;
            let walk = db.snapshot().range(&keyspace, ..).map_err(|error| failed("walking over", &error))?;
            let found: Vec<_> =
                walk.collect::<plimsoll::Result<_>>().map_err(|error| failed("walking over", &error))?;
            let mut found = found.into_iter().filter(|(key, _)| !is_lost(key));
            let mut wanted = self.model.walk(space, &ALL, newest, &Writes::new()).into_iter();
            for (key, content) in wanted.by_ref().filter(|(key, _)| !is_lost(key)) {
                let next = found.next();
                same(
                    format!("next key in {name} of a salvaged store"),
                    &next.as_ref().map(|(key, _)| show(key)),
                    &Some(show(&key)),
                )?;
                let value = next.map(|(_, value)| value);
                is_value(|| format!("{} in {name} of a salvaged store", show(&key)), value.as_deref(), Some(content))?;
            }
            same(format!("a key more in {name} of a salvaged store"), &found.next().map(|(key, _)| show(&key)), &None)?;
        }
        Ok(format!("{} lost", report.lost_count))
    }

    /// Advances the clock: a manual repair takes time.
    fn wait_for_somebody(&self) {
        self.world.clock.advance(Duration::from_secs(1));
    }
}
