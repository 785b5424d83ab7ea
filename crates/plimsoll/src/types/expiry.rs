//! The expiry of values.

use std::num::NonZeroU64;
use std::time::{Duration, SystemTime};

use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::times::{of_micros, to_micros};

/// The last time at which a value may expire: the end of the year 9999.
const LAST_MICROS: u64 = 253_402_300_799_999_999;

/// The time from which on a value counts as absent: microseconds since 1970 UTC, up to the end of
/// the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Expiry(NonZeroU64);

impl Expiry {
    /// Marks a deletion on a branch. Such a deletion hides the versions of the branch's ancestors,
    /// so the index must keep it. No value has this expiry.
    pub(crate) const OF_DELETION: Self = Self(NonZeroU64::MIN);

    /// An expiry that was stored; `None` if it is out of bounds.
    pub(crate) fn from_micros(micros: u64) -> Option<Self> {
        NonZeroU64::new(micros).filter(|_| micros <= LAST_MICROS).map(Self)
    }

    /// The expiry of a value that is put at `now` and lives for `ttl`.
    ///
    /// # Errors
    /// The time to live is below a microsecond, or the value would expire after the year 9999.
    pub(crate) fn after(now: u64, ttl: Duration) -> Result<Self> {
        let refused = || InvalidInput::TimeToLive { ttl };
        let micros = u64::try_from(ttl.as_micros()).map_err(|_| refused())?;
        if micros == 0 {
            return Err(refused().into());
        }
        let at = now.checked_add(micros).and_then(Self::from_micros);
        Ok(at.ok_or_else(refused)?)
    }

    /// The expiry of a value that is put at `now` and expires at `time`.
    ///
    /// # Errors
    /// The time is not after `now`, or it is after the year 9999.
    pub(crate) fn at(now: u64, time: SystemTime) -> Result<Self> {
        let at = Self::from_micros(to_micros(time)).filter(|at| !at.has_passed(now));
        Ok(at.ok_or_else(|| InvalidInput::ExpiryTime { asked: time, now: of_micros(now) })?)
    }

    /// Whether the value counts as absent at a time.
    #[inline]
    pub(crate) fn has_passed(self, micros: u64) -> bool {
        self.0.get() <= micros
    }

    /// Microseconds since 1970 UTC.
    #[inline]
    pub(crate) fn micros(self) -> u64 {
        self.0.get()
    }

    /// The time.
    pub(crate) fn time(self) -> SystemTime {
        of_micros(self.micros())
    }
}

/// The expiry of the value of a key: [`crate::Db::ttl`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// # let codes = db.keyspace("codes")?;
/// db.put_with_ttl(&codes, "1234", "", std::time::Duration::from_secs(30))?;
/// match db.ttl(&codes, "1234")? {
///     Ttl::Expires { at, left } => println!("until {at:?}, for {left:?}"),
///     Ttl::Unlimited => println!("until it is deleted"),
///     Ttl::Absent => println!("there is no such code"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// The key has no value.
    Absent,
    /// The value does not expire.
    Unlimited,
    /// The value expires.
    Expires {
        /// The time at which it expires.
        at: SystemTime,
        /// The time until then, from the moment of the read.
        left: Duration,
    },
}

impl Ttl {
    /// As of a time in microseconds since 1970 UTC.
    pub(crate) fn new(expiry: Option<Option<Expiry>>, now: u64) -> Self {
        match expiry {
            None => Self::Absent,
            Some(None) => Self::Unlimited,
            Some(Some(expiry)) => {
                let left = Duration::from_micros(expiry.micros().saturating_sub(now));
                Self::Expires { at: expiry.time(), left }
            }
        }
    }
}

/// The expiries of the values in a table that expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpiryRange {
    pub(crate) first: Expiry,
    pub(crate) last: Expiry,
    /// The number of these values, at least 1.
    pub(crate) values: u64,
    /// The keyspace of all of these values; 0 if they are in several keyspaces. Keyspace 0 itself
    /// has no values that expire.
    pub(crate) keyspace: u32,
}

impl ExpiryRange {
    /// The range with one more value.
    pub(crate) fn with(range: Option<Self>, expiry: Expiry, keyspace: u32) -> Self {
        let Some(before) = range else {
            return Self { first: expiry, last: expiry, values: 1, keyspace };
        };
        Self {
            first: before.first.min(expiry),
            last: before.last.max(expiry),
            values: before.values + 1,
            keyspace: if before.keyspace == keyspace { keyspace } else { 0 },
        }
    }

    /// A range that was stored; `None` if it is impossible.
    pub(crate) fn of_numbers([first, last, values, keyspace]: [u64; 4]) -> Option<Self> {
        let (first, last) = (Expiry::from_micros(first)?, Expiry::from_micros(last)?);
        let keyspace = u32::try_from(keyspace).ok()?;
        (first <= last && values > 0).then_some(Self { first, last, values, keyspace })
    }

    /// The numbers to store.
    pub(crate) fn numbers(&self) -> [u64; 4] {
        [self.first.micros(), self.last.micros(), self.values, u64::from(self.keyspace)]
    }

    /// An estimate of how many of these values have expired at a time, which assumes that the
    /// expiries are evenly distributed. Exact if none or all have.
    pub(crate) fn expired(&self, micros: u64) -> u64 {
        if self.last.has_passed(micros) {
            return self.values;
        }
        let (first, last) = (self.first.micros(), self.last.micros());
        let Some(passed) = micros.checked_sub(first) else { return 0 };
        (u128::from(self.values) * u128::from(passed) / u128::from(last - first)) as u64
    }
}

/// Rejects a time to live that no value can have.
///
/// # Errors
/// It is below a microsecond, or an expiry would be after the year 9999.
pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    Expiry::after(0, ttl).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_after_now_and_before_the_year_10000() {
        let after = |now, ttl| Expiry::after(now, ttl).map(Expiry::micros);
        assert_eq!(after(5, Duration::from_micros(2)).unwrap(), 7);
        assert_eq!(after(LAST_MICROS - 1, Duration::from_micros(1)).unwrap(), LAST_MICROS);
        for (now, ttl) in [
            (5, Duration::ZERO),
            (5, Duration::from_nanos(999)),
            (LAST_MICROS, Duration::from_micros(1)),
            (5, Duration::MAX),
            (u64::MAX, Duration::from_secs(1)),
        ] {
            assert!(after(now, ttl).is_err(), "{now} {ttl:?}");
        }
        let at = |now, micros| Expiry::at(now, of_micros(micros)).map(Expiry::micros);
        assert_eq!(at(5, 6).unwrap(), 6);
        for (now, micros) in [(5, 5), (5, 0), (5, LAST_MICROS + 1)] {
            assert!(at(now, micros).is_err(), "{now} {micros}");
        }
    }

    #[test]
    fn expired_values_are_estimated_by_their_range() {
        let range = ExpiryRange::of_numbers([100, 200, 50, 16]).unwrap();
        assert_eq!(range.numbers(), [100, 200, 50, 16]);
        let counts = [0, 99, 100, 150, 199, 200, 900].map(|micros| range.expired(micros));
        assert_eq!(counts, [0, 0, 0, 25, 49, 50, 50]);
        let one = ExpiryRange::with(None, Expiry::from_micros(7).unwrap(), 16);
        assert_eq!([6, 7].map(|micros| one.expired(micros)), [0, 1]);
        let with =
            |keyspace| ExpiryRange::with(Some(one), Expiry::from_micros(9).unwrap(), keyspace);
        assert_eq!(with(16).numbers(), [7, 9, 2, 16]);
        assert_eq!(with(17).numbers(), [7, 9, 2, 0]);
        for impossible in [[9, 7, 2, 16], [7, 9, 0, 16], [0, 9, 1, 16], [7, 9, 1, 1 << 32]] {
            assert_eq!(ExpiryRange::of_numbers(impossible), None);
        }
    }

    #[test]
    fn a_value_is_absent_from_its_expiry_on() {
        let expiry = Expiry::from_micros(7).unwrap();
        assert_eq!([6, 7, 8].map(|now| expiry.has_passed(now)), [false, true, true]);
        assert_eq!(Expiry::from_micros(0), None);
    }
}
