//! A commit that is ordered but may not be durable yet.

use plimsoll::{CommitTicket, Glsn};
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::fork::ForkSafe;

/// A commit that is ordered but may not be durable yet, from `Transaction.commit_submit` or
/// `Log.append_submit`. Dropping it does not affect the commit.
///
/// >>> db = plimsoll.in_memory()
/// >>> tx = db.transaction()
/// >>> tx[b"a"] = b"1"
/// >>> ticket = tx.commit_submit()
/// >>> ticket.wait() == ticket.glsn, ticket.is_durable
/// (True, True)
#[pyclass(module = "plimsoll", frozen)]
pub struct Ticket {
    glsn: Glsn,
    ticket: ForkSafe<CommitTicket>,
}

impl Ticket {
    pub(crate) fn new(ticket: CommitTicket) -> Self {
        Self { glsn: ticket.glsn(), ticket: ForkSafe::new(ticket) }
    }
}

#[pymethods]
impl Ticket {
    /// The commit's GLSN.
    #[getter]
    fn glsn(&self) -> u64 {
        self.glsn.0
    }

    /// Whether the commit already survives a power cut.
    #[getter]
    fn is_durable(&self) -> PyResult<bool> {
        Ok(self.ticket.get()?.is_durable())
    }

    /// Waits until the commit is durable according to the store's durability; returns its GLSN. May
    /// be called repeatedly.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> tickets = [db.log.append_submit(7, b"%d" % n) for n in range(3)]
    /// >>> [ticket.wait() - tickets[0].glsn for ticket in tickets]
    /// [0, 1, 2]
    fn wait(&self, py: Python<'_>) -> PyResult<u64> {
        let ticket = self.ticket.get()?;
        Ok(py.detach(|| ticket.wait()).or_raise()?.0)
    }

    /// `await ticket` waits in another thread.
    fn __await__<'py>(this: Py<Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("plimsoll._watch_async")?
            .getattr("wait_for")?
            .call1((this,))?
            .call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        format!("<plimsoll ticket of GLSN {}>", self.glsn)
    }
}
