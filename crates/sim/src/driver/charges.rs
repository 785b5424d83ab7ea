//! What is charged to the budget against what is held, while the store lives.

use crate::driver::Driver;
use crate::failure::{Outcome, ensure};

/// What is held may be so much less than what is charged: lists grow by halves, and charges in
/// steps.
const SPARE_BYTES: u64 = 4096;

/// A read set for which there was no memory holds one range, and a list of a few.
const UNCHARGED_BYTES: u64 = 256;

impl Driver {
    /// Whatever open transactions and walks hold is charged, and little more than that.
    pub(super) fn check_charges(&mut self) -> Outcome {
        for (tx, open) in &mut self.txs {
            for (what, charged, held) in open.handle.charges() {
                is_charged(|| format!("the {what} of transaction {tx}"), charged, held)?;
            }
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
        format!("{} holds {held} bytes, and {charged} are charged", what())
    })
}
