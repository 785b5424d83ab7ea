//! Removes the entries that a caller selects, while other threads use the cache.

use super::entry::Value;
use super::inner::Inner;
use super::policy::Queue;
use super::queues::Located;

/// Entries visited per acquisition of the lock.
const ENTRIES_PER_LOCK: usize = 256;

/// After this many acquisitions of the lock, the rest is visited under a single one, so that the
/// scan ends even if many entries move meanwhile.
const LOCKS_MAX: usize = 1 << 16;

/// Removes every entry that `is_unwanted` selects by its key and value. An entry that is inserted
/// meanwhile may stay.
///
/// An entry that moves goes to the young end of a queue. So the scan has visited each entry once it
/// is at both young ends at the same time.
pub(super) fn remove_if(inner: &Inner, is_unwanted: &mut dyn FnMut(&[u8], Value<'_>) -> bool) {
    const QUEUES: [Queue; 2] = [Queue::Probation, Queue::Protected];
    let shared = &inner.shared;
    let mut places = [0; 2];
    for locks in 0.. {
        let mut writer = inner.lock();
        let mut left = if locks < LOCKS_MAX { ENTRIES_PER_LOCK } else { usize::MAX };
        for (queue, at) in QUEUES.into_iter().zip(&mut places) {
            let ends = writer.entries.queues.ends(queue);
            let young = ends.young;
            *at = ends.old.max(*at);
            while *at < young && left > 0 {
                let position = *at;
                let placed = writer.entries.queues.entry_at(shared, queue, position);
                *at += placed.header.words();
                left -= 1;
                if placed.header.is_filler() || !is_unwanted(placed.key(), Value::new(placed)) {
                    continue;
                }
                let hash = shared.hash(placed.key());
                if let Some(slot) = shared.slot_of(hash, queue, position) {
                    writer.entries.remove(shared, &Located { slot, hash, position, placed });
                }
            }
        }
        if left > 0 {
            return;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use crate::budget::{Backing, Budget};
    use crate::cache::{Cache, CacheOptions};

    #[test]
    #[cfg_attr(miri, ignore = "needs more entries than Miri gets through")]
    fn remove_if_removes_the_selected_entries_and_no_other() {
        let budget = Budget::new(16 << 20, Backing::Mapped).unwrap();
        let cache = Cache::new(&budget, CacheOptions::of_bytes(1 << 20));
        let cache = cache.unwrap();
        (0..3000u32).for_each(|n| assert!(cache.insert(&n.to_be_bytes(), &[n as u8; 100])));
        (0..3000u32).step_by(2).for_each(|n| drop(cache.get(&n.to_be_bytes())));
        // Some entries move to the other queue.
        for n in 3000..9000u32 {
            cache.insert(&n.to_be_bytes(), &[n as u8; 100]);
        }
        let number = |key: &[u8]| u32::from_be_bytes(key.try_into().unwrap());
        let before: Vec<u32> =
            (0..9000u32).filter(|n| cache.get(&n.to_be_bytes()).is_some()).collect();
        cache.remove_if(|key, value| {
            assert_eq!(value.to_vec(), [number(key) as u8; 100]);
            number(key) % 3 == 0
        });
        let after: Vec<u32> =
            (0..9000u32).filter(|n| cache.get(&n.to_be_bytes()).is_some()).collect();
        let wanted: Vec<u32> = before.iter().copied().filter(|n| n % 3 > 0).collect();
        assert!(before.len() > wanted.len() && !wanted.is_empty());
        assert_eq!(after, wanted);
        cache.check();
    }
}
