//! A transaction: a mapping whose changes become one commit.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bytes_like::BytesLike;
use crate::errors::{self, OrRaise};
use crate::place::{OpenTransaction, Place, When};
use crate::store::Store;
use crate::ticket::Ticket;
use crate::write_mapping::{self, WriteMapping};

/// A transaction: a mapping of the keyspace "default" as of its beginning, with its own changes on
/// top. `keyspace` returns the others.
///
/// Its changes become one commit, or none. It is serializable: `commit` raises `Conflict` if
/// another transaction has since changed data that this one read; `Db.transact` then retries it.
///
/// >>> db = plimsoll.in_memory()
/// >>> with db.transaction() as tx:
/// ...     tx[b"a"] = b"1"
/// ...     b"a" in tx, b"a" in db
/// (True, False)
/// >>> db[b"a"]
/// b'1'
#[pyclass(module = "plimsoll", frozen, mapping, extends = WriteMapping)]
pub struct Transaction {
    store: Arc<Store>,
    open: Arc<OpenTransaction>,
}

impl Transaction {
    pub(crate) fn new(
        py: Python<'_>,
        store: &Arc<Store>,
        transaction: plimsoll::Transaction,
    ) -> PyResult<Py<Self>> {
        Self::of(py, store, &OpenTransaction::new(transaction))
    }

    pub(crate) fn of(
        py: Python<'_>,
        store: &Arc<Store>,
        open: &Arc<OpenTransaction>,
    ) -> PyResult<Py<Self>> {
        let keyspace = store.default.clone();
        let place = Place { store: Arc::clone(store), keyspace, when: When::In(Arc::clone(open)) };
        let top = Self { store: Arc::clone(store), open: Arc::clone(open) };
        Py::new(py, write_mapping::layers(place).add_subclass(top))
    }

    fn do_commit(&self, py: Python<'_>) -> PyResult<u64> {
        let transaction = self.open.end(py)?;
        let glsn = py.detach(|| transaction.commit()).or_raise()?;
        self.open.note_committed(py, glsn);
        Ok(glsn.0)
    }
}

#[pymethods]
impl Transaction {
    /// The GLSN of its snapshot.
    #[getter]
    fn at(&self) -> u64 {
        self.open.at.0
    }

    /// The GLSN of its commit; `None` before the commit, or if it was aborted.
    #[getter]
    fn glsn(&self, py: Python<'_>) -> Option<u64> {
        self.open.committed(py).map(|glsn| glsn.0)
    }

    /// A keyspace in this transaction, by its name (it must exist) or by the result of
    /// `Db.keyspace`.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> cats, dogs = db.keyspace("cats"), db.keyspace("dogs")
    /// >>> with db.transaction() as tx:
    /// ...     tx.keyspace(cats)[b"tom"] = b"grey"
    /// ...     tx.keyspace("dogs")[b"rex"] = b"brown"
    /// >>> cats[b"tom"], dogs[b"rex"]
    /// (b'grey', b'brown')
    fn keyspace(&self, py: Python<'_>, keyspace: &Bound<'_, PyAny>) -> PyResult<Py<WriteMapping>> {
        let keyspace = crate::keyspace::existing(py, &self.store, keyspace)?;
        let when = When::In(Arc::clone(&self.open));
        Py::new(py, write_mapping::layers(Place { store: Arc::clone(&self.store), keyspace, when }))
    }

    /// Attaches metadata of up to 64 KiB to the commit: e.g. author, reason, origin.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> with db.transaction() as tx:
    /// ...     tx[b"a"] = b"1"
    /// ...     tx.set_metadata(b"by Ada")
    /// >>> db.log.commit(tx.glsn).metadata
    /// b'by Ada'
    fn set_metadata(&self, py: Python<'_>, metadata: BytesLike<'_>) -> PyResult<()> {
        let metadata = metadata.get();
        self.open.write(py, metadata.len(), |transaction| transaction.set_metadata(metadata))
    }

    /// Commits; returns the commit's GLSN once it is durable and visible.
    ///
    /// Raises `Conflict` if another transaction has changed data that this one read; run it again.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> tx = db.transaction()
    /// >>> tx[b"a"] = b"1"
    /// >>> glsn = tx.commit()
    /// >>> db.at(glsn)[b"a"]
    /// b'1'
    fn commit(&self, py: Python<'_>) -> PyResult<u64> {
        self.do_commit(py)
    }

    /// Orders the commit without waiting until it is durable, so that one sync serves all waiting
    /// commits.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> tickets = []
    /// >>> for n in range(3):
    /// ...     tx = db.transaction()
    /// ...     tx[b"%d" % n] = b"x"
    /// ...     tickets.append(tx.commit_submit())
    /// >>> [ticket.wait() == ticket.glsn for ticket in tickets]
    /// [True, True, True]
    fn commit_submit(&self, py: Python<'_>) -> PyResult<Ticket> {
        let transaction = self.open.end(py)?;
        let ticket = py.detach(|| transaction.commit_submit()).or_raise()?;
        self.open.note_committed(py, ticket.glsn());
        Ok(Ticket::new(ticket))
    }

    /// Discards all changes. Does nothing if the transaction has ended already.
    ///
    /// >>> db = plimsoll.in_memory()
    /// >>> tx = db.transaction()
    /// >>> tx[b"a"] = b"1"
    /// >>> tx.abort()
    /// >>> b"a" in db
    /// False
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        match self.open.end(py) {
            Ok(transaction) => {
                py.detach(|| drop(transaction));
                Ok(())
            }
            Err(error) if errors::is_ended(py, &error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let failed = exception.iter().next().is_some_and(|class| !class.is_none());
        if failed {
            return self.abort(py);
        }
        // The block may have committed or aborted it.
        if self.open.is_open(py) { self.do_commit(py).map(drop) } else { Ok(()) }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match (self.open.is_open(py), self.open.committed(py)) {
            (true, _) => format!("<plimsoll transaction that reads at GLSN {}>", self.open.at),
            (false, Some(glsn)) => format!("<plimsoll transaction committed as GLSN {glsn}>"),
            (false, None) => "<plimsoll transaction, aborted>".to_owned(),
        }
    }
}
