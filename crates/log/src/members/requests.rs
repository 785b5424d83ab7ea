//! Requests of members to the keeper: to compact the index, or to trim the log.
//!
//! The requests of a kind are numbered. The keeper performs them and publishes up to which number
//! they are done. If the keeper ends, the next one performs the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::glsn::Glsn;
use crate::members::table::Table;
use crate::members::words::{COMPACT, Request, TRIM, TRIM_WANTED};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// To merge all runs of the index.
    Compact,
    /// To free the log below [`Requests::trim_requested`].
    Trim,
}

impl RequestKind {
    fn words(self) -> Request {
        match self {
            Self::Compact => COMPACT,
            Self::Trim => TRIM,
        }
    }
}

fn bit_of(number: u64) -> u64 {
    1 << (number % 64)
}

/// The requests of this member, and their answers.
pub struct Requests {
    table: Arc<Table>,
}

impl Requests {
    pub(super) fn new(table: &Arc<Table>) -> Self {
        Self { table: Arc::clone(table) }
    }

    /// Asks the keeper to compact the index; returns the request's number.
    pub fn ask_to_compact(&self) -> u64 {
        self.ask(RequestKind::Compact)
    }

    fn ask(&self, what: RequestKind) -> u64 {
        let number =
            self.table.words.words()[what.words().asked].fetch_add(1, Ordering::SeqCst) + 1;
        self.table.notify();
        number
    }

    /// Asks the keeper to trim the log below `until`; returns the request's number.
    pub fn ask_to_trim(&self, until: Glsn) -> u64 {
        self.table.words.words()[TRIM_WANTED].fetch_max(until.0, Ordering::SeqCst);
        self.ask(RequestKind::Trim)
    }

    /// The GLSN below which members have requested a trim of the log.
    pub fn trim_requested(&self) -> Glsn {
        Glsn(self.table.word(TRIM_WANTED))
    }

    /// Whether a request succeeded (`true`) or failed; `None` if it is not done yet.
    pub fn answer(&self, what: RequestKind, number: u64) -> Option<bool> {
        let words = what.words();
        (self.table.word(words.done) >= number)
            .then(|| self.table.word(words.failed) & bit_of(number) == 0)
    }

    /// The number of the last request, if it is not done yet.
    pub fn is_asked(&self, what: RequestKind) -> Option<u64> {
        let words = what.words();
        Some(self.table.word(words.asked)).filter(|asked| *asked > self.table.word(words.done))
    }

    /// Publishes that all requests up to `number` are done, or have failed. Only the keeper calls
    /// this.
    pub fn answered(&self, what: RequestKind, number: u64, is_done: bool) {
        let words = what.words();
        let before = self.table.word(words.done);
        let answered =
            (before + 1..=number).rev().take(64).fold(0, |bits, number| bits | bit_of(number));
        let failed = &self.table.words.words()[words.failed];
        if is_done {
            failed.fetch_and(!answered, Ordering::SeqCst);
        } else {
            failed.fetch_or(answered, Ordering::SeqCst);
        }
        self.table.words.words()[words.done].fetch_max(number, Ordering::SeqCst);
        self.table.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use plimsoll_disk::clock::{Clock, SystemClock};
    use plimsoll_disk::mem::MemDisk;
    use plimsoll_disk::vfs::Disk;

    use super::*;
    use crate::members::Members;

    #[test]
    fn a_request_that_succeeded_stays_done_when_a_later_one_fails() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let members =
            Members::join(&disk, &clock, Path::new("/"), Duration::from_millis(100)).unwrap();
        members.begin(true, 7, 0).unwrap();
        let [first, second, third, fourth] = [(); 4].map(|()| members.requests.ask_to_compact());
        members.requests.answered(RequestKind::Compact, first, true);
        members.requests.answered(RequestKind::Compact, third, false);
        let answer = |number| members.requests.answer(RequestKind::Compact, number);
        assert_eq!(
            [first, second, third, fourth].map(answer),
            [Some(true), Some(false), Some(false), None]
        );
        assert_eq!(
            members.requests.answer(RequestKind::Trim, members.requests.ask_to_trim(Glsn(1))),
            None
        );
        members.requests.answered(RequestKind::Compact, fourth, true);
        assert_eq!([third, fourth].map(answer), [Some(false), Some(true)]);
    }
}
