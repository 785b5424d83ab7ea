//! Scenes: short sequences of acts that random choice seldom produces, in which a process dies or
//! stops in the middle of an operation that others depend on.
//!
//! Each scene targets a kind of bug, but is valid for any store.

use plimsoll::borders::Border;
use plimsoll_disk::random::Random;

use crate::op::generate::process_ops::Weights;
use crate::op::process_op::{Act, ProcessOp};

/// Minimum size of a value in a separate blob file.
const LARGE_BYTES: u64 = 256 << 10;

/// Bytes of a value that stays in the log, and of one stored in a leaf.
const IN_LOG_BYTES: u64 = 3000;
const IN_LEAF_BYTES: u64 = 100;

/// Operations of a verification after which a process has swept.
const SWEEP_OPERATIONS: u64 = 600;

/// The temporary keyspace.
const PASSING: u64 = 2;

/// A scene, and the processes in it.
struct Scene<'a> {
    random: &'a mut Random,
    acts: Vec<ProcessOp>,
    /// The acting process, and the other one.
    one: u8,
    other: u8,
    key: u64,
}

impl Scene<'_> {
    fn by(&mut self, member: u8, acts: impl IntoIterator<Item = Act>) {
        self.acts.extend(acts.into_iter().map(|act| ProcessOp { member, act }));
    }

    fn put(&mut self, bytes: u64) -> Act {
        Act::Put {
            space: self.random.below(2),
            key: self.key,
            bytes: bytes + self.random.below(50),
        }
    }

    /// Makes both processes join.
    fn join(&mut self) {
        for member in [self.one, self.other] {
            self.by(member, [Act::GoOn, Act::Join { mebibytes: 0 }]);
        }
    }
}

/// A scene for a run of this many processes.
pub(super) fn scene(random: &mut Random, of: &Weights) -> Vec<ProcessOp> {
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
    if of.tags > 0 && scene.random.below(3) == 0 {
        match scene.random.below(2) {
            0 => tags_change(&mut scene),
            _ => learns_of_tags_and_fails(&mut scene),
        }
        return scene.acts;
    }
    match scene.random.below(28) {
        24 | 25 => cursor_created_beside_a_trim(&mut scene),
        26 | 27 => joins_beside_a_stopped_one(&mut scene, of.members as u8),
        10..13 => leader_of_posts_ends(&mut scene),
        13..15 => joins_with_little_memory(&mut scene, of.members as u8),
        15..18 => changed_at_the_edge(&mut scene),
        18..20 => catches_up_and_fails(&mut scene),
        20..22 => ends_or_stops_at_a_border(&mut scene),
        22 | 23 => learns_and_fails(&mut scene, of.tags > 0),
        0..2 => killed_in_a_commit(&mut scene),
        2..4 => sync_fails(&mut scene),
        4 => written_over_behind_a_row(&mut scene),
        5 => large_value_while_others_sweep(&mut scene),
        6 => log_freed_beside_who_reads_it(&mut scene),
        _ => keeper_stops(&mut scene),
    }
    scene.acts
}

/// One process is killed while it orders, writes or syncs; the other reads or commits; then the
/// power is cut.
fn killed_in_a_commit(scene: &mut Scene<'_>) {
    let bytes =
        [IN_LEAF_BYTES, IN_LOG_BYTES, LARGE_BYTES, LARGE_BYTES][scene.random.below(4) as usize];
    let (before, killed, after) =
        (scene.put(IN_LEAF_BYTES), scene.put(bytes), scene.put(IN_LEAF_BYTES));
    // A blob file is written and synced before the record.
    let changes = if bytes == LARGE_BYTES { 9 } else { 3 };
    let (nth, later) = (1 + scene.random.below(changes), scene.random.below(4));
    scene.by(scene.one, [before]);
    let is_behind = scene.random.below(2) == 0;
    if is_behind {
        // The other may not know the segment in which the kill happens.
        for _ in 0..2 + scene.random.below(5) {
            let put = scene.put(20 * IN_LOG_BYTES);
            scene.by(scene.one, [put]);
        }
    }
    scene.by(scene.one, [Act::KillAtChange { nth, later }, killed]);
    if is_behind {
        scene.by(scene.other, [after, Act::DropCaches, Act::Check]);
    }
    match scene.random.below(4) {
        0 => scene.by(scene.other, [Act::Check]),
        1 => scene.by(scene.other, [after, Act::Check]),
        // The other sweeps its leftovers.
        2 => scene.by(scene.other, [Act::Flush, Act::Trim { back: 0 }, Act::Trim { back: 0 }]),
        _ => {}
    }
    if scene.random.below(4) > 0 {
        scene.by(scene.other, [Act::PowerCut]);
        scene.join();
        scene.by(scene.other, [Act::Check]);
    }
}

/// A sync fails in one process, which may be killed before it can publish that; the other commits;
/// then the power is cut.
fn sync_fails(scene: &mut Scene<'_>) {
    let after = 1 + scene.random.below(3);
    let fail =
        [Act::FailSync { after }, Act::FailSyncAndKill { after }][scene.random.below(2) as usize];
    let (first, second, third) =
        (scene.put(IN_LEAF_BYTES), scene.put(IN_LOG_BYTES), scene.put(IN_LEAF_BYTES));
    scene.by(scene.one, [fail, first]);
    scene.by(scene.other, [second, third, Act::PowerCut]);
    scene.join();
    scene.by(scene.other, [Act::Check]);
}

/// One process overwrites a key that the other has in its row cache, and the index is flushed.
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
    scene.by(
        scene.other,
        [Act::Get { space, key }, Act::Get { space, key }, Act::Get { space, key }],
    );
    let bytes = IN_LEAF_BYTES + scene.random.below(80);
    let change = if scene.random.below(4) == 0 { Act::Delete { space, key } } else { put(bytes) };
    scene.by(scene.one, [change]);
    settle(scene);
    scene.by(
        scene.other,
        [Act::Get { space, key }, Act::Flush, Act::Get { space, key }, Act::Check],
    );
}

/// One process writes a large value in a transaction, while the other sweeps.
fn large_value_while_others_sweep(scene: &mut Scene<'_>) {
    let (space, key) = (scene.random.below(2), scene.key);
    let write = Act::TxPut { space, key, bytes: LARGE_BYTES + scene.random.below(2000) };
    scene.by(scene.one, [Act::TxBegin, write]);
    let newest = Act::Trim { back: 0 };
    for _ in 0..1 + scene.random.below(3) {
        let act = [Act::Flush, Act::Compact, newest, Act::Step { first: 0 }]
            [scene.random.below(4) as usize];
        scene.by(scene.other, [act]);
    }
    scene.by(scene.one, [newest, Act::TxCommit, Act::DropCaches, Act::Get { space, key }]);
    scene.by(scene.other, [Act::Get { space, key }]);
}

/// One process creates a keyspace; the other drops and recreates it.
fn keyspace_of_another_one(scene: &mut Scene<'_>) {
    let (space, key) = (PASSING, scene.key);
    let put = |bytes| Act::Put { space, key, bytes };
    scene.by(scene.one, [Act::MakeSpace, put(IN_LEAF_BYTES)]);
    scene.by(scene.other, [Act::Get { space, key }, put(IN_LOG_BYTES), Act::DropSpace]);
    scene.by(scene.one, [Act::Get { space, key }, Act::Scan { space }]);
    scene.by(scene.other, [Act::MakeSpace, put(IN_LEAF_BYTES), Act::Check]);
    scene.by(scene.one, [Act::DropSpace, Act::Check]);
}

/// One process becomes the keeper and sweeps. During the sweep it is stopped while the other writes
/// or commits a large value. Or the other was killed during a commit, and leftovers of this commit
/// must not reappear.
fn sweep(scene: &mut Scene<'_>, members: u8) {
    let (one, other, space, key) = (scene.one, scene.other, scene.random.below(2), scene.key);
    for member in (0..members).filter(|member| *member != other) {
        scene.by(member, [Act::GoOn, Act::Leave]);
    }
    let (first, large) = (scene.put(IN_LEAF_BYTES), LARGE_BYTES + scene.random.below(2000));
    // A process that becomes the keeper after it has joined has not swept yet.
    scene.by(other, [Act::Flush]);
    scene.by(one, [Act::Join { mebibytes: 0 }]);
    scene.by(other, [Act::Leave]);
    scene.by(one, [first, Act::Flush]);
    scene.by(other, [Act::Join { mebibytes: 0 }]);
    if scene.random.below(3) == 0 {
        // The kill hits after its record is written and before it is published.
        let (nth, later) = (4 + scene.random.below(4), 1 + scene.random.below(2));
        scene.by(other, [Act::KillAtChange { nth, later }, Act::Put { space, key, bytes: large }]);
        let end = [Act::Kill, Act::PowerCut][scene.random.below(2) as usize];
        scene.by(one, [Act::Verify, end]);
        scene.join();
        return scene.by(one, [Act::Check, Act::Verify]);
    }
    let begins = [Act::TxBegin, Act::TxPut { space, key, bytes: large }];
    let ends = [Act::TxCommit, Act::DropCaches, Act::Get { space, key }];
    let (sweeps, commits_meanwhile) = (
        Act::StopAt { after: 1 + scene.random.below(SWEEP_OPERATIONS) },
        scene.random.below(2) == 0,
    );
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

/// The keeper stops in the middle of its work, and the other stops during the takeover; the first
/// resumes before the other.
fn keeper_stops_and_the_next_one_too(scene: &mut Scene<'_>) {
    let mut stops = |changes| Act::StopAtChange {
        nth: 1 + scene.random.below(changes),
        later: scene.random.below(4),
    };
    let (first, second) = (stops(12), stops(5));
    let (before, meanwhile, after) =
        (scene.put(IN_LOG_BYTES), scene.put(IN_LOG_BYTES), scene.put(IN_LEAF_BYTES));
    scene.by(scene.one, [before, first, Act::Flush]);
    scene.by(scene.other, [meanwhile, second, Act::Flush]);
    scene.by(scene.one, [Act::GoOn, Act::Check]);
    scene.by(scene.other, [Act::GoOn, after, Act::Flush, Act::Check]);
    scene.by(scene.one, [Act::Kill]);
    scene.by(scene.other, [Act::Kill]);
    scene.join();
    scene.by(scene.one, [Act::Check]);
}

/// One process flushes and trims the log while the memtable of the other refers to values in the
/// log.
fn log_freed_beside_who_reads_it(scene: &mut Scene<'_>) {
    for _ in 0..3 + scene.random.below(20) {
        scene.key += 1;
        let bytes = IN_LOG_BYTES * (1 + scene.random.below(4));
        let put = scene.put(bytes);
        scene.by(scene.one, [put]);
    }
    scene.by(scene.other, [Act::Scan { space: 0 }, Act::Snapshot]);
    scene.by(scene.one, [Act::Compact, Act::Trim { back: 0 }]);
    scene.by(
        scene.other,
        [Act::DropCaches, Act::Past { space: 0 }, Act::Past { space: 1 }, Act::Scan { space: 1 }],
    );
}

/// The keeper, or a process about to take over, stops in the middle of its work; the other takes
/// over and writes; the first resumes.
fn keeper_stops(scene: &mut Scene<'_>) {
    let first = scene.put(IN_LOG_BYTES);
    if scene.random.below(2) == 0 {
        // Leave no keeper, or make this process the keeper.
        scene.by(scene.other, [Act::Leave, Act::Join { mebibytes: 0 }]);
    }
    let (nth, later) =
        (1 + scene.random.below(16), [0, 0, 1, 3, 20][scene.random.below(5) as usize]);
    let act = [Act::Flush, Act::Flush, Act::Compact, Act::Step { first: 0 }]
        [scene.random.below(4) as usize];
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

/// One process has posted a commit and is stopped before or while the commit is ordered; the other
/// orders both commits, and is killed while doing so; the first resumes, and a third commit shows
/// the outcome of both.
fn leader_of_posts_ends(scene: &mut Scene<'_>) {
    let reach = 1 << (3 + scene.random.below(4));
    let (first, second, third) =
        (scene.put(IN_LEAF_BYTES), scene.put(IN_LEAF_BYTES), scene.put(IN_LEAF_BYTES));
    // A process that reads does not post.
    let (before, again) = (scene.put(IN_LEAF_BYTES), scene.put(IN_LEAF_BYTES));
    scene.by(scene.one, [before]);
    scene.by(scene.other, [again]);
    let stops = Act::StopAt { after: 1 + scene.random.below(reach) };
    let border = Border::PostsPlaced as u64;
    let ends = match scene.random.below(4) {
        0 => Act::KillAtBorder { border, nth: 1 },
        1 => Act::StopAtBorder { border, nth: 1 },
        _ => Act::KillAt { after: 1 + scene.random.below(reach) },
    };
    scene.by(scene.one, [stops, first]);
    scene.by(scene.other, [ends, second]);
    if scene.random.below(2) == 0 {
        scene.by(scene.one, [Act::GoOn]);
        scene.by(scene.other, [Act::GoOn, Act::Join { mebibytes: 0 }, third]);
    } else {
        scene.by(scene.other, [Act::GoOn, Act::Join { mebibytes: 0 }, third]);
        scene.by(scene.one, [Act::GoOn]);
    }
    scene.join();
    scene.by(scene.one, [Act::Check]);
    if scene.random.below(3) == 0 {
        scene.by(scene.one, [Act::PowerCut]);
        scene.join();
        scene.by(scene.one, [Act::Check]);
    }
}

/// More processes try to join than the memory allows, while one of them holds much; then some
/// leave, and others join again.
fn joins_with_little_memory(scene: &mut Scene<'_>, members: u8) {
    let space = scene.random.below(2);
    let load = Act::Load { space, first: 1000, count: 100, bytes: 900 };
    scene.by(scene.one, [load, Act::Snapshot, Act::TxBegin]);
    // Values below the size of a blob file stay in memory until the commit.
    let held = 4 + scene.random.below(40);
    scene.by(scene.one, (0..held).map(|key| Act::TxPut { space, key, bytes: 200_000 }));
    let one = scene.one;
    for member in (0..members).filter(|member| *member != one) {
        let mebibytes = [16, 17, 24, 40, 64][scene.random.below(5) as usize];
        let (after, nth) = (scene.random.below(40), 1 + scene.random.below(9));
        match scene.random.below(6) {
            0 => scene.by(member, [Act::Refuse { after }]),
            1 => scene.by(member, [Act::FailRead { nth }]),
            _ => {}
        }
        let put = scene.put(IN_LOG_BYTES);
        scene.by(member, [Act::Leave, Act::Join { mebibytes }, put, Act::Scan { space }]);
    }
    scene.by(scene.other, [Act::Leave]);
    scene.by(scene.one, [load, Act::Scan { space }]);
    scene.join();
    scene.by(scene.one, [Act::Check]);
}

/// A transaction of one process reads a range or pops; the other changes a key at an edge of the
/// read.
fn changed_at_the_edge(scene: &mut Scene<'_>) {
    let (space, from) = (scene.random.below(2), scene.key);
    let to = from + 1 + scene.random.below(4);
    scene.by(scene.one, [Act::TxBegin]);
    match scene.random.below(3) {
        0 => {
            let (last, pops) = (scene.random.below(2), 1 + scene.random.below(9));
            scene.by(scene.one, (0..pops).map(|_| Act::TxPop { space, last }));
        }
        1 => scene.by(scene.one, [Act::TxGet { space, key: from }]),
        _ => scene.by(scene.one, [Act::TxRange { space, from, to }]),
    }
    let keys = [from, to, to.saturating_sub(1), from.saturating_sub(1), 0, 999];
    let key = keys[scene.random.below(6) as usize];
    let change = match scene.random.below(4) {
        0 => Act::Delete { space, key },
        _ => Act::Put { space, key, bytes: IN_LEAF_BYTES },
    };
    scene.by(scene.other, [change]);
    if scene.random.below(3) == 0 {
        scene.by(scene.other, [Act::Flush]);
    }
    let write = Act::TxPut { space: 1 - space, key: from, bytes: IN_LEAF_BYTES };
    scene.by(scene.one, [write, Act::TxCommit, Act::Check]);
}

/// One process has to apply many commits of others, and a call within that fails; its data stays
/// right, and it continues.
fn catches_up_and_fails(scene: &mut Scene<'_>) {
    let is_long = scene.random.below(3) == 0;
    for _ in 0..2 + scene.random.below(8) {
        scene.key += 1;
        let bytes = match scene.random.below(3) {
            // Records that take several reads.
            _ if is_long => 10 * IN_LOG_BYTES,
            0 => IN_LEAF_BYTES,
            1 => IN_LOG_BYTES,
            _ => LARGE_BYTES,
        };
        let put = scene.put(bytes);
        scene.by(scene.other, [put]);
    }
    if scene.random.below(2) == 0 {
        // A commit written as runs.
        let (space, bytes) = (scene.random.below(2), 2000 + scene.random.below(1000));
        scene.by(scene.other, [Act::Load { space, first: 1000, count: 120, bytes }]);
    }
    for _ in 0..3 {
        let reach = 1 << scene.random.below(6);
        let fails = match scene.random.below(3) {
            0 => Act::FailRead { nth: 1 + scene.random.below(reach) },
            _ => Act::Refuse { after: scene.random.below(reach) },
        };
        let put = scene.put(IN_LEAF_BYTES);
        let act = match scene.random.below(5) {
            0 => put,
            1 => Act::Scan { space: 0 },
            2 => Act::TxBegin,
            3 => Act::Take,
            _ => Act::Get { space: 1, key: scene.key },
        };
        scene.by(scene.one, [fails, act]);
    }
    scene.by(scene.one, [Act::Check, Act::Flush, Act::Check]);
}

/// The other process commits more or nothing, so that applying fails before, at or after the change
/// that it made before.
fn commits_behind(scene: &mut Scene<'_>) {
    for _ in 0..scene.random.below(6) {
        scene.key += 1;
        // Mostly records that take a read of the log each.
        let bytes = [IN_LEAF_BYTES, 20 * IN_LOG_BYTES, 20 * IN_LOG_BYTES, LARGE_BYTES]
            [scene.random.below(4) as usize];
        let put = scene.put(bytes);
        scene.by(scene.other, [put]);
    }
}

/// One process changes cursors, keyspaces and tags; the other applies that, while a call fails or
/// the process dies or stops.
fn learns_and_fails(scene: &mut Scene<'_>, with_tags: bool) {
    let (name, back) = (scene.random.below(3), scene.random.below(6));
    let changes = [
        Act::Cursor { name, back },
        Act::AdvanceCursor { name, back: 0 },
        Act::DropCursor { name },
        Act::MakeSpace,
        Act::DropSpace,
        Act::Tag { name },
        Act::Tag { name },
        Act::DeleteTag { name },
    ];
    let choices = if with_tags { 8 } else { 5 };
    for _ in 0..2 + scene.random.below(3) {
        let change = changes[scene.random.below(choices) as usize];
        scene.by(scene.other, [change]);
        commits_behind(scene);
        if scene.random.below(4) > 0 {
            // The records are read from the disk.
            scene.by(scene.other, [Act::Flush]);
            scene.by(scene.one, [Act::Step { first: 0 }]);
        }
        let reach = 1 << scene.random.below(5);
        let border = Border::OwnRecordsLoading as u64;
        let fails = match scene.random.below(8) {
            0 => Act::StopAtBorder { border, nth: 1 },
            1..4 => Act::FailReadBeyond { border, nth: 1 + scene.random.below(3) },
            4..6 => Act::FailRead { nth: 1 + scene.random.below(reach) },
            _ => Act::Refuse { after: scene.random.below(reach) },
        };
        let put = scene.put(IN_LEAF_BYTES);
        let act = [put, Act::Scan { space: 0 }, Act::Trim { back: 0 }, change]
            [scene.random.below(4) as usize];
        scene.by(scene.one, [Act::DropCaches, fails, act]);
        if scene.random.below(2) == 0 {
            scene.by(scene.other, [Act::Trim { back: 0 }]);
        }
        scene.by(scene.one, [Act::GoOn, Act::Check]);
        if scene.random.below(2) == 0 {
            // With the records that the process has now, until the other one changes them again.
            let put = scene.put(IN_LOG_BYTES);
            scene.by(scene.one, [put, Act::Flush, Act::Trim { back: 0 }, Act::Check]);
            scene.by(scene.other, [Act::Consume { name }]);
        }
    }
}

/// One process dies or stops at a border case of upkeep, while the other works.
fn ends_or_stops_at_a_border(scene: &mut Scene<'_>) {
    let borders = [
        Border::RunsWritten,
        Border::ManifestWritten,
        Border::TrimChosen,
        Border::CursorHeld,
        Border::OwnRecordsLoading,
        Border::ImageMade,
        Border::LargeWritten,
        Border::KeeperReplaced,
        Border::MergeStopped,
        Border::TurnAbandoned,
    ];
    let border = borders[scene.random.below(10) as usize];
    let (first, large) = (scene.put(IN_LOG_BYTES), scene.put(LARGE_BYTES));
    let (act, aim) = match scene.random.below(6) {
        0 => (Act::Compact, border),
        1 => (Act::Trim { back: 0 }, Border::TrimChosen),
        2 => {
            let (name, back) = (scene.random.below(3), scene.random.below(5));
            scene.by(scene.other, [Act::DropCursor { name }]);
            (Act::Cursor { name, back }, Border::CursorHeld)
        }
        3 => (large, Border::LargeWritten),
        _ => (Act::Flush, border),
    };
    // Mostly one that the act reaches.
    let border = if scene.random.below(3) > 0 { aim } else { border } as u64;
    let nth = if border == aim as u64 { 1 } else { 1 + scene.random.below(2) };
    let ends = match scene.random.below(3) {
        0 => Act::KillAtBorder { border, nth },
        _ => Act::StopAtBorder { border, nth },
    };
    scene.by(scene.one, [first, ends, act]);
    for _ in 0..1 + scene.random.below(4) {
        let put = scene.put(IN_LOG_BYTES);
        let act = match scene.random.below(5) {
            0 => Act::Trim { back: 0 },
            1 => Act::Compact,
            2 => Act::Verify,
            3 => Act::Advance { millis: 3000 },
            _ => Act::Flush,
        };
        scene.by(scene.other, [put, act]);
    }
    scene.by(scene.one, [Act::GoOn]);
    scene.join();
    scene.by(scene.one, [Act::Check, Act::Trim { back: 0 }, Act::Check]);
}

/// One process tags a moment, and is killed or stopped there or not; the key is overwritten, and
/// the index merged; another process deletes the tag or not; the power may be cut.
fn tags_change(scene: &mut Scene<'_>) {
    let (name, reach) = (scene.random.below(3), 1 << scene.random.below(8));
    let first = scene.put(IN_LOG_BYTES);
    scene.by(scene.one, [first]);
    let after = 1 + scene.random.below(reach);
    match scene.random.below(4) {
        0 => scene.by(scene.one, [Act::KillAt { after }]),
        1 => scene.by(scene.one, [Act::StopAt { after }]),
        _ => {}
    }
    scene.by(scene.one, [Act::Tag { name }]);
    for _ in 0..1 + scene.random.below(3) {
        let put = scene.put(IN_LEAF_BYTES);
        let member = [scene.one, scene.other][scene.random.below(2) as usize];
        scene.by(member, [put, Act::Flush]);
    }
    scene.by(scene.other, [Act::Flush, Act::Compact, Act::Trim { back: 0 }]);
    scene.by(scene.one, [Act::Flush, Act::Compact, Act::GoOn]);
    match scene.random.below(4) {
        0 => scene.by(scene.other, [Act::DeleteTag { name }, Act::Tag { name }, Act::Compact]),
        1 => {
            let after = 1 + scene.random.below(reach);
            scene.by(scene.other, [Act::KillAt { after }, Act::DeleteTag { name }]);
            scene.by(scene.one, [Act::Flush, Act::Compact]);
        }
        _ => {}
    }
    if scene.random.below(2) == 0 {
        scene.by(scene.one, [Act::PowerCut]);
    }
    scene.join();
    scene.by(scene.one, [Act::Check]);
}

/// One process changes tags; the other is notified of this while a call fails.
fn learns_of_tags_and_fails(scene: &mut Scene<'_>) {
    let name = scene.random.below(3);
    for _ in 0..3 {
        let change = [Act::Tag { name }, Act::DeleteTag { name }][scene.random.below(2) as usize];
        scene.by(scene.other, [change]);
        if scene.random.below(2) == 0 {
            scene.by(scene.other, [Act::Flush]);
            scene.by(scene.one, [Act::DropCaches]);
        }
        commits_behind(scene);
        let reach = 1 << (1 + scene.random.below(4));
        let fails = match scene.random.below(2) {
            0 => Act::FailRead { nth: 1 + scene.random.below(reach) },
            _ => Act::Refuse { after: scene.random.below(reach) },
        };
        scene.by(scene.one, [fails, Act::Scan { space: 0 }, Act::Check]);
    }
}

/// One process creates a cursor, and may stop there; the other, which is the keeper and may not
/// have applied that commit yet, frees the log.
fn cursor_created_beside_a_trim(scene: &mut Scene<'_>) {
    let (name, back) = (scene.random.below(3), scene.random.below(4));
    scene.by(scene.one, [Act::Leave]);
    scene.by(scene.other, [Act::DropCursor { name }, Act::Flush]);
    let (first, second) = (scene.put(IN_LOG_BYTES), scene.put(IN_LEAF_BYTES));
    scene.by(scene.other, [first]);
    let stop = Act::StopAtBorder { border: Border::CursorHeld as u64, nth: 1 };
    scene.by(scene.one, [Act::Join { mebibytes: 0 }]);
    if scene.random.below(2) == 0 {
        let trim = Act::Trim { back: 0 };
        scene.by(scene.one, [stop, Act::Cursor { name, back }]);
        scene.by(scene.other, [second, Act::Flush, trim, trim]);
        return scene.by(scene.one, [Act::GoOn, Act::Check]);
    }
    let bytes = [5, 20][scene.random.below(2) as usize] * IN_LOG_BYTES;
    for _ in 0..4 + scene.random.below(12) {
        let put = scene.put(bytes);
        scene.by(scene.other, [put]);
    }
    let back = back + scene.random.below(12);
    let steps = (0..3).map(|first| Act::Step { first: 2 * first });
    scene.by(scene.other, [Act::Flush]);
    if scene.random.below(2) == 0 {
        // The cursor is created while the trim flushes, and its process needs no entry that was
        // flushed before.
        scene.by(scene.one, steps);
        let border = [Border::RunsWritten, Border::ManifestWritten][scene.random.below(2) as usize];
        let stop = Act::StopAtBorder { border: border as u64, nth: 1 };
        scene.by(scene.other, [second, stop, Act::Trim { back: 0 }]);
        scene.by(scene.one, [Act::Cursor { name, back }]);
        scene.by(scene.other, [Act::GoOn]);
    } else {
        scene.by(scene.one, [Act::Cursor { name, back }]);
        scene.by(scene.other, steps);
    }
    scene.by(scene.one, [Act::Consume { name }, Act::Check]);
}

/// A process joins while another one is stopped and holds more than its share of the memory; more
/// join, and the stopped one continues.
fn joins_beside_a_stopped_one(scene: &mut Scene<'_>, members: u8) {
    let (one, other) = (scene.one, scene.other);
    for member in 0..members {
        scene.by(member, [Act::GoOn, Act::Leave]);
    }
    let mebibytes = [28, 32, 40, 46, 64, 80][scene.random.below(6) as usize];
    let (put, after) = (scene.put(IN_LOG_BYTES), 1 + scene.random.below(30));
    scene.by(one, [Act::Join { mebibytes }, put, Act::StopAt { after }, put]);
    let wanted = [0, 24, 40, 64][scene.random.below(4) as usize];
    scene.by(other, [Act::Join { mebibytes: wanted }, Act::Check, put, Act::Check]);
    scene.join();
    scene.by(one, [Act::Step { first: 0 }, Act::Check]);
    scene.by(other, [Act::Step { first: 0 }, Act::Check]);
}
