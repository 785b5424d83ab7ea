//! Classifies the end of the active segment: a clean end, a torn tail, or corruption.
//!
//! For a bad record at GLSN g, where D is the highest GLSN that is known to be durable (from the
//! caller, any good record before or after it, or a mark):
//! - g > D: a torn tail, which was never acknowledged. Recovery cuts it at the record's start,
//!   writes zeros after it, and raises the epoch.
//! - g ≤ D: corruption. Recovery reports it and never cuts it.

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::open_report::Cut;
use crate::file_log::segments::walk::Outcome;
use crate::glsn::Glsn;

/// Returns the cut of a torn tail, `None` if the end is clean, or an error for corruption.
///
/// `first` is the first GLSN of the active segment, `known` the highest that the caller knows to be
/// durable, and `outcome` the walk over the segment.
pub(crate) fn decide(first: Glsn, known: Glsn, outcome: &Outcome) -> Result<Option<Cut>, LogError> {
    let file = FileName::Segment(first).name();
    let durable = outcome.durable.max(known);
    match outcome.problem {
        Some(problem) if problem.newer => {
            let message = format!(
                "{file}, offset {}: {}: use a newer version of Plimsoll",
                problem.at, problem.what
            );
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
            let what = format!(
                "an entry was known to be durable, but the log ends with GLSN {}",
                outcome.next.0 - 1
            );
            Err(LogError::Forked { glsn: known, what })
        }
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_log::segments::walk::Problem;

    /// A walk that ended before GLSN 10 with this damage, in a log that records everything up to
    /// `durable` as durable.
    fn outcome(problem: Option<Problem>, durable: u64) -> Outcome {
        Outcome {
            end: 640,
            next: Glsn(10),
            chain: 1,
            first_timestamp: 1,
            last_timestamp: 2,
            epoch: 1,
            last_blob_id: 0,
            durable: Glsn(durable),
            marked: false,
            problem,
            used: 1000,
            dirty_padding: None,
        }
    }

    #[test]
    fn damage_above_durable_is_a_torn_tail_and_below_is_corruption() {
        let damage = Some(Problem { at: 640, what: "torn", newer: false });
        // (durable by the log, known by the caller, cut)
        for (durable, known, is_cut) in
            [(9, 0, true), (9, 9, true), (10, 0, false), (0, 10, false), (99, 3, false)]
        {
            match decide(Glsn(1), Glsn(known), &outcome(damage, durable)) {
                Ok(Some(cut)) => {
                    assert!(is_cut, "{durable} {known}");
                    assert_eq!((cut.from, cut.offset, cut.bytes), (Glsn(10), 640, 360));
                }
                Err(LogError::Corrupt { glsn, offset, .. }) => {
                    assert!(!is_cut, "{durable} {known}");
                    assert_eq!((glsn, offset), (Glsn(10), 640));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn newer_format_is_never_cut() {
        let newer = Some(Problem { at: 640, what: "of a newer format", newer: true });
        assert!(matches!(
            decide(Glsn(1), Glsn::NONE, &outcome(newer, 0)),
            Err(LogError::Format { .. })
        ));
    }

    #[test]
    fn clean_end_below_the_known_glsn_is_another_log() {
        assert_eq!(decide(Glsn(1), Glsn(9), &outcome(None, 9)), Ok(None));
        let forked = decide(Glsn(1), Glsn(10), &outcome(None, 9));
        assert!(matches!(forked, Err(LogError::Forked { glsn: Glsn(10), .. })), "{forked:?}");
    }
}
