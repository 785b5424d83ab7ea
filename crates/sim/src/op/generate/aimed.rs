//! Targeted operations and scenes: edges of reads, failures of single calls, orders of upkeep and
//! crashes.

use crate::content::Content;
use crate::op::generate::Generator;
use crate::op::generate::scenes::{ALL, OTHER_TX, SLOT, TX, commit};
use crate::op::{
    Call, Change, Edge, Feed, Get, Key, NestedOp, Op, Reader, Removal, Span, Within, numbered_key,
};

/// Number of choices of an edge.
const PICKS: u64 = 1 << 20;

/// Number of keys in a scene with images and flushes in any order.
const HOT: u64 = 5;

impl Generator {
    /// One of the first calls of an operation fails, because most operations make few calls.
    fn call(&mut self) -> Call {
        let reach = 1 << self.below(7);
        match self.below(6) {
            0..3 => Call::Reservation(self.below(reach)),
            3 => Call::Reservations(self.below(reach)),
            _ => Call::Read(1 + self.below(reach)),
        }
    }

    pub(super) fn failing(&mut self) -> Op {
        let call = self.call();
        let op = match self.below(30) {
            0..5 => self.get(),
            5..9 => self.walk(),
            9 | 10 => self.remove(),
            11 => self.history(),
            12 => self.diff(),
            13 => self.scan(),
            14 => self.follow(),
            15 => self.watch(),
            16 => self.read(),
            17 => self.walk_on(),
            18 => self.reader_on(),
            19 => self.feed_on(),
            20..22 if self.open_txs.contains(&true) => self.put(),
            22..25 if self.open_txs.contains(&true) => self.commit(),
            25 => Op::Flush,
            26 => Op::Compact,
            27 if self.settings.limited => Op::Trim { back: self.back() },
            28 => self.bulk_load(),
            29 if self.open_txs.contains(&true) => self.update(),
            _ => Op::Step,
        };
        Op::Failing { call, op: Box::new(op) }
    }

    pub(super) fn edge_change(&mut self) -> Op {
        let tx = self.open_slot(self.open_txs);
        self.edge_change_of(tx)
    }

    fn edge_change_of(&mut self, tx: u8) -> Op {
        let value = Content { bytes: 30, ..self.content() };
        Op::Edge { tx, pick: self.below(PICKS) as u32, value, spilled: self.random.chance(0.1) }
    }

    pub(super) fn feed_begin(&mut self) -> Op {
        let feed = match self.below(4) {
            0 => Feed::Entries(self.stream()),
            1 => Feed::Commits,
            _ => Feed::Watch { space: self.space(), prefix: self.prefix() },
        };
        Op::FeedBegin { slot: self.below(2) as u8, back: self.back(), feed }
    }

    pub(super) fn feed_on(&mut self) -> Op {
        let reach = 1 << self.below(7);
        Op::FeedOn { slot: self.below(2) as u8, count: 1 + self.below(reach) as u32 }
    }

    pub(super) fn cut_at_change(&mut self) -> Op {
        let after = 1 + self.below(60);
        if self.random.chance(0.5) { Op::CutAtChange { after } } else { Op::KillAtChange { after } }
    }

    /// An operation nested within upkeep, as another thread could run it, or a crash or power cut
    /// there.
    pub(super) fn amid_upkeep(&mut self) -> Op {
        let (at, op) = match self.below(14) {
            10.. if self.open_txs.contains(&true) => {
                let tx = self.open_slot(self.open_txs);
                (Within::CommitEncoded, commit(tx))
            }
            0..2 => (Within::CursorHeld, self.cursor()),
            2..4 => (Within::TrimChosen, Op::Trim { back: self.back() / 4 }),
            4..6 => (Within::ImageMade, Op::SaveImage),
            6..8 if self.open_txs.contains(&true) => {
                let (tx, space, key) = (self.open_slot(self.open_txs), self.space(), self.key());
                let value = self.value_of((257 << 10) + self.settings.value_bytes_min);
                let streamed = self.random.chance(0.5);
                (Within::LargeWritten, Op::Put { tx, space, key, value, streamed })
            }
            8 => (Within::RunsWritten, Op::Compact),
            _ => (Within::RunsWritten, Op::Flush),
        };
        let ends = match (self.settings.crashes, self.settings.kills) {
            (true, true) if self.random.chance(0.3) => Some(NestedOp::Kill),
            (true, _) if self.random.chance(0.4) => Some(NestedOp::Cut),
            _ => None,
        };
        let nested = match (ends, at) {
            (Some(end), _) => {
                self.closed();
                end
            }
            // Other upkeep would wait for the locks of the present one.
            (None, Within::RunsWritten) => NestedOp::DropCaches,
            (None, Within::TrimChosen) => self.put_within(),
            (None, _) => match self.below(6) {
                0 => NestedOp::Flush,
                1 => NestedOp::Compact,
                2 => NestedOp::Trim,
                3 => self.put_within(),
                _ => {
                    NestedOp::Commit { space: self.space(), key: self.key(), value: self.content() }
                }
            },
        };
        Op::WithNested { at, nested, op: Box::new(op) }
    }

    /// Other transactions change the values from which a transaction computes updates, mostly while
    /// it commits, and a call fails while the commit computes them again.
    pub(super) fn updates_from_stale_values(&mut self) -> Vec<Op> {
        let (space, key) = (0, numbered_key(1_000_000));
        let mut ops = Vec::new();
        for _ in 0..2 + self.below(5) {
            let add = |tx, by| Op::Update { tx, space, key: key.clone(), change: Change::Add(by) };
            ops.extend([Op::Begin { tx: TX }, add(TX, 1 + self.below(9) as u32)]);
            for _ in 0..self.below(3) {
                ops.push(Op::Update { tx: TX, space, key: self.key(), change: Change::Add(1) });
            }
            let mut committing = commit(TX);
            if self.random.chance(0.3) {
                let other = add(OTHER_TX, 1 + self.below(9) as u32);
                ops.extend([Op::Begin { tx: OTHER_TX }, other, commit(OTHER_TX)]);
            } else {
                let nested = NestedOp::Put { space, key: key.clone(), value: self.value_of(8) };
                let op = Box::new(committing);
                committing = Op::WithNested { at: Within::CommitEncoded, nested, op };
            }
            // A commit makes few reservations.
            let call = match self.below(8) {
                0 => self.call(),
                _ => Call::Reservation(self.below(24)),
            };
            ops.push(Op::Failing { call, op: Box::new(committing) });
            ops.push(Op::Get { from: Reader::Back(0), space, key: key.clone(), how: Get::Value });
        }
        ops
    }

    fn put_within(&mut self) -> NestedOp {
        NestedOp::Put { space: self.space(), key: self.key(), value: self.value_of(60) }
    }

    /// A transaction reads part or all of a queue, part of a range, or one key. Another transaction
    /// changes a key at an edge of the read.
    pub(super) fn changed_at_the_edge(&mut self) -> Vec<Op> {
        let (space, count) = (self.below(2) as u8, 1 + self.below(40) as u32);
        let value = self.value_of(20);
        let many = Op::PutMany { tx: TX, space, first: 0, count, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX)];
        ops.extend((0..self.below(3)).flat_map(|_| self.interruption()));
        ops.push(Op::Begin { tx: TX });
        let empties = self.random.chance(0.4);
        for _ in 0..1 + self.below(3) {
            let from = if empties { 0 } else { self.below(u64::from(count) + 3) as u32 };
            let width = self.below(20) as u32;
            let (lower, upper) = (self.edge_at(from), self.edge_at(from + width));
            let span = match self.below(6) {
                0 => Span::Prefix(b"m/".to_vec()),
                1 => Span::Range(lower, Edge::Open),
                2 => Span::Range(Edge::Open, upper),
                _ => Span::Range(lower, upper),
            };
            let limit = if self.random.chance(0.4) { u32::MAX } else { 1 + self.below(9) as u32 };
            let (from, reverse) = (Reader::Tx(TX), self.random.chance(0.5));
            let keys_only = self.random.chance(0.3);
            let reads = match self.below(8) {
                0 | 1 => self.pops_to_the_end(space, count, empties),
                2 => vec![Op::Remove {
                    tx: TX,
                    space,
                    span,
                    how: Removal::Extract(1 + self.below(3) as u8),
                    limit,
                }],
                3 => vec![Op::Remove {
                    tx: TX,
                    space,
                    span,
                    how: Removal::Retain(1 + self.below(3) as u8),
                    limit,
                }],
                4 => {
                    let key = numbered_key(self.below(u64::from(count) + 2) as u32);
                    let how = [Get::Value, Get::Contains, Get::Lent, Get::Streamed]
                        [self.below(4) as usize];
                    vec![Op::Get { from, space, key, how }]
                }
                _ => vec![Op::Walk {
                    from,
                    space,
                    span,
                    reverse,
                    limit,
                    keys_only,
                    replace_after: None,
                }],
            };
            for op in reads {
                let fails = self.settings.fails && self.random.chance(0.05);
                ops.push(if fails {
                    Op::Failing { call: self.call(), op: Box::new(op) }
                } else {
                    op
                });
            }
            if self.random.chance(0.2) {
                ops.push(self.write_in(space, count));
            }
        }
        // Mostly one edge, because a second conflict would hide that the first was missed.
        for _ in 0..1 + self.below(5) / 4 {
            ops.push(self.edge_change_of(TX));
            if self.random.chance(0.3) {
                ops.push([Op::Flush, Op::Compact, Op::Step][self.below(3) as usize].clone());
            }
        }
        if self.random.chance(0.2) {
            ops.push(self.walk_of(Reader::Tx(TX), space, None));
        }
        let (key, value) = (b"own".to_vec(), self.value_of(22));
        ops.extend([Op::Put { tx: TX, space, key, value, streamed: false }, commit(TX)]);
        ops.push(self.walk_of(Reader::Back(0), space, None));
        ops
    }

    /// A commit is written as a run that begins or ends within a known gap.
    pub(super) fn run_ends_in_a_gap(&mut self) -> Vec<Op> {
        let (space, value) = (self.below(2) as u8, self.value_of(20));
        let (first, count) = (500, 40);
        let many = Op::PutMany { tx: TX, space, first, count, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX), Op::Begin { tx: TX }];
        if self.random.chance(0.5) {
            let how = if self.random.chance(0.5) { Removal::First } else { Removal::Last };
            ops.extend((0..count).map(|_| Op::Remove { tx: TX, space, span: ALL, how, limit: 1 }));
        } else {
            let gone = (first..first + count).map(|number| Op::Delete {
                tx: TX,
                space,
                key: numbered_key(number),
            });
            ops.extend(gone);
        }
        ops.push(commit(TX));
        let span = Span::Range(Edge::At(numbered_key(first)), Edge::Open);
        let walk = |reverse| {
            let (from, limit, span) = (Reader::Back(0), u32::MAX, span.clone());
            Op::Walk { from, space, span, reverse, limit, keys_only: false, replace_after: None }
        };
        ops.extend([walk(false), walk(true), walk(false)]);
        let beside = if self.random.chance(0.5) { 0 } else { 1000 };
        let value = Content { bytes: 900, seed: self.content().seed.wrapping_mul(0x9e37_79b1) };
        let many =
            Op::PutMany { tx: TX, space, first: beside, count: 300, value, scattered: false };
        let (key, value) =
            (numbered_key(first + self.below(u64::from(count)) as u32), self.value_of(24));
        ops.extend([
            Op::Begin { tx: TX },
            many,
            Op::Put { tx: TX, space, key, value, streamed: false },
        ]);
        ops.extend([commit(TX), walk(false), walk(true)]);
        ops.extend(self.interruption());
        ops.extend([walk(true), walk(false)]);
        ops
    }

    fn edge_at(&mut self, number: u32) -> Edge {
        let key = numbered_key(number);
        if self.random.chance(0.5) { Edge::At(key) } else { Edge::Beside(key) }
    }

    /// Pops in one transaction from one end of a keyspace, until no key is left if `empties`.
    fn pops_to_the_end(&mut self, space: u8, count: u32, empties: bool) -> Vec<Op> {
        let how = if self.random.chance(0.5) { Removal::First } else { Removal::Last };
        // Other keys may exist, too.
        let pops = if empties { count + 3 } else { 1 + self.below(u64::from(count)) as u32 };
        (0..pops).map(|_| Op::Remove { tx: TX, space, span: ALL, how, limit: 1 }).collect()
    }

    fn write_in(&mut self, space: u8, count: u32) -> Op {
        let (key, value) = (numbered_key(self.below(u64::from(count)) as u32), self.value_of(23));
        match self.below(3) {
            0 => Op::Delete { tx: TX, space, key },
            _ => Op::Put { tx: TX, space, key, value, streamed: false },
        }
    }

    /// More keys than one index block holds.
    pub(super) fn many_small_keys(&mut self) -> Vec<Op> {
        let space = self.kept_space();
        let value = self.value_of(3);
        let many = Op::PutMany { tx: TX, space, first: 0, count: 15_000, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX), Op::Compact, Op::DropCaches];
        let get = |number| Op::Get {
            from: Reader::Back(0),
            space,
            key: numbered_key(number),
            how: Get::Value,
        };
        ops.extend((0..20).map(|number| get(number * 740)));
        ops
    }

    /// Commits, images, flushes and reads of a few keys in any order, and a crash or power cut.
    pub(super) fn images_flushes_and_an_end(&mut self) -> Vec<Op> {
        let space =
            if self.settings.limited && self.random.chance(0.3) { 2 } else { self.below(2) as u8 };
        let bytes = [40, 200, 900, 3000, 30_000, 300_000][self.below(6) as usize];
        let value = self.value_of(if bytes > 3000 { 200 } else { bytes });
        let many =
            Op::PutMany { tx: TX, space, first: 0, count: HOT as u32, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX)];
        let get =
            |key: Key, back: u64| Op::Get { from: Reader::Back(back), space, key, how: Get::Value };
        for _ in 0..1 + self.below(3) {
            for _ in 0..4 + self.below(9) {
                let key = numbered_key(self.below(HOT) as u32);
                match self.below(14) {
                    0..3 => ops.extend(self.put_one(space, &key, bytes)),
                    3 => ops.extend([
                        Op::Begin { tx: TX },
                        Op::Delete { tx: TX, space, key },
                        commit(TX),
                    ]),
                    4..6 => ops.push(Op::Flush),
                    6 => ops.push(Op::Compact),
                    7..9 => ops.push(Op::Warm),
                    9 | 10 => ops.push(Op::SaveImage),
                    // Save only part of an image, which takes several steps.
                    11 => ops.extend([Op::Advance { micros: 30_000_000 }, Op::Work { first: 4 }]),
                    12 => ops.push(get(key, 0)),
                    _ => ops.push(Op::DropCaches),
                }
            }
            ops.push(match self.below(4) {
                0 if self.settings.crashes => self.crash(),
                1 => self.reopen(),
                _ => self.kill(),
            });
            for _ in 0..self.below(8) {
                let work = Op::Work { first: 4 };
                let key = numbered_key(self.below(HOT) as u32);
                ops.push(if self.random.chance(0.2) {
                    let nested = NestedOp::Commit { space, key, value: self.value_of(bytes) };
                    Op::WithNested { at: Within::RowsRead, nested, op: Box::new(work) }
                } else {
                    work
                });
            }
            ops.extend((0..HOT).map(|number| get(numbered_key(number as u32), 0)));
        }
        let back = self.below(6);
        ops.extend((0..HOT).map(|number| get(numbered_key(number as u32), back)));
        ops
    }

    /// A power cut or crash at any change within a trim, or right after it.
    pub(super) fn cut_within_a_trim(&mut self) -> Vec<Op> {
        let space = 2;
        let mut ops = Vec::new();
        for number in 0..1 + self.below(4) as u32 {
            let bytes = [60, 17_000, 70_000, 300_000][self.below(4) as usize];
            ops.extend(self.put_one(space, &numbered_key(number), bytes));
        }
        ops.extend(self.fill_segment(space));
        if self.random.chance(0.5) {
            ops.push(Op::Compact);
        }
        let reach = if self.random.chance(0.5) { 12 } else { 70 };
        let after = 1 + self.below(reach);
        ops.push(match self.random.chance(0.6) {
            true => Op::CutAtChange { after },
            false => Op::KillAtChange { after },
        });
        ops.push(Op::Trim { back: self.below(2) });
        let key = numbered_key(self.below(4) as u32);
        ops.extend(self.put_one(space, &key, 50));
        ops.push(Op::Trim { back: 0 });
        ops.push(self.crash());
        ops.extend([Op::Verify, Op::Check]);
        ops
    }

    /// The log is trimmed after a commit, and the memtable flushed in the middle of the trim.
    pub(super) fn flushed_within_a_trim(&mut self) -> Vec<Op> {
        let (space, bytes) = (self.below(3) as u8, [3000, 12_000][self.below(2) as usize]);
        let mut ops = Vec::new();
        for number in 0..8 + self.below(17) as u32 {
            ops.extend(self.put_one(space, &numbered_key(number), bytes));
            if self.random.chance(0.3)
                && let Some(commit) = ops.pop()
            {
                let (at, nested) = (Within::TrimAsked, NestedOp::Flush);
                ops.push(Op::WithNested { at, nested, op: Box::new(commit) });
            }
        }
        let (limit, from) = (u32::MAX, Reader::Back(0));
        ops.extend([
            Op::DropCaches,
            Op::Walk {
                from,
                space,
                span: ALL,
                reverse: false,
                limit,
                keys_only: false,
                replace_after: None,
            },
        ]);
        ops
    }

    /// A scan whose first value cannot be read, when its sources have just been exchanged.
    pub(super) fn walk_fails_in_old_sources(&mut self) -> Vec<Op> {
        let (space, count) = (self.below(2) as u8, 2 + self.below(5) as u32);
        let value = self.value_of(3000);
        let many = Op::PutMany { tx: TX, space, first: 0, count, value, scattered: false };
        let mut ops = vec![Op::Begin { tx: TX }, many, commit(TX), Op::Flush];
        for _ in 0..4 {
            ops.extend(self.put_one(space, &numbered_key(count), 100));
            ops.push(Op::DropCaches);
            let limit = if self.random.chance(0.5) { u32::MAX } else { 4 };
            let walk = Op::Walk {
                from: Reader::Back(0),
                space,
                span: Span::Prefix(b"m/".to_vec()),
                reverse: limit == u32::MAX,
                limit,
                keys_only: false,
                replace_after: None,
            };
            let call = Call::Read(1 + self.below(12));
            let op = Box::new(Op::Failing { call, op: Box::new(walk) });
            ops.push(Op::WithNested { at: Within::IteratorAttached, nested: NestedOp::Flush, op });
        }
        ops
    }

    /// Feeds continue after failed calls, while more is committed and trimmed.
    pub(super) fn feed_over_errors(&mut self) -> Vec<Op> {
        let space = self.below(3) as u8;
        let mut ops = Vec::new();
        for slot in 0..2 {
            let Op::FeedBegin { back, feed, .. } = self.feed_begin() else { continue };
            let feed = match feed {
                Feed::Watch { .. } => Feed::Watch { space, prefix: b"m/".to_vec() },
                feed => feed,
            };
            ops.push(Op::FeedBegin { slot, back, feed });
        }
        for _ in 0..3 + self.below(6) {
            let key = numbered_key(self.below(9) as u32);
            let bytes = [30, 3000, 20_000][self.below(3) as usize];
            ops.extend(self.put_one(space, &key, bytes));
            if self.random.chance(0.2) {
                // A commit written as runs, which a feed has to read.
                let value =
                    Content { bytes: 900, seed: self.content().seed.wrapping_mul(0x9e37_79b1) };
                let (first, count) = (0, self.settings.many.clamp(100, 250));
                let many = Op::PutMany { tx: TX, space, first, count, value, scattered: false };
                ops.extend([Op::Begin { tx: TX }, many, commit(TX)]);
            }
            if self.random.chance(0.6) {
                ops.push(Op::DropCaches);
            }
            let on = Op::FeedOn { slot: self.below(2) as u8, count: 1 + self.below(9) as u32 };
            let fails = self.settings.fails && self.random.chance(0.7);
            ops.push(if fails { Op::Failing { call: self.call(), op: Box::new(on) } } else { on });
        }
        ops.extend([SLOT, SLOT + 1].map(|slot| Op::FeedOn { slot, count: u32::MAX }));
        ops
    }
}
