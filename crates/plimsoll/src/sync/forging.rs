//! Sends an altered commit, as a damaged or hostile store would; for simulations.

use std::cell::Cell;

use crate::api::state_hash::StateHash;
use crate::sync::contents::{Bytes, Sink};
use crate::sync::send::{CommitSink, Head};
use crate::types::error::Result;
use crate::types::expiry::Expiry;

/// The part of a commit that is altered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// The order of the parents.
    Parents,
    /// The time of the commit.
    Time,
    /// The metadata.
    Metadata,
    /// A byte of a value.
    Value,
    /// The expiry of a value.
    Expiry,
    /// The key of a deletion.
    Delete,
    /// A deleted range: it is not sent.
    Range,
}

impl Forgery {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Parents,
        Self::Time,
        Self::Metadata,
        Self::Value,
        Self::Expiry,
        Self::Delete,
        Self::Range,
    ];
}

thread_local! {
    static ARMED: Cell<Option<(u64, Forgery)>> = const { Cell::new(None) };
    static IS_FORGED: Cell<bool> = const { Cell::new(false) };
}

/// Alters the `nth` commit that this thread sends from now on (1: the next one).
pub fn arm(nth: u64, forgery: Forgery) {
    ARMED.set(Some((nth, forgery)));
    IS_FORGED.set(false);
}

/// Ends the effect of [`arm`]. Returns whether an altered commit was sent.
pub fn disarm() -> bool {
    ARMED.set(None);
    IS_FORGED.replace(false)
}

/// Passes commits on, and alters the chosen one.
pub(super) struct Forger<'r>(pub(super) &'r mut dyn CommitSink);

impl CommitSink for Forger<'_> {
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        match next() {
            None => self.0.commit(head, changes),
            Some(forgery) => send(forgery, head, self.0, changes),
        }
    }
}

/// The forgery of the next commit, if it is to be forged.
fn next() -> Option<Forgery> {
    let (left, forgery) = ARMED.get()?;
    ARMED.set((left > 1).then(|| (left - 1, forgery)));
    (left <= 1).then_some(forgery)
}

/// Sends a forged commit.
fn send(
    forgery: Forgery,
    head: &Head<'_>,
    sink: &mut dyn CommitSink,
    changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
) -> Result<()> {
    let metadata = [head.metadata, b"!"].concat();
    let parents: Vec<_> = head.parents.iter().rev().copied().collect();
    let mut forged = Head {
        id: head.id,
        parents: head.parents,
        micros: head.micros,
        metadata: head.metadata,
        is_on_line: head.is_on_line,
        is_boundary: head.is_boundary,
    };
    let mut is_forged = true;
    match forgery {
        Forgery::Parents => {
            is_forged = parents != head.parents;
            forged.parents = &parents;
        }
        Forgery::Time => forged.micros += 1,
        Forgery::Metadata => forged.metadata = &metadata,
        _ => is_forged = false,
    }
    sink.commit(&forged, &mut |sink| {
        // Set only here: if the receiver has the commit, it does not ask for the changes, and
        // nothing altered is sent.
        IS_FORGED.set(is_forged);
        changes(&mut Forging { sink, forgery })
    })
}

struct Forging<'s> {
    sink: &'s mut dyn Sink,
    forgery: Forgery,
}

impl Sink for Forging<'_> {
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        if self.forgery == Forgery::Range {
            IS_FORGED.set(true);
            return Ok(());
        }
        self.sink.range(keyspace, first, end)
    }

    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()> {
        if self.forgery == Forgery::Delete {
            IS_FORGED.set(true);
            return self.sink.delete(keyspace, &[key, b"!"].concat());
        }
        self.sink.delete(keyspace, key)
    }

    fn put(
        &mut self,
        keyspace: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        value: Bytes<'_>,
    ) -> Result<()> {
        let mut expiry = expiry;
        if let (Forgery::Expiry, Some(at)) = (self.forgery, expiry) {
            IS_FORGED.set(true);
            expiry = Expiry::from_micros(at.micros() + 1_000_000);
        }
        match value {
            Bytes::Whole(value) if self.forgery == Forgery::Value && !value.is_empty() => {
                IS_FORGED.set(true);
                let mut value = value.to_vec();
                value[0] ^= 1;
                self.sink.put(keyspace, key, expiry, Bytes::Whole(&value))
            }
            Bytes::Pieces(len, next) if self.forgery == Forgery::Value => {
                let mut left = len;
                let mut forged = |piece: &mut [u8]| {
                    let bytes = next(piece)?;
                    left = left.saturating_sub(bytes as u64);
                    if left == 0 && bytes > 0 {
                        IS_FORGED.set(true);
                        piece[bytes - 1] ^= 1;
                    }
                    Ok(bytes)
                };
                self.sink.put(keyspace, key, expiry, Bytes::Pieces(len, &mut forged))
            }
            value => self.sink.put(keyspace, key, expiry, value),
        }
    }

    fn state(&mut self, hash: StateHash) -> Result<()> {
        self.sink.state(hash)
    }
}
