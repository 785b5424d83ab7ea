//! Creates, renames and deletes branches.
//!
//! Other members of the store change branches as well, so each change reads the counter of the
//! registry on which it is based, and is retried if another change came first.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::engine::tag_commits::check_readable;
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::txn::range_deletes::Reads;
use crate::txn::transaction::Transaction;
use crate::types::branches::{
    BranchInfo, COUNTER_KEY, Chain, Changes, Counter, Known, MAIN, MAIN_CHAIN, MAX_CHAINS,
    chain_key, check_branch_name, merge_prefix,
};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{BRANCHES, Keyspace, SIDE};
use crate::types::tags::Tagged;

/// A change of the registry that has been decided, but not committed.
struct Plan {
    changes: Changes,
    /// The group that has no chains any more.
    dead_group: Option<u32>,
    counter: Counter,
}

fn registry(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(BRANCHES, "".into())
}

/// Creates a branch that leaves the chain `parent` at a moment, which the caller keeps open until
/// this returns.
pub(crate) fn create(store: &Arc<Engine>, name: &str, parent: u32, at: Glsn) -> Result<()> {
    if name == MAIN {
        return Err(InvalidInput::MainBranch.into());
    }
    check_branch_name(name)?;
    store.check_writable()?;
    // In this order: the log may be trimmed in between, and then the kept time is the exact one.
    let later = store.committer.as_of_past(at)?.micros();
    let exact = store.reader.time_of(at)?;
    let fork = Tagged { at, micros: exact.unwrap_or(later), is_exact: exact.is_some() };
    // Before its fork, a branch is what its parent was.
    let parent = store.reader.snapshots.branches.known().seen_by(parent, at);
    // What is readable now stays so, because the moment is open.
    check_fork(store, parent, at)?;
    let branches = &store.reader.snapshots.branches;
    branches.make_room(&store.reader.budget, name)?;
    let created = change(store, |known, counter| {
        if known.find(name).is_ok() {
            return Err(InvalidInput::BranchExists { name: name.to_owned() }.into());
        }
        if known.len() >= MAX_CHAINS || counter.next == u32::MAX {
            return Err(InvalidInput::TooManyBranches { limit: MAX_CHAINS as u64 }.into());
        }
        let id = counter.next;
        let group = match parent {
            MAIN_CHAIN => id,
            parent => alive(known, parent)?.group,
        };
        let chain = Chain { name: Some(name.into()), parent, group, fork };
        Ok(Plan {
            changes: vec![(id, Some(chain))],
            dead_group: None,
            counter: Counter { next: id + 1, ..counter },
        })
    });
    if created.is_err() {
        branches.give_room_back(name);
    }
    created
}

/// Gives a branch another name.
pub(crate) fn rename(store: &Arc<Engine>, from: &str, to: &str) -> Result<()> {
    if from == MAIN || to == MAIN {
        return Err(InvalidInput::MainBranch.into());
    }
    check_branch_name(to)?;
    store.check_writable()?;
    change(store, |known, counter| {
        let id = known.find(from)?;
        if known.find(to).is_ok() {
            return Err(InvalidInput::BranchExists { name: to.to_owned() }.into());
        }
        let chain = Chain { name: Some(to.into()), ..alive(known, id)?.clone() };
        Ok(Plan { changes: vec![(id, Some(chain))], dead_group: None, counter })
    })
}

/// Deletes a branch. Branches that descend from it stay, and with them the versions that they see.
pub(crate) fn delete(store: &Arc<Engine>, name: &str) -> Result<()> {
    if name == MAIN {
        return Err(InvalidInput::MainBranch.into());
    }
    store.check_writable()?;
    change(store, |known, counter| {
        let mut id = known.find(name)?;
        let mut chain = alive(known, id)?;
        if known.has_children(id) {
            let nameless = Chain { name: None, ..chain.clone() };
            return Ok(Plan { changes: vec![(id, Some(nameless))], dead_group: None, counter });
        }
        let mut changes = vec![(id, None)];
        // Ancestors that were kept only for this one.
        let mut dead_group = None;
        loop {
            if chain.parent == MAIN_CHAIN {
                dead_group = Some(chain.group);
                break;
            }
            id = chain.parent;
            chain = known.get(id).ok_or_else(|| no_branch(name))?;
            if chain.name.is_some() || !known.has_one_child(id) {
                break;
            }
            changes.push((id, None));
        }
        Ok(Plan { changes, dead_group, counter })
    })
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
    // Its moments were readable as long as the branch existed, so that they are from now on.
    lens.check_exists(&store.reader, store.newest()?)?;
    Ok(Some(Arc::new(lens)))
}

fn alive(known: &Known, id: u32) -> Result<&Chain> {
    let chain = known.get(id).filter(|chain| chain.name.is_some());
    chain.ok_or_else(|| InvalidInput::BranchDeleted.into())
}

fn no_branch(name: &str) -> Error {
    InvalidInput::NoBranch { name: name.to_owned() }.into()
}

/// Commits the change that `plan` computes from the present registry.
fn change(store: &Arc<Engine>, plan: impl Fn(&Known, Counter) -> Result<Plan>) -> Result<()> {
    let branches = &store.reader.snapshots.branches;
    let _changing = branches.lock_changing();
    loop {
        // Changes that another member has ordered are known here, whether durable or not.
        let mut tx = Transaction::ordered(&store.committer);
        let registry = registry(store);
        let counter = tx.get(&registry, COUNTER_KEY)?.map(|record| Counter::decode(&record));
        let counter = counter.transpose()?.unwrap_or_default();
        if branches.known().counter() != counter {
            store.catalog.records.refresh_branches(tx.read_at()?.glsn)?;
            continue;
        }
        let Plan { changes, dead_group, counter } = plan(&branches.known(), counter)?;
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
        tx.put(&registry, COUNTER_KEY, counter.encode())?;
        if let Some(group) = dead_group {
            let side = store.reader.keyspaces.handle(SIDE, "".into());
            let span = Span::prefix(SIDE, &group.to_be_bytes());
            tx.delete_span(&side, &span, Reads::Nothing)?;
        }
        let ticket = match tx.commit_submit() {
            Err(Error::Conflict { .. }) => continue,
            ordered => ordered?,
        };
        // Before the wait, which may fail (`Stalled`) although the commit stays.
        branches.changed(changes, counter, ticket.glsn());
        ticket.wait()?;
        return Ok(());
    }
}

/// Fails unless a chain can be read at the moment at which another one leaves it.
fn check_fork(store: &Engine, parent: u32, at: Glsn) -> Result<()> {
    if parent == MAIN_CHAIN {
        return check_readable(store, at);
    }
    store.reader.index.sources.view().check_readable(&Span::of_keyspace(SIDE).first(), at)
}
