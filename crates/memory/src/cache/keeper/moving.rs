//! Moves an entry from the old end of a queue to the young end of one: at once, or, if it is long,
//! segment by segment.

use std::sync::atomic::Ordering;

use super::super::Shared;
use super::super::policy::Queue;
use super::super::queue::emptied;
use super::super::slot::{Slot, fingerprint};
use super::{Keeper, Meant, RESERVE};

impl Keeper {
    /// Copies an entry to the young end of `target`. Returns `false` without any change if there is
    /// no room.
    pub(super) fn move_entry(
        &mut self,
        shared: &Shared,
        entry: &Meant<'_>,
        target: Queue,
        touches: u8,
    ) -> bool {
        let placed = &entry.placed;
        let wanted = self.ends[target as usize].segments_for(&shared.segments, placed.header);
        let at_once = self.owner.provide_to_move(&shared.segments, wanted);
        if !at_once && !self.can_move_in_steps(shared, entry) {
            return false;
        }
        let ring = shared.ring(target);
        self.ends(placed.queue).uncount(placed.header);
        let whole = placed
            .whole()
            .and_then(|bytes| self.ends(target).copy_within(&shared.segments, ring, bytes));
        let moved_to = whole.unwrap_or_else(|| self.copy_in_pieces(shared, entry, target, at_once));
        self.ends(target).count(placed.header);
        // Release: the copy was written before; pairs with the reader's Acquire.
        entry.slot.store(Slot::entry(entry.hash, target, touches, moved_to).0, Ordering::Release);
        true
    }

    /// Copies an entry, segment by segment, to the young end of `target`. Gives each segment up
    /// before the next is needed, unless all are available `at_once`. Returns the start of the
    /// copy.
    fn copy_in_pieces(
        &mut self,
        shared: &Shared,
        entry: &Meant<'_>,
        target: Queue,
        at_once: bool,
    ) -> u64 {
        let (segments, ring, placed) = (&shared.segments, shared.ring(target), &entry.placed);
        let (header, expires_at) = (placed.header, placed.expires_at());
        let ends = &mut self.ends[target as usize];
        let (moved_to, mut at) =
            ends.write_head(segments, ring, &mut self.owner, header, expires_at, placed.key());
        let mut pieces = placed.pieces();
        let mut piece = pieces.next();
        let mut read_to = entry.position * 8 + header.value_at() as u64;
        while let Some(bytes) = piece {
            let ends = &mut self.ends[target as usize];
            at = ends.write_value(segments, ring, &mut self.owner, at, bytes);
            read_to += bytes.len() as u64;
            // The next piece is looked up before its predecessor is given up.
            piece = pieces.next();
            if !at_once && piece.is_some() {
                self.pass_unread(shared, placed.queue, read_to / 8);
            }
        }
        self.ends(target).end_entry(at);
        moved_to
    }

    /// Whether a long entry can be moved segment by segment, each given up before the next is
    /// needed. It can if neither the entry nor the entries before it in its first segment are being
    /// read; no later reader finds them, since the index no longer refers to them.
    fn can_move_in_steps(&mut self, shared: &Shared, entry: &Meant<'_>) -> bool {
        let (queue, count) = (entry.placed.queue, entry.placed.segment_count());
        if count < 2 || !self.owner.provide_to_move(&shared.segments, RESERVE) {
            return false;
        }
        let before = entry.slot.swap(Slot::EMPTY.0, Ordering::AcqRel);
        let passed = &mut self.passed[queue as usize];
        passed.add(fingerprint(entry.hash));
        let is_read = (0..count).any(|step| {
            let emptied = emptied(
                &shared.segments,
                queue,
                entry.position + (step << shared.segments.words_shift()),
            );
            shared.readers.reading(emptied, |fingerprint| passed.may_have(fingerprint)) > 0
        });
        if is_read {
            entry.slot.store(before, Ordering::Release);
        }
        !is_read
    }
}
