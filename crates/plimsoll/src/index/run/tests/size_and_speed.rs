//! The size of a pair of integers on disk, and the speed of reads and writes.

use super::*;

#[test]
fn a_pair_of_integers_takes_few_bytes() {
    let budget = budget();
    // Random keys differ in more bytes the fewer there are: these 300,000 of 56 bits are as dense
    // as 60 million of 64 bits.
    let random = random_numbers(300_000);
    for (name, in_leaves, in_all, numbers) in [
        ("consecutive", 13.0, 14.5, (0..300_000).collect()),
        ("random", 17.0, 18.5, random.iter().map(|n| n >> 8).collect::<Vec<_>>()),
    ] {
        let (pages, info) = build_integers(&budget, numbers.into_iter());
        let leaf_bytes: usize = pages
            .chunks_exact(PAGE_BYTES)
            .filter(|page| page_kind(page) == LEAF_PAGE)
            .map(<[u8]>::len)
            .sum();
        let (leaf, all) =
            (leaf_bytes as f64 / info.versions as f64, pages.len() as f64 / info.versions as f64);
        println!(
            "{name}: {leaf:.2} bytes per pair in leaves, {all:.2} with guides and inner pages"
        );
        assert!(leaf <= in_leaves && all <= in_all, "{name}: {leaf} and {all}");
    }
}

/// Prints timings: `cargo test --release -p plimsoll run::tests::size_and_speed::speed -- --ignored
/// --nocapture`.
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
        println!(
            "{what}: {:.1} ns each, {:.2} million/s",
            nanos / count as f64,
            count as f64 / nanos * 1e3
        );
    };
    for (name, numbers) in [
        ("consecutive", (0..COUNT).map(|n| n * 2).collect()),
        ("random", random_numbers(COUNT as usize)),
    ] {
        let mut built = None;
        timed(&format!("{name}: build"), COUNT, &mut || {
            built = Some(build_integers(&budget, numbers.iter().copied()))
        });
        let (pages, info) = built.unwrap();
        println!(
            "{name}: {:.2} bytes per pair, {} pages",
            pages.len() as f64 / COUNT as f64,
            info.pages
        );
        let table = open(&pool, pages, info);
        let run: Arc<[Table]> = [table.clone()].into();
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
            let (sink, info) = write_integers(sink, &budget, numbers.iter().copied());
            sink.finish(info).unwrap();
        });
        let (mut random, mut key) = (Random::new(1), [0; 12]);
        for (what, offset, among) in
            [("hit", 0, COUNT), ("miss", 1, COUNT), ("hit in one leaf", 0, 900), ("miss", 1, 900)]
        {
            timed(&format!("{name}: look-up, {what}"), COUNT, &mut || {
                for _ in 0..COUNT {
                    let n = numbers[random.below(among) as usize].wrapping_add(offset);
                    integer_pair(&mut key, n);
                    let lookup = table.lookup(&key, Glsn::MAX, Touch::Point).unwrap();
                    assert_eq!(lookup.found.is_some(), offset == 0);
                }
            });
        }
    }
}
