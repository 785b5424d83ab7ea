//! Moments and times: GLSNs are `int`, times are aware `datetime` objects in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{Glsn, Moment};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDateTime, PyDelta, PyInt, PyTzInfo};

use crate::errors::invalid;

/// A GLSN, or a `datetime`.
pub(crate) struct When(pub(crate) Moment);

impl<'py> FromPyObject<'_, 'py> for When {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyDateTime>() {
            return Ok(Self(Moment::Time(from_datetime(&object.to_owned())?)));
        }
        match object.extract::<u64>() {
            Ok(glsn) if !object.is_instance_of::<PyBool>() => Ok(Self(Moment::Glsn(Glsn(glsn)))),
            Err(_) if object.is_instance_of::<PyInt>() => {
                Err(invalid(format!("a GLSN is a number from 0 to 2**64 - 1, not {}", object.repr()?)))
            }
            _ => Err(PyTypeError::new_err("a moment is a GLSN (an int, as commits return it) or a datetime")),
        }
    }
}

/// A `datetime` without a time zone is local time, as everywhere in Python.
fn from_datetime(time: &Bound<'_, PyAny>) -> PyResult<SystemTime> {
    let py = time.py();
    let aware = time.call_method0(intern!(py, "astimezone"))?;
    let since: Bound<'_, PyDelta> = aware.sub(epoch(py)?)?.cast_into()?;
    if since.lt(PyDelta::new(py, 0, 0, 0, false)?)? {
        return Ok(UNIX_EPOCH);
    }
    let since: Duration = since.extract()?;
    Ok(UNIX_EPOCH + since)
}

/// A time as an aware `datetime` in UTC.
pub(crate) fn to_datetime<'py>(py: Python<'py>, time: SystemTime) -> PyResult<Bound<'py, PyAny>> {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    epoch(py)?.add(since)
}

fn epoch(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let utc = PyTzInfo::utc(py)?;
    Ok(PyDateTime::new(py, 1970, 1, 1, 0, 0, 0, 0, Some(&*utc))?.into_any())
}
