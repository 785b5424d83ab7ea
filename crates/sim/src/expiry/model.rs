//! Every version of every key, and the time of every commit.

use std::collections::BTreeMap;

/// The number of keys in each keyspace.
pub(super) const KEYS: u64 = 10;

/// A value, and when it expires, in microseconds since 1970 UTC.
pub(super) type Content = (Vec<u8>, Option<u64>);

/// Versions, each with its commit, oldest first.
type Versions = Vec<(u64, Option<Content>)>;

/// The model.
#[derive(Default)]
pub(super) struct Model {
    /// By keyspace and key.
    versions: BTreeMap<(usize, u8), Versions>,
    /// The time of each commit, exact to some microseconds.
    times: BTreeMap<u64, u64>,
    /// The newest commit.
    pub(super) newest: u64,
    /// The newest commit that survives any crash.
    pub(super) acked: u64,
}

impl Model {
    /// The time of the newest commit.
    pub(super) fn last_micros(&self) -> u64 {
        self.times.last_key_value().map_or(0, |(_, micros)| *micros)
    }

    /// Notes the time of a commit.
    pub(super) fn note(&mut self, glsn: u64, micros: u64) {
        self.newest = glsn;
        self.times.insert(glsn, micros);
    }

    /// Adds a version.
    pub(super) fn write(&mut self, place: (usize, u8), glsn: u64, content: Option<Content>) {
        self.versions.entry(place).or_default().push((glsn, content));
    }

    /// The time of a commit.
    pub(super) fn time_of(&self, glsn: u64) -> Option<u64> {
        self.times.get(&glsn).copied()
    }

    /// One of the commits, and its time.
    pub(super) fn commit_at(&self, pick: u64) -> Option<(u64, u64)> {
        let nth = (pick as usize).checked_rem(self.times.len())?;
        self.times.iter().nth(nth).map(|(glsn, micros)| (*glsn, *micros))
    }

    /// The content of a key as of a commit, if it is live at a time.
    pub(super) fn content(&self, space: usize, key: u8, at: u64, now: u64) -> Option<Content> {
        let versions = self.versions.get(&(space, key))?;
        let (_, content) = versions.iter().rfind(|(glsn, _)| *glsn <= at)?;
        content.as_ref().filter(|(_, expires)| expires.is_none_or(|at| at > now)).cloned()
    }

    /// The newest value of a key as of a commit, live or not: the commit that put it, and when it
    /// expires.
    pub(super) fn newest_of(&self, space: usize, key: u8, at: u64) -> Option<(u64, Option<u64>)> {
        let versions = self.versions.get(&(space, key))?;
        let (glsn, content) = versions.iter().rfind(|(glsn, _)| *glsn <= at)?;
        content.as_ref().map(|(_, expires)| (*glsn, *expires))
    }

    /// Removes everything after `glsn`, as a crash does.
    pub(super) fn cut_behind(&mut self, glsn: u64) {
        self.newest = glsn;
        self.acked = self.acked.max(glsn);
        self.times.retain(|at, _| *at <= glsn);
        self.versions.values_mut().for_each(|versions| versions.retain(|(at, _)| *at <= glsn));
    }
}
