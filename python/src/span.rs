//! A key range from callers: a start, a stop, a prefix, or a combination.

use std::ops;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PySlice;

use crate::bytes_like::BytesLike;

/// Keys from a start (inclusive) to a stop (exclusive).
#[derive(Clone, Default)]
pub(crate) struct KeySpan {
    pub(crate) start: Option<Vec<u8>>,
    pub(crate) stop: Option<Vec<u8>>,
}

impl KeySpan {
    /// The keys between `start` and `stop` that begin with `prefix`.
    pub(crate) fn new(
        start: Option<BytesLike<'_>>,
        stop: Option<BytesLike<'_>>,
        prefix: Option<BytesLike<'_>>,
    ) -> PyResult<Self> {
        let owned = |bytes: Option<BytesLike<'_>>| bytes.map(|bytes| bytes.get().to_vec());
        let (mut start, mut stop) = (owned(start), owned(stop));
        if let Some(prefix) = owned(prefix).filter(|prefix| !prefix.is_empty()) {
            if let Some(end) = end_of_prefix(&prefix) {
                stop = Some(stop.map_or(end.clone(), |stop| stop.min(end)));
            }
            start = start.max(Some(prefix));
        }
        Ok(Self { start, stop })
    }

    /// The keys of a slice.
    pub(crate) fn of_slice(slice: &Bound<'_, PySlice>) -> PyResult<Self> {
        let part = |name| -> PyResult<Option<Bound<'_, PyAny>>> {
            Ok(Some(slice.getattr(name)?).filter(|part| !part.is_none()))
        };
        if part("step")?.is_some() {
            return Err(PyValueError::new_err(
                "a slice of keys has no step; items(…, reverse=True) walks backwards",
            ));
        }
        let bytes = |part: Option<Bound<'_, PyAny>>| -> PyResult<Option<Vec<u8>>> {
            part.map(|part| Ok(part.extract::<BytesLike<'_>>()?.get().to_vec())).transpose()
        };
        Ok(Self { start: bytes(part("start")?)?, stop: bytes(part("stop")?)? })
    }

    pub(crate) fn of_prefix(prefix: &[u8]) -> Self {
        let stop = if prefix.is_empty() { None } else { end_of_prefix(prefix) };
        Self { start: Some(prefix.to_vec()), stop }
    }

    /// The bounds, excluding the keys up to `last`.
    pub(crate) fn behind(
        &self,
        last: Option<&[u8]>,
        reverse: bool,
    ) -> (ops::Bound<Vec<u8>>, ops::Bound<Vec<u8>>) {
        let mut start = self.start.clone().map_or(ops::Bound::Unbounded, ops::Bound::Included);
        let mut stop = self.stop.clone().map_or(ops::Bound::Unbounded, ops::Bound::Excluded);
        match (last, reverse) {
            (None, _) => {}
            (Some(last), false) => start = ops::Bound::Excluded(last.to_vec()),
            (Some(last), true) => stop = ops::Bound::Excluded(last.to_vec()),
        }
        (start, stop)
    }
}

/// The first key after those with `prefix`; `None` if there is none.
fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte < 0xff)?;
    let mut end = prefix[..=kept].to_vec();
    end[kept] += 1;
    Some(end)
}
