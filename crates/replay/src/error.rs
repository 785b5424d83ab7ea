//! The errors of a replay.

use std::io;
use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a trace cannot be read, or a cache cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system cannot read the file.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// The file is not a trace of this format, or it is damaged.
    #[error("{}: {at}: {message}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The place in the file.
        at: String,
        /// A description of the error.
        message: String,
    },
    /// The cache does not fit into its memory: raise the limit.
    #[error("the cache does not fit into its memory: {message}; give it more")]
    Budget {
        /// The cache's message.
        message: String,
    },
    /// The system has no memory for the cache.
    #[error("cannot allocate memory: {message}")]
    Memory {
        /// The system's message.
        message: String,
    },
}
