//! Tests tables and their cursors against a plain map.

mod damage;
mod files;
mod lookups;
mod packed;
mod refusals;
mod size_and_speed;
mod surveys;
mod walks;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, check_page, page_kind, page_payload, seal_page,
};
use plimsoll_memory::pool::{LoadError, PageSource, Pool, Touch};

use crate::index::run::builder::{PageSink, TableBuilder};
use crate::index::run::check::check_table;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::ends::{check_blobs, check_footer, check_header};
use crate::index::run::file::{
    FoundRun, Readers, RunFileSink, check_piece, log_id_in, open_run, read_info, run_id_of,
};
use crate::index::run::guide::{GUIDE_PAGE, check_guide};
use crate::index::run::inner::{Inner, check_inner};
use crate::index::run::leaf::check::check_leaf;
use crate::index::run::leaf::{LEAF_PAGE, Leaf};
use crate::index::run::packed::{Access, Decoders};
use crate::index::run::table::{Table, TableId, TableInfo, run_file_name};
use crate::index::run::warmth::Warmth;
use crate::types::compression::{Codec, Packed};
use crate::types::error::{Error, Result};
use crate::types::index_key::MAX_INDEX_KEY_BYTES;
use crate::types::version::{INLINE_BYTES, Stored, Version};

const SEED: u64 = 77;
const LOG: u128 = 0x1234_5678_9abc_def0_1122_3344_5566_7788;

/// Keys ascending, one key's versions newest first; values encoded.
type Model = BTreeMap<(Vec<u8>, Reverse<u64>), Vec<u8>>;

/// Collects pages in memory.
#[derive(Debug, Default)]
struct Pages(Vec<u8>);

impl PageSink for Pages {
    fn id(&self) -> TableId {
        TableId::Run(1)
    }

    fn seed(&self) -> u64 {
        SEED
    }

    fn write_page(&mut self, page: &[u8]) -> Result<()> {
        self.0.extend_from_slice(page);
        Ok(())
    }
}

/// Pages in memory that a test may damage.
struct Source(Mutex<Vec<u8>>);

impl PageSource for Source {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let bytes = self.0.lock().unwrap();
        let at = number as usize * PAGE_BYTES;
        let corrupt = |what: &str| LoadError::Corrupt { message: format!("page {number}: {what}") };
        page.copy_from_slice(bytes.get(at..at + PAGE_BYTES).ok_or_else(|| corrupt("not there"))?);
        check_page(page, SEED, number).map_err(corrupt)
    }
}

fn budget() -> Budget {
    Budget::new(16 << 20, Backing::Heap).unwrap()
}

fn decoders(budget: &Budget) -> Arc<Decoders> {
    Arc::new(Decoders::new(budget))
}

fn pool(budget: &Budget) -> Arc<Pool> {
    Pool::new(budget, 1 << 20).unwrap()
}

fn versions(model: &Model) -> impl DoubleEndedIterator<Item = Version<'_>> {
    model.iter().map(|((key, glsn), stored)| Version {
        key,
        glsn: Glsn(glsn.0),
        stored: Stored::decode(stored).unwrap(),
    })
}

fn build<'a>(
    budget: &Budget,
    versions: impl Iterator<Item = Version<'a>>,
    pending: bool,
) -> (Vec<u8>, TableInfo) {
    let mut builder = TableBuilder::new(Pages::default(), budget, pending).unwrap();
    versions.for_each(|version| builder.add(&version).unwrap());
    let (pages, info) = builder.finish().unwrap();
    (pages.0, info)
}

fn open(pool: &Arc<Pool>, pages: Vec<u8>, info: TableInfo) -> Table {
    let source = Arc::new(Source(Mutex::new(pages)));
    Table { info: Arc::new(info), file: pool.attach(source) }
}

fn table_of(budget: &Budget, pool: &Arc<Pool>, model: &Model) -> Table {
    let (pages, info) = build(budget, versions(model), false);
    open(pool, pages, info)
}

/// Shapes of keys that tables must support.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Integers,
    Paths,
    Long,
    Tiny,
    ManyVersions,
    Mixed,
}

const SHAPES: [Shape; 6] =
    [Shape::Integers, Shape::Paths, Shape::Long, Shape::Tiny, Shape::ManyVersions, Shape::Mixed];

fn random_key(random: &mut Random, shape: Shape) -> Vec<u8> {
    let mut key = (random.below(2) as u32).to_be_bytes().to_vec();
    match shape {
        Shape::Integers => key.extend(random.below(1 << 40).to_be_bytes()),
        Shape::Paths => {
            for _ in 0..1 + random.below(6) {
                key.extend(format!("directory{}/", random.below(4)).bytes());
            }
            key.extend(format!("file{}", random.below(3000)).bytes());
        }
        Shape::Long => {
            // Prefixes nearly as long as the longest key: a few shared by many keys, and some
            // shared by none.
            let mut front = [random.below(3) as u8; 4080];
            if random.below(3) == 0 {
                front.fill_with(|| random.below(256) as u8);
            }
            key.extend(&front[..4080 - random.below(3) as usize * 2000]);
            key.extend((random.below(900) as u16).to_be_bytes());
            key.resize(key.len() + random.below(15) as usize, 7);
        }
        Shape::Tiny => (0..random.below(4)).for_each(|_| key.push(random.below(256) as u8)),
        Shape::ManyVersions => key.push(random.below(3) as u8),
        Shape::Mixed => {
            let shape = SHAPES[random.below(5) as usize];
            return random_key(random, shape);
        }
    }
    assert!(key.len() <= MAX_INDEX_KEY_BYTES);
    key
}

fn random_stored(random: &mut Random) -> Vec<u8> {
    let value = vec![random.below(256) as u8; random.below(INLINE_BYTES as u64 + 1) as usize];
    let (offset, len) = (random.below(1 << 33), random.below(1 << 30));
    let stored = match random.below(20) {
        0 => Stored::Deleted,
        1 => Stored::Inline(&value),
        2 => Stored::InLog { offset, len, sum: offset, packed: None },
        3 => {
            let blob = BlobId(random.below(9));
            let stored = |packed| Stored::InBlob { blob, offset, len, sum: len, packed };
            let packed = stored(Some(Packed { codec: Codec::Zstd, value_bytes: 2 * len }));
            if packed.has_possible_lengths() { packed } else { stored(None) }
        }
        _ => Stored::Inline(&value[..value.len() / 100]),
    };
    let mut bytes = Vec::new();
    stored.encode(&mut bytes);
    bytes
}

fn random_model(random: &mut Random, shape: Shape, versions: usize) -> Model {
    let mut model = Model::new();
    let magnitude = 1 + random.below(40);
    let newest = 1 + random.below(1 << magnitude);
    while model.len() < versions {
        let key = random_key(random, shape);
        for _ in 0..1 + random.below(3) {
            model.insert(
                (key.clone(), Reverse(1 + random.below(newest + versions as u64))),
                random_stored(random),
            );
        }
    }
    model
}

/// The expected result of a lookup: the newest GLSN of all, and the newest version as of `at`.
fn expected<'a>(model: &'a Model, key: &[u8], at: u64) -> (Option<u64>, Option<(u64, &'a [u8])>) {
    let first_at = |glsn: u64| {
        let (found, stored) = model.range((key.to_vec(), Reverse(glsn))..).next()?;
        (found.0 == key).then_some((found.1.0, &stored[..]))
    };
    (first_at(u64::MAX).map(|(glsn, _)| glsn), first_at(at))
}

fn assert_lookup(table: &Table, model: &Model, key: &[u8], at: u64) {
    let lookup = table.lookup(key, Glsn(at), Touch::Point).unwrap();
    let (newest, found) = expected(model, key, at);
    assert_eq!(lookup.newest, newest.map(Glsn), "{key:02x?} at {at}");
    let found = found.map(|(glsn, stored)| (glsn, Stored::decode(stored).unwrap()));
    for got in [lookup.found, table.find_as_of(key, Glsn(at), Touch::Point).unwrap().0] {
        assert_eq!(got.as_ref().map(|got| (got.glsn.0, got.stored())), found, "{key:02x?} at {at}");
    }
}

fn integer_pair(key: &mut [u8; 12], n: u64) -> [u8; 8] {
    key[3] = 1;
    key[4..].copy_from_slice(&n.to_be_bytes());
    n.to_be_bytes()
}

fn build_integers(budget: &Budget, numbers: impl Iterator<Item = u64>) -> (Vec<u8>, TableInfo) {
    let (pages, info) = write_integers(Pages::default(), budget, numbers);
    (pages.0, info)
}

fn write_integers<S: PageSink>(
    sink: S,
    budget: &Budget,
    numbers: impl Iterator<Item = u64>,
) -> (S, TableInfo) {
    let mut builder = TableBuilder::new(sink, budget, false).unwrap();
    let mut key = [0; 12];
    for n in numbers {
        let value = integer_pair(&mut key, n);
        builder.add(&Version { key: &key, glsn: Glsn(1), stored: Stored::Inline(&value) }).unwrap();
    }
    builder.finish().unwrap()
}

fn random_numbers(count: usize) -> Vec<u64> {
    let mut random = Random::new(9);
    let mut numbers: Vec<_> = (0..count).map(|_| random.next_u64()).collect();
    numbers.sort_unstable();
    numbers
}
