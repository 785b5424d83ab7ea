//! A dump of format 1, written by hand, is restored. The format has no tags, and its limits have no
//! pins (single moments that are readable).

use std::time::{Duration, UNIX_EPOCH};

use plimsoll::{Db, Error, Glsn, Moment, Options, Retention};
use plimsoll_disk::checksum::Running;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).warm(false)
}

/// A dump that is being written.
struct Dump {
    bytes: Vec<u8>,
    records: u8,
    changes: u8,
}

impl Dump {
    /// A dump of `content` (0: newest values, 1: history) from one GLSN to another.
    fn begin(content: u8, first: u8, last: u8) -> Self {
        let mut dump = Self { bytes: b"PLIMDUMP".to_vec(), records: 0, changes: 0 };
        let version = [1, 0];
        let (store, id, no_keyspace) = ([7; 16], [9; 16], 0);
        let numbers = [first, last, 5];
        let header =
            [&version[..], &[0; 8], &[content], &store, &id, &numbers, &[no_keyspace]].concat();
        dump.record(1, &header);
        dump
    }

    fn record(&mut self, kind: u8, payload: &[u8]) {
        self.bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        self.bytes.push(kind);
        self.bytes.extend_from_slice(payload);
        let mut sum = Running::new(0);
        sum.take(&self.bytes);
        self.bytes.extend_from_slice(&sum.sum().to_le_bytes());
        self.records += 1;
        // Versions and changes.
        self.changes += u8::from(matches!(kind, 4 | 6));
    }

    fn end(mut self) -> Vec<u8> {
        self.record(255, &[self.records, self.changes]);
        self.bytes
    }
}

/// A put of a short value into the keyspace `default`.
fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    let len = value.len() as u8;
    [&[1, 1, key.len() as u8][..], key, &[len, len], value].concat()
}

fn get(db: &Db, at: u64, key: &str) -> Option<Vec<u8>> {
    let snapshot = db.snapshot_at(Moment::Glsn(Glsn(at))).unwrap();
    let space = db.keyspace("default").unwrap();
    snapshot.get(&space, key).unwrap().map(|value| value.to_vec())
}

#[test]
fn a_history_of_format_1_is_restored() {
    let mut dump = Dump::begin(1, 3, 4);
    // The youngest deletion moved, the oldest readable moment, and that of keyspace 1; no deletion
    // was dropped. Format 2 has single moments here.
    dump.record(3, &[0, 2, 1, 1, 2, 0]);
    dump.record(4, &[&[2][..], &put(b"a", b"old")].concat());
    dump.record(13, &[1]);
    for (glsn, key) in [(3, b"b"), (4, b"a")] {
        // The GLSN, the time, what it has read, and metadata.
        dump.record(5, &[&[glsn, 10 * glsn, 2][..], &[1, b'm']].concat());
        dump.record(6, &put(key, b"new"));
        dump.record(8, &[1]);
    }
    let dump = dump.end();
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("copy");
    let report = Db::restore(&dest, options(), &dump[..]).unwrap();
    assert_eq!(report.glsn, Glsn(4));
    let db = Db::open(&dest, options().create(false)).unwrap();
    let value = |text: &str| Some(text.as_bytes().to_vec());
    assert_eq!((get(&db, 2, "a"), get(&db, 2, "b")), (value("old"), None));
    assert_eq!((get(&db, 3, "a"), get(&db, 3, "b")), (value("old"), value("new")));
    assert_eq!((get(&db, 4, "a"), get(&db, 4, "b")), (value("new"), value("new")));
    let space = db.keyspace("default").unwrap();
    let earlier = db.snapshot_at(Moment::Glsn(Glsn(1))).unwrap();
    assert!(matches!(earlier.get(&space, "a"), Err(Error::Trimmed { .. })));
    assert_eq!(db.log().bounds().first, Glsn(3));
    let commit = db.log().commit(Glsn(4)).unwrap().unwrap();
    assert_eq!(commit.time(), UNIX_EPOCH + Duration::from_micros(40));
    assert_eq!(commit.metadata().unwrap(), b"m");
    assert!(db.tags().unwrap().is_empty());
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    for cut in [dump.len() - 1, dump.len() / 2] {
        assert!(Db::restore(dir.path().join("cut"), options(), &dump[..cut]).is_err());
    }
}

#[test]
fn newest_values_of_format_1_are_restored() {
    let mut dump = Dump::begin(0, 5, 4);
    // The keyspace's id, the kind of its retention, and 0, because this kind has no number.
    let settings = [1, 0, 0, 0, 1, 0];
    dump.record(2, &[&[7][..], b"default", &[6], &settings].concat());
    dump.record(6, &put(b"a", b"1"));
    dump.record(6, &put(b"b", b""));
    let dump = dump.end();
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("copy");
    Db::restore(&dest, options(), &dump[..]).unwrap();
    let db = Db::open(&dest, options().create(false)).unwrap();
    let space = db.keyspace("default").unwrap();
    assert_eq!(db.get(&space, "a").unwrap().unwrap(), b"1"[..]);
    assert_eq!(db.get(&space, "b").unwrap().unwrap(), b""[..]);
    assert_eq!(db.snapshot().len(&space).unwrap(), 2);
    assert_eq!(db.keyspaces()[0].retention, Retention::Latest);
}
