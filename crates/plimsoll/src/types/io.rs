//! The choice of how files are read: through the system's page cache or with direct I/O.

use std::fmt;

/// How runs, sealed segments of the log and blob files are read. Does not affect writes or results.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// # db.close()?;
/// let db = Db::open(&path, Options::new().memory_bytes(16 << 20).io(Io::Direct))?;
/// # drop(notes);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// Through the page cache while the machine, and each cgroup of the process, has clearly more
    /// free memory than the budget; otherwise with direct I/O (`O_DIRECT`). The default.
    #[default]
    Auto,
    /// With direct I/O: data that is not cached within the budget is read from the device each
    /// time.
    Direct,
    /// Through the page cache. In a cgroup with a hard limit, the page cache competes with
    /// everything else under that limit.
    Cached,
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Cached => "cached",
        })
    }
}
