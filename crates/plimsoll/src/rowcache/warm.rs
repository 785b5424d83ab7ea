//! The warm image's access to the row cache: the cache to save, its share of memory, and the
//! restore.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::cache::{Cache, Restored, Stopped};
use smallvec::SmallVec;

use crate::rowcache::{EXPIRES, HeadBytes, RowCache, RowHandle, WORD_BYTES, glsn_of};
use crate::types::expiry::Expiry;

/// The best number of rows to restore at a time, so that their misses in the processor's caches
/// overlap.
pub(crate) const ROWS_AT_ONCE: usize = 16;

/// A row of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    /// Its index key.
    pub(crate) key: &'a [u8],
    /// The GLSN of its version.
    pub(crate) glsn: Glsn,
    /// The expiry of its value.
    pub(crate) expiry: Option<Expiry>,
    pub(crate) value: &'a [u8],
    pub(crate) touches: u8,
}

/// Splits a cached entry into the version's GLSN, its expiry, and the value.
pub(crate) fn parts_of(entry: &[u8]) -> Option<(Glsn, Option<Expiry>, &[u8])> {
    let (first, value) = entry.split_first_chunk::<WORD_BYTES>()?;
    let first = u64::from_le_bytes(*first);
    if first & EXPIRES == 0 {
        return Some((glsn_of(first), None, value));
    }
    let (micros, value) = value.split_first_chunk::<WORD_BYTES>()?;
    let expiry = Expiry::from_micros(u64::from_le_bytes(*micros))?;
    Some((glsn_of(first), Some(expiry), value))
}

impl RowCache {
    /// The current cache; `None` if the row cache is disabled.
    pub(crate) fn warm_cache(&self) -> Option<Arc<Cache>> {
        self.kept.as_ref().map(|kept| kept.cache())
    }

    /// The rows' share of the memory, in parts of [`share::WHOLE`].
    pub(crate) fn share(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.balance.share())
    }

    /// The bytes of the rows' share, without lent memory, because an image of all rows could be as
    /// large as the store.
    pub(crate) fn share_bytes(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.balance.share_bytes())
    }

    /// Raises the rows' share to `parts` of [`share::WHOLE`], the share that they had when the
    /// image was saved.
    pub(crate) fn expect_share(&self, parts: u64) {
        let Some(kept) = &self.kept else { return };
        // Hold the handle, so that a cache that is replaced meanwhile gets no memory after it was
        // emptied.
        let handle = kept.handle();
        if let Some(cache) = &handle.cache {
            kept.balance.begin_with(parts, cache, &kept.pool);
        }
    }

    /// Enlarges the index of a view's cache for this many rows of this mean size; returns whether
    /// to call it again, for more.
    pub(crate) fn expect_rows(&self, handle: &RowHandle, rows: u64, mean_bytes: u64) -> bool {
        handle.cache.as_ref().is_some_and(|cache| cache.expect_entries(rows, mean_bytes))
    }

    /// Restores the newest versions of some keys in the runs of a view, like [`RowCache::fill`], as
    /// far as that needs no eviction. `registered` is the number and the handle that the view
    /// carries.
    pub(crate) fn restore_entries(
        &self,
        registered: (u64, &RowHandle),
        rows: &[Row<'_>],
    ) -> Restored {
        let no_room = Restored { entered: 0, stopped: Some(Stopped::NoRoom) };
        let (runs, RowHandle { cache: Some(cache), .. }) = registered else { return no_room };
        let Some(kept) = &self.kept else { return no_room };
        let heads: SmallVec<[_; ROWS_AT_ONCE]> =
            rows.iter().map(|row| HeadBytes::new([row.glsn], row.expiry)).collect();
        let restorable = |(row, head)| {
            let (row, head): (&Row<'_>, &HeadBytes) = (row, head);
            cache.restorable(row.key, [head.get(), row.value], row.touches)
        };
        let entries: SmallVec<[_; ROWS_AT_ONCE]> =
            rows.iter().zip(&heads).map(restorable).collect();
        // Acquire: as in `fill`.
        cache.restore_entries(&entries, || kept.runs.load(Ordering::Acquire) == runs)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::{Backing, Budget};
    use plimsoll_memory::pool::Pool;

    use super::*;

    #[test]
    fn an_expected_share_is_a_part_of_the_memory_set_last() {
        let budget = Budget::new(64 << 20, Backing::Mapped).unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        let row_cache = RowCache::new(&budget, &pool).unwrap();
        // The cache's own tables are part of it.
        let limit_mib =
            || (row_cache.warm_cache().unwrap().turnover().limit_bytes + (1 << 19)) >> 20;
        // The row cache is resized before the budget shrinks.
        assert!(row_cache.resize(32 << 20).is_none());
        row_cache.expect_share(32);
        assert_eq!((row_cache.share(), limit_mib()), (32, 16));
        row_cache.expect_share(8);
        assert_eq!((row_cache.share(), limit_mib()), (32, 16), "neither side loses memory");
        assert!(row_cache.resize(64 << 20).is_none());
        assert_eq!(limit_mib(), 32);
        row_cache.expect_share(1000);
        assert_eq!((row_cache.share(), limit_mib()), (48, 48));
        RowCache::none().expect_share(8);
    }
}
