//! The moment of a read: the last commit that it sees, and the time by which it judges whether a
//! value has expired.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_log::draft::CommitTimes;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::types::expiry::Expiry;
use crate::types::lock::lock;
use crate::types::version::Stored;

/// The moment of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsOf<'m> {
    /// The last commit that the read sees.
    pub(crate) glsn: Glsn,
    clock: Clock<'m>,
    expiries: Option<&'m Expiries>,
}

/// The time of a read.
#[derive(Clone, Copy, Debug)]
enum Clock<'m> {
    /// Microseconds since 1970 UTC.
    At(u64),
    /// The time of the clock when the read meets a value that expires. For a single point read,
    /// which otherwise does not need the clock.
    Now(&'m FileLog),
}

impl<'m> AsOf<'m> {
    /// As of a commit, at a time in microseconds since 1970 UTC.
    pub(crate) fn new(glsn: Glsn, micros: u64) -> Self {
        Self { glsn, clock: Clock::At(micros), expiries: None }
    }

    /// As of the newest commit `glsn`, now. For a single point read.
    pub(crate) fn now(glsn: Glsn, log: &'m FileLog) -> Self {
        Self { glsn, clock: Clock::Now(log), expiries: None }
    }

    /// As of a commit, without expiries: for the store's own records, and where it is irrelevant
    /// whether a value has expired.
    pub(crate) fn unexpiring(glsn: Glsn) -> Self {
        Self::new(glsn, 0)
    }

    /// The same time, as of an earlier commit if `limit` is earlier.
    pub(crate) fn up_to(self, limit: Glsn) -> Self {
        Self { glsn: self.glsn.min(limit), ..self }
    }

    /// The same moment, for the reads of a transaction, which note in `expiries` the expiries on
    /// which they depend.
    pub(crate) fn noting(self, expiries: &'m Expiries) -> Self {
        Self { expiries: Some(expiries), ..self }
    }

    /// The time in microseconds since 1970 UTC.
    pub(crate) fn micros(&self) -> u64 {
        match self.clock {
            Clock::At(micros) => micros,
            Clock::Now(log) => log.now_micros(),
        }
    }

    /// Whether the key has a value at the moment, given its newest version that is not younger than
    /// the moment. If so, the caller reads the value.
    #[inline]
    pub(crate) fn sees(&self, key: &[u8], stored: &Stored<'_>) -> bool {
        match stored.expiry() {
            None => *stored != Stored::Deleted,
            Some(expiry) => self.is_before(key, expiry),
        }
    }

    /// Whether the value of an index key has not expired at the moment. If so, the caller reads the
    /// value.
    pub(crate) fn is_before(&self, key: &[u8], expiry: Expiry) -> bool {
        if expiry.has_passed(self.micros()) {
            self.note_missed();
            return false;
        }
        self.note_expiry(key, expiry);
        true
    }

    /// Called with a value that is read and has not expired at the moment.
    #[inline]
    pub(crate) fn note(&self, key: &[u8], stored: &Stored<'_>) {
        if let Some(expiry) = stored.expiry() {
            self.note_expiry(key, expiry);
        }
    }

    /// As [`AsOf::note`], with the expiry of the value.
    pub(crate) fn note_expiry(&self, key: &[u8], expiry: Expiry) {
        if let Some(expiries) = self.expiries {
            expiries.note(key, expiry);
        }
    }

    /// Called if a value was not seen because it had expired at the moment.
    pub(crate) fn note_missed(&self) {
        if let Some(expiries) = self.expiries {
            expiries.missed_at.fetch_max(self.micros(), Ordering::Relaxed);
        }
    }
}

/// The expiries on which a transaction's reads depend: the earliest expiry of a value that it saw,
/// and the time at which it missed a value that had expired.
#[derive(Debug, Default)]
pub(crate) struct Expiries {
    /// The value that expires first among those that it saw: its expiry and index key.
    first: Mutex<Option<(Expiry, Vec<u8>)>>,
    /// The last time at which it missed a value that had expired; 0 if it missed none.
    missed_at: AtomicU64,
}

impl Expiries {
    fn note(&self, key: &[u8], expiry: Expiry) {
        let mut first = lock(&self.first);
        if first.as_ref().is_none_or(|(first, _)| expiry < *first) {
            *first = Some((expiry, key.to_vec()));
        }
    }

    /// Acts as if a value that expires at this time was read.
    pub(crate) fn must_commit_before(&self, micros: u64) {
        if let Some(expiry) = Expiry::from_micros(micros) {
            self.note(&[], expiry);
        }
    }

    /// The times at which a commit sees what the reads saw.
    pub(crate) fn times(&self) -> CommitTimes {
        let first = lock(&self.first).as_ref().map(|(expiry, _)| expiry.micros());
        // Relaxed: the reads have returned.
        let from_micros = self.missed_at.load(Ordering::Relaxed);
        CommitTimes { from_micros, before_micros: first.unwrap_or(u64::MAX) }
    }

    /// The index key of the value that expires first; empty if there is none.
    pub(crate) fn first_key(&self) -> Vec<u8> {
        lock(&self.first).as_ref().map_or_else(Vec::new, |(_, key)| key.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_sees_values_that_have_not_expired_and_notes_the_first_expiry() {
        let expiries = Expiries::default();
        let at = AsOf::new(Glsn(1), 7).noting(&expiries);
        assert_eq!(expiries.times(), CommitTimes::ANY);
        let expiring = |micros| Stored::Inline(b"value").expiring(Expiry::from_micros(micros));
        let keys: [&[u8]; 5] = [b"past", b"now", b"later", b"next", b"ever"];
        let values = [6, 7, 9, 8, 0].map(expiring);
        let seen: Vec<_> =
            keys.iter().zip(&values).map(|(key, stored)| at.sees(key, stored)).collect();
        assert_eq!(seen, [false, false, true, true, true]);
        assert!(!at.sees(b"deleted", &Stored::Deleted));
        assert_eq!(expiries.times(), CommitTimes { from_micros: 7, before_micros: 8 });
        assert_eq!(expiries.first_key(), b"next");
    }
}
