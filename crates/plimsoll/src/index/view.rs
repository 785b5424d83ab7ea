//! The sources of the index at one moment, and reading them as of a GLSN.

use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::error::Result;
use crate::version::{Stored, Version};

/// The sources at one moment: memtables, adopted runs, runs, history runs. Holding it keeps their files.
#[derive(Debug)]
pub(crate) struct View;

/// A version that was found; it pins where it stands.
#[derive(Debug)]
pub(crate) struct Hit;

impl Hit {
    /// The commit that wrote it.
    pub(crate) fn glsn(&self) -> Glsn {
        unimplemented!()
    }

    /// What it stored.
    pub(crate) fn stored(&self) -> Stored<'_> {
        unimplemented!()
    }
}

/// Which way a walk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl View {
    /// The newest version of `key` that is not younger than `at`, deletions included.
    pub(crate) fn get(self: &Arc<Self>, key: &[u8], at: Glsn) -> Result<Option<Hit>> {
        let _ = (key, at);
        unimplemented!()
    }

    /// The youngest version of `key` that is younger than `after`.
    pub(crate) fn changed(&self, key: &[u8], after: Glsn) -> Result<Option<Glsn>> {
        let _ = (key, after);
        unimplemented!()
    }

    /// Some version in the range of keys that is younger than `after`: its key and GLSN. Looks only at sources that hold such.
    pub(crate) fn changed_in(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        after: Glsn,
    ) -> Result<Option<(Vec<u8>, Glsn)>> {
        let _ = (lower, upper, after);
        unimplemented!()
    }

    /// Walks the keys of a range as of `at`, each with its newest version that is not younger; deleted keys are left out.
    pub(crate) fn visible(
        self: &Arc<Self>,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        at: Glsn,
        direction: Direction,
    ) -> Result<Visible> {
        let _ = (lower, upper, at, direction);
        unimplemented!()
    }

    /// Walks all versions of a range that are younger than `after` and not younger than `upto`, deletions and history included: by key,
    /// newest first.
    pub(crate) fn versions(
        self: &Arc<Self>,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        after: Glsn,
        upto: Glsn,
    ) -> Result<Versions> {
        let _ = (lower, upper, after, upto);
        unimplemented!()
    }

    /// Oldest moment that can be read.
    pub(crate) fn oldest_readable(&self) -> Glsn {
        unimplemented!()
    }
}

/// A walk over keys as of one moment.
#[derive(Debug)]
pub(crate) struct Visible;

impl Visible {
    /// The next key's version, lent until the next call.
    pub(crate) fn next(&mut self) -> Result<Option<Version<'_>>> {
        unimplemented!()
    }
}

/// A walk over all versions.
#[derive(Debug)]
pub(crate) struct Versions;

impl Versions {
    /// The next version, lent until the next call.
    pub(crate) fn next(&mut self) -> Result<Option<Version<'_>>> {
        unimplemented!()
    }
}
