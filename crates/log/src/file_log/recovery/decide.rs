//! Decides what the end of the active segment means: a clean end, a torn tail, or corruption.
//!
//! For a bad record at GLSN g, where D is the highest GLSN that is known to be durable (from the caller, any good record before or after it, or
//! a mark):
//! - g > D: a torn tail. It was never acknowledged: it is cut at the record's start, with zeros after, and the epoch rises.
//! - g ≤ D: corruption. It is reported, never cut.

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::options::{Cut, FileLogOptions};
use crate::file_log::segments::walk::Outcome;
use crate::format::segment_header::SegmentHeader;
use crate::glsn::Glsn;

/// Decides what the end of the log means: `None` if it is clean.
pub(crate) fn decide(
    options: &FileLogOptions,
    header: &SegmentHeader,
    outcome: &Outcome,
) -> Result<Option<Cut>, LogError> {
    let file = FileName::Segment(header.first).name();
    let known = options.known.map_or(Glsn::NONE, |known| known.glsn);
    let durable = outcome.durable.max(known);
    match outcome.problem {
        Some(problem) if problem.newer => {
            let message = format!("{file}, offset {}: {}: use a newer version of Plimsoll", problem.at, problem.what);
            Err(LogError::Format { message })
        }
        Some(problem) if outcome.next <= durable => {
            let what = problem.what.to_owned();
            Err(LogError::Corrupt { glsn: outcome.next, file, offset: problem.at, what })
        }
        Some(problem) => Ok(Some(Cut {
            from: outcome.next,
            offset: u64::from(outcome.end),
            bytes: outcome.used.saturating_sub(u64::from(outcome.end)),
            why: problem.what.to_owned(),
        })),
        None if outcome.next <= known => {
            let what = format!("was known to be durable, and the log ends with {}", outcome.next.0 - 1);
            Err(LogError::Forked { glsn: known, what })
        }
        None => Ok(None),
    }
}
