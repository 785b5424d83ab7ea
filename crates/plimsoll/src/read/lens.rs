//! What a branch reads of the store: its own chain, its ancestors up to where the next chain left
//! them, and main up to the fork.
//!
//! The youngest chain of the lineage with a version of a key decides what the branch sees of it,
//! even if that version is a deletion or has expired. Main decides if none has.

use std::borrow::Cow;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::sources::view::{Direction, View};
use crate::read::moments::OpenMoment;
use crate::read::reader::Reader;
use crate::read::span::Span;
use crate::types::as_of::AsOf;
use crate::types::branch_key::{self, Stem};
use crate::types::branches::Lineage;
use crate::types::error::Result;
use crate::types::index_key::{IndexKeyBuf, KeyBuffer, Prefix};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::BRANCHES;
use crate::types::version::Stored;

/// Up to this many chains are looked up one by one, because the filters of the runs answer for most
/// of them. More are searched by seeks, which skip the chains that did not write the key.
const LOOKUPS_MAX: usize = 4;

/// The most moments of its ancestors that a lens keeps open itself.
const PINS_MAX: usize = 8;

/// A branch of an open store, to read and write through.
pub(crate) struct Lens {
    lineage: Arc<Lineage>,
    name: Arc<str>,
    /// The index key of the branch's record.
    record: KeyBuffer,
    /// What is read of the ancestors stays readable while the lens is used, even if the branch is
    /// deleted.
    _pins: Vec<OpenMoment>,
}

impl Lens {
    /// # Errors
    /// The budget has no room for the open moments.
    pub(crate) fn new(
        reader: &Reader,
        name: &str,
        lineage: Arc<Lineage>,
    ) -> Result<Self> {
        let ancestors = lineage.chains[1..].iter().map(|&(_, limit)| limit);
        let limits = std::iter::once(lineage.fork).chain(ancestors).take(PINS_MAX);
        let open = |at| reader.snapshots.open(&reader.budget, || AsOf::unexpiring(at));
        let pins = limits.map(open).collect::<Result<_>>()?;
        let record = IndexKeyBuf::join(Prefix::of(BRANCHES), name.as_bytes());
        Ok(Self { lineage, name: name.into(), record, _pins: pins })
    }

    /// The branch's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// Fails if the branch was deleted up to `at`.
    pub(crate) fn check_exists(&self, view: &Arc<View>, at: Glsn) -> Result<()> {
        let record = view.get(&self.record, at)?;
        let is_there = |stored: Stored<'_>| {
            let record = stored.inline_value().and_then(|record| record.first_chunk());
            record.is_some_and(|chain| u32::from_le_bytes(*chain) == self.lineage.chain)
        };
        if record.is_some_and(|hit| is_there(hit.stored())) {
            return Ok(());
        }
        Err(InvalidInput::NoBranch { name: self.name.to_string() }.into())
    }

    /// The index key of the branch's own versions of a key. If it is too long, it has none.
    pub(crate) fn key(&self, keyspace: u32, user_key: &[u8]) -> KeyBuffer {
        Stem::new(self.lineage.group, keyspace, user_key).of_chain(self.lineage.chain)
    }

    /// The index keys in which the branch, and the chains that share its group, store the keys of a
    /// span of main.
    pub(crate) fn span(&self, main: &Span) -> Span {
        let group = self.lineage.group;
        Span::between(
            branch_key::lower_bound(group, main.lower()),
            branch_key::upper_bound(group, main.upper()),
        )
    }

    /// The index keys of all chains of the group.
    pub(crate) fn group_span(&self) -> Span {
        let group = self.lineage.group;
        Span::between(
            Bound::Included(branch_key::group_begin(group)),
            branch_key::group_end(group),
        )
    }

    /// The number of a chain in [`Lineage::chains`], if it belongs to the lineage.
    pub(crate) fn place_of(&self, chain: u32) -> Option<usize> {
        let place = self.place_from(0, chain);
        self.lineage.chains.get(place).filter(|(id, _)| *id == chain).map(|_| place)
    }

    /// The number of the first chain of the lineage, from number `from` on, whose id is at most
    /// `chain`; the number of chains if there is none.
    pub(crate) fn place_from(&self, from: usize, chain: u32) -> usize {
        let rest = &self.lineage.chains[from..];
        // Mostly the first.
        if rest.first().is_some_and(|(id, _)| *id <= chain) {
            return from;
        }
        from + rest.partition_point(|(id, _)| *id > chain)
    }

    /// The moment up to which main is read at a moment of the branch.
    pub(crate) fn on_main<'m>(&self, at: AsOf<'m>) -> AsOf<'m> {
        at.up_to(self.lineage.fork)
    }

    /// Where the version that the branch sees at `at` of one of its own index keys is read: the
    /// index key, and the moment. The version may be a deletion or have expired.
    pub(crate) fn resolve<'k, 'm>(
        &self,
        reader: &Reader,
        own_key: &'k [u8],
        at: AsOf<'m>,
    ) -> Result<(Cow<'k, [u8]>, AsOf<'m>)> {
        let has = |key: &[u8], at: AsOf<'_>| reader.contains(key, AsOf::unexpiring(at.glsn));
        if !branch_key::is_too_long(own_key) {
            if has(own_key, at)? {
                return Ok((Cow::Borrowed(own_key), at));
            }
            let (stem, _) = branch_key::split(own_key);
            let ancestors = &self.lineage.chains[1..];
            if ancestors.len() < LOOKUPS_MAX {
                for &(chain, limit) in ancestors {
                    let (key, at) = (branch_key::key_of(stem, chain), at.up_to(limit));
                    if has(&key, at)? {
                        return Ok((Cow::Owned(key.get().to_vec()), at));
                    }
                }
            } else if let Some(place) =
                reader.read(|view| self.decide(view, stem, 1, at.glsn))?
            {
                let (chain, limit) = self.lineage.chains[place];
                let key = branch_key::key_of(stem, chain).get().to_vec();
                return Ok((Cow::Owned(key), at.up_to(limit)));
            }
        }
        let main = branch_key::main_key(own_key).expect("the key was encoded by `Lens::key`");
        Ok((Cow::Owned(main), self.on_main(at)))
    }

    /// The number of the first chain of the lineage, from number `from` on, that has a version of
    /// the key with this stem which the branch sees at `at`. Costs a seek for each chain that wrote
    /// the key, at most one for each chain of the lineage.
    pub(crate) fn decide(
        &self,
        view: &Arc<View>,
        stem: &[u8],
        from: usize,
        at: Glsn,
    ) -> Result<Option<usize>> {
        let chains = &self.lineage.chains;
        let Some(&(first, _)) = chains.get(from) else { return Ok(None) };
        let (first, end) = (branch_key::key_of(stem, first), branch_key::after_chains(stem));
        let range = (Bound::Included(first.get()), Bound::Excluded(&end[..]));
        let mut walk =
            view.visible(range.0, range.1, AsOf::unexpiring(at), Direction::Forward)?;
        let (mut key, mut next) = (Vec::new(), from);
        loop {
            let Some(glsn) = walk.next(&mut key)?.map(|version| version.glsn) else {
                return Ok(None);
            };
            let (_, chain) = branch_key::split(&key);
            next = self.place_from(next, chain);
            let Some(&(wanted, limit)) = chains.get(next) else { return Ok(None) };
            if wanted == chain {
                if glsn <= limit || view.get(&key, limit)?.is_some() {
                    return Ok(Some(next));
                }
                next += 1;
            }
            let Some(&(wanted, _)) = chains.get(next) else { return Ok(None) };
            walk.skip(&mut key, &branch_key::key_of(stem, wanted));
        }
    }
}

impl fmt::Debug for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lens({:?}, chain {})", self.name, self.lineage.chain)
    }
}
