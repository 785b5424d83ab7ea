//! Histories of keys, differences between states, logs and watches on branches, compared with a
//! model.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use plimsoll::*;
use plimsoll_disk::random::Random;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A version of a key; `None` is a deletion.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    glsn: Glsn,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
}

/// A branch, and all that it contains, in the order of the commits.
struct Modelled {
    branch: Branch,
    depth: usize,
    written: Vec<Written>,
    /// The commits that it contains; the last ones are its own.
    commits: Vec<Glsn>,
    own: usize,
    /// States that are open, with their rows and versions.
    states: Vec<State>,
}

struct State {
    snapshot: Snapshot,
    written: Vec<Written>,
}

impl Modelled {
    fn new(branch: Branch, depth: usize, written: Vec<Written>, commits: Vec<Glsn>) -> Self {
        let own = commits.len();
        Self { branch, depth, written, commits, own, states: Vec::new() }
    }

    /// The state at a moment.
    fn state_at(&self, at: Moment) -> State {
        let snapshot = self.branch.snapshot_at(at).unwrap();
        let mut written = self.written.clone();
        written.retain(|it| it.glsn <= snapshot.at());
        State { snapshot, written }
    }

    /// The versions of a key, newest first.
    fn versions(&self, key: &[u8]) -> Vec<(Glsn, Option<Vec<u8>>)> {
        let of_key = self.written.iter().rev().filter(|it| it.key == key);
        of_key.map(|it| (it.glsn, it.value.clone())).collect()
    }
}

/// The rows of a state, each with the commit that wrote it.
fn rows(written: &[Written]) -> Rows {
    let mut rows = Rows::new();
    for it in written {
        match &it.value {
            Some(value) => drop(rows.insert(it.key.clone(), value.clone())),
            None => drop(rows.remove(&it.key)),
        }
    }
    rows
}

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false)
}

fn settle(db: &Db) {
    db.flush().unwrap();
    db.compact().unwrap();
}

fn random_key(random: &mut Random) -> Vec<u8> {
    let len = random.below(3);
    (0..len).map(|_| [0, 1, b'a', 255][random.below(4) as usize]).collect()
}

fn random_value(random: &mut Random) -> Vec<u8> {
    let bytes = [0, 1, 1, 10, 2000][random.below(5) as usize];
    vec![random.below(2) as u8; bytes]
}

/// Without deletions of what was deleted already, or never existed: these may be dropped.
fn shown(versions: Vec<(Glsn, Option<Vec<u8>>)>) -> Vec<(Glsn, Option<Vec<u8>>)> {
    let mut kept: Vec<(Glsn, Option<Vec<u8>>)> = Vec::new();
    for version in versions.into_iter().rev() {
        let is_repeated = kept.last().is_none_or(|last| last.1.is_none());
        if version.1.is_some() || !is_repeated {
            kept.push(version);
        }
    }
    kept.reverse();
    kept
}

fn history(branch: &Branch, notes: &Keyspace, key: &[u8]) -> Vec<(Glsn, Option<Vec<u8>>)> {
    let versions = branch.history(notes, key).unwrap().map(|version| {
        let version = version.unwrap();
        let value = version.value().unwrap().map(|value| value.to_vec());
        assert_eq!(version.bytes, value.as_ref().map(|value| value.len() as u64));
        (version.glsn, value)
    });
    versions.collect()
}

/// Commits random changes on a branch.
fn change(modelled: &mut Modelled, notes: &Keyspace, random: &mut Random) {
    let mut rows = rows(&modelled.written);
    let mut writes: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
    let mut tx = modelled.branch.begin();
    for _ in 0..1 + random.below(4) {
        let key = random_key(random);
        match random.below(8) {
            0..5 => {
                let value = random_value(random);
                tx.put(notes, &key, &value).unwrap();
                rows.insert(key.clone(), value.clone());
                writes.insert(key, Some(value));
            }
            5 | 6 => {
                tx.delete(notes, &key).unwrap();
                rows.remove(&key);
                writes.insert(key, None);
            }
            _ => {
                let end = random_key(random);
                let (from, to) = if key < end { (key, end) } else { (end, key) };
                if from < to {
                    tx.delete_range(notes, &from[..]..&to[..]).unwrap();
                    let deleted: Vec<_> =
                        rows.range(from..to).map(|(key, _)| key.clone()).collect();
                    for key in deleted {
                        rows.remove(&key);
                        writes.insert(key, None);
                    }
                }
            }
        }
    }
    let glsn = tx.commit().unwrap();
    // An empty transaction is no commit.
    if !writes.is_empty() {
        modelled.commits.push(glsn);
    }
    let written = writes.into_iter().map(|(key, value)| Written { glsn, key, value });
    modelled.written.extend(written);
}

fn check_histories(modelled: &Modelled, notes: &Keyspace, random: &mut Random, is_complete: bool) {
    for _ in 0..4 {
        let key = random_key(random);
        let found = shown(history(&modelled.branch, notes, &key));
        let wanted = shown(modelled.versions(&key));
        if is_complete {
            assert_eq!(found, wanted, "{:?} {key:?}", modelled.branch);
        } else {
            // The retained versions, and always the newest one.
            let present = wanted.first().filter(|version| version.1.is_some());
            assert_eq!(found.first().filter(|version| version.1.is_some()), present);
            assert!(found.iter().all(|version| version.1.is_none() || wanted.contains(version)));
            assert!(found.is_sorted_by(|a, b| a.0 > b.0), "{found:?}");
        }
    }
}

fn check_diff(
    db: &Db,
    notes: &Keyspace,
    [a, b]: [&State; 2],
    random: &mut Random,
    is_complete: bool,
) {
    let prefix = if random.below(2) == 0 { Vec::new() } else { random_key(random) };
    let (before, after) = (rows(&a.written), rows(&b.written));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let differing = keys
        .into_iter()
        .filter(|key| key.starts_with(&prefix) && before.get(*key) != after.get(*key));
    let contains = |state: &State, it: &Written| {
        state.written.iter().any(|other| other.glsn == it.glsn && other.key == it.key)
    };
    let by_of = |key: &[u8]| -> Vec<Glsn> {
        let of_one = |it: &&Written| it.key == key && contains(a, it) != contains(b, it);
        a.written.iter().chain(&b.written).filter(of_one).map(|it| it.glsn).collect()
    };
    let short = |value: &[u8]| (value.len(), value.first().copied());
    let value = |rows: &Rows, key: &[u8]| rows.get(key).map(|value| short(value));
    let wanted: Vec<_> =
        differing.map(|key| (key.clone(), value(&before, key), value(&after, key))).collect();
    let found: Vec<_> = db
        .diff_between(notes, &a.snapshot, &b.snapshot, &prefix)
        .unwrap()
        .map(|difference| {
            let Difference { key, by, before, after } = difference.unwrap();
            let all = by_of(&key);
            // The deletion of a key that did not exist may be dropped.
            match is_complete {
                true => assert_eq!(Some(&by), all.iter().max(), "{key:?}"),
                false => assert!(all.contains(&by), "{key:?}: {by} of {all:?}"),
            }
            let value = |version: VersionInfo| short(&version.value().unwrap().unwrap());
            (key, before.map(value), after.map(value))
        })
        .collect();
    assert_eq!(found, wanted, "{:?} and {:?}", a.snapshot, b.snapshot);
}

/// Compares random states of random branches.
fn check_diffs(
    db: &Db,
    notes: &Keyspace,
    all: &[Modelled],
    random: &mut Random,
    is_complete: bool,
) {
    for _ in 0..6 {
        let mut state = || {
            let modelled = &all[random.below(all.len() as u64) as usize];
            match random.below(3) {
                0 if is_complete => {
                    modelled.state_at(Moment::Glsn(Glsn(random.below(db.newest().0 + 1))))
                }
                1 if !modelled.states.is_empty() => {
                    let state = &modelled.states[modelled.states.len() - 1];
                    State { snapshot: state.snapshot.clone(), written: state.written.clone() }
                }
                _ => modelled.state_at(Moment::Newest),
            }
        };
        let (a, b) = (state(), state());
        check_diff(db, notes, [&a, &b], random, is_complete);
        check_diff(db, notes, [&b, &a], random, is_complete);
    }
}

/// The commits of a branch in the log, and its own ones by watching it.
fn check_log(db: &Db, notes: &Keyspace, modelled: &Modelled) {
    let first = db.log().bounds().first;
    let logged = modelled.commits.iter().copied().filter(|glsn| *glsn >= first).rev();
    let found: Vec<_> = modelled
        .branch
        .log()
        .unwrap()
        .map(|commit| {
            let commit = commit.unwrap();
            assert!(modelled.branch.contains(&commit).unwrap());
            commit.glsn()
        })
        .collect();
    assert_eq!(found, logged.collect::<Vec<_>>(), "{:?}", modelled.branch);
    for prefix in [&b""[..], b"a"] {
        let of_branch = |it: &&Written| {
            it.glsn >= first
                && it.key.starts_with(prefix)
                && modelled.commits[modelled.own..].contains(&it.glsn)
        };
        let wanted: Vec<_> = modelled.written.iter().filter(of_branch).cloned().collect();
        let mut found: Vec<Written> = Vec::new();
        let mut from = first;
        // Continued behind each commit.
        loop {
            let mut watch = modelled.branch.watch(notes, prefix, from).unwrap();
            let Some(commit) = watch.next_timeout(Duration::ZERO).unwrap() else { break };
            from = watch.position();
            let mut changes = Vec::new();
            for change in commit.changes().unwrap().map(Result::unwrap) {
                assert_eq!(change.keyspace(), Some("notes"));
                let name = modelled.branch.name();
                assert_eq!(change.branch(), Some(name).filter(|name| *name != "main"));
                if change.deleted_range().is_none() {
                    let value = change.value().unwrap().map(|value| value.to_vec());
                    changes.push(Written { glsn: change.glsn(), key: change.key().into(), value });
                }
            }
            found.extend(changes);
        }
        if modelled.branch.name() == "main" {
            // Ranges are one change there.
            let is_found = |it: &Written| found.contains(it);
            assert!(wanted.iter().all(|it| it.value.is_none() || is_found(it)));
            assert!(found.iter().all(|it| wanted.contains(it)));
        } else {
            assert_eq!(found, wanted, "{:?}", modelled.branch);
        }
    }
}

fn run_model(seed: u64, retention: Retention) {
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut db = Db::open(&path, options()).unwrap();
    db.set_retention(&db.keyspace("default").unwrap(), Retention::Latest).unwrap();
    let mut notes = db.create_keyspace("notes", retention).unwrap();
    let is_complete = retention == Retention::Forever;
    let mut all = vec![Modelled::new(db.main(), 0, Vec::new(), Vec::new())];
    for step in 0..150 {
        let number = random.below(all.len() as u64) as usize;
        match random.below(20) {
            0..9 => change(&mut all[number], &notes, &mut random),
            9..12 if all[number].depth < 7 && all.len() < 14 => {
                let parent = &all[number];
                let (name, mut written) = (format!("b{step}"), parent.written.clone());
                let mut commits = parent.commits.clone();
                let branch = if is_complete && random.below(3) == 0 {
                    let past = Glsn(random.below(db.newest().0 + 1));
                    written.retain(|it| it.glsn <= past);
                    commits.retain(|glsn| *glsn <= past);
                    db.create_branch_at(&name, &parent.branch, Moment::Glsn(past)).unwrap()
                } else {
                    db.create_branch(&name, &parent.branch).unwrap()
                };
                let depth = parent.depth + 1;
                all.push(Modelled::new(branch, depth, written, commits));
            }
            12 => db.flush().unwrap(),
            13 => settle(&db),
            14 if number > 0 && random.below(3) == 0 => {
                db.delete_branch(all[number].branch.name()).unwrap();
                let gone = all.remove(number);
                let is_gone = |error: Option<Error>| {
                    let error = error.unwrap();
                    assert!(matches!(error, Error::InvalidInput(InvalidInput::NoBranch { .. })));
                };
                is_gone(gone.branch.history(&notes, "a").err());
                is_gone(gone.branch.diff(&notes, Glsn(0), db.newest(), "").err());
                is_gone(gone.branch.log().err());
                is_gone(gone.branch.watch(&notes, "", db.newest()).err());
            }
            15 => {
                // Handles and snapshots keep the store open.
                let kept: Vec<_> = all
                    .drain(..)
                    .map(|it| {
                        let name = it.branch.name().to_owned();
                        (name, it.depth, it.written, it.commits, it.own)
                    })
                    .collect();
                db.close().unwrap();
                db = Db::open(&path, options()).unwrap();
                notes = db.keyspace("notes").unwrap();
                for (name, depth, written, commits, own) in kept {
                    let branch = db.branch(&name).unwrap();
                    all.push(Modelled { own, ..Modelled::new(branch, depth, written, commits) });
                }
            }
            16 if random.below(3) == 0 => drop(db.log().trim(db.newest().next()).unwrap()),
            16 | 17 => {
                let state = all[number].state_at(Moment::Newest);
                all[number].states.push(state);
            }
            _ => {
                for modelled in &all {
                    check_histories(modelled, &notes, &mut random, is_complete);
                }
                check_diffs(&db, &notes, &all, &mut random, is_complete);
                check_log(&db, &notes, &all[number]);
            }
        }
    }
    for modelled in &all {
        check_histories(modelled, &notes, &mut random, is_complete);
        check_log(&db, &notes, modelled);
    }
    check_diffs(&db, &notes, &all, &mut random, is_complete);
}

#[test]
fn histories_and_differences_of_branches_are_those_of_the_model() {
    for seed in 0..10 {
        let retention = if seed % 3 == 2 { Retention::Latest } else { Retention::Forever };
        println!("seed {seed}");
        run_model(seed, retention);
    }
}

#[test]
fn history_of_a_key_that_many_siblings_wrote_is_that_of_the_lineage() {
    let db = Db::in_memory(options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    let mut wanted = vec![db.put(&notes, "hot", "main").unwrap()];
    let mut branch = db.create_branch("b0", &db.main()).unwrap();
    for n in 1..30 {
        let sibling = db.create_branch(&format!("s{n}"), &branch).unwrap();
        sibling.put(&notes, "hot", "sibling").unwrap();
        if n % 3 == 0 {
            wanted.push(branch.put(&notes, "hot", format!("{n}")).unwrap());
            wanted.push(branch.delete(&notes, "hot").unwrap());
        }
        let child = db.create_branch(&format!("b{n}"), &branch).unwrap();
        branch.put(&notes, "hot", "after").unwrap();
        branch = child;
    }
    wanted.reverse();
    for _ in 0..2 {
        let found: Vec<_> =
            history(&branch, &notes, b"hot").into_iter().map(|version| version.0).collect();
        assert_eq!(found, wanted);
        settle(&db);
    }
    // A key that no branch can have, because it is too long.
    let long = [0; 4090];
    let glsn = db.put(&notes, long, "main").unwrap();
    let late = db.create_branch("late", &db.main()).unwrap();
    assert_eq!(history(&branch, &notes, &long), []);
    assert_eq!(history(&late, &notes, &long), [(glsn, Some(b"main".to_vec()))]);
}

#[test]
fn drop_of_a_keyspace_is_a_deletion_in_the_history_of_a_branch() {
    let db = Db::in_memory(options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    let first = db.put(&notes, "a", "main").unwrap();
    let [draft, other] = ["draft", "other"].map(|name| db.create_branch(name, &db.main()).unwrap());
    let second = draft.put(&notes, "a", "draft").unwrap();
    let gone = draft.delete(&notes, "b").unwrap();
    db.drop_keyspace(&notes).unwrap();
    let dropped = db.newest();
    let anew = db.keyspace("notes").unwrap();
    let third = draft.put(&anew, "a", "anew").unwrap();
    let late = db.create_branch("late", &db.main()).unwrap();
    let glsns = |branch: &Branch, space: &Keyspace, key: &str| -> Vec<(Glsn, bool)> {
        let versions = history(branch, space, key.as_bytes()).into_iter();
        versions.map(|(glsn, value)| (glsn, value.is_some())).collect()
    };
    let (old, all) = ([(second, true), (first, true)], [(third, true), (dropped, false)]);
    assert_eq!(glsns(&draft, &anew, "a"), [&all[..], &old].concat());
    assert_eq!(glsns(&draft, &anew, "b"), [(gone, false)]);
    assert_eq!(glsns(&other, &anew, "a"), [(dropped, false), (first, true)]);
    assert_eq!(glsns(&late, &anew, "a"), [(dropped, false), (first, true)]);
    assert_eq!(glsns(&db.main(), &anew, "a"), [(dropped, false), (first, true)]);
}

#[test]
fn differences_across_a_drop_of_the_keyspace_are_those_of_the_names() {
    let db = Db::in_memory(options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    for key in ["a", "b", "c"] {
        db.put(&notes, key, "1").unwrap();
    }
    let draft = db.create_branch("draft", &db.main()).unwrap();
    draft.put(&notes, "b", "2").unwrap();
    draft.delete(&notes, "c").unwrap();
    let before = draft.snapshot();
    db.drop_keyspace(&notes).unwrap();
    let dropped = db.newest();
    let anew = db.keyspace("notes").unwrap();
    draft.put(&anew, "b", "2").unwrap();
    let by = draft.put(&anew, "d", "3").unwrap();
    let after = draft.snapshot();
    let keys = |a: &Snapshot, b: &Snapshot, prefix: &str| -> Vec<(Vec<u8>, Glsn, bool, bool)> {
        let diff = db.diff_between(&anew, a, b, prefix).unwrap().map(Result::unwrap);
        diff.map(|it| (it.key, it.by, it.before.is_some(), it.after.is_some())).collect()
    };
    let (gone, new) = ((b"a".to_vec(), dropped, true, false), (b"d".to_vec(), by, false, true));
    assert_eq!(keys(&before, &after, ""), [gone.clone(), new.clone()]);
    assert_eq!(keys(&before, &after, "d"), [new]);
    let backwards = keys(&after, &before, "");
    assert_eq!(backwards[0], (b"a".to_vec(), dropped, false, true));
    assert_eq!(backwards[1], (b"d".to_vec(), by, true, false));
    let none = draft.snapshot_at(Moment::Glsn(dropped)).unwrap();
    assert_eq!(keys(&before, &none, "a"), [gone]);
    assert_eq!(keys(&before, &before, "").len(), 0);
    // Deleted once more in the new keyspace.
    draft.put(&anew, "a", "2").unwrap();
    let by = draft.delete(&anew, "a").unwrap();
    let late = draft.snapshot();
    assert_eq!(keys(&before, &late, "a"), [(b"a".to_vec(), by, true, false)]);
    assert_eq!(keys(&late, &before, "a"), [(b"a".to_vec(), by, false, true)]);
}

#[test]
fn snapshot_of_another_store_is_not_compared() {
    let (one, two) = (Db::in_memory(options()).unwrap(), Db::in_memory(options()).unwrap());
    let notes = one.keyspace("notes").unwrap();
    let error = one.diff_between(&notes, &one.snapshot(), &two.snapshot(), "").unwrap_err();
    assert!(matches!(error, Error::InvalidInput(InvalidInput::ForeignBranch { .. })));
}

#[test]
fn watch_of_a_branch_ends_with_its_deletion() {
    let db = Db::in_memory(options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    db.put(&notes, "a", "main").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let child = db.create_branch("child", &draft).unwrap();
    let mut watch = draft.watch(&notes, "", Glsn(1)).unwrap();
    let mut of_child = child.watch(&notes, "", Glsn(1)).unwrap();
    let mut of_main = db.main().watch(&notes, "", Glsn(1)).unwrap();
    assert_eq!(of_main.next().unwrap().unwrap().changes().unwrap().count(), 1);
    let own = draft.put(&notes, "a", "draft").unwrap();
    db.put(&notes, "b", "main").unwrap();
    let of_the_child = child.put(&notes, "a", "child").unwrap();
    // With the values of all chains of the group, whose deletion is no change.
    db.delete_branch("child").unwrap();
    db.delete_branch("draft").unwrap();
    assert_eq!(watch.next().unwrap().unwrap().glsn(), own);
    assert_eq!(of_child.next().unwrap().unwrap().glsn(), of_the_child);
    for watch in [&mut watch, &mut of_child] {
        let error = watch.next_timeout(Duration::from_secs(60)).unwrap_err();
        assert!(matches!(error, Error::InvalidInput(InvalidInput::NoBranch { .. })), "{error}");
    }
    assert_eq!(of_main.next().unwrap().unwrap().changes().unwrap().count(), 1);
    assert!(of_main.next().is_none());
}

#[test]
fn drop_of_a_keyspace_is_a_commit_on_main_only() {
    let db = Db::in_memory(options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    db.put(&notes, "a", "main").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let own = draft.put(&notes, "b", "draft").unwrap();
    let watch = |branch: &Branch| branch.watch(&notes, "", own).unwrap();
    let (mut of_draft, mut of_main) = (watch(&draft), watch(&db.main()));
    db.drop_keyspace(&notes).unwrap();
    let dropped = db.newest();
    assert_eq!(of_draft.next().unwrap().unwrap().glsn(), own);
    assert!(of_draft.next().is_none());
    assert_eq!(of_main.next().unwrap().unwrap().glsn(), dropped);
    assert_eq!(db.main().log().unwrap().next().unwrap().unwrap().glsn(), dropped);
    assert_eq!(draft.log().unwrap().next().unwrap().unwrap().glsn(), own);
}

/// The watch reads the record of branches, which the creation of another branch rewrites.
#[test]
fn watch_of_a_branch_outlives_compaction_of_the_records_of_branches() {
    let db = Db::in_memory(options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let mut watch = draft.watch(&notes, "", Glsn(1)).unwrap();
    for number in 0..50_u8 {
        let own = draft.put(&notes, [number], "draft").unwrap();
        db.create_branch(&format!("other {number}"), &db.main()).unwrap();
        settle(&db);
        assert_eq!(watch.next().unwrap().unwrap().glsn(), own);
        assert!(watch.next().is_none());
    }
    let last = draft.put(&notes, "last", "draft").unwrap();
    db.delete_branch("draft").unwrap();
    db.put(&notes, "a", "main").unwrap();
    assert_eq!(watch.next().unwrap().unwrap().glsn(), last);
    let error = watch.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::InvalidInput(InvalidInput::NoBranch { .. })), "{error}");
}

#[test]
fn keys_only_omits_the_values_of_rows_read_ahead() {
    let db = Db::in_memory(options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    for number in 0..40_u8 {
        db.put(&notes, [number], [number; 9]).unwrap();
    }
    let draft = db.create_branch("draft", &db.main()).unwrap();
    for snapshot in [db.snapshot(), draft.snapshot()] {
        for returned in [1, 2, 5] {
            let mut range = snapshot.range(&notes, ..).unwrap();
            for number in 0..returned {
                assert_eq!(range.advance().unwrap(), Some((&[number][..], &[number; 9][..])));
            }
            let rest: Vec<_> = range.keys_only().map(Result::unwrap).collect();
            let keys: Vec<_> = (returned..40).map(|number| (vec![number], Vec::new())).collect();
            let shown: Vec<_> =
                rest.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            assert_eq!(shown, keys);
        }
    }
}

#[test]
fn commit_of_any_size_names_its_branch() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let notes = db.keyspace("notes").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let other = db.create_branch("other", &db.main()).unwrap();
    let name = |glsn: Glsn| db.log().commit(glsn).unwrap().unwrap().branch().unwrap();
    assert_eq!(name(db.newest()), None, "the creation of a branch");
    let mut tx = draft.begin();
    for n in 0..60_000u32 {
        tx.put(&notes, n.to_be_bytes(), [7; 200]).unwrap();
    }
    let glsn = tx.commit().unwrap();
    assert_eq!(name(glsn).as_deref(), Some("draft"));
    let watched: Vec<_> = draft.watch(&notes, 59_999u32.to_be_bytes(), glsn).unwrap().collect();
    assert_eq!(watched.len(), 1);
    assert_eq!(watched[0].as_ref().unwrap().changes().unwrap().count(), 1);
    assert!(other.watch(&notes, "", glsn).unwrap().next().is_none());
    // A merge records itself before its changes.
    let MergeOutcome::Merged(merged) = db.merge(&draft).into(&other).run().unwrap() else {
        panic!("it has no conflicts")
    };
    assert_eq!(name(merged).as_deref(), Some("other"));
    assert_eq!(other.watch(&notes, "", glsn).unwrap().next().unwrap().unwrap().glsn(), merged);
    let logged: Vec<_> = other.log().unwrap().map(|commit| commit.unwrap().glsn()).collect();
    assert_eq!(logged, [merged]);
    db.rename_branch("other", "renamed").unwrap();
    assert_eq!(name(merged).as_deref(), Some("renamed"));
    db.delete_branch("renamed").unwrap();
    assert_eq!(name(db.newest()), None, "the deletion of a branch");
}
