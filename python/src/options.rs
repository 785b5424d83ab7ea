//! Options as users write them: folders, sizes, durability, retention, io modes.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll::{Compression, Durability, Io, Retention};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDelta};

use crate::errors::invalid;
use crate::moments::shown;

/// A folder: text, bytes, or an object with `__fspath__`.
pub(crate) struct Folder(pub(crate) PathBuf);

impl<'py> FromPyObject<'_, 'py> for Folder {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.py().import("os")?.call_method1("fsdecode", (object,))?.extract().map(Self)
    }
}

/// Bytes: a number, or text such as "256MB" or "1GiB".
pub(crate) struct Size(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<String>() {
            Ok(text) => parse_size(&text).map(Self),
            Err(_) => object.extract().map(Self).map_err(|_| {
                invalid(
                    "a size is a number of bytes, or text such as \"256MB\" (powers of 1000) or \
                     \"64MiB\" (of 1024)",
                )
            }),
        }
    }
}

fn parse_size(text: &str) -> PyResult<u64> {
    let trimmed = text.trim();
    let end = trimmed.find(|character: char| !character.is_ascii_digit()).unwrap_or(trimmed.len());
    let (digits, unit) = trimmed.split_at(end);
    let (unit, thousand) = match unit.trim().to_ascii_lowercase() {
        unit if unit.ends_with("ib") => (unit[..unit.len() - 2].to_owned(), 1024),
        unit if unit.ends_with('b') => (unit[..unit.len() - 1].to_owned(), 1000_u64),
        // A single letter is a power of 1024.
        unit => (unit, 1024),
    };
    let power = ["", "k", "m", "g", "t"].iter().position(|known| *known == unit);
    let size = digits.parse::<u64>().ok().zip(power);
    size.and_then(|(number, power)| number.checked_mul(thousand.pow(power as u32))).ok_or_else(
        || invalid(format!("{text:?} is not a size; write e.g. \"256MB\", \"64MiB\" or \"1GiB\"")),
    )
}

/// When a commit is acknowledged.
pub(crate) fn durability(text: &str) -> PyResult<Durability> {
    match text {
        "sync" => Ok(Durability::Sync),
        "buffered" => Ok(Durability::Buffered),
        _ => Err(invalid(format!("durability is \"sync\" or \"buffered\", not {text:?}"))),
    }
}

/// How files are read.
pub(crate) fn io(text: &str) -> PyResult<Io> {
    match text {
        "auto" => Ok(Io::Auto),
        "direct" => Ok(Io::Direct),
        "cached" => Ok(Io::Cached),
        _ => Err(invalid(format!("io is \"auto\", \"direct\" or \"cached\", not {text:?}"))),
    }
}

/// A retention: "forever", "latest", a number of GLSNs, or an age.
pub(crate) struct Keeps(pub(crate) Retention);

impl<'py> FromPyObject<'_, 'py> for Keeps {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.extract::<String>() {
            return match &text[..] {
                "forever" => Ok(Self(Retention::Forever)),
                "latest" => Ok(Self(Retention::Latest)),
                _ => Err(refused(&format!("{text:?}"))),
            };
        }
        if object.is_instance_of::<PyDelta>() {
            return object
                .extract()
                .map(|age| Self(Retention::Time(age)))
                .map_err(|_| refused(&shown(&object)));
        }
        match object.extract::<u64>() {
            Ok(glsns) if !object.is_instance_of::<PyBool>() => Ok(Self(Retention::Glsns(glsns))),
            _ => Err(refused(&shown(&object))),
        }
    }
}

fn refused(what: &str) -> PyErr {
    invalid(format!(
        "a retention is \"forever\", \"latest\", a timedelta, or a number of GLSNs that stay \
         readable, not {what}"
    ))
}

/// Converts a retention to the form that [`Keeps`] accepts.
pub(crate) fn retention_to_python<'py>(
    py: Python<'py>,
    retention: Retention,
) -> PyResult<Bound<'py, PyAny>> {
    match retention {
        Retention::Forever => "forever".into_bound_py_any(py),
        Retention::Latest => "latest".into_bound_py_any(py),
        Retention::Glsns(glsns) => glsns.into_bound_py_any(py),
        Retention::Time(age) => age.into_bound_py_any(py),
        other => other.to_string().into_bound_py_any(py),
    }
}

/// A time to live: a number of seconds, or a `timedelta`.
pub(crate) struct Lives(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Lives {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyDelta>() {
            return Ok(Self(object.extract()?));
        }
        let seconds: f64 = object.extract().map_err(|_| {
            PyTypeError::new_err("a time to live is a number of seconds or a timedelta")
        })?;
        let ttl = Duration::try_from_secs_f64(seconds);
        ttl.map(Self).map_err(|error| invalid(format!("a time to live of {seconds} s: {error}")))
    }
}

/// A compression: "none", "lz4", "zstd" or "zstd:LEVEL".
pub(crate) struct Compresses(pub(crate) Compression);

impl<'py> FromPyObject<'_, 'py> for Compresses {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let text = object.extract::<String>().map_err(|_| {
            invalid(format!(
                "a compression is \"none\", \"lz4\" or \"zstd:LEVEL\", not {}",
                shown(&object)
            ))
        })?;
        text.parse().map(Self).map_err(|error: plimsoll::InvalidInput| invalid(error.to_string()))
    }
}

/// A timeout in seconds; `None`: for ever.
pub(crate) fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    seconds
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds.max(0.0)).map_err(|_| {
                invalid(format!("a timeout is a number of seconds or None, not {seconds}"))
            })
        })
        .transpose()
}
