//! Hashes of states.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use plimsoll::{
    BackupOptions, Db, DumpOptions, Error, InvalidInput, MergeOutcome, Moment, Options, Retention,
    StateHash,
};
use plimsoll_disk::random::Random;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false).warm(false)
}

fn open() -> Db {
    Db::in_memory(options()).unwrap()
}

#[test]
fn the_hash_is_that_of_the_documented_stream() {
    let db = open();
    let empty = blake3::hash(b"plimsoll state 1\0");
    assert_eq!(db.state_hash().unwrap().as_bytes(), empty.as_bytes());
    let [b, a] = ["b", "a"].map(|name| db.keyspace(name).unwrap());
    db.keyspace("empty").unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    db.put(&b, "k", "one").unwrap();
    db.put_expiring_at(&a, "j", "", at).unwrap();
    db.put(&a, "", "two").unwrap();
    let mut stream = b"plimsoll state 1\0".to_vec();
    let number = |stream: &mut Vec<u8>, number: u64| {
        stream.extend_from_slice(&number.to_le_bytes());
    };
    let bytes = |stream: &mut Vec<u8>, bytes: &[u8]| {
        stream.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        stream.extend_from_slice(bytes);
    };
    stream.push(1);
    bytes(&mut stream, b"a");
    stream.push(2);
    bytes(&mut stream, b"");
    number(&mut stream, 3);
    stream.extend_from_slice(b"two");
    stream.push(3);
    number(&mut stream, 4_000_000_000_000_000);
    bytes(&mut stream, b"j");
    number(&mut stream, 0);
    stream.push(1);
    bytes(&mut stream, b"b");
    stream.push(2);
    bytes(&mut stream, b"k");
    number(&mut stream, 3);
    stream.extend_from_slice(b"one");
    let hash = db.state_hash().unwrap();
    assert_eq!(hash.as_bytes(), blake3::hash(&stream).as_bytes());
    assert_eq!(hash.to_string(), blake3::hash(&stream).to_hex().to_string());
}

#[test]
fn states_that_differ_have_different_hashes() {
    let mut hashes: Vec<StateHash> = Vec::new();
    let mut add = |fill: &dyn Fn(&Db)| {
        let db = open();
        fill(&db);
        hashes.push(db.state_hash().unwrap());
    };
    let put = |db: &Db, keyspace: &str, key: &str, value: &str| {
        db.put(&db.keyspace(keyspace).unwrap(), key, value).unwrap();
    };
    add(&|_| ());
    add(&|db| put(db, "a", "", ""));
    add(&|db| put(db, "a", "b", ""));
    add(&|db| put(db, "a", "", "b"));
    add(&|db| put(db, "ab", "", ""));
    add(&|db| put(db, "a", "bc", "d"));
    add(&|db| put(db, "a", "b", "cd"));
    add(&|db| [put(db, "a", "b", ""), put(db, "a", "c", "")].into_iter().collect());
    add(&|db| [put(db, "a", "b", ""), put(db, "c", "", "")].into_iter().collect());
    for seconds in [4_000_000_000, 4_000_000_001] {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        add(&|db| {
            let a = db.keyspace("a").unwrap();
            db.put_expiring_at(&a, "b", "", at).unwrap();
        });
    }
    let count = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), count);
}

#[test]
fn equal_states_have_equal_hashes_whatever_their_histories() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let db = Db::open(path("one"), options()).unwrap();
    let [notes, large] = ["notes", "large"].map(|name| db.keyspace(name).unwrap());
    let seed = std::env::var("SEED").map_or(3, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    for number in 0..2000_u32 {
        let value = vec![number as u8; random.below(3000) as usize];
        db.put(&notes, random.below(500).to_be_bytes(), value).unwrap();
    }
    // More than the budget.
    let mut tx = db.begin();
    tx.put_reader(&large, "a", &mut std::io::Read::take(std::io::repeat(7), 40 << 20)).unwrap();
    tx.put(&large, "b", vec![8; 300_000]).unwrap();
    tx.commit().unwrap();
    db.put_with_ttl(&notes, "gone", "x", Duration::from_micros(1)).unwrap();
    db.put_with_ttl(&notes, "going", "x", Duration::from_secs(3600)).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    let hash = db.state_hash().unwrap();
    let newest = db.newest();
    for history in [false, true] {
        let mut dump = Vec::new();
        db.dump(DumpOptions::new().history(history), &mut dump).unwrap();
        let to = path(if history { "with history" } else { "newest" });
        Db::restore(&to, options(), &mut &dump[..]).unwrap();
        assert_eq!(Db::open(&to, options()).unwrap().state_hash().unwrap(), hash);
    }
    db.backup_with(path("backup"), BackupOptions::new()).unwrap();
    assert_eq!(Db::open(path("backup"), options()).unwrap().state_hash().unwrap(), hash);
    db.flush().unwrap();
    db.compact().unwrap();
    db.set_retention(&notes, Retention::Latest).unwrap();
    assert_eq!(db.state_hash().unwrap(), hash);
    // A branch with the same state; a change, and the change undone.
    let draft = db.create_branch("draft", &db.main()).unwrap();
    assert_eq!(draft.state_hash().unwrap(), hash);
    draft.put(&notes, "new", "1").unwrap();
    draft.delete(&large, "b").unwrap();
    let changed = draft.state_hash().unwrap();
    assert_ne!(changed, hash);
    assert_eq!(db.state_hash().unwrap(), hash);
    assert_eq!(draft.snapshot_at(Moment::Glsn(newest)).unwrap().state_hash().unwrap(), hash);
    assert!(matches!(db.merge(&draft).run().unwrap(), MergeOutcome::Merged(_)));
    assert_eq!(db.state_hash().unwrap(), changed);
    draft.reset_to(newest).run().unwrap().unwrap();
    assert_eq!(draft.state_hash().unwrap(), hash);
    db.revert(db.newest()).run().unwrap_err();
    drop((draft, db));
    let db = Db::open(path("one"), options()).unwrap();
    assert_eq!(db.state_hash().unwrap(), changed);
}

#[test]
fn a_hash_is_cancelled_and_refused() {
    let db = open();
    let latest = db.create_keyspace("latest", Retention::Latest).unwrap();
    let first = db.put(&latest, "k", "1").unwrap();
    assert_eq!(
        db.snapshot().state_hash_unless(Arc::new(AtomicBool::new(true))),
        Err(Error::Cancelled)
    );
    assert!(db.snapshot().state_hash_unless(Arc::new(AtomicBool::new(false))).is_ok());
    for value in 0..50_u8 {
        db.put(&latest, "k", [value]).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    let refused = db.snapshot_at(Moment::Glsn(first)).and_then(|it| it.state_hash()).unwrap_err();
    let is_named = matches!(&refused, Error::Trimmed { keyspace, .. }
        if keyspace.as_deref() == Some("latest"));
    assert!(is_named, "{refused}");
    let draft = db.create_branch("draft", &db.main()).unwrap();
    db.delete_branch("draft").unwrap();
    let no_branch = Error::InvalidInput(InvalidInput::NoBranch { name: "draft".into() });
    assert_eq!(draft.state_hash().unwrap_err(), no_branch);
    db.clone().close().unwrap();
    assert_eq!(db.state_hash().unwrap_err(), Error::Closed);
}
