//! The keys that may differ between states.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::{Bound, Range};
use std::sync::Arc;

use plimsoll_memory::budget::Kind;
use plimsoll_memory::buffer::Buffer;

use crate::api::commit::Commit;
use crate::api::snapshot::Snapshot;
use crate::api::written::{self, Written};
use crate::engine::Engine;
use crate::read::span::Span;
use crate::types::error::Result;
use crate::types::keyspaces::{Keyspace, is_internal};

/// The keys of a commit are listed if they take at most this many bytes. Otherwise the index is
/// scanned between the first and the last.
const LISTED_BYTES_MAX: usize = 1 << 20;

/// The length of a listed key is stored before it.
const LEN_BYTES: usize = size_of::<u16>();

/// A range of a user's keys.
type UserRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// A keyspace whose states are merged, by the name that it has at each moment.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) name: Arc<str>,
    pub(crate) source: Source,
}

/// The source of the keys to compare.
#[derive(Clone)]
pub(crate) enum Source {
    /// All keys that were written between the two moments.
    Whole,
    /// The keys of a range that were written between the two moments.
    Within(UserRange),
    /// The keys in a part of a list.
    Listed(Arc<KeyList>, Range<usize>),
}

/// Keys, each with its length before it, in memory that is charged to the budget.
pub(crate) struct KeyList(Buffer<u8>);

impl KeyList {
    /// The key at an offset.
    fn at(&self, at: usize) -> &[u8] {
        let (len, rest) = self.0[at..].split_at(LEN_BYTES);
        let len = u16::from_le_bytes([len[0], len[1]]);
        &rest[..usize::from(len)]
    }

    fn push(&mut self, store: &Engine, key: &[u8]) -> Result<()> {
        let bytes = LEN_BYTES + key.len();
        store.committer.writer_memory.in_transaction(true, || Ok(self.0.reserve(bytes)?))?;
        let len = u16::try_from(key.len()).expect("a key has at most MAX_KEY_BYTES");
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(key);
        Ok(())
    }
}

impl Scope {
    pub(crate) fn whole(name: Arc<str>) -> Self {
        Self { name, source: Source::Whole }
    }

    /// Some keyspaces, by name, each once.
    pub(crate) fn whole_of(keyspaces: &[Keyspace]) -> Vec<Self> {
        let names: BTreeSet<&str> = keyspaces.iter().map(Keyspace::name).collect();
        names.into_iter().map(|name| Self::whole(name.into())).collect()
    }

    /// All keyspaces that exist or existed.
    pub(crate) fn all(store: &Engine) -> Vec<Self> {
        let names: BTreeSet<_> = store.reader.keyspaces.names().into_values().collect();
        names.into_iter().map(Self::whole).collect()
    }

    /// The keyspaces that a commit changed, the keys in them, and the chain on which it changed
    /// them; `None` if it only changed the store's own records of keyspaces, cursors, tags and
    /// branches.
    pub(crate) fn of_commit(store: &Engine, commit: &Commit) -> Result<Option<(u32, Vec<Self>)>> {
        // The deletion of a branch deletes the keys that were written on it.
        if commit.changes_branch()? {
            return Ok(None);
        }
        let budget = &store.reader.budget;
        let mut list = KeyList(Buffer::with_capacity(budget, Kind::Staging, 0)?);
        let mut found: Vec<Found> = Vec::new();
        let mut is_listed = true;
        let mut chain = None;
        for change in commit.changes()? {
            let change = change?;
            let is_records = is_internal(change.space()) && change.branch().is_none();
            let Some(name) = change.keyspace().filter(|_| !is_records) else { continue };
            // A transaction writes on one branch.
            chain = Some(change.chain());
            let (key, range) = (change.key(), change.deleted_range());
            is_listed &= range.is_none() && list.0.len() + key.len() < LISTED_BYTES_MAX;
            let last = range.map_or(Bound::Included(key), |(_, end)| end);
            let at = found.iter().rposition(|found| *found.name == *name).unwrap_or_else(|| {
                found.push(Found::new(name, key, list.0.len()));
                found.len() - 1
            });
            found[at].widen(key, last);
            if is_listed {
                // All keys of a keyspace follow each other.
                list.push(store, key)?;
                found[at].listed.end = list.0.len();
            } else {
                list.0.release();
            }
        }
        let list = Arc::new(list);
        let scope = |Found { name, listed, first, last }| {
            let source = match is_listed {
                true => Source::Listed(Arc::clone(&list), listed),
                false => Source::Within((Bound::Included(first), last)),
            };
            Self { name, source }
        };
        let scopes = found.into_iter().map(scope).collect();
        Ok(chain.map(|chain| (chain, scopes)))
    }
}

/// The keys that a commit wrote in a keyspace.
struct Found {
    name: Arc<str>,
    /// Their range in the list.
    listed: Range<usize>,
    first: Vec<u8>,
    last: Bound<Vec<u8>>,
}

impl Found {
    fn new(name: &str, key: &[u8], listed: usize) -> Self {
        let (first, last) = (key.to_vec(), Bound::Included(key.to_vec()));
        Self { name: name.into(), listed: listed..listed, first, last }
    }

    /// Includes the keys from `first` to `last`.
    fn widen(&mut self, first: &[u8], last: Bound<&[u8]>) {
        if *first < *self.first {
            self.first = first.to_vec();
        }
        let is_further = match (last, &self.last) {
            (_, Bound::Unbounded) => false,
            (Bound::Unbounded, _) => true,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
                match a.cmp(b) {
                    Ordering::Equal => matches!(last, Bound::Included(_)),
                    order => order.is_gt(),
                }
            }
        };
        if is_further {
            self.last = last.map(<[u8]>::to_vec);
        }
    }
}

/// An iterator over the keys of a keyspace that may differ between states, in ascending order.
pub(crate) enum Keys {
    Listed(Arc<KeyList>, Range<usize>),
    Written(Vec<Written>),
}

/// A keyspace in one state; `None` if it does not exist there.
pub(crate) type InState<'a> = (Option<&'a Keyspace>, &'a Snapshot);

impl Keys {
    /// The keys of `source` that may differ between one of `bases` and `theirs`.
    pub(crate) fn new(
        store: &Engine,
        source: &Source,
        bases: &[InState<'_>],
        theirs: InState<'_>,
    ) -> Result<Self> {
        let range = match source {
            Source::Listed(list, part) => return Ok(Self::Listed(Arc::clone(list), part.clone())),
            Source::Whole => (Bound::Unbounded, Bound::Unbounded),
            Source::Within(range) => range.clone(),
        };
        let mut written = Vec::new();
        for base in bases {
            let (first, last) =
                if base.1.at() <= theirs.1.at() { (*base, theirs) } else { (theirs, *base) };
            let states = [first.1, last.1];
            let span = |keyspace: &Keyspace| -> Result<Span> {
                Ok(Span::new(store.reader.keyspaces.id_of(keyspace)?, &range))
            };
            // Dropping a keyspace deletes its keys on main. A branch that was forked before the
            // drop still sees them, so compare everything that each state sees.
            if first.0 != last.0 && states.iter().any(|state| state.lens().is_some()) {
                for (keyspace, state) in [first, last] {
                    let Some(keyspace) = keyspace else { continue };
                    written::seen(&mut written, span(keyspace)?, state)?;
                }
                continue;
            }
            let mut add = |(keyspace, states, readable_at): (Option<&Keyspace>, _, _)| {
                let Some(keyspace) = keyspace else { return Ok(()) };
                written::between(&mut written, store, &span(keyspace)?, states, readable_at)
            };
            add((first.0, states, None))?;
            if first.0 != last.0 {
                add((last.0, states, Some(last.1.at())))?;
            }
        }
        Ok(Self::Written(written))
    }

    /// The next key.
    pub(crate) fn next(&mut self, store: &Engine) -> Result<Option<Vec<u8>>> {
        let all = match self {
            Self::Listed(_, part) if part.start == part.end => return Ok(None),
            Self::Listed(list, part) => {
                let key = list.at(part.start).to_vec();
                part.start += LEN_BYTES + key.len();
                return Ok(Some(key));
            }
            Self::Written(written) => written,
        };
        Ok(written::next(all, store)?.map(|(key, _)| key))
    }
}
