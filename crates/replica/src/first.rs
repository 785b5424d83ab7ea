//! The first position of the log, as a member knows it. A base replaces the batches before it.
//!
//! Where a batch was removed, its name is free again, so that an append there succeeds although it
//! is no part of the log. Therefore a member asks for a newer base after each object that it has
//! stored or read: the base is stored before a batch is removed, so a member that found a free name
//! finds the base. No clock is involved.

use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_archive::Bucket;

use crate::bases::{self, line_of};
use crate::blobs::Failure;

/// The first position, as of the last answer.
#[derive(Debug, Default)]
pub(crate) struct FirstPosition {
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// The number of the newest base; 0 if there is none.
    number: u64,
    first: u64,
}

impl Default for Known {
    fn default() -> Self {
        Self { number: 0, first: 1 }
    }
}

impl FirstPosition {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if the newest base that is known is not in the bucket any more, unless the cluster was
    /// healed since: then the base of the heal is known from now on.
    pub(crate) fn check(&self, bucket: &dyn Bucket) -> Result<(), Failure> {
        let Known { number, first } = *self.lock();
        match number {
            0 => return Ok(()),
            _ => match bases::read(bucket, number) {
                Ok(Some(found)) if found.base.first == first => return Ok(()),
                Err(failure @ Failure::Io(..)) => return Err(failure),
                _ => {}
            },
        }
        if let Ok(Some(newest)) = bases::newest(bucket, 0)
            && line_of(newest.base.first) > line_of(first)
        {
            *self.lock() = Known { number: newest.number, first: newest.base.first };
            return Ok(());
        }
        let what = "it is missing, or another one: the bucket was set back or has lost objects; \
                    see docs/how-to/after-the-loss-of-a-bucket.md";
        Err(Failure::Damaged(bases::name_of(number), what.to_owned()))
    }

    /// The first position as of the last answer, without a request.
    pub(crate) fn known(&self) -> u64 {
        self.lock().first
    }

    /// Asks the bucket; one request if there is no newer base than at the last call.
    pub(crate) fn ask(&self, bucket: &dyn Bucket) -> Result<u64, Failure> {
        let Known { mut number, mut first } = *self.lock();
        let next = bases::name_of(number + 1);
        if bucket.exists(&next).map_err(|error| Failure::Io(next, error))?
            && let Some(newest) = bases::newest(bucket, number)?
        {
            (number, first) = (newest.number, newest.base.first);
        }
        let mut known = self.lock();
        // Another thread may have got a later answer.
        if known.number <= number {
            *known = Known { number, first };
        }
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_archive::{Folders, bucket_at};

    use super::*;
    use crate::bases::{Base, Numbered, store};

    #[test]
    fn a_newer_base_is_found_by_the_next_question() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = bucket_at(dir.path().to_str().unwrap(), Folders::Create).unwrap();
        let position = FirstPosition::default();
        assert_eq!(position.ask(&*bucket).unwrap(), 1);
        for (number, first) in [(1, 7), (2, 9)] {
            let base = Base {
                first,
                position: 9,
                glsn: 9,
                archive: "base-1-1".to_owned(),
                bytes: 1,
                created_micros: 1,
                replica: 1,
                healed: None,
                moved: None,
            };
            store(&*bucket, &Numbered { number, base }).unwrap();
            assert_eq!(position.ask(&*bucket).unwrap(), first);
            position.check(&*bucket).unwrap();
        }
        bucket.delete(&bases::name_of(2)).unwrap();
        assert!(matches!(position.check(&*bucket), Err(Failure::Damaged(..))));
    }
}
