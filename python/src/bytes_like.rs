//! Keys and values from callers: `bytes` are used directly, other buffer objects are copied once.
//!
//! The copy is needed because the bytes may change: another thread can write into a `bytearray`
//! while the GIL is released.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

/// Immutable bytes.
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
