//! Compares the memory charged to the budget with the memory held.

use crate::driver::Driver;
use crate::failure::{Outcome, ensure};

/// The most by which charges exceed the memory held. Lists grow by halves, and charges in steps.
const SPARE_BYTES: u64 = 4096;

/// The most bytes of pending updates. Their charge is released with the last of them.
const UPDATES_BYTES: u64 = 64 << 10;

/// Bytes of a read set that was refused memory: one range, in a list with room for a few.
const UNCHARGED_BYTES: u64 = 256;

impl Driver {
    /// Checks that the memory of open transactions and iterators is charged, and little more.
    pub(super) fn check_charges(&mut self) -> Outcome {
        for (tx, open) in &mut self.txs {
            let [reads, pops, (updates, charged, held)] = open.handle.charges();
            for (what, charged, held) in [reads, pops] {
                is_charged(|| format!("the {what} of transaction {tx}"), charged, held)?;
            }
            let what = || format!("the {updates} of transaction {tx}");
            is_charged(what, charged, held.max(charged.min(UPDATES_BYTES)))?;
        }
        for (slot, walk) in &self.walks {
            let (charged, held) = walk.charges();
            is_charged(|| format!("walk {slot}"), charged, held)?;
        }
        Ok(())
    }
}

fn is_charged(what: impl Fn() -> String, charged: u64, held: u64) -> Outcome {
    ensure(charged + UNCHARGED_BYTES >= held && charged <= 2 * held + SPARE_BYTES, || {
        format!("{} holds {held} bytes, but {charged} are charged", what())
    })
}
