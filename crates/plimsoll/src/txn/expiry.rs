//! Values of a transaction that expire.
//!
//! An expiry is a time that is stored with the value. A time to live counts from the call, not from
//! the commit. A read of the transaction decides by the time of the snapshot whether a value has
//! expired. If a value that the transaction has read expires before its commit's own time, the
//! commit is refused with [`crate::Error::Conflict`], as if the value had been deleted by another
//! commit.

use std::io::Read;
use std::time::{Duration, SystemTime};

use crate::txn::transaction::{Transaction, fill};
use crate::txn::write_set::Write;
use crate::types::error::Result;
use crate::types::expiry::{Expiry, Ttl};
use crate::types::index_key::KeyBuffer;
use crate::types::keyspaces::Keyspace;
use crate::types::value::Value;

impl Transaction {
    /// Sets the value of a key, and lets it expire after `ttl`, counted from this call: from then
    /// on the key has no value. Updates of the value ([`Transaction::add`] and others) keep its
    /// expiry; a new put replaces it, [`Transaction::persist`] removes it.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions")?;
    /// let mut tx = db.begin();
    /// tx.put_with_ttl(&sessions, "ada", "logged in", Duration::from_secs(300))?;
    /// tx.commit()?;
    /// assert!(matches!(db.ttl(&sessions, "ada")?, Ttl::Expires { .. }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::put`]; [`crate::InvalidInput::TimeToLive`] if `ttl` is below a
    /// microsecond or ends after the year 9999. Then nothing is written.
    pub fn put_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let expiry = Expiry::after(self.now_micros(), ttl)?;
        let key = self.key_to_put(keyspace, key.as_ref())?;
        self.put_expiring(&key, value.as_ref(), Some(expiry))
    }

    /// As [`Transaction::put_reader`], and lets the value expire after `ttl`.
    ///
    /// # Errors
    /// As for [`Transaction::put_reader`] and [`Transaction::put_with_ttl`].
    pub fn put_reader_with_ttl(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: &mut dyn Read,
        ttl: Duration,
    ) -> Result<u64> {
        let expiry = Expiry::after(self.now_micros(), ttl)?;
        let key = self.key_to_put(keyspace, key.as_ref())?;
        self.put_pieces(&key, Some(expiry), &mut |piece| fill(value, piece))
    }

    /// As [`Transaction::put_with_ttl`], with the time from which on the key has no value.
    ///
    /// # Errors
    /// As for [`Transaction::put`]; [`crate::InvalidInput::ExpiryTime`] if `at` has passed or is
    /// after the year 9999. Then nothing is written.
    pub fn put_expiring_at(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        at: SystemTime,
    ) -> Result<()> {
        let expiry = Expiry::at(self.now_micros(), at)?;
        let key = self.key_to_put(keyspace, key.as_ref())?;
        self.put_expiring(&key, value.as_ref(), Some(expiry))
    }

    /// Changes when the value of a key expires. Returns whether the key has a value; without one
    /// nothing is written. The value is written again, and the key counts as read.
    ///
    /// # Errors
    /// As for [`Transaction::get`] and [`Transaction::put_expiring_at`].
    pub fn expire_at(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        at: SystemTime,
    ) -> Result<bool> {
        let expiry = Expiry::at(self.now_micros(), at)?;
        self.set_expiry(keyspace, key.as_ref(), Some(expiry))
    }

    /// Removes the expiry of a key's value, even in a keyspace with a time to live. Returns whether
    /// the key has a value; if the value does not expire, nothing is written. The key counts as
    /// read.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// # let carts = db.keyspace("carts")?;
    /// let mut tx = db.begin();
    /// tx.put_with_ttl(&carts, "7", "a book", std::time::Duration::from_secs(60))?;
    /// assert!(tx.persist(&carts, "7")?);
    /// assert_eq!(tx.ttl(&carts, "7")?, Ttl::Unlimited);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::get`] and [`Transaction::put`].
    pub fn persist(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.set_expiry(keyspace, key.as_ref(), None)
    }

    /// The expiry of the value of a key. Does not read the value.
    ///
    /// # Errors
    /// As for [`Transaction::get`].
    pub fn ttl(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Ttl> {
        let key = self.key(keyspace, key.as_ref())?;
        let now = self.read_at()?.micros();
        Ok(Ttl::new(self.expiry(key.get())?, now))
    }

    /// The current time, to which expiries are compared.
    fn now_micros(&self) -> u64 {
        self.committer.reader.log.now_micros()
    }

    /// The expiry of the value of an index key; `None` if the key has no value.
    pub(crate) fn expiry(&self, key: &[u8]) -> Result<Option<Option<Expiry>>> {
        if self.pending.of(key).is_some() {
            return Ok(self.updated(key)?.map(|(_, expiry)| expiry));
        }
        let own = |write: Write<'_>| Ok((!write.is_deletion()).then(|| write.expiry()));
        if !self.writes.is_empty()
            && let Some(own) = self.writes.find(key, own)?
        {
            return Ok(own);
        }
        self.note_read(key)?;
        let (key, at) = self.place(key)?;
        self.committer.reader.expiry(&key, at)
    }

    /// The value of an index key, and the expiry that an update of it gives to the new value.
    pub(crate) fn get_to_update(&self, key: &[u8]) -> Result<(Option<Value>, Option<Expiry>)> {
        let value = self.get_by_key(key)?;
        let expiry = match value {
            Some(_) => self.expiry(key)?.flatten(),
            None => self.committer.reader.expiry_of_put(key)?,
        };
        Ok((value, expiry))
    }

    fn set_expiry(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        expiry: Option<Expiry>,
    ) -> Result<bool> {
        let index_key = self.key_to_put(keyspace, key)?;
        self.committer.check_writable()?;
        let set = self.rewrite(keyspace, key, &index_key, expiry);
        self.spoil_if_failed(&set);
        set
    }

    /// Writes the value of a key again, with another expiry.
    fn rewrite(
        &mut self,
        keyspace: &Keyspace,
        user_key: &[u8],
        key: &KeyBuffer,
        expiry: Option<Expiry>,
    ) -> Result<bool> {
        match self.expiry(key.get())? {
            None => return Ok(false),
            Some(before) if before == expiry && self.pending.of(key.get()).is_none() => {
                return Ok(true);
            }
            Some(_) => {}
        }
        let Some(mut value) = self.get_reader(keyspace, user_key)? else { return Ok(false) };
        self.put_pieces(key, expiry, &mut |piece| value.read_piece(piece))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use plimsoll_disk::clock::ManualClock;
    use plimsoll_disk::mem::MemDisk;
    use plimsoll_disk::os::OsDisk;

    use super::*;
    use crate::engine::open::open;
    use crate::read::resident::Resident;
    use crate::types::options::Options;

    #[test]
    fn a_clock_that_is_behind_the_last_commit_is_not_followed() {
        let start = 1_780_000_000_000_000;
        let clock = Arc::new(ManualClock::new(start));
        let options = Options::new().memory_bytes(16 << 20).background(false);
        let options = options.world(Arc::new(MemDisk::new()), clock.clone());
        let store = open(Path::new("/store"), options).unwrap();
        let keyspace = store.reader.keyspaces.find("default").unwrap().0;
        let is_there = || Transaction::new(&store.committer).get(&keyspace, "k").unwrap().is_some();
        let mut tx = Transaction::new(&store.committer);
        tx.put_with_ttl(&keyspace, "k", "v", Duration::from_secs(10)).unwrap();
        tx.commit().unwrap();
        clock.advance(Duration::from_secs(9));
        assert!(is_there());
        clock.advance(Duration::from_secs(2));
        assert!(!is_there());
        let mut tx = Transaction::new(&store.committer);
        tx.put(&keyspace, "other", "").unwrap();
        tx.commit().unwrap();
        clock.set_wall_micros(start);
        assert!(!is_there(), "the other commit was made when it had expired");
    }

    #[test]
    fn a_snapshot_is_not_judged_by_a_time_before_its_commit() {
        let dir = tempfile::tempdir().unwrap();
        let start = 1_780_000_000_000_000;
        let clocks = [Arc::new(ManualClock::new(start)), Arc::new(ManualClock::new(start))];
        let [one, two] = clocks.each_ref().map(|clock| {
            let options = Options::new().memory_bytes(16 << 20).background(false).shared(true);
            let options = options.world(Arc::new(OsDisk::new()), clock.clone());
            open(&dir.path().join("store"), options).unwrap()
        });
        let [of_one, keyspace] =
            [&one, &two].map(|store| store.reader.keyspaces.find("default").unwrap().0);
        let put = |key: &str, seconds| {
            let mut tx = Transaction::new(&one.committer);
            tx.put_with_ttl(&of_one, key, "v", Duration::from_secs(seconds)).unwrap();
            tx.commit().unwrap();
        };
        let is_there = |tx: &Transaction| tx.get(&keyspace, "k").unwrap().is_some();
        let seen = [0, 1, 2, 3].map(|way| {
            put("k", 10);
            assert!(is_there(&Transaction::new(&two.committer)));
            // Only the clock of the first process is ahead.
            clocks[0].advance(Duration::from_secs(11));
            put("other", 1000);
            let tx = match way {
                0 => Transaction::ordered(&two.committer),
                _ => Transaction::new(&two.committer),
            };
            if way > 1 {
                // Another transaction of the second process catches up.
                assert!(!is_there(&Transaction::new(&two.committer)));
            }
            let resident = || tx.get_resident(&keyspace, "k", |_| ()).unwrap();
            (way == 3 && resident() == Resident::Value(())) || is_there(&tx)
        });
        assert_eq!(seen, [false; 4]);
    }
}
