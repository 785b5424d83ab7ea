//! Visits: iterations that lend each row, from its place in memory, to a closure.
//!
//! Invariants:
//! 1. A visit holds a page of each run and the memtables of one view. After an exchange of the view
//!    (a flush, a step of compaction) it keeps the old view only until the closure returns.
//! 2. Its other memory is charged.

use std::mem::take;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use super::Range;
use crate::index::iter::handle::Detachable;
use crate::index::iter::visible::Visible;
use crate::types::error::{Error, Result};
use crate::types::index_key::IndexKey;

/// Charged for the cursors of a visit before it is attached. Anything beyond that is charged
/// afterwards.
const CURSORS_BYTES: usize = 1 << 10;

/// The charge is updated once in this many rows, because the memory grows with the longest key.
const ROWS_A_CHARGE: u64 = 64;

impl<'t> Range<'t> {
    /// Calls `each` with the remaining keys and values, in order, until it breaks. Returns the
    /// value of the break; `None` at the end.
    ///
    /// The fastest way to read many rows: keys and values are lent from their place in memory,
    /// without copies or allocations per row. `each` may use the store but should be short, because
    /// the memory of the iterator is not freed while it runs.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// use std::ops::ControlFlow;
    ///
    /// let stars = db.keyspace("stars")?;
    /// for star in ["deneb", "sirius", "vega"] {
    ///     db.put(&stars, star, "bright")?;
    /// }
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
        if self.own.is_some() || self.branch.is_some() || self.has_begun() || self.finished {
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

/// A visit of committed rows.
struct Visit<'r, 't> {
    range: &'r mut Range<'t>,
    base: Visible,
    /// The key that the base has reached.
    key: Vec<u8>,
    /// Whether a row was lent.
    has_any: bool,
}

/// Why a visit has released its sources.
enum Left<B> {
    Break(B),
    AtEnd,
    /// The view was exchanged, or the cursors could not be charged: the visit is attached again.
    Early,
    /// A value could not be read, not even in the newest view. The base has passed this row, so the
    /// visit must not be attached again, or it would omit the row.
    Failed(Error),
}

impl<'r, 't> Visit<'r, 't> {
    fn new(range: &'r mut Range<'t>) -> Result<Self> {
        let span = if range.reads.is_some() { range.span.clone() } else { range.span.take() };
        let committer = &range.committer;
        let mut cursors = committer.reader.index.iterators.take_cursors();
        let mut key = take(&mut cursors.key);
        key.clear();
        let is_free = cursors.is_free();
        let base = Visible::new(span.expect(super::SPAN).into_range(), range.at(), range.direction)
            .with(cursors);
        let mut visit = Self { base, range, key, has_any: false };
        // The charge of kept cursors roughly covers this visit; the rest is charged at its first
        // row.
        if is_free {
            let Self { base, range, .. } = &mut visit;
            let bytes = base.kept_bytes() + CURSORS_BYTES;
            range.committer.writer_memory.in_transaction(true, || Ok(base.cover(bytes)?))?;
        }
        Ok(visit)
    }

    fn run<B>(mut self, mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<Option<B>> {
        loop {
            let exchange = self.range.reader().index.iterators.exchange_number();
            self.base.attach(&self.range.reader().index.sources.current_view(), &self.key)?;
            let left = self.lend(exchange, &mut each);
            let view = self.base.detach();
            match left {
                Ok(Left::Break(found)) => return Ok(Some(found)),
                Ok(Left::AtEnd) => {
                    self.settle();
                    self.range.remember(true);
                    return Ok(None);
                }
                Ok(Left::Early) => {}
                Ok(Left::Failed(error)) => return Err(error),
                // If the view was exchanged meanwhile, its files may be gone: go on in the newer
                // view.
                Err(error) => {
                    let view = view.as_ref().map_or_else(Weak::new, Arc::downgrade);
                    drop(self.range.reader().newer_view(&view).ok_or(error)?);
                }
            }
        }
    }

    /// Lends rows from the view that the visit is attached in, which was loaded after the exchange
    /// with this number.
    fn lend<B>(
        &mut self,
        exchange: u64,
        each: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Left<B>> {
        let Self { range, base, key, has_any } = self;
        let mut rows: u64 = 0;
        loop {
            range.reader().check_open()?;
            let found = base.step(key)?;
            if base.has_passed_expired() {
                range.at().note_missed();
            }
            if !found {
                return Ok(Left::AtEnd);
            }
            let value = match base.inline_value() {
                Some(_) if range.keys_only => &[],
                Some(value) => value,
                None => {
                    let version = base.current(key).expect("the base was moved to a row");
                    range.at().note(version.key, &version.stored);
                    match version.stored.value().inline_value() {
                        _ if range.keys_only => &[],
                        // An inline value that expires.
                        Some(value) => value,
                        None => {
                            let (key, glsn, stored) = (version.key, version.glsn, version.stored);
                            if let Err(error) = range.load_value(key, glsn, stored, &base.view()) {
                                return Ok(Left::Failed(error));
                            }
                            &range.value[..]
                        }
                    }
                }
            };
            *has_any = true;
            if let ControlFlow::Break(found) = each(IndexKey::new(key).user_key(), value) {
                return Ok(Left::Break(found));
            }
            if range.reader().index.iterators.exchange_number() != exchange {
                return Ok(Left::Early);
            }
            if rows.is_multiple_of(ROWS_A_CHARGE) {
                let bytes = base.kept_bytes() + base.attached_bytes() + key.capacity();
                if base.cover(bytes).is_err() {
                    return Ok(Left::Early);
                }
            }
            rows += 1;
        }
    }

    /// Gives the range the data that it needs to record reads.
    fn settle(&mut self) {
        self.range.has_any = self.has_any;
        if self.range.reads.is_some() {
            self.range.key.put(take(&mut self.key));
        }
    }
}

/// Also runs if the closure panics, because the rows lent so far count as read.
impl Drop for Visit<'_, '_> {
    fn drop(&mut self) {
        self.settle();
        if let Some(mut cursors) = self.base.take_kept() {
            cursors.key = take(&mut self.key);
            self.range.reader().index.iterators.keep_cursors(cursors);
        }
    }
}
