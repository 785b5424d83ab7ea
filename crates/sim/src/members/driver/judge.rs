//! Compares the processes' reads and answers with the committed history.
//!
//! A commit whose process was killed or failed is in doubt until another process reads its mark,
//! which shows that it was ordered, and at which GLSN. If the mark is missing once a later commit
//! is acknowledged, the commit must never appear.

mod freed;
mod streams;
mod tags;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::{Error, Glsn, InvalidInput};
use plimsoll_disk::mutex::lock;

use crate::failure::{Failure, Outcome, ensure, same};
use crate::members::driver::judge::freed::Freed;
use crate::members::driver::judge::streams::place_of_entries;
use crate::members::driver::judge::tags::KnownTags;
use crate::members::driver::{Driver, Pending};
use crate::members::life::{Answer, Life, Order, PASSING, cursors, is_not_keeper};
use crate::members::model::{MARKS, Model, Span, Write};
use crate::members::process_slot::ProcessSlot;
use crate::op::process_op::Act;

/// Whether the temporary keyspace exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::members) enum Space {
    #[default]
    Absent,
    Present,
    Unknown,
}

/// Acts between comparisons of all processes, if these are rare.
const LOOKS_SELDOM: u64 = 12;

/// Known state of the store.
#[derive(Debug, Default)]
pub(in crate::members) struct Known {
    pub(in crate::members) model: Model,
    /// Commits in doubt, by number.
    pub(in crate::members) in_doubt: BTreeMap<u64, Pending>,
    /// GLSNs of commits whose process is stopped within them.
    places: BTreeMap<u64, u64>,
    pub(in crate::members) passing: Space,
    passing_before: Space,
    pub(in crate::members) is_space_changing: bool,
    /// Positions of cursors; `None`: unknown.
    cursors: BTreeMap<u64, Option<u64>>,
    cursor_before: Option<Option<u64>>,
    tags: KnownTags,
    /// A sync failed since the store was opened, so nothing becomes durable until all processes
    /// have left.
    pub(in crate::members) has_failed_sync: bool,
    failed_syncs: u64,
    /// Since the store was last open, the power was cut or a sync failed, so commits that were not
    /// durable may be lost.
    pub(in crate::members) is_cut: bool,
    /// The last commit known to be durable.
    pub(in crate::members) durable: u64,
    /// The last commit that each process has acknowledged.
    last_of: BTreeMap<u8, u64>,
    freed: Freed,
    /// Whether the answering process was stopped within its act.
    pub(in crate::members) was_stopped: bool,
    looks: u64,
    /// Whether a call of the act fails.
    pub(in crate::members) call_fails: bool,
    /// A process has ended while it dropped the temporary keyspace. The drop may have its place in
    /// the log, and be applied after other processes have opened the keyspace.
    is_drop_in_doubt: bool,
    /// Processes whose transaction began while a call failed. Such a transaction may have seen too
    /// little, and reports that.
    pub(in crate::members) may_be_behind: BTreeSet<u8>,
}

impl Known {
    /// The effect of an act without a marked commit is unknown until the act has answered.
    pub(in crate::members) fn note_doubt(&mut self, act: Act) {
        match act {
            Act::Trim { .. } => self.freed.asked(),
            Act::MakeSpace | Act::DropSpace => {
                self.is_drop_in_doubt |= act == Act::DropSpace;
                self.passing_before = std::mem::replace(&mut self.passing, Space::Unknown);
            }
            Act::Cursor { name, .. }
            | Act::AdvanceCursor { name, .. }
            | Act::Consume { name }
            | Act::DropCursor { name } => {
                self.cursor_before = self.cursors.insert(name, None);
            }
            Act::Tag { name } | Act::DeleteTag { name } => self.tags.changes(name),
            _ => {}
        }
    }

    /// The store was reopened, and this is its last commit; later commits are lost.
    fn learn_what_is_left(&mut self, last: u64, is_buffered: bool) -> Outcome {
        // Unless commits are buffered, every commit that a process has read is durable.
        let durable =
            if is_buffered { self.durable } else { self.durable.max(self.model.newest()) };
        ensure(last >= durable, || {
            format!("GLSN {last} is the last remaining one, but GLSN {durable} was durable")
        })?;
        self.model.cut_to(last);
        if !self.model.has_notes() {
            self.freed.asked();
        }
        self.places.clear();
        self.last_of.clear();
        self.cursors.values_mut().for_each(|place| *place = None);
        self.tags.forget();
        (self.is_cut, self.durable) = (false, last);
        Ok(())
    }

    /// Records the GLSN of a pending commit.
    fn found(&mut self, pending: &Pending, glsn: u64) -> Outcome {
        if !pending.notes.is_empty() {
            return self.model.append(glsn, pending.id, &pending.notes);
        }
        self.model.apply(glsn, pending.id, &pending.writes)?;
        for span in &pending.reads {
            let between = self.model.changed(*span, pending.at.unwrap_or_default(), glsn);
            ensure(between.is_none(), || {
                format!(
                    "the transaction at GLSN {glsn} read {span:?} as of GLSN {:?}, but GLSN \
                     {between:?} changed that",
                    pending.at
                )
            })?;
        }
        Ok(())
    }
}

fn error_in(what: &str, error: &Error) -> Failure {
    Failure::new(format!("{what} failed: {error} [{error:?}]"))
}

impl Driver {
    /// Resolves the commits in doubt that a process can read.
    fn resolve(&mut self, life: &Life) -> Outcome {
        for id in self.known.in_doubt.keys().copied().collect::<Vec<_>>() {
            let pending = &self.known.in_doubt[&id];
            let place = match pending.notes.is_empty() {
                true => life.place_of(id).map_err(|error| error_in("reading a mark", &error))?,
                false => place_of_entries(life, pending)?,
            };
            let Some(glsn) = place else { continue };
            let pending = self.known.in_doubt.remove(&id).expect("the commit is in doubt");
            self.known.found(&pending, glsn)?;
            if pending.ended.is_none() {
                self.known.places.insert(id, glsn);
            }
        }
        Ok(())
    }

    /// Handles the acknowledgement of commit `id`. Commits in doubt that ended before it began, and
    /// were not ordered, never will be.
    fn settle_doubts(&mut self, id: u64) {
        self.known.in_doubt.retain(|_, pending| pending.ended.is_none_or(|ended| ended > id));
    }

    /// Checks the answer of a process.
    pub(in crate::members) fn judge(
        &mut self,
        member: u8,
        order: &Order,
        answer: plimsoll::Result<Answer>,
    ) -> Outcome {
        let failed_syncs = self.disk().injected().failed_syncs;
        // A process killed by the failed sync has informed no other process.
        let is_known = !self.slots.values().any(|slot| slot.process.was_killed_by_sync());
        self.known.has_failed_sync |= failed_syncs > self.known.failed_syncs && is_known;
        self.known.failed_syncs = failed_syncs;
        if let Some((other, error)) = self.peers.take_failure()
            && !self.may_die(other)
        {
            self.judge_error(other, order, &error, "background work")?;
        }
        let dead = self.slots.get(&member).is_some_and(|slot| slot.process.is_dead())
            || self.disk().power_is_cut();
        let answer = match answer {
            Ok(answer) => answer,
            Err(_) if dead => return Ok(()),
            // A leaving process reads the segment that it seals. If that fails, it closes the log
            // unsealed.
            Err(Error::Poisoned { .. }) if self.known.call_fails && order.act == Act::Leave => {
                return Ok(());
            }
            Err(error) if self.known.call_fails && is_of_failing_call(&error) => {
                // Nothing was committed. Any read of its values would find data that was never
                // committed.
                self.known.in_doubt.remove(&order.id);
                return Ok(());
            }
            Err(Error::InvalidInput(InvalidInput::KeyspaceDropped { .. }))
                if self.known.is_drop_in_doubt =>
            {
                // The drop has its place in the log, but possibly it is not durable yet.
                self.known.in_doubt.remove(&order.id);
                self.known.passing = Space::Unknown;
                return Ok(());
            }
            Err(error) => {
                return self.judge_error(member, order, &error, &format!("{:?}", order.act));
            }
        };
        if !dead && matches!(answer, Answer::Synced) {
            // A leaving process reports its own commits.
            let own = self.known.last_of.get(&member).copied().unwrap_or_default();
            let durable = if order.act == Act::Leave { own } else { order.newest };
            self.known.durable = self.known.durable.max(durable);
        }
        let Some(slot) = self.slots.get(&member).filter(|_| !dead) else { return Ok(()) };
        let life = slot.life_handle();
        let life = lock(&life);
        let Some(life) = life.as_ref() else { return Ok(()) };
        if self.known.has_failed_sync && !matches!(answer, Answer::Committed(_)) {
            return Ok(());
        }
        if let Answer::Committed(glsn) = answer
            && self.looks_seldom
            && !self.known.has_failed_sync
            && self.known.in_doubt.len() == 1
            && let Some(pending) = self.known.in_doubt.remove(&order.id)
        {
            // No other commit is in doubt, so do not read the mark. The process may then leave the
            // commit unapplied.
            return self.judge_unread(member, order, &pending, glsn);
        }
        let is_buffered = self.is_any_buffered();
        if self.known.is_cut && matches!(order.act, Act::Join { .. }) {
            self.known.learn_what_is_left(life.db.newest().0, is_buffered)?;
        }
        let is_first = self.slots.len() == 1 && matches!(order.act, Act::Join { .. });
        let resolved = self.resolve(life);
        if self.may_die(member) {
            return Ok(());
        }
        if !self.known.has_failed_sync {
            resolved?;
        }
        if is_first {
            // All commits in doubt have ended, and this process has read the whole log.
            self.settle_doubts(order.id);
        }
        self.judge_answer(member, order, life, answer)
    }

    /// Whether the process was killed during the check.
    fn may_die(&self, member: u8) -> bool {
        self.disk().power_is_cut()
            || self.slots.get(&member).is_none_or(|slot| slot.process.is_dead())
    }

    /// The temporary keyspace was dropped.
    fn dropped(&mut self) {
        self.known.model.forget(PASSING);
        self.known.passing = Space::Absent;
        self.known.is_drop_in_doubt = false;
    }

    fn judge_answer(&mut self, member: u8, order: &Order, life: &Life, answer: Answer) -> Outcome {
        match answer {
            Answer::Done | Answer::Synced => Ok(()),
            Answer::Committed(glsn) => {
                self.known.last_of.insert(member, glsn.0);
                self.judge_commit(life, order, glsn)
            }
            Answer::Appended { first, last } => {
                self.known.last_of.insert(member, last.0);
                self.judge_append(order, first.0, last.0)
            }
            Answer::Taken(taken) => {
                self.judge_taken(&format!("process {member}"), order, &taken)?;
                taken
                    .cursor
                    .map_or(Ok(()), |name| self.judge_cursor(order, name, Some(Glsn(taken.to))))
            }
            Answer::Rows { span, at, own, rows } => {
                if matches!(order.act, Act::Get { .. } | Act::Scan { .. }) {
                    let seen = order.seen;
                    ensure(at >= seen, || {
                        format!("process {member} reads GLSN {at}, but GLSN {seen} was committed")
                    })?;
                }
                self.judge_rows(&format!("process {member}"), span, at, &own, rows)
            }
            Answer::NoSpace => {
                let before = if order.act == Act::DropSpace {
                    self.known.passing_before
                } else {
                    self.known.passing
                };
                let is_in_doubt = self.known.is_drop_in_doubt;
                ensure(before != Space::Present || is_in_doubt, || {
                    "a created keyspace is missing".to_owned()
                })?;
                if matches!(order.act, Act::DropSpace) || is_in_doubt {
                    // An earlier drop with an unknown outcome has removed its rows.
                    self.dropped();
                }
                self.known.in_doubt.remove(&order.id);
                Ok(())
            }
            Answer::Made { rows } => {
                let expected = self.known.model.rows(
                    Span { space: PASSING, from: 0, to: u64::MAX },
                    u64::MAX,
                    &[],
                );
                // Possibly the commits of other processes are not durable yet.
                let sees_all = !self.is_mixed() || order.is_buffered;
                match self.known.passing_before {
                    Space::Present if !sees_all => {}
                    Space::Unknown if rows == 0 => self.known.model.forget(PASSING),
                    Space::Unknown | Space::Present => {
                        same("rows of the keyspace", &rows, &expected.len())?
                    }
                    Space::Absent => same("rows of a new keyspace", &rows, &0)?,
                }
                self.known.passing = Space::Present;
                Ok(())
            }
            Answer::Dropped => {
                self.dropped();
                Ok(())
            }
            Answer::DroppedByAnother => {
                self.known.is_drop_in_doubt = false;
                let is_known = self.known.passing_before != Space::Unknown;
                ensure(!is_known, || {
                    "a process reports the drop of a keyspace that no process dropped".to_owned()
                })
            }
            Answer::Cursor { name, at } => self.judge_cursor(order, name, at),
            Answer::Tag { name, at, is_changed } => self.judge_tag(order, name, at, is_changed),
            Answer::Verified(problems) => ensure(problems.is_empty(), || {
                format!("process {member} found problems: {problems:?}")
            }),
            Answer::BackedUp => {
                let checked = self.check_alone(&order.backup);
                if self.disk().power_is_cut()
                    || self.disk().injected().failed_syncs > self.known.failed_syncs
                {
                    return Ok(());
                }
                checked?;
                let removed = self.world.remove_all(order.backup.as_ref());
                removed.map_err(|error| Failure::new(format!("cannot remove the backup: {error}")))
            }
        }
    }

    fn judge_commit(&mut self, life: &Life, order: &Order, glsn: Glsn) -> Outcome {
        let id = order.id;
        if !order.is_buffered && !self.disk().power_is_cut() {
            self.known.durable = self.known.durable.max(glsn.0);
        }
        if self.known.has_failed_sync {
            // An acknowledged commit is durable, which the next opening checks.
            let Some(pending) = self.known.in_doubt.remove(&id) else { return Ok(()) };
            return self.known.found(&Pending { reads: Vec::new(), ..pending }, glsn.0);
        }
        let found = life.place_of(id).map_err(|error| error_in("reading a mark", &error))?;
        if found.is_none() && self.disk().power_is_cut() {
            return Ok(());
        }
        same("GLSN of an acknowledged commit", &found, &Some(glsn.0))?;
        if let Some(place) = self.known.places.remove(&id) {
            same("GLSN of a commit seen before", &place, &glsn.0)?;
        }
        self.settle_doubts(id);
        Ok(())
    }

    /// Handles an acknowledged commit that cannot be read now. Later reads check whether it is
    /// present.
    fn judge_unread(
        &mut self,
        member: u8,
        order: &Order,
        pending: &Pending,
        glsn: Glsn,
    ) -> Outcome {
        self.known.last_of.insert(member, glsn.0);
        if !order.is_buffered {
            self.known.durable = self.known.durable.max(glsn.0);
        }
        if let Some(place) = self.known.places.remove(&order.id) {
            same("GLSN of a commit seen before", &place, &glsn.0)?;
        }
        self.known.found(pending, glsn.0)
    }

    fn judge_cursor(&mut self, order: &Order, name: u64, at: Option<Glsn>) -> Outcome {
        let is_disturbed = self.known.was_stopped
            || self.is_mixed()
            || self.slots.values().any(|slot| slot.is_stopped());
        let before = self.known.cursor_before.take();
        if is_disturbed {
            return Ok(());
        }
        if let (Act::Cursor { .. }, Some(Some(before)), Some(at)) = (order.act, before, at) {
            same(format!("position of the existing cursor {name}"), &at.0, &before)?;
        }
        match at {
            Some(at) => drop(self.known.cursors.insert(name, Some(at.0))),
            None => drop(self.known.cursors.remove(&name)),
        }
        Ok(())
    }

    /// Checks an error: it is a failure unless excused, and leaves a commit in doubt.
    fn judge_error(&self, member: u8, order: &Order, error: &Error, what: &str) -> Outcome {
        let is_stopped =
            self.known.was_stopped || self.slots.values().any(|slot| slot.is_stopped());
        let is_excused = match error {
            Error::Corrupt { .. } | Error::Forked { .. } => false,
            _ if self.known.has_failed_sync => true,
            Error::Stalled { .. } => is_stopped,
            Error::Conflict { at, by, .. } => order.act == Act::TxCommit && by > at,
            Error::InvalidInput(_) => matches!(order.act, Act::Join { .. }) && self.slots.len() > 2,
            Error::Behind { .. } => self.known.may_be_behind.contains(&member),
            error => is_not_keeper(error),
        };
        if is_excused {
            return Ok(());
        }
        Err(error_in(&format!("process {member}: {what}"), error))
    }

    fn must_be_fresh(&self, member: u8, at: u64) -> Outcome {
        let seen = self.newest_for(member);
        ensure(at >= seen, || {
            format!("process {member} reads GLSN {at}, but GLSN {seen} was committed before")
        })
    }

    fn judge_rows(
        &self,
        who: &str,
        span: Span,
        at: u64,
        own: &[Write],
        rows: Vec<(u64, Vec<u8>)>,
    ) -> Outcome {
        let expected = self.known.model.rows(span, at, own);
        let keys: Vec<u64> = rows.iter().map(|(key, _)| *key).collect();
        let expected_keys: Vec<u64> = expected.keys().copied().collect();
        same(format!("{who}: keys of {span:?} as of GLSN {at}"), &keys, &expected_keys)?;
        for ((key, value), content) in rows.iter().zip(expected.values()) {
            ensure(content.is(value), || {
                format!(
                    "{who}: key {key} of keyspace {} as of GLSN {at} is not {content:?} but {}",
                    span.space,
                    show(value)
                )
            })?;
        }
        Ok(())
    }

    /// Checks the invariants after each operation, and one key.
    pub(in crate::members) fn check_some(&mut self) -> Outcome {
        if self.slots.is_empty() {
            self.known.is_cut |= self.known.has_failed_sync;
            self.known.has_failed_sync = false;
        }
        if self.known.has_failed_sync {
            return Ok(());
        }
        if let Some(member) = self.slots.keys().copied().find(|member| !self.is_stopped(*member)) {
            self.check_memory(member)?;
        }
        self.known.looks += 1;
        let looks = self.known.looks;
        if self.looks_seldom && !looks.is_multiple_of(LOOKS_SELDOM) {
            return Ok(());
        }
        let members: Vec<u8> = self.slots.keys().copied().collect();
        let mut seen = BTreeSet::new();
        for member in members {
            let Some(db) = self.slots.get(&member).and_then(|slot| slot.db()) else { continue };
            let newest = db.newest().0;
            if self.may_die(member) {
                return Ok(());
            }
            self.must_be_fresh(member, newest)?;
            seen.insert(newest);
            if looks % 4 == u64::from(member) % 4 {
                let span = Span { space: looks % 2, from: 0, to: 1 + looks % 40 };
                self.check_spans(member, &[span])?;
            }
        }
        let is_one_stopped = self.slots.values().any(ProcessSlot::is_stopped);
        if let Some(newest) =
            seen.last().filter(|_| self.known.model.has_notes() && !is_one_stopped)
        {
            self.known.freed.ended(*newest);
        }
        ensure(seen.len() <= 1 || self.is_mixed() || self.any_dead(), || {
            format!("processes read different moments: {seen:?}")
        })
    }

    fn any_dead(&self) -> bool {
        self.disk().power_is_cut() || self.slots.values().any(|slot| slot.process.is_dead())
    }

    fn check_memory(&self, member: u8) -> Outcome {
        let Some(db) = self.slots.get(&member).and_then(|slot| slot.db()) else { return Ok(()) };
        let (Some(total), Ok(members)) = (self.memory_total(), db.members()) else { return Ok(()) };
        let sum: u64 = members.iter().map(|member| member.memory_bytes).sum();
        let budgets = self
            .slots
            .values()
            .filter_map(|slot| slot.db())
            .map(|db| db.stats().memory.limit_bytes);
        let held: u64 = budgets.sum();
        ensure(self.any_dead() || (sum <= total && held <= total), || {
            format!(
                "the processes have {sum} bytes of memory and budgets of {held}, but the total is \
                 {total}"
            )
        })
    }

    /// Compares the complete contents as read by every process.
    pub(in crate::members) fn check_all(&mut self) -> Outcome {
        if self.known.has_failed_sync {
            return Ok(());
        }
        let members: Vec<u8> = self.slots.keys().copied().collect();
        for member in members {
            if self.may_die(member) {
                continue;
            }
            self.check_spans(member, &self.all_spans())?;
            self.check_past(member)?;
            self.check_streams(member)?;
            self.check_cursors(member)?;
            self.check_tags(member)?;
        }
        Ok(())
    }

    fn all_spans(&self) -> Vec<Span> {
        let mut spaces = vec![0, 1, MARKS];
        spaces.extend((self.known.passing != Space::Unknown).then_some(PASSING));
        spaces.into_iter().map(|space| Span { space, from: 0, to: u64::MAX }).collect()
    }

    fn check_spans(&mut self, member: u8, spans: &[Span]) -> Outcome {
        let Some(slot) = self.slots.get(&member).filter(|slot| !slot.is_stopped()) else {
            return Ok(());
        };
        let life = slot.life_handle();
        let life = lock(&life);
        let Some(life) = life.as_ref() else { return Ok(()) };
        let checked = self.compare(&format!("process {member}"), life, spans);
        if self.may_die(member) { Ok(()) } else { checked }
    }

    /// Compares spans as one store reads them at its newest moment.
    fn compare(&mut self, who: &str, life: &Life, spans: &[Span]) -> Outcome {
        self.resolve(life)?;
        for span in spans {
            match life.read(*span).map_err(|error| error_in(who, &error))? {
                Answer::Rows { at, rows, .. } => self.judge_rows(who, *span, at, &[], rows)?,
                _ if self.known.is_drop_in_doubt => self.dropped(),
                _ => ensure(self.known.passing != Space::Present, || {
                    format!("{who}: a keyspace is missing")
                })?,
            }
        }
        Ok(())
    }

    fn check_past(&mut self, member: u8) -> Outcome {
        let Some(slot) = self.slots.get(&member).filter(|slot| !slot.is_stopped()) else {
            return Ok(());
        };
        let life = slot.life_handle();
        let life = lock(&life);
        let Some(life) = life.as_ref() else { return Ok(()) };
        for read in life.past() {
            if self.may_die(member) {
                return Ok(());
            }
            if let Answer::Rows { span, at, rows, .. } =
                read.map_err(|error| error_in("a snapshot", &error))?
            {
                self.judge_rows(&format!("process {member}, snapshot"), span, at, &[], rows)?;
            }
        }
        Ok(())
    }

    fn check_cursors(&self, member: u8) -> Outcome {
        let Some(db) = self.slots.get(&member).and_then(|slot| slot.db()) else { return Ok(()) };
        let newest = db.newest();
        let (found, first) = (cursors(&db), db.log().bounds().first.0);
        if self.may_die(member)
            || self.is_mixed()
            || self.slots.values().any(|slot| slot.is_stopped())
        {
            return Ok(());
        }
        let found: BTreeMap<u64, u64> = found.into_iter().collect();
        for (name, at) in self.known.cursors.iter().filter_map(|(name, at)| Some((*name, (*at)?))) {
            same(
                format!("process {member} at GLSN {newest}: position of cursor {name}"),
                &found.get(&name),
                &Some(&at),
            )?;
        }
        let oldest = found.values().min().copied().unwrap_or(u64::MAX);
        ensure(first <= oldest, || {
            format!("the log begins at GLSN {first}, but a cursor is at GLSN {oldest}")
        })
    }

    /// Opens a store alone, and compares all of it.
    pub(in crate::members) fn check_alone(&mut self, path: &str) -> Outcome {
        let who = format!("{path}, opened alone");
        let life = self.open_alone(path).map_err(|error| error_in(&who, &error))?;
        let is_buffered = self.is_any_buffered();
        if self.known.is_cut && path == crate::members::life::STORE {
            self.known.learn_what_is_left(life.db.newest().0, is_buffered)?;
        }
        let spans = self.all_spans();
        self.compare(&who, &life, &spans)?;
        self.compare_streams(&who, &life)?;
        self.compare_tags(&who, &life)?;
        if path == crate::members::life::STORE {
            self.settle_doubts(u64::MAX);
            self.must_be_fresh(u8::MAX, life.db.newest().0)?;
        }
        let report = life.db.verify(&mut |_| {}).map_err(|error| error_in(&who, &error))?;
        ensure(report.problems.is_empty(), || format!("{who}: {:?}", report.problems))?;
        let Life { db, .. } = life;
        db.close().map_err(|error| error_in(&who, &error))
    }
}

/// Whether an error reports only that a call failed.
fn is_of_failing_call(error: &Error) -> bool {
    matches!(error, Error::OutOfBudget(_) | Error::Io { .. } | Error::Behind { .. })
}

fn show(value: &[u8]) -> String {
    format!("{} bytes, {:02x?}", value.len(), &value[..value.len().min(16)])
}
