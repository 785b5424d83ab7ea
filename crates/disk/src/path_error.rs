//! Errors with a path. The kind survives, and the cause stays available as the source.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct PathError {
    pub(crate) path: PathBuf,
    pub(crate) cause: io::Error,
}

impl PathError {
    /// The path and the cause of an error that [`at_path`] made.
    pub(crate) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.cause)
    }
}

impl Error for PathError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.cause)
    }
}

/// `cause` prefixed with its path.
pub(crate) fn at_path(path: &Path, cause: impl Into<io::Error>) -> io::Error {
    let cause = cause.into();
    io::Error::new(cause.kind(), PathError { path: path.to_owned(), cause })
}

/// An error of `kind` with its usual text.
pub(crate) fn of_kind(path: &Path, kind: io::ErrorKind) -> io::Error {
    at_path(path, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_path_kind_and_cause() {
        let error = at_path(Path::new("some/file"), rustix::io::Errno::NOSPC);
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("some/file: No space left"), "{error}");
        let cause =
            error.get_ref().and_then(|e| e.source()).and_then(|e| e.downcast_ref::<io::Error>());
        assert_eq!(
            cause.and_then(io::Error::raw_os_error),
            Some(rustix::io::Errno::NOSPC.raw_os_error())
        );
    }
}
