//! Compares entries of the log with the appends to its streams.

use plimsoll::Db;
use plimsoll_disk::mutex::lock;

use crate::failure::{Failure, Outcome, ensure, same};
use crate::members::driver::judge::error_in;
use crate::members::driver::{Driver, Pending};
use crate::members::life::{Life, Order};
use crate::members::notes::{Found, TakenEntries, entries, entries_of};

impl Driver {
    /// Checks acknowledged entries at these GLSNs.
    pub(super) fn judge_append(&mut self, order: &Order, first: u64, last: u64) -> Outcome {
        let id = order.id;
        if let Some(pending) = self.known.in_doubt.remove(&id) {
            let may_be_unread = self.known.has_failed_sync || self.disk().power_is_cut();
            ensure(may_be_unread, || {
                format!("entries at GLSN {first} were acknowledged, but cannot be read")
            })?;
            self.known.found(&pending, first)?;
        }
        self.known.places.remove(&id);
        let places = self.known.model.places_of(id);
        same("GLSNs of acknowledged entries", &places, &Some((first, last)))?;
        if !order.is_buffered && !self.disk().power_is_cut() {
            self.known.durable = self.known.durable.max(last);
        }
        if !self.known.has_failed_sync {
            self.settle_doubts(id);
        }
        Ok(())
    }

    /// Checks that a process took exactly the ordered entries, up to the newest that it must see.
    pub(super) fn judge_taken(&self, who: &str, order: &Order, taken: &TakenEntries) -> Outcome {
        let TakenEntries { stream, from, to, ref found, is_at_end, .. } = *taken;
        self.judge_entries(who, stream, from, to, found)?;
        ensure(!is_at_end || to > order.seen, || {
            format!(
                "{who}: stream {stream:?} ends before GLSN {to}, but GLSN {} was committed before",
                order.seen
            )
        })
    }

    /// Checks that a range of entries equals the ordered ones.
    fn judge_entries(
        &self,
        who: &str,
        stream: Option<u64>,
        from: u64,
        to: u64,
        found: &[Found],
    ) -> Outcome {
        let said =
            || format!("{who}: entries from GLSN {from} to before {to} of stream {stream:?}");
        let places: Vec<u64> = found.iter().map(|found| found.glsn).collect();
        match stream {
            None => ensure(places.iter().copied().eq(from..to), || {
                format!("{} exist only at {places:?}", said())
            })?,
            // The store's own commits are among the entries.
            Some(0) => {
                let mut missing = self
                    .known
                    .model
                    .marked(from, to)
                    .filter(|glsn| places.binary_search(glsn).is_err());
                missing.next().map_or(Ok(()), |glsn| {
                    Err(Failure::new(format!("{}: {glsn} is missing", said())))
                })?;
            }
            Some(_) => {}
        }
        let found: Vec<&Found> = found.iter().filter(|found| found.stream > 0).collect();
        let expected: Vec<Found> =
            self.known.model.notes(from, to, stream).map(|(glsn, note)| note.at(glsn)).collect();
        ensure(expected.iter().eq(found.iter().copied()), || {
            format!("{} are {found:?}, not {expected:?}", said())
        })
    }

    /// Compares all entries that a process reads.
    pub(super) fn check_streams(&mut self, member: u8) -> Outcome {
        let Some(slot) = self.slots.get(&member).filter(|slot| !slot.is_stopped()) else {
            return Ok(());
        };
        let life = slot.life_handle();
        let life = lock(&life);
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
        let newest = db.newest().0;
        let mut found = entries(db, 1).map_err(|error| error_in(who, &error))?;
        // More may have been trimmed meanwhile, and more may have become durable.
        let first = db.log().bounds().first.0;
        found.retain(|found| (first..=newest).contains(&found.glsn));
        ensure(self.known.freed.may_begin_at(first), || {
            format!("{who}: the log begins at GLSN {first}: {:?}", self.known.freed)
        })?;
        self.judge_entries(who, None, first, newest + 1, &found)
    }
}

/// Checks that a process reads either all entries of an append in doubt, at consecutive GLSNs, or
/// none. Returns the GLSN of the first one, if any.
pub(super) fn place_of_entries(life: &Life, pending: &Pending) -> Result<Option<u64>, Failure> {
    let found = entries_of(&life.db, pending.behind + 1, &pending.notes)
        .map_err(|error| error_in("reading entries", &error))?;
    let Some(first) = found.first().map(|found| found.glsn) else { return Ok(None) };
    let expected: Vec<Found> =
        (first..).zip(&pending.notes).map(|(glsn, note)| note.at(glsn)).collect();
    same("entries of an append in doubt", &found, &expected)?;
    Ok(Some(first))
}
