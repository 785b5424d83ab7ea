//! The report of opening a log: what was read, and what was cut.

use crate::glsn::Glsn;

/// The report of opening a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Whether the log was created.
    pub created: bool,
    /// Entries of the active segment that were read and checked.
    pub replayed: u64,
    /// The torn tail that was cut.
    pub cut: Option<Cut>,
    /// Messages for the user.
    pub warnings: Vec<String>,
}

/// A torn tail that was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The GLSN that the first cut entry would have had; the next append gets it.
    pub from: Glsn,
    /// Offset in the segment where it was cut.
    pub offset: u64,
    /// Bytes cut, up to the last nonzero one.
    pub bytes: u64,
    /// The damage at that offset.
    pub why: String,
}
