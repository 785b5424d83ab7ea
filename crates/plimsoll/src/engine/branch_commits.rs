//! Creates, renames and deletes branches.
//!
//! Other members of the store change branches as well, so each change reads the registry's counter
//! of changes, and is retried if another change came first.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::engine::{Engine, tag_commits};
use crate::index::sources::view::Direction;
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::txn::range_deletes::Reads;
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::branch_registry::{Changes, Known, Removal};
use crate::types::branches::{
    BranchInfo, COUNTER_KEY, Chain, Counter, MAIN, MAIN_CHAIN, MAX_CHAINS, chain_key,
    check_branch_name, merge_prefix,
};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{BRANCHES, IDS, IDS_POSITION, Keyspace, SIDE};
use crate::types::tags::Tagged;

/// From this number of conflicts on, the versions of a group are deleted without being read, so
/// that the deletion does not conflict with commits on the group's branches.
const FIRST_UNREAD: u32 = 3;

/// A change of the registry that has been decided, but not committed.
struct Plan {
    changes: Changes,
    /// Groups whose versions are no longer needed.
    dead_groups: BTreeSet<u32>,
    counter: Counter,
}

fn registry(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(BRANCHES, "".into())
}

/// Creates a branch that leaves the chain `wanted` of a branch at a moment, which the caller keeps
/// open until this returns.
pub(crate) fn create(store: &Arc<Engine>, name: &str, wanted: u32, at: Glsn) -> Result<()> {
    create_on(store, name, wanted, at, true)
}

/// As [`create`], even if the branch of the chain was deleted, as long as other branches contain
/// the chain.
pub(crate) fn create_from(store: &Arc<Engine>, name: &str, wanted: u32, at: Glsn) -> Result<()> {
    create_on(store, name, wanted, at, false)
}

fn create_on(
    store: &Arc<Engine>,
    name: &str,
    wanted: u32,
    at: Glsn,
    must_be_named: bool,
) -> Result<()> {
    if name == MAIN {
        return Err(InvalidInput::MainBranch.into());
    }
    check_branch_name(name)?;
    store.check_writable()?;
    // Read in this order: if the log is trimmed in between, the kept time is the exact one.
    let later = store.committer.as_of_past(at)?.micros();
    let exact = store.reader.time_of(at)?;
    let fork = Tagged { at, micros: exact.unwrap_or(later), is_exact: exact.is_some() };
    tag_commits::check_known_to_replicas(store, at, fork.micros)?;
    // Before its fork, a branch has the states of its parent.
    let parent = store.reader.snapshots.branches.known().seen_by(wanted, at);
    // Everything readable now stays readable, because the moment is open.
    check_readable(store, parent, at)?;
    let branches = &store.reader.snapshots.branches;
    let unused = unused_id(store, branches.known().counter().next)?;
    branches.reserve(&store.reader.budget, name)?;
    let created = change(store, ANY, |known, counter, _| {
        if known.find(name).is_ok() {
            return Err(InvalidInput::BranchExists { name: name.to_owned() }.into());
        }
        if known.len() >= MAX_CHAINS || counter.next == u32::MAX {
            return Err(InvalidInput::TooManyBranches { limit: MAX_CHAINS as u64 }.into());
        }
        let id = counter.next.max(unused);
        if wanted != MAIN_CHAIN && must_be_named {
            alive(known, wanted)?;
        }
        let group = match parent {
            MAIN_CHAIN => id,
            parent => known.get(parent).ok_or(InvalidInput::BranchDeleted)?.group,
        };
        let chain = Chain { name: Some(name.into()), parent, group, fork };
        Ok(Plan {
            changes: vec![(id, Some(chain))],
            dead_groups: BTreeSet::new(),
            counter: Counter { next: id + 1, ..counter },
        })
    });
    if is_unmade(&created) {
        branches.release_reserved(name);
    }
    created
}

/// Whether a change was not made. After `Stalled` it was.
fn is_unmade(changed: &Result<()>) -> bool {
    changed.as_ref().is_err_and(|error| !matches!(error, Error::Stalled { .. }))
}

/// Makes a change by which a branch gets the name `to`.
fn with_name(store: &Arc<Engine>, to: &str, change: impl FnOnce() -> Result<()>) -> Result<()> {
    let branches = &store.reader.snapshots.branches;
    branches.reserve_name(&store.reader.budget, to)?;
    let changed = change();
    if is_unmade(&changed) {
        branches.release_name(to);
    }
    changed
}

/// The first id from `next` on under which no version is stored, because damage may have destroyed
/// the counter.
fn unused_id(store: &Engine, mut next: u32) -> Result<u32> {
    let at = AsOf::unexpiring(store.committer.sequencer.applied());
    while next < u32::MAX {
        let (span, view) =
            (Span::prefix(SIDE, &next.to_be_bytes()), store.reader.index.sources.view());
        let mut keys = view.visible(span.lower(), span.upper(), at, Direction::Forward)?;
        if keys.next(&mut Vec::new())?.is_none() {
            break;
        }
        next += 1;
    }
    Ok(next)
}

/// Gives a branch another name.
pub(crate) fn rename(store: &Arc<Engine>, from: &str, to: &str) -> Result<()> {
    if from == MAIN || to == MAIN {
        return Err(InvalidInput::MainBranch.into());
    }
    check_branch_name(to)?;
    store.check_writable()?;
    let rename = |known: &Known, counter, _| {
        let id = known.find(from)?;
        if known.find(to).is_ok() {
            return Err(InvalidInput::BranchExists { name: to.to_owned() }.into());
        }
        let chain = Chain { name: Some(to.into()), ..alive(known, id)?.clone() };
        Ok(Plan { changes: vec![(id, Some(chain))], dead_groups: BTreeSet::new(), counter })
    };
    with_name(store, to, || change(store, ANY, rename))
}

/// Deletes a branch. Branches that descend from it stay, and with them the versions that they see.
pub(crate) fn delete(store: &Arc<Engine>, name: &str) -> Result<()> {
    if name == MAIN {
        return Err(InvalidInput::MainBranch.into());
    }
    store.check_writable()?;
    change(store, ANY, |known, counter, has_ids| {
        let (changes, dead_groups) = without(known, known.find(name)?, has_ids)?;
        Ok(Plan { changes, dead_groups, counter })
    })
}

/// Gives the branch `from` the name of the branch with the chain `replaced`, and deletes that
/// branch, in one commit. `check` examines the replaced branch as of the transaction, and notes the
/// reads on which its result depends.
///
/// # Errors
/// [`InvalidInput::BranchMoved`] if the branch named `to` has another chain; errors of `check`.
pub(crate) fn replace(
    store: &Arc<Engine>,
    from: &str,
    (to, replaced): (&str, u32),
    check: &dyn Fn(&mut Transaction) -> Result<()>,
) -> Result<()> {
    store.check_writable()?;
    let replace = |known: &Known, counter, has_ids| {
        let id = known.find(from)?;
        if known.find(to).ok() != Some(replaced) || id == replaced {
            return Err(InvalidInput::BranchMoved { name: to.to_owned() }.into());
        }
        let renamed = Chain { name: Some(to.into()), ..alive(known, id)?.clone() };
        let (mut changes, dead_groups) = without(known, replaced, has_ids)?;
        // The renaming comes last, so that the name belongs to the branch `from`.
        changes.push((id, Some(renamed)));
        Ok(Plan { changes, dead_groups, counter })
    };
    with_name(store, to, || change(store, check, replace))
}

/// The changes that delete the branch with the chain `id`, and the groups whose versions are no
/// longer needed.
fn without(known: &Known, id: u32, has_ids: bool) -> Result<(Changes, BTreeSet<u32>)> {
    let chain = alive(known, id)?;
    let Removal { removed, dead_groups } = known.without(id, has_ids);
    let mut changes: Changes = removed.iter().map(|chain| (*chain, None)).collect();
    if !removed.contains(&id) {
        changes.push((id, Some(Chain { name: None, ..chain.clone() })));
    }
    Ok((changes, dead_groups))
}

/// All branches but main, by name.
pub(crate) fn all(store: &Engine) -> Result<Vec<BranchInfo>> {
    store.check_open()?;
    store.committer.fresh()?;
    Ok(store.reader.snapshots.branches.all())
}

/// Describes the branch with this chain, which had the name `name`.
pub(crate) fn info(store: &Engine, name: &str, chain: u32) -> Result<BranchInfo> {
    store.check_open()?;
    store.committer.fresh()?;
    store.reader.snapshots.branches.info(chain).ok_or_else(|| no_branch(name))
}

/// The branch with this name; `None`: main.
pub(crate) fn find(store: &Engine, name: &str) -> Result<Option<Arc<Lens>>> {
    store.check_open()?;
    if name == MAIN {
        return Ok(None);
    }
    store.committer.fresh()?;
    let ancestry = store.reader.snapshots.branches.find(name)?;
    let lens = Lens::open(&store.reader, name, ancestry)?;
    // Check this after the moments of the lens are open: they were readable as long as the branch
    // existed, so they stay readable from now on.
    lens.check_exists(&store.reader, store.newest()?)?;
    Ok(Some(Arc::new(lens)))
}

/// The branch with this chain: `Some(None)` if it is main, `None` if it was deleted.
pub(crate) fn find_chain(store: &Engine, chain: u32) -> Result<Option<Option<Arc<Lens>>>> {
    if chain == MAIN_CHAIN {
        return Ok(Some(None));
    }
    store.committer.fresh()?;
    let branches = &store.reader.snapshots.branches;
    let (Some(name), Some(ancestry)) = (branches.present_name(chain), branches.ancestry(chain))
    else {
        return Ok(None);
    };
    let lens = Lens::open(&store.reader, &name, ancestry)?;
    lens.check_exists(&store.reader, store.newest()?)?;
    Ok(Some(Some(Arc::new(lens))))
}

fn alive(known: &Known, id: u32) -> Result<&Chain> {
    let chain = known.get(id).filter(|chain| chain.name.is_some());
    chain.ok_or_else(|| InvalidInput::BranchDeleted.into())
}

fn no_branch(name: &str) -> Error {
    InvalidInput::NoBranch { name: name.to_owned() }.into()
}

/// A check that always passes.
const ANY: &dyn Fn(&mut Transaction) -> Result<()> = &|_| Ok(());

/// Commits the change that `plan` computes from the present registry, and from whether the ids of
/// commits have been asked for. `check` may refuse it.
fn change(
    store: &Arc<Engine>,
    check: &dyn Fn(&mut Transaction) -> Result<()>,
    plan: impl Fn(&Known, Counter, bool) -> Result<Plan>,
) -> Result<()> {
    let branches = &store.reader.snapshots.branches;
    let changing = branches.lock_changing();
    let mut conflicts = 0;
    loop {
        // Changes that another member has ordered are known here, whether durable or not.
        let mut tx = Transaction::ordered(&store.committer);
        let registry = registry(store);
        let counter = tx.get(&registry, COUNTER_KEY)?.map(|record| Counter::decode(&record));
        let counter = counter.transpose()?.unwrap_or_default();
        let known = branches.known().counter();
        if known.changes != counter.changes {
            store.catalog.records.refresh_branches(tx.read_at()?.glsn)?;
            continue;
        }
        // The counter that is known here is greater if damage has destroyed the record.
        let counter = Counter { next: counter.next.max(known.next), ..counter };
        let ids = store.reader.keyspaces.handle(IDS, "".into());
        let has_ids = tx.contains_key(&ids, IDS_POSITION)?;
        let Plan { changes, dead_groups, counter } = plan(&branches.known(), counter, has_ids)?;
        check(&mut tx)?;
        let counter = Counter { changes: counter.changes + 1, ..counter };
        for (id, chain) in &changes {
            match chain {
                Some(chain) => tx.put(&registry, chain_key(*id), chain.encode())?,
                None => {
                    tx.delete(&registry, chain_key(*id))?;
                    let merges = branches.known().merges_with(*id);
                    for (into, from) in merges {
                        let span = Span::prefix(BRANCHES, &merge_prefix(into, from));
                        tx.delete_span(&registry, &span, Reads::Nothing)?;
                    }
                }
            }
        }
        if changes.iter().any(|(_, chain)| chain.as_ref().is_none_or(|chain| chain.name.is_none()))
        {
            // Conflict with a concurrent merge, which may need the chain: read the records of all
            // merges.
            tx.note_span(&Span::of_keyspace(BRANCHES));
        }
        tx.put(&registry, COUNTER_KEY, counter.encode())?;
        let side = store.reader.keyspaces.handle(SIDE, "".into());
        for group in dead_groups {
            let span = Span::prefix(SIDE, &group.to_be_bytes());
            if conflicts < FIRST_UNREAD {
                // A few keys are deleted one by one, which reads them.
                tx.delete_span(&side, &span, Reads::Nothing)?;
            } else {
                tx.repeat_range(&side, &span)?;
            }
        }
        let ticket = match tx.commit_submit() {
            Err(Error::Conflict { .. }) => {
                conflicts += 1;
                continue;
            }
            ordered => ordered?,
        };
        // Note the change before the wait, which may fail (`Stalled`) although the commit stays.
        branches.changed(changes, counter, ticket.glsn(), &store.reader.snapshots.tags);
        drop(changing);
        return ticket.wait().map(drop);
    }
}

/// Fails unless a chain can be read at a moment.
pub(crate) fn check_readable(store: &Engine, chain: u32, at: Glsn) -> Result<()> {
    if chain == MAIN_CHAIN {
        return tag_commits::check_readable(store, at);
    }
    store.reader.index.sources.view().check_readable(&Span::of_keyspace(SIDE).first(), at)
}
