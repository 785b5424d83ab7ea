//! Batches: many keys per native call.

use plimsoll::{Resident, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMapping, PyTuple};

use crate::bytes_like::BytesLike;
use crate::errors::OrRaise;
use crate::place::{Place, When};

/// Rows taken from a Python iterable before the GIL is released.
const ROWS: usize = 1024;

/// Bytes of these rows.
const BYTES: usize = 1 << 20;

/// The values of keys at one moment. Values in memory are read with the GIL held. The GIL is
/// released once to read all others.
pub(crate) fn get_many<'py>(
    py: Python<'py>,
    place: &Place,
    keys: &Bound<'py, PyAny>,
    default: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let place = place.steady(py)?;
    let values = PyList::empty(py);
    let mut missing: Vec<(usize, BytesLike<'_>)> = Vec::new();
    for key in keys.try_iter()? {
        if values.len() % ROWS == 0 {
            py.check_signals()?;
        }
        let key: BytesLike<'_> = key?.extract()?;
        match place.look(py, key.get(), |value| PyBytes::new(py, value))? {
            Resident::Value(value) => values.append(value)?,
            Resident::Absent => values.append(default)?,
            Resident::NotResident => {
                missing.push((values.len(), key));
                values.append(default)?;
            }
        }
    }
    let mut rest = &missing[..];
    while !rest.is_empty() {
        py.check_signals()?;
        let keys: Vec<&[u8]> = rest.iter().map(|(_, key)| key.get()).collect();
        let loaded = load(py, &place, &keys)?;
        let (now, later) = rest.split_at(loaded.len());
        for ((at, _), value) in now.iter().zip(loaded) {
            if let Some(value) = value {
                values.set_item(*at, PyBytes::new(py, &value))?;
            }
        }
        rest = later;
    }
    Ok(values)
}

/// Reads values with the GIL released, until the batch is full.
fn load(py: Python<'_>, place: &Place, keys: &[&[u8]]) -> PyResult<Vec<Option<Value>>> {
    let take = |get: &dyn Fn(&[u8]) -> plimsoll::Result<Option<Value>>| {
        let (mut values, mut bytes) = (Vec::new(), 0);
        for key in keys.iter().take(ROWS) {
            let value = get(key)?;
            bytes += value.as_ref().map_or(0, |value| value.len());
            values.push(value);
            if bytes > BYTES {
                break;
            }
        }
        Ok(values)
    };
    match place.snapshot(py)? {
        Some(snapshot) => py.detach(|| take(&|key| snapshot.get(&place.keyspace, key))).or_raise(),
        None => place.read_in_transaction(py, |transaction| {
            take(&|key| transaction.get(&place.keyspace, key))
        }),
    }
}

/// Calls `put` with batches of pairs from a mapping or an iterable.
pub(crate) fn for_pairs<'py>(
    pairs: &Bound<'py, PyAny>,
    mut put: impl FnMut(&[(BytesLike<'py>, BytesLike<'py>)], usize) -> PyResult<()>,
) -> PyResult<()> {
    let items = match pairs.cast::<PyDict>() {
        Ok(dict) => dict.items().into_any(),
        Err(_) if pairs.cast::<PyMapping>().is_ok() => pairs.call_method0("items")?,
        Err(_) => pairs.clone(),
    };
    let (mut batch, mut bytes) = (Vec::with_capacity(64), 0);
    for pair in items.try_iter()? {
        let pair = pair?;
        let (key, value): (BytesLike<'py>, BytesLike<'py>) =
            pair.extract().map_err(|error: PyErr| {
                let py = pair.py();
                let is_pair = pair.cast::<PyTuple>().is_ok_and(|pair| pair.len() == 2);
                if is_pair {
                    error
                } else {
                    PyTypeError::new_err(format!(
                        "expected tuples of a key and a value: {}",
                        error.value(py)
                    ))
                }
            })?;
        bytes += key.get().len() + value.get().len();
        batch.push((key, value));
        if batch.len() == ROWS || bytes >= BYTES {
            put(&batch, bytes)?;
            pairs.py().check_signals()?;
            batch.clear();
            bytes = 0;
        }
    }
    if batch.is_empty() { Ok(()) } else { put(&batch, bytes) }
}

/// Calls `then` with batches of keys.
pub(crate) fn for_keys<'py>(
    keys: &Bound<'py, PyAny>,
    mut then: impl FnMut(&[BytesLike<'py>]) -> PyResult<()>,
) -> PyResult<()> {
    let mut batch = Vec::with_capacity(64);
    for key in keys.try_iter()? {
        batch.push(key?.extract()?);
        if batch.len() == ROWS {
            then(&batch)?;
            keys.py().check_signals()?;
            batch.clear();
        }
    }
    if batch.is_empty() { Ok(()) } else { then(&batch) }
}

/// Puts pairs into a transaction.
pub(crate) fn put_into(py: Python<'_>, place: &Place, pairs: &Bound<'_, PyAny>) -> PyResult<()> {
    let When::In(transaction) = &place.when else { unreachable!("called only if there is one") };
    for_pairs(pairs, |batch, bytes| {
        let rows: Vec<(&[u8], &[u8])> =
            batch.iter().map(|(key, value)| (key.get(), value.get())).collect();
        transaction.write(py, bytes.max(ROWS), |transaction| {
            rows.iter().try_for_each(|(key, value)| transaction.put(&place.keyspace, key, value))
        })
    })
}

/// Deletes keys in a transaction.
pub(crate) fn delete_from(py: Python<'_>, place: &Place, keys: &Bound<'_, PyAny>) -> PyResult<()> {
    let When::In(transaction) = &place.when else { unreachable!("called only if there is one") };
    for_keys(keys, |batch| {
        let keys: Vec<&[u8]> = batch.iter().map(BytesLike::get).collect();
        let bytes = keys.iter().map(|key| key.len()).sum::<usize>();
        transaction.write(py, bytes, |transaction| {
            keys.iter().try_for_each(|key| transaction.delete(&place.keyspace, key))
        })
    })
}
