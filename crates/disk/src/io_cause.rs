//! The system error behind a store error: shared, so that errors can be cloned and compared.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::path_error::PathError;

/// An error of the operating system.
#[derive(Clone, Debug)]
pub struct IoCause(Arc<io::Error>);

impl IoCause {
    /// Wraps an error.
    pub fn new(error: io::Error) -> Self {
        Self(Arc::new(error))
    }

    /// Its kind.
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind()
    }

    /// The system's error number, if it came from the system.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.cause().raw_os_error()
    }

    /// The file or folder, if known.
    pub fn path(&self) -> Option<&Path> {
        PathError::of(&self.0).map(|error| &*error.path)
    }

    fn cause(&self) -> &io::Error {
        PathError::of(&self.0).map_or(&self.0, |error| &error.cause)
    }
}

/// Errors are equal if their kind and text are equal.
impl PartialEq for IoCause {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.0.to_string() == other.0.to_string()
    }
}

impl Eq for IoCause {}

/// The system's message, without the path.
impl fmt::Display for IoCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause().fmt(f)
    }
}

impl Error for IoCause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause().source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path_error::at_path;

    #[test]
    fn cause_has_path_number_and_text() {
        let cause = IoCause::new(at_path(Path::new("some/file"), rustix::io::Errno::NOSPC));
        assert_eq!(cause.path(), Some(Path::new("some/file")));
        assert_eq!(cause.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
        assert!(cause.to_string().starts_with("No space left"), "{cause}");
        assert_eq!(cause, cause.clone());
        let bare = IoCause::new(io::ErrorKind::NotFound.into());
        assert_eq!((bare.path(), bare.raw_os_error(), bare == cause), (None, None, false));
    }
}
