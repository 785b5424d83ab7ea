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

use crate::rowcache::RowCache;
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
use crate::types::as_of::AsOf;
use crate::types::error::{Lift, Result};
use crate::types::index_key::{IndexKey, Prefix};
use crate::types::keyspaces::Keyspaces;
use crate::types::lock::lock;
use crate::types::version::{INLINE_BYTES, Stored, Version, value_sum};

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

/// A log, a disk, an index and their model.
struct World {
    disk: Arc<dyn Disk>,
    budget: Budget,
    pool: Arc<Pool>,
    log: Arc<FileLog>,
    horizon: Arc<TestHorizon>,
    sizes: Sizes,
    background: bool,
    /// Threads for the background jobs.
    threads: usize,
    random: Random,
    /// How pages are compressed.
    keyspaces: Arc<Keyspaces>,
    index: Option<Arc<OpenIndex>>,
    versions: Versions,
    commits: Vec<Commit>,
    /// The last GLSN applied.
    applied: Glsn,
}

impl World {
    /// The log has a separate disk without faults.
    fn new(disk: Arc<dyn Disk>, seed: u64, sizes: Sizes) -> Self {
        Self::with_log_on(Arc::new(MemDisk::new()), disk, seed, sizes)
    }

    fn with_log_on(log_disk: Arc<dyn Disk>, disk: Arc<dyn Disk>, seed: u64, sizes: Sizes) -> Self {
        // Every other world has room for two concurrent jobs.
        let budget =
            Budget::new(if seed.is_multiple_of(2) { 16 } else { 64 } << 20, Backing::Mapped)
                .unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        let log = open_log(log_disk, &pool, seed, sizes);
        disk.create_dir(&dir()).unwrap();
        disk.sync_dir(&PathBuf::from("/")).unwrap();
        let mut world = Self {
            disk,
            budget,
            pool,
            log,
            horizon: Arc::default(),
            sizes,
            background: false,
            threads: 2,
            random: Random::new(seed),
            keyspaces: Arc::default(),
            index: None,
            versions: BTreeMap::new(),
            commits: Vec::new(),
            applied: Glsn::NONE,
        };
        world.open().unwrap();
        world
    }

    fn context(&self) -> Context {
        Context {
            // Small, so that much happens between the steps of a job.
            step_bytes: 16 << 10,
            disk: Arc::clone(&self.disk),
            clock: Arc::new(SystemClock::new()),
            dir: dir(),
            budget: self.budget.clone(),
            pool: Arc::clone(&self.pool),
            log: Arc::clone(&self.log) as _,
            keyspaces: Arc::clone(&self.keyspaces),
            row_cache: RowCache::none(),
            memtable_bytes: Some(self.sizes.memtable_bytes),
            table_bytes: self.sizes.table_bytes,
            role: crate::index::env::role::Role::Alone,
            background: self.background,
            job_pool: plimsoll_disk::job_pool::JobPool::new(self.threads),
        }
    }

    /// Opens the index by its manifest and replays the log after the checkpoint.
    fn open(&mut self) -> Result<()> {
        let opened = self.open_and_replay();
        if opened.is_err() {
            self.index = None;
        }
        opened
    }

    fn open_and_replay(&mut self) -> Result<()> {
        self.index = None;
        assert_eq!(self.budget.usage().of(Kind::Sort), 0, "a closed index holds no memory");
        let manifest =
            Manifest::read(&*self.disk, &dir())?.unwrap_or_else(|| Manifest::empty(self.log.id()));
        let checkpoint = manifest.head.checkpoint;
        assert!(checkpoint.glsn <= self.log.bounds().durable, "the checkpoint is durable");
        if checkpoint.glsn > Glsn::NONE {
            assert_eq!(self.log.chain_at(checkpoint.glsn).lift()?, Some(checkpoint.chain));
        }
        let index = OpenIndex::open(self.context(), manifest, Arc::clone(&self.horizon) as _)?;
        assert_eq!(index.runs.checkpoint(), checkpoint);
        self.index = Some(index);
        let mut boundary = checkpoint.glsn;
        for commit in self.commits.iter().filter(|commit| commit.glsn > checkpoint.glsn) {
            self.apply(commit, boundary)?;
            boundary = commit.glsn;
        }
        self.log.sweep_blobs(&|blob| self.index().runs.uses_blob(blob)).lift()?;
        Ok(())
    }

    fn index(&self) -> &Arc<OpenIndex> {
        self.index.as_ref().expect("the index is open")
    }

    fn view(&self) -> Arc<View> {
        self.index().sources.view()
    }

    /// Reserves room and inserts the versions of one commit, like the store.
    fn apply(&self, commit: &Commit, boundary: Glsn) -> Result<()> {
        match &commit.writes {
            Writes::Versions(writes) => self
                .index()
                .memtables
                .reserve(room(writes), boundary)?
                .apply(commit.glsn, 0, Link::Now, versions(writes)),
            Writes::Adopted(runs) => {
                let open = |info: &TableInfo| self.open_adopted(info, commit.glsn);
                let open = |run: &Vec<TableInfo>| run.iter().map(open).collect::<Result<Vec<_>>>();
                self.index()
                    .memtables
                    .adopt(runs.iter().map(open).collect::<Result<_>>()?, commit.glsn);
                Ok(())
            }
        }
    }

    fn open_adopted(&self, info: &TableInfo, glsn: Glsn) -> Result<Table> {
        let TableId::Blob(blob) = info.id else { unreachable!("a transaction writes blob files") };
        let file = self.log.open_blob(blob).lift()?.file;
        let info =
            TableInfo { min_glsn: glsn, max_glsn: glsn, fixed_glsn: Some(glsn), ..info.clone() };
        Ok(Table { info: Arc::new(info), file })
    }

    /// Commits these writes. Large values are stored in the log's entry.
    fn commit(&mut self, writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Result<Glsn> {
        let mut payload = vec![7; self.random.below(50) as usize];
        let mut placed = Vec::new();
        for (key, value) in &writes {
            placed.push((key.clone(), value.clone(), payload.len() as u64));
            payload.extend(value.iter().filter(|value| value.len() > INLINE_BYTES).flatten());
        }
        let index = Arc::clone(self.index());
        index.throttle.wait_for_merges()?;
        let mut room = index.memtables.reserve(room(&placed), self.applied)?;
        let glsn = self.submit(StreamId::TRANSACTIONS, &[&payload], &[])?;
        room.apply(glsn, 0, Link::Now, versions(&placed))?;
        drop(room);
        self.note(Commit { glsn, writes: Writes::Versions(placed) }, writes);
        Ok(glsn)
    }

    fn submit(
        &self,
        stream: StreamId,
        payloads: &[&[u8]],
        blobs: &[plimsoll_log::blob::BlobRef],
    ) -> Result<Glsn> {
        let parts: Vec<[&[u8]; 1]> = payloads.iter().map(|payload| [*payload]).collect();
        let entries: Vec<_> = parts.iter().map(|parts| DraftEntry { stream, parts }).collect();
        let draft = Draft { blobs, ..Draft::of(&entries) };
        Ok(self.log.submit(&draft, None).lift()?.last)
    }

    fn note(&mut self, commit: Commit, writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        self.applied = commit.glsn;
        for (key, value) in writes {
            self.versions.entry(key).or_default().insert(commit.glsn, value);
        }
        self.commits.push(commit);
    }

    /// Commits a transaction that was spilled into runs, newest first.
    fn commit_spilled(&mut self, runs: Vec<BTreeMap<Vec<u8>, Option<Vec<u8>>>>) -> Result<Glsn> {
        let (mut blobs, mut infos) = (Vec::new(), Vec::new());
        for run in &runs {
            let mut tables = Vec::new();
            // Two tables if there are enough versions.
            let half = run.len().div_ceil(2);
            let entries: Vec<_> = run.iter().collect();
            for part in entries.chunks(half.max(3)) {
                let sink = BlobSink::new(self.log.create_blob().lift()?);
                let mut builder = TableBuilder::new(sink, &self.budget, true)?;
                for (key, value) in part {
                    builder.add(&Version { key, glsn: Glsn::NONE, stored: stored(value, 0) })?;
                }
                let (sink, info) = builder.finish()?;
                blobs.push(sink.finish()?);
                tables.push(info);
            }
            infos.push(tables);
        }
        let glsn = self.submit(StreamId::TRANSACTIONS, &[b"runs"], &blobs)?;
        self.log.wait_durable(glsn).lift()?;
        let mut writes = BTreeMap::new();
        for run in runs.into_iter().rev() {
            writes.extend(run);
        }
        let commit = Commit { glsn, writes: Writes::Adopted(infos) };
        let applied = self.apply(&commit, self.applied);
        self.note(commit, writes);
        applied.map(|()| glsn)
    }

    /// Appends entries of a user's stream, whose GLSNs belong to no transaction.
    fn append_other(&mut self) -> Result<()> {
        let last = self.submit(StreamId(5), &[b"one", b"two", b"three"], &[])?;
        self.applied = last;
        Ok(())
    }

    fn random_key(&mut self) -> Vec<u8> {
        let keyspace = [FOREVER, LATEST, RECENT][self.random.below(3) as usize];
        let number = self.random.below(self.sizes.keys);
        let mut name = format!("{:05}", number * 7919 % 100_000);
        if number.is_multiple_of(11) {
            name.push_str(&"x".repeat(1 + number as usize * 37 % 3000));
        }
        let mut key = Vec::new();
        index_key(keyspace, name.as_bytes(), &mut key);
        key
    }

    fn random_value(&mut self, inline_only: bool) -> Option<Vec<u8>> {
        let len = match self.random.below(12) {
            0..=2 => return None,
            3 if !inline_only => INLINE_BYTES as u64 + 1 + self.random.below(3000),
            4 => self.random.below(INLINE_BYTES as u64 + 1),
            _ => self.random.below(60),
        };
        let first = self.random.next_u64() as u8;
        Some((0..len).map(|at| first.wrapping_add(at as u8)).collect())
    }

    fn random_writes(
        &mut self,
        most: u64,
        inline_only: bool,
    ) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        (0..=self.random.below(most))
            .map(|_| (self.random_key(), self.random_value(inline_only)))
            .collect()
    }

    /// The model's version of a key as of `at`; `None` for a deletion.
    fn expected(&self, key: &[u8], at: Glsn) -> Option<(Glsn, &Vec<u8>)> {
        let (glsn, value) = self.versions.get(key)?.range(..=at).next_back()?;
        value.as_ref().map(|value| (*glsn, value))
    }

    fn keyspace_of(key: &[u8]) -> u32 {
        IndexKey::new(key).keyspace()
    }

    fn floor(&self, keyspace: u32) -> Glsn {
        self.horizon.retained(keyspace).floor
    }

    /// A GLSN at which the keyspaces can be read.
    fn random_moment(&mut self, view: &View, keyspaces: &[u32]) -> Glsn {
        let mut oldest = Glsn::NONE;
        for &keyspace in keyspaces {
            let (readable, retained) =
                (view.oldest_readable_in(keyspace), self.horizon.retained(keyspace));
            assert!(readable <= retained.floor, "nothing is dropped above the floor");
            oldest = oldest.max(readable);
            let is_readable = |at: &Glsn| view.limits.is_readable(keyspace, *at);
            assert!(retained.pins.iter().all(is_readable), "a pinned moment stays readable");
        }
        match self.random.below(5) {
            0 => Glsn::MAX,
            1 => self.applied.max(oldest),
            2 => lock(&self.horizon.pins).first().copied().unwrap_or(Glsn::MAX),
            _ => Glsn(oldest.0 + self.random.below(self.applied.0.saturating_sub(oldest.0) + 2)),
        }
    }

    /// Loads the value of a version from the place where it is stored.
    fn load(&self, glsn: Glsn, stored: Stored<'_>) -> Vec<u8> {
        match stored {
            Stored::Deleted | Stored::Dropped { .. } | Stored::Expiring(_) => {
                panic!("a deletion has no value")
            }
            Stored::Inline(value) => value.to_vec(),
            Stored::InLog { offset, len, .. } => {
                let mut value = vec![0; len as usize];
                self.log.read_range(glsn, offset, &mut value).unwrap();
                value
            }
            Stored::InBlob { blob, offset, len, .. } => self.load_from_blob(blob, offset, len),
        }
    }

    fn load_from_blob(&self, blob: BlobId, offset: u64, len: u64) -> Vec<u8> {
        let blob = self.log.open_blob(blob).unwrap();
        let byte = |at: u64| {
            let page =
                blob.file.get((at / PAGE_PAYLOAD_BYTES as u64) as u32, Touch::Point).unwrap();
            page_payload(&page)[(at % PAGE_PAYLOAD_BYTES as u64) as usize]
        };
        (offset..offset + len).map(byte).collect()
    }

    fn check_get(&mut self) {
        let (view, key) = (self.view(), self.random_key());
        let at = self.random_moment(&view, &[Self::keyspace_of(&key)]);
        self.check_get_at(&view, &key, at);
    }

    fn check_get_at(&self, view: &Arc<View>, key: &[u8], at: Glsn) {
        let hit = view.get(key, at).unwrap().filter(|hit| hit.stored() != Stored::Deleted);
        let found = hit.map(|hit| (hit.glsn(), self.load(hit.glsn(), hit.stored())));
        let expected = self.expected(key, at).map(|(glsn, value)| (glsn, value.clone()));
        assert_eq!(
            found,
            expected,
            "key {:?} at {at}",
            String::from_utf8_lossy(IndexKey::new(key).user_key())
        );
    }

    fn check_changed(&mut self) {
        let (view, key) = (self.view(), self.random_key());
        // The reader has an open snapshot at this GLSN.
        let horizon = self.floor(Self::keyspace_of(&key));
        let after = Glsn(horizon.0 + self.random.below(self.applied.0 - horizon.0 + 1));
        let newest =
            self.versions.get(&key).and_then(|versions| versions.keys().next_back().copied());
        assert_eq!(
            view.changed(&key, after).unwrap(),
            newest.filter(|&newest| newest > after),
            "after {after}"
        );
    }

    fn random_range(&mut self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let mut keys = [self.random_key(), self.random_key()];
        if self.random.chance(0.7) {
            // Both keys are in one keyspace.
            let (prefix, _) = Prefix::split(&keys[0]);
            keys[1] = prefix.join(IndexKey::new(&keys[1]).user_key());
        }
        keys.sort();
        let [first, last] = keys;
        let bound = |key: Vec<u8>, choice: u64| match choice {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(key),
            _ => Bound::Included(key),
        };
        (bound(first, self.random.below(6)), bound(last, self.random.below(6)))
    }

    fn in_range<'v>(
        &'v self,
        range: &'v (Bound<Vec<u8>>, Bound<Vec<u8>>),
    ) -> impl DoubleEndedIterator<Item = (&'v Vec<u8>, &'v BTreeMap<Glsn, Option<Vec<u8>>>)> {
        let empty = match range {
            (Bound::Excluded(lower), Bound::Excluded(upper)) => lower == upper,
            _ => false,
        };
        let range =
            if empty { (Bound::Excluded(vec![255; 9]), Bound::Unbounded) } else { range.clone() };
        self.versions.range(range)
    }

    fn check_changed_in(&mut self) {
        let (view, range) = (self.view(), self.random_range());
        let horizon = self.horizon.snapshot.load(Ordering::Relaxed);
        let after = Glsn(horizon + self.random.below(self.applied.0 - horizon + 1));
        let found = view.changed_in(borrow(&range.0), borrow(&range.1), after).unwrap();
        let any =
            self.in_range(&range).any(|(_, versions)| versions.keys().any(|&glsn| glsn > after));
        assert_eq!(found.is_some(), any, "{range:?} after {after}");
        if let Some((key, glsn)) = found {
            assert!(glsn > after && self.versions[&key].contains_key(&glsn));
            assert!(self.in_range(&range).any(|(inside, _)| *inside == key));
        }
    }

    fn check_visible(&mut self) {
        let (view, range) = (self.view(), self.random_range());
        let at = self.random_moment(&view, &[FOREVER, LATEST, RECENT]);
        for direction in [Direction::Forward, Direction::Backward] {
            let mut walk = view
                .visible(borrow(&range.0), borrow(&range.1), AsOf::unexpiring(at), direction)
                .unwrap();
            let (mut found, mut key) = (Vec::new(), Vec::new());
            while let Some(version) = walk.next(&mut key).unwrap() {
                found.push((
                    version.key.to_vec(),
                    version.glsn,
                    self.load(version.glsn, version.stored),
                ));
                self.move_now_and_then(&mut walk, &key);
            }
            assert!(walk.next(&mut key).unwrap().is_none(), "it stays at the end");
            if direction == Direction::Backward {
                found.reverse();
            }
            let expected: Vec<_> = self
                .in_range(&range)
                .filter_map(|(key, _)| {
                    self.expected(key, at).map(|(glsn, value)| (key.clone(), glsn, value.clone()))
                })
                .collect();
            assert_eq!(found, expected, "{range:?} at {at}, {direction:?}");
        }
    }

    fn check_versions(&mut self) {
        let (view, range) = (self.view(), self.random_range());
        let after = Glsn(self.random.below(self.applied.0 + 1));
        let upto = Glsn(after.0 + self.random.below(self.applied.0 + 2 - after.0));
        let mut walk = view.versions(borrow(&range.0), borrow(&range.1), after, upto).unwrap();
        let (mut found, mut key) = (Vec::new(), Vec::new());
        while let Some(version) = walk.next(&mut key).unwrap() {
            let value = if version.stored == Stored::Deleted {
                None
            } else {
                Some(self.load(version.glsn, version.stored))
            };
            found.push((version.key.to_vec(), version.glsn, value));
            self.move_now_and_then(&mut walk, &key);
        }
        let all: Vec<_> = self
            .in_range(&range)
            .flat_map(|(key, versions)| {
                versions.iter().rev().map(|(glsn, value)| (key.clone(), *glsn, value.clone()))
            })
            .filter(|(_, glsn, _)| *glsn > after && *glsn <= upto)
            .collect();
        // A version that may have been dropped may be missing; all others must be present.
        let needed =
            |(key, glsn, _): &(Vec<u8>, Glsn, _)| *glsn > self.floor(Self::keyspace_of(key));
        let strange: Vec<_> = found.iter().filter(|version| !all.contains(version)).collect();
        assert_eq!(
            strange,
            [] as [&(Vec<u8>, Glsn, Option<Vec<u8>>); 0],
            "{range:?} {after}..={upto}"
        );
        let mut places = found.iter().map(|version| all.iter().position(|one| one == version));
        assert!(places.by_ref().is_sorted_by(|a, b| a < b), "each version once, in order");
        let missing: Vec<_> =
            all.iter().filter(|one| needed(one) && !found.contains(one)).collect();
        assert_eq!(
            missing,
            [] as [&(Vec<u8>, Glsn, Option<Vec<u8>>); 0],
            "{range:?} {after}..={upto}"
        );
    }

    /// Makes an iterator release its sources and re-seek in the current ones.
    fn move_now_and_then(&mut self, walk: &mut impl Detachable, key: &[u8]) {
        if self.random.below(4) == 0 {
            drop(walk.detach());
            walk.attach(&self.view(), key).unwrap();
        }
    }

    /// Reads everything at all kinds of GLSNs.
    fn check_all(&mut self) {
        let view = self.view();
        let keys: Vec<_> = self.versions.keys().cloned().collect();
        for key in keys {
            let keyspace = Self::keyspace_of(&key);
            let moments: Vec<Glsn> =
                self.versions[&key].keys().flat_map(|glsn| [Glsn(glsn.0 - 1), *glsn]).collect();
            for at in moments.into_iter().chain([Glsn::MAX]) {
                if !view.limits.is_readable(keyspace, at) {
                    continue;
                }
                self.check_get_at(&view, &key, at);
            }
        }
        for _ in 0..10 {
            self.check_visible();
            self.check_versions();
        }
    }

    fn problems(&self) -> Vec<String> {
        let (mut problems, mut bytes) = (Vec::new(), 0);
        let mut found = Vec::new();
        let mut checked = |table: &Table, wrong: Vec<String>| {
            bytes += table.info.bytes();
            found.extend(wrong);
        };
        let runs = &self.index().runs;
        crate::index::runs::check::verify(runs, &mut |_| {}, &mut checked, &mut |problem| {
            problems.push(problem)
        })
        .unwrap();
        problems.extend(found);
        assert_eq!(bytes, self.view().all_runs().map(|run| run.bytes()).sum::<u64>());
        problems
    }

    /// The names of the run files on disk.
    fn run_files(&self) -> Vec<String> {
        let names = self.disk.list(&dir()).unwrap().into_iter().map(|entry| entry.name);
        names.filter(|name| name.ends_with(".run")).collect()
    }

    /// The names of the run files in the manifest.
    fn named_files(&self) -> Vec<String> {
        let (_, paths, _) = self.index().runs.files();
        let mut names: Vec<_> = paths
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
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
