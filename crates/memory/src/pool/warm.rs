//! Warm restart of the pool: lists the resident pages, and reads pages back.
//!
//! Invariants:
//! 1. Listing the residents pins nothing, changes no heat, and holds the pool's lock for a thousand
//!    frames at most.
//! 2. Reading pages back evicts nothing: without a spare frame it returns [`Warmed::NoRoom`], and
//!    the caller stops.
//! 3. A page that is read back is read from its file and checked like any other.

use super::frame::{Frame, Heat};
use super::frames::FRAMES_PER_CHUNK;
use super::{Pool, PoolFile};
use crate::budget::Kind;

/// Frames visited per acquisition of the lock.
const FRAMES_PER_LOCK: usize = 1024;

/// A resident page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resident {
    /// Its file, by [`PoolFile::id`].
    pub file: u64,
    /// Its number in the file.
    pub number: u32,
    /// Whether it was accessed more than once.
    pub hot: bool,
}

/// Result of reading pages back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// Number of pages read. The other pages were resident or unreadable.
    Read(u32),
    /// Number of pages read until no spare frame was left.
    NoRoom(u32),
}

impl Pool {
    /// Calls `visit` with each resident page, in the order of the frames, except for pages that
    /// only long scans accessed.
    pub fn residents(&self, visit: &mut dyn FnMut(Resident)) {
        let mut found = Vec::with_capacity(FRAMES_PER_LOCK);
        let mut first = 0;
        loop {
            {
                // Under the lock no frame changes its page.
                let replacement = self.lock();
                let frames = self.frames.of_chunks(replacement.slots.len());
                let Some(next) = frames.get(first..).filter(|rest| !rest.is_empty()) else {
                    return;
                };
                found.extend(next.iter().take(FRAMES_PER_LOCK).filter_map(resident));
            }
            first += FRAMES_PER_LOCK;
            found.drain(..).for_each(&mut *visit);
        }
    }

    /// Frames that the pool has now.
    pub fn frames_held(&self) -> usize {
        self.lock().slots.held() * FRAMES_PER_CHUNK
    }
}

fn resident(frame: &Frame) -> Option<Resident> {
    let (state, key) = (frame.state(), frame.key());
    (state.is_resident() && state.heat() > Heat::Scan).then(|| Resident {
        file: key.file,
        number: key.number,
        hot: state.heat() >= Heat::Hot,
    })
}

impl PoolFile {
    /// The file's id in its pool, never reused there.
    pub fn id(&self) -> u64 {
        self.file.id
    }

    /// Reads those of the `count` pages from `first` on that are not resident into spare frames,
    /// one chunk of pages per read. Skips unreadable pages; a later request for one gets the error.
    pub fn warm(&self, first: u32, count: u32, hot: bool) -> Warmed {
        let pool = &self.file.pool;
        let heat = if hot { Heat::Hot } else { Heat::Cold };
        let mut read = 0;
        let mut at = first;
        while at - first < count {
            let run = (count - (at - first)).min(FRAMES_PER_CHUNK as u32);
            let Some(mut staging) = pool.budget.try_take(Kind::Staging) else {
                return Warmed::NoRoom(read);
            };
            let (frames, full) =
                self.begin_run(at, run, heat, |replacement| replacement.has_spare(&pool.budget));
            read += self.fill_run(at, frames, &mut staging);
            if full {
                return Warmed::NoRoom(read);
            }
            at += run;
        }
        Warmed::Read(read)
    }
}
