//! The order is trimmed up to the position of a copy of a replica, and replicas that lack trimmed
//! batches are made anew from that copy.

use std::path::Path;

use plimsoll::order::PLACE_FILE;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;

use crate::failure::{Failure, Outcome};
use crate::order::{Driver, STORE};

impl Driver {
    /// Copies a replica that has applied everything, and trims the order up to some position that
    /// the copy has applied. The last batch that the copy has applied stays.
    pub(super) fn trim(&mut self, number: usize, random: &mut Random) -> Outcome {
        let Some(db) = self.replicas[number].db() else { return Ok(()) };
        let synced = db.sync();
        if self.checked(number, "a sync before a trim", synced)?.is_none() {
            return Ok(());
        }
        let Some(place) = db.order_place() else {
            return Err(Failure::new("a replica has no place in its order"));
        };
        self.base = Some(self.replicas[number].disk.snapshot());
        self.order.trim(place.position.saturating_sub(random.below(4)).max(1));
        Ok(())
    }

    /// Whether the batch after the place of a replica is trimmed.
    pub(super) fn is_behind(&self, number: usize) -> bool {
        let place = self.replicas[number].db().and_then(|db| db.order_place());
        place.is_some_and(|place| place.position + 1 < self.order.first())
    }

    /// Makes a replica anew from the copy, which gets another number.
    pub(super) fn remake(&mut self, number: usize) -> Outcome {
        let Some(base) = &self.base else {
            return Err(Failure::new("a replica is behind, and the order was not trimmed"));
        };
        let base: LyingDisk = base.snapshot();
        base.cut_power();
        base.restore_power();
        let failed = |error| Failure::new(format!("the copy cannot be prepared: {error}"));
        base.remove(&Path::new(STORE).join(PLACE_FILE)).map_err(failed)?;
        base.sync_dir(Path::new(STORE)).map_err(failed)?;
        let replica = &mut self.replicas[number];
        replica.txs.clear();
        replica.disk.cut_power();
        replica.open = None;
        replica.disk = base;
        // The remembered disk has the number of the replaced replica, which does not exist any
        // more.
        replica.earlier = None;
        self.calm();
        self.open(number)
    }
}
