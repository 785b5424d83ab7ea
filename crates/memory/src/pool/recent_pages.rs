//! Deduplicates the accesses of one operation: a page counts once, however often the operation
//! returns to it.
//!
//! A page becomes hot when a second operation accesses it, not at the second read of one operation.
//! An operation that may read a page repeatedly (a cursor between a leaf and the page above it, a
//! record in several fragments) keeps a [`RecentPages`] for that time.

use super::frame::PageKey;
use super::{LoadError, Page, PoolFile, Touch};

/// Number of pages remembered: as many as a cursor moves among. The oldest is forgotten first.
const REMEMBERED: usize = 8;

/// The pages that one operation accessed last.
#[derive(Debug, Default)]
pub struct RecentPages {
    pages: [Option<PageKey>; REMEMBERED],
    next: usize,
}

impl RecentPages {
    /// Records a page. Returns whether it was accessed already.
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
    /// Like [`PoolFile::get`], for an operation that may have accessed the page before.
    ///
    /// # Errors
    /// As for [`PoolFile::get`].
    pub fn get_in(
        &self,
        recent: &mut RecentPages,
        number: u32,
        touch: Touch,
    ) -> Result<Page, LoadError> {
        let again = recent.note(self.key(number));
        self.get(number, if again { Touch::Again } else { touch })
    }
}
