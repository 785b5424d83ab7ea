//! The words that members share: their places, and numbers that are published together.
//!
//! Values that are published together have two copies, and a version that selects the valid one.
//! The only writer, which holds a lock, writes the other copy first, so that a writer that is
//! killed midway leaves the valid copy intact. (SQLite protects the header of its WAL index in the
//! same way.)
//!
//! | words | what | written by |
//! |---|---|---|
//! | 0 | the layout; 0 during initialization | the first member, under `join`; a lone process |
//! | 1 to 6 | requests to the keeper | asked: any; done and failed: the keeper |
//! | 7 | the generation of keepers | a process that replaces a keeper, with the next lock |
//! | 8 to 20 | the end of the log | the holder of `turn` |
//! | 21 | the instance: first members (lower half) and lone processes (upper) | as word 0; raised |
//! | 22 | up to where memtables are to be closed | the keeper, or a former one; raised |
//! | 23 | members rest until the next sync of a commit | set: any; cleared: holder of `sync` |
//! | 24 to 32 | what is durable | the holder of `sync`; the first member, under `join` |
//! | 33 | killed members that may have left blob files | the finder; the next owner of the slot |
//! | 34 | pings | any |
//! | 35, 36 | processes that wait for a sync | arrived: any; expected: the holder of `sync` |
//! | 37 | removed files of the log | the remover |
//! | 38 | the GLSN that members apply before they order a record | the holder of `turn`; raised |
//! | 39 | the file of the words | the first member, under `join` |
//! | 40 to 51 | `turn`, `sync`, `join` | holder and since: the holder; waiters and bell: any |
//! | 52 | the keeper, or its successor | itself, with its lock; the finder of its end |
//! | 53 | poisoned: 1 by a failed sync, 2 by a lost file | holders of `sync` or `turn`; any |
//! | 54 | the most entries of a segment | a joining member; lowered |
//! | 55 | the highest id of a blob file | any; raised |
//! | 56, 57 | waiting readers (or killed), their bell | any; holder of `sync`, first member |
//! | 58 | the newest manifest | the keeper; raised |
//! | 59, 63 | wanted flush, wanted trim | any; raised |
//! | 60 | changes that members are notified of | any |
//! | 61 | the first GLSN of the log | a trimming member; raised |
//! | 62 | the memory of all members | a joining member, under `join` |
//! | from 64 | the slots | the member; its process: cleared by the next owner of its lock |
//! | then 8 | `posting`, two pairs of waiters and bell, two groups | `turn`; holder of `posting` |
//! | then 2, at 8 | processes that wait for posts | arrived: any; expected: holder of `posting` |
//! | then 64, at 16 | a bit for each post of a slot | set: member; cleared: `turn`, next owner |
//! | then the cells | posts | the slot's member; the answer: the holder of `turn` |
//! | then 8 | the files of `join`, `turn`, `sync`, `posting` | the first member, under `join` |
//! | then 64 | the files of the slots' locks | the slot's member, under `join` |
//! | then 64 | the files of the keepers' locks | the holder of that lock, once |
//! | the last | the layout | the first member, under `join` |
//!
//! While a member holds `join`, it raises *since* by one every second, to report that it works.
//!
//! A lone process has the store for itself. A raised or lowered word never changes in the other
//! direction.
//!
//! The first member clears the slots of processes that have ended, and all words outside the slots
//! except 21, 24 to 32, 56, 57, 60, the cells and the last one. Word 62 stays if read-only
//! processes have the store open.

use std::ops::RangeInclusive;
use std::sync::atomic::{Ordering, fence};

use plimsoll_disk::sharing::SharedWords;

use crate::glsn::Glsn;
use crate::members::lock::{Places, WaitQueue};

/// The number of times that the keeper was replaced while its process was alive; also the number of
/// the keeper's lock file.
pub(super) const GENERATION: usize = 7;
/// Version of the words' layout; also shows that the words are initialized.
pub(super) const LAYOUT: u64 = 0x706c_696d_6d62_000d;
/// A bit of the keeper's word: the member that the word names is preparing, and is not the keeper
/// yet.
pub(super) const PREPARES: u64 = 1 << 32;
/// The version of the layout; shows that the words are complete.
pub(super) const MAGIC: usize = 0;
const END_AT: usize = 8;
const DURABLE_AT: usize = 24;
/// The words that publish what is durable.
pub(super) const DURABLE: RangeInclusive<usize> = DURABLE_AT..=32;
/// The holder of the turn, since when it holds it, how many members wait, and the word that they
/// wait on.
pub(super) const TURN: Places = Places { holder: 40, since: 41, waiters: 42, bell: 43 };
pub(super) const SYNC: Places = Places { holder: 44, since: 45, waiters: 46, bell: 47 };
pub(super) const JOIN: Places = Places { holder: 48, since: 49, waiters: 50, bell: 51 };
pub(super) const KEEPER: usize = 52;
pub(super) const POISON: usize = 53;
pub(super) const ENTRIES_MAX: usize = 54;
pub(super) const BLOB_MARK: usize = 55;
/// The number of members that wait for news, and the word that they wait on.
pub(super) const FOLLOWERS: usize = 56;
pub(super) const READER_BELL: usize = 57;
pub(super) const MANIFEST: usize = 58;
pub(super) const FLUSH_WANTED: usize = 59;
pub(super) const STATE: usize = 60;
/// The *instance* of the words: raised by 1 whenever a first member initializes the words, and by
/// 2^32 when a process opens the store alone.
pub(super) const INSTANCE: usize = 21;
/// Memtables that hold anything up to this GLSN must be closed.
pub(super) const CLOSE_WANTED: usize = 22;
/// Not 0 if the next sync of a commit must wake the members that rest. The syncing member clears it
/// first and then wakes them. If it is killed in between, they sleep until the next change that
/// wakes them, or until their timeout of up to 20 seconds.
pub(super) const RESTING: usize = 23;
/// The first GLSN of the log.
pub(super) const LOG_FIRST: usize = 61;
/// The memory of all members together; 0 if each member has its own budget.
pub(super) const MEMORY_TOTAL: usize = 62;
/// The GLSN up to which some member wants the log trimmed.
pub(super) const TRIM_WANTED: usize = 63;
/// The number of processes that wait for the next sync, and the number that is expected.
pub(crate) const SYNCS: Gathered = Gathered { arrived: 35, expected: 36 };
/// Counts the members that ended while they may have been writing blob files.
pub(super) const LEFTOVERS: usize = 33;
/// Counts the removed files of the log, which other members may still have open.
pub(super) const REMOVED: usize = 37;
/// The GLSN up to which a member applies the log before it orders a record.
pub(super) const MUST_APPLY_UPTO: usize = 38;
/// Changed to ask all members to show that they are running.
pub(super) const PING: usize = 34;
/// The requests of members to the keeper.
pub(super) const COMPACT: Request = Request { asked: 1, done: 2, failed: 3 };
pub(super) const TRIM: Request = Request { asked: 4, done: 5, failed: 6 };

/// Slots of members.
pub(crate) const SLOTS: usize = 64;
pub(super) const SLOTS_AT: usize = 64;
/// Words in a slot: two cache lines, so that no two slots share one.
pub(super) const SLOT_WORDS: usize = 16;
pub(super) const SLOTS_END: usize = SLOTS_AT + SLOTS * SLOT_WORDS;

/// The lock of posts.
pub(super) const POSTING: Places =
    Places { holder: SLOTS_END, since: SLOTS_END + 1, waiters: SLOTS_END + 2, bell: SLOTS_END + 3 };
/// The waiters of groups with even numbers, and of those with odd numbers.
pub(super) const POSTING_QUEUES: [WaitQueue; 2] = [
    WaitQueue { waiters: SLOTS_END + 2, bell: SLOTS_END + 3 },
    WaitQueue { waiters: SLOTS_END + 4, bell: SLOTS_END + 5 },
];
/// The group of posts that was begun last, and the last closed group.
pub(super) const GROUP_BEGUN: usize = SLOTS_END + 6;
pub(super) const GROUP_WHOLE: usize = SLOTS_END + 7;
/// How many processes wait for their posts to be ordered, and how many are expected to.
pub(crate) const POSTS: Gathered = Gathered { arrived: SLOTS_END + 8, expected: SLOTS_END + 9 };
/// For each slot, a bit for each of its cells: whether it holds a pending post.
pub(super) const POSTED_AT: usize = SLOTS_END + 16;
/// The cells of a slot, for posts.
pub(super) const CELLS: usize = 8;
pub(super) const CELL_WORDS: usize = 40;
pub(super) const CELLS_AT: usize = POSTED_AT + SLOTS;

/// The identities of the files ([`crate::members::files`]); 0: not recorded.
pub(super) const FILES_AT: usize = CELLS_AT + SLOTS * CELLS * CELL_WORDS;
pub(super) const JOIN_FILE: usize = FILES_AT;
pub(super) const TURN_FILE: usize = FILES_AT + 1;
pub(super) const SYNC_FILE: usize = FILES_AT + 2;
pub(super) const POSTING_FILE: usize = FILES_AT + 3;
pub(super) const SLOT_FILES: usize = FILES_AT + 8;
pub(super) const KEEPER_FILES: usize = SLOT_FILES + SLOTS;
/// The version of the layout again: a file that was truncated and extended lacks it.
pub(super) const LAST: usize = KEEPER_FILES + SLOTS;
pub(super) const WORDS: usize = LAST + 1;
/// The identity of the file of the words themselves.
pub(super) const WORDS_FILE_AT: usize = 39;

/// The words that count the members waiting for the same event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathered {
    /// The number of processes that have arrived.
    pub(super) arrived: usize,
    /// The number of processes that are expected.
    pub(super) expected: usize,
}

/// The words of one kind of request to the keeper. The requests of a kind are numbered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The number of the last request.
    pub(super) asked: usize,
    /// All up to this number are done.
    pub(super) done: usize,
    /// A bit for each of the last 64 requests that were answered, at its number modulo 64: whether
    /// it failed.
    pub(super) failed: usize,
}

/// The first word of a slot.
pub(super) struct Slot(pub(super) usize);

impl Slot {
    pub(super) fn of(slot: usize) -> Self {
        Self(SLOTS_AT + slot * SLOT_WORDS)
    }
}

/// A word of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum SlotWord {
    /// The process id, in the slot's first word; 0 if the slot is free.
    Pid,
    Floor,
    Checkpoint,
    BlobPin,
    Since,
    /// The number of threads that read all files now; while there are any, no other member removes
    /// a file.
    Holds,
    /// The GLSN below which this member frees the log, while it removes files; 0 if it removes
    /// none.
    Removing,
    /// The last GLSN that it has applied; it needs the log after that.
    Applied,
    /// Counts its answers to pings, which show that it is running.
    Pulse,
    /// Its current memory budget in bytes.
    Budget,
    /// The largest memory budget that it wants, in bytes.
    Wanted,
    /// Whether it only reads.
    Reads,
    /// The GLSN from which on it holds the log, including entries that it has applied.
    LogHeld,
}

/// The end of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// First GLSN of the active segment.
    pub(crate) segment: Glsn,
    /// The offset at which its last record ends.
    pub(crate) offset: u32,
    /// The GLSN that the next entry gets.
    pub(crate) next: Glsn,
    /// Chain hash of the last record.
    pub(crate) chain: u64,
    /// Timestamp of the last record.
    pub(crate) timestamp: u64,
    /// The epoch in which records are written.
    pub(crate) epoch: u32,
}

impl End {
    pub(super) fn of([segment, offset, next, chain, timestamp, epoch]: [u64; 6]) -> Self {
        let (segment, next) = (Glsn(segment), Glsn(next));
        Self { segment, offset: offset as u32, next, chain, timestamp, epoch: epoch as u32 }
    }

    pub(super) fn words(&self) -> [u64; 6] {
        [
            self.segment.0,
            self.offset.into(),
            self.next.0,
            self.chain,
            self.timestamp,
            self.epoch.into(),
        ]
    }

    /// The durable end, as an end without timestamp and epoch.
    pub(crate) fn of_durable(durable: &Durable) -> Self {
        let Durable { segment, offset, next, chain } = *durable;
        Self { segment, offset, next, chain, timestamp: 0, epoch: 0 }
    }

    /// This end, as the durable end.
    pub(crate) fn as_durable(&self) -> Durable {
        Durable { segment: self.segment, offset: self.offset, next: self.next, chain: self.chain }
    }
}

/// The durable end of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Durable {
    /// First GLSN of the segment that was synced last.
    pub(crate) segment: Glsn,
    /// The bytes of that segment below this offset are durable.
    pub(crate) offset: u32,
    /// The GLSN after the last durable one.
    pub(crate) next: Glsn,
    /// Chain hash of the record that ends there.
    pub(crate) chain: u64,
}

impl Durable {
    pub(super) fn of([segment, offset, next, chain]: [u64; 4]) -> Self {
        Self { segment: Glsn(segment), offset: offset as u32, next: Glsn(next), chain }
    }

    pub(super) fn words(&self) -> [u64; 4] {
        [self.segment.0, self.offset.into(), self.next.0, self.chain]
    }
}

/// `N` words that are published together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published<const N: usize> {
    /// The version; the copies follow it.
    at: usize,
}

impl Published<6> {
    pub(super) fn end() -> Self {
        Self { at: END_AT }
    }
}

impl Published<4> {
    pub(super) fn durable() -> Self {
        Self { at: DURABLE_AT }
    }
}

impl<const N: usize> Published<N> {
    fn copy_at(self, version: u64) -> usize {
        self.at + 1 + (version % 2) as usize * N
    }

    pub(super) fn read(self, words: &dyn SharedWords) -> [u64; N] {
        let words = words.words();
        loop {
            let version = words[self.at].load(Ordering::Acquire);
            let from = self.copy_at(version);
            let read = std::array::from_fn(|i| words[from + i].load(Ordering::Relaxed));
            // If a word of a later version was read above, the load below sees that version or the
            // one before it, so it differs from `version`.
            fence(Ordering::Acquire);
            if words[self.at].load(Ordering::Relaxed) == version {
                return read;
            }
        }
    }

    /// The caller must hold the lock under which these words are written.
    pub(super) fn write(self, shared: &dyn SharedWords, new: [u64; N]) {
        let words = shared.words();
        let version = words[self.at].load(Ordering::Relaxed) + 1;
        // Pairs with the fence in `read`.
        fence(Ordering::Release);
        for (word, value) in words[self.copy_at(version)..].iter().zip(new) {
            word.store(value, Ordering::Relaxed);
            #[cfg(feature = "testing")]
            shared.between_stores();
        }
        words[self.at].store(version, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plimsoll_disk::mem::MemDisk;
    use plimsoll_disk::vfs::Disk;

    use super::*;

    #[test]
    fn values_published_together_are_read_together() {
        let disk = MemDisk::new();
        let words = disk.shared_words(Path::new("/words"), WORDS).unwrap();
        let published = Published::end();
        let rounds = if cfg!(miri) { 50 } else { 200_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=rounds).for_each(|n| published.write(&*words, [n; 6])));
            let mut last = 0;
            while last < rounds {
                let read = published.read(&*words);
                assert!(
                    read.iter().all(|word| *word == read[0]) && read[0] >= last,
                    "{read:?} after {last}"
                );
                last = read[0];
            }
        });
    }

    #[test]
    fn a_writer_that_is_killed_midway_leaves_the_published_values() {
        let disk = MemDisk::new();
        let words = disk.shared_words(Path::new("/words"), WORDS).unwrap();
        let published = Published::durable();
        published.write(&*words, [1; 4]);
        published.write(&*words, [2; 4]);
        // The part that the writer had written when it was killed.
        words.words()[DURABLE_AT + 1 + 4].store(3, Ordering::Relaxed);
        assert_eq!(published.read(&*words), [2; 4]);
        published.write(&*words, [4; 4]);
        assert_eq!(published.read(&*words), [4; 4]);
    }
}
