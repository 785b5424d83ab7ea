//! Operations and scenes that delete keys by a scan, read ranges with a common end, or end the
//! process within an operation.

use crate::op::generate::Generator;
use crate::op::generate::scenes::{ALL, OTHER_TX, TX, commit};
use crate::op::{Edge, Get, Op, Reader, Removal, Span, numbered_key};

/// More keys than the second batch of a removal holds.
const BATCHED: u64 = 40;

/// More keys than a range delete deletes one by one.
const RANGED: u32 = 140;

impl Generator {
    pub(super) fn remove(&mut self) -> Op {
        let (how, span) = match self.below(12) {
            11 => return Op::DeleteRange { space: self.space(), span: self.narrow_span() },
            0 | 1 => (Removal::First, ALL),
            2 | 3 => (Removal::Last, ALL),
            4 | 5 => (Removal::Retain(1 + self.below(5) as u8), self.narrow_span()),
            6 | 7 => (Removal::Extract(1 + self.below(5) as u8), self.narrow_span()),
            8 => (Removal::Range, Span::Range(self.edge(), self.edge())),
            _ => (Removal::Range, self.narrow_span()),
        };
        let limit = if self.random.chance(0.5) { u32::MAX } else { self.below(6) as u32 };
        Op::Remove { tx: self.open_slot(self.open_txs), space: self.space(), span, how, limit }
    }

    /// Mostly remove few keys, because a keyspace that is emptied repeatedly tests little.
    fn narrow_span(&mut self) -> Span {
        Span::Range(Edge::At(self.key()), self.edge())
    }

    pub(super) fn watch(&mut self) -> Op {
        Op::Watch { space: self.space(), back: self.back(), prefix: self.prefix() }
    }

    /// The process ends in the middle of an operation; the next process commits little, and then
    /// the power is cut.
    pub(super) fn killed_within(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let mut ops = vec![Op::KillAtSync { after: 1 + self.below(12) }];
        let bytes = if self.random.chance(0.7) { 12_000 } else { 300_000 };
        for number in 0..1 + self.below(6) as u32 {
            ops.extend(self.put_one(space, &numbered_key(number), bytes));
        }
        ops.push(match self.below(4) {
            0 => Op::Flush,
            1 => Op::Compact,
            2 => Op::Trim { back: 0 },
            _ => Op::Step,
        });
        let key = numbered_key(self.below(6) as u32);
        ops.extend(self.put_one(space, &key, 40));
        ops.push(self.crash());
        ops.push(Op::Get { from: Reader::Back(0), space, key, how: Get::Value });
        ops
    }

    /// Rows of an image are hidden by a range delete, which a merge then drops.
    pub(super) fn range_delete_and_image(&mut self) -> Vec<Op> {
        let (space, bytes) = (self.space(), [40, 200, 900][self.below(3) as usize]);
        let value = self.value_of(bytes);
        let many = Op::PutMany { tx: TX, space, first: 0, count: RANGED, value, scattered: false };
        let get = |number| Op::Get {
            from: Reader::Back(0),
            space,
            key: numbered_key(number),
            how: Get::Value,
        };
        let read = || (0..RANGED).step_by(11).map(get);
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX), Op::Flush];
        ops.extend(read().chain(read()));
        ops.push(Op::DeleteRange { space, span: ALL });
        for work in [Op::Flush, Op::SaveImage, Op::Compact, Op::SaveImage] {
            if self.random.chance(0.8) {
                ops.push(work);
            }
            if self.random.chance(0.2) {
                let key = numbered_key(self.below(u64::from(RANGED)) as u32);
                ops.extend(self.put_one(space, &key, bytes));
            }
        }
        ops.push(if self.random.chance(0.7) { self.kill() } else { self.reopen() });
        ops.extend((0..self.below(8)).map(|_| Op::Work { first: 4 }));
        ops.extend(read());
        ops
    }

    /// The log loses the commit that deleted some keys, but keeps the one that put them, while the
    /// index has the deletions.
    pub(super) fn deletions_lost_with_the_log(&mut self) -> Vec<Op> {
        let (space, value) = (self.below(2) as u8, self.value_of(20));
        let many = Op::PutMany { tx: TX, space, first: 0, count: 12, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX)];
        ops.extend(self.fill_segment(space));
        ops.push(Op::Begin { tx: TX });
        // At times this includes the keyspace's last keys, and the keyspace becomes empty.
        let from = self.below(12) as u32;
        let upto = if self.random.chance(0.5) { 12 } else { from + 1 + self.below(4) as u32 };
        ops.extend((from..upto).map(|number| Op::Delete {
            tx: TX,
            space,
            key: numbered_key(number),
        }));
        ops.push(commit(TX));
        self.closed();
        ops.push(Op::Recover { damage: self.below(1 << 40) });
        ops
    }

    /// Deletes more keys than one batch holds, including keys that the transaction wrote itself.
    pub(super) fn removed_in_batches(&mut self) -> Vec<Op> {
        let (space, value) = (self.below(2) as u8, self.value_of(20));
        let count = 1 + self.below(BATCHED) as u32;
        let many = Op::PutMany { tx: TX, space, first: 0, count, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX)];
        if self.random.chance(0.5) {
            ops.push(Op::Flush);
        }
        ops.push(Op::Begin { tx: TX });
        let (value, first) = (self.value_of(21), self.below(u64::from(count)) as u32);
        let own = 1 + self.below(BATCHED / 2) as u32;
        ops.push(Op::PutMany { tx: TX, space, first, count: own, value, scattered: false });
        let edge = |number| Edge::At(numbered_key(number));
        for _ in 0..1 + self.below(3) {
            let each = 1 + self.below(4) as u8;
            let how = match self.below(6) {
                0 => {
                    self.pops(space, count, &mut ops);
                    continue;
                }
                1 | 2 => Removal::Retain(each),
                _ => Removal::Extract(each),
            };
            let from = self.below(u64::from(count)) as u32 / 3;
            let span = Span::Range(edge(from), edge(from + 20 + self.below(BATCHED) as u32));
            let limit = if self.random.chance(0.6) { u32::MAX } else { 1 + self.below(20) as u32 };
            ops.push(Op::Remove { tx: TX, space, span, how, limit });
            ops.push(self.walk_of(Reader::Tx(TX), space, None));
        }
        ops.extend([commit(TX), self.walk_of(Reader::Back(0), space, None)]);
        ops
    }

    /// A transaction pops repeatedly from one end, and occasionally writes near it.
    fn pops(&mut self, space: u8, count: u32, ops: &mut Vec<Op>) {
        let how = if self.random.chance(0.5) { Removal::First } else { Removal::Last };
        for _ in 0..4 + self.below(16) {
            ops.push(Op::Remove { tx: TX, space, span: ALL, how, limit: 1 });
            if self.random.chance(0.15) {
                let (key, value) =
                    (numbered_key(self.below(u64::from(count)) as u32), self.value_of(23));
                ops.push(match self.below(3) {
                    0 => Op::Delete { tx: TX, space, key },
                    _ => Op::Put { tx: TX, space, key, value, streamed: false },
                });
            }
        }
        ops.push(self.walk_of(Reader::Tx(TX), space, None));
    }

    /// A transaction deletes many keys, few of which exist, and repeatedly scans them from both
    /// ends.
    pub(super) fn deletions_of_nothing(&mut self) -> Vec<Op> {
        let space = self.below(2) as u8;
        let mut ops = vec![Op::Begin { tx: TX }];
        for _ in 0..2 + self.below(5) {
            let (key, value) = (numbered_key(self.below(36) as u32), self.value_of(20));
            ops.push(Op::Put { tx: TX, space, key, value, streamed: false });
        }
        ops.push(commit(TX));
        ops.extend(self.interruption());
        ops.push(Op::Begin { tx: TX });
        for _ in 0..3 {
            let first = self.below(14) as u32;
            let deleted = (first..first + 10 + self.below(14) as u32).map(numbered_key);
            ops.extend(deleted.map(|key| Op::Delete { tx: TX, space, key }));
            for _ in 0..3 {
                let edge = |number: u64| match number % 3 {
                    0 => Edge::At(numbered_key((number / 3) as u32)),
                    1 => Edge::Beside(numbered_key((number / 3) as u32)),
                    _ => Edge::Open,
                };
                let span = match self.below(3) {
                    0 => Span::Prefix(b"m/".to_vec()),
                    _ => Span::Range(edge(self.below(45)), edge(60 + self.below(48))),
                };
                let reverse = self.random.chance(0.6);
                let limit = if self.random.chance(0.7) { u32::MAX } else { 1 };
                ops.push(Op::Walk {
                    from: Reader::Tx(TX),
                    space,
                    span,
                    reverse,
                    limit,
                    keys_only: false,
                    replace_after: None,
                });
            }
            let (key, value) = (numbered_key(self.below(36) as u32), self.value_of(22));
            if self.random.chance(0.3) {
                ops.push(Op::Put { tx: TX, space, key, value, streamed: false });
            }
        }
        ops.extend([commit(TX), self.walk_of(Reader::Back(0), space, None)]);
        ops
    }

    /// A transaction reads ranges that begin or end at one key, inclusively and exclusively;
    /// another transaction changes this key, or an adjacent one.
    pub(super) fn reads_with_one_end(&mut self) -> Vec<Op> {
        let (space, value) = (self.below(2) as u8, self.value_of(20));
        let many = Op::PutMany { tx: TX, space, first: 0, count: 12, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX), Op::Begin { tx: TX }];
        let end = 3 + self.below(6) as u32;
        for _ in 0..2 + self.below(2) {
            let key = numbered_key(end);
            let meets = if self.random.chance(0.5) { Edge::At(key) } else { Edge::Beside(key) };
            let far = self.below(3) as u32;
            let span = if self.random.chance(0.8) {
                Span::Range(Edge::At(numbered_key(far)), meets)
            } else {
                Span::Range(meets, Edge::At(numbered_key(11 - far)))
            };
            let (reverse, keys_only) = (self.random.chance(0.5), self.random.chance(0.5));
            let limit = if self.random.chance(0.7) { u32::MAX } else { 1 + self.below(4) as u32 };
            ops.push(Op::Walk {
                from: Reader::Tx(TX),
                space,
                span,
                reverse,
                limit,
                keys_only,
                replace_after: None,
            });
        }
        let changed = if self.random.chance(0.7) { end } else { self.below(12) as u32 };
        let (key, value) = (numbered_key(changed), self.value_of(21));
        ops.push(Op::Begin { tx: OTHER_TX });
        ops.push(if self.random.chance(0.3) {
            Op::Delete { tx: OTHER_TX, space, key }
        } else {
            Op::Put { tx: OTHER_TX, space, key, value, streamed: false }
        });
        ops.push(commit(OTHER_TX));
        if self.random.chance(0.3) {
            ops.push(if self.random.chance(0.5) { Op::Flush } else { Op::Compact });
        }
        let (key, value) = (b"own".to_vec(), self.value_of(22));
        ops.extend([Op::Put { tx: TX, space, key, value, streamed: false }, commit(TX)]);
        ops
    }
}
