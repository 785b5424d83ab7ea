//! The limits that flushes and merges set on the moments that can be read.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::env::moment_set::MomentSet;

/// The limits that flushes and merges have set on readable GLSNs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The youngest deletion that was moved into history.
    pub(crate) deletions_moved: Glsn,
    /// The oldest GLSN at which every keyspace can be read.
    pub(crate) oldest_readable: Glsn,
    /// The moments at which a keyspace can be read, sorted by keyspace. A keyspace that is not
    /// listed has lost no version.
    pub(crate) readable_in: Vec<(u32, MomentSet)>,
    /// The youngest deletion that was dropped together with all versions that it deleted, per
    /// keyspace, sorted. A keyspace that is not listed has lost none. Only an upper bound: the
    /// recorded GLSN may be higher than that of the youngest dropped deletion.
    pub(crate) deletions_dropped_in: Vec<(u32, Glsn)>,
}

impl Limits {
    /// Records that a version of `keyspace`, superseded by `by`, was dropped. Of the moments before
    /// `by`, only the `pins` can still be read.
    pub(crate) fn dropped(&mut self, keyspace: u32, by: Glsn, pins: &Arc<[Glsn]>) {
        self.oldest_readable = self.oldest_readable.max(by);
        let readable = MomentSet { floor: by, pins: Arc::clone(pins) };
        self.restrict(keyspace, &readable);
    }

    /// Removes all moments that are not in `to` from those at which `keyspace` can be read.
    fn restrict(&mut self, keyspace: u32, to: &MomentSet) {
        match self.readable_in.binary_search_by_key(&keyspace, |entry| entry.0) {
            Ok(at) => self.readable_in[at].1 = self.readable_in[at].1.intersection(to),
            Err(at) => self.readable_in.insert(at, (keyspace, MomentSet::all().intersection(to))),
        }
    }

    /// Records that a deletion, the youngest version of a key of `keyspace`, was dropped together
    /// with all versions that it deleted.
    pub(crate) fn deletion_dropped(&mut self, keyspace: u32, deletion: Glsn) {
        raise(&mut self.deletions_dropped_in, keyspace, deletion);
    }

    /// Whether a keyspace can be read at a moment. Before the first commit, it has no keys.
    pub(crate) fn is_readable(&self, keyspace: u32, at: Glsn) -> bool {
        at == Glsn::NONE || self.readable(keyspace).is_none_or(|readable| readable.contains(at))
    }

    /// The oldest GLSN from which a keyspace can be read at every moment.
    pub(crate) fn oldest_readable_in(&self, keyspace: u32) -> Glsn {
        self.readable(keyspace).map_or(Glsn::NONE, |readable| readable.floor)
    }

    /// Whether a keyspace can be read at some moment from `glsn` on and before `superseded_by`.
    pub(crate) fn is_seen(&self, keyspace: u32, glsn: Glsn, superseded_by: Glsn) -> bool {
        self.readable(keyspace).is_none_or(|readable| readable.sees(glsn, superseded_by))
    }

    fn readable(&self, keyspace: u32) -> Option<&MomentSet> {
        let at = self.readable_in.binary_search_by_key(&keyspace, |entry| entry.0).ok()?;
        Some(&self.readable_in[at].1)
    }

    /// The youngest dropped deletion of a keyspace. Younger deletions may still exist.
    pub(crate) fn deletions_dropped_in(&self, keyspace: u32) -> Glsn {
        let limits = &self.deletions_dropped_in;
        let at = limits.binary_search_by_key(&keyspace, |entry| entry.0);
        at.map_or(Glsn::NONE, |at| limits[at].1)
    }

    /// Includes the limits of another job.
    pub(crate) fn merge(&mut self, other: &Limits) {
        self.deletions_moved = self.deletions_moved.max(other.deletions_moved);
        other.readable_in.iter().for_each(|(keyspace, to)| self.restrict(*keyspace, to));
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
