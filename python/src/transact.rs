//! Runs a change in a transaction, and retries it after a conflict.

use std::sync::Arc;
use std::time::Duration;

use plimsoll::Error;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::raised;
use crate::place::{OnBranch, OpenTransaction, Place, When};
use crate::store::Store;
use crate::transaction::Transaction;

/// Attempts before a conflict becomes an error, as in the engine's own `Db::transact`.
const ATTEMPTS: u32 = 32;

/// From this attempt on, a transaction reads ordered commits, durable or not, as in the engine.
const FIRST_ORDERED: u32 = 4;

const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Runs `change` in an open transaction and commits it, until there is no conflict. Returns the
/// result of the last run and the commit's GLSN.
pub(crate) fn transact<T>(
    py: Python<'_>,
    store: &Arc<Store>,
    on: Option<&OnBranch>,
    mut change: impl FnMut(&Arc<OpenTransaction>) -> PyResult<T>,
) -> PyResult<(T, u64)> {
    let mut attempt = 1;
    loop {
        let is_ordered = attempt >= FIRST_ORDERED;
        let open = OpenTransaction::new(begin(py, store, on, is_ordered)?);
        let done = match change(&open) {
            Ok(done) => done,
            Err(error) => {
                drop(open.end(py));
                if is_ordered {
                    wait_for_what_was_read(py, store);
                }
                return Err(error);
            }
        };
        match commit(py, &open) {
            Ok((glsn, is_made)) => {
                if is_ordered && !is_made {
                    wait_for_what_was_read(py, store);
                }
                return Ok((done, glsn));
            }
            Err(Error::Conflict { .. }) if attempt < ATTEMPTS => pause(py, attempt)?,
            Err(error) => return Err(raised(&error)),
        }
        attempt += 1;
    }
}

fn begin(
    py: Python<'_>,
    store: &Arc<Store>,
    on: Option<&OnBranch>,
    is_ordered: bool,
) -> PyResult<plimsoll::Transaction> {
    match on {
        Some(branch) => branch.begin(py, is_ordered),
        None if is_ordered => store.newest(py, plimsoll::Db::begin_ordered),
        None => store.newest(py, plimsoll::Db::begin),
    }
}

/// Calls `function(transaction, *args, **kwargs)` as [`transact`] does, on a branch or on main.
pub(crate) fn call_in_transaction<'py>(
    py: Python<'py>,
    store: &Arc<Store>,
    on: Option<&OnBranch>,
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (result, _) = transact(py, store, on, |open| {
        let transaction = Transaction::of(py, store, open)?;
        let first = PyTuple::new(py, [transaction])?.into_any();
        let all = first.add(args)?.cast_into::<PyTuple>()?;
        let result = function.call(all, kwargs)?;
        if result.hasattr("__await__")? {
            return Err(PyTypeError::new_err(
                "transact needs a plain function, because a transaction must not wait in an event \
                 loop",
            ));
        }
        Ok(result)
    })?;
    Ok(result)
}

/// Waits until every commit ordered so far is durable, so that data read from them may be returned.
/// Ignores a failure, because the next commit reports it.
fn wait_for_what_was_read(py: Python<'_>, store: &Arc<Store>) {
    if let Ok(transaction) = store.newest(py, plimsoll::Db::begin_ordered) {
        let _ = py.detach(|| transaction.commit());
    }
}

/// Commits the transaction if `change` left it open; returns the GLSN, and whether a commit was
/// made.
fn commit(py: Python<'_>, open: &Arc<OpenTransaction>) -> plimsoll::Result<(u64, bool)> {
    let Ok(transaction) = open.end(py) else {
        return Ok((open.committed(py).unwrap_or(open.at).0, false));
    };
    let glsn = py.detach(|| transaction.commit())?;
    open.note_committed(py, glsn);
    Ok((glsn.0, true))
}

/// A random pause with a doubling bound.
fn pause(py: Python<'_>, attempt: u32) -> PyResult<()> {
    let bound = FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_PAUSE);
    py.detach(|| std::thread::sleep(bound.mul_f64(fastrand::f64())));
    py.check_signals()
}

/// Runs a change of one keyspace in the place's transaction; if there is none, in a new
/// transaction, whose commit's GLSN it returns.
pub(crate) fn change<T>(
    py: Python<'_>,
    place: &Place,
    mut change: impl FnMut(&Place) -> PyResult<T>,
) -> PyResult<(T, Option<u64>)> {
    if let When::In(_) = &place.when {
        return change(place).map(|done| (done, None));
    }
    let on = match &place.when {
        When::On(branch) => Some(&**branch),
        _ => None,
    };
    let (done, glsn) = transact(py, &place.store, on, |open| {
        let inside = Place { when: When::In(Arc::clone(open)), ..place.clone() };
        change(&inside)
    })?;
    Ok((done, Some(glsn)))
}
