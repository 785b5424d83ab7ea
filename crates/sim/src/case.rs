//! A single run of the simulation, named so that it can be replayed.

use std::fmt;
use std::str::FromStr;

use crate::op::Op;
use crate::op::generate::{Profile, generate, process_ops};
use crate::world::{Setting, World};
use crate::{branches, expiry, order, sync};

/// The kind of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The store against the model, on a disk without faults.
    Model,
    /// The power is cut at every sync of a short workload.
    EverySync,
    /// The power is cut occasionally in a long workload.
    Crash,
    /// Reads fail.
    FailedReads,
    /// Reads return wrong bits.
    Flips,
    /// The disk is full occasionally.
    Full,
    /// Syncs fail.
    FailedSyncs,
    /// Transactions ask for more memory than is available.
    Budget,
    /// The same workload under other settings.
    Metamorphic,
    /// The bytes of the closed store are damaged.
    Rot,
    /// Several processes share the store; they are killed, stopped, join and leave.
    Members,
    /// Values expire.
    Expiry,
    /// Branches are created, written, merged and deleted.
    Branches,
    /// Several stores exchange commits.
    Sync,
    /// An order outside of several replicas orders their commits.
    Order,
}

impl Mode {
    /// All of them, with their names.
    pub const ALL: [(Mode, &str); 15] = [
        (Mode::Model, "model"),
        (Mode::EverySync, "every-sync"),
        (Mode::Crash, "crash"),
        (Mode::FailedReads, "failed-reads"),
        (Mode::Flips, "flips"),
        (Mode::Full, "full"),
        (Mode::FailedSyncs, "failed-syncs"),
        (Mode::Budget, "budget"),
        (Mode::Metamorphic, "metamorphic"),
        (Mode::Rot, "rot"),
        (Mode::Members, "members"),
        (Mode::Expiry, "expiry"),
        (Mode::Branches, "branches"),
        (Mode::Sync, "sync"),
        (Mode::Order, "order"),
    ];

    fn profile(self) -> Profile {
        match self {
            // All of these but `Model` have workload generators of their own.
            Mode::Model
            | Mode::Members
            | Mode::Expiry
            | Mode::Branches
            | Mode::Sync
            | Mode::Order => Profile::Model,
            Mode::EverySync | Mode::Rot => Profile::EverySync,
            Mode::Crash => Profile::Crash,
            Mode::FailedReads => Profile::FailedReads,
            Mode::Flips => Profile::Flips,
            Mode::Full => Profile::Full,
            Mode::FailedSyncs => Profile::FailedSyncs,
            Mode::Budget => Profile::Budget,
            Mode::Metamorphic => Profile::Metamorphic,
        }
    }

    /// The default number of operations of a run.
    pub fn usual_ops(self) -> usize {
        match self {
            Mode::EverySync => 50,
            Mode::Metamorphic => 250,
            Mode::Rot => 80,
            Mode::Members => 200,
            Mode::Sync => 120,
            Mode::Order => 150,
            _ => 400,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Mode::ALL.iter().find(|(mode, _)| mode == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Mode::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(mode, _)| *mode).ok_or_else(|| format!("unknown mode {text:?}"))
    }
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its kind.
    pub mode: Mode,
    /// Its seed.
    pub seed: u64,
    /// The number of operations.
    pub ops: usize,
}

impl Case {
    /// A run of the default length.
    pub fn new(mode: Mode, seed: u64) -> Self {
        Self { mode, seed, ops: mode.usual_ops() }
    }

    /// Its workload.
    pub fn workload(&self) -> Vec<Op> {
        match self.mode {
            Mode::Members => return process_ops::generate(self.seed, self.ops),
            Mode::Expiry => return expiry::workload(self.seed, self.ops),
            Mode::Branches => return branches::workload(self.seed, self.ops),
            Mode::Sync => return sync::workload(self.seed, self.ops),
            Mode::Order => return order::workload(self.seed, self.ops),
            _ => {}
        }
        generate(self.seed, &self.mode.profile().settings().of_seed(self.seed), self.ops)
    }

    /// The world that it begins in.
    pub fn world(&self) -> World {
        World::new(self.seed, Setting::of_seed(self.seed))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--mode {} --seed {} --ops {}", self.mode, self.seed, self.ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_round_trips_through_its_name() {
        for (mode, name) in Mode::ALL {
            assert_eq!((mode.to_string().as_str(), name.parse()), (name, Ok(mode)));
        }
        assert!("dance".parse::<Mode>().is_err());
    }
}
