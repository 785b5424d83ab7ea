//! The history of a run: the reads and the outcome of each transaction, checked against the order
//! of the log.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::{Db, Glsn, Keyspace};
use plimsoll_disk::random::Random;

use crate::failure::{Failure, Outcome, ensure};

/// The keys that transactions read and write: one byte each, below this number.
pub(super) const KEYS: u8 = 12;

/// A transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u64);

impl Id {
    /// The key that this transaction writes and no other transaction does.
    pub(super) fn mark(self) -> Vec<u8> {
        [&b"tx "[..], &self.0.to_be_bytes()].concat()
    }

    fn of_mark(key: &[u8]) -> Option<Self> {
        let bytes = key.strip_prefix(b"tx ")?;
        Some(Self(u64::from_be_bytes(bytes.try_into().ok()?)))
    }

    /// A value that names it.
    pub(super) fn value(self, random: &mut Random) -> Vec<u8> {
        let bytes = [8, 40, 700, 9000][random.below(4) as usize];
        self.filled(bytes)
    }

    /// A value that is stored in a blob file.
    pub(super) fn large_value(self) -> Vec<u8> {
        self.filled(270_000)
    }

    fn filled(self, bytes: usize) -> Vec<u8> {
        let mut value = self.0.to_le_bytes().to_vec();
        value.extend((8..bytes).map(|at| (at as u64 ^ self.0).wrapping_mul(0x9e37_79b9) as u8));
        value
    }

    /// The transaction that wrote a value; an error if the bytes are not those that it writes.
    fn of_value(value: &[u8]) -> Result<Self, String> {
        let named = value.get(..8).ok_or("a value names no transaction")?;
        let id = Self(u64::from_le_bytes(named.try_into().expect("eight bytes")));
        if id.filled(value.len()) == value {
            Ok(id)
        } else {
            Err(format!("a value of transaction {} has wrong bytes", id.0))
        }
    }
}

/// The values of some keys, each named by its writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values(BTreeMap<u8, Option<Id>>);

impl Values {
    /// Adds a value that was read. The first one counts, because later ones are equal.
    pub(super) fn see(&mut self, key: u8, value: Option<&[u8]>) -> plimsoll::Result<()> {
        let writer = value.map(|value| Id::of_value(value).expect("values are never damaged"));
        let known = *self.0.entry(key).or_insert(writer);
        assert_eq!(known, writer, "a transaction reads the same value again");
        Ok(())
    }
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was acknowledged with this GLSN.
    Made(u64),
    NotMade,
    InDoubt,
}

/// All transactions.
#[derive(Debug, Default)]
pub(super) struct History {
    next: u64,
    ended: BTreeMap<Id, (Values, Fate)>,
    /// The GLSN of each snapshot, and the values that it showed.
    pub(super) snapshots: Vec<(u64, Values)>,
    /// Additions to the counter that were acknowledged, and those in doubt.
    pub(super) counted: i64,
    pub(super) count_in_doubt: i64,
}

/// A commit of the log: its GLSN and its changes.
pub(super) type Logged = (u64, Vec<(Vec<u8>, Option<Vec<u8>>)>);

/// The commits of a replica's log that changed the keyspace.
pub(super) fn read_log(db: &Db, space: &Keyspace) -> plimsoll::Result<Vec<Logged>> {
    let mut all = Vec::new();
    let newest = db.newest();
    let mut commits = db.log().commits(Glsn(1))?;
    while let Some(commit) = commits.next_timeout(std::time::Duration::ZERO)? {
        let mut changes = Vec::new();
        for change in commit.changes()? {
            let change = change?;
            if change.keyspace() == Some(space.name()) {
                let value = change.value()?.map(|value| value.to_vec());
                changes.push((change.key().to_vec(), value));
            }
        }
        if !changes.is_empty() {
            all.push((commit.glsn().0, changes));
        }
        if commit.glsn() >= newest {
            break;
        }
    }
    Ok(all)
}

impl History {
    pub(super) fn begin(&mut self) -> Id {
        self.next += 1;
        Id(self.next)
    }

    pub(super) fn end(&mut self, id: Id, reads: Values, fate: Fate) {
        self.ended.insert(id, (reads, fate));
    }

    /// The newest GLSN that was acknowledged.
    pub(super) fn newest_made(&self) -> u64 {
        let glsn = |(_, fate): &(Values, Fate)| match fate {
            Fate::Made(glsn) => *glsn,
            _ => 0,
        };
        self.ended.values().map(glsn).max().unwrap_or_default()
    }

    /// Checks the history against the log.
    pub(super) fn check(&mut self, log: &[Logged]) -> Outcome {
        let (mut state, mut found) = (BTreeMap::<u8, Id>::new(), BTreeSet::new());
        let mut counter = 0;
        self.snapshots.sort_by_key(|(at, _)| *at);
        let mut snapshots = self.snapshots.iter().peekable();
        for (glsn, changes) in log {
            while let Some((at, seen)) = snapshots.next_if(|(at, _)| at < glsn) {
                matches(seen, &state, &format!("a snapshot at GLSN {at}"))?;
            }
            let marks = changes.iter().filter_map(|(key, _)| Id::of_mark(key));
            for id in marks {
                ensure(found.insert(id), || format!("transaction {} was made twice", id.0))?;
                self.check_made(id, *glsn, &state)?;
            }
            for (key, value) in changes {
                match (&key[..], value) {
                    ([key], None) if *key < KEYS => drop(state.remove(key)),
                    ([key], Some(value)) if *key < KEYS => {
                        let id = Id::of_value(value).map_err(Failure::new)?;
                        state.insert(*key, id);
                    }
                    (b"counter", Some(value)) => {
                        let bytes = value[..].try_into().map_err(|_| Failure::new("no number"))?;
                        counter = i64::from_le_bytes(bytes);
                    }
                    _ => {}
                }
            }
        }
        for (at, seen) in snapshots {
            matches(seen, &state, &format!("a snapshot at GLSN {at}"))?;
        }
        let lost = self
            .ended
            .iter()
            .find(|(id, (_, fate))| matches!(fate, Fate::Made(_)) && !found.contains(id));
        ensure(lost.is_none(), || format!("transaction {lost:?} was acknowledged and is lost"))?;
        let most = self.counted + self.count_in_doubt;
        ensure((self.counted..=most).contains(&counter), || {
            format!("the counter is {counter}, not between {} and {most}", self.counted)
        })
    }

    fn check_made(&self, id: Id, glsn: u64, state: &BTreeMap<u8, Id>) -> Outcome {
        // A transaction whose process ended before the transaction did has no outcome.
        let Some((reads, fate)) = self.ended.get(&id) else { return Ok(()) };
        let is_right = match fate {
            Fate::Made(at) => *at == glsn,
            Fate::NotMade => false,
            Fate::InDoubt => true,
        };
        ensure(is_right, || format!("transaction {} is at GLSN {glsn}, but was {fate:?}", id.0))?;
        matches(reads, state, &format!("transaction {} at GLSN {glsn}", id.0))
    }
}

/// Fails unless the values are those of the state.
fn matches(seen: &Values, state: &BTreeMap<u8, Id>, what: &str) -> Outcome {
    for (key, writer) in &seen.0 {
        let right = state.get(key).copied();
        ensure(*writer == right, || {
            format!("{what} read key {key} of {writer:?}, but it is that of {right:?}")
        })?;
    }
    Ok(())
}
