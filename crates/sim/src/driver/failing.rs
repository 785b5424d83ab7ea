//! Operations in which one chosen call fails, and their aftermath.

use plimsoll::Error;

use crate::driver::step::said;
use crate::driver::{Driver, OpenTx};
use crate::failure::{Outcome, ensure};
use crate::judge::{bound, show};
use crate::model::space_name;
use crate::op::{Call, Edge, Key, Op, Reader, Removal, Span};

/// No operation makes more reservations than this.
const NEVER: u64 = u64::MAX;

impl Driver {
    /// Runs an operation in which one call fails. That excuses a failure of the operation, but
    /// nothing else.
    pub(super) fn failing(&mut self, call: Call, op: &Op) -> Outcome<String> {
        // Creating a missing keyspace is a separate commit.
        if let Some(space) = op.clone().space_mut()
            && self.keyspace(*space)?.is_none()
        {
            return said("failed");
        }
        let before = self.excuses;
        let db = self.db().clone();
        match call {
            Call::Reservation(n) | Call::Reservations(n) => {
                if let Some(open) = tx_of(op).and_then(|tx| self.txs.get_mut(&tx)) {
                    open.reads.may_be_refused();
                }
                let count = if matches!(call, Call::Reservation(_)) { 1 } else { u64::MAX };
                db.refuse_after(n, count);
                self.excuses.budget = true;
            }
            Call::Read(n) => {
                self.world.disk.fail_read(n);
                self.excuses.reads = true;
            }
        }
        let answer = self.step(op);
        db.refuse_after(NEVER, 1);
        self.world.disk.fail_no_read();
        self.excuses.budget = before.budget;
        self.excuses.reads &= before.reads;
        answer
    }

    /// The keys that a failed removal has removed; the transaction continues without them. `None`
    /// if they cannot be read.
    pub(super) fn taken_by_a_failed_one(
        &self,
        open: &mut OpenTx,
        place: (u8, &plimsoll::Keyspace),
        (span, how): (&Span, Removal),
        wanted: &[Key],
    ) -> Outcome<Option<Vec<Key>>> {
        let (space, keyspace) = place;
        let Span::Range(lower, upper) = span else { return Ok(None) };
        let found = open.handle.range(keyspace, (bound(lower), bound(upper)));
        let found = found.and_then(|walk| walk.keys_only().map(|row| Ok(row?.0)).collect());
        let excused = |error: &Error| self.excused(error);
        let found: Vec<Vec<u8>> = match found {
            Ok(found) => found,
            Err(error) if excused(&error) => return Ok(None),
            Err(error) => {
                return self.expect("a walk after a failed removal", Err(error));
            }
        };
        let what = || format!("after a failed {how:?} of {span} in {}", space_name(space));
        for key in &found {
            ensure(wanted.contains(key), || format!("{}: {} is there", what(), show(key)))?;
        }
        let taken: Vec<Key> = wanted.iter().filter(|key| !found.contains(key)).cloned().collect();
        let of_pop = match how {
            Removal::First => wanted.first(),
            Removal::Last => wanted.last(),
            Removal::Retain(_) | Removal::Extract(_) | Removal::Range => None,
        };
        for key in &taken {
            let right = of_pop.map_or_else(|| how.takes(key), |first| first == key);
            ensure(right, || format!("{}: {} is gone", what(), show(key)))?;
        }
        open.reads.whole(space, span);
        Ok(Some(taken))
    }
}

/// The transaction of an operation.
fn tx_of(op: &Op) -> Option<u8> {
    match op {
        Op::Get { from: Reader::Tx(tx), .. } | Op::Walk { from: Reader::Tx(tx), .. } => Some(*tx),
        Op::Remove { tx, .. } | Op::Put { tx, .. } | Op::Delete { tx, .. } => Some(*tx),
        Op::Update { tx, .. } => Some(*tx),
        Op::Commit { tx, .. } | Op::Submit { tx } => Some(*tx),
        _ => None,
    }
}

/// The range of a removal.
pub(super) fn span_of(how: Removal, span: &Span) -> Span {
    match (how, span) {
        (Removal::First | Removal::Last, _) => Span::Range(Edge::Open, Edge::Open),
        (_, Span::Prefix(prefix)) => Span::Range(Edge::At(prefix.clone()), Edge::Open),
        (_, span) => span.clone(),
    }
}
