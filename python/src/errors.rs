//! Converts engine errors to Python exceptions. The classes are in `plimsoll/_errors.py`; the
//! numbers become attributes.

use plimsoll::Error;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::archive::class_of;
use crate::merge::MergeSteps;

const MODULE: &str = "plimsoll._errors";

/// Converts engine results to Python results.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception for the error.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for plimsoll::Result<T> {
    #[inline]
    fn or_raise(self) -> PyResult<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(raised(&error)),
        }
    }
}

/// An error of an archive as an exception.
#[cold]
pub(crate) fn raised_by_archive(error: plimsoll_archive::Error) -> PyErr {
    match error {
        plimsoll_archive::Error::Store(error) => raised(&error),
        error => Python::attach(|py| {
            convert_archive(py, &error).map_or_else(|failed| failed, PyErr::from_value)
        }),
    }
}

/// An error of a cluster as an exception.
#[cold]
pub(crate) fn raised_by_cluster(error: plimsoll_replica::Error) -> PyErr {
    use plimsoll_replica::Error as Cluster;
    let message = error.to_string();
    let class = match error {
        Cluster::Store(error) => return raised(&error),
        Cluster::Archive(error) => return raised_by_archive(error),
        Cluster::NotACluster { .. }
        | Cluster::NotAMember { .. }
        | Cluster::OtherCluster { .. }
        | Cluster::OtherUrl { .. }
        | Cluster::ClusterExists { .. }
        | Cluster::NotEmpty { .. }
        | Cluster::Moved { .. }
        | Cluster::Diverged { .. }
        | Cluster::WouldLose { .. }
        | Cluster::EmptyBucket { .. }
        | Cluster::NoMember
        | Cluster::Unusable { .. }
        | Cluster::DestinationExists { .. } => "InvalidInput",
        _ => "Error",
    };
    plain(class, &message)
}

/// A store of another process was used.
pub(crate) fn used_after_fork() -> PyErr {
    let message = "this object was created before the fork and cannot be used in the child; \
                   open the store in the child, or start processes with multiprocessing's \
                   method \"spawn\" or \"forkserver\"";
    plain("UsedAfterFork", message)
}

/// A transaction was used after its end.
pub(crate) fn transaction_ended(how: &str) -> PyErr {
    plain(
        "TransactionEnded",
        &format!("the transaction was {how}; begin a new one with Db.transaction()"),
    )
}

/// A snapshot, watch or iterator was used after it was closed.
pub(crate) fn closed(what: &str) -> PyErr {
    plain("Closed", &format!("this {what} is closed"))
}

/// An argument is invalid.
pub(crate) fn invalid(message: impl AsRef<str>) -> PyErr {
    plain("InvalidInput", message.as_ref())
}

fn plain(class: &str, message: &str) -> PyErr {
    Python::attach(|py| match exception(py, class, message) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    })
}

fn exception<'py>(py: Python<'py>, class: &str, message: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import(MODULE)?.getattr(class)?.call1((message,))
}

/// An error as an exception.
#[cold]
pub(crate) fn raised(error: &Error) -> PyErr {
    Python::attach(|py| convert(py, error).map_or_else(|failed| failed, PyErr::from_value))
}

/// Converts an error of `std::io::Read`: the exception of the engine error inside it.
#[cold]
pub(crate) fn raised_by_read(error: std::io::Error) -> PyErr {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(inner) => raised(inner),
        None => error.into(),
    }
}

fn convert<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let message = error.to_string();
    let make = |class| exception(py, class, &message);
    Ok(match error {
        Error::Conflict { key, at, by } => {
            let made = make("Conflict")?;
            made.setattr("key", PyBytes::new(py, key))?;
            made.setattr("at", at.0)?;
            made.setattr("by", by.0)?;
            made
        }
        Error::Trimmed { asked, first, keyspace } => {
            let made = make("Trimmed")?;
            made.setattr("asked", asked.0)?;
            made.setattr("first", first.0)?;
            made.setattr("keyspace", keyspace.as_deref())?;
            made
        }
        Error::TimeTrimmed { first, .. } => {
            let made = make("Trimmed")?;
            made.setattr("asked", py.None())?;
            made.setattr("first", first.0)?;
            made.setattr("keyspace", py.None())?;
            made
        }
        Error::Future { asked, newest } => {
            let made = make("NotYet")?;
            made.setattr("asked", asked.0)?;
            made.setattr("newest", newest.0)?;
            made
        }
        Error::ClockBehind { ahead } => {
            let made = make("ClockBehind")?;
            made.setattr("ahead_seconds", ahead.as_secs_f64())?;
            made
        }
        Error::InvalidInput(input) => invalid_input(py, input)?,
        Error::NotAStore { path, .. } => {
            let made = make("NotAStore")?;
            made.setattr("path", path.as_os_str())?;
            made
        }
        Error::Locked { path, pid, .. } => {
            let made = make("Locked")?;
            made.setattr("path", path.as_os_str())?;
            made.setattr("pid", *pid)?;
            made
        }
        Error::Closed => make("Closed")?,
        Error::InForkedChild { .. } => make("UsedAfterFork")?,
        Error::ReadOnly => make("ReadOnly")?,
        Error::Format { path, .. } => {
            let made = make("FormatError")?;
            made.setattr("path", path.as_ref().map(|path| path.as_os_str()))?;
            made
        }
        Error::Corrupt { file, glsn, .. } => {
            let made = make("Corrupt")?;
            made.setattr("file", file.as_deref())?;
            made.setattr("glsn", glsn.map(|glsn| glsn.0))?;
            made
        }
        Error::Dropped { glsn } => {
            let made = make("Dropped")?;
            made.setattr("glsn", glsn.0)?;
            made
        }
        Error::Forked { glsn, .. } => {
            let made = make("LogMismatch")?;
            made.setattr("glsn", glsn.map(|glsn| glsn.0))?;
            made
        }
        Error::Behind { cause } => {
            let made = make("Behind")?;
            made.setattr("cause", cause)?;
            made
        }
        Error::Stalled { pid } => {
            let made = make("Stalled")?;
            made.setattr("pid", *pid)?;
            made
        }
        Error::Unavailable { since, .. } => {
            let made = make("Unavailable")?;
            let since = since.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            made.setattr("since", since.as_secs_f64())?;
            made
        }
        Error::InDoubt { position, .. } => {
            let made = make("InDoubt")?;
            made.setattr("position", *position)?;
            made
        }
        Error::Remote { .. } => make("RemoteError")?,
        Error::NotKeeper { pid } => {
            let made = make("NotKeeper")?;
            made.setattr("pid", *pid)?;
            made
        }
        Error::Poisoned { cause } => {
            let made = make("Poisoned")?;
            made.setattr("cause", cause)?;
            made
        }
        Error::OutOfBudget(refusal) => {
            let made = make("OutOfBudget")?;
            made.setattr("needed_bytes", refusal.needed_bytes)?;
            made.setattr("limit_bytes", refusal.usage.limit_bytes)?;
            made
        }
        Error::Io { source, .. } => {
            let number = source.as_ref().and_then(|cause| cause.raw_os_error());
            py.import(MODULE)?.getattr("IoError")?.call1((number, message))?
        }
        _ => make("Error")?,
    })
}

fn convert_archive<'py>(
    py: Python<'py>,
    error: &plimsoll_archive::Error,
) -> PyResult<Bound<'py, PyAny>> {
    use plimsoll_archive::Error as Archive;
    let message = error.to_string();
    if let Archive::Storage { source, .. } = error {
        let number = source.raw_os_error();
        return py.import(MODULE)?.getattr("IoError")?.call1((number, message));
    }
    let made = exception(py, class_of(error), &message)?;
    match error {
        Archive::OtherArchiver { place, pid } => {
            made.setattr("path", place)?;
            made.setattr("pid", *pid)?;
        }
        Archive::Damaged { damage } => {
            made.setattr("file", damage.first().map(|damage| &damage.object))?;
            made.setattr("glsn", py.None())?;
        }
        Archive::Format { object, .. } => made.setattr("path", object)?,
        _ => {}
    }
    Ok(made)
}

fn invalid_input<'py>(
    py: Python<'py>,
    input: &plimsoll::InvalidInput,
) -> PyResult<Bound<'py, PyAny>> {
    use plimsoll::InvalidInput as Input;
    let message = in_words_of_python(&input.to_string());
    let class = match input {
        Input::NoKeyspace { .. } => "NoKeyspace",
        Input::NotFastForward { .. } => "NotFastForward",
        _ => "InvalidInput",
    };
    let made = exception(py, class, &message)?;
    match input {
        Input::KeyTooLong { bytes, limit_bytes }
        | Input::KeyTooLongForBranch { bytes, limit_bytes }
        | Input::ValueTooLong { bytes, limit_bytes }
        | Input::MetadataTooLong { bytes, limit_bytes }
        | Input::RecordTooLong { bytes, limit_bytes } => {
            made.setattr("bytes", *bytes)?;
            made.setattr("limit_bytes", *limit_bytes)?;
        }
        Input::BudgetTooSmall { bytes, min_bytes: limit }
        | Input::BudgetTooLarge { bytes, limit_bytes: limit, .. } => {
            made.setattr("bytes", *bytes)?;
            made.setattr("limit_bytes", *limit)?;
        }
        _ => {}
    }
    Ok(made)
}

/// Renames Rust methods in the engine's messages.
fn in_words_of_python(message: &str) -> String {
    message
        .replace("Db::", "Db.")
        .replace("Options::shared", "shared=True")
        .replace("Options::memory_total", "memory_total")
        .replace("Options::order", "cluster=URL")
        .replace("Log::", "Log.")
        .replace("Db.create_keyspace", "Db.keyspace")
}

/// The exception for the conflicts of a merge.
pub(crate) fn merge_conflicts(py: Python<'_>, conflicts: MergeSteps) -> PyResult<PyErr> {
    let message = "keys of this commit have changed since, so nothing was written; pass rules \
                   that resolve the conflicts";
    conflicts_with(py, message, conflicts)
}

/// The exception for the conflicts of a pull to a branch; `theirs` has the fetched commits.
pub(crate) fn pull_conflicts(
    py: Python<'_>,
    branch: &str,
    theirs: &str,
    conflicts: MergeSteps,
) -> PyResult<PyErr> {
    let message = format!(
        "branches {branch:?} and {theirs:?} changed the same keys, so nothing was written to \
         {branch:?}; merge {theirs:?} with rules that resolve the conflicts (Db.merge)"
    );
    conflicts_with(py, &message, conflicts)
}

fn conflicts_with(py: Python<'_>, message: &str, conflicts: MergeSteps) -> PyResult<PyErr> {
    let made = exception(py, "MergeConflicts", message)?;
    made.setattr("conflicts", conflicts)?;
    Ok(PyErr::from_value(made))
}

/// The keyspace does not exist.
pub(crate) fn no_keyspace(name: &str) -> PyErr {
    plain("NoKeyspace", &format!("there is no keyspace {name:?}"))
}

/// Whether the exception is `TransactionEnded`.
pub(crate) fn is_ended(py: Python<'_>, error: &PyErr) -> bool {
    is_a(py, error, "TransactionEnded")
}

/// Whether the exception is `Closed`.
pub(crate) fn is_closed(py: Python<'_>, error: &PyErr) -> bool {
    is_a(py, error, "Closed")
}

fn is_a(py: Python<'_>, error: &PyErr, class: &str) -> bool {
    error.get_type(py).name().is_ok_and(|name| name == class)
}
