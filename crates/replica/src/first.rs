//! What a member knows of the first position of the log, below which a base replaces the batches.
//!
//! Where a batch was removed, its name is free again, so that an append there succeeds although it
//! is no part of the log. Therefore a member asks for a newer base after each object that it has
//! stored or read: the base is stored before a batch is removed, so a member that found a free name
//! finds the base. In a cloud, where each question costs, it relies on an answer for [`RELIES`],
//! and batches are removed at the earliest [`REMOVES_AFTER`] after their base was stored.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_archive::Bucket;
use plimsoll_disk::clock::Clock;

use crate::bases;
use crate::blobs::Failure;

/// For how long a member of a cluster in a cloud relies on what it knows.
const RELIES: Duration = Duration::from_secs(10 * 60);

/// How old a base in a cloud is at least when the batches before it are removed. The difference to
/// [`RELIES`] is how far the clocks of members may differ.
pub(crate) const REMOVES_AFTER: Duration = Duration::from_secs(3600);

/// The first position, as of the last answer.
#[derive(Debug, Default)]
pub(crate) struct FirstPosition {
    known: Mutex<Option<Known>>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The number of the newest base; 0 if there is none.
    number: u64,
    first: u64,
    /// Before the question was asked: nanoseconds, and microseconds since 1970 UTC, because a
    /// machine that is suspended may stop the first clock, and the second can be set.
    nanos: u64,
    micros: u64,
}

impl FirstPosition {
    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first position, if an answer can be relied on; never in a folder.
    pub(crate) fn known(&self, clock: &dyn Clock, is_folder: bool) -> Option<u64> {
        let known = self.lock().filter(|_| !is_folder)?;
        let nanos = clock.monotonic_nanos().saturating_sub(known.nanos);
        let micros = clock.wall_micros().abs_diff(known.micros);
        let age = Duration::from_nanos(nanos).max(Duration::from_micros(micros));
        (age < RELIES).then_some(known.first)
    }

    /// Asks the bucket.
    pub(crate) fn ask(&self, bucket: &dyn Bucket, clock: &dyn Clock) -> Result<u64, Failure> {
        let (nanos, micros) = (clock.monotonic_nanos(), clock.wall_micros());
        let before = *self.lock();
        let (mut number, mut first) = before.map_or((0, 1), |known| (known.number, known.first));
        let next = bases::name_of(number + 1);
        if bucket.exists(&next).map_err(|error| Failure::Io(next, error))?
            && let Some(newest) = bases::newest(bucket, number)?
        {
            (number, first) = (newest.number, newest.base.first);
        }
        let mut known = self.lock();
        // Another thread may have got a later answer.
        if known.is_none_or(|known| known.number <= number) {
            *known = Some(Known { number, first, nanos, micros });
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_archive::{Folders, bucket_at};
    use plimsoll_disk::clock::ManualClock;

    use super::*;
    use crate::bases::{Base, Numbered, store};

    #[test]
    fn an_answer_is_relied_on_for_ten_minutes_of_any_clock_and_never_in_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = bucket_at(dir.path().to_str().unwrap(), Folders::Create).unwrap();
        let (first, clock) = (FirstPosition::default(), ManualClock::new(1_000_000_000_000));
        assert_eq!(first.known(&clock, false), None);
        assert_eq!(first.ask(&*bucket, &clock).unwrap(), 1);
        let base = Base {
            first: 7,
            position: 9,
            glsn: 9,
            archive: "base-1-1".to_owned(),
            bytes: 1,
            created_micros: 1,
            replica: 1,
        };
        store(&*bucket, &Numbered { number: 1, base }).unwrap();
        clock.advance(RELIES - Duration::from_secs(1));
        assert_eq!((first.known(&clock, false), first.known(&clock, true)), (Some(1), None));
        clock.advance(Duration::from_secs(1));
        assert_eq!(first.known(&clock, false), None);
        assert_eq!(first.ask(&*bucket, &clock).unwrap(), 7);
        assert_eq!(first.known(&clock, false), Some(7));
        // Another wall clock, as after a suspension.
        let clock = ManualClock::new(3_000_000_000_000);
        assert_eq!(first.known(&clock, false), None);
        assert!(RELIES * 6 <= REMOVES_AFTER);
    }
}
