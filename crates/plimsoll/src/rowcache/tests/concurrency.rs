//! Readers at mixed moments during writes, evictions and flushes, checked against the history.

use super::*;

/// The writes: for each key, its commits and numbers in order.
type Written = BTreeMap<u32, Vec<(u64, u64)>>;

/// The reads: key, moment, and the number, if there was a value.
type WasRead = Vec<(u32, u64, Option<u64>)>;

const WRITERS: u32 = 2;
const KEYS: u32 = 60;

fn write(store: &Arc<Engine>, writer: u32, commits: u64) -> Written {
    let mut random = Random::new(u64::from(writer));
    let mut written = Written::new();
    for number in 1..=commits {
        // Each writer has its own keys, so no two conflict.
        let key = random.below(u64::from(KEYS)) as u32 * WRITERS + writer;
        let mut tx = Transaction::new(&store.committer);
        match random.below(8) {
            0 => tx.delete(&default(store), &key.to_be_bytes()).unwrap(),
            _ => tx.put(&default(store), &key.to_be_bytes(), &number.to_le_bytes()).unwrap(),
        }
        let deleted = tx.get(&default(store), &key.to_be_bytes()).unwrap().is_none();
        let glsn = tx.commit().unwrap();
        written.entry(key).or_default().push((glsn.0, if deleted { 0 } else { number }));
        if number % 40 == 0 {
            store.flush().unwrap();
        }
    }
    written
}

fn read(store: &Arc<Engine>, seed: u64, done: &AtomicBool) -> WasRead {
    let mut random = Random::new(seed);
    let mut was_read = WasRead::new();
    while !done.load(Ordering::Relaxed) {
        let newest = Snapshot::newest(store);
        let back = random.below(60).min(newest.at().0);
        let old = Snapshot::of(store, Moment::Glsn(newest.at() - back)).unwrap();
        for _ in 0..4 {
            let key = random.below(u64::from(KEYS * WRITERS)) as u32;
            for snapshot in [&newest, &old] {
                let value = snapshot.get(&default(store), &key.to_be_bytes()).unwrap();
                let number = value.map(|value| u64::from_le_bytes(value[..].try_into().unwrap()));
                was_read.push((key, snapshot.at().0, number));
            }
        }
        match random.below(6) {
            0 => store.reader.row_cache.clear(),
            1 => work_steps::drop_caches(store),
            _ => store.maintenance.pool.clear(),
        }
    }
    was_read
}

#[test]
fn readers_see_the_written_values_at_any_moment_under_evictions_and_flushes() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_in(&dir, options().durability(crate::Durability::Buffered));
    let done = Arc::new(AtomicBool::new(false));
    let outcomes = Arc::new(std::sync::Mutex::new((Written::new(), WasRead::new())));
    let readers: Vec<_> = (0..3)
        .map(|seed| {
            let (store, done, outcomes) =
                (Arc::clone(&store), Arc::clone(&done), Arc::clone(&outcomes));
            spawn("read", move || {
                let was_read = read(&store, 100 + seed, &done);
                outcomes.lock().unwrap().1.extend(was_read);
            })
            .unwrap()
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (store, outcomes) = (Arc::clone(&store), Arc::clone(&outcomes));
            spawn("write", move || {
                let written = write(&store, writer, 2000);
                outcomes.lock().unwrap().0.extend(written);
            })
            .unwrap()
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    done.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let stats = store.reader.row_cache.stats().unwrap().0;
    assert!(stats.hits > 100 && stats.insertions > 100, "the row cache was in use: {stats:?}");
    let outcomes = outcomes.lock().unwrap();
    let (written, was_read) = &*outcomes;
    for (key, at, number) in was_read {
        let versions = written.get(key).map_or(&[][..], Vec::as_slice);
        let then = versions.iter().take_while(|(glsn, _)| glsn <= at).last();
        let expected = then.map(|(_, number)| *number).filter(|number| *number > 0);
        assert_eq!(*number, expected, "key {key} at {at}; its versions: {versions:?}");
    }
}
