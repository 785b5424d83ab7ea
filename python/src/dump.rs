//! Dumps to and restores from Python file objects.

use std::io::{self, Read, Write};

use plimsoll::{Db, DumpOptions, Options};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::OrRaise;
use crate::options::{Folder, Size};

/// A binary file, opened here if a path was given.
struct PyFile {
    file: Py<PyAny>,
    is_own: bool,
    /// The exception that a call of the file raised.
    raised: Option<PyErr>,
}

impl PyFile {
    fn open(file: &Bound<'_, PyAny>, method: &str, mode: &str) -> PyResult<Self> {
        let is_own = !file.hasattr(method)?;
        let file = match is_own {
            true => file.py().import("builtins")?.call_method1("open", (file, mode))?.unbind(),
            false => file.clone().unbind(),
        };
        Ok(Self { file, is_own, raised: None })
    }

    /// Calls the file. An exception ends the request; [`PyFile::end`] raises it again.
    fn call<T>(&mut self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        Python::attach(|py| py.check_signals().and_then(|()| call(self.file.bind(py)))).map_err(
            |error| {
                self.raised = Some(error);
                io::ErrorKind::Other.into()
            },
        )
    }

    /// Closes the file if it was opened here; returns the outcome of the request.
    fn end<T>(self, py: Python<'_>, outcome: plimsoll::Result<T>) -> PyResult<T> {
        let closed = match self.is_own {
            true => self.file.call_method0(py, "close").map(drop),
            false => Ok(()),
        };
        match self.raised {
            Some(raised) => Err(raised),
            None => outcome.or_raise().and_then(|outcome| closed.map(|()| outcome)),
        }
    }
}

impl Write for PyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|file| {
            let written = file.call_method1("write", (PyBytes::new(file.py(), bytes),))?;
            // A raw file may write less; other objects may return nothing.
            Ok(written.extract::<usize>().unwrap_or(bytes.len()).min(bytes.len()))
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.call(|file| match file.hasattr("flush")? {
            true => file.call_method0("flush").map(drop),
            false => Ok(()),
        })
    }
}

impl Read for PyFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.call(|file| {
            let read = file.call_method1("read", (into.len(),))?;
            let bytes = read.extract::<&[u8]>()?;
            let len = bytes.len().min(into.len());
            into[..len].copy_from_slice(&bytes[..len]);
            Ok(len)
        })
    }
}

pub(crate) fn dump(
    py: Python<'_>,
    db: &Db,
    file: &Bound<'_, PyAny>,
    history: bool,
    keyspace: Option<String>,
) -> PyResult<u64> {
    let mut file = PyFile::open(file, "write", "wb")?;
    let mut options = DumpOptions::new().history(history);
    if let Some(name) = keyspace {
        options = options.keyspace(name);
    }
    let report = py.detach(|| db.dump(options, &mut file));
    Ok(file.end(py, report)?.glsn.0)
}

/// Creates a store at `path` from a dump (`Db.dump`); returns its newest GLSN. `path` must not
/// exist or must be an empty folder. `file` is a path, or a binary file open for reading. The store
/// appears at `path` once the whole dump has been read and verified. An interrupted restore leaves
/// the folder `path + ".new-restore"`; the same call resumes it.
///
/// >>> db = plimsoll.in_memory()
/// >>> glsn = db.put(b"a", b"1")
/// >>> db.dump(path + ".dump", history=True) == glsn
/// True
/// >>> plimsoll.restore(path, path + ".dump", memory="16MiB") == glsn
/// True
#[pyfunction]
#[pyo3(signature = (path, file, *, memory = None))]
pub(crate) fn restore(
    py: Python<'_>,
    path: Folder,
    file: &Bound<'_, PyAny>,
    memory: Option<Size>,
) -> PyResult<u64> {
    let options =
        memory.map_or_else(Options::new, |Size(bytes)| Options::new().memory_bytes(bytes));
    let mut file = PyFile::open(file, "read", "rb")?;
    let report = py.detach(|| Db::restore(path.0, options, &mut file));
    Ok(file.end(py, report)?.glsn.0)
}
