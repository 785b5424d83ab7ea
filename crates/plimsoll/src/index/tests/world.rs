//! An index with its log and disk, and the model that its answers are compared with.

use super::*;

/// A log, a disk, an index and their model.
pub(super) struct World {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) budget: Budget,
    pub(super) pool: Arc<Pool>,
    pub(super) log: Arc<FileLog>,
    pub(super) horizon: Arc<TestHorizon>,
    pub(super) sizes: Sizes,
    pub(super) background: bool,
    /// Threads for the background jobs.
    pub(super) threads: usize,
    pub(super) random: Random,
    /// How pages are compressed.
    pub(super) keyspaces: Arc<Keyspaces>,
    pub(super) index: Option<Arc<OpenIndex>>,
    pub(super) versions: Versions,
    pub(super) commits: Vec<Commit>,
    /// The last GLSN applied.
    pub(super) applied: Glsn,
}

impl World {
    /// The log has a separate disk without faults.
    pub(super) fn new(disk: Arc<dyn Disk>, seed: u64, sizes: Sizes) -> Self {
        Self::with_log_on(Arc::new(MemDisk::new()), disk, seed, sizes)
    }

    pub(super) fn with_log_on(
        log_disk: Arc<dyn Disk>,
        disk: Arc<dyn Disk>,
        seed: u64,
        sizes: Sizes,
    ) -> Self {
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

    pub(super) fn context(&self) -> Context {
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
    pub(super) fn open(&mut self) -> Result<()> {
        let opened = self.open_and_replay();
        if opened.is_err() {
            self.index = None;
        }
        opened
    }

    pub(super) fn open_and_replay(&mut self) -> Result<()> {
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

    pub(super) fn index(&self) -> &Arc<OpenIndex> {
        self.index.as_ref().expect("the index is open")
    }

    pub(super) fn view(&self) -> Arc<View> {
        self.index().sources.view()
    }

    /// Reserves room and inserts the versions of one commit, like the store.
    pub(super) fn apply(&self, commit: &Commit, boundary: Glsn) -> Result<()> {
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

    pub(super) fn open_adopted(&self, info: &TableInfo, glsn: Glsn) -> Result<Table> {
        let TableId::Blob(blob) = info.id else { unreachable!("a transaction writes blob files") };
        let file = self.log.open_blob(blob).lift()?.file;
        let info =
            TableInfo { min_glsn: glsn, max_glsn: glsn, fixed_glsn: Some(glsn), ..info.clone() };
        Ok(Table { info: Arc::new(info), file })
    }

    /// Commits these writes. Large values are stored in the log's entry.
    pub(super) fn commit(&mut self, writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Result<Glsn> {
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

    pub(super) fn submit(
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

    pub(super) fn note(&mut self, commit: Commit, writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        self.applied = commit.glsn;
        for (key, value) in writes {
            self.versions.entry(key).or_default().insert(commit.glsn, value);
        }
        self.commits.push(commit);
    }

    /// Commits a transaction that was spilled into runs, newest first.
    pub(super) fn commit_spilled(
        &mut self,
        runs: Vec<BTreeMap<Vec<u8>, Option<Vec<u8>>>>,
    ) -> Result<Glsn> {
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
    pub(super) fn append_other(&mut self) -> Result<()> {
        let last = self.submit(StreamId(5), &[b"one", b"two", b"three"], &[])?;
        self.applied = last;
        Ok(())
    }

    pub(super) fn random_key(&mut self) -> Vec<u8> {
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

    pub(super) fn random_value(&mut self, inline_only: bool) -> Option<Vec<u8>> {
        let len = match self.random.below(12) {
            0..=2 => return None,
            3 if !inline_only => INLINE_BYTES as u64 + 1 + self.random.below(3000),
            4 => self.random.below(INLINE_BYTES as u64 + 1),
            _ => self.random.below(60),
        };
        let first = self.random.next_u64() as u8;
        Some((0..len).map(|at| first.wrapping_add(at as u8)).collect())
    }

    pub(super) fn random_writes(
        &mut self,
        most: u64,
        inline_only: bool,
    ) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        (0..=self.random.below(most))
            .map(|_| (self.random_key(), self.random_value(inline_only)))
            .collect()
    }

    /// The model's version of a key as of `at`; `None` for a deletion.
    pub(super) fn expected(&self, key: &[u8], at: Glsn) -> Option<(Glsn, &Vec<u8>)> {
        let (glsn, value) = self.versions.get(key)?.range(..=at).next_back()?;
        value.as_ref().map(|value| (*glsn, value))
    }

    pub(super) fn keyspace_of(key: &[u8]) -> u32 {
        IndexKey::new(key).keyspace()
    }

    pub(super) fn floor(&self, keyspace: u32) -> Glsn {
        self.horizon.retained(keyspace).floor
    }

    /// A GLSN at which the keyspaces can be read.
    pub(super) fn random_moment(&mut self, view: &View, keyspaces: &[u32]) -> Glsn {
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
    pub(super) fn load(&self, glsn: Glsn, stored: Stored<'_>) -> Vec<u8> {
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

    pub(super) fn load_from_blob(&self, blob: BlobId, offset: u64, len: u64) -> Vec<u8> {
        let blob = self.log.open_blob(blob).unwrap();
        let byte = |at: u64| {
            let page =
                blob.file.get((at / PAGE_PAYLOAD_BYTES as u64) as u32, Touch::Point).unwrap();
            page_payload(&page)[(at % PAGE_PAYLOAD_BYTES as u64) as usize]
        };
        (offset..offset + len).map(byte).collect()
    }

    pub(super) fn check_get(&mut self) {
        let (view, key) = (self.view(), self.random_key());
        let at = self.random_moment(&view, &[Self::keyspace_of(&key)]);
        self.check_get_at(&view, &key, at);
    }

    pub(super) fn check_get_at(&self, view: &Arc<View>, key: &[u8], at: Glsn) {
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

    pub(super) fn check_changed(&mut self) {
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

    pub(super) fn random_range(&mut self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
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

    pub(super) fn in_range<'v>(
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

    pub(super) fn check_changed_in(&mut self) {
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

    pub(super) fn check_visible(&mut self) {
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

    pub(super) fn check_versions(&mut self) {
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
    pub(super) fn move_now_and_then(&mut self, walk: &mut impl Detachable, key: &[u8]) {
        if self.random.below(4) == 0 {
            drop(walk.detach());
            walk.attach(&self.view(), key).unwrap();
        }
    }

    /// Reads everything at all kinds of GLSNs.
    pub(super) fn check_all(&mut self) {
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

    pub(super) fn problems(&self) -> Vec<String> {
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
    pub(super) fn run_files(&self) -> Vec<String> {
        let names = self.disk.list(&dir()).unwrap().into_iter().map(|entry| entry.name);
        names.filter(|name| name.ends_with(".run")).collect()
    }

    /// The names of the run files in the manifest.
    pub(super) fn named_files(&self) -> Vec<String> {
        let (_, paths, _) = self.index().runs.files();
        let mut names: Vec<_> = paths
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}
