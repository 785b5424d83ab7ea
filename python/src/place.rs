//! The target of a mapping: a keyspace of a store or of a branch in its newest state, at a moment,
//! or in a transaction.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use plimsoll::{Glsn, Keyspace, Resident, Value};
use pyo3::prelude::*;
use pyo3::sync::RwLockExt;

use crate::errors::{self, OrRaise};
use crate::fork::ForkSafe;
use crate::store::Store;

/// A keyspace and the moment at which it is read.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) store: Arc<Store>,
    pub(crate) keyspace: Keyspace,
    pub(crate) when: When,
}

/// The moment at which a place is read.
#[derive(Clone)]
pub(crate) enum When {
    Now,
    /// Now, on a branch that is not main.
    On(Arc<OnBranch>),
    At(Arc<OpenSnapshot>),
    In(Arc<OpenTransaction>),
}

/// A branch.
pub(crate) struct OnBranch {
    /// `None` once dropped.
    branch: Option<ForkSafe<plimsoll::Branch>>,
}

impl OnBranch {
    pub(crate) fn new(branch: plimsoll::Branch) -> Arc<Self> {
        Arc::new(Self { branch: Some(ForkSafe::new(branch)) })
    }

    pub(crate) fn get(&self) -> PyResult<&plimsoll::Branch> {
        self.branch.as_ref().expect("it is taken out only on drop").get()
    }

    pub(crate) fn is_main(&self) -> PyResult<bool> {
        Ok(self.get()?.name() == "main")
    }

    /// The newest state. The GIL is released, because the engine reads whether the branch exists.
    pub(crate) fn snapshot(&self, py: Python<'_>) -> PyResult<plimsoll::Snapshot> {
        let branch = self.get()?;
        Ok(py.detach(|| branch.snapshot()))
    }

    pub(crate) fn begin(&self, py: Python<'_>, ordered: bool) -> PyResult<plimsoll::Transaction> {
        let branch = self.get()?;
        Ok(py.detach(|| if ordered { branch.begin_ordered() } else { branch.begin() }))
    }
}

impl Drop for OnBranch {
    fn drop(&mut self) {
        // It may be the last handle of the store, which is then closed.
        let mut branch = self.branch.take();
        Python::try_attach(|py| py.detach(|| drop(branch.take())));
    }
}

/// A snapshot until it is closed.
pub(crate) struct OpenSnapshot {
    snapshot: RwLock<Option<ForkSafe<plimsoll::Snapshot>>>,
    pub(crate) at: Glsn,
}

impl OpenSnapshot {
    pub(crate) fn new(snapshot: plimsoll::Snapshot) -> Arc<Self> {
        let at = snapshot.at();
        Arc::new(Self { snapshot: RwLock::new(Some(ForkSafe::new(snapshot))), at })
    }

    /// A clone shares the moment.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<plimsoll::Snapshot> {
        let guard = self.snapshot.read_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        guard.as_ref().ok_or_else(|| errors::closed("snapshot"))?.get().cloned()
    }

    /// Calls `then` without waiting for a thread that closes it.
    #[inline]
    fn with<T>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&plimsoll::Snapshot) -> plimsoll::Result<T>,
    ) -> PyResult<T> {
        let guard = self.snapshot.read_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        then(guard.as_ref().ok_or_else(|| errors::closed("snapshot"))?.get()?).or_raise()
    }

    pub(crate) fn close(&self, py: Python<'_>) {
        let taken =
            self.snapshot.write_py_attached(py).unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(taken));
    }
}

/// A transaction until it is committed or aborted.
pub(crate) struct OpenTransaction {
    transaction: RwLock<State>,
    pub(crate) at: Glsn,
}

/// A transaction's state.
#[allow(clippy::large_enum_variant, reason = "it is in an `Arc`, and usually open")]
pub(crate) enum State {
    Open {
        transaction: ForkSafe<plimsoll::Transaction>,
        /// Bytes of keys and values written.
        written: usize,
    },
    Committed(Glsn),
    Aborted,
}

/// Writes of a transaction below this size stay in memory under any budget, because the engine
/// starts spilling at 1 MiB.
const UNSPILLED_BYTES: usize = 512 << 10;

/// A write below this size creates no file, because the engine writes only values above 256 KiB to
/// separate files.
const INLINE_BYTES: usize = 256 << 10;

impl OpenTransaction {
    pub(crate) fn new(transaction: plimsoll::Transaction) -> Arc<Self> {
        let at = transaction.at();
        let state = State::Open { transaction: ForkSafe::new(transaction), written: 0 };
        Arc::new(Self { transaction: RwLock::new(state), at })
    }

    fn ended(state: &State) -> PyErr {
        errors::transaction_ended(if matches!(state, State::Committed(_)) {
            "committed"
        } else {
            "aborted"
        })
    }

    /// The GLSN of its commit, once there is one.
    pub(crate) fn committed(&self, py: Python<'_>) -> Option<Glsn> {
        match &*self.transaction.read_py_attached(py).unwrap_or_else(PoisonError::into_inner) {
            State::Committed(glsn) => Some(*glsn),
            _ => None,
        }
    }

    pub(crate) fn is_open(&self, py: Python<'_>) -> bool {
        matches!(
            &*self.transaction.read_py_attached(py).unwrap_or_else(PoisonError::into_inner),
            State::Open { .. }
        )
    }

    /// Ends the transaction: takes it out, to be committed or dropped.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<plimsoll::Transaction> {
        let mut state =
            self.transaction.write_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Aborted) {
            State::Open { transaction, .. } => transaction.into_inner(),
            ended => {
                let error = Self::ended(&ended);
                *state = ended;
                Err(error)
            }
        }
    }

    pub(crate) fn note_committed(&self, py: Python<'_>, glsn: Glsn) {
        *self.transaction.write_py_attached(py).unwrap_or_else(PoisonError::into_inner) =
            State::Committed(glsn);
    }

    /// Reads with the GIL held; `then` must not block. Returns `None` if another thread is writing
    /// into the transaction.
    #[inline]
    fn with<T>(
        &self,
        then: impl FnOnce(&plimsoll::Transaction) -> plimsoll::Result<T>,
    ) -> PyResult<Option<T>> {
        let guard = match self.transaction.try_read() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        match &*guard {
            State::Open { transaction, .. } => then(transaction.get()?).or_raise().map(Some),
            ended => Err(Self::ended(ended)),
        }
    }

    /// Reads with the GIL released.
    fn read<T: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&plimsoll::Transaction) -> plimsoll::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            let guard: RwLockReadGuard<'_, State> =
                self.transaction.read().unwrap_or_else(PoisonError::into_inner);
            match &*guard {
                State::Open { transaction, .. } => Ok(then(transaction.get()?)),
                ended => Err(Self::ended(ended)),
            }
        })?
        .or_raise()
    }

    /// Writes. The GIL is kept while the writes are few and fit into memory.
    pub(crate) fn write<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        then: impl FnOnce(&mut plimsoll::Transaction) -> plimsoll::Result<T> + Send,
    ) -> PyResult<T> {
        if bytes < INLINE_BYTES
            && let Ok(mut guard) = self.transaction.try_write()
            && let State::Open { transaction, written } = &mut *guard
            && *written + bytes < UNSPILLED_BYTES
        {
            *written += bytes;
            return then(transaction.get_mut()?).or_raise();
        }
        py.detach(|| {
            let mut guard: RwLockWriteGuard<'_, State> =
                self.transaction.write().unwrap_or_else(PoisonError::into_inner);
            match &mut *guard {
                State::Open { transaction, written } => {
                    *written = written.saturating_add(bytes);
                    Ok(then(transaction.get_mut()?))
                }
                ended => Err(Self::ended(ended)),
            }
        })?
        .or_raise()
    }
}

impl Drop for OpenTransaction {
    fn drop(&mut self) {
        let state = self.transaction.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut state = Some(std::mem::replace(state, State::Aborted));
        // Aborting a large transaction removes files.
        if matches!(state, Some(State::Open { written, .. }) if written >= UNSPILLED_BYTES) {
            Python::try_attach(|py| py.detach(|| drop(state.take())));
        }
    }
}

impl Place {
    pub(crate) fn now(store: &Arc<Store>, keyspace: Keyspace) -> Self {
        Self { store: Arc::clone(store), keyspace, when: When::Now }
    }

    /// The branch of a place that is read now; main for others.
    pub(crate) fn branch(&self) -> PyResult<plimsoll::Branch> {
        match &self.when {
            When::On(branch) => branch.get().cloned(),
            _ => Ok(self.store.db()?.main()),
        }
    }

    /// The same moment in another keyspace.
    pub(crate) fn in_keyspace(&self, keyspace: Keyspace) -> Self {
        Self { store: Arc::clone(&self.store), keyspace, when: self.when.clone() }
    }

    /// Reads a value that is in memory, with the GIL held.
    #[inline]
    pub(crate) fn look<T>(
        &self,
        py: Python<'_>,
        key: &[u8],
        look: impl FnOnce(&[u8]) -> T,
    ) -> PyResult<Resident<T>> {
        match &self.when {
            When::Now => self.store.db()?.get_resident(&self.keyspace, key, look).or_raise(),
            When::On(_) => Ok(Resident::NotResident),
            When::At(snapshot) => {
                snapshot.with(py, |snapshot| snapshot.get_resident(&self.keyspace, key, look))
            }
            When::In(transaction) => {
                let seen = transaction
                    .with(|transaction| transaction.get_resident(&self.keyspace, key, look))?;
                Ok(seen.unwrap_or(Resident::NotResident))
            }
        }
    }

    /// Reads a value, with the GIL released.
    pub(crate) fn load(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<Value>> {
        match &self.when {
            When::Now => {
                let db = self.store.db()?;
                py.detach(|| db.get(&self.keyspace, key)).or_raise()
            }
            When::On(branch) => {
                let branch = branch.get()?;
                py.detach(|| branch.get(&self.keyspace, key)).or_raise()
            }
            When::At(snapshot) => {
                let snapshot = snapshot.get(py)?;
                py.detach(|| snapshot.get(&self.keyspace, key)).or_raise()
            }
            When::In(transaction) => {
                transaction.read(py, |transaction| transaction.get(&self.keyspace, key))
            }
        }
    }

    /// Whether a key has a value.
    pub(crate) fn contains(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        match self.look(py, key, |_| ())? {
            Resident::Value(()) => return Ok(true),
            Resident::Absent => return Ok(false),
            Resident::NotResident => {}
        }
        match &self.when {
            When::Now => {
                let db = self.store.db()?;
                py.detach(move || db.snapshot().contains_key(&self.keyspace, key)).or_raise()
            }
            When::On(branch) => {
                let branch = branch.get()?;
                py.detach(|| branch.contains_key(&self.keyspace, key)).or_raise()
            }
            When::At(snapshot) => {
                let snapshot = snapshot.get(py)?;
                py.detach(|| snapshot.contains_key(&self.keyspace, key)).or_raise()
            }
            When::In(transaction) => {
                transaction.read(py, |transaction| transaction.contains_key(&self.keyspace, key))
            }
        }
    }

    /// When the value of a key expires.
    pub(crate) fn ttl(&self, py: Python<'_>, key: &[u8]) -> PyResult<plimsoll::Ttl> {
        match &self.when {
            When::Now | When::On(_) | When::At(_) => {
                let snapshot = self.snapshot(py)?.expect("it is not a transaction");
                py.detach(|| snapshot.ttl(&self.keyspace, key)).or_raise()
            }
            When::In(transaction) => {
                transaction.read(py, |transaction| transaction.ttl(&self.keyspace, key))
            }
        }
    }

    /// A reader that returns a value in pieces.
    pub(crate) fn value_reader(
        &self,
        py: Python<'_>,
        key: &[u8],
    ) -> PyResult<Option<plimsoll::ValueReader>> {
        match &self.when {
            When::Now | When::On(_) | When::At(_) => {
                let snapshot = self.snapshot(py)?.expect("it is not a transaction");
                py.detach(|| snapshot.get_reader(&self.keyspace, key)).or_raise()
            }
            When::In(transaction) => {
                transaction.read(py, |transaction| transaction.get_reader(&self.keyspace, key))
            }
        }
    }

    /// The same place at a fixed moment, so that its reads are consistent.
    pub(crate) fn steady(&self, py: Python<'_>) -> PyResult<Self> {
        let snapshot = match &self.when {
            When::Now => self.store.newest(py, plimsoll::Db::snapshot)?,
            When::On(branch) => branch.snapshot(py)?,
            When::At(_) | When::In(_) => return Ok(self.clone()),
        };
        Ok(Self { when: When::At(OpenSnapshot::new(snapshot)), ..self.clone() })
    }

    /// The snapshot of the place; `None` in a transaction.
    pub(crate) fn snapshot(&self, py: Python<'_>) -> PyResult<Option<plimsoll::Snapshot>> {
        Ok(match &self.when {
            When::Now => Some(self.store.newest(py, plimsoll::Db::snapshot)?),
            When::On(branch) => Some(branch.snapshot(py)?),
            When::At(snapshot) => Some(snapshot.get(py)?),
            When::In(_) => None,
        })
    }

    /// Reads in the transaction of this place, with the GIL released.
    pub(crate) fn read_in_transaction<T: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&plimsoll::Transaction) -> plimsoll::Result<T> + Send,
    ) -> PyResult<T> {
        match &self.when {
            When::In(transaction) => transaction.read(py, then),
            _ => unreachable!("called only if there is one"),
        }
    }
}
