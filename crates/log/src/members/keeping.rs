//! Which member does the background work of the index: the keeper.
//!
//! Its right is a lock of the system, which is free once its process has ended. A process may also
//! be stopped, or hang, and keep its lock: then another member begins a new *generation*, whose
//! keeper has a lock of its own, and the one before is the keeper no more, whenever it goes on. It
//! may be in the middle of anything. So a new keeper changes nothing before it has installed a
//! manifest: an older one that goes on then finds the number of its own taken, and what it removes
//! is what a manifest that it has installed before does not name.
//!
//! One that prepares itself to be the keeper is shown in the keeper's word: it may be stopped, too,
//! and is replaced then.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_disk::sharing::LockFile;

use crate::error::LogError;
use crate::members::words::{GENERATION, KEEPER, NUDGE, SLOTS, SlotWord};
use crate::members::{Members, pid_in};

/// In the keeper's word: this one prepares itself, and is not the keeper yet.
const PREPARES: u64 = 1 << 32;

/// This member's part.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// The generation in which this member is the keeper, or wants to be, and its lock.
    held: Mutex<Option<Held>>,
    /// How often it became the keeper.
    terms: AtomicU64,
}

#[derive(Debug)]
struct Held {
    generation: u64,
    lock: Box<dyn LockFile>,
}

impl Members {
    /// Tries to get the right to do the background work of the index, if nobody has it. Whoever got
    /// it prepares and calls [`Members::keep`], or gives it back. Law: one thread of a process at a
    /// time.
    ///
    /// # Errors
    /// The system.
    pub fn try_to_keep(&self) -> Result<bool, LogError> {
        if self.is_reader() {
            return Ok(false);
        }
        self.check_words()?;
        self.try_generation(self.word(GENERATION))
    }

    /// As [`Members::try_to_keep`], in place of the keeper that [`Members::keeper_pulse`] told of,
    /// which does not answer: it is the keeper no more.
    ///
    /// # Errors
    /// As for [`Members::try_to_keep`].
    pub fn try_to_replace(&self, stopped: (u64, u64)) -> Result<bool, LogError> {
        let generation = self.word(GENERATION);
        self.check_words()?;
        if self.is_reader() || self.keeper_pulse() != stopped || !self.try_lock(generation + 1)? {
            return Ok(false);
        }
        // Others may have been faster.
        let words = self.words.words();
        if words[GENERATION]
            .compare_exchange(generation, generation + 1, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            self.give_keeping_back();
            return Ok(false);
        }
        words[KEEPER].store(self.here() | PREPARES, Ordering::SeqCst);
        Ok(true)
    }

    fn try_generation(&self, generation: u64) -> Result<bool, LogError> {
        let before = self.word(KEEPER);
        if !self.try_lock(generation)? {
            return Ok(false);
        }
        if self.word(GENERATION) == generation {
            // If another one is named meanwhile, by a new generation, this one is not to be.
            let prepares = self.here() | PREPARES;
            let _ = self.words.words()[KEEPER].compare_exchange(
                before,
                prepares,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            return Ok(true);
        }
        self.give_keeping_back();
        Ok(false)
    }

    fn try_lock(&self, generation: u64) -> Result<bool, LogError> {
        let mut held = self.held();
        if held.is_some() {
            return Ok(false);
        }
        // Among as many as there are members, one is free.
        let path = self.path_of_keeper_lock(generation);
        let lock = self.disk.lock_file(&path)?;
        if !lock.try_lock()? {
            return Ok(false);
        }
        self.record_keeper(generation, &*lock, &path)?;
        *held = Some(Held { generation, lock });
        Ok(true)
    }

    fn path_of_keeper_lock(&self, generation: u64) -> PathBuf {
        self.dir.join(format!("keeper-{:02}", generation % SLOTS as u64))
    }

    /// The generation of keepers, and the file of its lock.
    pub(super) fn keeper_lock_path(&self) -> (u64, PathBuf) {
        let generation = self.word(GENERATION);
        (generation, self.path_of_keeper_lock(generation))
    }

    /// Fails if this member holds a keeper's lock whose file has lost its name.
    pub(super) fn check_keeper_lock(&self) -> io::Result<()> {
        self.held().as_ref().map_or(Ok(()), |held| held.lock.check())
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.keeping.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the right that [`Members::try_to_keep`] got is still this one's: another one may
    /// have begun a new generation while this one prepares itself, because it was stopped.
    pub fn may_keep(&self) -> bool {
        self.held().as_ref().is_some_and(|held| held.generation == self.word(GENERATION))
    }

    /// From now on this one does the background work, if it may. Returns whether it does.
    pub fn keep(&self) -> bool {
        if !self.may_keep() {
            return false;
        }
        self.keeping.terms.fetch_add(1, Ordering::SeqCst);
        self.words.words()[KEEPER].store(self.here(), Ordering::SeqCst);
        // If a new generation was begun a moment ago, its keeper has lost its name now: then there
        // is none, and the next one begins anew.
        if !self.may_keep() {
            self.no_keeper(self.slot);
        }
        self.is_keeper()
    }

    /// Gives the right back that [`Members::try_to_keep`] got.
    pub fn give_keeping_back(&self) {
        if let Some(held) = self.held().take() {
            self.clear_keeper(self.here() | PREPARES);
            held.lock.unlock();
        }
    }

    /// This one is the keeper no more: one that it had replaced has installed a manifest after its
    /// own. Whoever is next, which may be this one, begins a term, in which nothing is finished
    /// that was begun before.
    pub fn lose_place(&self) {
        // Under this lock: no other thread becomes the keeper in between.
        let mut held = self.held();
        if self.no_keeper(self.slot)
            && let Some(held) = held.take()
        {
            held.lock.unlock();
        }
    }

    /// If this one was the keeper, and another one has replaced it: its lock is free again.
    pub fn give_back_if_replaced(&self) {
        if self.terms() > 0 && !self.is_keeper() {
            self.give_keeping_back();
        }
    }

    /// The process id of the keeper, as far as known.
    pub fn keeper_pid(&self) -> Option<u32> {
        pid_in(self.words.words(), self.word(KEEPER))
    }

    /// Whether this one does the background work.
    pub fn is_keeper(&self) -> bool {
        self.word(KEEPER) == self.here()
            && !self.has_left.load(Ordering::SeqCst)
            && self.terms() > 0
    }

    fn terms(&self) -> u64 {
        self.keeping.terms.load(Ordering::SeqCst)
    }

    /// How often this member has become the keeper, if it is it. What was begun in another term is
    /// not to be finished.
    pub fn term(&self) -> Option<u64> {
        self.is_keeper().then(|| self.terms())
    }

    /// The member of this slot is not the keeper, and does not prepare itself. Returns whether it
    /// was the keeper.
    pub(super) fn no_keeper(&self, slot: usize) -> bool {
        let keeper = slot as u64 + 1;
        self.clear_keeper(keeper | PREPARES);
        self.clear_keeper(keeper)
    }

    fn clear_keeper(&self, named: u64) -> bool {
        self.words.words()[KEEPER]
            .compare_exchange(named, 0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Changes whenever the keeper, or who prepares itself to be it, answers a nudge, or is another
    /// one: one that does not answer is stopped, or hangs.
    pub fn keeper_pulse(&self) -> (u64, u64) {
        let keeper = self.word(KEEPER);
        let slot = (keeper & !PREPARES)
            .checked_sub(1)
            .map(|slot| slot as usize)
            .filter(|slot| *slot < SLOTS);
        (
            keeper,
            slot.map_or(0, |slot| self.slot_word(slot, SlotWord::Pulse).load(Ordering::SeqCst)),
        )
    }

    /// Asks all members whether they are there.
    pub fn nudge(&self) {
        self.ring(NUDGE);
    }

    /// Waits for a nudge, at most for `patience`, and answers it. `nudges`: those that were
    /// answered before.
    pub fn answer_nudge(&self, nudges: u64, patience: Duration) -> u64 {
        self.words.wait(NUDGE, nudges, patience);
        self.answer_nudges(nudges)
    }

    /// As [`Members::answer_nudge`], without waiting for one.
    pub fn answer_nudges(&self, nudges: u64) -> u64 {
        let seen = self.word(NUDGE);
        if seen != nudges && !self.has_left.load(Ordering::SeqCst) {
            self.slot_word(self.slot, SlotWord::Pulse).fetch_add(1, Ordering::SeqCst);
        }
        seen
    }
}
