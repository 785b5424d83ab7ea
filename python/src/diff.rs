//! The differences between two moments, or between two states of branches.

use std::sync::{Mutex, PoisonError};

use plimsoll::{Glsn, Moment, VersionInfo};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use crate::branches::Branch;
use crate::bytes_like::BytesLike;
use crate::errors::OrRaise;
use crate::fork::ForkSafe;
use crate::history::Version;
use crate::place::Place;
use crate::snapshot::Snapshot;

/// The keys whose values differ between two states, in key order: an iterator, from
/// `LiveMapping.diff` and `BranchMapping.diff`.
///
/// >>> db = plimsoll.in_memory()
/// >>> before = db.put_many({b"coffee": b"4.50", b"tea": b"3.10"})
/// >>> after = db.put_many({b"cocoa": b"5.00", b"tea": b"3.20"})
/// >>> [difference.key for difference in db.diff(before, after)]
/// [b'cocoa', b'tea']
#[pyclass(module = "plimsoll", frozen)]
pub struct Diff {
    moments: (u64, u64),
    diff: Mutex<ForkSafe<plimsoll::Diff>>,
}

/// The differences between two states, which were given as numbers of commits, branches or
/// snapshots. The numbers are moments of the branch of `place`.
pub(crate) fn between(
    py: Python<'_>,
    place: &Place,
    given: [&Bound<'_, PyAny>; 2],
    prefix: Option<BytesLike<'_>>,
) -> PyResult<Diff> {
    let prefix = prefix.as_ref().map_or(&b""[..], BytesLike::get);
    let branch = place.branch()?;
    let [first, second] = [State::new(py, given[0])?, State::new(py, given[1])?];
    if let (State::Glsn(first), State::Glsn(second)) = (&first, &second) {
        let diff =
            py.detach(|| branch.diff(&place.keyspace, *first, *second, prefix)).or_raise()?;
        return Ok(Diff::new((first.0, second.0), diff));
    }
    let snapshot = |state| match state {
        State::Glsn(at) => py.detach(|| branch.snapshot_at(Moment::Glsn(at))).or_raise(),
        State::Open(snapshot) => Ok(snapshot),
    };
    let (first, second) = (snapshot(first)?, snapshot(second)?);
    let db = place.store.db()?;
    let diff = || db.diff_between(&place.keyspace, &first, &second, prefix);
    Ok(Diff::new((first.at().0, second.at().0), py.detach(diff).or_raise()?))
}

/// A state as it was given.
enum State {
    Glsn(Glsn),
    Open(plimsoll::Snapshot),
}

impl State {
    fn new(py: Python<'_>, given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(branch) = given.cast::<Branch>() {
            return branch.get().on().snapshot(py).map(Self::Open);
        }
        if let Ok(snapshot) = given.cast::<Snapshot>() {
            return snapshot.get().get(py).map(Self::Open);
        }
        match given.extract::<u64>() {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => Err(PyTypeError::new_err(
                "a state must be the GLSN of a commit, a branch or a snapshot",
            )),
            glsn => Ok(Self::Glsn(Glsn(glsn?))),
        }
    }
}

impl Diff {
    fn new(moments: (u64, u64), diff: plimsoll::Diff) -> Self {
        Self { moments, diff: Mutex::new(ForkSafe::new(diff)) }
    }
}

#[pymethods]
impl Diff {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Difference>> {
        py.check_signals()?;
        let mut diff = self.diff.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let diff = diff.get_mut()?;
        let next = py.detach(|| diff.next()).transpose().or_raise()?;
        Ok(next.map(|found| {
            let plimsoll::Difference { key, by, before, after } = found;
            Difference { moments: self.moments, key, by, before, after }
        }))
    }
}

/// A key with different values in two states.
///
/// >>> db = plimsoll.in_memory()
/// >>> before = db.put(b"tea", b"3.10")
/// >>> after = db.put_many({b"cocoa": b"5.00", b"tea": b"3.20"})
/// >>> cocoa, tea = db.diff(before, after)
/// >>> cocoa.before, tea.before.value(), tea.after.value(), tea.by == after
/// (None, b'3.10', b'3.20', True)
#[pyclass(module = "plimsoll", frozen)]
pub struct Difference {
    moments: (u64, u64),
    key: Vec<u8>,
    by: Glsn,
    before: Option<VersionInfo>,
    after: Option<VersionInfo>,
}

impl Difference {
    fn version(&self, info: &Option<VersionInfo>) -> Option<Version> {
        info.clone().map(|info| Version::new(&self.key, info))
    }
}

#[pymethods]
impl Difference {
    /// The key.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key)
    }

    /// The last commit between the two moments that wrote or deleted the key; of states of
    /// different branches, the last one that only one of them contains.
    #[getter]
    fn by(&self) -> u64 {
        self.by.0
    }

    /// The version in the first state; `None` if the key had no value.
    #[getter]
    fn before(&self) -> Option<Version> {
        self.version(&self.before)
    }

    /// The version in the second state; `None` if the key had no value.
    #[getter]
    fn after(&self) -> Option<Version> {
        self.version(&self.after)
    }

    fn __repr__(&self) -> String {
        let what = match (&self.before, &self.after) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        let key = String::from_utf8_lossy(&self.key);
        format!(
            "<plimsoll difference: {key:?} {what} between GLSN {} and {}>",
            self.moments.0, self.moments.1
        )
    }
}
