//! One link of a tower (an entry's links, one for each of its levels in the skip list), and the
//! publication of an entry.
//!
//! Invariant: a reader that follows a link to an entry sees all of its bytes and its whole tower.

use crate::sync::{AtomicU32, Ordering};

/// Position of the next entry of a level; 0 is none. Overlays four bytes of a chunk, or part of the
/// head.
#[repr(transparent)]
pub(super) struct Link(AtomicU32);

impl Link {
    pub(super) fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(super) fn follow(&self) -> u32 {
        // Acquire: pairs with the Release in `publish`.
        self.0.load(Ordering::Acquire)
    }

    /// Sets a link of an entry that is not reachable yet.
    pub(super) fn prepare(&self, to: u32) {
        self.0.store(to, Ordering::Relaxed);
    }

    /// Makes the complete entry at `to` reachable.
    pub(super) fn publish(&self, to: u32) {
        // Release: pairs with the Acquire in `follow`.
        self.0.store(to, Ordering::Release);
    }
}

/// Links an entry with `height` levels, written and not yet reachable, between its neighbours.
/// `own` returns its links, `before` the links that will lead to it, and `after` the entries that
/// follow it.
pub(super) fn splice<'a>(
    entry: u32,
    height: usize,
    own: impl Fn(usize) -> &'a Link,
    before: impl Fn(usize) -> &'a Link,
    after: &[u32],
) {
    for (level, to) in after.iter().enumerate().take(height) {
        own(level).prepare(*to);
    }
    // Link from the bottom, so that an entry found on a high level is always found on the lower
    // ones.
    for level in 0..height {
        before(level).publish(entry);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Entry {
        tower: [Link; 2],
        bytes: UnsafeCell<u64>,
    }

    impl Entry {
        fn empty() -> Self {
            Self { tower: [Link::none(), Link::none()], bytes: UnsafeCell::new(0) }
        }
    }

    /// Two entries inserted one after the other, 1 in front of 2, while a reader walks both levels.
    #[test]
    fn loom_linked_entry_is_fully_visible() {
        loom::model(|| {
            let entries: Arc<[Entry; 3]> = Arc::new(std::array::from_fn(|_| Entry::empty()));
            let shared = Arc::clone(&entries);
            let writer = thread::spawn(move || {
                for (at, after) in [(2, [0, 0]), (1, [2, 2])] {
                    // SAFETY (of the model): loom reports a race if a reader gets here early.
                    #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
                    shared[at].bytes.with_mut(|bytes| unsafe { *bytes = at as u64 });
                    splice(
                        at as u32,
                        2,
                        |level| &shared[at].tower[level],
                        |level| &shared[0].tower[level],
                        &after,
                    );
                }
            });
            let mut above = Vec::new();
            for level in [1, 0] {
                let mut seen = Vec::new();
                let mut at = entries[0].tower[level].follow();
                while at != 0 {
                    let entry = &entries[at as usize];
                    #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
                    // SAFETY (of the model): loom reports a race if the writer is still writing.
                    let bytes = entry.bytes.with(|bytes| unsafe { *bytes });
                    assert_eq!(bytes, u64::from(at));
                    seen.push(at);
                    at = entry.tower[level].follow();
                }
                assert!([&[][..], &[2], &[1, 2]].contains(&&seen[..]), "{seen:?}");
                assert!(above.iter().all(|entry| seen.contains(entry)), "{above:?} above {seen:?}");
                above = seen;
            }
            writer.join().unwrap();
        });
    }
}
