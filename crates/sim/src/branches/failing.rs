//! One read of a process fails: answers are right or errors, and afterwards all are right.

use plimsoll::{Error, Overflow};
use plimsoll_disk::random::Random;

use crate::branches::model::NUMBERS;
use crate::branches::{Driver, Step, StepError, done, place, upkeep, value};
use crate::failure::Failure;

/// Most reads of an operation come before this one.
const READS_MAX: u64 = 16;

impl Driver {
    /// Runs an operation in which one read fails.
    pub(super) fn failing(&mut self, number: usize, random: &mut Random) -> Step {
        let how = random.below(8);
        // This process reads the records of another process's changes when it is notified of them.
        let other = (number + 1) % self.members.len();
        if how < 3 && other != number {
            self.tag(other, random)?;
        }
        let db = self.member(number).db.clone();
        if random.below(2) == 0 {
            upkeep("flush", db.flush())?;
        }
        db.drop_caches();
        db.drop_pages();
        let nth = 1 + random.below(READS_MAX);
        self.member(number).process.fail_read(Some(nth));
        let ended = match how {
            0..3 => self.check_lists(number),
            3 => self.failed_update(number, random),
            4 => self.transaction(number, random),
            5 => self.check_histories(number, random),
            _ => self.check(number, random),
        };
        self.member(number).process.fail_read(None);
        match ended {
            Err(StepError::Call(_)) if !self.is_down() => {}
            ended => ended?,
        }
        self.absorb(&db)?;
        // A failed call has made no commit.
        self.doubt = None;
        self.check_lists(number)?;
        self.check(number, random)
    }

    /// Commits a transaction in which an update has failed: the commit fails, too.
    fn failed_update(&self, number: usize, random: &mut Random) -> Step {
        let branch = self.some_branch(random);
        let mut tx = self.branch(number, branch)?.begin();
        let spaces = self.member(number).spaces.clone();
        let (put, updated) = (place(random), (NUMBERS, place(random).1));
        let value = value(put, random);
        done("put", tx.put(&spaces[put.0], [put.1], &value))?;
        match tx.add(&spaces[updated.0], [updated.1], 1, Overflow::Checked) {
            Ok(()) | Err(Error::InvalidInput(_)) => Ok(()),
            Err(_) => match tx.commit() {
                Ok(glsn) => Err(Failure::new(format!("{glsn} lacks an update that failed")).into()),
                Err(_) => Ok(()),
            },
        }
    }
}
