//! Generates workloads from a seed.
//!
//! The generator tracks open transactions and snapshots, so that most operations have a target. The
//! driver determines facts that the generator cannot know (whether a commit met a conflict).

mod aimed;
mod loads;
mod past;
pub mod process_ops;
pub mod profile;
mod removals;
mod scenes;

use std::collections::VecDeque;

use plimsoll::Compression;
use plimsoll_disk::random::Random;

use crate::content::Content;
pub use crate::op::generate::profile::{Profile, Settings};
use crate::op::{
    Change, Edge, Fault, Get, Keep, Key, Moment, Op, Part, Reader, Span, numbered_key,
};

/// The most transactions, and the most snapshots, open at once.
const SLOTS: u8 = 3;

/// The most bulk loads open at once.
const LOADS: u8 = 2;

/// The most operations generated from bytes.
const OPS_FROM_BYTES: usize = 300;

/// A workload of this many operations.
pub fn generate(seed: u64, settings: &Settings, count: usize) -> Vec<Op> {
    let mut generator = Generator::new(seed, settings.clone());
    (0..count).map(|_| generator.next()).collect()
}

/// A workload from arbitrary bytes, for fuzzers. Three bytes choose an operation, so that changing
/// a byte changes one operation.
pub fn from_bytes(bytes: &[u8], settings: &Settings) -> Vec<Op> {
    let mut generator = Generator::new(0, settings.clone());
    let choose = |chosen: &[u8]| {
        generator.random =
            Random::new(chosen.iter().fold(0, |seed, byte| seed << 8 | u64::from(*byte)));
        generator.next()
    };
    bytes.chunks(3).take(OPS_FROM_BYTES).map(choose).collect()
}

struct Generator {
    random: Random,
    settings: Settings,
    open_txs: [bool; SLOTS as usize],
    open_snapshots: [bool; SLOTS as usize],
    open_loads: [bool; LOADS as usize],
    faulty: bool,
    contents: u32,
    /// The next operations.
    forced: VecDeque<Op>,
}

type Make = fn(&mut Generator) -> Op;

impl Generator {
    fn new(seed: u64, settings: Settings) -> Self {
        let forgetful = settings.forgetful;
        let mut generator = Self {
            random: Random::new(seed),
            settings,
            open_txs: [false; SLOTS as usize],
            open_snapshots: [false; SLOTS as usize],
            open_loads: [false; LOADS as usize],
            faulty: false,
            contents: (seed as u32) << 12,
            forced: VecDeque::new(),
        };
        if forgetful {
            let first = generator.all_forget();
            generator.forced.extend(first);
        }
        generator
    }

    fn next(&mut self) -> Op {
        if let Some(op) = self.forced.pop_front() {
            return op;
        }
        let kinds = self.kinds();
        let total = kinds.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let mut at = self.random.below(total);
        for (weight, make) in kinds {
            match at.checked_sub(u64::from(weight)) {
                None => return make(self),
                Some(rest) => at = rest,
            }
        }
        Op::Step
    }

    /// The possible next operations and their weights.
    fn kinds(&self) -> Vec<(u32, Make)> {
        let settings = &self.settings;
        let open = self.open_txs.contains(&true);
        let loads = self.open_loads.contains(&true);
        let if_so = |yes: bool, weight: u32| if yes { weight } else { 0 };
        vec![
            (if open { 30 } else { 200 }, Self::begin),
            (if_so(open, 200), Self::put),
            (if_so(open, 5), Self::put_many),
            (2, Self::bulk_load),
            (3, Self::load_begin),
            (if_so(loads, 12), Self::load_put),
            (if_so(loads, 4), Self::load_many),
            (if_so(loads, 4), Self::load_end),
            (if_so(open, 60), Self::update),
            (if_so(open, 40), Self::delete),
            (if_so(open, 12), Self::remove),
            (if_so(open, 90), Self::commit),
            (if_so(open && settings.submits, 25), Self::submit),
            (if_so(settings.submits, 15), |_| Op::Wait),
            (if_so(settings.submits, 25), Self::begin_ordered),
            (if_so(open, 10), Self::abort),
            (60, Self::get),
            (50, Self::walk),
            (6, Self::walk_begin),
            (14, Self::walk_on),
            (5, Self::reader_begin),
            (8, Self::reader_on),
            (8, Self::nested),
            (if_so(settings.fails, 40), Self::failing),
            (if_so(open, 10), Self::edge_change),
            (if_so(settings.limited, 10), Self::amid_upkeep),
            (4, Self::feed_begin),
            (14, Self::feed_on),
            (if_so(settings.scenes, 24), Self::scene),
            (10, Self::snapshot),
            (8, Self::release),
            (12, Self::history),
            (12, Self::diff),
            // Users' entries are never trimmed automatically.
            (if_so(!settings.forgetful, 10), Self::append),
            (8, Self::scan),
            (3, Self::follow),
            (4, Self::watch),
            (8, Self::read),
            (if_so(settings.limited, 4), Self::trim),
            (if_so(settings.limited, 6), Self::keyspace),
            (1, Self::drop_space),
            (if_so(settings.limited, 2), Self::cursor),
            (if_so(settings.limited, 4), Self::advance_cursor),
            (if_so(settings.limited, 3), |generator| Op::DropCursor {
                name: generator.cursor_name(),
            }),
            (2, Self::tag),
            (2, |generator| Op::ReadTag { name: generator.tag_name() }),
            (2, |generator| Op::DeleteTag { name: generator.tag_name() }),
            (8, |_| Op::Flush),
            (4, |_| Op::Compact),
            (30, |_| Op::Step),
            (10, Self::work),
            (3, |_| Op::DropCaches),
            (2, Self::memory),
            (if_so(settings.restores, 4), Self::recover_damaged),
            (if_so(settings.restores, 3), Self::keep),
            (if_so(settings.restores, 4), Self::restore),
            (if_so(settings.upkeep, 6), Self::reopen),
            (if_so(settings.restores, 2), Self::recover_whole),
            (if_so(settings.upkeep, 1), Self::lose_index),
            (if_so(settings.upkeep, 1), |_| Op::Backup),
            (if_so(settings.kills, 3), Self::kill),
            (1, |_| Op::SaveImage),
            (if_so(settings.upkeep, 2), |_| Op::Verify),
            (2, |_| Op::Check),
            (if_so(settings.upkeep, 2), |_| Op::ReadBeside),
            (10, Self::advance),
            (if_so(settings.jumps, 2), Self::jump),
            (if_so(settings.crashes, 6), Self::crash),
            (if_so(settings.crashes, 9), Self::cut),
            (if_so(settings.crashes, 5), Self::cut_at_change),
            (if_so(settings.crashes, 4), |generator| Op::KillAtSync {
                after: 1 + generator.below(12),
            }),
            (if_so(settings.fault.is_some(), if self.faulty { 40 } else { 15 }), Self::fault),
            (3, Self::compress),
        ]
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn slot(&mut self) -> u8 {
        self.below(u64::from(SLOTS)) as u8
    }

    /// An open slot, if there is one; otherwise any slot.
    fn open_slot(&mut self, of: [bool; SLOTS as usize]) -> u8 {
        let start = self.slot();
        (0..SLOTS).map(|i| (start + i) % SLOTS).find(|&slot| of[usize::from(slot)]).unwrap_or(start)
    }

    fn space(&mut self) -> u8 {
        // Prefer low numbers, for more versions of each key.
        let (a, b) =
            (self.below(self.settings.spaces.into()), self.below(self.settings.spaces.into()));
        a.min(b) as u8
    }

    fn key(&mut self) -> Key {
        if self.settings.hot {
            return numbered_key(self.below(self.settings.keys) as u32);
        }
        if self.random.chance(0.06) {
            return numbered_key(self.below(u64::from(self.settings.many)) as u32);
        }
        let number = self.below(self.settings.keys);
        match number {
            0 => Vec::new(),
            1 => vec![b'l'; 4096],
            2 => vec![0],
            3 => vec![255, 255],
            4 => b"a/0".to_vec(),
            5 => b"a/06\0".to_vec(),
            6 => vec![b'm'; 300],
            _ => format!("{}/{number:02}", ["a", "b", "c"][(number % 3) as usize]).into_bytes(),
        }
    }

    fn prefix(&mut self) -> Key {
        let key = self.key();
        let len = self.below(key.len().min(4) as u64 + 1) as usize;
        key[..len].to_vec()
    }

    fn content(&mut self) -> Content {
        self.contents = self.contents.wrapping_add(1);
        let bytes = self.value_bytes().max(self.settings.value_bytes_min);
        Content { bytes, seed: self.contents }
    }

    fn value_bytes(&mut self) -> u32 {
        if self.random.chance(self.settings.huge) {
            return (1 << 20) + self.below(2 << 20) as u32;
        }
        if self.random.chance(self.settings.large) {
            return (64 << 10) + self.below(260 << 10) as u32;
        }
        if self.settings.hot && self.random.chance(0.9) {
            return 960 + self.below(70) as u32;
        }
        match self.below(100) {
            0..50 => self.below(64) as u32,
            50..75 => 64 + self.below(900) as u32,
            75..80 => 1022 + self.below(5) as u32,
            80..96 => 1025 + self.below(5000) as u32,
            _ => 6000 + self.below(60_000) as u32,
        }
    }

    /// Prefers small numbers.
    fn back(&mut self) -> u64 {
        let reach = 1 << self.below(9);
        self.below(reach)
    }

    fn reader(&mut self) -> Reader {
        match self.below(10) {
            0..5 => Reader::Tx(self.open_slot(self.open_txs)),
            5..8 => Reader::Snapshot(self.open_slot(self.open_snapshots)),
            _ => Reader::Back(self.back()),
        }
    }

    fn begin(&mut self) -> Op {
        let tx = self.slot();
        self.open_txs[usize::from(tx)] = true;
        Op::Begin { tx }
    }

    fn begin_ordered(&mut self) -> Op {
        let tx = self.slot();
        self.open_txs[usize::from(tx)] = true;
        Op::BeginOrdered { tx }
    }

    fn put(&mut self) -> Op {
        let tx = self.open_slot(self.open_txs);
        let streamed = self.random.chance(0.1);
        Op::Put { tx, space: self.space(), key: self.key(), value: self.content(), streamed }
    }

    fn put_many(&mut self) -> Op {
        let (first, count, value) = self.many();
        let (tx, space) = (self.open_slot(self.open_txs), self.space());
        Op::PutMany { tx, space, first, count, value, scattered: self.random.chance(0.5) }
    }

    fn bulk_load(&mut self) -> Op {
        let (first, count, value) = self.many();
        Op::BulkLoad {
            space: self.space(),
            first,
            count,
            value,
            scattered: self.random.chance(0.5),
        }
    }

    /// A range of numbered keys: the first, the count, and the value of the first.
    fn many(&mut self) -> (u32, u32, Content) {
        let many = u64::from(self.settings.many);
        let (first, count) = (self.below(many) as u32, 1 + self.below(many) as u32);
        let bytes = if self.settings.many > 250 { 900 } else { self.below(1000) as u32 };
        // Scramble the seed, so that the values' seeds do not coincide with later ones and a
        // mixed-up value is detected.
        (first, count, Content { bytes, seed: self.content().seed.wrapping_mul(0x9e37_79b1) })
    }

    fn update(&mut self) -> Op {
        let tx = self.open_slot(self.open_txs);
        let change = match self.below(4) {
            0 => Change::IfAbsent(self.content()),
            _ => Change::Add(1 + self.below(9) as u32),
        };
        // Mostly one counter, so that several transactions update it at once.
        let (space, key) = match self.below(4) {
            0 => (self.space(), self.key()),
            _ => (0, numbered_key(1_000_000)),
        };
        Op::Update { tx, space, key, change }
    }

    fn delete(&mut self) -> Op {
        Op::Delete { tx: self.open_slot(self.open_txs), space: self.space(), key: self.key() }
    }

    fn ended(&mut self) -> u8 {
        let tx = self.open_slot(self.open_txs);
        self.open_txs[usize::from(tx)] = false;
        tx
    }

    fn commit(&mut self) -> Op {
        let metadata = match self.below(4) {
            0 => Content { bytes: self.below(200) as u32, ..self.content() },
            _ => Content::default(),
        };
        Op::Commit { tx: self.ended(), metadata }
    }

    fn submit(&mut self) -> Op {
        Op::Submit { tx: self.ended() }
    }

    fn abort(&mut self) -> Op {
        Op::Abort { tx: self.ended() }
    }

    fn get(&mut self) -> Op {
        let how = match self.below(13) {
            0..6 => Get::Value,
            6 => Get::Streamed,
            7 | 8 => Get::Contains,
            9 | 10 => Get::Lent,
            11 => {
                // In a transaction, whether the key counts as read would depend on the pages in
                // memory.
                return Op::Get {
                    from: self.moment_reader(),
                    space: self.space(),
                    key: self.key(),
                    how: Get::Resident,
                };
            }
            _ => Get::Now,
        };
        Op::Get { from: self.reader(), space: self.space(), key: self.key(), how }
    }

    fn edge(&mut self) -> Edge {
        match self.below(4) {
            0 => Edge::Open,
            1 => Edge::Beside(self.key()),
            _ => Edge::At(self.key()),
        }
    }

    fn walk(&mut self) -> Op {
        let span = self.span();
        let replace_after =
            (self.settings.limited && self.random.chance(0.04)).then(|| self.below(6) as u32);
        let limit = if self.random.chance(0.5) { u32::MAX } else { self.below(12) as u32 };
        Op::Walk {
            from: self.reader(),
            space: self.space(),
            span,
            reverse: self.random.chance(0.5),
            limit,
            keys_only: self.random.chance(0.2),
            replace_after,
        }
    }

    fn span(&mut self) -> Span {
        if self.random.chance(0.3) {
            Span::Prefix(self.prefix())
        } else {
            Span::Range(self.edge(), self.edge())
        }
    }

    /// A reader other than a transaction.
    fn moment_reader(&mut self) -> Reader {
        if self.random.chance(0.4) {
            Reader::Snapshot(self.open_slot(self.open_snapshots))
        } else {
            Reader::Back(self.back())
        }
    }

    fn walk_begin(&mut self) -> Op {
        Op::WalkBegin {
            slot: self.below(2) as u8,
            from: self.moment_reader(),
            space: self.space(),
            span: self.span(),
            reverse: self.random.chance(0.5),
            keys_only: self.random.chance(0.2),
        }
    }

    fn walk_on(&mut self) -> Op {
        let reach = 1 << self.below(8);
        Op::WalkOn { slot: self.below(2) as u8, count: 1 + self.below(reach) as u32 }
    }

    fn reader_begin(&mut self) -> Op {
        Op::ReaderBegin {
            slot: self.below(2) as u8,
            from: self.moment_reader(),
            space: self.space(),
            key: self.key(),
        }
    }

    fn reader_on(&mut self) -> Op {
        let reach = 1 << self.below(18);
        Op::ReaderOn { slot: self.below(2) as u8, bytes: 1 + self.below(reach) as u32 }
    }

    fn snapshot(&mut self) -> Op {
        let moment = match self.below(11) {
            10 => Moment::TimeOf { back: self.back(), micros: self.below(3) as i64 - 1 },
            0..5 => Moment::Newest,
            5..8 => Moment::Back(self.back()),
            8 => Moment::Age(self.below(20_000_000)),
            _ => Moment::Ahead(1 + self.back()),
        };
        self.snapshot_of(moment)
    }

    fn snapshot_of(&mut self, moment: Moment) -> Op {
        let slot = self.slot();
        if !matches!(moment, Moment::Ahead(_)) {
            self.open_snapshots[usize::from(slot)] = true;
        }
        Op::Snapshot { slot, moment }
    }

    fn release(&mut self) -> Op {
        let slot = self.open_slot(self.open_snapshots);
        self.open_snapshots[usize::from(slot)] = false;
        Op::Release { slot }
    }

    fn history(&mut self) -> Op {
        Op::History { space: self.space(), key: self.key() }
    }

    fn diff(&mut self) -> Op {
        let prefix = if self.random.chance(0.5) { Vec::new() } else { self.prefix() };
        let (space, from, to) = (self.space(), self.back(), self.back());
        // Chosen by the same numbers, so that the other operations of a seed stay as they are.
        match (from ^ to) % 8 {
            1 => Op::Revert { back: from, takes_theirs: prefix.is_empty() },
            2 => Op::Reset { space: Some(space).filter(|_| to % 4 > 0), back: to },
            _ => Op::Diff { space, from, to, prefix },
        }
    }

    fn append(&mut self) -> Op {
        // At times, append more entries than a feed of commits skips one by one.
        let (count, most) = if self.random.chance(0.15) {
            (30 + self.below(40), 60)
        } else {
            (1 + self.below(4), 200_000)
        };
        let payloads = (0..count).map(|_| {
            let content = self.content();
            Content { bytes: content.bytes.min(most), ..content }
        });
        let payloads = payloads.collect();
        let wait = !self.settings.submits || self.random.chance(0.7);
        Op::Append { stream: 1 + self.below(3) as u32, payloads, wait }
    }

    fn stream(&mut self) -> Option<u32> {
        (self.below(2) == 0).then(|| self.below(4) as u32)
    }

    fn scan(&mut self) -> Op {
        Op::Scan { back: self.back(), count: self.below(200), stream: self.stream() }
    }

    fn follow(&mut self) -> Op {
        Op::Follow { back: self.back(), stream: self.stream() }
    }

    fn read(&mut self) -> Op {
        Op::Read { back: self.back() }
    }

    fn trim(&mut self) -> Op {
        if self.settings.crashes && self.random.chance(0.5) {
            // Crash right after the trim: the trimmed log is gone for good, so the runs must be
            // durable.
            let crash = self.crash();
            self.forced.push_back(crash);
        }
        Op::Trim { back: self.back() }
    }

    fn keyspace(&mut self) -> Op {
        // Two keyspaces always retain everything, so that time travel stays under test.
        let kept = if self.settings.forgetful { 0 } else { 2 };
        let space =
            kept + self.below(u64::from(self.settings.spaces.max(3)) - u64::from(kept)) as u8;
        let retention = match self.below(6) {
            0 if self.settings.forgetful => Keep::Latest,
            0 => Keep::Forever,
            1..3 => Keep::Latest,
            3..5 => Keep::Glsns(self.back()),
            _ => Keep::Micros(self.below(20_000_000)),
        };
        Op::Keyspace { space, retention }
    }

    fn compress(&mut self) -> Op {
        let compression = match self.below(4) {
            0 => Compression::None,
            1 => Compression::Zstd(1 + self.below(5) as i32),
            _ => Compression::Lz4,
        };
        Op::Compress { space: self.space(), compression }
    }

    fn closed(&mut self) {
        self.open_txs.fill(false);
        self.open_snapshots.fill(false);
        self.open_loads.fill(false);
    }

    fn reopen(&mut self) -> Op {
        self.closed();
        Op::Reopen
    }

    fn kill(&mut self) -> Op {
        self.closed();
        Op::Kill
    }

    fn work(&mut self) -> Op {
        Op::Work { first: 1 + self.below(4) as u8 }
    }

    fn memory(&mut self) -> Op {
        let sizes = [16, 16, 17, 24, 64, 256];
        Op::Memory { mebibytes: sizes[self.below(sizes.len() as u64) as usize] }
    }

    fn keep(&mut self) -> Op {
        self.closed();
        Op::Keep
    }

    fn restore(&mut self) -> Op {
        self.closed();
        let part = match self.below(3) {
            0 => Part::Whole,
            1 => Part::Log,
            _ => Part::Index,
        };
        Op::Restore { part }
    }

    fn recover_whole(&mut self) -> Op {
        self.closed();
        Op::RecoverWhole
    }

    fn advance(&mut self) -> Op {
        Op::Advance { micros: 1 + self.below(3_000_000) }
    }

    fn jump(&mut self) -> Op {
        // Mostly within a day: timestamps follow such jumps of the clock.
        let reach: i64 = if self.random.chance(0.1) { 200_000_000_000 } else { 60_000_000 };
        Op::Jump { micros: self.below(2 * reach as u64) as i64 - reach }
    }

    fn crash(&mut self) -> Op {
        self.closed();
        let again = if self.random.chance(0.3) { 1 + self.below(6) } else { 0 };
        Op::Crash { again }
    }

    fn cut(&mut self) -> Op {
        Op::CutAtSync { after: 1 + self.below(12) }
    }

    fn fault(&mut self) -> Op {
        if self.faulty {
            self.faulty = false;
            return Op::Fault(Fault::Heal);
        }
        self.faulty = true;
        let fault = self.settings.fault.map_or(Fault::Heal, |make| make(&mut self.random));
        Op::Fault(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_always_gives_the_same_workload() {
        let settings = Profile::Model.settings();
        assert_eq!(generate(5, &settings, 300), generate(5, &settings, 300));
        assert_ne!(generate(5, &settings, 300), generate(6, &settings, 300));
        // A prefix of a workload is a workload of the same seed.
        assert_eq!(generate(5, &settings, 300)[..100], generate(5, &settings, 100));
    }

    #[test]
    fn one_input_byte_changes_one_operation() {
        let settings = Settings { crashes: true, ..Profile::Model.settings() };
        let bytes: Vec<u8> = (0..90).map(|i| (i * 37) as u8).collect();
        let ops = from_bytes(&bytes, &settings);
        assert_eq!(ops.len(), 30);
        let mut other = bytes.clone();
        other[87] ^= 1;
        assert_eq!(from_bytes(&other, &settings)[..29], ops[..29]);
    }

    #[test]
    fn each_profile_generates_its_purpose() {
        let count = |profile: Profile, wanted: fn(&Op) -> bool| {
            generate(1, &profile.settings(), 10_000).iter().filter(|op| wanted(op)).count()
        };
        assert!(count(Profile::Model, |op| matches!(op, Op::Commit { .. })) > 300);
        assert_eq!(
            count(Profile::Model, |op| matches!(op, Op::Fault(Fault::Reads(_)) | Op::Crash { .. })),
            0
        );
        assert!(count(Profile::Model, |op| matches!(op, Op::Restore { .. })) > 10);
        assert!(count(Profile::Crash, |op| matches!(op, Op::CutAtSync { .. })) > 20);
        assert!(count(Profile::Flips, |op| matches!(op, Op::Fault(Fault::Flips(_)))) > 20);
        assert_eq!(
            count(Profile::Metamorphic, |op| matches!(op, Op::Trim { .. } | Op::Submit { .. })),
            0
        );
    }
}
