//! Advances the old end of a queue. The segments that it leaves become free at once, or when their
//! last reader is gone.
//!
//! Law: entries leave the index before they are passed; a segment that is still being read is set
//! aside and counts as used.

use super::super::Shared;
use super::super::policy::Queue;
use super::super::readers::Emptied;
use super::super::slot::fingerprint;
use super::Keeper;

/// A segment that was given up while it was being read.
pub(super) struct Aside {
    pub(super) segment: u32,
    pub(super) readers: AsideFor,
}

/// Its possible readers.
pub(super) enum AsideFor {
    /// The readers that looked for its entries, or at them, through these lines when it was given
    /// up.
    Queue { lines: u64, emptied: Emptied },
    /// The readers that have used the index through these lines since it was given up.
    Index { lines: u64 },
}

impl Keeper {
    /// Moves a queue's old end over an entry with this fingerprint, or over a filler or dead bytes.
    /// The segments it leaves are freed, or set aside while they have readers.
    pub(super) fn pass(
        &mut self,
        shared: &Shared,
        queue: Queue,
        fingerprint: Option<u64>,
        to: u64,
    ) {
        let (owner, aside, passed) =
            (&mut self.owner, &mut self.aside, &mut self.passed[queue as usize]);
        fingerprint.into_iter().for_each(|fingerprint| passed.add(fingerprint));
        let mut leaves = false;
        self.ends[queue as usize].pass(
            &shared.segments,
            shared.ring(queue),
            to,
            |emptied, segment| {
                leaves = true;
                match shared.readers.reading(emptied, |fingerprint| passed.may_have(fingerprint)) {
                    0 => owner.give_back(&shared.segments, segment),
                    lines => {
                        aside.push(Aside { segment, readers: AsideFor::Queue { lines, emptied } })
                    }
                }
            },
        );
        if leaves {
            passed.clear();
            // It may extend into the next segment.
            fingerprint.into_iter().for_each(|fingerprint| passed.add(fingerprint));
        }
    }

    /// Moves a queue's old end over entry after entry, none of which is in the index, so that a
    /// reader still looking for one of them holds back only that one.
    pub(super) fn pass_each(&mut self, shared: &Shared, queue: Queue) {
        while !self.ends[queue as usize].is_empty() {
            let position = self.ends[queue as usize].old;
            let placed =
                self.ends[queue as usize].entry_at(&shared.segments, shared.ring(queue), position);
            let is_filler = placed.header.is_filler();
            let fingerprint = (!is_filler).then(|| fingerprint(shared.hash(placed.key())));
            if is_filler {
                self.ends(queue).passes_filler(&shared.segments, placed.header);
            }
            self.pass(shared, queue, fingerprint, position + placed.header.words());
        }
    }

    /// As [`Keeper::pass`], for segments without readers.
    pub(super) fn pass_unread(&mut self, shared: &Shared, queue: Queue, to: u64) {
        let owner = &mut self.owner;
        let give_back = |_, segment| owner.give_back(&shared.segments, segment);
        self.ends[queue as usize].pass(&shared.segments, shared.ring(queue), to, give_back);
    }

    pub(super) fn take_back_what_is_read_no_more(&mut self, shared: &Shared) {
        if self.aside.is_empty() {
            return;
        }
        let owner = &mut self.owner;
        self.aside.retain_mut(|aside| {
            let is_read = match &mut aside.readers {
                AsideFor::Queue { lines, emptied } => {
                    *lines = shared.readers.still_reading(*lines, *emptied);
                    *lines > 0
                }
                AsideFor::Index { lines } => {
                    *lines = shared.readers.still_in_index(*lines);
                    *lines > 0
                }
            };
            if !is_read {
                owner.give_back(&shared.segments, aside.segment);
            }
            is_read
        });
    }
}
