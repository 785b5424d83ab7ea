//! Processes that follow a shared store and only read.
//!
//! A read-only process that may write to the words has a slot like every member, and what it
//! publishes there as needed is retained. One that may not write to the words only watches:
//! versions that it reads may be dropped, and its reads then fail. Neither takes part in ordering
//! commits: they do not hold the store's lock, take no turn, and are never the keeper. They do not
//! count in deciding which member is the first or the last.
//!
//! Law: a read-only process loads durable records only, because a record that is ordered and not
//! durable may be gone after all members have ended.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::sharing::{LockFile, SharedWords};
use plimsoll_disk::vfs::Disk;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::words::{
    CELLS_AT, DURABLE, FILES_AT, FOLLOWERS, INSTANCE, KEEPER_FILES, LAST, MAGIC, MEMORY_TOTAL,
    NEWS, SLOT_FILES, SLOT_WORDS, SLOTS, SLOTS_AT, SLOTS_END, STATE, Slot, SlotWord, WORDS,
};
use crate::members::{LAYOUT, Member, Members, WORDS_FILE, slot_path};

/// How often a process that cannot be woken polls for news.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// The value of the words while a process has the store open alone.
const ALONE: u64 = 1;

/// The bits of the first instance.
const SEED_MASK: u64 = (1 << 30) - 1;

/// The amount that a process adds to the instance when it opens the store alone. A first member
/// adds 1.
const OPENED_ALONE: u64 = 1 << 32;

/// How a process uses a shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads and writes.
    Writes,
    /// It reads, and has a slot.
    Reads,
    /// It reads, and may not write to the words.
    Watches,
}

impl Members {
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
        patience: Duration,
    ) -> Result<Self, LogError> {
        match Self::open(disk, clock, store, patience, Access::Reads) {
            Ok(joining) => {
                joining.join.take(patience, 0, &|| false)?;
                match joining.take_slot(store) {
                    Err(error) if is_forbidden(&error) => {}
                    joined => return joined,
                }
            }
            Err(error) if is_forbidden(&error) => {}
            Err(error) => return Err(error),
        }
        let watching = Self::open(disk, clock, store, patience, Access::Watches)?;
        watching.join.take_without_words(patience)?;
        Ok(watching)
    }

    /// After [`Members::join_to_read`]: returns whether there are writing members to follow. If
    /// there are none, nothing changes until one joins.
    ///
    /// # Errors
    /// `Format` if the words are of another version, or are not those that the living members use;
    /// the system.
    pub fn begin_to_read(&self, pid: u32, now_micros: u64) -> Result<bool, LogError> {
        let is_followed = match self.writers() {
            // No process has the store open: it is a copy, or its shared files were removed after
            // all processes had ended.
            Err(LogError::Format { .. })
                if self.dir.parent().is_some_and(|store| self.is_unused(store)) =>
            {
                if self.may_write_words() {
                    self.forget_strayed()?;
                }
                false
            }
            writers => !writers?.is_empty(),
        };
        if self.may_write_words() && self.others()?.is_empty() {
            // The value is from an earlier instance.
            self.words.words()[MEMORY_TOTAL].store(0, Ordering::SeqCst);
        }
        match (self.may_write_words(), is_followed) {
            (true, true) => self.begin(false, pid, now_micros)?,
            // The checks of the words apply to members; while there are none, the words mean
            // nothing.
            (true, false) => self.enter(pid, now_micros),
            (false, true) if !self.are_words_known() => return Err(self.other_words()),
            (false, true) => self.compare_files()?,
            (false, false) => {}
        }
        self.instance.store(self.word(INSTANCE), Ordering::SeqCst);
        self.follows.store(is_followed, Ordering::SeqCst);
        Ok(is_followed)
    }

    /// Whether no process has the store open to write.
    fn is_unused(&self, store: &Path) -> bool {
        self.disk.is_in_use(store).is_ok_and(|is_in_use| !is_in_use)
    }

    fn other_words(&self) -> LogError {
        let words = self.dir.with_file_name(WORDS_FILE);
        let message = format!(
            "{}: processes of another version share the store; use their version",
            words.display()
        );
        LogError::Format { message }
    }

    /// The newest entry that may be read here: the last durable one. A read-only process that has
    /// outlived the members that it followed reads up to the last commit of these, or of the
    /// members that joined after them.
    ///
    /// # Errors
    /// `Format` if a process has opened the store alone and no member has joined since, because its
    /// commits are not published. `Format` if the words are lost; the system's error if their file
    /// was replaced.
    pub fn newest(&self) -> Result<Glsn, LogError> {
        if !self.is_reader() {
            let durable = self.durable_glsn();
            return if self.are_words_whole() { Ok(durable) } else { Err(self.lost_words()) };
        }
        self.check_followed()?;
        // A first member never leaves this state: it keeps the durable end, and writes the last
        // word before word 0.
        let (last, first) = (self.word(LAST), self.word(MAGIC));
        let are_lost = (first == LAYOUT && last != LAYOUT)
            || (first == 0 && self.durable().next == Glsn::NONE);
        if are_lost && self.follows.load(Ordering::SeqCst) {
            return Err(self.lost_words());
        }
        let (instance, followed) = (self.word(INSTANCE), self.instance.load(Ordering::SeqCst));
        if instance == followed {
            return Ok(if self.follows.load(Ordering::SeqCst) {
                self.durable_glsn()
            } else {
                Glsn::NONE
            });
        }
        match self.word(MAGIC) {
            LAYOUT => {
                self.compare_files()?;
                self.come_back();
                self.follows.store(true, Ordering::SeqCst);
                // Stored last: another thread that reads it makes no further checks.
                self.instance.store(instance, Ordering::SeqCst);
            }
            // A first member is joining, or was killed while it joined: the earlier durable end is
            // still published, completely.
            0 if instance / OPENED_ALONE == followed / OPENED_ALONE => {}
            0 | ALONE => {
                let message = "another process opened the store for itself; open it shared there, \
                               or open it here again without following";
                return Err(LogError::Format { message: message.to_owned() });
            }
            _ => return Err(self.other_words()),
        }
        Ok(self.durable_glsn())
    }

    /// Publishes this reader's values again, because the first member has initialized the words and
    /// may not have kept its slot.
    fn come_back(&self) {
        if self.slot < SLOTS && self.slot_word(self.slot, SlotWord::Pid).load(Ordering::SeqCst) == 0
        {
            // The process id last, because other members examine a slot once it has one.
            self.record_slot();
            for at in (0..SLOT_WORDS).rev() {
                let word = &self.words.words()[Slot::of(self.slot).0 + at];
                word.store(self.said[at].load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }
    }

    /// The living members that write.
    ///
    /// # Errors
    /// The system.
    pub fn writers(&self) -> Result<Vec<Member>, LogError> {
        let mut writers = self.others()?;
        writers.retain(|member| !member.is_reader);
        Ok(writers)
    }

    /// Whether this process only reads.
    pub fn is_reader(&self) -> bool {
        self.access != Access::Writes
    }

    /// Whether other members retain what this process reads.
    pub fn has_slot(&self) -> bool {
        self.slot < SLOTS
    }

    /// Whether this process may write to the words.
    pub(super) fn may_write_words(&self) -> bool {
        self.access != Access::Watches
    }

    /// The lock of a slot, if its file is the one that is recorded.
    pub(super) fn lock_of(&self, slot: usize) -> Result<Box<dyn LockFile>, LogError> {
        let lock = self.open_slot(slot)?;
        self.compare_slot(slot, &*lock)?;
        Ok(lock)
    }

    pub(super) fn open_slot(&self, slot: usize) -> Result<Box<dyn LockFile>, LogError> {
        let path = slot_path(&self.dir, slot);
        Ok(if self.may_write_words() {
            self.disk.lock_file(&path)?
        } else {
            self.disk.lock_file_to_read(&path)?
        })
    }

    /// Waits until `is_there` returns true, or until `patience` has elapsed, by polling.
    pub(super) fn watch_for_news(&self, patience: Duration, is_there: &dyn Fn() -> bool) {
        let rounds = patience.as_millis() / WATCH_INTERVAL.as_millis() + 1;
        for _ in 0..rounds {
            if is_there() {
                return;
            }
            self.words.wait(STATE, self.state(), WATCH_INTERVAL.min(patience));
        }
    }

    /// Initializes the words, as the first member. The values that read-only processes have
    /// published stay, and so does the durable end, which these processes use until others may
    /// join.
    pub(super) fn make_anew(&self) -> Result<(), LogError> {
        let words = self.words.words();
        let is_known = self.are_words_known();
        let (instance, total) = (self.word(INSTANCE), self.word(MEMORY_TOTAL));
        // If the words were cleared, choose an instance that differs from any that earlier readers
        // may have followed.
        let instance = if instance == 0 { self.clock.wall_micros() & SEED_MASK } else { instance };
        words[MAGIC].store(0, Ordering::SeqCst);
        // Written first and never cleared, so that a process that is killed in between has begun an
        // instance as well.
        words[INSTANCE].store(instance.wrapping_add(1), Ordering::SeqCst);
        if is_known {
            self.forget_strayed()?;
        }
        let readers = if is_known { self.others()? } else { Vec::new() };
        // Earlier readers may be waiting, and decrement these counters when their wait ends. A
        // counter that is too high costs some needless wake-ups.
        let is_kept =
            |at: &usize| [INSTANCE, FOLLOWERS, NEWS, STATE].contains(at) || DURABLE.contains(at);
        let shared_by_all = (1..SLOTS_AT)
            .filter(|at| !is_kept(at))
            .chain(SLOTS_END..CELLS_AT)
            .chain(FILES_AT..SLOT_FILES)
            .chain(KEEPER_FILES..LAST);
        shared_by_all.for_each(|at| words[at].store(0, Ordering::SeqCst));
        if !readers.is_empty() {
            words[MEMORY_TOTAL].store(total, Ordering::SeqCst);
        }
        for slot in (0..SLOTS).filter(|slot| *slot != self.slot) {
            let is_read =
                is_known && self.slot_word(slot, SlotWord::Pid).load(Ordering::SeqCst) > 0;
            if !is_read {
                let Slot(at) = Slot::of(slot);
                words[at..WORDS.min(at + crate::members::words::SLOT_WORDS)]
                    .iter()
                    .for_each(|word| word.store(0, Ordering::SeqCst));
                words[SLOT_FILES + slot].store(0, Ordering::SeqCst);
            }
        }
        Ok(())
    }
}

/// Records that a process opens the store at `store` alone from now on, and wakes the read-only
/// processes that followed other members: its commits are not published to them.
///
/// # Errors
/// The system.
pub fn tell_readers_of_one_alone(disk: &dyn Disk, store: &Path) -> Result<(), LogError> {
    let file = store.join(WORDS_FILE);
    if disk.entry(&file)?.is_none() {
        return Ok(());
    }
    say_alone(&*disk.shared_words(&file, WORDS)?);
    Ok(())
}

fn say_alone(words: &dyn SharedWords) {
    words.words()[MAGIC].store(ALONE, Ordering::SeqCst);
    words.words()[INSTANCE].fetch_add(OPENED_ALONE, Ordering::SeqCst);
    // Woken last, so that the readers find the new instance.
    for bell in [NEWS, STATE] {
        words.words()[bell].fetch_add(1, Ordering::SeqCst);
        words.wake(bell, u32::MAX);
    }
}

fn is_forbidden(error: &LogError) -> bool {
    let forbidden = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];
    matches!(error, LogError::Io { kind, .. } if forbidden.contains(kind))
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::clock::SystemClock;
    use plimsoll_disk::mem::MemDisk;

    use super::*;
    use crate::members::NO_BLOB;
    use crate::members::words::{Durable, End};

    #[test]
    fn a_reader_that_outlives_its_writers_publishes_its_values_again() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let patience = Duration::from_millis(100);
        let write = || {
            let members = Members::join(&disk, &clock, store, patience).unwrap();
            members.begin(true, 7, 0).unwrap();
            members.joined();
            members
        };
        let first = write();
        let reader = Arc::new(Members::join_to_read(&disk, &clock, store, patience).unwrap());
        assert!(reader.begin_to_read(8, 1).unwrap());
        reader.first_budget(None, 32 << 20, 16 << 20).unwrap();
        reader.joined();
        reader.set_floor(Glsn(5));
        reader.set_checkpoint(Glsn(4));
        let held = reader.hold_files().unwrap();
        let said = first.others().unwrap();
        first.leave().unwrap();
        first.left();
        say_alone(&*first.words);
        let second = write();
        assert_eq!(second.others().unwrap(), []);
        reader.newest().unwrap();
        assert_eq!(second.others().unwrap(), said);
        assert_eq!(second.oldest_blob_pin().unwrap(), NO_BLOB);
        assert_eq!(reader.budget_word(reader.slot, SlotWord::Wanted), 32 << 20);
        assert!(second.are_files_held());
        drop(held);
        assert!(!second.are_files_held());
    }

    #[test]
    fn a_reader_does_not_rest_if_something_was_synced_since_it_checked() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let patience = Duration::from_millis(100);
        let writer = Members::join(&disk, &clock, store, patience).unwrap();
        writer.begin(true, 7, 0).unwrap();
        writer.joined();
        let reader = Members::join_to_read(&disk, &clock, store, patience).unwrap();
        assert!(reader.begin_to_read(8, 1).unwrap());
        reader.joined();
        writer.set_end(&End { next: Glsn(5), ..writer.end() });
        let (seen, durable) = (reader.state(), reader.durable_glsn());
        // It checks now, and finds nothing that it may read.
        let next = reader.next();
        writer.set_durable(&writer.end().as_durable());
        let begun = clock.monotonic_nanos();
        reader.rest(seen, next, durable, Duration::from_secs(120));
        assert!(clock.monotonic_nanos() - begun < 60_000_000_000);
    }

    fn started(disk: &Arc<dyn Disk>, clock: &Arc<dyn Clock>) -> (Members, Members) {
        let (store, patience) = (Path::new("/"), Duration::from_millis(100));
        let writer = Members::join(disk, clock, store, patience).unwrap();
        writer.begin(true, 7, 0).unwrap();
        writer.joined();
        let reader = Members::join_to_read(disk, clock, store, patience).unwrap();
        assert!(reader.begin_to_read(8, 1).unwrap());
        reader.joined();
        (writer, reader)
    }

    #[test]
    fn earlier_commits_are_read_while_a_first_member_joins() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let patience = Duration::from_millis(100);
        let (writer, reader) = started(&disk, &clock);
        writer.set_durable(&Durable { next: Glsn(5), ..Durable::default() });
        writer.leave().unwrap();
        writer.left();
        // The first member is killed meanwhile.
        for _ in 0..2 {
            let joins = Members::join(&disk, &clock, store, patience).unwrap();
            joins.begin(true, 7, 0).unwrap();
            assert_eq!(reader.newest().unwrap(), Glsn(4));
        }
        assert_eq!(reader.newest().unwrap(), Glsn(4));
        let joins = Members::join(&disk, &clock, store, patience).unwrap();
        joins.begin(true, 7, 0).unwrap();
        joins.set_durable(&Durable { next: Glsn(6), ..Durable::default() });
        joins.joined();
        assert_eq!(reader.newest().unwrap(), Glsn(5));
    }

    #[test]
    fn no_read_misses_commits_of_a_process_alone_while_a_first_member_joins() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let patience = Duration::from_millis(100);
        let (writer, reader) = started(&disk, &clock);
        writer.leave().unwrap();
        writer.left();
        say_alone(&*writer.words);
        assert!(reader.newest().is_err());
        for _ in 0..2 {
            let joins = Members::join(&disk, &clock, store, patience).unwrap();
            joins.begin(true, 7, 0).unwrap();
            assert!(reader.newest().is_err());
        }
        let joins = Members::join(&disk, &clock, store, patience).unwrap();
        joins.begin(true, 7, 0).unwrap();
        joins.set_durable(&Durable { next: Glsn(6), ..Durable::default() });
        joins.joined();
        assert_eq!(reader.newest().unwrap(), Glsn(5));
    }

    #[test]
    fn a_waiting_reader_is_woken_when_a_process_opens_the_store_alone() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (writer, reader) = started(&disk, &clock);
        writer.leave().unwrap();
        writer.left();
        let begun = clock.monotonic_nanos();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                reader.wait_for_news(Duration::from_secs(120), &|| reader.newest().is_err())
            });
            while reader.word(FOLLOWERS) == 0 && !waiting.is_finished() {
                std::thread::yield_now();
            }
            say_alone(&*writer.words);
        });
        assert!(clock.monotonic_nanos() - begun < 60_000_000_000);
    }

    #[test]
    fn commits_of_one_that_has_the_store_alone_are_missed_by_no_read_while_another_one_joins_to_read()
     {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let (writer, reader) = started(&disk, &clock);
        writer.leave().unwrap();
        writer.left();
        say_alone(&*writer.words);
        let joins =
            Members::join_to_read(&disk, &clock, store, Duration::from_millis(100)).unwrap();
        let rounds = if cfg!(miri) { 20 } else { 200_000 };
        std::thread::scope(|scope| {
            let joining = scope
                .spawn(|| (0..rounds).for_each(|_| assert!(!joins.begin_to_read(9, 2).unwrap())));
            while !joining.is_finished() {
                assert!(reader.newest().is_err());
            }
        });
    }
}
