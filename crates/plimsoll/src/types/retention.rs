//! Retention of past versions.

use std::fmt;
use std::time::Duration;

/// The past versions that a keyspace keeps.
///
/// If every keyspace limits its past and no user stream is in use, the log trims itself. (A
/// keyspace to which nothing was ever written, like `default` in many stores, does not count.) It
/// then keeps the entries that the longest retention needs and those that a cursor has not passed
/// ([`crate::Log::cursor`]); followers without a cursor retain nothing.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let sessions = db.create_keyspace("sessions", Retention::Latest)?;
/// // It exists, with another retention.
/// assert!(db.create_keyspace("sessions", Retention::Forever).is_err());
/// db.set_retention(&sessions, Retention::Time(std::time::Duration::from_secs(7 * 24 * 3600)))?;
/// let report = db.drop_keyspace(&sessions)?;
/// assert!(db.snapshot_at(Moment::Glsn(report.glsn - 1))?.keyspace("sessions")?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// Every version, forever (the default).
    #[default]
    Forever,
    /// The latest version of each key; older ones only while a snapshot needs them.
    Latest,
    /// The versions visible at any of the last `n` GLSNs of the log.
    Glsns(u64),
    /// The versions that were visible at any time within this age.
    Time(Duration),
}

impl Retention {
    /// The retention as read back from its record, which has microsecond precision.
    pub(crate) fn as_recorded(self) -> Self {
        match self {
            Self::Time(age) => Self::Time(Duration::from_micros(
                u64::try_from(age.as_micros()).unwrap_or(u64::MAX),
            )),
            other => other,
        }
    }
}

/// In the syntax of the command: `forever`, `latest`, `1000glsns`, or an age such as `7d`.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.write_str("forever"),
            Self::Latest => f.write_str("latest"),
            Self::Glsns(glsns) => write!(f, "{glsns}glsns"),
            Self::Time(age) => write_age(*age, f),
        }
    }
}

/// Exact to the microsecond, in the largest unit that divides it.
fn write_age(age: Duration, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const UNITS: [(&str, u128); 5] = [
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("m", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1000),
    ];
    let micros = age.as_micros();
    match UNITS.into_iter().find(|(_, unit)| micros.is_multiple_of(*unit)) {
        Some(_) if micros == 0 => f.write_str("0s"),
        Some((name, unit)) => write!(f, "{}{name}", micros / unit),
        None => write!(f, "{micros}us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_written_in_one_spelling() {
        let age = |seconds| Retention::Time(Duration::from_secs(seconds)).to_string();
        assert_eq!([age(0), age(90), age(7200), age(604_800)], ["0s", "90s", "2h", "7d"]);
        assert_eq!(Retention::Time(Duration::from_millis(1500)).to_string(), "1500ms");
        assert_eq!(Retention::Time(Duration::from_micros(1501)).to_string(), "1501us");
        assert_eq!(
            [Retention::Forever, Retention::Latest].map(|it| it.to_string()),
            ["forever", "latest"]
        );
        assert_eq!(Retention::Glsns(1000).to_string(), "1000glsns");
    }
}
