//! Runs each operation in the store and compares the result with the model.

use std::time::Duration;

use plimsoll::{Compression, Db, Error, Glsn};
use plimsoll_disk::clock::Clock;

use crate::content::Content;
use crate::driver::{DAY_MICROS, Driver, HOUR_MICROS};
use crate::failure::{Failure, Outcome, same};
use crate::judge::{ReadResult, View, WalkOptions};
use crate::model::{Entry, space_name};
use crate::op::{Fault, Get, Keep, Key, Op, Reader, Span};

/// Upper bound on a segment's overhead in addition to the payloads of one record: first and last
/// block, headers, padding.
const SEGMENT_RESERVE_BYTES: usize = 64 << 10;

impl Driver {
    /// Runs an operation; returns its result.
    pub(super) fn step(&mut self, op: &Op) -> Outcome<String> {
        let mut op = op.clone();
        if let Some(space) = op.space_mut() {
            *space = self.model.current_space(*space);
        }
        if let Op::Recover { .. }
        | Op::RecoverWhole
        | Op::LoseIndex
        | Op::Keep
        | Op::Restore { .. } = &op
        {
            // These operations change the store's files directly, so cancel a cut that is scheduled
            // for a change.
            self.world.disk.cut_power_at_change(u64::MAX);
        }
        match &op {
            Op::Begin { tx } => self.begin(*tx),
            Op::BeginOrdered { tx } => self.begin_ordered(*tx),
            Op::Commit { tx, metadata } => self.commit(*tx, *metadata, true),
            Op::Submit { tx } => self.commit(*tx, Content::default(), false),
            Op::Abort { tx } => {
                if let Some(open) = self.txs.remove(tx) {
                    open.handle.abort();
                }
                said("")
            }
            Op::Wait => self.wait(),
            Op::Put { tx, space, key, value, streamed } => {
                self.put(*tx, *space, key, *value, *streamed)
            }
            Op::PutMany { tx, space, first, count, value, scattered } => {
                self.put_many(*tx, *space, *first, *count, *value, *scattered)
            }
            Op::BulkLoad { space, first, count, value, scattered } => {
                self.bulk_load(*space, *first, *count, *value, *scattered)
            }
            Op::LoadBegin { slot, space } => self.begin_load(*slot, *space),
            Op::LoadPut { slot, key, value } => self.load_put(*slot, key, *value),
            Op::LoadMany { slot, first, count, value, scattered } => {
                self.load_many(*slot, *first, *count, *value, *scattered)
            }
            Op::LoadCommit { slot } => self.commit_load(*slot),
            Op::LoadDrop { slot } => {
                self.loads.remove(slot);
                said("")
            }
            Op::Update { tx, space, key, change } => self.update(*tx, *space, key, *change),
            Op::Delete { tx, space, key } => self.delete(*tx, *space, key),
            Op::Remove { tx, space, span, how, limit } => {
                self.remove(*tx, *space, span, *how, *limit)
            }
            Op::DeleteRange { space, span } => self.delete_range_now(*space, span),
            Op::Get { space, key, how: Get::Now, .. } => self.get_now(*space, key),
            Op::Get { from, space, key, how } => self.get(*from, *space, key, *how),
            Op::Walk { from, space, span, reverse, limit, keys_only, replace_after } => {
                let how = WalkOptions {
                    reverse: *reverse,
                    limit: *limit,
                    keys_only: *keys_only,
                    replace_after: *replace_after,
                };
                self.walk(*from, *space, span, how)
            }
            Op::WalkBegin { slot, from, space, span, reverse, keys_only } => {
                self.begin_walk(*slot, *from, *space, span, *reverse, *keys_only)
            }
            Op::WalkOn { slot, count } => self.walk_on(*slot, *count),
            Op::ReaderBegin { slot, from, space, key } => {
                self.begin_reader(*slot, *from, *space, key)
            }
            Op::ReaderOn { slot, bytes } => self.read_on(*slot, *bytes),
            Op::WithNested { at, nested, op } => self.run_nested(*at, nested, op),
            Op::Failing { call, op } => self.failing(*call, op),
            Op::Edge { tx, pick, value, spilled } => {
                self.change_at_edge(*tx, *pick, *value, *spilled)
            }
            Op::FeedBegin { slot, back, feed } => self.begin_feed(*slot, *back, feed),
            Op::FeedOn { slot, count } => self.feed_on(*slot, *count),
            Op::Snapshot { slot, moment } => self.snapshot(*slot, *moment),
            Op::Release { slot } => {
                self.snapshots.remove(slot);
                said("")
            }
            Op::History { space, key } => {
                let Some(keyspace) = self.keyspace(*space)? else { return said("failed") };
                let place = self.place(*space, &keyspace);
                answered(self.judge(&|error| self.excused(error)).history(place, key)?)
            }
            Op::Diff { space, from, to, prefix } => {
                let Some(keyspace) = self.keyspace(*space)? else { return said("failed") };
                let (from, to) = (self.back(*from), self.back(*to));
                let place = self.place(*space, &keyspace);
                answered(self.judge(&|error| self.excused(error)).diff(place, from, to, prefix)?)
            }
            Op::Revert { back, takes_theirs } => self.revert(*back, *takes_theirs),
            Op::Reset { space, back } => self.reset(*space, *back),
            Op::Append { stream, payloads, wait } => self.append(*stream, payloads, *wait),
            Op::Scan { back, count, stream } => {
                let from = self.back(*back).max(1);
                answered(self.judge(&|error| self.excused(error)).scan(from, *count, *stream)?)
            }
            Op::Follow { back, stream } => {
                let from = self.back(*back).max(1);
                answered(self.judge(&|error| self.excused(error)).follow(from, *stream)?)
            }
            Op::Watch { space, back, prefix } => {
                let Some(keyspace) = self.keyspace(*space)? else { return said("failed") };
                let from = self.back(*back).max(1);
                let place = self.place(*space, &keyspace);
                answered(self.judge(&|error| self.excused(error)).watch(place, from, prefix)?)
            }
            Op::Read { back } => {
                let glsn = self.back(*back).max(1);
                answered(self.judge(&|error| self.excused(error)).read(glsn)?)
            }
            Op::Trim { back } => self.trim(*back),
            Op::Keyspace { space, retention } => self.change_keyspace(*space, *retention),
            Op::Compress { space, compression } => self.compress(*space, *compression),
            Op::DropSpace { space } => self.drop_space(*space),
            Op::Cursor { name, back } => self.make_cursor(*name, *back),
            Op::AdvanceCursor { name, back } => self.advance_cursor(*name, *back),
            Op::DropCursor { name } => self.drop_cursor(*name),
            Op::Tag { name, back } => self.tag(*name, *back),
            Op::ReadTag { name } => self.read_tag(*name),
            Op::DeleteTag { name } => self.delete_tag(*name),
            Op::Recover { damage } => self.recover_damaged(*damage),
            Op::Flush => self.upkeep("flush", |db| db.flush()),
            Op::Compact => self.upkeep("compact", |db| db.compact()),
            // Drop all pages between steps, so that the row cache answers instead.
            Op::Step => self.upkeep("step", |db| {
                db.drop_pages();
                db.step().map(|_| ())
            }),
            Op::Work { first } => {
                self.upkeep("work", |db| db.step_from(usize::from(*first)).map(|_| ()))
            }
            Op::DropCaches => {
                self.db().drop_caches();
                said("")
            }
            Op::Memory { mebibytes } => self.give_memory(u64::from(*mebibytes) << 20),
            Op::Keep => self.keep_aside(),
            Op::Restore { part } => self.restore(*part),
            Op::Reopen => {
                self.reopen()?;
                said("")
            }
            Op::RecoverWhole => self.recover_whole(),
            Op::LoseIndex => self.lose_index(),
            Op::Backup => self.back_up(),
            Op::BackupCut => self.back_up_and_cut(),
            Op::Warm => {
                self.make_warm();
                said("")
            }
            Op::SaveImage => {
                self.save_image();
                said("")
            }
            Op::Kill => {
                self.kill()?;
                said("")
            }
            Op::Verify => {
                self.verify()?;
                said("")
            }
            Op::Check => {
                self.check()?;
                self.db().drop_caches();
                said("")
            }
            Op::ReadBeside => self.read_beside(),
            Op::Advance { micros } => {
                self.world.clock.advance(Duration::from_micros(*micros));
                said("")
            }
            Op::Jump { micros } => {
                let clock = &self.world.clock;
                self.clock_max_micros = self.clock_max_micros.max(clock.wall_micros());
                // Commits are refused while the log's time is ahead of the clock by more than a
                // day.
                let least = self.clock_max_micros.saturating_sub(DAY_MICROS - HOUR_MICROS);
                clock
                    .set_wall_micros(clock.wall_micros().saturating_add_signed(*micros).max(least));
                said("")
            }
            Op::Crash { again } => {
                self.ends_process = false;
                self.world.disk.cut_power();
                self.recover(*again)?;
                said("")
            }
            Op::CutAtSync { after } | Op::KillAtSync { after } => {
                self.ends_process = matches!(op, Op::KillAtSync { .. });
                let disk = &self.world.disk;
                disk.cut_power_at_sync(disk.sync_count().saturating_add(*after));
                said("")
            }
            Op::CutAtChange { after } | Op::KillAtChange { after } => {
                self.ends_process = matches!(op, Op::KillAtChange { .. });
                self.world.disk.cut_power_at_change(*after);
                said("")
            }
            Op::OfProcess(_)
            | Op::Timed(_)
            | Op::Branching(_)
            | Op::Syncing(_)
            | Op::Ordering(_) => said(""),
            Op::Fault(fault) => {
                self.lie(*fault);
                if *fault == Fault::Heal && !self.world.disk.power_is_cut() {
                    self.verify()?;
                }
                said("")
            }
        }
    }

    /// Sets the budget, which stays unchanged if more memory is in use.
    fn give_memory(&mut self, bytes: u64) -> Outcome<String> {
        let before = self.db().stats().memory.limit_bytes;
        let set = self.db().set_memory(bytes);
        let held = !self.txs.is_empty()
            || !self.snapshots.is_empty()
            || !self.loads.is_empty()
            || self.moments_held() > 0;
        let wanted = match &set {
            Err(Error::OutOfBudget(_)) if held => before,
            Err(error @ Error::Poisoned { .. }) if self.excused(error) => {
                self.in_doubt = true;
                before
            }
            Err(error) if self.excused(error) => before,
            Err(error) => {
                return Err(Failure::new(format!("set_memory to {bytes}: {error} [{error:?}]")));
            }
            Ok(()) => bytes,
        };
        same("the budget", &self.db().stats().memory.limit_bytes, &wanted)?;
        said("")
    }

    /// The moment this many GLSNs before the newest.
    pub(super) fn back(&self, glsns: u64) -> u64 {
        self.db().newest().saturating_sub(glsns).0
    }

    pub(super) fn get(&mut self, from: Reader, space: u8, key: &Key, how: Get) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let place = self.place(space, &keyspace);
        if let Reader::Tx(tx) = from
            && let Some(open) = self.txs.get(&tx)
        {
            let view = View::Tx(&open.handle, &open.writes);
            let got = self.judge(&|error| self.excused(error)).get(view, place, key, how)?;
            if let Some(open) = self.txs.get_mut(&tx).filter(|open| open.notes_read(space, key)) {
                // A get that returns nothing may end before the key is in the read set: without
                // memory, or while the transaction's own runs are searched.
                match got {
                    ReadResult::Answer | ReadResult::Part => open.reads.key(space, key),
                    ReadResult::NotResident | ReadResult::Refused => {
                        open.reads.perhaps_key(space, key)
                    }
                }
            }
            return answered(got.is_answered());
        }
        let Some(snapshot) = self.moment(from)? else { return said("failed") };
        let excuse = |error: &Error| self.excused(error);
        let got = self.judge(&excuse).get(View::Snapshot(&snapshot), place, key, how)?;
        answered(got.is_answered())
    }

    fn walk(&mut self, from: Reader, space: u8, span: &Span, how: WalkOptions) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        if how.replace_after.is_some() {
            // Commits submitted by now may have become durable.
            self.trim_asked = self.trim_asked.max(self.model.newest());
        }
        let place = self.place(space, &keyspace);
        if let Reader::Tx(tx) = from
            && let Some(open) = self.txs.get(&tx)
        {
            let view = View::Tx(&open.handle, &open.writes);
            let excuse = |error: &Error| self.excused(error);
            let judge = self.judge(&excuse);
            let walked = judge.walk(view, place, span, how)?;
            if let Some(open) = self.txs.get_mut(&tx) {
                open.reads_updates(space, span);
                match &walked.reached {
                    _ if walked.ended => open.reads.whole(space, span),
                    Some(reached) => open.reads.part(space, span, how.reverse, reached),
                    None => {}
                }
                if walked.failed {
                    open.reads.perhaps(space, span);
                }
            }
            return answered(!walked.failed);
        }
        let Some(snapshot) = self.moment(from)? else { return said("failed") };
        let view = View::Snapshot(&snapshot);
        let excuse = |error: &Error| self.excused(error);
        let judge = self.judge(&excuse);
        let walked = judge.walk(view, place, span, how)?;
        answered(!walked.failed)
    }

    fn append(&mut self, stream: u32, payloads: &[Content], wait: bool) -> Outcome<String> {
        let bytes: Vec<Vec<u8>> = payloads.iter().map(Content::make).collect();
        let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let noted = self.model.streams_in_use();
        let entries =
            payloads.iter().map(|content| Entry::Payload { stream, content: *content }).collect();
        let log = self.db().log();
        let appended = if wait {
            log.append(stream, &slices).map(|range| (Some(*range.start()), *range.end()))
        } else {
            let submitted = log.append_submit(stream, &slices);
            submitted.map(|ticket| {
                let glsn = ticket.glsn();
                self.tickets.push_back(ticket);
                (None, glsn)
            })
        };
        if self.is_too_large(&appended, &bytes) {
            return said("too large");
        }
        if !noted {
            // The note that streams are in use is a separate commit before the entries, and may
            // exist without them.
            let is_there = self.db().log().bounds().next > self.model.newest() + 1;
            match &appended {
                Err(error) if is_there || self.leaves_doubt(error) => {
                    self.model.submit(vec![Entry::StreamsInUse]);
                }
                appended => self.committed_unseen(appended, Entry::StreamsInUse),
            }
        }
        if let Ok((Some(first), last)) = &appended {
            same(
                "number of GLSNs of an append",
                &(last.0 + 1 - first.0),
                &(payloads.len() as u64),
            )?;
        }
        self.submitted("append", entries, appended.map(|(_, last)| last.0), wait)
    }

    /// Entries appended together are one record, which must fit into a segment.
    fn is_too_large<T>(&mut self, appended: &plimsoll::Result<T>, payloads: &[Vec<u8>]) -> bool {
        let Err(Error::InvalidInput { .. }) = appended else { return false };
        let bytes: usize = payloads.iter().map(Vec::len).sum();
        let too_large = (bytes + SEGMENT_RESERVE_BYTES) as u64 > self.world.setting.segment_bytes;
        if too_large
            && !self.model.streams_in_use()
            && self.db().log().bounds().next > self.model.newest() + 1
        {
            self.model.submit(vec![Entry::StreamsInUse]);
        }
        too_large
    }

    fn trim(&mut self, back: u64) -> Outcome<String> {
        let until = match back {
            // The whole log may go.
            0 => self.db().newest().next().0,
            _ => self.back(back),
        };
        // Record the request, whatever its result.
        self.trim_asked = self.trim_asked.max(until);
        let trimmed = self.db().log().trim(Glsn(until));
        if self.is_stopped(&trimmed) {
            return said("failed");
        }
        let Some(first) = self.expect("trim", trimmed)? else { return said("failed") };
        same("first GLSN after a trim", &self.db().log().bounds().first, &first)?;
        said("")
    }

    fn change_keyspace(&mut self, space: u8, keep: Keep) -> Outcome<String> {
        if !self.model.has_space(space) {
            let made = self.db().create_keyspace(&space_name(space), keep.retention());
            if self.in_doubt && made.is_ok() {
                // If the drop of the earlier keyspace of this name had an unknown outcome, this may
                // still be that keyspace.
                return said("in doubt");
            }
            self.committed_unseen(&made, Entry::Keyspace { space, retention: keep });
            let Some(keyspace) = self.expect("create_keyspace", made)? else {
                return said("failed");
            };
            self.spaces.insert(space, keyspace);
            return said("");
        }
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let set = self.db().set_retention(&keyspace, keep.retention());
        if !self.model.has_recorded(space, keep) {
            self.committed_unseen(&set, Entry::Keyspace { space, retention: keep });
        }
        answered(self.expect("set_retention", set)?.is_some())
    }

    fn compress(&mut self, space: u8, compression: Compression) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let set = self.db().set_compression(&keyspace, compression);
        // The model does not track compression, so ask the store whether it committed.
        if set.is_err() || self.db().newest().0 > self.model.newest() {
            let retention = self.model.retention(space);
            self.committed_unseen(&set, Entry::Keyspace { space, retention });
        }
        answered(self.expect("set_compression", set)?.is_some())
    }

    pub(super) fn upkeep(
        &mut self,
        what: &str,
        work: impl FnOnce(&Db) -> plimsoll::Result<()>,
    ) -> Outcome<String> {
        let done = work(self.db());
        if let Err(Error::Poisoned { .. }) = &done {
            self.in_doubt = true;
        }
        answered(!self.is_stopped(&done) && self.expect(what, done)?.is_some())
    }

    /// After damage was detected, compaction does nothing more until the store is opened again.
    pub(super) fn is_stopped<T>(&self, done: &plimsoll::Result<T>) -> bool {
        self.excuses.stopped && matches!(done, Err(Error::Corrupt { .. } | Error::Format { .. }))
    }
}

/// Whether flush or compaction can run within an operation.
pub(super) fn may_drop_versions(op: &Op) -> bool {
    !matches!(
        op,
        Op::Begin { .. }
            | Op::BeginOrdered { .. }
            | Op::LoadDrop { .. }
            | Op::Get { .. }
            | Op::Watch { .. }
            | Op::Walk { replace_after: None, .. }
            | Op::WalkOn { .. }
            | Op::ReaderOn { .. }
            | Op::Snapshot { .. }
            | Op::Release { .. }
            | Op::Advance { .. }
            | Op::Jump { .. }
            | Op::Fault(_)
            | Op::DropCaches
            | Op::Wait
    )
}

/// A permutation of the numbers below `count` in a pseudo-random order.
pub(super) fn scatter(number: u32, count: u32) -> u32 {
    const STEP: u64 = 7919;
    if u64::from(count).is_multiple_of(STEP) {
        return number;
    }
    (u64::from(number) * STEP % u64::from(count)) as u32
}

pub(super) fn said(what: impl Into<String>) -> Outcome<String> {
    Ok(what.into())
}

pub(super) fn answered(yes: bool) -> Outcome<String> {
    said(if yes { "answered" } else { "refused" })
}
