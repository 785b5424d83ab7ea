//! RocksDB as a store.
//!
//! Set as its wiki advises in "Setup Options and Basic Tuning": a third of memory for the block
//! cache, index and filter blocks inside it, blocks of 16 KiB, ten bits of filter for a key, LZ4;
//! the rest is left to the page cache. Index and filters are partitioned ("Partitioned Index
//! Filters"): the whole filter of a table is larger than a shard of so small a cache, and would be
//! read again for every look-up. Memtables: an eighth of memory each, at most the default of 64
//! MiB, two of them ("Memory usage in RocksDB"). Large values go to blob files ("BlobDB"). A
//! durable commit is `WriteOptions::sync`; a relaxed one is written to the log and synced by
//! `flush_wal(true)`.

use std::path::Path;

use anyhow::Result;
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DB, DBCompressionType, Options, Snapshot,
    WaitForCompactOptions, WriteBatch, WriteOptions,
};

use super::{Commits, Held, LARGE_VALUE_BYTES, Peer, Put, Setup};

/// A database with its default column family.
pub(crate) struct RocksdbPeer {
    db: DB,
    commits: Commits,
}

impl RocksdbPeer {
    /// Opens or makes the store.
    pub(crate) fn open(folder: &Path, setup: &Setup) -> Result<Self> {
        Ok(Self { db: DB::open(&options(setup)?, folder)?, commits: setup.commits })
    }
}

fn options(setup: &Setup) -> Result<Options> {
    let memory = usize::try_from(setup.memory_bytes)?;
    let cores = i32::try_from(std::thread::available_parallelism()?.get())?;
    let mut options = Options::default();
    options.create_if_missing(true);
    options.increase_parallelism(cores);
    options.set_max_background_jobs(cores.max(2));
    options.set_bytes_per_sync(1 << 20);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size((memory / 8).min(64 << 20));
    options.set_max_write_buffer_number(2);
    if setup.value_bytes >= LARGE_VALUE_BYTES {
        options.set_enable_blob_files(true);
        options.set_min_blob_size(LARGE_VALUE_BYTES as u64);
        options.set_blob_compression_type(DBCompressionType::Lz4);
        options.set_enable_blob_gc(true);
    }
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&Cache::new_lru_cache(memory / 3));
    blocks.set_block_size(16 << 10);
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    blocks.set_bloom_filter(10.0, false);
    blocks.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    blocks.set_partition_filters(true);
    blocks.set_metadata_block_size(4 << 10);
    blocks.set_pin_top_level_index_and_filter(true);
    blocks.set_format_version(6);
    options.set_block_based_table_factory(&blocks);
    Ok(options)
}

impl Peer for RocksdbPeer {
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()> {
        let mut batch = WriteBatch::default();
        fill(&mut batch)?;
        let mut options = WriteOptions::default();
        options.set_sync(self.commits == Commits::Durable);
        Ok(self.db.write_opt(batch, &options)?)
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.db.get_pinned(key)?.map(|value| found(&value)).is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut pairs = self.db.raw_iterator();
        pairs.seek(from);
        while let Some((key, value)) = pairs.item() {
            if !each(key, value) {
                return Ok(());
            }
            pairs.next();
        }
        Ok(pairs.status()?)
    }

    fn hold(&self) -> Result<Option<Box<dyn Held + '_>>> {
        Ok(Some(Box::new(HeldSnapshot(self.db.snapshot()))))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.flush_wal(true)?)
    }

    fn settle(&self) -> Result<()> {
        self.db.flush()?;
        Ok(self.db.wait_for_compact(&WaitForCompactOptions::default())?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.db.flush_wal(true)?;
        Ok(())
    }
}

struct HeldSnapshot<'db>(Snapshot<'db>);

impl Held for HeldSnapshot<'_> {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.0.get_pinned(key)?.map(|value| found(&value)).is_some())
    }
}

impl Put for WriteBatch {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Self::put(self, key, value);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Self::delete(self, key);
        Ok(())
    }
}
