//! The processes that share a store.

use plimsoll::Options;
use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::errors::OrRaise;
use crate::moments::to_datetime;
use crate::options::Folder;

/// A process that has the store open with `shared=True`.
///
/// >>> import os
/// >>> with plimsoll.open(path, memory="16MiB", shared=True) as db:
/// ...     [member] = db.members()
/// >>> member.pid == os.getpid(), member.is_here, member.memory_bytes
/// (True, True, 16777216)
#[pyclass(module = "plimsoll", frozen)]
pub struct MemberInfo {
    info: plimsoll::MemberInfo,
}

impl MemberInfo {
    pub(crate) fn new(info: plimsoll::MemberInfo) -> Self {
        Self { info }
    }
}

#[pymethods]
impl MemberInfo {
    /// Its process id in its own PID namespace. If it runs in another container, this id may belong
    /// to a different process here.
    #[getter]
    fn pid(&self) -> u32 {
        self.info.pid
    }

    /// Whether it is the keeper, the process that does the background work of the index for all.
    #[getter]
    fn is_keeper(&self) -> bool {
        self.info.is_keeper
    }

    /// Whether it is this process.
    #[getter]
    fn is_here(&self) -> bool {
        self.info.is_here
    }

    /// Its current memory budget in bytes.
    #[getter]
    fn memory_bytes(&self) -> u64 {
        self.info.memory_bytes
    }

    /// The last commit that it had applied when it last published its position. It publishes every
    /// half second while commits are made.
    #[getter]
    fn applied(&self) -> u64 {
        self.info.applied.0
    }

    /// The GLSN of the oldest moment that it may read. Versions and the log are retained from there
    /// on.
    #[getter]
    fn floor(&self) -> u64 {
        self.info.floor.0
    }

    /// When it opened the store.
    #[getter]
    fn since<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_datetime(py, self.info.since)
    }

    fn __repr__(&self) -> String {
        let role = if self.info.is_keeper { "keeper" } else { "follower" };
        format!(
            "<plimsoll member: process {}, {role}, {} bytes>",
            self.info.pid, self.info.memory_bytes
        )
    }
}

/// The processes that have the store in a folder open with `shared=True`, the oldest first. Does
/// not open the store.
///
/// >>> with plimsoll.open(path, memory="16MiB", shared=True):
/// ...     [member.is_keeper for member in plimsoll.members(path)]
/// [True]
/// >>> plimsoll.members(path)
/// []
#[pyfunction]
pub(crate) fn members(py: Python<'_>, path: Folder) -> PyResult<Vec<MemberInfo>> {
    let found = py.detach(|| plimsoll::members(path.0, &Options::new())).or_raise()?;
    Ok(found.into_iter().map(MemberInfo::new).collect())
}
