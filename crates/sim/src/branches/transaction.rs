//! Transactions on branches, which stay open while others commit.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::{Error, InvalidInput, Overflow, Transaction};
use plimsoll_disk::random::Random;

use crate::branches::checks::{Bounds, bounds, is_within};
use crate::branches::model::{Content, Effect, KEYS, MAIN, NUMBERS, Place, Writes};
use crate::branches::{Driver, OPEN_MAX, Step, done, place, time, value};
use crate::failure::{Failure, ensure, same};

/// An open transaction.
pub(super) struct OpenTx {
    tx: Transaction,
    branch: usize,
    /// The newest commit when it began, and the time by which it judges.
    at: u64,
    begun: u64,
    own: BTreeMap<Place, Option<Content>>,
    reads: BTreeSet<Place>,
    ranges: Vec<(usize, Bounds)>,
    /// The first expiry that it depends on.
    first: u64,
}

impl OpenTx {
    fn reads(&self, (space, key): Place) -> bool {
        let in_range = |(of, bounds): &(usize, Bounds)| *of == space && is_within(bounds, key);
        self.reads.contains(&(space, key)) || self.ranges.iter().any(in_range)
    }
}

impl Driver {
    fn new_transaction(&self, number: usize, random: &mut Random) -> Step<OpenTx> {
        let branch = self.some_branch(random);
        let tx = self.branch(number, branch)?.begin();
        let open = OpenTx {
            tx,
            branch,
            at: self.model.newest,
            begun: self.now(),
            own: BTreeMap::new(),
            reads: BTreeSet::new(),
            ranges: Vec::new(),
            first: u64::MAX,
        };
        same("begin", &open.tx.at().0, &open.at)?;
        Ok(open)
    }

    /// Begins a transaction that stays open.
    pub(super) fn begin(&mut self, number: usize, random: &mut Random) -> Step {
        if self.member(number).txs.len() >= OPEN_MAX {
            return Ok(());
        }
        let mut open = self.new_transaction(number, random)?;
        self.use_transaction(number, &mut open, random)?;
        self.member_mut(number).txs.push(open);
        Ok(())
    }

    /// Goes on with an open transaction.
    pub(super) fn go_on(&mut self, number: usize, random: &mut Random) -> Step {
        let Some(mut open) = self.take_open(number, random) else { return Ok(()) };
        // A transaction on a deleted branch can only fail.
        if self.model.lines[open.branch].name().is_some() {
            self.use_transaction(number, &mut open, random)?;
        }
        self.member_mut(number).txs.push(open);
        Ok(())
    }

    fn take_open(&mut self, number: usize, random: &mut Random) -> Option<OpenTx> {
        let txs = &mut self.member_mut(number).txs;
        let nth = (random.next_u64() as usize).checked_rem(txs.len())?;
        Some(txs.swap_remove(nth))
    }

    /// Commits an open transaction, or aborts it.
    pub(super) fn commit_open(&mut self, number: usize, random: &mut Random) -> Step {
        let Some(open) = self.take_open(number, random) else { return Ok(()) };
        if random.below(8) == 0 {
            return Ok(());
        }
        self.commit_transaction(number, open)
    }

    /// Runs a transaction.
    pub(super) fn transaction(&mut self, number: usize, random: &mut Random) -> Step {
        let mut open = self.new_transaction(number, random)?;
        for _ in 0..1 + random.below(3) {
            self.use_transaction(number, &mut open, random)?;
        }
        self.commit_transaction(number, open)
    }

    /// Reads and writes in a transaction.
    fn use_transaction(&self, number: usize, open: &mut OpenTx, random: &mut Random) -> Step {
        let base = self.model.node_at(open.branch, open.at);
        let place = place(random);
        let (space, key) = place;
        let keyspace = &self.member(number).spaces[space];
        let what = |call| format!("{call} of key {place:?} in a transaction");
        match random.below(8) {
            0 | 1 => {
                let (value, expires) = (value(place, random), self.expiry(random));
                let put = match expires {
                    None => open.tx.put(keyspace, [key], &value),
                    Some(at) => open.tx.put_expiring_at(keyspace, [key], &value, time(at)),
                };
                done("put", put)?;
                open.own.insert(place, Some(Content::new(value, expires)));
            }
            2 => {
                done("delete", open.tx.delete(keyspace, [key]))?;
                open.own.insert(place, None);
            }
            3 | 4 => {
                let wanted = self.in_transaction(open, base, place);
                let found = done("get", open.tx.get(keyspace, [key]))?;
                let found = found.map(|value| value.to_vec());
                same(what("get"), &found, &wanted.map(|content| content.value.to_vec()))?;
            }
            5 if open.branch != MAIN && space == NUMBERS => {
                let content = self.in_transaction(open, base, place);
                let number = content.as_ref().map_or(0, |content| {
                    i64::from_le_bytes(content.value[..].try_into().unwrap_or_default())
                });
                let more = 1 + random.below(50) as i64;
                done("add", open.tx.add(keyspace, [key], more, Overflow::Checked))?;
                let expires = content.and_then(|content| content.expires);
                let sum = Content::new((number + more).to_le_bytes().to_vec(), expires);
                open.own.insert(place, Some(sum));
            }
            5 => {
                let wanted = self.in_transaction(open, base, place);
                let there = done("contains", open.tx.contains_key(keyspace, [key]))?;
                same(what("contains"), &there, &wanted.is_some())?;
            }
            _ => {
                let bounds = bounds(random);
                let keys = (0..KEYS as u8).filter(|key| is_within(&bounds, *key));
                let mut wanted = Vec::new();
                for key in keys {
                    let content = self.in_transaction(open, base, (space, key));
                    wanted.extend(content.map(|content| (vec![key], content.value.to_vec())));
                }
                let rows = done("range", open.tx.range(keyspace, &bounds))?;
                let is_reverse = random.below(2) == 0;
                let rows = if is_reverse { rows.reverse() } else { rows };
                let mut found = Vec::new();
                for row in rows {
                    let (key, value) = done("row", row)?;
                    found.push((key, value.to_vec()));
                }
                if is_reverse {
                    found.reverse();
                }
                let branch = open.branch;
                let what = format!("{bounds:?} in a transaction on branch {branch}: {is_reverse}");
                same(what, &found, &wanted)?;
                open.ranges.push((space, bounds));
            }
        }
        Ok(())
    }

    /// The content of a key in a transaction, which depends on it from now on.
    fn in_transaction(&self, open: &mut OpenTx, base: usize, place: Place) -> Option<Content> {
        if let Some(own) = open.own.get(&place) {
            return own.clone();
        }
        let content = self.model.content(base, place, open.begun);
        let expires = content.as_ref().and_then(|content| content.expires);
        open.first = open.first.min(expires.unwrap_or(u64::MAX));
        open.reads.insert(place);
        content
    }

    fn commit_transaction(&mut self, number: usize, open: OpenTx) -> Step {
        let db = self.member(number).db.clone();
        let (base, tip) = (self.model.node_at(open.branch, open.at), self.model.tip(open.branch));
        // The deletion of a key that had no value may be dropped before the commit.
        let is_seen = |place| {
            self.model.content(base, place, open.begun).is_some()
                || self.model.content(tip, place, self.now()).is_some()
        };
        let (surely, possibly) =
            self.model.is_written_after(open.branch, open.at, |place| open.reads(place), is_seen);
        let is_gone = self.model.lines[open.branch].name().is_none();
        let OpenTx { tx, branch, at, own, first, .. } = open;
        if own.is_empty() {
            // A transaction that only reads is valid at its moment, so it is not committed.
            drop(tx);
            return Ok(());
        }
        let writes: Writes = own;
        let touched = BTreeSet::new();
        self.doubt = Some(Effect::Write { branch, writes, touched });
        let committed = tx.commit();
        let what = || format!("a transaction on branch {branch} at {at}");
        match committed {
            Err(Error::Conflict { key, .. }) => {
                self.doubt = None;
                self.absorb(&db)?;
                let now = self.now();
                ensure(possibly || first <= now, || {
                    format!("{} conflicts at {key:?} without reason", what())
                })?;
            }
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) if is_gone => {
                self.doubt = None;
            }
            Ok(glsn) => {
                self.acknowledge(number)?;
                ensure(!surely, || format!("{} has committed despite a conflict", what()))?;
                ensure(!is_gone, || format!("{} has committed, but it is deleted", what()))?;
                self.absorb(&db)?;
                same("newest commit, a transaction", &glsn.0, &self.model.newest)?;
                let last = self.model.last_micros();
                ensure(last < first, || {
                    format!("{} has committed at {last}, but read until {first}", what())
                })?;
            }
            Err(error) => {
                let failed = Failure::new(format!("{} failed: {error} [{error:?}]", what()));
                return Err(crate::branches::StepError::Call(failed));
            }
        }
        Ok(())
    }
}
