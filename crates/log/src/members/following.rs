//! Processes that follow a shared store and only read.
//!
//! A read-only process that may write to the words has a slot like every member, and the members
//! retain the data that it publishes there as needed. One that may not write to the words only
//! watches: versions that it reads may be dropped, and its reads then fail. Neither takes part in
//! ordering commits: they do not hold the store's lock, take no turn, and are never the keeper.
//! They do not count in deciding which member is the first or the last.
//!
//! Invariant: a read-only process loads durable records only, because a record that is ordered and
//! not durable may be gone after all members have ended.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_disk::sharing::SharedWords;
use plimsoll_disk::vfs::Disk;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::WORDS_FILE;
use crate::members::files::Files;
use crate::members::marks::Marks;
use crate::members::slots::Slots;
use crate::members::table::Table;
use crate::members::words::{
    INSTANCE, LAST, LAYOUT, MAGIC, READER_BELL, SLOT_WORDS, SLOTS, STATE, Slot, SlotWord, WORDS,
};

/// The value of the word `MAGIC` while a process has the store open alone.
const ALONE: u64 = 1;

/// The amount that a process adds to the word `INSTANCE` when it opens the store alone (1 in the
/// upper half). The first of several members adds 1 (in the lower half).
const OPENED_ALONE: u64 = 1 << 32;

/// The members that a read-only process follows.
pub struct Following {
    table: Arc<Table>,
    marks: Arc<Marks>,
    slots: Arc<Slots>,
    files: Arc<Files>,
    /// The instance of the words that this process follows.
    instance: AtomicU64,
    follows: AtomicBool,
}

impl Following {
    pub(super) fn new(
        (table, marks, slots): (&Arc<Table>, &Arc<Marks>, &Arc<Slots>),
        files: &Arc<Files>,
    ) -> Self {
        Self {
            table: Arc::clone(table),
            marks: Arc::clone(marks),
            slots: Arc::clone(slots),
            files: Arc::clone(files),
            instance: AtomicU64::new(table.word(INSTANCE)),
            follows: AtomicBool::new(false),
        }
    }

    /// From now on, this process follows the present members, if there are any.
    pub(super) fn begin(&self, is_followed: bool) {
        self.instance.store(self.table.word(INSTANCE), Ordering::SeqCst);
        self.follows.store(is_followed, Ordering::SeqCst);
    }

    /// Whether no process has the store open to write.
    pub(super) fn is_unused(&self, store: &Path) -> bool {
        self.table.disk.is_in_use(store).is_ok_and(|is_in_use| !is_in_use)
    }

    pub(super) fn other_words(&self) -> LogError {
        let words = self.table.dir.with_file_name(WORDS_FILE);
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
        if !self.table.is_reader() {
            let durable = self.marks.durable_glsn();
            return if self.table.are_words_whole() {
                Ok(durable)
            } else {
                Err(self.table.lost_words())
            };
        }
        self.files.check_followed()?;
        // A first member never leaves the words in one of the two states below, because it keeps
        // the durable end, and writes the last word before word 0.
        let (last, first) = (self.table.word(LAST), self.table.word(MAGIC));
        let are_lost = (first == LAYOUT && last != LAYOUT)
            || (first == 0 && self.marks.durable().next == Glsn::NONE);
        if are_lost && self.follows.load(Ordering::SeqCst) {
            return Err(self.table.lost_words());
        }
        let (instance, followed) =
            (self.table.word(INSTANCE), self.instance.load(Ordering::SeqCst));
        if instance == followed {
            return Ok(if self.follows.load(Ordering::SeqCst) {
                self.marks.durable_glsn()
            } else {
                Glsn::NONE
            });
        }
        match self.table.word(MAGIC) {
            LAYOUT => {
                self.files.compare_files()?;
                self.republish();
                self.follows.store(true, Ordering::SeqCst);
                // Store the instance last, because another thread that reads it makes no further
                // checks.
                self.instance.store(instance, Ordering::SeqCst);
            }
            // A first member is joining, or was killed while it joined. The earlier durable end is
            // still published in full.
            0 if instance / OPENED_ALONE == followed / OPENED_ALONE => {}
            0 | ALONE => {
                let message = "another process has opened the store without sharing it; open it \
                     shared there, or open it here again without `shared`";
                return Err(LogError::Format { message: message.to_owned() });
            }
            _ => return Err(self.other_words()),
        }
        Ok(self.marks.durable_glsn())
    }

    /// Publishes this reader's values again if its slot was cleared, which the first member does
    /// when it does not recognize the words that it finds.
    fn republish(&self) {
        if self.table.slot < SLOTS
            && self.table.slot_word(self.table.slot, SlotWord::Pid).load(Ordering::SeqCst) == 0
        {
            // Publish the process id last, because other members examine a slot once it has one.
            self.slots.record_slot();
            for at in (0..SLOT_WORDS).rev() {
                let word = &self.table.words.words()[Slot::of(self.table.slot).0 + at];
                word.store(self.table.published[at].load(Ordering::SeqCst), Ordering::SeqCst);
            }
        }
    }
}

/// Records that a process opens the store at `store` alone from now on, and wakes the read-only
/// processes that followed other members, because its commits are not published to them.
///
/// # Errors
/// An error of the operating system.
pub fn notify_readers_of_lone_process(disk: &dyn Disk, store: &Path) -> Result<(), LogError> {
    let file = store.join(WORDS_FILE);
    if disk.entry(&file)?.is_none() {
        return Ok(());
    }
    set_alone(&*disk.shared_words(&file, WORDS)?);
    Ok(())
}

fn set_alone(words: &dyn SharedWords) {
    words.words()[MAGIC].store(ALONE, Ordering::SeqCst);
    words.words()[INSTANCE].fetch_add(OPENED_ALONE, Ordering::SeqCst);
    // Woken last, so that the readers find the new instance.
    for bell in [READER_BELL, STATE] {
        words.words()[bell].fetch_add(1, Ordering::SeqCst);
        words.wake(bell, u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_disk::clock::{Clock, SystemClock};
    use plimsoll_disk::mem::MemDisk;

    use super::*;
    use crate::members::words::{Durable, End, FOLLOWERS};
    use crate::members::{Members, NO_BLOB};

    #[test]
    fn a_reader_that_outlives_its_writers_publishes_its_values_again() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let timeout = Duration::from_millis(100);
        let write = || {
            let members = Members::join(&disk, &clock, store, timeout).unwrap();
            members.begin(true, 7, 0).unwrap();
            members.joined();
            members
        };
        let first = write();
        let reader = Arc::new(Members::join_to_read(&disk, &clock, store, timeout).unwrap());
        assert!(reader.begin_to_read(8, 1).unwrap());
        reader.budgets.first_budget(None, (32 << 20, 16 << 20), false).unwrap();
        reader.joined();
        reader.needs.set_floor(Glsn(5));
        reader.needs.set_checkpoint(Glsn(4));
        let held = reader.holds.hold_files().unwrap();
        let said = first.slots.others().unwrap();
        first.leave(&|| {}).unwrap();
        first.left();
        set_alone(&*first.table.words);
        let second = write();
        assert_eq!(second.slots.others().unwrap(), []);
        reader.following.newest().unwrap();
        assert_eq!(second.slots.others().unwrap(), said);
        assert_eq!(second.blob_ids.oldest_blob_pin().unwrap(), NO_BLOB);
        assert_eq!(reader.budgets.budget_word(reader.table.slot, SlotWord::Wanted), 32 << 20);
        assert!(second.holds.are_files_held());
        drop(held);
        assert!(!second.holds.are_files_held());
    }

    #[test]
    fn a_reader_does_not_rest_if_something_was_synced_since_it_checked() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let timeout = Duration::from_millis(100);
        let writer = Members::join(&disk, &clock, store, timeout).unwrap();
        writer.begin(true, 7, 0).unwrap();
        writer.joined();
        let reader = Members::join_to_read(&disk, &clock, store, timeout).unwrap();
        assert!(reader.begin_to_read(8, 1).unwrap());
        reader.joined();
        writer.marks.set_end(&End { next: Glsn(5), ..writer.marks.end() });
        let (seen, durable) = (reader.table.state(), reader.marks.durable_glsn());
        // The reader checks now, and finds nothing that it may read.
        let next = reader.marks.next();
        writer.syncs.set_durable(&writer.marks.end().as_durable());
        let begun = clock.monotonic_nanos();
        reader.marks.rest(seen, next, durable, Duration::from_secs(120));
        assert!(clock.monotonic_nanos() - begun < 60_000_000_000);
    }

    /// A first member that is still joining.
    fn begin_first(disk: &Arc<dyn Disk>, clock: &Arc<dyn Clock>) -> Members {
        let timeout = Duration::from_millis(100);
        let first = Members::join(disk, clock, Path::new("/"), timeout).unwrap();
        first.begin(true, 7, 0).unwrap();
        first
    }

    fn started(disk: &Arc<dyn Disk>, clock: &Arc<dyn Clock>) -> (Members, Members) {
        let (store, timeout) = (Path::new("/"), Duration::from_millis(100));
        let writer = begin_first(disk, clock);
        writer.joined();
        let reader = Members::join_to_read(disk, clock, store, timeout).unwrap();
        assert!(reader.begin_to_read(8, 1).unwrap());
        reader.joined();
        (writer, reader)
    }

    #[test]
    fn earlier_commits_are_read_while_a_first_member_joins() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (writer, reader) = started(&disk, &clock);
        writer.syncs.set_durable(&Durable { next: Glsn(5), ..Durable::default() });
        writer.leave(&|| {}).unwrap();
        writer.left();
        // The first member is killed meanwhile.
        for _ in 0..2 {
            let _joins = begin_first(&disk, &clock);
            assert_eq!(reader.following.newest().unwrap(), Glsn(4));
        }
        assert_eq!(reader.following.newest().unwrap(), Glsn(4));
        let joins = begin_first(&disk, &clock);
        joins.syncs.set_durable(&Durable { next: Glsn(6), ..Durable::default() });
        joins.joined();
        assert_eq!(reader.following.newest().unwrap(), Glsn(5));
    }

    #[test]
    fn no_read_misses_commits_of_a_process_alone_while_a_first_member_joins() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (writer, reader) = started(&disk, &clock);
        writer.leave(&|| {}).unwrap();
        writer.left();
        set_alone(&*writer.table.words);
        assert!(reader.following.newest().is_err());
        for _ in 0..2 {
            let _joins = begin_first(&disk, &clock);
            assert!(reader.following.newest().is_err());
        }
        let joins = begin_first(&disk, &clock);
        joins.syncs.set_durable(&Durable { next: Glsn(6), ..Durable::default() });
        joins.joined();
        assert_eq!(reader.following.newest().unwrap(), Glsn(5));
    }

    #[test]
    fn a_waiting_reader_is_woken_when_a_process_opens_the_store_alone() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (writer, reader) = started(&disk, &clock);
        writer.leave(&|| {}).unwrap();
        writer.left();
        let begun = clock.monotonic_nanos();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                reader.syncs.wait_for_durable(Duration::from_secs(120), &|| {
                    reader.following.newest().is_err()
                })
            });
            while reader.table.word(FOLLOWERS) == 0 && !waiting.is_finished() {
                std::thread::yield_now();
            }
            set_alone(&*writer.table.words);
        });
        assert!(clock.monotonic_nanos() - begun < 60_000_000_000);
    }

    #[test]
    fn no_read_misses_commits_of_a_lone_process_while_another_one_joins_to_read() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (clock, store): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Path::new("/"));
        let (writer, reader) = started(&disk, &clock);
        writer.leave(&|| {}).unwrap();
        writer.left();
        set_alone(&*writer.table.words);
        let joins =
            Members::join_to_read(&disk, &clock, store, Duration::from_millis(100)).unwrap();
        let rounds = if cfg!(miri) { 20 } else { 200_000 };
        std::thread::scope(|scope| {
            let joining = scope
                .spawn(|| (0..rounds).for_each(|_| assert!(!joins.begin_to_read(9, 2).unwrap())));
            while !joining.is_finished() {
                assert!(reader.following.newest().is_err());
            }
        });
    }
}
