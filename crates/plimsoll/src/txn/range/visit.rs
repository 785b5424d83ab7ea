//! Visits: walks that lend each row, from where it is in memory, to a closure.
//!
//! Laws:
//! 1. A visit holds a page of each run and the memtables of one moment of the index. Once the
//!    sources were exchanged (a flush, a step of compaction) it holds those that it began with
//!    until the closure returns, and no longer.
//! 2. What it needs of memory beyond that is charged.

use std::mem::take;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use super::Range;
use crate::index::walk::seat::Walk;
use crate::index::walk::visible::Visible;
use crate::types::error::{Error, Result};
use crate::types::index_key::IndexKey;

/// Charged for the cursors of a visit before it sits down; what they take beyond that is charged
/// when they are there.
const CURSORS_BYTES: usize = 1 << 10;

/// What the cursors take is charged once in as many rows: it grows with the longest key.
const ROWS_A_CHARGE: u64 = 64;

impl<'t> Range<'t> {
    /// Calls `each` with the remaining keys and values, in order, until it breaks; returns the
    /// value that it breaks with, `None` at the end.
    ///
    /// The fastest way to read many rows: keys and values are lent from where they are in memory,
    /// nothing is copied, and nothing is allocated for a row. `each` should be short, although it
    /// may use the store: while it runs, the memory that the walk uses is not freed.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = plimsoll::Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))?;
    /// use std::ops::ControlFlow;
    ///
    /// let stars = db.keyspace("stars")?;
    /// db.transact(|tx| ["deneb", "sirius", "vega"].iter().try_for_each(|star| tx.put(&stars, star, "bright")))?;
    /// let long = db.snapshot().range(&stars, ..)?.visit(|star, _| match star.len() {
    ///     6.. => ControlFlow::Break(star.to_vec()),
    ///     _ => ControlFlow::Continue(()),
    /// })?;
    /// assert_eq!(long.unwrap(), b"sirius");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Range::advance`].
    pub fn visit<B>(
        mut self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Option<B>> {
        if self.own.is_some() || self.walk.is_some() || self.finished {
            while let Some((key, value)) = self.advance()? {
                if let ControlFlow::Break(found) = each(key, value) {
                    return Ok(Some(found));
                }
            }
            return Ok(None);
        }
        Visit::new(&mut self)?.run(each)
    }
}

/// A visit of what is committed.
struct Visit<'r, 't> {
    range: &'r mut Range<'t>,
    base: Visible,
    /// The key that the base has come to.
    key: Vec<u8>,
    /// A row was lent.
    has_any: bool,
}

/// Why a visit has left its sources.
enum Left<B> {
    Broke(B),
    AtEnd,
    /// The sources were exchanged, or its cursors could not be charged for: it sits down anew.
    Early,
    /// A value could not be read, in newer sources neither. It has come to that row: sitting down
    /// anew would leave it out.
    Failed(Error),
}

impl<'r, 't> Visit<'r, 't> {
    fn new(range: &'r mut Range<'t>) -> Result<Self> {
        let span = if range.reads.is_some() { range.span.clone() } else { range.span.take() };
        let committer = &range.committer;
        let mut cursors = committer.reader.index.seats.take_cursors();
        let mut key = take(&mut cursors.key);
        key.clear();
        let is_free = cursors.is_free();
        let base = Visible::new(span.expect(super::SPAN).into_range(), range.at, range.direction)
            .with(cursors);
        let mut visit = Self { base, range, key, has_any: false };
        // What is charged for kept cursors is about what this visit needs; the rest is charged at
        // its first row.
        if is_free {
            let Self { base, range, .. } = &mut visit;
            let bytes = base.kept_bytes() + CURSORS_BYTES;
            range.committer.patience.in_transaction(true, || Ok(base.cover(bytes)?))?;
        }
        Ok(visit)
    }

    fn run<B>(mut self, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<Option<B>> {
        loop {
            let exchange = self.range.reader().index.seats.exchange_number();
            self.base.sit_down(&self.range.reader().index.sources.current_view(), &self.key)?;
            let left = self.lend(exchange, &mut each);
            let view = self.base.get_up();
            match left {
                Ok(Left::Broke(found)) => return Ok(Some(found)),
                Ok(Left::AtEnd) => {
                    self.settle();
                    self.range.remember(true);
                    return Ok(None);
                }
                Ok(Left::Early) => {}
                Ok(Left::Failed(error)) => return Err(error),
                // What the old sources needed may be gone.
                Err(error) => {
                    let view = view.as_ref().map_or_else(Weak::new, Arc::downgrade);
                    drop(self.range.reader().newer_view(&view).ok_or(error)?);
                }
            }
        }
    }

    /// Lends rows from the view that it sits in, which was taken after the exchange with this
    /// number.
    fn lend<B>(
        &mut self,
        exchange: u64,
        each: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Left<B>> {
        let Self { range, base, key, has_any } = self;
        let mut rows: u64 = 0;
        loop {
            range.reader().check_open()?;
            if !base.step(key)? {
                return Ok(Left::AtEnd);
            }
            let value = match base.inline_value() {
                _ if range.keys_only => &[],
                Some(value) => value,
                None => {
                    let version = base.current(key).expect("it has moved there");
                    if let Err(error) =
                        range.load_value(version.key, version.glsn, version.stored, &base.view())
                    {
                        return Ok(Left::Failed(error));
                    }
                    &range.value[..]
                }
            };
            *has_any = true;
            if let ControlFlow::Break(found) = each(IndexKey::new(key).user_key(), value) {
                return Ok(Left::Broke(found));
            }
            if range.reader().index.seats.exchange_number() != exchange {
                return Ok(Left::Early);
            }
            if rows.is_multiple_of(ROWS_A_CHARGE) {
                let bytes = base.kept_bytes() + base.seated_bytes() + key.capacity();
                if base.cover(bytes).is_err() {
                    return Ok(Left::Early);
                }
            }
            rows += 1;
        }
    }

    /// Hands the range what it needs to say what was read.
    fn settle(&mut self) {
        self.range.has_any = self.has_any;
        if self.range.reads.is_some() {
            self.range.key.put(take(&mut self.key));
        }
    }
}

/// Also where the closure panics: what was lent was read.
impl Drop for Visit<'_, '_> {
    fn drop(&mut self) {
        self.settle();
        if let Some(mut cursors) = self.base.take_kept() {
            cursors.key = take(&mut self.key);
            self.range.reader().index.seats.keep_cursors(cursors);
        }
    }
}
