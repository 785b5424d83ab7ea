//! Hazard pointers (Michael, IEEE TPDS 2004): each thread publishes the frames of the pages that it
//! holds in its own line, with one store. The evictor reads all lines and skips published frames.
//!
//! A slot holds the address of a frame's descriptor, or 0. The lines belong to the process, not to
//! a pool. A page can therefore be released without access to its pool, and need not keep the pool
//! alive by a reference count that all readers would share. A pool that is dropped while its pages
//! are held leaves its memory here until they are released ([`retire`]).
//!
//! ```text
//! reader                               evictor, under the pool's lock
//! reads the frame's word               moves the word on to free, version + 1
//! publishes the frame                  reads all slots
//! reads the word again:                published: moves the word back, another version
//!   another version: clears its slot   not published: the frame is free
//! ```
//!
//! Invariants:
//! 1. Only a line's thread publishes in it; any thread may clear a slot, once, by releasing the
//!    page.
//! 2. All four steps are sequentially consistent: a reader's publication and second read, and an
//!    evictor's change of the word and read of the slots. So either the evictor sees the slot, or
//!    the reader sees the new version.
//! 3. A line whose thread has ended may still have slots in use. The next owner of the line skips
//!    these slots and does not clear them.

use std::any::Any;
use std::ops::Range;
#[cfg(not(loom))]
use std::sync::PoisonError;

use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// The number of pages that a thread can publish. Further pages are counted in their frames.
const SLOTS: usize = if cfg!(all(test, shuttle)) { 2 } else { 16 };

/// The number of threads that can publish. Further threads count their pages in the frames.
pub(super) const LINES: usize = if cfg!(all(test, shuttle)) { 6 } else { 128 };

/// Times that a dropped pool checks again for pages that are being released at that moment.
#[cfg(not(loom))]
const CHECKS_AT_DROP: usize = 8;

/// One thread's slots: two cache lines, as processors fetch them in pairs.
#[repr(align(128))]
struct Line {
    slots: [AtomicUsize; SLOTS],
}

/// Assignment of lines to threads.
struct Lines {
    lines: [Line; LINES],
    #[cfg_attr(loom, allow(dead_code, reason = "no thread of a model has a line"))]
    taken: [AtomicBool; LINES],
    /// Lines from this one on were never taken.
    high: AtomicUsize,
}

/// A published frame: it keeps its page until this is dropped.
#[derive(Debug)]
pub(super) struct Hazard {
    slot: &'static AtomicUsize,
}

impl Drop for Hazard {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: the slot has no other writer while it is in use.
        let frame = self.slot.load(Ordering::Relaxed);
        // Release: a thread that finds the slot empty, and fills the frame, comes after this
        // reader.
        self.slot.store(0, Ordering::Release);
        release_retired(frame);
    }
}

/// Publishes a frame in a slot and keeps it there if `is_unchanged` then returns true; otherwise
/// clears the slot.
#[inline]
pub(super) fn publish(
    slot: &AtomicUsize,
    frame: usize,
    is_unchanged: impl FnOnce() -> bool,
) -> bool {
    // SeqCst: invariant 2.
    slot.store(frame, Ordering::SeqCst);
    order_for_loom();
    let published = is_unchanged();
    if !published {
        slot.store(0, Ordering::Release);
    }
    published
}

/// Loom treats sequentially consistent accesses as acquire and release only, except for a fence.
#[inline]
pub(super) fn order_for_loom() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Result of [`hold`].
pub(super) enum HoldOutcome {
    Held(Hazard),
    /// The frame changed to another page meanwhile.
    Gone,
    /// This thread has no line, or its line is full.
    NoSlot,
}

/// Publishes a frame for this thread, if `is_unchanged` then returns true.
#[inline]
pub(super) fn hold(frame: usize, is_unchanged: impl FnOnce() -> bool) -> HoldOutcome {
    let Some(line) = this_line() else { return HoldOutcome::NoSlot };
    // Acquire: the thread that emptied the slot has read its page before another is published
    // there.
    let is_empty = |slot: &&AtomicUsize| slot.load(Ordering::Acquire) == 0;
    let Some(slot) = lines().lines[line].slots.iter().find(is_empty) else {
        return HoldOutcome::NoSlot;
    };
    match publish(slot, frame, is_unchanged) {
        true => HoldOutcome::Held(Hazard { slot }),
        false => HoldOutcome::Gone,
    }
}

/// Whether a slot publishes this frame.
pub(super) fn is_held(frame: usize) -> bool {
    used_slots().any(|held| held == frame)
}

/// Upper bound on the number of published frames.
pub(super) const HELD_MAX: usize = LINES * SLOTS;

/// Collects into `held`, in order, the published frames in the range `frames`.
pub(super) fn note_held(frames: &Range<usize>, held: &mut Vec<usize>) {
    held.clear();
    held.extend(used_slots().filter(|held| frames.contains(held)));
    held.sort_unstable();
    held.dedup();
}

/// Whether a slot publishes any of these frames.
pub(super) fn is_any_held(frames: &Range<usize>) -> bool {
    used_slots().any(|held| frames.contains(&held))
}

fn used_slots() -> impl Iterator<Item = usize> {
    let lines = lines();
    // SeqCst: invariant 2; a thread raises this before it publishes in a new line.
    let used = lines.high.load(Ordering::SeqCst);
    lines.lines[..used].iter().flat_map(|line| &line.slots).map(|slot| slot.load(Ordering::SeqCst))
}

#[cfg_attr(loom, allow(dead_code, reason = "no thread of a model has a line"))]
impl Lines {
    /// Takes a line without an owner.
    fn take(&self) -> Option<usize> {
        // Acquire: the last owner's stores come before ours. A plain load precedes each attempt,
        // because new threads try the same lines and a failed exchange would fetch a taken line for
        // writing.
        let is_ours = |taken: &AtomicBool| {
            !taken.load(Ordering::Relaxed)
                && taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let line = self.taken.iter().position(is_ours)?;
        self.high.fetch_max(line + 1, Ordering::SeqCst);
        Some(line)
    }

    fn leave(&self, line: usize) {
        self.taken[line].store(false, Ordering::Release);
    }
}

#[cfg(not(any(loom, all(test, shuttle))))]
mod threads {
    use std::cell::Cell;

    use super::{LINES, Line, Lines, SLOTS};
    use crate::sync::{AtomicBool, AtomicUsize};

    static ALL: Lines = Lines {
        lines: [const { Line { slots: [const { AtomicUsize::new(0) }; SLOTS] } }; LINES],
        taken: [const { AtomicBool::new(false) }; LINES],
        high: AtomicUsize::new(0),
    };

    std::thread_local! {
        /// Has no destructor, so that an access needs no check that the value is still alive.
        static MINE: Cell<Mine> = const { Cell::new(Mine::Without(0)) };
        static RELEASE_ON_EXIT: ReleaseOnExit = const { ReleaseOnExit };
    }

    /// A thread that found no free line tries again after this many pages.
    const PAGES_WITHOUT: u32 = 4096;

    #[derive(Clone, Copy)]
    enum Mine {
        Line(usize),
        /// No line; the thread does not try again for this many pages.
        Without(u32),
    }

    /// Gives the line back when the thread ends.
    struct ReleaseOnExit;

    impl Drop for ReleaseOnExit {
        fn drop(&mut self) {
            if let Mine::Line(line) = MINE.replace(Mine::Without(0)) {
                ALL.leave(line);
            }
        }
    }

    #[inline]
    pub(super) fn lines() -> &'static Lines {
        &ALL
    }

    /// The line of this thread; `None` if none is left, or the thread is ending.
    #[inline]
    pub(in super::super) fn this_line() -> Option<usize> {
        match MINE.get() {
            Mine::Line(line) => Some(line),
            Mine::Without(pages) => find_line(pages),
        }
    }

    #[cold]
    fn find_line(pages: u32) -> Option<usize> {
        if pages > 0 {
            MINE.set(Mine::Without(pages - 1));
            return None;
        }
        RELEASE_ON_EXIT.try_with(|_| ()).ok()?;
        let line = ALL.take();
        MINE.set(line.map_or(Mine::Without(PAGES_WITHOUT), Mine::Line));
        line
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Other tests have lines too, so only some of these threads get one.
        #[test]
        fn thread_without_a_line_does_not_retry_on_every_read() {
            let barrier = std::sync::Barrier::new(LINES + 2);
            let lines: Vec<_> = std::thread::scope(|scope| {
                let look = || {
                    let line = this_line();
                    barrier.wait();
                    assert_eq!(this_line(), line);
                    line
                };
                let threads: Vec<_> = (0..LINES + 2).map(|_| scope.spawn(look)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let mut owned: Vec<_> = lines.iter().flatten().collect();
            assert!(owned.len() < lines.len());
            owned.sort_unstable();
            owned.dedup();
            assert_eq!(owned.len(), lines.iter().flatten().count(), "a line has one owner");
            assert!(
                std::thread::scope(|scope| scope.spawn(this_line).join().unwrap()).is_some(),
                "lines of ended threads are reused"
            );
        }
    }
}

#[cfg(all(test, shuttle))]
mod threads {
    use super::{Line, Lines};
    use crate::sync::{AtomicBool, AtomicUsize};

    shuttle::lazy_static! {
        static ref ALL: Lines = Lines {
            lines: std::array::from_fn(|_| Line {
                slots: std::array::from_fn(|_| AtomicUsize::new(0)),
            }),
            taken: std::array::from_fn(|_| AtomicBool::new(false)),
            high: AtomicUsize::new(0),
        };
    }

    shuttle::thread_local! {
        static MINE: Mine = Mine(ALL.take());
    }

    struct Mine(Option<usize>);

    impl Drop for Mine {
        fn drop(&mut self) {
            if let Some(line) = self.0 {
                ALL.leave(line);
            }
        }
    }

    pub(super) fn lines() -> &'static Lines {
        &ALL
    }

    pub(in super::super) fn this_line() -> Option<usize> {
        MINE.try_with(|mine| mine.0).ok().flatten()
    }
}

/// Loom models test the protocol itself ([`super::frame`]), with their own slots.
#[cfg(loom)]
mod threads {
    use super::Lines;

    pub(super) fn lines() -> &'static Lines {
        unreachable!("no thread has a line")
    }

    pub(in super::super) fn this_line() -> Option<usize> {
        None
    }
}

use threads::lines;
pub(super) use threads::this_line;

/// Memory of dropped pools whose pages are still held.
#[cfg(not(loom))]
mod retired {
    use std::any::Any;
    use std::ops::Range;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    pub(super) struct Retired {
        pub(super) frames: Range<usize>,
        /// Never read; only kept alive.
        pub(super) _memory: Box<dyn Any + Send>,
    }

    pub(super) static COUNT: AtomicUsize = AtomicUsize::new(0);
    /// All frames ever retired lie between these bounds; pages of other pools skip the check.
    pub(super) static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
    pub(super) static LAST: AtomicUsize = AtomicUsize::new(0);
    pub(super) static ALL: Mutex<Vec<Retired>> = Mutex::new(Vec::new());
}

/// Drops a pool's memory once no frame with a descriptor in `frames` is published any more: now, or
/// when the last page is released.
///
/// It can happen that a thread releases a page during the check and does not see the retired pool
/// yet, while the check still sees the page's slot in use. Then neither drops the memory. The check
/// is therefore repeated a few times.
#[cfg(not(loom))]
pub(super) fn retire(frames: Range<usize>, memory: Box<dyn Any + Send>) {
    if !is_any_held(&frames) {
        return;
    }
    retired::FIRST.fetch_min(frames.start, Ordering::SeqCst);
    retired::LAST.fetch_max(frames.end, Ordering::SeqCst);
    retired::COUNT.fetch_add(1, Ordering::SeqCst);
    let retired = retired::Retired { frames, _memory: memory };
    retired::ALL.lock().unwrap_or_else(PoisonError::into_inner).push(retired);
    for _ in 0..CHECKS_AT_DROP {
        release_unheld();
        std::thread::yield_now();
    }
}

#[cfg(loom)]
pub(super) fn retire(_: Range<usize>, memory: Box<dyn Any + Send>) {
    drop(memory);
}

/// Called after a page in this frame was released.
#[inline]
fn release_retired(frame: usize) {
    #[cfg(not(loom))]
    if retired::COUNT.load(Ordering::Relaxed) > 0
        && (retired::FIRST.load(Ordering::Relaxed)..retired::LAST.load(Ordering::Relaxed))
            .contains(&frame)
    {
        release_unheld();
    }
    #[cfg(loom)]
    let _ = frame;
}

#[cfg(not(loom))]
#[cold]
fn release_unheld() {
    let unheld: Vec<_> = {
        let mut all = retired::ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let unheld =
            all.extract_if(.., |retired| !is_any_held(&retired.frames)).collect::<Vec<_>>();
        retired::COUNT.fetch_sub(unheld.len(), Ordering::SeqCst);
        unheld
    };
    // Drop the memory without the lock, because this returns chunks to a budget.
    drop(unheld);
}
