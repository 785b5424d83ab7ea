//! Tests packed tables: the same answers as an unpacked table, and every flipped byte is found.

use crate::index::run::packed::PackedFile;
use crate::index::run::plain::{RunFile, run_seed};
use crate::types::branch_key::user_keyspace;
use crate::types::compression::{Compression, HAS_ZSTD};
use crate::types::keyspaces::Keyspaces;

use super::*;

const DIR: &str = "index";

fn compressions() -> Vec<Compression> {
    let mut all = vec![Compression::None, Compression::Lz4];
    if HAS_ZSTD {
        all.extend([1, 19].map(Compression::Zstd));
    }
    all
}

/// Keyspaces of which one, that no test uses, has a compression, so that files are packed.
fn keyspaces(compressed: impl Iterator<Item = (u32, Compression)>) -> Arc<Keyspaces> {
    let keyspaces = Keyspaces::default();
    keyspaces.load_compression(u32::MAX - 7, Compression::Lz4);
    compressed.for_each(|(id, compression)| keyspaces.load_compression(id, compression));
    Arc::new(keyspaces)
}

fn disk() -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    disk.create_dir(Path::new(DIR)).unwrap();
    disk
}

/// Writes a packed table as run `id`.
fn pack<'a>(
    disk: &Arc<dyn Disk>,
    budget: &Budget,
    keyspaces: &Arc<Keyspaces>,
    versions: impl Iterator<Item = Version<'a>>,
) -> TableInfo {
    let sink = RunFileSink::create(disk, Path::new(DIR), 1, LOG, budget).unwrap();
    let sink = sink.compress(keyspaces, budget, &decoders(budget));
    let mut builder = TableBuilder::new(sink, budget, false).unwrap();
    versions.for_each(|version| builder.add(&version).unwrap());
    let (sink, info) = builder.finish().unwrap();
    let (info, file) = sink.finish(info).unwrap();
    assert!(info.packed.is_some() && file.is_none());
    info
}

fn open(disk: &Arc<dyn Disk>, budget: &Budget, pool: &Arc<Pool>, info: &TableInfo) -> Table {
    let pools = (pool, &decoders(budget));
    open_run(&**disk, Path::new(DIR), pools, LOG, info.clone()).unwrap()
}

fn file_bytes(disk: &Arc<dyn Disk>) -> Vec<u8> {
    let file = disk.open(&path(), Open::Read, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn path() -> std::path::PathBuf {
    Path::new(DIR).join(run_file_name(1))
}

/// Rows of 100 bytes, half of each random.
fn rows(count: u64) -> Model {
    let mut random = Random::new(7);
    (0..count)
        .map(|number| {
            let key = [&1_u32.to_be_bytes()[..], format!("{number:016x}").as_bytes()].concat();
            let mut value = vec![b'x'; 100];
            value[..50].fill_with(|| random.next_u64() as u8);
            let mut stored = Vec::new();
            Stored::Inline(&value).encode(&mut stored);
            ((key, Reverse(1)), stored)
        })
        .collect()
}

#[test]
fn a_packed_table_answers_like_an_unpacked_one() {
    let mut random = Random::new(81);
    let (budget, disk) = (budget(), disk());
    let pool = pool(&budget);
    for shape in SHAPES {
        let model = random_model(&mut random, shape, 2000);
        let (unpacked, expected) = build(&budget, versions(&model), false);
        for compression in compressions() {
            let ids = model.keys().map(|(key, _)| (user_keyspace(key), compression));
            let info = pack(&disk, &budget, &keyspaces(ids), versions(&model));
            assert_eq!(TableInfo { packed: None, ..info.clone() }, expected);
            let table = open(&disk, &budget, &pool, &info);
            assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
            let mut cursor = RunCursor::new([table.clone()].into(), Feed::Private(budget.clone()));
            for version in versions(&model) {
                cursor.next().unwrap();
                assert_eq!(cursor.current(), Some(version));
            }
            let keys = model.keys().step_by(7);
            keys.for_each(|(key, glsn)| assert_lookup(&table, &model, key, glsn.0));
            // Page by page and several at once, all pages are those of the unpacked table.
            let mut pages = vec![0; unpacked.len()];
            for (number, page) in (0..).zip(pages.chunks_mut(PAGE_BYTES)) {
                table.file.source().load(number, page).unwrap();
                let expected = &unpacked[number as usize * PAGE_BYTES..][..PAGE_BYTES];
                // The headers name different logs.
                assert!(number == 0 || page[8..] == expected[8..], "page {number}");
            }
            let mut run = vec![0; unpacked.len()];
            table.file.source().load_run(0, &mut run).unwrap();
            assert!(run == pages);
            drop((cursor, table));
            assert_found(&disk, &budget, &info);
            disk.remove(&path()).unwrap();
        }
    }
}

/// The file describes itself, without a manifest.
fn assert_found(disk: &Arc<dyn Disk>, budget: &Budget, info: &TableInfo) {
    let pools = (Access::Chunk, &decoders(budget));
    let found = FoundRun::open(&**disk, Path::new(DIR), LOG, 1, pools).unwrap();
    assert_eq!(found.pages, info.pages);
    assert_eq!(found.read_info(info.id, budget).unwrap(), *info);
    let bytes = file_bytes(disk);
    assert_eq!(bytes.len() as u64, info.file_bytes());
    assert_eq!(log_id_in(&bytes[..PAGE_BYTES], 1), Some(LOG));
    check_piece(LOG, &run_file_name(1), 0, &bytes).unwrap();
    check_piece(LOG, &run_file_name(1), PAGE_BYTES as u64, &bytes[PAGE_BYTES..]).unwrap();
    assert!(check_piece(LOG, &run_file_name(1), 0, &bytes[PAGE_BYTES..]).is_err());
}

#[test]
fn compressible_rows_take_about_half() {
    let (budget, model) = (budget(), rows(20_000));
    for compression in compressions() {
        let disk = disk();
        let keyspaces = keyspaces([(1, compression)].into_iter());
        let info = pack(&disk, &budget, &keyspaces, versions(&model));
        let part = info.file_bytes() as f64 / info.bytes() as f64;
        let expected = if compression == Compression::None { 1.0 } else { 0.57 };
        println!("{compression}: {part:.3}");
        assert!((expected - 0.1..expected + 0.06).contains(&part), "{compression}: {part}");
    }
}

#[test]
fn every_flipped_byte_of_a_packed_file_is_found() {
    let (budget, disk) = (budget(), disk());
    let pool = pool(&budget);
    let model = rows(700);
    for compression in compressions() {
        let keyspaces = keyspaces([(1, compression)].into_iter());
        let info = pack(&disk, &budget, &keyspaces, versions(&model));
        let file = disk.open(&path(), Open::ReadWrite, Caching::Buffered).unwrap();
        let bytes = file_bytes(&disk);
        // All bytes of the places that matter most, and some of the others.
        let ends = (0..200).chain(bytes.len() - 400..bytes.len());
        for at in ends.chain((200..bytes.len() - 400).step_by(97)) {
            file.write_at(&[bytes[at] ^ 1 << (at % 8)], at as u64).unwrap();
            let table = open(&disk, &budget, &pool, &info);
            let problems = check_table(&table, &budget, &mut |_| ()).unwrap();
            assert!(!problems.is_empty(), "{compression}: byte {at}");
            assert!(problems[0].contains(&run_file_name(1)), "{problems:?}");
            assert!(check_piece(LOG, &run_file_name(1), 0, &file_bytes(&disk)).is_err());
            file.write_at(&[bytes[at]], at as u64).unwrap();
        }
        let table = open(&disk, &budget, &pool, &info);
        assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
        drop(table);
        disk.remove(&path()).unwrap();
    }
}

#[test]
fn blocks_and_directories_of_another_file_are_damage() {
    let (budget, disk) = (budget(), disk());
    let pool = pool(&budget);
    let keyspaces = keyspaces([(1, Compression::Lz4)].into_iter());
    let model = rows(3000);
    let info = pack(&disk, &budget, &keyspaces, versions(&model));
    let file = disk.open(&path(), Open::ReadWrite, Caching::Buffered).unwrap();
    let bytes = file_bytes(&disk);
    // A block at the place of another one.
    file.write_at(&bytes[8192..12_288], 16_384).unwrap();
    let table = open(&disk, &budget, &pool, &info);
    assert!(!check_table(&table, &budget, &mut |_| ()).unwrap().is_empty());
    file.write_at(&bytes[16_384..20_480], 16_384).unwrap();
    // Sound blocks of a page whose directory entry leads to another page.
    let directory = bytes.len() - 2 * PAGE_BYTES;
    for copy in [directory, directory + PAGE_BYTES] {
        let mut page = bytes[copy..copy + PAGE_BYTES].to_vec();
        let entries = PAGE_HEADER_BYTES + 16;
        let third = page[entries + 12..entries + 16].to_vec();
        page[entries + 8..entries + 12].copy_from_slice(&third);
        let payload = page_payload(&page).len();
        let place = (copy / PAGE_BYTES) as u32;
        seal_page(&mut page, run_seed(LOG, 1), place, page_kind(&bytes[copy..]), payload);
        file.write_at(&page, copy as u64).unwrap();
    }
    let table = open(&disk, &budget, &pool, &info);
    let mut page = vec![0; PAGE_BYTES];
    for number in [2, 3] {
        let loaded = table.file.source().load(number, &mut page);
        assert!(matches!(loaded, Err(LoadError::Corrupt { .. })), "{loaded:?}");
    }
    table.file.source().load(1, &mut page).unwrap();
}

#[test]
fn the_second_copy_of_the_directory_replaces_a_damaged_first_one() {
    let (budget, disk) = (budget(), disk());
    let pool = pool(&budget);
    let keyspaces = keyspaces([(1, Compression::Lz4)].into_iter());
    let model = rows(3000);
    let info = pack(&disk, &budget, &keyspaces, versions(&model));
    let file = disk.open(&path(), Open::ReadWrite, Caching::Buffered).unwrap();
    let bytes = file_bytes(&disk);
    for copy in [1, 2] {
        let at = bytes.len() - copy * PAGE_BYTES + 100;
        file.write_at(&[bytes[at] ^ 1], at as u64).unwrap();
        let table = open(&disk, &budget, &pool, &info);
        model.keys().step_by(50).for_each(|(key, glsn)| {
            assert_lookup(&table, &model, key, glsn.0);
        });
        assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap().len(), 1);
        let pools = (Access::Chunk, &decoders(&budget));
        let found = FoundRun::open(&*disk, Path::new(DIR), LOG, 1, pools).unwrap();
        assert_eq!(found.read_info(info.id, &budget).unwrap(), info);
        file.write_at(&[bytes[at]], at as u64).unwrap();
    }
}

/// More pages than two pages of the directory describe.
#[test]
fn a_directory_of_several_pages_finds_every_page() {
    const PAGES: u32 = 9000;
    let (budget, disk) = (budget(), disk());
    let pool = pool(&budget);
    let model = rows(1);
    let (_, info) = build(&budget, versions(&model), false);
    let mut sink = RunFileSink::create(&disk, Path::new(DIR), 1, LOG, &budget).unwrap().compress(
        &keyspaces(std::iter::empty()),
        &budget,
        &decoders(&budget),
    );
    let make = |number: u32| {
        let mut page = vec![0; PAGE_BYTES];
        let bytes = 50 + number as usize % 700;
        page[PAGE_HEADER_BYTES..][..bytes].fill(number as u8);
        seal_page(&mut page, run_seed(LOG, 1), number, GUIDE_PAGE, bytes);
        page
    };
    (0..PAGES).for_each(|number| sink.write_page(&make(number)).unwrap());
    let info = TableInfo { pages: PAGES, ..info };
    let (info, _) = sink.finish(info).unwrap();
    let table = open(&disk, &budget, &pool, &info);
    let mut pages = vec![0; 8 * PAGE_BYTES];
    for first in (0..PAGES).step_by(8) {
        table.file.source().load_run(first, &mut pages).unwrap();
        for (number, page) in (first..).zip(pages.chunks(PAGE_BYTES)) {
            assert!(page == make(number), "page {number}");
        }
    }
    let file = RunFile::open(&*disk, Path::new(DIR), 1, LOG).unwrap();
    let packed = PackedFile::new(file, None, Access::Chunk, &decoders(&budget));
    for number in [0, 4087, 4088, 8175, 8176, PAGES - 1] {
        packed.load(number, &mut pages[..PAGE_BYTES]).unwrap();
        assert!(pages[..PAGE_BYTES] == make(number), "page {number}");
    }
    assert!(packed.load(PAGES, &mut pages[..PAGE_BYTES]).is_err());
    packed.check_rest().unwrap();
}

#[test]
fn each_leaf_is_compressed_as_its_own_keyspace() {
    let (budget, disk) = (budget(), disk());
    let mut model = rows(5000);
    let others: Vec<_> = model
        .iter()
        .map(|((key, glsn), stored)| {
            (([&2_u32.to_be_bytes()[..], &key[4..]].concat(), *glsn), stored.clone())
        })
        .collect();
    model.extend(others);
    let size = |compressed: &[u32]| {
        let ids = compressed.iter().map(|id| (*id, Compression::Lz4));
        let info = pack(&disk, &budget, &keyspaces(ids), versions(&model));
        disk.remove(&path()).unwrap();
        info.file_bytes()
    };
    let (none, first, second, both) = (size(&[]), size(&[1]), size(&[2]), size(&[1, 2]));
    assert!(both < first && first < none && second < none);
    assert!(first.abs_diff(second) < none / 50);
}

#[test]
fn warm_pages_of_a_packed_table_enter_the_pool_uncompressed() {
    let (budget, disk) = (budget(), disk());
    let pool = pool(&budget);
    let keyspaces = keyspaces([(1, Compression::Lz4)].into_iter());
    let model = rows(10_000);
    let sink = RunFileSink::create(&disk, Path::new(DIR), 1, LOG, &budget)
        .unwrap()
        .compress(&keyspaces, &budget, &decoders(&budget))
        .warm(&pool, Readers::Here);
    let mut builder = TableBuilder::new(sink, &budget, false).unwrap();
    for version in versions(&model) {
        builder.add(&version).unwrap();
        builder.sink_mut().weigh(120, Warmth::Hot);
    }
    let (sink, info) = builder.finish().unwrap();
    let (info, file) = sink.finish(info).unwrap();
    let table = Table { info: Arc::new(info), file: file.unwrap() };
    let resident = (0..table.info.pages).filter(|page| table.file.is_resident(*page)).count();
    assert!(resident as u32 > table.info.pages / 2, "{resident} of {}", table.info.pages);
    model.keys().step_by(50).for_each(|(key, glsn)| assert_lookup(&table, &model, key, glsn.0));
    assert_eq!(check_table(&table, &budget, &mut |_| ()).unwrap(), [""; 0]);
}

#[test]
fn the_shape_of_a_file_that_was_cut_or_extended_is_found() {
    let (budget, disk) = (budget(), disk());
    let model = rows(2000);
    let ids = keyspaces([(1, Compression::Lz4)].into_iter());
    let info = pack(&disk, &budget, &ids, versions(&model));
    let sound = file_bytes(&disk);
    let find = |bytes: &[u8]| {
        disk.remove(&path()).unwrap();
        let file = disk.open(&path(), Open::CreateNew, Caching::Buffered).unwrap();
        file.write_at(bytes, 0).unwrap();
        let file = RunFile::open(&*disk, Path::new(DIR), 1, LOG).unwrap();
        let shape =
            PackedFile::find_shape(&file).unwrap().expect("a copy of the directory is left");
        (shape.pages, Some(shape.file_pages))
    };
    let expected = (info.pages, info.packed);
    assert_eq!(find(&sound), expected);
    // The second copy of the directory is incomplete, or missing.
    for cut in [1, 4096, PAGE_BYTES] {
        assert_eq!(find(&sound[..sound.len() - cut]), expected, "without {cut} bytes");
    }
    for more in [1, PAGE_BYTES, 3 * PAGE_BYTES + 5] {
        let extended = [&sound[..], &vec![7; more]].concat();
        assert_eq!(find(&extended), expected, "with {more} bytes more");
    }
    // The first copy is damaged.
    let mut damaged = sound.clone();
    let first = sound.len() - 2 * PAGE_BYTES;
    damaged[first + 100] ^= 1;
    assert_eq!(find(&damaged), expected);
}

#[test]
fn the_second_copy_of_the_directory_replaces_one_that_cannot_be_read() {
    let (budget, lying) = (budget(), LyingDisk::new(1));
    let disk: Arc<dyn Disk> = Arc::new(lying.clone());
    disk.create_dir(Path::new(DIR)).unwrap();
    let pool = pool(&budget);
    let keyspaces = keyspaces([(1, Compression::Lz4)].into_iter());
    let info = pack(&disk, &budget, &keyspaces, versions(&rows(2000)));
    let table = open(&disk, &budget, &pool, &info);
    // The first read is that of the directory.
    lying.fail_read(1);
    let mut page = vec![0; PAGE_BYTES];
    table.file.source().load(1, &mut page).unwrap();
    assert!(!lying.fail_no_read(), "the read has failed");
    // Without a manifest, the last page is read first.
    lying.fail_read(1);
    let pools = (Access::Chunk, &decoders(&budget));
    let found = FoundRun::open(&*disk, Path::new(DIR), LOG, 1, pools).unwrap();
    assert!(!lying.fail_no_read(), "the read has failed");
    assert_eq!(found.read_info(info.id, &budget).unwrap(), info);
}
