//! How fast the log scans, reads and appends durably, beside bare loops of the same work.
//!
//! `cargo run --release -p plimsoll-log --example scan_speed [DIR] [--records-of N] [--entries N]`
//!
//! DIR is created and, at the end, removed with its contents; it must not exist. Writes 200,000
//! entries of 128 bytes (or `--entries`) in records of one entry (or `--records-of`). Everything is
//! resident, reads begin at random entries; prints medians of slices of 2 ms. Durable appends are
//! compared with write + fdatasync of the same bytes on a file of zeros, alternating in the same
//! run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_log::draft::{Draft, DraftEntry};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PAYLOAD: [u8; 128] = [0x5a; 128];
const SLICE_NANOS: u64 = 2_000_000;
const SLICES: usize = 150;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let mut dir = PathBuf::from("scan_speed.tmp");
    let (mut record, mut entries) = (1, 200_000);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--records-of" => record = arguments.next().unwrap_or_default().parse()?,
            "--entries" => entries = arguments.next().unwrap_or_default().parse()?,
            path => dir = PathBuf::from(path),
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
    if disk.entry(&dir)?.is_some() {
        let dir = dir.display();
        return Err(format!("{dir} exists; remove it, or give a path that does not exist").into());
    }
    disk.create_dir(&dir)?;
    let result = scans(&disk, &dir, record, entries).and_then(|()| appends(&disk, &dir));
    remove_all(&*disk, &dir)?;
    result
}

fn remove_all(disk: &dyn Disk, dir: &Path) -> Outcome<()> {
    if disk.entry(dir)?.is_none() {
        return Ok(());
    }
    for entry in disk.list(dir)? {
        let path = dir.join(&entry.name);
        if entry.is_dir { remove_all(disk, &path)? } else { disk.remove(&path)? }
    }
    Ok(disk.remove_dir(dir)?)
}

fn open(disk: &Arc<dyn Disk>, dir: &Path) -> Outcome<FileLog> {
    let budget = Budget::new(256 << 20, Backing::Mapped)?;
    let pool = Pool::new(&budget, 64 << 20)?;
    let clock = Arc::new(SystemClock::new());
    let options = FileLogOptions::new(Arc::clone(disk), clock, dir.to_owned(), pool, budget);
    Ok(FileLog::open(options)?.0)
}

fn fill(log: &FileLog, record: usize, entries: u64) -> Outcome<()> {
    let parts: [&[u8]; 1] = [&PAYLOAD];
    let drafts = vec![DraftEntry { stream: StreamId(1), parts: &parts }; record];
    for _ in 0..entries as usize / record {
        log.submit(&Draft::of(&drafts), None)?;
    }
    Ok(log.sync()?)
}

fn scans(disk: &Arc<dyn Disk>, dir: &Path, record: usize, entries: u64) -> Outcome<()> {
    let log = open(disk, &dir.join("scans"))?;
    let clock = SystemClock::new();
    fill(&log, record, entries)?;
    println!("filled in {} ns per entry, synced once", clock.monotonic_nanos() / entries);
    println!("{entries} entries of 128 bytes in records of {record}, resident, random start");
    println!("nanoseconds, median and minimum of {SLICES} slices; the rest from the minimum");
    let mut random = Random::new(1);
    let mut sum = 0u64;
    let read = time(&clock, || {
        let entry = log.read(Glsn(1 + random.below(entries)))?;
        sum = sum.wrapping_add(u64::from(entry[7])).wrapping_add(entry.meta.timestamp_micros);
        Ok(())
    })?;
    println!("read of 1     {:>9.1} {:>9.1}", read.median, read.least);
    for count in [1, 10, 100, 1000] {
        let scan = time(&clock, || {
            let start = 1 + random.below(entries - count);
            let mut scan = log.scan(Glsn(start)..Glsn(start + count), None)?;
            let mut seen = 0;
            while let Some(entry) = scan.next_entry() {
                let entry = entry?;
                sum = sum
                    .wrapping_add(u64::from(entry.payload[7]))
                    .wrapping_add(entry.payload.len() as u64);
                seen += 1;
            }
            assert_eq!(seen, count);
            Ok(())
        })?;
        println!(
            "scan of {count:<5} {:>9.1} {:>9.1}   {:.2} per entry, {:.2} reads",
            scan.median,
            scan.least,
            scan.least / count as f64,
            scan.least / read.least
        );
    }
    println!("({sum})");
    Ok(())
}

/// Nanoseconds of one call: median and minimum over slices.
fn time(clock: &dyn Clock, mut call: impl FnMut() -> Outcome<()>) -> Outcome<Times> {
    let mut slices = Vec::new();
    for _ in 0..SLICES {
        let start = clock.monotonic_nanos();
        let mut calls = 0;
        while clock.monotonic_nanos() - start < SLICE_NANOS {
            for _ in 0..16 {
                call()?;
            }
            calls += 16;
        }
        slices.push((clock.monotonic_nanos() - start) as f64 / f64::from(calls));
    }
    slices.sort_by(f64::total_cmp);
    Ok(Times { median: slices[SLICES / 2], least: slices[0] })
}

#[derive(Clone, Copy)]
struct Times {
    median: f64,
    least: f64,
}

fn appends(disk: &Arc<dyn Disk>, dir: &Path) -> Outcome<()> {
    let log = open(disk, &dir.join("appends"))?;
    let bare = zeroed_file(disk, dir, 64 << 20)?;
    println!(
        "durable appends of 128 bytes, one entry each; a bare loop writes and syncs as many bytes \
         at a time"
    );
    for threads in [1u64, 8] {
        let mut rates = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..6 {
            let syncs_of_log = run(threads, |_| {
                let parts: [&[u8]; 1] = [&PAYLOAD];
                let entries = [DraftEntry { stream: StreamId(1), parts: &parts }];
                let ticket = log.submit(&Draft::of(&entries), None)?;
                Ok(log.wait_durable(ticket.last)?)
            })?;
            let group = threads as usize;
            let at = AtomicU64::new(round * (4 << 20));
            let bytes = vec![1u8; 224 * group];
            let syncs_of_bare = run(1, |_| {
                bare.write_at(&bytes, at.fetch_add(bytes.len() as u64, Ordering::Relaxed))?;
                Ok(bare.sync()?)
            })? * threads as f64;
            rates.0.push(syncs_of_log);
            rates.1.push(syncs_of_bare);
            rates.2.push(syncs_of_log / syncs_of_bare);
        }
        for list in [&mut rates.0, &mut rates.1, &mut rates.2] {
            list.sort_by(f64::total_cmp);
        }
        println!(
            "{threads} threads: log {:.0}/s, bare loop with groups of {threads} {:.0}/s, ratio \
             {:.2} ({:.2} to {:.2})",
            rates.0[3], rates.1[3], rates.2[3], rates.2[0], rates.2[5]
        );
    }
    Ok(())
}

/// Calls per second, measured for one second on several threads.
fn run(threads: u64, call: impl Fn(u64) -> Outcome<()> + Sync) -> Outcome<f64> {
    let clock = SystemClock::new();
    let calls = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let (clock, calls, call) = (&clock, &calls, &call);
                scope.spawn(move || -> Outcome<()> {
                    while clock.monotonic_nanos() < 1_000_000_000 {
                        call(worker)?;
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err("a worker panicked".into()))
        })
    })?;
    Ok(calls.load(Ordering::Relaxed) as f64 / (clock.monotonic_nanos() as f64 / 1e9))
}

fn zeroed_file(disk: &Arc<dyn Disk>, dir: &Path, bytes: u64) -> Outcome<Arc<dyn File>> {
    let file = disk.open(&dir.join("bare"), Open::CreateNew, Caching::Buffered)?;
    let zeros = vec![0; 1 << 20];
    for at in (0..bytes).step_by(zeros.len()) {
        file.write_at(&zeros, at)?;
    }
    file.sync()?;
    Ok(file)
}
