//! Transactions that read, write and change the expiry of values.

use std::collections::BTreeMap;

use plimsoll::Error;
use plimsoll_disk::random::Random;

use crate::expiry::model::{Content, KEYS};
use crate::expiry::{Driver, SPACES, TIME_ADVANCED, done, time, value};
use crate::failure::{Outcome, ensure, same};

/// The change that a transaction made to a key.
#[derive(Clone)]
enum OwnWrite {
    Written(Option<Content>),
    Appended(Vec<u8>),
}

impl Driver {
    /// Runs a transaction in the store and in the model.
    pub(super) fn transaction(&mut self, number: usize, random: &mut Random) -> Outcome {
        let (begun, at) = (self.now(number), self.model.newest);
        let db = self.member(number).db.clone();
        let mut tx = db.begin();
        same("begin", &tx.at().0, &at)?;
        let mut own: BTreeMap<(usize, u8), OwnWrite> = BTreeMap::new();
        // The first expiry that the transaction depends on.
        let mut first = u64::MAX;
        for _ in 0..1 + random.below(4) {
            let (space, key) =
                (random.below(SPACES.len() as u64) as usize, random.below(KEYS) as u8);
            let keyspace = self.member(number).spaces[space].clone();
            let millis = if random.below(3) == 0 { 1000 } else { 1 } * (1 + random.below(100));
            let expires = self.now(number) + 500 + 1000 * millis;
            let value = value(random);
            let base = self.model.content(space, key, at, begun);
            let mut seen = |own: Option<&OwnWrite>| match own {
                Some(OwnWrite::Written(content)) => content.clone(),
                other => {
                    let expires = base.as_ref().and_then(|(_, expires)| *expires);
                    first = first.min(expires.unwrap_or(u64::MAX));
                    match (other, base.clone()) {
                        (Some(OwnWrite::Appended(more)), Some((value, expires))) => {
                            Some(([value, more.clone()].concat(), expires))
                        }
                        (Some(OwnWrite::Appended(more)), None) => Some((more.clone(), None)),
                        (_, base) => base,
                    }
                }
            };
            let before = own.get(&(space, key)).cloned();
            let what = |call| format!("{call} of key {key} in {}", SPACES[space].0);
            let written = match random.below(8) {
                0 => {
                    done("put", tx.put(&keyspace, [key], &value))?;
                    Some(OwnWrite::Written(Some((value, None))))
                }
                1 | 2 => {
                    done("put", tx.put_expiring_at(&keyspace, [key], &value, time(expires)))?;
                    Some(OwnWrite::Written(Some((value, Some(expires)))))
                }
                3 => {
                    done("append", tx.append(&keyspace, [key], &value))?;
                    Some(match before {
                        None => OwnWrite::Appended(value),
                        Some(OwnWrite::Appended(more)) => {
                            OwnWrite::Appended([more, value].concat())
                        }
                        Some(OwnWrite::Written(None)) => OwnWrite::Written(Some((value, None))),
                        Some(OwnWrite::Written(Some((old, expires)))) => {
                            OwnWrite::Written(Some(([old, value].concat(), expires)))
                        }
                    })
                }
                4 => {
                    done("delete", tx.delete(&keyspace, [key]))?;
                    Some(OwnWrite::Written(None))
                }
                5 => {
                    let there = done("expire_at", tx.expire_at(&keyspace, [key], time(expires)))?;
                    let wanted = seen(before.as_ref());
                    same(what("expire_at"), &there, &wanted.is_some())?;
                    // An expiry that stays the same is not written.
                    let is_pending = matches!(before, Some(OwnWrite::Appended(_)));
                    let changed = wanted.filter(|(_, old)| is_pending || *old != Some(expires));
                    changed.map(|(value, _)| OwnWrite::Written(Some((value, Some(expires)))))
                }
                6 => {
                    let there = done("persist", tx.persist(&keyspace, [key]))?;
                    let wanted = seen(before.as_ref());
                    same(what("persist"), &there, &wanted.is_some())?;
                    match (wanted, &before) {
                        (Some((_, None)), None | Some(OwnWrite::Written(_))) => None,
                        (wanted, _) => {
                            wanted.map(|(value, _)| OwnWrite::Written(Some((value, None))))
                        }
                    }
                }
                _ => {
                    let found = done("get", tx.get(&keyspace, [key]))?.map(|value| value.to_vec());
                    same(what("get"), &found, &seen(before.as_ref()).map(|(value, _)| value))?;
                    None
                }
            };
            if let Some(written) = written {
                own.insert((space, key), written);
            }
        }
        if random.below(3) == 0 {
            self.pass(random);
        }
        let committed = tx.commit();
        if own.is_empty() {
            return done("commit", committed).map(drop);
        }
        let now = self.now(number);
        if let Err(Error::Conflict { .. }) = committed {
            return ensure(first <= now, || {
                format!("a conflict at {now}, although what was read expires at {first}")
            });
        }
        let glsn = done("commit", committed)?.0;
        // While it waited, another process may have advanced the log's time.
        while self.model.newest < glsn {
            let metadata = self.committed(&db, self.model.newest + 1)?;
            let is_mark = self.model.newest < glsn;
            same("metadata", &(metadata == TIME_ADVANCED), &is_mark)?;
        }
        let now = self.model.last_micros();
        ensure(self.model.newest == glsn && now < first, || {
            format!("commit at {glsn}, at {now}; what was read expired at {first}")
        })?;
        for ((space, key), own) in own {
            let content = match own {
                OwnWrite::Written(content) => content,
                OwnWrite::Appended(more) => match self.model.content(space, key, at, now) {
                    Some((value, expires)) => Some(([value, more].concat(), expires)),
                    None => Some((more, None)),
                },
            };
            self.model.write((space, key), glsn, content);
        }
        Ok(())
    }
}
