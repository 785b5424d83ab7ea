//! Runs a case according to its mode.

use crate::case::{Case, Mode};
use crate::driver::{CheckOptions, Driver, run};
use crate::failure::Outcome;
use crate::op::Op;
use crate::{branches, crash, expiry, faults, members, metamorphic, order, rot, sync};

impl Case {
    /// Runs it.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn run(&self) -> Outcome {
        self.run_workload(&self.workload())
    }

    /// Runs another workload, such as a shortened one.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn run_workload(&self, ops: &[Op]) -> Outcome {
        let done = |_: Driver| ();
        match self.mode {
            Mode::Model | Mode::Crash => run(self.world(), CheckOptions::default(), ops).map(done),
            Mode::EverySync => crash::cut_at_every_sync(self, ops).map(|_| ()),
            Mode::FailedReads | Mode::Flips | Mode::Full | Mode::FailedSyncs => {
                faults::run_faulty(self, ops).map(done)
            }
            Mode::Budget => faults::run_short_of_memory(self, ops).map(done),
            Mode::Metamorphic => metamorphic::compare_settings(self, ops),
            Mode::Rot => rot::damage(self, ops).map(|_| ()),
            Mode::Members => members::run(self.seed, ops),
            Mode::Expiry => expiry::run(self.seed, ops),
            Mode::Branches => branches::run(self.seed, ops),
            Mode::Sync => sync::run(self.seed, ops),
            Mode::Order => order::run(self.seed, ops),
        }
    }
}
