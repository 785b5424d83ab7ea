//! Feeds return each entry or commit once, in order, and resume at their position after an error.

use std::ops::RangeBounds;
use std::time::Duration;

use plimsoll::{Change, Commit, Error, Glsn, LogEntryRef};

use crate::failure::{Outcome, ensure, same};
use crate::judge::{Judge, Place, TRIES, is_value, show};
use crate::model::{Entry, space_name};

/// Whether a change deletes a range that a key lies in.
pub(crate) fn covers(change: &Change, key: &[u8]) -> bool {
    change.deleted_range().is_some_and(|range| RangeBounds::<[u8]>::contains(&range, key))
}

/// Whether a commit only deletes ranges of keys.
pub(crate) fn only_deletes_ranges(commit: &Commit) -> bool {
    let is_range = |change: plimsoll::Result<Change>| {
        change.is_ok_and(|change| change.deleted_range().is_some())
    };
    commit.changes().is_ok_and(|mut changes| changes.all(is_range))
}

impl Judge<'_> {
    /// Calls `next`, and retries it after errors. `None` if every attempt fails. An iterator ends
    /// at an error, and resumes with the next call.
    fn after_errors<T>(
        &self,
        what: impl Fn() -> String,
        iterates: bool,
        mut next: impl FnMut() -> plimsoll::Result<Option<T>>,
    ) -> Outcome<Option<Option<T>>> {
        for _ in 0..TRIES {
            if let Some(found) = self.settle(&what, None, next())? {
                return Ok(Some(found));
            }
            if iterates {
                ensure(matches!(next(), Ok(None)), || {
                    format!("{}: does not end at an error", what())
                })?;
            }
        }
        Ok(None)
    }

    /// Follows the log to its end.
    pub(crate) fn follow(&self, from: u64, stream: Option<u32>) -> Outcome<bool> {
        let what = || format!("follow from {from}, stream {stream:?}");
        let mut follow = match self.db.log().follow(Glsn(from), stream) {
            Err(Error::Trimmed { .. }) if from < self.model.first() => return Ok(false),
            answer => match self.settle(what, None, answer)? {
                Some(follow) => follow,
                None => return Ok(false),
            },
        };
        let mut wanted =
            (from.max(1)..=self.db.newest().0).filter(|glsn| self.is_of(*glsn, stream));
        loop {
            let entry = self.after_errors(what, false, || follow.next_timeout(Duration::ZERO))?;
            let Some(entry) = entry else { return Ok(false) };
            let wanted = wanted.next();
            same(
                format!("{}: next GLSN", what()),
                &entry.as_ref().map(|entry| entry.glsn.0),
                &wanted,
            )?;
            let Some(entry) = entry else { break };
            let (glsn, stream, time) = (entry.glsn, entry.stream, entry.time);
            self.is_entry(what, &LogEntryRef { glsn, stream, time, payload: entry.payload() })?;
        }
        if matches!(stream, None | Some(0)) { self.feed(from) } else { Ok(true) }
    }

    /// Reads the change feed to its end: every commit once, in order, except for commits that only
    /// move cursors.
    fn feed(&self, from: u64) -> Outcome<bool> {
        let what = || format!("commits from {from}");
        let Some(mut commits) = self.settle(what, None, self.db.log().commits(Glsn(from)))? else {
            return Ok(false);
        };
        let is_wanted = |glsn: &u64| {
            let entry = self.model.entry(*glsn).map(|placed| &placed.entry);
            entry.is_some_and(|entry| entry.stream() == 0 && !matches!(entry, Entry::Cursor { .. }))
        };
        let mut wanted = (from.max(1)..=self.db.newest().0).filter(is_wanted);
        loop {
            let commit = self.after_errors(what, true, || commits.next().transpose())?;
            let Some(commit) = commit else { return Ok(false) };
            let wanted = wanted.next();
            same(
                format!("{}: next GLSN", what()),
                &commit.as_ref().map(|commit| commit.glsn().0),
                &wanted,
            )?;
            let Some(commit) = commit else { return Ok(true) };
            if !self.is_commit(what, &commit)? {
                return Ok(false);
            }
        }
    }

    /// Reads the commits that changed keys with a prefix, each with these changes alone.
    pub(crate) fn watch(&self, place: Place<'_>, from: u64, prefix: &[u8]) -> Outcome<bool> {
        let what = || format!("watch {} in {} from {from}", show(prefix), space_name(place.space));
        let mut commits = match self.db.watch(place.keyspace, prefix, Glsn(from)) {
            Err(Error::Trimmed { .. }) if from < self.model.first() => return Ok(false),
            answer => match self.settle(what, None, answer)? {
                Some(commits) => commits,
                None => return Ok(false),
            },
        };
        let changes = |glsn: &u64| !self.model.changes_under(place.space, prefix, *glsn).is_empty();
        let mut wanted = (from.max(1)..=self.db.newest().0).filter(changes);
        loop {
            let commit = self.after_errors(what, true, || commits.next().transpose())?;
            let Some(commit) = commit else { return Ok(false) };
            let is_extra =
                |commit: &Commit| !changes(&commit.glsn().0) && only_deletes_ranges(commit);
            if commit.as_ref().is_some_and(is_extra) {
                continue;
            }
            let wanted = wanted.next();
            same(
                format!("{}: next GLSN", what()),
                &commit.as_ref().map(|commit| commit.glsn().0),
                &wanted,
            )?;
            let Some(commit) = commit else { return Ok(true) };
            if !self.is_watched(what, &commit, place, prefix)? {
                return Ok(false);
            }
        }
    }

    /// Checks that a commit has exactly the model's changes of keys with a prefix.
    pub(crate) fn is_watched(
        &self,
        what: impl Fn() -> String,
        commit: &Commit,
        place: Place<'_>,
        prefix: &[u8],
    ) -> Outcome<bool> {
        let mut wanted = self.model.changes_under(place.space, prefix, commit.glsn().0);
        let Some(changes) = self.settle(&what, None, commit.changes())? else { return Ok(false) };
        let (mut ranges, mut found) = (Vec::new(), Vec::new());
        for change in changes {
            let Some(change) = self.settle(&what, None, change)? else { return Ok(false) };
            if change.deleted_range().is_some() { &mut ranges } else { &mut found }.push(change);
        }
        let is_listed = |key: &[u8]| found.iter().any(|change| change.key() == key);
        wanted.retain(|(key, value)| {
            let is_covered = value.is_none() && ranges.iter().any(|range| covers(range, key));
            !is_covered || is_listed(key)
        });
        let mut wanted = wanted.into_iter();
        for change in found {
            let what = || format!("{}: {} in {}", what(), show(change.key()), commit.glsn());
            let (key, content) = wanted.next().unzip();
            same(what(), &Some(show(change.key())), &key.map(|key| show(&key)))?;
            let Some(value) = self.settle(what, None, change.value())? else { return Ok(false) };
            is_value(what, value.as_deref(), content.flatten())?;
        }
        let left = wanted.next().map(|(key, _)| show(&key));
        same(format!("{}: missing changes of {}", what(), commit.glsn()), &None, &left)?;
        Ok(true)
    }
}
