//! When the place of a replica is recorded: once the local log is durable up to it.

use std::sync::Mutex;

use plimsoll_log::glsn::Glsn;

use crate::txn::replica::Replica;
use crate::txn::replica::place::{Place, PlaceFile};
use crate::types::error::{Lift, Result};
use crate::types::lock::lock;

/// The file of the place, and the place that it has.
pub(super) struct Saving {
    file: PlaceFile,
    state: Mutex<State>,
}

struct State {
    saved: Option<Place>,
    /// An earlier place that was not recorded, because the log was not durable up to it yet.
    waiting: Option<Place>,
}

impl Saving {
    pub(super) fn new(file: PlaceFile, saved: Option<Place>) -> Self {
        Self { file, state: Mutex::new(State { saved, waiting: None }) }
    }
}

impl Replica {
    /// Records a place up to which the log is durable. `syncs`: first makes the log durable up to
    /// the current place.
    pub(crate) fn save_place(&self, syncs: bool) -> Result<()> {
        let mut state = lock(&self.saving.state);
        let place = *lock(&self.place);
        let is_saved =
            |saved: &Place| (saved.position, saved.replica) == (place.position, place.replica);
        if state.saved.as_ref().is_some_and(is_saved) {
            return Ok(());
        }
        let log = &self.applier.log;
        if syncs && place.glsn > log.bounds().durable {
            log.wait_durable(place.glsn).lift()?;
        }
        let durable = log.bounds().durable;
        let mut found = match state.waiting.take() {
            _ if place.glsn <= durable => place,
            Some(waiting) if waiting.glsn <= durable => waiting,
            waiting => {
                state.waiting = waiting.or(Some(place));
                return Ok(());
            }
        };
        found.chain = match found.glsn {
            Glsn::NONE => 0,
            glsn => log.chain_at(glsn).ok().flatten().unwrap_or_default(),
        };
        self.saving.file.write(&found)?;
        state.saved = Some(found);
        Ok(())
    }
}
