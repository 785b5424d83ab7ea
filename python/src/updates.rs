//! Updates of single keys without a prior read. Outside a transaction, an update is one commit and
//! returns its result. In a transaction, it is computed at the commit and returns `None`.

use plimsoll::{Branch, Keyspace, Overflow, Transaction};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::place::{Place, When};

/// Runs an update in the place: `now` as a commit, with the GIL released, or `later` in its
/// transaction, which returns `None`.
pub(crate) fn update<T: Send>(
    py: Python<'_>,
    place: &Place,
    bytes: usize,
    now: impl FnOnce(&Branch, &Keyspace) -> plimsoll::Result<T> + Send,
    later: impl FnOnce(&mut Transaction, &Keyspace) -> plimsoll::Result<()> + Send,
) -> PyResult<Option<T>> {
    match &place.when {
        When::Now => {
            let main = place.store.db()?.main();
            py.detach(|| now(&main, &place.keyspace)).or_raise().map(Some)
        }
        When::On(branch) => {
            let branch = branch.get()?;
            py.detach(|| now(branch, &place.keyspace)).or_raise().map(Some)
        }
        When::In(transaction) => transaction
            .write(py, bytes, |transaction| later(transaction, &place.keyspace))
            .map(|()| None),
        When::At(_) => unreachable!("a snapshot is not a WriteMapping"),
    }
}

/// The overflow behaviour with a name.
pub(crate) fn overflow(name: &str) -> PyResult<Overflow> {
    match name {
        "checked" => Ok(Overflow::Checked),
        "saturating" => Ok(Overflow::Saturating),
        "wrapping" => Ok(Overflow::Wrapping),
        other => Err(PyValueError::new_err(format!(
            "overflow is 'checked', 'saturating' or 'wrapping', not {other:?}"
        ))),
    }
}
