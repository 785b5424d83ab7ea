//! The moment that a command reads: a GLSN, a time, or the newest.

use jiff::Timestamp;
use plimsoll::{Db, Moment, Snapshot};

use crate::exit::Failure;
use crate::time::{now, parse_time};

/// A moment as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Newest,
    Glsn(u64),
    Time(Timestamp),
}

impl At {
    fn moment(self) -> Moment {
        match self {
            Self::Newest => Moment::Newest,
            Self::Glsn(glsn) => Moment::Glsn(glsn),
            Self::Time(time) => Moment::Time(time.into()),
        }
    }
}

/// Reads `newest`, digits as a GLSN, anything else as a time.
pub(crate) fn parse_at(text: &str) -> Result<At, String> {
    if text == "newest" {
        return Ok(At::Newest);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let glsn = text.parse().map_err(|_| format!("`{text}` is larger than any GLSN"))?;
        return Ok(At::Glsn(glsn));
    }
    let refusal =
        "is neither a GLSN nor a time; write e.g. 120, newest, 2024-01-31, \"2024-01-31 12:00\" or \"2 hours ago\"";
    parse_time(text, now()).map(At::Time).ok_or_else(|| format!("`{text}` {refusal}"))
}

/// The store as of a moment; without one, as of now.
pub(crate) fn snapshot(db: &Db, at: Option<At>) -> Result<Snapshot, Failure> {
    match at {
        None => Ok(db.snapshot()),
        Some(at) => Ok(db.snapshot_at(at.moment())?),
    }
}

/// The GLSN of a moment.
pub(crate) fn glsn(db: &Db, at: At) -> Result<u64, Failure> {
    match at {
        At::Glsn(glsn) => Ok(glsn),
        other => Ok(db.snapshot_at(other.moment())?.at()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_glsn_and_dates_are_times() {
        assert_eq!(parse_at("2024"), Ok(At::Glsn(2024)));
        assert_eq!(parse_at("newest"), Ok(At::Newest));
        for text in ["2024-01-31 12:00", "now", "yesterday", "2 hours ago"] {
            assert!(matches!(parse_at(text), Ok(At::Time(_))), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused_with_examples() {
        for text in ["", "soon", "-1", "99999999999999999999"] {
            let message = parse_at(text).unwrap_err();
            assert!(message.contains("e.g. 120") || message.contains("larger"), "{message}");
        }
    }
}
