//! Elects the member that does the background work of the index: the keeper.
//!
//! The keeper holds an operating-system lock, which is released when its process ends. A process
//! may also be suspended, or hang, and keep the lock. Then another member begins a new
//! *generation*, whose keeper has its own lock. The previous keeper has lost its role when it
//! resumes, but it may resume in the middle of any operation. Therefore a new keeper changes
//! nothing before it has installed a manifest. A previous keeper that resumes after that finds its
//! manifest number taken, and removes only files that its last installed manifest does not name.
//!
//! The keeper's word also names a member that prepares to be the keeper, because that member may be
//! suspended too and must then be replaced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_disk::sharing::LockFile;

use crate::error::LogError;
use crate::members::health::Health;
use crate::members::table::Table;
use crate::members::words::{GENERATION, KEEPER, PING, PREPARES, SLOTS, SlotWord};
use crate::members::{keeper_file, pid_in, replaced};

/// This member's state as keeper or candidate.
pub struct Keeper {
    table: Arc<Table>,
    health: Arc<Health>,
    /// The generation in which this member is the keeper or a candidate, and its lock.
    held: Mutex<Option<Held>>,
    /// The number of times that it became the keeper.
    terms: AtomicU64,
}

#[derive(Debug)]
struct Held {
    generation: u64,
    lock: Box<dyn LockFile>,
}

impl Keeper {
    pub(super) fn new(table: &Arc<Table>, health: &Arc<Health>) -> Self {
        Self {
            table: Arc::clone(table),
            health: Arc::clone(health),
            held: Mutex::new(None),
            terms: AtomicU64::new(0),
        }
    }

    /// Records the file of a keeper's lock, or fails if another file is recorded. The caller must
    /// hold that lock.
    pub(super) fn record_keeper(
        &self,
        generation: u64,
        lock: &dyn LockFile,
        path: &Path,
    ) -> Result<(), LogError> {
        let at = keeper_file(generation);
        let identity = lock.identity();
        match self.table.words.words()[at].compare_exchange(
            0,
            identity,
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            Err(recorded) if recorded != identity => Err(self.health.note_lost(replaced(path))),
            _ => Ok(()),
        }
    }

    /// Tries to acquire the right to do the background work of the index, if no member has it. A
    /// member that gets it prepares and calls [`Keeper::keep`], or releases the right. Only one
    /// thread of a process may call this at a time.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn try_acquire(&self) -> Result<bool, LogError> {
        if self.table.is_reader() {
            return Ok(false);
        }
        self.table.check_words()?;
        self.try_generation(self.table.word(GENERATION))
    }

    /// Like [`Keeper::try_acquire`], but replaces the keeper for which [`Keeper::heartbeat`]
    /// returned `stopped` and which does not answer. That member is no longer the keeper.
    ///
    /// # Errors
    /// As for [`Keeper::try_acquire`].
    pub fn try_to_replace(&self, stopped: (u64, u64)) -> Result<bool, LogError> {
        let generation = self.table.word(GENERATION);
        self.table.check_words()?;
        if self.table.is_reader()
            || self.heartbeat() != stopped
            || !self.try_lock(generation + 1)?
        {
            return Ok(false);
        }
        // Another member may have replaced it first.
        let words = self.table.words.words();
        if words[GENERATION]
            .compare_exchange(generation, generation + 1, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            self.release();
            return Ok(false);
        }
        words[KEEPER].store(self.table.here() | PREPARES, Ordering::SeqCst);
        Ok(true)
    }

    fn try_generation(&self, generation: u64) -> Result<bool, LogError> {
        let before = self.table.word(KEEPER);
        if !self.try_lock(generation)? {
            return Ok(false);
        }
        if self.table.word(GENERATION) == generation {
            // If a new generation has named another member meanwhile, this one is not named.
            let prepares = self.table.here() | PREPARES;
            let _ = self.table.words.words()[KEEPER].compare_exchange(
                before,
                prepares,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            return Ok(true);
        }
        self.release();
        Ok(false)
    }

    fn try_lock(&self, generation: u64) -> Result<bool, LogError> {
        let mut held = self.held();
        if held.is_some() {
            return Ok(false);
        }
        // There are as many lock files as members, so one is free.
        let path = self.path_of_keeper_lock(generation);
        let lock = self.table.disk.lock_file(&path)?;
        if !lock.try_lock()? {
            return Ok(false);
        }
        self.record_keeper(generation, &*lock, &path)?;
        *held = Some(Held { generation, lock });
        Ok(true)
    }

    fn path_of_keeper_lock(&self, generation: u64) -> PathBuf {
        self.table.dir.join(format!("keeper-{:02}", generation % SLOTS as u64))
    }

    /// The generation of keepers, and the path of its lock.
    pub(super) fn keeper_lock_path(&self) -> (u64, PathBuf) {
        let generation = self.table.word(GENERATION);
        (generation, self.path_of_keeper_lock(generation))
    }

    /// Fails if this member holds a keeper's lock whose file has lost its name.
    pub(super) fn check_keeper_lock(&self) -> io::Result<()> {
        self.held().as_ref().map_or(Ok(()), |held| held.lock.check())
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this member still has the right that [`Keeper::try_acquire`] acquired. Another
    /// member may have begun a new generation because this one was suspended while it prepared.
    pub fn may_keep(&self) -> bool {
        self.held().as_ref().is_some_and(|held| held.generation == self.table.word(GENERATION))
    }

    /// Makes this member the keeper, if it still may be. Returns whether it is.
    pub fn keep(&self) -> bool {
        if !self.may_keep() {
            return false;
        }
        self.terms.fetch_add(1, Ordering::SeqCst);
        self.table.words.words()[KEEPER].store(self.table.here(), Ordering::SeqCst);
        // If a new generation was begun just now, this member has overwritten the name of its
        // keeper. Then there is no keeper, and the next candidate starts again.
        if !self.may_keep() {
            self.table.no_keeper(self.table.slot);
        }
        self.is_keeper()
    }

    /// Releases the right that [`Keeper::try_acquire`] acquired.
    pub fn release(&self) {
        if let Some(held) = self.held().take() {
            self.table.clear_keeper(self.table.here() | PREPARES);
            held.lock.unlock();
        }
    }

    /// Gives up the role of keeper, because a keeper that this member had replaced has installed a
    /// manifest after this member's own. The next keeper, which may be this member again, begins a
    /// new term and does not finish work of an earlier term.
    pub fn resign(&self) {
        // Resign under this lock, so that no other thread becomes the keeper in between.
        let mut held = self.held();
        if self.table.no_keeper(self.table.slot)
            && let Some(held) = held.take()
        {
            held.lock.unlock();
        }
    }

    /// Releases this member's keeper lock if another member has replaced it as keeper.
    pub fn release_if_replaced(&self) {
        if self.terms() > 0 && !self.is_keeper() {
            self.release();
        }
    }

    /// The process id of the keeper, if known.
    pub fn pid(&self) -> Option<u32> {
        pid_in(self.table.words.words(), self.table.word(KEEPER))
    }

    /// Whether this member is the keeper.
    pub fn is_keeper(&self) -> bool {
        self.table.word(KEEPER) == self.table.here()
            && !self.table.has_left.load(Ordering::SeqCst)
            && self.terms() > 0
    }

    fn terms(&self) -> u64 {
        self.terms.load(Ordering::SeqCst)
    }

    /// The number of terms in which this member has been the keeper; `None` if it is not the keeper
    /// now. Work that was begun in another term must not be finished.
    pub fn term(&self) -> Option<u64> {
        self.is_keeper().then(|| self.terms())
    }

    /// A value that changes whenever the keeper, or the member that prepares to be it, answers a
    /// ping or is replaced. A keeper whose value does not change is suspended or hangs.
    pub fn heartbeat(&self) -> (u64, u64) {
        let keeper = self.table.word(KEEPER);
        let slot = (keeper & !PREPARES)
            .checked_sub(1)
            .map(|slot| slot as usize)
            .filter(|slot| *slot < SLOTS);
        (
            keeper,
            slot.map_or(0, |slot| {
                self.table.slot_word(slot, SlotWord::Pulse).load(Ordering::SeqCst)
            }),
        )
    }

    /// Asks all members to show that they are running.
    pub fn ping(&self) {
        self.table.ring(PING);
    }

    /// Waits for a ping, at most for `timeout`, and answers it. `pings`: the number of pings
    /// that were answered before.
    pub fn answer_ping(&self, pings: u64, timeout: Duration) -> u64 {
        self.table.words.wait(PING, pings, timeout);
        self.answer_pings(pings)
    }

    /// Like [`Keeper::answer_ping`], without waiting for one.
    pub fn answer_pings(&self, pings: u64) -> u64 {
        let seen = self.table.word(PING);
        if seen != pings && !self.table.has_left.load(Ordering::SeqCst) {
            self.table.slot_word(self.table.slot, SlotWord::Pulse).fetch_add(1, Ordering::SeqCst);
        }
        seen
    }
}
