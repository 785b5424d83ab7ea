//! The keys that differ between two states of branches.
//!
//! Only keys with a version that just one of the states contains are compared, because no other key
//! can differ. If the keyspace was dropped between the states, all keys of both are compared,
//! because branches do not store the drop.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::history::{Difference, Measure, VersionInfo, measure};
use crate::api::snapshot::Snapshot;
use crate::api::written::{self, Written};
use crate::engine::{Engine, keyspace_lives};
use crate::read::point::find;
use crate::read::span::Span;
use crate::txn::range::Range;
use crate::types::as_of::AsOf;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspace;

/// The keys whose values differ between two states.
pub(crate) struct StateDiff {
    store: Arc<Engine>,
    states: [State; 2],
    /// `None` after the end.
    keys: Option<Keys>,
    /// Whether equal values that expire at different times count as different.
    compares_expiries: bool,
}

/// A keyspace in a state.
struct State {
    snapshot: Snapshot,
    /// `None` if the keyspace did not exist.
    keyspace: Option<Keyspace>,
}

/// The keys that may differ, in ascending order.
enum Keys {
    /// Both states have the same keyspace.
    Written(Vec<Written>),
    /// The states have different keyspaces of this name.
    All {
        scans: Vec<Scan>,
        /// The commit that dropped the older keyspace.
        dropped: Glsn,
        /// The number of the state that has the newer one.
        newer: usize,
    },
}

/// All keys of one state.
struct Scan {
    range: Range<'static>,
    /// Whether the last key that the range returned is not used yet. The range keeps the key, and
    /// charges its memory.
    is_ahead: bool,
}

/// The version of a key that a state sees, which has not expired there.
struct Seen {
    index_key: Vec<u8>,
    measure: Measure,
    at: AsOf<'static>,
}

impl State {
    fn version(&self, key: &[u8]) -> Result<Option<Seen>> {
        let Some(keyspace) = &self.keyspace else { return Ok(None) };
        let key = self.snapshot.key(keyspace, key)?;
        let (key, at) = self.snapshot.place(&key)?;
        let hit = self.snapshot.store().reader.read(|view| {
            let hit = find(view, &key, at)?;
            Ok(hit.map(|hit| measure(&key, hit.glsn(), hit.stored())))
        })?;
        Ok(hit.map(|measure| Seen { index_key: key.into_owned(), measure, at }))
    }

    /// The commit of the newest version of a key, which may be a deletion or have expired.
    fn written_by(&self, key: &[u8]) -> Result<Option<Glsn>> {
        let Some(keyspace) = &self.keyspace else { return Ok(None) };
        let key = self.snapshot.key(keyspace, key)?;
        let (key, at) = self.snapshot.place(&key)?;
        let reader = &self.snapshot.store().reader;
        reader.read(|view| Ok(view.get(&key, at.glsn)?.map(|hit| hit.glsn())))
    }
}

impl Scan {
    /// The next key, without advancing past it.
    fn peek(&mut self) -> Result<Option<&[u8]>> {
        if !self.is_ahead {
            self.is_ahead = self.range.advance()?.is_some();
        }
        Ok(self.ahead())
    }

    fn ahead(&self) -> Option<&[u8]> {
        self.is_ahead.then(|| self.range.last_key())
    }
}

impl StateDiff {
    pub(crate) fn new(
        keyspace: &Keyspace,
        snapshots: [&Snapshot; 2],
        prefix: &[u8],
    ) -> Result<Self> {
        let store = Arc::clone(snapshots[0].store());
        store.check_open()?;
        let ids = keyspace_lives::ids(&store, keyspace)?;
        let name = keyspace.name();
        let state = |snapshot: &Snapshot| -> Result<(State, usize)> {
            let at = snapshot.read_at()?.glsn;
            let place = keyspace_lives::position_at(&store, name, &ids, at)?;
            let id = place.map(|place| ids[place]);
            let keyspace = id.map(|id| store.reader.keyspaces.handle(id, name.into()));
            Ok((State { snapshot: snapshot.clone(), keyspace }, place.unwrap_or(ids.len())))
        };
        let ((first, a), (second, b)) = (state(snapshots[0])?, state(snapshots[1])?);
        let keys = if a == b {
            let mut keys = Vec::new();
            if let Some(id) = ids.get(a) {
                written::between(&mut keys, &store, &Span::prefix(*id, prefix), snapshots, None)?;
            }
            Keys::Written(keys)
        } else {
            let scans = [&first, &second].into_iter().filter_map(|state| {
                let keyspace = state.keyspace.as_ref()?;
                let range = state.snapshot.prefix(keyspace, prefix);
                Some(range.map(|range| Scan { range: range.keys_only(), is_ahead: false }))
            });
            let scans = scans.collect::<Result<_>>()?;
            let dropped = keyspace_lives::dropped_at(&store, ids[a.min(b)], name)?;
            let dropped = dropped.unwrap_or(Glsn::NONE);
            Keys::All { scans, dropped, newer: usize::from(b > a) }
        };
        let states = [first, second];
        Ok(Self { store, states, keys: Some(keys), compares_expiries: false })
    }

    /// Also returns keys that have the same value in both states if it expires at different times.
    pub(crate) fn comparing_expiries(mut self) -> Self {
        self.compares_expiries = true;
        self
    }

    /// The next difference; an error ends the iteration.
    pub(crate) fn next(&mut self) -> Option<Result<Difference>> {
        let next = self.step().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.keys = None;
        }
        next
    }

    fn step(&mut self) -> Result<Option<Difference>> {
        self.store.check_open()?;
        let Self { store, states, keys, compares_expiries } = self;
        let Some(keys) = keys else { return Ok(None) };
        loop {
            let Some((key, by)) = keys.next(store)? else { return Ok(None) };
            let [before, after] = states;
            let seen = [before.version(&key)?, after.version(&key)?];
            let has_other_expiry = || match &seen {
                [Some(before), Some(after)] => before.measure.expiry() != after.measure.expiry(),
                _ => false,
            };
            if is_same(store, &seen)? && !(*compares_expiries && has_other_expiry()) {
                continue;
            }
            let by = match keys {
                Keys::Written(_) => by,
                Keys::All { newer, dropped, .. } => {
                    states[*newer].written_by(&key)?.map_or(*dropped, |by| by.max(*dropped))
                }
            };
            let [before, after] = seen.map(|seen| {
                seen.map(|seen| VersionInfo::new(store, &seen.index_key, seen.measure)).transpose()
            });
            return Ok(Some(Difference { key, by, before: before?, after: after? }));
        }
    }
}

impl Keys {
    /// The next key. If both states have the same keyspace, also the newest commit that only one of
    /// them contains and that wrote the key.
    fn next(&mut self, store: &Engine) -> Result<Option<(Vec<u8>, Glsn)>> {
        let scans = match self {
            Self::Written(all) => return written::next(all, store),
            Self::All { scans, .. } => scans,
        };
        let mut first: Option<Vec<u8>> = None;
        for scan in scans.iter_mut() {
            if let Some(key) = scan.peek()?
                && first.as_ref().is_none_or(|first| *key < **first)
            {
                first = Some(key.to_vec());
            }
        }
        for scan in scans {
            scan.is_ahead &= scan.ahead() != first.as_deref();
        }
        Ok(first.map(|key| (key, Glsn::NONE)))
    }
}

/// Whether both states have the same value.
fn is_same(store: &Engine, seen: &[Option<Seen>; 2]) -> Result<bool> {
    let (before, after) = match seen {
        [None, None] => return Ok(true),
        [Some(before), Some(after)] => (before, after),
        _ => return Ok(false),
    };
    let is_one = before.measure.glsn == after.measure.glsn && before.index_key == after.index_key;
    if is_one || before.measure.bytes != after.measure.bytes {
        return Ok(is_one);
    }
    let reader = |seen: &Seen| store.reader.reader(&seen.index_key, seen.at);
    match (reader(before)?, reader(after)?) {
        (Some(mut before), Some(mut after)) => before.has_bytes_of(&mut after),
        _ => Ok(false),
    }
}
