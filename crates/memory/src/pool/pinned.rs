//! Access to a frame's bytes, in two ways: many readers share a pinned page, or one thread fills a
//! loading frame.
//!
//! Invariant: [`super::frame`] keeps the two apart, so a shared slice never sees a byte change.
#![allow(unsafe_code, reason = "makes slices of frames")]

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::frame::Pin;
use super::hazard::Hazard;
use super::{LoadError, Pool};
use crate::page::PAGE_BYTES;

/// A page that keeps its address until this is dropped, even if the pool is dropped first.
pub struct Page {
    address: NonNull<u8>,
    missed: bool,
    _stay: Guard,
}

/// The hazard slot or pin that keeps the page. Used only for its drop.
enum Guard {
    Published { _hazard: Hazard },
    Counted { _count: Count },
}

/// A pin in the frame's word.
struct Count {
    pool: Arc<Pool>,
    frame: u32,
}

impl Drop for Count {
    fn drop(&mut self) {
        self.pool.frames.get(self.frame).unpin();
    }
}

// SAFETY: the bytes are immutable while the page stays, and both ways to release it are atomic.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Wraps the hazard slot or pin that keeps the page in `frame`.
    #[inline]
    pub(super) fn new(pool: &Arc<Pool>, frame: u32, pin: Pin) -> Self {
        let stay = match pin {
            Pin::Published(hazard) => Guard::Published { _hazard: hazard },
            Pin::Counted => Guard::Counted { _count: Count { pool: Arc::clone(pool), frame } },
        };
        Self { address: pool.frames.address(frame), missed: false, _stay: stay }
    }

    /// The same page, for a caller that loaded it or waited for its load.
    pub(super) fn after_miss(self) -> Self {
        Self { missed: true, ..self }
    }

    /// Whether the page was not in memory: the call that returned it loaded the page, or waited for
    /// its load.
    #[inline]
    pub fn is_miss(&self) -> bool {
        self.missed
    }
}

impl Deref for Page {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `_stay` keeps the frame resident, so it is not written. Its chunk is held as
        // long: by the pool, or by the list of retired pools.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), PAGE_BYTES) }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page at {:p}", self.address)
    }
}

/// A frame that is being filled, with exclusive access. If this is dropped before the frame is
/// filled, all waiters get an error.
pub(super) struct Filling<'a> {
    pool: &'a Arc<Pool>,
    frame: u32,
    ended: bool,
}

impl<'a> Filling<'a> {
    /// Wraps a frame that has just begun to load.
    pub(super) fn new(pool: &'a Arc<Pool>, frame: u32) -> Self {
        Self { pool, frame, ended: false }
    }

    /// The frame's bytes, with their last contents.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a loading frame belongs to the thread that loads it, and is never moved or
        // released.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.pool.frames.address(self.frame).as_ptr(),
                PAGE_BYTES,
            )
        }
    }

    /// Publishes the page. `loaded` is false if the page was not read from its file, but put.
    pub(super) fn finish(mut self, loaded: bool) -> Page {
        self.ended = true;
        self.pool.finish(self.frame, loaded);
        Page::new(self.pool, self.frame, Pin::Counted)
    }

    /// Ends the load with an error.
    pub(super) fn fail(mut self, error: &LoadError) {
        self.ended = true;
        self.pool.fail(self.frame, error);
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let message = "the thread that loaded the page panicked".to_owned();
            self.pool.fail(
                self.frame,
                &LoadError::Io { kind: std::io::ErrorKind::Other, message, source: None },
            );
        }
    }
}
