//! What is worth having again after a restart: which pages are resident, and how they come back.
//!
//! Laws:
//! 1. Who looks over the residents pins nothing, changes no heat, and holds the pool's lock for a thousand frames at most.
//! 2. Nobody leaves for a page that comes back this way: when no frame is to spare, the pool says so and the caller is done.
//! 3. A page that comes back is read from its file and checked as any other.

use super::frame::{Frame, Heat};
use super::frames::FRAMES_PER_CHUNK;
use super::{Pool, PoolFile};
use crate::budget::Kind;

/// Frames that are looked at under one turn of the lock.
const LOOKS_AT_ONCE: usize = 1024;

/// A resident page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resident {
    /// Its file, by [`PoolFile::id`].
    pub file: u64,
    /// Its number in the file.
    pub number: u32,
    /// Whether it was touched more than once.
    pub hot: bool,
}

/// What came of pages that were to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// So many were read; the others were there, or cannot be read.
    Read(u32),
    /// So many were read, and then there was no frame to spare.
    NoRoom(u32),
}

impl Pool {
    /// Tells `visit` of each resident page that anybody but scans touched, in the order of the frames.
    pub fn residents(&self, visit: &mut dyn FnMut(Resident)) {
        let mut found = Vec::with_capacity(LOOKS_AT_ONCE);
        let mut first = 0;
        loop {
            {
                // Under the lock no frame changes hands.
                let keeper = self.lock();
                let frames = self.frames.of_chunks(keeper.slots());
                let Some(next) = frames.get(first..).filter(|rest| !rest.is_empty()) else { return };
                found.extend(next.iter().take(LOOKS_AT_ONCE).filter_map(resident));
            }
            first += LOOKS_AT_ONCE;
            found.drain(..).for_each(&mut *visit);
        }
    }

    /// Frames that the pool has now.
    pub fn frames_held(&self) -> usize {
        self.lock().held() * FRAMES_PER_CHUNK
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
    /// The file's id in its pool, never used again there.
    pub fn id(&self) -> u64 {
        self.file.id
    }

    /// Reads those of `count` pages from `first` on that are not there, with one read for each chunk of them, into frames that nobody
    /// uses. What cannot be read is left out: who asks for it hears why.
    pub fn warm(&self, first: u32, count: u32, hot: bool) -> Warmed {
        let pool = &self.file.pool;
        let heat = if hot { Heat::Hot } else { Heat::Cold };
        let mut read = 0;
        let mut at = first;
        while at - first < count {
            let run = (count - (at - first)).min(FRAMES_PER_CHUNK as u32);
            let Some(mut staging) = pool.budget.try_take(Kind::Staging) else { return Warmed::NoRoom(read) };
            let (frames, full) = self.begin_run(at, run, heat, |keeper| keeper.has_spare(&pool.budget));
            read += self.fill_run(at, frames, &mut staging);
            if full {
                return Warmed::NoRoom(read);
            }
            at += run;
        }
        Warmed::Read(read)
    }
}
