//! `bench misses`: reads of pages that are not resident, against fio on the same file.
//!
//! The file has sixteen times the pool's pages. Reads are random, by several threads, each with one
//! read in flight, like fio's; only reads that the pool had to load count. The scan reads the file
//! once, front to back, with the pool's read-ahead threads; fio reads it with as many threads, a
//! part each, in blocks of the same size. Both bypass the page cache and alternate; a ratio is
//! taken within a round.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk as _, File, Open};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::chunk::CHUNK_BYTES;
use plimsoll_memory::evictor::{Evictor, EvictorThread};
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::{LoadError, PageSource, Pool, PoolFile, ReaderThreads, Touch};

use crate::fio;
use crate::page_cache;
use crate::payload;
use crate::quiet;
use crate::results::Results;
use crate::sizes::{parse_size, show_size};
use crate::statistics::{interval, median};
use crate::table::{self, number};
use crate::work_folder::Places;

/// Minimum fraction of fio's figures.
const GOAL: f64 = 0.9;

/// The file's pages for each of the pool.
const FILE_TO_POOL: u64 = 16;

/// Pages of a read of the scan.
const RUN_PAGES: u32 = (CHUNK_BYTES / PAGE_BYTES) as u32;

#[derive(Args, Debug)]
pub(crate) struct Misses {
    /// Bytes of the pool; the file has sixteen times as many
    #[arg(long, default_value = "128MiB", value_parser = parse_size)]
    pool: u64,
    /// Threads of random reads
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u64).range(1..))]
    threads: Vec<u64>,
    /// Threads that read ahead of the scan (a store has four)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    readers: u64,
    /// Rounds in which both take turns
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Length of a turn of random reads in milliseconds
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(10..))]
    turn_ms: u64,
}

/// The kind of read.
#[derive(Clone, Copy, Debug)]
enum Case {
    Random { threads: u64 },
    Scan { readers: u64 },
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

/// The pool with everything that works for it in a store.
struct World {
    file: PoolFile,
    pool: Arc<Pool>,
    pages: u32,
    _evictor: EvictorThread,
    _readers: ReaderThreads,
}

impl Misses {
    /// Measures, prints the table, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        fio::check()?;
        let mut results = Results::new("misses", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("misses")?;
        let path = work.path().join("pages");
        let pages = u32::try_from(self.pool * FILE_TO_POOL / PAGE_BYTES as u64)?;
        ensure!(
            pages >= RUN_PAGES * 64,
            "a pool of {} is too small to measure: --pool",
            show_size(self.pool)
        );
        make_file(&path, pages)?;
        let world = self.open(&path, pages)?;
        let random = self.threads.iter().map(|&threads| Case::Random { threads });
        let mut rows = Vec::new();
        for case in random.chain([Case::Scan { readers: self.readers }]) {
            let (mut own, mut theirs) = (Vec::new(), Vec::new());
            for round in 0..self.rounds {
                // In changing order, so that neither always follows the other.
                for turn in [round % 2, 1 - round % 2] {
                    match turn {
                        0 => own.push(self.own(&world, case, round)?),
                        _ => theirs.push(self.theirs(&path, case)?),
                    }
                }
            }
            rows.push(self.row(case, &own, &theirs, &mut results));
        }
        println!(
            "Pages that are not in the pool, against fio with as many reads of as many bytes in flight (goal: {GOAL})"
        );
        let head = ["what", "threads", "unit", "pool", "fio", "ratio", "low", "high", "reached"];
        table::print(&head, &rows);
        results.save()
    }

    fn open(&self, path: &Path, pages: u32) -> Result<World> {
        let budget = Budget::new(self.pool + self.pool / 16 + (1 << 20), Backing::Mapped)?;
        let pool = Pool::new(&budget, self.pool / 8)?;
        let evictor = EvictorThread::start(Evictor::new(&pool, Arc::new(SystemClock::new())))?;
        let readers = ReaderThreads::start(&pool, self.readers as usize);
        let file = OsDisk::new().open(path, Open::Read, Caching::Direct)?;
        let file = pool.attach(Arc::new(Direct(file)));
        Ok(World { file, pool, pages, _evictor: evictor, _readers: readers })
    }

    /// Loads per second, or bytes per second of a scan.
    fn own(&self, world: &World, case: Case, round: u64) -> Result<f64> {
        match case {
            Case::Random { threads } => {
                world.random(threads, Duration::from_millis(self.turn_ms), round)
            }
            Case::Scan { .. } => world.scan(),
        }
    }

    fn theirs(&self, path: &Path, case: Case) -> Result<f64> {
        Ok(match case {
            Case::Random { threads } => {
                let seconds = Some(self.turn_ms as f64 / 1e3);
                fio::run(
                    path,
                    fio::Job { random: true, block_bytes: PAGE_BYTES, threads, seconds },
                )?
                .per_second
            }
            Case::Scan { readers: threads } => {
                let job =
                    fio::Job { random: false, block_bytes: CHUNK_BYTES, threads, seconds: None };
                fio::run(path, job)?.bytes_per_second
            }
        })
    }

    fn row(&self, case: Case, own: &[f64], theirs: &[f64], results: &mut Results) -> Vec<String> {
        let ratio =
            interval(&own.iter().zip(theirs).map(|(own, theirs)| own / theirs).collect::<Vec<_>>());
        let (name, threads, unit, scale) = match case {
            Case::Random { threads } => ("random", threads, "loads/s", 1.0),
            Case::Scan { readers } => ("scan", readers, "MB/s", 1e-6),
        };
        let settings = format!("what={name} pool={} threads={threads}", show_size(self.pool));
        let numbers = [
            ("pool_per_second", median(own)),
            ("fio_per_second", median(theirs)),
            ("ratio", ratio.median),
            ("ratio_low", ratio.low),
            ("ratio_high", ratio.high),
        ];
        numbers
            .into_iter()
            .for_each(|(metric, value)| results.note("misses", &settings, metric, value));
        let mut row = vec![name.to_owned(), threads.to_string(), unit.to_owned()];
        row.extend([median(own), median(theirs)].map(|rate| number(rate * scale)));
        row.extend([ratio.median, ratio.low, ratio.high].map(|part| format!("{part:.3}")));
        row.push(if ratio.median >= GOAL { "yes" } else { "NO" }.to_owned());
        row
    }
}

impl World {
    fn random(&self, threads: u64, length: Duration, round: u64) -> Result<f64> {
        let stop = AtomicBool::new(false);
        let before = self.pool.stats().loads;
        let seconds = std::thread::scope(|scope| -> Result<f64> {
            let began = Instant::now();
            let readers: Vec<_> = (0..threads)
                .map(|thread| {
                    let stop = &stop;
                    scope.spawn(move || -> Result<()> {
                        let mut state = payload::mix(round << 8 | thread);
                        while !stop.load(Ordering::Relaxed) {
                            state = payload::mix(state.wrapping_add(1));
                            self.read(
                                (((state >> 32) * u64::from(self.pages)) >> 32) as u32,
                                Touch::Point,
                            )?;
                        }
                        Ok(())
                    })
                })
                .collect();
            std::thread::sleep(length);
            stop.store(true, Ordering::Relaxed);
            let seconds = began.elapsed().as_secs_f64();
            readers
                .into_iter()
                .try_for_each(|reader| reader.join().expect("a reader does not panic"))?;
            Ok(seconds)
        })?;
        Ok((self.pool.stats().loads - before) as f64 / seconds)
    }

    fn scan(&self) -> Result<f64> {
        self.pool.clear();
        let began = Instant::now();
        let ahead = self.file.read_ahead_max();
        for page in 0..self.pages {
            // As a long scan of a run does: request read-ahead each time it has passed a read's
            // worth of pages.
            if page % RUN_PAGES == 0 {
                self.file.read_ahead(page, ahead.min(self.pages - page));
            }
            self.read(page, Touch::Scan)?;
        }
        Ok(f64::from(self.pages) * PAGE_BYTES as f64 / began.elapsed().as_secs_f64())
    }

    fn read(&self, number: u32, touch: Touch) -> Result<()> {
        let page = self.file.get(number, touch)?;
        ensure!(
            page[..8] == page_cache::word_at(number, 0).to_le_bytes(),
            "page {number} has wrong contents"
        );
        Ok(())
    }
}

fn make_file(path: &Path, pages: u32) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::create_new(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    let mut bytes = vec![0; CHUNK_BYTES];
    for first in (0..pages).step_by(RUN_PAGES as usize) {
        for (number, page) in (first..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
            page_cache::fill(number, page);
        }
        file.write_all_at(&bytes, u64::from(first) * PAGE_BYTES as u64)?;
    }
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}
