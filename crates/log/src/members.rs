//! The members of a store: the processes that have it open together, to read and to write.
//!
//! Every member tails the one log. Beside its files, members share operating-system locks, which
//! are released when their process ends ([`lock`]), and a few words of shared memory ([`words`]),
//! which hold the end of the log and its durable end. The words are a cache of the log: the first
//! member initializes them, and nothing depends on their earlier contents except read-only
//! processes that were open before ([`following`]).
//!
//! Locks, in the order in which they are taken: `join` (while joining and leaving), `posting` (to
//! order and sync the records of several members; see [`posts`]), `turn` (to order a record),
//! `sync` (to make records durable), `keeper` (for as long as a member does the background work of
//! the index; see [`keeper`]), and one for each slot, which its member holds until it ends: a free
//! slot lock proves that the member has ended.

pub mod blob_ids;
pub mod budgets;
pub mod files;
pub mod following;
mod gathering;
pub mod health;
pub mod holds;
pub mod keeper;
pub(crate) mod lock;
pub mod marks;
pub mod needs;
pub mod posts;
pub mod requests;
pub mod slots;
pub mod syncs;
pub mod table;
pub(crate) mod tries;
pub mod turns;
pub(crate) mod words;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::sharing::{LockFile, SharedWords};
use plimsoll_disk::vfs::Disk;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::blob_ids::BlobIds;
use crate::members::budgets::Budgets;
use crate::members::files::Files;
use crate::members::following::Following;
use crate::members::health::Health;
use crate::members::holds::Holds;
use crate::members::keeper::Keeper;
use crate::members::lock::{MemberLock, Places};
use crate::members::marks::Marks;
use crate::members::needs::Needs;
use crate::members::posts::Posts;
pub use crate::members::requests::RequestKind;
use crate::members::requests::Requests;
use crate::members::slots::Slots;
pub use crate::members::slots::{Member, members_of};
use crate::members::syncs::Syncs;
use crate::members::table::{Access, Table};
use crate::members::turns::Turns;
use crate::members::words::{
    CELLS_AT, DURABLE, FILES_AT, FOLLOWERS, INSTANCE, JOIN, KEEPER_FILES, LAST, LAYOUT, MAGIC,
    MEMORY_TOTAL, POSTING, READER_BELL, SLOT_FILES, SLOT_WORDS, SLOTS, SLOTS_AT, SLOTS_END, STATE,
    SYNC, Slot, SlotWord, TURN, WORDS,
};

/// The folder of the locks, in the store's folder.
pub const LOCKS_DIR: &str = "members";

/// The file of the words, in the store's folder.
pub const WORDS_FILE: &str = "SHARED";

/// The most processes that can share a store: each has a slot in the words.
pub const MAX_PROCESSES: usize = SLOTS;

/// The time for which a member waits for another one before it reports that member as stalled.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// No blob file is being written.
const NO_BLOB: u64 = u64::MAX;

/// The remedy for files or words that are lost.
const REMEDY: &str = "close the store in every process, then open it again";

/// The bits of the clock from which the first value of the word `INSTANCE` is made.
const SEED_MASK: u64 = (1 << 30) - 1;

/// This process's part in a store that several processes have open: the owners of its state, each
/// of which knows only those before it. This type joins and leaves.
pub struct Members {
    /// The shared words, and this process's slot.
    pub table: Arc<Table>,
    /// The ends of the log, and what members want flushed.
    pub marks: Arc<Marks>,
    /// The slots of all members.
    pub slots: Arc<Slots>,
    /// The right to append.
    pub turns: Arc<Turns>,
    /// Records that members leave for the one that orders them.
    pub posts: Arc<Posts>,
    /// The lock of syncs.
    pub syncs: Arc<Syncs>,
    /// Whether the log is poisoned.
    pub health: Arc<Health>,
    /// The election of the member that does the background work.
    pub keeper: Arc<Keeper>,
    /// Checks of the shared files.
    pub files: Arc<Files>,
    /// The members that a read-only process follows.
    pub following: Following,
    /// Holds of files.
    pub holds: Arc<Holds>,
    /// This member's memory.
    pub budgets: Budgets,
    /// Requests to the keeper.
    pub requests: Requests,
    /// The needs of this member.
    pub needs: Needs,
    /// Ids of blob files.
    pub blob_ids: BlobIds,
    join: Arc<MemberLock>,
    /// Whether this member holds `join` in order to leave.
    is_leaving: AtomicBool,
    /// Whether this member initializes the words.
    is_first: AtomicBool,
}

/// The shared files of a process that has no slot yet.
struct Joining {
    words: Arc<dyn SharedWords>,
    join: MemberLock,
    turn: MemberLock,
    sync: MemberLock,
    posting: MemberLock,
    access: Access,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    timeout: Duration,
}

impl Joining {
    fn open(
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        store: &Path,
        timeout: Duration,
        access: Access,
    ) -> Result<Self, LogError> {
        let dir = store.join(LOCKS_DIR);
        let may_write = access != Access::Watches;
        if may_write {
            match disk.create_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
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
            join: lock("join", JOIN)?,
            turn: lock("turn", TURN)?,
            sync: lock("sync", SYNC)?,
            posting: lock("posting", POSTING)?,
            access,
            disk: Arc::clone(disk),
            clock: Arc::clone(clock),
            timeout,
            dir,
            words,
        })
    }

    /// Takes `join`. Waits for a process that joins or leaves as long as it reports that it works.
    fn wait_to_join(&self) -> Result<(), LogError> {
        self.join.wait_for_working(|| self.join.take(self.timeout, 0, &|| false)).map(drop)
    }

    /// Takes a free slot. The caller must hold `join`.
    fn take_slot(self, store: &Path) -> Result<Members, LogError> {
        for slot in 0..SLOTS {
            let slot_lock = self.disk.lock_file(&slot_path(&self.dir, slot))?;
            if slot_lock.try_lock()? {
                return Ok(self.end(slot, Some(slot_lock)));
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

    /// The owners of the state of a process that has this slot.
    fn end(self, slot: usize, slot_lock: Option<Box<dyn LockFile>>) -> Members {
        let table = Arc::new(Table {
            words: self.words,
            slot,
            slot_lock,
            access: self.access,
            published: [const { AtomicU64::new(0) }; SLOT_WORDS],
            has_left: AtomicBool::new(false),
            needs_words: AtomicBool::new(false),
            disk: self.disk,
            clock: self.clock,
            dir: self.dir,
            timeout: self.timeout,
        });
        let join = Arc::new(self.join);
        let marks = Arc::new(Marks::new(&table));
        let slots = Arc::new(Slots::new(&table));
        let turns = Arc::new(Turns::new(&table, self.turn));
        let posts = Arc::new(Posts::new((&table, &marks, &slots), self.posting));
        let syncs = Arc::new(Syncs::new((&table, &marks, &posts), self.sync));
        let health = Arc::new(Health::new(&table, &posts, &syncs));
        let keeper = Arc::new(Keeper::new(&table, &health));
        let files = Arc::new(Files {
            table: Arc::clone(&table),
            join: Arc::clone(&join),
            slots: Arc::clone(&slots),
            turns: Arc::clone(&turns),
            posts: Arc::clone(&posts),
            syncs: Arc::clone(&syncs),
            health: Arc::clone(&health),
            keeper: Arc::clone(&keeper),
        });
        Members {
            following: Following::new((&table, &marks, &slots), &files),
            holds: Arc::new(Holds::new(&table, &slots)),
            budgets: Budgets::new(&table, &slots, &join),
            requests: Requests::new(&table),
            needs: Needs::new(&table, &marks),
            blob_ids: BlobIds::new(&table, &slots),
            is_leaving: AtomicBool::new(false),
            is_first: AtomicBool::new(false),
            table,
            marks,
            slots,
            turns,
            posts,
            syncs,
            health,
            keeper,
            files,
            join,
        }
    }
}

impl Members {
    /// Opens the shared files, waits for the right to join, and takes a slot. The caller then finds
    /// out by the store's lock whether it is the first member ([`Members::begin`]).
    ///
    /// # Errors
    /// `Stalled` if another process that joins or leaves is suspended or takes too long; `Locked`
    /// if the number of members is at its maximum; the disk.
    pub fn join(
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        store: &Path,
        timeout: Duration,
    ) -> Result<Self, LogError> {
        let joining = Joining::open(disk, clock, store, timeout, Access::Writes)?;
        joining.wait_to_join()?;
        joining.take_slot(store)
    }

    /// A process that only watches, with no right to write to the words.
    #[cfg(test)]
    pub(crate) fn watching(
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        store: &Path,
        timeout: Duration,
    ) -> Result<Self, LogError> {
        let joining = Joining::open(disk, clock, store, timeout, Access::Watches)?;
        Ok(joining.end(SLOTS, None))
    }

    /// The first member initializes the words; every other member checks them.
    ///
    /// # Errors
    /// `Format` if the words or the locks are of another version, or are not those that the living
    /// members use.
    pub fn begin(&self, is_first: bool, pid: u32, now_micros: u64) -> Result<(), LogError> {
        self.is_first.store(is_first, Ordering::SeqCst);
        if is_first {
            self.initialize()?;
            self.files.record_files();
        } else if !self.table.are_words_known() {
            return Err(LogError::Format {
                message: format!(
                    "{}: this file was removed, or belongs to another version, while other \
                     processes have the store open; close the store everywhere, and open it again",
                    self.table.dir.with_file_name(WORDS_FILE).display()
                ),
            });
        } else {
            self.files.compare_files()?;
        }
        self.enter(pid, now_micros);
        Ok(())
    }

    /// Initializes the slot's words.
    fn enter(&self, pid: u32, now_micros: u64) {
        // Clear the posts only now: until the lock's file is known to be the recorded one, the slot
        // may belong to another member.
        self.posts.clear_posts();
        self.slots.note_ended(self.table.slot);
        self.slots.record_slot();
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
            (SlotWord::Reads, u64::from(self.table.is_reader())),
            (SlotWord::LogHeld, Glsn::MAX.0),
            (SlotWord::Since, now_micros),
            (SlotWord::Pid, u64::from(pid)),
        ] {
            self.table.set(word, value);
        }
        // Names this member to the processes that wait for `join`.
        self.report_work();
    }

    /// Whether [`Members::report_work`] has an effect.
    pub fn can_report_work(&self) -> bool {
        self.table.may_write_words()
    }

    /// Reports that this member, which joins or leaves, works: others that want to join wait for it
    /// as long as it reports.
    pub fn report_work(&self) {
        if self.can_report_work() {
            self.join.report(self.table.here());
        }
    }

    /// Marks the words as complete, so that others may join.
    pub fn joined(&self) {
        match self.table.access {
            Access::Writes => {}
            Access::Reads => return self.join.release(),
            Access::Watches => return self.join.release_unrecorded(),
        }
        // If the words were lost after another member had joined, they are not marked as complete.
        if self.is_first.load(Ordering::SeqCst)
            && self.table.words.words()[MAGIC].swap(LAYOUT, Ordering::SeqCst) != LAYOUT
        {
            // Wake the readers that followed earlier members, because there is news to read. Do so
            // before another member can join: if this process is killed here, the next one to join
            // is a first member again, and wakes them.
            self.table.ring(READER_BELL);
            self.table.notify();
        }
        self.table.needs_words.store(true, Ordering::SeqCst);
        self.join.release();
    }

    /// Waits for the right to leave; others neither join nor leave until [`Members::left`]. Returns
    /// whether this is the last member. While another member joins or leaves, `while_waiting` is
    /// called about once a millisecond: a member that joins may be waiting for memory that this
    /// member has.
    ///
    /// # Errors
    /// As for [`Members::join`].
    pub fn leave(&self, while_waiting: &dyn Fn()) -> Result<bool, LogError> {
        if !self.table.may_write_words() {
            return Ok(false);
        }
        let is_needless = || {
            while_waiting();
            false
        };
        self.join.take(self.table.timeout, self.table.here(), &is_needless)?;
        self.is_leaving.store(true, Ordering::SeqCst);
        if self.table.access == Access::Writes {
            // If the shared files have lost their names, read-only processes that stay open must
            // see that they no longer follow any member.
            self.files.check_names().map_err(|error| self.health.note_lost(error.into()))?;
        }
        Ok(self.slots.writers()?.is_empty())
    }

    /// Releases the slot and all locks.
    pub fn left(&self) {
        if !self.table.may_write_words() {
            return;
        }
        self.table.needs_words.store(false, Ordering::SeqCst);
        self.table.no_keeper(self.table.slot);
        self.table.set(SlotWord::Pid, 0);
        // Set this before the slot can belong to another member.
        self.table.has_left.store(true, Ordering::SeqCst);
        self.keeper.release();
        if let Some(lock) = &self.table.slot_lock {
            lock.unlock();
        }
        // If this member did not get `join` in time, another member has it.
        if self.is_leaving.swap(false, Ordering::SeqCst) {
            self.join.release();
        }
        // If this member was the keeper, another one must replace it.
        self.table.notify();
    }

    /// As [`Members::join`], for a read-only process. Without the right to write to the words, it
    /// gets no slot.
    ///
    /// # Errors
    /// As for [`Members::join`]; without the right to write, `NotFound` if no process ever shared
    /// the store.
    pub fn join_to_read(
        disk: &Arc<dyn Disk>,
        clock: &Arc<dyn Clock>,
        store: &Path,
        timeout: Duration,
    ) -> Result<Self, LogError> {
        match Joining::open(disk, clock, store, timeout, Access::Reads) {
            Ok(joining) => {
                joining.wait_to_join()?;
                match joining.take_slot(store) {
                    Err(error) if is_forbidden(&error) => {}
                    joined => return joined,
                }
            }
            Err(error) if is_forbidden(&error) => {}
            Err(error) => return Err(error),
        }
        let watching = Joining::open(disk, clock, store, timeout, Access::Watches)?;
        watching.join.wait_for_working(|| watching.join.take_unrecorded(timeout))?;
        Ok(watching.end(SLOTS, None))
    }

    /// After [`Members::join_to_read`]: returns whether there are writing members to follow. If
    /// there are none, nothing changes until one joins.
    ///
    /// # Errors
    /// `Format` if the words are of another version, or are not those that the living members use;
    /// the operating system.
    pub fn begin_to_read(&self, pid: u32, now_micros: u64) -> Result<bool, LogError> {
        let is_followed = match self.slots.writers() {
            // The words do not match the shared files, and no process has the store open: the store
            // is a copy, or its shared files were removed after all processes had ended.
            Err(LogError::Format { .. })
                if self.table.dir.parent().is_some_and(|store| self.following.is_unused(store)) =>
            {
                if self.table.may_write_words() {
                    self.slots.clear_mismatched()?;
                }
                false
            }
            writers => !writers?.is_empty(),
        };
        if self.table.may_write_words() && self.slots.others()?.is_empty() {
            // This total was left by members that have ended.
            self.table.words.words()[MEMORY_TOTAL].store(0, Ordering::SeqCst);
        }
        match (self.table.may_write_words(), is_followed) {
            (true, true) => self.begin(false, pid, now_micros)?,
            // The checks of the words apply to members; while there are none, the words mean
            // nothing.
            (true, false) => self.enter(pid, now_micros),
            (false, true) if !self.table.are_words_known() => {
                return Err(self.following.other_words());
            }
            (false, true) => self.files.compare_files()?,
            (false, false) => {}
        }
        self.following.begin(is_followed);
        Ok(is_followed)
    }

    /// Initializes the words, as the first member. The values that read-only processes have
    /// published stay, and so does the durable end, which these processes use until others may
    /// join.
    fn initialize(&self) -> Result<(), LogError> {
        let words = self.table.words.words();
        let is_known = self.table.are_words_known();
        let (instance, total) = (self.table.word(INSTANCE), self.table.word(MEMORY_TOTAL));
        // If the words were cleared, choose a value that differs from any that earlier readers may
        // have seen.
        let instance =
            if instance == 0 { self.table.clock.wall_micros() & SEED_MASK } else { instance };
        words[MAGIC].store(0, Ordering::SeqCst);
        // Raised before the words below are cleared, and never cleared, so that readers see a new
        // value even if this process is killed in between.
        words[INSTANCE].store(instance.wrapping_add(1), Ordering::SeqCst);
        if is_known {
            self.slots.clear_mismatched()?;
        }
        let readers = if is_known { self.slots.others()? } else { Vec::new() };
        // `FOLLOWERS` is kept because earlier readers may be waiting, and decrement it when their
        // wait ends. If it is too high, this costs some needless wake-ups.
        let is_kept = |at: &usize| {
            [INSTANCE, FOLLOWERS, READER_BELL, STATE].contains(at) || DURABLE.contains(at)
        };
        let shared_by_all = (1..SLOTS_AT)
            .filter(|at| !is_kept(at))
            .chain(SLOTS_END..CELLS_AT)
            .chain(FILES_AT..SLOT_FILES)
            .chain(KEEPER_FILES..LAST);
        shared_by_all.for_each(|at| words[at].store(0, Ordering::SeqCst));
        if !readers.is_empty() {
            words[MEMORY_TOTAL].store(total, Ordering::SeqCst);
        }
        for slot in (0..SLOTS).filter(|slot| *slot != self.table.slot) {
            let is_read =
                is_known && self.table.slot_word(slot, SlotWord::Pid).load(Ordering::SeqCst) > 0;
            if !is_read {
                let Slot(at) = Slot::of(slot);
                words[at..WORDS.min(at + SLOT_WORDS)]
                    .iter()
                    .for_each(|word| word.store(0, Ordering::SeqCst));
                words[SLOT_FILES + slot].store(0, Ordering::SeqCst);
            }
        }
        Ok(())
    }
}

/// The process id of the member that a word names: the holder of a lock, or the keeper.
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
        write!(f, "Members({}, slot {})", self.table.dir.display(), self.table.slot)
    }
}

/// The word that records the lock file of a generation of keepers.
fn keeper_file(generation: u64) -> usize {
    KEEPER_FILES + (generation % SLOTS as u64) as usize
}

/// The error of a process that has opened a different file than the processes that have the store
/// open.
fn replaced(path: &Path) -> LogError {
    let message = format!(
        "{}: the file was removed or replaced while processes shared it; {REMEDY}",
        path.display()
    );
    LogError::Format { message }
}

fn is_forbidden(error: &LogError) -> bool {
    let forbidden = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];
    matches!(error, LogError::Io { kind, .. } if forbidden.contains(kind))
}
