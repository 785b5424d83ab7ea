//! Profiles: the purpose of a workload, and its parameters.

use plimsoll_disk::random::Random;

use crate::op::Fault;

/// The purpose of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// All user operations, on a disk without faults.
    Model,
    /// The same, without operations that replace the store's disk.
    EverySync,
    /// Short, with many commits, for power cuts.
    Crash,
    /// Reads fail.
    FailedReads,
    /// Reads return wrong bits.
    Flips,
    /// The disk is full occasionally.
    Full,
    /// Syncs fail.
    FailedSyncs,
    /// Operations whose answer does not depend on the budget and the background work.
    Metamorphic,
    /// Transactions larger than the memory they may use.
    Budget,
}

/// The parameters of a workload.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of different keys.
    pub keys: u64,
    /// Number of keyspaces; those from 2 on get other retentions if `limited`.
    pub spaces: u8,
    /// Probability of a value above 64 KiB.
    pub large: f64,
    /// Probability of a value above 1 MiB.
    pub huge: f64,
    /// Minimum size of a value.
    pub value_bytes_min: u32,
    /// Few keys, and values near the longest stored in a leaf, for many versions of each key.
    pub hot: bool,
    /// The most keys that one operation writes.
    pub many: u32,
    /// Whether scenes are generated (module `scenes`).
    pub scenes: bool,
    /// Whether keyspaces drop old versions, and the log is trimmed.
    pub limited: bool,
    /// Whether all keyspaces drop old versions, so that the log is trimmed automatically.
    pub forgetful: bool,
    /// Whether commits are submitted without waiting.
    pub submits: bool,
    /// Whether the store is closed, reopened, recovered, backed up, verified.
    pub upkeep: bool,
    /// Whether the wall clock jumps.
    pub jumps: bool,
    /// Whether the folder, or a part of it, is restored to an earlier state.
    pub restores: bool,
    /// Whether the power is cut.
    pub crashes: bool,
    /// Whether the process is killed.
    pub kills: bool,
    /// Whether single calls within operations fail.
    pub fails: bool,
    /// A fault that is set and cleared.
    pub fault: Option<fn(&mut Random) -> Fault>,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 9] = [
        Profile::Model,
        Profile::EverySync,
        Profile::Crash,
        Profile::FailedReads,
        Profile::Flips,
        Profile::Full,
        Profile::FailedSyncs,
        Profile::Metamorphic,
        Profile::Budget,
    ];

    /// Its settings.
    pub fn settings(self) -> Settings {
        let plain = Settings {
            keys: 40,
            spaces: 5,
            large: 0.01,
            huge: 0.001,
            value_bytes_min: 0,
            hot: false,
            many: 250,
            scenes: true,
            limited: true,
            forgetful: false,
            submits: true,
            upkeep: true,
            jumps: true,
            restores: false,
            crashes: false,
            kills: true,
            fails: true,
            fault: None,
        };
        match self {
            Profile::Model => Settings {
                restores: true,
                fault: Some(|random| Fault::Slow(random.below(3_000_000) as u32)),
                ..plain
            },
            Profile::EverySync => Settings { many: 40, scenes: false, ..plain },
            Profile::Crash => Settings { huge: 0.004, crashes: true, restores: true, ..plain },
            Profile::FailedReads => {
                Settings { fault: Some(|random| Fault::Reads(permille(random))), ..plain }
            }
            Profile::Flips => Settings {
                kills: false,
                fault: Some(|random| Fault::Flips(permille(random))),
                ..plain
            },
            Profile::Full => Settings {
                large: 0.05,
                fault: Some(|random| Fault::Full(random.below(400_000))),
                ..plain
            },
            Profile::FailedSyncs => Settings { crashes: true, fault: Some(failed_sync), ..plain },
            Profile::Metamorphic => Settings {
                limited: false,
                submits: false,
                jumps: false,
                kills: false,
                fails: false,
                many: 100,
                ..plain
            },
            Profile::Budget => {
                Settings { keys: 400, large: 0.1, value_bytes_min: 3000, crashes: true, ..plain }
            }
        }
    }
}

impl Settings {
    /// The settings for one seed: some runs have few keys with many versions, some have
    /// transactions of thousands of keys.
    pub fn of_seed(self, seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5ca1_ab1e);
        let settings = if self.many >= 250 && random.below(8) == 0 {
            Settings { many: 2000, ..self }
        } else {
            self
        };
        let settings = match random.below(6) {
            0 => Settings { hot: true, keys: 3, ..settings },
            _ => settings,
        };
        Settings { forgetful: settings.limited && random.below(8) == 0, ..settings }
    }
}

/// Chooses the failing operation: the next sync, one of the syncs soon after it, a rename or a
/// removal.
fn failed_sync(random: &mut Random) -> Fault {
    match random.below(5) {
        0 => Fault::Sync,
        1 => Fault::RenameLater(1 + random.below(2)),
        2 => Fault::RemoveLater(1 + random.below(4)),
        _ => Fault::SyncLater(1 + random.below(9)),
    }
}

/// From one in a thousand to one in five, log-uniformly.
fn permille(random: &mut Random) -> u16 {
    (1 << random.below(8)) + random.below(70) as u16 / 10
}
