//! A large value, read in pieces. `plimsoll._value_reader` wraps it in a file object.

use std::io::Read;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyBytes;

use crate::errors::raised_by_read;
use crate::fork::ForkSafe;

/// The engine side of a value's file object.
#[pyclass(module = "plimsoll._native", frozen)]
pub struct RawValueReader {
    reader: Mutex<ForkSafe<plimsoll::ValueReader>>,
}

impl RawValueReader {
    pub(crate) fn open<'py>(
        py: Python<'py>,
        reader: plimsoll::ValueReader,
    ) -> PyResult<Bound<'py, PyAny>> {
        let raw = Self { reader: Mutex::new(ForkSafe::new(reader)) };
        py.import("plimsoll._value_reader")?.getattr("ValueReader")?.call1((raw,))
    }
}

#[pymethods]
impl RawValueReader {
    /// Length of the whole value.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.reader.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).get()?.len()
            as usize)
    }

    /// The next bytes, at most `size` of them; none at the end.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        const PIECE: usize = 1 << 20;
        let bytes = py.detach(|| -> PyResult<Vec<u8>> {
            let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            let reader = reader.get_mut()?;
            let mut bytes = vec![0; size.min(PIECE)];
            let read = reader.read(&mut bytes).map_err(raised_by_read)?;
            bytes.truncate(read);
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }
}
