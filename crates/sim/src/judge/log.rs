//! The entries of the log, and the commits and changes that they hold.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use plimsoll::{Change, Commit, Error, Glsn, LogEntryRef};

use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::feeds::covers;
use crate::judge::{Judge, fits, is_value, micros_of, show};
use crate::model::{Entry, Writes, space_name};
use crate::op::Key;

impl Judge<'_> {
    /// Scans the log; closed segments are sealed during the scan.
    pub(crate) fn scan(&self, from: u64, count: u64, stream: Option<u32>) -> Outcome<bool> {
        let what = || format!("log scan from {from}, {count} GLSNs, stream {stream:?}");
        let end = from.saturating_add(count).min(self.db.newest().0 + 1);
        let mut scan =
            match self.db.log().scan(Glsn(from)..Glsn(from.saturating_add(count)), stream) {
                Err(Error::Trimmed { asked, first, .. }) => {
                    let right =
                        from < self.model.first() && asked == from && first == self.model.first();
                    ensure(right, || {
                        format!(
                            "{}: refused (first {first}) although the log begins at {}",
                            what(),
                            self.model.first()
                        )
                    })?;
                    return Ok(false);
                }
                answer => match self.settle(what, None, answer)? {
                    Some(scan) => scan,
                    None => return Ok(false),
                },
            };
        let mut wanted = (from..end).filter(|glsn| self.is_of(*glsn, stream));
        while let Some(entry) = scan.next() {
            let Some(entry) = self.settle(what, None, entry)? else { return Ok(false) };
            same(format!("{}: next GLSN", what()), &Some(entry.glsn.0), &wanted.next())?;
            self.is_entry(what, &entry)?;
            self.db.seal_behind();
        }
        same(format!("{}: entries after its end", what()), &None, &wanted.next())?;
        Ok(true)
    }

    pub(super) fn is_of(&self, glsn: u64, stream: Option<u32>) -> bool {
        let placed = self.model.entry(glsn);
        placed.is_some_and(|placed| stream.is_none_or(|stream| placed.entry.stream() == stream))
    }

    pub(crate) fn is_entry(&self, what: impl Fn() -> String, found: &LogEntryRef<'_>) -> Outcome {
        let Some(placed) = self.model.entry(found.glsn.0) else {
            return Err(Failure::new(format!(
                "{}: {} is beyond the newest entry",
                what(),
                found.glsn
            )));
        };
        same(
            format!("{}: stream of {}", what(), found.glsn),
            &found.stream,
            &placed.entry.stream(),
        )?;
        if let Some(micros) = placed.micros {
            same(format!("{}: time of {}", what(), found.glsn), &micros_of(found.time), &micros)?;
        }
        match &placed.entry {
            Entry::Payload { content, .. } => is_value(
                || format!("{}: payload of {}", what(), found.glsn),
                Some(found.payload),
                Some(*content),
            ),
            _ => ensure(!found.payload.is_empty(), || {
                format!("{}: commit {} is empty", what(), found.glsn)
            }),
        }
    }

    /// Reads one entry and, if it is a commit, decodes it.
    pub(crate) fn read(&self, glsn: u64) -> Outcome<bool> {
        let what = || format!("log read {glsn}");
        let first = self.model.first();
        let commit = match self.db.log().commit(Glsn(glsn)) {
            Err(Error::Trimmed { .. }) if glsn < first => return Ok(false),
            Err(Error::Future { .. }) if glsn > self.db.newest().0 => return Ok(false),
            answer => match self.settle(what, None, answer)? {
                Some(commit) => commit,
                None => return Ok(false),
            },
        };
        let Some(entry) = self.model.entry(glsn).map(|placed| &placed.entry) else {
            return Err(Failure::new(format!("{} is beyond the newest entry", what())));
        };
        same(
            format!("{}: whether it is a commit", what()),
            &commit.is_some(),
            &(entry.stream() == 0),
        )?;
        let Some(commit) = commit else {
            return self.scan(glsn, 1, None);
        };
        self.is_commit(what, &commit)
    }

    /// Compares a commit, its changes and their values with the model's.
    pub(crate) fn is_commit(&self, what: impl Fn() -> String, commit: &Commit) -> Outcome<bool> {
        let glsn = commit.glsn().0;
        let what = || format!("{}: {glsn}", what());
        let Some(entry) = self.model.entry(glsn).map(|placed| &placed.entry) else {
            return Err(Failure::new(format!("{} is beyond the newest entry", what())));
        };
        if let Entry::Commit { metadata, read_at, .. } = entry {
            same(format!("{}: read at", what()), &commit.read_at().0, read_at)?;
            let Some(found) = self.settle(what, None, commit.metadata())? else { return Ok(false) };
            is_value(|| format!("{}: metadata", what()), Some(found), Some(*metadata))?;
        }
        let Some(changes) = self.settle(what, None, commit.changes())? else { return Ok(false) };
        // Several keyspaces may have had the same name.
        let spaces: BTreeMap<u8, String> = match entry {
            Entry::Commit { writes, .. } => {
                writes.keys().map(|(space, _)| (*space, space_name(*space))).collect()
            }
            _ => BTreeMap::new(),
        };
        let (mut found, mut ranges) = (Vec::new(), Vec::new());
        for change in changes {
            let Some(change) = self.settle(what, None, change)? else { return Ok(false) };
            if change.deleted_range().is_some() {
                ranges.push(change);
                continue;
            }
            let Some(value) = self.settle(what, None, change.value())? else { return Ok(false) };
            if let Entry::Commit { writes, .. } = entry {
                let of_name = spaces.iter().filter(|(_, name)| change.keyspace() == Some(name));
                // A key changes twice if it was deleted in a keyspace that was then dropped, and
                // put in the next one of that name.
                let contents =
                    of_name.filter_map(|(space, _)| writes.get(&(*space, change.key().to_vec())));
                let contents: Vec<_> = contents.copied().collect();
                let fitting = contents
                    .iter()
                    .find(|wanted| fits(value.as_deref(), **wanted))
                    .or(contents.first());
                is_value(
                    || format!("{}: {}", what(), show(change.key())),
                    value.as_deref(),
                    fitting.copied().flatten(),
                )?;
            }
            found.push((
                change.keyspace().map(str::to_owned),
                change.key().to_vec(),
                change.value_len(),
            ));
        }
        let was_dropped =
            |name: &str| self.model.was_dropped_before(glsn, |space| space_name(space) == name);
        let entry = without_ranges(entry, &ranges, &found);
        is_changes(what, found, &entry, was_dropped)?;
        Ok(true)
    }
}

/// The entry without the deletions that ranges stand for.
fn without_ranges<'a>(
    entry: &'a Entry,
    ranges: &[Change],
    found: &[FoundChange],
) -> Cow<'a, Entry> {
    if ranges.is_empty() {
        return Cow::Borrowed(entry);
    }
    let mut entry = entry.clone();
    if let Entry::Commit { writes, .. } = &mut entry {
        writes.retain(|(space, key), value| {
            let name = space_name(*space);
            let mut of_space = ranges.iter().filter(|range| range.keyspace() == Some(&*name));
            let is_covered = value.is_none() && of_space.any(|range| covers(range, key));
            let is_it =
                |change: &FoundChange| change.0.as_deref() == Some(&*name) && change.1 == *key;
            !is_covered || found.iter().any(is_it)
        });
    }
    Cow::Owned(entry)
}

type FoundChange = (Option<String>, Key, Option<u64>);

/// Compares a commit's changes with the model's, in key order within each keyspace.
fn is_changes(
    what: impl Fn() -> String,
    found: Vec<FoundChange>,
    entry: &Entry,
    was_dropped: impl Fn(&str) -> bool,
) -> Outcome {
    let of_drop: Writes;
    let (found, writes) = match entry {
        Entry::Commit { writes, .. } => (found, writes),
        Entry::Dropped { space, keys } => {
            // The commit also changes the store's own metadata of keyspaces.
            let of_users = found.into_iter().filter(|change| change.0.is_some()).collect();
            of_drop = keys.iter().map(|key| ((*space, key.clone()), None)).collect();
            (of_users, &of_drop)
        }
        _ => {
            return ensure(found.iter().all(|change| change.0.is_none()), || {
                format!("{}: changes of a user's keys", what())
            });
        }
    };
    // Deletions in a keyspace dropped before the commit come first, even if another keyspace has
    // its name by then.
    let is_new = |at: usize| {
        let are_deletions =
            found[..at].iter().all(|change| change.0 != found[at].0 || change.2.is_none());
        are_deletions && found[at].0.as_deref().is_some_and(&was_dropped)
    };
    let in_order = (1..found.len()).all(|at| {
        let (before, change) = (&found[at - 1], &found[at]);
        before.0 != change.0 || before.1 < change.1 || is_new(at)
    });
    ensure(in_order, || format!("{}: the changes are not in key order", what()))?;
    let count = found.len();
    let short = |change: FoundChange| (change.0, show(&change.1), change.2);
    let found: BTreeSet<_> = found.into_iter().map(short).collect();
    same(format!("{}: number of changes", what()), &count, &writes.len())?;
    let wanted = writes.iter().map(|((space, key), value)| {
        (Some(space_name(*space)), show(key), value.map(|content| u64::from(content.bytes)))
    });
    same(format!("{}: changes", what()), &found, &wanted.collect())
}
