//! A watch with expiries, checked against the model.
//!
//! Invariant: each expiry of a value that is current while the watch is open is reported once, and
//! before any commit with a later time.

use std::collections::BTreeSet;

use plimsoll::{WatchEvent, WatchEvents};
use plimsoll_disk::random::Random;

use crate::expiry::model::KEYS;
use crate::expiry::{Driver, SPACES, done};
use crate::failure::{Outcome, ensure};
use crate::judge::micros_of;

/// A watch of a keyspace.
pub(super) struct Feed {
    events: WatchEvents,
    space: usize,
    /// The newest commit when it was opened.
    base: u64,
    /// The time at which it was opened, exact to some microseconds.
    since: u64,
    /// The last commit that it has passed.
    passed: u64,
    /// The keys whose expiry it has reported, each with the commit that put the value.
    reported: BTreeSet<(u8, u64)>,
}

impl Feed {
    /// The first commit that it has not passed.
    pub(super) fn needs(&self) -> u64 {
        self.events.position().0
    }
}

impl Driver {
    /// Opens a watch in a process.
    pub(super) fn open_feed(&mut self, number: usize, random: &mut Random) -> Outcome {
        let (base, since) = (self.model.newest, self.now(number));
        let member = self.member(number);
        let space = random.below(SPACES.len() as u64) as usize;
        // Some watches begin with older commits.
        let from = member.db.newest().next().0 - random.below(3).min(base);
        // One of the processes has trimmed the log last; the others may not know it yet.
        let trimmed = self.members.iter().flatten().map(|member| member.db.log().bounds().first);
        let from = plimsoll::Glsn(from.max(trimmed.max().unwrap_or_default().0));
        let watch = done("watch", member.db.watch(&member.spaces[space], "", from))?;
        let mut events = done("expiries", watch.with_expiries())?;
        if random.below(4) > 0 {
            events.limit_window(100 + random.below(400) as usize);
        }
        let passed = events.position().0 - 1;
        let feed = Feed { events, space, base, since, passed, reported: BTreeSet::new() };
        self.feeds_of(number).push(feed);
        Ok(())
    }

    /// Checks what the watches of a process return: all of it, or the first `count` events of each.
    pub(super) fn follow(&mut self, number: usize, count: Option<u64>) -> Outcome {
        let mut feeds = std::mem::take(self.feeds_of(number));
        let followed = feeds.iter_mut().try_for_each(|feed| self.follow_one(number, feed, count));
        *self.feeds_of(number) = feeds;
        followed
    }

    fn follow_one(&self, number: usize, feed: &mut Feed, count: Option<u64>) -> Outcome {
        for taken in 0.. {
            if count == Some(taken) {
                return Ok(());
            }
            let Some(event) = done("watch", feed.events.next().transpose())? else { break };
            match event {
                WatchEvent::Commit(commit) => {
                    let (glsn, micros) = (commit.glsn().0, micros_of(commit.time()));
                    ensure(glsn > feed.passed, || format!("commit {glsn} again"))?;
                    self.all_reported(feed, glsn - 1, micros)?;
                    feed.passed = glsn;
                }
                WatchEvent::Expiry(change) => {
                    let (key, put_by) = (change.key()[0], change.glsn().0);
                    let expires = change.expires().map(micros_of);
                    let what = || format!("expiry of key {key}, put by {put_by}");
                    let found = self.model.newest_of(feed.space, key, feed.passed.max(feed.base));
                    // The watch may have passed commits to the other keyspace.
                    ensure(found == Some((put_by, expires)), || {
                        format!("{}: the value is {found:?}", what())
                    })?;
                    ensure(expires.is_some_and(|at| at <= self.now(number)), || {
                        format!("{} is early: {expires:?}", what())
                    })?;
                    ensure(feed.reported.insert((key, put_by)), || format!("{} again", what()))?;
                }
                other => return Err(crate::failure::Failure::new(format!("{other:?}"))),
            }
        }
        feed.passed = self.model.newest;
        self.all_reported(feed, feed.passed, self.now(number))
    }

    /// Every expiry up to `micros` of a value that was current at commit `at` must be reported.
    fn all_reported(&self, feed: &Feed, at: u64, micros: u64) -> Outcome {
        if at < feed.base {
            return Ok(());
        }
        for key in 0..KEYS as u8 {
            let Some((put_by, Some(expires))) = self.model.newest_of(feed.space, key, at) else {
                continue;
            };
            let is_due = expires <= micros && (expires > feed.since || put_by > feed.base);
            ensure(!is_due || feed.reported.contains(&(key, put_by)), || {
                format!("no expiry of key {key}, put by {put_by}, at {expires} (now {micros})")
            })?;
        }
        Ok(())
    }
}
