//! Random operations on branches, compared with a model.

use std::collections::BTreeMap;
use std::ops::Bound;

use plimsoll::*;
use plimsoll_disk::random::Random;

use crate::branches::{notes_of, options, settle};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A branch and what it must contain.
struct Modelled {
    branch: Branch,
    depth: usize,
    rows: Rows,
    /// Snapshots, and what they must contain.
    snapshots: Vec<(Snapshot, Rows)>,
}

fn random_key(random: &mut Random) -> Vec<u8> {
    let len = random.below(3);
    (0..len).map(|_| [0, 1, b'a', 255][random.below(4) as usize]).collect()
}

fn random_value(random: &mut Random) -> Vec<u8> {
    let bytes = [0, 1, 10, 500, 2000][random.below(5) as usize];
    vec![random.below(256) as u8; bytes]
}

fn check_reads(reads: &impl Read, notes: &Keyspace, rows: &Rows, random: &mut Random) {
    let all = |range: Range<'_>| -> Vec<(Vec<u8>, Vec<u8>)> {
        range.map(|row| row.map(|(key, value)| (key, value.to_vec())).unwrap()).collect()
    };
    let of_model = |bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>)| -> Vec<(Vec<u8>, Vec<u8>)> {
        rows.range(bounds).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let whole = (Bound::Unbounded, Bound::Unbounded);
    assert_eq!(all(reads.iter(notes).unwrap()), of_model(whole.clone()));
    let mut backward = all(reads.iter(notes).unwrap().reverse());
    backward.reverse();
    assert_eq!(backward, of_model(whole));
    let (a, b) = (random_key(random), random_key(random));
    let (a, b) = if a < b { (a, b) } else { (b, a) };
    let bound = |key: Vec<u8>, random: &mut Random| match random.below(3) {
        0 => Bound::Included(key),
        1 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    };
    let bounds = (bound(a.clone(), random), bound(b.clone(), random));
    if a < b {
        assert_eq!(all(reads.range(notes, bounds.clone()).unwrap()), of_model(bounds.clone()));
        let mut backward = all(reads.range(notes, bounds.clone()).unwrap().reverse());
        backward.reverse();
        assert_eq!(backward, of_model(bounds));
    }
    let prefixed: Vec<_> = all(reads.prefix(notes, &a).unwrap());
    let wanted =
        rows.iter().filter(|(key, _)| key.starts_with(&a)).map(|(k, v)| (k.clone(), v.clone()));
    assert_eq!(prefixed, wanted.collect::<Vec<_>>());
    for key in [a, b, random_key(random)] {
        let wanted = rows.get(&key);
        assert_eq!(reads.get(notes, &key).unwrap().as_deref(), wanted.map(|value| &value[..]));
        assert_eq!(reads.contains_key(notes, &key).unwrap(), wanted.is_some());
    }
}

fn change(tx: &mut Transaction, notes: &Keyspace, rows: &mut Rows, random: &mut Random) {
    let key = random_key(random);
    match random.below(10) {
        0..5 => {
            let value = random_value(random);
            tx.put(notes, &key, &value).unwrap();
            rows.insert(key, value);
        }
        5 | 6 => {
            tx.delete(notes, &key).unwrap();
            rows.remove(&key);
        }
        7 => {
            tx.append(notes, &key, "+").unwrap();
            rows.entry(key).or_default().push(b'+');
        }
        8 => {
            let removed = tx.take(notes, &key).unwrap();
            assert_eq!(removed.as_deref(), rows.remove(&key).as_deref());
        }
        _ => {
            let other = random_key(random);
            let (from, to) = if key < other { (key, other) } else { (other, key) };
            if from < to {
                tx.delete_range(notes, &from[..]..&to[..]).unwrap();
                rows.retain(|key, _| *key < from || *key >= to);
            }
        }
    }
}

fn run_model(seed: u64, retention: Retention) {
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut db = Db::open(&path, options()).unwrap();
    let mut notes = notes_of(&db, retention);
    let modelled = |branch, depth, rows| Modelled { branch, depth, rows, snapshots: Vec::new() };
    let mut all = vec![modelled(db.main(), 0, Rows::new())];
    for step in 0..150 {
        let number = random.below(all.len() as u64) as usize;
        match random.below(20) {
            0..8 => {
                let Modelled { branch, rows, .. } = &mut all[number];
                let mut tx = branch.begin();
                for _ in 0..1 + random.below(4) {
                    change(&mut tx, &notes, rows, &mut random);
                    if random.below(3) == 0 {
                        check_reads(&tx, &notes, rows, &mut random);
                    }
                }
                tx.commit().unwrap();
            }
            8..11 if all[number].depth < 6 && all.len() < 12 => {
                let name = format!("b{step}");
                let branch = db.create_branch(&name, &all[number].branch).unwrap();
                let made = modelled(branch, all[number].depth + 1, all[number].rows.clone());
                all.push(made);
            }
            11 => {
                let Modelled { branch, rows, snapshots, .. } = &mut all[number];
                snapshots.push((branch.snapshot(), rows.clone()));
            }
            12 => db.flush().unwrap(),
            13 => settle(&db),
            14 if number > 0 && random.below(3) == 0 => {
                db.delete_branch(all[number].branch.name()).unwrap();
                // Snapshots of it stay readable.
                let gone = all.remove(number);
                for (snapshot, rows) in &gone.snapshots {
                    check_reads(snapshot, &notes, rows, &mut random);
                }
            }
            15 => {
                all.iter_mut().for_each(|modelled| modelled.snapshots.clear());
                let names: Vec<String> =
                    all.iter().map(|modelled| modelled.branch.name().to_owned()).collect();
                // Handles keep the store open.
                let rows: Vec<_> = all.drain(..).map(|it| (it.depth, it.rows)).collect();
                db.close().unwrap();
                db = Db::open(&path, options()).unwrap();
                notes = db.keyspace("notes").unwrap();
                for (name, (depth, rows)) in names.iter().zip(rows) {
                    all.push(modelled(db.branch(name).unwrap(), depth, rows));
                }
            }
            _ => {
                for Modelled { branch, rows, snapshots, .. } in &all {
                    check_reads(&branch.snapshot(), &notes, rows, &mut random);
                    for (snapshot, rows) in snapshots {
                        check_reads(snapshot, &notes, rows, &mut random);
                    }
                }
            }
        }
    }
    for Modelled { branch, rows, .. } in &all {
        check_reads(&branch.snapshot(), &notes, rows, &mut random);
    }
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
}

#[test]
fn branches_contain_what_the_model_says() {
    for seed in 0..8 {
        let retention = if seed % 3 == 0 { Retention::Forever } else { Retention::Latest };
        println!("seed {seed}");
        run_model(seed, retention);
    }
}
