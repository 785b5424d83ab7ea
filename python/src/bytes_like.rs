//! Keys and values as callers give them: `bytes` as they are, other objects with a buffer copied
//! once.
//!
//! A copy is needed where the bytes may change: another thread can write into a `bytearray` while
//! the interpreter's lock is released.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

/// Bytes that do not change.
pub(crate) struct BytesLike<'py>(Bound<'py, PyBytes>);

impl BytesLike<'_> {
    #[inline]
    pub(crate) fn get(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl<'py> FromPyObject<'_, 'py> for BytesLike<'py> {
    type Error = PyErr;

    #[inline]
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self(bytes.to_owned())),
            Err(_) => copied(&object.to_owned()),
        }
    }
}

#[cold]
fn copied<'py>(object: &Bound<'py, PyAny>) -> PyResult<BytesLike<'py>> {
    if object.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(
            "keys and values are bytes, not str: encode the text, e.g. text.encode()",
        ));
    }
    let view = PyMemoryView::from(object).map_err(|_| {
        let class =
            object.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("keys and values are bytes-like objects, not {class}"))
    })?;
    Ok(BytesLike(view.call_method0("tobytes")?.cast_into::<PyBytes>()?))
}
