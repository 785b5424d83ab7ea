//! Operations and scenes on past versions: retentions, cursors, dropped keyspaces, commits within
//! other operations, and full history files.

use crate::content::Content;
use crate::op::generate::Generator;
use crate::op::generate::scenes::{ALL, OTHER_TX, SLOT, TX, commit};
use crate::op::{Get, Keep, Moment, NestedOp, Op, Reader, Within, numbered_key};

impl Generator {
    pub(super) fn drop_space(&mut self) -> Op {
        Op::DropSpace { space: 1 + self.below(u64::from(self.settings.spaces.max(2)) - 1) as u8 }
    }

    pub(super) fn cursor_name(&mut self) -> u8 {
        self.below(2) as u8
    }

    pub(super) fn cursor(&mut self) -> Op {
        Op::Cursor { name: self.cursor_name(), back: self.back() }
    }

    pub(super) fn advance_cursor(&mut self) -> Op {
        Op::AdvanceCursor { name: self.cursor_name(), back: self.back() }
    }

    pub(super) fn tag_name(&mut self) -> u8 {
        self.below(3) as u8
    }

    /// Mostly the newest moment, which is always readable.
    pub(super) fn tag(&mut self) -> Op {
        let back = if self.below(3) == 0 { self.back() } else { 0 };
        Op::Tag { name: self.tag_name(), back }
    }

    /// A tagged moment is read after its versions were superseded, merged and freed with the log.
    pub(super) fn tag_holds_a_moment(&mut self) -> Vec<Op> {
        let (space, name, key) = (self.space(), self.tag_name(), self.key());
        let mut ops = vec![Op::DeleteTag { name }];
        if self.settings.limited {
            ops.push(Op::Keyspace { space, retention: Keep::Latest });
        }
        ops.extend(self.put_one(space, &key, 71));
        ops.push(Op::Tag { name, back: 0 });
        for seed in 72..75 {
            ops.extend(self.put_one(space, &key, seed));
            ops.push(Op::Flush);
        }
        ops.push(Op::Compact);
        ops.extend(self.interruption());
        if self.settings.limited {
            ops.push(Op::Trim { back: 0 });
        }
        ops.extend([Op::ReadTag { name }, Op::History { space, key: key.clone() }]);
        ops.push(Op::DeleteTag { name });
        ops.extend(self.interruption());
        ops.extend(self.put_one(space, &key, 75));
        ops.extend([Op::Compact, Op::ReadTag { name }, Op::History { space, key }]);
        ops
    }

    pub(super) fn nested(&mut self) -> Op {
        let nested = match self.below(10) {
            0..6 => {
                NestedOp::Commit { space: self.space(), key: self.key(), value: self.content() }
            }
            6..8 => NestedOp::Compact,
            8 if self.settings.limited => NestedOp::Trim,
            _ => NestedOp::DropCaches,
        };
        let (at, op) = match self.below(8) {
            6 => (Within::IteratorAttached, self.walk_on()),
            7 => (
                Within::IteratorAttached,
                Op::Walk {
                    from: self.reader(),
                    space: self.space(),
                    span: self.span(),
                    reverse: self.random.chance(0.5),
                    limit: u32::MAX,
                    keys_only: false,
                    replace_after: None,
                },
            ),
            0 => (Within::MomentAsked, self.begin()),
            1 => (Within::MomentAsked, self.snapshot_of(Moment::Newest)),
            2 | 3 => (Within::SourcesTaken, self.get_at_a_moment()),
            4 => (Within::ValueLoaded, self.get_at_a_moment()),
            _ => (Within::MomentAsked, self.get_at_a_moment()),
        };
        Op::WithNested { at, nested, op: Box::new(op) }
    }

    fn get_at_a_moment(&mut self) -> Op {
        match self.get() {
            Op::Get { from, space, key, how: Get::Now } => {
                Op::Get { from, space, key, how: Get::Value }
            }
            get => get,
        }
    }

    pub(super) fn lose_index(&mut self) -> Op {
        self.closed();
        Op::LoseIndex
    }

    pub(super) fn recover_damaged(&mut self) -> Op {
        self.closed();
        Op::Recover { damage: self.below(1 << 40) }
    }

    /// An iterator or reader stays open at a moment that its keyspace need not retain any more, and
    /// is used after everything droppable was dropped.
    pub(super) fn held_against_retention(&mut self) -> Vec<Op> {
        let space = 2 + self.below(u64::from(self.settings.spaces.max(3)) - 2) as u8;
        let retention = match self.below(4) {
            0 => Keep::Latest,
            1 => Keep::Micros(1 + self.below(1000)),
            _ => Keep::Glsns(self.below(3)),
        };
        let bytes = if self.random.chance(0.5) { 40 } else { 2000 + self.below(60_000) as u32 };
        let (key, other) = (numbered_key(self.below(3) as u32), numbered_key(3));
        let mut ops = vec![Op::Keyspace { space, retention }];
        ops.extend(self.put_one(space, &key, bytes));
        ops.extend(self.put_one(space, &other, bytes));
        if self.random.chance(0.5) {
            ops.push(Op::Flush);
        }
        let how = self.below(4);
        let reader = match how {
            0 => {
                ops.push(Op::Snapshot { slot: SLOT, moment: Moment::Newest });
                Reader::Snapshot(SLOT)
            }
            1 => {
                ops.push(Op::Begin { tx: OTHER_TX });
                Reader::Tx(OTHER_TX)
            }
            2 => {
                let (from, key) = (Reader::Back(0), key.clone());
                ops.extend([
                    Op::ReaderBegin { slot: SLOT, from, space, key },
                    Op::ReaderOn { slot: SLOT, bytes: 10 },
                ]);
                Reader::Back(0)
            }
            _ => {
                let (from, reverse, keys_only) = (Reader::Back(0), self.random.chance(0.5), false);
                ops.push(Op::WalkBegin { slot: SLOT, from, space, span: ALL, reverse, keys_only });
                ops.push(Op::WalkOn { slot: SLOT, count: 1 });
                Reader::Back(0)
            }
        };
        for _ in 0..2 + self.below(4) {
            ops.extend(self.put_one(space, &key, bytes));
            ops.push(Op::Advance { micros: 2_000_000 });
        }
        if self.random.chance(0.3) {
            ops.extend([
                Op::Begin { tx: TX },
                Op::Delete { tx: TX, space, key: other.clone() },
                commit(TX),
            ]);
        }
        if self.random.chance(0.4) {
            ops.extend(self.fill_segment(space));
        }
        ops.push(Op::Compact);
        if self.random.chance(0.5) {
            ops.push(Op::Trim { back: 0 });
        }
        ops.push(Op::DropCaches);
        ops.push(match how {
            2 => Op::ReaderOn { slot: SLOT, bytes: u32::MAX },
            3 => Op::WalkOn { slot: SLOT, count: u32::MAX },
            _ => Op::Get { from: reader, space, key, how: Get::Value },
        });
        if how < 2 {
            ops.push(self.walk_of(reader, space, None));
            ops.push(Op::Release { slot: SLOT });
            ops.push(Op::Abort { tx: OTHER_TX });
        }
        ops
    }

    /// Many keys get many versions, all retained, which exceed one history file.
    pub(super) fn rewritten(&mut self) -> Vec<Op> {
        let space = self.below(2) as u8;
        let (count, bytes) = (self.settings.many.clamp(60, 150), 700 + self.below(300) as u32);
        let times = 3 + self.below(3);
        let mut ops = Vec::new();
        for _ in 0..times {
            let value = Content { bytes, seed: self.content().seed.wrapping_mul(0x9e37_79b1) };
            let (scattered, first) = (self.random.chance(0.5), 0);
            ops.push(Op::Begin { tx: TX });
            ops.push(Op::PutMany { tx: TX, space, first, count, value, scattered });
            if self.random.chance(0.3) {
                let key = numbered_key(self.below(u64::from(count)) as u32);
                ops.push(Op::Delete { tx: TX, space, key });
            }
            ops.push(commit(TX));
            if self.random.chance(0.3) {
                ops.push(Op::Flush);
            }
        }
        ops.extend([Op::Compact, Op::DropCaches]);
        for back in 0..times {
            ops.push(self.walk_of(Reader::Back(back), space, None));
            let key = numbered_key(self.below(u64::from(count)) as u32);
            ops.push(Op::Get {
                from: Reader::Back(back),
                space,
                key: key.clone(),
                how: Get::Value,
            });
            ops.push(Op::History { space, key });
        }
        ops
    }

    /// A transaction writes ascending keys, each twice in a row, and spills until several runs are
    /// merged. The last key of one run may be the first of the next.
    pub(super) fn rising_twice(&mut self) -> Vec<Op> {
        let space = self.below(2) as u8;
        let keys = 100 + self.below(50) as u32;
        let mut ops = vec![Op::Begin { tx: TX }];
        for number in 0..2 * keys {
            let (key, value) =
                (numbered_key(number / 2), self.value_of(4000 + 1000 * (number % 2)));
            ops.push(Op::Put { tx: TX, space, key, value, streamed: false });
        }
        ops.push(self.walk_of(Reader::Tx(TX), space, None));
        ops.push(commit(TX));
        ops.extend(self.interruption());
        ops.push(self.walk_of(Reader::Back(0), space, None));
        ops
    }

    /// A keyspace retains a time window; reads happen at moments within the window, and at its
    /// edge.
    pub(super) fn window_of_time(&mut self) -> Vec<Op> {
        let space = 2 + self.below(u64::from(self.settings.spaces.max(3)) - 2) as u8;
        let window = 4_000_000 + self.below(16_000_000);
        let mut ops = vec![Op::Keyspace { space, retention: Keep::Micros(window) }];
        let key = numbered_key(self.below(3) as u32);
        for _ in 0..3 + self.below(4) {
            ops.extend(self.put_one(space, &key, 60));
            if self.random.chance(0.3) {
                ops.extend([
                    Op::Begin { tx: TX },
                    Op::Delete { tx: TX, space, key: key.clone() },
                    commit(TX),
                ]);
            }
            if self.random.chance(0.3) {
                ops.push(Op::Flush);
            }
            ops.push(Op::Advance { micros: window / 8 + self.below(window / 8) });
        }
        ops.push(Op::Compact);
        for _ in 0..3 {
            ops.push(Op::Snapshot {
                slot: SLOT,
                moment: Moment::Age(self.below(window + window / 4)),
            });
            ops.push(Op::Get {
                from: Reader::Snapshot(SLOT),
                space,
                key: key.clone(),
                how: Get::Value,
            });
            ops.push(Op::Release { slot: SLOT });
        }
        ops
    }

    /// A deletion and the deleted version are in different history runs. The newer runs are merged
    /// without the oldest. Meanwhile, snapshots at moments below another deletion stay open and
    /// search the history.
    pub(super) fn deletion_between_history_runs(&mut self) -> Vec<Op> {
        let space = 2 + self.below(u64::from(self.settings.spaces.max(3)) - 2) as u8;
        let (count, between) = (250, 2 + self.below(6));
        let [key, other] = [0, 1].map(|_| numbered_key(self.below(count) as u32));
        let mut ops = vec![Op::Keyspace { space, retention: Keep::Forever }];
        // Make the oldest history run large enough not to be merged.
        for _ in 0..4 {
            let value = self.value_of(900);
            let many = Op::PutMany {
                tx: TX,
                space,
                first: 0,
                count: count as u32,
                value,
                scattered: false,
            };
            ops.extend([Op::Begin { tx: TX }, many, commit(TX)]);
        }
        ops.push(Op::Compact);
        ops.extend([
            Op::Begin { tx: TX },
            Op::Delete { tx: TX, space, key: key.clone() },
            commit(TX),
            Op::Flush,
        ]);
        for number in 0..between {
            ops.extend(self.put_one(space, &numbered_key((count + number % 2) as u32), 20));
        }
        ops.extend([Op::Begin { tx: TX }, Op::Delete { tx: TX, space, key: other }, commit(TX)]);
        let kept = 2 + self.below(between + 1);
        ops.extend([Op::Keyspace { space, retention: Keep::Glsns(kept) }, Op::Flush]);
        ops.extend((0..12).map(|_| Op::Step));
        for back in 1..kept + 2 {
            ops.push(Op::Get {
                from: Reader::Back(back),
                space,
                key: key.clone(),
                how: Get::Value,
            });
        }
        ops
    }

    /// Every keyspace drops old versions from the beginning on, so that the log is trimmed
    /// automatically.
    pub(super) fn all_forget(&mut self) -> Vec<Op> {
        let forgets = |space: u8| Op::Keyspace {
            space,
            retention: [Keep::Latest, Keep::Glsns(5)][usize::from(space % 2)],
        };
        (0..self.settings.spaces).map(forgets).collect()
    }

    /// A keyspace is dropped while a transaction has written to it, and another is created under
    /// its name.
    pub(super) fn dropped_and_made_anew(&mut self) -> Vec<Op> {
        let space = 1 + self.below(u64::from(self.settings.spaces.max(2)) - 1) as u8;
        let value = self.value_of(60);
        let many = Op::PutMany { tx: TX, space, first: 0, count: 20, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX), Op::Begin { tx: OTHER_TX }];
        let value = self.value_of(61);
        let read_first = self.random.chance(0.3);
        if read_first {
            ops.push(Op::Get {
                from: Reader::Tx(OTHER_TX),
                space,
                key: numbered_key(3),
                how: Get::Value,
            });
        }
        ops.push(Op::Put { tx: OTHER_TX, space, key: numbered_key(30), value, streamed: false });
        if self.random.chance(0.5) {
            ops.push(Op::Flush);
        }
        ops.push(Op::DropSpace { space });
        if self.random.chance(0.5) {
            ops.push(Op::Compact);
        }
        ops.push(commit(OTHER_TX));
        ops.push(self.walk_of(Reader::Back(0), space, None));
        ops.extend(self.interruption());
        let key = numbered_key(self.below(20) as u32);
        ops.extend(self.put_one(space, &key, 62));
        ops.push(self.walk_of(Reader::Back(0), space, None));
        ops.push(Op::History { space, key });
        ops.extend(self.interruption());
        ops.push(Op::Check);
        ops
    }

    /// A cursor lags while everything before it, and everything after it, could be trimmed.
    pub(super) fn cursor_holds_the_log(&mut self) -> Vec<Op> {
        let (space, name) = (2, self.cursor_name());
        let mut ops = vec![Op::DropCursor { name }, Op::Cursor { name, back: 0 }];
        if self.settings.forgetful {
            ops.extend(
                (0..self.settings.spaces)
                    .map(|space| Op::Keyspace { space, retention: Keep::Latest }),
            );
        }
        ops.extend(self.fill_segment(space));
        ops.extend(self.interruption());
        ops.extend(self.fill_segment(space));
        ops.extend([Op::Compact, Op::Trim { back: 0 }]);
        ops.push(Op::AdvanceCursor { name, back: 3 });
        ops.extend(self.interruption());
        ops.extend([Op::Trim { back: 0 }, Op::Compact]);
        ops.push(Op::DropCursor { name });
        ops.push(Op::Trim { back: 0 });
        ops
    }
}
