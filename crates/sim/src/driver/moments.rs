//! Opens snapshots of moments, and compares their GLSNs and times with the model's.

use std::time::{Duration, UNIX_EPOCH};

use plimsoll::{Error, Glsn, InvalidInput, Moment as StoreMoment, Snapshot};
use plimsoll_disk::clock::Clock;

use crate::driver::Driver;
use crate::driver::step::said;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::op::{Moment, Reader};

impl Driver {
    /// A snapshot for reads outside a transaction.
    pub(super) fn moment(&mut self, from: Reader) -> Outcome<Option<Snapshot>> {
        match from {
            Reader::Snapshot(slot) if self.snapshots.contains_key(&slot) => {
                Ok(self.snapshots.get(&slot).cloned())
            }
            Reader::Back(back) if back > 0 => {
                let opened = self.db().snapshot_at(StoreMoment::Glsn(Glsn(self.back(back))));
                if self.nested_commit.is_some() {
                    self.absorb_nested()?;
                    // The nested operation ran before the snapshot was open, so the snapshot did
                    // not retain anything yet.
                    self.raise_floors();
                }
                self.expect("snapshot_at", opened)
            }
            _ => {
                let opened = self.db().snapshot();
                self.absorb_nested()?;
                Ok(Some(opened))
            }
        }
    }

    /// Opens a snapshot of `moment` and keeps it in `slot`.
    pub(super) fn snapshot(&mut self, slot: u8, moment: Moment) -> Outcome<String> {
        let newest = self.db().newest();
        let (opened, wanted) = match moment {
            Moment::Newest => {
                let opened = self.db().snapshot();
                self.absorb_nested()?;
                // The snapshot may or may not include a commit made in between.
                let now = if opened.at() > newest { self.db().newest() } else { newest };
                (Ok(opened), now)
            }
            Moment::Back(glsns) => {
                let at = newest.saturating_sub(glsns);
                (self.db().snapshot_at(StoreMoment::Glsn(at)), at)
            }
            Moment::Ahead(glsns) => return self.refuse_future(newest.0 + glsns),
            Moment::Age(micros) => {
                let then = self.world.clock.wall_micros().saturating_sub(micros);
                return self.snapshot_of_time(slot, then);
            }
            Moment::TimeOf { back, micros } => {
                let of = self
                    .model
                    .entry(newest.saturating_sub(back).0)
                    .and_then(|placed| placed.micros);
                let Some(of) = of else { return said("no time") };
                return self.snapshot_of_time(slot, of.saturating_add_signed(micros));
            }
        };
        let Some(snapshot) = self.expect("snapshot", opened)? else { return said("failed") };
        same("moment of a snapshot", &snapshot.at().0, &wanted.0)?;
        self.is_time_of(&snapshot)?;
        self.snapshots.insert(slot, snapshot);
        said(format!("at {wanted}"))
    }

    fn refuse_future(&self, at: u64) -> Outcome<String> {
        let newest = self.db().newest();
        match self.db().snapshot_at(StoreMoment::Glsn(Glsn(at))) {
            Err(Error::Future { asked, newest: reported }) if asked == at && reported == newest => {
                said("future")
            }
            Ok(_) => Err(Failure::new(format!(
                "a snapshot at {at} was opened beyond the newest moment {newest}"
            ))),
            Err(error) => Err(Failure::new(format!(
                "a snapshot at {at} failed with another error: {error} [{error:?}]"
            ))),
        }
    }

    fn snapshot_of_time(&mut self, slot: u8, then: u64) -> Outcome<String> {
        let newest = self.db().newest();
        let opened =
            self.db().snapshot_at(StoreMoment::Time(UNIX_EPOCH + Duration::from_micros(then)));
        let known = (1..=newest.0)
            .all(|glsn| self.model.entry(glsn).is_some_and(|placed| placed.micros.is_some()));
        let not_younger = |glsn: u64| {
            self.model.entry(glsn).and_then(|placed| placed.micros).is_some_and(|at| at <= then)
        };
        let wanted = (1..=newest.0).rev().find(|glsn| not_younger(*glsn)).unwrap_or(0);
        let first = self.model.first();
        let snapshot = match opened {
            Err(Error::InvalidInput(InvalidInput::TimeBeforeFirst { .. })) => {
                ensure(!known || !self.times_ordered || wanted == 0, || {
                    format!(
                        "the moment {then} µs was refused as before the first commit: it is \
                         {wanted}"
                    )
                })?;
                return said("before the first commit");
            }
            Err(Error::TimeTrimmed { .. }) => {
                ensure(!known || !self.times_ordered || wanted < first, || {
                    format!(
                        "the moment {then} µs was refused as trimmed: it is {wanted}, the log \
                         begins at {first}"
                    )
                })?;
                return said("trimmed");
            }
            opened => match self.expect("snapshot_at a time", opened)? {
                Some(snapshot) => snapshot,
                None => return said("failed"),
            },
        };
        if known && self.times_ordered {
            ensure(wanted > 0, || {
                format!("the moment {then} µs before the first commit was not refused")
            })?;
            same("moment of a time", &snapshot.at().0, &wanted)?;
        }
        let at = snapshot.at();
        self.snapshots.insert(slot, snapshot);
        said(format!("at {at}"))
    }

    fn is_time_of(&self, snapshot: &Snapshot) -> Outcome {
        let at = snapshot.at();
        let Some(time) = self.expect("time of a snapshot", snapshot.time())? else { return Ok(()) };
        let micros = time
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .map(|age| age.as_micros() as u64);
        let known = self.model.entry(at.0).and_then(|placed| placed.micros);
        match (micros, known) {
            (Some(micros), Some(known)) => same(format!("time of {at}"), &micros, &known),
            (Some(_), None) => ensure(at > 0, || "the empty store has a time".to_owned()),
            (None, _) => ensure(at < self.model.first(), || {
                format!("{at} has no time although it is in the log")
            }),
        }
    }
}
