//! Registers the transfers that receive commits into a store, so that none deletes the temporary
//! branches of another.
//!
//! The name of a temporary branch is `incoming/PROCESS-TRANSFER-NUMBER`. PROCESS identifies the
//! process among those that share the store, TRANSFER the transfer among those of the process. A
//! temporary branch is a leftover if its process has ended, or if its transfer has ended and was
//! one of this process. Whether a transfer of another living process has ended is unknown, so its
//! branches are kept.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock};

use plimsoll_disk::mutex::lock;
use plimsoll_log::members::Member;

use crate::engine::Engine;
use crate::types::branches::TEMPORARY;
use crate::types::error::Result;

/// PROCESS in the names of a process that does not share the store.
const ALONE: &str = "0";

/// The running transfers of this process.
#[derive(Default)]
pub(crate) struct Transfers {
    running: Mutex<Running>,
    /// PROCESS in the names of this process.
    process: OnceLock<String>,
}

#[derive(Default)]
struct Running {
    /// The greatest number of a transfer so far.
    last: u64,
    numbers: BTreeSet<u64>,
}

/// A running transfer. Until it is dropped, its temporary branches are not leftovers.
pub(crate) struct Transfer {
    store: Arc<Engine>,
    number: u64,
    prefix: String,
}

impl Transfer {
    /// Begins a transfer.
    ///
    /// # Errors
    /// Errors of the operating system, if other processes share the store.
    pub(crate) fn begin(store: &Arc<Engine>) -> Result<Self> {
        let process = own_process(store)?;
        let mut running = lock(&store.transfers.running);
        // Numbers begin at the time, so that they differ from those of branches that an earlier
        // process has left.
        let mut number = store.options.clock.wall_micros().max(running.last + 1);
        let prefix = loop {
            let prefix = format!("{TEMPORARY}{process}-{number:x}-");
            if !store.reader.snapshots.branches.known().has_prefix(&prefix) {
                break prefix;
            }
            number += 1;
        };
        running.last = number;
        running.numbers.insert(number);
        drop(running);
        Ok(Self { store: Arc::clone(store), number, prefix })
    }

    /// The beginning of the names of the transfer's temporary branches; a number follows.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        lock(&self.store.transfers.running).numbers.remove(&self.number);
    }
}

/// Distinguishes leftovers from the temporary branches of running transfers.
pub(crate) struct Leftovers<'s> {
    store: &'s Engine,
    own: String,
    /// PROCESS of each other living process.
    others: BTreeSet<String>,
}

impl<'s> Leftovers<'s> {
    /// Lists the living processes. List the branches before this call, because a branch that is
    /// created later may belong to a process that is not in this list.
    ///
    /// # Errors
    /// Errors of the operating system, if other processes share the store.
    pub(crate) fn new(store: &'s Engine) -> Result<Self> {
        let members = store.membership.list()?;
        let others = members.iter().filter(|member| !member.is_here).map(process).collect();
        Ok(Self { store, own: own_process(store)?, others })
    }

    /// Whether a temporary branch is a leftover.
    pub(crate) fn contains(&self, name: &str) -> bool {
        let mut parts = name.strip_prefix(TEMPORARY).unwrap_or_default().split('-');
        let process = parts.next().unwrap_or_default();
        let number = parts.next().and_then(|number| u64::from_str_radix(number, 16).ok());
        match number {
            Some(number) if process == self.own => {
                !lock(&self.store.transfers.running).numbers.contains(&number)
            }
            _ => !self.others.contains(process),
        }
    }
}

/// PROCESS in the names of a member. The pid alone is not enough: members may run in different
/// containers.
fn process(member: &Member) -> String {
    format!("{:x}.{:x}", member.pid, member.since_micros)
}

fn own_process(store: &Engine) -> Result<String> {
    if let Some(known) = store.transfers.process.get() {
        return Ok(known.clone());
    }
    let members = store.membership.list()?;
    let own = members.iter().find(|member| member.is_here);
    let own = own.map_or_else(|| ALONE.to_owned(), process);
    Ok(store.transfers.process.get_or_init(|| own).clone())
}
