//! Which versions flushes and merges have made unreadable.

use plimsoll_log::glsn::Glsn;

/// The limits that flushes and merges have set on readable GLSNs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The youngest deletion that was moved into history.
    pub(crate) deletions_moved: Glsn,
    /// The oldest GLSN at which every keyspace can be read.
    pub(crate) oldest_readable: Glsn,
    /// The same per keyspace, sorted. A keyspace that is not listed has lost no version.
    pub(crate) oldest_readable_in: Vec<(u32, Glsn)>,
    /// The youngest deletion that was dropped together with all versions that it deleted, per
    /// keyspace, sorted. A keyspace that is not listed has lost none. An upper bound: it may be too
    /// young.
    pub(crate) deletions_dropped_in: Vec<(u32, Glsn)>,
}

impl Limits {
    /// Records that a version of `keyspace`, superseded by `by`, was dropped.
    pub(crate) fn dropped(&mut self, keyspace: u32, by: Glsn) {
        self.oldest_readable = self.oldest_readable.max(by);
        raise(&mut self.oldest_readable_in, keyspace, by);
    }

    /// Records that a deletion, the youngest version of a key of `keyspace`, was dropped together
    /// with all versions that it deleted.
    pub(crate) fn deletion_dropped(&mut self, keyspace: u32, deletion: Glsn) {
        raise(&mut self.deletions_dropped_in, keyspace, deletion);
    }

    /// The oldest GLSN at which a keyspace can be read.
    pub(crate) fn oldest_readable_in(&self, keyspace: u32) -> Glsn {
        limit_of(&self.oldest_readable_in, keyspace)
    }

    /// The youngest dropped deletion of a keyspace. Younger deletions may still exist.
    pub(crate) fn deletions_dropped_in(&self, keyspace: u32) -> Glsn {
        limit_of(&self.deletions_dropped_in, keyspace)
    }

    /// Includes the limits of another job.
    pub(crate) fn merge(&mut self, other: &Limits) {
        self.deletions_moved = self.deletions_moved.max(other.deletions_moved);
        other.oldest_readable_in.iter().for_each(|&(keyspace, by)| self.dropped(keyspace, by));
        other
            .deletions_dropped_in
            .iter()
            .for_each(|&(keyspace, glsn)| self.deletion_dropped(keyspace, glsn));
        self.oldest_readable = self.oldest_readable.max(other.oldest_readable);
    }
}

/// Raises the entry of a keyspace to `to`.
fn raise(limits: &mut Vec<(u32, Glsn)>, keyspace: u32, to: Glsn) {
    match limits.binary_search_by_key(&keyspace, |entry| entry.0) {
        Ok(at) => limits[at].1 = limits[at].1.max(to),
        Err(at) => limits.insert(at, (keyspace, to)),
    }
}

fn limit_of(limits: &[(u32, Glsn)], keyspace: u32) -> Glsn {
    limits.binary_search_by_key(&keyspace, |entry| entry.0).map_or(Glsn::NONE, |at| limits[at].1)
}
