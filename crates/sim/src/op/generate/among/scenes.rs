//! Scenes of a few acts that single acts seldom come to: a process ends or stops in the middle of what others go on from.
//!
//! Each scene is written for a kind of fault; what it does is right for any store.

use plimsoll_disk::random::Random;

use crate::op::among::{Act, Among};
use crate::op::generate::among::Interests;

/// The least bytes of a value that has a blob file of its own.
const LARGE_BYTES: u64 = 256 << 10;

/// Bytes of a value that stays in the log, and of one that lies in a leaf.
const IN_LOG_BYTES: u64 = 3000;
const IN_LEAF_BYTES: u64 = 100;

/// A process has swept after so many operations of a verification.
const SWEEP_OPERATIONS: u64 = 600;

/// The keyspace that comes and goes.
const PASSING: u64 = 2;

/// A scene, and the processes in it.
struct Scene<'a> {
    random: &'a mut Random,
    acts: Vec<Among>,
    /// Who does something, and who goes on.
    one: u8,
    other: u8,
    key: u64,
}

impl Scene<'_> {
    fn by(&mut self, member: u8, acts: impl IntoIterator<Item = Act>) {
        self.acts.extend(acts.into_iter().map(|act| Among { member, act }));
    }

    fn put(&mut self, bytes: u64) -> Act {
        Act::Put { space: self.random.below(2), key: self.key, bytes: bytes + self.random.below(50) }
    }

    /// Both are there.
    fn join(&mut self) {
        for member in [self.one, self.other] {
            self.by(member, [Act::GoOn, Act::Join { mebibytes: 0 }]);
        }
    }
}

/// A scene for a run of so many processes.
pub(super) fn scene(random: &mut Random, of: &Interests) -> Vec<Among> {
    let one = random.below(of.members) as u8;
    let other = (u64::from(one) + 1 + random.below(of.members - 1)) % of.members;
    let key = random.below(of.keys);
    let mut scene = Scene { random, acts: Vec::new(), one, other: other as u8, key };
    scene.join();
    if of.sweeps && scene.random.below(3) > 0 {
        match scene.random.below(3) {
            0 => keeper_stops_and_the_next_one_too(&mut scene),
            _ => sweep(&mut scene, of.members as u8),
        }
        return scene.acts;
    }
    if of.streams > 0 && scene.random.below(3) == 0 {
        keyspace_of_another_one(&mut scene);
        return scene.acts;
    }
    match scene.random.below(10) {
        0..2 => killed_in_a_commit(&mut scene),
        2..4 => sync_fails(&mut scene),
        4 => written_over_behind_a_row(&mut scene),
        5 => large_value_while_others_sweep(&mut scene),
        6 => log_freed_beside_who_reads_it(&mut scene),
        _ => keeper_stops(&mut scene),
    }
    scene.acts
}

/// One is killed while it orders, writes or syncs; the other reads or commits; then the power is cut.
fn killed_in_a_commit(scene: &mut Scene<'_>) {
    let bytes = [IN_LEAF_BYTES, IN_LOG_BYTES, LARGE_BYTES, LARGE_BYTES][scene.random.below(4) as usize];
    let (before, killed, after) = (scene.put(IN_LEAF_BYTES), scene.put(bytes), scene.put(IN_LEAF_BYTES));
    // A blob file is written and synced before the record.
    let changes = if bytes == LARGE_BYTES { 9 } else { 3 };
    let (nth, later) = (1 + scene.random.below(changes), scene.random.below(4));
    scene.by(scene.one, [before, Act::KillAtChange { nth, later }, killed]);
    match scene.random.below(4) {
        0 => scene.by(scene.other, [Act::Check]),
        1 => scene.by(scene.other, [after, Act::Check]),
        // What it has left behind is swept.
        2 => scene.by(scene.other, [Act::Flush, Act::Trim { back: 0 }, Act::Trim { back: 0 }]),
        _ => {}
    }
    if scene.random.below(4) > 0 {
        scene.by(scene.other, [Act::PowerCut]);
        scene.join();
        scene.by(scene.other, [Act::Check]);
    }
}

/// A sync fails in one, which may be killed before it can tell; the other commits; then the power is cut.
fn sync_fails(scene: &mut Scene<'_>) {
    let after = 1 + scene.random.below(3);
    let fail = [Act::FailSync { after }, Act::FailSyncAndKill { after }][scene.random.below(2) as usize];
    let (first, second, third) = (scene.put(IN_LEAF_BYTES), scene.put(IN_LOG_BYTES), scene.put(IN_LEAF_BYTES));
    scene.by(scene.one, [fail, first]);
    scene.by(scene.other, [second, third, Act::PowerCut]);
    scene.join();
    scene.by(scene.other, [Act::Check]);
}

/// The other has a row of a key in its cache; one writes the key over, and the index is flushed.
fn written_over_behind_a_row(scene: &mut Scene<'_>) {
    let (space, key) = (scene.random.below(2), scene.key);
    let put = |bytes| Act::Put { space, key, bytes };
    let settle = |scene: &mut Scene<'_>| {
        scene.by(scene.one, [Act::Flush]);
        for member in [scene.one, scene.other] {
            scene.by(member, (0..3).map(|first| Act::Step { first: 2 * first }));
        }
    };
    scene.by(scene.one, [put(IN_LEAF_BYTES)]);
    settle(scene);
    scene.by(scene.other, [Act::Get { space, key }, Act::Get { space, key }, Act::Get { space, key }]);
    let bytes = IN_LEAF_BYTES + scene.random.below(80);
    let change = if scene.random.below(4) == 0 { Act::Delete { space, key } } else { put(bytes) };
    scene.by(scene.one, [change]);
    settle(scene);
    scene.by(scene.other, [Act::Get { space, key }, Act::Flush, Act::Get { space, key }, Act::Check]);
}

/// One writes a large value in a transaction; the other sweeps meanwhile.
fn large_value_while_others_sweep(scene: &mut Scene<'_>) {
    let (space, key) = (scene.random.below(2), scene.key);
    let write = Act::TxPut { space, key, bytes: LARGE_BYTES + scene.random.below(2000) };
    scene.by(scene.one, [Act::TxBegin, write]);
    let newest = Act::Trim { back: 0 };
    for _ in 0..1 + scene.random.below(3) {
        let act = [Act::Flush, Act::Compact, newest, Act::Step { first: 0 }][scene.random.below(4) as usize];
        scene.by(scene.other, [act]);
    }
    scene.by(scene.one, [newest, Act::TxCommit, Act::DropCaches, Act::Get { space, key }]);
    scene.by(scene.other, [Act::Get { space, key }]);
}

/// One makes a keyspace, the other drops it and makes it anew.
fn keyspace_of_another_one(scene: &mut Scene<'_>) {
    let (space, key) = (PASSING, scene.key);
    let put = |bytes| Act::Put { space, key, bytes };
    scene.by(scene.one, [Act::MakeSpace, put(IN_LEAF_BYTES)]);
    scene.by(scene.other, [Act::Get { space, key }, put(IN_LOG_BYTES), Act::DropSpace]);
    scene.by(scene.one, [Act::Get { space, key }, Act::Scan { space }]);
    scene.by(scene.other, [Act::MakeSpace, put(IN_LEAF_BYTES), Act::Check]);
    scene.by(scene.one, [Act::DropSpace, Act::Check]);
}

/// One becomes the keeper and sweeps. It is stopped in the middle of that, while the other writes or commits a large value; or a commit of the other
/// was ended by a kill, and what that left behind may not come back.
fn sweep(scene: &mut Scene<'_>, members: u8) {
    let (one, other, space, key) = (scene.one, scene.other, scene.random.below(2), scene.key);
    for member in (0..members).filter(|member| *member != other) {
        scene.by(member, [Act::GoOn, Act::Leave]);
    }
    let (first, large) = (scene.put(IN_LEAF_BYTES), LARGE_BYTES + scene.random.below(2000));
    // One that becomes the keeper after it has joined has not swept yet.
    scene.by(other, [Act::Flush]);
    scene.by(one, [Act::Join { mebibytes: 0 }]);
    scene.by(other, [Act::Leave]);
    scene.by(one, [first, Act::Flush]);
    scene.by(other, [Act::Join { mebibytes: 0 }]);
    if scene.random.below(3) == 0 {
        // Where its record is written, and not published.
        let (nth, later) = (4 + scene.random.below(4), 1 + scene.random.below(2));
        scene.by(other, [Act::KillAtChange { nth, later }, Act::Put { space, key, bytes: large }]);
        let end = [Act::Kill, Act::PowerCut][scene.random.below(2) as usize];
        scene.by(one, [Act::Verify, end]);
        scene.join();
        return scene.by(one, [Act::Check, Act::Verify]);
    }
    let begins = [Act::TxBegin, Act::TxPut { space, key, bytes: large }];
    let ends = [Act::TxCommit, Act::DropCaches, Act::Get { space, key }];
    let (sweeps, commits_meanwhile) =
        (Act::StopAt { after: 1 + scene.random.below(SWEEP_OPERATIONS) }, scene.random.below(2) == 0);
    if commits_meanwhile {
        scene.by(other, begins);
        scene.by(one, [sweeps, Act::Verify]);
        scene.by(other, ends);
        scene.by(one, [Act::GoOn]);
    } else {
        scene.by(one, [sweeps, Act::Verify]);
        scene.by(other, begins);
        scene.by(one, [Act::GoOn]);
        scene.by(other, ends);
    }
    scene.by(other, [Act::DropCaches, Act::Get { space, key }, Act::Check]);
}

/// The keeper stops in the middle of its work, and the other stops where it takes its place; the first one goes on before the other.
fn keeper_stops_and_the_next_one_too(scene: &mut Scene<'_>) {
    let mut stops = |changes| Act::StopAtChange { nth: 1 + scene.random.below(changes), later: scene.random.below(4) };
    let (first, second) = (stops(12), stops(5));
    let (before, meanwhile, after) = (scene.put(IN_LOG_BYTES), scene.put(IN_LOG_BYTES), scene.put(IN_LEAF_BYTES));
    scene.by(scene.one, [before, first, Act::Flush]);
    scene.by(scene.other, [meanwhile, second, Act::Flush]);
    scene.by(scene.one, [Act::GoOn, Act::Check]);
    scene.by(scene.other, [Act::GoOn, after, Act::Flush, Act::Check]);
    scene.by(scene.one, [Act::Kill]);
    scene.by(scene.other, [Act::Kill]);
    scene.join();
    scene.by(scene.one, [Act::Check]);
}

/// The other has commits in its memtable whose values are in the log; one flushes and frees the log.
fn log_freed_beside_who_reads_it(scene: &mut Scene<'_>) {
    for _ in 0..3 + scene.random.below(20) {
        scene.key += 1;
        let bytes = IN_LOG_BYTES * (1 + scene.random.below(4));
        let put = scene.put(bytes);
        scene.by(scene.one, [put]);
    }
    scene.by(scene.other, [Act::Scan { space: 0 }, Act::Snapshot]);
    scene.by(scene.one, [Act::Compact, Act::Trim { back: 0 }]);
    scene.by(scene.other, [Act::DropCaches, Act::Past { space: 0 }, Act::Past { space: 1 }, Act::Scan { space: 1 }]);
}

/// The keeper stops in the middle of its work, or one that is about to take its place does; the other takes it and writes; the first one goes on.
fn keeper_stops(scene: &mut Scene<'_>) {
    let first = scene.put(IN_LOG_BYTES);
    if scene.random.below(2) == 0 {
        // Nobody is the keeper, or this one is.
        scene.by(scene.other, [Act::Leave, Act::Join { mebibytes: 0 }]);
    }
    let (nth, later) = (1 + scene.random.below(16), [0, 0, 1, 3, 20][scene.random.below(5) as usize]);
    let act = [Act::Flush, Act::Flush, Act::Compact, Act::Step { first: 0 }][scene.random.below(4) as usize];
    scene.by(scene.one, [first, Act::StopAtChange { nth, later }, act]);
    for _ in 0..1 + scene.random.below(6) {
        let put = scene.put(IN_LOG_BYTES);
        scene.by(scene.other, [put, Act::Flush]);
    }
    scene.by(scene.one, [Act::GoOn]);
    if scene.random.below(2) == 0 {
        scene.by(scene.other, [Act::Kill]);
        scene.by(scene.one, [Act::Kill, Act::Join { mebibytes: 0 }, Act::Check]);
    }
    let last = scene.put(IN_LEAF_BYTES);
    scene.by(scene.other, [Act::Check, last, Act::Flush, Act::Check]);
}
