//! What the warm image needs of the objects: the cache that it is made of, the objects' share of memory, and the way back in.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::cache::{BroughtBack, Cache};

use crate::objects::balance::{MAX_SHARE, MIN_SHARE};
use crate::objects::{GLSN_BYTES, Objects, Shelf};

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
        let parts = parts.clamp(MIN_SHARE, MAX_SHARE);
        if parts > kept.balance.share() {
            kept.balance.set_share(parts);
            kept.balance.begin(&kept.cache(), &kept.pool, kept.budget.limit_bytes());
        }
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
