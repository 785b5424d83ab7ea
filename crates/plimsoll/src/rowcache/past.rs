//! Past rows: values that a read at an open older moment has found, of keys that were overwritten
//! since.
//!
//! An entry states: *at every moment from v to m, this key has the version v, and these are its
//! bytes*; m is the moment of the read. This stays true for ever, because no commit is ordered at
//! or before a readable moment. So nothing invalidates an entry, and the set of runs that it was
//! read from is not checked.
//!
//! Invariants:
//! 1. An entry answers moments from v to m and no later one, because at a later moment the key may
//!    have a younger version.
//! 2. Its key in the cache differs from the index key, which is used for the newest value: it
//!    begins with an id that no keyspace has.
//! 3. No image contains it, because no moment is open after a restart.

use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, OutOfBudget};
use smallvec::SmallVec;

use crate::borders::{Border, hit};
use crate::rowcache::{
    Answer, Entry, Head, HeadBytes, OpenHead, RowCache, RowHandle, glsn_of, words_of,
};
use crate::types::as_of::AsOf;
use crate::types::expiry::Expiry;
use crate::types::index_key::Prefix;
use crate::types::value::Value;

/// The prefix of the keys of such entries, in the place of a keyspace's id.
const PAST: Prefix = Prefix::of(u32::MAX);

/// Another snapshot's entry is replaced on only one in this many reads, so that two snapshots do
/// not evict each other's row on every read.
const READS_FOR_AN_EXCHANGE: u64 = 16;

/// The head of a past row: the first and the last moment that it answers.
struct Past;

impl Head for Past {
    fn open(entry: Entry<'_>, at: Glsn) -> Option<OpenHead> {
        let [first, last] = words_of(entry, 0);
        let answers = glsn_of(first) <= at && at <= Glsn(last);
        if answers { OpenHead::of(entry, 2, first) } else { None }
    }
}

/// Whether a key of the cache is that of a past row.
pub(crate) fn is_of_the_past(key: &[u8]) -> bool {
    key.starts_with(PAST.as_bytes())
}

fn key_of_the_past(key: &[u8]) -> SmallVec<[u8; 72]> {
    let mut past = SmallVec::from_slice(PAST.as_bytes());
    past.extend_from_slice(key);
    past
}

impl RowCache {
    /// As [`RowCache::fill`], for the version that a key has at the moment `at`, which need not be
    /// its newest.
    pub(crate) fn fill_past(
        &self,
        handle: &RowHandle,
        missed: bool,
        key: &[u8],
        (first, last): (Glsn, Glsn),
        (value, expiry): (&[u8], Option<Expiry>),
    ) {
        let (Some(kept), Some(cache)) = (&self.kept, &handle.cache) else { return };
        let key = key_of_the_past(key);
        let is_of_another_moment = cache.peek(&key, |_| ()).is_some();
        // Relaxed: an independent counter.
        if is_of_another_moment
            && !kept
                .reads_of_others
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(READS_FOR_AN_EXCHANGE)
        {
            return;
        }
        if is_of_another_moment {
            hit(Border::PastExchanged);
        }
        let missed = missed || is_of_another_moment;
        let head = HeadBytes::new([first, last], expiry);
        kept.fill(handle, missed, &key, &[head.get(), value], || true);
    }
}

impl RowHandle {
    /// The cached value of an index key as of `at`, a moment before the newest version in the runs.
    pub(crate) fn get_past(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        budget: &Budget,
    ) -> Result<Option<Answer<Value>>, OutOfBudget> {
        self.find::<Past>(&key_of_the_past(key), at, budget)
    }

    /// As [`RowHandle::get_past`], but calls `look` with the value, without a copy if it is
    /// contiguous. Takes `look` out of the option only if there is a value.
    pub(crate) fn get_past_with<T>(
        &self,
        key: &[u8],
        at: AsOf<'_>,
        budget: &Budget,
        look: &mut Option<impl FnOnce(&[u8]) -> T>,
    ) -> Result<Option<Answer<T>>, OutOfBudget> {
        self.lend::<Past, T>(&key_of_the_past(key), at, budget, look)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use plimsoll_disk::random::Random;

    use super::*;
    use crate::api::snapshot::{Moment, Snapshot};
    use crate::engine::Engine;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::index_key::KeyBuffer;
    use crate::types::keyspaces::Keyspace;
    use crate::types::options::Options;

    fn store_in(dir: &tempfile::TempDir) -> (Arc<Engine>, Keyspace) {
        let store = open(
            &dir.path().join("store"),
            Options::new().memory_bytes(64 << 20).background(false),
        )
        .unwrap();
        let keyspace = store.reader.keyspaces.find("default").unwrap().0;
        (store, keyspace)
    }

    fn put(store: &Arc<Engine>, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Glsn {
        let mut tx = Transaction::new(&store.committer);
        tx.put(keyspace, key, value).unwrap();
        tx.commit().unwrap()
    }

    fn get_at(store: &Arc<Engine>, keyspace: &Keyspace, key: &[u8], at: Glsn) -> Option<Vec<u8>> {
        let snapshot = Snapshot::of(store, Moment::Glsn(at)).unwrap();
        let value = snapshot.get(keyspace, key).unwrap().map(|value| value.to_vec());
        assert_eq!(snapshot.get_with(keyspace, key, <[u8]>::to_vec).unwrap(), value);
        value
    }

    /// The past row of a key as of a moment.
    fn kept(store: &Arc<Engine>, key: &[u8], at: Glsn) -> Option<Vec<u8>> {
        let key = KeyBuffer::new(1, key).unwrap();
        let handle = store.reader.row_cache.handle();
        let at = AsOf::unexpiring(at);
        let answer = handle.get_past(key.get(), at, &store.reader.budget).unwrap();
        answer.and_then(|answer| answer.noted(key.get(), at)).map(|(value, _)| value.to_vec())
    }

    #[test]
    fn a_past_row_answers_moments_from_its_version_to_that_of_the_read() {
        let dir = tempfile::tempdir().unwrap();
        let (store, keyspace) = store_in(&dir);
        put(&store, &keyspace, b"other", b"1");
        let first = put(&store, &keyspace, b"k", b"first");
        put(&store, &keyspace, b"other", b"2");
        let read_at = put(&store, &keyspace, b"other", b"3");
        let second = put(&store, &keyspace, b"k", b"second");
        let third = put(&store, &keyspace, b"k", b"third");
        store.flush().unwrap();
        store.maintenance.pool.clear();
        assert_eq!(get_at(&store, &keyspace, b"k", read_at).as_deref(), Some(&b"first"[..]));
        let moments = [Glsn(first.0 - 1), first, Glsn(first.0 + 1), read_at, second, third];
        let row = Some(b"first".to_vec());
        assert_eq!(
            moments.map(|at| kept(&store, b"k", at)),
            [None, row.clone(), row.clone(), row, None, None]
        );
        let answers = moments.map(|at| get_at(&store, &keyspace, b"k", at));
        let [one, two, three] =
            [&b"first"[..], b"second", b"third"].map(|value| Some(value.to_vec()));
        assert_eq!(answers, [None, one.clone(), one.clone(), one, two, three]);
    }

    #[test]
    fn an_open_moment_reads_no_page_twice_and_another_one_gets_its_rows_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let (store, keyspace) = store_in(&dir);
        let value = |number: u8, round: u8| vec![number ^ round; 200];
        let mut held = Vec::new();
        for round in 0..3 {
            (0..100u8).for_each(|key| {
                put(&store, &keyspace, &[key], &value(key, round));
            });
            store.flush().unwrap();
            held.push(Snapshot::newest(&store));
        }
        for (round, held) in (0..2).zip(&held) {
            // Rows of the first moment are replaced by those of the second, at one in sixteen
            // reads.
            for _ in 0..100 {
                store.maintenance.pool.clear();
                for key in 0..100u8 {
                    assert_eq!(
                        held.get(&keyspace, [key]).unwrap().unwrap().to_vec(),
                        value(key, round)
                    );
                }
            }
            let touched = |stats: plimsoll_memory::pool::PoolStats| stats.hits + stats.loads;
            let before = touched(store.maintenance.pool.stats());
            for key in 0..100u8 {
                assert_eq!(
                    held.get(&keyspace, [key]).unwrap().unwrap().to_vec(),
                    value(key, round)
                );
            }
            let pages = touched(store.maintenance.pool.stats()) - before;
            assert!(pages <= 10, "{pages} pages for 100 reads of round {round}");
        }
    }

    #[test]
    fn reads_at_any_moment_match_a_model() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let dir = tempfile::tempdir().unwrap();
            let (store, keyspace) = store_in(&dir);
            let mut model: Vec<BTreeMap<u8, Vec<u8>>> = vec![BTreeMap::new()];
            let base = store.visible().0;
            for step in 0..400u64 {
                let key = random.below(8) as u8;
                if random.below(4) == 0 {
                    let value = vec![step as u8; [20, 300, 2000, 70_000][random.below(4) as usize]];
                    put(&store, &keyspace, &[key], &value);
                    let mut now = model[model.len() - 1].clone();
                    now.insert(key, value);
                    model.push(now);
                }
                match random.below(20) {
                    0 => {
                        store.flush().unwrap();
                    }
                    1 => store.maintenance.pool.clear(),
                    _ => {
                        let back = random.below(model.len() as u64) as usize;
                        let found = get_at(&store, &keyspace, &[key], Glsn(base + back as u64));
                        assert!(
                            found == model[back].get(&key).cloned(),
                            "seed {seed}, step {step}, {key} at {back}"
                        );
                    }
                }
            }
        }
    }
}
