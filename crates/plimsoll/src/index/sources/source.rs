//! The sources of versions: memtables in memory, and runs with the files that they keep.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::pool::Touch;
use plimsoll_memory::sorted::{Inserter, Position, SortedMap};

use crate::index::manifest::files::{FileGuard, Member};
use crate::index::run::table::{Found, Table, TableInfo};
use crate::types::error::Result;
use crate::types::version::{Stored, Version};

/// Commits that no run holds yet.
#[derive(Debug)]
pub(crate) struct Memtable {
    map: SortedMap,
    min_glsn: AtomicU64,
    max_glsn: AtomicU64,
    /// Bytes of the log that a replay of its commits reads.
    log_bytes: AtomicU64,
    /// Bytes of the values in blob files.
    blob_bytes: AtomicU64,
    /// Sampled number of versions that readers found here.
    reads_counted: AtomicU64,
}

/// Sampling interval: one of this many found versions is counted. Counting all of them would make
/// every reader write to the same memory.
const READS_FOR_A_COUNT: usize = 16;

/// Divisor: a memtable is worth keeping in memory if the number of versions that readers found is
/// at least this part of the number that it holds.
const READ_PART: u64 = 2;

impl Memtable {
    /// An empty memtable. It takes memory at the first reservation.
    pub(crate) fn new(budget: &Budget) -> Self {
        Self {
            map: SortedMap::new(budget, Kind::Memtable),
            min_glsn: AtomicU64::new(u64::MAX),
            max_glsn: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
            blob_bytes: AtomicU64::new(0),
            reads_counted: AtomicU64::new(0),
        }
    }

    /// The map of its entries.
    pub(crate) fn map(&self) -> &SortedMap {
        &self.map
    }

    /// Excludes other writers while the versions of the commit at `glsn` are inserted.
    pub(crate) fn inserter(&self, glsn: Glsn) -> Inserter<'_> {
        self.will_hold(glsn);
        self.map.inserter()
    }

    fn will_hold(&self, glsn: Glsn) {
        // Set the bounds before an entry can be found, because a search for changes must not skip
        // this memtable. The commit lock orders this for validation, the visible watermark for
        // reads. Only one thread at a time inserts, so this check needs no synchronization.
        if self.min_glsn.load(Ordering::Relaxed) > glsn.0 {
            self.min_glsn.store(glsn.0, Ordering::Release);
        }
        if self.max_glsn.load(Ordering::Relaxed) < glsn.0 {
            self.max_glsn.store(glsn.0, Ordering::Release);
        }
    }

    /// Whether it has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The oldest commit; [`Glsn::MAX`] if there is none.
    pub(crate) fn min_glsn(&self) -> Glsn {
        // Acquire: pairs with the Release in `will_hold`.
        Glsn(self.min_glsn.load(Ordering::Acquire))
    }

    /// The newest commit.
    pub(crate) fn max_glsn(&self) -> Glsn {
        // Acquire: pairs with the Release in `will_hold`.
        Glsn(self.max_glsn.load(Ordering::Acquire))
    }

    /// Adds to [`Memtable::log_bytes`].
    pub(crate) fn add_log_bytes(&self, bytes: u64) {
        self.log_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the log that a replay of its commits reads.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    /// Adds to [`Memtable::blob_bytes`].
    pub(crate) fn add_blob_bytes(&self, bytes: u64) {
        self.blob_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of its values in blob files, superseded ones included.
    pub(crate) fn blob_bytes(&self) -> u64 {
        self.blob_bytes.load(Ordering::Relaxed)
    }

    /// Whether readers read recent writes often enough that the memtable's versions are worth
    /// keeping in memory.
    pub(crate) fn is_read(&self) -> bool {
        let reads = self.reads_counted.load(Ordering::Relaxed) * READS_FOR_A_COUNT as u64;
        reads >= self.map.len() as u64 / READ_PART && reads > 0
    }

    fn note_read(&self, found: &Version<'_>) {
        // Sample by entry address, which is effectively random but deterministic for a given seed.
        if found.key.as_ptr().addr().div_ceil(8).is_multiple_of(READS_FOR_A_COUNT) {
            self.reads_counted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The last key.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.map.last().map(|last| self.map.at(last).key)
    }

    /// The version at a position.
    pub(crate) fn version(&self, position: Position) -> Version<'_> {
        let entry = self.map.at(position);
        let stored = Stored::decode(entry.value).expect("a memtable holds encoded versions");
        Version { key: entry.key, glsn: Glsn(entry.order), stored }
    }

    /// Calls `each` with the newest version of every key.
    pub(crate) fn for_each_newest(&self, mut each: impl FnMut(Version<'_>)) {
        let mut before: Option<Position> = None;
        let mut at = self.map.first();
        while let Some(position) = at {
            if before.is_none_or(|before| self.map.at(before).key != self.map.at(position).key) {
                each(self.version(position));
            }
            before = Some(position);
            at = self.map.next(position);
        }
    }

    /// Whether the memtable has a key that begins with `prefix`.
    pub(crate) fn has_prefix(&self, prefix: &[u8]) -> bool {
        let first = self.map.seek(prefix, u64::MAX);
        first.is_some_and(|position| self.map.at(position).key.starts_with(prefix))
    }

    /// The first version at or after (`key`, `glsn`), if it has that key.
    pub(crate) fn find(&self, key: &[u8], glsn: Glsn) -> Option<Position> {
        self.map.seek(key, glsn.0).filter(|&position| self.map.at(position).key == key)
    }
}

/// A run: sorted, disjoint tables. Their files are not removed while it exists.
#[derive(Debug)]
pub(crate) struct Run {
    tables: Arc<[Table]>,
    guards: Box<[Arc<FileGuard>]>,
    bytes: u64,
    versions: u64,
    deletions: u64,
    min_glsn: Glsn,
    max_glsn: Glsn,
    min_pointer: Option<Glsn>,
    /// Estimated bytes of older runs that it supersedes, if known.
    superseding_bytes: OnceLock<u64>,
}

impl Run {
    /// A run of at least one table.
    pub(crate) fn new(members: Vec<Member>) -> Self {
        debug_assert!(
            members.windows(2).all(|pair| pair[0].info().last_key < pair[1].info().first_key)
        );
        let infos = || members.iter().map(Member::info);
        Self {
            bytes: infos().map(TableInfo::bytes).sum(),
            versions: infos().map(|info| info.versions).sum(),
            deletions: infos().map(|info| info.deletions).sum(),
            min_glsn: infos().map(|info| info.min_glsn).min().expect("a run is never empty"),
            max_glsn: infos().map(|info| info.max_glsn).max().expect("a run is never empty"),
            min_pointer: infos().filter_map(|info| info.min_pointer).min(),
            superseding_bytes: OnceLock::new(),
            guards: members.iter().map(|member| Arc::clone(&member.guard)).collect(),
            tables: members.into_iter().map(|member| member.table).collect(),
        }
    }

    /// The tables, sorted.
    pub(crate) fn tables(&self) -> &Arc<[Table]> {
        &self.tables
    }

    /// The metadata of the tables.
    pub(crate) fn infos(&self) -> impl Iterator<Item = &TableInfo> {
        self.tables.iter().map(|table| &*table.info)
    }

    /// The guards of the files, in the order of the tables.
    pub(crate) fn guards(&self) -> &[Arc<FileGuard>] {
        &self.guards
    }

    /// A table with its guard.
    pub(crate) fn member(&self, at: usize) -> Member {
        Member { table: self.tables[at].clone(), guard: Arc::clone(&self.guards[at]) }
    }

    /// The first and the last key.
    pub(crate) fn span(&self) -> (&[u8], &[u8]) {
        let (first, last) = (self.tables.first(), self.tables.last());
        let (first, last) = first.zip(last).expect("a run is never empty");
        (&first.info.first_key, &last.info.last_key)
    }

    /// Size of the pages, which may be stored compressed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Size of the files.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.infos().map(TableInfo::file_bytes).sum()
    }

    /// Number of versions.
    pub(crate) fn versions(&self) -> u64 {
        self.versions
    }

    /// Number of deletions.
    pub(crate) fn deletions(&self) -> u64 {
        self.deletions
    }

    /// Records an estimate of the bytes of older runs that it supersedes. A known estimate is not
    /// changed.
    pub(crate) fn supersedes(&self, bytes: u64) {
        let _ = self.superseding_bytes.set(bytes);
    }

    /// Estimated bytes of older runs that it supersedes; 0 if unknown.
    pub(crate) fn superseding_bytes(&self) -> u64 {
        self.superseding_bytes.get().copied().unwrap_or(0)
    }

    /// The oldest commit.
    pub(crate) fn min_glsn(&self) -> Glsn {
        self.min_glsn
    }

    /// The newest commit.
    pub(crate) fn max_glsn(&self) -> Glsn {
        self.max_glsn
    }

    /// The oldest log entry that one of its values points to.
    pub(crate) fn min_pointer(&self) -> Option<Glsn> {
        self.min_pointer
    }

    /// The table that may hold `key`.
    pub(crate) fn table_of(&self, key: &[u8]) -> Option<&Table> {
        let at = self.tables.partition_point(|table| *table.info.last_key < *key);
        self.tables.get(at).filter(|table| *table.info.first_key <= *key)
    }
}

/// A source of versions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// Versions in memory.
    Memtable(&'a Arc<Memtable>),
    /// Versions on disk: flushed, merged, or adopted.
    Run(&'a Arc<Run>),
}

/// The result of looking up a key in a source.
pub(crate) struct Answer {
    /// Whether the source has, or may have, a version younger than the requested GLSN.
    pub(crate) younger: bool,
    /// The newest version that is not younger than the requested GLSN.
    pub(crate) found: Option<Place>,
    /// Whether some page was not in memory.
    pub(crate) missed: bool,
}

/// A version that was found. It pins the memory that holds it.
#[derive(Debug)]
pub(crate) enum Place {
    Memtable(Arc<Memtable>, Position),
    Page(Found),
}

impl Place {
    /// The commit that wrote it.
    pub(crate) fn glsn(&self) -> Glsn {
        match self {
            Place::Memtable(memtable, position) => memtable.version(*position).glsn,
            Place::Page(found) => found.glsn,
        }
    }

    /// Its stored form.
    pub(crate) fn stored(&self) -> Stored<'_> {
        match self {
            Place::Memtable(memtable, position) => memtable.version(*position).stored,
            Place::Page(found) => found.stored(),
        }
    }
}

impl Source<'_> {
    /// The oldest commit; [`Glsn::MAX`] if there is none.
    pub(crate) fn min_glsn(self) -> Glsn {
        match self {
            Source::Memtable(memtable) => memtable.min_glsn(),
            Source::Run(run) => run.min_glsn(),
        }
    }

    /// The newest commit.
    pub(crate) fn max_glsn(self) -> Glsn {
        match self {
            Source::Memtable(memtable) => memtable.max_glsn(),
            Source::Run(run) => run.max_glsn(),
        }
    }

    /// Looks `key` up as of `at`.
    pub(crate) fn lookup(self, key: &[u8], at: Glsn) -> Result<Answer> {
        match self {
            Source::Memtable(memtable) => Ok(lookup_in_memtable(memtable, key, at)),
            Source::Run(run) => lookup_in_run(run, key, at, Touch::Point),
        }
    }

    /// The newest version of `key`.
    pub(crate) fn newest(self, key: &[u8]) -> Result<Option<Glsn>> {
        match self {
            Source::Memtable(memtable) => {
                Ok(memtable.find(key, Glsn::MAX).map(|position| memtable.version(position).glsn))
            }
            Source::Run(run) => match run.table_of(key) {
                Some(table) => Ok(table.lookup(key, Glsn::MAX, Touch::Point)?.newest),
                None => Ok(None),
            },
        }
    }
}

fn lookup_in_memtable(memtable: &Arc<Memtable>, key: &[u8], at: Glsn) -> Answer {
    let younger = memtable.max_glsn() > at
        && memtable.find(key, Glsn::MAX).is_some_and(|newest| memtable.version(newest).glsn > at);
    let found = if memtable.min_glsn() <= at { memtable.find(key, at) } else { None };
    if let Some(position) = found {
        memtable.note_read(&memtable.version(position));
    }
    let found = found.map(|position| Place::Memtable(Arc::clone(memtable), position));
    Answer { younger, found, missed: false }
}

/// Looks `key` up in a run as of `at`.
pub(crate) fn lookup_in_run(run: &Run, key: &[u8], at: Glsn, touch: Touch) -> Result<Answer> {
    let nothing = |younger| Ok(Answer { younger, found: None, missed: false });
    let Some(table) = run.table_of(key) else { return nothing(false) };
    if table.info.min_glsn > at {
        return nothing(true);
    }
    let lookup = table.lookup(key, at, touch)?;
    let younger = lookup.newest.is_some_and(|newest| newest > at);
    Ok(Answer { younger, found: lookup.found.map(Place::Page), missed: lookup.missed })
}
