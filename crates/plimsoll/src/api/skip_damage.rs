//! Skips damage: finds the unreadable part at the front of a range, and where the range becomes
//! readable.

use std::fmt;
use std::ops::Bound;

use plimsoll_log::glsn::Glsn;

use crate::api::admin::diagnose::is_damage;
use crate::api::snapshot::Snapshot;
use crate::index::run::survey::survey;
use crate::index::sources::view::Direction;
use crate::read::span::Span;
use crate::types::damage::{recover_command, verify_command};
use crate::types::error::{Error, Result, show_key};
use crate::types::index_key::IndexKey;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::Keyspace;

/// An unreadable part of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// Name of the keyspace.
    pub keyspace: String,
    /// The key whose value cannot be read; `None` if the affected keys are unknown.
    pub key: Option<Vec<u8>>,
    /// The commit that wrote the value.
    pub glsn: Option<Glsn>,
    /// Bounds of the skipped keys; an iterator can continue past them.
    pub bounds: (Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// The reason.
    pub error: Error,
    /// Suggested remedy.
    pub hint: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.key, self.glsn) {
            (Some(key), Some(glsn)) => {
                let key = show_key(key);
                write!(
                    f,
                    "the value of {key} in keyspace {:?}, written at GLSN {glsn}, cannot be read",
                    self.keyspace
                )?;
            }
            _ => write!(
                f,
                "keys of keyspace {:?} {}{} cannot be read",
                self.keyspace,
                Edge("from", "behind", &self.bounds.0),
                Edge(" to", " before", &self.bounds.1)
            )?,
        }
        write!(f, ": {}; {}", self.error, self.hint)
    }
}

/// Formats one end of a range in words, with the words for an included and for an excluded bound.
struct Edge<'a>(&'a str, &'a str, &'a Bound<Vec<u8>>);

impl fmt::Display for Edge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.2 {
            Bound::Included(key) => write!(f, "{} {}", self.0, show_key(key)),
            Bound::Excluded(key) => write!(f, "{} {}", self.1, show_key(key)),
            Bound::Unbounded => Ok(()),
        }
    }
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

impl Snapshot {
    /// Finds the unreadable part at the front of a range (at its end if `reverse`), after an
    /// iteration over the range failed there with [`Error::Corrupt`] or [`Error::Dropped`]. The
    /// iteration can continue past [`Skipped::bounds`]. Returns `None` if the front reads correctly
    /// on this second attempt.
    ///
    /// # Errors
    /// [`Error::Trimmed`], disk errors, or the budget. On a branch other than main, also the error
    /// of the iteration if pages are damaged, and not only a value.
    pub fn skip_damage(
        &self,
        keyspace: &Keyspace,
        range: impl KeyRange,
        reverse: bool,
    ) -> Result<Option<Skipped>> {
        let range = (range.start_key(), range.end_key());
        let store = self.store();
        let id = store.reader.keyspaces.id_of(keyspace)?;
        let first = {
            let keys = self.range(keyspace, range)?.keys_only();
            let mut keys = if reverse { keys.reverse() } else { keys };
            keys.advance().map(|pair| pair.map(|(key, _)| key.to_vec()))
        };
        match first {
            Ok(None) => Ok(None),
            Ok(Some(key)) => self.skip_value(keyspace, key),
            Err(error) if is_damage(&error) && self.lens().is_none() => {
                self.skip_pages(keyspace, id, range, reverse, error).map(Some)
            }
            Err(error) => Err(error),
        }
    }

    fn skip_value(&self, keyspace: &Keyspace, key: Vec<u8>) -> Result<Option<Skipped>> {
        let store = self.store();
        let Some(mut value) = self.get_reader(keyspace, &key)? else { return Ok(None) };
        let glsn = value.glsn();
        let mut piece = vec![0; 16 << 10];
        let error = loop {
            match value.read_piece(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if is_damage(&error) || matches!(error, Error::Dropped { .. }) => {
                    break error;
                }
                Err(error) => return Err(error),
            }
        };
        let hint = match error {
            Error::Dropped { .. } => "other moments of the key can be read".to_owned(),
            _ => format!("`{}` makes a store from the readable data", recover_command(&store.path)),
        };
        Ok(Some(Skipped {
            keyspace: keyspace.name().to_owned(),
            glsn: Some(glsn),
            bounds: (Bound::Included(key.clone()), Bound::Included(key.clone())),
            key: Some(key),
            error,
            hint,
        }))
    }

    /// For damaged pages of a run: finds the next key from which an iterator can continue.
    fn skip_pages(
        &self,
        keyspace: &Keyspace,
        id: u32,
        range: Bounds<'_>,
        reverse: bool,
        error: Error,
    ) -> Result<Skipped> {
        let store = self.store();
        let span = Span::new(id, &range);
        let is_ahead = |key: &[u8]| match (reverse, span.lower(), span.upper()) {
            (false, Bound::Included(from), _) => key >= from,
            (false, Bound::Excluded(from), _) => key > from,
            (true, _, Bound::Included(to)) => key <= to,
            (true, _, Bound::Excluded(to)) => key < to,
            _ => true,
        };
        let within = |key: &[u8]| match (reverse, span.lower(), span.upper()) {
            (true, Bound::Included(from), _) => key >= from,
            (true, Bound::Excluded(from), _) => key > from,
            (false, _, Bound::Included(to)) => key <= to,
            (false, _, Bound::Excluded(to)) => key < to,
            _ => true,
        };
        let view = store.reader.index.sources.view();
        let mut candidates: Vec<Vec<u8>> = Vec::new();
        for run in view.all_runs() {
            for table in run.tables().iter() {
                // Iteration can resume at a key of some leaf or at an edge of the lost part; one
                // key of each leaf is enough.
                let mut seen = 0u32;
                let found = survey(
                    Some(&**table.file.source()),
                    &table.info,
                    &store.reader.budget,
                    &mut |version| {
                        if seen.is_multiple_of(CANDIDATE_EVERY)
                            && is_ahead(version.key)
                            && within(version.key)
                        {
                            candidates.push(version.key.to_vec());
                        }
                        seen += 1;
                        Ok(())
                    },
                )?;
                let edges =
                    found.lost.into_iter().map(|lost| if reverse { lost.first } else { lost.last });
                candidates.extend(edges.filter(|key| is_ahead(key) && within(key)));
            }
        }
        candidates.sort_unstable();
        candidates.dedup();
        if reverse {
            candidates.reverse();
        }
        let resumed = candidates
            .into_iter()
            .find(|key| self.can_begin(&span, key, reverse))
            .map(|key| IndexKey::new(&key).user_key().to_vec());
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let edge = resumed.map(Bound::Excluded);
        let bounds = match (reverse, edge) {
            (false, edge) => (owned(range.0), edge.unwrap_or_else(|| owned(range.1))),
            (true, edge) => (edge.unwrap_or_else(|| owned(range.0)), owned(range.1)),
        };
        let hint = format!("`{}` reports the loss and the remedy", verify_command(&store.path));
        Ok(Skipped {
            keyspace: keyspace.name().to_owned(),
            key: None,
            glsn: None,
            bounds,
            error,
            hint,
        })
    }

    /// Whether an iterator can start at an index key.
    fn can_begin(&self, span: &Span, key: &[u8], reverse: bool) -> bool {
        let view = self.store().reader.index.sources.view();
        let (lower, upper, direction) = match reverse {
            false => (Bound::Included(key), span.upper(), Direction::Forward),
            true => (span.lower(), Bound::Included(key), Direction::Backward),
        };
        let begun = self.read_at().and_then(|at| view.visible(lower, upper, at, direction));
        begun.and_then(|mut keys| keys.next(&mut Vec::new()).map(|_| ())).is_ok()
    }
}

/// Sampling interval: one version in this many is tried as a restart point.
const CANDIDATE_EVERY: u32 = 16;
