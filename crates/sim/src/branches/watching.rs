//! Branches are watched; after a restart, a watch continues where it stopped.

use std::collections::BTreeMap;

use plimsoll::{Commit, Commits, Error, Glsn, InvalidInput};
use plimsoll_disk::random::Random;

use crate::branches::model::{Content, MAIN, Node};
use crate::branches::{Driver, NAMES, Step, done, place, refused, time};
use crate::failure::{Failure, ensure, same};

/// The most watches of a run.
const WATCHES_MAX: usize = 4;

/// A watch, which survives the process that reads it.
pub(super) struct Watch {
    branch: usize,
    space: usize,
    /// The prefix; `None`: all keys.
    key: Option<u8>,
    /// The commit from which it continues after a restart.
    next: u64,
    /// Whether that is the position of the feed, rather than the one after the last commit that it
    /// returned.
    is_by_position: bool,
    /// The process that reads it, and the feed.
    open: Option<(usize, Commits)>,
}

/// How a feed ended.
enum End {
    /// At the newest commit.
    Newest,
    /// The log was trimmed beyond it.
    Trimmed,
    /// At the deletion of its branch.
    Gone,
}

impl Driver {
    /// Begins to watch a branch.
    pub(super) fn watch(&mut self, number: usize, random: &mut Random) -> Step {
        let branch = self.some_branch(random);
        let space = random.below(NAMES.len() as u64) as usize;
        let key = (random.below(3) == 0).then(|| place(random).1);
        let behind = [0, random.below(20), random.below(200)][random.below(3) as usize];
        let next = (self.model.newest + 1).saturating_sub(behind).max(1);
        let is_by_position = random.below(2) == 0;
        let mut watch = Watch { branch, space, key, next, is_by_position, open: None };
        if self.open_watch(number, &mut watch)? && self.watches.len() < WATCHES_MAX {
            self.watches.push(watch);
        }
        Ok(())
    }

    /// Opens the feed of a watch of an existing branch; returns false if the log was trimmed beyond
    /// its beginning.
    fn open_watch(&self, number: usize, watch: &mut Watch) -> Step<bool> {
        let handle = self.branch(number, watch.branch)?;
        let keyspace = &self.member(number).spaces[watch.space];
        let prefix: Vec<u8> = watch.key.into_iter().collect();
        let feed = handle.watch(keyspace, prefix, Glsn(watch.next));
        if watch.next < self.first_of_log(number)? {
            refused("a watch of what is trimmed", feed, |error| {
                matches!(error, Error::Trimmed { .. })
            })?;
            return Ok(false);
        }
        watch.open = Some((number, done("watch", feed)?));
        Ok(true)
    }

    /// Reads all watches to their ends.
    pub(super) fn poll_watches(&mut self, random: &mut Random) -> Step {
        for mut watch in std::mem::take(&mut self.watches) {
            if random.below(4) == 0 {
                watch.open = None;
            }
            if watch.open.is_none() {
                let number = random.below(self.members.len() as u64) as usize;
                // There is no way to get a handle of a deleted branch.
                let is_gone = self.model.lines[watch.branch].name().is_none();
                if is_gone || !self.open_watch(number, &mut watch)? {
                    continue;
                }
            }
            let polled = self.poll(&mut watch);
            // A watch also continues after a crash.
            let is_over = matches!(polled, Ok(End::Trimmed | End::Gone));
            if !is_over {
                self.watches.push(watch);
            }
            polled?;
        }
        Ok(())
    }

    /// Compares the commits that a watch returns with those of the model.
    fn poll(&mut self, watch: &mut Watch) -> Step<End> {
        let Some((number, mut feed)) = watch.open.take() else { return Ok(End::Gone) };
        let db = self.member(number).db.clone();
        self.absorb(&db)?;
        let what = format!(
            "watch of branch {} from {} in {}, key {:?}",
            watch.branch, watch.next, NAMES[watch.space], watch.key
        );
        let is_gone = self.model.lines[watch.branch].name().is_none();
        let mut found = Vec::new();
        let end = loop {
            match feed.next() {
                None => break End::Newest,
                Some(Ok(commit)) => {
                    let glsn = commit.glsn().0;
                    self.check_changes(watch, &commit, &what)?;
                    found.push(glsn);
                }
                Some(Err(Error::InvalidInput(InvalidInput::NoBranch { .. }))) if is_gone => {
                    break End::Gone;
                }
                Some(Err(Error::Trimmed { .. }))
                    if feed.position().0 < self.first_of_log(number)? =>
                {
                    break End::Trimmed;
                }
                Some(Err(error)) => return done(&what, Err(error)),
            }
        };
        ensure(!is_gone || !matches!(end, End::Newest), || {
            format!("{what} goes on although the branch is deleted")
        })?;
        let upto = match end {
            End::Trimmed => found.last().copied().unwrap_or(0),
            _ => self.model.newest,
        };
        let nodes = self.model.nodes.iter().filter(|node| {
            node.branch == watch.branch && node.glsn >= watch.next && node.glsn <= upto
        });
        let is_watched = |(space, key): (usize, u8)| {
            space == watch.space && watch.key.is_none_or(|it| it == key)
        };
        let mut wanted = Vec::new();
        for node in nodes {
            let is_surely = node.writes.keys().any(|place| is_watched(*place));
            // On main, the deletion of a range is a change also if no key is in it.
            let is_possibly = watch.branch == MAIN && node.may_delete_range(watch.space);
            if is_surely || (is_possibly && found.contains(&node.glsn)) {
                wanted.push(node.glsn);
            }
        }
        same(&what, &found, &wanted)?;
        let last = found.last().map_or(watch.next, |last| last + 1);
        watch.next = if watch.is_by_position { feed.position().0 } else { last };
        watch.open = Some((number, feed));
        Ok(end)
    }

    /// Compares the changes that a commit shows to a watch.
    fn check_changes(&self, watch: &Watch, commit: &Commit, what: &str) -> Step {
        let glsn = commit.glsn().0;
        let node = self.model.commit_at(glsn).map(|node| &self.model.nodes[node]);
        let node = node.ok_or_else(|| Failure::new(format!("{what} returns {glsn}")))?;
        let mut found = BTreeMap::new();
        let mut has_range = false;
        for change in done("changes", commit.changes())? {
            let change = done("change", change)?;
            has_range |= change.deleted_range().is_some();
            same(
                format!("keyspace of {glsn}, {what}"),
                &change.keyspace(),
                &Some(NAMES[watch.space]),
            )?;
            let value = done("value", change.value())?.map(|value| value.to_vec());
            found.insert(change.key().to_vec(), (value, change.expires()));
        }
        if has_range {
            return Ok(());
        }
        // The deletion of a range of one key may be that of the key, also if it has no value.
        found.retain(|key, (value, _)| {
            let place = (watch.space, key[0]);
            value.is_some() || node.writes.contains_key(&place) || !node.touched.contains(&place)
        });
        let is_watched = |key: u8| watch.key.is_none_or(|it| it == key);
        let written = node
            .writes
            .iter()
            .filter(|((space, key), _)| *space == watch.space && is_watched(*key));
        let shown = |content: &Content| (Some(content.value.to_vec()), content.expires.map(time));
        let wanted: BTreeMap<_, _> = written
            .map(|((_, key), content)| (vec![*key], content.as_ref().map_or((None, None), shown)))
            .collect();
        Ok(same(format!("changes of {glsn}, {what}"), &found, &wanted)?)
    }

    /// Closes the feeds of a process.
    pub(super) fn stop_watches(&mut self, number: usize) {
        for watch in &mut self.watches {
            watch.open.take_if(|(of, _)| *of == number);
        }
    }

    /// Forgets the changes that a crash has undone.
    pub(super) fn cut_watches(&mut self) {
        let (newest, lines) = (self.model.newest, self.model.lines.len());
        self.watches.retain(|watch| watch.branch < lines);
        for watch in &mut self.watches {
            watch.next = watch.next.min(newest + 1);
        }
    }
}

impl Node {
    /// Whether the commit may have deleted a range of a keyspace.
    fn may_delete_range(&self, space: usize) -> bool {
        self.writes.is_empty() || self.touched.iter().any(|(of, _)| *of == space)
    }
}
