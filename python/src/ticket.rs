//! A commit that is ordered but may not be durable yet.

use std::sync::{Mutex, PoisonError};

use plimsoll::{CommitTicket, Glsn};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::errors::OrRaise;
use crate::fork::ForkSafe;

/// A commit that is ordered but may not be durable yet, from `Transaction.commit_submit` or `Log.append_submit`. Dropping it does not affect the
/// commit.
#[pyclass(module = "plimsoll", frozen)]
pub struct Ticket {
    glsn: Glsn,
    /// `None` once it was waited for.
    ticket: Mutex<Option<ForkSafe<CommitTicket>>>,
}

impl Ticket {
    pub(crate) fn new(ticket: CommitTicket) -> Self {
        Self { glsn: ticket.glsn(), ticket: Mutex::new(Some(ForkSafe::new(ticket))) }
    }
}

#[pymethods]
impl Ticket {
    /// The commit's GLSN.
    #[getter]
    fn glsn(&self) -> u64 {
        self.glsn.0
    }

    /// Whether the commit survives a power cut by now.
    #[getter]
    fn is_durable(&self, py: Python<'_>) -> PyResult<bool> {
        let ticket = self.ticket.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        ticket.as_ref().map_or(Ok(true), |ticket| Ok(ticket.get()?.is_durable()))
    }

    /// Waits until the commit is durable, as the store's durability says; returns its GLSN.
    fn wait(&self, py: Python<'_>) -> PyResult<u64> {
        let ticket = self.ticket.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ticket) = ticket {
            let ticket = ticket.into_inner()?;
            py.detach(|| ticket.wait()).or_raise()?;
        }
        Ok(self.glsn.0)
    }

    /// `await ticket` waits in another thread.
    fn __await__<'py>(this: Py<Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("plimsoll._watch_async")?.getattr("wait_for")?.call1((this,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        format!("<plimsoll ticket of GLSN {}>", self.glsn)
    }
}
