//! Feeds that stay open across other operations, and resume at their position after an error.

use std::time::Duration;

use plimsoll::{Commits, Error, Glsn, Keyspace, LogEntryRef, LogFollow};

use crate::driver::Driver;
use crate::driver::step::said;
use crate::failure::{Outcome, ensure, same};
use crate::judge::{Place, only_deletes_ranges};
use crate::model::Entry;
use crate::op::Feed;

/// A feed that is open.
pub(super) struct OpenFeed {
    source: Source,
    feed: Feed,
    keyspace: Option<Keyspace>,
    /// The next GLSN that it has not yielded.
    next: u64,
    what: String,
}

enum Source {
    Entries(LogFollow),
    Commits(Commits),
}

/// The next item of a feed.
enum Found {
    Entry(plimsoll::LogEntry),
    Commit(plimsoll::Commit),
}

impl Found {
    fn glsn(&self) -> u64 {
        match self {
            Found::Entry(entry) => entry.glsn.0,
            Found::Commit(commit) => commit.glsn().0,
        }
    }
}

impl Source {
    /// Takes the next item, either through an iterator, which ends at an error, or by a call, which
    /// does not.
    fn take(&mut self, iterates: bool) -> plimsoll::Result<Option<Found>> {
        match (self, iterates) {
            (Source::Entries(feed), true) => Ok(feed.next().transpose()?.map(Found::Entry)),
            (Source::Entries(feed), false) => {
                Ok(feed.next_timeout(Duration::ZERO)?.map(Found::Entry))
            }
            (Source::Commits(feed), true) => Ok(feed.next().transpose()?.map(Found::Commit)),
            (Source::Commits(feed), false) => {
                Ok(feed.next_timeout(Duration::ZERO)?.map(Found::Commit))
            }
        }
    }

    fn position(&self) -> u64 {
        match self {
            Source::Entries(feed) => feed.position().0,
            Source::Commits(feed) => feed.position().0,
        }
    }
}

impl Driver {
    pub(super) fn begin_feed(&mut self, slot: u8, back: u64, feed: &Feed) -> Outcome<String> {
        self.feeds.remove(&slot);
        let keyspace = match feed {
            Feed::Watch { space, .. } => match self.keyspace(*space)? {
                Some(keyspace) => Some(keyspace),
                None => return said("failed"),
            },
            _ => None,
        };
        let from = self.back(back).max(1);
        let log = self.db().log();
        let source = match feed {
            Feed::Entries(stream) => log.follow(Glsn(from), *stream).map(Source::Entries),
            Feed::Commits => log.commits(Glsn(from)).map(Source::Commits),
            Feed::Watch { prefix, .. } => {
                let keyspace = keyspace.as_ref().expect("the feed was found above");
                self.db().watch(keyspace, prefix, Glsn(from)).map(Source::Commits)
            }
        };
        let source = match source {
            Err(Error::Trimmed { .. }) if from < self.model.first() => return said("trimmed"),
            source => self.expect("a feed", source)?,
        };
        let Some(source) = source else { return said("failed") };
        let what = format!("feed of {feed} from {from}, held open");
        self.feeds
            .insert(slot, OpenFeed { source, feed: feed.clone(), keyspace, next: from, what });
        said("")
    }

    pub(super) fn feed_on(&mut self, slot: u8, count: u32) -> Outcome<String> {
        let Some(mut open) = self.feeds.remove(&slot) else { return said("") };
        for number in 0..count {
            let iterates = number.is_multiple_of(2);
            let found = match open.source.take(iterates) {
                Ok(found) => found,
                Err(Error::Trimmed { .. }) if open.next < self.model.first() => {
                    return said("trimmed");
                }
                Err(error) => {
                    self.expect::<()>(&open.what, Err(error))?;
                    if iterates {
                        let ended = matches!(open.source.take(true), Ok(None));
                        ensure(ended, || format!("{} does not end at an error", open.what))?;
                    }
                    break;
                }
            };
            if !self.is_next_of(&mut open, found)? {
                break;
            }
        }
        self.feeds.insert(slot, open);
        said("")
    }

    /// Compares the next item of a feed; false at its end.
    fn is_next_of(&self, open: &mut OpenFeed, found: Option<Found>) -> Outcome<bool> {
        let newest = self.db().newest().0;
        let wanted = (open.next..=newest).find(|glsn| self.is_fed(&open.feed, *glsn));
        let glsn = found.as_ref().map(Found::glsn);
        if let Some(Found::Commit(commit)) = &found
            && matches!(open.feed, Feed::Watch { .. })
            && wanted.is_none_or(|wanted| commit.glsn().0 < wanted)
            && only_deletes_ranges(commit)
        {
            // The commit deletes ranges, none of which has a key under the prefix.
            open.next = commit.glsn().0 + 1;
            return Ok(true);
        }
        same(format!("{} at {}: next GLSN", open.what, open.next), &glsn, &wanted)?;
        let position = open.source.position();
        ensure(position >= open.next && position <= newest + 1, || {
            format!("{} is at {position} after {glsn:?}", open.what)
        })?;
        let Some(found) = found else {
            open.next = open.next.max(position);
            return Ok(false);
        };
        open.next = found.glsn() + 1;
        let excuse = |error: &Error| self.excused(error);
        let (judge, what) = (self.judge(&excuse), || open.what.clone());
        match (&found, &open.feed, &open.keyspace) {
            (Found::Entry(entry), ..) => {
                let (glsn, stream, time) = (entry.glsn, entry.stream, entry.time);
                judge.is_entry(
                    what,
                    &LogEntryRef { glsn, stream, time, payload: entry.payload() },
                )?;
            }
            (Found::Commit(commit), Feed::Watch { space, prefix }, Some(keyspace)) => {
                judge.is_watched(what, commit, Place { space: *space, keyspace }, prefix)?;
            }
            (Found::Commit(commit), ..) => _ = judge.is_commit(what, commit)?,
        }
        Ok(true)
    }

    fn is_fed(&self, feed: &Feed, glsn: u64) -> bool {
        let Some(entry) = self.model.entry(glsn).map(|placed| &placed.entry) else { return false };
        match feed {
            Feed::Entries(stream) => stream.is_none_or(|stream| entry.stream() == stream),
            Feed::Commits => entry.stream() == 0 && !matches!(entry, Entry::Cursor { .. }),
            Feed::Watch { space, prefix } => {
                !self.model.changes_under(*space, prefix, glsn).is_empty()
            }
        }
    }
}
