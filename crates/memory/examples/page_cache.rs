//! A page cache for a custom file format, independent of the store: `cargo run -p plimsoll-memory
//! --example page_cache`.
//!
//! The "file" here is a table of squares, eight bytes each, 2048 to a page. The cache holds a part
//! of it within one budget, an evictor keeps room ahead of the readers, memory is lent to a sort
//! for a while, and the budget changes during all of this.

use std::sync::Arc;

use plimsoll_disk::clock::SystemClock;
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::evictor::{Evictor, EvictorThread};
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::{LoadError, PageSource, Pool, PoolFile, Touch};

const NUMBERS_PER_PAGE: u64 = PAGE_BYTES as u64 / 8;

/// In real life: an open file and `read_at`, and a checksum to compare.
struct Squares;

impl PageSource for Squares {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let first = u64::from(number) * NUMBERS_PER_PAGE;
        for (n, bytes) in (first..).zip(page.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&(n * n).to_le_bytes());
        }
        Ok(())
    }
}

fn square(file: &PoolFile, n: u64) -> Result<u64, LoadError> {
    let page = file.get((n / NUMBERS_PER_PAGE) as u32, Touch::Point)?;
    let at = (n % NUMBERS_PER_PAGE) as usize * 8;
    let bytes = page[at..at + 8].try_into().expect("eight bytes");
    Ok(u64::from_le_bytes(bytes))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 16 MiB now, and address space for 64.
    let budget = Budget::with_ceiling(16 << 20, 64 << 20, Backing::Mapped)?;
    let pool = Pool::new(&budget, 1 << 20)?;
    let evictor = EvictorThread::start(Evictor::new(&pool, Arc::new(SystemClock::new())))?;
    let file = pool.attach(Arc::new(Squares));

    // Twice over 64 MiB of squares, with 16 MiB of memory; a few pages are asked for all the time.
    for n in (0..8_000_000).step_by(500) {
        assert_eq!(square(&file, n)?, n * n);
        assert_eq!(square(&file, n % 10_000)?, (n % 10_000) * (n % 10_000));
    }
    println!("after reading: {:?}", pool.stats());
    println!("the evictor: {:?}", pool.evictor_stats());

    let sort = (0..200).map(|_| budget.take(Kind::Sort)).collect::<Result<Vec<_>, _>>()?;
    println!("while a sort holds {} MiB: {:?}", sort.len() / 16, pool.stats());
    println!("{:?}", budget.usage());
    drop(sort);

    // A scan says what it is going to read, and leaves the pages that are read again and again
    // alone.
    for number in 0..1000 {
        if number % 16 == 0 {
            file.read_ahead(number, 16);
        }
        assert_eq!(file.get(number, Touch::Scan)?.len(), PAGE_BYTES);
    }
    pool.resize(64 << 20, 1 << 20)?;
    for n in (0..8_000_000).step_by(500) {
        assert_eq!(square(&file, n)?, n * n);
    }
    println!("with 64 MiB: {:?}", pool.stats());
    pool.resize(16 << 20, 1 << 20)?;
    println!("with 16 MiB again: {:?}, {:?}", pool.stats(), budget.pressure());
    drop(evictor);

    assert_eq!(square(&file, 1000)?, 1_000_000);
    Ok(())
}
