//! Point reads that are answered from memory or not at all.

use plimsoll_memory::pool::ResidentOnly;

use crate::read::reader::Reader;
use crate::types::as_of::AsOf;
use crate::types::error::Result;

/// The answer of a read that uses only memory: [`crate::Db::get_resident`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
/// use plimsoll::Resident;
///
/// let users = db.keyspace("users")?;
/// db.put(&users, "ada", "Ada Lovelace")?;
/// let bytes = match db.get_resident(&users, "ada", |name| name.len())? {
///     Resident::Value(bytes) => Some(bytes),
///     Resident::Absent => None,
///     // This read may wait for the disk: run it on another thread, or after releasing locks.
///     Resident::NotResident => db.get_with(&users, "ada", |name| name.len())?,
/// };
/// assert_eq!(bytes, Some(12));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident<T> {
    /// The key has a value, and it is in memory.
    Value(T),
    /// The key has no value.
    Absent,
    /// A page would have to be loaded to decide, or the read failed; an ordinary read decides.
    NotResident,
}

/// Runs a read that loads no page and waits for none. If it fails, the answer is
/// [`Resident::NotResident`]: the data may be in newer sources, and if it is not, the ordinary read
/// that follows returns the error.
pub(crate) fn resident<T>(read: impl FnOnce() -> Result<Option<T>>) -> Resident<T> {
    let _only = ResidentOnly::enter();
    match read() {
        Ok(Some(value)) => Resident::Value(value),
        Ok(None) => Resident::Absent,
        Err(_) => Resident::NotResident,
    }
}

impl Reader {
    /// As [`Reader::get_with`], from memory only.
    pub(crate) fn get_resident<T>(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Resident<T>> {
        self.check_open()?;
        let mut look = Some(|value: &[u8]| ResidentOnly::pause(|| look(value)));
        Ok(resident(|| self.get_in(&self.index.sources.current_view(), key, at, &mut look)))
    }
}
