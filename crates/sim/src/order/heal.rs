//! The order loses its batches, and continues from a replica that has everything. Its positions
//! continue in a new range, a *line*, whose first batch names the end of that replica's log. The
//! other replicas are made anew from a copy of that replica. At times, that replica forgets its
//! place in the order, and continues with its own files.

use std::path::Path;

use plimsoll::order::PLACE_FILE;
use plimsoll::{FileScope, OrderBatch};
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;

use crate::failure::{Failure, Outcome, ensure};
use crate::order::{Driver, STORE, failed};

/// The number of positions in a line.
const LINE: u64 = 1 << 40;

impl Driver {
    pub(super) fn heal(&mut self, number: usize, random: &mut Random) -> Outcome {
        let Some(db) = self.replicas[number].db() else { return Ok(()) };
        // Sync twice, so that the replica has everything that was acknowledged.
        let synced = db.sync().and_then(|_| db.sync());
        if self.checked(number, "a sync before a heal", synced)?.is_none() {
            return Ok(());
        }
        let acknowledged = self.history.newest_made();
        ensure(db.newest().0 >= acknowledged, || {
            format!("a sync ends before GLSN {acknowledged}, which was acknowledged")
        })?;
        let Some(place) = db.order_place() else {
            return Err(Failure::new("a replica has no place in its order"));
        };
        let ended = db.files(FileScope::Whole, &mut |_| Ok(()));
        let Some(end) = self.checked(number, "the end of a log", ended)? else { return Ok(()) };
        self.base = Some(self.replicas[number].disk.snapshot());
        let first = (place.position / LINE + 1 + random.below(3)) * LINE;
        let (id, replicas) = (db.id(), place.replicas);
        let batch = OrderBatch::beginning(id, first, place.hash, (end.glsn, end.chain), replicas);
        let batch = batch.map_err(|error| failed("the first batch of a line", &error))?;
        self.order.begin_anew(first, batch);
        drop(db);
        match random.below(2) {
            0 => self.forget_place(number),
            _ => Ok(()),
        }
    }

    /// Removes the place of the replica that has everything, and opens the replica in the new line.
    fn forget_place(&mut self, number: usize) -> Outcome {
        let replica = &mut self.replicas[number];
        replica.txs.clear();
        if let Some((db, space)) = replica.open.take() {
            drop(space);
            let closed = db.close();
            self.checked(number, "closing", closed)?;
        }
        let disk = &self.replicas[number].disk;
        if disk.power_is_cut() {
            return self.revive(number, &mut Random::new(0));
        }
        let removed = disk.remove(&Path::new(STORE).join(PLACE_FILE));
        match removed.and_then(|()| disk.sync_dir(Path::new(STORE))) {
            Ok(()) => {}
            Err(_) if disk.power_is_cut() => return self.revive(number, &mut Random::new(0)),
            Err(error) => return Err(Failure::new(format!("forgetting a place: {error}"))),
        }
        self.calm();
        self.open(number)
    }
}
