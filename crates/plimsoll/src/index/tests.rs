//! Tests the index against a model: a map of all versions that were ever written.

mod crashes;
mod files;
mod jobs;
mod kept;
mod model;
mod range_deletions;
mod refusals;
mod threads;
mod warmth;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_disk::clock::{ManualClock, SystemClock};
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobId;
use plimsoll_log::draft::{Draft, DraftEntry};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::page::{PAGE_PAYLOAD_BYTES, page_payload};
use plimsoll_memory::pool::{Pool, Touch};
use plimsoll_memory::sorted::SortedMap;

use crate::index::OpenIndex;
use crate::index::env::moment_set::MomentSet;
use crate::index::env::{Context, Horizon};
use crate::index::iter::handle::Detachable;
use crate::index::manifest::Manifest;
use crate::index::memtables::reservation::Link;
use crate::index::run::builder::TableBuilder;
use crate::index::run::file::BlobSink;
use crate::index::run::table::{Table, TableId, TableInfo};
use crate::index::sources::view::{Direction, View};
use crate::rowcache::RowCache;
use crate::types::as_of::AsOf;
use crate::types::error::{Lift, Result};
use crate::types::index_key::{IndexKey, Prefix};
use crate::types::keyspaces::Keyspaces;
use crate::types::lock::lock;
use crate::types::version::{INLINE_BYTES, Stored, Version, value_sum};

use world::World;

/// A keyspace that keeps all versions.
const FOREVER: u32 = 1;
/// A keyspace that keeps the versions of open snapshots.
const LATEST: u32 = 2;
/// A keyspace that also keeps the versions of the last [`WINDOW`] GLSNs.
const RECENT: u32 = 300;
const WINDOW: u64 = 40;

/// Every version of every key: its value, or `None` for a deletion.
type Versions = BTreeMap<Vec<u8>, BTreeMap<Glsn, Option<Vec<u8>>>>;

#[derive(Debug, Default)]
struct TestHorizon {
    /// The oldest open snapshot.
    snapshot: AtomicU64,
    /// The newest readable GLSN, which is durable.
    visible: AtomicU64,
    /// Single moments that stay readable.
    pins: Mutex<BTreeSet<Glsn>>,
    relocate_below: AtomicU64,
    /// Relocation is wanted but was not requested.
    unrequested: AtomicBool,
}

impl Horizon for TestHorizon {
    fn retained(&self, keyspace: u32) -> MomentSet {
        let snapshot = self.snapshot.load(Ordering::Relaxed);
        let visible = self.visible.load(Ordering::Relaxed);
        let floor = Glsn(match keyspace {
            LATEST => snapshot,
            RECENT => snapshot.min(visible.saturating_sub(WINDOW)),
            _ => 0,
        });
        MomentSet { floor, pins: lock(&self.pins).iter().copied().collect() }
    }

    fn relocate_below(&self) -> Glsn {
        Glsn(self.relocate_below.load(Ordering::Relaxed))
    }

    fn must_relocate_below(&self) -> Glsn {
        if self.unrequested.load(Ordering::Relaxed) { Glsn::NONE } else { self.relocate_below() }
    }

    fn stop_relocating(&self, _: Glsn, _: &crate::types::error::Error) {
        self.relocate_below.store(0, Ordering::Relaxed);
    }
}

/// Key, value, and the value's offset in the payload if it is not inline.
type Write = (Vec<u8>, Option<Vec<u8>>, u64);

#[derive(Clone, Debug)]
enum Writes {
    Versions(Vec<Write>),
    Adopted(Vec<Vec<TableInfo>>),
}

#[derive(Clone, Debug)]
struct Commit {
    glsn: Glsn,
    writes: Writes,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    memtable_bytes: u64,
    table_bytes: u64,
    keys: u64,
}

/// The index key of a user's key.
fn index_key(keyspace: u32, key: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(Prefix::of(keyspace).as_bytes());
    out.extend_from_slice(key);
}

/// The seeds of a random test: `usual` of them, the one in `PLIMSOLL_SEED`, or the number in
/// `PLIMSOLL_SEEDS`.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number =
        |name| std::env::var(name).ok().and_then(|value: String| value.parse::<u64>().ok());
    match number("PLIMSOLL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PLIMSOLL_SEEDS").unwrap_or(usual),
    }
}

/// A log with its own memory, so that the budget only refuses the index. Its segments are small, so
/// that some are trimmed; in worlds with large memtables they have room for the largest record.
fn open_log(disk: Arc<dyn Disk>, pool: &Arc<Pool>, seed: u64, sizes: Sizes) -> Arc<FileLog> {
    let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
    let clock = Arc::new(ManualClock::new(1_000_000));
    let mut options =
        FileLogOptions::new(disk, clock, PathBuf::from("/log"), Arc::clone(pool), budget);
    options.segment_bytes = sizes.memtable_bytes.clamp(128 << 10, 5 << 18) as u32;
    options.background = false;
    options.id = Some(0xfeed_0000 + u128::from(seed));
    Arc::new(FileLog::open(options).unwrap().0)
}

fn dir() -> PathBuf {
    PathBuf::from("/index")
}

fn stored(value: &Option<Vec<u8>>, offset: u64) -> Stored<'_> {
    match value {
        None => Stored::Deleted,
        Some(value) if value.len() <= INLINE_BYTES => Stored::Inline(value),
        Some(value) => {
            let (len, sum) = (value.len() as u64, value_sum(value));
            Stored::InLog { offset, len, sum, packed: None }
        }
    }
}

fn versions(writes: &[Write]) -> impl Iterator<Item = Result<(&[u8], Stored<'_>)>> + Clone {
    writes.iter().map(|(key, value, offset)| Ok((&key[..], stored(value, *offset))))
}

fn room(writes: &[Write]) -> usize {
    let bytes = |value: &Option<Vec<u8>>| {
        value.as_ref().map_or(1, |value| value.len().min(INLINE_BYTES) + 1).max(39)
    };
    writes.iter().map(|(key, value, _)| SortedMap::entry_bytes(key.len(), bytes(value))).sum()
}

fn borrow(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
