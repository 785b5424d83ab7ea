//! What the warm image needs of the objects: the cache that it is made of, the objects' share of memory, and the way back in.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::cache::{BroughtBack, Cache};

use crate::rowcache::{GLSN_BYTES, Objects, Shelf};

/// Takes an entry as the cache has it apart: the version's GLSN, and the value.
pub(crate) fn parts_of(entry: &[u8]) -> Option<(Glsn, &[u8])> {
    let (glsn, value) = entry.split_first_chunk::<GLSN_BYTES>()?;
    Some((Glsn(u64::from_le_bytes(*glsn)), value))
}

impl Objects {
    /// Where objects stand now; `None` where they are switched off.
    pub(crate) fn warm_cache(&self) -> Option<Arc<Cache>> {
        self.kept.as_ref().map(|kept| kept.cache())
    }

    /// How many parts of the whole objects have.
    pub(crate) fn share(&self) -> u64 {
        self.kept.as_ref().map_or(0, |kept| kept.balance.share())
    }

    /// Objects had so many parts of the whole when they were last as warm as they are going to be: they get as many, if they have fewer now.
    pub(crate) fn expect_share(&self, parts: u64) {
        let Some(kept) = &self.kept else { return };
        // Held, so that a cache that is exchanged meanwhile gets no memory after it was emptied.
        let shelf = kept.shelf();
        if let Some(cache) = &shelf.cache {
            kept.balance.begin_with(parts, cache, &kept.pool);
        }
    }

    /// What is done next with this key will wait less for memory.
    pub(crate) fn bring_near(&self, shelf: &Shelf, key: &[u8]) {
        shelf.cache.iter().for_each(|cache| cache.prefetch(key));
    }

    /// Keeps again what is the newest version that the runs of a view have of a key, as [`Objects::fill`] does, if nobody has to leave for
    /// it. `registered` is what the view carries.
    pub(crate) fn bring_back(
        &self,
        registered: (u64, &Shelf),
        key: &[u8],
        (glsn, value): (Glsn, &[u8]),
        touches: u8,
    ) -> BroughtBack {
        let (runs, Shelf { cache: Some(cache) }) = registered else { return BroughtBack::NoRoom };
        let Some(kept) = &self.kept else { return BroughtBack::NoRoom };
        // Acquire: as in `fill`.
        cache.bring_back(key, &[&glsn.0.to_le_bytes(), value], touches, || kept.runs.load(Ordering::Acquire) == runs)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::{Backing, Budget};
    use plimsoll_memory::pool::Pool;

    use super::*;

    #[test]
    fn what_was_expected_is_a_part_of_the_memory_that_objects_were_told_of_last() {
        let budget = Budget::new(64 << 20, Backing::Mapped).unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        let objects = Objects::new(&budget, &pool).unwrap();
        // What the cache's own tables take is part of it.
        let limit_mib = || (objects.warm_cache().unwrap().turnover().limit_bytes + (1 << 19)) >> 20;
        // A budget that becomes smaller: objects are told first, the budget is changed afterwards.
        assert!(objects.resize(32 << 20).is_none());
        objects.expect_share(32);
        assert_eq!((objects.share(), limit_mib()), (32, 16));
        objects.expect_share(8);
        assert_eq!((objects.share(), limit_mib()), (32, 16), "nobody loses anything by it");
        assert!(objects.resize(64 << 20).is_none());
        assert_eq!(limit_mib(), 32);
        objects.expect_share(1000);
        assert_eq!((objects.share(), limit_mib()), (48, 48));
        Objects::none().expect_share(8);
    }
}
