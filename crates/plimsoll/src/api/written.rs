//! The keys that were written between two moments, or between two states of branches.

use std::collections::BTreeMap;

use plimsoll_log::glsn::Glsn;

use crate::api::history::{Measure, begin, charge, measure};
use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::index::iter::handle::IteratorHandle;
use crate::index::iter::versions::Versions;
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::txn::range::Range;
use crate::types::branch_key;
use crate::types::error::Result;
use crate::types::index_key::IndexKey;

/// The part of an iterator's charge that covers its owner's memory.
const OWNER_BYTES: usize = 512;

/// Chains in ascending order. The two moments of each select its versions after the first moment,
/// up to the second.
pub(crate) type Chains = Vec<Moments>;

/// A chain and two moments.
type Moments = (u32, (Glsn, Glsn));

/// Whether a version of an index key is between the moments of its chain.
fn is_between(chains: &Chains, key: &[u8], glsn: Glsn) -> bool {
    let (_, chain) = branch_key::split(key);
    let place = chains.binary_search_by_key(&chain, |(chain, _)| *chain);
    place.is_ok_and(|place| {
        let (_, (after, upto)) = chains[place];
        glsn > after && glsn <= upto
    })
}

/// The index keys in a span that were written or deleted between two moments, each with its newest
/// version up to the second moment.
pub(crate) struct Changes {
    versions: IteratorHandle<Versions>,
    /// The index key of the last change.
    key: Vec<u8>,
    /// The last change, until it is taken.
    head: Option<Measure>,
    /// For keys on branches: the chains whose changes are requested, each with its moments.
    chains: Option<Chains>,
    /// Memory of the owner of this iterator, which is charged together with its own.
    user_bytes: usize,
}

impl Changes {
    pub(crate) fn new(
        store: &Engine,
        span: Span,
        (after, upto): (Glsn, Glsn),
        readable_at: [Glsn; 2],
    ) -> Result<Self> {
        // Whether the moments are readable is checked here to fail early, and again in each view
        // that the iterator uses.
        let view = store.reader.index.sources.current_view();
        readable_at.into_iter().try_for_each(|at| view.check_readable(&span.first(), at))?;
        let versions = Versions::new(span.into_range(), after, upto).readable_at(readable_at);
        let versions = begin(store, versions)?;
        Ok(Self { versions, key: Vec::new(), head: None, chains: None, user_bytes: 0 })
    }

    /// Restricts a span of keys on branches to changes of these chains. Several changes of one key
    /// may be returned.
    pub(crate) fn of_chains(self, chains: Chains) -> Self {
        Self { chains: Some(chains), ..self }
    }

    /// Advances to the next key if the last change was taken; false at the end.
    pub(crate) fn advance(&mut self, store: &Engine) -> Result<bool> {
        if self.head.is_none() {
            let Self { versions, key, chains, .. } = self;
            self.head = store.reader.step(versions, key, |versions, key| {
                while let Some(version) = versions.next(key)? {
                    let found = measure(version.key, version.glsn, version.stored);
                    let is_wanted = match &*chains {
                        None => versions.is_first_of_key(),
                        Some(chains) => is_between(chains, key, found.glsn),
                    };
                    if is_wanted {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            })?;
            self.charge(store)?;
        }
        Ok(self.head.is_some())
    }

    fn charge(&mut self, store: &Engine) -> Result<()> {
        let chains = self.chains.as_ref().map_or(0, Vec::capacity) * size_of::<Moments>();
        let bytes = self.key.capacity() + chains + self.user_bytes;
        charge(store, &mut self.versions, OWNER_BYTES + bytes)
    }

    /// Also charges `bytes` for memory of the owner of this iterator.
    fn charge_user(&mut self, store: &Engine, bytes: usize) -> Result<()> {
        if bytes == self.user_bytes {
            return Ok(());
        }
        self.user_bytes = bytes;
        self.charge(store)
    }

    /// The user's part of the key.
    pub(crate) fn user_key(&self) -> &[u8] {
        IndexKey::new(&self.key).user_key()
    }

    /// The index key.
    pub(crate) fn index_key(&self) -> &[u8] {
        &self.key
    }

    /// Takes the last change, so that the next call of `advance` advances.
    pub(crate) fn take_head(&mut self) -> Option<Measure> {
        self.head.take()
    }
}

/// Keys of one keyspace: those written between two states, on main or on a group of branches; or
/// all keys that one state sees.
pub(crate) struct Written {
    keys: Keys,
    /// The user's key of the last change.
    key: Vec<u8>,
    /// The newest commit that wrote this key between the states.
    by: Glsn,
    is_used: bool,
}

/// Where the keys come from.
enum Keys {
    Changes(Changes),
    Seen(Box<Range<'static>>),
}

impl Written {
    fn new(keys: Keys) -> Self {
        Self { keys, key: Vec::new(), by: Glsn::NONE, is_used: true }
    }

    /// Advances to the next key if the last one was used; false at the end.
    fn advance(&mut self, store: &Engine) -> Result<bool> {
        if !self.is_used {
            return Ok(true);
        }
        self.key.clear();
        self.by = Glsn::NONE;
        let changes = match &mut self.keys {
            Keys::Changes(changes) => changes,
            Keys::Seen(range) => {
                let next = range.advance()?;
                self.is_used = next.is_none();
                next.into_iter().for_each(|(key, _)| self.key.extend_from_slice(key));
                return Ok(!self.is_used);
            }
        };
        // Several chains of a group may have written the key.
        while changes.advance(store)? {
            let key = branch_key::user_key(changes.index_key());
            if self.is_used {
                self.key.extend_from_slice(&key);
                self.is_used = false;
            } else if *key != *self.key {
                break;
            }
            let by = changes.take_head().map(|head| head.glsn);
            self.by = self.by.max(by.unwrap_or_default());
        }
        changes.charge_user(store, self.key.capacity())?;
        Ok(!self.is_used)
    }
}

/// The next key of all lists, in ascending order, and the newest commit that wrote it.
pub(crate) fn next(all: &mut Vec<Written>, store: &Engine) -> Result<Option<(Vec<u8>, Glsn)>> {
    let mut at = 0;
    while let Some(written) = all.get_mut(at) {
        match written.advance(store)? {
            true => at += 1,
            false => drop(all.swap_remove(at)),
        }
    }
    let Some(key) = all.iter().map(|written| &written.key).min().cloned() else {
        return Ok(None);
    };
    let mut by = Glsn::NONE;
    for written in all.iter_mut().filter(|written| written.key == key) {
        by = by.max(written.by);
        written.is_used = true;
    }
    Ok(Some((key, by)))
}

/// Adds the keys in a span of main that a state sees. The commits that wrote them are unknown.
pub(crate) fn seen(all: &mut Vec<Written>, span: Span, state: &Snapshot) -> Result<()> {
    let range = state.scan(span)?.keys_only();
    all.push(Written::new(Keys::Seen(Box::new(range))));
    Ok(())
}

/// Adds the keys in a span of main that were written between two states, on main or on the branches
/// that they see: those with versions that only one of the states contains. On main, `readable_at`
/// must be a readable moment; without it, both moments must be readable.
pub(crate) fn between(
    all: &mut Vec<Written>,
    store: &Engine,
    span: &Span,
    states: [&Snapshot; 2],
    readable_at: Option<Glsn>,
) -> Result<()> {
    let mut add = |changes| all.push(Written::new(Keys::Changes(changes)));
    let ends = states.map(|state| {
        let fork = state.lens().map_or(Glsn::MAX, |lens| lens.ancestry().main);
        fork.min(state.at())
    });
    let (from, to) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
    if from < to || states.iter().all(|state| state.lens().is_none()) {
        let readable_at = readable_at.map_or([from, to], |at| [at, at]);
        add(Changes::new(store, span.clone(), (from, to), readable_at)?);
    }
    let lenses = states.map(Snapshot::lens);
    let same_group = |a: &Lens, b: &Lens| a.ancestry().group == b.ancestry().group;
    for (place, lens) in lenses.iter().enumerate() {
        let Some(lens) = lens else { continue };
        if place == 1 && lenses[0].is_some_and(|first| same_group(first, lens)) {
            continue;
        }
        if let Some((chains, moments)) = chains_between(lens.ancestry().group, states) {
            let changes = Changes::new(store, lens.span(span), moments, [moments.1; 2])?;
            add(changes.of_chains(chains));
        }
    }
    Ok(())
}

/// The chains of a group that two states do not see up to the same moment, and the moments between
/// which all versions that only one of the states sees were written.
fn chains_between(group: u32, states: [&Snapshot; 2]) -> Option<(Chains, (Glsn, Glsn))> {
    // For each chain: the moments up to which each state sees it, and the moment at which it
    // begins.
    let mut seen: BTreeMap<u32, ([Option<Glsn>; 2], Glsn)> = BTreeMap::new();
    for (side, state) in states.iter().enumerate() {
        let Some(lens) = state.lens().filter(|lens| lens.ancestry().group == group) else {
            continue;
        };
        let ancestry = lens.ancestry();
        for (place, (chain, limit)) in ancestry.chains.iter().enumerate() {
            let next = ancestry.chains.get(place + 1).map_or(ancestry.main, |next| next.1);
            let begin = next.min(state.at());
            let seen = seen.entry(*chain).or_insert(([None; 2], begin));
            seen.0[side] = Some((*limit).min(state.at()));
            seen.1 = seen.1.min(begin);
        }
    }
    let (mut chains, mut moments) = (Vec::new(), None::<(Glsn, Glsn)>);
    for (chain, (ends, begin)) in seen {
        let [a, b] = ends.map(|end| end.unwrap_or(begin));
        if a != b {
            chains.push((chain, (a.min(b), a.max(b))));
            let (from, to) = moments.unwrap_or((Glsn::MAX, Glsn::NONE));
            moments = Some((from.min(a).min(b), to.max(a).max(b)));
        }
    }
    moments.map(|moments| (chains, moments))
}
