//! Single changes, each in a separate commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll::{Overflow, Value};
use plimsoll_disk::random::Random;

use crate::branches::checks::{bounds, is_within};
use crate::branches::model::{Content, Effect, JSON, KEYS, NUMBERS, Place, TEXTS, Writes};
use crate::branches::{Driver, Step, done, json, place, rules, time, value};
use crate::failure::{ensure, same};

impl Driver {
    /// When a new value expires, if at all.
    pub(super) fn expiry(&self, random: &mut Random) -> Option<u64> {
        let millis = if random.below(3) == 0 { 1000 } else { 1 } * (1 + random.below(100));
        (random.below(4) == 0).then(|| self.now() + 500 + 1000 * millis)
    }

    /// Changes a key of a branch.
    pub(super) fn change(&mut self, number: usize, random: &mut Random) -> Step {
        let branch = self.some_branch(random);
        let handle = self.branch(number, branch)?;
        let place = place(random);
        let (space, key) = place;
        let keyspace = self.member(number).spaces[space].clone();
        let (now, tip) = (self.now(), self.model.tip(branch));
        let before = self.model.content(tip, place, now);
        let old = |found: &Option<Value>| found.as_ref().map(|value| Arc::new(value.to_vec()));
        let wanted = before.as_ref().map(|content| Arc::clone(&content.value));
        let what = |call| format!("{call} of key {place:?} on branch {branch}");
        match random.below(12) {
            0..3 => {
                let (value, expires) = (value(place, random), self.expiry(random));
                let content = Content::new(value.clone(), expires);
                self.write(number, branch, place, Some(content), |_| match expires {
                    None => handle.put(&keyspace, [key], &value),
                    Some(at) => handle.put_expiring_at(&keyspace, [key], &value, time(at)),
                })
                .map(drop)
            }
            3 | 4 => self
                .write(number, branch, place, None, |_| handle.delete(&keyspace, [key]))
                .map(drop),
            5 => {
                let value = value(place, random);
                let content = Content::new(value.clone(), None);
                let found = self.write(number, branch, place, Some(content), |_| {
                    handle.insert(&keyspace, [key], &value)
                })?;
                Ok(same(what("insert"), &old(&found), &wanted)?)
            }
            6 if before.is_none() => {
                let found = done("take", handle.take(&keyspace, [key]))?;
                Ok(same(what("take"), &old(&found), &None)?)
            }
            6 => {
                let found =
                    self.write(number, branch, place, None, |_| handle.take(&keyspace, [key]))?;
                Ok(same(what("take"), &old(&found), &wanted)?)
            }
            7 => self.pop(number, branch, space, random.below(2) == 0),
            8 | 9 if space == NUMBERS => {
                let number_of = |content: &Content| {
                    i64::from_le_bytes(content.value[..].try_into().unwrap_or_default())
                };
                // Adding nothing may commit nothing.
                let more = 1 + random.below(100) as i64;
                let sum = before.as_ref().map_or(0, number_of) + more;
                let expires = before.as_ref().and_then(|content| content.expires);
                let content = Content::new(sum.to_le_bytes().to_vec(), expires);
                let found = self.write(number, branch, place, Some(content), |_| {
                    handle.add(&keyspace, [key], more, Overflow::Checked)
                })?;
                Ok(same(what("add"), &found, &sum)?)
            }
            8 | 9 if space == TEXTS => {
                let text = rules::changed_text(before.as_ref().map(|it| &it.value[..]), random);
                let content = Content::new(text.clone(), None);
                self.write(number, branch, place, Some(content), |_| {
                    handle.put(&keyspace, [key], &text)
                })
                .map(drop)
            }
            8 | 9 if space == JSON => {
                let text = json::changed(key, before.as_ref().map(|it| &it.value[..]), random);
                let content = Content::new(text.clone(), None);
                self.write(number, branch, place, Some(content), |_| {
                    handle.put(&keyspace, [key], &text)
                })
                .map(drop)
            }
            8 | 9 => {
                let more = vec![random.below(256) as u8; 1 + random.below(30) as usize];
                let (mut value, expires) = match before {
                    Some(content) => (content.value.to_vec(), content.expires),
                    None => (Vec::new(), None),
                };
                value.extend_from_slice(&more);
                let len = value.len() as u64;
                let content = Content::new(value, expires);
                let found = self.write(number, branch, place, Some(content), |_| {
                    handle.append(&keyspace, [key], &more)
                })?;
                Ok(same(what("append"), &found, &len)?)
            }
            10 => self.delete_range(number, branch, space, random),
            11 if random.below(2) == 0 => {
                let expires = Some(self.now() + 500 + 1000 * (1 + random.below(100)));
                let expires = expires.filter(|_| random.below(3) > 0);
                let set = |_: &_| match expires {
                    Some(at) => handle.expire_at(&keyspace, [key], time(at)),
                    None => handle.persist(&keyspace, [key]),
                };
                let there = match &before {
                    // If the value does not change, possibly nothing is written.
                    Some(content) if content.expires != expires => {
                        let content = Content { value: Arc::clone(&content.value), expires };
                        self.write(number, branch, place, Some(content), set)?
                    }
                    Some(_) => return Ok(()),
                    None => done("expire_at", set(&self.member(number).db))?,
                };
                Ok(same(what("expire_at"), &there, &before.is_some())?)
            }
            _ => {
                let value = value(place, random);
                let is_set = before.is_none();
                let set = |_: &_| handle.set_if_absent(&keyspace, [key], &value);
                let found = match is_set {
                    true => {
                        let content = Content::new(value.clone(), None);
                        self.write(number, branch, place, Some(content), set)?
                    }
                    false => done("set", handle.set_if_absent(&keyspace, [key], &value))?,
                };
                Ok(same(what("set_if_absent"), &found, &is_set)?)
            }
        }
    }

    /// Writes one key in a commit.
    pub(super) fn write<T>(
        &mut self,
        number: usize,
        branch: usize,
        place: Place,
        content: Option<Content>,
        call: impl FnOnce(&plimsoll::Db) -> plimsoll::Result<T>,
    ) -> Step<T> {
        let writes = Writes::from([(place, content)]);
        let effect = Effect::Write { branch, writes, touched: BTreeSet::new() };
        self.commit(number, "a change", effect, call)
    }

    fn pop(&mut self, number: usize, branch: usize, space: usize, is_first: bool) -> Step {
        let (now, tip) = (self.now(), self.model.tip(branch));
        let handle = self.branch(number, branch)?;
        let keyspace = self.member(number).spaces[space].clone();
        let mut keys = (0..KEYS as u8)
            .filter_map(|key| Some((key, self.model.content(tip, (space, key), now)?)));
        let wanted = if is_first { keys.next() } else { keys.next_back() };
        let pop = || match is_first {
            true => handle.pop_first(&keyspace),
            false => handle.pop_last(&keyspace),
        };
        let found = match &wanted {
            None => done("pop", pop())?,
            Some((key, _)) => self.write(number, branch, (space, *key), None, |_| pop())?,
        };
        let found = found.map(|(key, value)| (key, value.to_vec()));
        let wanted = wanted.map(|(key, content)| (vec![key], content.value.to_vec()));
        Ok(same(format!("pop on branch {branch}"), &found, &wanted)?)
    }

    fn delete_range(
        &mut self,
        number: usize,
        branch: usize,
        space: usize,
        random: &mut Random,
    ) -> Step {
        let handle = self.branch(number, branch)?;
        let keyspace = self.member(number).spaces[space].clone();
        let bounds = bounds(random);
        let (now, tip) = (self.now(), self.model.tip(branch));
        let touched: BTreeSet<Place> = (0..KEYS as u8)
            .filter(|key| is_within(&bounds, *key))
            .map(|key| (space, key))
            .collect();
        let there = touched.iter().filter(|place| self.model.content(tip, **place, now).is_some());
        let writes: Writes = there.map(|place| (*place, None)).collect();
        let (is_empty, newest) = (writes.is_empty(), self.model.newest);
        self.doubt = Some(Effect::Write { branch, writes, touched });
        let glsn = done("delete_range", handle.delete_range(&keyspace, bounds))?.0;
        if glsn > newest {
            self.acknowledge(number)?;
        }
        let db = self.member(number).db.clone();
        self.absorb(&db)?;
        // Without keys, there may be nothing to commit.
        ensure(self.doubt.take().is_none() || is_empty, || {
            format!("a range deletion of branch {branch} has not committed")
        })?;
        Ok(same("newest commit, of a range deletion", &glsn, &self.model.newest)?)
    }
}
