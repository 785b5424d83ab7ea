//! Retention of past versions.

use std::fmt;
use std::time::Duration;

/// The past versions that a keyspace keeps.
///
/// If every keyspace limits its past and no user stream is in use, the log trims itself. (A keyspace to which nothing was ever written,
/// like `default` in many stores, does not count.) It then keeps the entries that the longest retention needs and those that a cursor has
/// not passed ([`crate::Log::cursor`]); followers without a cursor retain nothing.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let sessions = db.create_keyspace("sessions", Retention::Latest)?;
/// assert!(db.create_keyspace("sessions", Retention::Forever).is_err(), "it is there, with another one");
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
    /// The versions visible to a reader of this age or younger.
    Time(Duration),
}

impl Retention {
    /// The retention as read back from its record, which has microsecond precision.
    pub(crate) fn as_recorded(self) -> Self {
        match self {
            Self::Time(age) => Self::Time(Duration::from_micros(u64::try_from(age.as_micros()).unwrap_or(u64::MAX))),
            other => other,
        }
    }
}

/// The retained versions in words, for the row "keeps".
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.write_str("every version"),
            Self::Latest => f.write_str("the latest version of each key"),
            Self::Glsns(glsns) => write!(f, "what the last {glsns} GLSNs can see"),
            Self::Time(age) => write!(f, "what readers of the last {age:?} can see"),
        }
    }
}
