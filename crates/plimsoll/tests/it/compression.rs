//! Compressed values: every way to write and to read them, settings that change, moves, damage.

use std::io::Read as _;

use plimsoll::{
    Compression, Db, DumpOptions, Error, InvalidInput, Keyspace, Moment, Options, Retention,
};

const LENGTHS: [usize; 8] =
    [1024, 1025, 5000, 64 << 10, (64 << 10) + 1, 256 << 10, (256 << 10) + 1, 3 << 20];

fn options() -> Options {
    Options::new().memory_bytes(32 << 20)
}

fn value(bytes: usize, tag: u8) -> Vec<u8> {
    (0..bytes).map(|i| b"{\"key\": "[i % 8].wrapping_add(tag) ^ (i / 500) as u8).collect()
}

fn incompressible(bytes: usize) -> Vec<u8> {
    let mut state = bytes as u64;
    let next = |state: &mut u64| {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 56) as u8
    };
    (0..bytes).map(|_| next(&mut state)).collect()
}

fn all() -> [Compression; 4] {
    [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(19)]
}

fn check(db: &Db, keyspace: &Keyspace, key: &str, expected: &[u8]) {
    assert!(db.get(keyspace, key).unwrap().unwrap() == expected, "{key}");
    let mut reader = db.snapshot().get_reader(keyspace, key).unwrap().unwrap();
    assert_eq!(reader.len(), expected.len() as u64);
    let (mut read, mut piece) = (Vec::new(), [0; 7001]);
    loop {
        match reader.read(&mut piece).unwrap() {
            0 => break,
            bytes => read.extend_from_slice(&piece[..bytes]),
        }
    }
    assert!(read == expected, "{key} in pieces");
}

fn check_all(db: &Db) {
    for compression in all() {
        let keyspace = db.find_keyspace(&compression.to_string()).unwrap().unwrap();
        for bytes in LENGTHS {
            check(db, &keyspace, &format!("put {bytes}"), &value(bytes, 1));
            check(db, &keyspace, &format!("random {bytes}"), &incompressible(bytes));
            check(db, &keyspace, &format!("streamed {bytes}"), &value(bytes, 2));
            check(db, &keyspace, &format!("loaded {bytes}"), &value(bytes, 3));
        }
    }
}

#[test]
fn values_of_every_length_come_back_from_wherever_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    for compression in all() {
        let keyspace = db.keyspace(&compression.to_string()).unwrap();
        db.set_compression(&keyspace, compression).unwrap();
        let mut tx = db.begin();
        for bytes in LENGTHS {
            tx.put(&keyspace, format!("put {bytes}"), value(bytes, 1)).unwrap();
            tx.put(&keyspace, format!("random {bytes}"), incompressible(bytes)).unwrap();
            let streamed = value(bytes, 2);
            tx.put_reader(&keyspace, format!("streamed {bytes}"), &mut &streamed[..]).unwrap();
            let own = tx.get(&keyspace, format!("put {bytes}")).unwrap().unwrap();
            assert!(own == value(bytes, 1), "own {bytes}");
            let own = tx.get(&keyspace, format!("streamed {bytes}")).unwrap().unwrap();
            assert!(own == streamed, "own streamed {bytes}");
        }
        let walked = tx.range(&keyspace, ..).unwrap().map(Result::unwrap);
        assert_eq!(walked.count(), 3 * LENGTHS.len());
        tx.commit().unwrap();
        let mut load = db.begin_bulk_load(&keyspace).unwrap();
        for bytes in LENGTHS {
            load.put(format!("loaded {bytes}"), value(bytes, 3)).unwrap();
        }
        load.commit().unwrap();
    }
    check_all(&db);
    db.flush().unwrap();
    check_all(&db);
    for compression in all() {
        let keyspace = db.keyspace(&compression.to_string()).unwrap();
        let size = db.keyspace_size(&keyspace, 1000).unwrap();
        let random: u64 = LENGTHS.iter().map(|bytes| *bytes as u64).sum();
        match compression {
            Compression::None => assert_eq!(size.stored_bytes, size.bytes),
            _ => assert!(size.stored_bytes < random + size.bytes / 20, "{size:?}"),
        }
    }
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    check_all(&db);
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    db.compact().unwrap();
    check_all(&db);
    let backup = dir.path().join("backup");
    db.backup(&backup).unwrap();
    check_all(&Db::open(&backup, options()).unwrap());
}

#[test]
fn a_setting_applies_to_what_is_put_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let pages = db.create_keyspace("pages", Retention::Forever).unwrap();
    let stored = |db: &Db, pages: &Keyspace| db.keyspace_size(pages, 100).unwrap().stored_bytes;
    let mut glsns = Vec::new();
    for (compression, number) in all().into_iter().chain([Compression::None]).zip(0..) {
        db.set_compression(&pages, compression).unwrap();
        glsns.push(db.put(&pages, "page", value(50_000, number)).unwrap());
        assert_eq!(stored(&db, &pages) < 10_000, compression != Compression::None);
    }
    let check = |db: &Db, pages: &Keyspace| {
        for (glsn, number) in glsns.iter().zip(0..) {
            let then = db.snapshot_at(Moment::Glsn(*glsn)).unwrap();
            assert!(then.get(pages, "page").unwrap().unwrap() == value(50_000, number));
        }
        let versions: Vec<_> = db.history(pages, "page").unwrap().map(Result::unwrap).collect();
        assert_eq!(versions.len(), glsns.len());
        assert!(versions.iter().all(|version| version.bytes == Some(50_000)));
    };
    check(&db, &pages);
    db.set_compression(&pages, Compression::Lz4).unwrap();
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    let pages = db.keyspace("pages").unwrap();
    check(&db, &pages);
    let info = db.keyspaces().into_iter().find(|info| info.name == "pages").unwrap();
    assert_eq!((info.compression, info.retention), (Compression::Lz4, Retention::Forever));
    db.put(&pages, "page", value(50_000, 9)).unwrap();
    assert!(stored(&db, &pages) < 10_000);
}

/// Retention and compression of the default keyspace.
fn default_settings(db: &Db) -> (Retention, Compression) {
    let info = db.keyspaces().into_iter().find(|info| info.name == "default").unwrap();
    (info.retention, info.compression)
}

#[test]
fn a_change_of_one_setting_of_the_default_keyspace_leaves_the_other_to_the_options() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = Db::open(&path, options().retention(Retention::Latest)).unwrap();
    db.put(&db.keyspace("default").unwrap(), "a", "1").unwrap();
    drop(db);
    // A program with other options changes the compression alone.
    let db = Db::open(&path, options()).unwrap();
    db.set_compression(&db.keyspace("default").unwrap(), Compression::Lz4).unwrap();
    assert_eq!(default_settings(&db), (Retention::Forever, Compression::Lz4));
    drop(db);
    let db = Db::open(&path, options().retention(Retention::Latest)).unwrap();
    assert_eq!(default_settings(&db), (Retention::Latest, Compression::Lz4));
    db.set_compression(&db.keyspace("default").unwrap(), Compression::None).unwrap();
    drop(db);
    let db = Db::open(&path, options().compression(Compression::Lz4)).unwrap();
    assert_eq!(default_settings(&db), (Retention::Forever, Compression::None));

    // A program changes the retention alone.
    let path = folder.path().join("other");
    let db = Db::open(&path, options()).unwrap();
    db.set_retention(&db.keyspace("default").unwrap(), Retention::Glsns(7)).unwrap();
    drop(db);
    let db = Db::open(&path, options().compression(Compression::Lz4)).unwrap();
    assert_eq!(default_settings(&db), (Retention::Glsns(7), Compression::Lz4));
    let text = value(5000, 3);
    db.put(&db.keyspace("default").unwrap(), "a", &text).unwrap();
    let size = db.keyspace_size(&db.keyspace("default").unwrap(), 10).unwrap();
    assert!(size.stored_bytes < 5000, "{size:?}");
}

#[test]
fn the_record_of_the_default_keyspace_says_that_the_options_use_zstd() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let zstd = || Db::open(&path, options().compression(Compression::Zstd(3))).unwrap();
    let db = zstd();
    let recorded = db.newest();
    assert!(recorded > plimsoll::Glsn::NONE, "opening has committed the record");
    assert_eq!(default_settings(&db), (Retention::Forever, Compression::Zstd(3)));
    drop(db);
    assert_eq!(zstd().newest(), recorded, "the record is written once");
    // A compression that was set is not overruled, and needs no zstd.
    let other = folder.path().join("other");
    let db = Db::open(&other, options()).unwrap();
    db.set_compression(&db.keyspace("default").unwrap(), Compression::Lz4).unwrap();
    let newest = db.newest();
    drop(db);
    let db = Db::open(&other, options().compression(Compression::Zstd(3))).unwrap();
    assert_eq!((default_settings(&db).1, db.newest()), (Compression::Lz4, newest));
    drop(db);
    // The compression itself is still that of the options.
    let db = Db::open(&path, options()).unwrap();
    assert_eq!(default_settings(&db), (Retention::Forever, Compression::None));
}

#[test]
fn a_store_restored_with_zstd_in_the_options_records_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = value(5000, 3);
    let zstd = || options().compression(Compression::Zstd(3));
    for (history, of_source) in [(false, zstd()), (true, options())] {
        let path = folder.path().join(format!("store-{history}"));
        let db = Db::open(&path, of_source).unwrap();
        db.put(&db.keyspace("default").unwrap(), "a", &text).unwrap();
        let mut dump = Vec::new();
        db.dump(DumpOptions::new().history(history), &mut dump).unwrap();
        let copy = folder.path().join(format!("copy-{history}"));
        Db::restore(&copy, zstd(), &mut &dump[..]).unwrap();
        let db = Db::open(&copy, options()).unwrap();
        let default = db.keyspace("default").unwrap();
        check(&db, &default, "a", &text);
        let (stored, newest) = (db.keyspace_size(&default, 10).unwrap().stored_bytes, db.newest());
        // The records of the history do not say that values are compressed, so they are not.
        assert_eq!(stored < 5000, !history, "{stored}");
        drop(db);
        let is_recorded = Db::open(&copy, zstd()).unwrap().newest() == newest;
        assert_eq!(is_recorded, !history);
    }
}

#[test]
fn an_update_of_a_compressed_value_sees_the_value() {
    let db = Db::in_memory(options().compression(Compression::Lz4)).unwrap();
    let notes = db.keyspace("notes").unwrap();
    db.put(&notes, "a", value(20_000, 0)).unwrap();
    db.append(&notes, "a", b"end").unwrap();
    let expected = [&value(20_000, 0)[..], b"end"].concat();
    assert!(db.get(&notes, "a").unwrap().unwrap() == expected);
    assert_eq!(db.keyspaces()[0].compression, Compression::Lz4, "the default keyspace, too");
}

#[test]
fn a_dump_keeps_the_settings_and_its_restore_compresses() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let pages = db.create_keyspace("pages", Retention::Forever).unwrap();
    db.set_compression(&pages, Compression::Zstd(5)).unwrap();
    let default = db.keyspace("default").unwrap();
    db.set_compression(&default, Compression::Lz4).unwrap();
    for bytes in LENGTHS {
        db.put(&pages, format!("{bytes}"), value(bytes, 1)).unwrap();
        db.put(&default, format!("{bytes}"), value(bytes, 2)).unwrap();
    }
    for history in [false, true] {
        let mut dump = Vec::new();
        let dumping = DumpOptions::new().history(history);
        db.dump(dumping, &mut dump).unwrap();
        let path = dir.path().join(format!("restored-{history}"));
        Db::restore(&path, options(), &mut &dump[..]).unwrap();
        let restored = Db::open(&path, options()).unwrap();
        assert_eq!(restored.keyspaces(), db.keyspaces());
        for (name, tag) in [("pages", 1), ("default", 2)] {
            let keyspace = restored.keyspace(name).unwrap();
            for bytes in LENGTHS {
                check(&restored, &keyspace, &format!("{bytes}"), &value(bytes, tag));
            }
            let size = restored.keyspace_size(&keyspace, 100).unwrap();
            assert!(size.stored_bytes < size.bytes / 10, "{history}: {size:?}");
        }
    }
}

#[test]
fn a_dump_of_a_trimmed_store_is_restored_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let options = || options().segment_bytes(64 << 10);
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let pages = db.create_keyspace("pages", Retention::Latest).unwrap();
    db.set_compression(&pages, Compression::Lz4).unwrap();
    for bytes in LENGTHS {
        db.put(&pages, format!("{bytes}"), value(bytes, 1)).unwrap();
    }
    // Segments of the log are full only of what is not compressed.
    let filler = db.keyspace("filler").unwrap();
    for number in 0..100_u32 {
        db.put(&filler, number.to_be_bytes(), incompressible(5000)).unwrap();
    }
    db.log().trim(db.newest()).unwrap();
    assert!(db.log().bounds().first > plimsoll::Glsn(1));
    let check_pages = |db: &Db| {
        let pages = db.keyspace("pages").unwrap();
        for bytes in LENGTHS {
            check(db, &pages, &format!("{bytes}"), &value(bytes, 1));
        }
        let size = db.keyspace_size(&pages, 100).unwrap();
        assert!(size.stored_bytes < size.bytes / 10, "{size:?}");
    };
    check_pages(&db);
    assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    let mut dump = Vec::new();
    db.dump(DumpOptions::new().history(true), &mut dump).unwrap();
    let path = dir.path().join("restored");
    Db::restore(&path, options(), &mut &dump[..]).unwrap();
    check_pages(&Db::open(&path, options()).unwrap());
}

#[test]
fn an_unknown_level_is_refused_and_nothing_is_written() {
    let db = Db::in_memory(options()).unwrap();
    let pages = db.keyspace("pages").unwrap();
    let newest = db.newest();
    for level in [0, 23, -5] {
        let refused = db.set_compression(&pages, Compression::Zstd(level));
        let expected = InvalidInput::UnknownCompression { text: format!("zstd:{level}") };
        assert_eq!(refused, Err(Error::InvalidInput(expected)));
        assert!(Db::in_memory(options().compression(Compression::Zstd(level))).is_err());
    }
    assert_eq!(db.newest(), newest);
}
