//! Manual repairs of a closed store. Its log is cut, and the store is then as at the end of the record before the cut; or its index is
//! removed, and is rebuilt from the log. The warm image stays, with data on runs and moments that are gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_disk::vfs::Disk;

use plimsoll::Glsn;

use crate::driver::Driver;
use crate::failure::{Failure, Outcome, ensure, same};

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
        // An index that has to be rebuilt needs the log from its first entry on.
        let cut_at = self.model.newest().saturating_sub(back);
        let kept = (0..cut_at).rev().find(|glsn| self.model.is_border(*glsn)).unwrap_or(0);
        // A log of which nothing would be left is not cut, and a trimmed one cannot rebuild the index.
        if self.model.first() > 1 || kept == 0 || !self.close_for_copying()? {
            return Ok("left alone".to_owned());
        }
        let salvaged = plimsoll::salvage(self.world.store_path(), self.world.options(), Glsn(cut_at));
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

    /// Advances the clock: a manual repair takes time.
    fn wait_for_somebody(&self) {
        self.world.clock.advance(Duration::from_secs(1));
    }
}
