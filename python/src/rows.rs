//! Iterators over rows: rows are read ahead in batches with the GIL released, and returned one by
//! one with the GIL held.
//!
//! An iterator over a snapshot keeps its position. An iterator over a transaction re-seeks after
//! its last key for each batch, so the transaction can be written to in between. Keys written ahead
//! of the iterator are returned.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyTuple, PyType};

use crate::errors::OrRaise;
use crate::fork::ForkSafe;
use crate::place::{Place, When};
use crate::span::KeySpan;
use crate::store::Store;

/// Rows of the first batch and of the largest one, so that short scans read few extra rows.
const FIRST_ROWS: usize = 16;
const ROWS_MAX: usize = 1024;

/// A batch ends after the row that brings it to this size.
const BATCH_BYTES: usize = 1 << 20;

/// The part of a row to return.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keys,
    Values,
    Items,
}

/// The rows to scan.
#[derive(Clone, Default)]
pub(crate) struct Visit {
    pub(crate) span: KeySpan,
    pub(crate) reverse: bool,
    pub(crate) limit: Option<u64>,
}

/// Rows read ahead: keys and values one after the other.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Ends of each row's key and value.
    ends: Vec<(usize, usize)>,
    next: usize,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.next = 0;
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let end_of_key = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((end_of_key, self.bytes.len()));
    }

    fn row(&self, index: usize) -> (&[u8], &[u8]) {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (end_of_key, end) = self.ends[index];
        (&self.bytes[start..end_of_key], &self.bytes[end_of_key..end])
    }
}

#[allow(clippy::large_enum_variant, reason = "there is one per iterator, on the heap")]
enum Source {
    /// Holds the store, so that it stays open.
    Snapshot(
        ForkSafe<plimsoll::Range<'static>>,
        #[allow(dead_code, reason = "it is held")] Arc<Store>,
    ),
    Transaction {
        place: Place,
        last: Option<Vec<u8>>,
    },
    Done,
}

/// An iterator over the rows of a place.
pub(crate) struct Walk {
    source: Source,
    visit: Visit,
    keys_only: bool,
    batch: Batch,
    /// Number of rows of the next batch.
    wanted: usize,
}

impl Walk {
    pub(crate) fn new(
        py: Python<'_>,
        place: &Place,
        visit: Visit,
        keys_only: bool,
    ) -> PyResult<Self> {
        let source = match place.snapshot(py)? {
            Some(snapshot) => {
                let walk =
                    snapshot.range(&place.keyspace, visit.span.behind(None, false)).or_raise()?;
                let walk = if visit.reverse { walk.reverse() } else { walk };
                let walk = if keys_only { walk.keys_only() } else { walk };
                Source::Snapshot(ForkSafe::new(walk), Arc::clone(&place.store))
            }
            None => Source::Transaction { place: place.clone(), last: None },
        };
        Ok(Self { source, visit, keys_only, batch: Batch::default(), wanted: FIRST_ROWS })
    }

    /// Reads the next rows; false at the end.
    pub(crate) fn fill(&mut self, py: Python<'_>) -> PyResult<bool> {
        py.check_signals()?;
        self.batch.clear();
        let left =
            self.visit.limit.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let wanted = self.wanted.min(left);
        self.wanted = (self.wanted * 4).min(ROWS_MAX);
        if wanted == 0 {
            self.source = Source::Done;
        }
        let (batch, keys_only, visit) = (&mut self.batch, self.keys_only, &self.visit);
        let at_end = match &mut self.source {
            Source::Done => return Ok(false),
            Source::Snapshot(walk, _) => {
                let walk = walk.get_mut()?;
                py.detach(|| take(walk, batch, wanted)).or_raise()?
            }
            Source::Transaction { place, last } => {
                let bounds = visit.span.behind(last.as_deref(), visit.reverse);
                let keyspace = place.keyspace.clone();
                let reverse = visit.reverse;
                let at_end = place.read_in_transaction(py, |transaction| {
                    let walk = transaction.range(&keyspace, bounds)?;
                    let walk = if reverse { walk.reverse() } else { walk };
                    let mut walk = if keys_only { walk.keys_only() } else { walk };
                    take(&mut walk, batch, wanted)
                })?;
                if let Some(at) = batch.ends.len().checked_sub(1) {
                    *last = Some(batch.row(at).0.to_vec());
                }
                at_end
            }
        };
        if let Some(left) = &mut self.visit.limit {
            *left -= batch.ends.len() as u64;
        }
        if at_end {
            self.source = Source::Done;
        }
        Ok(!self.batch.ends.is_empty())
    }

    /// The next row that was read ahead.
    fn next(&mut self) -> Option<(&[u8], &[u8])> {
        let at = self.batch.next;
        if at == self.batch.ends.len() {
            return None;
        }
        self.batch.next += 1;
        Some(self.batch.row(at))
    }

    /// Calls `each` with all rows, one batch at a time.
    pub(crate) fn for_each_batch(
        &mut self,
        py: Python<'_>,
        mut each: impl FnMut(&mut dyn Iterator<Item = (&[u8], &[u8])>) -> PyResult<()>,
    ) -> PyResult<()> {
        while self.fill(py)? {
            each(&mut (0..self.batch.ends.len()).map(|at| self.batch.row(at)))?;
        }
        Ok(())
    }
}

/// Moves rows of an iterator into a batch; returns whether the iterator has ended.
fn take(
    walk: &mut plimsoll::Range<'_>,
    batch: &mut Batch,
    wanted: usize,
) -> plimsoll::Result<bool> {
    while batch.ends.len() < wanted && batch.bytes.len() < BATCH_BYTES {
        match walk.advance()? {
            Some((key, value)) => batch.push(key, value),
            None => return Ok(true),
        }
    }
    Ok(false)
}

/// Number of rows, without reading values.
pub(crate) fn count(py: Python<'_>, place: &Place, span: KeySpan) -> PyResult<u64> {
    const ROWS_BETWEEN_SIGNALS: u64 = 100_000;
    if matches!(place.when, When::In(_)) {
        let mut walk = Walk::new(py, place, Visit { span, ..Visit::default() }, true)?;
        let mut rows = 0;
        walk.for_each_batch(py, |batch| {
            rows += batch.count() as u64;
            Ok(())
        })?;
        return Ok(rows);
    }
    let snapshot = place.snapshot(py)?.expect("it is not a transaction");
    let mut walk =
        snapshot.range(&place.keyspace, span.behind(None, false)).or_raise()?.keys_only();
    let mut rows = 0;
    loop {
        let counted = py.detach(|| {
            let mut counted = 0;
            while counted < ROWS_BETWEEN_SIGNALS && walk.advance()?.is_some() {
                counted += 1;
            }
            Ok(counted)
        });
        let counted = counted.or_raise()?;
        rows += counted;
        if counted < ROWS_BETWEEN_SIGNALS {
            return Ok(rows);
        }
        py.check_signals()?;
    }
}

/// Converts a row for Python.
pub(crate) fn part_of<'py>(
    py: Python<'py>,
    part: Part,
    (key, value): (&[u8], &[u8]),
) -> PyResult<Bound<'py, PyAny>> {
    Ok(match part {
        Part::Keys => PyBytes::new(py, key).into_any(),
        Part::Values => PyBytes::new(py, value).into_any(),
        Part::Items => {
            PyTuple::new(py, [PyBytes::new(py, key), PyBytes::new(py, value)])?.into_any()
        }
    })
}

/// An iterator over keys, values, or pairs of both, in the order of the keys.
///
/// It reads the store as of the iterator's creation (in a transaction, including the transaction's
/// later writes ahead of it). Rows are read ahead in batches of up to 1,024 rows or about 1 MiB.
///
/// >>> db = plimsoll.in_memory()
/// >>> db.update({b"a": b"1", b"b": b"2", b"c": b"3"})
/// >>> rows = db.items(b"b")
/// >>> db[b"d"] = b"4"
/// >>> next(rows), list(rows)
/// ((b'b', b'2'), [(b'c', b'3')])
#[pyclass(module = "plimsoll", frozen)]
pub struct Rows {
    part: Part,
    walk: Mutex<Walk>,
}

impl Rows {
    pub(crate) fn new(py: Python<'_>, place: &Place, visit: Visit, part: Part) -> PyResult<Self> {
        Ok(Self { part, walk: Mutex::new(Walk::new(py, place, visit, part == Part::Keys)?) })
    }
}

#[pymethods]
impl Rows {
    /// `Rows[bytes]` in annotations.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        class.py().import("types")?.getattr("GenericAlias")?.call1((class, item))
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut walk = self.walk.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = walk.next() {
            return part_of(py, self.part, row).map(Some);
        }
        if !walk.fill(py)? {
            return Ok(None);
        }
        walk.next().map(|row| part_of(py, self.part, row)).transpose()
    }
}
