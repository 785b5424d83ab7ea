//! Moments and times: GLSNs are `int`, names of tags `str`, times are aware `datetime` objects in
//! UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll::{Glsn, Moment};
use pyo3::exceptions::{PyOSError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDateTime, PyDelta, PyDict, PyInt, PyString, PyTzInfo};

use crate::errors::{OrRaise, invalid};

/// A GLSN, a `datetime`, or the name of a tag.
pub(crate) enum When {
    Moment(Moment),
    Tag(String),
}

impl When {
    /// The moment in a store.
    pub(crate) fn of(self, py: Python<'_>, db: &plimsoll::Db) -> PyResult<Moment> {
        match self {
            Self::Moment(moment) => Ok(moment),
            Self::Tag(name) => Ok(py.detach(|| db.tag_at(&name)).or_raise()?.into()),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for When {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyDateTime>() {
            return Ok(Self::Moment(Moment::Time(from_datetime(&object.to_owned())?)));
        }
        if object.is_instance_of::<PyString>() {
            return Ok(Self::Tag(object.extract()?));
        }
        match object.extract::<u64>() {
            Ok(glsn) if !object.is_instance_of::<PyBool>() => {
                Ok(Self::Moment(Moment::Glsn(Glsn(glsn))))
            }
            Err(_) if object.is_instance_of::<PyInt>() => Err(invalid(format!(
                "a GLSN is a number from 0 to 2**64 - 1, not {}",
                shown(&object)
            ))),
            _ => Err(PyTypeError::new_err(
                "a moment is a GLSN (an int, as commits return it), a datetime or the name of a \
                 tag",
            )),
        }
    }
}

/// A `datetime` without a time zone is local time, as everywhere in Python.
///
/// Near the limits of `datetime`, the time in another zone may be out of range; it is then read as
/// UTC, because no commit is within a day of these times.
pub(crate) fn from_datetime(time: &Bound<'_, PyAny>) -> PyResult<SystemTime> {
    let py = time.py();
    let since = match since_epoch(time) {
        Err(error) if is_out_of_range(py, &error) => {
            let utc = PyDict::new(py);
            utc.set_item(intern!(py, "tzinfo"), PyTzInfo::utc(py)?)?;
            since_epoch(&time.call_method(intern!(py, "replace"), (), Some(&utc))?)?
        }
        since => since?,
    };
    if since.lt(PyDelta::new(py, 0, 0, 0, false)?)? {
        return Ok(UNIX_EPOCH);
    }
    let since: Duration = since.extract()?;
    Ok(UNIX_EPOCH + since)
}

fn since_epoch<'py>(time: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDelta>> {
    let py = time.py();
    let is_local = time.call_method0(intern!(py, "utcoffset"))?.is_none();
    let aware = if is_local { time.call_method0(intern!(py, "astimezone"))? } else { time.clone() };
    Ok(aware.sub(epoch(py)?)?.cast_into()?)
}

/// Whether it is one of the errors that Python raises for a time out of range.
fn is_out_of_range(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyOverflowError>(py)
        || error.is_instance_of::<PyValueError>(py)
        || error.is_instance_of::<PyOSError>(py)
}

/// An object in an error message. Python refuses to print an integer of more than a few thousand
/// digits.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(|_| "an integer that large".to_owned(), |repr| repr.to_string())
}

/// A time as an aware `datetime` in UTC.
pub(crate) fn to_datetime<'py>(py: Python<'py>, time: SystemTime) -> PyResult<Bound<'py, PyAny>> {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    epoch(py)?.add(since)
}

/// As [`to_datetime`]; `None` for no time.
pub(crate) fn to_datetime_if_any<'py>(
    py: Python<'py>,
    time: Option<SystemTime>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    time.map(|time| to_datetime(py, time)).transpose()
}

fn epoch(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let utc = PyTzInfo::utc(py)?;
    Ok(PyDateTime::new(py, 1970, 1, 1, 0, 0, 0, 0, Some(&*utc))?.into_any())
}
