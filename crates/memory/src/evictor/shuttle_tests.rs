//! Pool, budget and evictor together, under many random schedules.

use plimsoll_disk::clock::ManualClock;
use shuttle::thread;

use super::*;
use crate::budget::{Backing, Kind};
use crate::pool::{LoadError, PageSource, Touch};

/// A page's first word is its number.
struct Numbered;

impl PageSource for Numbered {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        page[..4].copy_from_slice(&number.to_le_bytes());
        thread::yield_now();
        page[PAGE_BYTES - 4..].copy_from_slice(&number.to_le_bytes());
        Ok(())
    }
}

fn scene(resized: bool) {
    let budget = Budget::new(16 * CHUNK_BYTES as u64, Backing::Heap).unwrap();
    let pool = Pool::new(&budget, 4 * CHUNK_BYTES as u64).unwrap();
    let file = pool.attach(Arc::new(Numbered));
    let mut evictor = Evictor::new(&pool, Arc::new(ManualClock::new(0)));
    let bell = Arc::clone(&evictor.bell);
    let room = thread::spawn(move || evictor.run());
    let readers = [3u32, 11].map(|step| {
        let file = file.clone();
        thread::spawn(move || {
            for number in (0..40).map(|at| at * step % 47) {
                let page = file.get(number, Touch::Point).unwrap();
                thread::yield_now();
                assert_eq!(page[..4], number.to_le_bytes());
                assert_eq!(page[PAGE_BYTES - 4..], number.to_le_bytes());
            }
        })
    });
    let taker = thread::spawn({
        let budget = budget.clone();
        move || {
            for _ in 0..4 {
                let held: Vec<_> = (0..5).map(|_| budget.take(Kind::Sort).unwrap()).collect();
                thread::yield_now();
                drop(held);
            }
        }
    });
    if resized {
        for chunks in [11, 16] {
            // Pages held by other threads may block the shrink.
            let _ = pool.resize(chunks * CHUNK_BYTES as u64, 4 * CHUNK_BYTES as u64);
            thread::yield_now();
        }
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    taker.join().unwrap();
    bell.close();
    room.join().unwrap();
    let stats = pool.stats();
    assert_eq!(stats.pinned, 0);
    assert_eq!(stats.frames, stats.resident + pool.room().free as u64);
    drop((file, pool));
    assert_eq!(budget.free_bytes(), budget.limit_bytes());
}

#[test]
fn shuttle_readers_and_takers_succeed_beside_the_evictor() {
    shuttle::check_random(|| scene(false), 2000);
    shuttle::check_pct(|| scene(false), 1000, 3);
}

#[test]
fn shuttle_readers_succeed_while_the_pool_resizes() {
    shuttle::check_random(|| scene(true), 1000);
    shuttle::check_pct(|| scene(true), 500, 3);
}
