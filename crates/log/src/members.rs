//! The members of a store: the processes that have it open together, to read and to write.
//!
//! Every member tails the one log. Beside its files, members share operating-system locks, which
//! are released when their process ends ([`lock`]), and a few words of shared memory ([`words`]),
//! which hold the end of the log and its durable end. The words are a cache of the log: the first
//! member initializes them, and nothing depends on their earlier contents except read-only
//! processes that were open before ([`reading`]).
//!
//! Locks, in the order in which they are taken: `join` (while joining and leaving), `posting` (to
//! order and sync the records of several members; see [`posts`]), `turn` (to order a record),
//! `sync` (to make durable), `keeper` (for as long as a member does the background work of the
//! index; see [`keeping`]), and one for each slot, which its member holds until it ends: a free
//! slot lock proves that the member has ended.

pub mod budgets;
mod gathering;
pub mod holding;
mod intact;
pub mod keeping;
mod listing;
pub(crate) mod lock;
pub(crate) mod posts;
pub mod reading;
pub(crate) mod requests;
pub(crate) mod tries;
pub(crate) mod words;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::sharing::{LockFile, SharedWords};
use plimsoll_disk::vfs::Disk;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::keeping::Keeping;
pub use crate::members::listing::{Member, members_of};
use crate::members::lock::{Got, MemberLock, Places};
use crate::members::posts::OwnCells;
use crate::members::reading::Access;
pub use crate::members::requests::Asked;
use crate::members::tries::Tries;
use crate::members::words::{
    BLOB_MARK, CLOSE_WANTED, Durable, ENTRIES_MAX, End, FLUSH_WANTED, FOLLOWERS, INSTANCE,
    LOG_FIRST, MAGIC, MANIFEST, NEWS, POISON, POSTING, Published, RESTING, SLOT_WORDS, SLOTS,
    SLOTS_AT, STATE, SYNC, Slot, SlotWord, TO_BE_KNOWN, TURN, WORDS,
};

/// The folder of the locks, in the store's folder.
pub const LOCKS_DIR: &str = "members";

/// The file of the words, in the store's folder.
pub const WORDS_FILE: &str = "SHARED";

/// How long a member waits for another one before it reports that member as stalled.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Version of the words' layout; also shows that the words are initialized.
const LAYOUT: u64 = 0x706c_696d_6d62_000c;

/// No blob file is being written.
const NO_BLOB: u64 = u64::MAX;

/// This process's part in a store that several have open.
pub struct Members {
    words: Arc<dyn SharedWords>,
    end: Published<6>,
    durable: Published<4>,
    join: MemberLock,
    /// Held by an append, under the log's own order.
    pub(crate) turn: MemberLock,
    own_turn: Mutex<()>,
    pub(crate) turn_tries: Tries,
    /// Held across a sync, under the log's own.
    pub(crate) sync: MemberLock,
    /// Held by the member that orders and syncs the posts of all members.
    pub(crate) posting: MemberLock,
    own_cells: OwnCells,
    /// Handles of the slots' locks, to check whether their processes are alive.
    slot_locks: [OnceLock<Box<dyn LockFile>>; SLOTS],
    keeping: Keeping,
    slot: usize,
    has_left: AtomicBool,
    /// The values that this member has published in its slot.
    said: [AtomicU64; SLOT_WORDS],
    /// Held while files of the log are removed.
    removing: Mutex<()>,
    /// `None` if this process may not write to the words: then it has no slot.
    slot_lock: Option<Box<dyn LockFile>>,
    access: Access,
    /// In a read-only process: the instance of the words that it follows.
    instance: AtomicU64,
    follows: AtomicBool,
    patience: Duration,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    /// Whether this member initializes the words.
    is_first: AtomicBool,
    /// Whether the words must have their layout: in a writing process, from the end of joining
    /// until leaving.
    needs_words: AtomicBool,
    /// When to check the names of the files next, by the monotonic clock.
    next_check: AtomicU64,
}

impl Members {
    /// Opens the shared files, waits for the right to join, and takes a slot. The caller then finds
    /// out by the store's lock whether it is the first member ([`Members::begin`]).
    ///
    /// # Errors
    /// `Stalled` if another process does not finish joining or leaving; `Locked` if the number of
    /// members is at its maximum; the disk.
    pub fn join(
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        store: &Path,
        patience: Duration,
    ) -> Result<Self, LogError> {
        let joining = Self::open(disk, clock, store, patience, Access::Writes)?;
        joining.join.take(patience, 0, &|| false)?;
        joining.take_slot(store)
    }

    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        store: &Path,
        patience: Duration,
        access: Access,
    ) -> Result<Self, LogError> {
        let dir = store.join(LOCKS_DIR);
        let may_write = access != Access::Watches;
        if may_write {
            match disk.create_dir(&dir) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        let file = store.join(WORDS_FILE);
        let words = if may_write {
            disk.shared_words(&file, WORDS)?
        } else {
            disk.shared_words_to_read(&file, WORDS)?
        };
        let lock = |name: &str, places: Places| -> Result<MemberLock, LogError> {
            let path = dir.join(name);
            let file =
                if may_write { disk.lock_file(&path)? } else { disk.lock_file_to_read(&path)? };
            Ok(MemberLock::new(file, &words, clock, places))
        };
        Ok(Self {
            join: lock("join", words::JOIN)?,
            turn: lock("turn", TURN)?,
            sync: lock("sync", SYNC)?,
            posting: lock("posting", POSTING)?,
            own_cells: OwnCells::default(),
            slot_locks: [const { OnceLock::new() }; SLOTS],
            end: Published::end(),
            durable: Published::durable(),
            own_turn: Mutex::new(()),
            turn_tries: Tries::default(),
            keeping: Keeping::default(),
            slot: SLOTS,
            has_left: AtomicBool::new(false),
            said: [const { AtomicU64::new(0) }; SLOT_WORDS],
            removing: Mutex::new(()),
            slot_lock: None,
            access,
            instance: AtomicU64::new(words.words()[INSTANCE].load(Ordering::SeqCst)),
            follows: AtomicBool::new(false),
            disk: Arc::clone(disk),
            clock: Arc::clone(clock),
            patience,
            dir,
            is_first: AtomicBool::new(false),
            needs_words: AtomicBool::new(false),
            next_check: AtomicU64::new(0),
            words,
        })
    }

    fn take_slot(mut self, store: &Path) -> Result<Self, LogError> {
        for slot in 0..SLOTS {
            let slot_lock = self.disk.lock_file(&slot_path(&self.dir, slot))?;
            if slot_lock.try_lock()? {
                (self.slot, self.slot_lock) = (slot, Some(slot_lock));
                return Ok(self);
            }
        }
        Err(LogError::Locked {
            path: store.to_owned(),
            pid: None,
            who: format!(
                "in {SLOTS} processes that share it, which is the maximum; close one of them"
            ),
        })
    }

    /// The first member initializes the words; every other member checks them.
    ///
    /// # Errors
    /// `Format` if the words or the locks are of another version, or are not those that the living
    /// members use.
    pub fn begin(&self, is_first: bool, pid: u32, now_micros: u64) -> Result<(), LogError> {
        self.is_first.store(is_first, Ordering::SeqCst);
        if is_first {
            self.make_anew()?;
            self.record_files();
        } else if !self.are_words_known() {
            return Err(LogError::Format {
                message: format!(
                    "{}: other processes have the store open, and this file was removed, or is of \
                     another version; close the store everywhere, and open it again",
                    self.dir.with_file_name(WORDS_FILE).display()
                ),
            });
        } else {
            self.compare_files()?;
        }
        self.enter(pid, now_micros);
        Ok(())
    }

    /// Initializes the slot's words.
    fn enter(&self, pid: u32, now_micros: u64) {
        // Only now: until the lock's file is known to be the recorded one, the slot may belong to
        // another member.
        self.forget_posts();
        self.note_ended(self.slot);
        self.record_slot();
        for (word, value) in [
            (SlotWord::Floor, 0),
            (SlotWord::Checkpoint, 0),
            (SlotWord::BlobPin, NO_BLOB),
            (SlotWord::Holds, 0),
            (SlotWord::Removing, 0),
            (SlotWord::Applied, 0),
            (SlotWord::Pulse, 0),
            (SlotWord::Budget, 0),
            (SlotWord::Wanted, 0),
            (SlotWord::Reads, u64::from(self.is_reader())),
            (SlotWord::Since, now_micros),
            (SlotWord::Pid, u64::from(pid)),
        ] {
            self.set(word, value);
        }
    }

    /// The process's own part of the turn, which is taken before the members' part.
    pub(crate) fn own_turn(&self) -> MutexGuard<'_, ()> {
        self.own_turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Members::own_turn`]; `None` if the thread that holds it has waited for another member
    /// longer than the patience for a turn.
    pub(crate) fn own_turn_if_free_soon(&self) -> Option<MutexGuard<'_, ()>> {
        for _ in 0..self.patience.as_millis().max(1) {
            match self.own_turn.try_lock() {
                Ok(own) => return Some(own),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => self.turn.sleep(),
            }
        }
        None
    }

    /// Takes the turn.
    pub(crate) fn take_turn(&self) -> Result<Got, LogError> {
        self.turn_tries.counted(|| self.turn.take(self.patience, self.here(), &|| false))
    }

    /// Takes the lock of syncs, unless `is_needless` says that a sync is no longer needed.
    pub(crate) fn take_sync(&self, is_needless: &dyn Fn() -> bool) -> Result<Got, LogError> {
        self.sync.take(self.patience, self.here(), is_needless)
    }

    /// Marks the words as complete, so that others may join.
    pub fn joined(&self) {
        match self.access {
            Access::Writes => {}
            Access::Reads => return self.join.release(),
            Access::Watches => return self.join.release_without_words(),
        }
        // If the words were lost after another member had joined, they are not marked as complete.
        if self.is_first.load(Ordering::SeqCst)
            && self.words.words()[MAGIC].swap(LAYOUT, Ordering::SeqCst) != LAYOUT
        {
            // Wake the readers of an earlier instance, which have news to read. Do so before
            // another member can join: if this process is killed here, the next one to join is a
            // first member again.
            self.ring(NEWS);
            self.tell();
        }
        self.needs_words.store(true, Ordering::SeqCst);
        self.join.release();
    }

    /// Waits for the right to leave; others neither join nor leave until [`Members::left`]. Returns
    /// whether this is the last member.
    ///
    /// # Errors
    /// As for [`Members::join`].
    pub fn leave(&self) -> Result<bool, LogError> {
        if !self.may_write_words() {
            return Ok(false);
        }
        self.join.take(self.patience, self.here(), &|| false)?;
        if self.access == Access::Writes {
            // Read-only processes that stay open learn from this that they follow no member any
            // more.
            self.check_names().map_err(|error| self.note_lost(error.into()))?;
        }
        Ok(self.writers()?.is_empty())
    }

    /// Releases the slot and all locks.
    pub fn left(&self) {
        if !self.may_write_words() {
            return;
        }
        self.needs_words.store(false, Ordering::SeqCst);
        self.no_keeper(self.slot);
        self.set(SlotWord::Pid, 0);
        // Set before the slot can belong to another member.
        self.has_left.store(true, Ordering::SeqCst);
        self.give_keeping_back();
        if let Some(lock) = &self.slot_lock {
            lock.unlock();
        }
        self.join.release();
        // If this member was the keeper, another one must replace it.
        self.tell();
    }

    /// The number by which the words refer to this member: its slot, counted from one.
    fn here(&self) -> u64 {
        self.slot as u64 + 1
    }

    /// The number of this member's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Promises to open no moment below `floor`.
    pub fn set_floor(&self, floor: Glsn) {
        self.set(SlotWord::Floor, floor.0);
    }

    /// Publishes the checkpoint of this member's manifest.
    pub fn set_checkpoint(&self, checkpoint: Glsn) {
        let (_, before, _) = self.own_needs();
        self.set(SlotWord::Checkpoint, checkpoint.0);
        if (before.next()..=checkpoint).contains(&self.close_wanted()) {
            // The keeper may free the log now.
            self.tell();
        }
    }

    /// The needs that this member has published: its floor (older snapshots), its checkpoint and
    /// the last GLSN that it has applied (the log after both).
    pub fn own_needs(&self) -> (Glsn, Glsn, Glsn) {
        if !self.may_write_words() {
            return (Glsn::NONE, Glsn::NONE, Glsn::NONE);
        }
        let word = |word| Glsn(self.slot_word(self.slot, word).load(Ordering::SeqCst));
        (word(SlotWord::Floor), word(SlotWord::Checkpoint), word(SlotWord::Applied))
    }

    /// Publishes that this member has applied the log up to `applied`, and needs the log after it.
    /// Law: [`Members::set_checkpoint`] was called before, and covers the part of the log that the
    /// memtables still need.
    pub fn set_applied(&self, applied: Glsn) {
        self.set(SlotWord::Applied, applied.0);
    }

    /// The GLSN up to which a member applies the log before it orders a record. It is constant
    /// while the caller holds the turn.
    pub fn to_be_known(&self) -> Glsn {
        Glsn(self.word(TO_BE_KNOWN))
    }

    /// From now on, members apply the record at `glsn` before they order another one. Law: the
    /// caller holds the turn and orders that record next. (If it fails to do so, members apply more
    /// than they need.)
    pub fn set_to_be_known(&self, glsn: Glsn) {
        self.words.words()[TO_BE_KNOWN].fetch_max(glsn.0, Ordering::SeqCst);
    }

    /// The first GLSN of the log, as published by the members that trim it.
    pub fn log_first(&self) -> Glsn {
        Glsn(self.word(LOG_FIRST))
    }

    /// The log begins here from now on.
    pub(crate) fn set_log_first(&self, first: Glsn) {
        self.words.words()[LOG_FIRST].fetch_max(first.0, Ordering::SeqCst);
    }

    /// Where the log ends, for all members.
    pub(crate) fn end(&self) -> End {
        End::of(self.end.read(&*self.words))
    }

    /// The GLSN of the next entry of the log, whichever member orders it.
    pub fn next(&self) -> Glsn {
        self.end().next
    }

    /// The last entry of the log, whichever member ordered it.
    ///
    /// # Errors
    /// `Format` if the words are lost.
    pub fn newest_ordered(&self) -> Result<Glsn, LogError> {
        let last = Glsn(self.next().0.saturating_sub(1));
        if self.are_words_whole() { Ok(last) } else { Err(self.lost_words()) }
    }

    /// Publishes a new end. Law: the caller holds the turn.
    pub(crate) fn set_end(&self, end: &End) {
        self.end.write(&*self.words, end.words());
    }

    /// The durable end of the log.
    pub(crate) fn durable(&self) -> Durable {
        Durable::of(self.durable.read(&*self.words))
    }

    /// The last durable GLSN, whichever member synced it.
    pub fn durable_glsn(&self) -> Glsn {
        Glsn(self.durable().next.0.saturating_sub(1))
    }

    /// Publishes the durable end, and wakes the threads that wait for it. Law: the caller holds the
    /// lock of syncs.
    pub(crate) fn set_durable(&self, durable: &Durable) {
        self.durable.write(&*self.words, durable.words());
        self.sync.wake_all();
        self.wake_group();
        if self.word(FOLLOWERS) > 0 {
            self.ring(NEWS);
        }
        // Cleared first: the comment at `RESTING` states the cost if this member is killed before
        // it wakes the others. The fence pairs with the one in `rest`.
        fence(Ordering::SeqCst);
        if self.word(RESTING) > 0 && self.words.words()[RESTING].swap(0, Ordering::SeqCst) > 0 {
            self.tell();
        }
    }

    /// Publishes the end that the first member has recovered. Waiters are woken when it has joined.
    pub(crate) fn set_recovered(&self, end: &End) {
        self.durable.write(&*self.words, end.as_durable().words());
        self.set_end(end);
    }

    /// Waits until something may have become durable, or until `patience` has elapsed.
    pub(crate) fn wait_for_news(&self, patience: Duration, is_there: &dyn Fn() -> bool) {
        if !self.may_write_words() {
            return self.watch_for_news(patience, is_there);
        }
        let words = self.words.words();
        words[FOLLOWERS].fetch_add(1, Ordering::SeqCst);
        let seen = self.word(NEWS);
        if !is_there() {
            self.words.wait(NEWS, seen, patience);
        }
        words[FOLLOWERS].fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the threads of all members that wait for news, so that each checks whether its wait
    /// has ended.
    pub(crate) fn wake_followers(&self) {
        self.ring(NEWS);
    }

    /// Poisons the log for all members because a sync failed: nothing more becomes durable.
    pub(crate) fn poison(&self) {
        self.poison_as(intact::SYNC_FAILED);
    }

    fn poison_as(&self, why: u64) {
        self.words.words()[POISON].store(why, Ordering::SeqCst);
        self.sync.wake_all();
        self.wake_all_groups();
    }

    /// Whether nothing more may be ordered; [`Members::check`] returns the reason.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.word(POISON) != 0 || !self.are_words_whole()
    }

    /// The maximum number of entries of a segment: the smallest limit of any member's memory.
    pub(crate) fn entries_max(&self) -> u32 {
        self.word(ENTRIES_MAX) as u32
    }

    /// Lowers that maximum to the number of entries that this member's memory allows.
    pub(crate) fn allow_entries(&self, most: u32) {
        let most = u64::from(most);
        let lower = |now: u64| (now == 0 || now > most).then_some(most);
        let _ =
            self.words.words()[ENTRIES_MAX].fetch_update(Ordering::SeqCst, Ordering::SeqCst, lower);
    }

    /// The highest blob file id that any member has assigned.
    pub(crate) fn last_blob_id(&self) -> u64 {
        self.word(BLOB_MARK)
    }

    /// Sets that id, while this is the first member.
    pub(crate) fn set_last_blob_id(&self, id: u64) {
        self.words.words()[BLOB_MARK].store(id, Ordering::SeqCst);
    }

    /// Assigns the next blob file id, at most `last`; `None` if the words are lost.
    pub(crate) fn next_blob_id(&self, last: u64) -> Option<u64> {
        let next = |before: u64| (before < last).then(|| before + 1);
        let before = self.words.words()[BLOB_MARK]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            .ok()?;
        self.are_words_whole().then_some(before + 1)
    }

    /// Publishes that this member may be writing blob files from this id on; `None` if it writes
    /// none.
    pub(crate) fn pin_blobs(&self, from: Option<u64>) {
        self.set(SlotWord::BlobPin, from.unwrap_or(NO_BLOB));
    }

    /// No other member is writing a blob file below this id.
    pub(crate) fn oldest_blob_pin(&self) -> Result<u64, LogError> {
        // A member that has ended writes nothing: clear its slot first.
        self.others()?;
        let pins = self
            .others_in_words()
            .map(|slot| self.slot_word(slot, SlotWord::BlobPin).load(Ordering::SeqCst));
        let oldest = pins.min().unwrap_or(NO_BLOB);
        self.check_words().map(|()| oldest)
    }

    /// The number of the newest manifest that the keeper has installed.
    pub fn manifest(&self) -> u64 {
        self.word(MANIFEST)
    }

    /// Publishes that the keeper has installed a manifest, and wakes all other members.
    pub fn set_manifest(&self, number: u64) {
        // `fetch_max`: a keeper that was suspended here and then replaced does not lower the
        // number.
        self.words.words()[MANIFEST].fetch_max(number, Ordering::SeqCst);
        self.tell();
    }

    /// The GLSN up to which some member wants the index flushed.
    pub fn flush_wanted(&self) -> Glsn {
        Glsn(self.word(FLUSH_WANTED))
    }

    /// Asks the keeper to flush up to this GLSN. Wakes the members only if this was not asked for
    /// before, so that repeated requests do not wake the others, and this member itself, each time.
    pub fn want_flush(&self, glsn: Glsn) {
        if self.may_write_words()
            && self.words.words()[FLUSH_WANTED].fetch_max(glsn.0, Ordering::SeqCst) < glsn.0
        {
            self.tell();
        }
    }

    /// The GLSN up to which the keeper wants memtables closed.
    pub fn close_wanted(&self) -> Glsn {
        Glsn(self.word(CLOSE_WANTED))
    }

    /// Asks all members to close the memtables that hold anything up to this GLSN, and to have them
    /// flushed, because these memtables pin the log. Law: only the keeper calls this. A call by a
    /// keeper that was replaced in the meantime costs a needless flush, but no data.
    pub fn want_closed(&self, glsn: Glsn) {
        self.words.words()[CLOSE_WANTED].fetch_max(glsn.0, Ordering::SeqCst);
        self.tell();
    }

    /// Counts the wake-ups of [`Members::tell`].
    pub fn state(&self) -> u64 {
        self.word(STATE)
    }

    /// Wakes all members that wait for a change of the manifest, of the keeper, or of a request to
    /// the keeper.
    pub fn tell(&self) {
        self.ring(STATE);
    }

    /// Waits until [`Members::state`] differs from `seen`, or until `patience` has elapsed.
    pub fn wait_for_change(&self, seen: u64, patience: Duration) {
        self.words.wait(STATE, seen, patience);
    }

    /// As [`Members::wait_for_change`], but also ends at the next sync of a commit. `next` and
    /// `durable` are [`Members::next`] and the durable GLSN as this member read them before its
    /// last check; if either has changed since, returns at once.
    pub fn rest(&self, seen: u64, next: Glsn, durable: Glsn, patience: Duration) {
        if self.may_write_words() {
            // Set the word first: then a commit that is already published or durable is seen below,
            // and the sync of a later commit sees the word.
            self.words.words()[RESTING].store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        if self.next() == next && self.durable_glsn() == durable {
            self.wait_for_change(seen, patience);
        }
    }

    fn ring(&self, word: usize) {
        if !self.may_write_words() {
            return;
        }
        self.words.words()[word].fetch_add(1, Ordering::SeqCst);
        self.words.wake(word, u32::MAX);
    }

    fn word(&self, at: usize) -> u64 {
        self.words.words()[at].load(Ordering::SeqCst)
    }

    fn slot_word(&self, slot: usize, word: SlotWord) -> &AtomicU64 {
        let Slot(at) = Slot::of(slot);
        debug_assert!(at >= SLOTS_AT && at + SLOT_WORDS <= WORDS);
        &self.words.words()[at + word as usize]
    }

    fn set(&self, word: SlotWord, value: u64) {
        if self.has_left.load(Ordering::SeqCst) || !self.may_write_words() {
            return;
        }
        self.said[word as usize].store(value, Ordering::SeqCst);
        self.slot_word(self.slot, word).store(value, Ordering::SeqCst);
    }
}

/// The process id of the member that holds a lock, as the lock's word names it.
fn pid_in(words: &[AtomicU64], holder: u64) -> Option<u32> {
    let slot = usize::try_from(holder.checked_sub(1)?).ok().filter(|slot| *slot < SLOTS)?;
    let Slot(at) = Slot::of(slot);
    Some(words[at + SlotWord::Pid as usize].load(Ordering::Relaxed) as u32).filter(|pid| *pid > 0)
}

fn slot_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("{slot:02}"))
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Members({}, slot {})", self.dir.display(), self.slot)
    }
}
