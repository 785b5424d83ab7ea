//! Sizes at which an open store acts: it spills a transaction, completes a table, or ends a step of
//! background work. They are shares of the budget, or constants.

/// The minimum for a bulk load, which uses memory in chunks of 64 KiB. With fewer chunks each row
/// would become a run.
const BULK_LOAD_BYTES_MIN: u64 = 256 << 10;

/// Size thresholds. Only simulations change the defaults: with small sizes, a short run exercises
/// many flushes, compactions and spills.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "simulations reach it"))]
pub struct Sizes {
    /// Size at which a table file of a run is complete.
    pub table_bytes: u64,
    /// Bytes of input after which a step of compaction ends.
    pub step_bytes: u64,
    /// Size above which a transaction's writes are spilled; by default a share of the budget.
    pub write_set_bytes: Option<u64>,
    /// Size above which a transaction's read set is coarsened; by default a share of the budget.
    pub read_set_bytes: Option<u64>,
    /// Number of page reads (made to validate rows) after which a step of restoring the warm image
    /// ends.
    pub restore_loads: u64,
    /// Whether opening a store without threads sweeps the leftover files of an earlier process in
    /// the log's folder. If not, the first background step that checks for checkpoints sweeps them,
    /// some time after opening and concurrently with transactions, as the thread would.
    pub sweeps_at_open: bool,
    /// A member that has made this many commits in a row without a read defers applying further
    /// ones.
    pub blind_after: u32,
    /// A range with more keys is deleted by a range record; one with fewer keys is deleted key by
    /// key.
    pub range_keys: usize,
}

#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "simulations reach it"))]
impl Sizes {
    /// The defaults.
    pub const USUAL: Sizes = Sizes {
        table_bytes: 64 << 20,
        step_bytes: 4 << 20,
        write_set_bytes: None,
        read_set_bytes: None,
        restore_loads: 64,
        sweeps_at_open: true,
        blind_after: 8,
        range_keys: 99,
    };

    /// Maximum size of a transaction's write set in memory, under a budget.
    pub(crate) fn write_set_limit_bytes(&self, memory_bytes: u64) -> u64 {
        self.write_set_bytes.unwrap_or_else(|| (memory_bytes / 8).clamp(1 << 20, 64 << 20))
    }

    /// Memory for one buffer of rows of a bulk load, under a budget; a larger buffer does not sort
    /// faster. If a test sets the size of write sets, the minimum is used.
    pub(crate) fn bulk_load_limit_bytes(&self, memory_bytes: u64) -> u64 {
        let usual = || (memory_bytes / 4).clamp(1 << 20, 64 << 20);
        self.write_set_bytes.map_or_else(usual, |bytes| bytes.max(BULK_LOAD_BYTES_MIN))
    }

    /// Maximum size of a transaction's read set in memory, under a budget.
    pub(crate) fn read_set_limit_bytes(&self, memory_bytes: u64) -> u64 {
        self.read_set_bytes.unwrap_or_else(|| (memory_bytes / 64).clamp(128 << 10, 16 << 20))
    }
}
