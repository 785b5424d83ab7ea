//! The turn: the right of one member to append a record.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::error::LogError;
use crate::members::lock::{Got, MemberLock};
use crate::members::table::Table;
use crate::members::tries::Tries;

/// The locks of the turn.
pub struct Turns {
    table: Arc<Table>,
    /// The lock of the turn: an append takes it before the log's own order.
    pub(crate) turn: MemberLock,
    own_turn: Mutex<()>,
    pub(crate) tries: Tries,
}

impl Turns {
    pub(super) fn new(table: &Arc<Table>, turn: MemberLock) -> Self {
        let own_turn = Mutex::new(());
        Self { table: Arc::clone(table), turn, own_turn, tries: Tries::default() }
    }

    /// The part of the turn that orders the threads of this process. A thread takes it before the
    /// lock of the turn.
    pub(crate) fn own_turn(&self) -> MutexGuard<'_, ()> {
        self.own_turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Turns::own_turn`]; `None` if it is not free within the timeout of a turn, because the
    /// thread that holds it waits for another member.
    pub(crate) fn own_turn_if_free_soon(&self) -> Option<MutexGuard<'_, ()>> {
        for _ in 0..self.table.timeout.as_millis().max(1) {
            match self.own_turn.try_lock() {
                Ok(own) => return Some(own),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => self.turn.sleep(),
            }
        }
        None
    }

    /// Takes the turn.
    pub(crate) fn take(&self) -> Result<Got, LogError> {
        self.tries.counted(|| self.turn.take(self.table.timeout, self.table.here(), &|| false))
    }
}
