//! The invariants that hold between operations: the bounds of the log, times that increase, and the
//! memory in use.

use plimsoll::Glsn;

use crate::driver::{Driver, Durability, step};
use crate::failure::{Outcome, ensure, same};
use crate::judge::micros_of;
use crate::op::Op;

impl Driver {
    pub(super) fn may_be_trimmed(&self, first: u64) -> Outcome {
        // Not even the entry of the newest commit is needed.
        let newest = self.db.as_ref().map_or_else(|| self.model.newest(), |db| db.newest().0);
        let unasked = self.model.may_free_below(newest + 1);
        let allowed = self.model.first().max(self.trim_asked).max(unasked);
        ensure(first <= allowed, || {
            format!("the log begins at {first}, but may be trimmed only up to {allowed}")
        })
    }

    /// The invariants between any two operations.
    pub(super) fn settle(&mut self, op: &Op) -> Outcome {
        let (newest, bounds) = (self.db().newest(), self.db().log().bounds());
        let (acked, submitted) = (self.model.acked(), self.model.newest());
        ensure((acked..=submitted).contains(&newest.0), || {
            format!("the newest moment is {newest}; acknowledged {acked}, submitted {submitted}")
        })?;
        if !self.in_doubt {
            same("next GLSN", &bounds.next.0, &(submitted + 1))?;
            if self.tickets.is_empty() {
                same("the newest moment", &newest.0, &submitted)?;
            }
        }
        if self.world.setting.durability == Durability::Sync {
            // `bounds` was read after `newest`.
            ensure(newest <= bounds.durable, || {
                format!("{newest} can be read, but only {} is durable", bounds.durable)
            })?;
        }
        ensure(bounds.durable <= submitted, || {
            format!("durable is {}, submitted {submitted}", bounds.durable)
        })?;
        self.model.acknowledge(bounds.durable.0);
        ensure(bounds.first >= self.model.first(), || {
            format!("the log begins at {}, after it began at {}", bounds.first, self.model.first())
        })?;
        self.may_be_trimmed(bounds.first.0)?;
        self.model.trimmed(bounds.first.0);
        self.check_cursors(bounds.first.0)?;
        self.check_tags()?;
        self.learn_times(newest.0)?;
        if step::may_drop_versions(op) {
            self.raise_floors();
        }
        self.check_charges()?;
        self.check_counts()
    }

    /// Reads the times of new entries while the disk has no faults.
    fn learn_times(&mut self, newest: u64) -> Outcome {
        if self.excuses.reads || self.excuses.flips {
            return Ok(());
        }
        for glsn in self.first_without_time()..=newest {
            let Some(entry) = self.expect("log read", self.db().log().read(Glsn(glsn)))? else {
                return Ok(());
            };
            let time = micros_of(entry.time);
            let record_first = self.model.entry(glsn).is_some_and(|placed| {
                glsn == 1
                    || self
                        .model
                        .entry(glsn - 1)
                        .is_some_and(|before| before.record_last != placed.record_last)
            });
            if let Some(before) = self.model.time_before(glsn).filter(|_| self.times_ordered) {
                let right = if record_first { time > before } else { time >= before };
                ensure(right, || {
                    format!("entry {glsn} has time {time}, its predecessor {before}")
                })?;
            }
            self.model.learn_time(glsn, time);
        }
        Ok(())
    }

    fn first_without_time(&self) -> u64 {
        let newest = self.model.newest();
        let known = (1..=newest)
            .rev()
            .find(|glsn| self.model.entry(*glsn).is_some_and(|placed| placed.micros.is_some()));
        known.map_or(1, |glsn| glsn + 1).max(self.model.first())
    }

    /// The budget is never exceeded, and unused memory is released.
    fn check_counts(&self) -> Outcome {
        let stats = self.db().stats();
        let memory = &stats.memory;
        ensure(memory.peak_bytes <= memory.limit_bytes, || {
            format!(
                "{} bytes were held at once, above the budget of {}",
                memory.peak_bytes, memory.limit_bytes
            )
        })?;
        let open = (self.txs.len() + self.snapshots.len()) as u64 + self.moments_held();
        same("open snapshots and transactions", &stats.open_snapshots, &open)?;
        if self.txs.is_empty() && self.moments_held() == 0 && self.loads.is_empty() {
            // A running merge moves values into a blob file, which has a buffer.
            let may_move = self.trim_asked > 0;
            let of_operations = |kind: &str| {
                ["write sets", "read sets"].contains(&kind) || (kind == "staging" && !may_move)
            };
            let left: Vec<_> = memory
                .by_kind
                .iter()
                .filter(|(kind, bytes)| of_operations(kind) && *bytes > 0)
                .collect();
            ensure(left.is_empty(), || {
                format!("no transaction is open, but {left:?} are still charged")
            })?;
        }
        Ok(())
    }
}
