//! The part of the store that a branch reads: its own chain, its ancestors up to where the next
//! chain left them, and main up to the fork.
//!
//! The youngest chain of the lineage with a version of a key decides what the branch sees of it,
//! even if that version is a deletion or has expired. Main decides if none has.

use std::borrow::Cow;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::sources::view::{Direction, View};
use crate::read::open_moments::OpenMoment;
use crate::read::reader::Reader;
use crate::read::span::Span;
use crate::types::as_of::AsOf;
use crate::types::branch_key::{self, Stem};
use crate::types::branches::{Ancestry, chain_key, is_of_branch};
use crate::types::error::Result;
use crate::types::index_key::KeyBuffer;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::BRANCHES;

/// Up to this many chains are looked up one by one, because the filters of the runs answer for most
/// of them. More are searched by seeks, which skip the chains that did not write the key.
const LOOKUPS_MAX: usize = 4;

/// A branch of an open store, through which it is read and written.
pub(crate) struct Lens {
    name: Arc<str>,
    ancestry: Ancestry,
    /// The moments at which the ancestors are read. They are held open, so that they stay readable
    /// even if the branch is deleted.
    _moments: Vec<OpenMoment>,
}

impl Lens {
    /// Opens the moments at which the ancestors of a branch are read. `name`: the name that the
    /// branch had when it was looked up.
    ///
    /// # Errors
    /// The budget.
    pub(crate) fn open(reader: &Reader, name: &str, ancestry: Ancestry) -> Result<Self> {
        let limits = ancestry.chains.iter().map(|(_, limit)| *limit).chain([ancestry.main]);
        let mut limits: Vec<Glsn> = limits.filter(|limit| *limit < Glsn::MAX).collect();
        limits.dedup();
        let open = |at| reader.snapshots.open(&reader.budget, || AsOf::unexpiring(at));
        let _moments = limits.into_iter().map(open).collect::<Result<_>>()?;
        Ok(Self { name: name.into(), ancestry, _moments })
    }

    /// The name that the branch had.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn ancestry(&self) -> &Ancestry {
        &self.ancestry
    }

    /// Fails if the branch was deleted at or before `at`. A read on it would then be wrong, because
    /// its versions may be deleted as well.
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`]; disk errors, the budget, or corruption.
    pub(crate) fn check_exists(&self, reader: &Reader, at: Glsn) -> Result<()> {
        let key = KeyBuffer::new(BRANCHES, &chain_key(self.ancestry.chain))?;
        match reader.get_with(&key, AsOf::unexpiring(at), is_of_branch)? {
            Some(true) => Ok(()),
            _ => Err(InvalidInput::NoBranch { name: self.name.to_string() }.into()),
        }
    }

    /// The index key of the branch's own versions of a key. If this index key is too long, the
    /// branch has no such versions.
    pub(crate) fn key(&self, keyspace: u32, user_key: &[u8]) -> KeyBuffer {
        Stem::new(self.ancestry.group, keyspace, user_key).of_chain(self.ancestry.chain)
    }

    /// The index keys in which the branch, and the chains that share its group, store the keys of a
    /// span of main.
    pub(crate) fn span(&self, main: &Span) -> Span {
        let group = self.ancestry.group;
        Span::between(
            branch_key::lower_bound(group, main.lower()),
            branch_key::upper_bound(group, main.upper()),
        )
    }

    /// The index keys of all chains of the group.
    pub(crate) fn group_span(&self) -> Span {
        let group = self.ancestry.group;
        Span::between(Bound::Included(branch_key::group_begin(group)), branch_key::group_end(group))
    }

    /// The number of a chain in [`Ancestry::chains`], if it belongs to the lineage.
    pub(crate) fn place_of(&self, chain: u32) -> Option<usize> {
        let place = self.place_from(0, chain);
        self.ancestry.chains.get(place).filter(|(id, _)| *id == chain).map(|_| place)
    }

    /// The number of the first chain of the lineage, from number `from` on, whose id is at most
    /// `chain`; the number of chains if there is none.
    pub(crate) fn place_from(&self, from: usize, chain: u32) -> usize {
        let rest = &self.ancestry.chains[from..];
        // In most calls, it is the chain with number `from`.
        if rest.first().is_some_and(|(id, _)| *id <= chain) {
            return from;
        }
        from + rest.partition_point(|(id, _)| *id > chain)
    }

    /// The moment up to which main is read at a moment of the branch.
    pub(crate) fn on_main<'m>(&self, at: AsOf<'m>) -> AsOf<'m> {
        at.up_to(self.ancestry.main)
    }

    /// Where the version that the branch sees at `at` is stored, for one of the branch's own index
    /// keys: returns the index key of that version, and the moment at which to read it. The version
    /// may be a deletion or have expired.
    pub(crate) fn resolve<'k, 'm>(
        &self,
        reader: &Reader,
        own_key: &'k [u8],
        at: AsOf<'m>,
    ) -> Result<(Cow<'k, [u8]>, AsOf<'m>)> {
        let has = |key: &[u8], at: AsOf<'_>| reader.contains(key, AsOf::unexpiring(at.glsn));
        let (stem, _) = branch_key::split(own_key);
        if !branch_key::is_too_long(own_key)
            && reader.read(|view| view.may_have_stem(stem, at.glsn))?
        {
            if has(own_key, at)? {
                return Ok((Cow::Borrowed(own_key), at));
            }
            let ancestors = &self.ancestry.chains[1..];
            if ancestors.len() < LOOKUPS_MAX {
                for &(chain, limit) in ancestors {
                    let (key, at) = (branch_key::key_of(stem, chain), at.up_to(limit));
                    if has(&key, at)? {
                        return Ok((Cow::Owned(key.get().to_vec()), at));
                    }
                }
            } else if let Some(place) = reader.read(|view| self.decide(view, stem, 1, at.glsn))? {
                let (chain, limit) = self.ancestry.chains[place];
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
        let chains = &self.ancestry.chains;
        let Some(&(first, _)) = chains.get(from) else { return Ok(None) };
        let (first, end) = (branch_key::key_of(stem, first), branch_key::after_chains(stem));
        let range = (Bound::Included(first.get()), Bound::Excluded(&end[..]));
        let mut iter = view.visible(range.0, range.1, AsOf::unexpiring(at), Direction::Forward)?;
        let (mut key, mut next) = (Vec::new(), from);
        loop {
            let Some(glsn) = iter.next(&mut key)?.map(|version| version.glsn) else {
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
            iter.skip(&mut key, &branch_key::key_of(stem, wanted));
        }
    }
}

impl fmt::Debug for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lens({:?}, chain {})", self.name, self.ancestry.chain)
    }
}
