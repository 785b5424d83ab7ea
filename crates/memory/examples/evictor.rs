//! Prints what misses cost with an evictor and without, and what reading ahead brings: `cargo run
//! --release -p plimsoll-memory --example evictor [FILE]` (FILE: some GiB to read past the page
//! cache).

use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::evictor::{Evictor, EvictorThread};
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::{LoadError, PageSource, Pool, ReaderThreads, Touch};

fn main() {
    for _ in 0..3 {
        misses(false);
        misses(true);
    }
    if let Some(path) = std::env::args().nth(1) {
        for threads in [0, 1, 2, 4, 8] {
            scan(Path::new(&path), threads);
        }
    }
}

/// A source that costs what a fast device does: nothing but a copy.
struct Copied;

impl PageSource for Copied {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        page.fill(number as u8);
        Ok(())
    }
}

/// Random reads over four times the pool's pages, while chunks are taken and released.
fn misses(with_evictor: bool) {
    const READS: usize = 400_000;
    let clock = SystemClock::new();
    let budget = Budget::new(64 << 20, Backing::Mapped).expect("address space");
    let pool = Pool::new(&budget, 8 << 20).expect("room");
    let evictor = with_evictor.then(|| {
        EvictorThread::start(Evictor::new(&pool, Arc::new(SystemClock::new()))).expect("a thread")
    });
    let file = pool.attach(Arc::new(Copied));
    let pages = 4 * (64 << 20) / PAGE_BYTES as u64;
    let mut held = Vec::new();
    let mut nanos = Vec::with_capacity(READS);
    for at in 0..READS as u64 {
        let number = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % pages;
        let start = clock.monotonic_nanos();
        drop(file.get(number as u32, Touch::Point).expect("it loads"));
        if at % 8 == 0 {
            held.push(budget.take(Kind::Memtable).expect("room"));
        }
        nanos.push(clock.monotonic_nanos() - start);
        if held.len() == 128 {
            held.clear();
        }
    }
    drop(evictor);
    nanos.sort_unstable();
    let quantile = |part: f64| nanos[(READS as f64 * part) as usize - 1];
    let (stats, pressure) = (pool.stats(), budget.pressure());
    println!(
        "evictor {with_evictor}: p50 {} p99 {} p99.9 {} p99.99 {} ns; hits {:.2} %, resident {}, \
         inline pages {} chunks {}",
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        quantile(0.9999),
        100.0 * stats.hits as f64 / READS as f64,
        stats.resident,
        stats.inline_evictions,
        pressure.inline_evictions,
    );
    if with_evictor {
        println!("  {:?}", pool.evictor_stats());
    }
}

struct Direct(Arc<dyn File>);

impl PageSource for Direct {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        self.load_run(number, page)
    }

    fn load_run(&self, first: u32, pages: &mut [u8]) -> Result<(), LoadError> {
        Ok(self.0.read_exact_at(pages, u64::from(first) * PAGE_BYTES as u64)?)
    }
}

/// A cold scan through a pool of 64 MiB.
fn scan(path: &Path, threads: usize) {
    let clock = SystemClock::new();
    let budget = Budget::new(64 << 20, Backing::Mapped).expect("address space");
    let pool = Pool::new(&budget, 8 << 20).expect("room");
    let readers = (threads > 0).then(|| ReaderThreads::start(&pool, threads));
    let handle = OsDisk::new().open(path, Open::Read, Caching::Direct).expect("a file");
    let pages = (handle.len().expect("a length") / PAGE_BYTES as u64) as u32;
    let file = pool.attach(Arc::new(Direct(handle)));
    let start = clock.monotonic_nanos();
    let mut asked = 0;
    for number in 0..pages {
        let ahead = pool.read_ahead_max();
        if threads > 0 && number + ahead / 2 >= asked {
            file.read_ahead(asked, ahead.min(pages - asked) / 2);
            asked = (asked + ahead / 2).min(pages);
        }
        assert_eq!(file.get(number, Touch::Scan).expect("it loads").len(), PAGE_BYTES);
    }
    let seconds = (clock.monotonic_nanos() - start) as f64 / 1e9;
    println!(
        "scan with {threads} threads ahead: {:.0} MB/s; {:?}",
        f64::from(pages) * PAGE_BYTES as f64 / 1e6 / seconds,
        pool.stats()
    );
    drop(readers);
}
