//! Tests of damaged tables.

use super::*;

#[test]
fn a_flipped_bit_causes_an_error_or_changes_nothing() {
    let mut random = Random::new(40);
    let budget = budget();
    let pool = pool(&budget);
    let model = random_model(&mut random, Shape::Paths, 60);
    let (pages, info) = build(&budget, versions(&model), false);
    assert!(info.pages <= 5, "the table is small because every byte is tried");
    let keys: Vec<_> = model.keys().cloned().collect();
    for at in 0..pages.len() {
        let mut spoiled = pages.clone();
        spoiled[at] ^= 1 << random.below(8);
        let table = open(&pool, spoiled, info.clone());
        assert!(!check_table(&table, &budget, &mut |_| ()).unwrap().is_empty(), "byte {at}");
        let (key, glsn) = &keys[random.below(keys.len() as u64) as usize];
        match table.lookup(key, Glsn(glsn.0), Touch::Point) {
            Ok(_) => assert_lookup(&table, &model, key, glsn.0),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
        let mut cursor = RunCursor::new([table].into(), Feed::Private(budget.clone()));
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
fn verification_finds_faults_under_valid_checksums() {
    let budget = budget();
    let (pages, info) = build_integers(&budget, 0..20_000);
    let problems_of = |pages: Vec<u8>, info: TableInfo| {
        let table = open(&pool(&budget), pages, info);
        check_table(&table, &budget, &mut |_| ()).unwrap().join("; ")
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
        (guide, 4, 2, "does not follow its leaves"),
        (guide, 8, 0, "key count differs"),
        (info.root, 2, 9, "kind differs from the one that its parent implies"),
        (info.root, 2, 200, "height"),
        (1, 0, 1, "the leaf"),
        (footer, 8, 0xff, "the manifest"),
        (0, 33, 9, "the header of run 9"),
        (0, 41, 1, "does not match the file"),
    ] {
        let problems = problems_of(changed(page, at, byte), info.clone());
        assert!(problems.contains(problem), "page {page}, offset {at}: {problems:?}");
    }
    let (other, _) = build_integers(&budget, 1..20_001);
    assert!(problems_of(other, info.clone()).contains("the manifest"));
    let fewer = TableInfo { versions: info.versions - 1, ..info.clone() };
    assert!(problems_of(pages.clone(), fewer).contains("the manifest"));
    let mut seen = 0;
    let table = open(&pool(&budget), pages.clone(), info.clone());
    check_table(&table, &budget, &mut |_| seen += 1).unwrap();
    assert_eq!(seen, info.versions, "every version is visited");
}

#[test]
fn arbitrary_pages_with_valid_checksums_never_panic() {
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

/// A caller that resumes at a key relies on this; otherwise it could return the same versions again
/// and again.
#[test]
fn a_seek_in_arbitrary_pages_lands_on_the_requested_side_or_fails() {
    let mut random = Random::new(60);
    let budget = budget();
    let (mut before, mut behind) = (0, 0);
    for shape in SHAPES {
        let model = random_model(&mut random, shape, 300);
        let keys: Vec<_> = model.keys().cloned().collect();
        let (pages, info) = build(&budget, versions(&model), false);
        for _ in 0..100 {
            let mut spoiled = pages.clone();
            (0..1 + random.below(3)).for_each(|_| spoil_page(&mut random, &mut spoiled));
            let table = open(&pool(&budget), spoiled, info.clone());
            let mut cursor = RunCursor::new([table].into(), Feed::Private(budget.clone()));
            for (key, glsn) in keys.iter().step_by(7) {
                let sought = (&key[..], Reverse(Glsn(glsn.0)));
                if cursor.seek(key, Glsn(glsn.0)).is_ok() {
                    behind += 1;
                    let at = cursor
                        .current()
                        .map(|version| (version.key.to_vec(), Reverse(version.glsn)));
                    assert!(
                        at.is_none_or(|(key, glsn)| (&key[..], glsn) >= sought),
                        "{shape:?}: before {key:?}"
                    );
                }
                if cursor.seek_before(key, Glsn(glsn.0)).is_ok() {
                    before += 1;
                    let at = cursor
                        .current()
                        .map(|version| (version.key.to_vec(), Reverse(version.glsn)));
                    assert!(
                        at.is_none_or(|(key, glsn)| (&key[..], glsn) < sought),
                        "{shape:?}: not before {key:?}"
                    );
                }
            }
        }
    }
    assert!(before > 1000 && behind > 1000, "most seeks find a version: {before}, {behind}");
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

/// Performs all read operations of a table and ignores the results.
fn read_everything(budget: &Budget, table: Table, keys: &[(Vec<u8>, Reverse<u64>)]) {
    let _ = check_table(&table, budget, &mut |_| ());
    let _ = read_info(&**table.file.source(), table.info.pages, table.info.id, budget);
    for (key, glsn) in keys.iter().step_by(9) {
        let _ = table
            .lookup(key, Glsn(glsn.0 / 2), Touch::Point)
            .map(|lookup| lookup.found.map(|f| f.glsn));
    }
    let mut cursor = RunCursor::new([table].into(), Feed::Pool(Touch::Point));
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
fn a_leaf_out_of_order_is_an_error_in_both_directions() {
    let mut random = Random::new(14);
    let budget = budget();
    let mut refused = 0;
    for round in 0..150 {
        let model = random_model(&mut random, SHAPES[round % SHAPES.len()], 300);
        let (mut pages, info) = build(&budget, versions(&model), false);
        if round % 5 == 0 {
            // A whole page from another position in the file.
            let (from, to) = (1 + random.below(3).min(u64::from(info.root) - 1), 1);
            pages.copy_within(
                from as usize * PAGE_BYTES..(from as usize + 1) * PAGE_BYTES,
                to * PAGE_BYTES,
            );
            let page = &mut pages[to * PAGE_BYTES..][..PAGE_BYTES];
            let (kind, len) = (page_kind(page), page_payload(page).len());
            seal_page(page, SEED, to as u32, kind, len);
        }
        spoil_page(&mut random, &mut pages);
        let table = open(&pool(&budget), pages, info);
        for back in [false, true] {
            let mut cursor = RunCursor::new([table.clone()].into(), Feed::Private(budget.clone()));
            let mut last = None;
            loop {
                let moved = if back { cursor.prev() } else { cursor.next() };
                refused += u32::from(moved.is_err());
                let Some(version) = cursor.current() else { break };
                let now = (version.key.to_vec(), Reverse(version.glsn));
                assert!(now.0.len() >= 4, "round {round}: key {:02x?}", now.0);
                let follows = last.is_none_or(|last| if back { now < last } else { last < now });
                assert!(follows, "round {round}: {now:02x?}");
                last = Some(now);
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn decoders_accept_random_bytes() {
    let mut random = Random::new(60);
    for _ in 0..20_000 {
        let payload: Vec<u8> =
            (0..random.below(200)).map(|_| (random.next_u64() >> random.below(64)) as u8).collect();
        let _ = check_leaf(&payload, None, |_, _, _| ());
        let _ = Leaf::new(&payload, None).and_then(|leaf| leaf.seek(&payload, Glsn(5)));
        let _ = check_guide(&payload).map(|guide| guide.may_contain(payload.len() as u32));
        let _ = check_inner(&payload);
        let _ = check_footer(&payload);
        let _ = check_header(&payload);
        let _ = check_blobs(&payload, |_| ());
    }
}

/// Pages that are damaged in memory after they were loaded for the first time.
struct Fading {
    pages: Vec<u8>,
    loaded: Mutex<Vec<u32>>,
}

impl PageSource for Fading {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        page.copy_from_slice(&self.pages[number as usize * PAGE_BYTES..][..PAGE_BYTES]);
        let mut loaded = self.loaded.lock().unwrap();
        if !loaded.contains(&number) {
            loaded.push(number);
            // Damage the middle of an entry, so that the leaf's head stays intact.
            page[PAGE_BYTES / 2] ^= 1;
        }
        Ok(())
    }

    fn is_sound(&self, number: u32, page: &[u8]) -> bool {
        check_page(page, SEED, number).is_ok()
    }
}

#[test]
fn a_page_damaged_in_memory_is_not_merged() {
    let budget = budget();
    let pool = pool(&budget);
    let model = random_model(&mut Random::new(41), Shape::Integers, 2000);
    let (pages, info) = build(&budget, versions(&model), false);
    let file = pool.attach(Arc::new(Fading { pages, loaded: Mutex::default() }));
    let table = Table { info: Arc::new(info), file };
    for page in 0..table.info.pages {
        table.file.get(page, Touch::Point).unwrap();
        assert!(table.file.find(page, Touch::Again).is_some(), "all pages are in memory");
    }
    let mut cursor = RunCursor::new([table].into(), Feed::Private(budget.clone()));
    for version in versions(&model) {
        cursor.next().unwrap();
        assert_eq!(cursor.current(), Some(version));
    }
}
