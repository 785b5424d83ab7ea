//! Compares entries of the log with what was appended to its streams.

use plimsoll::Db;

use crate::failure::{Outcome, ensure, same};
use crate::members::driver::Driver;
use crate::members::driver::judge::error_in;
use crate::members::life::{Life, Order};
use crate::members::notes::{Found, entries};

impl Driver {
    /// Entries were acknowledged, in these places.
    pub(super) fn judge_append(&mut self, order: &Order, first: u64, last: u64) -> Outcome {
        let id = order.id;
        if let Some(pending) = self.known.in_doubt.remove(&id) {
            let may_be_unread = self.known.has_failed_sync || self.disk().power_is_cut();
            ensure(may_be_unread, || format!("entries at GLSN {first} were acknowledged, and are not read"))?;
            self.known.found(&pending, first)?;
        }
        self.known.places.remove(&id);
        let places = self.known.model.places_of(id);
        same("GLSNs of entries that were acknowledged", &places, &Some((first, last)))?;
        if !order.is_buffered && !self.disk().power_is_cut() {
            self.known.durable = self.known.durable.max(last);
        }
        if !self.known.has_failed_sync {
            self.settle_doubts(id);
        }
        Ok(())
    }

    /// What was read between two places is what was appended there.
    pub(super) fn judge_entries(&self, who: &str, stream: Option<u64>, from: u64, to: u64, found: &[Found]) -> Outcome {
        let notes = self.known.model.notes(from, to, stream);
        let expected: Vec<Found> =
            notes.map(|(glsn, note)| Found { glsn, stream: note.stream, payload: note.payload() }).collect();
        ensure(expected == found, || {
            format!(
                "{who}: entries from GLSN {from} to before {to} of stream {stream:?} are {found:?}, not {expected:?}"
            )
        })
    }

    /// Compares all entries that a process reads.
    pub(super) fn check_streams(&mut self, member: u8) -> Outcome {
        let Some(seat) = self.seats.get(&member).filter(|seat| !seat.is_stopped()) else { return Ok(()) };
        let life = seat.life_handle();
        let life = life.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(life) = life.as_ref() else { return Ok(()) };
        let checked = self.compare_streams(&format!("process {member}"), life);
        if self.may_die(member) { Ok(()) } else { checked }
    }

    /// Compares all entries that a store has.
    pub(super) fn compare_streams(&mut self, who: &str, life: &Life) -> Outcome {
        self.resolve(life)?;
        self.compare_entries(who, &life.db)
    }

    fn compare_entries(&self, who: &str, db: &Db) -> Outcome {
        let found = entries(db, 1).map_err(|error| error_in(who, &error))?;
        let (Some(first), Some(last)) = (found.first(), found.last()) else { return Ok(()) };
        let (first, last) = (first.glsn, last.glsn);
        let is_dense = found.iter().map(|found| found.glsn).eq(first..=last);
        ensure(is_dense, || format!("{who}: entries are missing between GLSN {first} and {last}"))?;
        let of_streams: Vec<Found> = found.into_iter().filter(|found| found.stream > 0).collect();
        self.judge_entries(who, None, first, last + 1, &of_streams)
    }
}
