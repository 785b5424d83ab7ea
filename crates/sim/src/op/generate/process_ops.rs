//! Generates workloads of several processes that share a store.
//!
//! Each run has its own emphasis: kills, stops, held snapshots, moving memory. The generator only
//! guesses which processes are alive; the driver skips impossible acts.

mod scenes;

use plimsoll_disk::random::Random;

use crate::op::Op;
use crate::op::process_op::{Act, ProcessOp};

/// The most processes.
pub const MEMBERS: u64 = 4;

/// Keyspaces of acts: one retains the latest versions, one retains all, and one is temporary.
pub const SPACES: u64 = 3;

/// Maximum size of a stream entry, so that several entries fit into one record of the smallest
/// segment.
const APPENDED_MAX: u64 = 3000;

/// The emphasis of a run: weights of acts.
struct Weights {
    members: u64,
    keys: u64,
    /// The largest values, as a power of two.
    bytes_bits: u64,
    kills: u64,
    stops: u64,
    power: u64,
    transactions: u64,
    cursors: u64,
    upkeep: u64,
    /// Whether a sync may fail.
    syncs_fail: bool,
    /// The most operations until a kill or a stop.
    reach: u64,
    /// One in this many acts is a whole scene.
    scenes: u64,
    /// Whether scenes are mostly of sweeps.
    sweeps: bool,
    /// How often processes append to streams and read them.
    streams: u64,
    /// How often they create and delete tags.
    tags: u64,
    /// Whether they only read. Without a user's stream, the log is trimmed automatically behind
    /// their cursors.
    only_reads: bool,
}

impl Weights {
    fn of_seed(random: &mut Random) -> Self {
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        Self {
            members: one_of(&[2, 2, 3, 3, 4]),
            keys: one_of(&[4, 12, 40]),
            bytes_bits: one_of(&[8, 10, 12, 14, 18]),
            kills: one_of(&[0, 2, 6, 12, 12]),
            stops: one_of(&[0, 0, 3, 10]),
            power: one_of(&[0, 1, 3]),
            transactions: one_of(&[10, 30, 60]),
            cursors: one_of(&[0, 2, 10]),
            upkeep: one_of(&[8, 20, 40]),
            syncs_fail: one_of(&[0, 0, 0, 1]) == 1,
            reach: one_of(&[20, 100, 400, 2000]),
            scenes: one_of(&[3, 6, 12]),
            sweeps: false,
            streams: 0,
            tags: 0,
            only_reads: false,
        }
    }

    /// Sets weights that only some runs have. The other runs are the same as if these weights did
    /// not exist.
    fn with_special_ones(self, seed: u64) -> Self {
        let tags = [0, 30, 30][Random::new(seed ^ 0x7a95).below(3) as usize];
        let mut random = Random::new(seed ^ 0x05ee_9e35);
        match random.below(4) {
            0 => Self { sweeps: true, tags, ..self },
            1 if random.below(3) == 0 => {
                Self { streams: 60, cursors: 10, only_reads: true, tags, ..self }
            }
            1 => Self { streams: 60, tags, ..self },
            _ => Self { tags, ..self },
        }
    }
}

/// A workload of this many operations.
pub fn generate(seed: u64, count: usize) -> Vec<Op> {
    let mut random = Random::new(seed ^ 0x00c0_44fa_17ed);
    let interests = Weights::of_seed(&mut random).with_special_ones(seed);
    let joins = (0..interests.members)
        .map(|member| ProcessOp { member: member as u8, act: Act::Join { mebibytes: 0 } });
    let mut ops: Vec<Op> = joins.map(Op::OfProcess).collect();
    while ops.len() < count {
        if random.below(interests.scenes) == 0 {
            ops.extend(scenes::scene(&mut random, &interests).into_iter().map(Op::OfProcess));
            continue;
        }
        let member = random.below(interests.members) as u8;
        ops.push(Op::OfProcess(ProcessOp { member, act: choose(&mut random, &interests) }));
    }
    ops.truncate(count);
    ops
}

fn choose(random: &mut Random, of: &Weights) -> Act {
    let aimed = of.kills / 2 + of.stops + 6;
    let upkeep = of.upkeep;
    let weights = [
        90,
        of.transactions,
        40,
        of.kills,
        of.stops,
        of.power,
        of.cursors,
        upkeep,
        14,
        of.streams,
        aimed,
        of.tags,
    ];
    let mut at = random.below(weights.iter().sum());
    let makers: [fn(&mut Random, &Weights) -> Act; 12] =
        [write, transact, read, kill, stop, power, cursor, keep_up, come_and_go, stream, aim, tag];
    for (weight, make) in weights.into_iter().zip(makers) {
        match at.checked_sub(weight) {
            None => return make(random, of),
            Some(rest) => at = rest,
        }
    }
    Act::Check
}

fn space(random: &mut Random) -> u64 {
    [0, 0, 0, 1, 1, 2][random.below(6) as usize]
}

fn bytes(random: &mut Random, of: &Weights) -> u64 {
    let bits = 3 + random.below(of.bytes_bits - 2);
    random.below(1 << bits)
}

fn write(random: &mut Random, of: &Weights) -> Act {
    let (space, key) = (space(random), random.below(of.keys));
    match random.below(40) {
        0..8 => Act::Delete { space, key },
        9..13 => Act::Add { space: space % 2, counter: random.below(2) },
        8 => Act::Load {
            space,
            first: 1000 + random.below(400),
            count: 1 + random.below(120),
            bytes: bytes(random, of),
        },
        _ => Act::Put { space, key, bytes: bytes(random, of) },
    }
}

fn transact(random: &mut Random, of: &Weights) -> Act {
    let (space, key) = (space(random), random.below(of.keys));
    match random.below(13) {
        0..2 => Act::TxBegin,
        2..4 => Act::TxGet { space, key },
        4 => Act::TxRange { space, from: key, to: key + 1 + random.below(5) },
        5..8 => Act::TxPut { space, key, bytes: bytes(random, of) },
        8 => Act::TxDelete { space, key },
        9 if random.below(2) == 0 => {
            Act::TxRemove { space, from: key, to: key + 1 + random.below(12) }
        }
        9 => Act::TxPop { space, last: random.below(2) },
        10..12 => Act::TxCommit,
        _ if random.below(4) == 0 => Act::TxAbort,
        _ => Act::TxCommit,
    }
}

fn read(random: &mut Random, of: &Weights) -> Act {
    let (space, key) = (space(random), random.below(of.keys));
    match random.below(12) {
        0..5 => Act::Get { space, key },
        5..7 => Act::Scan { space },
        7 => Act::Snapshot,
        8..10 => Act::Past { space },
        10 => Act::Release,
        _ => Act::Check,
    }
}

fn kill(random: &mut Random, of: &Weights) -> Act {
    match random.below(5) {
        0 => Act::Kill,
        _ => Act::KillAt { after: 1 + random.below(of.reach) },
    }
}

fn stop(random: &mut Random, of: &Weights) -> Act {
    match random.below(2) {
        0 => Act::StopAt { after: 1 + random.below(of.reach.min(400)) },
        _ => Act::GoOn,
    }
}

/// A kill or stop at a border case, or a failing call.
fn aim(random: &mut Random, of: &Weights) -> Act {
    let (reach, far) = (1 << random.below(5), 1 << random.below(6));
    let (border, nth) = (random.below(1 << 16), 1 + random.below(reach));
    match random.below(of.kills / 2 + of.stops + 6) {
        at if at < of.kills / 2 => Act::KillAtBorder { border, nth },
        at if at < of.kills / 2 + of.stops => Act::StopAtBorder { border, nth },
        at if at % 2 == 0 => Act::Refuse { after: random.below(far) },
        _ => Act::FailRead { nth },
    }
}

fn power(random: &mut Random, of: &Weights) -> Act {
    match random.below(8) {
        0..2 => Act::PowerCut,
        2 => Act::Alone,
        3 => Act::FailSyncAndKill { after: 1 + random.below(12) },
        4 if of.syncs_fail => Act::FailSync { after: 1 + random.below(12) },
        _ => Act::CutAtSync { after: 1 + random.below(30) },
    }
}

fn cursor(random: &mut Random, _: &Weights) -> Act {
    let (name, back) = (random.below(3), random.below(12));
    match random.below(6) {
        0..2 => Act::Cursor { name, back },
        2..5 => Act::AdvanceCursor { name, back },
        _ => Act::DropCursor { name },
    }
}

fn tag(random: &mut Random, _: &Weights) -> Act {
    let name = random.below(3);
    if random.below(3) == 0 { Act::DeleteTag { name } } else { Act::Tag { name } }
}

fn stream(random: &mut Random, of: &Weights) -> Act {
    if of.only_reads {
        return match random.below(8) {
            0..2 => Act::Follow { stream: 0, back: random.below(20) },
            2..5 => Act::Take,
            _ => Act::Consume { name: random.below(3) },
        };
    }
    let stream = 1 + random.below(3);
    match random.below(8) {
        0..4 => Act::Append {
            stream,
            count: 1 + random.below(4),
            bytes: bytes(random, of).min(APPENDED_MAX),
        },
        4 => Act::Follow { stream, back: random.below(20) },
        5..7 => Act::Take,
        _ => Act::Consume { name: random.below(3) },
    }
}

fn keep_up(random: &mut Random, _: &Weights) -> Act {
    match random.below(24) {
        0..12 => Act::Step { first: random.below(6) },
        12..15 => Act::Flush,
        15..17 => Act::Compact,
        17..19 => Act::Trim { back: random.below(20) },
        19 => Act::DropCaches,
        20 => Act::Verify,
        21 => Act::Backup,
        22 => Act::Sync,
        _ => Act::Advance { millis: 1 << random.below(15) },
    }
}

fn come_and_go(random: &mut Random, _: &Weights) -> Act {
    match random.below(14) {
        0..3 => Act::Leave,
        3..12 => Act::Join { mebibytes: [0, 0, 16, 24, 40][random.below(5) as usize] },
        12 => Act::MakeSpace,
        _ if random.below(3) == 0 => Act::DropSpace,
        _ => Act::MakeSpace,
    }
}
