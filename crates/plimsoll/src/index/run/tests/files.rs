//! Tests of table metadata and of the file that holds a table.

use super::*;

#[test]
fn table_metadata_is_correct_and_stored_in_the_file() {
    for (seed, shape) in (30..).zip(SHAPES) {
        let mut random = Random::new(seed);
        let budget = budget();
        let model = random_model(&mut random, shape, 1000);
        let (pages, info) = build(&budget, versions(&model), false);
        let of_kind = |tag: u8| model.iter().filter(move |(_, stored)| stored[0] == tag);
        assert_eq!(
            (info.versions, info.deletions),
            (1000.max(model.len() as u64), of_kind(0).count() as u64)
        );
        assert_eq!(info.first_key, model.keys().next().unwrap().0);
        assert_eq!(info.last_key, model.keys().next_back().unwrap().0);
        assert_eq!(Some(info.min_glsn.0), model.keys().map(|(_, glsn)| glsn.0).min());
        assert_eq!(Some(info.max_glsn.0), model.keys().map(|(_, glsn)| glsn.0).max());
        assert_eq!(info.min_pointer, of_kind(2).map(|((_, glsn), _)| Glsn(glsn.0)).min());
        let mut blobs: Vec<_> = versions(&model)
            .filter_map(|version| match version.stored {
                Stored::InBlob { blob, .. } => Some(blob),
                _ => None,
            })
            .collect();
        blobs.sort_unstable();
        blobs.dedup();
        assert_eq!(info.blobs, blobs);
        assert_eq!(info.fixed_glsn, None);
        assert_eq!(pages.len(), info.pages as usize * PAGE_BYTES);
        let file = open(&pool(&budget), pages, info.clone()).file;
        let source = file.source();
        assert_eq!(read_info(&**source, info.pages, info.id, &budget).unwrap(), info);
        assert!(read_info(&**source, info.pages - 1, info.id, &budget).is_err());
        assert!(read_info(&**source, info.pages, TableId::Run(2), &budget).is_err());
    }
}

#[test]
fn a_list_of_blob_files_may_span_several_pages() {
    let budget = budget();
    let pool = pool(&budget);
    let mut builder = TableBuilder::new(Pages::default(), &budget, false).unwrap();
    for n in 0..20_000 {
        let stored = Stored::InBlob {
            blob: BlobId((n * 7919) % 20_000 * 1_000_003),
            offset: n,
            len: 1,
            sum: 0,
            packed: None,
        };
        builder.add(&Version { key: &n.to_be_bytes(), glsn: Glsn(1), stored }).unwrap();
    }
    let (pages, info) = builder.finish().unwrap();
    assert!(info.blobs.iter().map(|blob| blob.0).eq((0..20_000).map(|n| n * 1_000_003)));
    let table = open(&pool, pages.0, info);
    assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
}

#[test]
fn pending_versions_get_the_glsn_of_their_table() {
    let budget = budget();
    let pool = pool(&budget);
    let keys: Vec<_> = (0..5000u64).map(|n| (n * 2).to_be_bytes()).collect();
    let pending =
        keys.iter().map(|key| Version { key, glsn: Glsn::NONE, stored: Stored::Inline(key) });
    let (pages, mut info) = build(&budget, pending, true);
    assert_eq!((info.min_glsn, info.max_glsn), (Glsn::NONE, Glsn::NONE));
    (info.min_glsn, info.max_glsn, info.fixed_glsn) = (Glsn(50), Glsn(50), Some(Glsn(50)));
    let table = open(&pool, pages, info);
    assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
    for key in keys.iter().step_by(11) {
        let lookup = |at| table.lookup(key, Glsn(at), Touch::Point).unwrap();
        assert_eq!(lookup(49).newest, Some(Glsn(50)));
        assert!(lookup(49).found.is_none());
        let found = lookup(50).found.unwrap();
        assert_eq!((found.glsn, found.stored()), (Glsn(50), Stored::Inline(key)));
    }
    let mut cursor = RunCursor::new([table].into(), Feed::Pool(Touch::Point));
    for n in (0..4999).step_by(13) {
        for (at, number) in [(u64::MAX, n), (50, n), (49, n + 1), (0, n + 1)] {
            cursor.seek(&keys[n], Glsn(at)).unwrap();
            let version = cursor.current().unwrap();
            assert_eq!(
                (version.key, version.glsn),
                (&keys[number][..], Glsn(50)),
                "key {n} at {at}"
            );
        }
    }
}

#[test]
fn a_full_disk_is_an_error_that_leaves_no_file() {
    let budget = budget();
    let lying = LyingDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    let dir = Path::new("index");
    disk.create_dir(dir).unwrap();
    lying.fill_up(Some(200_000));
    let sink = RunFileSink::create(&disk, dir, 3, LOG, &budget).unwrap();
    let mut builder = TableBuilder::new(sink, &budget, false).unwrap();
    let key = |n: u64| n.to_be_bytes();
    let refused = (0..)
        .map(|n| builder.add(&Version { key: &key(n), glsn: Glsn(1), stored: Stored::Deleted }));
    let error = refused.take(1_000_000).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Io { kind: std::io::ErrorKind::StorageFull, .. }), "{error}");
    drop(builder);
    assert_eq!(disk.list(dir).unwrap(), []);
}

#[test]
fn a_run_file_round_trips_and_its_errors_name_file_and_page() {
    let mut random = Random::new(80);
    let budget = budget();
    let pool = pool(&budget);
    let folder = tempfile::tempdir().unwrap();
    for disk in [Arc::new(MemDisk::new()) as Arc<dyn Disk>, Arc::new(OsDisk::new())] {
        let dir = folder.path().join("index");
        let _ = disk.create_dir(folder.path().parent().unwrap());
        let _ = disk.create_dir(folder.path());
        disk.create_dir(&dir).unwrap();
        let model = random_model(&mut random, Shape::Mixed, 3000);
        let sink = RunFileSink::create(&disk, &dir, 12, LOG, &budget).unwrap();
        let mut builder = TableBuilder::new(sink, &budget, false).unwrap();
        versions(&model).for_each(|version| builder.add(&version).unwrap());
        let (sink, info) = builder.finish().unwrap();
        let (info, _) = sink.finish(info).unwrap();
        assert_eq!(disk.list(&dir).unwrap()[0].name, run_file_name(12));

        let table = open_run(&*disk, &dir, (&pool, &decoders(&budget)), LOG, info.clone()).unwrap();
        assert_eq!(read_info(&**table.file.source(), info.pages, info.id, &budget).unwrap(), info);
        let mut cursor = RunCursor::new([table.clone()].into(), Feed::Private(budget.clone()));
        for version in versions(&model) {
            cursor.next().unwrap();
            assert_eq!(cursor.current(), Some(version));
        }
        model.keys().step_by(10).for_each(|(key, glsn)| assert_lookup(&table, &model, key, glsn.0));
        assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);

        let path = dir.join(run_file_name(12));
        let file = disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap();
        file.write_at(&[0xee; 3], 2 * PAGE_BYTES as u64 + 99).unwrap();
        let problems = check_table(&table, &budget, &mut |_| ()).unwrap();
        assert!(
            problems[0].contains(&run_file_name(12)) && problems[0].contains("page 2"),
            "{problems:?}"
        );
        file.set_len(u64::from(info.pages - 1) * PAGE_BYTES as u64).unwrap();
        let opened = open_run(&*disk, &dir, (&pool, &decoders(&budget)), LOG, info);
        assert!(matches!(opened, Err(Error::Corrupt { .. })));
        drop((cursor, table));
    }
}

#[test]
fn warm_pages_are_announced_for_other_readers_with_small_gaps() {
    for readers in [Readers::Here, Readers::Others] {
        let budget = budget();
        let pool = pool(&budget);
        // Leave no free memory, so that only warm pages enter the pool.
        let _taken =
            budget.lease(Kind::Staging, budget.free_bytes() - budget.limit_bytes() / 8).unwrap();
        let lying = LyingDisk::new(1);
        let disk: Arc<dyn Disk> = Arc::new(lying.clone());
        let dir = Path::new("index");
        disk.create_dir(dir).unwrap();
        let sink = RunFileSink::create(&disk, dir, 3, LOG, &budget).unwrap().warm(&pool, readers);
        let mut builder = TableBuilder::new(sink, &budget, false).unwrap();
        for number in 0..100_000_u64 {
            let stored = Stored::Inline(&[7; 100]);
            builder.add(&Version { key: &number.to_be_bytes(), glsn: Glsn(1), stored }).unwrap();
            // The rows of one or two in every 27 leaves are hot.
            let warmth = if number % 4000 < 320 { Warmth::Hot } else { Warmth::Unread };
            builder.sink_mut().weigh(108, warmth);
        }
        let (sink, info) = builder.finish().unwrap();
        let (info, _pages) = sink.finish(info).unwrap();
        let (resident, announced) =
            (pool.stats().resident, lying.announced_bytes() / PAGE_BYTES as u64);
        assert!(
            (25..100).contains(&resident) && info.pages > 500,
            "{resident} of {} pages are warm",
            info.pages
        );
        match readers {
            Readers::Here => assert_eq!(announced, 0),
            // A group of leaves ends with its guide, and gaps between warm pages are announced as
            // well.
            Readers::Others => {
                assert!(
                    (resident..2 * resident).contains(&announced),
                    "{announced} of {resident} pages"
                )
            }
        }
    }
}

#[test]
fn a_run_of_another_log_or_with_another_name_is_refused() {
    let budget = budget();
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let dir = Path::new("index");
    disk.create_dir(dir).unwrap();
    let sink = RunFileSink::create(&disk, dir, 3, LOG, &budget).unwrap();
    let mut builder = TableBuilder::new(sink, &budget, false).unwrap();
    builder.add(&Version { key: b"0001k", glsn: Glsn(4), stored: Stored::Deleted }).unwrap();
    let (sink, info) = builder.finish().unwrap();
    let (info, _) = sink.finish(info).unwrap();
    let pool = pool(&budget);
    let read = |log_id, id| {
        let info = TableInfo { id: TableId::Run(id), ..info.clone() };
        let table = open_run(&*disk, dir, (&pool, &decoders(&budget)), log_id, info).unwrap();
        read_info(&**table.file.source(), table.info.pages, table.info.id, &budget)
    };
    assert_eq!(read(LOG, 3), Ok(info.clone()));
    assert!(matches!(read(LOG + 1, 3), Err(Error::Corrupt { .. })));
    disk.rename(&dir.join(run_file_name(3)), &dir.join(run_file_name(4))).unwrap();
    assert!(matches!(read(LOG, 4), Err(Error::Corrupt { .. })));
}

#[test]
fn only_exact_run_file_names_are_recognized() {
    assert_eq!(run_file_name(7), "00000000000000000007.run");
    assert_eq!(run_id_of("00000000000000000007.run"), Some(7));
    for name in [
        "7.run",
        "00000000000000000007",
        "+0000000000000000007.run",
        "0000000000000000000x.run",
        "LOCK",
    ] {
        assert_eq!(run_id_of(name), None, "{name}");
    }
}
