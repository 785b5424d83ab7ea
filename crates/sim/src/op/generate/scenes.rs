//! Scenes: sequences of operations that random choice would seldom produce.
//!
//! Each is a list of plain operations, so that a failing workload can be shortened like any other.

use crate::content::Content;
use crate::op::generate::Generator;
use crate::op::{
    Edge, Fault, Get, Keep, Key, Moment, NestedOp, Op, Reader, Span, Within, numbered_key,
};

/// The transactions and slots that scenes use.
pub(super) const TX: u8 = 0;
pub(super) const OTHER_TX: u8 = 1;
pub(super) const SLOT: u8 = 0;

/// More versions of a key than an iterator skips one by one.
const VERSIONS: u64 = 20;

/// More keys than an iterator steps over before it looks up and publishes a gap.
const QUEUED: u32 = 40;

/// More keys than the smallest read set records one by one.
const READ_KEYS: u32 = 80;

pub(super) const ALL: Span = Span::Range(Edge::Open, Edge::Open);

type Scene = fn(&mut Generator) -> Vec<Op>;

impl Generator {
    /// Begins one of the scenes that the settings permit.
    pub(super) fn scene(&mut self) -> Op {
        let settings = self.settings.clone();
        let (kills, crashes) = (settings.kills, settings.crashes);
        let (upkeep, limited, faulty) =
            (settings.upkeep, settings.limited, settings.fault.is_some() && !settings.restores);
        let wide = settings.many > 250 && self.random.chance(0.3);
        let scenes: [(bool, Scene); 48] = [
            (true, Self::spilled),
            (true, Self::many_versions),
            (true, Self::moved_deletion),
            (true, Self::many_reads),
            (upkeep, Self::large_right_after_opening),
            (limited, Self::walk_over_what_moves),
            (limited, Self::reader_over_what_moves),
            (limited, Self::large_values_relocated),
            (limited, Self::moment_beside_a_commit),
            (limited, Self::deleted_for_good),
            (kills, Self::image_and_one_commit),
            (kills && faulty && crashes, Self::failed_sync_and_kill),
            (upkeep && crashes, Self::backup_and_cut),
            (true, Self::load_beside_a_flush),
            (wide, Self::many_small_keys),
            (faulty, Self::walk_while_reads_fail),
            (limited, Self::held_against_retention),
            (true, Self::rewritten),
            (settings.many >= 250, Self::rising_twice),
            (true, Self::dropped_and_made_anew),
            (limited, Self::cursor_holds_the_log),
            (true, Self::tag_holds_a_moment),
            (true, Self::queue),
            (limited, Self::window_of_time),
            (limited && settings.many >= 250, Self::deletion_between_history_runs),
            (settings.restores, Self::deletions_lost_with_the_log),
            (crashes, Self::killed_within),
            (true, Self::removed_in_batches),
            (true, Self::deletions_of_nothing),
            (true, Self::reads_with_one_end),
            (true, Self::changed_at_the_edge),
            (true, Self::changed_at_the_edge),
            (true, Self::changed_at_the_edge),
            (true, Self::changed_at_the_edge),
            (true, Self::changed_at_the_edge),
            (settings.many >= 250, Self::run_ends_in_a_gap),
            (kills, Self::images_flushes_and_an_end),
            (kills, Self::images_flushes_and_an_end),
            (kills, Self::images_flushes_and_an_end),
            (kills, Self::range_delete_and_image),
            (crashes && limited, Self::cut_within_a_trim),
            (settings.forgetful, Self::flushed_within_a_trim),
            (settings.forgetful, Self::flushed_within_a_trim),
            (true, Self::feed_over_errors),
            (true, Self::feed_over_errors),
            (settings.fails, Self::walk_fails_in_old_sources),
            (settings.fails, Self::updates_from_stale_values),
            (settings.fails, Self::updates_from_stale_values),
        ];
        let permitted: Vec<Scene> = scenes
            .into_iter()
            .filter(|(permitted, _)| *permitted)
            .map(|(_, scene)| scene)
            .collect();
        let scene = permitted[self.below(permitted.len() as u64) as usize];
        let ops = scene(self);
        self.forced.extend(ops);
        self.open_txs[usize::from(TX)] = false;
        self.open_txs[usize::from(OTHER_TX)] = false;
        self.forced.pop_front().unwrap_or(Op::Step)
    }

    /// One of the first three keyspaces, two of which retain everything.
    pub(super) fn kept_space(&mut self) -> u8 {
        self.below(3.min(u64::from(self.settings.spaces))) as u8
    }

    pub(super) fn value_of(&mut self, bytes: u32) -> Content {
        Content { bytes, ..self.content() }
    }

    pub(super) fn put_one(&mut self, space: u8, key: &Key, bytes: u32) -> Vec<Op> {
        let value = self.value_of(bytes);
        let put = Op::Put { tx: TX, space, key: key.clone(), value, streamed: false };
        vec![Op::Begin { tx: TX }, put, commit(TX)]
    }

    /// The operations between a piece of work and its check.
    pub(super) fn interruption(&mut self) -> Vec<Op> {
        match self.below(5) {
            0 => vec![Op::Flush],
            1 => vec![Op::Compact],
            2 if self.settings.upkeep => vec![self.reopen()],
            3 if self.settings.kills => vec![self.kill()],
            4 if self.settings.crashes => vec![self.crash()],
            _ => vec![Op::Step, Op::DropCaches],
        }
    }

    /// A transaction spills into blob files, is read back, committed, and checked; some keys are
    /// written twice.
    fn spilled(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let (first, scattered) = (self.below(200) as u32, self.random.chance(0.5));
        let mut ops = vec![Op::Begin { tx: TX }];
        // The runs of a tier are merged once there are eight, which takes eight spills of the
        // smallest write set.
        let times = if self.settings.many >= 250 { 1 + self.below(5) } else { 1 };
        for _ in 0..times {
            let value = Content { bytes: 900, seed: self.content().seed.wrapping_mul(0x9e37_79b1) };
            let count = self.settings.many.clamp(100, 250);
            ops.push(Op::PutMany { tx: TX, space, first, count, value, scattered });
            if self.random.chance(0.3) {
                let key = numbered_key(first + self.below(u64::from(count)) as u32);
                ops.push(Op::Delete { tx: TX, space, key });
            }
        }
        ops.push(self.walk_of(Reader::Tx(TX), space, None));
        let key = numbered_key(first + 3);
        ops.push(Op::Get { from: Reader::Tx(TX), space, key: key.clone(), how: Get::Value });
        ops.push(commit(TX));
        ops.extend(self.interruption());
        ops.push(Op::Get { from: Reader::Back(0), space, key, how: Get::Value });
        ops.push(self.walk_of(Reader::Back(0), space, None));
        ops.extend(self.interruption());
        ops.push(self.walk_of(Reader::Back(0), space, None));
        ops
    }

    pub(super) fn walk_of(&mut self, from: Reader, space: u8, replace_after: Option<u32>) -> Op {
        let (reverse, keys_only) = (self.random.chance(0.5), self.random.chance(0.2));
        Op::Walk { from, space, span: ALL, reverse, limit: u32::MAX, keys_only, replace_after }
    }

    /// A queue is emptied from one end, one transaction per key, until iterators know the gap. Then
    /// a key is put there.
    fn queue(&mut self) -> Vec<Op> {
        let (space, value, reverse) =
            (self.below(2) as u8, self.value_of(20), self.random.chance(0.5));
        let many = Op::PutMany { tx: TX, space, first: 0, count: QUEUED, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX)];
        ops.extend(self.interruption());
        // The two remaining keys may be adjacent to the range, which the gap must not exceed.
        let mut edge = |key: u64| {
            let key = numbered_key(key as u32);
            if self.random.chance(0.5) { Edge::Beside(key) } else { Edge::At(key) }
        };
        let range = Span::Range(edge(0), edge(u64::from(QUEUED) - 1));
        let narrow = Span::Range(edge(1), edge(u64::from(QUEUED) - 2));
        let span = match self.below(4) {
            0 => range,
            1 => narrow,
            _ => Span::Prefix(b"m/".to_vec()),
        };
        let end = |from, limit| Op::Walk {
            from,
            space,
            span: span.clone(),
            reverse,
            limit,
            keys_only: false,
            replace_after: None,
        };
        let from_end =
            |number: u32| numbered_key(if reverse { QUEUED - 1 - number } else { number });
        let popped = self.below(u64::from(QUEUED) - 12) as u32;
        ops.push(Op::Begin { tx: TX });
        for number in 0..popped {
            ops.extend([
                Op::Delete { tx: TX, space, key: from_end(number) },
                end(Reader::Tx(TX), 1),
            ]);
        }
        if popped > 0 && self.random.chance(0.3) {
            let (key, value) = (from_end(self.below(u64::from(popped)) as u32), self.value_of(21));
            ops.extend([
                Op::Put { tx: TX, space, key, value, streamed: false },
                end(Reader::Tx(TX), 3),
            ]);
        }
        ops.extend([commit(TX), end(Reader::Back(0), 2)]);
        for number in popped..QUEUED - 2 {
            ops.extend([
                Op::Begin { tx: TX },
                Op::Delete { tx: TX, space, key: from_end(number) },
                commit(TX),
            ]);
            if self.random.chance(0.3) {
                ops.push(end(Reader::Back(0), 1));
            }
        }
        ops.extend([end(Reader::Back(0), 1), end(Reader::Back(0), 2), end(Reader::Back(3), 2)]);
        ops.push(self.walk_of(Reader::Back(0), space, None));
        if self.random.chance(0.2) {
            ops.extend(self.interruption());
        }
        for _ in 0..2 {
            let key = from_end(self.below(u64::from(QUEUED) - 3) as u32);
            ops.extend(self.put_one(space, &key, 22));
            ops.extend([
                end(Reader::Back(0), 3),
                end(Reader::Back(1), 3),
                self.walk_of(Reader::Back(0), space, None),
            ]);
        }
        ops
    }

    /// A key with more versions than a leaf holds, read at past moments in both directions.
    fn many_versions(&mut self) -> Vec<Op> {
        let (space, key) = (self.below(2) as u8, numbered_key(self.below(3) as u32));
        let mut ops = Vec::new();
        let deleted = self.below(VERSIONS);
        for number in 0..VERSIONS {
            if number == deleted {
                ops.extend([
                    Op::Begin { tx: TX },
                    Op::Delete { tx: TX, space, key: key.clone() },
                    commit(TX),
                ]);
            } else {
                let bytes = 960 + self.below(70) as u32;
                ops.extend(self.put_one(space, &key, bytes));
            }
            if self.random.chance(0.1) {
                ops.extend([Op::Flush, Op::Step]);
            }
        }
        for _ in 0..3 {
            let from = Reader::Back(self.below(VERSIONS));
            ops.push(Op::Walk {
                from,
                space,
                span: ALL,
                reverse: true,
                limit: 12,
                keys_only: false,
                replace_after: None,
            });
            ops.push(Op::Get { from, space, key: key.clone(), how: Get::Value });
            ops.extend(self.interruption());
        }
        ops.push(Op::History { space, key });
        ops
    }

    /// A transaction has read keys that another deletes; the deletions leave the current runs
    /// before the first transaction commits.
    fn moved_deletion(&mut self) -> Vec<Op> {
        let (space, key) = (self.kept_space(), self.key());
        let mut ops = self.put_one(space, &key, 50);
        ops.push(Op::Flush);
        ops.push(Op::Begin { tx: TX });
        ops.push(if self.random.chance(0.5) {
            Op::Get { from: Reader::Tx(TX), space, key: key.clone(), how: Get::Value }
        } else {
            self.walk_of(Reader::Tx(TX), space, None)
        });
        ops.push(Op::Begin { tx: OTHER_TX });
        ops.push(Op::Delete { tx: OTHER_TX, space, key: key.clone() });
        ops.push(commit(OTHER_TX));
        ops.push(Op::Compact);
        let value = self.value_of(10);
        ops.push(Op::Put { tx: TX, space, key: numbered_key(7), value, streamed: false });
        ops.push(commit(TX));
        ops.push(Op::Get { from: Reader::Back(1), space, key: key.clone(), how: Get::Value });
        ops.push(Op::Get { from: Reader::Back(0), space, key, how: Get::Value });
        ops
    }

    /// A transaction reads more than it may record; then another one changes one of the keys, or an
    /// adjacent key.
    fn many_reads(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let value = self.value_of(30);
        let many =
            Op::PutMany { tx: TX, space, first: 100, count: READ_KEYS, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX), Op::Begin { tx: TX }];
        // Read a wide range around the keys first, so that the range that covers all of them may
        // end after the last.
        let walks = self.random.chance(0.5);
        if walks {
            let edge = |number| Edge::At(numbered_key(number));
            let from = 100 + self.below(u64::from(READ_KEYS) / 2) as u32;
            let span = Span::Range(edge(from), edge(100 + READ_KEYS + 9));
            let (from, reverse) = (Reader::Tx(TX), self.random.chance(0.5));
            ops.push(Op::Walk {
                from,
                space,
                span,
                reverse,
                limit: u32::MAX,
                keys_only: true,
                replace_after: None,
            });
        }
        let get = |number| Op::Get {
            from: Reader::Tx(TX),
            space,
            key: numbered_key(number),
            how: Get::Contains,
        };
        ops.extend((100..100 + READ_KEYS).map(get));
        let read_last = if walks && self.random.chance(0.6) { READ_KEYS } else { 0 };
        let changed = numbered_key(if read_last > 0 {
            100 + read_last + self.below(9) as u32
        } else {
            90 + self.below(70) as u32
        });
        let (value, own) = (self.value_of(31), self.value_of(32));
        ops.push(Op::Begin { tx: OTHER_TX });
        ops.push(Op::Put { tx: OTHER_TX, space, key: changed, value, streamed: false });
        ops.push(commit(OTHER_TX));
        if self.random.chance(0.5) {
            ops.push(Op::Flush);
        }
        ops.push(Op::Put { tx: TX, space, key: b"own".to_vec(), value: own, streamed: false });
        ops.push(commit(TX));
        ops
    }

    /// The first blob file after the store was opened is written while the store is verified.
    fn large_right_after_opening(&mut self) -> Vec<Op> {
        let (space, key) = (self.kept_space(), self.key());
        let value = self.value_of((300 << 10) + self.settings.value_bytes_min);
        let opening = match self.below(3) {
            0 if self.settings.kills => self.kill(),
            1 if self.settings.crashes => self.crash(),
            _ => self.reopen(),
        };
        let mut ops = vec![opening, Op::Begin { tx: TX }];
        ops.push(Op::Put {
            tx: TX,
            space,
            key: key.clone(),
            value,
            streamed: self.random.chance(0.5),
        });
        ops.push(if self.random.chance(0.7) { Op::Verify } else { Op::Compact });
        ops.push(commit(TX));
        ops.extend(self.interruption());
        ops.push(Op::Get { from: Reader::Back(0), space, key, how: Get::Value });
        ops
    }

    /// An iterator stays open while everything in its range moves into new files, and the old files
    /// are removed.
    fn walk_over_what_moves(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let count = 100 + self.below(100) as u32;
        let value = Content {
            bytes: 400 + self.below(900) as u32,
            seed: self.content().seed.wrapping_mul(77),
        };
        let many = Op::PutMany {
            tx: TX,
            space,
            first: 0,
            count,
            value,
            scattered: self.random.chance(0.5),
        };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX)];
        if self.random.chance(0.5) {
            ops.push(Op::Flush);
        }
        let (reverse, keys_only) = (self.random.chance(0.6), self.random.chance(0.2));
        if self.random.chance(0.3) {
            let replace_after = Some(self.below(u64::from(count)) as u32);
            ops.push(Op::Begin { tx: TX });
            let (key, value) = (numbered_key(self.below(100) as u32), self.value_of(20));
            ops.push(Op::Put { tx: TX, space, key, value, streamed: false });
            let (span, limit) = (ALL, u32::MAX);
            ops.push(Op::Walk {
                from: Reader::Tx(TX),
                space,
                span,
                reverse,
                limit,
                keys_only,
                replace_after,
            });
            ops.push(commit(TX));
            return ops;
        }
        ops.push(Op::WalkBegin {
            slot: SLOT,
            from: Reader::Back(0),
            space,
            span: ALL,
            reverse,
            keys_only,
        });
        ops.push(Op::WalkOn { slot: SLOT, count: 1 + self.below(u64::from(count)) as u32 });
        ops.extend(self.fill_segment(space));
        let key = numbered_key(self.below(u64::from(count)) as u32);
        ops.extend(self.put_one(space, &key, 60));
        ops.extend([Op::Compact, Op::Trim { back: 0 }, Op::DropCaches]);
        ops.push(Op::WalkOn { slot: SLOT, count: 1 + self.below(20) as u32 });
        ops.extend([Op::Compact, Op::DropCaches]);
        ops.push(Op::WalkOn { slot: SLOT, count: u32::MAX });
        ops
    }

    /// Enough commits for a new segment of the log, if segments are small.
    pub(super) fn fill_segment(&mut self, space: u8) -> Vec<Op> {
        let commits = if self.random.chance(0.5) { 7 } else { 24 };
        (0..commits).flat_map(|_| self.put_one(space, &b"filler".to_vec(), 12_000)).collect()
    }

    /// An iterator continues although pages cannot be read, if there are newer sources.
    fn walk_while_reads_fail(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let value = Content {
            bytes: 300 + self.below(600) as u32,
            seed: self.content().seed.wrapping_mul(77),
        };
        let many = Op::PutMany { tx: TX, space, first: 0, count: 150, value, scattered: false };
        let mut ops =
            vec![Op::Fault(Fault::Heal), Op::Begin { tx: TX }, many, commit(TX), Op::Flush];
        let (reverse, keys_only) = (self.random.chance(0.6), self.random.chance(0.2));
        ops.push(Op::WalkBegin {
            slot: SLOT,
            from: Reader::Back(0),
            space,
            span: ALL,
            reverse,
            keys_only,
        });
        ops.push(Op::WalkOn { slot: SLOT, count: 1 + self.below(100) as u32 });
        ops.extend(self.put_one(space, &b"newer".to_vec(), 60));
        ops.extend([Op::Flush, Op::DropCaches]);
        ops.push(Op::Fault(Fault::Reads(100 + self.below(300) as u16)));
        let on = Op::WalkOn { slot: SLOT, count: u32::MAX };
        // If the sources are replaced within the call, a failed read is retried in the new ones.
        ops.push(if self.random.chance(0.5) {
            let key = numbered_key(self.below(150) as u32);
            let nested = NestedOp::Commit { space, key, value: self.value_of(70) };
            Op::WithNested { at: Within::IteratorAttached, nested, op: Box::new(on) }
        } else {
            on
        });
        ops.push(Op::Fault(Fault::Heal));
        ops
    }

    /// A reader of a value stays open while the value moves out of the log.
    fn reader_over_what_moves(&mut self) -> Vec<Op> {
        let (space, key) = (self.kept_space(), self.key());
        let bytes = 2000 + self.below(200_000) as u32;
        let mut ops = self.put_one(space, &key, bytes);
        if self.random.chance(0.5) {
            ops.push(Op::Flush);
        }
        ops.push(Op::ReaderBegin { slot: SLOT, from: Reader::Back(0), space, key: key.clone() });
        ops.push(Op::ReaderOn { slot: SLOT, bytes: 1 + self.below(u64::from(bytes)) as u32 });
        if self.random.chance(0.5) {
            ops.extend(self.put_one(space, &key, bytes));
        }
        ops.extend(self.fill_segment(space));
        ops.extend([Op::Compact, Op::Trim { back: 0 }, Op::DropCaches]);
        ops.push(Op::ReaderOn { slot: SLOT, bytes: u32::MAX });
        ops
    }

    /// Values in the log, larger than one compaction step, are moved and read at their new place.
    fn large_values_relocated(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let mut ops = Vec::new();
        let deleted = numbered_key(9);
        let deletes = self.random.chance(0.5);
        if deletes {
            // The run with the moved values deletes keys that an older run holds.
            ops.extend(self.put_one(space, &deleted, 30));
            ops.extend([Op::Flush, Op::Begin { tx: TX }]);
            ops.extend([Op::Delete { tx: TX, space, key: deleted.clone() }, commit(TX)]);
        }
        for number in 0..3 {
            let bytes = 17_000 + self.below(30_000) as u32;
            ops.extend(self.put_one(space, &numbered_key(number), bytes));
        }
        ops.push(Op::Flush);
        ops.push(Op::Trim { back: 0 });
        if self.random.chance(0.5) {
            ops.extend(self.interruption());
        }
        let get = |number| Op::Get {
            from: Reader::Back(0),
            space,
            key: numbered_key(number),
            how: Get::Value,
        };
        ops.extend((0..3).map(get));
        ops.push(Op::Get {
            from: Reader::Back(2),
            space,
            key: numbered_key(0),
            how: Get::Streamed,
        });
        ops.push(Op::Get { from: Reader::Back(0), space, key: deleted.clone(), how: Get::Value });
        if deletes && self.random.chance(0.5) {
            ops.extend([
                Op::Compact,
                Op::Get { from: Reader::Back(0), space, key: deleted, how: Get::Value },
            ]);
        }
        ops
    }

    /// A snapshot is opened while another thread supersedes versions visible at its moment, in a
    /// keyspace that retains only the latest.
    fn moment_beside_a_commit(&mut self) -> Vec<Op> {
        let space = 2;
        let key = numbered_key(self.below(3) as u32);
        let mut ops =
            vec![Op::Release { slot: 0 }, Op::Release { slot: 1 }, Op::Release { slot: 2 }];
        ops.extend((0..3).map(|tx| Op::Abort { tx }));
        ops.push(Op::Keyspace { space, retention: Keep::Latest });
        ops.extend(self.put_one(space, &key, 40));
        let value = self.value_of(41);
        let nested = NestedOp::Commit { space, key: key.clone(), value };
        let op = match self.below(3) {
            0 => Op::Begin { tx: TX },
            1 => Op::Get { from: Reader::Back(0), space, key: key.clone(), how: Get::Value },
            _ => Op::Snapshot { slot: SLOT, moment: Moment::Newest },
        };
        ops.push(Op::WithNested { at: Within::MomentAsked, nested, op: Box::new(op) });
        ops.push(Op::Get { from: Reader::Snapshot(SLOT), space, key, how: Get::Value });
        ops.push(Op::Abort { tx: TX });
        ops
    }

    /// Keys are deleted in a keyspace without history, all trace of them is dropped, and they are
    /// written again.
    fn deleted_for_good(&mut self) -> Vec<Op> {
        let (space, value) = (2, self.value_of(100));
        let many = Op::PutMany { tx: TX, space, first: 0, count: 30, value, scattered: false };
        let mut ops = vec![
            Op::Keyspace { space, retention: Keep::Latest },
            Op::Begin { tx: TX },
            many,
            commit(TX),
        ];
        ops.extend([Op::Warm, Op::Compact, Op::Warm]);
        if self.random.chance(0.6) {
            // Save an image, so that one with the keys exists after a kill.
            ops.push(Op::SaveImage);
        }
        let deletes = (0..30).map(|number| Op::Delete { tx: TX, space, key: numbered_key(number) });
        ops.push(Op::Begin { tx: TX });
        ops.extend(deletes);
        ops.push(commit(TX));
        ops.extend([Op::Compact, self.walk_of(Reader::Back(0), space, None)]);
        ops.extend(if self.settings.kills && self.random.chance(0.6) {
            vec![self.kill()]
        } else {
            self.interruption()
        });
        ops.extend((0..4).map(|_| Op::Work { first: 4 }));
        let get = |number| Op::Get {
            from: Reader::Back(0),
            space,
            key: numbered_key(number),
            how: Get::Value,
        };
        ops.extend((0..30).map(get));
        let key = numbered_key(self.below(30) as u32);
        ops.extend(self.put_one(space, &key, 40));
        ops.extend([Op::Compact, self.walk_of(Reader::Back(0), space, None)]);
        ops
    }

    /// An image is saved, one more commit is flushed into a separate run, and the process ends.
    fn image_and_one_commit(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let value = self.value_of(200);
        let many = Op::PutMany { tx: TX, space, first: 0, count: 12, value, scattered: false };
        let mut ops = vec![self.reopen()];
        ops.extend([Op::Work { first: 4 }, Op::Work { first: 4 }, Op::Work { first: 4 }]);
        ops.extend([Op::Begin { tx: TX }, many, commit(TX), Op::Flush, Op::Warm, Op::SaveImage]);
        let key = numbered_key(self.below(12) as u32);
        if self.random.chance(0.3) {
            ops.extend([
                Op::Begin { tx: TX },
                Op::Delete { tx: TX, space, key: key.clone() },
                commit(TX),
            ]);
        } else {
            ops.extend(self.put_one(space, &key, 70));
        }
        ops.push(if self.random.chance(0.7) { Op::Flush } else { Op::Compact });
        ops.push(self.kill());
        ops.extend((0..6).map(|_| Op::Work { first: 4 }));
        let get = |number| Op::Get {
            from: Reader::Back(0),
            space,
            key: numbered_key(number),
            how: Get::Value,
        };
        ops.extend((0..12).map(get));
        ops
    }

    /// A sync of a flush or a merge fails, the store remains in use, and the process ends. The next
    /// process must be able to open the store.
    fn failed_sync_and_kill(&mut self) -> Vec<Op> {
        let (space, key) = (self.kept_space(), self.key());
        let mut ops = self.put_one(space, &key, 300);
        let fault = if self.random.chance(0.2) {
            Fault::RenameLater(1)
        } else {
            Fault::SyncLater(1 + self.below(5))
        };
        ops.push(Op::Fault(fault));
        ops.push(if self.random.chance(0.6) { Op::Flush } else { Op::Compact });
        for _ in 0..self.below(3) {
            ops.push(if self.random.chance(0.5) { Op::Step } else { Op::Compact });
        }
        ops.push(Op::Get { from: Reader::Back(0), space, key: key.clone(), how: Get::Value });
        ops.push(if self.random.chance(0.7) { self.kill() } else { self.crash() });
        ops.push(Op::Get { from: Reader::Back(0), space, key, how: Get::Value });
        ops
    }

    /// A finished backup survives a power cut.
    fn backup_and_cut(&mut self) -> Vec<Op> {
        let (space, key) = (self.kept_space(), self.key());
        let bytes = self.below(80_000) as u32;
        let mut ops = self.put_one(space, &key, bytes);
        ops.push(Op::Begin { tx: TX });
        if self.random.chance(0.5) {
            ops.push(Op::Flush);
        }
        self.closed();
        ops.push(Op::BackupCut);
        ops
    }

    /// A value is loaded while a newer one enters the runs, and must not be cached as the newest.
    fn load_beside_a_flush(&mut self) -> Vec<Op> {
        let (space, number) = (self.kept_space(), self.below(3) as u32);
        let key = numbered_key(number);
        // Large values are cached apart.
        let bytes = if number == 0 { 300 << 10 } else { 500 };
        let mut ops = self.put_one(space, &key, bytes);
        ops.extend([Op::Flush, Op::DropCaches]);
        let value = self.value_of(501);
        let nested = NestedOp::Commit { space, key: key.clone(), value };
        let at = if self.random.chance(0.5) { Within::ValueLoaded } else { Within::SourcesTaken };
        let get = Op::Get { from: Reader::Back(0), space, key, how: Get::Value };
        ops.extend([Op::WithNested { at, nested, op: Box::new(get.clone()) }, get]);
        ops
    }
}

pub(super) fn commit(tx: u8) -> Op {
    Op::Commit { tx, metadata: Content::default() }
}
