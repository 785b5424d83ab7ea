//! Index pages under the cache's lock: when a page is shared, when one is given up, and how entries
//! that lose their slots are handled.

use super::super::Shared;
use super::super::entry::Header;
use super::super::policy::Queue;
use super::super::slot::{Kind, Slot};
use super::Keeper;
use super::passing::{Aside, AsideFor};

/// Pages that are added per acquisition of the lock.
const PAGES_AT_ONCE: usize = 16;

impl Keeper {
    /// Shares a crowded page of the index. Without memory for that the index stays as it is, at the
    /// cost of ghosts.
    pub(super) fn make_room_in_index(
        &mut self,
        shared: &Shared,
        queue: Queue,
        header: Header,
        hash: u64,
    ) -> bool {
        if !self.pages.is_crowded(&shared.index, hash, self.mean_bytes()) {
            return true;
        }
        loop {
            let wanted = self.ends[queue as usize].segments_for(&shared.segments, header) + 1;
            if self.has_room(shared, wanted) {
                break;
            }
            if !self.turn(shared) {
                return false;
            }
        }
        self.share_page(shared, hash);
        true
    }

    /// Shares the page of this hash, which is not crowded as a whole, but is in the buckets of the
    /// hash. Returns whether it did.
    pub(super) fn share_full_page(&mut self, shared: &Shared, hash: u64) -> bool {
        self.has_room(shared, 1) && self.share_page(shared, hash)
    }

    /// Adds pages for this many entries of this mean size: some at a time, as the lock is held.
    /// Returns whether there is more to add.
    pub(super) fn add_pages_for(&mut self, shared: &Shared, entries: u64, mean_bytes: u64) -> bool {
        for _ in 0..PAGES_AT_ONCE {
            let Some(hash) = self.pages.widest(&shared.index, entries, mean_bytes) else {
                return false;
            };
            if !self.share_full_page(shared, hash) {
                return false;
            }
        }
        true
    }

    /// Mean size of an entry in bytes.
    fn mean_bytes(&self) -> u64 {
        self.ends.iter().map(|ends| ends.live_bytes).sum::<u64>() / self.counters.entries.max(1)
    }

    fn share_page(&mut self, shared: &Shared, hash: u64) -> bool {
        let segment = self.owner.take(&shared.segments).expect("provided just before");
        let grown = self.pages.grow(&shared.index, &shared.segments, hash, segment, self.tick);
        let has_grown = grown.is_some();
        match grown {
            Some(lost) => lost.into_iter().for_each(|slot| self.lose(shared, slot)),
            None => self.owner.give_back(&shared.segments, segment),
        }
        has_grown
    }

    /// Checks one page of the index, and gives it up if its neighbours can take over its contents.
    /// Returns whether it did.
    pub(super) fn shrink_index(&mut self, shared: &Shared) -> bool {
        let mean_bytes = self.mean_bytes();
        let Some(at) = self.pages.next_spare(&shared.index, mean_bytes) else { return false };
        let (segment, lost) = self.pages.merge(&shared.index, &shared.segments, at, self.tick);
        lost.into_iter().for_each(|slot| self.lose(shared, slot));
        match shared.readers.in_index() {
            0 => self.owner.give_back(&shared.segments, segment),
            lines => self.aside.push(Aside { segment, readers: AsideFor::Index { lines } }),
        }
        true
    }

    /// Counts an entry that the index has no room for as dead.
    fn lose(&mut self, shared: &Shared, slot: Slot) {
        if let Kind::Entry(queue) = slot.kind() {
            let ends = &self.ends[queue as usize];
            let position = ends.position_of(slot.place());
            let header = ends.entry_at(&shared.segments, shared.ring(queue), position).header;
            self.uncount(queue, header);
            self.counters.evictions += 1;
        }
    }
}
