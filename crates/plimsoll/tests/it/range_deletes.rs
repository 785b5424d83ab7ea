//! Deletions of ranges of keys.

use std::collections::BTreeMap;
use std::ops::Bound;

use plimsoll::{
    Db, DumpOptions, Durability, Error, Glsn, InvalidInput, Keyspace, Moment, Options, Overflow,
    Retention,
};
use plimsoll_disk::random::Random;

use crate::members;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false).durability(Durability::Buffered)
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

fn load(db: &Db, keyspace: &Keyspace, keys: std::ops::Range<u64>, value: &str) -> Glsn {
    db.transact(|tx| keys.clone().try_for_each(|number| tx.put(keyspace, key(number), value)))
        .unwrap();
    db.newest()
}

fn count(db: &Db, keyspace: &Keyspace) -> u64 {
    db.snapshot().len(keyspace).unwrap()
}

fn open_with(retention: Retention) -> (tempfile::TempDir, Db, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let keyspace = db.create_keyspace("keys", retention).unwrap();
    (dir, db, keyspace)
}

type State = BTreeMap<Vec<u8>, Vec<u8>>;

/// A keyspace, and what it held after each of its commits.
struct World {
    db: Db,
    keyspace: Keyspace,
    states: Vec<(Glsn, State)>,
    keys: u64,
}

impl World {
    fn newest(&self) -> State {
        self.states.last().map(|(_, state)| state.clone()).unwrap_or_default()
    }

    fn write(&mut self, random: &mut Random) {
        let (db, keyspace, keys) = (&self.db, &self.keyspace, self.keys);
        let mut state = self.newest();
        let mut tx = db.begin();
        for _ in 0..1 + random.below(3) {
            let (first, len) = (random.below(keys), random.below(keys / 2));
            let (from, to) = (key(first), key(first + len));
            match random.below(5) {
                0 if first + len > first => {
                    tx.delete_range(keyspace, &from..&to).unwrap();
                    state.retain(|key, _| *key < from || *key >= to);
                }
                1 => {
                    let prefix = &from[..4];
                    tx.delete_prefix(keyspace, prefix).unwrap();
                    state.retain(|key, _| !key.starts_with(prefix));
                }
                2 => {
                    for _ in 0..5 {
                        let key = key(random.below(keys));
                        tx.delete(keyspace, &key).unwrap();
                        state.remove(&key);
                    }
                }
                _ => {
                    for number in first..first + len {
                        let bytes = if random.below(50) == 0 { 2000 } else { random.below(20) };
                        let value = vec![random.below(250) as u8; bytes as usize];
                        tx.put(keyspace, key(number), &value).unwrap();
                        state.insert(key(number), value);
                    }
                }
            }
            if random.below(4) == 0 {
                let found: Vec<_> = tx.range(keyspace, ..).unwrap().map(Result::unwrap).collect();
                let found = found.into_iter().map(|(key, value)| (key, value.to_vec()));
                assert!(found.eq(state.clone()), "a transaction reads its own range deletions");
                let reversed = tx.range(keyspace, ..).unwrap().reverse().keys_only();
                assert!(reversed.map(|pair| pair.unwrap().0).eq(state.keys().rev().cloned()));
                let key = key(random.below(keys));
                let value = tx.get(keyspace, &key).unwrap().map(|value| value.to_vec());
                assert_eq!(value.as_ref(), state.get(&key));
            }
        }
        let glsn = tx.commit().unwrap();
        let found = db.snapshot().range(keyspace, ..).unwrap().map(Result::unwrap);
        assert!(found.map(|(key, value)| (key, value.to_vec())).eq(state.clone()));
        self.states.push((glsn, state));
    }

    fn check(&self, random: &mut Random) {
        let at = random.below(self.states.len() as u64) as usize;
        let is_newest = random.below(2) == 0;
        let (glsn, state) = if is_newest { self.states.last().unwrap() } else { &self.states[at] };
        let snapshot = match self.db.snapshot_at(Moment::Glsn(*glsn)) {
            Err(Error::Trimmed { .. }) => return,
            snapshot => snapshot.unwrap(),
        };
        for _ in 0..10 {
            let key = key(random.below(self.keys + self.keys / 2));
            let found = match snapshot.get(&self.keyspace, &key) {
                Err(Error::Trimmed { .. }) if !is_newest => return,
                found => found.unwrap().map(|value| value.to_vec()),
            };
            assert_eq!(found.as_ref(), state.get(&key), "{} at {glsn}", key.escape_ascii());
            assert_eq!(
                snapshot.contains_key(&self.keyspace, &key).unwrap(),
                state.contains_key(&key)
            );
        }
        let (a, b) = (random.below(self.keys), random.below(self.keys));
        let (from, to) = (key(a.min(b)), key(a.max(b)));
        let range = || {
            let bounds = (Bound::Included(&from[..]), Bound::Included(&to[..]));
            snapshot.range(&self.keyspace, bounds)
        };
        let walk = match range() {
            Err(Error::Trimmed { .. }) if !is_newest => return,
            walk => walk.unwrap(),
        };
        let wanted = || state.range(from.clone()..=to.clone());
        let mut forward = Vec::new();
        for pair in walk {
            match pair {
                Err(Error::Trimmed { .. }) if !is_newest => return,
                pair => forward.push(pair.map(|(key, value)| (key, value.to_vec())).unwrap()),
            }
        }
        assert!(forward.iter().map(|(key, value)| (key, value)).eq(wanted()), "at {glsn}");
        let backward = range().unwrap().reverse().keys_only().map(|pair| pair.unwrap().0);
        assert!(backward.eq(wanted().rev().map(|(key, _)| key.clone())), "at {glsn}");
    }

    /// The history of a key where everything is kept: a deletion of a deleted key counts for
    /// nothing.
    fn check_history(&self, random: &mut Random) {
        let key = key(random.below(self.keys));
        let mut wanted = Vec::new();
        let mut before: Option<&Vec<u8>> = None;
        for (glsn, state) in &self.states {
            let now = state.get(&key);
            if now.is_some() != before.is_some() {
                wanted.push((*glsn, now.is_some()));
            }
            before = now;
        }
        let mut found = Vec::new();
        let history = self.db.history(&self.keyspace, &key).unwrap();
        let versions: Vec<_> = history.map(Result::unwrap).collect();
        assert!(versions.windows(2).all(|pair| pair[0].glsn > pair[1].glsn), "{versions:?}");
        for version in versions.iter().rev() {
            let is_there = version.bytes.is_some();
            if found.last().map_or(is_there, |(_, was_there)| *was_there != is_there) {
                found.push((version.glsn, is_there));
            }
        }
        assert_eq!(found, wanted, "{}", key.escape_ascii());
    }

    fn check_diff(&self, random: &mut Random) {
        let pick =
            |random: &mut Random| &self.states[random.below(self.states.len() as u64) as usize];
        let (one, other) = (pick(random), pick(random));
        let (one, other) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        let diff = self.db.diff(&self.keyspace, one.0, other.0, "").unwrap();
        let found: Vec<_> = diff.map(|difference| difference.unwrap().key).collect();
        let mut wanted: Vec<_> = one.1.keys().chain(other.1.keys()).cloned().collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|key| one.1.get(key) != other.1.get(key));
        let is_in = |list: &[Vec<u8>], key: &Vec<u8>| list.binary_search(key).is_ok();
        let missing: Vec<_> = wanted.iter().filter(|key| !is_in(&found, key)).collect();
        let more: Vec<_> = found.iter().filter(|key| !is_in(&wanted, key)).collect();
        let Some(key) = missing.iter().chain(&more).next() else { return };
        let history = self.db.history(&self.keyspace, key).unwrap();
        let history: Vec<_> =
            history.map(Result::unwrap).map(|version| (version.glsn, version.bytes)).collect();
        let of_model: Vec<_> = self
            .states
            .iter()
            .map(|(glsn, state)| (*glsn, state.get(*key).map(Vec::len)))
            .collect();
        panic!(
            "from {} to {}: {} are missing, {} more: {}: {history:?}, {of_model:?}",
            one.0,
            other.0,
            missing.len(),
            more.len(),
            key.escape_ascii()
        );
    }
}

fn run(seed: u64, retention: Retention, options: Options) {
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options.clone()).unwrap();
    let keyspace = db.create_keyspace("keys", retention).unwrap();
    load(&db, &db.keyspace("beside").unwrap(), 0..300, "beside");
    let mut world = World { db, keyspace, states: Vec::new(), keys: 500 };
    for _ in 0..40 {
        match random.below(12) {
            0 | 1 => world.db.flush().unwrap(),
            2 => world.db.compact().unwrap(),
            3 => {
                let World { db, .. } = world;
                if random.below(2) == 0 {
                    db.close().unwrap();
                } else {
                    db.sync().unwrap();
                    drop(db);
                }
                let db = Db::open(&path, options.clone()).unwrap();
                let keyspace = db.keyspace("keys").unwrap();
                world = World { db, keyspace, ..world };
            }
            4 => while world.db.step().unwrap() {},
            5 => world.db.drop_caches(),
            _ => world.write(&mut random),
        }
        if !world.states.is_empty() {
            world.check(&mut random);
            if retention == Retention::Forever {
                world.check_history(&mut random);
                world.check_diff(&mut random);
            }
        }
    }
    assert_eq!(count(&world.db, &world.db.keyspace("beside").unwrap()), 300);
    let report = world.db.verify(&mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "seed {seed}: {report:?}");
}

#[test]
fn all_reads_agree_with_a_model_that_keeps_everything() {
    (0..25).for_each(|seed| run(seed, Retention::Forever, options()));
}

#[test]
fn all_reads_agree_with_a_model_that_keeps_the_latest() {
    (100..120).for_each(|seed| run(seed, Retention::Latest, options()));
}

#[test]
fn all_reads_agree_with_a_model_that_keeps_a_window() {
    (200..220).for_each(|seed| run(seed, Retention::Glsns(6), options()));
}

#[test]
fn a_range_is_deleted_at_once_and_older_snapshots_still_see_it() {
    let (_dir, db, keyspace) = open_with(Retention::Latest);
    load(&db, &keyspace, 0..1000, "one");
    db.flush().unwrap();
    let before = db.snapshot();
    let glsn = db.delete_range(&keyspace, key(100)..key(900)).unwrap();
    assert_eq!(count(&db, &keyspace), 200);
    assert_eq!(before.len(&keyspace).unwrap(), 1000);
    assert_eq!(db.get(&keyspace, key(100)).unwrap(), None);
    assert!(db.get(&keyspace, key(900)).unwrap().is_some());
    db.put(&keyspace, key(500), "two").unwrap();
    assert_eq!(&db.get(&keyspace, key(500)).unwrap().unwrap()[..], b"two");
    let history: Vec<_> = db.history(&keyspace, key(200)).unwrap().map(Result::unwrap).collect();
    assert_eq!((history[0].glsn, history[0].bytes), (glsn, None));
    drop(before);
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(count(&db, &keyspace), 201);
    assert_eq!(&db.get(&keyspace, key(500)).unwrap().unwrap()[..], b"two");
}

#[test]
fn an_empty_or_inverted_range_is_refused_and_nothing_is_written() {
    let (_dir, db, keyspace) = open_with(Retention::Latest);
    load(&db, &keyspace, 0..200, "one");
    let newest = db.newest();
    let refused = |result: plimsoll::Result<Glsn>| {
        assert!(matches!(result, Err(Error::InvalidInput(InvalidInput::EmptyRange))), "{result:?}");
    };
    refused(db.delete_range(&keyspace, key(9)..key(9)));
    refused(db.delete_range(&keyspace, key(9)..key(3)));
    refused(db.delete_range(&keyspace, key(9)..=key(8)));
    refused(db.delete_prefix(&keyspace, vec![7; 5000]));
    let mut tx = db.begin();
    let refusal = tx.delete_range(&keyspace, key(9)..key(3));
    assert!(matches!(refusal, Err(Error::InvalidInput(InvalidInput::EmptyRange))));
    tx.put(&keyspace, "later", "two").unwrap();
    tx.commit().unwrap();
    assert_eq!((db.newest(), count(&db, &keyspace)), (newest.next(), 201));
}

#[test]
fn a_range_deletion_conflicts_with_reads_and_writes_in_its_range() {
    for (name, keys) in [("many", 1000), ("few", 50)] {
        let (_dir, db, keyspace) = open_with(Retention::Latest);
        load(&db, &keyspace, 0..keys, "one");
        let conflicts = |tx: plimsoll::Transaction| {
            assert!(matches!(tx.commit(), Err(Error::Conflict { .. })), "{name}");
        };
        let mut point = db.begin();
        point.get(&keyspace, key(5)).unwrap();
        point.put(&keyspace, "a", "").unwrap();
        let mut walk = db.begin();
        assert_eq!(walk.range(&keyspace, key(3)..key(8)).unwrap().count(), 5);
        walk.put(&keyspace, "a", "").unwrap();
        let mut apart = db.begin();
        apart.get(&keyspace, "z").unwrap();
        apart.put(&keyspace, "a", "").unwrap();
        let mut phantom = db.begin();
        phantom.delete_range(&keyspace, ..key(2000)).unwrap();
        let mut ranges = db.begin();
        ranges.delete_range(&keyspace, ..key(2000)).unwrap();
        db.put(&keyspace, key(1500), "new").unwrap();
        conflicts(phantom);
        db.delete_range(&keyspace, ..key(1400)).unwrap();
        conflicts(point);
        conflicts(walk);
        conflicts(ranges);
        apart.commit().unwrap();
        assert_eq!(count(&db, &keyspace), 2, "{name}");
    }
}

#[test]
fn an_absorbed_range_deletion_conflicts_with_a_range_that_was_read() {
    let (_dir, db, keyspace) = open_with(Retention::Latest);
    load(&db, &keyspace, 0..1000, "one");
    db.flush().unwrap();
    let mut tx = db.begin();
    assert_eq!(tx.range(&keyspace, key(100)..key(200)).unwrap().count(), 100);
    db.delete_range(&keyspace, key(10)..key(990)).unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(db.stats().index.deleted_ranges, 0, "it is absorbed");
    db.put(&keyspace, key(5000), "outside").unwrap();
    tx.put(&keyspace, key(6000), "two").unwrap();
    let committed = tx.commit();
    assert!(matches!(committed, Err(Error::Conflict { .. })), "{committed:?}");
}

#[test]
fn what_is_put_behind_a_range_deletion_in_its_transaction_stays() {
    let (dir, db, keyspace) = open_with(Retention::Latest);
    load(&db, &keyspace, 0..500, "one");
    let mut tx = db.begin();
    tx.put(&keyspace, key(7), "gone").unwrap();
    tx.delete_range(&keyspace, ..).unwrap();
    tx.put(&keyspace, key(9), "stays").unwrap();
    assert_eq!(tx.get(&keyspace, key(7)).unwrap(), None);
    assert_eq!(tx.len(&keyspace).unwrap(), 1);
    assert_eq!(tx.first(&keyspace).unwrap().unwrap().0, key(9));
    assert_eq!(tx.last(&keyspace).unwrap().unwrap().0, key(9));
    tx.commit().unwrap();
    assert_eq!(count(&db, &keyspace), 1);
    db.sync().unwrap();
    drop(db);
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let keyspace = db.keyspace("keys").unwrap();
    assert_eq!(count(&db, &keyspace), 1);
    assert_eq!(&db.get(&keyspace, key(9)).unwrap().unwrap()[..], b"stays");
}

#[test]
fn the_other_processes_see_a_range_deletion_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (one, two) = (members::open(&path), members::open(&path));
    let (of_one, of_two) = (members::default(&one), members::default(&two));
    for round in 0..6 {
        let (writer, reader, written, read) = match round % 2 {
            0 => (&one, &two, &of_one, &of_two),
            _ => (&two, &one, &of_two, &of_one),
        };
        load(writer, written, 0..1000, "one");
        assert_eq!(count(reader, read), 1000);
        let before = reader.snapshot();
        writer.delete_range(written, key(10)..key(990)).unwrap();
        assert_eq!(count(reader, read), 20);
        assert_eq!(reader.get(read, key(500)).unwrap(), None);
        assert_eq!(before.len(read).unwrap(), 1000);
        if round % 3 == 0 {
            writer.flush().unwrap();
            writer.compact().unwrap();
        }
        reader.put(read, key(500), "two").unwrap();
        assert_eq!(&writer.get(written, key(500)).unwrap().unwrap()[..], b"two");
        assert_eq!((count(writer, written), count(reader, read)), (21, 21));
    }
    drop((one, two));
    members::verify(&path);
}

#[test]
fn merges_absorb_range_deletions_and_give_the_space_back() {
    let (dir, db, keyspace) = open_with(Retention::Latest);
    for part in 0..20 {
        db.transact(|tx| {
            (0..2000).try_for_each(|number| {
                tx.put(&keyspace, key(part * 2000 + number), vec![number as u8; 300])
            })
        })
        .unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    let bytes = || db.stats().index.runs.iter().sum::<u64>();
    let before = bytes();
    db.delete_range(&keyspace, key(1000)..key(39_000)).unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(count(&db, &keyspace), 2000);
    assert!(bytes() < before / 8, "{} of {before}", bytes());
    let report = db.verify(&mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
    drop(db);
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    assert_eq!(count(&db, &db.keyspace("keys").unwrap()), 2000);
}

#[test]
fn many_ranges_in_one_transaction_and_ranges_beside_runs_are_deleted() {
    let (dir, db, keyspace) = open_with(Retention::Latest);
    load(&db, &keyspace, 0..6000, "one");
    let mut tx = db.begin();
    for first in (0..6000).step_by(200) {
        tx.delete_range(&keyspace, key(first)..key(first + 150)).unwrap();
    }
    // It outgrows memory, and is written as runs.
    for number in 10_000..60_000 {
        tx.put(&keyspace, key(number), [7; 100]).unwrap();
    }
    tx.put(&keyspace, key(20), "stays").unwrap();
    assert_eq!(tx.range(&keyspace, ..key(6000)).unwrap().count(), 30 * 50 + 1);
    tx.commit().unwrap();
    assert_eq!(count(&db, &keyspace), 30 * 50 + 1 + 50_000);
    db.sync().unwrap();
    drop(db);
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let keyspace = db.keyspace("keys").unwrap();
    assert_eq!(count(&db, &keyspace), 30 * 50 + 1 + 50_000);
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(count(&db, &keyspace), 30 * 50 + 1 + 50_000);
}

#[test]
fn the_ranges_of_one_transaction_fit_into_the_memory_for_range_deletions() {
    let (_dir, db, keyspace) = open_with(Retention::Latest);
    for part in 0..6 {
        load(&db, &keyspace, part * 10_100..(part + 1) * 10_100, "one");
    }
    let mut tx = db.begin();
    for first in (0..60_600).step_by(101) {
        tx.delete_range(&keyspace, key(first)..key(first + 100)).unwrap();
    }
    tx.commit().unwrap();
    let ranges = db.stats().index.deleted_ranges;
    assert!((100..600).contains(&ranges), "{ranges} of 600 ranges");
    assert_eq!(count(&db, &keyspace), 600);
}

#[test]
fn a_watch_reports_a_range_deletion_as_one_change() {
    let (_dir, db, keyspace) = open_with(Retention::Latest);
    let newest = load(&db, &keyspace, 0..1000, "one");
    let mut tx = db.begin();
    tx.delete_range(&keyspace, key(100)..key(900)).unwrap();
    tx.put(&keyspace, key(500), "stays").unwrap();
    let glsn = tx.commit().unwrap();
    assert_eq!(db.delete_range(&keyspace, key(950)..).unwrap(), glsn.next());
    let changes = |prefix: &str| {
        let mut changes = Vec::new();
        let mut commits = db.watch(&keyspace, prefix, newest.next()).unwrap();
        while let Some(commit) = commits.next_timeout(std::time::Duration::ZERO).unwrap() {
            for change in commit.changes().unwrap() {
                let change = change.unwrap();
                let range = change
                    .deleted_range()
                    .map(|(first, end)| (first.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec)));
                changes.push((change.glsn(), change.key().to_vec(), range));
            }
        }
        changes
    };
    let range = |first, end| Some((Bound::Included(key(first)), end));
    let all = changes("");
    assert_eq!(all[0], (glsn, key(100), range(100, Bound::Excluded(key(900)))));
    assert_eq!(all[1], (glsn, key(500), None));
    // Few keys are deleted one by one.
    assert_eq!((all.len(), all[2].0, &all[2].1), (2 + 50, glsn.next(), &key(950)));
    let part = changes("0002");
    let end = Bound::Excluded(b"0003".to_vec());
    assert_eq!(part, [(glsn, b"0002".to_vec(), Some((Bound::Included(b"0002".to_vec()), end)))]);
}

#[test]
fn updates_and_range_deletions_of_one_transaction_apply_in_their_order() {
    let (_dir, db, keyspace) = open_with(Retention::Forever);
    load(&db, &keyspace, 0..500, "numbers!");
    let number = |key: &[u8]| db.get(&keyspace, key).unwrap().map(|value| value.to_vec());
    let mut tx = db.begin();
    tx.add(&keyspace, key(7), 5, Overflow::Checked).unwrap();
    tx.add(&keyspace, "beside", 1, Overflow::Checked).unwrap();
    tx.add(&keyspace, "000100+", 1, Overflow::Checked).unwrap();
    tx.delete_range(&keyspace, ..key(400)).unwrap();
    tx.add(&keyspace, key(8), 3, Overflow::Checked).unwrap();
    tx.append(&keyspace, key(9), "new").unwrap();
    assert_eq!(tx.get(&keyspace, key(7)).unwrap(), None);
    assert_eq!(&tx.get(&keyspace, key(8)).unwrap().unwrap()[..], 3i64.to_le_bytes());
    assert_eq!(tx.len(&keyspace).unwrap(), 103);
    tx.commit().unwrap();
    assert_eq!(number(&key(7)), None);
    assert_eq!(number(&key(8)), Some(3i64.to_le_bytes().to_vec()));
    assert_eq!(number(&key(9)), Some(b"new".to_vec()));
    assert_eq!(number(b"beside"), Some(1i64.to_le_bytes().to_vec()));
    assert_eq!(count(&db, &keyspace), 103);
    // A key that the transaction itself had put is deleted by a version of its own.
    assert_eq!(db.history(&keyspace, "000100+").unwrap().count(), 1);
}

#[test]
fn an_update_takes_a_later_range_deletion_for_its_base() {
    let (_dir, db, keyspace) = open_with(Retention::Latest);
    load(&db, &keyspace, 0..500, "numbers!");
    let mut tx = db.begin();
    tx.append(&keyspace, key(9), "new").unwrap();
    db.delete_range(&keyspace, ..).unwrap();
    tx.commit().unwrap();
    assert_eq!(&db.get(&keyspace, key(9)).unwrap().unwrap()[..], b"new");
    assert_eq!(count(&db, &keyspace), 1);
}

#[test]
fn one_commit_may_delete_neighbouring_keyspaces() {
    let (_dir, db, keyspace) = open_with(Retention::Latest);
    let next = db.keyspace("next").unwrap();
    let newest = load(&db, &keyspace, 0..500, "one").max(load(&db, &next, 0..500, "one"));
    let mut tx = db.begin();
    tx.delete_range(&keyspace, ..).unwrap();
    tx.delete_range(&next, ..).unwrap();
    let glsn = tx.commit().unwrap();
    assert_eq!((glsn, count(&db, &keyspace), count(&db, &next)), (newest.next(), 0, 0));
    let commit = db.log().commit(glsn).unwrap().unwrap();
    let changes: Vec<_> = commit.changes().unwrap().map(Result::unwrap).collect();
    let names: Vec<_> = changes.iter().map(|change| change.keyspace()).collect();
    assert_eq!(names, [Some("keys"), Some("next")]);
}

#[test]
fn a_dump_with_history_restores_range_deletions() {
    let (dir, db, keyspace) = open_with(Retention::Forever);
    let full = load(&db, &keyspace, 0..1000, "one");
    let mut tx = db.begin();
    tx.delete_range(&keyspace, key(100)..key(900)).unwrap();
    tx.put(&keyspace, key(500), "stays").unwrap();
    let deleted = tx.commit().unwrap();
    db.delete_range(&keyspace, ..).unwrap();
    for is_merged in [false, true] {
        if is_merged {
            db.flush().unwrap();
            db.compact().unwrap();
        }
        let mut dump = Vec::new();
        db.dump(DumpOptions::new().history(true), &mut dump).unwrap();
        let path = dir.path().join(format!("restored {is_merged}"));
        Db::restore(&path, options(), &dump[..]).unwrap();
        let restored = Db::open(&path, options()).unwrap();
        let keyspace = restored.keyspace("keys").unwrap();
        let then = |glsn| restored.snapshot_at(Moment::Glsn(glsn)).unwrap().len(&keyspace).unwrap();
        assert_eq!((then(full), then(deleted), count(&restored, &keyspace)), (1000, 201, 0));
        let commit = restored.log().commit(deleted).unwrap().unwrap();
        assert_eq!(commit.changes().unwrap().count(), 2);
        assert!(restored.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}

#[test]
fn a_backup_and_a_bulk_load_agree_with_range_deletions() {
    let (dir, db, keyspace) = open_with(Retention::Forever);
    load(&db, &keyspace, 0..1000, "one");
    db.flush().unwrap();
    db.delete_range(&keyspace, key(100)..key(900)).unwrap();
    db.bulk_load(&keyspace, (150..160).map(|number| (key(number), "two"))).unwrap();
    assert_eq!(count(&db, &keyspace), 210);
    let path = dir.path().join("backup");
    db.backup(&path).unwrap();
    let backup = Db::open(&path, options()).unwrap();
    let copied = backup.keyspace("keys").unwrap();
    for (db, keyspace) in [(&db, &keyspace), (&backup, &copied)] {
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(count(db, keyspace), 210);
        assert_eq!(&db.get(keyspace, key(155)).unwrap().unwrap()[..], b"two");
        assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}

#[test]
fn keys_of_a_deleted_range_do_not_come_back_unreported_without_manifests() {
    let (dir, db, keyspace) = open_with(Retention::Forever);
    load(&db, &keyspace, 0..1000, "one");
    db.flush().unwrap();
    db.delete_range(&keyspace, key(100)..key(900)).unwrap();
    db.put(&keyspace, "later", "two").unwrap();
    db.flush().unwrap();
    db.log().trim(db.newest()).unwrap();
    db.close().unwrap();
    let path = dir.path().join("store");
    for file in std::fs::read_dir(path.join("index")).unwrap().map(Result::unwrap) {
        if file.file_name().to_string_lossy().starts_with("MANIFEST.") {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    let dest = dir.path().join("recovered");
    let report = Db::recover(&path, &dest, options(), &mut |_, _| {}).unwrap();
    let recovered = Db::open(&dest, options()).unwrap();
    let is_back = count(&recovered, &recovered.keyspace("keys").unwrap()) > 201;
    let is_reported = |line: &String| line.contains("ranges that were deleted");
    assert!(!is_back || report.unresolved.iter().any(is_reported), "{report:?}");
}

#[test]
fn a_range_and_a_put_of_one_commit_are_never_shown_as_a_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memory_bytes(16 << 20).background(false);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    let add = |number: i64, deletes: bool| {
        let mut tx = db.begin();
        if deletes {
            tx.delete_range(&keys, ..).unwrap();
        }
        tx.put(&keys, "k", number.to_le_bytes()).unwrap();
        tx.commit().unwrap();
    };
    for row in 0..200u32 {
        db.put(&keys, row.to_be_bytes(), "x").unwrap();
    }
    add(1, false);
    add(2, true);
    add(3, false);
    let lengths = || {
        let versions = db.history(&keys, "k").unwrap();
        versions.map(|version| version.unwrap().bytes).collect::<Vec<_>>()
    };
    assert_eq!(lengths(), [Some(8); 3]);
    db.flush().unwrap();
    assert!(lengths().iter().all(Option::is_some), "{:?}", lengths());
    db.log().trim(db.newest()).unwrap();
    db.compact().unwrap();
    assert!(lengths().iter().all(Option::is_some), "{:?}", lengths());
    assert_eq!(lengths()[0], Some(8));
}

#[test]
fn a_range_after_the_longest_key_is_in_the_log_as_it_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for longest in [[b'l'; 4096], [u8::MAX; 4096]] {
        let db = Db::open(&path, options()).unwrap();
        let keys = db.keyspace("keys").unwrap();
        for row in 0..300 {
            db.put(&keys, [b"m", &key(row)[..]].concat(), "x").unwrap();
        }
        db.put(&keys, longest, "stays").unwrap();
        let beyond = (Bound::Excluded(&longest[..]), Bound::Unbounded);
        db.delete_range(&keys, beyond).unwrap();
        db.close().unwrap();
        let db = Db::open(&path, options()).unwrap();
        assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
        let keys = db.keyspace("keys").unwrap();
        let left: Vec<_> =
            db.snapshot().range(&keys, ..).unwrap().map(|it| it.unwrap().0).collect();
        let is_above = |row: &Vec<u8>| row[..] > longest[..];
        assert!(!left.iter().any(is_above) && left.contains(&longest.to_vec()));
        db.delete_range(&keys, ..).unwrap();
        db.close().unwrap();
    }
}
