//! Which pages an operation touched: however often it comes back to one, that counts once.
//!
//! A page becomes hot by the second operation that wants it, not by the second read. Whoever may read a page again and again within
//! one operation (a cursor between a leaf and the page above it, a record in several fragments) keeps a [`Visits`] for that time.

use super::frame::PageKey;
use super::{LoadError, Page, PoolFile, Touch};

/// Pages that are remembered: as many as a cursor moves among, the oldest forgotten first.
const REMEMBERED: usize = 8;

/// The pages that one operation touched last.
#[derive(Debug, Default)]
pub struct Visits {
    pages: [Option<PageKey>; REMEMBERED],
    next: usize,
}

impl Visits {
    /// Notes a page; whether it was touched already.
    fn note(&mut self, key: PageKey) -> bool {
        if self.pages.contains(&Some(key)) {
            return true;
        }
        self.pages[self.next] = Some(key);
        self.next = (self.next + 1) % REMEMBERED;
        false
    }
}

impl PoolFile {
    /// As [`PoolFile::get`], for an operation that may have touched the page before.
    ///
    /// # Errors
    /// As for [`PoolFile::get`].
    pub fn get_in(&self, visits: &mut Visits, number: u32, touch: Touch) -> Result<Page, LoadError> {
        let again = visits.note(self.key(number));
        self.get(number, if again { Touch::Again } else { touch })
    }
}
