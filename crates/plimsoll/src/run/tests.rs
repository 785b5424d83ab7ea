//! What partitions and their cursors promise, against a plain map.

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
use plimsoll_log::glsn::Glsn;
use plimsoll_log::side::SideId;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload, seal_page};
use plimsoll_memory::pool::{LoadError, PageSource, Pool, Touch};

use crate::error::{Error, Result};
use crate::run::builder::{PageSink, PartitionBuilder};
use crate::run::check::check_partition;
use crate::run::cursor::{Feed, RunCursor};
use crate::run::ends::{check_footer, check_header, check_sides};
use crate::run::file::{RunFileSink, open_run, read_info, run_file_name, run_id_of};
use crate::run::guide::{GUIDE_PAGE, check_guide};
use crate::run::inner::{Inner, check_inner};
use crate::run::leaf::{LEAF_PAGE, Leaf, check_leaf};
use crate::run::partition::{Partition, PartitionId, PartitionInfo};
use crate::version::{INLINE_BYTES, MAX_INDEX_KEY_BYTES, Stored, Version};

const SEED: u64 = 77;
const LOG: u128 = 0x1234_5678_9abc_def0_1122_3344_5566_7788;

/// Keys ascending, one key's versions newest first; values encoded.
type Model = BTreeMap<(Vec<u8>, Reverse<u64>), Vec<u8>>;

/// Collects pages in memory.
#[derive(Debug, Default)]
struct Pages(Vec<u8>);

impl PageSink for Pages {
    fn id(&self) -> PartitionId {
        PartitionId::Run(1)
    }

    fn seed(&self) -> u64 {
        SEED
    }

    fn write_page(&mut self, page: &[u8]) -> Result<()> {
        self.0.extend_from_slice(page);
        Ok(())
    }
}

/// Pages in memory, which a test may spoil.
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

fn build<'a>(budget: &Budget, versions: impl Iterator<Item = Version<'a>>, pending: bool) -> (Vec<u8>, PartitionInfo) {
    let mut builder = PartitionBuilder::new(Pages::default(), budget, pending).unwrap();
    versions.for_each(|version| builder.add(&version).unwrap());
    let (pages, info) = builder.finish().unwrap();
    (pages.0, info)
}

fn open(pool: &Arc<Pool>, pages: Vec<u8>, info: PartitionInfo) -> Partition {
    let source = Arc::new(Source(Mutex::new(pages)));
    Partition { info: Arc::new(info), file: pool.attach(source) }
}

fn partition_of(budget: &Budget, pool: &Arc<Pool>, model: &Model) -> Partition {
    let (pages, info) = build(budget, versions(model), false);
    open(pool, pages, info)
}

/// The shapes of keys that partitions must be good at.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Integers,
    Paths,
    Long,
    Tiny,
    ManyVersions,
    Mixed,
}

const SHAPES: [Shape; 6] = [Shape::Integers, Shape::Paths, Shape::Long, Shape::Tiny, Shape::ManyVersions, Shape::Mixed];

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
            // Fronts that are nearly as long as a key may be: a few that many keys share, and some that none does.
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
        2 => Stored::InLog { offset, len },
        3 => Stored::InSide { side: SideId(random.below(9)), offset, len },
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
            model.insert((key.clone(), Reverse(1 + random.below(newest + versions as u64))), random_stored(random));
        }
    }
    model
}

/// What a look-up must find: the newest GLSN of all, and the newest version at a moment.
fn expected<'a>(model: &'a Model, key: &[u8], at: u64) -> (Option<u64>, Option<(u64, &'a [u8])>) {
    let first_at = |glsn: u64| {
        let (found, stored) = model.range((key.to_vec(), Reverse(glsn))..).next()?;
        (found.0 == key).then_some((found.1.0, &stored[..]))
    };
    (first_at(u64::MAX).map(|(glsn, _)| glsn), first_at(at))
}

fn assert_lookup(partition: &Partition, model: &Model, key: &[u8], at: u64) {
    let lookup = partition.lookup(key, Glsn(at), Touch::Point).unwrap();
    let (newest, found) = expected(model, key, at);
    assert_eq!(lookup.newest, newest.map(Glsn), "{key:02x?} at {at}");
    let got = lookup.found.as_ref().map(|found| (found.glsn.0, found.stored()));
    assert_eq!(got, found.map(|(glsn, stored)| (glsn, Stored::decode(stored).unwrap())), "{key:02x?} at {at}");
}

#[test]
fn every_version_is_found_at_every_moment_and_nothing_else() {
    for (seed, shape) in (0..).zip(SHAPES) {
        let mut random = Random::new(seed);
        let budget = budget();
        let pool = pool(&budget);
        let model = random_model(&mut random, shape, 3000);
        let partition = partition_of(&budget, &pool, &model);
        println!("{shape:?}: seed {seed}, {} pages", partition.info.pages);
        for (key, glsn) in model.keys() {
            for at in [glsn.0, glsn.0 - 1, glsn.0.saturating_add(1), 0, u64::MAX] {
                assert_lookup(&partition, &model, key, at);
            }
        }
        for _ in 0..3000 {
            let mut key = random_key(&mut random, shape);
            key.truncate(key.len() - random.below(2) as usize);
            assert_lookup(&partition, &model, &key, random.below(1 << 42));
        }
    }
}

#[test]
fn a_partition_of_one_version_is_whole() {
    let (budget, mut random) = (budget(), Random::new(5));
    let pool = pool(&budget);
    for key in [&[][..], &[0, 0, 0, 1], &[9; MAX_INDEX_KEY_BYTES]] {
        let model = Model::from([((key.to_vec(), Reverse(7)), random_stored(&mut random))]);
        let partition = partition_of(&budget, &pool, &model);
        assert_lookup(&partition, &model, key, 7);
        assert_lookup(&partition, &model, key, 6);
        assert_lookup(&partition, &model, &[1], 7);
        assert_eq!(check_partition(&partition, &budget, &mut || ()).unwrap(), [""; 0]);
    }
}

#[test]
fn the_largest_versions_make_a_deep_tree_in_which_all_is_found() {
    const COUNT: u64 = 27_000;
    let budget = budget();
    let pool = pool(&budget);
    let version = |n: u64, key: &mut Vec<u8>| {
        key.resize(MAX_INDEX_KEY_BYTES - 8, 7);
        key.extend((n / 3).to_be_bytes());
        Glsn(COUNT - n)
    };
    let (value, mut key) = ([3; INLINE_BYTES], Vec::new());
    let mut builder = PartitionBuilder::new(Pages::default(), &budget, false).unwrap();
    for n in 0..COUNT {
        key.clear();
        let glsn = version(n, &mut key);
        builder.add(&Version { key: &key, glsn, stored: Stored::Inline(&value) }).unwrap();
    }
    let (pages, info) = builder.finish().unwrap();
    let partition = open(&pool, pages.0, info);
    assert!(height(&partition) >= 5, "the tree is only {} high", height(&partition));
    for n in (0..COUNT).step_by(7) {
        key.clear();
        let glsn = version(n, &mut key);
        let found = partition.lookup(&key, glsn, Touch::Point).unwrap().found.unwrap();
        assert_eq!((found.glsn, found.stored()), (glsn, Stored::Inline(&value)));
        key.push(0);
        assert!(partition.lookup(&key, glsn, Touch::Point).unwrap().newest.is_none());
    }
    assert_eq!(check_partition(&partition, &budget, &mut || ()).unwrap(), [""; 0]);
}

#[test]
fn the_versions_of_one_key_may_fill_several_guides() {
    let (budget, mut model) = (budget(), Model::new());
    let pool = pool(&budget);
    let mut stored = Vec::new();
    Stored::Inline(&[3; INLINE_BYTES]).encode(&mut stored);
    for (byte, count) in [(4, 10), (5, 900), (6, 10)] {
        (0..count)
            .for_each(|n| drop(model.insert((vec![byte; MAX_INDEX_KEY_BYTES], Reverse(10 + n * 2)), stored.clone())));
    }
    let partition = partition_of(&budget, &pool, &model);
    assert!(height(&partition) >= 1, "one guide holds all leaves");
    for at in 0..10 + 2 * 900 {
        [4, 5, 6].iter().for_each(|&byte| assert_lookup(&partition, &model, &[byte; MAX_INDEX_KEY_BYTES], at));
    }
    let mut cursor = RunCursor::new([partition.clone()].into(), Feed::Pool(Touch::Point));
    for version in versions(&model) {
        for glsn in [version.glsn, version.glsn.next()] {
            cursor.seek(version.key, glsn).unwrap();
            assert_eq!(cursor.current(), Some(version));
        }
    }
    assert_eq!(check_partition(&partition, &budget, &mut || ()).unwrap(), [""; 0]);
}

fn height(partition: &Partition) -> usize {
    let page = partition.file.get(partition.info.root, Touch::Point).unwrap();
    Inner::new(page_payload(&page)).map_or(0, |inner| inner.height())
}

/// A run of several partitions, cut between keys.
fn run_of(budget: &Budget, pool: &Arc<Pool>, model: &Model, cuts: usize) -> Arc<[Partition]> {
    let mut parts = vec![Model::new()];
    for ((key, glsn), stored) in model {
        let part = parts.last_mut().unwrap();
        let is_new_key = part.keys().next_back().is_none_or(|(last, _)| last != key);
        if part.len() > model.len() / (cuts + 1) && is_new_key {
            parts.push(Model::new());
        }
        parts.last_mut().unwrap().insert((key.clone(), *glsn), stored.clone());
    }
    parts.iter().map(|part| partition_of(budget, pool, part)).collect()
}

fn feeds(budget: &Budget) -> [Feed; 3] {
    [Feed::Pool(Touch::Point), Feed::Pool(Touch::Scan), Feed::Private(budget.clone())]
}

#[test]
fn cursors_walk_everything_both_ways_on_every_feed() {
    for (seed, shape) in (10..).zip(SHAPES) {
        let mut random = Random::new(seed);
        let budget = budget();
        let pool = pool(&budget);
        let model = random_model(&mut random, shape, 2000);
        let run = run_of(&budget, &pool, &model, seed as usize % 3);
        for feed in feeds(&budget) {
            println!("{shape:?}: seed {seed}, {} partitions, {feed:?}", run.len());
            let mut cursor = RunCursor::new(Arc::clone(&run), feed);
            assert_eq!(cursor.current(), None);
            cursor.seek_first().unwrap();
            for version in versions(&model) {
                assert_eq!(cursor.current(), Some(version));
                cursor.next().unwrap();
            }
            assert_eq!(cursor.current(), None);
            cursor.next().unwrap();
            assert_eq!(cursor.current(), None, "behind the last it stays there");
            for version in versions(&model).rev() {
                cursor.prev().unwrap();
                assert_eq!(cursor.current(), Some(version));
            }
            cursor.prev().unwrap();
            assert_eq!(cursor.current(), None);
            cursor.next().unwrap();
            assert_eq!(cursor.current(), versions(&model).next(), "from before the first it comes back");
            cursor.seek_last().unwrap();
            assert_eq!(cursor.current(), versions(&model).next_back());
        }
    }
}

#[test]
fn a_seek_finds_its_place_from_anywhere_and_the_walk_goes_on_from_there() {
    for (seed, shape) in (20..).zip(SHAPES) {
        let mut random = Random::new(seed);
        println!("{shape:?}: seed {seed}");
        let budget = budget();
        let pool = pool(&budget);
        let model = random_model(&mut random, shape, 2000);
        let run = run_of(&budget, &pool, &model, 2);
        let keys: Vec<_> = model.keys().cloned().collect();
        for feed in feeds(&budget) {
            let mut cursor = RunCursor::new(Arc::clone(&run), feed);
            for round in 0..400 {
                let (mut key, Reverse(mut glsn)) = keys[random.below(keys.len() as u64) as usize].clone();
                match round % 4 {
                    0 => glsn = random.next_u64() >> random.below(64),
                    1 => key = random_key(&mut random, shape),
                    2 => key.push(0),
                    _ => {}
                }
                let sought = (key.clone(), Reverse(glsn));
                let mut behind = versions_from(&model, &sought);
                let mut before = versions_before(&model, &sought);
                cursor.seek_before(&key, Glsn(glsn)).unwrap();
                assert_eq!(cursor.current(), before.next(), "before {key:02x?} at {glsn}");
                cursor.seek(&key, Glsn(glsn)).unwrap();
                assert_eq!(cursor.current(), behind.next(), "{key:02x?} at {glsn}");
                for _ in 0..random.below(40) {
                    cursor.next().unwrap();
                    assert_eq!(cursor.current(), behind.next());
                }
            }
        }
    }
}

fn versions_from<'a>(model: &'a Model, sought: &(Vec<u8>, Reverse<u64>)) -> impl Iterator<Item = Version<'a>> {
    model.range(sought.clone()..).map(to_version)
}

fn versions_before<'a>(model: &'a Model, sought: &(Vec<u8>, Reverse<u64>)) -> impl Iterator<Item = Version<'a>> {
    model.range(..sought.clone()).rev().map(to_version)
}

fn to_version<'a>(((key, glsn), stored): (&'a (Vec<u8>, Reverse<u64>), &'a Vec<u8>)) -> Version<'a> {
    Version { key, glsn: Glsn(glsn.0), stored: Stored::decode(stored).unwrap() }
}

#[test]
fn what_is_known_of_a_partition_is_true_and_stands_in_its_file() {
    for (seed, shape) in (30..).zip(SHAPES) {
        let mut random = Random::new(seed);
        let budget = budget();
        let model = random_model(&mut random, shape, 1000);
        let (pages, info) = build(&budget, versions(&model), false);
        let of_kind = |tag: u8| model.iter().filter(move |(_, stored)| stored[0] == tag);
        assert_eq!((info.versions, info.deletions), (1000.max(model.len() as u64), of_kind(0).count() as u64));
        assert_eq!(info.first_key, model.keys().next().unwrap().0);
        assert_eq!(info.last_key, model.keys().next_back().unwrap().0);
        assert_eq!(Some(info.min_glsn.0), model.keys().map(|(_, glsn)| glsn.0).min());
        assert_eq!(Some(info.max_glsn.0), model.keys().map(|(_, glsn)| glsn.0).max());
        assert_eq!(info.min_pointer, of_kind(2).map(|((_, glsn), _)| Glsn(glsn.0)).min());
        let mut sides: Vec<_> = versions(&model)
            .filter_map(|version| match version.stored {
                Stored::InSide { side, .. } => Some(side),
                _ => None,
            })
            .collect();
        sides.sort_unstable();
        sides.dedup();
        assert_eq!(info.sides, sides);
        assert_eq!(info.fixed_glsn, None);
        assert_eq!(pages.len(), info.pages as usize * PAGE_BYTES);
        let file = open(&pool(&budget), pages, info.clone()).file;
        let source = file.source();
        assert_eq!(read_info(&**source, info.pages, info.id, &budget).unwrap(), info);
        assert!(read_info(&**source, info.pages - 1, info.id, &budget).is_err());
        assert!(read_info(&**source, info.pages, PartitionId::Run(2), &budget).is_err());
    }
}

#[test]
fn a_partition_may_point_into_more_side_files_than_a_page_lists() {
    let budget = budget();
    let pool = pool(&budget);
    let mut builder = PartitionBuilder::new(Pages::default(), &budget, false).unwrap();
    for n in 0..20_000 {
        let stored = Stored::InSide { side: SideId((n * 7919) % 20_000 * 1_000_003), offset: n, len: 1 };
        builder.add(&Version { key: &n.to_be_bytes(), glsn: Glsn(1), stored }).unwrap();
    }
    let (pages, info) = builder.finish().unwrap();
    assert!(info.sides.iter().map(|side| side.0).eq((0..20_000).map(|n| n * 1_000_003)));
    let partition = open(&pool, pages.0, info);
    assert_eq!(check_partition(&partition, &budget, &mut || ()).unwrap(), [""; 0]);
}

#[test]
fn versions_without_a_glsn_all_have_the_one_that_their_partition_gets() {
    let budget = budget();
    let pool = pool(&budget);
    let keys: Vec<_> = (0..5000u64).map(|n| (n * 2).to_be_bytes()).collect();
    let pending = keys.iter().map(|key| Version { key, glsn: Glsn::NONE, stored: Stored::Inline(key) });
    let (pages, mut info) = build(&budget, pending, true);
    assert_eq!((info.min_glsn, info.max_glsn), (Glsn::NONE, Glsn::NONE));
    (info.min_glsn, info.max_glsn, info.fixed_glsn) = (Glsn(50), Glsn(50), Some(Glsn(50)));
    let partition = open(&pool, pages, info);
    assert_eq!(check_partition(&partition, &budget, &mut || ()).unwrap(), [""; 0]);
    for key in keys.iter().step_by(11) {
        let lookup = |at| partition.lookup(key, Glsn(at), Touch::Point).unwrap();
        assert_eq!(lookup(49).newest, Some(Glsn(50)));
        assert!(lookup(49).found.is_none());
        let found = lookup(50).found.unwrap();
        assert_eq!((found.glsn, found.stored()), (Glsn(50), Stored::Inline(key)));
    }
    let mut cursor = RunCursor::new([partition].into(), Feed::Pool(Touch::Point));
    for n in (0..4999).step_by(13) {
        for (at, number) in [(u64::MAX, n), (50, n), (49, n + 1), (0, n + 1)] {
            cursor.seek(&keys[n], Glsn(at)).unwrap();
            let version = cursor.current().unwrap();
            assert_eq!((version.key, version.glsn), (&keys[number][..], Glsn(50)), "key {n} at {at}");
        }
    }
}

fn integer_pair(key: &mut [u8; 12], n: u64) -> [u8; 8] {
    key[3] = 1;
    key[4..].copy_from_slice(&n.to_be_bytes());
    n.to_be_bytes()
}

fn build_integers(budget: &Budget, numbers: impl Iterator<Item = u64>) -> (Vec<u8>, PartitionInfo) {
    let (pages, info) = write_integers(Pages::default(), budget, numbers);
    (pages.0, info)
}

fn write_integers<S: PageSink>(sink: S, budget: &Budget, numbers: impl Iterator<Item = u64>) -> (S, PartitionInfo) {
    let mut builder = PartitionBuilder::new(sink, budget, false).unwrap();
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

#[test]
fn a_pair_of_integers_takes_few_bytes() {
    let budget = budget();
    // Random keys differ in more bytes the fewer there are: here 300,000 of 56 bits, as dense as 60 million of 64 bits.
    let random = random_numbers(300_000);
    for (name, in_leaves, in_all, numbers) in [
        ("consecutive", 13.0, 14.5, (0..300_000).collect()),
        ("random", 17.0, 18.5, random.iter().map(|n| n >> 8).collect::<Vec<_>>()),
    ] {
        let (pages, info) = build_integers(&budget, numbers.into_iter());
        let leaf_bytes: usize =
            pages.chunks_exact(PAGE_BYTES).filter(|page| page_kind(page) == LEAF_PAGE).map(<[u8]>::len).sum();
        let (leaf, all) = (leaf_bytes as f64 / info.versions as f64, pages.len() as f64 / info.versions as f64);
        println!("{name}: {leaf:.2} bytes per pair in leaves, {all:.2} with all that leads to it");
        assert!(leaf <= in_leaves && all <= in_all, "{name}: {leaf} and {all}");
    }
}

#[test]
fn absent_keys_hardly_ever_cost_a_leaf_and_present_ones_one() {
    let budget = budget();
    let pool = pool(&budget);
    let (pages, info) = build_integers(&budget, (0..200_000).map(|n| n * 2));
    let partition = open(&pool, pages, info);
    let height = height(&partition) as u64;
    let leaves_touched = |offset: u64| {
        let pages_touched = || pool.stats().hits + pool.stats().loads;
        let (before, mut key) = (pages_touched(), [0; 12]);
        for n in 0..100_000 {
            integer_pair(&mut key, n * 4 + offset);
            assert_eq!(partition.lookup(&key, Glsn::MAX, Touch::Point).unwrap().found.is_some(), offset == 0);
        }
        pages_touched() - before - 100_000 * (height + 1)
    };
    assert_eq!(leaves_touched(0), 100_000);
    let wrong = leaves_touched(1);
    println!("{wrong} of 100000 absent keys pass");
    assert!(wrong <= 1500, "{wrong} of 100000");
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_or_changes_no_answer() {
    let mut random = Random::new(40);
    let budget = budget();
    let pool = pool(&budget);
    let model = random_model(&mut random, Shape::Paths, 60);
    let (pages, info) = build(&budget, versions(&model), false);
    assert!(info.pages <= 5, "every byte is tried: few pages suffice");
    let keys: Vec<_> = model.keys().cloned().collect();
    for at in 0..pages.len() {
        let mut spoiled = pages.clone();
        spoiled[at] ^= 1 << random.below(8);
        let partition = open(&pool, spoiled, info.clone());
        assert!(!check_partition(&partition, &budget, &mut || ()).unwrap().is_empty(), "byte {at}");
        let (key, glsn) = &keys[random.below(keys.len() as u64) as usize];
        match partition.lookup(key, Glsn(glsn.0), Touch::Point) {
            Ok(_) => assert_lookup(&partition, &model, key, glsn.0),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
        let mut cursor = RunCursor::new([partition].into(), Feed::Private(budget.clone()));
        for version in versions(&model) {
            if cursor.next().is_err() {
                assert_eq!(cursor.current(), None);
                break;
            }
            assert_eq!(cursor.current(), Some(version), "byte {at}");
        }
    }
}

#[test]
fn a_short_walk_warms_its_pages_and_a_long_one_does_not() {
    let budget = budget();
    let pool = pool(&budget);
    let (pages, info) = build_integers(&budget, 0..100_000);
    let last_leaf = info.root - 1;
    let partition = open(&pool, pages, info);
    let walk = |feed| {
        let mut cursor = RunCursor::new([partition.clone()].into(), feed);
        cursor.seek_first().unwrap();
        while cursor.current().is_some() {
            cursor.next().unwrap();
        }
    };
    let loads = pool.stats().loads;
    walk(Feed::Private(budget.clone()));
    assert_eq!(pool.stats().loads, loads, "a private feed leaves the pool alone");
    for _ in 0..3 {
        walk(Feed::Pool(Touch::Point));
    }
    assert!(partition.file.is_hot(1), "the first leaf was touched by three short walks");
    assert!((last_leaf - 20..=last_leaf).all(|page| !partition.file.is_hot(page)));
    for _ in 0..3 {
        walk(Feed::Pool(Touch::Scan));
    }
    assert!((20..last_leaf).all(|page| !partition.file.is_hot(page)));
}

#[test]
fn a_walk_that_goes_to_and_fro_warms_its_pages_no_more_than_one_that_goes_on() {
    let budget = budget();
    let pool = pool(&budget);
    let (pages, info) = build_integers(&budget, 0..10_000);
    let partition = open(&pool, pages, info);
    let mut cursor = RunCursor::new([partition.clone()].into(), Feed::Pool(Touch::Point));
    cursor.seek_first().unwrap();
    // To and fro over the end of the first leaf.
    while pool.stats().loads < 2 {
        cursor.next().unwrap();
    }
    for _ in 0..5 {
        cursor.prev().unwrap();
        cursor.next().unwrap();
    }
    assert!((1..3).all(|page| !partition.file.is_hot(page)));
    // Another walk over them is another operation.
    cursor.seek_first().unwrap();
    assert!(partition.file.is_hot(1) && !partition.file.is_hot(2));
}

#[test]
fn a_private_feed_reads_partitions_of_any_number_of_pages() {
    let budget = budget();
    let pool = pool(&budget);
    for count in (1..40_000).step_by(1300) {
        let (pages, info) = build_integers(&budget, 0..count);
        let mut cursor = RunCursor::new([open(&pool, pages, info)].into(), Feed::Private(budget.clone()));
        let standing = |cursor: &RunCursor| cursor.current().map(|version| version.key[4..].to_vec());
        for n in 0..count {
            cursor.next().unwrap();
            assert_eq!(standing(&cursor).unwrap(), n.to_be_bytes());
        }
        cursor.next().unwrap();
        for n in (0..count).rev() {
            cursor.prev().unwrap();
            assert_eq!(standing(&cursor).unwrap(), n.to_be_bytes());
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
    let mut builder = PartitionBuilder::new(sink, &budget, false).unwrap();
    let key = |n: u64| n.to_be_bytes();
    let refused = (0..).map(|n| builder.add(&Version { key: &key(n), glsn: Glsn(1), stored: Stored::Deleted }));
    let error = refused.take(1_000_000).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Io { kind: std::io::ErrorKind::StorageFull, .. }), "{error}");
    drop(builder);
    assert_eq!(disk.list(dir).unwrap(), []);
}

#[test]
fn verification_sees_what_a_checksum_cannot() {
    let budget = budget();
    let (pages, info) = build_integers(&budget, 0..20_000);
    let problems_of = |pages: Vec<u8>, info: PartitionInfo| {
        let partition = open(&pool(&budget), pages, info);
        check_partition(&partition, &budget, &mut || ()).unwrap().join("; ")
    };
    let changed = |page: u32, at: usize, byte: u8| {
        let mut pages = pages.clone();
        let bytes = &mut pages[page as usize * PAGE_BYTES..][..PAGE_BYTES];
        bytes[16 + at] = byte;
        let (kind, len) = (page_kind(bytes), page_payload(bytes).len());
        seal_page(bytes, SEED, page, kind, len);
        pages
    };
    let kinds: Vec<_> = pages.chunks_exact(PAGE_BYTES).map(page_kind).collect();
    let guide = kinds.iter().position(|&kind| kind == GUIDE_PAGE).unwrap() as u32;
    let footer = info.pages - 1;
    assert_eq!(problems_of(pages.clone(), info.clone()), "");
    for (page, at, byte, problem) in [
        (guide, 48 + 64 * 100, 0, "does not pass the filter"),
        (guide, 4, 2, "does not stand behind its leaves"),
        (guide, 8, 0, "counts other keys"),
        (info.root, 2, 9, "another kind than its parent says"),
        (info.root, 2, 200, "height"),
        (1, 0, 1, "the leaf"),
        (footer, 8, 0xff, "the manifest"),
        (0, 33, 9, "the header of run 9"),
        (0, 41, 1, "does not agree with the file"),
    ] {
        let problems = problems_of(changed(page, at, byte), info.clone());
        assert!(problems.contains(problem), "page {page}, offset {at}: {problems:?}");
    }
    let (other, _) = build_integers(&budget, 1..20_001);
    assert!(problems_of(other, info.clone()).contains("the manifest"));
    let fewer = PartitionInfo { versions: info.versions - 1, ..info.clone() };
    assert!(problems_of(pages.clone(), fewer).contains("the manifest"));
    let mut seen = 0;
    let partition = open(&pool(&budget), pages.clone(), info.clone());
    check_partition(&partition, &budget, &mut || seen += 1).unwrap();
    assert_eq!(seen, info.root, "every page of the tree is read once");
}

#[test]
fn pages_of_any_bytes_under_a_good_checksum_never_panic() {
    let mut random = Random::new(50);
    let budget = budget();
    for shape in SHAPES {
        let model = random_model(&mut random, shape, 300);
        let keys: Vec<_> = model.keys().cloned().collect();
        let (pages, info) = build(&budget, versions(&model), false);
        for _ in 0..150 {
            let mut spoiled = pages.clone();
            for _ in 0..1 + random.below(8) {
                spoil_page(&mut random, &mut spoiled);
            }
            read_everything(&budget, open(&pool(&budget), spoiled, info.clone()), &keys);
        }
    }
}

/// Changes a few bytes of one page and seals it again.
fn spoil_page(random: &mut Random, pages: &mut [u8]) {
    let number = random.below((pages.len() / PAGE_BYTES) as u64) as usize;
    let page = &mut pages[number * PAGE_BYTES..][..PAGE_BYTES];
    let (kind, len) = (page_kind(page), page_payload(page).len() as u64);
    for _ in 0..1 + random.below(4) {
        let front = random.below(2) == 0;
        let at = 16 + random.below(if front { len.min(40) } else { len });
        page[at as usize] = [0, 1, 0x7f, 0xff, random.below(256) as u8][random.below(5) as usize];
    }
    let len = if random.below(8) == 0 { random.below(len) } else { len };
    seal_page(page, SEED, number as u32, kind, len as usize);
}

/// Does everything that can be done with a partition and ignores the answers.
fn read_everything(budget: &Budget, partition: Partition, keys: &[(Vec<u8>, Reverse<u64>)]) {
    let _ = check_partition(&partition, budget, &mut || ());
    let _ = read_info(&**partition.file.source(), partition.info.pages, partition.info.id, budget);
    for (key, glsn) in keys.iter().step_by(9) {
        let _ = partition.lookup(key, Glsn(glsn.0 / 2), Touch::Point).map(|lookup| lookup.found.map(|f| f.glsn));
    }
    let mut cursor = RunCursor::new([partition].into(), Feed::Pool(Touch::Point));
    let (mut ends, mut steps) = (0, 0);
    while ends < 3 && steps < 50_000 {
        steps += 1;
        let moved = if ends % 2 == 0 { cursor.next() } else { cursor.prev() };
        ends += usize::from(moved.is_err() || cursor.current().is_none());
    }
    for (key, glsn) in keys.iter().step_by(17) {
        let _ = cursor.seek(key, Glsn(glsn.0)).map(|()| cursor.current());
        let _ = cursor.prev().map(|()| cursor.current());
    }
}

#[test]
fn decoders_answer_on_random_bytes() {
    let mut random = Random::new(60);
    for _ in 0..20_000 {
        let payload: Vec<u8> = (0..random.below(200)).map(|_| (random.next_u64() >> random.below(64)) as u8).collect();
        let _ = check_leaf(&payload, None, |_, _, _| ());
        let _ = Leaf::new(&payload, None).and_then(|leaf| leaf.seek(&payload, Glsn(5)));
        let _ = check_guide(&payload).map(|guide| guide.may_contain(payload.len() as u32));
        let _ = check_inner(&payload);
        let _ = check_footer(&payload);
        let _ = check_header(&payload);
        let _ = check_sides(&payload, |_| ());
    }
}

#[test]
fn a_refusing_budget_is_an_error_everywhere_and_nothing_leaks() {
    let mut random = Random::new(70);
    let budget = budget();
    let model = random_model(&mut random, Shape::Mixed, 400);
    let pool = pool(&budget);
    let partition = partition_of(&budget, &pool, &model);
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let dir = Path::new("index");
    disk.create_dir(dir).unwrap();
    let mut succeeded = 0;
    for n in 0..100 {
        pool.clear();
        let free = budget.free_bytes();
        budget.fail_after(n);
        let done = use_all(&budget, &disk, dir, &partition, &model);
        budget.fail_after(u64::MAX);
        match done {
            Ok(()) => succeeded += 1,
            Err(error) => assert!(matches!(error, Error::OutOfBudget(_)), "{error}"),
        }
        assert_eq!(budget.free_bytes(), free, "after {n} reservations");
        assert_eq!(disk.list(dir).unwrap(), [], "after {n} reservations");
    }
    assert!(succeeded > 50 && succeeded < 95, "{succeeded} of 100 went through");
}

fn use_all(budget: &Budget, disk: &Arc<dyn Disk>, dir: &Path, partition: &Partition, model: &Model) -> Result<()> {
    let sink = RunFileSink::create(disk, dir, 5, LOG, budget)?;
    let mut builder = PartitionBuilder::new(sink, budget, false)?;
    versions(model).try_for_each(|version| builder.add(&version))?;
    drop(builder.finish()?);
    check_partition(partition, budget, &mut || ())?;
    let mut cursor = RunCursor::new([partition.clone()].into(), Feed::Private(budget.clone()));
    cursor.seek_first()?;
    while cursor.current().is_some() {
        cursor.next()?;
    }
    Ok(())
}

#[test]
fn a_run_file_is_read_as_it_was_written_and_its_errors_name_file_and_page() {
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
        let mut builder = PartitionBuilder::new(sink, &budget, false).unwrap();
        versions(&model).for_each(|version| builder.add(&version).unwrap());
        let (sink, info) = builder.finish().unwrap();
        sink.finish().unwrap();
        assert_eq!(disk.list(&dir).unwrap()[0].name, run_file_name(12));

        let partition = open_run(&*disk, &dir, &pool, LOG, info.clone()).unwrap();
        assert_eq!(read_info(&**partition.file.source(), info.pages, info.id, &budget).unwrap(), info);
        let mut cursor = RunCursor::new([partition.clone()].into(), Feed::Private(budget.clone()));
        for version in versions(&model) {
            cursor.next().unwrap();
            assert_eq!(cursor.current(), Some(version));
        }
        model.keys().step_by(10).for_each(|(key, glsn)| assert_lookup(&partition, &model, key, glsn.0));
        assert_eq!(check_partition(&partition, &budget, &mut || ()).unwrap(), [""; 0]);

        let path = dir.join(run_file_name(12));
        let file = disk.open(&path, Open::ReadWrite, Caching::Buffered).unwrap();
        file.write_at(&[0xee; 3], 2 * PAGE_BYTES as u64 + 99).unwrap();
        let problems = check_partition(&partition, &budget, &mut || ()).unwrap();
        assert!(problems[0].contains(&run_file_name(12)) && problems[0].contains("page 2"), "{problems:?}");
        file.set_len(u64::from(info.pages - 1) * PAGE_BYTES as u64).unwrap();
        assert!(matches!(open_run(&*disk, &dir, &pool, LOG, info), Err(Error::Corrupt { .. })));
        drop((cursor, partition));
    }
}

#[test]
fn a_run_of_another_log_or_under_another_name_is_refused() {
    let budget = budget();
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let dir = Path::new("index");
    disk.create_dir(dir).unwrap();
    let sink = RunFileSink::create(&disk, dir, 3, LOG, &budget).unwrap();
    let mut builder = PartitionBuilder::new(sink, &budget, false).unwrap();
    builder.add(&Version { key: b"0001k", glsn: Glsn(4), stored: Stored::Deleted }).unwrap();
    let (sink, info) = builder.finish().unwrap();
    sink.finish().unwrap();
    let pool = pool(&budget);
    let read = |log_id, id| {
        let info = PartitionInfo { id: PartitionId::Run(id), ..info.clone() };
        let partition = open_run(&*disk, dir, &pool, log_id, info).unwrap();
        read_info(&**partition.file.source(), partition.info.pages, partition.info.id, &budget)
    };
    assert_eq!(read(LOG, 3), Ok(info.clone()));
    assert!(matches!(read(LOG + 1, 3), Err(Error::Corrupt { .. })));
    disk.rename(&dir.join(run_file_name(3)), &dir.join(run_file_name(4))).unwrap();
    assert!(matches!(read(LOG, 4), Err(Error::Corrupt { .. })));
}

#[test]
fn a_name_is_a_runs_only_in_full() {
    assert_eq!(run_file_name(7), "00000000000000000007.run");
    assert_eq!(run_id_of("00000000000000000007.run"), Some(7));
    for name in ["7.run", "00000000000000000007", "+0000000000000000007.run", "0000000000000000000x.run", "LOCK"] {
        assert_eq!(run_id_of(name), None, "{name}");
    }
}

#[test]
#[should_panic(expected = "newest first")]
fn versions_out_of_order_are_refused() {
    let budget = budget();
    let mut builder = PartitionBuilder::new(Pages::default(), &budget, false).unwrap();
    builder.add(&Version { key: b"0001k", glsn: Glsn(4), stored: Stored::Deleted }).unwrap();
    let _ = builder.add(&Version { key: b"0001k", glsn: Glsn(5), stored: Stored::Deleted });
}

/// Prints how fast it goes: `cargo test --release -p plimsoll run::tests::speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    const COUNT: u64 = 1_000_000;
    let clock = SystemClock::new();
    let budget = Budget::new(256 << 20, Backing::Mapped).unwrap();
    let pool = Pool::new(&budget, 1 << 20).unwrap();
    let timed = |what: &str, count: u64, work: &mut dyn FnMut()| {
        let start = clock.monotonic_nanos();
        work();
        let nanos = (clock.monotonic_nanos() - start) as f64;
        println!("{what}: {:.1} ns each, {:.2} million/s", nanos / count as f64, count as f64 / nanos * 1e3);
    };
    for (name, numbers) in
        [("consecutive", (0..COUNT).map(|n| n * 2).collect()), ("random", random_numbers(COUNT as usize))]
    {
        let mut built = None;
        timed(&format!("{name}: build"), COUNT, &mut || built = Some(build_integers(&budget, numbers.iter().copied())));
        let (pages, info) = built.unwrap();
        println!("{name}: {:.2} bytes per pair, {} pages", pages.len() as f64 / COUNT as f64, info.pages);
        let partition = open(&pool, pages, info);
        let run: Arc<[Partition]> = [partition.clone()].into();
        for round in ["cold", "warm"] {
            for feed in [Feed::Pool(Touch::Point), Feed::Private(budget.clone())] {
                timed(
                    &format!(
                        "{name}: scan, {round}, {}",
                        if matches!(feed, Feed::Pool(_)) { "pool" } else { "private" }
                    ),
                    COUNT,
                    &mut || {
                        let mut cursor = RunCursor::new(Arc::clone(&run), feed.clone());
                        let mut sum = 0;
                        cursor.seek_first().unwrap();
                        while let Some(version) = cursor.current() {
                            sum += version.glsn.0;
                            cursor.next().unwrap();
                        }
                        assert_eq!(sum, COUNT);
                    },
                );
            }
        }
        timed(&format!("{name}: scan backwards"), COUNT, &mut || {
            let mut cursor = RunCursor::new(Arc::clone(&run), Feed::Pool(Touch::Point));
            cursor.seek_last().unwrap();
            while cursor.current().is_some() {
                cursor.prev().unwrap();
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
        timed(&format!("{name}: build into a file, synced"), COUNT, &mut || {
            let sink = RunFileSink::create(&disk, folder.path(), 1, LOG, &budget).unwrap();
            write_integers(sink, &budget, numbers.iter().copied()).0.finish().unwrap();
        });
        let (mut random, mut key) = (Random::new(1), [0; 12]);
        for (what, offset, among) in
            [("hit", 0, COUNT), ("miss", 1, COUNT), ("hit in one leaf", 0, 900), ("miss", 1, 900)]
        {
            timed(&format!("{name}: look-up, {what}"), COUNT, &mut || {
                for _ in 0..COUNT {
                    let n = numbers[random.below(among) as usize].wrapping_add(offset);
                    integer_pair(&mut key, n);
                    let lookup = partition.lookup(&key, Glsn::MAX, Touch::Point).unwrap();
                    assert_eq!(lookup.found.is_some(), offset == 0);
                }
            });
        }
    }
}
