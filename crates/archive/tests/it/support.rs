//! A store with a model of its contents at every GLSN, and its archive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use plimsoll::{Db, Glsn, Keyspace, Moment, Options, Retention};
use plimsoll_archive::{Archive, RestoreReport};

pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Small segments and memtables, so that files are created and removed.
pub(crate) fn options() -> Options {
    Options::new()
        .memory_bytes(16 << 20)
        .segment_bytes(256 << 10)
        .memtable_bytes(64 << 10)
        .warm(false)
}

/// A store, its model, and the place of its archive.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) rng: Rng,
    pub(crate) db: Option<Db>,
    /// The rows after each commit.
    pub(crate) model: Vec<(Glsn, Rows)>,
    restores: u64,
}

impl World {
    pub(crate) fn new(seed: u64, retention: Retention) -> Self {
        println!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path().join("store"), options().retention(retention)).unwrap();
        let (rng, model) = (Rng::with_seed(seed), vec![(Glsn(0), Rows::new())]);
        Self { dir, rng, db: Some(db), model, restores: 0 }
    }

    pub(crate) fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    pub(crate) fn rows(&self) -> Keyspace {
        self.db().keyspace("default").unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn archive(&self) -> Archive {
        Archive::open(self.path("archive").to_str().unwrap()).unwrap()
    }

    pub(crate) fn newest(&self) -> Glsn {
        self.model.last().unwrap().0
    }

    /// Commits some transactions.
    pub(crate) fn write(&mut self, commits: u64) {
        let keyspace = self.rows();
        for _ in 0..commits {
            let mut rows = self.model.last().unwrap().1.clone();
            let mut tx = self.db.as_ref().unwrap().begin();
            for _ in 0..self.rng.u64(1..4) {
                let key = format!("key {:03}", self.rng.u32(0..60)).into_bytes();
                if self.rng.u32(0..5) == 0 {
                    tx.delete(&keyspace, &key).unwrap();
                    rows.remove(&key);
                } else {
                    let value = self.value();
                    tx.put(&keyspace, &key, &value).unwrap();
                    rows.insert(key, value);
                }
            }
            self.model.push((tx.commit().unwrap(), rows));
        }
    }

    /// Commits one value.
    #[cfg(any(feature = "cloud", feature = "postgres"))]
    pub(crate) fn put(&mut self, key: &str, value: Vec<u8>) {
        let glsn = self.db().put(&self.rows(), key, &value).unwrap();
        let mut rows = self.model.last().unwrap().1.clone();
        rows.insert(key.into(), value);
        self.model.push((glsn, rows));
    }

    /// Small in most cases; sometimes large enough for the log, or for a blob file.
    fn value(&mut self) -> Vec<u8> {
        let bytes = match self.rng.u32(0..40) {
            0..8 => 3_000,
            8 => 300_000,
            _ => 40,
        };
        (0..bytes).map(|_| self.rng.u8(..)).collect()
    }

    pub(crate) fn reopen(&mut self) {
        self.db.take().unwrap().close().unwrap();
        self.db = Some(Db::open(self.path("store"), options()).unwrap());
    }

    /// The rows at a GLSN.
    pub(crate) fn at(&self, glsn: Glsn) -> &Rows {
        &self.model.iter().rev().find(|(at, _)| *at <= glsn).unwrap().1
    }

    /// Restores a moment, and compares all rows with the model.
    pub(crate) fn restore(&mut self, at: Moment) -> plimsoll_archive::Result<RestoreReport> {
        self.restores += 1;
        let dest = self.path(&format!("restored-{}", self.restores));
        let restored = self.archive().restore(&dest, options(), at);
        let new = dest.with_file_name(format!("restored-{}.new-archive", self.restores));
        assert!(!new.exists(), "nothing is left");
        if let Ok(report) = &restored {
            self.check(&dest, report.glsn);
            assert_eq!(report.problems, Vec::<String>::new());
            std::fs::remove_dir_all(&dest).unwrap();
        } else {
            assert!(!dest.exists());
        }
        restored
    }

    /// Compares the rows of a restored store with the model, and writes into it.
    pub(crate) fn check(&self, store: &Path, glsn: Glsn) {
        let db = Db::open(store, options()).unwrap();
        assert_eq!(db.newest(), glsn);
        let keyspace = db.keyspace("default").unwrap();
        assert!(rows_of(&db, &keyspace) == *self.at(glsn), "the rows at {glsn}");
        db.put(&keyspace, "afterwards", "x").unwrap();
        db.close().unwrap();
        let report = plimsoll::verify(store, options(), &mut |_| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
    }
}

pub(crate) fn rows_of(db: &Db, keyspace: &Keyspace) -> Rows {
    let snapshot = db.snapshot();
    let mut rows = Rows::new();
    for row in snapshot.range(keyspace, ..).unwrap() {
        let (key, value) = row.unwrap();
        rows.insert(key.to_vec(), value.to_vec());
    }
    rows
}

/// The seeds of a random test: that of the variable `SEED`, or the first ones.
pub(crate) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let seed = std::env::var("SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    seed.map_or(0..count, |seed| seed..seed + 1)
}

/// The files of an archive, with their contents.
pub(crate) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for folder in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if !folder.path().is_dir() {
            continue;
        }
        for file in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
            let name = [folder.file_name(), file.file_name()].map(|it| it.into_string().unwrap());
            files.insert(name.join("/"), std::fs::read(file.path()).unwrap());
        }
    }
    files
}
